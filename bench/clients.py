"""The benchmark of clients: concertino's beside those of mcp, FastMCP and the TypeScript SDK,
against one server in C.

python bench/clients.py [--quick] [--only NAME,...] [--python PATH] [--json FILE]

Client and server share one core (see README.md for why). Each client runs in a process and an
environment of its own; a round takes all of them in turn, and the figures are medians over the
rounds. What is measured is in clients/measures.py.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from measure import pick_cores
from workshop import (
    SERVERS,
    WORK,
    BuildError,
    Place,
    build_places,
    build_tool,
    describe_interpreter,
    run,
    server_environment,
)

CLIENTS = Path(__file__).resolve().parent / "clients"
LARGE_BYTES = 16 * 2**20
LIMIT_S = 240
Figures = dict[str, float]


@dataclass(frozen=True)
class Client:
    """One client. large_bytes: of the largest text; 0 for those whose limit cannot be raised."""

    name: str
    label: str
    needs: str
    command: tuple[str, ...]
    large_bytes: int = LARGE_BYTES


ROWS = (
    Client(
        "concertino", "**concertino**", "concertino", ("{python}", "{clients}/concertino_client.py")
    ),
    Client(
        "ts1", "TypeScript SDK v1", "node", ("{node}", "{servers}/typescript_client.mjs", "1"), 0
    ),
    Client("ts2", "TypeScript SDK v2", "node", ("{node}", "{servers}/typescript_client.mjs", "2")),
    Client("mcp", "mcp, ClientSession", "mcp", ("{python}", "{clients}/mcp_client.py")),
    Client("fastmcp", "FastMCP", "fastmcp", ("{python}", "{clients}/fastmcp_client.py")),
)
COLUMNS = (
    ("cpu_us", "CPU us/call", "{:,.1f}"),
    ("calls_per_s", "calls/s, 1,000 at once", "{:,.0f}"),
    ("p50_us", "p50 us", "{:,.1f}"),
    ("p99_us", "p99 us", "{:,.1f}"),
    ("connect_ms", "spawn and connect ms", "{:,.1f}"),
    ("large_1m_ms", "1 MB ms", "{:,.1f}"),
    ("large_ms", "16 MB ms", "{:,.0f}"),
)
TARGETS = (  # what concertino has to reach
    ("p50_us", "call p50, us", 12.0, False),
    ("calls_per_s", "calls/s, 1,000 at once", 80_000.0, True),
    ("connect_ms", "spawn and connect, ms", 3.0, False),
    ("large_ms", "16 MB line, ms", 60.0, False),
)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="bench/clients.py", description="Measure concertino's client beside others."
    )
    parser.add_argument(
        "--quick", action="store_true", help="one short round: to see whether it works"
    )
    parser.add_argument(
        "--only", default="", metavar="NAME,...", help=", ".join(row.name for row in ROWS)
    )
    parser.add_argument(
        "--python",
        default=sys.executable,
        metavar="PATH",
        help="interpreter for every Python client",
    )
    parser.add_argument("--json", metavar="FILE", help="write every round to FILE")
    options = parser.parse_args()
    wanted = [name for name in options.only.split(",") if name]
    rows = [row for row in ROWS if not wanted or row.name in wanted]
    if not rows:
        return refuse(
            f"--only {options.only}: expected some of {', '.join(row.name for row in ROWS)}"
        )
    try:
        interpreter = describe_interpreter(options.python)
        program = build_echo()
    except BuildError as error:
        return refuse(str(error))
    places = build_places([row.needs for row in rows], interpreter, say)
    rounds: dict[str, list[Figures]] = {row.name: [] for row in rows}
    failed: dict[str, str] = {}
    seconds = 0.3 if options.quick else 2.0
    for _ in range(1 if options.quick else 3):
        for row in rows:
            if places[row.needs].missing is not None:
                failed[row.name] = places[row.needs].missing or ""
                continue
            try:
                rounds[row.name].append(take(row, places[row.needs], program, seconds))
            except BuildError as error:
                failed[row.name] = str(error)
    results = {name: medians(item) for name, item in rounds.items() if item}
    build = "" if interpreter.optimised else ", built without --enable-optimizations"
    print(f"\n{interpreter.version}{build}; load average {os.getloadavg()[0]:.2f}\n")
    print("| client | " + " | ".join(title for _, title, _ in COLUMNS) + " |")
    print("|---|" + "---|" * len(COLUMNS))
    for row in rows:
        if (figures := results.get(row.name)) is not None:
            cells = [
                form.format(figures[name]) if name in figures else "-" for name, _, form in COLUMNS
            ]
            print(f"| {row.label} | " + " | ".join(cells) + " |")
    print()
    for name, text, limit, at_least in TARGETS:
        value = results.get("concertino", {}).get(name)
        if value is not None:
            reached = value >= limit if at_least else value <= limit
            print(f"{'reached' if reached else 'MISSED '} {text}: {value:,.1f} (target {limit:,g})")
    for name, why in failed.items():
        print(f"FAILED  {name}: {why}")
    if options.json:
        versions = {name: place.versions for name, place in places.items() if place.versions}
        content = {
            "python": interpreter.version,
            "versions": versions,
            "rounds": rounds,
            "results": results,
        }
        Path(options.json).write_text(json.dumps(content, indent=1) + "\n")
    return 0


def build_echo() -> Path:
    build_tool()
    compiler = shutil.which("gcc") or shutil.which("cc") or "gcc"
    program = WORK / "bin" / "echo_for_clients"
    run(
        [
            compiler,
            "-O2",
            "-Wall",
            "-Wextra",
            "-o",
            str(program),
            str(SERVERS / "echo_for_clients.c"),
        ]
    )
    return program


def take(row: Client, place: Place, program: Path, seconds: float) -> Figures:
    """One round of one client, on one core. Raises BuildError with what it said."""
    if row.needs == "node":  # modules are looked up from where the file lies
        shutil.copy(CLIENTS / "typescript_client.mjs", place.words["servers"])
    words = [word.format(clients=CLIENTS, **place.words) for word in row.command]
    core = pick_cores().server
    say(row.name)
    try:
        done = subprocess.run(
            ["taskset", "-c", str(core), *words, str(program), str(seconds), str(row.large_bytes)],
            env=server_environment(),
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(str(error)) from error
    if done.returncode != 0:
        raise BuildError((done.stderr.strip().splitlines() or ["failed"])[-1][:300])
    return json.loads(done.stdout)


def medians(rounds: list[Figures]) -> Figures:
    return {name: statistics.median(item[name] for item in rounds) for name in rounds[0]}


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def refuse(text: str) -> int:
    say(text)
    return 2


if __name__ == "__main__":
    sys.exit(main())
