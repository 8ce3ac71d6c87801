"""frames.py: every split of a stream gives the same frames, and no length makes memory be taken."""

from __future__ import annotations

import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from concertino.orchestra.frames import MAX_FRAME_BYTES, Assembler, FrameTooLarge, encode_frame


def test_a_frame_is_four_bytes_of_length_and_the_payload() -> None:
    assert encode_frame(b"") == b"\x00\x00\x00\x00"
    assert encode_frame(b"ab") == b"\x00\x00\x00\x02ab"
    assert encode_frame(b"x" * 258)[:4] == b"\x00\x00\x01\x02"


@given(st.lists(st.binary(max_size=300)), st.lists(st.integers(0, 1000)), st.binary(max_size=3))
def test_however_a_stream_is_cut_the_payloads_are_the_same(
    payloads: list[bytes], cuts: list[int], rest: bytes
) -> None:
    stream = b"".join(len(each).to_bytes(4, "big") + each for each in payloads) + rest
    places = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    assembler = Assembler()
    found = [each for at, to in pairwise(places) for each in assembler.feed(stream[at:to])]
    assert found == payloads
    assert assembler.buffered_bytes == len(rest)


def test_byte_for_byte_is_the_same_too() -> None:
    assembler = Assembler()
    stream = encode_frame(b"one") + encode_frame(b"") + encode_frame(b"three" * 100)
    assert [each for byte in stream for each in assembler.feed(bytes([byte]))] == [
        b"one",
        b"",
        b"three" * 100,
    ]
    assert assembler.buffered_bytes == 0


def test_the_limit_itself_is_allowed_and_one_byte_more_is_not() -> None:
    assembler = Assembler(10)
    assert assembler.feed(b"\x00\x00\x00\x0a" + b"x" * 10) == [b"x" * 10]
    with pytest.raises(FrameTooLarge, match="a frame of 11 bytes; at most 10 are allowed"):
        assembler.feed(b"\x00\x00\x00\x0b")
    assert len(encode_frame(bytes(MAX_FRAME_BYTES))) == MAX_FRAME_BYTES + 4
    with pytest.raises(FrameTooLarge, match="16777217"):
        encode_frame(bytes(MAX_FRAME_BYTES + 1))


@pytest.mark.parametrize("header", [b"\x01\x00\x00\x01", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff"])
def test_a_length_above_the_limit_is_refused_with_the_fourth_byte(header: bytes) -> None:
    assembler = Assembler()
    for byte in header[:3]:
        assert assembler.feed(bytes([byte])) == []
    with pytest.raises(FrameTooLarge):
        assembler.feed(header[3:])


def test_memory_grows_with_what_has_come_not_with_what_is_promised() -> None:
    tracemalloc.start()
    try:
        assemblers = [Assembler() for _ in range(100)]
        for each in assemblers:  # 1.6 GB are promised
            assert each.feed(MAX_FRAME_BYTES.to_bytes(4, "big") + b"x" * 1000) == []
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()
