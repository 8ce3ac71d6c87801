"""Excerpts of values from outside, short enough for an error message or a log line."""

from __future__ import annotations

__all__ = ["shorten", "shorten_name", "shorten_repr"]

# How much of an unknown name an error quotes; the longest tool name of 2026-07-28 server/tools.
MAX_NAME = 128


def shorten(text: str, max_chars: int) -> str:
    """Return the text, cut after `max_chars` characters and marked with "..." if it is longer."""
    return text if len(text) <= max_chars else text[:max_chars] + "..."


def shorten_name(name: str) -> str:
    """Return a name from outside, cut so that an error can quote it."""
    return shorten(name, MAX_NAME)


def shorten_repr(value: object, max_chars: int) -> str:
    """Return repr(value), cut after `max_chars` characters and marked with "..." if longer."""
    return shorten(repr(value), max_chars)
