"""Upstream: one connection of a proxy to its server, and the calls that wait for a result there.

A server of a revision before 2026-07-28 sends requests, log messages and other notifications to its
client. Over stdio these do not say to which call they belong. So they are passed on in this way:

- Requests of the server, called questions, go to the client of the newest pending call that can
  receive them (server_questions.py). So do log messages.
- Other notifications go to the client sessions that use the connection (upstream_sessions.py).

The word *upstream* means such a connection in this package, and often also the process of the
server at its other end.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from msgspec import Raw, Struct

from concertino.backend.callback_calls import ENDED, CancelCall, EndsCalls
from concertino.backend.caller import Caller, CallerSession
from concertino.backend.interface import Call, Context, Notifier
from concertino.client.channel_ending import UnreadRequest
from concertino.client.client import Client
from concertino.client.negotiation import Era, HandshakeChoice
from concertino.client.notifications import LogMessage
from concertino.client.pending_request import ForwardedReply
from concertino.errors import ConcertinoError, SpawnError
from concertino.protocol.call import InputRequired
from concertino.protocol.revisions import REVISION_BY_NAME
from concertino.proxy.failures import add_name, to_rpc_error
from concertino.proxy.forwarded_call import CallbackCall, ForwardedCall, SuspendableCall
from concertino.proxy.heartbeat import Heartbeat
from concertino.proxy.input_required import to_input_required
from concertino.proxy.parked_calls import ParkedCalls, await_result_or_questions
from concertino.proxy.server_questions import ServerQuestions
from concertino.proxy.server_status import ServerStatus, describe_error
from concertino.proxy.upstream_sessions import UpstreamSessions
from concertino.types.results import LEVELS, Level

__all__ = ["ClientMaker", "OpeningOptions", "Upstream", "UpstreamSettings"]

log = logging.getLogger("concertino.proxy")

# A request with this method stays open, and the server sends notifications that belong to it.
EVENTS_STREAM = "events/stream"
# How often an upstream that was replaced checks whether its calls have ended, in seconds.
CALLS_CHECK_S = 0.05
# The level of log messages that a legacy client gets if it sets none.
DEFAULT_LEVEL: Level = "info"
# Client.state -> the state of its server that `concertino ps` shows. For the states that are
# missing, `concertino ps` uses the same words.
STATES = {
    "new": "starting",
    "backing-off": "restarting",
    "starting": "restarting",
    "failed": "crash loop",
}

# A function that makes a Client of the server. Its keyword arguments are those of Client for the
# era, and for what the server sends, such as `logged`.
ClientMaker = Callable[..., Client]


class UpstreamSettings(Struct, frozen=True):
    """The settings that all upstreams of one proxy share.

    An upstream is a connection of the proxy to its server.
    name: the name of the server, for logs and errors.
    place: how messages mention the server after its name, as in `NAME is still starting; PLACE has
        not answered initialize`: its address; "it" if it has none, or if the name is the address.
    make_client: makes a Client of the server, which is not open yet.
    heartbeat_s: if the server sends nothing about a call for this time, in seconds, the proxy
        itself sends progress to the client. None for never.
    parked: the calls of the proxy that wait for answers of their clients.
    on_question: called when a server of a revision before 2026-07-28 asks its client something.
    on_change: called with an upstream whose server reports that a list has changed.
    """

    name: str
    place: str
    make_client: ClientMaker
    heartbeat_s: float | None
    parked: ParkedCalls
    on_question: Callable[[], object]
    on_change: Callable[[Upstream], object]


class OpeningOptions(Struct, frozen=True):
    """How an upstream opens its connection to the server.

    capabilities: the client capabilities to declare to a server of a revision before 2026-07-28.
    era: "legacy" to open it with `initialize` (revisions up to 2025-11-25); "modern" to speak
        2026-07-28; "auto" to find out what the server speaks. Or an async function, to find it out
        and to choose what to try first: called without arguments after the server was started,
        returns True for `initialize` and False for 2026-07-28.
    """

    capabilities: Mapping[str, Any]
    era: Era | HandshakeChoice


class Upstream:
    """One connection of a proxy to its server.

    Call open() first. handle() or begin() forward the calls of all client sessions that use this
    connection. UpstreamMaker makes these objects, and UpstreamPool opens and closes them.

    settings: the settings that all upstreams of the proxy share.
    outlet: the Notifier of the proxy. It is notified of the changes that the server reports while
        no client session uses this connection.
    options: how to open the connection.

    Attributes:
    sessions: the client sessions that have made calls over this connection.
    client: the Client that is connected to the server.
    watched: the URIs of the resources that are subscribed to at the server.
    last_used: when the last call began, by the loop's clock; infinite before the first call.
    learned_for: the principals (verified users) whose lists of tools, prompts and resources have
        been read from the server.
    """

    def __init__(
        self,
        settings: UpstreamSettings,
        outlet: Notifier,
        options: OpeningOptions,
    ) -> None:
        self.options = options
        self.sessions = UpstreamSessions(outlet)
        self.watched: frozenset[str] = frozenset()
        self.last_used = float("inf")
        self.learned_for: set[bytes] = set()
        # Whether open() was called.
        self._has_begun = False
        self._settings = settings
        # A dict, because it keeps the order: the newest call is at the end.
        self._calls: dict[ForwardedCall, None] = {}
        self._questions = ServerQuestions(self._calls, self._suspend)
        # The level of log messages that a server before 2026-07-28 was asked for.
        self._level: Level = DEFAULT_LEVEL
        # The clock of `last_used`, and of the waiting times in errors. open() sets it, because it
        # belongs to the event loop.
        self._time: Callable[[], float]
        self.client = settings.make_client(
            era=options.era,
            capabilities=options.capabilities,
            answer_any=self._answer,
            changed=self._on_list_changed,
            updated=self.sessions.report_update,
            logged=self._on_logged,
            notified=self._on_notified,
        )

    @property
    def is_busy(self) -> bool:
        """Return whether the connection is in use, so that it must not be closed as idle.

        It is in use if calls are pending, resources are watched, or a request `events/stream` is
        open.
        """
        return bool(self._calls or self.watched or self.sessions.event_streams)

    @property
    def is_modern(self) -> bool:
        """Return whether the server speaks 2026-07-28."""
        return REVISION_BY_NAME[self.client.protocol_version].modern

    async def open(self) -> None:
        """Start the server or connect to it. Raises ConcertinoError if that is impossible."""
        self._has_begun = True
        self._time = asyncio.get_running_loop().time
        try:
            await self.client.open()
        except ConcertinoError as exc:
            # The text is all that a user needs, so hide the class and the traceback of the cause.
            text = add_name(self._settings.name, str(exc))
            # A SpawnError is about a program, and not about an address.
            is_program = isinstance(exc, SpawnError)
            cause = exc.__cause__
            if not is_program and isinstance(cause, (FileNotFoundError, ConnectionRefusedError)):
                text += "; start the server that listens there, or correct the address"
            raise ConcertinoError(text) from None

    def status(self) -> ServerStatus:
        """Return the state of the server, for `concertino ps`."""
        client = self.client
        state = STATES.get(client.state, client.state)
        # In the other states, client.pid is the id of a process that has ended.
        has_process = self._has_begun and client.state in ("new", "running", "starting")
        return ServerStatus(
            server=self._settings.name,
            state=state,
            pid=(client.pid or 0) if has_process else 0,
            calls=client.requests,
            restarts=client.restarts,
            host=self.sessions.host,
            last_error=describe_error(client.failure),
            stray=client.stray,
            last_stray=describe_error(client.strays[-1] if client.strays else None),
        )

    async def watch(self, uris: frozenset[str]) -> None:
        """Subscribe to these resources at the server, and to no others.

        Raises ConcertinoError if the server refuses or has ended.
        """
        if uris != self.watched:
            self.watched = uris
            await self.client.watch(uris)

    def take_over(self, before: Upstream) -> None:
        """Replace another upstream: use this connection for its sessions from now on.

        before: the other upstream. Its pending calls stay there.
        """
        self.sessions.take_over(before.sessions)
        self.last_used = before.last_used

    async def close_after_calls(self) -> None:
        """Wait until all pending calls have ended, then close the connection.

        Does not wait for requests `events/stream`, which do not end by themselves: they get an
        error.
        """
        try:
            # Poll, because with an event each call would have to set it.
            while self._calls:  # noqa: ASYNC110
                await asyncio.sleep(CALLS_CHECK_S)
        finally:
            await self.close()

    async def close(self) -> None:
        """Close the connection, and end the server with all processes that it has started.

        Pending calls get an error. Returns when the processes have ended.
        """
        # Cancel the calls that wait for answers of their clients, who may never send them.
        suspended = frozenset(call for call in self._calls if isinstance(call, SuspendableCall))
        self._settings.parked.cancel(suspended)
        await self.client.aclose()
        if suspended:
            await asyncio.wait([call.server_result for call in suspended])

    # Calls

    async def handle(self, call: Call, context: Context) -> Raw | InputRequired:
        """Forward a call and return the server's result; InputRequired if the server asks first.

        Raises RpcError with the server's error, or -32603 if the server has ended.
        """
        client = self.client
        caller = context.caller
        revision = client.protocol_version
        is_modern = REVISION_BY_NAME[revision].modern
        level = caller.log_level
        self.last_used = self._time()
        if call.method == EVENTS_STREAM:
            streams = self.sessions.open_event_streams(self._settings.name)
            return await streams.forward(client, call, context)
        if not is_modern:
            if level is not None and level != self._level:
                await self._set_level(level)
            # The server may ask its client something, but a client of 2026-07-28 gets no requests.
            if REVISION_BY_NAME[context.client.protocol_version].modern:
                return await self._forward_suspendably(call, context)

        forwarded = ForwardedCall(call.method, context)
        self._calls[forwarded] = None
        # The server has asked something when no client could be asked. Ask this client.
        if self._questions.waiting:
            self._questions.adopt(forwarded)
        try:
            # Like _send(), without its coroutine.
            if caller.wants_progress:
                raw = await self._send_with_progress(call, context, level)
            else:
                raw = await client.forward(call, context.client, level=level)
        except ConcertinoError as exc:
            raise to_rpc_error(self._settings.name, exc, revision) from None
        finally:
            del self._calls[forwarded]
        if is_modern and (question := to_input_required(raw)) is not None:
            return question
        # If the client speaks the server's revision, the session sends it this JSON unchanged. The
        # Client may have restarted the server meanwhile, with another revision.
        caller.pass_result(raw, client.protocol_version)
        return raw

    def begin(
        self, call: Call, context: Context, caller: Caller, runner: EndsCalls, slot: Any
    ) -> CancelCall | None:
        """Forward a call without a task: a callback passes on the server's result.

        Returns at once. When the call ends, runner.end_call(slot, result, error) is called.
        call, context: the client's request and its Context.
        caller: `context.caller`, which begin() need not look up again.
        runner: the part of the runtime that sends the result to the client.
        slot: an object of the runner, by which it identifies this call.
        Returns a function that cancels the call; ENDED if the call has ended already; or None if
        the call needs more than forwarding, such as progress: then begin() has done nothing, and
        handle() must be called.
        """
        if caller.wants_progress or call.method == EVENTS_STREAM:
            return None
        client = self.client
        level = caller.log_level
        revision = REVISION_BY_NAME[client.protocol_version]
        # handle() must set the log level of the server first, and wait for its response.
        if not revision.modern and level is not None and level != self._level:
            return None
        forwarded = CallbackCall(call.method, context, call, caller, revision, runner, slot)
        # The server has asked something when no client could be asked. Ask this client.
        if self._questions.waiting:
            # For a modern client, handle() makes a SuspendableCall, which can pass questions on.
            if forwarded.may_suspend:
                return None
            self._questions.adopt(forwarded)

        self.last_used = self._time()
        self._calls[forwarded] = None
        reply = None
        try:
            reply = client.begin_forward(
                call, context.client, level, partial(self._on_reply, forwarded)
            )
        finally:
            # The call was not sent: begin_forward() has raised an exception, or cannot send now.
            if reply is None:
                del self._calls[forwarded]
        if reply is None:
            return None
        if reply.outcome is not None:
            # begin_forward() has called _on_reply(), which has ended the call.
            return ENDED
        forwarded.reply = reply
        return partial(self._give_up, forwarded, reply)

    def _give_up(self, forwarded: CallbackCall, reply: ForwardedReply) -> None:
        """Cancel a call that begin() has begun. Does nothing if it has ended."""
        if forwarded in self._calls:
            del self._calls[forwarded]
            reply.give_up()

    def _on_reply(self, forwarded: CallbackCall, reply: ForwardedReply) -> None:
        """End a call that begin() has begun, because its request has an outcome."""
        # The reply refers to the call. Without this, the two would stay in memory until a garbage
        # collection.
        forwarded.reply = None
        if (suspendable := forwarded.suspendable) is not None:
            result_future = suspendable.server_result
            # If the call was cancelled in the meantime, the future is done already.
            if not result_future.done() and reply.failed:
                result_future.set_exception(reply.error(self._time()))
            elif not result_future.done():
                result_future.set_result(reply.outcome)
            return
        if forwarded not in self._calls:
            # The call was cancelled in the meantime.
            return
        del self._calls[forwarded]
        runner, slot = forwarded.runner, forwarded.slot
        if reply.failed:
            error = reply.error(self._time())
            if isinstance(error, UnreadRequest):
                # The server has ended before it read the request, so send the request again.
                runner.run(self.handle(forwarded.call, forwarded.context), slot)
            else:
                if isinstance(error, ConcertinoError):
                    error = to_rpc_error(self._settings.name, error, forwarded.revision.name)
                runner.end_call(slot, None, error)
            return
        result: Raw | InputRequired = reply.outcome
        try:
            is_modern = forwarded.revision.modern
            if is_modern and (question := to_input_required(reply.outcome)) is not None:
                result = question
            else:
                forwarded.caller.pass_result(reply.outcome, forwarded.revision.name)
        except Exception as exc:
            runner.end_call(slot, None, exc)
            return
        runner.end_call(slot, result, None)

    async def _send_with_progress(self, call: Call, context: Context, level: Level | None) -> Raw:
        """Send a call to the server and return its result, passing progress to the client."""
        client = self.client
        every_s = self._settings.heartbeat_s
        if every_s is None:
            # Any: Context.progress() returns an awaitable, which the Client ignores.
            report: Any = context.progress
            return await client.forward(call, context.client, level=level, progress=report)
        with Heartbeat(context, every_s) as heartbeat:
            return await client.forward(
                call, context.client, level=level, progress=heartbeat.report
            )

    async def _send(self, call: Call, context: Context) -> Raw:
        """Send a call to the server and return its result."""
        level = context.caller.log_level
        if context.caller.wants_progress:
            return await self._send_with_progress(call, context, level)
        return await self.client.forward(call, context.client, level=level)

    # Calls of clients of 2026-07-28 to an older server

    async def _forward_suspendably(self, call: Call, context: Context) -> Raw | InputRequired:
        """Forward a call of a 2026-07-28 client to an older server, which may ask the client.

        Returns the server's result. If the server asks first, returns its questions as an
        `input_required` result, while the call to the server goes on. Raises RpcError.
        """
        sending = self._send(call, context)
        task = asyncio.get_running_loop().create_task(sending, name=f"forward {call.method}")
        forwarded = SuspendableCall(call.method, context, task)
        self._calls[forwarded] = None
        task.add_done_callback(partial(self._forget, forwarded))
        if self._questions.waiting:
            self._questions.adopt(forwarded)
        return await await_result_or_questions(
            self._settings.name, self._settings.parked, forwarded
        )

    def _suspend(self, forwarded: CallbackCall) -> SuspendableCall:
        """Make a SuspendableCall that continues a call that begin() has begun, and return it.

        Called when the server asks the client of the call something.
        """
        server_result: asyncio.Future[Raw] = asyncio.get_running_loop().create_future()
        suspendable = SuspendableCall(forwarded.method, forwarded.context, server_result)
        forwarded.suspendable = suspendable
        # Put it in the place of the call in `_calls`, whose order tells which call is the newest.
        calls = [suspendable if call is forwarded else call for call in self._calls]
        self._calls.clear()
        self._calls.update(dict.fromkeys(calls))
        server_result.add_done_callback(partial(self._forget, suspendable))
        reply = forwarded.reply
        assert reply is not None

        def on_done(server_result: asyncio.Future[Raw]) -> None:
            # Cancelling the future cancels the call; then cancel the request to the server, too.
            if server_result.cancelled() and reply.outcome is None:
                reply.give_up()

        server_result.add_done_callback(on_done)
        waiting = await_result_or_questions(self._settings.name, self._settings.parked, suspendable)
        forwarded.runner.run(waiting, forwarded.slot)
        return suspendable

    def _forget(self, forwarded: SuspendableCall, server_result: object) -> None:
        del self._calls[forwarded]

    async def _answer(self, method: str, params: bytes) -> bytes:
        """Pass a request of the server to a client, and return the client's result undecoded.

        Raises RpcError with the error that the server should get.
        """
        self._settings.on_question()
        return await self._questions.answer(method, params)

    def on_session_end(self, session: CallerSession) -> None:
        """Remove a session that has ended.

        If its client has disconnected for good, the server's questions to it get an error.
        """
        self.sessions.discard(session)
        if session.has_left:
            self._questions.refuse_for(session)

    # Notifications

    def forward_notification(self, method: str, params: Mapping[str, Raw]) -> None:
        """Send a notification of a client to the server. It is dropped if the server has ended."""
        try:
            self.client.notify(method, params)
        except ConcertinoError as exc:
            log.debug("%s: %s was dropped: %s", self._settings.name, method, exc)

    async def _set_level(self, level: Level) -> None:
        """Ask a server of a revision before 2026-07-28 for log messages of this level and above.

        If several sessions share the connection, the level is only lowered and never raised.
        """
        # Such a server has one level for the whole connection, and each session should get the
        # messages that it wants.
        if "logging" not in self.client.capabilities:
            return
        is_lower = LEVELS[level] < LEVELS[self._level]
        is_shared = self.sessions.single is None
        if is_shared and not is_lower:
            return
        self._level = level
        try:
            await self.client.set_log_level(level)
        except ConcertinoError as exc:
            log.info("%s: the level of log messages was not set: %s", self._settings.name, exc)

    def _on_logged(self, message: LogMessage) -> None:
        """Pass a log message to the client of the newest call that wants log messages."""
        for call in reversed(self._calls):
            if call.context.caller.log_level is not None:
                call.context.log(message.level, message.data, message.logger)
                return
        params: dict[str, Any] = {"level": message.level, "data": message.data}
        if message.logger is not None:
            params["logger"] = message.logger
        self._notify("notifications/message", params)

    def _on_notified(self, method: str, params: Mapping[str, Any]) -> None:
        """Pass on a notification of the server for which the Client has no callback of its own."""
        streams = self.sessions.event_streams
        if streams is None or not streams.deliver(method, params):
            self._notify(method, params)

    def _notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Pass a notification of a server before 2026-07-28 to the client, if there is only one."""
        if not self.is_modern:
            self.sessions.notify(method, params)

    def _on_list_changed(self, name: str) -> None:
        """Notify the clients of this upstream that a list has changed."""
        self._settings.on_change(self)
        self.sessions.report_change(name)
