"""Splits a byte stream into frames: one JSON text per line, with a length limit.

A frame is the bytes between two newlines, without the newlines and without a carriage return
before the second one. The framer does not check that a frame is JSON. Empty lines are not frames.

Memory stays bounded: a line that exceeds the limit is reported once, as soon as it does, and the
rest of it is discarded as it arrives. The work is linear in the number of bytes, however they are
split into chunks.
Spec: 2026-07-28 basic/transports/stdio.
"""

from __future__ import annotations

__all__ = ["HEAD_BYTES", "Framer", "OversizeFrame"]

HEAD_BYTES = 512

# Numbers, not bytes: `10 in chunk` is a plain memchr in CPython, while `b"\n" in chunk` first tries
# to convert the bytes to a number and catches an exception internally.
NEWLINE = 10
RETURN = 13


class OversizeFrame:
    """Takes the place of a frame that exceeded the limit.

    size: number of bytes seen when the limit was exceeded; the rest of the line is discarded.
    head: the first HEAD_BYTES bytes, for error messages.
    """

    __slots__ = ("head", "size")

    def __init__(self, size: int, head: bytes = b"") -> None:
        self.size = size
        self.head = head


class Framer:
    """Collects chunks of bytes and returns the complete frames in them.

    max_frame_bytes: length of the longest frame that is returned; a longer one becomes an
    OversizeFrame.
    """

    __slots__ = ("_buffer", "_discarding", "_limit")

    def __init__(self, max_frame_bytes: int) -> None:
        self._limit = max_frame_bytes
        # The line that has no newline yet.
        self._buffer = bytearray()
        self._discarding = False

    def take_line(self, chunk: bytes) -> bytes | None:
        """Return the frame in `chunk` if the chunk is exactly one line; None otherwise.

        A fast path for clients: the response to a call usually arrives as one whole line, and no
        list has to be built for it. When this returns None, nothing was consumed; pass the chunk
        to feed().
        """
        if (
            1 < len(chunk) <= self._limit
            and chunk[-1] == NEWLINE
            and not self._buffer
            and not self._discarding
        ):
            line = chunk[:-1]
            if NEWLINE not in line and RETURN not in line:
                return line
        return None

    def feed(self, chunk: bytes) -> list[bytes | OversizeFrame]:
        """Consume the next bytes of the stream and return the frames they complete, in order."""
        # Only the new chunk is searched for newlines, so the time stays linear.
        lines = chunk.split(b"\n")
        rest = lines.pop()

        needs_check = RETURN in chunk or len(chunk) > self._limit
        if lines and (self._buffer or self._discarding):
            lines[0] = self._complete_line(lines[0])
            needs_check = True

        # Nobody else holds this list, so its elements may become OversizeFrames.
        frames: list[bytes | OversizeFrame] = lines  # pyright: ignore[reportAssignmentType]
        if needs_check or b"" in lines:
            frames = [frame for line in lines if (frame := self._check_length(line))]

        if rest and not self._discarding:
            self._buffer += rest
            # One byte more than the limit may be the carriage return of a line of maximum length.
            if len(self._buffer) > self._limit + 1:
                frames.append(OversizeFrame(len(self._buffer), bytes(self._buffer[:HEAD_BYTES])))
                self._buffer = bytearray()
                self._discarding = True
        return frames

    def end(self) -> list[bytes | OversizeFrame]:
        """Finish the stream and return its last line, if that had no newline."""
        frame = self._check_length(self._complete_line(b""))
        return [frame] if frame else []

    @property
    def is_discarding(self) -> bool:
        """Return whether the current line exceeded the limit and has not ended yet."""
        return self._discarding

    def _complete_line(self, line: bytes) -> bytes:
        """Return the buffered bytes followed by `line`; b"" if the line is being discarded."""
        if self._discarding:
            self._discarding = False
            return b""

        self._buffer += line
        whole = bytes(self._buffer)
        self._buffer = bytearray()
        return whole

    def _check_length(self, line: bytes) -> bytes | OversizeFrame:
        if line.endswith(b"\r"):
            line = line[:-1]
        return line if len(line) <= self._limit else OversizeFrame(len(line), line[:HEAD_BYTES])
