"""The connection of a Client to its server: opens it, restarts it, closes it, and knows its state.

Every wait has a bound, and every failure says what was awaited, how the server ended, and what it
wrote to stderr last.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import get_running_loop
from collections.abc import Awaitable, Callable, Mapping
from threading import get_ident
from typing import Any

from msgspec import Raw, Struct

from concertino.client.conversation import Conversation
from concertino.client.negotiation import Era, open_conversation
from concertino.client.notifications import NotificationHandlers
from concertino.client.pending_request import Progress, UnreadRequest, request_label
from concertino.client.request_handlers import RequestHandlers
from concertino.client.server_stderr import Sink, StderrLines
from concertino.client.supervision import Restart, State, Supervisor
from concertino.client.targets import TargetLocation
from concertino.errors import ConcertinoError, Disconnected, NotSupported
from concertino.jsonrpc.limits import Limits
from concertino.logs.formats import escape_controls
from concertino.near_names import HintingStructMeta
from concertino.protocol.call import Call, ClientFacts
from concertino.types.results import Implementation, Level

FOREVER = float("inf")
NOT_OPEN = "this client is not open: use `async with Client(...) as client:`"


class Timeouts(Struct, frozen=True, metaclass=HintingStructMeta):
    """How long a client waits, in seconds. Each must be positive and may be infinite.

    connect_s: from the start of a server to its first response, downloads by npx or uvx included.
    probe_s: for the response to `server/discover`, before a legacy server is assumed; at most half
    of connect_s.
    request_s: for a response, or for the next progress of a request with a progress function.
    total_s: for a response, whatever the progress. A longer timeout_s of a call takes its place.
    ping_every_s: how often to ping the server; by default never.
    ping_s: for the response to a ping. A server that then sends nothing at all is ended.
    """

    connect_s: float = 60.0
    probe_s: float = 3.0
    request_s: float = 60.0
    total_s: float = 600.0
    ping_every_s: float = FOREVER
    ping_s: float = 10.0

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            # `not x > 0` instead of `x <= 0`, which would accept NaN.
            if not getattr(self, name) > 0:
                raise ValueError(
                    f"{name}: expected a positive number of seconds, got {getattr(self, name)!r}"
                )


class ConnectionSettings(Struct, frozen=True):
    """How to connect, and the user's functions. Most fields are parameters of Client."""

    name: str
    location: TargetLocation
    info: Implementation
    era: Era
    timeouts: Timeouts
    limits: Limits
    stderr: Sink | None
    stderr_level: int
    restart: Restart | None
    trace: Callable[[str, str], object] | None
    rounds: int
    handlers: RequestHandlers
    notification_handlers: NotificationHandlers


class ClientConnection:
    """Opens, restarts and closes the connection of one Client, on one event loop.

    on_restart: restores the session of a server that was restarted.
    conversation: the one to send requests with; None before open() and while the server restarts.
    thread: the thread that the event loop runs in.
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
        self._log = logging.getLogger(f"concertino.client.{settings.name}")
        self._stderr_lines: StderrLines | None = None
        # The conversation, even if it has ended.
        self._last: Conversation | None = None
        # The one that was started last, even if it could not be negotiated.
        self._started: Conversation | None = None
        self._supervisor: Supervisor | None = None
        self._failure: ConcertinoError | None = None
        self._closing: asyncio.Task[None] | None = None

    # Opening and closing

    async def open(self) -> None:
        """Start or connect, and negotiate the revision. Call close() even if it raises."""
        if self.loop is not None:
            raise RuntimeError("a Client can be opened once; make another one")
        self.loop = asyncio.get_running_loop()
        self.thread = get_ident()
        await self._bring_up()

        rules = self._settings.restart
        if rules is not None:
            self._supervisor = Supervisor(
                rules, self._bring_down, self._bring_up, self._on_restart, self._log
            )
            if self.current.channel.over:
                self._on_end(self.current)

    async def _bring_up(self) -> None:
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
            conversation.watch(timeouts.ping_every_s, timeouts.ping_s)

        # It may have ended between its first response and now.
        if conversation.channel.over:
            self._on_end(conversation)

    async def _start(self) -> Conversation:
        """Start or connect, without negotiation."""
        settings = self._settings
        if self._stderr_lines is None:
            self._stderr_lines = StderrLines(settings.name, settings.stderr, settings.stderr_level)
        opened = await settings.location.open(settings.limits, self._stderr_lines)
        # Redacting every message costs time, so trace only if somebody looks.
        show = None
        if settings.trace is not None or self._log.isEnabledFor(logging.DEBUG):
            show = _make_show(self._log, settings.trace)
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
        if self._last is not None:
            await self._last.close()

    def _on_end(self, conversation: Conversation) -> None:
        """Handle a connection that ended by itself."""
        self._failure = conversation.explain(Disconnected("the connection ended"))
        if self._supervisor is not None and self._closing is None:
            # New requests wait for the restart instead of failing.
            self.conversation = None
            self._supervisor.on_end(self._failure)
            conversation.channel.unread = conversation.opened.take_unread()
            conversation.restart_note = (
                "; it will be restarted, but requests that were in flight are not repeated"
            )

    async def close(self) -> None:
        """End the server with everything it started. Bounded; may be called again.

        Requests in flight raise Disconnected. It continues when its caller is cancelled.
        """
        if self._closing is None:
            loop = asyncio.get_running_loop()
            self._closing = loop.create_task(self._close(), name=f"close {self._settings.name}")
            self._closing.add_done_callback(self._on_closed)
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        if self._supervisor is not None:
            await self._supervisor.close()
        await self._bring_down()
        # Last, because the server may write to stderr until its end.
        if self._stderr_lines is not None:
            self._stderr_lines.close()

    def _on_closed(self, closing: asyncio.Task[None]) -> None:
        # A loop that ends cancels even tasks that have not begun.
        if closing.cancelled() and self._last is not None:
            self._last.opened.abandon()

    # State

    @property
    def current(self) -> Conversation:
        """Return the conversation, even if it has ended. Raises RuntimeError before open()."""
        if self._last is None:
            raise RuntimeError(NOT_OPEN)
        return self._last

    @property
    def started(self) -> Conversation | None:
        """Return the conversation that was started last, even if it could not be negotiated.

        Returns None if the server could not be started. Raises RuntimeError before open().
        """
        if self.loop is None:
            raise RuntimeError(NOT_OPEN)
        return self._started

    @property
    def is_modern(self) -> bool:
        """Return True if the revision is 2026-07-28 or later."""
        return self.current.requests.is_modern

    @property
    def state(self) -> State:
        """Return the state, see Client.state."""
        if self._closing is not None:
            return "closed"
        if self._last is None:
            return "new"
        if self._supervisor is not None:
            return self._supervisor.state
        return "failed" if self._last.channel.over else "running"

    @property
    def restarts(self) -> int:
        """Return how often the server was restarted."""
        return 0 if self._supervisor is None else self._supervisor.restarts

    @property
    def failure(self) -> ConcertinoError | None:
        """Return the error that ended the server last, or the last start; None if there is none."""
        return self._failure if self._supervisor is None else self._supervisor.failure

    async def wait_until_usable(self, label: str, timeout_s: float) -> tuple[Conversation, float]:
        """Return the conversation and what is left of timeout_s. Waits while the server restarts.

        label: the request, for errors. Raises RuntimeError if the client is not open or belongs to
        another event loop, ValueError if timeout_s is not positive, TimedOut and Disconnected.
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
        """Send a request as soon as the server runs. For the parameters see Conversation.call().

        It is sent again after a restart if nobody had read it before.
        """
        timeouts = self._settings.timeouts
        idle_timeout_s, total_s = timeouts.request_s, timeouts.total_s
        # A time limit of the call's own counts even if it is longer than that of the client.
        if timeout_s is not None:
            idle_timeout_s, total_s = timeout_s, max(total_s, timeout_s)
        label = request_label(method, subject)
        while True:
            conversation, idle_timeout_s = await self.wait_until_usable(label, idle_timeout_s)
            try:
                return await conversation.call(
                    method, body, subject, idle_timeout_s, total_s, progress, meta
                )
            except UnreadRequest as exc:
                # Send it again after the restart: nothing was done.
                idle_timeout_s, total_s = exc.time_left(idle_timeout_s), exc.time_left(total_s)

    async def forward(
        self,
        call: Call,
        caller: ClientFacts,
        level: Level | None,
        timeout_s: float,
        progress: Progress | None,
    ) -> Raw:
        """Send another client's call as soon as the server runs. See Client.forward().

        It is sent again after a restart if nobody had read it before.
        """
        while True:
            conversation = self.conversation
            if conversation is None or get_running_loop() is not self.loop:
                conversation, timeout_s = await self.wait_until_usable(call.method, timeout_s)
            try:
                return await conversation.forward(call, caller, level, timeout_s, progress)
            except UnreadRequest as exc:
                timeout_s = exc.time_left(timeout_s)

    def require(self, feature: str) -> None:
        """Raise NotSupported unless the server declares a capability.

        A client must not use others (2025-06-18 and later basic/lifecycle).
        """
        capabilities = self.current.server.capabilities
        if feature not in capabilities:
            declared = ", ".join(sorted(capabilities)) or "nothing"
            raise NotSupported(
                f"{self._settings.name}: the server offers no {feature}; it declares {declared}"
            )


class ConnectionFacts:
    """The read-only properties that Client and SyncClient have in common."""

    _connection: ClientConnection

    @property
    def server(self) -> str:
        """Return the server's name for people."""
        info = self.server_info
        return info.title or info.name

    @property
    def server_info(self) -> Implementation:
        """Return name and version as the server reports them. Do not rely on them for security."""
        return self._connection.current.server.info

    @property
    def protocol_version(self) -> str:
        """Return the name of the revision that is spoken, such as `2026-07-28`."""
        revision = self._connection.current.server.revision
        assert revision is not None
        return revision.name

    @property
    def capabilities(self) -> Mapping[str, Any]:
        """Return the capabilities that the server declares."""
        return self._connection.current.server.capabilities

    @property
    def instructions(self) -> str | None:
        """Return the server's instructions for use, if it has any."""
        return self._connection.current.server.instructions

    @property
    def state(self) -> State:
        """Return the state of the connection.

        This is `new` before opening; `running`; `backing-off` and then `starting` before a restart;
        `failed` if the server ended by itself and will not be restarted; or `closed`.
        """
        return self._connection.state

    @property
    def restarts(self) -> int:
        """Return how often the server was restarted."""
        return self._connection.restarts

    @property
    def failure(self) -> ConcertinoError | None:
        """Return the error that ended the server last, or the last start; None if there is none."""
        return self._connection.failure

    @property
    def pid(self) -> int | None:
        """Return the id of the server's process, if this client started one."""
        started = self._connection.started
        child = None if started is None else started.opened.child
        return None if child is None else child.pid

    @property
    def exit_status(self) -> int | None:
        """Return the exit code of the server's process, or minus the signal that ended it.

        Returns None while it runs, and if there is no process. It stays after a failed open().
        """
        started = self._connection.started
        return None if started is None else started.opened.exit_status

    @property
    def stderr_tail(self) -> str:
        """Return the last 8 KiB that the server wrote to stderr, without secrets.

        It stays after a failed open().
        """
        started = self._connection.started
        return "" if started is None else started.opened.tail()

    @property
    def stray(self) -> int:
        """Return how many lines of the server were skipped.

        They were not messages, or not responses to a pending request. `strays` holds the last few.
        """
        started = self._connection.started
        return 0 if started is None else started.channel.skipped.count

    @property
    def strays(self) -> list[str]:
        """Return the last lines that were skipped, shortened."""
        started = self._connection.started
        return [] if started is None else list(started.channel.skipped.recent)


def _make_show(
    log: logging.Logger, trace: Callable[[str, str], object] | None
) -> Callable[[str, str], object]:
    """Return a function that logs a message at level DEBUG and passes it to the user's trace."""

    def show(direction: str, text: str) -> None:
        log.debug("%s %s", direction, escape_controls(text))
        if trace is not None:
            try:
                trace(direction, text)
            except Exception:
                # A failing trace must not break the connection.
                log.exception("the trace function of this client failed")

    return show
