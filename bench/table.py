"""The results as a Markdown table, as it stands in the README."""

from __future__ import annotations

from collections.abc import Callable

from measure import Figures
from rows import Row

__all__ = ["markdown"]

ERAS = {"legacy": "2025-11-25", "modern": "2026-07-28"}


def fine(value: float) -> str:
    """Three digits that mean something."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def tenth(value: float) -> str:
    return f"{value:,.1f}"


def thousands(value: float) -> str:
    return f"{value / 1000:,.0f} k" if value >= 10_000 else f"{value / 1000:.1f} k"


# title, measure, figure, how it is written
COLUMNS: tuple[tuple[str, str, str, Callable[[float], str]], ...] = (
    ("CPU us/call", "pipelined", "cpu_us", fine),
    ("calls/s", "pipelined", "calls_per_s", thousands),
    ("calls/s, two cores", "two_cores", "calls_per_s", thousands),
    ("p50 us", "sequential", "p50_us", fine),
    ("p99 us", "sequential", "p99_us", fine),
    ("slowest us", "sequential", "max_us", fine),
    ("start CPU ms", "cold", "cpu_ms", fine),
    ("start wall ms", "cold", "wall_ms", fine),
    ("idle MB", "memory", "rss_mb", tenth),
    ("1 MB ms", "large_1m", "p50_ms", fine),
    ("10 MB ms", "large_10m", "p50_ms", fine),
    ("1,000 sleeps ms", "concurrent", "p50_ms", fine),
)


def markdown(rows: tuple[Row, ...], results: dict[str, dict[str, Figures]]) -> str:
    """A row for each server with a result.

    `-`: not measured for it; `failed`: tried, the reasons are printed apart.
    """
    lines = [
        "| server | revision | " + " | ".join(title for title, *_ in COLUMNS) + " |",
        "|---|---|" + "---:|" * len(COLUMNS),
    ]
    for row in rows:
        if row.name in results:
            cells = [
                cell(results[row.name].get(measure), figure, write)
                for _, measure, figure, write in COLUMNS
            ]
            lines.append(f"| {row.label} | {ERAS[row.era]} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def cell(figures: Figures | None, name: str, write: Callable[[float], str]) -> str:
    if figures is None:
        return "-"
    if "failed" in figures:
        return "failed"
    return write(float(figures[name])) if name in figures else "-"
