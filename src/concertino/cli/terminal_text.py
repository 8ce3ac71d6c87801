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
    is_unicode: False to escape all characters outside ASCII, too.
    """

    def escape(char: str) -> str:
        if char.isprintable() and (is_unicode or char.isascii()):
            return char
        # This character is inside a string, where JSON has an escape for each unit of UTF-16.
        return _UTF16_UNIT.sub(r"\\u\g<0>", char.encode("utf-16-be").hex())

    # With a negative indentation, msgspec writes no newlines and no spaces.
    return "".join(map(escape, format(data, indent=-1).decode()))
