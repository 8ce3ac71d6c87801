"""Excerpts of values from outside, short enough for an error message or a log line."""

from __future__ import annotations

__all__ = ["shorten", "shorten_repr"]


def shorten(text: str, max_chars: int) -> str:
    """Return the text, cut after `max_chars` characters and marked with "..." if it is longer."""
    return text if len(text) <= max_chars else text[:max_chars] + "..."


def shorten_repr(value: object, max_chars: int) -> str:
    """Return repr(value), cut after `max_chars` characters and marked with "..." if longer."""
    return shorten(repr(value), max_chars)
