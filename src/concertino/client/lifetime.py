"""The life of a client: its server started, started again and ended, and what is known of it. What can be asked is in client.py.

Every wait has a bound, and every failure says what was awaited, how the server ended, and what it wrote to stderr last.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from asyncio import get_running_loop
from collections.abc import Callable, Mapping
from threading import get_ident
from types import TracebackType
from typing import Any, Self

from msgspec import Raw, Struct

from concertino.client.conversation import Conversation, LogMessage, NotificationHandlers
from concertino.client.negotiation import Era, open_conversation
from concertino.client.output_validation import OutputValidator
from concertino.client.pending_request import Progress, named
from concertino.client.request_handlers import Elicit, RequestHandlers, Roots, Sample
from concertino.client.server_stderr import Sink, StderrLines
from concertino.client.supervision import Restart, State, Supervisor
from concertino.client.targets import Target, parse_target
from concertino.errors import ConcertinoError, Disconnected, NotSupported
from concertino.jsonrpc.limits import Limits
from concertino.jsonrpc.messages import Id
from concertino.types.results import Implementation, Level

__all__ = ["Lifetime", "Timeouts"]

FOREVER = float("inf")
NOT_OPEN = "this client is not open: use `async with Client(...) as client:`"


class Timeouts(Struct, frozen=True):
    """How long a client waits, in seconds; infinity is allowed.

    connect_s: from the start of a server to its first answer, a download by npx or uvx included. probe_s: for the answer to
    `server/discover`, before an older server is assumed. request_s: for any answer, or for the next progress where progress is
    asked for. total_s: for an answer, whatever the progress; a longer timeout_s of a call counts instead. ping_every_s: how often
    the server is asked whether it is there, by default never; ping_s: for the answer to that. A server that then says nothing at
    all hangs, and is ended.
    """

    connect_s: float = 60.0
    probe_s: float = 3.0
    request_s: float = 60.0
    total_s: float = 600.0
    ping_every_s: float = FOREVER
    ping_s: float = 10.0

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if not getattr(self, name) > 0:
                raise ValueError(
                    f"{name}: expected a positive number of seconds, got {getattr(self, name)!r}"
                )


class Lifetime:
    """What a Client is before it asks anything. Parameters and attributes: see Client."""

    def __init__(
        self,
        target: Target,
        *,
        name: str | None = None,
        info: Implementation | None = None,
        era: Era = "auto",
        timeouts: Timeouts | None = None,
        limits: Limits | None = None,
        stderr: Sink | None = None,
        stderr_level: int = logging.INFO,
        restart: Restart | None = None,
        validate: bool | None = None,
        trace: Callable[[str, str], object] | None = None,
        elicit: Elicit | None = None,
        elicit_urls: bool = False,
        sample: Sample | None = None,
        sampling: Mapping[str, Any] | None = None,
        roots: Roots | None = None,
        rounds: int = 16,
        changed: Callable[[str], object] | None = None,
        updated: Callable[[str], object] | None = None,
        logged: Callable[[LogMessage], object] | None = None,
        notified: Callable[[str, dict[str, Any]], object] | None = None,
    ) -> None:
        if era not in ("auto", "modern", "legacy"):
            raise ValueError(f"era: expected auto, modern or legacy, got {era!r}")
        for what, given, kind in (
            ("restart", restart, Restart),
            ("timeouts", timeouts, Timeouts),
            ("limits", limits, Limits),
        ):
            if given is not None and type(given) is not kind:
                raise TypeError(f"{what}: expected {kind.__name__}(...), got {given!r}")
        for what, given in (
            ("trace", trace),
            ("elicit", elicit),
            ("sample", sample),
            ("changed", changed),
            ("updated", updated),
            ("logged", logged),
            ("notified", notified),
        ):
            if given is not None and not callable(given):
                raise TypeError(f"{what}: expected a function, got {given!r}")
        if not (stderr is None or callable(stderr) or isinstance(stderr, (str, os.PathLike))):  # pyright: ignore[reportUnnecessaryIsInstance]
            kind = type(stderr).__name__
            raise TypeError(
                f"stderr: expected a function that takes a line, or the path of a file, got {kind}"
            )
        if rounds < 1:
            raise ValueError(f"rounds: expected at least 1, got {rounds!r}")
        self._place = parse_target(target)
        if restart is not None and not self._place.again:
            raise ValueError(
                "restart: expected a program or an address, for anything else cannot be opened again"
            )
        self.name = name or self._place.name
        self.timeouts = timeouts or Timeouts()
        self.limits = limits or Limits()
        self._info = info or Implementation(
            "concertino", vars(sys.modules["concertino"])["__version__"]
        )
        self._era: Era = era
        self._stderr = stderr
        self._stderr_level = stderr_level
        self._trace = trace
        self._answers = RequestHandlers(elicit, elicit_urls, sample, sampling, roots)
        self._ears = NotificationHandlers(notified, changed, updated, logged)
        self._rounds = rounds
        self._lines: StderrLines | None = None
        self._log = logging.getLogger(f"concertino.client.{self.name}")
        self._restart = restart
        self._conversation: Conversation | None = (
            None  # that can be used; None: there is none yet, or none now
        )
        self._last: Conversation | None = None  # the same, or the one that ended
        self._supervisor: Supervisor | None = None
        self._failure: ConcertinoError | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0  # in which that runs
        self._closing: asyncio.Task[None] | None = None
        self._promises = OutputValidator(validate)  # of the server's tools
        self._log_level: Level | None = None  # this and the next: what each new server is told
        self._subscribed: dict[str, Id] = {}

    # A Client says what these mean.

    async def _opened(self) -> None:
        """The first server is there."""

    async def _prepare(self) -> None:
        """Another server is there, after a restart: it knows nothing of what its predecessor was told."""

    # Opening and closing

    async def open(self) -> None:
        """Start or connect, and find out what the server speaks. At most connect_s seconds.

        Raises SpawnError (cannot be started), Disconnected (ended meanwhile), TimedOut, Incompatible (no common revision),
        ProtocolError. Nothing is left running then.
        """
        if self._loop is not None:
            raise RuntimeError("a Client is opened once; make another")
        self._loop = asyncio.get_running_loop()
        self._thread = get_ident()
        try:
            await self._bring_up()
            if self._restart is not None:
                self._supervisor = Supervisor(
                    self._restart, self._bring_down, self._bring_up, self._prepare, self._log
                )
                if self._here.channel.over:
                    self._ended(self._here)
            await self._opened()
        except BaseException:
            await self.aclose()
            raise

    async def _bring_up(self) -> None:
        times = self.timeouts
        here = await open_conversation(
            self._start, self._place.again, self._era, times.connect_s, times.probe_s
        )
        self._last = self._conversation = here
        here.on_end = self._ended
        if times.ping_every_s < FOREVER:
            here.watch(times.ping_every_s, times.ping_s)
        if here.channel.over:  # between its first answer and now
            self._ended(here)

    async def _bring_down(self) -> None:
        if self._last is not None:
            await self._last.close()

    def _ended(self, here: Conversation) -> None:
        """It ended by itself."""
        self._failure = here.explained(Disconnected("the connection ended"))
        if self._supervisor is not None and self._closing is None:
            self._conversation = None
            self._supervisor.ended(self._failure)
            here.afterwards = "; it is to be started again, but what was under way is not repeated"

    async def _start(self) -> Conversation:
        if self._lines is None:
            self._lines = StderrLines(self.name, self._stderr, self._stderr_level)
        opened = await self._place.open(self.limits, self._lines)
        show = None
        if self._trace is not None or self._log.isEnabledFor(logging.DEBUG):
            show = _shown_to(self._log, self._trace)
        return Conversation(
            self.name,
            opened,
            self.limits,
            self._info,
            self._answers,
            self._ears,
            self._rounds,
            show,
        )

    async def aclose(self) -> None:
        """Close the server's stdin, wait, and end it with everything that it started. Bounded; may be called again.

        Calls under way raise Disconnected. It goes on when its caller is cancelled.
        """
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(
                self._close(), name=f"close {self.name}"
            )
            self._closing.add_done_callback(self._abandoned)
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        if self._supervisor is not None:
            await self._supervisor.close()
        await self._bring_down()
        if self._lines is not None:
            self._lines.close()

    def _abandoned(self, closing: asyncio.Task[None]) -> None:
        if closing.cancelled() and self._last is not None:
            self._last.opened.abandon()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    # What is known

    @property
    def server(self) -> str:
        """What the server calls itself, for people."""
        info = self.server_info
        return info.title or info.name

    @property
    def server_info(self) -> Implementation:
        """Who the server says it is: never a ground for trust."""
        return self._here.server

    @property
    def protocol_version(self) -> str:
        """The revision that is spoken."""
        revision = self._here.revision
        assert revision is not None
        return revision.name

    @property
    def capabilities(self) -> Mapping[str, Any]:
        """What the server declares."""
        return self._here.offered

    @property
    def instructions(self) -> str | None:
        """How the server wants to be used."""
        return self._here.instructions

    @property
    def state(self) -> State:
        """`new`, `running`, `backing-off` or `starting` (before a restart), `failed` (it ended, or was given up), or `closed`."""
        if self._closing is not None:
            return "closed"
        if self._last is None:
            return "new"
        if self._supervisor is not None:
            return self._supervisor.state
        return "failed" if self._last.channel.over else "running"

    @property
    def restarts(self) -> int:
        """How often the server was started again."""
        return 0 if self._supervisor is None else self._supervisor.restarts

    @property
    def failure(self) -> ConcertinoError | None:
        """What ended the server last, if it ended by itself or could not be started again."""
        return self._failure if self._supervisor is None else self._supervisor.failure

    @property
    def pid(self) -> int | None:
        """The server's process, if this client started one."""
        child = self._here.opened.child
        return None if child is None else child.pid

    @property
    def exit_status(self) -> int | None:
        """The exit code of the server's process, or minus the signal that ended it; None while it runs, or if there is none."""
        return self._here.opened.exit_status

    @property
    def stderr_tail(self) -> str:
        """The last 8 KiB that the server wrote to stderr, without secrets."""
        return self._here.opened.tail()

    @property
    def stray(self) -> int:
        """How many lines of the server's were skipped: no messages, or answers to nothing. `strays` holds the last few."""
        return self._here.channel.stray

    @property
    def strays(self) -> list[str]:
        """The last lines that were skipped, shortened."""
        return list(self._here.channel.strays)

    @property
    def _here(self) -> Conversation:
        if self._last is None:
            raise RuntimeError(NOT_OPEN)
        return self._last

    # For what is asked

    async def _call(
        self,
        method: str,
        body: bytes,
        subject: str,
        timeout_s: float | None,
        progress: Progress | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> Raw:
        times = self.timeouts
        patience_s, total_s = times.request_s, times.total_s
        if timeout_s is not None:
            patience_s, total_s = timeout_s, max(total_s, timeout_s)
        here, patience_s = await self._usable(named(method, subject), patience_s)
        return await here.call(method, body, subject, patience_s, total_s, progress, meta)

    async def _usable(self, what: str, patience_s: float) -> tuple[Conversation, float]:
        """Where requests go, and what is left of the time for one: a server that is started again is waited for."""
        if self._last is None:
            raise RuntimeError(NOT_OPEN)
        loop = get_running_loop()
        if loop is not self._loop:
            raise RuntimeError(
                "a Client belongs to the event loop that it was opened on; see SyncClient for threads"
            )
        if not patience_s > 0:  # not a number is neither
            raise ValueError(
                f"timeout_s: expected a positive number of seconds, got {patience_s!r}"
            )
        until = loop.time() + patience_s
        while self._conversation is None:
            assert self._supervisor is not None
            await self._supervisor.until_it_runs(what, max(0.0, until - loop.time()))
        return self._conversation, max(0.001, until - loop.time())

    async def _running(self, what: str) -> Conversation:
        return (await self._usable(what, self.timeouts.request_s))[0]

    @property
    def _is_modern(self) -> bool:
        revision = self._here.revision
        return revision is not None and revision.modern

    def _require(self, feature: str) -> None:
        """Only what was declared is used (2025-06-18 and later basic/lifecycle, MUST)."""
        offered = self._here.offered
        if feature not in offered:
            has = ", ".join(sorted(offered)) or "nothing"
            raise NotSupported(f"{self.name}: the server offers no {feature}; it declares {has}")


def _shown_to(
    log: logging.Logger, also: Callable[[str, str], object] | None
) -> Callable[[str, str], object]:
    from concertino.logs.formats import escape_controls

    def show(direction: str, text: str) -> None:
        log.debug("%s %s", direction, escape_controls(text))
        if also is not None:
            try:
                also(direction, text)
            except Exception:  # nothing is lost by it
                log.exception("the function that is shown messages failed")

    return show
