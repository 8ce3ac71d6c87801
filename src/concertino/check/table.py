"""CASES: all cases of `concertino check`, in the order of their sections.

A case causes one fault at a new server process, and checks the reaction (case.py).
"""

from __future__ import annotations

from concertino.check.cases import (
    concurrency,
    ending,
    framing,
    lifecycle,
    limits,
    pressure,
    shapes,
    stdio_kinds,
    tools,
)

# Cases for --quick: they take 0.3 s on average, and find most of the faults that servers have.
QUICK = frozenset(
    (
        "not-json",
        "not-utf8",
        "crlf",
        "separators-in-text",
        "separators-in-ids",
        "messages-1000",
        "nested-arrays",
        "object-empty",
        "unknown-method",
        "ids-kept",
        "stray-responses",
        "notifications-unanswered",
        "request-at-start",
        "initialize-unknown-version",
        "tool-unknown",
        "arguments-bad",
        "tool-raises",
        "stdout-written",
        "eof-in-message",
        "sigterm",
        "client-gone",
    )
)

CASES = (
    *framing.CASES,
    *stdio_kinds.CASES,
    *limits.CASES,
    *shapes.CASES,
    *lifecycle.CASES,
    *tools.CASES,
    *concurrency.CASES,
    *pressure.CASES,
    *ending.CASES,
)
