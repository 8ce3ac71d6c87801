"""Eight processes with one login that has expired, at a server that detects reuse: one refresh.

In every fifth round the process that holds the lock is killed in the middle of its refresh. The
rounds are those of the tests, tests/refresh_rounds.py.

Needs: httptools
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from importlib import import_module
from pathlib import Path
from typing import Any


def main() -> int:
    """Run the rounds that the command line says. 0 if all of them are right."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=50, metavar="N", help="default 50")
    args = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
    # typing: the tests are not checked
    rounds: Any = import_module("refresh_rounds")
    problems: list[str] = asyncio.run(rounds.run_rounds(args.rounds))
    wrong = len({text.partition(":")[0] for text in problems})
    print(f"{args.rounds - wrong} of {args.rounds} rounds are right")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
