"""Between MCP and the plugin protocol: what a call asks of the hub, and what its response means to an MCP client.

Pure: messages in, messages out. Who asks the hub, and keeps its lists, is front.py.

    tools/call    ToolRequest, as from the plugin `transport.stdio`. Of its result, `text` if that is a text, else the result as
                  JSON; of a failed one, error_message, or `tool error: CODE`
    tools/list    ListTools, in the order of names
    prompts/...   ListPrompts, PromptGet
    resources/... what storage has below features/, notes/ and docs/: orchestra://features/ID is the path features/ID.md

Source: the Orchestra plugin protocol, "transport.stdio"; 2026-07-28 server/tools, server/prompts, server/resources.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar, cast
from urllib.parse import quote, unquote_to_bytes

from google.protobuf.message import DecodeError as ProtobufError
from msgspec import DecodeError, Raw, ValidationError
from msgspec.json import Decoder, encode

from concertino.errors import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    ProtocolError,
    ResourceNotFound,
    RpcError,
)
from concertino.orchestra.link import PluginRequest, PluginResponse, ToolResponse
from concertino.orchestra.plugin_pb2 import (
    ListPromptsResponse,
    ListToolsResponse,
    PromptGetRequest,
    PromptGetResponse,
    StorageEntry,
    StorageListRequest,
    StorageListResponse,
    StorageReadRequest,
    StorageReadResponse,
)
from concertino.orchestra.storage import StorageError, check_path
from concertino.orchestra.structs import (
    InvalidStruct,
    NotAStruct,
    PackedTooLarge,
    pack_json,
    unpack,
)
from concertino.orchestra.tool_calls import called_with, caller, text_in
from concertino.types.results import (
    CallToolResult,
    ContentBlock,
    GetPromptResult,
    Prompt,
    PromptArgument,
    PromptMessage,
    ReadResourceResult,
    Resource,
    ResourceContents,
    ResourceTemplate,
    TextContent,
    Tool,
)

__all__ = [
    "KINDS",
    "TEMPLATES",
    "answered",
    "call_answer",
    "call_request",
    "call_result",
    "calling",
    "entries_of",
    "list_request",
    "prompt_request",
    "prompt_result",
    "prompts_of",
    "read_request",
    "read_result",
    "resources_of",
    "tools_of",
]

log = logging.getLogger("concertino.orchestra.translation")

CALLER = "transport.stdio"
SCHEME = "orchestra://"
KINDS = (
    "features",
    "notes",
    "docs",
)  # what of storage are resources, in the order in which they are listed
ENDING = ".md"
MARKDOWN = "text/markdown"
MAX_URI = 16384  # characters: a path of 4096 bytes, each of them escaped, and more
# Codes of a refusal that the caller can do something about; everything else is between the hub and its plugins.
CALLERS = ("prompt_not_found", "validation_error")
NO_STORAGE = ("storage_not_found", "routing_error")  # ours; upstream's

T = TypeVar("T")
Params = Mapping[str, Raw]

_text = Decoder(str).decode
_block = Decoder(ContentBlock).decode
_texts = Decoder(dict[str, str]).decode


def answered(response: PluginResponse, kind: str) -> Any:
    """What a response says, if it is of the kind that was asked for. Raises RpcError for a refusal, and for any other kind.

    Any: the messages of plugin_pb2 by the name of their field.
    """
    got = response.WhichOneof("response")
    if got == kind:
        return getattr(response, kind)
    if got == "tool_call":  # the protocol's only way to refuse something
        code = response.tool_call.error_code
        raise RpcError(
            INVALID_PARAMS if code in CALLERS else INTERNAL_ERROR, _said(response.tool_call)
        )
    raise RpcError(INTERNAL_ERROR, f"the orchestrator answered {kind} with {got or 'nothing'}")


def _said(response: ToolResponse) -> str:
    return response.error_message or f"tool error: {response.error_code}"


# Tools


def calling(session: str) -> bytes:
    """Who calls, for call_request(). session: names the connection to the client."""
    return caller(CALLER, session)


def call_request(params: Params, meta: Params, by: bytes) -> bytes:
    """A tools/call, as a serialized PluginRequest. by: see calling(). Raises RpcError."""
    name = _named(params)
    packed = None
    if "arguments" in params:
        try:
            packed = pack_json(bytes(params["arguments"]))
        except NotAStruct as why:
            raise RpcError(INVALID_PARAMS, f"tools/call params.arguments: {why}") from None
        except PackedTooLarge as why:
            raise RpcError(INTERNAL_ERROR, f"tools/call params.arguments: {why}") from None
    trace_parent = _maybe_text(meta["traceparent"]) if "traceparent" in meta else ""
    return called_with(name, packed, by, trace_parent)


def call_answer(payload: bytes) -> CallToolResult:
    """The result of a tools/call, of a serialized PluginResponse. Raises RpcError for a refusal, ProtocolError for garbage."""
    text = text_in(payload)
    if text is not None:  # nearly always
        return CallToolResult([TextContent(text)])
    try:
        response = PluginResponse.FromString(payload)
    except ProtobufError as why:
        raise ProtocolError(f"the response cannot be decoded: {why}") from None
    return call_result(answered(response, "tool_call"))


def call_result(response: ToolResponse) -> CallToolResult:
    """The result of a tools/call. Raises RpcError for a Struct that is none.

    Pictures and the like, which plugins made with the SDK put beside their text, follow it.
    """
    if not response.success:
        return CallToolResult([TextContent(_said(response))], is_error=True)
    try:
        result = unpack(response.result, response.result_json)
    except InvalidStruct as why:
        raise RpcError(INTERNAL_ERROR, f"the result of the tool: {why}") from None
    text = result.get("text")
    if not isinstance(text, str):
        return CallToolResult([TextContent(encode(result).decode())])
    others = _others(result.get("content"))
    return CallToolResult([*([TextContent(text)] if text or not others else []), *others])


def _others(content: object) -> list[ContentBlock]:
    """The content of a result that is not text, if all of it is content as MCP has it."""
    if not isinstance(content, list):
        return []
    try:
        blocks = [_block(encode(each)) for each in cast(list[object], content)]
    except (ValidationError, DecodeError):
        return []
    return [each for each in blocks if not isinstance(each, TextContent)]


def tools_of(response: ListToolsResponse) -> list[Tool]:
    """The tools, in the order of their names. Of two of one name the first is shown; what cannot be is left out, with a warning."""
    tools: list[Tool] = []
    for each in _sorted(response.tools, "tool"):
        try:
            schema = unpack(each.input_schema, each.input_schema_json)
        except InvalidStruct as why:
            log.warning("the tool %r is left out: its schema: %s", each.name, why)
            continue
        if schema.setdefault("type", "object") != "object":
            log.warning(
                "the tool %r is left out: its schema is for %r, not an object",
                each.name,
                schema["type"],
            )
            continue
        tools.append(Tool(each.name, schema, description=each.description))
    return tools


# Prompts


def prompts_of(response: ListPromptsResponse) -> list[Prompt]:
    """The prompts, in the order of their names, as for tools_of()."""
    return [
        Prompt(
            each.name,
            description=each.description or None,
            arguments=[
                PromptArgument(
                    argument.name,
                    description=argument.description or None,
                    required=argument.required,
                )
                for argument in each.arguments
            ],
        )
        for each in _sorted(response.prompts, "prompt")
    ]


def prompt_request(params: Params) -> PluginRequest:
    """A prompts/get. Raises RpcError."""
    name = _named(params, "prompts/get")
    try:
        arguments = _texts(params.get("arguments", b"{}"))
    except (ValidationError, DecodeError, UnicodeDecodeError) as why:
        raise RpcError(
            INVALID_PARAMS, f"prompts/get params.arguments: expected an object of texts: {why}"
        ) from None
    return PluginRequest(prompt_get=PromptGetRequest(prompt_name=name, arguments=arguments))


def prompt_result(response: PromptGetResponse) -> GetPromptResult:
    """The result of a prompts/get."""
    messages = [
        PromptMessage(
            "assistant" if each.role == "assistant" else "user",
            _content(each.content.type, each.content.text),
        )
        for each in response.messages
    ]
    return GetPromptResult(messages, response.description or None)


def _content(kind: str, text: str) -> ContentBlock:
    """The content of a prompt's message. What is not text has its JSON there, as plugins made with the SDK write it."""
    if kind not in ("", "text"):
        try:
            return _block(text)
        except (ValidationError, DecodeError):
            pass
    return TextContent(text)


# Resources

TEMPLATES = [
    ResourceTemplate(
        f"{SCHEME}{kind}/{{id}}",
        kind,
        description=f"Of {kind}/ in storage, by id",
        mime_type=MARKDOWN,
    )
    for kind in KINDS
]


def list_request(kind: str) -> PluginRequest:
    """What there is of a kind of resources."""
    return PluginRequest(storage_list=StorageListRequest(prefix=f"{kind}/"))


def entries_of(response: PluginResponse) -> Sequence[StorageEntry]:
    """The entries that a list_request() was answered with; none where nobody has storage. Raises RpcError."""
    if response.HasField("tool_call") and response.tool_call.error_code in NO_STORAGE:
        log.debug("no resources: %s", _said(response.tool_call))
        return ()
    listed: StorageListResponse = answered(response, "storage_list")
    if listed.HasField("failure"):
        raise RpcError(INTERNAL_ERROR, f"storage: {listed.failure.message or listed.failure.code}")
    return listed.entries


def resources_of(entries: Iterable[StorageEntry], kind: str) -> list[Resource]:
    """Entries as resources, in the order of their paths."""
    paths = {each.path: each for each in entries}
    return [
        Resource(
            f"{SCHEME}{kind}/{quote(id, safe='/')}",
            id,
            mime_type=MARKDOWN,
            size=paths[path].size or None,
        )
        for path in sorted(paths)
        if path.startswith(f"{kind}/")
        and (id := path.removeprefix(f"{kind}/").removesuffix(ENDING))
    ]


def read_request(params: Params) -> tuple[str, PluginRequest]:
    """A resources/read, and the URI that it is of. Raises RpcError."""
    if "uri" not in params:
        raise RpcError(INVALID_PARAMS, "resources/read params.uri: expected a URI, got none")
    try:
        uri = _text(params["uri"])
    except (ValidationError, DecodeError, UnicodeDecodeError) as why:
        raise RpcError(
            INVALID_PARAMS, f"resources/read params.uri: expected a text: {why}"
        ) from None
    return uri, PluginRequest(storage_read=StorageReadRequest(path=_path(uri)))


def _path(uri: str) -> str:
    """The path in storage that a URI is of; decoded once."""
    kind, slash, id = uri.removeprefix(SCHEME).partition("/")
    if not uri.startswith(SCHEME) or kind not in KINDS or not slash or not id or len(uri) > MAX_URI:
        expected = " or ".join(f"{SCHEME}{each}/ID" for each in KINDS)
        raise RpcError(INVALID_PARAMS, f"uri: expected {expected}, got {uri[:200]!r}")
    try:
        path = f"{kind}/{unquote_to_bytes(id).decode()}{ENDING}"
        check_path(path)
    except (UnicodeError, StorageError) as why:
        raise RpcError(INVALID_PARAMS, f"uri: {why}") from None
    return path


def read_result(uri: str, response: StorageReadResponse) -> ReadResourceResult:
    """What is under a URI. Raises ResourceNotFound, RpcError.

    Upstream's storage answers for what there is not as for what is empty, and of version 0, which nothing has that was written.
    """
    if response.HasField("failure"):
        if response.failure.code in ("not_found", "invalid_path"):
            raise ResourceNotFound(uri)
        raise RpcError(
            INTERNAL_ERROR, f"storage: {response.failure.message or response.failure.code}"
        )
    if not response.content and not response.version and not response.metadata:
        raise ResourceNotFound(uri)
    try:
        contents = ResourceContents(uri, text=response.content.decode(), mime_type=MARKDOWN)
    except UnicodeDecodeError:
        contents = ResourceContents(
            uri, blob=response.content, mime_type="application/octet-stream"
        )
    return ReadResourceResult([contents])


# Parts


def _named(params: Params, method: str = "tools/call") -> str:
    """The member `name` of params."""
    name = ""
    if "name" in params:
        try:
            name = _text(params["name"])
        except (ValidationError, DecodeError, UnicodeDecodeError):
            got = bytes(params["name"])[:100].decode("utf-8", "replace")
            raise RpcError(
                INVALID_PARAMS, f"{method} params.name: expected a text, got {got}"
            ) from None
    if not name:
        raise RpcError(INVALID_PARAMS, f"{method} params.name: expected the name, got none")
    return name


def _maybe_text(raw: Raw) -> str:
    try:
        return _text(raw)
    except (ValidationError, DecodeError, UnicodeDecodeError):
        return ""


def _sorted(definitions: Iterable[T], what: str) -> list[T]:
    """By name, each name once. T: has a `name`, which protobuf's classes do not let a Protocol say."""
    found: dict[str, T] = {}
    for each in definitions:
        name: str = cast(Any, each).name
        if not name or name in found:
            log.warning(
                "a %s is left out: %s",
                what,
                f"there are two of the name {name!r}" if name else "it has no name",
            )
        else:
            found[name] = each
    return [found[name] for name in sorted(found)]
