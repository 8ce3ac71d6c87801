"""framing.py: bytes into lines.

The reference is bytes.split on the whole stream; limits come from RELIABILITY sections 1 and 2.
"""

from __future__ import annotations

import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from concertino.jsonrpc.framing import Framer, OversizeFrame

RULES = settings(max_examples=400, deadline=None, derandomize=True)
TOO_LONG = "too long"

# A handshake, a call with a multi-byte character, CRLF, an empty line, and a last line without its
# newline.
DIALOGUE = (
    b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25"}}\n'
    b'{"jsonrpc":"2.0","method":"notifications/initialized"}\r\n'
    b"\n"
    b'{"jsonrpc":"2.0","id":2,"method":"tools/call",'
    b'"params":{"name":"\xe2\x80\xa8\xf0\x9f\x8e\xbb"}}\n'
    b'{"jsonrpc":"2.0","id":3,"method":"ping"}'
)
DIALOGUE_FRAMES = [
    b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25"}}',
    b'{"jsonrpc":"2.0","method":"notifications/initialized"}',
    b'{"jsonrpc":"2.0","id":2,"method":"tools/call",'
    b'"params":{"name":"\xe2\x80\xa8\xf0\x9f\x8e\xbb"}}',
    b'{"jsonrpc":"2.0","id":3,"method":"ping"}',
]


def frames(chunks: list[bytes], limit: int = 1000) -> list[bytes | str]:
    framer = Framer(limit)
    found = [frame for chunk in chunks for frame in framer.feed(chunk)] + framer.end()
    return [TOO_LONG if isinstance(frame, OversizeFrame) else frame for frame in found]


def reference(stream: bytes, limit: int) -> list[bytes | str]:
    """What the whole stream says when it is looked at in one piece."""
    lines = [line.removesuffix(b"\r") for line in stream.split(b"\n")]
    return [line if len(line) <= limit else TOO_LONG for line in lines if line]


@pytest.mark.requirement("FR-2")
def test_a_line_is_a_frame_without_its_newline():
    assert Framer(10).feed(b"abc\n") == [b"abc"]


def test_lines_of_one_chunk_come_in_order():
    assert Framer(10).feed(b"a\nb\nc\n") == [b"a", b"b", b"c"]


def test_an_unfinished_line_waits_for_its_newline():
    framer = Framer(10)
    assert framer.feed(b"ab") == []
    assert framer.feed(b"cd") == []
    assert framer.feed(b"e\nf") == [b"abcde"]
    assert framer.feed(b"\n") == [b"f"]


def test_an_empty_chunk_changes_nothing():
    framer = Framer(10)
    assert framer.feed(b"ab") == []
    assert framer.feed(b"") == []
    assert framer.feed(b"c\n") == [b"abc"]


def test_one_carriage_return_before_the_newline_is_removed():
    assert frames([b"a\r\nb\r\r\n\rc\n"]) == [b"a", b"b\r", b"\rc"]


def test_a_carriage_return_may_come_in_another_chunk_than_its_newline():
    assert frames([b"a\r", b"\nb", b"\r\n"]) == [b"a", b"b"]


def test_empty_lines_are_no_frames():
    assert frames([b"\n\r\n\na\n\n"]) == [b"a"]


@pytest.mark.requirement("FR-2")
def test_other_line_ends_are_content():
    separators = "\u2028\u2029\u0085\v\f\x1c\x1d\x1e".encode()
    assert frames([separators + b"\n"]) == [separators]


def test_a_last_line_without_newline_is_a_frame_at_the_end():
    framer = Framer(10)
    assert framer.feed(b"a\nb\r") == [b"a"]
    assert framer.end() == [b"b"]


def test_nothing_is_left_at_the_end_of_a_complete_line():
    framer = Framer(10)
    framer.feed(b"a\n")
    assert framer.end() == []


def test_a_line_as_long_as_the_limit_passes_and_one_byte_more_does_not():
    for end in (b"\n", b"\r\n", b""):
        for cut in range(6):
            assert frames([b"12345"[:cut], b"12345"[cut:] + end], limit=5) == [b"12345"]
            assert frames([b"123456"[:cut], b"123456"[cut:] + end], limit=5) == [TOO_LONG]


def test_a_long_line_in_one_chunk_does_not_take_its_neighbours_along():
    assert frames([b"a\n1234567\nb\n"], limit=5) == [b"a", TOO_LONG, b"b"]


def test_an_endless_line_is_reported_once_when_it_passes_the_limit_and_the_next_is_served():
    framer = Framer(5)
    assert framer.feed(b"123") == []
    assert (
        framer.feed(b"456") == []
    )  # may still be five bytes and a carriage return... it is not, but the next byte tells
    [overlong] = framer.feed(b"7")
    assert isinstance(overlong, OversizeFrame)
    assert overlong.size == 7
    for _ in range(100):
        assert framer.feed(b"x" * 100) == []
    assert framer.feed(b"x\nnext\n") == [b"next"]


def test_a_discarded_line_may_be_the_last():
    framer = Framer(5)
    framer.feed(b"1234567")
    assert framer.end() == []


def test_a_complete_long_line_tells_its_size():
    [overlong] = Framer(5).feed(b"1234567\n")
    assert isinstance(overlong, OversizeFrame)
    assert overlong.size == 7


def test_splitting_a_dialogue_at_every_byte_changes_nothing():
    assert frames([DIALOGUE]) == DIALOGUE_FRAMES
    for cut in range(len(DIALOGUE) + 1):
        assert frames([DIALOGUE[:cut], DIALOGUE[cut:]]) == DIALOGUE_FRAMES


def test_a_dialogue_in_chunks_of_any_one_size_is_the_same():
    for size in range(1, len(DIALOGUE) + 1):
        chunks = [DIALOGUE[at : at + size] for at in range(0, len(DIALOGUE), size)]
        assert frames(chunks) == DIALOGUE_FRAMES


def test_a_thousand_messages_in_one_write_are_a_thousand_frames():
    lines = [b'{"id":%d}' % number for number in range(1000)]
    assert frames([b"\n".join(lines) + b"\n"]) == lines


def test_it_discards_from_the_limit_to_the_end_of_the_line():
    framer = Framer(5)
    assert not framer.is_discarding
    framer.feed(b"x" * 10)
    assert framer.is_discarding
    framer.feed(b"x\n")
    assert not framer.is_discarding


def test_a_stream_without_newline_keeps_no_more_than_the_limit():
    framer = Framer(100_000)
    chunk = b"x" * 65536
    tracemalloc.start()
    try:
        for _ in range(200):  # 13 MB
            framer.feed(chunk)
        assert tracemalloc.get_traced_memory()[1] < 500_000
    finally:
        tracemalloc.stop()


SOME_BYTES = st.lists(
    st.sampled_from(
        [b"\n", b"\r", b"\r\n", b"a", b"bc", b"\xff", b"\x00", b'{"x":1}', b"0123456789"]
    ),
    max_size=40,
).map(b"".join)


@pytest.mark.no_cover
@RULES
@given(
    SOME_BYTES | st.binary(max_size=60),
    st.lists(st.integers(0, 400), max_size=12),
    st.integers(1, 30),
)
def test_any_chunking_of_any_bytes_gives_what_splitting_the_whole_gives(
    stream: bytes, cuts: list[int], limit: int
):
    places = sorted({0, len(stream), *(min(cut, len(stream)) for cut in cuts)})
    chunks = [stream[start:stop] for start, stop in pairwise(places)]
    assert frames(chunks, limit) == reference(stream, limit)


def test_it_says_how_much_of_an_unfinished_line_has_come() -> None:
    framer = Framer(max_frame_bytes=1000)
    assert framer.pending_bytes == 0
    framer.feed(b"one\n" + b"x" * 30)
    framer.feed(b"y" * 4)
    assert framer.pending_bytes == 34
    assert framer.feed(b"z\n") == [b"x" * 30 + b"yyyyz"]
    assert framer.pending_bytes == 0


def test_one_whole_line_is_given_as_it_is() -> None:
    assert Framer(10).take_line(b'{"id":12}\n') == b'{"id":12}'


@pytest.mark.parametrize(
    "chunk",
    [b"", b"\n", b'{"id":', b'{"id":1}\r\n', b"{}\n{}\n", b"{}\n{", b'{"id":123}\n'],
    ids=[
        "nothing",
        "an empty line",
        "a piece",
        "a carriage return",
        "two lines",
        "one and a piece",
        "the limit passed",
    ],
)
def test_what_is_not_one_whole_line_is_not_taken(chunk: bytes) -> None:
    framer = Framer(10)
    assert framer.take_line(chunk) is None
    assert framer.end() == []


def test_the_end_of_a_line_is_no_line() -> None:
    framer = Framer(10)
    framer.feed(b'{"id"')
    assert framer.take_line(b":1}\n") is None
    assert framer.feed(b":1}\n") == [b'{"id":1}']


def test_the_end_of_a_line_that_is_discarded_is_no_line() -> None:
    framer = Framer(10)
    framer.feed(b"x" * 20)
    assert framer.take_line(b"{}\n") is None
    assert framer.feed(b"{}\n") == []
    assert framer.take_line(b"{}\n") == b"{}"
