"""ClientConnection: opens, restarts and closes the connection of a Client to its server.

A ClientConnection starts the server or connects to it (client/targets.py), negotiates the revision
(client/negotiation.py), and sends requests with the resulting Conversation (client/
conversation.py). If the server ends by itself and the user has passed `restart` to Client, a
Supervisor (client/supervision.py) restarts the server. Meanwhile, new requests wait. Each start
makes a new Conversation.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import get_running_loop
from collections.abc import Awaitable, Callable, Mapping
from threading import get_ident
from typing import Any, TypeVar

from msgspec import Raw, Struct
from msgspec.json import encode

from concertino.client.channel_ending import UnreadRequest
from concertino.client.conversation import Conversation
from concertino.client.negotiation import Era, HandshakeChoice, open_conversation
from concertino.client.notifications import NotificationHandlers
from concertino.client.output_validation import decode_result
from concertino.client.pending_request import FOREVER, ForwardedReply, Progress, request_label
from concertino.client.request_handlers import RequestHandlers
from concertino.client.server_stderr import Sink, StderrLines
from concertino.client.supervision import Restart, State, SupervisedServer, Supervisor
from concertino.client.targets import TargetLocation
from concertino.errors import ConcertinoError, Disconnected, NotSupported
from concertino.jsonrpc.limits import Limits
from concertino.logs.formats import escape_controls
from concertino.near_names import HintingStructMeta
from concertino.protocol.call import Call, ClientFacts
from concertino.protocol.pagination import Page, read_all_pages
from concertino.types.results import Implementation, Level

T = TypeVar("T")
PageT = TypeVar("PageT", bound=Page)
NOT_OPEN = "this client is not open: use `async with Client(...) as client:`"


class Timeouts(Struct, frozen=True, metaclass=HintingStructMeta):
    """How long a client waits, in seconds. Each value must be positive and may be infinite.

    connect_s: for Client.open(), from the start of the server until the revision is negotiated.
        The time that npx or uvx need to download the server is included.
    probe_s: for the response to `server/discover`, the first request. If no response comes in this
        time, the client assumes that the server has a revision before 2026-07-28, and sends
        `initialize`. Values above half of connect_s count as half of connect_s.
    request_s: for the response to a request. If the request has a progress function, each progress
        notification restarts this time.
    total_s: for the response to a request in all, even if progress restarts request_s. If the
        argument timeout_s of a call is longer, timeout_s is the limit.
    ping_every_s: the pause between two pings of the server; infinite (the default) to send none.
    ping_s: for the response to a ping. If the server sends nothing at all in this time, the client
        closes the connection, and restarts the server if Client has `restart`.
    Raises ValueError for a value that is not positive.
    """

    connect_s: float = 60.0
    probe_s: float = 3.0
    request_s: float = 60.0
    total_s: float = 600.0
    ping_every_s: float = FOREVER
    ping_s: float = 10.0

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            # `not x > 0` instead of `x <= 0`, which would accept NaN.
            if not value > 0:
                raise ValueError(f"{name}: expected a positive number of seconds, got {value!r}")


class ConnectionSettings(Struct, frozen=True):
    """The arguments of a Client, checked and parsed.

    name: the name of the server in logs.
    location: the parsed target.
    handlers: the object that answers the server's requests.
    notification_handlers: the user's functions for the server's notifications.
    The other fields have the names and the meaning of the arguments of Client.
    """

    name: str
    location: TargetLocation
    info: Implementation
    era: Era | HandshakeChoice
    timeouts: Timeouts
    limits: Limits
    stderr: Sink | None
    stderr_level: int
    restart: Restart | None
    trace: Callable[[str, str], object] | None
    rounds: int
    handlers: RequestHandlers
    notification_handlers: NotificationHandlers

    @property
    def log(self) -> logging.Logger:
        """Return the logger for events of the server."""
        return logging.getLogger(f"concertino.client.{self.name}")


class ClientConnection:
    """Opens, restarts and closes the connection of one Client, on one event loop.

    Each start of the server makes a new Conversation, the object that sends requests to it:

    - started: the Conversation of the latest start, even if its negotiation has failed.
    - current: the latest Conversation with a revision, even if its connection has ended.
    - conversation: the Conversation that requests may use now; None before open() and while the
      server restarts. Without `restart`, it stays after the end of the server, and its requests
      raise Disconnected.

    settings: the arguments of the Client.
    on_restart: an async function that is called after each restart of the server, to subscribe
        again and set the log level.

    Attributes:
    loop: the event loop that has called open(); None before.
    thread: the identifier of the thread that runs this loop.
    """

    def __init__(
        self,
        settings: ConnectionSettings,
        on_restart: Callable[[], Awaitable[None]],
    ) -> None:
        self.conversation: Conversation | None = None
        self.loop: asyncio.AbstractEventLoop | None = None
        self.thread = 0
        self._settings = settings
        self._on_restart = on_restart
        self._stderr_lines: StderrLines | None = None
        # For `current` and `started`.
        self._last: Conversation | None = None
        self._started: Conversation | None = None
        # The number of requests to earlier processes of the server.
        self._requests_before = 0
        self._supervisor: Supervisor | None = None
        self._failure: ConcertinoError | None = None
        self._closing: asyncio.Task[None] | None = None

    # Opening and closing

    async def open(self) -> None:
        """Start the server or connect to it, and negotiate the revision.

        Raises SpawnError, Disconnected, TimedOut, Incompatible, NotAServer or ProtocolError if that
        is impossible, and RuntimeError if open() was called before. The caller must call close()
        even if open() raises.
        """
        if self.loop is not None:
            raise RuntimeError("a Client can be opened once; make another one")
        self.loop = asyncio.get_running_loop()
        self.thread = get_ident()
        await self._bring_up()

        rules = self._settings.restart
        if rules is not None:
            self._supervisor = Supervisor(
                rules,
                SupervisedServer(
                    self._bring_down,
                    self._bring_up,
                    self._on_restart,
                    lambda: self.current.channel.counts.answered,
                ),
                self._settings.log,
            )
            # If the server has ended during _bring_up(), _on_end() had no supervisor to tell.
            if self.current.channel.ending.over:
                self._on_end(self.current)

    async def _bring_up(self) -> None:
        """Start the server or connect to it, and negotiate the revision.

        Called by open(), and by the supervisor for each restart.
        """
        settings = self._settings
        timeouts = settings.timeouts
        conversation = await open_conversation(
            self._start,
            settings.location.can_reopen,
            settings.era,
            timeouts.connect_s,
            timeouts.probe_s,
        )
        self._last = self.conversation = conversation
        conversation.on_end = self._on_end
        if timeouts.ping_every_s < FOREVER:
            conversation.start_pings(timeouts.ping_every_s, timeouts.ping_s)

        # The server may have ended before on_end was set.
        if conversation.channel.ending.over:
            self._on_end(conversation)

    async def _start(self) -> Conversation:
        """Start the server or connect to it, and return a Conversation without a revision yet."""
        settings = self._settings
        if self._stderr_lines is None:
            self._stderr_lines = StderrLines(settings.name, settings.stderr, settings.stderr_level)
        opened = await settings.location.open(settings.limits, self._stderr_lines)
        # A trace redacts every message, which takes time. So trace only if somebody sees messages.
        show = None
        if settings.trace is not None or self._settings.log.isEnabledFor(logging.DEBUG):
            show = _make_show(self._settings.log, settings.trace)
        # Before `_started` is replaced, whose requests are counted in `requests`.
        self._requests_before = self.requests
        self._started = Conversation(
            settings.name,
            opened,
            settings.limits,
            settings.info,
            settings.handlers,
            settings.notification_handlers,
            settings.rounds,
            show,
        )
        return self._started

    async def _bring_down(self) -> None:
        """Close the newest Conversation with a revision, which ends the server's process."""
        if self._last is not None:
            await self._last.close()

    def _on_end(self, conversation: Conversation) -> None:
        """Handle a connection that has ended, and that this client has not closed."""
        self._failure = conversation.explain(Disconnected("the connection ended"))
        if self._supervisor is not None and self._closing is None:
            # From now on, new requests wait for the restart; see wait_until_usable().
            self.conversation = None
            self._supervisor.on_end(self._failure)
            # Pending requests that the server has not read may be sent again after the restart.
            conversation.channel.ending.unread = conversation.opened.take_unread()
            conversation.restart_note = (
                "; it will be restarted, but requests that were in flight are not repeated"
            )

    async def close(self) -> None:
        """End the server and all processes that it has started. Takes a limited time.

        Pending requests raise Disconnected. May be called again. If the task that awaits close() is
        cancelled, the server is ended nevertheless.
        """
        if self._closing is None:
            loop = asyncio.get_running_loop()
            self._closing = loop.create_task(self._close(), name=f"close {self._settings.name}")
            self._closing.add_done_callback(self._on_closed)
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        """Do the work of close(), in a separate task."""
        if self._supervisor is not None:
            await self._supervisor.close()
        await self._bring_down()
        if self._started is not None:
            # _bring_down() does not close a conversation whose negotiation was cancelled.
            await self._started.close()
        # Close stderr last, because the server may write to it until its end.
        if self._stderr_lines is not None:
            self._stderr_lines.close()

    def _on_closed(self, closing: asyncio.Task[None]) -> None:
        """Kill the server if the task that closes the connection was cancelled."""
        # asyncio.run() cancels all tasks at its end, even those that have not begun. Then _close()
        # has done nothing, and there is no time left for it, so kill the server at once.
        if closing.cancelled() and self._started is not None:
            self._started.opened.abandon()

    # State

    @property
    def current(self) -> Conversation:
        """Return the latest Conversation in which a revision was negotiated.

        Its connection may have ended. Raises RuntimeError before open().
        """
        if self._last is None:
            raise RuntimeError(NOT_OPEN)
        return self._last

    @property
    def started(self) -> Conversation | None:
        """Return the Conversation of the server's latest start, even if the negotiation has failed.

        Returns None if the server could never be started or connected to. Raises RuntimeError
        before open().
        """
        if self.loop is None:
            raise RuntimeError(NOT_OPEN)
        return self._started

    @property
    def is_modern(self) -> bool:
        """Return whether the revision is 2026-07-28 or later."""
        return self.current.requests.is_modern

    @property
    def state(self) -> State:
        """Return the state of the connection, as one word such as `running` or `failed`."""
        if self._closing is not None:
            return "closed"
        if self._last is None:
            return "new"
        if self._supervisor is not None:
            return self._supervisor.state
        return "failed" if self._last.channel.ending.over else "running"

    @property
    def restarts(self) -> int:
        """Return how many times the server was restarted."""
        return 0 if self._supervisor is None else self._supervisor.restarts

    @property
    def requests(self) -> int:
        """Return how many requests this client has sent, over all starts of the server."""
        sent = 0 if self._started is None else self._started.channel.counts.sent
        return self._requests_before + sent

    @property
    def failure(self) -> ConcertinoError | None:
        """Return the error with which the server last ended or failed to restart.

        Returns None if it has done neither.
        """
        return self._failure if self._supervisor is None else self._supervisor.failure

    async def wait_until_usable(self, label: str, timeout_s: float) -> tuple[Conversation, float]:
        """Return the Conversation with the running server, and how much of timeout_s is left.

        Waits while the server is being restarted. The returned time is at least 0.001 s.

        label: the method and subject of the request that is to be sent, for error messages.
        timeout_s: how many seconds the request may take, positive; infinite for no limit.
        Raises RuntimeError if the client is not open or belongs to another event loop, ValueError
        for an invalid timeout_s, TimedOut if the restart takes longer, and Disconnected if the
        server will not run again.
        """
        if self._last is None:
            raise RuntimeError(NOT_OPEN)
        loop = get_running_loop()
        if loop is not self.loop:
            raise RuntimeError(
                "a Client belongs to the event loop that opened it; for threads see SyncClient"
            )
        if not timeout_s > 0:
            raise ValueError(f"timeout_s: expected a positive number of seconds, got {timeout_s!r}")

        until = loop.time() + timeout_s
        while self.conversation is None:
            assert self._supervisor is not None
            left_s = max(0.0, until - loop.time())
            await self._supervisor.wait_until_running(label, left_s)
        return self.conversation, max(0.001, until - loop.time())

    async def call(
        self,
        method: str,
        body: bytes,
        subject: str = "",
        timeout_s: float | None = None,
        progress: Progress | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> Raw:
        """Send a request and return its undecoded result. Waits while the server is restarted.

        If the server ends before it has read the request, the request is sent again after the
        restart.

        method: the method of the request.
        body: the params without `_meta`, a JSON object.
        subject: the name or URI in the request, for errors; "" if there is none.
        timeout_s: how many seconds to wait for the response. Each progress notification restarts
            this time. In all, the request may take the longer of Timeouts.total_s and timeout_s.
            None for Timeouts.request_s.
        progress: a function progress(done, total, message) for the progress notifications of the
            request; None to request no progress.
        meta: keys and values to add to `_meta`; None to add nothing.
        Raises RpcError, TimedOut, Disconnected, ProtocolError, and RuntimeError and ValueError as
        wait_until_usable() does.
        """
        timeouts = self._settings.timeouts
        idle_timeout_s, total_s = timeouts.request_s, timeouts.total_s
        if timeout_s is not None:
            idle_timeout_s, total_s = timeout_s, max(total_s, timeout_s)
        label = request_label(method, subject)
        while True:
            # A wait for a restart counts towards idle_timeout_s only: total_s begins when the
            # request is sent.
            conversation, idle_timeout_s = await self.wait_until_usable(label, idle_timeout_s)
            try:
                return await conversation.call(
                    method, body, subject, idle_timeout_s, total_s, progress, meta
                )
            except UnreadRequest as exc:
                # The server has not read the request, so nothing was done. Try again.
                idle_timeout_s, total_s = exc.time_left(idle_timeout_s), exc.time_left(total_s)

    async def forward(
        self,
        call: Call,
        caller: ClientFacts,
        level: Level | None,
        timeout_s: float,
        progress: Progress | None,
    ) -> Raw:
        """Forward another client's call, and return its undecoded result, as Client.forward().

        Waits while the server is restarted. If the server ends before it has read the call, the
        call is sent again after the restart.

        Raises RpcError, TimedOut, Disconnected, ProtocolError, and RuntimeError and ValueError as
        wait_until_usable() does.
        """
        while True:
            conversation = self.conversation
            # In another thread, wait_until_usable() raises RuntimeError.
            if conversation is None or get_ident() != self.thread:
                conversation, timeout_s = await self.wait_until_usable(call.method, timeout_s)
            try:
                return await conversation.forward(call, caller, level, timeout_s, progress)
            except UnreadRequest as exc:
                timeout_s = exc.time_left(timeout_s)

    def begin_forward(
        self,
        call: Call,
        caller: ClientFacts,
        level: Level | None,
        callback: Callable[[Any], object],
    ) -> ForwardedReply | None:
        """Forward another client's call without a task, if the server runs.

        The arguments and the result are those of Client.begin_forward(). If the error() of the
        ForwardedReply is an UnreadRequest, pass the call to forward(), which sends the call again.
        """
        conversation = self.conversation
        if conversation is None or get_ident() != self.thread:
            return None
        return conversation.begin_forward(call, caller, level, callback)

    async def fetch_list(
        self,
        method: str,
        page_type: type[PageT],
        items: Callable[[PageT], list[T]],
        timeout_s: float | None = None,
    ) -> list[T]:
        """Return the items of all pages of a list.

        method: the method of the list, such as "tools/list".
        page_type: the class of the method's result, which is one page.
        items: a function that returns the items of a page.
        timeout_s: how many seconds to wait for each page; None for Timeouts.request_s.
        Raises NotSupported if the server does not declare the capability for the list, RpcError,
        TimedOut, Disconnected and ProtocolError.
        """
        self.require(method.partition("/")[0])

        async def fetch(cursor: str | None) -> PageT:
            body = b"{}" if cursor is None else encode({"cursor": cursor})
            raw = await self.call(method, body, timeout_s=timeout_s)
            return decode_result(method, raw, page_type)

        return await read_all_pages(method, fetch, items)

    def require(self, feature: str) -> None:
        """Raise NotSupported unless the server has declared the capability `feature`.

        A client must use only the capabilities that the server has declared (2025-06-18 and later
        basic/lifecycle).
        feature: the name of the capability, such as "tools".
        """
        capabilities = self.current.server.capabilities
        if feature not in capabilities:
            declared = ", ".join(sorted(capabilities)) or "nothing"
            raise NotSupported(
                f"{self._settings.name}: the server offers no {feature}; it declares {declared}"
            )


def _make_show(
    log: logging.Logger, trace: Callable[[str, str], object] | None
) -> Callable[[str, str], object]:
    """Return a function show(direction, text) that logs a message at level DEBUG.

    trace: the user's function, which show() also calls with its arguments; None to call nothing.
    """

    def show(direction: str, text: str) -> None:
        log.debug("%s %s", direction, escape_controls(text))
        if trace is not None:
            try:
                trace(direction, text)
            except Exception:
                # The user's function has failed, which must not end the connection.
                log.exception("the trace function of this client failed")

    return show
