"""structs.py: against google.protobuf's own Struct and json_format, which are another
implementation, and by rules.
"""

from __future__ import annotations

import json
import math
import struct
from typing import Any

import pytest
from google.protobuf import json_format, struct_pb2
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from concertino.orchestra.frames import MAX_FRAME_BYTES
from concertino.orchestra.structs import (
    MAX_DEPTH,
    InvalidStruct,
    NotAStruct,
    PackedObject,
    PackedTooLarge,
    decode_struct,
    encode_struct,
    pack,
    pack_json,
    unpack,
    unpack_json,
)

TEXTS = st.text(st.characters(exclude_categories=("Cs",)))
EXACT_NUMBERS = st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
SCALARS = st.none() | st.booleans() | EXACT_NUMBERS | TEXTS
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner), max_leaves=20
)
OBJECTS = st.dictionaries(TEXTS, VALUES)


def same(one: Any, other: Any) -> bool:
    """As JSON: the same text once whole floats are written as integers."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(each) for key, each in value.items()}
        if isinstance(value, list):
            return [plain(each) for each in value]
        if isinstance(value, float) and value.is_integer() and abs(value) <= 2**53:
            return int(value) if value or math.copysign(1, value) > 0 else value
        return value

    return json.dumps(plain(one), sort_keys=True) == json.dumps(plain(other), sort_keys=True)


@pytest.mark.slow
@settings(max_examples=50)
@given(OBJECTS)
def test_what_is_packed_is_unpacked_as_the_same_json(value: dict[str, Any]) -> None:
    packed = pack(value)
    assert packed.json is None
    assert same(unpack(*packed), value)


@pytest.mark.slow
@settings(max_examples=50)
@given(OBJECTS)
def test_the_official_library_reads_what_we_write(value: dict[str, Any]) -> None:
    official = struct_pb2.Struct.FromString(encode_struct(value))
    expected = struct_pb2.Struct()
    json_format.ParseDict(value, expected)
    assert official == expected
    assert same(json_format.MessageToDict(official), value)


@pytest.mark.slow
@settings(max_examples=50)
@given(OBJECTS)
def test_we_read_what_the_official_library_writes(value: dict[str, Any]) -> None:
    official = json_format.ParseDict(value, struct_pb2.Struct())
    assert same(decode_struct(official.SerializeToString()), value)


@pytest.mark.slow
@given(OBJECTS, st.data())
def test_of_changed_bytes_we_understand_what_the_official_library_does(
    value: dict[str, Any], data: st.DataObject
) -> None:
    wire = bytearray(encode_struct(value) or b"\x0a\x04\x0a\x00\x12\x00")
    for _ in range(data.draw(st.integers(1, 3))):
        wire[data.draw(st.integers(0, len(wire) - 1))] = data.draw(st.integers(0, 255))
    agree(bytes(wire))


@given(st.binary(max_size=40))
def test_of_any_bytes_we_understand_what_the_official_library_does(wire: bytes) -> None:
    agree(wire)


def agree(wire: bytes) -> None:
    try:
        ours = decode_struct(wire)
    except InvalidStruct:
        ours = None
    try:
        official = struct_pb2.Struct.FromString(wire)
        size = official.ByteSize()
        official.DiscardUnknownFields()
        if (
            official.ByteSize() != size
        ):  # it sets a whole entry aside that has a field it does not know; Go's keeps the entry
            return
        theirs = json_format.MessageToDict(official)
    except (DecodeError, json_format.SerializeToJsonError, ValueError):
        theirs = None
    if ours is None and theirs is not None:
        assert has_group(wire)  # the one thing that we are stricter about
        return
    assert (ours is None) == (theirs is None)
    assert same(ours, theirs)


def has_group(wire: bytes) -> bool:
    return any(byte & 7 in (3, 4) for byte in wire)


@pytest.mark.parametrize(
    ("value", "wire"),
    [  # by hand, from protobuf.dev "Encoding": tag, length, content
        ({}, ""),
        ({"a": None}, "0a07 0a0161 1202 0800"),
        ({"a": True}, "0a07 0a0161 1202 2001"),
        ({"a": 1}, "0a0e 0a0161 1209 11000000000000f03f"),
        ({"a": "b"}, "0a08 0a0161 1203 1a0162"),
        ({"a": {}}, "0a07 0a0161 1202 2a00"),
        ({"a": [None]}, "0a0b 0a0161 1206 3204 0a02 0800"),
    ],
)
def test_the_bytes_are_those_of_the_encoding(value: dict[str, Any], wire: str) -> None:
    assert encode_struct(value) == bytes.fromhex(wire)
    assert decode_struct(bytes.fromhex(wire)) == value


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (3.0, "3"),
        (2.0**53, "9007199254740992"),
        (-(2.0**53), "-9007199254740992"),
        (2.0**53 + 2, "9007199254740994.0"),
        (-0.0, "-0.0"),
        (1e300, "1e+300"),
        (0.1, "0.1"),
    ],
)
def test_whole_numbers_are_integers_as_far_as_doubles_are_exact(number: float, text: str) -> None:
    wire = struct_pb2.Struct(
        fields={"n": struct_pb2.Value(number_value=number)}
    ).SerializeToString()
    assert json.dumps(decode_struct(wire)["n"]) == text


@pytest.mark.parametrize("number", [2**53 + 1, -(2**53) - 1, 2**53 + 2, 10**20, 2**64, 10**300])
def test_an_integer_that_a_double_may_lose_travels_as_json_beside_it(number: int) -> None:
    packed = pack({"n": [number]})
    assert packed.json == b'{"n":[%d]}' % number
    assert unpack(*packed) == {"n": [number]}
    assert decode_struct(packed.struct) == {"n": [float(number)]}  # what upstream peers see
    assert isinstance(unpack(*packed)["n"][0], int)


def test_a_text_of_json_travels_as_it_is_written() -> None:
    text = b'{ "n": 9007199254740993 }'
    assert pack_json(text) == PackedObject(encode_struct({"n": 2**53 + 1}), text)
    assert unpack_json(*pack_json(text)) == b'{"n":9007199254740993}'
    assert pack_json(b'{"a":1,"a":2}') == PackedObject(encode_struct({"a": 2}), None)


@pytest.mark.parametrize(
    "said",
    [
        b'{"n":9007199254740995}',  # another number
        b'{"n":9007199254740993,"m":1}',
        b'{"m":9007199254740993}',
        b'{"n":"9007199254740993"}',
        b"{",
        b"[]",
        b'{"n":NaN}',
        b'{"n":"\xff"}',
        b'{"n":' + b"[" * 500 + b"]" * 500 + b"}",
        b'{"n":' + b"[" * 200_000,
    ],
)
def test_json_that_says_something_else_than_the_struct_does_not_count(
    said: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    assert unpack(pack({"n": 2**53 + 1}).struct, said) == {"n": 2**53}
    assert "ignored the exact JSON" in caplog.text


def test_true_beside_one_is_something_else() -> None:
    assert unpack(encode_struct({"n": 1}), b'{"n":true}') == {"n": 1}
    assert unpack(encode_struct({"n": 1}), b'{"n":true}')["n"] is not True


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ({"n": math.nan}, "nan is no JSON number"),
        ({"n": math.inf}, "inf is no JSON number"),
        ({"n": "\ud800"}, "lone surrogate"),
        ({"\udfff": 1}, "lone surrogate"),
        ({"n": 10**400}, "too large for a double"),
        ({1: 2}, "expected a string, got int"),
        ({"n": b"bytes"}, "expected a JSON value, got bytes"),
        ({"n": {1, 2}}, "expected a JSON value, got set"),
    ],
)
def test_what_a_struct_cannot_hold_is_refused(value: dict[Any, Any], why: str) -> None:
    with pytest.raises(NotAStruct, match=why):
        pack(value)


@pytest.mark.parametrize(
    "text",
    [
        b"[]",
        b"3",
        b'"x"',
        b"",
        b"{",
        b'{"a":NaN}',
        b'{"a":1e400}',
        b'{"a":"\\ud800"}',
        b'{"a":"\xff"}',
    ],
)
def test_a_text_that_is_no_object_is_refused(text: bytes) -> None:
    with pytest.raises(NotAStruct):
        pack_json(text)


def nest(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels - 1):
        value = {"a": value}
    return value


def nest_as_bytes(levels: int) -> bytes:
    """As bytes, without the code under test: {"a": {"a": ...}} with so many levels of Struct."""

    def length(number: int) -> bytes:
        out = b""
        while number > 127:
            out += bytes([number & 127 | 128])
            number >>= 7
        return out + bytes([number])

    wire = b""
    for _ in range(levels - 1):
        value = b"\x2a" + length(len(wire)) + wire
        entry = b"\x0a\x01a\x12" + length(len(value)) + value
        wire = b"\x0a" + length(len(entry)) + entry
    return wire


def test_nesting_goes_as_deep_as_the_limit_and_no_deeper() -> None:
    assert encode_struct(nest(MAX_DEPTH)) == nest_as_bytes(MAX_DEPTH)
    assert decode_struct(nest_as_bytes(MAX_DEPTH)) == nest(MAX_DEPTH)
    with pytest.raises(NotAStruct, match="128 levels"):
        encode_struct(nest(MAX_DEPTH + 1))
    for levels in (MAX_DEPTH + 1, 10_000):
        with pytest.raises(InvalidStruct, match="128 levels"):
            decode_struct(nest_as_bytes(levels))
    deep: list[Any] = []
    for _ in range(MAX_DEPTH):
        deep = [deep]
    with pytest.raises(NotAStruct, match="128 levels"):
        pack({"a": deep})


def test_the_official_library_gives_up_long_before() -> None:
    """Why there is a codec of our own: what is 40 levels deep does not pass a decoder that knows
    the schema.
    """
    with pytest.raises(DecodeError):
        struct_pb2.Struct.FromString(nest_as_bytes(40))
    assert decode_struct(nest_as_bytes(40)) == nest(40)


@pytest.mark.parametrize(
    "wire",
    [
        "0a",  # no length
        "0a05 0a",  # less than it says
        "0a02 0a05",
        "0a0e 0a0161 1209 11000000000000f07f",  # infinity
        "0a0e 0a0161 1209 11000000000000f87f",  # NaN
        "0a05 0a0161 1203",
        "0a08 0a01ff 1203 1a0162",  # a key that is not UTF-8
        "0a08 0a0161 1203 1a01ff",
        "00",  # field 0
        "0b0c",  # a group
        "0a06 0a0161 1101 02",
        "80808080808080808080 01",  # a varint of eleven bytes
        "ffffffffffffffffff 7f",  # of more than 64 bits
    ],
)
def test_bytes_that_are_no_struct_are_refused(wire: str) -> None:
    with pytest.raises(InvalidStruct):
        decode_struct(bytes.fromhex(wire))


def test_fields_that_we_do_not_know_are_skipped() -> None:
    entry = encode_struct({"a": 1})
    unknown = (
        bytes.fromhex("f83e 9601")
        + bytes.fromhex("fa3e 03 616263")
        + bytes.fromhex("f93e")
        + struct.pack("<d", 1.5)
    )
    assert decode_struct(unknown + entry + unknown) == {"a": 1}


def test_what_does_not_fit_a_frame_together_names_both_sizes() -> None:
    text = "x" * (MAX_FRAME_BYTES // 2)
    assert pack({"text": text}).json is None
    with pytest.raises(
        PackedTooLarge, match=r"^83886\d\d bytes of Struct and 83886\d\d of the JSON"
    ):
        pack({"text": text, "n": 2**60})


@pytest.mark.parametrize("size", [0, 1, 100, 110, 117, 118, 119, 127, 128, 2_000_000])
def test_short_texts_and_long_ones_are_written_and_read_as_protobuf_does(size: int) -> None:
    for value in (
        {"text": "x" * size},
        {"é" * (size // 2): "short", "n": "y" * size},
        {"a": "", "": "b" * size},
    ):
        theirs = struct_pb2.Struct()
        theirs.update(value)
        ours = encode_struct(value)
        assert struct_pb2.Struct.FromString(ours) == theirs
        assert decode_struct(ours) == value
        assert decode_struct(theirs.SerializeToString(deterministic=True)) == value
        assert [*decode_struct(ours)] == [*value]


@given(st.dictionaries(TEXTS, TEXTS, max_size=3), st.integers(0, 200), st.binary(max_size=2))
def test_texts_that_were_tampered_with_mean_what_protobuf_says(
    value: dict[str, str], at: int, put: bytes
) -> None:
    """Or are refused: a Struct of texts has a way of its own, which must not take anything else for
    one.
    """
    data = encode_struct(value)
    changed = data[: at % (len(data) + 1)] + put + data[at % (len(data) + 1) + len(put) :]
    try:
        theirs = json_format.MessageToDict(struct_pb2.Struct.FromString(changed))
    except (DecodeError, ValueError):  # ValueError: a value that is unset
        return
    try:
        ours = decode_struct(changed)
    except InvalidStruct:  # groups, which proto3 has none of
        return
    if None not in ours.values():  # unset is null for us, and nothing for them
        assert same(ours, theirs)
