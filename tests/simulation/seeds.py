"""python -m simulation: run seeds on all cores, or one and tell what passes.

    python -m simulation --seeds 100000 --from 10000
    python -m simulation --replay 712

From the root of the repository `scripts/soak simulation ...` does the same.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from simulation.interleavings import run_all
from simulation.nats_world import run_nats, trace_nats
from simulation.proxy_world import run_proxy, trace_proxy
from simulation.world import run, trace

KEPT = Path(__file__).with_name("seeds.txt")
PIECE = 200  # seeds at a time for one process
SHOWN = 5  # failing seeds that are told in full


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        "simulation", description="Simulate clients, kernel and clock around concertino."
    )
    parser.add_argument(
        "--seeds", type=int, default=10_000, metavar="N", help="how many (default: %(default)s)"
    )
    parser.add_argument(
        "--from",
        type=int,
        default=0,
        metavar="M",
        dest="first",
        help="the first (default: %(default)s)",
    )
    parser.add_argument(
        "--jobs",
        type=int,
        default=os.cpu_count() or 1,
        metavar="J",
        help="processes (default: one a core)",
    )
    parser.add_argument(
        "--replay", type=int, metavar="SEED", help="run this one and show every frame"
    )
    parser.add_argument(
        "--orders",
        action="store_true",
        help="instead of seeds, every order of the events around two requests: interleavings.py",
    )
    parser.add_argument(
        "--proxy",
        action="store_true",
        help="simulate a proxy and the processes of its server instead: proxy_world.py",
    )
    parser.add_argument(
        "--nats",
        action="store_true",
        help="simulate plugins and NATS servers instead: nats_world.py",
    )
    options = parser.parse_args(arguments)
    if options.orders:
        return run_all(options.jobs)
    if options.replay is not None:
        show = trace_proxy if options.proxy else trace_nats if options.nats else trace
        show(options.replay, lambda line: print(line[:400]))
        return 0
    began = time.monotonic()
    pieces = range(options.first, options.first + options.seeds, PIECE)
    last = options.first + options.seeds
    failed: dict[int, Sequence[str]] = {}
    with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
        for number, found in enumerate(
            pool.imap_unordered(
                _proxy_piece if options.proxy else _nats_piece if options.nats else _piece,
                [(at, min(at + PIECE, last)) for at in pieces],
            ),
            1,
        ):
            failed |= found
            if sys.stdout.isatty():
                print(
                    f"\r{min(number * PIECE, options.seeds)} of {options.seeds} seeds,"
                    f" {len(failed)} failed",
                    end="",
                    flush=True,
                )
    print(
        f"\r{options.seeds} seeds from {options.first} in {time.monotonic() - began:.0f} s:"
        f" {len(failed)} failed"
    )
    world = "--proxy " if options.proxy else "--nats " if options.nats else ""
    for seed, problems in sorted(failed.items())[:SHOWN]:
        print(
            f"seed {seed}: {len(problems)} violations, the first: {problems[0][:1000]}\n   "
            f" scripts/soak simulation {world}--replay {seed}"
        )
    if not world:
        keep(failed)
    return 1 if failed else 0


def _piece(bounds: tuple[int, int]) -> dict[int, Sequence[str]]:
    return _run_piece(bounds, run)


def _proxy_piece(bounds: tuple[int, int]) -> dict[int, Sequence[str]]:
    return _run_piece(bounds, run_proxy)


def _nats_piece(bounds: tuple[int, int]) -> dict[int, Sequence[str]]:
    return _run_piece(bounds, run_nats)


def _run_piece(
    bounds: tuple[int, int], run_seed: Callable[[int], Sequence[str]]
) -> dict[int, Sequence[str]]:
    gc.freeze()
    found: dict[int, Sequence[str]] = {}
    for seed in range(*bounds):
        if problems := attempt(seed, run_seed):
            found[seed] = problems
    return found


def attempt(seed: int, run_seed: Callable[[int], Sequence[str]] = run) -> Sequence[str]:
    """Run one seed; what is raised out of the loop is a violation too."""
    try:
        return run_seed(seed)
    except Exception as why:
        return [f"raised out of the loop: {why!r}"]


def find_violations(
    run_seed: Callable[[int], Sequence[str]], seeds: Iterable[int]
) -> Sequence[str]:
    """Return what the first seed that fails with a fault put in violates; empty if none fails.

    Raises AssertionError if the fault itself raises, as it does when what it replaces has another
    name or takes other arguments now.
    """
    found = next(filter(None, map(run_seed, seeds)), ())
    assert not re.search("(Attribute|Name|Type)Error", str(found)), found
    return found


def read_failed_seeds() -> list[int]:
    """The seeds that once failed."""
    return [
        int(line.split()[0])
        for line in KEPT.read_text().splitlines()
        if line and not line.startswith("#")
    ]


def keep(failed: dict[int, Sequence[str]]) -> None:
    known = set(read_failed_seeds())
    with KEPT.open("a") as file:
        for seed, problems in sorted(failed.items()):
            if seed not in known:
                file.write(f"{seed} {problems[0][:100]}\n")
