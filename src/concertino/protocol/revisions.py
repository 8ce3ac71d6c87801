"""The five revisions of MCP as one table, and the way between their wire and the canonical 2026-07-28 shape.

This is the only module in which a revision's name appears. Backends and handlers speak canonical; `lower` makes of their results
what a caller of an older revision may get: no content it does not know, no fields it has not heard of, structured content that
is an object. Requests need no lifting yet beyond what session.py does with `_meta`.
Spec: the schemas of all five revisions, and the changelog of each.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import UNSET, Raw, Struct
from msgspec.json import decode, encode
from msgspec.structs import replace

from concertino.protocol.jsonrpc import one_line
from concertino.protocol.types import (
    AudioContent,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    Implementation,
    ListToolsResult,
    ResourceContents,
    ResourceLink,
    TextContent,
    Tool,
)

__all__ = [
    "LATEST_LEGACY",
    "LEGACY",
    "MODERN",
    "REQUESTS",
    "REVISIONS",
    "Lowering",
    "Method",
    "Revision",
    "by_name",
    "capabilities",
    "implementation",
    "negotiate",
]


class Revision(Struct, frozen=True):
    """What one revision's wire can carry. Each flag names a thing that some revisions know and others do not."""

    name: str
    modern: bool = False  # no handshake: every request says its revision in `_meta`; results say resultType
    batches: bool = False  # JSON-RPC arrays are received
    idless_errors: bool = False  # an error without a readable id leaves the member out; before, it is null
    audio: bool = True
    links: bool = (
        True  # resource_link content, and structured tool results with their schemas; titles, `_meta` on items
    )
    annotations: bool = True  # on tools
    icons: bool = True  # and websiteUrl, description of an implementation
    completions: bool = True  # as a capability
    progress_text: bool = True


_A = Revision(
    "2024-11-05", audio=False, links=False, annotations=False, icons=False, completions=False, progress_text=False
)
_B = Revision("2025-03-26", batches=True, links=False, icons=False)
_C = Revision("2025-06-18", icons=False)
_D = Revision("2025-11-25", idless_errors=True)
_E = Revision("2026-07-28", idless_errors=True, modern=True)

REVISIONS = (_A, _B, _C, _D, _E)
LEGACY = REVISIONS[:-1]
LATEST_LEGACY = _D
MODERN = _E
by_name: Mapping[str, Revision] = {each.name: each for each in REVISIONS}


class Method(Struct, frozen=True):
    """Where a client's request exists. feature: what a backend must offer for it; empty where the session answers itself."""

    feature: str
    legacy: bool = True
    modern: bool = True


REQUESTS: Mapping[str, Method] = {
    "initialize": Method("", modern=False),
    "ping": Method("", modern=False),
    "logging/setLevel": Method("logging", modern=False),
    "server/discover": Method("", legacy=False),
    "tools/list": Method("tools"),
    "tools/call": Method("tools"),
    "resources/list": Method("resources"),
    "resources/templates/list": Method("resources"),
    "resources/read": Method("resources"),
    "prompts/list": Method("prompts"),
    "prompts/get": Method("prompts"),
    "completion/complete": Method("completions"),
}


def negotiate(requested: str) -> Revision:
    """The revision to answer `initialize` with: the one asked for, else our newest that has a handshake."""
    revision = by_name.get(requested, LATEST_LEGACY)
    return LATEST_LEGACY if revision.modern else revision


class Lowering:
    """Makes canonical results into the JSON for callers of one revision.

    info: this end, shown in every 2026-07-28 result (basic/index, SHOULD).
    """

    def __init__(self, revision: Revision, info: Implementation) -> None:
        self.revision = revision
        self._modern = revision.modern
        self._info = info
        self._list: tuple[Struct, bytes] | None = None  # the last tool list and its JSON: it rarely changes
        start = encode({"resultType": "complete", "_meta": {SERVER_INFO: implementation(info, revision)}})[:-1]
        self._start = start + b","
        self._cached = start + b"," + encode(NOT_CACHED)[1:-1] + b","

    def result(self, result: Struct | Raw, method: str) -> bytes:
        """One result as a JSON object, without newlines. method: of the request that it answers.

        Raises TypeError for what is no result, and whatever makes one impossible to encode.
        """
        if type(result) is CallToolResult:  # first, and one piece of text first of all: this is the way of nearly all
            content = result.content
            if len(content) == 1 and result.structured_content is UNSET and result.meta is None:
                block = content[0]
                if type(block) is TextContent and block.annotations is None and block.meta is None:
                    return self._start + encode(result)[1:] if self._modern else encode(result)
        if isinstance(result, CallToolResult):
            return one_line(self._call_result(result, method))
        if isinstance(result, Raw):
            return one_line(self._foreign(result, method))
        if not isinstance(result, Struct):  # pyright: ignore[reportUnnecessaryIsInstance]  # a backend's mistake
            raise TypeError(f"expected a Struct or Raw, got {type(result).__name__}")
        if isinstance(result, ListToolsResult):
            return self._tool_list(result, method)
        return one_line(self._complete(result, method) if self._modern else encode(result))

    def _call_result(self, result: CallToolResult, method: str) -> bytes:
        for block in result.content:  # a union is not checked when a Struct is made
            if type(block) not in _BLOCKS:
                raise TypeError(f"content: expected content blocks, got {type(block).__name__}")
        if self._modern:
            return self._complete(result, method)
        return encode(_call_result(result, self.revision))

    def _tool_list(self, result: ListToolsResult, method: str) -> bytes:
        if self._list is None or self._list[0] is not result:
            if self._modern:
                body = self._complete(result, method)
            else:
                body = encode(replace(result, tools=[_tool(tool, self.revision) for tool in result.tools]))
            self._list = (result, one_line(body))
        return self._list[1]

    def _complete(self, result: Struct, method: str) -> bytes:
        """Add what every 2026-07-28 result says. The members go in front of the encoded ones: no second pass over them."""
        if getattr(result, "meta", None) is not None:
            return self._foreign(Raw(encode(result)), method)
        body = encode(result)
        start = self._cached if method in CACHED else self._start
        return start + body[1:] if len(body) > 2 else start[:-1] + b"}"

    def _foreign(self, result: Raw, method: str) -> bytes:
        """A result that comes as JSON, or has `_meta` of its own."""
        if not self._modern and method in _SHAPES:
            return self.result(decode(result, type=_SHAPES[method]), method)
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


def implementation(info: Implementation, revision: Revision) -> Implementation:
    """What an end may say about itself in this revision."""
    if revision.icons:
        return info
    return Implementation(info.name, info.version, title=info.title if revision.links else None)


def capabilities(offer: Mapping[str, Any], revision: Revision) -> dict[str, Any]:
    """What a server declares. offer: capability name to its settings, as in 2025-11-25, plus `extensions`."""
    known = {name: value for name, value in offer.items() if name != "extensions" or revision.modern}
    if not revision.completions:
        known.pop("completions", None)
    return known


SERVER_INFO = "io.modelcontextprotocol/serverInfo"
CACHED = frozenset(  # server/utilities/caching: the results that carry hints
    ("server/discover", "tools/list", "prompts/list", "resources/list", "resources/templates/list", "resources/read")
)
NOT_CACHED = {"ttlMs": 0, "cacheScope": "private"}  # stale at once: always allowed, never wrong
COMPLETE = Raw(b'"complete"')
_BLOCKS = frozenset((TextContent, ImageContent, AudioContent, ResourceLink, EmbeddedResource))
_SHAPES: Mapping[str, type[Struct]] = {"tools/call": CallToolResult, "tools/list": ListToolsResult}


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
            return TextContent(text if block.description is None else f"{text} ({block.description})")
        if not revision.icons:
            block = replace(block, icons=None)
    if revision.links:
        return block
    annotations = None if block.annotations is None else replace(block.annotations, last_modified=None)
    block = replace(block, annotations=annotations, meta=None)
    return replace(block, resource=replace(block.resource, meta=None)) if isinstance(block, EmbeddedResource) else block


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
    return {**schema, "properties": {k: spelled[v] if isinstance(v, bool) else v for k, v in properties.items()}}


def _object_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """An output schema for revisions in which structured content is an object: other values travel as `{"result": value}`.

    A schema that admits both objects and other values (`Point | None`) describes both forms, since the value decides.
    """
    everywhere: dict[str, Any] = schema.get("$defs", {})
    named: dict[str, dict[str, Any]] = {f"#/$defs/{k}": v for k, v in everywhere.items() if isinstance(v, dict)}
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
    schema = _moved(schema, "#/anyOf/1" if either else "#/properties/result", base.rstrip("#"))
    outside = {key: schema.pop(key) for key in ("$defs", "definitions", "$schema", "$id") if key in schema}
    inside = schema
    if either and any(word in encode(schema) for word in (b'"$id"', b'"$anchor"', b'"$dynamicAnchor"')):
        inside = {"$ref": "#/anyOf/1"}  # nothing may have one name at two places
    wrapped: dict[str, Any] = {"properties": {"result": inside}, "required": ["result"]}
    if either:
        wrapped = {"anyOf": [wrapped, schema]}
    return {"type": "object", **wrapped, **outside}


def _moved(part: Any, to: str, base: str) -> Any:
    """A copy of a schema whose root will be at `to`: what refers to the root, or to a place under it, does so still.

    base: the `$id` of the root, which stays at the root; empty for none.
    """
    if isinstance(part, list):
        return [_moved(each, to, base) for each in part]  # pyright: ignore[reportUnknownVariableType]
    if not isinstance(part, dict):
        return part
    moved: dict[str, Any] = {}
    for key, each in part.items():  # pyright: ignore[reportUnknownVariableType]
        embedded = isinstance(each, dict) and isinstance(each.get("$id"), str)  # pyright: ignore[reportUnknownMemberType]
        moved[key] = each if embedded else _moved(each, to, base)  # what is embedded refers to itself
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
