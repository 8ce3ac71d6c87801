"""HubBackend: a Backend that forwards every MCP call to a hub.

A hub runs plugins, programs with tools, and forwards requests to them. HubBackend is the base class
of Bridge, whose hub runs in another process (bridge.py), and of EmbeddedHub, whose hub runs in this
process (embedded_hub.py). translation.py and resource_translation.py convert the messages.

For each tools/list and prompts/list of a client, HubBackend requests the list from the hub again.
If the hub's response is the same as before, the client gets the same MCP result as before.
refresh() sends list_changed notifications if a list has changed since a client last got it.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import uuid
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Any

from msgspec import Raw, Struct

from concertino.backend.call_hooks import ArgumentsRefused, record_refused_arguments
from concertino.backend.interface import Call, Context, Notifier
from concertino.errors import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    ConcertinoError,
    ProtocolError,
    RpcError,
)
from concertino.orchestra.client_events import ClientEvents, SendRequest
from concertino.orchestra.hub_calls import CALL_S
from concertino.orchestra.list_changes import ListName
from concertino.orchestra.mcp_events import CAPABILITIES, McpEvents
from concertino.orchestra.pending_response import PendingResponse
from concertino.orchestra.plugin_messages import (
    ListPromptsRequest,
    ListToolsRequest,
    PluginRequest,
    PluginResponse,
    ToolResponse,
)
from concertino.orchestra.request_path import PATH, read_path
from concertino.orchestra.resource_translation import (
    KINDS,
    TEMPLATES,
    list_of,
    list_request,
    read_request,
    read_result,
    resources_of,
    server_list_request,
    server_resources_of,
    server_templates_of,
)
from concertino.orchestra.rpc_interface import TIMEOUT_S
from concertino.orchestra.streams import CollectedStream, ResponseStream
from concertino.orchestra.trace_context import read_trace
from concertino.orchestra.translation import (
    call_request,
    call_result,
    caller_fields,
    encode_sorted,
    prompt_request,
    prompt_result,
    prompts_of,
    read_call_response,
    read_response,
    stream_request,
    tools_of,
)
from concertino.protocol.call import ServerFeatures
from concertino.types.resources_and_prompts import (
    ListPromptsResult,
    ListResourcesResult,
    ListResourceTemplatesResult,
)
from concertino.types.results import Implementation, ListToolsResult

__all__ = ["HubBackend"]

log = logging.getLogger("concertino.orchestra")

# The value of _CachedList.sent after a client has got an error instead of a list.
NO_LIST = b"the list could not be fetched"


class HubBackend:
    """A Backend that forwards every MCP call to a hub.

    The three functions send requests to the hub. The second argument of each is the time limit of
    the request, in seconds.

    send: sends any request, and returns its response. Raises ConcertinoError if there is none.
    forward: sends a tool call, serialized without its id, and returns the pending response. This is
        faster than `send`, because it creates no task. If `forward` returns None, for example
        because the output buffer is full, `send` sends the call.
    stream: calls a tool as a stream, for a client that requests the progress of the call, and
        returns an async generator of the responses. While the hub is down, `stream` returns None,
        and HubBackend then calls `send`, which raises the reason.
    """

    def __init__(
        self,
        send: SendRequest,
        forward: Callable[[bytes, float], PendingResponse | None] = lambda _, __: None,
        stream: Callable[[PluginRequest, float], ResponseStream | None] = lambda _, __: None,
    ) -> None:
        # `concertino` is loaded already. Importing it in this module would be an import cycle.
        info = Implementation("orchestra", sys.modules["concertino"].__version__)
        self._features = ServerFeatures(
            info,
            tools=True,
            prompts=True,
            resources=True,
            logging=True,
            subscriptions=True,
            # The requests `events/*` of a draft of MCP, which McpEvents answers.
            other_capabilities=CAPABILITIES,
            other_methods=True,
        )
        self._send = send
        self._forward = forward
        self._stream = stream
        self._events = ClientEvents(send, stream)
        self._mcp_events = McpEvents(self._ask, stream)
        # Plugins may keep state for each session id, so the id is unique.
        self._session = str(uuid.uuid4())
        # The serialized fields that name this HubBackend as the caller of a tool.
        self._caller = caller_fields(self._session)
        self._outlet: Notifier | None = None
        # The warnings about lists that were already logged. Each one is logged once, although lists
        # are fetched again and again.
        self._logged: set[str] = set()
        self._lists: dict[ListName, _CachedList] = {
            "tools": _CachedList(
                "list_tools", lambda found: ListToolsResult(tools_of(found, self._warn_once))
            ),
            "prompts": _CachedList(
                "list_prompts",
                lambda found: ListPromptsResult(prompts_of(found, self._warn_once)),
            ),
        }
        self._handlers: dict[str, Callable[[Call], Awaitable[Struct | Raw]]] = {
            "tools/list": lambda call: self._list(call, "tools"),
            "prompts/list": lambda call: self._list(call, "prompts"),
            "prompts/get": self._get_prompt,
            "resources/list": self._list_resources,
            "resources/templates/list": self._list_templates,
            "resources/read": self._read_resource,
            "events/list": self._list_events,
        }

    async def start(self, outlet: Notifier) -> None:
        """Send notifications of changed lists and resources to a Notifier from now on.

        outlet: passes the notifications on to the MCP clients.
        """
        self._outlet = outlet
        self._events.start(outlet)

    def features(self) -> ServerFeatures:
        """Return the same features for any hub: tools, prompts, resources and others."""
        # The features do not depend on the plugins that run now: clients request them only once,
        # and plugins with other features may start later.
        return self._features

    async def handle(self, call: Call, context: Context) -> Struct | Raw:
        """Handle a call of a client with requests to the hub.

        Raises RpcError if the hub does not answer, or refuses the call.
        """
        # Nearly all calls are tools/call, so this method is checked first.
        if call.method == "tools/call":
            try:
                return await self._call_tool(call, context)
            except ArgumentsRefused as exc:
                # The record makes a guard around this backend not count the call against a rate
                # limit.
                record_refused_arguments()
                return exc.result

        handler = self._handlers.get(call.method)
        if handler is None and call.method in self._mcp_events.handlers:
            return await self._mcp_events.handlers[call.method](call, context)
        if handler is None:
            raise RpcError(METHOD_NOT_FOUND, f"method not found: {call.method}")
        # The context says whether the client can receive notifications of changes.
        self._events.on_call(context)
        return await handler(call)

    async def handle_or_refuse(self, call: Call, context: Context) -> Struct | Raw:
        """Do the same as handle(), but raise ArgumentsRefused if a tool refuses its arguments.

        The exception contains the error result that handle() returns in this case. A guard calls
        this method, because it does not count a refused call against a rate limit.
        """
        if call.method == "tools/call":
            return await self._call_tool(call, context)
        return await self.handle(call, context)

    async def watch(self, uris: frozenset[str]) -> None:
        """Report changes of these resources to the clients from now on.

        uris: all URIs to which clients have subscribed, of documents in the plugins' storage and of
            resources of MCP servers. These URIs replace those of the previous call.
        """
        self._events.watch(uris)

    async def close(self) -> None:
        """Stop receiving events of the hub. Derived classes also close their hub or connection."""
        await self._events.close()

    async def refresh(self) -> None:
        """Fetch the lists of tools and prompts again, and notify clients of changed lists.

        Does nothing for a list that no client has requested yet. Raises RpcError if the hub does
        not answer.
        """
        for name, cached in self._lists.items():
            if cached.sent is not None:
                await self._fetch(cached)
                if cached.current != cached.sent:
                    cached.sent = cached.current
                    self.report_change(name)

    def report_change(self, name: ListName) -> None:
        """Notify every client that a list has changed. Does nothing before start()."""
        if self._outlet is not None:
            self._outlet.report_change(name)

    # Handlers

    async def _call_tool(self, call: Call, context: Context) -> Struct:
        """Return the result of a tools/call.

        Raises ArgumentsRefused if the plugin refuses the arguments as invalid, and RpcError if the
        hub does not answer.
        """
        # A call that has come from another hub contains a path: the bridges that have forwarded it.
        # It prevents hubs from forwarding a call in a cycle (request_path.py).
        path = read_path(call.meta) if PATH in call.meta else []
        try:
            if context.caller.wants_progress:
                response = await self._call_as_stream(call, path, context)
                if response is not None:
                    return call_result(response)
            request = call_request(call.params, call.meta, self._caller)
            if path:
                # In Protobuf, two serialized messages in a row are one message with the fields of
                # both.
                request += PluginRequest(path=path).SerializeToString()
            pending = self._forward(request, CALL_S)
            if pending is not None:
                return read_call_response(await pending)
            response = await self._send(PluginRequest.FromString(request), CALL_S)
        except ConcertinoError as exc:
            raise _client_error(exc) from None
        return call_result(read_response(response, "tool_call"))

    async def _call_as_stream(
        self, call: Call, path: list[str], context: Context
    ) -> ToolResponse | None:
        """Call a tool as a stream, and report the chunks as progress.

        path: the bridges through which the call has come from other hubs.
        Returns the result. Returns None if the hub is down, or has no streams, as a Go hub. The
        caller must then send the call as a tool_call request.
        """
        request = stream_request(call.params, call.meta, self._session)
        request.path.extend(path)
        stream = self._stream(request, CALL_S)
        if stream is None:
            return None
        async with aclosing(stream) as responses:
            collected = CollectedStream()
            async for response in responses:
                if response.HasField("stream_chunk"):
                    done, total, message = collected.add(response.stream_chunk)
                    await context.progress(done, total, message)
                # The protocol's error response to any kind of request is a failed tool_call.
                elif response.HasField("tool_call"):
                    if response.tool_call.error_code == "unknown_request":
                        return None
                    return response.tool_call
                else:
                    return collected.end(response.stream_end)
        raise ProtocolError("the stream has ended without a result")

    async def _list(self, call: Call, name: ListName) -> Struct:
        """Answer tools/list or prompts/list, and remember which list the client has got."""
        _refuse_cursor(call)
        cached = self._lists[name]
        try:
            result = await self._fetch(cached)
        except RpcError:
            cached.sent = NO_LIST
            raise
        cached.sent = cached.current
        return result

    async def _get_prompt(self, call: Call) -> Struct:
        request = prompt_request(call.params)
        request.prompt_get.trace.update(read_trace(call.meta))
        response = await self._ask(request, call)
        return prompt_result(read_response(response, "prompt_get"))

    async def _list_resources(self, call: Call) -> Struct:
        _refuse_cursor(call)
        # One request for each kind of stored document, and one for the resources of MCP servers.
        requests = [*map(list_request, KINDS), server_list_request()]
        *responses, of_servers = await _gather([self._ask(request, call) for request in requests])
        resources = [
            resource
            for kind, response in zip(KINDS, responses, strict=True)
            for resource in resources_of(list_of(response).entries, kind)
        ]
        return ListResourcesResult([*resources, *server_resources_of(list_of(of_servers))])

    async def _list_templates(self, call: Call) -> Struct:
        _refuse_cursor(call)
        try:
            response = await self._ask(server_list_request(), call)
            of_servers = server_templates_of(list_of(response))
        except RpcError as exc:
            # The hub is down, or it is a Go program, which does not have this request.
            log.debug("no templates of MCP servers: %s", exc)
            of_servers = []
        return ListResourceTemplatesResult([*TEMPLATES, *of_servers])

    async def _read_resource(self, call: Call) -> Struct:
        uri, request = read_request(call.params)
        request.storage_read.trace.update(read_trace(call.meta))
        return read_result(uri, await self._ask(request, call))

    async def _list_events(self, call: Call) -> Raw:
        _refuse_cursor(call)
        return await self._mcp_events.list(call)

    async def _ask(self, request: PluginRequest, call: Call | None = None) -> PluginResponse:
        """Send a request to the hub, and return the response.

        call: the client's call that causes the request. If the call has a path (request_path.py),
            the path is copied into the request. None if no call causes the request.
        Raises RpcError if the hub does not answer.
        """
        if call is not None and PATH in call.meta:
            request.path.extend(read_path(call.meta))
        try:
            return await self._send(request, TIMEOUT_S)
        except ConcertinoError as exc:
            raise _client_error(exc) from None

    def _warn_once(self, message: str) -> None:
        """Log a warning, unless it was logged before."""
        if message not in self._logged:
            self._logged.add(message)
            log.warning("%s", message)

    async def _fetch(self, cached: _CachedList) -> Struct:
        """Request a list from the hub, and return it as an MCP result.

        Raises RpcError if the hub does not answer, or answers with an error.
        """
        kind = cached.kind
        response = await self._ask(PluginRequest(**{kind: _LIST_REQUESTS[kind]()}))
        return cached.update(read_response(response, kind))


_LIST_REQUESTS: dict[str, Callable[[], Any]] = {
    "list_tools": ListToolsRequest,
    "list_prompts": ListPromptsRequest,
}


class _CachedList:
    """The list of tools or of prompts: the last one of the hub, and the last one sent to clients.

    kind: the field of PluginRequest that requests the list, "list_tools" or "list_prompts".
    convert: returns the MCP result for the hub's response.

    Attributes:
    current: the content of the last list as JSON, for comparison.
    sent: the value of `current` when a client last requested the list, or when clients were last
        notified of a change. NO_LIST if the request failed; None before the first request.
    """

    def __init__(self, kind: str, convert: Callable[[Any], Struct]) -> None:
        self.kind = kind
        self.current = b""
        self.sent: bytes | None = None
        self._convert = convert
        # The hub's last response, serialized; None before the first one. Comparing it saves the
        # conversion of a response that has not changed.
        self._bytes: bytes | None = None
        self._result: Struct

    def update(self, response: Any) -> Struct:
        """Return the MCP result for a response of the hub.

        Returns the same object as before if the content is the same.
        """
        received = response.SerializeToString()
        if received != self._bytes:
            result = self._convert(response)
            content = encode_sorted(result)
            # Keep the old object for the same content: the server encodes each object only once.
            if self._bytes is None or content != self.current:
                self._result, self.current = result, content
            self._bytes = received
        return self._result


def _client_error(exc: ConcertinoError) -> RpcError:
    """Return the error that the client gets when a request to the hub has raised `exc`."""
    return exc if isinstance(exc, RpcError) else RpcError(INTERNAL_ERROR, f"orchestrator: {exc}")


def _refuse_cursor(call: Call) -> None:
    """Raise RpcError if a list request has a cursor: this server sends each list in one page.

    The empty cursor is accepted, because it means the first page.
    """
    if "cursor" in call.params and bytes(call.params["cursor"]) != b'""':
        raise RpcError(INVALID_PARAMS, "cursor: not one of this server's")


async def _gather(requests: Sequence[Awaitable[PluginResponse]]) -> list[PluginResponse]:
    """Await all requests concurrently, and return their responses in the same order.

    If a request fails, cancels the other requests, and raises the exception of the failed request.
    """
    tasks: list[asyncio.Task[PluginResponse]] = []
    try:
        async with asyncio.TaskGroup() as group:
            tasks.extend(group.create_task(_await(request)) for request in requests)
    # `except*` is not possible: Python 3.11.2 wraps the exception that is raised in it in a group.
    except ExceptionGroup as exc:
        raise exc.exceptions[0] from None
    return [task.result() for task in tasks]


async def _await(request: Awaitable[PluginResponse]) -> PluginResponse:
    """Await a request. A task needs a coroutine, and a request may be any awaitable."""
    return await request
