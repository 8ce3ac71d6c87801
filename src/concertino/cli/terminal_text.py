"""Text from outside, made safe for a terminal: control characters are escaped."""

from __future__ import annotations

import re

from msgspec.json import format

from concertino.logs.formats import escape_controls

__all__ = ["escape_json", "escape_lines"]

# Four hexadecimal digits.
_UTF16_UNIT = re.compile("....")


def escape_lines(text: str) -> str:
    """Escape all control characters but newlines."""
    return "\n".join(map(escape_controls, text.split("\n")))


def escape_json(data: bytes, *, is_unicode: bool) -> str:
    """Return JSON in one line that any terminal and any encoding can take.

    is_unicode: whether printable characters outside of ASCII may stay as they are.
    """
    # Such characters occur in strings only, where JSON has escapes for them: one for each unit of
    # UTF-16.
    return "".join(
        char
        if char.isprintable() and (is_unicode or char.isascii())
        else _UTF16_UNIT.sub(r"\\u\g<0>", char.encode("utf-16-be").hex())
        for char in format(data, indent=-1).decode()
    )
