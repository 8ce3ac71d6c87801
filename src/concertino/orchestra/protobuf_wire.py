"""Reads and writes varints and lengths of Protobuf's wire format, without the package protobuf.

The messages between hubs and plugins are in this format. structs.py, tool_calls.py and
message_peek.py read and write the most frequent messages with these functions, because that is
faster than with the package protobuf.

A field is a tag (field number * 8 + wire type), then its content. The content of strings, bytes and
messages (wire type 2) is their length as a varint, then their bytes. A varint is an integer in
groups of seven bits, the lowest group first. The high bit of each byte says whether another byte
follows.
Source: protobuf.dev "Encoding".
"""

from __future__ import annotations

from concertino.errors import ConcertinoError

__all__ = [
    "LENGTH_DELIMITED",
    "TRUNCATED",
    "InvalidWire",
    "encode_varint",
    "read_length",
    "read_varint",
]

# The wire type of strings, bytes and nested messages: a length, then as many bytes.
LENGTH_DELIMITED = 2
TRUNCATED = "the data is truncated"

# The varints of one byte, made in advance, because most varints have one byte.
_SMALL = tuple(bytes((number,)) for number in range(0x80))


class InvalidWire(ConcertinoError):
    """The bytes are not in Protobuf's wire format."""


def encode_varint(number: int) -> bytes:
    """Return a number as a varint. The number must not be negative."""
    if number < 0x80:
        return _SMALL[number]

    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def read_varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Return the number in a varint, and the offset of the byte after the varint.

    data: the bytes that contain the varint.
    at: the offset of the varint.
    end: the offset at which the message ends.
    Raises InvalidWire if the varint reaches beyond `end`, or does not fit into 64 bits.
    """
    number = shift = 0
    while at < end:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            # The tenth byte may only contain the 64th bit.
            if shift == 63 and byte > 1:
                raise InvalidWire("a varint of more than 64 bits")
            return number, at

        shift += 7
        if shift > 63:
            raise InvalidWire("a varint of more than ten bytes")
    raise InvalidWire(TRUNCATED)


def read_length(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Read the length of a field, and return the offsets where its content begins and ends.

    data: the bytes that contain the field.
    at: the offset of the length.
    end: the offset at which the message ends.
    Raises InvalidWire if the content reaches beyond `end`.
    """
    if at >= end:
        raise InvalidWire(TRUNCATED)

    size = data[at]
    if size < 0x80:
        at += 1
    else:
        size, at = read_varint(data, at, end)

    if size > end - at:
        raise InvalidWire(TRUNCATED)
    return at, at + size
