"""Taking the measures: what is asked of the load generator, how often and in which order, and
medians of it.

Everything runs in rounds over all rows, so that a slow minute of the machine falls on every server
alike. One fresh server process per measure and round. All on one core, client and server, except
`two_cores`.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rows import Row

__all__ = ["Bench", "Cores", "Figures", "Plan", "pick_cores", "take_all"]

LIMIT_S = 40  # for one server process; the load generator kills its server then
COUNTS = ("sent", "lost", "wrong", "doubled", "unknown")  # added up over the rounds, not averaged

Figures = dict[str, Any]  # of one measure, as the load generator names them, or {"failed": reason}


@dataclass(frozen=True)
class Plan:
    rounds: int
    cold_runs: int
    warm_s: float
    measure_s: float
    repeats: int  # of volleys and large echoes


@dataclass(frozen=True)
class Cores:
    server: int
    other: int | None  # for the client of `two_cores`


def pick_cores() -> Cores:
    """The last core we may use for server and client, the first for the client of `two_cores`."""
    allowed = sorted(os.sched_getaffinity(0))
    return Cores(allowed[-1], allowed[0] if len(allowed) > 1 else None)


@dataclass(frozen=True)
class Bench:
    """The load generator with everything that is the same for all rows."""

    load: Path
    work: Path
    environment: dict[str, str]
    cores: Cores
    plan: Plan

    def take(self, measure: str, row: Row, command: list[str]) -> Figures:
        said = self.work / "stderr" / f"{row.name}.txt"
        said.parent.mkdir(exist_ok=True)
        client = self.cores.other if measure == "two_cores" else self.cores.server
        name, *options = self.arguments(measure)
        arguments = [str(self.load), name, *options]
        arguments += [
            "--era",
            row.era,
            "--tool",
            row.tool,
            "--stderr",
            str(said),
            "--limit-s",
            str(LIMIT_S),
        ]
        arguments += [
            "--server-cpu",
            str(self.cores.server),
            "--client-cpu",
            str(client),
            "--",
            *command,
        ]
        try:
            done = subprocess.run(
                arguments,
                capture_output=True,
                text=True,
                timeout=LIMIT_S + 20,
                env=self.environment,
                cwd=self.work,
                stdin=subprocess.DEVNULL,
            )
        except subprocess.TimeoutExpired:
            return {"failed": "the load generator did not end"}
        if done.returncode != 0:
            last = (
                said.read_text(errors="replace").strip().splitlines()[-1:] if said.exists() else []
            )
            return {
                "failed": "; ".join(
                    [done.stderr.strip()[-300:], *(line.strip()[:200] for line in last)]
                )
            }
        figures: Figures = json.loads(done.stdout)
        return figures

    def arguments(self, measure: str) -> list[str]:
        plan = self.plan
        timed = ["--warm-s", str(plan.warm_s), "--measure-s", str(plan.measure_s)]
        few = max(3, plan.repeats // 2)
        return {
            "cold": ["cold"],
            "memory": ["memory"],
            "sequential": ["sequential", *timed],
            "pipelined": ["pipelined", "--window", "64", *timed],
            "two_cores": ["pipelined", "--window", "64", *timed],
            "large_1m": ["large", "--bytes", "1000000", "--repeats", str(plan.repeats)],
            "large_10m": ["large", "--bytes", "10000000", "--repeats", str(few)],
            "concurrent": ["concurrent", "--window", "1000", "--repeats", str(few)],
        }[measure]


def take_all(
    bench: Bench, runs: list[tuple[Row, list[str]]], say: Callable[[str], None]
) -> dict[str, dict[str, Figures]]:
    """All measures of all rows: row name -> measure -> figures (medians, with every round's under
    `rounds`).
    """
    taken: dict[str, dict[str, list[Figures]]] = {row.name: {} for row, _ in runs}

    def take(measure: str, row: Row, command: list[str], keep: bool = True) -> None:
        earlier = taken[row.name].setdefault(measure, [])
        if any("failed" in figures for figures in earlier):
            return  # it will fail again
        figures = bench.take(measure, row, command)
        if keep or "failed" in figures:
            earlier.append(figures)
        if "failed" in figures:
            say(f"{row.name}: {measure} failed: {figures['failed']}")

    starting = [(row, command) for row, command in runs if "cold" in row.measures]
    for number in range(bench.plan.cold_runs + 1 if starting else 0):
        say(
            f"cold start, run {number} of"
            f" {bench.plan.cold_runs}{' (not counted)' if number == 0 else ''}"
        )
        for row, command in starting:
            take("cold", row, command, keep=number > 0)
    for number in range(bench.plan.rounds):
        for row, command in runs:
            if any(measure != "cold" for measure in row.measures):
                say(f"round {number + 1} of {bench.plan.rounds}: {row.name}")
            for measure in row.measures:
                if measure != "cold" and not (measure == "two_cores" and bench.cores.other is None):
                    take(measure, row, command)
    return {
        name: {measure: middle(rounds) for measure, rounds in measures.items() if rounds}
        for name, measures in taken.items()
    }


def middle(rounds: list[Figures]) -> Figures:
    """Median of each figure over the rounds; counts are added up.

    One failure makes the whole a failure.
    """
    for figures in rounds:
        if "failed" in figures:
            return figures
    merged: Figures = {}
    for name, value in rounds[0].items():
        values = [figures[name] for figures in rounds if name in figures]
        if name in COUNTS:
            merged[name] = sum(values)
        elif isinstance(value, bool):
            merged[name] = any(values)
        elif isinstance(value, int | float):
            merged[name] = statistics.median(values)
        else:
            merged[name] = value
    if rounds[0]["measure"] == "cold":
        merged["cpu_ms_best"] = min(figures["cpu_ms"] for figures in rounds)
    return {**merged, "rounds": rounds}
