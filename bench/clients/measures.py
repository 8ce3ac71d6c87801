"""What is measured of a client, whichever it is: given how to open one and how to call, prints one
JSON object.

python CLIENT.py ECHO_PROGRAM SECONDS [LARGE_BYTES]
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

__all__ = ["main"]

Call = Callable[[str], Awaitable[str]]  # the text -> the text that came back
Open = Callable[[str], AbstractAsyncContextManager[Call]]

TEXT = "x" * 100
TOGETHER = 1000
OPENINGS = 11
LARGE_TIMES = 5


async def measure(
    open_client: Open, program: str, seconds: float, large_bytes: int
) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    openings: list[float] = []
    for _ in range(OPENINGS):
        began = time.perf_counter()
        async with open_client(program) as call:
            openings.append(time.perf_counter() - began)
            await call(TEXT)
    figures["connect_ms"] = median(openings[1:]) * 1e3  # the first one imports

    async with open_client(program) as call:
        await one_by_one(call, seconds / 2)
        times = await one_by_one(call, seconds)
        figures["p50_us"] = median(times) / 1e3
        figures["p99_us"] = sorted(times)[int(len(times) * 0.99)] / 1e3
        await together(call, seconds / 2)
        cpu, began = time.process_time(), time.perf_counter()
        calls = await together(call, seconds)
        figures["calls_per_s"] = calls / (time.perf_counter() - began)
        figures["cpu_us"] = (time.process_time() - cpu) / calls * 1e6
        for name, size in (("large_1m_ms", 2**20), ("large_ms", large_bytes)):
            large: list[float] = []
            for _ in range(LARGE_TIMES if size else 0):
                began = time.perf_counter()
                if len(await call("x" * size)) != size:
                    raise SystemExit("the large text came back changed")
                large.append(time.perf_counter() - began)
            if large:
                figures[name] = median(large) * 1e3
    return figures


async def one_by_one(call: Call, seconds: float) -> list[int]:
    times: list[int] = []
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        for _ in range(20):
            began = time.perf_counter_ns()
            text = await call(TEXT)
            times.append(time.perf_counter_ns() - began)
            if text != TEXT:
                raise SystemExit(f"expected the text back, got {text!r}")
    return times


async def together(call: Call, seconds: float) -> int:
    """Calls answered by a thousand callers, each of which calls again when it was answered."""
    until = time.perf_counter() + seconds
    counts = [0]

    async def caller() -> None:
        while time.perf_counter() < until:
            if await call(TEXT) != TEXT:
                raise SystemExit("a call was answered with another's text")
            counts[0] += 1

    await asyncio.gather(*(caller() for _ in range(TOGETHER)))
    return counts[0]


def median(values: list[Any]) -> float:
    return float(sorted(values)[len(values) // 2])


def main(open_client: Open) -> None:
    program, seconds, *large = sys.argv[1:]
    figures = asyncio.run(
        measure(open_client, program, float(seconds), int(large[0]) if large else 0)
    )
    print(json.dumps(figures))
