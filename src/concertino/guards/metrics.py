"""Metrics: counts and times calls, and writes the numbers to a file for Prometheus.

The textfile collector of Prometheus' node exporter, or an agent, reads the file. There is no HTTP
port, because a stdio server has no network address. The file is replaced every 15 s and at the end.
Its format is the Prometheus text exposition format 0.0.4, with the names of metrics that an
OpenTelemetry exporter writes.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import partial
from os import PathLike

from msgspec import Raw, Struct

from concertino.backend.call_hooks import CheckArguments, argument_check_of
from concertino.backend.interface import Backend, Call, Context, Notifier
from concertino.backend.methods import KINDS, LIST_METHODS
from concertino.backend.wrappers import BackendWrapper
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
# The default number of seconds between two writes of the file.
EVERY_S = 15.0
DURATION = "mcp_server_operation_duration_seconds"
ACTIVE = "concertino_active_operations"

# Method, name and kind of failure. The last two may be empty.
Labels = tuple[str, str, str]
# The buckets of a series without calls.
NO_CALLS: Sequence[int] = (0,) * (len(BOUNDARIES_S) + 1)


class Metrics(BackendWrapper):
    """A Backend that counts and times the calls of another Backend, and writes a metrics file.

    path: the file. It is replaced atomically, so that no reader sees an incomplete file.
    every_s: seconds between two writes.
    clock: a monotonic clock in seconds.
    start() raises ConcertinoError if the file cannot be written.
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
        # An absolute path, because a handler may change the working directory.
        self._path = os.path.abspath(os.fsdecode(path))  # noqa: PTH100
        self._every_s = every_s
        self._clock = clock
        # The number of calls in each bucket. In the file, a bucket also contains all shorter calls.
        self._counts: dict[Labels, list[int]] = {}
        # The total duration of the calls.
        self._sums: dict[Labels, float] = {}
        self._names = Names()
        # A proxy passes on all methods, also those that a client invents, so methods need a limit.
        self._methods = Names(known=(*KINDS, *LIST_METHODS))
        # The number of calls in progress, by method.
        self._active: dict[str, int] = {}
        self._closing = threading.Event()
        self._writer: threading.Thread | None = None
        # Whether the last write has failed, which was logged.
        self._has_failed = False

    async def start(self, outlet: Notifier) -> None:
        try:
            self._write()
        except OSError as exc:
            raise ConcertinoError(
                f"the metrics file {self._path} cannot be written: {exc.strerror}"
            ) from None
        if self._writer is None:
            # Write the file in a thread, because writing to a disk may block.
            self._writer = threading.Thread(target=self._run_writer, name="metrics", daemon=True)
            self._writer.start()
        await self.inner.start(outlet)

    async def close(self) -> None:
        try:
            await self.inner.close()
        finally:
            self._closing.set()
            if self._writer is not None:
                await asyncio.get_running_loop().run_in_executor(None, self._writer.join)

    def argument_check(self, method: str, name: str) -> CheckArguments | None:
        """Return the inner backend's check of arguments. See SupportsArgumentChecks."""
        return argument_check_of(self.inner, method, name)

    async def handle(self, call: Call, context: Context) -> Struct | Raw:
        began = self._clock()
        method = call.method if call.method in self._methods else OTHER
        self._active[method] = self._active.get(method, 0) + 1
        failure: CallFailure | None = None
        try:
            result = await self.inner.handle(call, context)
            failure = failure_of_result(call, result)
            return result
        except BaseException as exc:
            failure = failure_of(exc)
            raise
        finally:
            self._active[method] -= 1
            self._count(call, failure, self._clock() - began)

    def _count(
        self,
        call: Call,
        failure: CallFailure | None,
        duration_s: float,
    ) -> None:
        """Add one call to the numbers.

        failure: how the call has failed; None if it has succeeded.
        """
        method = self._methods.count_as(call.method, failure)
        # Count all resources together, because there may be any number of URIs.
        name = (name_of(call) if call.method != "resources/read" else None) or ""
        if name:
            name = self._names.count_as(name, failure)

        labels = (method, name, failure.kind if failure else "")
        # Limit the memory: names and kinds of failure have many combinations.
        if labels not in self._counts and len(self._counts) >= SERIES:
            labels = (method, OTHER if name else "", labels[2])

        buckets = self._counts.get(labels)
        if buckets is None:
            buckets = list(NO_CALLS)
            self._sums[labels] = 0.0
            self._counts[labels] = buckets
        buckets[bisect_left(BOUNDARIES_S, duration_s)] += 1
        self._sums[labels] += duration_s

    def text(self) -> str:
        """Return the content of the file."""
        # Copy dicts and lists, because this runs in a thread while the event loop changes them.
        lines = [
            f"# HELP {DURATION} How long calls took, by method, name and kind of failure.",
            f"# TYPE {DURATION} histogram",
        ]
        counts: dict[Labels, list[int]] = {}
        sums: dict[Labels, float] = {}
        for labels, buckets in self._counts.copy().items():
            # Redact only the names and not the whole text, because a short secret of digits may
            # occur in any number.
            shown = _redact(labels)
            # Names that differ only in a secret become one series.
            counts[shown] = [
                sum(pair) for pair in zip(counts.get(shown, NO_CALLS), buckets, strict=True)
            ]
            sums[shown] = sums.get(shown, 0.0) + self._sums[labels]

        for labels, buckets in sorted(counts.items()):
            label_text = _format_labels(labels)
            # Prometheus buckets are cumulative: each contains all shorter calls.
            total = 0
            for boundary, count in zip((*map(str, BOUNDARIES_S), "+Inf"), buckets, strict=True):
                total += count
                lines.append(f'{DURATION}_bucket{{{label_text},le="{boundary}"}} {total}')
            lines += [
                f"{DURATION}_sum{{{label_text}}} {sums[labels]!r}",
                f"{DURATION}_count{{{label_text}}} {total}",
            ]
        lines += [f"# HELP {ACTIVE} Calls under way.", f"# TYPE {ACTIVE} gauge"]
        lines += [
            f'{ACTIVE}{{mcp_method_name="{_escape(method)}"}} {count}'
            for method, count in sorted(self._active.copy().items())
        ]
        return "\n".join(lines) + "\n"

    def _write(self) -> None:
        """Replace the file. If that fails, remove the temporary file and raise OSError."""
        temporary = f"{self._path}.{os.getpid()}.tmp"
        try:
            with open(temporary, "w", encoding="utf-8") as file:
                file.write(self.text())
            os.replace(temporary, self._path)  # noqa: PTH105
        except OSError:
            if os.path.exists(temporary):  # noqa: PTH110
                os.unlink(temporary)  # noqa: PTH108
            raise

    def _run_writer(self) -> None:
        """Write the file every `every_s` seconds, and once more at the end."""
        is_closing = False
        while not is_closing:
            is_closing = self._closing.wait(self._every_s)
            try:
                self._write()
                self._has_failed = False
            except OSError as exc:
                # Log only the first of several failures in a row.
                if not self._has_failed:
                    self._has_failed = True
                    log.warning(
                        "the metrics file %s cannot be written: %s", self._path, exc.strerror
                    )


def metrics_of(path: str) -> Callable[[Backend], Metrics]:
    """Return a function that wraps a backend in Metrics.

    path: the metrics file, which Metrics writes for Prometheus.
    """
    return partial(Metrics, path=path)


def _redact(labels: Labels) -> Labels:
    method, name, kind = map(redactor().text, labels)
    return method, name, kind


def _format_labels(labels: Labels) -> str:
    """Return labels in the exposition format, such as `mcp_method_name="tools/call"`."""
    method, name, kind = labels
    text = f'mcp_method_name="{_escape(method)}"'
    if name:
        label = "gen_ai_prompt_name" if method == "prompts/get" else "gen_ai_tool_name"
        text += f',{label}="{_escape(name)}"'
    return f'{text},error_type="{_escape(kind)}"' if kind else text


def _escape(text: str) -> str:
    """Escape a label value as the exposition format requires."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
