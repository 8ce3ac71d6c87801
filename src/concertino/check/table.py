"""All cases, in the order of their sections."""

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
