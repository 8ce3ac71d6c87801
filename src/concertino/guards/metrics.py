"""Metrics: counts and times calls, for Prometheus.

A stdio server has no network address at which Prometheus could fetch the numbers. So Metrics writes
the numbers to a file, which an agent or the textfile collector of Prometheus' node exporter reads.
The file is replaced every 15 s and at the end. An HTTP server can also return the numbers at
/metrics. call_counts.py counts the calls and makes the text.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable
from functools import partial
from os import PathLike

from msgspec import Raw, Struct

from concertino.backend.call_hooks import CheckArguments, argument_check_of
from concertino.backend.interface import Backend, Call, Context, Notifier
from concertino.backend.wrappers import BackendWrapper
from concertino.errors import ConcertinoError
from concertino.guards.call_counts import CallCounts
from concertino.guards.call_outcome import CallFailure, failure_of, failure_of_result

__all__ = ["Metrics", "metrics_of"]

log = logging.getLogger("concertino.metrics")
# The default number of seconds between two writes of the file.
EVERY_S = 15.0


class Metrics(BackendWrapper):
    """A Backend that counts and times the calls of another Backend, for Prometheus.

        run(Metrics(server, "/var/lib/node_exporter/notes.prom"))

    text() returns the numbers. start() raises ConcertinoError if the file cannot be written.

    inner: the other Backend.
    path: the file to which the numbers are written; None to write no file. The file is replaced
        atomically, so that no reader sees an incomplete one.
    every_s: how many seconds pass between two writes.
    clock: a monotonic clock in seconds, for the durations of calls.
    counts: the object that counts the calls. Several Metrics with the same object count their calls
        together. None for a new object.
    """

    def __init__(
        self,
        inner: Backend,
        path: str | PathLike[str] | None = None,
        *,
        every_s: float = EVERY_S,
        clock: Callable[[], float] = time.perf_counter,
        counts: CallCounts | None = None,
    ) -> None:
        super().__init__(inner)
        # An absolute path, because a handler may change the working directory.
        self._path = None if path is None else os.path.abspath(os.fsdecode(path))  # noqa: PTH100
        self._every_s = every_s
        self._clock = clock
        self._counts = counts or CallCounts()
        self._closing = threading.Event()
        self._writer: threading.Thread | None = None
        # Whether the last write has failed, which was logged.
        self._has_failed = False

    async def start(self, outlet: Notifier) -> None:
        if self._path is not None:
            self._start_writing(self._path)
        await self.inner.start(outlet)

    def _start_writing(self, path: str) -> None:
        """Write the file for the first time, and start the thread that replaces it."""
        try:
            self._write(path)
        except OSError as exc:
            raise ConcertinoError(
                f"the metrics file {path} cannot be written: {exc.strerror}"
            ) from None
        if self._writer is None:
            # Later writes run in a thread, because writing to a disk may block.
            self._writer = threading.Thread(
                target=self._run_writer, args=(path,), name="metrics", daemon=True
            )
            self._writer.start()

    async def close(self) -> None:
        try:
            await self.inner.close()
        finally:
            self._closing.set()
            if self._writer is not None:
                await asyncio.get_running_loop().run_in_executor(None, self._writer.join)

    def argument_check(self, method: str, name: str) -> CheckArguments | None:
        """Return the inner backend's function that checks the arguments of one tool or prompt.

        For invalid arguments, the function raises ArgumentsRefused, which has a result with
        isError, or RpcError, by the way in which the backend refuses them.
        method, name: for example "tools/call" and the name of the tool.
        Returns None if only the inner backend's handle() can check them.
        """
        return argument_check_of(self.inner, method, name)

    async def handle(self, call: Call, context: Context) -> Struct | Raw:
        began = self._clock()
        method = self._counts.begin(call)
        failure: CallFailure | None = None
        try:
            result = await self.inner.handle(call, context)
            failure = failure_of_result(call, result)
            return result
        except BaseException as exc:
            failure = failure_of(exc)
            raise
        finally:
            self._counts.end(method, call, failure, self._clock() - began)

    def text(self) -> str:
        """Return the numbers in the text exposition format of Prometheus. Thread-safe."""
        return self._counts.text()

    def _write(self, path: str) -> None:
        """Replace the file. If that fails, remove the temporary file and raise OSError."""
        temporary = f"{path}.{os.getpid()}.tmp"
        try:
            with open(temporary, "w", encoding="utf-8") as file:
                file.write(self.text())
            os.replace(temporary, path)  # noqa: PTH105
        except OSError:
            if os.path.exists(temporary):  # noqa: PTH110
                os.unlink(temporary)  # noqa: PTH108
            raise

    def _run_writer(self, path: str) -> None:
        """Write the file every `every_s` seconds, and once more at the end."""
        is_closing = False
        while not is_closing:
            is_closing = self._closing.wait(self._every_s)
            try:
                self._write(path)
                self._has_failed = False
            except OSError as exc:
                # Log only the first of several failures in a row.
                if not self._has_failed:
                    self._has_failed = True
                    log.warning("the metrics file %s cannot be written: %s", path, exc.strerror)


def metrics_of(
    path: str | None = None, counts: CallCounts | None = None
) -> Callable[[Backend], Metrics]:
    """Return a function that wraps a backend in Metrics.

    path: the metrics file, which Metrics writes for Prometheus; None for no file.
    counts: the object that counts the calls; None for a new object for each backend.
    """
    return partial(Metrics, path=path, counts=counts)
