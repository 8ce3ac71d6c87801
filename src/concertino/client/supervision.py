"""Supervisor: restarts a client's server that ends by itself.

    async with Client(["python", "server.py"], restart=Restart(tries=3)) as client: ...

The pauses before restarts grow, and the number of restarts in a row is limited. Requests that were
pending when the server ended raise Disconnected, because only the caller knows whether it is safe
to repeat them. Requests that the server had not read are sent again (client/client_connection.py).
New requests wait for the restart, within their own time limits.
Spec: 2026-07-28 basic/transports/stdio "Unexpected exit"; 2025-11-25 basic/utilities/ping for
servers that hang.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from typing import Literal

from msgspec import Struct

from concertino.errors import ConcertinoError, Disconnected, TimedOut
from concertino.near_names import HintingStructMeta

__all__ = ["Restart", "State", "SupervisedServer", "Supervisor"]

State = Literal["new", "running", "backing-off", "starting", "failed", "closed"]
FOREVER = float("inf")


class Restart(Struct, frozen=True, metaclass=HintingStructMeta):
    """When to restart a server that has ended by itself. Times are in seconds.

        Client(["python", "server.py"], restart=Restart(tries=3))

    A server counts as recovered when it has run for steady_s since its restart, or has answered a
    request of the user. If a recovered server ends, the pause is first_s again, and the starts are
    counted from 0.

    first_s: the pause before the first restart. The pause doubles with each restart in a row. Each
        pause is shortened at random by up to a quarter, so that many servers do not start together.
    longest_s: the longest pause.
    tries: after this many failed starts in a row, the client gives up: requests raise Disconnected.
        A start has failed if the server ends before it counts as recovered.
    steady_s: how long a server must run to count as recovered.
    retry_s: after the client has given up, the time after which a new request starts the server
        once more; infinite (the default) to never try again.
    Raises ValueError for a value that is not positive.
    """

    first_s: float = 0.1
    longest_s: float = 60.0
    tries: int = 10
    steady_s: float = 60.0
    retry_s: float = FOREVER

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            # `not x > 0` instead of `x <= 0`, which would accept NaN.
            if not value > 0:
                raise ValueError(f"{name}: expected a positive number, got {value!r}")


def shorten_at_random(pause_s: float) -> float:
    """Return a pause that is shortened at random by up to a quarter."""
    # The module random would delay the start by 0.7 ms. A random byte is at most 255, which is a
    # quarter of 1024.
    return pause_s * (1 - os.urandom(1)[0] / 1024)


class SupervisedServer(Struct, frozen=True):
    """The functions that a supervisor calls to restart its server.

    bring_down: closes the connection and releases the process of the server that has ended.
    bring_up: starts the server again and negotiates the revision.
    on_restart: subscribes again and sets the log level; called after a restart.
    count_answers: returns how many requests the server has answered since its latest start.
    """

    bring_down: Callable[[], Awaitable[None]]
    bring_up: Callable[[], Awaitable[None]]
    on_restart: Callable[[], Awaitable[None]]
    count_answers: Callable[[], int]


class Supervisor:
    """Restarts the server of one client, in a background task.

    rules: when to restart.
    server: the functions that end and start the server.
    log: the logger for ends and starts of the server.

    Attributes:
    state: "running"; "backing-off" during the pause before a restart; "starting" during a restart;
        "failed" after the supervisor has given up; or "closed" after close().
    failure: the error with which the server last ended or could not be restarted; None if there is
        no such error.
    restarts: how many times the server was restarted.
    """

    def __init__(
        self,
        rules: Restart,
        server: SupervisedServer,
        log: logging.Logger,
    ) -> None:
        self.state: State = "running"
        self.failure: ConcertinoError | None = None
        self.restarts = 0
        self._rules = rules
        self._server = server
        self._log = log
        # The time at which the client gave up, by the loop's clock.
        self._failed_at = FOREVER
        # Set from the end of the server until the next start.
        self._ended = asyncio.Event()
        # Set while requests need not wait for a restart: while the server runs, and after the
        # client has given up or was closed.
        self._need_not_wait = asyncio.Event()
        self._need_not_wait.set()
        self._start_task(0)

    def _start_task(self, tries: int) -> None:
        """Start the background task.

        tries: the number of starts in a row so far.
        """
        loop = asyncio.get_running_loop()
        self._task = loop.create_task(self._run(tries), name="supervise a server")

    def on_end(self, error: ConcertinoError) -> None:
        """Begin to restart the server, because it has ended by itself.

        error: the error of the ended connection, which describes how the server has ended.
        """
        self.failure = error
        self.state = "backing-off"
        self._need_not_wait.clear()
        self._ended.set()

    async def wait_until_running(self, label: str, within_s: float) -> None:
        """Wait until the server runs again, at most within_s seconds.

        label: the method and subject of the waiting request, for error messages.
        within_s: may be infinite.
        Raises TimedOut after within_s, and Disconnected if the client has given up or was closed.
        """
        # on_restart() runs in the background task itself, where waiting for the next restart would
        # never end.
        if asyncio.current_task() is self._task:
            raise Disconnected(f"{label}: the server ended again while its session was restored")
        if self.state == "failed":
            self._try_again()
        try:
            async with asyncio.timeout(None if within_s == FOREVER else within_s):
                await self._need_not_wait.wait()
        except TimeoutError:
            raise TimedOut(
                f"{label}: not sent, because the server ({self.state}) was not restarted within "
                f"{within_s:.3g} s; {self.failure}"
            ) from None
        if self.state == "closed":
            raise Disconnected(f"{label}: this client was closed")
        if self.state == "failed":
            raise self._gave_up_error(label)

    def _try_again(self) -> None:
        """Start the server once more, if the client gave up at least retry_s ago."""
        now = asyncio.get_running_loop().time()
        if now - self._failed_at >= self._rules.retry_s:
            self.state = "backing-off"
            self._need_not_wait.clear()
            # As if the server had just ended, with one start left before the client gives up.
            self._ended.set()
            self._start_task(self._rules.tries - 1)

    async def close(self) -> None:
        """Stop restarting the server. Waiting requests raise Disconnected."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self.state = "closed"
        self._need_not_wait.set()

    async def _run(self, tries: int) -> None:
        """Restart the server whenever it has ended, until the client gives up.

        tries: the number of starts in a row so far.
        """
        now = asyncio.get_running_loop().time
        rules = self._rules
        pause_s = rules.first_s
        # When the server was started, and how many requests it had answered before the user of the
        # client could send requests. More answers than that show that the server works.
        up_since, answers_before = now(), self._server.count_answers()
        while True:
            await self._ended.wait()
            has_answered = self._server.count_answers() > answers_before
            if has_answered or now() - up_since >= rules.steady_s:
                tries, pause_s = 0, rules.first_s

            is_up = False
            while not is_up:
                self._ended.clear()
                if tries >= rules.tries:
                    await self._give_up()
                    return
                tries += 1
                await self._bring_down_and_wait(tries, shorten_at_random(pause_s))
                pause_s = min(rules.longest_s, 2 * pause_s)
                is_up = await self._try_bring_up()

            self.restarts += 1
            up_since, answers_before = now(), self._server.count_answers()
            # The server may have ended again meanwhile.
            if not self._ended.is_set():
                self.state = "running"
                self._need_not_wait.set()
                await self._server.on_restart()
                # The requests of on_restart() do not show that the server has recovered.
                answers_before = self._server.count_answers()

    async def _bring_down_and_wait(self, tries: int, pause_s: float) -> None:
        """Release the server that has ended, and wait before the next start.

        tries: the number of the next start.
        pause_s: how long to wait.
        """
        self.state = "backing-off"
        # First release everything that the new server may need, such as a port.
        await self._server.bring_down()
        self._log.warning(
            "the server ended; start %d follows in %.3g s: %s", tries, pause_s, self.failure
        )
        await asyncio.sleep(pause_s)
        self.state = "starting"

    async def _try_bring_up(self) -> bool:
        """Start the server. Returns False if it cannot be started, and sets `failure`."""
        try:
            await self._server.bring_up()
        except ConcertinoError as exc:
            self.failure = exc
            return False
        except Exception as exc:
            # This is a bug and not a failure of the server, but the waiting requests must get an
            # error.
            self._log.exception("the server could not be started again")
            self.failure = Disconnected(f"{type(exc).__name__}: {exc}")
            return False
        return True

    async def _give_up(self) -> None:
        """Stop restarting the server. Requests that wait for it raise Disconnected."""
        self.state = "failed"
        self._failed_at = asyncio.get_running_loop().time()
        self._need_not_wait.set()
        self._log.error("%s", self._gave_up_error("the server"))
        await self._server.bring_down()

    def _gave_up_error(self, label: str) -> Disconnected:
        """Return the error of a request after the client has given up.

        label: the method and subject of the request, for the text.
        """
        tries = self._rules.tries
        text = f"{label}: the server was started {tries} times in a row and ended each time"
        if self._rules.retry_s < FOREVER:
            waited_s = asyncio.get_running_loop().time() - self._failed_at
            left_s = max(0.0, self._rules.retry_s - waited_s)
            text += f"; a call in {left_s:.0f} s or later starts it again"
        cause = self.failure
        if isinstance(cause, Disconnected):
            return Disconnected(f"{text}; {cause}", cause.exit_status, cause.stderr)
        return Disconnected(f"{text}; {cause}")
