"""ServerConnection: the server's end of one connection.

It joins three parts: the Connection, which carries frames (a frame is the JSON text of one message
or batch); the Session, which speaks MCP; and the Backend, which handles calls. A call takes this
path:

    on_frames -> Session.receive -> CallRunner.start -> backend.handle -> Session.respond

CallRunner (the beginnings and ends of calls), OutputFlow (backpressure) and ConnectionEnd
(draining, closing) are parts of a ServerConnection.

Responses are not flushed one by one. All output that one read causes is flushed at the end of that
read; other output is flushed in the next loop iteration. `_is_flush_due` is True from the moment
when such a flush is scheduled until it has run.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextvars import copy_context
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING

from msgspec import Raw

from concertino.backend.interface import Backend, SupportsClientNotifications
from concertino.jsonrpc.limits import Limits
from concertino.jsonrpc.messages import Id
from concertino.jsonrpc.unread_results import ProcessBudget
from concertino.loading import load
from concertino.protocol.request_profile import SessionRequest
from concertino.protocol.session import Session
from concertino.runtime.connection_end import ConnectionEnd
from concertino.runtime.output_flow import OutputFlow
from concertino.runtime.tasks import read_batch_of

if TYPE_CHECKING:
    from concertino.backend.call_hooks import Work
    from concertino.protocol.principal import Principal
    from concertino.protocol.seal import Seal
    from concertino.runtime.call_runner import CallRunner
    from concertino.runtime.opening import EarlyInput, FirstMessage
    from concertino.runtime.refusal import RefusedInput
    from concertino.transports.connection import Connection

__all__ = ["ServerConnection", "load_calls"]

log = logging.getLogger("concertino.host")

# A session keeps notifications back if a call sends too many of them. They are sent after this
# time, in seconds, unless newer ones have replaced them.
THROTTLE_FLUSH_S = 0.1


def load_calls() -> None:
    """Import the modules that handle calls now, and not at the first call.

    Servers with many clients use this, because at the first call the process may have no file
    descriptor left to open a module's file with.
    """
    load("concertino.runtime.call_runner")


class ServerConnection:
    """Serves one connection with a backend. Made by Host.attach().

    It implements Receiver (transports/connection.py) for the connection, and CallConnection
    (runtime/call_connection.py) for the calls; methods without a docstring are described there.

    on_subscriptions_changed: called when the client has subscribed to a resource or unsubscribed.
    budget: counts and limits the memory for unread responses in the whole process.
    opening_until: while the backend is starting, frames are held back until this time of the loop's
        clock. Afterwards, requests that need no backend are answered; calls wait for the start.
    describe_start: returns the text of the error with which `initialize` and `server/discover` are
        answered after opening_until, until the backend has started. None to answer them normally.

    Attributes:
    closed: a future that is done when the connection is closed and all its tasks have ended.
    principal: the `identity` of the client's verified Principal; b"" if there is none.
    backend: the outermost backend, which handles the calls.
    session: the MCP session, which sends notifications and requests to the client.
    loop, thread: the event loop, and the identifier of the thread that runs it.
    """

    def __init__(
        self,
        backend: Backend,
        connection: Connection,
        limits: Limits,
        on_subscriptions_changed: Callable[[], object],
        budget: ProcessBudget,
        opening_until: float,
        describe_start: Callable[[], str] | None = None,
    ) -> None:
        self.backend = backend
        self.loop = asyncio.get_running_loop()
        self.thread = get_ident()
        self.closed: asyncio.Future[None] = self.loop.create_future()
        self._connection = connection
        self._high_water_bytes = limits.high_water_bytes
        # Says whether the loop is processing a read, at whose end output is flushed.
        self._read_batch = read_batch_of(self.loop)
        # Each call runs in a copy of the context variables of this moment, because the code that
        # starts the first call may run with context variables of the backend.
        self._variables = copy_context()
        # None until the first call.
        self._calls: CallRunner | None = None
        self._is_flush_due = False
        # Whether a timer will call _flush_throttled().
        self._will_flush_throttled = False

        principal = _principal_of(connection)
        self.principal = b"" if principal is None else principal.identity
        on_notification = None
        if isinstance(backend, SupportsClientNotifications):
            on_notification = partial(backend.on_client_notification, self)
        self.session = Session(
            features=backend.features,
            send=self._send,
            start=self._start_first,
            limits=limits,
            clock=self.loop.time,
            on_subscriptions_changed=on_subscriptions_changed,
            seal=_get_process_seal,
            principal=principal,
            schedule_flush=self._schedule_throttled_flush,
            budget=budget,
            on_notification=on_notification,
        )
        # Calls wait until ready() is called, when the backend has started.
        self.session.peer.ready = False
        # The function that gets each frame, which is one of these:
        #   _receive_early        The backend is starting; frames are held back for opening_s.
        #   _receive_unstarted    It is still starting; `initialize` is answered, and calls wait.
        #   Session.receive       The backend has started.
        #   RefusedInput.receive  The backend could not start; requests get the reason.
        #   _receive_first        opens_with_handshake() waits for the first frame; see there.
        self._receive: Callable[[bytes], None] = self._receive_early
        self._opening_until = opening_until
        self._describe_start = describe_start
        # The frames that are held back now; None if there are none.
        self._early: EarlyInput | None = None
        # Set while opens_with_handshake() waits for the first frame.
        self._first: FirstMessage | None = None
        # Set when the backend could not start.
        self._refused: RefusedInput | None = None

        self._flow = OutputFlow(self.session, connection, limits, self._flush)
        self._end = ConnectionEnd(
            self.session, connection, limits.drain_s, self.closed, self._on_closed
        )

    def identify(self, principal: Principal) -> None:
        """Set the principal, the verified user, of the requests that arrive from now on.

        Called when the client has a new access token, with other scopes for example.
        Raises ValueError if it is another user, because a connection belongs to one user.
        """
        if principal.identity != self.principal:
            raise ValueError("this connection belongs to another principal")
        self.session.identify(principal)

    # Input

    def on_frames(self, batch: Sequence[bytes]) -> None:
        # A frame may replace self._receive. The old function then passes the later frames of the
        # batch to the new one.
        receive = self._receive
        # No frame of the batch need schedule a flush, because it is flushed below.
        self._is_flush_due = True
        for frame in batch:
            try:
                receive(frame)
            except Exception:
                self.report_fault("a message could not be dealt with")
        self._flush()

    def on_frame_too_long(self, size: int) -> None:
        self.session.peer.on_frame_too_long(size, _oversize_head(self._connection))
        # A response that is too long gets no answer, but it is logged when output is flushed.
        self.schedule_flush()

    def on_drain(self, held: int) -> None:
        try:
            self.session.peer.on_drain(held)
        except Exception:
            self.report_fault("what waited for a slow reader could not be written")
        self._flow.on_drain(held)
        self._flush()

    def on_eof(self) -> None:
        if self._early is not None:
            # Frames are held back. _open_input() processes them later, and then calls this method
            # again.
            self._early.end(self._end.drain_s)
            return
        if self._first is not None:
            # opens_with_handshake() waits for the first message, which will not come any more.
            self._first.answer.set_result(False)
            self._receive, self._first = self._first.receive, None
        log.debug("end of input")
        self.session.peer.on_eof()
        self.drain()

    def on_disconnect(self, exc: Exception) -> None:
        # An HTTP client cancels its call by disconnecting, so this is no failure.
        is_cancellation = isinstance(exc, ConnectionAbortedError)
        level = logging.DEBUG if is_cancellation else logging.INFO
        log.log(level, "the connection is lost: %s", exc)
        self._end.close(0.0, is_cancellation=is_cancellation)

    def ready(self, failure: BaseException | None) -> None:
        """Start the waiting calls if the backend has started, or fail them if it could not start.

        The Host calls this once.
        failure: the reason why the backend could not start; None if it has started.
        """
        peer = self.session.peer
        peer.ready = True
        if failure is None:
            self.session.reload_features()
            self._open_input(self.session.receive)
            self._flush()
            return
        if self._end.is_closing:
            return

        from concertino.runtime.refusal import RefusedInput

        refused = RefusedInput(peer, failure, self.loop, self.drain)
        self._refused = refused
        try:
            refused.refuse(list(peer.waiting.values()))
        except Exception:
            self.report_fault("a call could not be answered")
        self._open_input(refused.receive)
        self._flush()

    def _receive_early(self, frame: bytes) -> None:
        """Hold a frame back until the backend has started or the time _opening_until has come.

        After that time, pass the frame to _receive_unstarted().
        """
        if self._early is None:
            if self.loop.time() >= self._opening_until:
                self._receive = self._receive_unstarted
                return self._receive(frame)
            from concertino.runtime.opening import EarlyInput

            self._early = EarlyInput(self.loop, self._opening_until, self.open_early)
        return self._early.hold(frame)

    def _receive_unstarted(self, frame: bytes) -> None:
        """Process a frame although the backend has not started.

        If _describe_start is set, a request that opens a session is answered with an error.
        """
        if self._describe_start is not None:
            from concertino.runtime.opening import is_opening

            if is_opening(frame):
                from concertino.runtime.refusal import refuse_frame

                refuse_frame(self.session.peer, frame, self._describe_start())
                return
        self.session.receive(frame)

    def open_early(self) -> None:
        """Process the frames (messages) that are held back, and from now on each frame at once.

        Called while the backend has not started.
        """
        self._opening_until = self.loop.time()
        if self._early is not None:
            self._open_input(self._receive_unstarted)

    def hold_opening(self, until: float, describe: Callable[[], str]) -> None:
        """Hold frames back until the time `until`, unless the backend starts sooner.

        If the backend has not started by then, `initialize` and `server/discover` are answered with
        an error until it starts. Calls wait for the start without this limit.
        until: a time of the loop's clock.
        describe: returns the text of the error responses.
        """
        self._opening_until = until
        self._describe_start = describe
        if self._early is not None:
            self._early.hold_until(until)

    async def opens_with_handshake(self, within_s: float) -> bool:
        """Wait for the client's first message, and return whether it is `initialize`.

        Returns False if no message arrives within `within_s` seconds. A client of MCP 2026-07-28
        sends another request first, because it needs no handshake.
        """
        from concertino.runtime.opening import FirstMessage, is_handshake

        if self._early is not None:
            return is_handshake(self._early.frames[0])
        # Only `initialize` changes the state of the handshake, which is "fresh" before it.
        has_handshake = self.session.lifecycle.state != "fresh"
        if has_handshake or self._end.is_draining:
            return has_handshake
        if self._first is None:
            self._first = FirstMessage(self._receive)
            self._receive = self._receive_first
        answer = self._first.answer
        await asyncio.wait((answer, self.closed), timeout=within_s)
        return answer.done() and answer.result()

    def _receive_first(self, frame: bytes) -> None:
        """Process the first frame, and complete the future for which opens_with_handshake() waits.

        Replaces `_receive` until that frame arrives.
        """
        # None for the later frames of the same batch, see on_frames().
        first, self._first = self._first, None
        if first is not None:
            from concertino.runtime.opening import is_handshake

            self._receive = first.receive
            first.answer.set_result(is_handshake(frame))
        self._receive(frame)

    def _open_input(self, receive: Callable[[bytes], None]) -> None:
        """Pass the frames that were held back, and all later frames, to `receive`."""
        if self._first is None:
            self._receive = receive
        else:
            self._first.receive = receive
        early, self._early = self._early, None
        if early is not None:
            early.close()
            self.on_frames(early.frames)
            if early.has_ended:
                self.on_eof()

    # Output

    def _send(self, frame: bytes, request_id: Id | None) -> int:
        """Write a frame to the connection and schedule a flush. The session calls this to send.

        Returns how many bytes are buffered on the connection.
        """
        if not self._is_flush_due:
            self.schedule_flush()
        return self._connection.write(frame, request_id)

    def schedule_flush(self) -> None:
        """Flush when the messages that were read together are processed (ReadBatch).

        Outside of such a read, flush in the next loop iteration.
        """
        if not self._is_flush_due:
            self._is_flush_due = True
            if self._read_batch.in_progress:
                self._read_batch.defer(self._flush)
            else:
                self.loop.call_soon(self._flush)

    def _flush(self) -> None:
        """Start waiting calls, flush the output, and pause or resume reading.

        Called after frames have arrived or calls have ended. If the connection drains and its last
        call has ended, it is closed.
        """
        peer = self.session.peer
        try:
            if peer.waiting:
                # The flush below also sends the responses of the calls that are started now, so
                # these calls need not schedule another flush.
                self._is_flush_due = True
                self.session.admit()
            self._is_flush_due = False
            self._connection.flush()
        except Exception:
            self._is_flush_due = False
            self.report_fault("a call could not be started, or output not be written")

        end = self._end
        # After a fault, a request may have lost its response. So end the connection.
        if end.has_fault:
            end.start_draining()
        self._flow.update(end.is_draining)
        if end.is_draining:
            end.close_when_idle()

    def report_fault(self, what: str) -> None:
        """Log the current exception as a bug of concertino, and drain the connection soon.

        what: what went wrong, as the beginning of the log message.
        """
        self._end.report_fault(what)
        self.schedule_flush()

    def _schedule_throttled_flush(self) -> None:
        """Schedule _flush_throttled(). The session calls this when it keeps a notification back."""
        if not self._will_flush_throttled:
            self._will_flush_throttled = True
            self.loop.call_later(THROTTLE_FLUSH_S, self._flush_throttled)

    def _flush_throttled(self) -> None:
        """Send the notifications that the session keeps back, without those that were replaced."""
        self._will_flush_throttled = False
        if not self._end.is_closing:
            peer = self.session.peer
            peer.on_drain(peer.buffered_bytes)
            self._flush()

    def backpressure(self) -> Awaitable[None]:
        return self._flow.backpressure()

    def post(self, callback: Callable[[], object]) -> None:
        try:
            self.loop.call_soon_threadsafe(callback)
        except RuntimeError:
            # The loop is closed, and the connection with it.
            pass

    def report_change(self, what: str) -> None:
        """Notify the client that a list has changed, unless the connection is closing.

        what: the list: "tools", "prompts" or "resources". For "features", which means that the
            result of the backend's features() has changed, the client is not notified, but later
            requests see the new features.
        """
        if not self._end.is_closing:
            self.session.report_change(what)

    def report_update(self, uri: str) -> None:
        """Notify the client that a resource has changed, if it has subscribed to the resource.

        Does nothing while the connection is closing.
        """
        if not self._end.is_closing:
            self.session.subscriptions.report_update(uri)

    def hold_open(self, request: SessionRequest) -> None:
        # Imported here, because most servers have no subscriptions.
        from concertino.transports.connection import SupportsSubscriptions

        self.session.subscriptions.hold_open(request)
        # After the end of a call, its id may belong to another request.
        if request.open and isinstance(self._connection, SupportsSubscriptions):
            self._connection.hold_open(request.id)

    # Messages of another server that a backend forwards to the client; see CallerSession

    @property
    def has_left(self) -> bool:
        # may_return: the client may continue on another connection (transports/connection.py).
        return self.closed.done() and not self._connection.facts.get("may_return")

    @property
    def subscribed_uris(self) -> frozenset[str]:
        return self.session.subscriptions.uris

    async def request(self, method: str, params: bytes) -> Raw:
        from concertino.runtime.forwarded_requests import request_client

        return await request_client(self.session, self.loop, method, params)

    def notify(self, method: str, params: bytes) -> None:
        peer = self.session.peer
        # Since MCP 2026-07-28 there is no handshake, so the state stays "fresh".
        is_legacy = self.session.lifecycle.state == "ready"
        # A client that does not read gets no more notifications.
        has_room = peer.buffered_bytes < self._high_water_bytes
        if is_legacy and has_room and not self._end.is_closing:
            peer.notify(method, params)

    # Calls

    def _start_first(self, request: SessionRequest) -> None:
        """Start the first call. The session passes later calls to CallRunner.start directly."""
        # Imported here, because the response to `initialize` needs none of the modules for calls.
        from concertino.runtime.call_runner import CallRunner

        self._calls = CallRunner(self, self._end, self._variables)
        self.session.start = self._calls.start
        self.session.start(request)

    def run(self, work: Work, request: SessionRequest) -> None:
        assert self._calls is not None
        self._calls.run(work, request)

    # The end of the connection

    @property
    def is_draining(self) -> bool:
        """Return whether the connection is ending, and so reads no more requests."""
        return self._end.is_draining

    @property
    def calls_under_way(self) -> int:
        """Return how many calls run or wait; subscriptions do not count."""
        peer = self.session.peer
        return len(peer.running) + len(peer.waiting) - self.session.subscriptions.open_count

    def cut_off(self, *blocking: SessionRequest) -> None:
        """Answer all calls with an error. Called in a thread before the process ends.

        blocking: the call whose first step blocks the loop, if there is one. The Peer does not list
            it as running yet.
        """
        self._end.fail_calls(*blocking)

    def drain(self) -> None:
        """Begin to end the connection: read nothing more, let calls finish, then close.

        Calls may run for another drain_s seconds. `closed` is done at the end.
        """
        if not self._end.is_draining:
            # Frames that are held back have arrived before, so they are still processed.
            self.open_early()
            self._end.start_draining()
            self._flush()

    def _on_closed(self) -> None:
        """Release everything that belongs to this connection. ConnectionEnd calls this once."""
        self._flow.close()
        if self._early is not None:
            self._early.close()
        if self._refused is not None:
            self._refused.close()
        # Together with Session.close(), this breaks all reference cycles, so that the memory of the
        # connection is freed at once and not by the next garbage collection.
        if self._calls is not None:
            self._calls.close()
            self._calls = None
        self._receive = _receive_nothing
        self._early = self._first = self._refused = None


def _oversize_head(connection: Connection) -> bytes:
    """Return the beginning of the last frame that was too long; empty if it is unknown."""
    # Imported here, because few clients send such frames.
    try:
        from concertino.transports.connection import SupportsOversizeReports
    except ImportError:
        # The process has no file descriptor left to read the module with.
        return b""
    return connection.oversize_head if isinstance(connection, SupportsOversizeReports) else b""


def _principal_of(connection: Connection) -> Principal | None:
    """Return the verified principal of a connection's client; None if the transport has none.

    Raises TypeError if the transport's principal is not a Principal: the client must not be treated
    as one that is not identified.
    """
    facts = connection.facts
    if "principal" not in facts and "uid" not in facts:
        return None
    # Imported here, because a client on stdio has no principal.
    from concertino.protocol.principal import Principal, unix_principal

    principal, uid = facts.get("principal"), facts.get("uid")
    if principal is not None:
        if not isinstance(principal, Principal):
            raise TypeError(
                f"the fact 'principal' of a connection: expected a Principal or None, got "
                f"{type(principal).__name__}"
            )
        return principal
    return unix_principal(uid) if isinstance(uid, int) else None


def _receive_nothing(frame: bytes) -> None:
    """Ignore a frame. Replaces `_receive` when the connection is closed."""


def _get_process_seal() -> Seal:
    """Return the Seal of this process, which signs the `requestState` that clients send back.

    The import is here because few servers ask their client anything.
    """
    from concertino.runtime.client_questions import process_seal

    return process_seal()
