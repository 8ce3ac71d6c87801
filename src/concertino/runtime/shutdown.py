"""Ends a server's process in time, even if a handler never returns.

- begin_shutdown_at_signals(): the first SIGTERM or SIGINT begins the shutdown, the second one ends
  the process at once.
- exit_process() calls the atexit functions, flushes the output and calls os._exit. Python's normal
  exit would wait for threads, and a handler's thread may never end.
- ShutdownWatchdog is a thread that ends the process when the shutdown takes longer than
  drain_s + LEAVE_S, for example because a handler blocks the event loop.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn, TextIO

from concertino.logs.writer import BoundedWriter
from concertino.runtime.tasks import do_nothing

__all__ = ["ShutdownWatchdog", "begin_shutdown_at_signals", "exit_process", "handle_signals"]

# How many seconds the shutdown may take after the drain time: for the backend's close(), for atexit
# functions, and for writing log lines to a stderr whose reader is slow.
LEAVE_S = 2.0
# If the event loop does not run within this time after a signal, a handler blocks it.
BLOCKED_S = 0.2
# How many of these seconds remain for writing the last log lines, and for the watchdog's answers to
# clients.
LAST_LOG_S = LEAVE_S / 4


class ShutdownWatchdog:
    """Ends the process at the latest drain_s + 2 s (LEAVE_S) after begin_shutdown() was called.

    If a handler blocks the event loop when the input ends, nobody can call begin_shutdown(). Then
    the watchdog counts the time from the end of the input, which it notices itself.

    loop: the event loop, which may be blocked.
    reading: the file descriptor of the input; -1 if there is none.
    drain_s: how many seconds calls may run after the shutdown has begun.
    log: the log of the server; `writer` writes its lines to stderr.
    release: removes the files that would remain after the process. Called in the watchdog's thread.

    Attributes that runtime/process.py sets:
    code: the exit code with which the watchdog ends the process.
    is_serving: whether the backend has started.
    on_blocked: called in a thread if a handler blocks the loop when a signal comes. It logs that
        the shutdown begins, which the loop cannot do.
    on_timeout: called in a thread just before the watchdog ends the process, if the loop is still
        blocked. It has about 0.5 s (LAST_LOG_S) to answer the clients.

    Other attributes:
    has_signal: whether a signal has begun the shutdown.
    began: when begin_shutdown() was first called, by time.monotonic(); None before.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        reading: int,
        drain_s: float,
        log: logging.Logger,
        writer: BoundedWriter,
        release: Callable[[], object],
    ) -> None:
        # 0, because a handler that never returns is no failure of a server that was told to end.
        self.code = 0
        self.is_serving = False
        self.has_signal = False
        self.began: float | None = None
        self.on_blocked: Callable[[], object] = do_nothing
        self.on_timeout: Callable[[], object] = do_nothing
        self._writer = writer
        self._loop = loop
        self._timeout_s = drain_s + LEAVE_S - LAST_LOG_S
        self._log = log
        # The thread is woken through this pipe and not with a lock, because a signal handler may
        # interrupt the very thread that holds the lock. A pair: the ends to read and to write.
        self._pipe = os.pipe()
        os.set_blocking(self._pipe[1], False)
        self._process = os.getpid()
        threading.Thread(
            target=self._watch, args=(reading, release), name="end", daemon=True
        ).start()

    def begin_shutdown(self) -> None:
        """Begin to count the time of the shutdown.

        May be called in any thread or signal handler, and repeatedly.
        """
        # Do nothing in a forked child. It shares the pipe with its parent process, whose shutdown
        # it would begin.
        if os.getpid() == self._process:
            if self.began is None:
                self.began = time.monotonic()
            try:
                os.write(self._pipe[1], b"!")
            except BlockingIOError:
                # The pipe is full of such bytes already.
                pass

    def _watch(self, reading: int, release: Callable[[], object]) -> None:
        """Wait for the beginning of the shutdown, then for its time limit, and end the process.

        The watchdog's thread runs this.
        reading: the file descriptor of the input, to notice its end; -1 if there is none.
        release: removes the files that would remain after the process.
        """
        # `called` polls for a call of begin_shutdown(), `called_or_eof` for the end of the input,
        # too.
        called, called_or_eof = select.poll(), select.poll()
        called.register(self._pipe[0], select.POLLIN)
        called_or_eof.register(self._pipe[0], select.POLLIN)
        if reading >= 0:
            # Report the end of the input, but not that data can be read.
            called_or_eof.register(reading, getattr(select, "POLLRDHUP", 0))
        called_or_eof.poll()

        counted_from = time.monotonic()
        # This loop runs if the input has ended and begin_shutdown() was not called. An event loop
        # that is not blocked has paused reading and will notice the end of the input later, so keep
        # waiting for the call. A blocked one cannot notice it, so count the time limit from now.
        while not called.poll(0):
            counted_from = time.monotonic()
            if not self._runs_loop(self._timeout_s):
                break
            # Wait for the call for 100 ms.
            called.poll(100)
        if self.has_signal and not self._runs_loop(BLOCKED_S):
            # In another thread: a blocked thread may hold the locks of the logging module.
            threading.Thread(target=self.on_blocked, daemon=True).start()
        time.sleep(max(0.0, counted_from + self._timeout_s - time.monotonic()))

        try:
            # In other threads: a blocked thread may hold the locks of the logging module.
            until = time.monotonic() + LAST_LOG_S
            targets: list[Callable[[], object]] = [self._log_timeout]
            # A loop that runs may be writing to the clients itself.
            if not self._runs_loop(BLOCKED_S):
                targets.append(self.on_timeout)
            threads = [threading.Thread(target=target, daemon=True) for target in targets]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(max(0.0, until - time.monotonic()))
            release()
        finally:
            _kill_children()
            os._exit(self.code)

    def _runs_loop(self, within_s: float) -> bool:
        """Return whether the event loop runs a callback within this time, or has ended."""
        loop_ran = threading.Event()
        try:
            self._loop.call_soon_threadsafe(loop_ran.set)
        except RuntimeError:
            # The loop is closed.
            return True
        return loop_ran.wait(within_s)

    def _log_timeout(self) -> None:
        """Log that the shutdown took too long, and write the log lines that are still held."""
        self._log.warning(
            "something blocked the shutdown for %g s; the process ends now", self._timeout_s
        )
        self._writer.flush(LAST_LOG_S)


def begin_shutdown_at_signals(
    loop: asyncio.AbstractEventLoop,
    stop: Callable[[], object],
    release: Callable[[], object],
    watchdog: ShutdownWatchdog,
) -> None:
    """Make the first SIGTERM or SIGINT begin the shutdown, and the second one end the process.

    Outside the main thread this does nothing, because Python handles signals in the main thread
    only.
    stop: called on the loop after the first signal.
    release: removes the files that would remain after the process; called before the second signal
        ends the process.
    watchdog: ends the process if the shutdown takes too long.
    """
    # Not loop.add_signal_handler(), whose callbacks never run while a handler blocks the loop.
    received: list[int] = []

    def on_signal(number: int) -> None:
        received.append(number)
        if len(received) > 1:
            release()
            _kill_children()
            os._exit(0)
        watchdog.has_signal = True
        watchdog.begin_shutdown()
        loop.call_soon_threadsafe(stop)

    try:
        handle_signals(on_signal)
    except ValueError:
        # This is not the main thread.
        pass


def handle_signals(callback: Callable[[int], object]) -> None:
    """Call `callback` with the number of each SIGTERM and SIGINT that this process receives.

    Raises ValueError outside the main thread.
    """
    process = os.getpid()

    def handle(number: int, frame: object) -> None:
        # A forked child inherits this handler. There, do what the signal does by default.
        if os.getpid() != process:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        callback(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handle)


def _kill_children() -> None:
    """Kill the process groups of all children that concertino has started."""
    # If the module is not loaded, no process was started. Do not import it now: the import could
    # wait for a lock that a blocked thread holds.
    if groups := sys.modules.get("concertino.transports.process_groups"):
        groups.kill_process_groups()


def exit_process(code: int, writer: BoundedWriter) -> NoReturn:
    """End the process: kill children, call the atexit functions, flush output, call os._exit(code).

    Waits for no thread. Takes LEAVE_S seconds at most.
    writer: holds the log lines that are not written yet.
    """
    # The loop has stopped, so nothing else ends the children. Do this first, because the steps
    # below may take time.
    _kill_children()
    timer = threading.Timer(LEAVE_S, os._exit, (code,))
    timer.daemon = True
    timer.start()

    if util := sys.modules.get("multiprocessing.util"):
        # Priority 0 is the lowest: multiprocessing calls it after the program's own finalizers.
        util.Finalize(None, _end_pools, exitpriority=0)
    try:
        # os._exit does not call the atexit functions.
        atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]
    except BaseException:
        # atexit has printed each exception already.
        pass

    _flush(sys.stdout, sys.stderr)
    writer.flush(LAST_LOG_S)
    # A program may have written to the original streams as well. Flush them last, because this
    # blocks while their pipe is full.
    _flush(sys.__stdout__, sys.__stderr__)
    os._exit(code)


def _end_pools() -> None:
    """End the worker processes of ProcessPoolExecutors that the program has not shut down."""
    # Python's normal exit tells the workers to end, but os._exit does not. Otherwise the atexit
    # function of multiprocessing would wait for the workers, and the workers for work, until the
    # timer of exit_process() ends the process. There is no public way to find the pools.
    managers: list[Any] = list(
        getattr(sys.modules.get("concurrent.futures.process"), "_threads_wakeups", ())
    )
    for manager in managers:
        workers: dict[int, Any] = manager.processes or {}
        for worker in list(workers.values()):
            worker.terminate()


def _flush(*streams: TextIO | None) -> None:
    """Flush text streams, and ignore those that are closed or cannot be written."""
    for stream in streams:
        try:
            # AttributeError: the stream is None if it was closed when the process started.
            stream.flush()  # pyright: ignore[reportOptionalMemberAccess]
        except (OSError, ValueError, AttributeError):
            pass
