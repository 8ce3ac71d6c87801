"""wants_colour(): whether a command writes colours to stdout."""

from __future__ import annotations

import sys
from collections.abc import Mapping

__all__ = ["wants_colour"]


def wants_colour(environment: Mapping[str, str]) -> bool:
    """Return whether to use colours.

    - If the variable NO_COLOR is not empty: no.
    - If the variable FORCE_COLOR is not empty: yes, unless it is `0`.
    - Otherwise: yes if stdout is a terminal, and TERM is not `dumb`.

    Sources: no-color.org, force-color.org.

    environment: the environment variables.
    """
    if environment.get("NO_COLOR"):
        return False
    if environment.get("FORCE_COLOR"):
        return environment["FORCE_COLOR"] != "0"
    return sys.stdout.isatty() and environment.get("TERM") != "dumb"
