"""orchestra.frames and orchestra.structs: any stream, cut anywhere, is frames or one refusal; any
payload is a Struct or BadStruct.

Input: a byte that says how long the chunks are, then the stream. The limit is 64 bytes of payload,
so that it is met. A Struct that was understood is written again, and means the same then.
"""

from __future__ import annotations

from typing import Any, cast

from concertino.orchestra.frames import HEADER_BYTES, Assembler, FrameTooLarge
from concertino.orchestra.structs import InvalidStruct, decode_struct, encode_struct, pack, unpack

__all__ = ["MAX_BYTES", "TOKENS", "one"]

MAX_BYTES = 512
LIMIT = 64
TOKENS = (
    *(
        b"\x00\x00\x00\x00",
        b"\x00\x00\x00\x05",
        b"\x00\x00\x00\x40",
        b"\x00\x00\x00\x41",
        b"\xff\xff\xff\xff",
    ),
    *(b"\x0a\x07\x0a\x01a\x12\x02\x08\x00", b"\x0a\x0b\x0a\x01a\x12\x06\x32\x04\x0a\x02\x08\x00"),
    *(
        b"\x0a\x0e\x0a\x01a\x12\x09\x11\x00\x00\x00\x00\x00\x00\xf0\x3f",
        b"\x12\x02\x2a\x00",
        b"\x1a\x01b",
        b"\x20\x01",
    ),
    *(
        b"\x00\x00\x00\x00\x00\x00\xf0\x7f",
        b"\x00\x00\x00\x00\x00\x00\x00\x80",
        b"\x80\x80\x80\x01",
        b"\x0b\x0c",
    ),
)


def one(data: bytes) -> None:
    """See the head of this file."""
    size, stream = (data[0] % 70 + 1 if data else 1), data[1:]
    expected, refused = _split(stream)
    assembler = Assembler(LIMIT)
    found: list[bytes] = []
    try:
        for fed in range(0, len(stream), size):
            found += assembler.feed(stream[fed : fed + size])
            assert assembler.buffered_bytes <= HEADER_BYTES + LIMIT, (
                "no more is held than the longest frame"
            )
        assert not refused, "a length above the limit was taken"
        assert found == expected
    except FrameTooLarge:
        assert refused, "a length that is allowed was refused"
        assert found == expected[: len(found)]
    for payload in (*expected, stream):
        _struct(payload)


def _split(stream: bytes) -> tuple[list[bytes], bool]:
    """The payloads in a whole stream, and whether a length above the limit ends it."""
    payloads: list[bytes] = []
    while len(stream) >= HEADER_BYTES:
        size = stream[0] << 24 | stream[1] << 16 | stream[2] << 8 | stream[3]
        if size > LIMIT:
            return payloads, True
        if len(stream) < HEADER_BYTES + size:
            break
        payloads.append(stream[HEADER_BYTES : HEADER_BYTES + size])
        stream = stream[HEADER_BYTES + size :]
    return payloads, False


def _struct(payload: bytes) -> None:
    try:
        value = decode_struct(payload)
    except InvalidStruct:
        return
    _check(value)
    assert repr(decode_struct(encode_struct(value))) == repr(value), (
        "written again, it means the same"
    )
    packed = pack(value)
    assert packed.json is None, "what came out of a Struct is exact"
    assert repr(unpack(*packed)) == repr(value)


def _check(value: Any) -> None:
    """Only what JSON can say."""
    if isinstance(value, dict):
        for key, item in cast(dict[Any, Any], value).items():
            assert type(key) is str
            _check(item)
    elif isinstance(value, list):
        for item in cast(list[Any], value):
            _check(item)
    else:
        assert value is None or type(value) in (str, bool, int, float)
        assert value == value, "NaN is no JSON number"
        assert value not in (float("inf"), float("-inf"))
