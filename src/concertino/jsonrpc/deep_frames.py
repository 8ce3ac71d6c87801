"""Finds the ids of messages that are nested too deeply for a JSON decoder, also in a batch.

JSON decoders are recursive and give up after about a thousand levels. To find the members of the
outermost object, it is enough to count brackets outside of strings. The error response to such a
message needs its id: without it, the sender cannot match the error to its request and waits until
its timeout. messages.py imports this module only when such a message arrives.
"""

from __future__ import annotations

import re
from itertools import islice

__all__ = ["OuterMembers", "read_outer_members", "split_array", "split_batch"]

# At most this many strings and brackets are examined, which takes at most about 20 ms.
MAX_TOKENS = 50_000
# If a frame has more, the id is also searched for in this many bytes at its end.
TAIL_BYTES = 1024

# A string, or the beginning of a string at the end of the frame. The possessive quantifiers (++,
# *+, ?+) keep the search linear.
STRING = rb'"(?:[^"\\]++|\\.?)*+"?+'
# One token: a string, a key with its colon and its value (if that is a string or an integer), or a
# run of opening or of closing brackets.
TOKEN = re.compile(
    rb"(%b)(?:\s*+(:)\s*+(%b|-?[0-9]++(?![0-9.eE]))?+)?+|([\[{]++)|[\]}]++" % (STRING, STRING),
    re.DOTALL,
)
# One token of an array: a string, a run of opening or of closing brackets, or a comma.
ARRAY_TOKEN = re.compile(rb"%b|([\[{]++)|([\]}]++)|(,)" % STRING, re.DOTALL)
# The id near the end of a frame: after it, only the members jsonrpc and method may follow.
TAIL = re.compile(
    rb',\s*"id"\s*:\s*("[^"\\]*"|-?[0-9]+)\s*'
    rb'(?:,\s*"(?:jsonrpc|method)"\s*:\s*"[^"\\]*"\s*){0,2}\}\s*\Z'
)


class OuterMembers:
    """The members of a message's outermost object, as far as they could be read.

    id: the id as JSON; None if there is none.
    names: the names of the members, as JSON strings.
    """

    __slots__ = ("id", "names")

    def __init__(self) -> None:
        self.id: bytes | None = None
        self.names: set[bytes] = set()

    @property
    def is_response(self) -> bool:
        """Return whether the message is a response: it has a result or an error, but no method."""
        return b'"method"' not in self.names and not self.names.isdisjoint(
            (b'"result"', b'"error"')
        )


def read_outer_members(frame: bytes) -> OuterMembers:
    """Return the id and the names of the members of a frame's outermost object.

    An id that is neither a string nor an integer is ignored. If there are several ids, the last one
    is returned. Only the first MAX_TOKENS strings and brackets of the frame are examined. If these
    contain no id, the last TAIL_BYTES of the frame are searched for one.
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
            # A run of closing brackets: the only token without a group.
            depth -= token.end() - token.start()
        elif colon is not None and depth == 1:
            members.names.add(text)
            if text == b'"id"':
                members.id = value

    if members.id is None and next(tokens, None) is not None:
        tail = TAIL.search(frame, max(0, len(frame) - TAIL_BYTES))
        members.id = None if tail is None else tail[1]
    return members


def split_batch(frame: bytes) -> list[bytes] | None:
    """Return the elements of a batch as JSON texts, which may still be malformed.

    Returns None if split_array() does, or if no element is an object, so that none is a message.
    """
    elements = split_array(frame) or []
    return elements if any(element.startswith(b"{") for element in elements) else None


def split_array(frame: bytes) -> list[bytes] | None:
    """Return the elements of a JSON array as JSON texts, which may still be malformed.

    Returns None if the frame is no array, or has more than MAX_TOKENS strings, brackets and commas.
    """
    text = frame.removeprefix(b"\xef\xbb\xbf").strip(b" \t\r\n")
    if not text.startswith(b"["):
        return None

    elements: list[bytes] = []
    depth, begin = 0, 1
    for token in islice(ARRAY_TOKEN.finditer(text), MAX_TOKENS):
        openers, closers, comma = token.groups()
        if openers is not None:
            depth += len(openers)
        elif closers is not None:
            depth -= len(closers)
            if depth <= 0:
                # The array ends here, and so must the text.
                is_whole = depth == 0 and token.end() == len(text) and text.endswith(b"]")
                last = text[begin:-1].strip()
                if not is_whole or (elements and not last):
                    return None
                return [*elements, last] if last else []
        elif comma is not None and depth == 1:
            element = text[begin : token.start()].strip()
            if not element:
                return None
            elements.append(element)
            begin = token.end()
    return None
