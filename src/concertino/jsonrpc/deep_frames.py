"""Reads the id of a frame that is nested too deeply for a JSON decoder.

Decoders are recursive and give up after about a thousand levels. The members of the outermost
object can still be found, since only strings and brackets matter for that. Without the id, the
sender of a request would wait for its time limit, and so would we for the response to ours.
"""

from __future__ import annotations

import re
from itertools import islice

__all__ = ["OuterMembers", "read_outer_members"]

# Strings and brackets that are looked at: at most about 20 ms, however a frame is made.
MAX_TOKENS = 50_000
# How far from its end a frame is searched for the id, when it has more tokens than that.
TAIL_BYTES = 1024

# A string, complete or cut off. Possessive quantifiers keep the search linear.
STRING = rb'"(?:[^"\\]++|\\.?)*+"?+'
# A string, with a colon if it is a key, and the value if that is a string or an integer; or
# brackets.
TOKEN = re.compile(
    rb"(%b)(?:\s*+(:)\s*+(%b|-?[0-9]++(?![0-9.eE]))?+)?+|([\[{]++)|[\]}]++" % (STRING, STRING),
    re.DOTALL,
)
# The id near the end of a frame, behind which at most the two other short members come.
TAIL = re.compile(
    rb',\s*"id"\s*:\s*("[^"\\]*"|-?[0-9]+)\s*'
    rb'(?:,\s*"(?:jsonrpc|method)"\s*:\s*"[^"\\]*"\s*){0,2}\}\s*\Z'
)


class OuterMembers:
    """What was found of the outermost object: the id as JSON (None if there is none), and names."""

    __slots__ = ("id", "names")

    def __init__(self) -> None:
        self.id: bytes | None = None
        self.names: set[bytes] = set()

    @property
    def is_response(self) -> bool:
        """Return whether the object is a response: it has no method, but a result or an error."""
        return b'"method"' not in self.names and not self.names.isdisjoint(
            (b'"result"', b'"error"')
        )


def read_outer_members(frame: bytes) -> OuterMembers:
    """Return what can be found of a frame's outermost object, in a time that is limited.

    The id counts if it is a string or an integer; of duplicates the last one does. In a frame of
    more than MAX_TOKENS strings and brackets it is found before them or at the end.
    """
    members = OuterMembers()
    if not frame.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{"):
        return members

    depth = 0
    tokens = TOKEN.finditer(frame)
    for token in islice(tokens, MAX_TOKENS):
        text, colon, value, openers = token.groups()
        if openers is not None:
            depth += len(openers)
        elif text is None:
            depth -= token.end() - token.start()
        elif colon is not None and depth == 1:
            members.names.add(text)
            if text == b'"id"':
                members.id = value

    if members.id is None and next(tokens, None) is not None:
        tail = TAIL.search(frame, max(0, len(frame) - TAIL_BYTES))
        members.id = None if tail is None else tail[1]
    return members
