"""ToolCalls and forward_request(): forward the requests that reach a hub to its plugins.

A tool can be called with a tool_call request, or as a stream (streams.py). Plugins of this package
accept both for every tool. A Go plugin accepts only one of the two for each tool, and its list of
tools does not say which. If a Go plugin refuses a call, and so has not run the tool, this module
sends the call again: a tool_call as a stream, and a stream as a tool_call.

A request is *forwarded* as an object that the hub has decoded, or *relayed* as bytes, which is
faster.
Source: the Orchestra plugin protocol, "Orchestrator" and "Streaming".
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Sequence
from contextlib import aclosing
from functools import partial
from typing import Protocol

from concertino.errors import ConcertinoError, Disconnected, ProtocolError, TimedOut
from concertino.orchestra.failures import prompt_failure, storage_failure
from concertino.orchestra.message_peek import (
    is_stream_end,
    is_tool_response,
    split_id,
)
from concertino.orchestra.pending_response import PendingResponse, ResponseCallback
from concertino.orchestra.plugin_messages import (
    DecodeError,
    PluginRequest,
    PluginResponse,
    StreamStart,
)
from concertino.orchestra.routes import PluginProvider
from concertino.orchestra.rpc_interface import (
    Cancellable,
    RemotePeer,
    Respond,
    error_response,
)
from concertino.orchestra.streams import (
    CollectedStream,
    ResponseStream,
    call_of_stream,
    end_response,
    failed_end,
    stream_of_call,
)

__all__ = [
    "CALL_S",
    "ChangeFailed",
    "HubPlugin",
    "ToolCalls",
    "ToolFinder",
    "forward_request",
    "plugin_id",
]

log = logging.getLogger("concertino.hub")

# Time limit of a request that is forwarded to a plugin, in seconds. Tools may take minutes.
CALL_S = 600.0
NOT_FOUND = "tool_not_found"


class ChangeFailed(ConcertinoError):
    """The plugin's changed code does not start, so the first call after the change fails.

    Later calls go to the process that still runs the code before the change.
    """


class HubPlugin(PluginProvider, Protocol):
    """A plugin that gets requests of the hub.

    Either the hub itself runs the plugin (PluginProcess), or other processes of a NATS cluster do
    (ClusterPlugin).
    """

    @property
    def address(self) -> str:
        """The address of the plugin, for messages."""
        ...

    async def request(self, request: PluginRequest, timeout_s: float) -> PluginResponse:
        """Send a request, and return the response, which has the request's id.

        Raises Disconnected if the plugin does not run, and TimedOut after timeout_s.
        """
        ...

    def forward(
        self, body: bytes, timeout_s: float, callback: ResponseCallback, stream: str = ""
    ) -> PendingResponse | None:
        """Send a serialized tool call or stream_start, and return its pending response.

        body: the PluginRequest, serialized without its id.
        timeout_s: the time limit of the call or of the whole stream.
        callback: called with each response, serialized with its id, or with an exception.
        stream: the id of the stream in a stream_start; "" for a tool call.
        Returns None if the request cannot be sent now. Otherwise, the caller must call
        end_forward() when the call has ended.
        """
        ...

    def stream(self, request: PluginRequest, timeout_s: float) -> ResponseStream:
        """Call a tool as a stream, and yield the responses: the chunks, then the last response.

        request: contains a stream_start. This method replaces its request id and stream id.
        timeout_s: the time limit of the whole stream.
        Raises Disconnected if the plugin does not run.
        """
        ...

    def end_forward(self) -> None:
        """Count a call of forward() as ended.

        The plugin counts its calls in progress, for example to wait for them before its process is
        ended.
        """
        ...


class ToolFinder(Protocol):
    """Finds the plugin for a call of a tool. The Hub implements it."""

    def find_tool(self, name: str, ai: str, peer: RemotePeer) -> Awaitable[HubPlugin | None]:
        """Return the plugin that has a tool, after waiting for its start; None if no plugin has it.

        name: the name of the tool.
        ai: the AI provider that the call names; empty for none.
        peer: the sender of the call. If the sender is a plugin that is itself starting, the call
            does not wait. Otherwise, two plugins could wait for each other.
        """
        ...

    def explain_missing_tool(self, name: str, ai: str) -> str:
        """Return a sentence that says why find_tool() has returned None.

        name, ai: the arguments of find_tool().
        """
        ...


class ToolCalls:
    """Forwards tool calls and streams of tools to plugins. The Hub owns it.

    finder: finds the plugin of each call.
    """

    def __init__(self, finder: ToolFinder) -> None:
        self._finder = finder
        # (plugin id, tool name) of each tool that is known to refuse a call as a stream.
        self._tools_without_streams: set[tuple[str, str]] = set()
        # The tasks that repeat relayed calls as streams, because the plugin has refused the calls.
        self._repeating: set[asyncio.Task[PluginResponse]] = set()

    def forget(self) -> None:
        """Forget which tools refuse a call as a stream. Call this when a plugin has changed."""
        self._tools_without_streams.clear()

    def cancel(self) -> None:
        """Cancel the calls that run in tasks of this object, at the end of the hub.

        Each task repeats a relayed tool_call that a Go plugin has refused, as a stream. All other
        calls end with the connections of their plugins.
        """
        for task in self._repeating:
            task.cancel()

    async def call(self, request: PluginRequest, peer: RemotePeer) -> PluginResponse:
        """Forward a tool call, and return the response. Failures become error responses.

        request: contains a tool_call. If the peer has a certificate, this method replaces the
            caller in the request by the name in the certificate.
        peer: the sender of the request.
        """
        call = request.tool_call
        # Use the name in the peer's certificate, because the caller in the request could be false.
        if peer.name is not None:
            call.caller_plugin = plugin_id(peer.name)
        plugin = await self._finder.find_tool(call.tool_name, call.provider, peer)
        if plugin is None:
            message = self._finder.explain_missing_tool(call.tool_name, call.provider)
            return error_response(request.request_id, NOT_FOUND, message)
        response = await forward_request(plugin, "tool", call.tool_name, request, "tool_call")
        if _is_not_found(response) and plugin.uses_quic:
            return await self._repeat_as_stream(plugin, request, response)
        return response

    async def stream(
        self, start: StreamStart, peer: RemotePeer, path: Sequence[str] = ()
    ) -> ResponseStream:
        """Forward a stream_start, and yield the responses. The last one is always a stream_end.

        A tool that refuses to be called as a stream is called with a tool_call instead. The caller
        then gets no chunks.
        start: the call. If the peer has a certificate, this method replaces the caller in `start`
            by the name in the certificate.
        peer: the sender of the request.
        path: the bridges through which the request has come from other hubs (request_path.py).
        """
        if peer.name is not None:
            start.caller_plugin = plugin_id(peer.name)
        id, name = start.stream_id, start.tool_name
        plugin = await self._finder.find_tool(name, start.provider, peer)
        if plugin is None:
            message = self._finder.explain_missing_tool(name, start.provider)
            yield failed_end(id, NOT_FOUND, message)
            return

        if (plugin.id, name) not in self._tools_without_streams:
            stream = PluginRequest(stream_start=start, path=path)
            async with aclosing(_forward_stream(plugin, stream)) as responses:
                async for response in responses:
                    if _has_no_stream(response):
                        break
                    yield response
                    if response.HasField("stream_end"):
                        return
            self._tools_without_streams.add((plugin.id, name))
        request = call_of_stream(start, path)
        response = await forward_request(plugin, "tool", name, request, "tool_call")
        # Only programs of this package read the result in a stream_end. They state a window.
        yield end_response(id, 0, response.tool_call, has_result=start.window > 0)

    async def _repeat_as_stream(
        self, plugin: HubPlugin, request: PluginRequest, not_found: PluginResponse
    ) -> PluginResponse:
        """Call a tool of a Go plugin as a stream, and join the chunks into one tool_call response.

        A Go plugin answers `tool_not_found` to a tool_call for a tool that can only be called as a
        stream.
        not_found: the plugin's answer to `request`. It is returned if the plugin does not have the
            tool as a stream either.
        Returns an error response if the chunks are too large together.
        """
        id = request.request_id
        collected = CollectedStream()
        stream = stream_of_call(request.tool_call, request.path)
        async with aclosing(_forward_stream(plugin, stream)) as responses:
            async for response in responses:
                if _has_no_stream(response):
                    return not_found
                if response.HasField("stream_end"):
                    result = collected.end(response.stream_end)
                    return PluginResponse(request_id=id, tool_call=result)
                try:
                    collected.add(response.stream_chunk)
                except ProtocolError as exc:
                    return error_response(id, "response_too_large", f"{plugin.id}: {exc}")
        raise AssertionError("_forward_stream() always yields a stream_end")

    def relay(
        self,
        plugin: HubPlugin,
        body: bytes,
        respond: Respond,
    ) -> Cancellable | None:
        """Forward a tool call to a plugin, and its response back, as bytes.

        body: the serialized request, without its id.
        respond: sends the response, serialized without its id, to the caller. It is called with
            None if the call was cancelled.
        Returns an object that cancels the call; None if the call cannot be sent now.
        """
        # Only calls of Go plugins may have to be repeated as streams, and Go plugins use QUIC.
        if not plugin.uses_quic:
            return plugin.forward(body, CALL_S, partial(_end_relay, plugin, respond))
        call = _RelayedCall()
        call.work = plugin.forward(
            body, CALL_S, partial(self._end_first_attempt, call, plugin, body, respond)
        )
        return None if call.work is None else call

    def relay_stream(
        self, plugin: HubPlugin, body: bytes, stream: str, respond: Respond
    ) -> Cancellable | None:
        """Forward a stream_start to a plugin, and its responses back, as bytes.

        plugin: a plugin of this package, which accepts streams for every tool. If a Go plugin
            refused the stream, this method would not repeat the stream as a tool_call.
        body: the serialized request, without its id.
        stream: the stream_id of the request.
        respond: sends a chunk or the last response, serialized without its id, to the caller.
        Returns an object that cancels the stream; None if the request cannot be sent now.
        """
        pending: PendingResponse | None = None

        def pass_on(result: bytes | BaseException) -> None:
            # While `pending` has no outcome, each result is a chunk, as RpcClient has checked. The
            # result with which `pending` ends is the end of the stream or an exception.
            if pending is not None and pending.outcome is None and isinstance(result, bytes):
                message = split_id(result)
                if message is not None:
                    respond(message[1])
                    return
            _end_relayed_stream(plugin, respond, result)

        pending = plugin.forward(body, CALL_S, pass_on, stream)
        return pending

    def _end_first_attempt(
        self,
        call: _RelayedCall,
        plugin: HubPlugin,
        body: bytes,
        respond: Respond,
        outcome: bytes | BaseException,
    ) -> None:
        """Send the outcome of a relayed call to its caller, or repeat the call as a stream.

        body: the serialized request, without its id.
        outcome: the plugin's serialized response with its id, or the exception that ended the call.
        """
        # Search the bytes first, because decoding every response would take long.
        if isinstance(outcome, bytes) and NOT_FOUND.encode() in outcome:
            response = _decode(outcome)
            if response is not None and _is_not_found(response):
                plugin.end_forward()
                request = PluginRequest.FromString(body)
                task = asyncio.ensure_future(self._repeat_as_stream(plugin, request, response))
                call.work = task
                self._repeating.add(task)
                task.add_done_callback(partial(self._end_repeating, respond))
                return
        _end_relay(plugin, respond, outcome)

    def _end_repeating(self, respond: Respond, task: asyncio.Task[PluginResponse]) -> None:
        """Send the result of a relayed call that was repeated as a stream to its caller."""
        self._repeating.discard(task)
        if task.cancelled():
            respond(None)
        else:
            response = task.result()
            response.request_id = ""
            respond(response.SerializeToString())


class _RelayedCall:
    """A relayed call of a tool of a Go plugin. The hub may have to repeat the call as a stream.

    Attribute:
    work: the pending response to the call; during the repetition, the task that repeats the call.
        None if the call could not be sent.
    """

    def __init__(self) -> None:
        self.work: Cancellable | None = None

    def cancel(self) -> None:
        """Cancel the call, or the task that repeats it."""
        if self.work is not None:
            self.work.cancel()


async def forward_request(
    plugin: HubPlugin | None,
    feature: str,
    name: str,
    request: PluginRequest,
    kind: str,
) -> PluginResponse:
    """Send a request to a plugin, and return its response or an error response.

    plugin: None if no plugin provides the feature.
    feature: "tool", "prompt" or "storage", for the error message.
    name: the name of the tool or prompt, or the storage type, for the error message.
    kind: request.WhichOneof("request"), such as `tool_call`.
    """
    id = request.request_id
    if plugin is None:
        code, message = f"{feature}_not_found", f"no plugin has the {feature} {name!r}"
        if feature == "prompt":
            return prompt_failure(id, code, message)
        if feature == "storage":
            return storage_failure(id, kind, code, message)
        return error_response(id, code, message)
    try:
        response = await plugin.request(request, CALL_S)
    except ConcertinoError as exc:
        return _failure_response(id, plugin, exc)
    return _check_kind(id, plugin, response, kind)


def plugin_id(certificate_name: str) -> str:
    """Return the name of the plugin or other program to which a client certificate belongs.

    certificate_name: PLUGIN-client for a plugin. Any other name, such as `orchestrator` for a hub,
        is returned unchanged.
    """
    return certificate_name.removesuffix("-client")


def _end_relayed_stream(
    plugin: HubPlugin, respond: Respond, outcome: bytes | BaseException
) -> None:
    """Send the outcome of a relayed stream to its caller.

    outcome: the stream_end, or another response that has ended the stream, serialized with its id;
        or the exception that has ended the stream.
    """
    if isinstance(outcome, bytes) and is_stream_end(outcome):
        message = split_id(outcome)
        if message is not None:
            plugin.end_forward()
            respond(message[1])
            return
    _end_relay(plugin, respond, outcome)


def _end_relay(plugin: HubPlugin, respond: Respond, outcome: bytes | BaseException) -> None:
    """Send the outcome of a relayed call to its caller.

    outcome: the plugin's serialized response with its id, or the exception that ended the call.
    """
    plugin.end_forward()
    if isinstance(outcome, asyncio.CancelledError):
        respond(None)
        return

    if isinstance(outcome, bytes):
        # The id of the request on the plugin's connection, and the response without it.
        message = split_id(outcome)
        if message is not None and is_tool_response(message[1]):
            respond(message[1])
            return
        # A response of another kind, or in an unusual form: only decoding it can tell.
        try:
            response = _check_kind("", plugin, PluginResponse.FromString(outcome), "tool_call")
            response.request_id = ""
        except DecodeError as exc:
            response = error_response(
                "", "routing_error", f"{plugin.id}: the response cannot be decoded: {exc}"
            )
    else:
        response = _failure_response("", plugin, outcome)
    respond(response.SerializeToString())


def _decode(payload: bytes) -> PluginResponse | None:
    try:
        return PluginResponse.FromString(payload)
    except DecodeError:
        return None


async def _forward_stream(plugin: HubPlugin, request: PluginRequest) -> ResponseStream:
    """Send a stream_start to a plugin, and yield the responses. The last is a stream_end.

    Each response gets the stream id of `request`, because the connection to the plugin uses another
    id.
    """
    id = request.stream_start.stream_id
    # How many chunks have arrived.
    count = 0
    try:
        async with aclosing(plugin.stream(request, CALL_S)) as responses:
            async for response in responses:
                if response.HasField("stream_chunk"):
                    response.stream_chunk.stream_id = id
                    count += 1
                elif response.HasField("stream_end"):
                    response.stream_end.stream_id = id
                else:
                    error = _check_kind("", plugin, response, "stream_end").tool_call
                    response = failed_end(id, error.error_code, error.error_message, count)
                yield response
    except ConcertinoError as exc:
        error = _failure_response("", plugin, exc).tool_call
        yield failed_end(id, error.error_code, error.error_message, count)


def _has_no_stream(response: PluginResponse) -> bool:
    """Return whether a plugin has refused to run a tool as a stream, and so has not run the tool.

    A plugin that does not know stream_start at all answers `unknown_request`.
    """
    end = response.stream_end
    # After a chunk, the tool has run, and the error comes from the tool.
    return end.total_chunks == 0 and end.error_code in (NOT_FOUND, "unknown_request")


def _is_not_found(response: PluginResponse) -> bool:
    """Return whether the response of a plugin says that the plugin does not have the tool."""
    return response.tool_call.error_code == NOT_FOUND


def _failure_response(id: str, plugin: HubPlugin, exc: BaseException) -> PluginResponse:
    """Return the error response for a request that a plugin did not answer."""
    code = "routing_error"
    if isinstance(exc, Disconnected):
        code = "plugin_unavailable"
    elif isinstance(exc, TimedOut):
        code = "timeout"
    elif isinstance(exc, ChangeFailed):
        code = "change_failed"
    # The response names the plugin, and not its address on this machine.
    reason = str(exc).removeprefix(f"{plugin.address}: ")
    return error_response(id, code, f"{plugin.id}: {reason}")


def _check_kind(
    id: str,
    plugin: HubPlugin,
    response: PluginResponse,
    kind: str,
) -> PluginResponse:
    """Return the response, or an error response if the plugin has answered with another kind.

    id: the request id of the error response.
    kind: the field that the response must set.
    """
    got = response.WhichOneof("response")
    # The protocol's error response to any kind of request is a failed tool_call.
    if got in (kind, "tool_call"):
        return response
    log.warning("%s answered %s with %s", plugin.id, kind, got or "nothing")
    return error_response(
        id, "invalid_response", f"{plugin.id} answered {kind} with {got or 'nothing'}"
    )
