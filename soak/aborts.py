"""Ten thousand clients that leave an HTTP server at any moment: nothing of them must be left.

The clients are those of the tests, tests/http_aborts.py.

Needs: httptools
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
# What the process may keep: pools of memory and of objects that do not grow any more.
MOST_KB = 20_000


def main() -> int:
    """Run the clients. 0 if the server holds afterwards what it held before."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=10_000, metavar="N", help="default 10000")
    args = parser.parse_args()
    sys.path.insert(0, str(ROOT / "tests"))
    # typing: the tests are not checked
    aborts: Any = import_module("http_aborts")
    service_module: Any = import_module("http_service")

    with service_module.serving(ROOT / "tests" / "http" / "server_that_counts.py") as service:
        asyncio.run(aborts.abort_many(service, 500))
        before: dict[str, int] = aborts.read_counts(service)
        asyncio.run(aborts.abort_many(service, args.clients))

        def is_settled(counts: dict[str, int]) -> bool:
            return all(counts[name] <= before[name] for name in before if name != "rss_kb")

        after: dict[str, int] = asyncio.run(aborts.settled_counts(service, is_settled))
    print(f"before: {before}\nafter:  {after}")
    is_right = is_settled(after) and after["rss_kb"] < before["rss_kb"] + MOST_KB
    print("nothing is left" if is_right else "something is left")
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
