"""Finds the ids of messages that no JSON decoder reads, such as deeply nested ones.

JSON decoders are recursive and give up after about a thousand levels. To find the members of the
outermost object, it is enough to count brackets outside of strings.

An error response must contain the id of the request. Otherwise the sender cannot match the error to
its request, and waits until its timeout. If the malformed message is a response, its id tells which
request of ours has failed.
messages.py imports this module only when such a message arrives.
"""

from __future__ import annotations

import re
from itertools import islice

__all__ = [
    "OuterMembers",
    "find_last_id",
    "find_objects",
    "read_outer_members",
    "split_array",
    "split_batch",
]

# At most this many strings and brackets are examined. That takes about 20 ms, and 1 ms for each
# megabyte between them.
MAX_TOKENS = 50_000
# If a frame has more than MAX_TOKENS, the id is also searched for in this many bytes at its end.
TAIL_BYTES = 1024

# A string, or the beginning of a string at the end of the frame. The possessive quantifiers (++,
# *+, ?+) keep the search linear.
STRING = rb'"(?:[^"\\]++|\\.?)*+"?+'
# The bytes before a token, and then one token. Matching the bytes before a token takes a twentieth
# of the time that a search in them takes. A token is one of four:
# - a string; if it is a key, with its colon, and with its value if that is a string or an integer.
#   The lookahead excludes the beginning of a number that is no integer, such as 1.5.
# - a run of opening brackets
# - a run of closing brackets
# - the end of the text
TOKEN = re.compile(
    rb'[^"\[\]{}]*+'
    rb"(?:(%b)(?:\s*+(:)\s*+(%b|-?[0-9]++(?![0-9.eE]))?+)?+"
    rb"|([\[{]++)"
    rb"|([\]}]++)"
    rb"|\Z)" % (STRING, STRING),
    re.DOTALL,
)
# One token of an array: a string, a run of opening or of closing brackets, or a comma.
ARRAY_TOKEN = re.compile(rb"%b|([\[{]++)|([\]}]++)|(,)" % STRING, re.DOTALL)
# The beginning of an object that may be a response.
RESPONSE_HEAD = re.compile(rb'\{\s*+"(?:jsonrpc|id|result|error)"\s*+:')
# At most this many objects of a line are examined. They begin in this many bytes at its beginning,
# because the search may take 15 ms for each megabyte.
MAX_OBJECTS, SEARCHED_BYTES = 10, 2 * 1024 * 1024
# The id near the end of a frame: after it, only the members jsonrpc and method may follow.
TAIL = re.compile(
    rb',\s*"id"\s*:\s*("[^"\\]*"|-?[0-9]+)\s*'
    rb'(?:,\s*"(?:jsonrpc|method)"\s*:\s*"[^"\\]*"\s*){0,2}\}\s*\Z'
)


class OuterMembers:
    """The members of a message's outermost object, as far as they could be read.

    id: the id as JSON; None if there is none.
    names: the names of the members, as they are written between the quotes.
    begin: the index at which the object begins in the bytes that were searched.
    end: the index after the object; None if its end was not found.
    """

    __slots__ = ("begin", "end", "id", "names")

    def __init__(self, begin: int = 0) -> None:
        self.begin = begin
        self.id: bytes | None = None
        self.names: set[str] = set()
        self.end: int | None = None


def read_outer_members(frame: bytes) -> OuterMembers:
    """Return the id and the names of the members of a frame's outermost object.

    There is no id and no name if the frame does not begin with an object. An id that is neither a
    string nor an integer is ignored. If there are several ids, the last one is returned. Only the
    first MAX_TOKENS strings and brackets of the frame are examined. If these contain no id, the
    last TAIL_BYTES of the frame are searched for an id.
    """
    if not frame.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{"):
        return OuterMembers()
    members = _read_object(frame, 0, MAX_TOKENS)
    if members.id is None and members.end is None:
        members.id = find_last_id(frame)
    return members


def find_last_id(frame: bytes) -> bytes | None:
    """Return the id in the last TAIL_BYTES of a frame, as JSON; None if they contain none.

    frame: the frame, or the end of it.
    """
    tail = TAIL.search(frame, max(0, len(frame) - TAIL_BYTES))
    return None if tail is None else tail[1]


def find_objects(line: bytes) -> list[OuterMembers]:
    """Return those JSON objects in a line of text that may be responses.

    The first member of such an object is `jsonrpc`, `id`, `result` or `error`. The last object may
    be incomplete. Objects inside of returned objects are not returned. Only the first
    SEARCHED_BYTES are searched, and at most MAX_OBJECTS objects are returned.
    """
    objects: list[OuterMembers] = []
    position = 0
    while (
        len(objects) < MAX_OBJECTS
        and (head := RESPONSE_HEAD.search(line, position, SEARCHED_BYTES)) is not None
    ):
        members = _read_object(line, head.start(), MAX_TOKENS // MAX_OBJECTS)
        objects.append(members)
        position = len(line) if members.end is None else members.end
    return objects


def _read_object(text: bytes, begin: int, max_tokens: int) -> OuterMembers:
    """Return the members of the object that begins at a position.

    max_tokens: how many strings and brackets are examined.
    """
    members = OuterMembers(begin)
    depth = 0
    for token in islice(TOKEN.finditer(text, begin), max_tokens):
        string, colon, value, openers, closers = token.groups()
        if openers is not None:
            depth += len(openers)
        elif closers is not None:
            if len(closers) >= depth:
                # The object ends at the bracket number `depth` of this run (group 5).
                members.end = token.start(5) + depth
                return members
            depth -= len(closers)
        elif colon is not None and depth == 1:
            members.names.add(string[1:-1].decode("utf-8", "replace"))
            # An id at the end of the text may be cut off.
            if string == b'"id"' and token.end() < len(text):
                members.id = value
    return members


def split_batch(frame: bytes) -> list[bytes] | None:
    """Return the elements of a batch as JSON texts, which may still be malformed.

    Returns None in three cases:

    - The frame is no array.
    - It has more than MAX_TOKENS strings, brackets and commas.
    - None of its elements is an object, so none can be a message.
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
                # JSON has no comma after the last element.
                has_trailing_comma = bool(elements) and not last
                if not is_whole or has_trailing_comma:
                    return None
                return [*elements, last] if last else []
        elif comma is not None and depth == 1:
            element = text[begin : token.start()].strip()
            if not element:
                return None
            elements.append(element)
            begin = token.end()
    return None
