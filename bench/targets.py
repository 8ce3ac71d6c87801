"""What concertino has to reach, held against what was measured in this run.

The absolute figures were set on one particular machine. On another they say little, so the asyncio
floor of this run stands beside each, and what a like floor measured when they were set: the
distance to the floor travels between machines, the microseconds do not. Start-up targets are
relative to begin with.
"""

from __future__ import annotations

from dataclasses import dataclass

from measure import Figures

__all__ = ["verdicts"]

GUARDS_ALLOWED = 0.1  # of what a small echo costs without them
START_FLOOR = "floor-start"
START_ALLOWED_MS = {
    "concertino": ("`python server.py`", 12.0),
    "concertino-serve": ("`concertino serve`", 18.0),
}


@dataclass(frozen=True)
class Target:
    measure: str
    figure: str
    text: str
    limit_311: float  # Python 3.11
    limit: float  # 3.12 and newer
    floor_then: float | None = (
        None  # what the asyncio floor measured on the machine the limits were set on
    )
    at_least: bool = False


TARGETS = (
    Target("pipelined", "cpu_us", "CPU us per call, 64 in flight", 6, 5, 2.6),
    Target(
        "pipelined",
        "calls_per_s",
        "calls/s, 64 in flight",
        160_000,
        200_000,
        330_000,
        at_least=True,
    ),
    Target("sequential", "p50_us", "echo p50, us", 12, 11, 7.0),
    Target("concurrent", "p50_ms", "1,000 concurrent 50 ms sleeps, ms", 65, 65),
    Target("large_1m", "p50_ms", "1 MB echo, ms", 4.5, 4.5),
    Target("large_10m", "p50_ms", "10 MB echo, ms", 60, 60),
    Target("memory", "rss_mb", "idle memory, MB", 26, 26, 21),
)


def verdicts(results: dict[str, dict[str, Figures]], is_311: bool) -> list[str]:
    """One line for each target of each concertino row that was measured."""
    lines = start_verdicts(results)
    for name in ("concertino", "concertino-modern"):
        for target in TARGETS:
            value = figure(results, name, target.measure, target.figure)
            if value is None:
                continue
            limit = target.limit_311 if is_311 else target.limit
            reached = value >= limit if target.at_least else value <= limit
            floor = figure(results, "floor-asyncio", target.measure, target.figure)
            then = f", then {target.floor_then:,g}" if target.floor_then is not None else ""
            beside = f"; asyncio floor here {floor:,.1f}{then}" if floor is not None else ""
            lines.append(
                f"{mark(reached)} {name}: {target.text}: {value:,.1f} (target {limit:,.6g}{beside})"
            )
    return lines + guard_verdicts(results) + loss_verdicts(results)


def guard_verdicts(results: dict[str, dict[str, Figures]]) -> list[str]:
    """What guards add to a small echo: to its round trip, which users wait for, and to its CPU time
    where a call is cheapest.
    """
    lines = []
    for row, text in (("concertino-limits", "three limits"), ("concertino-guards", "six guards")):
        for measure, name, what in (
            ("sequential", "p50_us", "echo p50"),
            ("pipelined", "cpu_us", "CPU per call, 64 in flight"),
        ):
            plain, guarded = (figure(results, item, measure, name) for item in ("concertino", row))
            if plain is not None and guarded is not None:
                more = guarded / plain - 1
                lines.append(
                    f"{mark(more <= GUARDS_ALLOWED)} {text}: {what} {more:+.1%} (allowed"
                    f" {GUARDS_ALLOWED:+.0%})"
                )
    return lines


def start_verdicts(results: dict[str, dict[str, Figures]]) -> list[str]:
    floor, best_floor = (
        figure(results, START_FLOOR, "cold", name) for name in ("cpu_ms", "cpu_ms_best")
    )
    if floor is None or best_floor is None:
        return []
    lines = [
        f"        floor of a start here and now (asyncio + msgspec): {floor:.1f} CPU ms, best"
        f" {best_floor:.1f}"
    ]
    for row, (text, allowed) in START_ALLOWED_MS.items():
        value, best = (figure(results, row, "cold", name) for name in ("cpu_ms", "cpu_ms_best"))
        if value is not None and best is not None:
            lines.append(
                f"{mark(value - floor <= allowed)} {text}: {value:.1f} CPU ms = floor"
                f" {value - floor:+.1f} (allowed +{allowed:g}); best {best:.1f} = best floor"
                f" {best - best_floor:+.1f}"
            )
    return lines


def loss_verdicts(results: dict[str, dict[str, Figures]]) -> list[str]:
    """Nothing lost: every id answered exactly once with the right text. Servers that end badly are
    named too.
    """
    lines = []
    for name, measures in results.items():
        bad = sum(
            figures.get(count, 0)
            for figures in measures.values()
            for count in ("lost", "wrong", "doubled", "unknown")
        )
        if bad:
            samples = [figures["sample"] for figures in measures.values() if "sample" in figures]
            lines.append(
                f"MISSED  {name}: {bad} calls lost, wrong, doubled or unknown;"
                f" {(samples or [''])[0][:200]}"
            )
        if any(figures.get("exit_forced") for figures in measures.values()):
            lines.append(
                f"NOTE    {name}: did not end within 5 s of the end of its input and was killed"
            )
        elif any(figures.get("exit_status", 0) != 0 for figures in measures.values()):
            statuses = sorted(
                {
                    figures["exit_status"]
                    for figures in measures.values()
                    if "exit_status" in figures
                }
            )
            lines.append(f"NOTE    {name}: exit status {statuses} at the end of its input")
    return lines


def figure(
    results: dict[str, dict[str, Figures]], row: str, measure: str, name: str
) -> float | None:
    value = results.get(row, {}).get(measure, {}).get(name)
    return None if value is None else float(value)


def mark(reached: bool) -> str:
    return "reached" if reached else "MISSED "
