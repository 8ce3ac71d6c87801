"""Makes text from a server safe for a terminal: control characters are escaped."""

from __future__ import annotations

import re

from msgspec.json import format

from concertino.logs.formats import escape_controls

__all__ = ["escape_json", "escape_lines"]

# Four hexadecimal digits: one unit of UTF-16 in bytes.hex().
_UTF16_UNIT = re.compile("....")


def escape_lines(text: str) -> str:
    """Return a text with all control characters escaped, except newlines."""
    return "\n".join(map(escape_controls, text.split("\n")))


def escape_json(data: bytes, *, is_unicode: bool) -> str:
    """Return JSON as one line without control characters.

    data: the JSON.
    is_unicode: whether printable characters outside ASCII may stay. If not, they are escaped, too.
    """
    # Other characters occur in strings only, where JSON has an escape for each unit of UTF-16.
    return "".join(
        char
        if char.isprintable() and (is_unicode or char.isascii())
        else _UTF16_UNIT.sub(r"\\u\g<0>", char.encode("utf-16-be").hex())
        for char in format(data, indent=-1).decode()
    )
