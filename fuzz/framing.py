"""framing.Framer: however a stream is cut, it gives the frames that a model of five lines gives,
and holds no more than the limit.

Input: one byte for the limit, three for the sizes of the chunks (used in turn, 0 is an empty
chunk), then the stream.
"""

from __future__ import annotations

from concertino.jsonrpc.framing import Framer, OversizeFrame

__all__ = ["MAX_BYTES", "TOKENS", "one"]

MAX_BYTES = 320
TOKENS = (
    b"\n",
    b"\r",
    b"\r\n",
    b"\n\n",
    b"\n\r\n",
    b"\r\r\n",
    b"\xef\xbb\xbf",
    b"0123456789abcdef",
)


def one(data: bytes) -> None:
    """See the head of this file."""
    if len(data) < 4:
        return
    limit = 1 + data[0]
    sizes = [size % 97 for size in data[1:4]]
    if not any(sizes):
        sizes = [1, 1, 1]
    stream = data[4:]
    framer = Framer(limit)
    given: list[bytes | None] = []
    at = turn = 0
    while at < len(stream):
        size = (
            sizes[turn % 3] if turn < 12 else len(stream)
        )  # many small chunks say nothing that some do not
        turn += 1
        chunk = stream[at : at + size]
        at += size
        _collect(framer.feed(chunk), given, limit)
        held = framer._size  # pyright: ignore[reportPrivateUsage]  # that it is bounded is the point
        assert held <= limit + 1, f"{held} bytes held with a limit of {limit}"
        complete, _, rest = stream[:at].rpartition(b"\n")
        early = (
            [None] if len(rest) > limit + 1 else []
        )  # one more may be the carriage return of a full line
        assert given == _model(complete, limit) + early, f"after {at} bytes: {given}"
    _collect(framer.end(), given, limit)
    wanted = _model(stream, limit)
    assert given == wanted, f"in chunks: {given}, expected {wanted}"
    whole = Framer(limit)
    given = []
    _collect(whole.feed(stream), given, limit)
    _collect(whole.end(), given, limit)
    assert given == wanted, f"at once: {given}, expected {wanted}"


def _model(stream: bytes, limit: int) -> list[bytes | None]:
    """The frames of a stream; None where one is too long."""
    lines = [line[:-1] if line.endswith(b"\r") else line for line in stream.split(b"\n")]
    return [line if len(line) <= limit else None for line in lines if line]


def _collect(frames: list[bytes | OversizeFrame], given: list[bytes | None], limit: int) -> None:
    for frame in frames:
        if isinstance(frame, OversizeFrame):
            assert frame.size > limit, f"{frame.size} bytes are too many for {limit}"
            given.append(None)
        else:
            given.append(frame)
