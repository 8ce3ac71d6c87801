"""The end of a server's process: its signals, a watchdog, and the exit itself.

The process ends by os._exit, after flushing its output and calling its atexit functions, so that no
handler's thread can keep it alive. A watchdog thread ends it drain_s + LEAVE_S after the shutdown
began, whatever blocks.
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

__all__ = ["ShutdownWatchdog", "begin_shutdown_at_signals", "exit_process", "handle_signals"]

# Time after the drain for close(), for atexit functions, and for a log that nobody reads.
LEAVE_S = 2.0
# The part of it in which the watchdog may write its own log message.
LAST_WORDS_S = LEAVE_S / 4


class ShutdownWatchdog:
    """Ends the process drain_s + LEAVE_S after its shutdown began.

    The shutdown begins when this object is called, or when the input ends while a handler blocks
    the event loop. A thread does the work, since the loop or any function may block. It is notified
    through a pipe, since a signal handler may interrupt the holder of a lock.

    release: removes what outlives the process, just before its end; called in a thread.

    code: the exit code that the watchdog uses.
    serving: whether the backend has started.
    wanted: whether a signal asked for the shutdown.
    began: the time of the first call, by time.monotonic(); None before.
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
        self.code = 0
        self.serving = False
        self.wanted = False
        self.began: float | None = None
        self._writer = writer
        self._release = release
        self._loop = loop
        self._reading = reading
        self._timeout_s = drain_s + LEAVE_S - LAST_WORDS_S
        self._log = log
        self._pipe_out, self._pipe_in = os.pipe()
        os.set_blocking(self._pipe_in, False)
        self._process = os.getpid()
        threading.Thread(target=self._watch, name="end", daemon=True).start()

    def __call__(self) -> None:
        """Begin the shutdown. May be called from any thread or signal handler, and repeatedly."""
        # A forked child shares the pipe, and must not end its parent.
        if os.getpid() == self._process:
            if self.began is None:
                self.began = time.monotonic()
            try:
                os.write(self._pipe_in, b"!")
            except BlockingIOError:
                pass

    def _watch(self) -> None:
        called, called_or_eof = select.poll(), select.poll()
        called.register(self._pipe_out, select.POLLIN)
        called_or_eof.register(self._pipe_out, select.POLLIN)
        if self._reading >= 0:
            # Report the end of the input alone, not that it has data.
            called_or_eof.register(self._reading, getattr(select, "POLLRDHUP", 0))
        called_or_eof.poll()

        began = time.monotonic()
        # The input has ended, but nobody has called. Either reading is paused and the loop runs:
        # then keep waiting. Or the loop is blocked and cannot notice the end: then time runs.
        while not called.poll(0):
            began = time.monotonic()
            loop_ran = threading.Event()
            self._loop.call_soon_threadsafe(loop_ran.set)
            if not loop_ran.wait(self._timeout_s):
                break
            # Milliseconds.
            called.poll(100)
        time.sleep(max(0.0, began + self._timeout_s - time.monotonic()))

        try:
            # In another thread, since any blocked thread may hold the locks of logging.
            last_words = threading.Thread(target=self._log_last_words, daemon=True)
            last_words.start()
            last_words.join(LAST_WORDS_S)
            self._release()
        finally:
            os._exit(self.code)

    def _log_last_words(self) -> None:
        self._log.warning(
            "something blocked the shutdown for %g s; the process ends now", self._timeout_s
        )
        self._writer.flush(LAST_WORDS_S)


def begin_shutdown_at_signals(
    loop: asyncio.AbstractEventLoop,
    stop: Callable[[], object],
    release: Callable[[], object],
    watchdog: ShutdownWatchdog,
) -> None:
    """Make the first SIGTERM or SIGINT begin the shutdown, and the second one end the process.

    stop: called on the loop after the first one. release: called before the end by the second one.
    Uses signal.signal and not the loop's handlers, which run in the loop: a handler may block it.
    """
    received: list[int] = []

    def on_signal(number: int) -> None:
        received.append(number)
        if len(received) > 1:
            release()
            os._exit(0)
        watchdog.wanted = True
        watchdog()
        loop.call_soon_threadsafe(stop)

    try:
        handle_signals(on_signal)
    except ValueError:
        # Not the main thread: the signals are the application's business.
        pass


def handle_signals(callback: Callable[[int], object]) -> None:
    """Call `callback` with the number of each SIGTERM and SIGINT that this process receives.

    Raises ValueError outside the main thread.
    """
    process = os.getpid()

    def handle(number: int, frame: object) -> None:
        # A forked child inherits this handler: its signal ends the child alone.
        if os.getpid() != process:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        callback(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handle)


def exit_process(code: int, writer: BoundedWriter) -> NoReturn:
    """End the process: call atexit functions, flush for a limited time, wait for no thread."""
    timer = threading.Timer(LEAVE_S, os._exit, (code,))
    timer.daemon = True
    timer.start()

    if util := sys.modules.get("multiprocessing.util"):
        # The lowest priority: after the program's own atexit functions.
        util.Finalize(None, _end_pools, exitpriority=0)
    try:
        # os._exit would skip them.
        atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]
    except BaseException:
        # atexit itself has reported each of them.
        pass

    _flush(sys.stdout, sys.stderr)
    writer.flush(LEAVE_S / 4)
    # A program may have written to the original streams as well. They come last, since this blocks
    # while nobody reads stderr.
    _flush(sys.__stdout__, sys.__stderr__)
    os._exit(code)


def _end_pools() -> None:
    """End the workers of process pools that nobody has shut down.

    The interpreter's normal shutdown would tell them to end, but os._exit skips it. Without this,
    multiprocessing's atexit function waits for workers that wait for work, until the timer of
    exit_process() fires. There is no public way to find the pools.
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
            # A stream that was closed before the start is None: that is an AttributeError.
            stream.flush()  # pyright: ignore[reportOptionalMemberAccess]
        except (OSError, ValueError, AttributeError):
            pass
