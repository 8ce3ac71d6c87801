"""Shortens texts and values from clients, servers and files, to quote them in messages."""

from __future__ import annotations

__all__ = ["shorten", "shorten_name", "shorten_repr"]

# An error quotes at most this many characters of an unknown name. It is the longest allowed name of
# a tool (2026-07-28 server/tools).
MAX_NAME = 128


def shorten(text: str, max_chars: int) -> str:
    """Return the text. If it is longer than max_chars, cut it and append "..."."""
    return text if len(text) <= max_chars else text[:max_chars] + "..."


def shorten_name(name: str) -> str:
    """Return a name that an error quotes, cut after MAX_NAME characters."""
    return shorten(name, MAX_NAME)


def shorten_repr(value: object, max_chars: int) -> str:
    """Return repr(value). If it is longer than max_chars, cut it and append "..."."""
    return shorten(repr(value), max_chars)
