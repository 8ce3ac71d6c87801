"""Bytes into frames: one JSON text per line, bounded, in time linear in what arrives.

A frame is the bytes between two newlines, without them and without a carriage return before the second. Whether it is JSON is
not asked here. Lines without a byte are no frames. Nothing beyond the limit is kept: a longer line is reported once, when it
passes the limit, and the rest of it is discarded as it comes.
Spec: 2026-07-28 basic/transports/stdio.
"""

from __future__ import annotations

__all__ = ["HEAD_BYTES", "Framer", "OversizeFrame"]

HEAD_BYTES = 512
# Numbers: CPython looks for one in bytes at once, and tries bytes as a number first, with an exception inside.
NEWLINE = 10
RETURN = 13


class OversizeFrame:
    """Stands in the place of a frame that passed the limit. size: bytes seen when it did; the rest is discarded.

    head: its first bytes, to say what it was.
    """

    __slots__ = ("head", "size")

    def __init__(self, size: int, head: bytes = b"") -> None:
        self.size = size
        self.head = head


class Framer:
    """Collects chunks and gives the complete frames in them.

    max_frame_bytes: the longest frame given; one byte more and it is Overlong.
    """

    __slots__ = ("_discarding", "_held", "_limit")

    def __init__(self, max_frame_bytes: int) -> None:
        self._limit = max_frame_bytes
        self._held = bytearray()  # an unfinished line
        self._discarding = False

    def line(self, chunk: bytes) -> bytes | None:
        """The frame in the next bytes if they are one whole line, what an answer to a call mostly is; no list is made of it.

        None: they are something else, and have not been taken: feed() takes them.
        """
        if (
            1 < len(chunk) <= self._limit
            and chunk[-1] == NEWLINE
            and not self._held
            and not self._discarding
        ):
            line = chunk[:-1]
            if NEWLINE not in line and RETURN not in line:
                return line
        return None

    def feed(self, chunk: bytes) -> list[bytes | OversizeFrame]:
        """Take the next bytes. Returns what they complete, in order. The newline is searched in the new chunk only."""
        lines = chunk.split(b"\n")
        rest = lines.pop()
        unusual = RETURN in chunk or len(chunk) > self._limit
        if lines and (self._held or self._discarding):
            lines[0] = self._finish(lines[0])
            unusual = True
        frames: list[bytes | OversizeFrame] = lines  # pyright: ignore[reportAssignmentType]  # nobody else holds the list
        if unusual or b"" in lines:
            frames = [frame for line in lines if (frame := self._checked(line))]
        if rest and not self._discarding:
            self._held += rest
            # One byte of grace: the last may be the carriage return of a line that is just as long as allowed.
            if len(self._held) > self._limit + 1:
                frames.append(OversizeFrame(len(self._held), bytes(self._held[:HEAD_BYTES])))
                self._held = bytearray()
                self._discarding = True
        return frames

    def end(self) -> list[bytes | OversizeFrame]:
        """No more bytes will come. Returns the last line if it had no newline."""
        frame = self._checked(self._finish(b""))
        return [frame] if frame else []

    @property
    def is_discarding(self) -> bool:
        """Whether a line passed the limit and has not ended since."""
        return self._discarding

    def _finish(self, line: bytes) -> bytes:
        """The held bytes and these, as one line; nothing of a line that is being discarded."""
        if self._discarding:
            self._discarding = False
            return b""
        self._held += line
        whole = bytes(self._held)
        self._held = bytearray()
        return whole

    def _checked(self, line: bytes) -> bytes | OversizeFrame:
        if line.endswith(b"\r"):
            line = line[:-1]
        return line if len(line) <= self._limit else OversizeFrame(len(line), line[:HEAD_BYTES])
