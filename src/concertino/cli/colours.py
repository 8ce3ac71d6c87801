"""wants_colour(): whether a command writes colours to stdout."""

from __future__ import annotations

import sys
from collections.abc import Mapping

__all__ = ["wants_colour"]


def wants_colour(environment: Mapping[str, str]) -> bool:
    """Return whether to use colours.

    NO_COLOR means no, FORCE_COLOR means yes; otherwise yes if stdout is a terminal. Empty variables
    do not count. Sources: no-color.org, force-color.org.
    """
    if environment.get("NO_COLOR"):
        return False
    if environment.get("FORCE_COLOR"):
        return environment["FORCE_COLOR"] != "0"
    return sys.stdout.isatty() and environment.get("TERM") != "dumb"
