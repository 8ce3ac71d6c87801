"""google.protobuf.Struct as bytes, to and from JSON values: our own codec, because the usual ones are not exact.

What JSON can say and a Struct cannot: integers beyond 2^53, since a Struct's numbers are doubles. Then the JSON travels beside it
(`arguments_json` and the like, field 1000): pack() makes the two, unpack() believes the JSON only if it makes the same Struct, so
that nobody is shown one thing and made to run another. Everything else is in the Struct: whole numbers are integers again, as far
as 2^53; the order of keys is kept, though peers need not keep it; of a key that comes twice the last counts.
NaN, infinities, halves of surrogate pairs, keys that are not texts and more than MAX_DEPTH levels are refused.
Sources: protobuf.dev "Encoding", struct.proto; RFC 8259; the Orchestra plugin protocol, "Struct fidelity".
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from math import isfinite
from struct import Struct as Layout
from typing import Any, NamedTuple, cast

from msgspec import DecodeError, ValidationError
from msgspec.json import Decoder, encode

from concertino.errors import ConcertinoError
from concertino.orchestra.frames import MAX_FRAME_BYTES

__all__ = [
    "MAX_DEPTH",
    "InvalidStruct",
    "NotAStruct",
    "Packed",
    "PackedTooLarge",
    "decode_struct",
    "encode_struct",
    "pack",
    "pack_json",
    "unpack",
    "unpack_json",
    "varint",
]

log = logging.getLogger("concertino.orchestra.structs")

MAX_DEPTH = (
    128  # values in each other. Upstream's own decoders take at least 10,000 (Go) or 33 (C, Rust)
)
EXACT = 2**53  # up to here, every whole number is a double

_DOUBLE = Layout("<d")
# Tags: field number * 8 + wire type.
_ENTRY = 0x0A  # Struct.fields = 1, length-delimited; also the key of an entry, and ListValue.values
_VALUE = 0x12  # the value of an entry = 2
_NULL, _NUMBER, _STRING, _BOOL, _OBJECT, _LIST = 0x08, 0x11, 0x1A, 0x20, 0x2A, 0x32  # Value, 1 to 6
_OBJECT_FIELD, _LIST_FIELD = 5, 6
_parse = Decoder().decode


class NotAStruct(ConcertinoError):
    """A value that a Struct cannot hold. The text says where and why; the caller's mistake (-32602)."""


class PackedTooLarge(ConcertinoError):
    """A Struct and the JSON beside it do not fit a frame together. The text names both sizes; -32603."""


class InvalidStruct(ConcertinoError):
    """Bytes that are no Struct, or one that JSON cannot say. The other side's mistake."""


class Packed(NamedTuple):
    """A JSON object for the wire. struct: for everybody. json: what it was made of, if the Struct is not exact; else None."""

    struct: bytes
    json: bytes | None


def pack(value: Mapping[str, Any]) -> Packed:
    """A JSON object as a Struct, with its JSON if that is needed.

    Raises NotAStruct, PackedTooLarge.
    """
    struct, exact = _encoded(value)
    if exact:
        return Packed(struct, None)
    return _together(struct, encode(value))


def pack_json(text: bytes) -> Packed:
    """The text of a JSON object as a Struct, with the text if that is needed. Raises NotAStruct, PackedTooLarge."""
    value = _json_value(text)
    if not isinstance(value, dict):
        raise NotAStruct(f"expected an object, got {_named(value)}")
    struct, exact = _encoded(cast("dict[str, Any]", value))
    return Packed(struct, None) if exact else _together(struct, text)


def unpack(struct: bytes, json: bytes | None = None) -> dict[str, Any]:
    """The JSON object of a Struct, and of the JSON beside it where that says the same more exactly. Raises BadStruct."""
    value = decode_struct(struct)
    if not json:
        return value
    try:
        exact = _json_value(json)
        if isinstance(exact, dict) and _same(
            decode_struct(encode_struct(cast(dict[str, Any], exact))), value
        ):
            return cast(dict[str, Any], exact)
    except (NotAStruct, InvalidStruct) as why:
        log.warning("the exact JSON beside a Struct was ignored: %s", why)
    else:
        log.warning("the exact JSON beside a Struct was ignored: it says something else")
    return value


def unpack_json(struct: bytes, json: bytes | None = None) -> bytes:
    """The JSON text of a Struct, and of the JSON beside it. Raises BadStruct."""
    return encode(unpack(struct, json))


def _same(one: Any, other: Any) -> bool:
    """Whether two decoded Structs are the same JSON; for Python, true is 1 and 1 is 1.0."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        first, second = cast(dict[str, Any], one), cast(dict[str, Any], other)
        return len(first) == len(second) and all(
            key in second and _same(first[key], second[key]) for key in first
        )
    if isinstance(one, list):
        items, others = cast(list[Any], one), cast(list[Any], other)
        return len(items) == len(others) and all(map(_same, items, others))
    return one == other


def _together(struct: bytes, json: bytes) -> Packed:
    if len(struct) + len(json) > MAX_FRAME_BYTES:
        raise PackedTooLarge(
            f"{len(struct)} bytes of Struct and {len(json)} of the JSON that holds its integers exactly: "
            f"together more than the {MAX_FRAME_BYTES} of a frame"
        )
    return Packed(struct, json)


def _json_value(text: bytes) -> Any:
    try:
        return _parse(text if text.isascii() else str(text, "utf-8"))
    except (DecodeError, ValidationError, UnicodeDecodeError) as why:
        raise NotAStruct(f"expected JSON: {why}") from None
    except RecursionError:
        raise NotAStruct(f"more than {MAX_DEPTH} levels") from None


def _named(value: object) -> str:
    return type(value).__name__


# JSON value -> bytes. Written from the end, so that each length is known when it is written and nothing is copied twice.


def encode_struct(value: Mapping[str, Any]) -> bytes:
    """A JSON object as the bytes of a Struct, numbers as doubles. Raises NotAStruct."""
    return _encoded(value)[0]


def _encoded(value: Mapping[str, Any]) -> tuple[bytes, bool]:
    """The bytes, and whether they give the same JSON back."""
    if (flat := _flat(value)) is not None:
        return flat, True
    writer = _Writer()
    writer.entries(value, 1)
    writer.pieces.reverse()
    return b"".join(writer.pieces), writer.exact


def _flat(value: Mapping[str, Any]) -> bytes | None:
    """A Struct of short texts and nothing else, as arguments mostly are, in half of the time; None for any other."""
    pieces: list[bytes] = []
    try:
        for key, each in value.items():
            if type(key) is not str or type(each) is not str or len(each) >= 0x80:
                return None
            name, text = key.encode(), each.encode()
            size = len(text)
            inner = len(name) + size + 6
            if inner >= 0x80:
                return None
            pieces.append(
                b"\x0a%c\x0a%c%b\x12%c\x1a%c%b" % (inner, len(name), name, size + 2, size, text)
            )
    except UnicodeEncodeError:
        return None
    return b"".join(pieces)


def varint(number: int) -> bytes:
    """A number as protobuf writes lengths."""
    if number < 0x80:
        return _SMALL[number]
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


_SMALL = tuple(bytes((number,)) for number in range(0x80))
_STRING_TAGS = tuple(bytes((_STRING, number)) for number in range(0x80))
_CONSTANT = {None: b"\x08\x00", True: b"\x20\x01", False: b"\x20\x00"}


class _Writer:
    """pieces: in reverse. exact: whether everything so far can be read back as it was."""

    __slots__ = ("exact", "pieces")

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.exact = True

    def entries(self, value: Mapping[str, Any], depth: int) -> int:
        """The content of a Struct. Returns its size."""
        if depth > MAX_DEPTH:
            raise NotAStruct(f"more than {MAX_DEPTH} levels")
        pieces = self.pieces
        total = 0
        for key in reversed([*value]):
            if not isinstance(key, str):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise NotAStruct(f"a key: expected a text, got {_named(key)}")
            size = self.value(value[key], depth)
            header = varint(size)
            name = _utf8(key)
            length = varint(len(name))
            pieces.append(b"\x12" + header)
            pieces.append(name)
            inner = size + len(header) + len(name) + len(length) + 2
            outer = varint(inner)
            pieces.append(b"\x0a" + outer + b"\x0a" + length)
            total += inner + len(outer) + 1
        return total

    def items(self, value: list[Any] | tuple[Any, ...], depth: int) -> int:
        """The content of a ListValue. Returns its size."""
        if depth > MAX_DEPTH:
            raise NotAStruct(f"more than {MAX_DEPTH} levels")
        total = 0
        for each in reversed(value):
            size = self.value(each, depth)
            header = varint(size)
            self.pieces.append(b"\x0a" + header)
            total += size + len(header) + 1
        return total

    def value(self, value: Any, depth: int) -> int:
        """The content of a Value. Returns its size."""
        pieces = self.pieces
        if isinstance(value, str):
            text = _utf8(value)
            size = len(text)
            pieces.append(text)
            if size < 0x80:
                pieces.append(_STRING_TAGS[size])
                return size + 2
            header = b"\x1a" + varint(size)
            pieces.append(header)
            return size + len(header)
        if value is None or value is True or value is False:
            pieces.append(_CONSTANT[value])
            return 2
        if isinstance(value, int):
            if not -EXACT <= value <= EXACT:
                self.exact = False
                _fits(value)
            pieces.append(b"\x11" + _DOUBLE.pack(value))
            return 9
        if isinstance(value, float):
            if not isfinite(value):
                raise NotAStruct(f"{value} is no JSON number")
            pieces.append(b"\x11" + _DOUBLE.pack(value))
            return 9
        if isinstance(value, Mapping):
            size = self.entries(cast("Mapping[str, Any]", value), depth + 1)
            tag = b"\x2a"
        elif isinstance(value, (list, tuple)):
            size = self.items(cast("list[Any]", value), depth + 1)
            tag = b"\x32"
        else:
            raise NotAStruct(f"expected a JSON value, got {_named(value)}")
        header = tag + varint(size)
        pieces.append(header)
        return size + len(header)


def _fits(value: int) -> None:
    try:
        float(value)
    except OverflowError:
        raise NotAStruct(
            "an integer beyond what a double can hold, which is all that a Struct has"
        ) from None


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise NotAStruct("a text with half of a surrogate pair") from None


# Bytes -> JSON value


def decode_struct(data: bytes) -> dict[str, Any]:
    """The JSON object that the bytes of a Struct mean. Raises BadStruct."""
    result: dict[str, Any] = {}
    if not _read_flat(data, result):
        result.clear()
        _read_struct(data, 0, len(data), result, 1)
    return result


def _read_flat(data: bytes, into: dict[str, Any]) -> bool:
    """Whether these are entries as _flat() writes them, in a third of the time; if not, what it read means nothing."""
    at, end = 0, len(data)
    try:
        while at < end:
            key = at + 4
            value = key + data[at + 3]
            text = value + 4
            size = data[value + 3]
            after = text + size
            if (
                data[at] != _ENTRY
                or data[at + 1] != after - at - 2
                or after - at >= 0x82
                or data[at + 2] != _ENTRY
                or data[value] != _VALUE
                or data[value + 1] != size + 2
                or data[value + 2] != _STRING
                or after > end
            ):
                return False
            into[data[key:value].decode()] = data[text:after].decode()
            at = after
    except (IndexError, UnicodeDecodeError):
        return False
    return True


_CUT = "it ends too early"


def _read_varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """A varint and where it ends. Its 64 lowest bits count, and it has at most ten bytes."""
    number = shift = 0
    while at < end:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            if shift == 63 and byte > 1:
                raise InvalidStruct("a varint of more than 64 bits")
            return number, at
        shift += 7
        if shift > 63:
            raise InvalidStruct("a varint of more than ten bytes")
    raise InvalidStruct(_CUT)


def _read_length(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Where what follows starts, and where it ends."""
    if at >= end:
        raise InvalidStruct(_CUT)
    size = data[at]
    if size < 0x80:
        at += 1
    else:
        size, at = _read_varint(data, at, end)
    if size > end - at:
        raise InvalidStruct(_CUT)
    return at, at + size


def _read_text(data: bytes, start: int, end: int) -> str:
    try:
        return data[start:end].decode()
    except UnicodeDecodeError:
        raise InvalidStruct("a text that is not UTF-8") from None


def _skip(data: bytes, tag: int, at: int, end: int) -> int:
    """Past a field that we do not know. Groups are refused: proto3 has none."""
    if tag >> 3 == 0 or tag > 0xFFFFFFFF:
        raise InvalidStruct(f"field number {tag >> 3}")
    kind = tag & 7
    if kind == 0:
        return _read_varint(data, at, end)[1]
    if kind == 2:
        return _read_length(data, at, end)[1]
    if kind in (1, 5):
        at += 8 if kind == 1 else 4
        if at > end:
            raise InvalidStruct(_CUT)
        return at
    raise InvalidStruct(f"wire type {kind}")


def _read_tag(data: bytes, at: int, end: int) -> tuple[int, int]:
    tag = data[at]
    return (tag, at + 1) if tag < 0x80 else _read_varint(data, at, end)


def _read_struct(data: bytes, at: int, end: int, into: dict[str, Any], depth: int) -> None:
    """The entries between two places. Of a key that comes twice the last counts."""
    if depth > MAX_DEPTH:
        raise InvalidStruct(f"more than {MAX_DEPTH} levels")
    while at < end:
        tag, at = _read_tag(data, at, end)
        if tag != _ENTRY:
            at = _skip(data, tag, at, end)
            continue
        start, at = _read_length(data, at, end)
        key, value = "", None
        while start < at:
            tag, start = _read_tag(data, start, at)
            if tag == _ENTRY:
                begin, start = _read_length(data, start, at)
                key = _read_text(data, begin, start)
            elif tag == _VALUE:
                begin, start = _read_length(data, start, at)
                value = _read_value(data, begin, start, value, depth)
            else:
                start = _skip(data, tag, start, at)
        into[key] = value


def _read_list(data: bytes, at: int, end: int, into: list[Any], depth: int) -> None:
    if depth > MAX_DEPTH:
        raise InvalidStruct(f"more than {MAX_DEPTH} levels")
    while at < end:
        tag, at = _read_tag(data, at, end)
        if tag != _ENTRY:
            at = _skip(data, tag, at, end)
            continue
        start, at = _read_length(data, at, end)
        into.append(_read_value(data, start, at, None, depth))


def _read_value(data: bytes, at: int, end: int, value: Any, depth: int) -> Any:
    """A Value. value: of an earlier occurrence of the same field, which protobuf merges with this one. Unset is null."""
    while at < end:
        tag, at = _read_tag(data, at, end)
        if tag == _STRING:
            start, at = _read_length(data, at, end)
            value = _read_text(data, start, at)
        elif tag == _NUMBER:
            at += 8
            if at > end:
                raise InvalidStruct(_CUT)
            [value] = _DOUBLE.unpack_from(data, at - 8)
            if not isfinite(value):
                raise InvalidStruct(f"{value} is no JSON number")
            if (
                -EXACT <= value <= EXACT
                and value == (whole := int(value))
                and (whole or str(value)[0] != "-")
            ):
                value = whole
        elif tag == _BOOL:
            number, at = _read_varint(data, at, end)
            value = bool(number)
        elif tag == _NULL:
            _, at = _read_varint(data, at, end)
            value = None
        elif tag == _OBJECT:
            start, at = _read_length(data, at, end)
            value = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
            _read_struct(data, start, at, value, depth + 1)
        elif tag == _LIST:
            start, at = _read_length(data, at, end)
            value = cast("list[Any]", value) if isinstance(value, list) else []
            _read_list(data, start, at, value, depth + 1)
        else:
            at = _skip(data, tag, at, end)
    return value
