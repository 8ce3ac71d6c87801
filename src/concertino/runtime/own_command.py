"""own_command(): the command that has started this process, as a person would type it."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

__all__ = ["own_command"]


def own_command() -> str:
    """Return the command line of this process, quoted for a shell.

    An example is `python server.py --port 80`. The interpreter is named without its directory.
    """
    program, *arguments = sys.argv
    name = Path(program).name
    # sys.orig_argv would begin with the interpreter and the path of the console script.
    if name == "concertino":
        return shlex.join((name, *arguments))
    python, *words = sys.orig_argv
    return shlex.join((Path(python).name, *words))
