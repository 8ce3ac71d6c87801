"""transports/unread_input.py: what nobody has read of a pipe, and of what was never
written to it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import pytest

from concertino.client.pending_request import request_ids
from concertino.transports.unread_input import UnreadInput, read_back

# Strings with everything that could make an end of it look like a whole.
FRAME = json.dumps(
    {"jsonrpc": "2.0", "id": 7, "method": "m", "params": {"a": '{"id":1,"method":"x"}', "b": [{}]}}
).encode()


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reading, writing = os.pipe()
    yield reading, writing
    os.close(writing)


def test_what_is_in_a_pipe_without_a_reader_is_read_back(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    os.write(writing, b"one\ntwo\n")
    assert os.read(reading, 4) == b"one\n"
    os.close(reading)
    assert read_back(writing) == b"two\n"
    assert read_back(writing) == b""


def test_a_full_pipe_is_read_back_whole(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    os.set_blocking(writing, False)
    count = 0
    while True:
        try:
            count += os.write(writing, b"x" * 5000)
        except BlockingIOError:
            break
    os.close(reading)
    assert read_back(writing) == b"x" * count


def test_nothing_is_taken_from_somebody_who_may_still_read(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    os.write(writing, b"one\n")
    assert read_back(writing) == b""
    assert os.read(reading, 9) == b"one\n"
    os.close(reading)


def test_lines_are_put_together_from_the_pipe_and_the_buffers() -> None:
    unread = UnreadInput(100)
    unread.add((memoryview(b"ter\n"), b"third\n", b"unfinished"))
    assert unread.take(b"first\nla") == [b"first", b"later", b"third"]
    assert unread.take(b"") == []


def test_more_than_the_limit_counts_as_read() -> None:
    unread = UnreadInput(10)
    unread.add((b"12345\n", b"6789\n", b"0\n"))
    assert unread.take(b"") == [b"12345"]


@pytest.mark.parametrize("cut", range(len(FRAME) + 1))
def test_a_request_counts_only_if_nothing_of_it_was_read(cut: int) -> None:
    assert request_ids([FRAME[cut:]]) == ({7} if cut == 0 else set())
