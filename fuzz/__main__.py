"""`python -m fuzz TARGET FILE|LINE...` replays; `python -m fuzz TARGET --search OPTION...` is one
worker of soak/fuzz.py.
"""

from __future__ import annotations

import sys
import traceback
from importlib import import_module
from pathlib import Path
from typing import Any

from fuzz import FOLDER, TARGETS, corpus, target

USAGE = (
    f"usage: python -m fuzz TARGET FILE|LINE...   (TARGET: {', '.join(TARGETS)}; LINE: of its"
    " corpus)\n"
)


def replay(name: str, sources: list[str]) -> int:
    """Give each file, or line of the corpus, to a target. Return how many are findings."""
    failed = 0
    one = target(name).one
    kept = {str(line): data for line, data in corpus(name)}
    for source in sources:
        try:
            one(kept[source] if source in kept else Path(source).read_bytes())
        except Exception:
            failed += 1
            sys.stdout.write(f"{source}: FINDING\n{traceback.format_exc()}\n")
        else:
            sys.stdout.write(f"{source}: nothing wrong\n")
    return failed


def search(name: str, options: list[str]) -> None:
    """Fuzz one target in this process; options are libFuzzer's. Does not return."""
    atheris: Any = import_module("atheris")  # installed for the soak alone, and without types

    # A model's branches lead the way where C leaves no trace. The one of `session` only counts:
    # without it, a quarter faster.
    models = [] if name == "session" else [f"fuzz.{name}"]
    with atheris.instrument_imports(
        include=[
            "concertino.jsonrpc",
            "concertino.types",
            "concertino.schema",
            "concertino.protocol",
            "concertino.orchestra",
            "concertino.http",
            *models,
        ]
    ):
        one = target(name).one
    # libFuzzer starts itself again to merge, by its first argument: that must be something a shell
    # can run.
    again = FOLDER / ".work" / f"{name}.sh"
    again.parent.mkdir(exist_ok=True)
    again.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m fuzz {name} --search "$@"\n')
    again.chmod(0o755)
    atheris.Setup([str(again), *options], one)
    atheris.Fuzz()


def main() -> int:
    """See the head of this file."""
    if len(sys.argv) < 3 or sys.argv[1] not in TARGETS:
        sys.stderr.write(USAGE)
        return 2
    name, *rest = sys.argv[1:]
    if rest[0] == "--search":
        search(name, rest[1:])
    return 1 if replay(name, rest) else 0


sys.exit(main())
