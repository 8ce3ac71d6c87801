"""ResultEncoder: encodes results as JSON for clients of one revision.

Inside the server, all results have the form of revision 2026-07-28. On its way to the client, a
result is changed as follows:

- For 2026-07-28, the members are added that every result has in that revision: resultType, `_meta`
  with serverInfo, and for some methods ttlMs and cacheScope.
- For an older revision, members and content that the revision does not know (revisions.py) are
  removed or replaced, and structured content becomes an object.

Error codes are translated in the same way.
Spec: the schemas of all five revisions, and the changelog of each; 2026-07-28 basic/index,
server/utilities/caching.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import UNSET, Raw, Struct
from msgspec.json import Decoder, decode, encode
from msgspec.structs import replace

from concertino.errors import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    MISSING_CAPABILITY,
    RESOURCE_NOT_FOUND,
    URL_ELICITATION_REQUIRED,
)
from concertino.jsonrpc.messages import JOINED_BYTES, one_line
from concertino.protocol.call import InputRequired
from concertino.protocol.revisions import Revision, limit_implementation
from concertino.types.results import (
    Annotations,
    AudioContent,
    Cacheable,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    Implementation,
    ListResult,
    ListToolsResult,
    ReadResourceResult,
    ResourceContents,
    ResourceLink,
    TextContent,
    Tool,
)

if TYPE_CHECKING:
    from concertino.types.resources_and_prompts import (
        GetPromptResult,
        ListPromptsResult,
        ListResourcesResult,
        ListResourceTemplatesResult,
        Prompt,
    )

__all__ = ["CACHED", "InputRequiredSignal", "ResultEncoder"]

# The key of a result's `_meta` under which it names the server (2026-07-28 basic/index).
SERVER_INFO = "io.modelcontextprotocol/serverInfo"

# The methods whose results have caching hints (server/utilities/caching).
CACHED = frozenset(
    (
        "server/discover",
        "tools/list",
        "prompts/list",
        "resources/list",
        "resources/templates/list",
        "resources/read",
    )
)

# The methods whose results are lists, which are cached as JSON.
LISTS = frozenset(("tools/list", "prompts/list", "resources/list", "resources/templates/list"))

# "Do not cache" is the default, because it is always correct.
NOT_CACHED = {"ttlMs": 0, "cacheScope": "private"}
NO_TTL = b'"ttlMs":0,'
PRIVATE = b'"cacheScope":"private",'
NO_HINTS = Cacheable()
COMPLETE = Raw(b'"complete"')

# A function that translates a result to an older revision. The types are Any, because each function
# takes and returns its own type of results.
Downgrade = Callable[[Any, Revision], Any]


class InputRequiredSignal(Exception):
    """Raised instead of encoding an InputRequired: the caller must ask the client for input."""


class ResultEncoder:
    """Encodes results, which have the form of revision 2026-07-28, for clients of one revision.

    revision: the revision of the clients.
    info: describes this server. Every 2026-07-28 result contains it (basic/index, SHOULD).
    """

    def __init__(self, revision: Revision, info: Implementation) -> None:
        self.revision = revision
        self._modern = revision.modern
        self._info = info
        # A cache, because lists rarely change: method -> the last list and its JSON.
        self._lists: dict[str, tuple[Struct | Raw, bytes]] = {}
        # Method -> decoder of its results. Making one takes longer than decoding a short result.
        self._decoders: dict[str, Callable[[Raw], Struct] | None] = {}

        # The beginning of the JSON of every 2026-07-28 result.
        empty_result = encode(
            {"resultType": "complete", "_meta": {SERVER_INFO: limit_implementation(info, revision)}}
        )
        self._start = empty_result.removesuffix(b"}") + b","
        # The beginning of the JSON of results with caching hints. A hint that the result lacks is
        # added: (result has ttlMs, result has cacheScope) -> beginning with the missing hints.
        self._cacheable_start = {
            (True, True): self._start,
            (True, False): self._start + PRIVATE,
            (False, True): self._start + NO_TTL,
            (False, False): self._start + NO_TTL + PRIVATE,
        }

    def encode(
        self,
        result: Struct | Raw,
        method: str,
        passes: Callable[[str], bool] | None = None,
    ) -> bytes:
        """Return a result as a JSON object without newlines, or b"" if guards must see it first.

        Guards are wrappers of the backend that may change results.
        method: the method of the request that the result answers.
        passes: None if no guard may change the result. Otherwise a function that gets a text and
            returns whether the guards leave it unchanged. With `passes`, only a tool result of a
            single text block is encoded, and only if passes(text) is true. For any other result b""
            is returned, and the caller must pass the result through the guards.
        Raises InputRequiredSignal for an InputRequired, TypeError for a value that is not a result,
        and msgspec's errors for a value that cannot be encoded.
        """
        # Check first for the most frequent result: one text block from a tool. The conditions of
        # _is_plain_block() are repeated here to save a function call.
        if type(result) is CallToolResult:
            content = result.content
            if len(content) == 1 and result.structured_content is UNSET and result.meta is None:
                block = content[0]
                if (
                    type(block) is TextContent
                    and type(block.text) is str
                    and block.annotations is None
                    and block.meta is None
                    and (passes is None or passes(block.text))
                ):
                    body = encode(result)
                    if not self._modern:
                        return body
                    # The slice below copies the body, which is fast only for a short one.
                    if len(body) > JOINED_BYTES:
                        return _insert_members(self._start, body)
                    return self._start + body[1:]
        if passes is not None:
            return b""

        if isinstance(result, Raw):
            if method in LISTS:
                return self._encode_list(result, method)
            return one_line(self._encode_members(result, method))
        # The type says Struct or Raw, but the backend may be untyped code.
        if not isinstance(result, Struct):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"expected a Struct or Raw, got {type(result).__name__}")
        if isinstance(result, ListResult):
            return self._encode_list(result, method)
        return one_line(self._encode_checked(result, method))

    def _encode_list(self, result: Struct | Raw, method: str) -> bytes:
        """Return the JSON of a list, from a cache if the list is the same object as last time."""
        cached = self._lists.get(method)
        if cached is None or cached[0] is not result:
            if isinstance(result, Raw):
                encoded = self._encode_members(result, method)
            else:
                encoded = self._encode_checked(result, method)
            cached = (result, one_line(encoded))
            self._lists[method] = cached
        return cached[1]

    def sends_all(self, result: Struct | Raw) -> bool:
        """Return whether encode() surely leaves out no text block and no structured content.

        Their length is then a lower bound of the size of the response. For older revisions,
        encode() leaves out what the revision does not have.
        """
        if self._modern:
            return type(result) is not InputRequired
        # Older revisions lack some members and kinds of content; before 2025-06-18 structured
        # content is left out, too. Results of nothing but plain text blocks, with structured
        # content or without, are certain.
        return (
            self.revision.richer_results and isinstance(result, Struct) and _is_plain_text(result)
        )

    def error_code(
        self,
        code: int,
        data: object,
        method: str,
    ) -> int:
        """Return the code of an error in the revision of the clients.

        - "Resource not found": in MCP 2026-07-28 the code is -32602, in response to
          `resources/read` and with data that contain `uri` (server/resources). In older revisions
          it is -32002.
        - A code that only the other revisions have becomes -32603.
        - All other codes stay the same.

        code, data: the code and data of the error, in the form of 2026-07-28.
        method: the method of the request that failed.
        """
        foreign_code = URL_ELICITATION_REQUIRED if self._modern else MISSING_CAPABILITY
        if code == foreign_code:
            return INTERNAL_ERROR
        if method != "resources/read":
            return code
        if self._modern:
            return INVALID_PARAMS if code == RESOURCE_NOT_FOUND else code
        missing = code == INVALID_PARAMS and isinstance(data, Mapping) and "uri" in data
        return RESOURCE_NOT_FOUND if missing else code

    def encode_closing(self, meta: Mapping[str, Any]) -> bytes:
        """Return an empty result as JSON, for a `subscriptions/listen` request that ends.

        Only for MCP 2026-07-28, the one revision with this request.
        meta: members for the `_meta` of the result.
        """
        return self._encode_members(Raw(encode({"_meta": meta})), "")

    def _encode_checked(self, result: Struct, method: str) -> bytes:
        """Check a result, translate it to this revision and encode it.

        method: the method of the request that the result answers.
        Raises InputRequiredSignal for an InputRequired, and TypeError for a value that is not a
        result.
        """
        downgrade = _DOWNGRADES.get(type(result))
        if downgrade is None:
            if type(result) is InputRequired:
                raise InputRequiredSignal
            downgrade = _feature_downgrades().get(type(result))
        if downgrade is not None and not _is_plain_text(result):
            # Imported here, because most servers send plain text only and never need it.
            from concertino.types.result_checks import check

            check(result)

        if self._modern:
            return self._encode_modern(result, method)
        result = downgrade(result, self.revision) if downgrade is not None else result
        if isinstance(result, Cacheable):
            result = replace(result, ttl_ms=UNSET, cache_scope=UNSET)
        meta: dict[str, Any] | None = getattr(result, "meta", None)
        if meta is not None and SERVER_INFO in meta:
            # The result comes from another server, of 2026-07-28, and names that server. Clients of
            # older revisions expect this only in the response to `initialize`.
            rest = {name: value for name, value in meta.items() if name != SERVER_INFO}
            # Any: not every result has this member.
            untyped: Any = result
            result = replace(untyped, meta=rest or None)
        return encode(result)

    def _encode_modern(self, result: Struct, method: str) -> bytes:
        """Encode a result together with the members that every MCP 2026-07-28 result has.

        The members are inserted as bytes at the beginning of the encoded result. That is faster
        than adding them before the result is encoded.
        """
        if getattr(result, "meta", None) is not None:
            return self._encode_members(Raw(encode(result)), method)
        body = encode(result)
        start = self._start
        if method in CACHED:
            hints = result if isinstance(result, Cacheable) else NO_HINTS
            has_hints = hints.ttl_ms is not UNSET, hints.cache_scope is not UNSET
            start = self._cacheable_start[has_hints]
        # `start` ends with a comma, which an empty result ({}) does not need.
        return _insert_members(start, body) if len(body) > 2 else start[:-1] + b"}"

    def _encode_members(self, result: Raw, method: str) -> bytes:
        """Translate a result that is given as JSON to this revision, and return it as JSON.

        For MCP 2026-07-28, the members that every result has are added; a `_meta` in the result is
        kept and gets the member serverInfo. For older revisions, the result is decoded and
        translated.
        """
        if not self._modern and (decode_result := self._decoder_of(method)) is not None:
            return self._encode_checked(decode_result(result), method)
        # msgspec does not check the UTF-8 of members that it keeps raw.
        str(result, "utf-8")
        members = decode(result, type=dict[str, Raw])
        if not self._modern:
            return encode(members)

        meta = decode(members.pop("_meta", b"{}"), type=dict[str, Any])
        meta.setdefault(SERVER_INFO, limit_implementation(self._info, self.revision))
        first: dict[str, Any] = {"resultType": "complete", "_meta": meta}
        # Only complete results have caching hints (server/utilities/caching).
        if method in CACHED and members.get("resultType", COMPLETE) == COMPLETE:
            first |= NOT_CACHED
        # Members of the result override these.
        return encode({**first, **members})

    def _decoder_of(self, method: str) -> Callable[[Raw], Struct] | None:
        """Return the function that decodes the results of a method; None if MCP has no such method.

        The decoders are made on first use, because making all of them would take 1 ms at the start.
        """
        if method not in self._decoders:
            result_type = _RESULT_TYPES.get(method) or _feature_types().get(method)
            self._decoders[method] = None if result_type is None else Decoder(result_type).decode
        return self._decoders[method]


def _insert_members(start: bytes, body: bytes) -> bytes:
    """Return a JSON object with members inserted at its beginning.

    start: a brace, the members, and a comma.
    body: the JSON object, which has members.
    """
    # The memoryview avoids a second copy of a long object.
    return b"".join((start, memoryview(body)[1:]))


# Method -> the type of its results. _feature_types() has more entries.
_RESULT_TYPES: Mapping[str, type[Struct]] = {
    "tools/call": CallToolResult,
    "tools/list": ListToolsResult,
    "resources/read": ReadResourceResult,
}


def _feature_types() -> Mapping[str, type[Struct]]:
    """Return the entries of _RESULT_TYPES that servers with only tools never need."""
    from concertino.types import resources_and_prompts as types

    return {
        "resources/list": types.ListResourcesResult,
        "resources/templates/list": types.ListResourceTemplatesResult,
        "prompts/list": types.ListPromptsResult,
        "prompts/get": types.GetPromptResult,
        "completion/complete": types.CompleteResult,
    }


def _is_plain_text(result: Struct) -> bool:
    """Return whether the content of a tool result is only plain text blocks.

    The result may have structured content, too. Such results are by far the most frequent ones, and
    nothing in them needs a check.
    """
    return (
        type(result) is CallToolResult
        and result.meta is None
        and all(map(_is_plain_block, result.content))
    )


def _is_plain_block(block: ContentBlock) -> bool:
    """Return whether a content block is text without annotations and `_meta`."""
    return (
        type(block) is TextContent
        and type(block.text) is str
        and block.annotations is None
        and block.meta is None
    )


# Results for the revisions before 2026-07-28


def _downgrade_call_result(result: CallToolResult, revision: Revision) -> CallToolResult:
    """Return a tool result in a form that the revision defines.

    Structured content that is not an object is wrapped: `{"result": value}`.
    """
    structured = result.structured_content
    content = [
        _downgrade_block(block, number, revision) for number, block in enumerate(result.content, 1)
    ]
    if structured is not UNSET:
        raw = bytes(structured) if type(structured) is Raw else encode(structured)
        if revision.richer_results:
            structured = Raw(raw if raw.lstrip()[:1] == b"{" else b'{"result":%b}' % raw)
        else:
            structured = UNSET
            # Usually a text block contains the structured content too. If there is none, send the
            # structured content as text.
            if not content:
                content = [TextContent(raw.decode())]
    return replace(result, content=content, structured_content=structured)


def _downgrade_block(block: ContentBlock, number: int, revision: Revision) -> ContentBlock:
    """Return a content block in a form that the revision defines.

    Audio becomes an embedded resource, and a resource link becomes text.
    number: the position of the block, from 1, for the URI of the embedded resource.
    """
    if isinstance(block, AudioContent) and not revision.audio:
        contents = ResourceContents(f"audio:{number}", blob=block.data, mime_type=block.mime_type)
        block = EmbeddedResource(contents, annotations=block.annotations)
    if isinstance(block, ResourceLink):
        if not revision.richer_results:
            text = f"{block.title or block.name}: {block.uri}"
            if block.description is not None:
                text = f"{text} ({block.description})"
            return TextContent(text)
        if not revision.icons:
            block = replace(block, icons=None)
    if revision.richer_results:
        return block

    block = replace(block, annotations=_drop_last_modified(block.annotations), meta=None)
    if isinstance(block, EmbeddedResource):
        block = replace(block, resource=replace(block.resource, meta=None))
    return block


def _drop_last_modified(annotations: Annotations | None) -> Annotations | None:
    return None if annotations is None else replace(annotations, last_modified=None)


def _downgrade_tools(result: ListToolsResult, revision: Revision) -> ListToolsResult:
    return replace(result, tools=[_downgrade_tool(tool, revision) for tool in result.tools])


def _downgrade_resources(result: ListResourcesResult, revision: Revision) -> ListResourcesResult:
    resources = [
        _downgrade_item(resource, resource.annotations, revision) for resource in result.resources
    ]
    return replace(result, resources=resources)


def _downgrade_templates(
    result: ListResourceTemplatesResult, revision: Revision
) -> ListResourceTemplatesResult:
    """Return a list of resource templates in a form that the revision defines."""
    templates = [
        _downgrade_item(template, template.annotations, revision)
        for template in result.resource_templates
    ]
    return replace(result, resource_templates=templates)


def _downgrade_prompts(result: ListPromptsResult, revision: Revision) -> ListPromptsResult:
    prompts = [_downgrade_item(prompt, None, revision) for prompt in result.prompts]
    if not revision.richer_results:
        prompts = [_drop_argument_titles(prompt) for prompt in prompts]
    return replace(result, prompts=prompts)


def _drop_argument_titles(prompt: Prompt) -> Prompt:
    if prompt.arguments is None:
        return prompt
    arguments = [replace(argument, title=None) for argument in prompt.arguments]
    return replace(prompt, arguments=arguments)


# A Resource, a ResourceTemplate or a Prompt.
Item = TypeVar("Item", bound=Struct)


def _downgrade_item(item: Item, annotations: Annotations | None, revision: Revision) -> Item:
    """Return an item of a list without the members that the revision does not define.

    annotations: the annotations of the item; None if it has none.
    """
    changes: dict[str, Any] = {}
    if not revision.icons:
        changes["icons"] = None
    if not revision.richer_results:
        changes |= {"title": None, "meta": None}
        if annotations is not None:
            changes["annotations"] = _drop_last_modified(annotations)
    return replace(item, **changes) if changes else item


def _downgrade_read_result(result: ReadResourceResult, revision: Revision) -> ReadResourceResult:
    if revision.richer_results:
        return result
    return replace(result, contents=[replace(part, meta=None) for part in result.contents])


def _downgrade_prompt_result(result: GetPromptResult, revision: Revision) -> GetPromptResult:
    """Return the messages of a prompt in a form that the revision defines."""
    messages = [
        replace(message, content=_downgrade_block(message.content, number, revision))
        for number, message in enumerate(result.messages, 1)
    ]
    return replace(result, messages=messages)


def _downgrade_tool(tool: Tool, revision: Revision) -> Tool:
    """Return a tool without the members that the revision does not define."""
    changes: dict[str, Any] = {"input_schema": _replace_boolean_schemas(tool.input_schema)}
    if not revision.annotations:
        changes["annotations"] = None
    if not revision.icons:
        changes["icons"] = None
    if not revision.richer_results:
        changes |= {"title": None, "output_schema": None, "meta": None}
    elif tool.output_schema is not None:
        # Imported here, because clients of 2026-07-28 never need it.
        from concertino.protocol.object_schemas import to_object_schema

        changes["output_schema"] = _replace_boolean_schemas(to_object_schema(tool.output_schema))
    return replace(tool, **changes)


def _replace_boolean_schemas(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema with {} and {"not": {}} for properties whose schema is `true` or `false`.

    Before MCP 2026-07-28, the schema of a property must be an object.
    """
    properties: dict[str, Any] = schema.get("properties", {})
    if not any(isinstance(value, bool) for value in properties.values()):
        return schema
    objects: dict[bool, dict[str, Any]] = {True: {}, False: {"not": {}}}
    replaced = {
        name: objects[value] if isinstance(value, bool) else value
        for name, value in properties.items()
    }
    return {**schema, "properties": replaced}


def _return_unchanged(result: Any, revision: Revision) -> Any:
    """Return a result unchanged, because it is the same in all revisions."""
    return result


# The functions that translate results to older revisions, by type of the result. More of them are
# in _feature_downgrades(). A result of any other type belongs to a method that MCP does not define;
# it is neither checked nor translated.
_DOWNGRADES: Mapping[type[Struct], Downgrade] = {
    CallToolResult: _downgrade_call_result,
    ListToolsResult: _downgrade_tools,
    ReadResourceResult: _downgrade_read_result,
}


def _feature_downgrades() -> Mapping[type[Struct], Downgrade]:
    """Return the entries of _DOWNGRADES that servers with only tools never need.

    This function is called for the results of prompts and completions, and for lists that have
    changed. A call takes 0.4 us.
    """
    from concertino.types import resources_and_prompts as types

    return {
        types.ListResourcesResult: _downgrade_resources,
        types.ListResourceTemplatesResult: _downgrade_templates,
        types.ListPromptsResult: _downgrade_prompts,
        types.GetPromptResult: _downgrade_prompt_result,
        types.CompleteResult: _return_unchanged,
    }
