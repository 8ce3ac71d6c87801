r"""Undoes the escapes in a text, and maps positions in the result back to the original text.

The Redactor (redact.py) searches the unescaped text for secrets, and replaces the secrets in the
original text. unescape() undoes the escapes of JSON and of repr(): `\n`, `\"`, `\u0061`, `\x61`.
Two `\u` escapes that form a surrogate pair count as one escape. A backslash before any other
character stands for that character.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence

__all__ = ["EscapeMap", "map_back", "unescape"]

# One escape: a surrogate pair of two \u, then \u, \x, \U, and a backslash before any character.
_HEX = "[0-9a-fA-F]"
_ESCAPE = (
    rf"(?s)\\(?:u[dD][89abAB]{_HEX}{{2}}\\u[dD][c-fC-F]{_HEX}{{2}}|u{_HEX}{{4}}"
    rf"|x{_HEX}{{2}}|U00(?:0{_HEX}|10){_HEX}{{4}}|.)"
)
_SHORT = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_PAIR = len(r"\ud83d\ude00")

# The positions of the escapes in a text, as two lists: where each escape ends in the unescaped
# text, and in the text before unescaping. Both lists begin with 0, for the beginning of the text.
# For `a\nb`, which becomes three characters, the lists are [0, 2] and [0, 3].
EscapeMap = tuple[list[int], list[int]]


def unescape(text: str) -> tuple[str, EscapeMap]:
    r"""Undo one level of escaping: `\n` becomes a newline, and `\\n` becomes `\n`.

    Returns the unescaped text, and the positions of the escapes, for map_back().
    """
    if "\\" not in text:
        return text, ([0], [0])
    pieces: list[str] = []
    ends, origins = [0], [0]
    end = 0
    for match in re.finditer(_ESCAPE, text):
        escape = match[0]
        if len(escape) == 2:
            # A backslash and one character, such as \n.
            character = _SHORT.get(escape[1], escape[1])
        elif len(escape) == _PAIR:
            # Two `\u` escapes of a surrogate pair: each has ten bits of the character's number.
            character = chr(
                0x10000 + ((int(escape[2:6], 16) & 0x3FF) << 10) + (int(escape[8:], 16) & 0x3FF)
            )
        else:
            # \u, \x or \U, and hexadecimal digits.
            character = chr(int(escape[2:], 16))
        pieces += text[origins[-1] : match.start()], character
        end += match.start() - origins[-1] + 1
        ends.append(end)
        origins.append(match.end())
    pieces.append(text[origins[-1] :])
    return "".join(pieces), (ends, origins)


def map_back(maps: Sequence[EscapeMap], place: int) -> int:
    """Return the position in the original text for a position in the unescaped text.

    A text may have been escaped several times, such as JSON in a string of JSON. Each unescape()
    undoes one level: the first call gets the original text, and each later call the result of the
    call before. A position between two characters maps to the position between their escapes.

    maps: the maps that the calls of unescape() have returned, in the order of the calls.
    place: the position in the text that the last call has returned.
    """
    for ends, origins in reversed(maps):
        last = bisect_right(ends, place) - 1
        place = origins[last] + place - ends[last]
    return place
