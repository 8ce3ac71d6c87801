"""Canonical results and error codes -> the wire of one revision.

What a caller of an older revision gets holds no content that it does not know, no fields that it has not heard of, and structured
content that is an object. A caller of 2026-07-28 gets what every result says there. What each revision knows: revisions.py.
Spec: the schemas of all five revisions, and the changelog of each; 2026-07-28 basic/index, server/utilities/caching.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import UNSET, Raw, Struct
from msgspec.json import decode, encode
from msgspec.structs import replace

from concertino.errors import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    MISSING_CAPABILITY,
    RESOURCE_NOT_FOUND,
    URL_ELICITATION_REQUIRED,
)
from concertino.jsonrpc.messages import one_line
from concertino.protocol.call import InputRequired
from concertino.protocol.revisions import Revision, implementation
from concertino.types.results import (
    Annotations,
    AudioContent,
    Cacheable,
    CallToolResult,
    CompleteResult,
    ContentBlock,
    EmbeddedResource,
    GetPromptResult,
    Implementation,
    ListPromptsResult,
    ListResourcesResult,
    ListResourceTemplatesResult,
    ListToolsResult,
    PromptArgument,
    ReadResourceResult,
    ResourceContents,
    ResourceLink,
    TextContent,
    Tool,
)

__all__ = ["CACHED", "InputRequiredSignal", "ResultEncoder"]


class InputRequiredSignal(Exception):
    """Not a result: an InputRequired, which is to be asked first."""


class ResultEncoder:
    """Makes canonical results into the JSON for callers of one revision.

    info: this end, shown in every 2026-07-28 result (basic/index, SHOULD).
    """

    def __init__(self, revision: Revision, info: Implementation) -> None:
        self.revision = revision
        self._modern = revision.modern
        self._info = info
        self._lists: dict[
            type[Struct], tuple[Struct, bytes]
        ] = {}  # the last of each kind of list and its JSON
        start = encode(
            {"resultType": "complete", "_meta": {SERVER_INFO: implementation(info, revision)}}
        )[:-1]
        self._start = start + b","
        # By what the result says itself: ttlMs, cacheScope.
        self._cached = {
            (ttl, scope): b",".join(
                (start, *(() if ttl else (b'"ttlMs":0',)), *(() if scope else (PRIVATE,)), b"")
            )
            for ttl in (False, True)
            for scope in (False, True)
        }

    def encode(
        self, result: Struct | Raw, method: str, passes: Callable[[str], bool] | None = None
    ) -> bytes:
        """One result as a JSON object, without newlines. method: of the request that it answers.

        passes: whether a result of nothing but this text may leave as it is. It is asked here, where such a result is recognised
        anyway; if it is given, nothing is returned for any other result.
        Raises TypeError for what is no result, Unfinished for an InputRequired, and whatever makes one impossible to encode.
        """
        if (
            type(result) is CallToolResult
        ):  # first, and one piece of text first of all: this is the way of nearly all
            content = result.content
            if len(content) == 1 and result.structured_content is UNSET and result.meta is None:
                block = content[0]
                if (
                    type(block) is TextContent
                    and (
                        type(block.text) is str and block.annotations is None and block.meta is None
                    )
                    and (passes is None or passes(block.text))
                ):
                    return self._start + encode(result)[1:] if self._modern else encode(result)
        if passes is not None:
            return b""
        if isinstance(result, Raw):
            return one_line(self._encode_members(result, method))
        if not isinstance(result, Struct):  # pyright: ignore[reportUnnecessaryIsInstance]  # a backend's mistake
            raise TypeError(f"expected a Struct or Raw, got {type(result).__name__}")
        if type(result) in _LISTS:  # they rarely change
            kept = self._lists.get(type(result))
            if kept is None or kept[0] is not result:
                kept = (result, one_line(self._encode_checked(result, method)))
                self._lists[type(result)] = kept
            return kept[1]
        return one_line(self._encode_checked(result, method))

    def error_code(self, code: int, data: object, method: str) -> int:
        """The code of an error answer. A resource that is not there has a code of its own before 2026-07-28.

        That is what an error to `resources/read` means that is -32602 and names the URI in its data (server/resources).
        What one of the two eras only has becomes an internal error in the other.
        """
        if code == (URL_ELICITATION_REQUIRED if self._modern else MISSING_CAPABILITY):
            return INTERNAL_ERROR
        if method != "resources/read":
            return code
        if self._modern:
            return INVALID_PARAMS if code == RESOURCE_NOT_FOUND else code
        return (
            RESOURCE_NOT_FOUND
            if code == INVALID_PARAMS and isinstance(data, Mapping) and "uri" in data
            else code
        )

    def encode_closing(self, meta: Mapping[str, Any]) -> bytes:
        """An empty 2026-07-28 result with more in its `_meta`."""
        return self._encode_members(Raw(encode({"_meta": meta})), "")

    def _encode_checked(self, result: Struct, method: str) -> bytes:
        lower = _DOWNGRADES.get(type(result))
        if lower is None and type(result) is InputRequired:
            raise InputRequiredSignal
        if lower is not None and not _is_plain(result):
            from concertino.types.result_checks import (
                check,
            )  # nearly everybody answers with plain text

            check(result)
        if self._modern:
            return self._encode_modern(result, method)
        result = lower(result, self.revision) if lower is not None else result
        return encode(
            replace(result, ttl_ms=UNSET, cache_scope=UNSET)
            if isinstance(result, Cacheable)
            else result
        )

    def _encode_modern(self, result: Struct, method: str) -> bytes:
        """Add what every 2026-07-28 result says. The members go in front of the encoded ones: no second pass over them."""
        if getattr(result, "meta", None) is not None:
            return self._encode_members(Raw(encode(result)), method)
        body = encode(result)
        start = self._start
        if method in CACHED:
            says = result if isinstance(result, Cacheable) else UNSAID
            start = self._cached[says.ttl_ms is not UNSET, says.cache_scope is not UNSET]
        return start + body[1:] if len(body) > 2 else start[:-1] + b"}"

    def _encode_members(self, result: Raw, method: str) -> bytes:
        """A result that comes as JSON, or has `_meta` of its own."""
        if not self._modern and method in _SHAPES:
            return self._encode_checked(decode(result, type=_SHAPES[method]), method)
        str(result, "utf-8")  # members that stay raw are not looked into
        members = decode(result, type=dict[str, Raw])
        if not self._modern:
            return encode(members)
        meta = decode(members.pop("_meta", b"{}"), type=dict[str, Any])
        meta.setdefault(SERVER_INFO, implementation(self._info, self.revision))
        first: dict[str, Any] = {"resultType": "complete", "_meta": meta}
        # server/utilities/caching: no hints on what is not complete.
        if method in CACHED and members.get("resultType", COMPLETE) == COMPLETE:
            first |= NOT_CACHED
        return encode({**first, **members})


SERVER_INFO = "io.modelcontextprotocol/serverInfo"
CACHED = frozenset(  # server/utilities/caching: the results that carry hints
    (
        "server/discover",
        "tools/list",
        "prompts/list",
        "resources/list",
        "resources/templates/list",
        "resources/read",
    )
)
NOT_CACHED = {"ttlMs": 0, "cacheScope": "private"}  # stale at once: always allowed, never wrong
PRIVATE = b'"cacheScope":"private"'
UNSAID = Cacheable()
COMPLETE = Raw(b'"complete"')
_LISTS = frozenset(
    (ListToolsResult, ListResourcesResult, ListResourceTemplatesResult, ListPromptsResult)
)
_SHAPES: Mapping[str, type[Struct]] = {
    "tools/call": CallToolResult,
    "tools/list": ListToolsResult,
    "resources/list": ListResourcesResult,
    "resources/templates/list": ListResourceTemplatesResult,
    "resources/read": ReadResourceResult,
    "prompts/list": ListPromptsResult,
    "prompts/get": GetPromptResult,
    "completion/complete": CompleteResult,
}


def _call_result(result: CallToolResult, revision: Revision) -> CallToolResult:
    """A tool's result for a caller with a handshake, when there may be something to change."""
    structured = result.structured_content
    content = [_block(block, number, revision) for number, block in enumerate(result.content, 1)]
    if structured is not UNSET:
        raw = bytes(structured) if type(structured) is Raw else encode(structured)
        if revision.links:
            structured = Raw(raw if raw.lstrip()[:1] == b"{" else b'{"result":%b}' % raw)
        else:
            structured = UNSET
            if not content:  # a text block usually says the same; here it is all there is
                content = [TextContent(raw.decode())]
    return replace(result, content=content, structured_content=structured)


def _block(block: ContentBlock, number: int, revision: Revision) -> ContentBlock:
    """One piece of content for an older caller: what it does not know becomes something that it does."""
    if isinstance(block, AudioContent) and not revision.audio:
        contents = ResourceContents(f"audio:{number}", blob=block.data, mime_type=block.mime_type)
        block = EmbeddedResource(contents, annotations=block.annotations)
    if isinstance(block, ResourceLink):
        if not revision.links:
            text = f"{block.title or block.name}: {block.uri}"
            return TextContent(
                text if block.description is None else f"{text} ({block.description})"
            )
        if not revision.icons:
            block = replace(block, icons=None)
    if revision.links:
        return block
    block = replace(block, annotations=_drop_last_modified(block.annotations), meta=None)
    return (
        replace(block, resource=replace(block.resource, meta=None))
        if isinstance(block, EmbeddedResource)
        else block
    )


def _is_plain(result: Struct) -> bool:
    """Whether it is a tool's result of plain texts, structured or not: nothing to check, and by far the most frequent."""
    return (
        type(result) is CallToolResult
        and result.meta is None
        and all(map(_is_text, result.content))
    )


def _is_text(block: ContentBlock) -> bool:
    return (
        type(block) is TextContent
        and type(block.text) is str
        and block.annotations is None
        and block.meta is None
    )


def _drop_last_modified(annotations: Annotations | None) -> Annotations | None:
    return None if annotations is None else replace(annotations, last_modified=None)


def _tool_list(result: ListToolsResult, revision: Revision) -> ListToolsResult:
    return replace(result, tools=[_tool(each, revision) for each in result.tools])


def _resource_list(result: ListResourcesResult, revision: Revision) -> ListResourcesResult:
    return replace(result, resources=[_item(each, revision) for each in result.resources])


def _template_list(
    result: ListResourceTemplatesResult, revision: Revision
) -> ListResourceTemplatesResult:
    return replace(
        result, resource_templates=[_item(each, revision) for each in result.resource_templates]
    )


def _prompt_list(result: ListPromptsResult, revision: Revision) -> ListPromptsResult:
    prompts = [_item(each, revision) for each in result.prompts]
    if not revision.links:
        prompts = [
            each
            if each.arguments is None
            else replace(each, arguments=[_drop_title(one) for one in each.arguments])
            for each in prompts
        ]
    return replace(result, prompts=prompts)


def _drop_title(argument: PromptArgument) -> PromptArgument:
    return replace(argument, title=None)


def _item(item: Any, revision: Revision) -> Any:
    """A resource, a template or a prompt, as a list shows it; Any: they have nothing in common but these members."""
    changed: dict[str, Any] = {}
    if not revision.icons:
        changed["icons"] = None
    if not revision.links:
        changed |= {"title": None, "meta": None}
        if hasattr(item, "annotations"):
            changed["annotations"] = _drop_last_modified(item.annotations)
    return replace(item, **changed) if changed else item


def _read(result: ReadResourceResult, revision: Revision) -> ReadResourceResult:
    if revision.links:
        return result
    return replace(result, contents=[replace(each, meta=None) for each in result.contents])


def _prompt(result: GetPromptResult, revision: Revision) -> GetPromptResult:
    numbered = enumerate(result.messages, 1)
    return replace(
        result,
        messages=[replace(each, content=_block(each.content, n, revision)) for n, each in numbered],
    )


def _tool(tool: Tool, revision: Revision) -> Tool:
    """One tool for a caller with a handshake."""
    changed: dict[str, Any] = {"input_schema": _object_properties(tool.input_schema)}
    if not revision.annotations:
        changed["annotations"] = None
    if not revision.icons:
        changed["icons"] = None
    if not revision.links:
        changed |= {"title": None, "output_schema": None, "meta": None}
    elif tool.output_schema is not None:
        changed["output_schema"] = _object_schema(tool.output_schema)
    return replace(tool, **changed)


def _object_properties(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with each property's schema an object: before 2026-07-28 the wire has no `true` and `false` there."""
    properties: dict[str, Any] = schema.get("properties", {})
    if not any(isinstance(each, bool) for each in properties.values()):
        return schema
    spelled: dict[bool, dict[str, Any]] = {True: {}, False: {"not": {}}}
    return {
        **schema,
        "properties": {k: spelled[v] if isinstance(v, bool) else v for k, v in properties.items()},
    }


def _object_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """An output schema for revisions in which structured content is an object: other values travel as `{"result": value}`.

    A schema that admits both objects and other values (`Point | None`) describes both forms, since the value decides.
    """
    everywhere: dict[str, Any] = schema.get("$defs", {})
    named: dict[str, dict[str, Any]] = {
        f"#/$defs/{k}": v for k, v in everywhere.items() if isinstance(v, dict)
    }
    root = schema
    seen: set[str] = set()
    while "type" not in root and isinstance(name := root.get("$ref"), str) and name not in seen:
        seen.add(name)
        root = named.get(name, {})
    kind = root.get("type")
    if kind == "object":
        return _object_properties({**schema, "type": "object"})
    either = kind is None or (isinstance(kind, list) and "object" in kind)
    base = name if isinstance(name := schema.get("$id"), str) else ""
    schema = _rebase_refs(
        schema, "#/anyOf/1" if either else "#/properties/result", base.rstrip("#")
    )
    outside = {
        key: schema.pop(key) for key in ("$defs", "definitions", "$schema", "$id") if key in schema
    }
    inside = schema
    if either and any(
        word in encode(schema) for word in (b'"$id"', b'"$anchor"', b'"$dynamicAnchor"')
    ):
        inside = {"$ref": "#/anyOf/1"}  # nothing may have one name at two places
    wrapped: dict[str, Any] = {"properties": {"result": inside}, "required": ["result"]}
    if either:
        wrapped = {"anyOf": [wrapped, schema]}
    return {"type": "object", **wrapped, **outside}


def _rebase_refs(part: Any, to: str, base: str) -> Any:
    """A copy of a schema whose root will be at `to`: what refers to the root, or to a place under it, does so still.

    base: the `$id` of the root, which stays at the root; empty for none.
    """
    if isinstance(part, list):
        return [_rebase_refs(each, to, base) for each in part]  # pyright: ignore[reportUnknownVariableType]
    if not isinstance(part, dict):
        return part
    moved: dict[str, Any] = {}
    for key, each in part.items():  # pyright: ignore[reportUnknownVariableType]
        embedded = isinstance(each, dict) and isinstance(each.get("$id"), str)  # pyright: ignore[reportUnknownMemberType]
        moved[key] = (
            each if embedded else _rebase_refs(each, to, base)
        )  # what is embedded refers to itself
    for word in ("$ref", "$dynamicRef"):
        target = moved.get(word)
        if not isinstance(target, str):
            continue
        if base and target[:1] != "#":
            from urllib.parse import urldefrag, urljoin

            uri, fragment = urldefrag(urljoin(base, target))
            target = f"#{fragment}" if uri == base else target
        if target[:2] in ("#", "#/") and not target.startswith(("#/$defs/", "#/definitions/")):
            moved[word] = to + target[1:]
    return moved


def _keep(result: Any, revision: Revision) -> Any:
    return result


# What a result becomes for callers with a handshake. These are checked before they leave; others are their backend's own.
_DOWNGRADES: Mapping[type[Struct], Callable[[Any, Revision], Any]] = {
    CallToolResult: _call_result,
    ListToolsResult: _tool_list,
    ListResourcesResult: _resource_list,
    ListResourceTemplatesResult: _template_list,
    ReadResourceResult: _read,
    ListPromptsResult: _prompt_list,
    GetPromptResult: _prompt,
    CompleteResult: _keep,
}
