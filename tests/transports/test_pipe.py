"""transports/pipe.py: frames over descriptors, with writes and reads that fail, fall short or must
wait.

os.write and os.read are replaced where a system does not do such things on demand; what goes out is
compared byte by byte.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import random
import socket
import tracemalloc
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import uvloop
from loops import on_a_loop
from transports.receiving import Receiver

from concertino.jsonrpc.limits import Limits
from concertino.transports import pipe as pipe_module
from concertino.transports.pipe import PipeConnection
from concertino.transports.pipe_capacity import MAX_ENLARGED, PipeCapacities

FRAMES = [b'{"a":1}', "é😀".encode(), b"x" * 1000, b"", b"last"]
WIRE = b"".join(frame + b"\n" for frame in FRAMES)


class Ends:
    """A Pipe and the other ends of its two pipes."""

    def __init__(self, limits: Limits | None = None) -> None:
        there, self.writing = os.pipe()
        self.reading, back = os.pipe()
        self.pipe = PipeConnection(there, back, limits or Limits())
        self.receiver = Receiver()
        self.pipe.open(self.receiver)

    @property
    def told(self) -> list[Any]:
        return self.receiver.told

    def read(self) -> bytes:
        os.set_blocking(self.reading, False)
        data = b""
        try:
            while chunk := os.read(self.reading, 1 << 20):
                data += chunk
        except BlockingIOError:
            pass
        return data

    async def close(self) -> None:
        await self.pipe.close(0.5)
        for descriptor in (self.writing, self.reading):
            try:
                os.close(descriptor)
            except OSError:
                pass


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


# Long messages


def capacity(descriptor: int) -> int:
    return fcntl.fcntl(descriptor, fcntl.F_GETPIPE_SZ)


@on_a_loop
async def test_a_pipe_is_enlarged_for_a_long_message_and_not_for_a_short_one() -> None:
    ends = Ends()
    usual = capacity(ends.reading)
    ends.pipe.send(b"x" * 32_000, None)
    assert capacity(ends.reading) == usual
    assert len(ends.read()) == 32_001
    # Neither end has read anything between the first and the last byte of this one.
    ends.pipe.send(b"x" * 1_000_000, None)
    assert ends.pipe.buffered_bytes == 0
    assert len(ends.read()) == 1_000_001
    await ends.close()


@on_a_loop
async def test_a_pipe_on_which_a_long_message_arrives_is_enlarged() -> None:
    ends = Ends()
    os.set_blocking(ends.writing, False)
    usual = capacity(ends.writing)
    message = b"x" * 900_000 + b"\n"
    left = memoryview(message)
    async with asyncio.timeout(20):
        while left:
            try:
                left = left[os.write(ends.writing, left) :]
            except BlockingIOError:
                await asyncio.sleep(0)
    await ends.receiver.until(lambda: bool(ends.told))
    assert ends.told == [message[:-1]]
    assert capacity(ends.writing) > usual
    await ends.close()


@on_a_loop
async def test_a_process_enlarges_only_few_pipes_and_counts_those_that_are_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Connections of earlier tests that were never closed count as well.
    monkeypatch.setattr(PipeCapacities, "_count", 0)
    many = [Ends() for _ in range(MAX_ENLARGED + 1)]
    usual = capacity(many[0].reading)
    for ends in many:
        ends.pipe.send(b"x" * 40_000, None)
    enlarged = [capacity(ends.reading) > usual for ends in many]
    assert enlarged == [True] * MAX_ENLARGED + [False]
    await many[0].close()
    many[-1].pipe.send(b"x" * 40_000, None)
    assert capacity(many[-1].reading) > usual
    for ends in many[1:]:
        await ends.close()


@on_a_loop
async def test_a_long_message_passes_through_a_socket_which_is_no_pipe() -> None:
    ours, theirs = socket.socketpair()
    connection = PipeConnection(ours.fileno(), ours.dup().detach(), Limits())
    ours.detach()
    connection.open(Receiver())
    theirs.setblocking(False)
    message = random.Random(2).randbytes(700_000)
    connection.send(message, None)
    received = b""
    async with asyncio.timeout(20):
        while len(received) < len(message) + 1:
            try:
                received += theirs.recv(2**20)
            except BlockingIOError:
                await asyncio.sleep(0)
    assert received == message + b"\n"
    theirs.close()
    await connection.close(1)


# Writing


@on_a_loop
@pytest.mark.parametrize("first", [b"", b"first\n"], ids=["alone", "queued"])
async def test_what_a_slow_reader_has_read_of_a_large_frame_is_freed(first: bytes) -> None:
    size = 10 * 2**20
    expected = sha256(first + random.Random(1).randbytes(size) + b"\n").digest()
    ends = Ends()
    read = sha256()
    left = len(first) + size + 1
    tracemalloc.start()
    try:
        if first:
            ends.pipe.write(first[:-1], None)
        ends.pipe.send(random.Random(1).randbytes(size), None)
        while left > 2**20:
            data = ends.read()
            left -= len(data)
            read.update(data)
            await asyncio.sleep(0)
        del data
        assert ends.pipe.buffered_bytes <= left
        assert tracemalloc.get_traced_memory()[0] < 3 * 2**20
    finally:
        tracemalloc.stop()
    while left:
        data = ends.read()
        left -= len(data)
        read.update(data)
        await asyncio.sleep(0)
    assert read.digest() == expected
    await ends.close()


@on_a_loop
@pytest.mark.parametrize(
    "sizes",
    [[10 * 2**20], [5, 10 * 2**20], [5000] * 2000, [900_000] * 12, [32_000, 40_000] * 100],
    ids=["one", "small before", "many small", "many large", "mixed"],
)
async def test_one_write_has_one_mib_at_most(
    sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the reader is slow, or the system could take everything at once."""
    real_write, real_writev = os.write, os.writev
    written: list[int] = []

    def write(descriptor: int, data: Any) -> int:
        written.append(len(data))
        return real_write(descriptor, data)

    def writev(descriptor: int, parts: Sequence[bytes]) -> int:
        written.append(sum(map(len, parts)))
        return real_writev(descriptor, parts)

    monkeypatch.setattr(pipe_module.os, "write", write)
    monkeypatch.setattr(pipe_module.os, "writev", writev)
    ends = Ends()
    frames = [random.Random(size).randbytes(size).replace(b"\n", b" ") for size in sizes]
    for frame in frames:
        ends.pipe.write(frame, None)
    ends.pipe.flush()
    left = sum(sizes) + len(sizes)
    received = sha256()
    async with asyncio.timeout(20):
        while left:
            data = ends.read()
            left -= len(data)
            received.update(data)
            await asyncio.sleep(0)
    assert received.digest() == sha256(b"".join(frame + b"\n" for frame in frames)).digest()
    assert max(written) <= 2**20 + 1
    monkeypatch.undo()
    await ends.close()


@on_a_loop
async def test_frames_leave_in_one_write_with_a_newline_each() -> None:
    ends = Ends()
    for frame in FRAMES:
        ends.pipe.write(frame, None)
    assert ends.read() == b""
    ends.pipe.flush()
    assert ends.read() == WIRE
    await ends.close()


@on_a_loop
async def test_write_says_how_many_bytes_are_held() -> None:
    ends = Ends()
    assert ends.pipe.write(b"12345", None) == 6
    assert ends.pipe.write(b"1", None) == 8
    ends.pipe.flush()
    assert ends.pipe.write(b"12", None) == 3
    await ends.close()


class Writes:
    """os.write that takes `size` bytes at a time, and refuses every second time if it is to."""

    def __init__(self, size: int, refuses: type[OSError] | None = None) -> None:
        self.out = b""
        self._size = size
        self._refuses = refuses
        self._turn = 0
        self._real = os.write

    def __call__(self, descriptor: int, data: Any) -> int:
        self._turn += 1
        if self._refuses is not None and self._turn % 2:
            raise self._refuses
        piece = bytes(data[: self._size])
        self.out += piece
        return len(piece)


@pytest.mark.parametrize("length", range(30))
def test_what_was_queued_meanwhile_leaves_too_however_many_writes_the_rest_took(
    length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by tests/simulation, seed 6310: the rest ended with the last write of a turn, and the
    queue was forgotten.
    """

    async def main() -> None:
        ends = Ends()
        writes = Writes(1, BlockingIOError)
        monkeypatch.setattr(pipe_module.os, "write", writes)
        ends.pipe.write(b"a" * length, None)
        ends.pipe.flush()  # refused
        ends.pipe.write(b"b", None)
        ends.pipe.flush()
        writes._refuses = None
        async with asyncio.timeout(10):
            while not writes.out.endswith(b"b\n"):
                await asyncio.sleep(0)
        monkeypatch.undo()
        assert writes.out == b"a" * length + b"\nb\n"
        await ends.close()

    asyncio.run(main())


def write_frame(pipe: PipeConnection, frame: bytes) -> None:
    pipe.write(frame, None)
    pipe.flush()


def send_frame(pipe: PipeConnection, frame: bytes) -> None:
    pipe.send(frame, None)


EITHER_WAY = pytest.mark.parametrize("put", [write_frame, send_frame])


@EITHER_WAY
@pytest.mark.parametrize("refuses", [None, BlockingIOError, InterruptedError])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 8, 9, 100, 1007, 1008, 5000])
def test_writes_that_fall_short_never_tear_or_repeat_a_frame(
    size: int,
    refuses: type[OSError] | None,
    put: Callable[[PipeConnection, bytes], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        ends = Ends()
        writes = Writes(size, refuses)
        monkeypatch.setattr(pipe_module.os, "write", writes)
        for frame in FRAMES:
            put(ends.pipe, frame)
        async with asyncio.timeout(20):
            while len(writes.out) < len(WIRE):
                await asyncio.sleep(0)
        await ends.pipe.close(5)
        monkeypatch.undo()
        assert writes.out == WIRE
        await ends.close()

    asyncio.run(main())


@EITHER_WAY
@pytest.mark.parametrize(
    "error",
    [BrokenPipeError, ConnectionResetError, OSError(errno.EIO, "x"), OSError(errno.ENOSPC, "x")],
)
def test_a_write_that_fails_at_any_byte_loses_the_connection_once(
    error: type[OSError] | OSError,
    put: Callable[[PipeConnection, bytes], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main(at: int) -> None:
        ends = Ends()
        out = b""

        def write(descriptor: int, data: Any) -> int:
            nonlocal out
            if len(out) == at:
                raise error
            piece = bytes(data[: min(50, at - len(out))])
            out += piece
            return len(piece)

        monkeypatch.setattr(pipe_module.os, "write", write)
        for frame in FRAMES:
            put(ends.pipe, frame)
        await ends.receiver.until(lambda: bool(ends.told))
        assert ends.pipe.write(b"more", None) == 0
        assert ends.pipe.send(b"more", None) == 0
        ends.pipe.flush()
        await ends.pipe.close(5)
        monkeypatch.undo()
        assert [told[0] for told in ends.told] == ["lost"]
        assert out == WIRE[:at]
        await ends.close()

    for at in range(0, len(WIRE), 13):
        asyncio.run(main(at))


@pytest.mark.parametrize(
    "loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"]
)
@pytest.mark.parametrize("is_full", [False, True])
@on_a_loop
async def test_a_reader_that_goes_away_is_noticed_without_a_write(
    is_full: bool,
    loop_factory: Any,  # read by on_a_loop
) -> None:
    ends = Ends()
    if is_full:
        # The loop also waits until it can write.
        ends.pipe.send(b"x" * 2**20, None)
    os.close(ends.reading)
    await ends.receiver.until(lambda: ends.told != [])
    assert ends.told == [("lost", "BrokenPipeError")]
    await ends.close()


@on_a_loop
async def test_output_beyond_the_high_water_mark_is_told_when_it_has_drained() -> None:
    ends = Ends(Limits(high_water_bytes=200_000, low_water_bytes=50_000))
    held = 0
    for _ in range(30):
        held = ends.pipe.write(b"x" * 9999, None)
    assert held >= 200_000  # a pipe takes 64 KiB of the 300,000
    assert ends.told == []
    out = 0
    async with asyncio.timeout(10):
        while not ends.told:
            out += len(ends.read())
            await asyncio.sleep(0)
    assert [told[0] for told in ends.told] == ["drained"]
    assert ends.told[0][1] < 50_000
    ends.pipe.flush()
    while out < 300_000:
        out += len(ends.read())
        await asyncio.sleep(0)
    assert [told[0] for told in ends.told] == ["drained"]
    await ends.close()


@on_a_loop
async def test_what_is_sent_at_once_and_not_taken_is_held_and_told_when_it_has_drained() -> None:
    ends = Ends(Limits(high_water_bytes=200_000, low_water_bytes=50_000))
    assert ends.pipe.send(b"small", None) == 0
    assert ends.pipe.send(b"x" * 999_999, None) >= 200_000
    assert ends.pipe.send(b"more", None) >= 200_000
    out = b""
    async with asyncio.timeout(10):
        while len(out) < 1_000_011:
            out += ends.read()
            await asyncio.sleep(0)
    assert out == b"small\n" + b"x" * 999_999 + b"\nmore\n"
    # Reported while output leaves, and at last that little is left.
    assert {told[0] for told in ends.told} == {"drained"}
    held = [told[1] for told in ends.told]
    assert held == sorted(held, reverse=True)
    assert held[-1] < 50_000
    await ends.close()


@on_a_loop
async def test_close_waits_for_a_slow_reader_but_not_for_ever() -> None:
    ends = Ends()
    for _ in range(100):
        ends.pipe.write(b"x" * 9999, None)
    await ends.pipe.close(0.05)
    await ends.pipe.close(5)  # again: nothing
    await ends.close()


@on_a_loop
async def test_close_flushes_all_that_is_read_in_time() -> None:
    ends = Ends()
    for _ in range(100):
        ends.pipe.write(b"x" * 9999, None)
    closing = asyncio.create_task(ends.pipe.close(20))
    out = b""
    while not closing.done() or len(out) < 1_000_000:
        out += ends.read()
        await asyncio.sleep(0)
    assert out == (b"x" * 9999 + b"\n") * 100
    await ends.close()


# Reading


@on_a_loop
async def test_frames_of_one_read_come_together_then_the_end() -> None:
    ends = Ends()
    os.write(ends.writing, b"one\ntwo\r\n\n\nthree\nfour")
    os.close(ends.writing)
    await ends.receiver.until(lambda: "ended" in ends.told)
    assert ends.told == [b"one", b"two", b"three", b"four", "ended"]
    await ends.close()


@on_a_loop
async def test_a_line_over_the_limit_is_told_once_and_the_next_is_given() -> None:
    ends = Ends(Limits(max_message_bytes=10))
    os.write(ends.writing, b"0123456789\n0123456789a\nnext\n" + b"y" * 50)
    await ends.receiver.until(lambda: len(ends.told) >= 4)
    os.write(ends.writing, b"y" * 50 + b"\nafter\n")
    os.close(ends.writing)
    await ends.receiver.until(lambda: "ended" in ends.told)
    kinds = [told if isinstance(told, bytes | str) else told[0] for told in ends.told]
    assert kinds == [b"0123456789", "overlong", b"next", "overlong", b"after", "ended"]
    await ends.close()


@on_a_loop
async def test_while_paused_nothing_is_read_and_after_it_everything() -> None:
    ends = Ends()
    ends.pipe.pause(True)
    ends.pipe.pause(True)
    os.write(ends.writing, b"one\n")
    for _ in range(5):
        await asyncio.sleep(0)
    assert ends.told == []
    ends.pipe.pause(False)
    ends.pipe.pause(False)
    await ends.receiver.until(lambda: bool(ends.told))
    os.close(ends.writing)
    await ends.receiver.until(lambda: "ended" in ends.told)
    assert ends.told == [b"one", "ended"]
    ends.pipe.pause(True)
    ends.pipe.pause(False)
    await ends.close()


@on_a_loop
async def test_a_receiver_that_pauses_inside_frames_gets_no_more() -> None:
    ends = Ends()
    real = ends.receiver.on_frames

    def pausing(batch: Sequence[bytes]) -> None:
        real(batch)
        ends.pipe.pause(True)

    ends.receiver.on_frames = pausing  # type: ignore[method-assign]
    os.write(ends.writing, b"one\n")
    await ends.receiver.until(lambda: bool(ends.told))
    os.write(ends.writing, b"two\n")
    for _ in range(5):
        await asyncio.sleep(0)
    assert ends.told == [b"one"]
    ends.pipe.pause(False)
    await ends.receiver.until(lambda: len(ends.told) == 2)
    await ends.close()


@pytest.mark.parametrize("error", [OSError(errno.EIO, "gone"), ConnectionResetError()])
def test_a_read_that_fails_is_the_end_of_input(
    error: OSError, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        ends = Ends()
        real = os.read

        def read(descriptor: int, size: int) -> bytes:
            if descriptor == ends.pipe._reading_fd:
                raise error
            return real(descriptor, size)

        monkeypatch.setattr(pipe_module.os, "read", read)
        os.write(ends.writing, b"x")
        await ends.receiver.until(lambda: bool(ends.told))
        assert ends.told == ["ended"]
        monkeypatch.undo()
        await ends.close()

    asyncio.run(main())


def test_interrupted_reads_lose_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        ends = Ends()
        real, turn = os.read, 0

        def read(descriptor: int, size: int) -> bytes:
            nonlocal turn
            turn += 1
            if descriptor == ends.pipe._reading_fd and turn % 3:
                raise (InterruptedError, BlockingIOError)[turn % 2]
            return real(descriptor, 5 if descriptor == ends.pipe._reading_fd else size)

        monkeypatch.setattr(pipe_module.os, "read", read)
        os.write(ends.writing, b"one\ntwo and more\nthree\n")
        os.close(ends.writing)
        await ends.receiver.until(lambda: "ended" in ends.told)
        assert ends.told == [b"one", b"two and more", b"three", "ended"]
        monkeypatch.undo()
        await ends.close()

    asyncio.run(main())


@on_a_loop
async def test_a_regular_file_is_read_by_a_thread_and_can_be_paused(tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"".join(b"%06d\n" % n for n in range(50_000)))
    receiver = Receiver()
    connection = PipeConnection(
        os.open(tmp_path / "in", os.O_RDONLY),
        os.open(tmp_path / "out", os.O_WRONLY | os.O_CREAT),
        Limits(),
    )
    connection.open(receiver)
    await receiver.until(lambda: len(receiver.told) > 0)
    connection.pause(True)
    for _ in range(3):
        await asyncio.sleep(0)
    seen = len(receiver.told)
    for _ in range(50):
        await asyncio.sleep(0)
    assert len(receiver.told) <= seen + 10_000  # at most one chunk more, which was under way
    connection.pause(False)
    await receiver.until(lambda: receiver.told[-1] == "ended")
    assert receiver.told[:-1] == [b"%06d" % n for n in range(50_000)]
    connection.write(b"answer", None)
    await connection.close(5)
    assert (tmp_path / "out").read_bytes() == b"answer\n"


@on_a_loop
async def test_closing_while_a_file_is_read_leaves_no_thread(tmp_path: Path) -> None:
    import threading

    (tmp_path / "in").write_bytes(b"x\n" * 1_000_000)
    receiver = Receiver()
    connection = PipeConnection(
        os.open(tmp_path / "in", os.O_RDONLY), os.open(os.devnull, os.O_WRONLY), Limits()
    )
    connection.open(receiver)
    await receiver.until(lambda: bool(receiver.told))
    await connection.close(0.1)
    for thread in threading.enumerate():
        if thread.name == "concertino-reader":
            await asyncio.to_thread(thread.join, 5)
            assert not thread.is_alive()


# Descriptors


@on_a_loop
async def test_everything_is_closed_at_the_end() -> None:
    before = open_descriptors()
    for _ in range(5):
        ends = Ends()
        await ends.close()
    assert open_descriptors() == before


@on_a_loop
async def test_one_descriptor_for_both_ways_is_closed_once() -> None:
    before = open_descriptors()
    ours, theirs = socket.socketpair()
    both = theirs.detach()
    pipe = PipeConnection(both, both, Limits())
    receiver = Receiver()
    pipe.open(receiver)
    ours.sendall(b"there\n")
    await receiver.until(lambda: receiver.told == [b"there"])
    pipe.write(b"back", None)
    await pipe.close(1.0)
    reused = os.dup(ours.fileno())  # gets the number that was just closed
    await pipe.close(1.0)
    os.close(reused)  # still open: the second close() did not touch it
    assert ours.recv(100) == b"back\n"
    assert ours.recv(100) == b""
    ours.close()
    assert open_descriptors() == before


@on_a_loop
async def test_what_was_never_opened_can_be_closed() -> None:
    before = open_descriptors()
    reading, writing = os.pipe()
    await PipeConnection(reading, writing, Limits()).close(1.0)
    assert open_descriptors() == before


@on_a_loop
async def test_what_is_closed_hears_nothing_more() -> None:
    ends = Ends()
    os.write(ends.writing, b"one\n")
    await ends.pipe.close(0)
    os.close(ends.reading)
    for _ in range(5):
        await asyncio.sleep(0)
    assert ends.told == []
    assert ends.pipe.write(b"x", None) == 0
    ends.pipe.flush()
    ends.pipe.pause(True)
    await ends.close()


@on_a_loop
async def test_the_flag_of_a_socket_is_put_back() -> None:
    ours, theirs = socket.socketpair()
    kept = os.dup(theirs.fileno())
    reading, writing = os.dup(theirs.fileno()), os.dup(theirs.fileno())
    assert os.get_blocking(kept)
    connection = PipeConnection(reading, writing, Limits())
    connection.open(Receiver())
    assert not os.get_blocking(kept)
    await connection.close(0)
    assert os.get_blocking(kept)
    os.close(kept)
    ours.close()
    theirs.close()


@on_a_loop
async def test_the_flag_of_an_inherited_pipe_is_left_alone() -> None:
    there, writing = os.pipe()
    reading, back = os.pipe()
    kept = [os.dup(there), os.dup(back)]
    connection = PipeConnection(there, back, Limits())
    connection.open(Receiver())
    assert all(map(os.get_blocking, kept))
    await connection.close(0)
    assert all(map(os.get_blocking, kept))
    for descriptor in (*kept, writing, reading):
        os.close(descriptor)


@on_a_loop
async def test_a_descriptor_that_fails_to_close_does_not_keep_the_other_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """close(2) on Linux: the descriptor is released, whatever is returned."""
    ends = Ends()
    closed: list[int] = []
    close = os.close

    def failing(descriptor: int) -> None:
        close(descriptor)
        closed.append(descriptor)
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(pipe_module.os, "close", failing)
    await ends.pipe.close(1)
    monkeypatch.undo()
    assert len(closed) == 2
    close(ends.reading)
    close(ends.writing)


@on_a_loop
async def test_input_for_which_there_is_no_memory_is_the_end_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_memory(self: object, chunk: bytes) -> None:
        raise MemoryError

    ends = Ends()
    monkeypatch.setattr(pipe_module.Framer, "feed", no_memory)
    os.write(ends.writing, b"x")
    await ends.receiver.until(lambda: "ended" in ends.told)
    monkeypatch.undo()
    ends.pipe.write(b"still", None)
    ends.pipe.flush()
    assert ends.read() == b"still\n"
    await ends.close()
