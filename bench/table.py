"""The results as a Markdown table, as it stands in README.md beside this file."""

from __future__ import annotations

from collections.abc import Callable

from measure import Figures
from rows import Row

__all__ = ["COLUMNS", "fine", "markdown", "tenth"]

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
    """A row for each server with a result, a column for each figure that any of them has.

    `-`: not measured for it; `failed`: tried, the reasons are printed apart.
    """
    columns = [column for column in COLUMNS if is_measured(column[1], column[2], results)]
    lines = [
        "| server | revision | " + " | ".join(title for title, *_ in columns) + " |",
        "|---|---|" + "---:|" * len(columns),
    ]
    for row in rows:
        if row.name in results:
            cells = [
                cell(results[row.name].get(measure), figure, write)
                for _, measure, figure, write in columns
            ]
            lines.append(f"| {row.label} | {ERAS[row.era]} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def is_measured(measure: str, figure: str, results: dict[str, dict[str, Figures]]) -> bool:
    return any(
        figure in row.get(measure, {}) or "failed" in row.get(measure, {})
        for row in results.values()
    )


def cell(figures: Figures | None, name: str, write: Callable[[float], str]) -> str:
    if figures is None:
        return "-"
    if "failed" in figures:
        return "failed"
    return write(float(figures[name])) if name in figures else "-"
