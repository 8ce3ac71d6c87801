"""Shortens texts and values from clients, servers and files, to quote them in messages.

Such texts may have any length; errors and log lines quote only their beginning.
"""

from __future__ import annotations

__all__ = ["exception_text", "shorten", "shorten_name", "shorten_repr"]

# An error quotes at most this many characters of an unknown name. It is the longest allowed name of
# a tool (2026-07-28 server/tools).
MAX_NAME = 128


def exception_text(exc: BaseException) -> str:
    """Return str(exc); "" if that fails, since any class may have a __str__ that raises."""
    try:
        return str(exc)
    # A __str__ may raise anything, even SystemExit, which must not replace the failure itself.
    except BaseException:
        return ""


def shorten(text: str, max_chars: int) -> str:
    """Return a text; if it is longer than max_chars, its first max_chars characters and "..."."""
    return text if len(text) <= max_chars else text[:max_chars] + "..."


def shorten_name(name: str) -> str:
    """Return a name for an error; if it is long, its first MAX_NAME characters and "..."."""
    return shorten(name, MAX_NAME)


def shorten_repr(value: object, max_chars: int) -> str:
    """Return repr(value); if it is longer than max_chars, its first characters and "..."."""
    return shorten(repr(value), max_chars)
