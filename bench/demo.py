"""How long a stranger waits: `uvx --from WHEEL concertino demo`, the first time and later.

python bench/demo.py [--rounds N] [--python PATH] [--json FILE]

In each round the wheel is installed by `uv pip install` into an empty environment, then
`uvx --from WHEEL concertino demo` runs with an empty cache, which is cold, and three times more,
which is warm. Installing and the cold run have a cache each, empty at the start; both download
msgspec.
The wheel is built from this checkout. Needs uv (`pip install uv`) and the package index.

Targets: warm at most 1 s; cold at most warm + installing + 0.5 s, from the same run. Exit code 1 if
the medians miss one.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter

from workshop import describe_interpreter

ROOT = Path(__file__).resolve().parents[1]
WARM_RUNS = 3
WARM_LIMIT_S = 1.0
COLD_MARGIN_S = 0.5
Figures = dict[str, list[float]]


def timed(command: Sequence[str | Path], cache: Path) -> tuple[float, float]:
    """Run a command, and return its seconds of wall-clock and of CPU time. Raises SystemExit."""
    cpu = resource.getrusage(resource.RUSAGE_CHILDREN)
    begin = perf_counter()
    done = subprocess.run(
        command,
        env=os.environ | {"UV_CACHE_DIR": str(cache), "NO_COLOR": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    wall = perf_counter() - begin
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{done.stdout}")
    return wall, after.ru_utime + after.ru_stime - cpu.ru_utime - cpu.ru_stime


def measure(uv: Path, python: str, rounds: int) -> tuple[Figures, Figures]:
    """Return the wall-clock and the CPU seconds of each kind of run."""
    wall: Figures = {"install": [], "cold": [], "warm": []}
    cpu: Figures = {"install": [], "cold": [], "warm": []}

    def add(kind: str, command: Sequence[str | Path], cache: Path) -> None:
        for figures, seconds in zip((wall, cpu), timed(command, cache), strict=True):
            figures[kind].append(seconds)

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        timed([uv, "build", "--quiet", "--wheel", "--out-dir", folder, ROOT], folder / "build")
        [wheel] = folder.glob("*.whl")
        demo = [uv.with_name("uvx"), "--python", python, "--from", wheel, "concertino", "demo"]
        for number in range(rounds):
            environment = folder / f"environment-{number}"
            timed([uv, "venv", "--quiet", "--python", python, environment], folder / "build")
            target = ("--python", environment / "bin" / "python")
            add("install", [uv, "pip", "install", *target, wheel], folder / f"install-{number}")
            add("cold", demo, folder / f"uvx-{number}")
            for _ in range(WARM_RUNS):
                add("warm", demo, folder / f"uvx-{number}")
    return wall, cpu


def main() -> int:
    """Measure, print a table and the targets, and return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures, in seconds")
    args = parser.parse_args()
    found = shutil.which("uv")
    if found is None:
        sys.exit("bench/demo.py: there is no uv: pip install uv")
    uv = Path(found)

    version = subprocess.run([uv, "--version"], capture_output=True, text=True, check=True).stdout
    wall, cpu = measure(uv, args.python, args.rounds)
    load = os.getloadavg()[0]
    print(
        f"{version.strip()}, {describe_interpreter(args.python).version}, {os.cpu_count()} cores,"
        f" load average {load:.1f}; {args.rounds} rounds, seconds\n"
    )
    print("| | median | best | CPU |\n|---|---:|---:|---:|")
    labels = {
        "install": "`uv pip install WHEEL`, empty cache",
        "cold": "`uvx --from WHEEL concertino demo`, empty cache",
        "warm": "the same again",
    }
    medians = {kind: statistics.median(seconds) for kind, seconds in wall.items()}
    for kind, label in labels.items():
        figures = (medians[kind], min(wall[kind]), statistics.median(cpu[kind]))
        print(f"| {label} | {' | '.join(f'{seconds:.2f}' for seconds in figures)} |")

    allowed = medians["warm"] + medians["install"] + COLD_MARGIN_S
    print()
    is_met = True
    for kind, limit in (("warm", WARM_LIMIT_S), ("cold", allowed)):
        verdict = "met" if medians[kind] <= limit else "MISSED"
        is_met = is_met and verdict == "met"
        print(f"{kind}: {medians[kind]:.2f} s, target {limit:.2f} s: {verdict}")
    if not is_met and load > (os.cpu_count() or 1) / 2:
        print("Other programs were running: measure again on an idle machine.")
    if args.json is not None:
        args.json.write_text(json.dumps({"wall_s": wall, "cpu_s": cpu, "load": load}, indent=1))
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
