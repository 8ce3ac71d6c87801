"""Conversation: speaks MCP with one server over one connection, from its opening to its end.

A Conversation

- sends the client's requests in the form of the negotiated revision,
- handles the requests and notifications of the server,
- adds to errors how the server's process has ended.

client/negotiation.py opens a Conversation. Below it, the Channel (client/channel.py) speaks
JSON-RPC.

A server may need something of its client, such as the answer of a model (sampling). Before
2026-07-28, the server then sends a request to the client. Since 2026-07-28, it returns an
`input_required` result to the client's own request (client/input_rounds.py). In both cases the
functions that the user has passed to Client answer (client/request_handlers.py).
Spec: 2026-07-28 basic/index, basic/patterns/subscriptions; 2025-11-25 basic/lifecycle.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any

from msgspec import Raw, Struct
from msgspec.json import Decoder, encode

from concertino.client.channel import Channel
from concertino.client.input_rounds import InputRounds
from concertino.client.notifications import (
    NotificationDispatcher,
    NotificationHandlers,
    changed_list,
)
from concertino.client.opening_watch import OpeningWatch
from concertino.client.pending_request import (
    ForwardedReply,
    PreparedRequest,
    Progress,
)
from concertino.client.request_builder import RequestBuilder
from concertino.client.request_handlers import RequestHandlers
from concertino.client.subscriptions import ClientSubscriptions
from concertino.client.targets import OpenTarget
from concertino.decode_errors import DECODE_ERRORS
from concertino.errors import (
    INTERNAL_ERROR,
    UNSUPPORTED_VERSION,
    ConcertinoError,
    Disconnected,
    RpcError,
    TimedOut,
)
from concertino.jsonrpc.incoming_requests import IncomingRequest
from concertino.jsonrpc.limits import Limits
from concertino.jsonrpc.messages import Id, Message
from concertino.logs.formats import escape_controls
from concertino.protocol.call import Call, ClientFacts
from concertino.protocol.revisions import MODERN, Revision
from concertino.types.results import CallToolResult, Implementation, Level

__all__ = [
    "LAST_SKIPPED",
    "NO_STDERR",
    "STDERR_END",
    "Conversation",
    "ServerDescription",
    "lists_our_revision",
]

# How long close() waits for the server to read buffered output, and for tasks to end.
DRAIN_S = 1.0
# Errors and logs quote at most this many characters of stderr and of other texts.
MAX_QUOTE = 2000
# In the texts of errors, LAST_SKIPPED comes before the last line of stdout that was skipped, and
# STDERR_END before the end of stderr. A proxy searches for these texts to find where the text that
# the server itself has written begins.
LAST_SKIPPED = ", the last: "
STDERR_END = "; its stderr ends with:"
NO_STDERR = "; it wrote nothing to stderr"


class ServerDescription(Struct, frozen=True):
    """The server's description of itself, from its response to `server/discover` or `initialize`.

    info: the server's name, version and so on.
    revision: the negotiated revision; None before the negotiation.
    capabilities: the capabilities that the server declares, such as {"tools": {}}.
    instructions: the server's text for the model; None if it has none.
    """

    info: Implementation
    revision: Revision | None = None
    capabilities: Mapping[str, Any] = {}
    instructions: str | None = None


class _Cancelled(Struct, rename="camel"):
    request_id: Id
    reason: str = ""


_decode_cancelled = Decoder(_Cancelled).decode


class Conversation:
    """A client's side of one connection to an MCP server, from its opening to its end.

    When the server is restarted, the client makes a new Conversation.

    name: the name of the server, for logs.
    opened: the connection to the server, and the server's process if the client has started one.
    limits: the limits for the size of a message, and for the bytes of output that are buffered.
    info: the description of this client for the server.
    handlers: the object that answers the server's requests.
    notification_handlers: the user's functions for notifications.
    max_rounds: how many times the server may ask for input during one request (2026-07-28).
    show: a function that is called with "->" (sent) or "<-" (received) and the text of each
        message; None to trace nothing.

    Attributes:
    server: the server's description of itself; only a name before the negotiation.
    channel: the JSON-RPC layer, which sends the requests and matches the responses.
    requests: the builder of the params of requests.
    subscriptions: the open subscriptions/listen requests (2026-07-28).
    notifications: the dispatcher that calls the user's functions for notifications.
    on_end: a function that is called with this object if the connection ends without close(); None
        to call nothing.
    restart_note: a text that says, in the errors of requests that were pending when the server
        ended, that the server will be restarted; "" if it will not.
    opening: watches the program's output, until its first response, for signs that the program is
        no MCP server.
    """

    def __init__(
        self,
        name: str,
        opened: OpenTarget,
        limits: Limits,
        info: Implementation,
        handlers: RequestHandlers,
        notification_handlers: NotificationHandlers,
        max_rounds: int,
        show: Callable[[str, str], object] | None,
    ) -> None:
        self.log = logging.getLogger(f"concertino.client.{name}")
        self.opened = opened
        self.server = ServerDescription(Implementation(name, ""))
        self.requests = RequestBuilder(info, handlers)
        self.on_end: Callable[[Conversation], object] | None = None
        self.restart_note = ""
        self._rounds = InputRounds(handlers, max_rounds)
        self._tasks: set[asyncio.Task[None]] = set()

        connection = opened.connection
        if show is not None:
            from concertino.transports.trace import trace_connection

            connection = trace_connection(connection, show)
        self.channel = Channel(connection, limits, self, self.log)
        self.opening = OpeningWatch(opened, name, self.channel)
        self.channel.skipped.on_add = self.opening.on_line
        self.notifications = NotificationDispatcher(
            notification_handlers, self._start_task, self.log
        )
        self.subscriptions = ClientSubscriptions(self.channel, self.requests.params, self.log)

    def start_session(self, server: ServerDescription) -> None:
        """Use the negotiated revision from now on.

        server: the server's description of itself, with the revision.
        """
        revision = server.revision
        assert revision is not None
        self.server = server
        self.channel.peer.batches.accepted = revision.batches
        self.requests.use(revision)

    # Requests

    async def call(
        self,
        method: str,
        body: bytes,
        subject: str,
        idle_timeout_s: float,
        total_s: float,
        progress: Progress | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> Raw:
        """Send a request and return its complete result, undecoded.

        If a server of 2026-07-28 asks for input first, the functions that were passed to Client
        (`elicit`, `sample`, `roots`) answer, and the request is sent again.

        The other arguments are those of ClientConnection.call().
        idle_timeout_s: how many seconds may pass until the response arrives. Each progress
            notification starts this time again.
        total_s: how many seconds the request may take in all.
        Raises RpcError, TimedOut, Disconnected and ProtocolError.
        """
        channel = self.channel
        requests = self.requests

        async def send_with_progress(round_body: bytes) -> Raw:
            assert progress is not None
            with channel.progress.track(progress, idle_timeout_s, total_s) as tracker:
                params = requests.params(round_body, tracker.token, meta)
                return await channel.request(
                    method, params, subject, idle_timeout_s, total_s, tracker
                )

        # InputRounds calls this again, with the answers of each round in the body.
        def send(round_body: bytes) -> Awaitable[Raw]:
            if progress is not None:
                return send_with_progress(round_body)
            params = requests.params(round_body, 0, meta)
            return channel.request(method, params, subject, idle_timeout_s, total_s)

        if progress is not None and not callable(progress):
            raise TypeError(
                f"progress: expected a function of (done, total, message), got {progress!r}"
            )
        try:
            raw = await send(body)
        except RpcError as exc:
            # Some servers refuse a revision that they support. Sending the request once more is
            # safe, because servers check the revision before they do anything else.
            if not lists_our_revision(exc):
                raise
            raw = await send(body)
        if not requests.is_modern:
            return raw
        return await self._rounds.complete(raw, method, subject, body, send, self.server.info)

    def call_tool(
        self,
        name: str,
        arguments: bytes,
        idle_timeout_s: float,
        total_s: float,
    ) -> Awaitable[CallToolResult | Raw]:
        """Call a tool faster than call() does, but without progress and additional `_meta`.

        name: the name of the tool.
        arguments: a JSON object.
        idle_timeout_s: how many seconds to wait for the response.
        total_s: how many seconds the call may take in all.
        Returns a CallToolResult. If the response has members that the fast decoder does not expect,
        returns the result undecoded, as Raw.
        Raises RpcError, TimedOut, Disconnected and ProtocolError.
        """
        # This is faster for two reasons: everything in the request but the arguments was encoded at
        # the tool's first call, and the response is decoded together with its result.
        requests = self.requests
        prepared = requests.prepared.get(name) or requests.prepare_tool_call(name)
        call: Awaitable[CallToolResult | Raw] = self.channel.ask(
            prepared, arguments, idle_timeout_s, total_s
        )
        if not requests.is_modern:
            return call
        return self._complete_tool_call(call, name, arguments, idle_timeout_s, total_s)

    async def _complete_tool_call(
        self,
        call: Awaitable[CallToolResult | Raw],
        name: str,
        arguments: bytes,
        idle_timeout_s: float,
        total_s: float,
    ) -> CallToolResult | Raw:
        """Await a tool call of 2026-07-28, and answer if the result is `input_required`.

        call: an awaitable that sends the call and returns its result.
        name, arguments, idle_timeout_s, total_s: the arguments of call_tool(), to send the call
            again with answers.
        """
        result: CallToolResult | Raw | None = None
        try:
            result = await call
        except RpcError as exc:
            if not lists_our_revision(exc):
                raise
        if type(result) is CallToolResult:
            return result

        body = b'{"name":%b,"arguments":%b}' % (encode(name), arguments)

        def send(round_body: bytes) -> Awaitable[Raw]:
            params = self.requests.params(round_body)
            return self.channel.request("tools/call", params, name, idle_timeout_s, total_s)

        # Without a result, the server has refused our revision although it supports this revision.
        # Then send the call once more.
        raw = result if type(result) is Raw else await send(body)
        return await self._rounds.complete(raw, "tools/call", name, body, send, self.server.info)

    def forward(
        self,
        call: Call,
        caller: ClientFacts,
        level: Level | None,
        timeout_s: float,
        progress: Progress | None,
    ) -> Awaitable[Raw]:
        """Forward the call of another client, and return its undecoded result.

        The arguments are those of Client.forward().
        Raises RpcError, TimedOut, Disconnected and ProtocolError.
        """
        requests = self.requests
        prepared = requests.forwarded.get(call.method) or requests.prepare_forward(call.method)
        if progress is not None:
            return self._forward_with_progress(prepared, call, caller, level, timeout_s, progress)
        params = requests.forwarded_params(call, caller, level)
        return self.channel.ask(prepared, params, timeout_s, timeout_s)

    def begin_forward(
        self,
        call: Call,
        caller: ClientFacts,
        level: Level | None,
        callback: Callable[[Any], object],
    ) -> ForwardedReply | None:
        """Forward the call of another client without a task: pass its outcome to a function.

        The arguments and the result are those of Client.begin_forward().
        """
        requests = self.requests
        prepared = requests.forwarded.get(call.method) or requests.prepare_forward(call.method)
        params = requests.forwarded_params(call, caller, level)
        return self.channel.begin(prepared, params, callback)

    async def _forward_with_progress(
        self,
        prepared: PreparedRequest,
        call: Call,
        caller: ClientFacts,
        level: Level | None,
        timeout_s: float,
        progress: Progress,
    ) -> Raw:
        """Forward a call, and call `progress` for each progress notification of the server.

        Each progress notification extends the time limit. Returns the undecoded result.
        prepared: the request without its id and its params.
        """
        channel = self.channel
        with channel.progress.track(progress, timeout_s, timeout_s) as tracker:
            params = self.requests.forwarded_params(call, caller, level, tracker.token)
            return await channel.ask(prepared, params, timeout_s, timeout_s, tracker)

    def start_pings(self, every_s: float, within_s: float) -> None:
        """Ping the server in the background, with a pause of every_s seconds after each ping.

        If the server sends nothing within within_s seconds after a ping, the connection is closed.
        """
        self._start_task(self._ping_regularly(every_s, within_s), "ping")

    async def _ping_regularly(self, every_s: float, within_s: float) -> None:
        """Ping the server until the connection ends, every_s seconds after each response.

        If the server sends nothing within within_s seconds after a ping, close the connection.
        """
        channel = self.channel
        while True:
            await asyncio.sleep(every_s)
            channel.input.heard = False
            try:
                await self.call(self.requests.ping_method, b"{}", "", within_s, within_s)
            except TimedOut:
                if not channel.input.heard:
                    channel.give_up(f"it did not answer a ping within {within_s:g} s")
                    return
            except Disconnected:
                return
            except ConcertinoError as exc:
                # An error response also shows that the server responds.
                self.log.debug("a ping was answered with %s", exc)

    # Requests of the server (before 2026-07-28)

    def on_request(self, incoming: IncomingRequest) -> None:
        peer = self.channel.peer
        if self.opening.on_request(incoming.method):
            return
        is_ping = incoming.method == "ping"
        if self.requests.is_modern or (self.server.revision is None and not is_ping):
            # In 2026-07-28 servers send no requests. Before the end of the handshake, they may only
            # send `ping`. The log shows only the method.
            line = b'{"method":' + encode(incoming.method) + b"}"
            self.channel.skipped.add(line, "a request that the revision does not allow")
        elif is_ping:
            peer.respond(incoming, b"{}")
        elif peer.admit(incoming):
            # Otherwise too many requests are running, and the peer returns this one later, by
            # pop_waiting().
            self._start_answering(incoming)

    def _start_answering(self, incoming: IncomingRequest) -> None:
        """Start a task that answers a request of the server. notifications/cancelled cancels it."""
        task = self._start_task(self._answer(incoming), f"answer {incoming.method}")
        self.channel.peer.add_running(incoming)
        incoming.on_cancel = lambda reason: task.cancel()

    async def _answer(self, incoming: IncomingRequest) -> None:
        """Answer a request of the server, then start to answer the requests that wait.

        Requests wait because the peer limits how many of them are answered at the same time.
        """
        peer = self.channel.peer
        handlers = self.requests.handlers
        method = incoming.method
        try:
            params = encode(incoming.params)
            peer.respond(incoming, await handlers.answer(method, params, self.server.info))
        except RpcError as exc:
            peer.fail(incoming, exc.code, exc.message, exc.data)
        except asyncio.CancelledError:
            raise
        except Exception:
            self.log.exception("%s could not be answered", method)
            peer.fail(incoming, INTERNAL_ERROR, "Internal error: the client could not answer")
        finally:
            incoming.on_cancel = None
        while (admitted := peer.pop_waiting()) is not None:
            self._start_answering(admitted)

    # Notifications of the server

    def on_notification(self, message: Message) -> None:
        method = str(message.method)
        params = message.params
        if method == "notifications/cancelled":
            self._on_cancelled(params)
        elif method == "notifications/subscriptions/acknowledged":
            self.subscriptions.acknowledge(params)
        elif not self._is_unsubscribed(method, params):
            self.notifications.dispatch(method, params)

    def _is_unsubscribed(self, method: str, params: Mapping[str, Raw]) -> bool:
        """Return whether a notification reports a change without an open subscription.

        Since 2026-07-28, a notification about a change must belong to an open subscription.
        Otherwise it is ignored.
        """
        is_change = method == "notifications/resources/updated" or changed_list(method)
        if not is_change or not self.requests.is_modern:
            return False
        return not self.subscriptions.is_subscribed(params)

    def _on_cancelled(self, params: Mapping[str, Raw]) -> None:
        """Handle notifications/cancelled, for a subscription or for a request of the server."""
        try:
            cancelled = _decode_cancelled(encode(params))
        except DECODE_ERRORS:
            return
        if self.subscriptions.on_cancelled(cancelled.request_id, cancelled.reason):
            return
        if not self.requests.is_modern:
            reason = escape_controls(cancelled.reason[:MAX_QUOTE]) or "no reason"
            self.log.info("the server cancels its request: %s", reason)
            self.channel.peer.cancel(cancelled.request_id, cancelled.reason)

    # The end

    def _start_task(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Run a coroutine as a task, which close() cancels."""
        task = asyncio.get_running_loop().create_task(work, name=f"{name} ({self.log.name})")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def on_eof(self) -> None:
        # The server's process may have closed its stdout and still run, so end the process.
        self.opened.release(DRAIN_S)
        if self.on_end is not None:
            self.on_end(self)

    def explain(self, error: ConcertinoError) -> ConcertinoError:
        """Return an error of the same class, whose text also describes the server's process.

        The text says whether the process runs or how it has ended, and how many lines of its stdout
        were skipped because they are no messages. It quotes the end of its stderr.
        """
        opened = self.opened
        ending = self.channel.ending
        if ending.by_client:
            return type(error)(f"{error} (this client was closed)")
        if opened.child is None:
            reason = ending.fault or ending.reason
            return type(error)(f"{error}; {reason}" if reason else str(error))

        tail = opened.tail()
        skipped = self.channel.skipped
        is_ended = isinstance(error, Disconnected)
        text = f"{error}; {ending.fault or opened.describe_process(is_ended)}"
        if is_ended:
            text += self.restart_note
        if withheld := opened.describe_withheld():
            text += f"; {withheld}"
        # The server's own text comes last. A proxy finds its beginning, and removes it.
        if skipped.count:
            last = f"{LAST_SKIPPED}{skipped.recent[-1]}" if skipped.recent else ""
            text += f"; lines of its stdout that were skipped: {skipped.count}{last}"
        if tail:
            text += f"{STDERR_END}\n{tail[-MAX_QUOTE:]}"
        else:
            text += NO_STDERR

        if is_ended:
            return Disconnected(text, opened.exit_status, tail)
        return type(error)(text)

    async def close(self) -> None:
        """Close the connection, and end the server's process if there is one.

        Takes a limited time. Pending requests raise Disconnected. The tasks that answer the
        server's requests, and the other tasks of this Conversation, are cancelled.
        """
        self.channel.ending.by_client = True
        self.opening.stop()
        self.subscriptions.close_all()
        self.channel.end()
        # Tasks remove themselves from the set when they end, so iterate over a copy.
        for task in list(self._tasks):
            task.cancel()
        await asyncio.shield(self.opened.release(DRAIN_S))
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=DRAIN_S)


def lists_our_revision(error: RpcError) -> bool:
    """Return whether an error refuses revision 2026-07-28, but lists this revision as supported.

    Then the client may send the request again. The server has not executed the request, because
    servers check the revision before they do anything else (2026-07-28 basic/versioning).
    error: the server's error response.
    """
    data: Any = error.data
    try:
        return error.code == UNSUPPORTED_VERSION and MODERN.name in data["supported"]
    except (TypeError, KeyError):
        return False
