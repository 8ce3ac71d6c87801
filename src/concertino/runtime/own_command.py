"""The command that started this process, as a person would type it."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

__all__ = ["own_command"]


def own_command() -> str:
    """Return the command line of this process, for a shell."""
    program, *arguments = sys.argv
    name = Path(program).name
    # A console script, which the shell finds by its name.
    if name == "concertino":
        return shlex.join((name, *arguments))
    python, *words = sys.orig_argv
    return shlex.join((Path(python).name, *words))
