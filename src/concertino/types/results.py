"""MCP's content blocks, tools and their results, as msgspec Structs of revision 2026-07-28.

    encode(TextContent("hello"))    # b'{"type":"text","text":"hello"}'

An attribute such as mime_type is mimeType on the wire, and meta is `_meta`. Fields that all results
have, such as `resultType` and `serverInfo`, are not declared here; protocol/wire_results.py adds
them, and translates results for older revisions. Resources, prompts and completions are in
types/resources_and_prompts.py.
Spec: 2026-07-28 schema; server/tools, server/resources, server/utilities.
"""

# No `from __future__ import annotations` here: msgspec compiles annotations that are strings when
# it decodes their Struct, in 10 us each.

from typing import Any, Literal

from msgspec import UNSET, Raw, Struct, UnsetType, field
from msgspec.json import decode

from concertino.decode_errors import DECODE_ERRORS

__all__ = [
    "LEVELS",
    "Annotations",
    "AudioContent",
    "CacheScope",
    "Cacheable",
    "CallToolResult",
    "ContentBlock",
    "EmbeddedResource",
    "Icon",
    "ImageContent",
    "Implementation",
    "Level",
    "ListResult",
    "ListToolsResult",
    "ReadResourceResult",
    "ResourceContents",
    "ResourceLink",
    "Role",
    "TextContent",
    "Tool",
    "ToolAnnotations",
    "error_result",
]

Meta = dict[str, Any]
# An error quotes at most this many characters of a text.
MAX_QUOTE = 200
Role = Literal["user", "assistant"]

# Who may use a cached result: "public" for all clients, "private" only for the client that has
# received it.
CacheScope = Literal["public", "private"]

Level = Literal["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]

# Log level -> its rank, 0 for the least severe: the severities of RFC 5424 (server/utilities/
# logging).
LEVELS: dict[str, int] = {
    name: rank
    for rank, name in enumerate(
        ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
    )
}


class Icon(Struct, frozen=True, omit_defaults=True, repr_omit_defaults=True, rename="camel"):
    """A picture for user interfaces.

    src: an https: or data: URI.
    sizes: sizes such as `48x48`, or `any` for a format such as SVG.
    theme: the theme of the user interface for which the picture is meant; None for any theme.
    """

    src: str
    mime_type: str | None = None
    sizes: list[str] | None = None
    theme: Literal["light", "dark"] | None = None


class Implementation(
    Struct, frozen=True, omit_defaults=True, repr_omit_defaults=True, rename="camel"
):
    """The description that a server or client gives of itself.

    name, version: for programs.
    title, description, website_url, icons: for people.
    """

    name: str
    version: str
    title: str | None = None
    description: str | None = None
    website_url: str | None = None
    icons: list[Icon] | None = None


class Annotations(Struct, frozen=True, omit_defaults=True, repr_omit_defaults=True, rename="camel"):
    """Hints about a content block or a resource.

    audience: the roles for which the content is meant.
    priority: a number from 0 (optional) to 1 (required).
    last_modified: the time of the last change, in ISO 8601.
    """

    audience: list[Role] | None = None
    priority: float | None = None
    last_modified: str | None = None


def _plain_repr(value: Struct) -> str:
    """Return a short repr of a Struct, such as `ImageContent(data=<2048 bytes>)`.

    Fields with default values are left out, bytes are replaced by their size, and undecoded JSON is
    decoded.
    """
    members = ", ".join(
        f"{name}={_plain_member_repr(member)}" for name, member in value.__rich_repr__()
    )
    return f"{type(value).__name__}({members})"


def _plain_member_repr(member: object) -> str:
    """Return the repr of the value of one field."""
    if isinstance(member, bytes):
        return f"<{len(member)} bytes>"
    return repr(decode(member) if isinstance(member, Raw) else member)


class TextContent(
    Struct, frozen=True, omit_defaults=True, repr_omit_defaults=True, tag_field="type", tag="text"
):
    """Text for the model."""

    text: str
    annotations: Annotations | None = None
    meta: Meta | None = field(name="_meta", default=None)


class ImageContent(
    Struct,
    frozen=True,
    omit_defaults=True,
    repr_omit_defaults=True,
    tag_field="type",
    tag="image",
    rename="camel",
):
    """A picture.

    data: the bytes of the file; base64 on the wire.
    """

    data: bytes
    mime_type: str
    annotations: Annotations | None = None
    meta: Meta | None = field(name="_meta", default=None)

    def __repr__(self) -> str:
        return _plain_repr(self)


class AudioContent(
    Struct,
    frozen=True,
    omit_defaults=True,
    repr_omit_defaults=True,
    tag_field="type",
    tag="audio",
    rename="camel",
):
    """Sound. Since 2025-03-26.

    data: the bytes of the file; base64 on the wire.
    """

    data: bytes
    mime_type: str
    annotations: Annotations | None = None
    meta: Meta | None = field(name="_meta", default=None)

    def __repr__(self) -> str:
        return _plain_repr(self)


class ResourceLink(
    Struct,
    frozen=True,
    omit_defaults=True,
    repr_omit_defaults=True,
    tag_field="type",
    tag="resource_link",
    rename="camel",
):
    """A link to a resource that the client may read. Since 2025-06-18.

    size: the size of the resource's content in bytes.
    """

    uri: str
    name: str
    title: str | None = None
    description: str | None = None
    mime_type: str | None = None
    size: int | None = None
    icons: list[Icon] | None = None
    annotations: Annotations | None = None
    meta: Meta | None = field(name="_meta", default=None)


class ResourceContents(
    Struct, frozen=True, omit_defaults=True, repr_omit_defaults=True, rename="camel"
):
    """Content of a resource: either a text or bytes.

    uri: the URI of the resource.
    text: the content, if it is a text; otherwise UNSET.
    blob: the content, if it is bytes; otherwise UNSET. It is base64 on the wire.
    """

    uri: str
    text: str | UnsetType = UNSET
    blob: bytes | UnsetType = UNSET
    mime_type: str | None = None
    meta: Meta | None = field(name="_meta", default=None)

    def __repr__(self) -> str:
        return _plain_repr(self)


class EmbeddedResource(
    Struct,
    frozen=True,
    omit_defaults=True,
    repr_omit_defaults=True,
    tag_field="type",
    tag="resource",
):
    """A resource's content as a content block of a tool result or prompt."""

    resource: ResourceContents
    annotations: Annotations | None = None
    meta: Meta | None = field(name="_meta", default=None)


ContentBlock = TextContent | ImageContent | AudioContent | ResourceLink | EmbeddedResource


class ToolAnnotations(
    Struct, frozen=True, omit_defaults=True, repr_omit_defaults=True, rename="camel"
):
    """Hints about what a tool does. Clients must not rely on them. Since 2025-03-26.

    None, for each hint, means that the server does not say.
    title: the name of the tool for people. Since 2025-06-18, Tool has a title itself.
    read_only_hint: whether the tool changes nothing.
    destructive_hint: whether the tool may destroy data.
    idempotent_hint: whether a second call with the same arguments has no further effect.
    open_world_hint: whether the tool uses systems outside of the server.
    """

    title: str | None = None
    read_only_hint: bool | None = None
    destructive_hint: bool | None = None
    idempotent_hint: bool | None = None
    open_world_hint: bool | None = None


class Tool(Struct, frozen=True, omit_defaults=True, repr_omit_defaults=True, rename="camel"):
    """A tool as `tools/list` returns it.

    input_schema: a JSON Schema 2020-12 of the arguments, with `type: object` at its root.
    output_schema: a JSON Schema 2020-12 of the structured content; None if there is none.
    """

    name: str
    input_schema: dict[str, Any]
    title: str | None = None
    description: str | None = None
    output_schema: dict[str, Any] | None = None
    annotations: ToolAnnotations | None = None
    icons: list[Icon] | None = None
    meta: Meta | None = field(name="_meta", default=None)


class CallToolResult(
    Struct, frozen=True, omit_defaults=True, repr_omit_defaults=True, rename="camel"
):
    """The result of a tool call.

        CallToolResult([TextContent("5 shelves are free")], structured_content={"free": 5})

    content: the content blocks, which the model gets.
    structured_content: any JSON value, or undecoded JSON as Raw. None is the value null; UNSET
        means that there is no structured content.
    is_error: whether the tool has failed; then the content describes the error.
    """

    content: list[ContentBlock]
    structured_content: Any | UnsetType = UNSET
    is_error: bool = False
    meta: Meta | None = field(name="_meta", default=None)

    def __repr__(self) -> str:
        return _plain_repr(self)

    @property
    def text(self) -> str:
        """Return the texts of all text blocks, joined with newlines."""
        return "\n".join(block.text for block in self.content if isinstance(block, TextContent))

    def json(self) -> Any:
        """Return the structured content as Python values.

        If there is no structured content, parse the text as JSON and return its value.
        Raises ValueError if there is no structured content and the text is not JSON.
        """
        if self.structured_content is not UNSET:
            content = self.structured_content
            return decode(content) if isinstance(content, Raw) else content
        try:
            return decode(self.text)
        except DECODE_ERRORS as exc:
            from concertino.excerpts import shorten_repr

            raise ValueError(
                f"the result has no structured content, and its text is not JSON ({exc}): "
                f"{shorten_repr(self.text, MAX_QUOTE)}"
            ) from None


def error_result(text: str) -> CallToolResult:
    """Return the result of a tool that has failed, with isError.

    text: the content of the result, which the model sees.
    """
    return CallToolResult([TextContent(text)], is_error=True)


class Cacheable(
    Struct, frozen=True, omit_defaults=True, repr_omit_defaults=True, rename="camel", kw_only=True
):
    """A result that clients may cache (2026-07-28 server/utilities/caching).

    ttl_ms: how many milliseconds the result may be cached; UNSET means 0.
    cache_scope: who may use the cached result; UNSET means "private".
    """

    ttl_ms: int | UnsetType = UNSET
    cache_scope: CacheScope | UnsetType = UNSET


class ListResult(
    Cacheable, frozen=True, omit_defaults=True, repr_omit_defaults=True, rename="camel"
):
    """A page of a list of tools, resources, resource templates or prompts."""


class ListToolsResult(
    ListResult, frozen=True, omit_defaults=True, repr_omit_defaults=True, rename="camel"
):
    """One page of the available tools, in a stable order.

    next_cursor: the cursor of the next page; None on the last page.
    """

    tools: list[Tool]
    next_cursor: str | None = None
    meta: Meta | None = field(name="_meta", default=None)


class ReadResourceResult(
    Cacheable, frozen=True, omit_defaults=True, repr_omit_defaults=True, rename="camel"
):
    """The result of `resources/read`: the content of a resource.

    contents: at least one part of the content, each with its own URI.
    """

    contents: list[ResourceContents]
    meta: Meta | None = field(name="_meta", default=None)
