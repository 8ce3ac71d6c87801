"""Converts MCP requests for tools and prompts to requests of the plugin protocol, and back.

A hub forwards requests to plugins, which speak this protocol. HubBackend (hub_backend.py), an MCP
server in front of a hub, calls these functions, sends the requests and receives the responses.
resource_translation.py converts requests for resources.

    tools/call       ToolRequest. The response contains a JSON object. If the value of its key
                     `text` is a string, this string is the text of the result. Otherwise the text
                     is the whole object as JSON. The text of a failed call is error_message, or
                     `tool error: CODE`.
    tools/list       ListToolsRequest
    prompts/list     ListPromptsRequest
    prompts/get      PromptGetRequest

Sources: the Orchestra plugin protocol, "transport.stdio"; 2026-07-28 server/tools, server/prompts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar, cast

from msgspec import UNSET, Raw
from msgspec.json import Decoder, Encoder, encode

from concertino.backend.call_hooks import ArgumentsRefused
from concertino.decode_errors import DECODE_ERRORS
from concertino.errors import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    ProtocolError,
    RpcError,
)
from concertino.orchestra.plugin_messages import DecodeError as ProtobufError
from concertino.orchestra.plugin_messages import (
    ListPromptsResponse,
    ListToolsResponse,
    PluginRequest,
    PluginResponse,
    PromptDefinition,
    PromptGetRequest,
    PromptGetResponse,
    ToolDefinition,
    ToolRequest,
    ToolResponse,
)
from concertino.orchestra.streams import WINDOW_BYTES
from concertino.orchestra.structs import (
    InvalidStruct,
    NotAStruct,
    PackedObject,
    PackedTooLarge,
    pack_json,
    unpack,
)
from concertino.orchestra.tool_calls import encode_caller, encode_tool_call, read_text_result
from concertino.orchestra.trace_context import PARENT, read_trace
from concertino.types.resources_and_prompts import (
    GetPromptResult,
    Prompt,
    PromptArgument,
    PromptMessage,
)
from concertino.types.results import (
    CallToolResult,
    ContentBlock,
    TextContent,
    Tool,
    error_result,
)

__all__ = [
    "Params",
    "call_request",
    "call_result",
    "caller_fields",
    "encode_sorted",
    "prompt_request",
    "prompt_result",
    "prompts_of",
    "read_call_response",
    "read_response",
    "stream_request",
    "tools_of",
]

log = logging.getLogger("concertino.orchestra.translation")

# The id that plugins see as the caller when an MCP client calls a tool, as in the Go
# implementation.
CALLER = "transport.stdio"
# The key in a request's `_meta` with the name of an AI provider, such as openai. The hub then sends
# the call to the plugin that gives access to this provider.
PROVIDER = "orchestra/provider"
# Error codes of the plugin protocol for mistakes of the client. They become -32602 (invalid
# params), and all other codes become -32603 (internal error).
REFUSED_ARGUMENTS = "validation_error"
CLIENT_ERRORS = ("prompt_not_found", REFUSED_ARGUMENTS)
# If a prompts/get fails, Go programs answer with a prompt whose description begins with one of
# these texts. The first means that the prompt is unknown, and so does a text that ends with
# " not found", such as `prompt "x" not found`.
GO_PROMPT_ERRORS = (
    'no plugin provides prompt "',
    'prompt "',
    "prompt handler error: ",
    "failed to route prompt get to plugin ",
    "plugin returned non-prompt-get response",
)

T = TypeVar("T")
Warn = Callable[[str], object]
Params = Mapping[str, Raw]

_parse_text = Decoder(str).decode
_parse_content = Decoder(ContentBlock).decode
_parse_texts = Decoder(dict[str, str]).decode
_parse_schema = Decoder(dict[str, Any]).decode
# The keys are sorted, because Go programs send the keys of an object in another order each time.
encode_sorted = Encoder(order="sorted").encode


def read_response(response: PluginResponse, kind: str) -> Any:
    """Return the Protobuf message in the expected field of a response.

    kind: the name of this field of PluginResponse, such as "list_tools".
    Raises RpcError for an error response, and for a response with any other field.
    """
    got = response.WhichOneof("response")
    if got == kind:
        return getattr(response, kind)
    # The protocol's error response to any request is a failed tool call.
    if got == "tool_call":
        error = response.tool_call
        code = INVALID_PARAMS if error.error_code in CLIENT_ERRORS else INTERNAL_ERROR
        raise RpcError(code, _error_text(error))
    raise RpcError(INTERNAL_ERROR, f"the orchestrator answered {kind} with {got or 'nothing'}")


def _error_text(response: ToolResponse) -> str:
    return response.error_message or f"tool error: {response.error_code}"


# Tools


def caller_fields(session: str) -> bytes:
    """Return the encoded fields of a ToolRequest that name its caller, the MCP client.

    Pass the result to call_request() for each call of the session.
    session: the id of the client's session. Plugins may keep state for each session.
    """
    return encode_caller(CALLER, session)


def call_request(params: Params, meta: Params, caller: bytes) -> bytes:
    """Return the PluginRequest for a tools/call, serialized without its id.

    params, meta: the params of the MCP request, and the `_meta` in them, as the caller has decoded
        both. {} if there is no `_meta`.
    caller: the result of caller_fields().
    Raises RpcError if the params are invalid or too large.
    """
    name, arguments, trace, provider = _read_call(params, meta)
    parent = trace.pop(PARENT, "")
    # The fields of a serialized message may follow one another in any order.
    rest = ToolRequest(trace=trace).SerializeToString() if trace else b""
    return encode_tool_call(name, arguments, caller, parent, provider, rest)


def stream_request(params: Params, meta: Params, session: str) -> PluginRequest:
    """Return the PluginRequest for a tools/call whose tool is called as a stream.

    The request has no ids, because the connection sets the ids of the request and of the stream.
    params, meta: the params of the MCP request, and the `_meta` in them.
    session: the id of the client's session. Plugins may keep state for each session.
    Raises RpcError if the params are invalid or too large.
    """
    name, arguments, trace, provider = _read_call(params, meta)
    request = PluginRequest()
    # Filling in the message inside the request takes half the time of copying one into it.
    start = request.stream_start
    start.tool_name = name
    start.caller_plugin = CALLER
    start.session_id = session
    start.window = WINDOW_BYTES
    if arguments is not None:
        start.arguments, json = arguments
        if json is not None:
            start.arguments_json = json
    if trace:
        start.trace_parent = trace.pop(PARENT, "")
        start.trace.update(trace)
    if provider:
        start.provider = provider
    return request


def _read_call(
    params: Params, meta: Params
) -> tuple[str, PackedObject | None, dict[str, str], str]:
    """Return four values of a tools/call.

    - The name of the tool.
    - The arguments; None if the call has none.
    - The trace context as key -> value; {} if the call has none.
    - The AI provider; "" if the call names none.

    params, meta: the params of the MCP request, and the `_meta` in them.
    Raises RpcError if the params are invalid or too large.
    """
    name = _read_name(params)
    arguments = None
    if "arguments" in params:
        try:
            arguments = pack_json(bytes(params["arguments"]))
        except NotAStruct as exc:
            raise RpcError(INVALID_PARAMS, f"tools/call params.arguments: {exc}") from None
        except PackedTooLarge as exc:
            raise RpcError(INTERNAL_ERROR, f"tools/call params.arguments: {exc}") from None
    trace = read_trace(meta) if meta else {}
    provider = _read_provider(meta[PROVIDER]) if PROVIDER in meta else ""
    return name, arguments, trace, provider


def _read_provider(value: Raw) -> str:
    """Return the AI provider that a call names. Raises RpcError if it is not a string."""
    try:
        return _parse_text(value)
    except DECODE_ERRORS:
        # If an invalid value were ignored, another company could get the call than the user wants.
        message = f"tools/call params._meta.{PROVIDER}: expected a string"
        raise RpcError(INVALID_PARAMS, message) from None


def read_call_response(payload: bytes) -> CallToolResult:
    """Return the result of a tools/call from a serialized PluginResponse.

    payload: the response, with or without its id.
    Raises ProtocolError for bytes that are not a response, RpcError for a response of another kind,
    and the exceptions of call_result().
    """
    # Fast path: nearly all results are a text.
    text = read_text_result(payload)
    if text is not None:
        return CallToolResult([TextContent(text)])

    try:
        response = PluginResponse.FromString(payload)
    except ProtobufError as exc:
        raise ProtocolError(f"the response cannot be decoded: {exc}") from None
    return call_result(read_response(response, "tool_call"))


def call_result(response: ToolResponse) -> CallToolResult:
    """Return the MCP result of a tools/call. The result of a failed call has is_error.

    Raises ArgumentsRefused, which contains the result with is_error, if the plugin has refused the
    arguments as invalid. Raises RpcError if the response cannot be decoded.
    """
    # The response to a successful call contains a JSON object. Its key `text` has the text of the
    # result. The field `structured` says where the structured content and the content blocks that
    # are not text are:
    #
    #   RESULT     the object itself is the structured content
    #   DATA       the structured content is in the key `data`, the blocks are in the key `content`
    #   UNKNOWN    the blocks are in the key `content`. Go plugins do not set `structured`, which
    #              therefore reads as UNKNOWN: their object is the structured content if it has
    #              other keys than `text`.
    #   ERROR      the call has failed, and its text is {"error": MESSAGE, "code": CODE}
    kind = response.structured
    if not response.success:
        text = _error_text(response)
        if kind == ToolResponse.ERROR:
            body = {"error": response.error_message, "code": response.error_code}
            text = encode(body).decode()
        failure = error_result(text)
        if response.error_code == REFUSED_ARGUMENTS:
            raise ArgumentsRefused(failure)
        return failure
    try:
        result = unpack(response.result, response.result_json)
    except InvalidStruct as exc:
        raise RpcError(INTERNAL_ERROR, f"the result of the tool: {exc}") from None

    # Go programs show only the value of `text` to the model. Without such a text, the whole object
    # is both the text and the structured content. An empty object of another kind than RESULT is
    # no structured content, because it says nothing.
    text = result.get("text")
    if not isinstance(text, str):
        json = encode_sorted(result)
        structured = Raw(json) if result or kind == ToolResponse.RESULT else UNSET
        return CallToolResult([TextContent(json.decode())], structured)

    # In a RESULT, the key `content` belongs to the tool, and means anything.
    blocks = [] if kind == ToolResponse.RESULT else _other_content(result.get("content"))
    # An empty text is left out if there is other content.
    content: list[ContentBlock] = [*blocks]
    if text or not blocks:
        content.insert(0, TextContent(text))
    if kind == ToolResponse.DATA:
        data = result.get("data")
        structured = Raw(encode_sorted(data)) if isinstance(data, dict) else UNSET
        return CallToolResult(content, structured)
    # The object of a Go plugin with other keys than `text` is structured content.
    if kind == ToolResponse.RESULT or (len(result) > 1 and not blocks):
        return CallToolResult(content, Raw(encode_sorted(result)))
    return CallToolResult(content)


def _other_content(content: object) -> list[ContentBlock]:
    """Return the content blocks that are not text; [] if any block is not valid MCP content.

    content: the value of the key `content` in a response's object; None if there is none.
    """
    if not isinstance(content, list):
        return []
    try:
        blocks = [_parse_content(encode(item)) for item in cast(list[object], content)]
    except DECODE_ERRORS:
        return []
    return [block for block in blocks if not isinstance(block, TextContent)]


def tools_of(response: ListToolsResponse, warn: Warn = log.warning) -> list[Tool]:
    """Return the tools in a response as MCP tools, sorted by name. Leaves out invalid tools.

    Of two tools with the same name, the result has one; the choice does not depend on their order
    in the response.
    warn: called with a sentence for each tool that is left out.
    """
    tools: list[Tool] = []
    for definition in _sort_by_name(response.tools, "tool", _tool_content, warn):
        name = definition.name
        try:
            schema = unpack(definition.input_schema, definition.input_schema_json)
        except InvalidStruct as exc:
            warn(f"the tool {name!r} is left out: its schema: {exc}")
            continue
        # MCP requires the type. Go plugins may omit it.
        type_name = schema.setdefault("type", "object")
        if type_name != "object":
            warn(f"the tool {name!r} is left out: its schema is for {type_name!r}, not an object")
            continue
        output = _output_schema(definition, warn)
        description = definition.description
        tools.append(Tool(name, schema, description=description, output_schema=output))
    return tools


def _tool_content(definition: ToolDefinition) -> bytes:
    """Return the description and the schema of a tool as bytes, to compare two tools."""
    try:
        schema = encode_sorted(unpack(definition.input_schema, definition.input_schema_json))
    except InvalidStruct:
        schema = definition.input_schema
    return definition.description.encode() + b"\0" + schema


def _output_schema(definition: ToolDefinition, warn: Warn) -> dict[str, Any] | None:
    """Return the output schema of a tool; None if there is none, or if it is not for objects."""
    if not definition.output_schema:
        return None
    try:
        schema = _parse_schema(definition.output_schema)
    except DECODE_ERRORS:
        warn(f"the output schema of the tool {definition.name!r} is left out: it is not JSON")
        return None

    # The schema of a recursive type is a reference to a definition.
    target = schema
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#/$defs/"):
        target = schema.get("$defs", {}).get(reference.removeprefix("#/$defs/"), schema)
    # A result that is not an object becomes text. A schema for such results would promise
    # structured content, which the client does not get.
    return schema if target.get("type") == "object" else None


# Prompts


def prompts_of(response: ListPromptsResponse, warn: Warn = log.warning) -> list[Prompt]:
    """Return the prompts in a response as MCP prompts, sorted by name. Leaves out invalid prompts.

    Of two prompts with the same name, the result has one; the choice does not depend on their order
    in the response.
    warn: called with a sentence for each prompt that is left out.
    """
    return [
        Prompt(
            definition.name,
            description=definition.description or None,
            arguments=[
                PromptArgument(
                    argument.name,
                    description=argument.description or None,
                    required=argument.required,
                )
                for argument in definition.arguments
            ],
        )
        for definition in _sort_by_name(
            response.prompts, "prompt", PromptDefinition.SerializeToString, warn
        )
    ]


def prompt_request(params: Params) -> PluginRequest:
    """Return the request to the hub for a client's prompts/get.

    params: the params of the MCP request. Raises RpcError if they are invalid.
    """
    name = _read_name(params, "prompts/get")
    try:
        arguments = _parse_texts(params.get("arguments", b"{}"))
    except DECODE_ERRORS as exc:
        raise RpcError(
            INVALID_PARAMS, f"prompts/get params.arguments: expected an object of texts: {exc}"
        ) from None
    return PluginRequest(prompt_get=PromptGetRequest(prompt_name=name, arguments=arguments))


def prompt_result(response: PromptGetResponse) -> GetPromptResult:
    """Return the result of a client's prompts/get from the response of the hub.

    Raises RpcError if the response contains an error.
    """
    if (failure := _prompt_failure(response)) is not None:
        raise failure
    messages = [
        PromptMessage(
            "assistant" if message.role == "assistant" else "user",
            _prompt_content(message.content.type, message.content.text),
        )
        for message in response.messages
    ]
    return GetPromptResult(messages, response.description or None)


def _prompt_failure(response: PromptGetResponse) -> RpcError | None:
    """Return the error in a response; None if the response has a prompt."""
    if response.HasField("failure"):
        code, message = response.failure.code, response.failure.message or response.failure.code
        return RpcError(INVALID_PARAMS if code in CLIENT_ERRORS else INTERNAL_ERROR, message)
    # A response with messages is a prompt, whatever its description is.
    text = response.description
    if response.messages or not text.startswith(GO_PROMPT_ERRORS):
        return None
    is_unknown = text.startswith(GO_PROMPT_ERRORS[0]) or text.endswith(" not found")
    return RpcError(INVALID_PARAMS if is_unknown else INTERNAL_ERROR, text)


def _prompt_content(kind: str, text: str) -> ContentBlock:
    """Return the MCP content of a prompt's message.

    kind: the type of the content, such as "text" or "image".
    text: the text; for other types, the content as JSON, as plugins of this package send it.
    """
    if kind not in ("", "text"):
        try:
            return _parse_content(text)
        except DECODE_ERRORS:
            pass
    return TextContent(text)


# Params and names


def _read_name(params: Params, method: str = "tools/call") -> str:
    """Return the name in params, the value of `name`.

    Raises RpcError if it is missing or not a string.
    """
    name = ""
    if "name" in params:
        try:
            name = _parse_text(params["name"])
        except DECODE_ERRORS:
            got = bytes(params["name"])[:100].decode("utf-8", "replace")
            raise RpcError(
                INVALID_PARAMS, f"{method} params.name: expected a text, got {got}"
            ) from None
    if not name:
        raise RpcError(INVALID_PARAMS, f"{method} params.name: expected the name, got none")
    return name


def _sort_by_name(
    definitions: Iterable[T],
    kind: str,
    content: Callable[[T], bytes],
    warn: Warn,
) -> list[T]:
    """Return definitions sorted by name. Leaves out definitions without a name and duplicates.

    kind: "tool" or "prompt", for messages.
    content: returns the content of a definition as bytes.
    warn: called with a sentence for each definition that is left out.
    """
    # T has an attribute `name`. The classes of protobuf do not match a Protocol that says so.
    by_name: dict[str, T] = {}
    for definition in definitions:
        name: str = cast(Any, definition).name
        if not name:
            warn(f"a {kind} is left out: it has no name")
            continue
        if name in by_name:
            warn(f"a {kind} is left out: there are two of the name {name!r}")
            # A Go hub sends the definitions in another order each time, so choose by content.
            definition = min(by_name[name], definition, key=content)
        by_name[name] = definition
    return [by_name[name] for name in sorted(by_name)]
