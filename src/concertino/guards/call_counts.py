"""CallCounts: how often and how long calls ran, as text for Prometheus.

The text has the format "Prometheus text exposition 0.0.4". The numbers have the names that an
OpenTelemetry exporter writes for them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from concertino.backend.interface import Call
from concertino.backend.methods import KINDS, LIST_METHODS
from concertino.guards.call_outcome import (
    BOUNDARIES_S,
    OTHER,
    SERIES,
    CallFailure,
    Names,
    name_of,
)
from concertino.logs.redact import redactor

__all__ = ["CallCounts"]

DURATION = "mcp_server_operation_duration_seconds"
ACTIVE = "concertino_active_operations"

# Method, name of the tool or prompt, and kind of failure (CallFailure.kind). Name and kind may be
# "".
Labels = tuple[str, str, str]
# The buckets of the histogram of a series without calls: one for each boundary, and one for the
# calls that were longer.
NO_CALLS: Sequence[int] = (0,) * (len(BOUNDARIES_S) + 1)


class CallCounts:
    """Counts the calls of a backend, and describes them for Prometheus.

    begin() and end() must be called on the event loop for each call; text() may be called from any
    thread. At most about 1,000 combinations of method, name and kind of failure are counted
    separately. All further names are counted together as OTHER.
    """

    def __init__(self) -> None:
        # The number of calls in each bucket. In the text, a bucket also contains all shorter calls.
        self._counts: dict[Labels, list[int]] = {}
        # The total duration of the calls.
        self._sums: dict[Labels, float] = {}
        self._names = Names()
        # A proxy passes on all methods, also those that a client invents, so methods need a limit.
        self._methods = Names(known=(*KINDS, *LIST_METHODS))
        # The number of calls in progress, by method.
        self._active: dict[str, int] = {}

    def begin(self, call: Call) -> str:
        """Count a call as in progress. Returns the method under which it is counted, for end().

        Returns OTHER for a method that is not counted separately.
        """
        # The gauge cannot know yet whether the backend accepts a new method. end() counts it under
        # its own name if it has.
        method = call.method if call.method in self._methods else OTHER
        self._active[method] = self._active.get(method, 0) + 1
        return method

    def end(self, method: str, call: Call, failure: CallFailure | None, duration_s: float) -> None:
        """Count a call that has ended.

        method: the result of begin() for this call.
        failure: how the call has failed; None if it has succeeded.
        duration_s: how long the call ran, in seconds.
        """
        self._active[method] -= 1
        self._count(call, failure, duration_s)

    def _count(
        self,
        call: Call,
        failure: CallFailure | None,
        duration_s: float,
    ) -> None:
        """Add one call to the numbers.

        failure: how the call has failed; None if it has succeeded.
        duration_s: how long the call ran, in seconds.
        """
        method = self._methods.count_as(call.method, failure)
        name = ""
        # Count all resources together, because there may be any number of URIs.
        if call.method != "resources/read":
            name = name_of(call) or ""
        if name:
            name = self._names.count_as(name, failure)

        kind = failure.kind if failure else ""
        labels = (method, name, kind)
        # Limit the memory: names and kinds of failure have many combinations. Methods and kinds
        # alone have few, and clients cannot invent kinds.
        if labels not in self._counts and len(self._counts) >= SERIES:
            labels = (method, OTHER if name else "", kind)

        buckets = self._counts.get(labels)
        if buckets is None:
            buckets = list(NO_CALLS)
            self._sums[labels] = 0.0
            self._counts[labels] = buckets
        buckets[bisect_left(BOUNDARIES_S, duration_s)] += 1
        self._sums[labels] += duration_s

    def text(self) -> str:
        """Return the numbers in the text exposition format of Prometheus."""
        # Copy dicts and lists, since this may run in a thread while the event loop changes them.
        lines = [
            f"# HELP {DURATION} How long calls took, by method, name and kind of failure.",
            f"# TYPE {DURATION} histogram",
        ]
        counts: dict[Labels, list[int]] = {}
        sums: dict[Labels, float] = {}
        for labels, buckets in self._counts.copy().items():
            # Redact only the labels and not the whole text, because a short secret of digits may
            # occur in any number.
            redacted = _redact(labels)
            # Labels that differ only in a secret become one series.
            counts[redacted] = [
                sum(pair) for pair in zip(counts.get(redacted, NO_CALLS), buckets, strict=True)
            ]
            sums[redacted] = sums.get(redacted, 0.0) + self._sums[labels]

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


def _redact(labels: Labels) -> Labels:
    """Return labels without secrets."""
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
