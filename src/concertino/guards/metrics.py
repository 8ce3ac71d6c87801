"""Counts and times of calls, in a file that Prometheus' node exporter (textfile collector) or an agent can read.

A file and no port: a server over stdio has no address, and this one opens none. It is
replaced as a whole, every 15 s and at the end.
Format: Prometheus text exposition 0.0.4; names as an OpenTelemetry exporter would write them.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from bisect import bisect_left
from collections.abc import Callable
from functools import partial
from os import PathLike

from msgspec import Raw, Struct

from concertino.backend.interface import Backend, BackendWrapper, Call, Context, Notifier
from concertino.errors import ConcertinoError
from concertino.guards.call_outcome import (
    BOUNDARIES_S,
    OTHER,
    SERIES,
    CallFailure,
    Names,
    failure_of,
    failure_of_result,
    name_of,
)
from concertino.logs.redact import redactor

__all__ = ["Metrics", "metrics_of"]

log = logging.getLogger("concertino.metrics")
EVERY_S = 15.0
DURATION = "mcp_server_operation_duration_seconds"
ACTIVE = "concertino_active_operations"

Labels = tuple[str, str, str]  # method, name, kind of failure


class Metrics(BackendWrapper):
    """A Backend around another that counts and times its calls, and writes that to a file.

    path: replaced as a whole, so it is never read in part. every_s: how often. clock: seconds, monotonic.
    start() raises ConcertinoError if it cannot be written.
    """

    def __init__(
        self,
        inner: Backend,
        path: str | PathLike[str],
        *,
        every_s: float = EVERY_S,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        super().__init__(inner)
        self._path = os.path.abspath(os.fsdecode(path))  # noqa: PTH100  # a handler may change the folder
        self._every_s = every_s
        self._clock = clock
        self._counts: dict[Labels, list[int]] = {}  # how many of each bucket, each in one alone
        self._sums: dict[Labels, float] = {}
        self._names = Names()
        self._active: dict[str, int] = {}
        self._over = threading.Event()
        self._writing: threading.Thread | None = None
        self._complained = False

    async def start(self, outlet: Notifier) -> None:
        try:
            self._write()
        except OSError as why:
            raise ConcertinoError(
                f"the metrics file {self._path} cannot be written: {why.strerror}"
            ) from None
        if self._writing is None:
            self._writing = threading.Thread(target=self._keep_writing, name="metrics", daemon=True)
            self._writing.start()
        await self.inner.start(outlet)

    async def close(self) -> None:
        try:
            await self.inner.close()
        finally:
            self._over.set()
            if self._writing is not None:
                await asyncio.get_running_loop().run_in_executor(None, self._writing.join)

    async def handle(self, call: Call, context: Context) -> Struct | Raw:
        begun = self._clock()
        method = call.method
        self._active[method] = self._active.get(method, 0) + 1
        failure: CallFailure | None = None
        try:
            result = await self.inner.handle(call, context)
            failure = failure_of_result(call, result)
            return result
        except BaseException as error:
            failure = failure_of(error)
            raise
        finally:
            self._active[method] -= 1
            self._count(call, failure, self._clock() - begun)

    def _count(self, call: Call, failure: CallFailure | None, took_s: float) -> None:
        name = (
            name_of(call) if call.method != "resources/read" else None
        ) or ""  # there is no end of URIs
        if name:
            name = self._names.count_as(name, failure)
        labels = (call.method, name, failure.kind if failure else "")
        if labels not in self._counts and len(self._counts) >= SERIES:
            labels = (call.method, OTHER if name else "", labels[2])
        buckets = self._counts.get(labels)
        if buckets is None:
            buckets = [0] * (len(BOUNDARIES_S) + 1)
            self._sums[labels] = 0.0
            self._counts[labels] = buckets
        buckets[bisect_left(BOUNDARIES_S, took_s)] += 1
        self._sums[labels] += took_s

    # The file

    def text(self) -> str:
        """Return every count so far, in the format of the file."""
        lines = [
            f"# HELP {DURATION} How long calls took, by method, name and kind of failure.",
            f"# TYPE {DURATION} histogram",
        ]
        for labels, buckets in sorted(self._counts.copy().items()):
            shown = _format_labels(labels)
            total = 0
            for boundary, count in zip(
                (*map(str, BOUNDARIES_S), "+Inf"), buckets.copy(), strict=True
            ):
                total += count
                lines.append(f'{DURATION}_bucket{{{shown},le="{boundary}"}} {total}')
            lines += [
                f"{DURATION}_sum{{{shown}}} {self._sums[labels]!r}",
                f"{DURATION}_count{{{shown}}} {total}",
            ]
        lines += [f"# HELP {ACTIVE} Calls under way.", f"# TYPE {ACTIVE} gauge"]
        lines += [
            f'{ACTIVE}{{mcp_method_name="{_escape(method)}"}} {n}'
            for method, n in sorted(self._active.copy().items())
        ]
        return redactor().text("\n".join(lines) + "\n")

    def _write(self) -> None:
        beside = f"{self._path}.{os.getpid()}.tmp"
        try:
            with open(beside, "w", encoding="utf-8") as file:
                file.write(self.text())
            os.replace(beside, self._path)  # noqa: PTH105
        except OSError:
            if os.path.exists(beside):  # noqa: PTH110
                os.unlink(beside)  # noqa: PTH108
            raise

    def _keep_writing(self) -> None:
        """Write the file now and then; in a thread, since a disk may block."""
        over = False
        while not over:
            over = self._over.wait(self._every_s)
            try:
                self._write()
                self._complained = False
            except OSError as why:
                if not self._complained:
                    self._complained = True
                    log.warning(
                        "the metrics file %s cannot be written: %s", self._path, why.strerror
                    )


def metrics_of(path: str) -> Callable[[Backend], Metrics]:
    """Return a function that puts Metrics around a backend."""
    return partial(Metrics, path=path)


def _format_labels(labels: Labels) -> str:
    method, name, kind = labels
    what = "gen_ai_prompt_name" if method == "prompts/get" else "gen_ai_tool_name"
    shown = f'mcp_method_name="{_escape(method)}"'
    if name:
        shown += f',{what}="{_escape(name)}"'
    return f'{shown},error_type="{_escape(kind)}"' if kind else shown


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
