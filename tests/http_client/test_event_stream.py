"""Streams of events, by the rules of the HTML Standard. Rows of ../shared/spec/HTTP.md 5."""

from __future__ import annotations

import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from concertino.http_client.event_stream import EventStreamParser, EventTooLong

STREAM = (
    b"\xef\xbb\xbf: comment\r\nid: 1\r\nretry: 500\r\ndata:\r\n\r\n"
    b"event: message\rdata: {\"a\":\rdata: 1}\r\r"
    b"event: ping\ndata: {}\n\n"
    b"id: 2\ndata: \"\xe2\x80\xa8\x0b\x0c\"\n\n"
    b"id: 3\ndata: unfinished"
)  # fmt: skip
MESSAGES = [b'{"a":\n1}', b'"\xe2\x80\xa8\x0b\x0c"']


@given(st.lists(st.integers(0, len(STREAM)), max_size=8))
def test_messages_are_the_same_in_pieces_of_any_size(cuts: list[int]) -> None:
    parser = EventStreamParser(1000)
    ends = sorted({*cuts, 0, len(STREAM)})

    messages = [
        message for start, end in pairwise(ends) for message in parser.feed(STREAM[start:end])
    ]

    assert messages == MESSAGES
    # The last event has not ended, so its id does not count.
    assert (parser.last_id, parser.retry_s) == ("2", 0.5)


def test_every_single_byte_may_come_alone() -> None:
    parser = EventStreamParser(1000)

    messages = [message for byte in STREAM for message in parser.feed(bytes([byte]))]

    assert messages == MESSAGES


@pytest.mark.parametrize("piece", [1, 7, 100])
def test_an_event_over_the_limit_is_refused(piece: int) -> None:
    parser = EventStreamParser(50)
    stream = b"data: " + b"x" * 100

    def feed_all() -> None:
        for start in range(0, len(stream), piece):
            parser.feed(stream[start : start + piece])

    with pytest.raises(EventTooLong, match="more than 50 bytes"):
        feed_all()


def test_many_small_events_in_one_piece_are_no_long_event() -> None:
    assert len(EventStreamParser(50).feed(b"data: 12345\n\n" * 100)) == 100


def test_malformed_fields_are_ignored() -> None:
    parser = EventStreamParser(100)

    parser.feed(b"id: a\0b\nretry: 1.5\nretry: -1\nunknown: x\ndata\n\n")

    assert (parser.last_id, parser.retry_s) == ("", None)


def test_many_empty_lines_take_linear_time() -> None:
    """A chunk of newlines once took time by the square of its length: minutes for 256 KiB."""
    parser = EventStreamParser(1000)
    assert parser.feed(b"\n" * 2**20 + b"data: x\n\n") == [b"x"]


def test_a_stream_of_comments_without_an_empty_line_has_no_end() -> None:
    parser = EventStreamParser(100)
    for _ in range(1000):
        assert parser.feed(b": still here\n") == []
    assert parser.feed(b"data: x\n\n") == [b"x"]


def test_lines_without_a_value_count_as_well() -> None:
    parser = EventStreamParser(100)
    with pytest.raises(EventTooLong):
        parser.feed(b"data\n" * 1000)


def test_an_event_of_many_short_lines_takes_little_more_memory_than_its_bytes() -> None:
    parser = EventStreamParser(1_000_000)
    tracemalloc.start()
    parser.feed(b"data: ab\n" * 300_000)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert held < 2_000_000
    assert parser.feed(b"\n") == [b"\n".join([b"ab"] * 300_000)]


def test_an_id_that_is_too_long_for_a_header_is_ignored() -> None:
    parser = EventStreamParser(1_000_000)

    parser.feed(b"id: 1\ndata: {}\n\nid: %b\ndata: {}\n\n" % (b"9" * 4097))

    assert parser.last_id == "1"
