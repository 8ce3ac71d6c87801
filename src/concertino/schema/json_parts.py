"""Divides large JSON into parts that together conform to a type if, and only if, the JSON does.

To check JSON, msgspec decodes it. For 5 MB of small objects, this takes 15 to 80 ms, in which
nothing else can run. So the items of long lists and dicts are checked in parts. Each part is a JSON
text that has the same members outside of the lists, and in which all other long lists are empty:

    {"total": 4, "rows": [1, 2, 3], "names": ["a", "b"]}    # the JSON

    {"total": 4, "rows": [1, 2], "names": []}               # its parts
    {"total": 4, "rows": [3], "names": []}
    {"total": 4, "rows": [], "names": ["a", "b"]}

msgspec checks each part against the type of the whole. So this module need not know about required
members, default values, and most constraints. It must know what may not be divided: a list whose
length is limited, and an object with a method that checks it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate
from typing import Any, NamedTuple, get_origin

from msgspec import Raw, inspect, json

from concertino.schema.value_results import LARGE_JSON

# `Any` in this file: annotations are arbitrary objects.

# The types, as msgspec.inspect describes them, whose items all have the same type.
_LISTS = (
    inspect.CollectionType,
    inspect.FrozenSetType,
    inspect.ListType,
    inspect.SetType,
    inspect.VarTupleType,
)
# The types whose members have names, and types of their own.
_CLASSES = (inspect.DataclassType, inspect.StructType, inspect.TypedDictType)
# What JSON arrays and objects can be.
_ARRAYS = (inspect.AnyType, inspect.TupleType, *_LISTS)
_OBJECTS = (inspect.AnyType, inspect.DictType, *_CLASSES)
# Methods that may accept an object and refuse its parts, or the reverse.
_CHECKING_METHODS = ("__post_init__", "__attrs_pre_init__", "__attrs_post_init__")


class Member(NamedTuple):
    """A member of a JSON object or an item of a tuple; each may have another type.

    name: the name as JSON, with a colon; b"" for an item.
    value: the value as JSON.
    kind: the type of the value.
    """

    name: bytes
    value: Raw
    kind: inspect.Type


def divide(text: Raw, annotation: Any) -> Iterator[bytes]:
    """Yield parts of a JSON text, each of which is to be checked against the type of the whole.

    All parts conform to this type if, and only if, the text does. Most parts have about LARGE_JSON
    bytes. A part is longer if it contains, for example, a long string or a list that may not be
    divided.

    text: JSON without spaces between its tokens, as msgspec writes it.
    annotation: the type of the whole, as msgspec decodes it.
    May raise any exception for a text that does not conform. Then check the whole text, which gives
    the error to report.
    """
    return _divide(text, inspect.type_info(annotation), b"", b"")


def _divide(text: Raw, kind: inspect.Type, before: bytes, after: bytes) -> Iterator[bytes]:
    """Return the parts of one value.

    before, after: the JSON around the value, which each part also contains.
    """
    if len(text) > LARGE_JSON:
        if (item_kind := _kind_of_items(text, kind)) is not None:
            return _divide_items(text, item_kind, before, after)
        if (members := _members(text, kind)) is not None:
            return _divide_members(text, members, before, after)
    return iter([before + text + after])


def _divide_items(text: Raw, kind: inspect.Type, before: bytes, after: bytes) -> Iterator[bytes]:
    """Return the parts of a list or dict; its items or values have the type `kind`."""
    opening, closing = _brackets(text)
    before, after = before + opening, closing + after
    names: list[str] = []
    if opening == b"[":
        values = json.decode(text, type=list[Raw])
    else:
        members = json.decode(text, type=dict[str, Raw])
        names, values = list(members), list(members.values())

    # ends[i] is the size of the values up to the one with the index i. This takes no loop in Python
    # for each value.
    ends = list(accumulate(map(len, values)))
    start = size = 0
    while start < len(values):
        stop = max(start + 1, bisect_right(ends, size + LARGE_JSON))
        if stop == start + 1:
            # A single value may be too large for a part, so divide it.
            name = _encode_name(names[start]) if names else b""
            yield from _divide(values[start], kind, before + name, after)
        else:
            part = values[start:stop]
            # The brackets are left out, because `before` and `after` contain them.
            items = json.encode(dict(zip(names[start:stop], part, strict=True)) if names else part)
            yield before + items[1:-1] + after
        start, size = stop, ends[stop - 1]


def _divide_members(
    text: Raw, members: list[Member], before: bytes, after: bytes
) -> Iterator[bytes]:
    """Return the parts of an object or array whose members have types of their own."""
    short = [member.name + _shorten(member.value, member.kind) for member in members]
    large = [index for index, member in enumerate(members) if len(member.value) > LARGE_JSON]
    # Each part contains all short members. Divide only if these have at most LARGE_JSON bytes
    # together, because they are checked with each part.
    if not large or sum(map(len, [before, *short, after])) > LARGE_JSON:
        yield before + text + after
        return
    opening, closing = _brackets(text)
    for index in large:
        name, value, kind = members[index]
        head = before + opening + b",".join([*short[:index], name])
        tail = b",".join([b"", *short[index + 1 :]]) + closing + after
        yield from _divide(value, kind, head, tail)


def _shorten(text: Raw, kind: inspect.Type) -> bytes:
    """Return the JSON of a value without the items of its long lists and dicts."""
    if len(text) > LARGE_JSON:
        opening, closing = _brackets(text)
        if _kind_of_items(text, kind) is not None:
            return opening + closing
        if (members := _members(text, kind)) is not None:
            short = [member.name + _shorten(member.value, member.kind) for member in members]
            return opening + b",".join(short) + closing
    return bytes(text)


def _kind_of_items(text: Raw, kind: inspect.Type) -> inspect.Type | None:
    """Return the type of the items of a list or dict.

    Returns None for a list or dict that may not be divided, and for all other values.
    """
    chosen = _choose(text, kind)
    if isinstance(chosen, inspect.AnyType):
        return chosen
    if not isinstance(chosen, (*_LISTS, inspect.DictType)):
        return None
    if chosen.min_length is not None or chosen.max_length is not None:
        return None
    return chosen.value_type if isinstance(chosen, inspect.DictType) else chosen.item_type


def _members(text: Raw, kind: inspect.Type) -> list[Member] | None:
    """Return the members of an object or tuple whose members have types of their own.

    Returns None for other values, and for an object whose class may check it as a whole.
    """
    chosen = _choose(text, kind)
    if isinstance(chosen, inspect.TupleType):
        items = json.decode(text, type=list[Raw])
        # zip() raises ValueError for a tuple of the wrong length.
        return [Member(b"", *pair) for pair in zip(items, chosen.item_types, strict=True)]
    if not isinstance(chosen, _CLASSES) or _checks_objects(chosen.cls):
        return None
    kinds = {field.encode_name: field.type for field in chosen.fields}
    return [
        Member(_encode_name(name), value, kinds.get(name, inspect.AnyType()))
        for name, value in json.decode(text, type=dict[str, Raw]).items()
    ]


def _choose(text: Raw, kind: inspect.Type) -> inspect.Type | None:
    """Return the type by which a list or object is divided.

    This is `kind`, or the alternative that fits if `kind` is a union. Returns None if several
    alternatives fit and no tag decides, and for all other values.
    """
    while isinstance(kind, inspect.Metadata):
        kind = kind.type
    opening = _brackets(text)[0]
    possible: tuple[type[inspect.Type], ...] = ()
    if opening == b"[":
        possible = _ARRAYS
    elif opening == b"{":
        possible = _OBJECTS
    alternatives = kind.types if isinstance(kind, inspect.UnionType) else (kind,)
    found = [item for item in alternatives if isinstance(item, possible)]
    if len(found) > 1 and opening == b"{":
        values = json.decode(text, type=dict[str, Raw])
        found = [
            item
            for item in found
            if isinstance(item, inspect.StructType)
            and item.tag_field in values
            and json.decode(values[item.tag_field]) == item.tag
        ]
    return found[0] if len(found) == 1 else None


def _checks_objects(cls: Any) -> bool:
    """Return whether a class has methods or validators that may check an object as a whole."""
    cls = get_origin(cls) or cls
    return any(hasattr(cls, name) for name in _CHECKING_METHODS) or (
        hasattr(cls, "__attrs_attrs__") and any(field.validator for field in cls.__attrs_attrs__)
    )


def _brackets(text: Raw) -> tuple[bytes, bytes]:
    """Return the first and the last byte of a JSON text."""
    view = memoryview(text)
    return bytes(view[:1]), bytes(view[-1:])


def _encode_name(name: str) -> bytes:
    return json.encode(name) + b":"
