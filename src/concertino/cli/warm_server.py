"""A server that loads its file only at the first request: `python -m concertino.cli.warm_server`.

`concertino dev` starts it before it is needed, so that it has imported everything but the file. At
the first request it loads the file, and serves it as `concertino serve` does.
"""

from __future__ import annotations

import select
import sys
from importlib import import_module
from typing import NoReturn

from concertino.cli import main

# The modules that `concertino serve` imports before a server with tools has given its first answer.
MODULES = (
    "asyncio",
    "concertino",
    "concertino.cli.serve",
    "concertino.cli.parsers",
    "concertino.cli.main_block",
    "concertino.server.server",
    "concertino.server.tools",
    "concertino.schema.signature",
    "concertino.schema.type_schema",
    "concertino.runtime.host",
)


def run(words: list[str]) -> NoReturn:
    """Import what `concertino serve` needs, wait for input on stdin, then serve. Ends the process.

    words: the arguments of `concertino serve`.
    """
    for name in MODULES:
        import_module(name)
    poll = select.poll()
    poll.register(0, select.POLLIN)
    # Only descriptor 0 is polled, so there is one result.
    _, events = poll.poll()[0]
    if not events & select.POLLIN:
        # The input has ended without a request.
        sys.exit(0)
    main(["serve", *words])


if __name__ == "__main__":
    run(sys.argv[1:])
