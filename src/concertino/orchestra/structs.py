"""Converts between JSON objects and the bytes of google.protobuf.Struct, without losing anything.

    packed = pack({"text": "hello"})             # PackedObject(struct=b"...", json=None)
    value = unpack(packed.struct, packed.json)   # {"text": "hello"}

In the plugin protocol, the arguments and results of tools and the payloads of events are Structs. A
Struct is Protobuf's message for any JSON object. Its numbers are doubles, so integers beyond 2^53
do not fit. For an object with such integers, pack() also returns the JSON text, which is sent in an
additional field such as `arguments_json`. unpack() uses this text only if it encodes to the same
Struct. Without this check, a sender could send one value in the Struct, which a user sees, and
another value in the JSON, which a tool gets.

Whole numbers up to 2^53 are decoded as integers. The order of keys is kept. If a key is repeated,
the last value counts. NaN, infinities, lone surrogates, keys that are not strings, and more than
MAX_DEPTH levels are refused.

In Protobuf, the length of a nested message comes before the message. So the encoder writes from the
end to the beginning: when it writes a length, it has written the nested message already.
Sources: protobuf.dev "Encoding", struct.proto; RFC 8259; the Orchestra plugin protocol,
"Struct fidelity".
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
from concertino.orchestra.protobuf_wire import (
    TRUNCATED,
    InvalidWire,
    encode_varint,
    read_length,
    read_varint,
)

__all__ = [
    "MAX_DEPTH",
    "InvalidStruct",
    "NotAStruct",
    "PackedObject",
    "PackedTooLarge",
    "decode_struct",
    "encode_struct",
    "pack",
    "pack_json",
    "unpack",
    "unpack_json",
]

log = logging.getLogger("concertino.orchestra.structs")

# Limit for nested objects and arrays. Other decoders accept 10,000 (Go) or at least 33 (C, Rust).
MAX_DEPTH = 128
# Every integer up to this number is exact as a double.
EXACT = 2**53

_DOUBLE = Layout("<d")
# Tags: field number * 8 + wire type. The encoder below has them as bytes: b"\x0a" is _ENTRY.
# Field 1 is Struct.fields, ListValue.values, and the key of an entry in Struct.fields; field 2 is
# the value of such an entry.
_ENTRY = 0x0A
_VALUE = 0x12
# Tags of the fields 1 to 6 of Value.
_NULL, _NUMBER, _STRING, _BOOL, _OBJECT, _LIST = 0x08, 0x11, 0x1A, 0x20, 0x2A, 0x32
_parse = Decoder().decode


class NotAStruct(ConcertinoError):
    """A value to encode is not a JSON object, or a Struct cannot represent it."""


class PackedTooLarge(ConcertinoError):
    """The two forms in a PackedObject, `struct` and `json`, do not fit into one frame together."""


class InvalidStruct(ConcertinoError):
    """The bytes to decode are not a Struct, or the Struct has a value that JSON does not have."""


class PackedObject(NamedTuple):
    """The encoded form of a JSON object.

    struct: the bytes of the Struct.
    json: the JSON text if the object has integers beyond 2^53; else None.
    """

    struct: bytes
    json: bytes | None


def pack(value: Mapping[str, Any]) -> PackedObject:
    """Encode a JSON object as a google.protobuf.Struct, without losing anything.

    Raises NotAStruct if a Struct cannot represent the value. Raises PackedTooLarge if the result
    has a JSON text, and does not fit into a frame of the plugin protocol. A Struct alone may have
    any size; the connection refuses a message that is too long.
    """
    struct, is_exact = _encode(value)
    # Most objects have no integers beyond 2^53, so the Struct alone is enough.
    if is_exact:
        return PackedObject(struct, None)
    return _check_size(struct, encode(value))


def pack_json(text: bytes) -> PackedObject:
    """Encode the JSON text of an object as pack() encodes the object.

    Raises NotAStruct if the text is not a JSON object, or a Struct cannot represent the value.
    Raises PackedTooLarge as pack() does.
    """
    value = _parse_json(text)
    if not isinstance(value, dict):
        raise NotAStruct(f"expected an object, got {_type_name(value)}")
    struct, is_exact = _encode(cast("dict[str, Any]", value))
    return PackedObject(struct, None) if is_exact else _check_size(struct, text)


def unpack(struct: bytes, json: bytes | None = None) -> dict[str, Any]:
    """Return the JSON object that a message contains as a google.protobuf.Struct. Reverses pack().

    struct: the bytes of the Struct.
    json: the JSON text of the same object, which a sender adds if the object has integers beyond
        2^53; None or empty if there is none. A text that does not encode to the same Struct is
        ignored with a warning.
    Raises InvalidStruct if the bytes are not a Struct.
    """
    value = decode_struct(struct)
    if not json:
        return value

    try:
        exact = _parse_json(json)
        if isinstance(exact, dict) and _is_same(
            decode_struct(encode_struct(cast(dict[str, Any], exact))), value
        ):
            return cast(dict[str, Any], exact)
    except (NotAStruct, InvalidStruct) as exc:
        log.warning("ignored the exact JSON beside a Struct: %s", exc)
    else:
        log.warning("ignored the exact JSON beside a Struct: the two differ")
    return value


def unpack_json(struct: bytes, json: bytes | None = None) -> bytes:
    """Return the JSON object that unpack() returns, as JSON text.

    struct: the bytes of the Struct.
    json: the JSON text of the same object, which a sender adds if the object has integers beyond
        2^53; None or empty if there is none.
    Raises InvalidStruct if the bytes are not a Struct.
    """
    return encode(unpack(struct, json))


def _is_same(left: Any, right: Any) -> bool:
    """Return whether two values are the same JSON. Unlike with `==`, True and 1 are different."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        left_object, right_object = cast(dict[str, Any], left), cast(dict[str, Any], right)
        return len(left_object) == len(right_object) and all(
            key in right_object and _is_same(left_object[key], right_object[key])
            for key in left_object
        )
    if isinstance(left, list):
        left_items, right_items = cast(list[Any], left), cast(list[Any], right)
        return len(left_items) == len(right_items) and all(map(_is_same, left_items, right_items))
    return left == right


def _check_size(struct: bytes, json: bytes) -> PackedObject:
    """Return a PackedObject. Raises PackedTooLarge if both forms together do not fit a frame."""
    if len(struct) + len(json) > MAX_FRAME_BYTES:
        raise PackedTooLarge(
            f"{len(struct)} bytes of Struct and {len(json)} of the JSON that holds its integers "
            f"exactly: together more than the {MAX_FRAME_BYTES} of a frame"
        )
    return PackedObject(struct, json)


def _parse_json(text: bytes) -> Any:
    """Return the value of a JSON text. Raises NotAStruct if the text is invalid or too deep."""
    try:
        # str() refuses invalid UTF-8. A text in ASCII needs no check.
        return _parse(text if text.isascii() else str(text, "utf-8"))
    except (DecodeError, ValidationError, UnicodeDecodeError) as exc:
        raise NotAStruct(f"expected JSON: {exc}") from None
    except RecursionError:
        raise NotAStruct(f"more than {MAX_DEPTH} levels") from None


def _type_name(value: object) -> str:
    return type(value).__name__


# Encoding


def encode_struct(value: Mapping[str, Any]) -> bytes:
    """Encode a JSON object as a Struct alone. Integers beyond 2^53 are rounded, unlike in pack().

    Raises NotAStruct if a Struct cannot represent the value.
    """
    return _encode(value)[0]


def _encode(value: Mapping[str, Any]) -> tuple[bytes, bool]:
    """Return the bytes of a Struct, and whether they decode to the same JSON as `value`."""
    if (flat := _encode_flat(value)) is not None:
        return flat, True

    encoder = _Encoder()
    encoder.add_entries(value, 1)
    encoder.pieces.reverse()
    return b"".join(encoder.pieces), encoder.is_exact


def _encode_flat(value: Mapping[str, Any]) -> bytes | None:
    """Encode an object whose values are short strings, as in most arguments of tools.

    Returns None for any other object. Takes half the time of _Encoder.
    """
    pieces: list[bytes] = []
    try:
        for key, text in value.items():
            if type(key) is not str or type(text) is not str or len(text) >= 0x80:
                return None
            name, content = key.encode(), text.encode()
            size = len(content)
            # 6 bytes are the tags and lengths of the key, the Value and the string in it.
            entry_size = len(name) + size + 6
            # Larger lengths take two bytes.
            if entry_size >= 0x80:
                return None
            pieces.append(
                b"\x0a%c\x0a%c%b\x12%c\x1a%c%b"
                % (entry_size, len(name), name, size + 2, size, content)
            )
    except UnicodeEncodeError:
        return None
    return b"".join(pieces)


# The tag and the length of a short string. The index is the length.
_STRING_TAGS = tuple(bytes((_STRING, number)) for number in range(0x80))
# The Values null, true and false.
_CONSTANT = {None: b"\x08\x00", True: b"\x20\x01", False: b"\x20\x00"}


class _Encoder:
    """Encodes one Struct, from its end to its beginning.

    Attributes:
    pieces: the parts of the message that were written so far, the last part of the message first.
    is_exact: whether the message decodes to the same values; False after an integer beyond 2^53.
    """

    __slots__ = ("is_exact", "pieces")

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.is_exact = True

    def add_entries(self, value: Mapping[str, Any], depth: int) -> int:
        """Add the entries of an object, which are the content of a Struct. Returns their size.

        depth: how many objects and arrays are nested, including this object.
        """
        if depth > MAX_DEPTH:
            raise NotAStruct(f"more than {MAX_DEPTH} levels")

        pieces = self.pieces
        total = 0
        for key in reversed([*value]):
            if not isinstance(key, str):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise NotAStruct(f"a key: expected a string, got {_type_name(key)}")
            # An entry is: tag, size of the entry; tag, length of the key, key; tag, size of the
            # value, value.
            value_size = self.add_value(value[key], depth)
            value_length = encode_varint(value_size)
            name = _encode_utf8(key)
            name_length = encode_varint(len(name))
            pieces.append(b"\x12" + value_length)
            pieces.append(name)
            entry_size = value_size + len(value_length) + len(name) + len(name_length) + 2
            entry_length = encode_varint(entry_size)
            pieces.append(b"\x0a" + entry_length + b"\x0a" + name_length)
            total += entry_size + len(entry_length) + 1
        return total

    def add_items(self, value: list[Any] | tuple[Any, ...], depth: int) -> int:
        """Add the items of an array, which are the content of a ListValue. Returns their size.

        depth: how many objects and arrays are nested, including this array.
        """
        if depth > MAX_DEPTH:
            raise NotAStruct(f"more than {MAX_DEPTH} levels")

        total = 0
        for item in reversed(value):
            size = self.add_value(item, depth)
            header = encode_varint(size)
            self.pieces.append(b"\x0a" + header)
            total += size + len(header) + 1
        return total

    def add_value(self, value: Any, depth: int) -> int:
        """Add a JSON value, encoded as the content of a Protobuf Value. Returns its size in bytes.

        depth: how many objects and arrays contain this value.
        """
        pieces = self.pieces
        if isinstance(value, str):
            text = _encode_utf8(value)
            size = len(text)
            pieces.append(text)
            if size < 0x80:
                pieces.append(_STRING_TAGS[size])
                return size + 2
            header = b"\x1a" + encode_varint(size)
            pieces.append(header)
            return size + len(header)

        # This check comes before int, because True and False are integers in Python.
        if value is None or value is True or value is False:
            pieces.append(_CONSTANT[value])
            return 2

        if isinstance(value, int):
            if not -EXACT <= value <= EXACT:
                self.is_exact = False
                _check_range(value)
            pieces.append(b"\x11" + _DOUBLE.pack(value))
            return 9
        if isinstance(value, float):
            if not isfinite(value):
                raise NotAStruct(f"{value} is no JSON number")
            pieces.append(b"\x11" + _DOUBLE.pack(value))
            return 9

        if isinstance(value, Mapping):
            size = self.add_entries(cast("Mapping[str, Any]", value), depth + 1)
            tag = b"\x2a"
        elif isinstance(value, (list, tuple)):
            size = self.add_items(cast("list[Any]", value), depth + 1)
            tag = b"\x32"
        else:
            raise NotAStruct(f"expected a JSON value, got {_type_name(value)}")
        header = tag + encode_varint(size)
        pieces.append(header)
        return size + len(header)


def _check_range(value: int) -> None:
    """Raise NotAStruct for an integer beyond the largest double, which cannot be rounded to one."""
    try:
        float(value)
    except OverflowError:
        raise NotAStruct(
            "an integer too large for a double, the only number type of a Struct"
        ) from None


def _encode_utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise NotAStruct("a string with a lone surrogate") from None


# Decoding


def decode_struct(data: bytes) -> dict[str, Any]:
    """Decode the bytes of a Struct. Raises InvalidStruct if they are not a Struct."""
    result: dict[str, Any] = {}
    if _decode_flat(data, result):
        return result

    result.clear()
    try:
        _decode_entries(data, 0, len(data), result, 1)
    except InvalidWire as exc:
        raise InvalidStruct(str(exc)) from None
    return result


def _decode_flat(data: bytes, into: dict[str, Any]) -> bool:
    """Decode a Struct of short strings, as _encode_flat() writes it, and add its entries to `into`.

    Returns False for any other Struct; `into` may then have some of the entries. Takes a third of
    the time of _decode_entries().
    """
    at, end = 0, len(data)
    try:
        while at < end:
            # The offsets of the parts of one entry, if all lengths have one byte. Below, each tag
            # and length between these parts is compared with the expected one.
            key = at + 4
            value = key + data[at + 3]
            text = value + 4
            size = data[value + 3]
            after = text + size
            if (
                data[at] != _ENTRY
                or data[at + 1] != after - at - 2
                # The size of an entry takes one byte only below 0x80; its tag and size are 2 bytes.
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


def _read_text(data: bytes, start: int, end: int) -> str:
    try:
        return data[start:end].decode()
    except UnicodeDecodeError:
        raise InvalidStruct("a string that is not UTF-8") from None


def _skip_field(
    data: bytes,
    tag: int,
    at: int,
    end: int,
) -> int:
    """Return the offset after a field that is not in the schema, and so is ignored.

    tag: the tag of the field, which ends at `at`.
    Raises InvalidStruct if the field is malformed, or is a group, which proto3 does not have.
    """
    if tag >> 3 == 0 or tag > 0xFFFFFFFF:
        raise InvalidStruct(f"field number {tag >> 3}")

    wire_type = tag & 7
    if wire_type == 0:
        return read_varint(data, at, end)[1]
    if wire_type == 2:
        return read_length(data, at, end)[1]
    if wire_type in (1, 5):
        at += 8 if wire_type == 1 else 4
        if at > end:
            raise InvalidStruct(TRUNCATED)
        return at
    raise InvalidStruct(f"wire type {wire_type}")


def _read_tag(data: bytes, at: int, end: int) -> tuple[int, int]:
    tag = data[at]
    return (tag, at + 1) if tag < 0x80 else read_varint(data, at, end)


def _decode_entries(
    data: bytes,
    at: int,
    end: int,
    into: dict[str, Any],
    depth: int,
) -> None:
    """Decode the entries of a Struct between the offsets `at` and `end`, and add them to `into`.

    depth: how many objects and arrays are nested, including this object.
    """
    if depth > MAX_DEPTH:
        raise InvalidStruct(f"more than {MAX_DEPTH} levels")

    while at < end:
        tag, at = _read_tag(data, at, end)
        if tag != _ENTRY:
            at = _skip_field(data, tag, at, end)
            continue

        # Decode the key and the value of the entry.
        entry_at, at = read_length(data, at, end)
        key, value = "", None
        while entry_at < at:
            tag, entry_at = _read_tag(data, entry_at, at)
            if tag == _ENTRY:
                start, entry_at = read_length(data, entry_at, at)
                key = _read_text(data, start, entry_at)
            elif tag == _VALUE:
                start, entry_at = read_length(data, entry_at, at)
                # If the field is repeated, Protobuf joins both values.
                value = _decode_value(data, start, entry_at, value, depth)
            else:
                entry_at = _skip_field(data, tag, entry_at, at)
        into[key] = value


def _decode_items(
    data: bytes,
    at: int,
    end: int,
    into: list[Any],
    depth: int,
) -> None:
    """Decode the items of a ListValue between the offsets `at` and `end`; add them to `into`."""
    if depth > MAX_DEPTH:
        raise InvalidStruct(f"more than {MAX_DEPTH} levels")

    while at < end:
        tag, at = _read_tag(data, at, end)
        if tag != _ENTRY:
            at = _skip_field(data, tag, at, end)
            continue
        start, at = read_length(data, at, end)
        into.append(_decode_value(data, start, at, None, depth))


def _decode_value(
    data: bytes,
    at: int,
    end: int,
    value: Any,
    depth: int,
) -> Any:
    """Decode a Value between the offsets `at` and `end`, and return it. An empty Value is null.

    value: the value of an earlier occurrence of the same field; None if there is none. If both are
        objects or both are arrays, Protobuf joins them.
    """
    while at < end:
        tag, at = _read_tag(data, at, end)
        if tag == _STRING:
            start, at = read_length(data, at, end)
            value = _read_text(data, start, at)
        elif tag == _NUMBER:
            at += 8
            if at > end:
                raise InvalidStruct(TRUNCATED)
            [value] = _DOUBLE.unpack_from(data, at - 8)
            if -EXACT <= value <= EXACT:
                # Whole numbers become integers, except for -0.0: the integer 0 has no sign. The
                # text of -0.0 begins with "-".
                if value == (whole := int(value)) and (whole or str(value)[0] != "-"):
                    value = whole
            elif not isfinite(value):
                raise InvalidStruct(f"{value} is no JSON number")
        elif tag == _BOOL:
            number, at = read_varint(data, at, end)
            value = bool(number)
        elif tag == _NULL:
            _, at = read_varint(data, at, end)
            value = None
        elif tag == _OBJECT:
            start, at = read_length(data, at, end)
            value = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
            _decode_entries(data, start, at, value, depth + 1)
        elif tag == _LIST:
            start, at = read_length(data, at, end)
            value = cast("list[Any]", value) if isinstance(value, list) else []
            _decode_items(data, start, at, value, depth + 1)
        else:
            at = _skip_field(data, tag, at, end)
    return value
