"""WriteTurn, with transports that record what is written."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from concertino.http.write_turn import SMALL_BYTES, WriteTurn

Written = list[tuple[str, bytes]]


class RecordingTransport(asyncio.Transport):
    def __init__(self, name: str, written: Written) -> None:
        super().__init__()
        self._name = name
        self._written = written

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._written.append((self._name, bytes(data)))


class BrokenTransport(asyncio.Transport):
    def write(self, data: bytes | bytearray | memoryview) -> None:
        raise RuntimeError("the writing side is closed")


Steps = Callable[[WriteTurn, asyncio.Transport, asyncio.Transport], object]


def run(steps: Steps, count: int = 2) -> tuple[Written, Written, list[Any]]:
    """Return what is written in the loop iteration of the steps, in the next one, and what the
    loop's exception handler gets.
    """
    written: Written = []
    failures: list[Any] = []

    async def main() -> tuple[Written, Written]:
        asyncio.get_running_loop().set_exception_handler(lambda _, about: failures.append(about))
        turn = WriteTurn(range(count))
        steps(turn, RecordingTransport("a", written), RecordingTransport("b", written))
        now = list(written)
        await asyncio.sleep(0)
        return now, written[len(now) :]

    now, later = asyncio.run(main())
    return now, later, failures


def test_the_first_output_is_written_at_once_and_the_rest_in_the_next_iteration() -> None:
    def steps(turn: WriteTurn, a: asyncio.Transport, b: asyncio.Transport) -> None:
        turn.write(a, b"1")
        turn.write(b, b"2")
        turn.write(a, b"3")

    assert run(steps) == ([("a", b"1")], [("b", b"2"), ("a", b"3")], [])


def test_with_a_single_connection_nothing_is_held() -> None:
    def steps(turn: WriteTurn, a: asyncio.Transport, _: asyncio.Transport) -> None:
        turn.write(a, b"1")
        turn.write(a, b"2")

    assert run(steps, count=1) == ([("a", b"1"), ("a", b"2")], [], [])


def test_large_output_is_written_at_once_behind_what_is_held() -> None:
    large = b"x" * (SMALL_BYTES + 1)

    def steps(turn: WriteTurn, a: asyncio.Transport, b: asyncio.Transport) -> None:
        turn.write(a, b"1")
        turn.write(b, b"2")
        turn.write(b, large)

    assert run(steps) == ([("a", b"1"), ("b", b"2"), ("b", large)], [], [])


def test_small_output_after_a_large_one_is_written_at_once() -> None:
    """The next iteration may send large results first, and so be long."""
    large = b"x" * (SMALL_BYTES + 1)

    def steps(turn: WriteTurn, a: asyncio.Transport, b: asyncio.Transport) -> None:
        turn.write(a, large)
        turn.write(b, b"1")
        turn.write(a, b"2")

    assert run(steps) == ([("a", large), ("b", b"1")], [("a", b"2")], [])


def test_end_writes_what_is_held_and_the_next_output_begins_another_turn() -> None:
    def steps(turn: WriteTurn, a: asyncio.Transport, b: asyncio.Transport) -> None:
        turn.write(a, b"1")
        turn.write(b, b"2")
        turn.end()
        turn.write(b, b"3")
        turn.write(a, b"4")

    assert run(steps) == ([("a", b"1"), ("b", b"2"), ("b", b"3")], [("a", b"4")], [])


def test_a_transport_that_fails_does_not_hold_up_the_others() -> None:
    def steps(turn: WriteTurn, a: asyncio.Transport, b: asyncio.Transport) -> None:
        turn.write(a, b"1")
        turn.write(BrokenTransport(), b"2")
        turn.write(b, b"3")

    now, later, failures = run(steps)
    assert (now, later) == ([("a", b"1")], [("b", b"3")])
    assert [str(about["exception"]) for about in failures] == ["the writing side is closed"]
