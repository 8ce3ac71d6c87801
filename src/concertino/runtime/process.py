"""A process that is a server: from taking stdin and stdout over to the exit code. Behind sockets: runtime/service.py.

The process leaves by os._exit, after the flush and the atexit functions, so that no thread of a handler can hold it. Once its end
has begun it is gone within drain_s and LEAVE_S, whatever holds it: a thread sees to that.
Exit codes: 0 the client is gone, or SIGTERM or SIGINT came; 1 failure at start or inside; 2 usage (the command line's).
"""

from __future__ import annotations

import asyncio
import atexit
import gc
import logging
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, NoReturn, Protocol, TextIO

from concertino.backend.interface import Backend
from concertino.jsonrpc.limits import Limits
from concertino.logs import handler as logging_setup
from concertino.logs.formats import escape_controls, message_line
from concertino.logs.redact import refresh
from concertino.logs.writer import BoundedWriter
from concertino.runtime.entry import LoopFactory
from concertino.runtime.host import Host
from concertino.runtime.tasks import hide_from_all_tasks
from concertino.transports.connection import Connection
from concertino.transports.stdio import StdioConnection, StdioDescriptors, take_over

__all__ = [
    "Frontend",
    "LoopFactory",
    "ShutdownWatchdog",
    "Wrap",
    "exit_process",
    "handle_signals",
    "run",
    "run_behind",
]

LEAVE_S = 2.0  # for close() and atexit functions, and for a log that is not read
LAST_WORDS_S = LEAVE_S / 4
USAGE = 2
SHOWN = 2048  # characters of a message in a log line


def run(
    backend: Backend,
    *,
    taken: StdioDescriptors | None = None,
    limits: Limits | None = None,
    log_format: str | None = None,
    trace: bool | None = None,
    loop_factory: LoopFactory | None = None,
) -> NoReturn:
    """Serve a backend over stdin and stdout, then end the process.

    taken: what take_over() gave, if it was called already. trace: every message on stderr; CONCERTINO_TRACE otherwise.
    Raises RuntimeError inside a running event loop. A CONCERTINO_ variable that is none ends the process with exit code 2.
    """
    _refuse_inside_a_loop()
    entrance = _Standard(taken or take_over())
    run_behind(
        entrance,
        backend,
        limits=limits,
        log_format=log_format,
        trace=trace,
        loop_factory=loop_factory,
    )


Wrap = Callable[
    [Connection, str], Connection
]  # a connection and its client's name -> the one to attach


class Frontend(Protocol):
    """Where a process lets clients in."""

    writer: BoundedWriter  # to stderr

    def prepare(self, limits: Limits, log: logging.Logger) -> int:
        """Before the loop runs. Returns the descriptor whose end is the end of everything, or -1."""
        ...

    def open(self, host: Host, wrap: Wrap, end: ShutdownWatchdog) -> asyncio.Future[None]:
        """Let them in, on the loop. Returns what is done when nobody will come any more."""
        ...

    def stop(self) -> None:
        """Let nobody in any more; bring the future of open() about."""
        ...

    def release(self) -> None:
        """The process ends now, by os._exit; from any thread or signal handler."""
        ...


class _Standard:
    """stdin and stdout: one client, and its end is the end."""

    def __init__(self, taken: StdioDescriptors) -> None:
        self.writer = taken.writer
        self._taken = taken

    def prepare(self, limits: Limits, log: logging.Logger) -> int:
        if os.isatty(self._taken.reading):
            name = log.name.partition(".")[2]
            log.info(
                "%s waits for JSON-RPC messages on stdin, a line each: an MCP client is to start it; Ctrl-D ends",
                name,
            )
        self._stdio = StdioConnection(self._taken, limits)
        return self._stdio.reading

    def open(self, host: Host, wrap: Wrap, end: ShutdownWatchdog) -> asyncio.Future[None]:
        self._stdio.ending = end
        self._host = host
        return host.attach(wrap(self._stdio, "")).closed

    def stop(self) -> None:
        self._host.drain()

    def release(self) -> None:
        pass


def run_behind(
    entrance: Frontend,
    backend: Backend,
    *,
    limits: Limits | None,
    log_format: str | None,
    trace: bool | None,
    loop_factory: LoopFactory | None,
) -> NoReturn:
    """Serve a backend to whoever comes in at an entrance, then end the process. The rest is as for run()."""
    _refuse_inside_a_loop()
    refresh()  # what was imported may have put secrets into os.environ
    try:
        info = backend.features().info
    except BaseException as why:
        logging_setup.configure(format=log_format, writer=entrance.writer)
        _complain(logging.getLogger("concertino"), why)
        exit_process(1, entrance.writer)
    format = logging_setup.configure(
        format=log_format, component=info.name, writer=entrance.writer
    ).format_name
    if format == "json":
        from concertino.runtime.log_context import LogContextBackend

        backend = LogContextBackend(backend)
    log = logging.getLogger(f"concertino.{info.name}")
    try:
        limits = limits or Limits.from_environment(os.environ)
    except ValueError as why:
        log.error("%s", why)
        exit_process(USAGE, entrance.writer)
    log.info("Starting %s MCP server v%s", info.name, info.version)
    code = 1
    end: ShutdownWatchdog | None = None
    try:
        # What was imported stays: the collector need not look at it again. 1,000 calls that wait make it run often: with CPython's
        # own threshold it took 25 % of the time of 1,000 sleeping calls, with this one 5 %.
        gc.freeze()
        gc.set_threshold(10_000, 20, 20)
        loop = (loop_factory or asyncio.new_event_loop)()
        asyncio.set_event_loop(loop)
        loop.set_exception_handler(partial(_background, log))
        reading = entrance.prepare(limits, log)
        end = ShutdownWatchdog(loop, reading, limits.drain_s, log, entrance)
        wrap = _wrapping(log, entrance.writer, format, trace)
        code = _completed(
            loop, _serve(backend, info.name, entrance, wrap, limits, log, end), end, log
        )
    except BaseException as why:  # SystemExit too: of start(), or of a task of the application
        _complain(log, why, serving=end is not None and end.serving)
    exit_process(code, entrance.writer)


def _refuse_inside_a_loop() -> None:
    if asyncio._get_running_loop() is not None:  # pyright: ignore[reportPrivateUsage]  # the public one raises
        raise RuntimeError(
            "run() cannot be called while an event loop runs; await concertino.serve() there"
        )


def _completed(
    loop: asyncio.AbstractEventLoop,
    work: Coroutine[Any, Any, int],
    end: ShutdownWatchdog,
    log: logging.Logger,
) -> int:
    """What work returns, although handlers may stop the loop, and their own tasks may exit. Raises what it raises."""
    task = hide_from_all_tasks(loop.create_task(work))
    while True:
        try:
            return loop.run_until_complete(task)
        except (RuntimeError, SystemExit, KeyboardInterrupt) as why:
            if task.done() or loop.is_closed():
                raise
            if isinstance(why, RuntimeError):
                log.warning("something stopped the event loop; it goes on")
            elif end.serving:  # asyncio lets these two out of the loop, from whichever task; start()'s is told as its failure
                log.error("a task raised %s; the server goes on", type(why).__name__, exc_info=why)


async def _serve(
    backend: Backend,
    name: str,
    entrance: Frontend,
    wrap: Wrap,
    limits: Limits,
    log: logging.Logger,
    end: ShutdownWatchdog,
) -> int:
    loop = asyncio.get_running_loop()
    async with Host(backend, limits) as host:
        _obey_signals(
            loop, entrance, end
        )  # before it is said that clients may come; obeyed after this step
        over = entrance.open(host, wrap, end)
        await asyncio.wait((host.started, over), return_when=asyncio.FIRST_COMPLETED)
        if not end.wanted:
            # The input may have ended before the start has: why it fails is worth the time that calls would have had.
            left = limits.drain_s - (0.0 if end.began is None else time.monotonic() - end.began)
            await asyncio.wait((host.started,), timeout=max(0.0, left))
        if host.started.done():
            failure = (
                asyncio.CancelledError() if host.started.cancelled() else host.started.exception()
            )
            if failure is not None:
                _complain(log, failure)
                end.code = 1
                end()
                entrance.stop()
                await over
                return 1
            log.info("%s MCP server started successfully", name)
            end.serving = True
        retry = hide_from_all_tasks(loop.create_task(_retry_log(entrance.writer)))
        await over
        end()
        retry.cancel()
        log.info("Shutting down %s MCP server", name)
    return 0


def _wrapping(log: logging.Logger, writer: BoundedWriter, format: str, trace: bool | None) -> Wrap:
    """Messages are shown if that is wanted: at LOG_LEVEL=debug as log lines, cut; as a trace whole, past the log's rate limit."""
    traced = os.environ.get("CONCERTINO_TRACE", "") not in ("", "0") if trace is None else trace
    debug = log.isEnabledFor(logging.DEBUG)
    if not traced and not debug:
        return lambda connection, name: connection
    from concertino.logs.correlation import current_context
    from concertino.runtime.log_context import log_context_of
    from concertino.transports.trace import trace_connection

    def wrap(connection: Connection, name: str) -> Connection:
        who = f"{name} " if name else ""

        def show(direction: str, text: str) -> None:
            token = current_context.set(log_context_of(text)) if format == "json" else None
            if traced:
                writer.write(message_line(format, who, direction, text).encode())
            if debug:
                said = "Received request" if direction == "<-" else "Sending response"
                log.debug(
                    "%s%s: %s",
                    who,
                    said,
                    escape_controls(text if len(text) <= SHOWN else text[:SHOWN] + "..."),
                )
            if token is not None:
                current_context.reset(token)

        return trace_connection(connection, show)

    return wrap


class ShutdownWatchdog:
    """Ends the process drain_s + LEAVE_S after it was called, or after its input ended while a handler held the loop.

    A thread, since the loop or any function may be held; told through a pipe, since a signal handler may interrupt
    whoever holds a lock. code: the exit code then. serving: whether the backend has started. wanted: whether a signal
    asked for it. began: when it was called first.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        reading: int,
        drain_s: float,
        log: logging.Logger,
        entrance: Frontend,
    ) -> None:
        self.code = 0
        self.serving = False
        self.wanted = False
        self.began: float | None = None
        self._entrance = entrance
        self._loop = loop
        self._reading = reading
        self._within_s = drain_s + LEAVE_S - LAST_WORDS_S
        self._log = log
        self._heard, self._told = os.pipe()
        os.set_blocking(self._told, False)
        self._process = os.getpid()
        threading.Thread(target=self._watch, name="end", daemon=True).start()

    def __call__(self) -> None:
        """The end begins: from any thread or signal handler, any number of times."""
        if os.getpid() == self._process:  # a forked child has the same pipe
            if self.began is None:
                self.began = time.monotonic()
            try:
                os.write(self._told, b"!")
            except BlockingIOError:
                pass

    def _watch(self) -> None:
        told, either = select.poll(), select.poll()
        told.register(self._heard, select.POLLIN)
        either.register(self._heard, select.POLLIN)
        if self._reading >= 0:
            either.register(
                self._reading, getattr(select, "POLLRDHUP", 0)
            )  # not its input, only its end
        either.poll()
        began = time.monotonic()
        # Not told, but the input has ended: reading is paused, or the loop is held and does not know.
        while not told.poll(0):
            began = time.monotonic()
            turned = threading.Event()
            self._loop.call_soon_threadsafe(turned.set)
            if not turned.wait(self._within_s):
                break
            told.poll(100)  # ms
        time.sleep(max(0.0, began + self._within_s - time.monotonic()))
        try:
            # In another thread, since anybody may hold the locks of logging.
            last = threading.Thread(target=self._say_last_words, daemon=True)
            last.start()
            last.join(LAST_WORDS_S)
            self._entrance.release()
        finally:
            os._exit(self.code)

    def _say_last_words(self) -> None:
        self._log.warning(
            "something held up the end for %g s; it is not waited for any longer", self._within_s
        )
        self._entrance.writer.flush(LAST_WORDS_S)


def _complain(log: logging.Logger, why: BaseException, serving: bool = False) -> None:
    said = "The server failed" if serving else "Failed to start server"
    log.error(
        "%s: %s",
        said,
        _reason(why),
        exc_info=why if serving or log.isEnabledFor(logging.DEBUG) else None,
    )


def _background(
    log: logging.Logger, loop: asyncio.AbstractEventLoop, context: dict[str, Any]
) -> None:
    """What the loop has to say, of a task that nobody awaited above all: into the log, not past it."""
    why = context.get("exception")
    if not isinstance(
        why, (SystemExit, KeyboardInterrupt)
    ):  # those end run(), which says so itself
        log.error("%s", context.get("message"), exc_info=why)


def _obey_signals(
    loop: asyncio.AbstractEventLoop, entrance: Frontend, end: ShutdownWatchdog
) -> None:
    """The first SIGTERM or SIGINT drains, the second ends at once.

    By signal.signal, not by the loop's handlers: those wait until the loop turns, and a handler may hold it.
    """
    seen: list[int] = []

    def obey(number: int) -> None:
        seen.append(number)
        if len(seen) > 1:
            entrance.release()
            os._exit(0)
        end.wanted = True
        end()
        loop.call_soon_threadsafe(entrance.stop)

    try:
        handle_signals(obey)
    except ValueError:  # not the main thread: the application's signals are its own
        pass


def handle_signals(obey: Callable[[int], object]) -> None:
    """Call a function with the number of each SIGTERM and SIGINT of this process. Raises ValueError off the main thread."""
    process = os.getpid()

    def handle(number: int, frame: object) -> None:
        if os.getpid() != process:  # a forked child: the signal is meant for it alone
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        obey(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handle)


async def _retry_log(writer: BoundedWriter) -> None:
    """Log lines that stderr did not take go out when it does, not only with the next line."""
    while True:
        await asyncio.sleep(1.0)
        if writer.pending:
            writer.flush()


def exit_process(code: int, writer: BoundedWriter) -> NoReturn:
    """End the process: atexit functions, a bounded last flush, no waiting for threads."""
    watchdog = threading.Timer(LEAVE_S, os._exit, (code,))
    watchdog.daemon = True
    watchdog.start()
    if util := sys.modules.get("multiprocessing.util"):
        util.Finalize(None, _end_pools, exitpriority=0)  # after the program's own atexit functions
    try:
        atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]  # os._exit would skip them
    except BaseException:  # each was reported by atexit itself
        pass
    _flush(sys.stdout, sys.stderr)
    writer.flush(LEAVE_S / 4)
    # A program may have written to the old ones as well. Last, because this may wait for whoever reads stderr.
    _flush(sys.__stdout__, sys.__stderr__)
    os._exit(code)


def _end_pools() -> None:
    """End the workers of process pools that nobody has shut down.

    The interpreter's own shutdown tells them, but that is left out here. Then multiprocessing's atexit function waits for them,
    for as long as the watchdog lets it, and they wait for work for ever. The names are private; there are no others.
    """
    managers: list[Any] = list(
        getattr(sys.modules.get("concurrent.futures.process"), "_threads_wakeups", ())
    )
    for manager in managers:
        workers: dict[int, Any] = manager.processes or {}
        for worker in list(workers.values()):
            worker.terminate()


def _flush(*streams: TextIO | None) -> None:
    for stream in streams:
        try:
            stream.flush()  # pyright: ignore[reportOptionalMemberAccess]  # None has none
        except (OSError, ValueError, AttributeError):
            pass


def _reason(why: BaseException) -> str:
    return f"{type(why).__name__}: {why}" if str(why) else type(why).__name__
