"""MCP's vocabulary in its 2026-07-28 shape, as msgspec Structs.

Attributes are in snake_case, the wire is in camelCase; `_meta` is `meta` here. Older revisions' shapes are made from these by
`ResultEncoder`. What belongs to every result alike (`resultType`, `serverInfo`, the caching hints that a result does not bring
itself) is added there too.
Spec: 2026-07-28 schema; server/tools, server/resources, server/prompts, server/utilities.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType, field

__all__ = [
    "LEVELS",
    "Annotations",
    "AudioContent",
    "CacheScope",
    "Cacheable",
    "CallToolResult",
    "CompleteParams",
    "CompleteResult",
    "Completion",
    "CompletionArgument",
    "CompletionContext",
    "ContentBlock",
    "EmbeddedResource",
    "GetPromptResult",
    "Icon",
    "ImageContent",
    "Implementation",
    "Level",
    "ListPromptsResult",
    "ListResourceTemplatesResult",
    "ListResourcesResult",
    "ListToolsResult",
    "Prompt",
    "PromptArgument",
    "PromptMessage",
    "PromptReference",
    "ReadResourceResult",
    "Resource",
    "ResourceContents",
    "ResourceLink",
    "ResourceTemplate",
    "ResourceTemplateReference",
    "Role",
    "TextContent",
    "Tool",
    "ToolAnnotations",
]

Meta = dict[str, Any]
Role = Literal["user", "assistant"]
CacheScope = Literal[
    "public", "private"
]  # who may share a cached result: everybody, or only whoever asked
Level = Literal["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]
LEVELS: dict[str, int] = {  # RFC 5424 severities, least severe first; server/utilities/logging
    name: rank
    for rank, name in enumerate(
        ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
    )
}


class Icon(Struct, frozen=True, omit_defaults=True, rename="camel"):
    """A picture for a user interface. src: an https: or data: URI; sizes: `48x48` or `any`."""

    src: str
    mime_type: str | None = None
    sizes: list[str] | None = None
    theme: Literal["light", "dark"] | None = None


class Implementation(Struct, frozen=True, omit_defaults=True, rename="camel"):
    """Who is at one end: name and version for programs, title for people."""

    name: str
    version: str
    title: str | None = None
    description: str | None = None
    website_url: str | None = None
    icons: list[Icon] | None = None


class Annotations(Struct, frozen=True, omit_defaults=True, rename="camel"):
    """Hints about a piece of content. priority: 0 (optional) to 1 (required); last_modified: ISO 8601."""

    audience: list[Role] | None = None
    priority: float | None = None
    last_modified: str | None = None


class TextContent(Struct, frozen=True, omit_defaults=True, tag_field="type", tag="text"):
    """Text for the model."""

    text: str
    annotations: Annotations | None = None
    meta: Meta | None = field(name="_meta", default=None)


class ImageContent(
    Struct, frozen=True, omit_defaults=True, tag_field="type", tag="image", rename="camel"
):
    """A picture; data holds its bytes, base64 on the wire."""

    data: bytes
    mime_type: str
    annotations: Annotations | None = None
    meta: Meta | None = field(name="_meta", default=None)


class AudioContent(
    Struct, frozen=True, omit_defaults=True, tag_field="type", tag="audio", rename="camel"
):
    """Sound; data holds its bytes, base64 on the wire. Since 2025-03-26."""

    data: bytes
    mime_type: str
    annotations: Annotations | None = None
    meta: Meta | None = field(name="_meta", default=None)


class ResourceLink(
    Struct, frozen=True, omit_defaults=True, tag_field="type", tag="resource_link", rename="camel"
):
    """A pointer to a resource that the client may read. Since 2025-06-18."""

    uri: str
    name: str
    title: str | None = None
    description: str | None = None
    mime_type: str | None = None
    size: int | None = None
    icons: list[Icon] | None = None
    annotations: Annotations | None = None
    meta: Meta | None = field(name="_meta", default=None)


class ResourceContents(Struct, frozen=True, omit_defaults=True, rename="camel"):
    """The content of a resource: text, or blob (bytes here, base64 on the wire); exactly one of the two."""

    uri: str
    text: str | UnsetType = UNSET
    blob: bytes | UnsetType = UNSET
    mime_type: str | None = None
    meta: Meta | None = field(name="_meta", default=None)


class EmbeddedResource(Struct, frozen=True, omit_defaults=True, tag_field="type", tag="resource"):
    """A resource's content, inside a result."""

    resource: ResourceContents
    annotations: Annotations | None = None
    meta: Meta | None = field(name="_meta", default=None)


ContentBlock = TextContent | ImageContent | AudioContent | ResourceLink | EmbeddedResource


class ToolAnnotations(Struct, frozen=True, omit_defaults=True, rename="camel"):
    """Hints about what a tool does; a client must not trust them. Since 2025-03-26."""

    title: str | None = None
    read_only_hint: bool | None = None
    destructive_hint: bool | None = None
    idempotent_hint: bool | None = None
    open_world_hint: bool | None = None


class Tool(Struct, frozen=True, omit_defaults=True, rename="camel"):
    """One tool as `tools/list` shows it. Both schemas are JSON Schema 2020-12; the input's root has type object."""

    name: str
    input_schema: dict[str, Any]
    title: str | None = None
    description: str | None = None
    output_schema: dict[str, Any] | None = None
    annotations: ToolAnnotations | None = None
    icons: list[Icon] | None = None
    meta: Meta | None = field(name="_meta", default=None)


class CallToolResult(Struct, frozen=True, omit_defaults=True, rename="camel"):
    """What a tool gives back. structured_content: any JSON value (None is a value; UNSET is none), or Raw JSON."""

    content: list[ContentBlock]
    structured_content: Any | UnsetType = UNSET
    is_error: bool = False
    meta: Meta | None = field(name="_meta", default=None)


class Cacheable(Struct, frozen=True, omit_defaults=True, rename="camel", kw_only=True):
    """A result that may be kept. ttl_ms: for how long it is fresh, in milliseconds; UNSET: not said, which callers take as 0.

    Spec: 2026-07-28 server/utilities/caching. Older revisions do not have it.
    """

    ttl_ms: int | UnsetType = UNSET
    cache_scope: CacheScope | UnsetType = UNSET


class ListToolsResult(Cacheable, frozen=True, omit_defaults=True, rename="camel"):
    """The tools on offer, in an order that does not change by itself. next_cursor: where the next page begins."""

    tools: list[Tool]
    next_cursor: str | None = None
    meta: Meta | None = field(name="_meta", default=None)


class Resource(Struct, frozen=True, omit_defaults=True, rename="camel"):
    """One resource as `resources/list` shows it. size: of its content, in bytes, before any encoding."""

    uri: str
    name: str
    title: str | None = None
    description: str | None = None
    mime_type: str | None = None
    size: int | None = None
    annotations: Annotations | None = None
    icons: list[Icon] | None = None
    meta: Meta | None = field(name="_meta", default=None)


class ResourceTemplate(Struct, frozen=True, omit_defaults=True, rename="camel"):
    """Resources whose URIs follow an RFC 6570 template. mime_type: only if all of them have it."""

    uri_template: str
    name: str
    title: str | None = None
    description: str | None = None
    mime_type: str | None = None
    annotations: Annotations | None = None
    icons: list[Icon] | None = None
    meta: Meta | None = field(name="_meta", default=None)


class ListResourcesResult(Cacheable, frozen=True, omit_defaults=True, rename="camel"):
    """The resources on offer, but for those of templates."""

    resources: list[Resource]
    next_cursor: str | None = None
    meta: Meta | None = field(name="_meta", default=None)


class ListResourceTemplatesResult(Cacheable, frozen=True, omit_defaults=True, rename="camel"):
    """The resource templates on offer."""

    resource_templates: list[ResourceTemplate]
    next_cursor: str | None = None
    meta: Meta | None = field(name="_meta", default=None)


class ReadResourceResult(Cacheable, frozen=True, omit_defaults=True, rename="camel"):
    """What a resource holds: at least one piece, each with the URI that it has itself."""

    contents: list[ResourceContents]
    meta: Meta | None = field(name="_meta", default=None)


class PromptArgument(Struct, frozen=True, omit_defaults=True):
    """One argument of a prompt; its values are strings."""

    name: str
    title: str | None = None
    description: str | None = None
    required: bool | None = None


class Prompt(Struct, frozen=True, omit_defaults=True):
    """One prompt as `prompts/list` shows it."""

    name: str
    title: str | None = None
    description: str | None = None
    arguments: list[PromptArgument] | None = None
    icons: list[Icon] | None = None
    meta: Meta | None = field(name="_meta", default=None)


class PromptMessage(Struct, frozen=True):
    """One message of a prompt: who speaks, and one piece of content."""

    role: Role
    content: ContentBlock


class GetPromptResult(Struct, frozen=True, omit_defaults=True):
    """A prompt, filled in."""

    messages: list[PromptMessage]
    description: str | None = None
    meta: Meta | None = field(name="_meta", default=None)


class ListPromptsResult(Cacheable, frozen=True, omit_defaults=True, rename="camel"):
    """The prompts on offer."""

    prompts: list[Prompt]
    next_cursor: str | None = None
    meta: Meta | None = field(name="_meta", default=None)


class PromptReference(Struct, frozen=True, omit_defaults=True, tag_field="type", tag="ref/prompt"):
    """A prompt whose argument is being completed."""

    name: str
    title: str | None = None


class ResourceTemplateReference(Struct, frozen=True, tag_field="type", tag="ref/resource"):
    """A resource template whose variable is being completed. uri: the template."""

    uri: str


class CompletionArgument(Struct, frozen=True):
    """What is being completed. value: as far as it was typed."""

    name: str
    value: str


class CompletionContext(Struct, frozen=True, omit_defaults=True):
    """What the user has chosen already: argument to value. Since 2025-06-18."""

    arguments: dict[str, str] = {}


class CompleteParams(Struct, frozen=True, omit_defaults=True):
    """The params of `completion/complete`."""

    ref: PromptReference | ResourceTemplateReference
    argument: CompletionArgument
    context: CompletionContext = CompletionContext()


class Completion(Struct, frozen=True, omit_defaults=True, rename="camel"):
    """Values to choose from, at most 100. total: how many there are in all; has_more: whether there are more than these."""

    values: list[str]
    total: int | None = None
    has_more: bool | None = None


class CompleteResult(Struct, frozen=True, omit_defaults=True):
    """The answer to `completion/complete`."""

    completion: Completion
    meta: Meta | None = field(name="_meta", default=None)
