"""PluginRequests: answers the requests that a hub sends to a plugin.

A hub forwards the requests of other plugins and of MCP clients to a plugin. PluginRequests converts
requests for tools and prompts to MCP calls, passes the calls to the plugin's Backend, and converts
the results to responses of the plugin protocol. stores.py answers the requests for storage.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from typing import Any, cast

from msgspec import UNSET, Raw, Struct
from msgspec.json import Decoder, decode, encode

from concertino.backend.interface import Backend, Call, Context
from concertino.decode_errors import DECODE_ERRORS
from concertino.errors import INVALID_PARAMS, ConcertinoError, RpcError
from concertino.orchestra.failures import prompt_failure
from concertino.orchestra.plugin_context import PluginContext
from concertino.orchestra.plugin_events import EventHandlers
from concertino.orchestra.plugin_hooks import LifecycleHooks
from concertino.orchestra.plugin_messages import (
    BootResult,
    ContentBlock,
    HealthResult,
    ListPromptsResponse,
    ListToolsResponse,
    PluginRequest,
    PluginResponse,
    PromptArgument,
    PromptDefinition,
    PromptGetResponse,
    PromptMessage,
    RegistrationResult,
    ShutdownResult,
    ToolDefinition,
    ToolResponse,
)
from concertino.orchestra.rpc_interface import Responses, RpcConnection, error_response
from concertino.orchestra.storage import Storage
from concertino.orchestra.stores import InThread, answer_storage
from concertino.orchestra.streams import ChunkSender, StreamRun, end_response
from concertino.orchestra.structs import (
    InvalidStruct,
    NotAStruct,
    PackedTooLarge,
    pack,
    pack_json,
    unpack_json,
)
from concertino.orchestra.tool_calls import encode_result, encode_text_result
from concertino.types.resources_and_prompts import GetPromptResult, ListPromptsResult
from concertino.types.results import CallToolResult, ListToolsResult, TextContent

__all__ = ["Handler", "PluginRequests"]

Handler = Callable[[PluginRequest], Awaitable[Responses]]


class PluginRequests:
    """The request handlers of a plugin. A Plugin or McpPlugin owns the object.

    Their responses have no id: the code that sends a response sets the id of its request.

    name: the plugin's id.
    backend: handles the calls of tools and prompts. For a Plugin, this is the Plugin itself.
    has_tool: called with a tool's name and the Context of a call. Returns whether the plugin
        offers this caller a tool with this name.
    prompt_names: returns the names of the current prompts.
    storages: storage type -> the plugin's store for this type.
    in_thread: runs a blocking function in a thread, and returns the function's result.
    hooks: the functions to run at boot and shutdown.
    events: the functions to call with events.
    on_shutdown: called without arguments after the shutdown functions have run for a shutdown
        request of the hub.
    hub: a function that returns the connection to the hub; None if there is none.

    Attribute:
    handlers: kind of request -> the function that answers requests of this kind. The kind is the
        name of the only field that is set in the PluginRequest, such as "tool_call".
    """

    def __init__(
        self,
        name: str,
        backend: Backend,
        has_tool: Callable[[str, Context], bool],
        prompt_names: Callable[[], Collection[str]],
        storages: Mapping[str, Storage],
        in_thread: InThread,
        hooks: LifecycleHooks,
        events: EventHandlers,
        on_shutdown: Callable[[], None],
        hub: Callable[[], RpcConnection | None],
    ) -> None:
        self._name = name
        self._backend = backend
        self._has_tool = has_tool
        self._prompt_names = prompt_names
        self._storages = storages
        self._in_thread = in_thread
        self._hooks = hooks
        self._on_shutdown = on_shutdown
        self._hub = hub
        self.handlers: Mapping[str, Handler] = {
            "register": self._register,
            "boot": self._boot,
            "shutdown": self._shutdown,
            "health": self._health,
            "list_tools": self._list_tools,
            "tool_call": self._tool_call,
            "stream_start": self._stream_start,
            "list_prompts": self._list_prompts,
            "prompt_get": self._prompt_get,
            "storage_read": self._storage,
            "storage_write": self._storage,
            "storage_delete": self._storage,
            "storage_list": self._storage,
            "publish": events.answer,
        }

    async def refuse(self, request: PluginRequest) -> PluginResponse:
        """Return the error response to a request whose kind is not in `handlers`."""
        kind = request.WhichOneof("request") or "nothing"
        return error_response("", "unknown_request", f"{self._name} does not answer {kind}")

    # Start and end

    async def _register(self, request: PluginRequest) -> PluginResponse:
        """Accept the registration if it names this plugin or no plugin."""
        id = request.register.id
        if id and id != self._name:
            reason = f"this is {self._name}, not {id}"
            return PluginResponse(register=RegistrationResult(reject_reason=reason))
        return PluginResponse(register=RegistrationResult(accepted=True))

    async def _boot(self, request: PluginRequest) -> PluginResponse:
        """Run the boot functions with the configuration that the hub sends."""
        try:
            await self._hooks.run_boot(dict(request.boot.config))
        except ConcertinoError as exc:
            return PluginResponse(boot=BootResult(error=str(exc)))
        except Exception as exc:
            logging.getLogger(f"concertino.{self._name}").exception("booting failed")
            return PluginResponse(boot=BootResult(error=f"{type(exc).__name__}: {exc}"))
        return PluginResponse(boot=BootResult(ready=True))

    async def _shutdown(self, request: PluginRequest) -> PluginResponse:
        is_clean = await self._hooks.run_shutdown()
        self._on_shutdown()
        return PluginResponse(shutdown=ShutdownResult(clean=is_clean))

    async def _health(self, request: PluginRequest) -> PluginResponse:
        return PluginResponse(health=HealthResult(status=HealthResult.HEALTHY))

    # Tools

    async def _list_tools(self, request: PluginRequest) -> PluginResponse:
        """Return the tools of the backend as ToolDefinitions, or an error with the reason."""
        try:
            result = cast(ListToolsResult, await self._handle("tools/list", {}, request))
        except ConcertinoError as exc:
            return error_response("", "list_tools_error", str(exc))
        definitions: list[ToolDefinition] = []
        for tool in result.tools:
            # A Protobuf Struct holds numbers as 64-bit floats. For larger integers than 2^53,
            # pack() also returns JSON, which Go programs ignore.
            schema = pack(tool.input_schema)
            output = tool.output_schema
            definitions.append(
                ToolDefinition(
                    name=tool.name,
                    description=tool.description or "",
                    input_schema=schema.struct,
                    input_schema_json=schema.json,
                    output_schema=None if output is None else encode(output),
                )
            )
        return PluginResponse(list_tools=ListToolsResponse(tools=definitions))

    async def _tool_call(
        self, request: PluginRequest, chunks: ChunkSender | None = None
    ) -> PluginResponse | bytes:
        """Call a tool. Returns the response, or the response serialized without its id.

        request: contains the tool_call, or the stream_start if the tool is called as a stream.
        chunks: sends the tool's progress; None if the tool is not called as a stream.
        """
        context = PluginContext(self._backend, self._name, request, chunks=chunks, hub=self._hub())
        call = context.call
        name = call.tool_name
        if not self._has_tool(name, context):
            return error_response("", "tool_not_found", f"{self._name} has no tool {name!r}")

        # If the call has no arguments, the MCP call has none either. The tool's schema decides
        # whether that is valid.
        params = {"name": Raw(encode(name))}
        try:
            if call.HasField("arguments"):
                params["arguments"] = Raw(unpack_json(call.arguments, call.arguments_json))
            result = await self._backend.handle(Call("tools/call", params), context)
            return _tool_response(cast("CallToolResult", result))
        except InvalidStruct as exc:
            return error_response("", "validation_error", f"arguments: {exc}")
        except RpcError as exc:
            code = "validation_error" if exc.code == INVALID_PARAMS else "handler_error"
            return error_response("", code, _error_text(exc))
        except (NotAStruct, PackedTooLarge) as exc:
            return error_response("", "handler_error", f"the result of {name}: {exc}")

    async def _stream_start(self, request: PluginRequest) -> StreamRun:
        """Return a function that runs a tool, and sends its progress as chunks of a stream.

        Any tool can be called as a stream. The progress of a tool that is a generator consists of
        the values that it yields.
        """
        return partial(self._stream, request)

    async def _stream(self, request: PluginRequest, chunks: ChunkSender) -> PluginResponse:
        """Run a tool, send its progress as chunks, and return the last response.

        request: contains the stream_start.
        """
        start = request.stream_start
        response = await self._tool_call(request, chunks)
        if isinstance(response, bytes):
            response = PluginResponse.FromString(response)
        # Go programs cannot use a result at the end of a stream, so they get none. Only programs of
        # this package send a window.
        return end_response(
            start.stream_id, chunks.count, response.tool_call, has_result=start.window > 0
        )

    # Prompts

    async def _list_prompts(self, request: PluginRequest) -> PluginResponse:
        """Return the prompts of the backend as PromptDefinitions, or an error with the reason."""
        # A Plugin without prompts does not have the method prompts/list, and would raise.
        if not self._prompt_names():
            return PluginResponse(list_prompts=ListPromptsResponse())
        try:
            result = cast(ListPromptsResult, await self._handle("prompts/list", {}, request))
        except ConcertinoError as exc:
            return error_response("", "list_prompts_error", str(exc))
        prompts = [
            PromptDefinition(
                name=prompt.name,
                description=prompt.description or "",
                arguments=[
                    PromptArgument(
                        name=argument.name,
                        description=argument.description or "",
                        required=bool(argument.required),
                    )
                    for argument in prompt.arguments or ()
                ],
            )
            for prompt in result.prompts
        ]
        return PluginResponse(list_prompts=ListPromptsResponse(prompts=prompts))

    async def _prompt_get(self, request: PluginRequest) -> PluginResponse:
        """Return the messages of a prompt, or a failure with the reason."""
        name = request.prompt_get.prompt_name
        if name not in self._prompt_names():
            return prompt_failure("", "prompt_not_found", f"{self._name} has no prompt {name!r}")

        arguments = Raw(encode(dict(request.prompt_get.arguments)))
        params = {"name": Raw(encode(name)), "arguments": arguments}
        try:
            result = cast(GetPromptResult, await self._handle("prompts/get", params, request))
        except RpcError as exc:
            return prompt_failure("", "validation_error", _error_text(exc))
        except ConcertinoError as exc:
            return prompt_failure("", "handler_error", str(exc))
        messages = [
            PromptMessage(role=message.role, content=_content_block(message.content))
            for message in result.messages
        ]
        return PluginResponse(
            prompt_get=PromptGetResponse(description=result.description or "", messages=messages)
        )

    # Storage

    async def _storage(self, request: PluginRequest) -> PluginResponse:
        return await answer_storage(request, self._storages, self._in_thread)

    async def _handle(
        self,
        method: str,
        params: Mapping[str, Raw],
        request: PluginRequest,
    ) -> Struct | Raw:
        """Pass an MCP request to the backend, and return its result.

        request: the request of the hub that is answered with the result.
        """
        context = PluginContext(self._backend, self._name, request)
        return await self._backend.handle(Call(method, params), context)


def _error_text(error: RpcError) -> str:
    """Return an error's message and the `details` in its data, as one line."""
    # In errors of this package, the data is an object or missing. In errors of other servers, the
    # data can be any JSON value.
    data = error.data
    details = cast("dict[str, Any]", data).get("details") if isinstance(data, dict) else None
    return f"{error.message}: {details}" if details else error.message


def _tool_response(result: CallToolResult) -> PluginResponse | bytes:
    """Return the response for an MCP result of a tool, as an object or serialized without its id.

    Go programs expect one JSON object in the response. The field `structured` of the response says
    what the object is:

    RESULT     the structured content itself, if it is an object and the text is its JSON
    DATA       {"text": ..., "content": ..., "data": the structured content}
    UNKNOWN    {"text": ..., "content": ...}, without structured content

    `text` is all text of the result, for the model. `content` is present if any content block is
    not text, and has all content blocks as in MCP.
    """
    structured = result.structured_content
    content = result.content
    # Fast path: most tools return one text.
    if (
        len(content) == 1
        and type(content[0]) is TextContent
        and structured is UNSET
        and not result.is_error
    ):
        return encode_text_result(content[0].text)

    text = "\n".join(block.text for block in content if isinstance(block, TextContent))
    if result.is_error:
        return _tool_failure(text)

    kind = ToolResponse.UNKNOWN
    members = [b'"text":%s' % encode(text)]
    has_other_content = any(not isinstance(block, TextContent) for block in content)
    if has_other_content:
        members.append(b'"content":%s' % encode(content))
    # The JSON of the object in the response.
    json = b""
    if structured is not UNSET:
        json = bytes(structured) if isinstance(structured, Raw) else encode(structured)
        kind = ToolResponse.RESULT
        is_object = json.lstrip().startswith(b"{")
        # In results of this package, the text is the JSON of the structured content. In results of
        # other MCP servers, the text may say something else, so both must be sent.
        if has_other_content or not is_object or not _is_same_json(text, json):
            members.append(b'"data":%s' % json)
            kind = ToolResponse.DATA
    if kind != ToolResponse.RESULT:
        json = b"{%s}" % b",".join(members)

    packed = pack_json(json)
    if packed.json is None:
        return encode_result(packed.struct, kind)
    return PluginResponse(
        tool_call=ToolResponse(
            success=True, result=packed.struct, result_json=packed.json, structured=kind
        )
    )


def _is_same_json(text: str, json: bytes) -> bool:
    """Return whether a text is JSON with the same value as `json`, or is empty.

    Such a text need not be sent, because the receiver uses the JSON as the text.
    """
    if not text or text.encode("utf-8", "surrogatepass") == json:
        return True
    try:
        return decode(text) == decode(json)
    except DECODE_ERRORS:
        return False


class _ErrorBody(Struct):
    """The keys that the JSON text of every ToolError has."""

    error: str
    code: str


_parse_error_body = Decoder(_ErrorBody).decode
# The code in the text of a ToolError that was created without a code.
_NO_CODE = "TOOL_FAILED"


def _tool_failure(text: str) -> PluginResponse:
    """Return the response for a tool that failed.

    text: the text content of the tool's result. If the tool has raised a ToolError, the text is
        {"error": ..., "code": ...}, with more keys if the ToolError has details.

    For a ToolError, the response gets its code, and the value of `error` as its message. The
    receiver makes the text from both. If there are more keys, the message is the whole text,
    because Go programs show only the message. For any other failure, the code is `handler_error`
    and the message is the text.
    """
    response = error_response("", "handler_error", text)
    failure = response.tool_call
    try:
        body = _parse_error_body(text) if text.startswith('{"error":') else None
    except DECODE_ERRORS:
        body = None
    if body is not None and body.code != _NO_CODE:
        failure.error_code = body.code
        has_other_keys = len(decode(text)) > len(body.__struct_fields__)
        if not has_other_keys:
            failure.error_message = body.error
            failure.structured = ToolResponse.ERROR
    return response


def _content_block(content: Struct) -> ContentBlock:
    """Return the content of a prompt's message. Content other than text is sent as JSON text."""
    if isinstance(content, TextContent):
        return ContentBlock(type="text", text=content.text)
    # The tag of the Struct is the value of `type` in MCP, such as "image".
    return ContentBlock(
        type=str(content.__struct_config__.tag or "text"), text=encode(content).decode()
    )
