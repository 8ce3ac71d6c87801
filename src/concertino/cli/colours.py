"""wants_colour(): whether a command writes colours to stdout."""

from __future__ import annotations

import sys
from collections.abc import Mapping

__all__ = ["wants_colour"]


def wants_colour(environment: Mapping[str, str]) -> bool:
    """Return whether to use colours.

    NO_COLOR means no. FORCE_COLOR means yes, or no if it is `0`. If neither is set, or both are
    empty, colours are used if stdout is a terminal.
    Sources: no-color.org, force-color.org.

    environment: the environment variables.
    """
    if environment.get("NO_COLOR"):
        return False
    if environment.get("FORCE_COLOR"):
        return environment["FORCE_COLOR"] != "0"
    return sys.stdout.isatty() and environment.get("TERM") != "dumb"
