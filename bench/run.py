"""The benchmark: one command. See README.md beside this file for what the columns mean.

python bench/run.py [--quick] [--only NAME,...] [--python PATH] [--json FILE] [--charts]
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

from charts import publish
from measure import Bench, Cores, Figures, Plan, pick_cores, take_all
from rows import ROWS, Row, select_rows
from table import markdown
from targets import verdicts
from workshop import (
    WORK,
    BuildError,
    Interpreter,
    Place,
    build_places,
    build_tool,
    describe_interpreter,
    server_environment,
)

FULL = Plan(rounds=3, cold_runs=20, warm_s=1.5, measure_s=1.5, repeats=9)
QUICK = Plan(rounds=1, cold_runs=5, warm_s=0.5, measure_s=0.5, repeats=3)
NOISE_SHARE = 0.05  # of a core taken by other programs, above which a row is called noisy


def main() -> int:
    options = parse_arguments()
    if not sys.platform.startswith("linux"):
        return refuse(
            "the benchmark pins processes and reads their CPU clocks: it runs on Linux only"
        )
    try:
        rows = select_rows([name for name in options.only.split(",") if name])
        interpreter = describe_interpreter(options.python)
        load = build_tool()
    except (ValueError, BuildError) as error:
        return refuse(str(error))
    if any(
        row.needs == "concertino" for row in rows
    ):  # it is judged beside its floors, measured in the same run
        rows = tuple(
            row for row in ROWS if row in rows or row.name in ("floor-start", "floor-asyncio")
        )

    places = build_places([row.needs for row in rows], interpreter, say)
    cores, plan = pick_cores(), QUICK if options.quick else FULL
    facts = describe_run(interpreter, places, cores, plan)
    runs = [
        (row, fill_in(row, places[row.needs])) for row in rows if places[row.needs].missing is None
    ]
    stolen_before, all_before = processor_time()
    results = take_all(Bench(load, WORK, server_environment(), cores, plan), runs, say)
    stolen_after, all_after = processor_time()
    facts["stolen"] = (stolen_after - stolen_before) / max(1, all_after - all_before)
    judged = verdicts(results, is_311=" 3.11." in interpreter.version)

    print_report(facts, rows, places, results, judged)
    content = {**facts, "left_out": left_out(places), "results": results, "targets": judged}
    if options.json:
        Path(options.json).write_text(json.dumps(content, indent=1) + "\n")
    if options.charts:
        publish(content)
    return 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="bench/run.py", description="Measure concertino beside its peers and floors."
    )
    parser.add_argument(
        "--quick", action="store_true", help="one short round: to see whether something works"
    )
    parser.add_argument(
        "--only",
        default="",
        metavar="NAME,...",
        help="rows, or families of rows: concertino,mcp,floor",
    )
    parser.add_argument(
        "--python",
        default=sys.executable,
        metavar="PATH",
        help="interpreter for every Python server",
    )
    parser.add_argument(
        "--json", metavar="FILE", help="write everything that was measured, every round, to FILE"
    )
    parser.add_argument(
        "--charts",
        action="store_true",
        help="publish the figures: results.json, the table in README.md, the chart in docs/images",
    )
    return parser.parse_args()


def fill_in(row: Row, place: Place) -> list[str]:
    return [word.format(**place.words) for word in row.command]


def describe_run(
    interpreter: Interpreter, places: dict[str, Place], cores: Cores, plan: Plan
) -> dict[str, Any]:
    processor = "unknown processor"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            processor = line.partition(":")[2].strip()
            break
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": f"{processor}, {os.cpu_count()} cores, {platform.system()} {platform.release()}",
        "load_average": os.getloadavg()[0],
        "python": interpreter.version,
        "python_optimised": interpreter.optimised,
        "cores": {"server": cores.server, "client": cores.server, "client_two_cores": cores.other},
        "plan": vars(plan),
        "versions": {name: place.versions for name, place in places.items() if place.versions},
    }


def processor_time() -> tuple[int, int]:
    """Ticks that the host of a virtual machine gave to others, and all ticks, since the machine
    started.
    """
    ticks = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return ticks[7], sum(ticks)


def left_out(places: dict[str, Place]) -> dict[str, str]:
    return {name: place.missing for name, place in places.items() if place.missing is not None}


def print_report(
    facts: dict[str, Any],
    rows: tuple[Row, ...],
    places: dict[str, Place],
    results: dict[str, dict[str, Figures]],
    judged: list[str],
) -> None:
    build = "" if facts["python_optimised"] else ", built without --enable-optimizations"
    print(
        f"\n{facts['date']}; {facts['machine']}; {facts['python']}{build}; load average before"
        f" {facts['load_average']:.2f}, taken by the host {facts['stolen']:.1%}"
    )
    print(f"{named_versions(facts['versions'])}")
    print(
        f"Client and server share core {facts['cores']['server']} (two cores: client on"
        f" {facts['cores']['client_two_cores']}). Echo of 100 bytes; CPU and calls/s with 64 in"
        f" flight, p50 and p99 one after the other; medians of {facts['plan']['rounds']} rounds,"
        f" {facts['plan']['cold_runs']} starts.\n"
    )
    print(markdown(rows, results))
    print()
    for line in judged:
        print(line)
    for name, reason in left_out(places).items():
        print(f"LEFT OUT {name}: {reason}")
    for name, measures in results.items():
        for measure, figures in measures.items():
            if "failed" in figures:
                print(f"FAILED  {name} {measure}: {figures['failed']}")
        elsewhere = measures.get("sequential", {}).get("elsewhere", 0)
        if elsewhere > NOISE_SHARE:
            print(
                f"NOISY   {name}: other programs took {elsewhere:.0%} of the core during the round"
                " trips"
            )


def named_versions(versions: dict[str, dict[str, str]]) -> str:
    """The ones people ask for; all of them are in the JSON file."""
    wanted = (
        "concertino",
        "msgspec",
        "mcp",
        "fastmcp",
        "pydantic",
        "node",
        "@modelcontextprotocol/sdk",
    )
    found = {name: version for place in versions.values() for name, version in place.items()}
    shown = [name for name in (*wanted, "@modelcontextprotocol/server") if name in found]
    return ", ".join(f"{name} {found[name]}" for name in shown)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def refuse(text: str) -> int:
    say(text)
    return 2


if __name__ == "__main__":
    sys.exit(main())
