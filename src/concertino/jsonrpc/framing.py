r"""Framer: splits a byte stream into frames, one JSON text per line.

    framer = Framer(max_frame_bytes=1000)
    framer.feed(b'{"a":1}\n{"b"')    # [b'{"a":1}']
    framer.feed(b":2}\n")            # [b'{"b":2}']

A frame is one line without its "\n" or "\r\n". The framer skips empty lines, and does not check
that a frame is JSON.

A line that exceeds the limit is reported once, as an OversizeFrame, and the rest of the line is
discarded on arrival, so the memory stays bounded. The work is linear in the number of bytes,
however they are split into chunks.
Spec: 2026-07-28 basic/transports/stdio.
"""

from __future__ import annotations

__all__ = ["HEAD_BYTES", "Framer", "OversizeFrame"]

# How many bytes of an oversize frame are kept.
HEAD_BYTES = 512
# Shorter parts of an unfinished line are joined at once, so that a line that arrives byte by byte
# takes no more memory than its bytes.
PART_BYTES = 1024

# Integers, because `10 in chunk` is faster in CPython than `b"\n" in chunk`, which first tries to
# convert the bytes to an integer and handles the exception.
NEWLINE = 10
RETURN = 13


class OversizeFrame:
    """Represents a line that exceeds the limit.

    size: how many bytes of the line had arrived when it exceeded the limit.
    head: the first HEAD_BYTES bytes of the line, for error messages.
    """

    __slots__ = ("head", "size")

    def __init__(self, size: int, head: bytes = b"") -> None:
        self.size = size
        self.head = head


class Framer:
    r"""Collects chunks of bytes and returns the complete frames in them.

        framer = Framer(max_frame_bytes=1000)
        framer.feed(b'{"a":1}\n{"b"')    # [b'{"a":1}']
        framer.feed(b":2}\n")            # [b'{"b":2}']

    Empty lines are skipped.

    max_frame_bytes: the length of the longest frame. A longer line becomes an OversizeFrame.
    """

    __slots__ = ("_discarding", "_limit", "_parts", "_size")

    def __init__(self, max_frame_bytes: int) -> None:
        self._limit = max_frame_bytes
        # The beginning of a line whose newline has not arrived, in parts, and its length. To
        # collect a line of 1 MB takes 0.03 ms with a list, and took 0.8 ms with a bytearray.
        self._parts: list[bytes] = []
        self._size = 0
        # Whether the rest of an oversize line is being discarded.
        self._discarding = False

    def take_line(self, chunk: bytes) -> bytes | None:
        """Return the frame in `chunk` if the chunk is exactly one complete line.

        Otherwise returns None and consumes nothing, and the caller must pass the chunk to feed().
        This is also so for a line that is empty, is too long or contains a carriage return, and
        while the beginning of an earlier line is collected.
        """
        # This is a fast path for clients, which usually get the response to a call as one line. It
        # makes no list.
        if (
            1 < len(chunk) <= self._limit
            and chunk[-1] == NEWLINE
            and not self._parts
            and not self._discarding
        ):
            line = chunk[:-1]
            if NEWLINE not in line and RETURN not in line:
                return line
        return None

    def feed(self, chunk: bytes) -> list[bytes | OversizeFrame]:
        """Consume the next bytes of the stream and return the frames that are complete now.

        The OversizeFrame of a line is returned as soon as the line exceeds the limit.
        """
        # Search only the new chunk for newlines, never the parts again: the work stays linear.
        # split() takes 25 times as long as find(), so it is not used for the chunks of a long line:
        # most have no newline, and the last one usually has one at its end.
        end = chunk.find(b"\n")
        if end < 0:
            return self._add_part(chunk)
        if self._parts and end == len(chunk) - 1:
            line = self._complete_line(memoryview(chunk)[:-1])
            return [frame] if (frame := self._check_length(line)) else []
        lines = chunk.split(b"\n")
        rest = lines.pop()

        needs_check = RETURN in chunk or len(chunk) > self._limit
        if self._parts or self._discarding:
            lines[0] = self._complete_line(lines[0])
            needs_check = True

        # The type checker rejects a list[bytes] as a list[bytes | OversizeFrame], because other
        # code that holds the list could rely on its type. No other code holds this list.
        frames: list[bytes | OversizeFrame] = lines  # pyright: ignore[reportAssignmentType]
        if needs_check or b"" in lines:
            frames = [frame for line in lines if (frame := self._check_length(line))]

        return frames + self._add_part(rest) if rest else frames

    def _add_part(self, part: bytes) -> list[bytes | OversizeFrame]:
        """Add the next part of a line that has not ended, unless the line is being discarded.

        Returns an OversizeFrame in a list if the line exceeds the limit now; otherwise an empty
        list.
        """
        if self._discarding or not part:
            return []
        parts = self._parts
        self._size += len(part)
        if parts and len(parts[-1]) < PART_BYTES:
            parts[-1] += part
        else:
            parts.append(part)
        # Allow one byte more, for the carriage return behind a frame of the maximum length.
        if self._size <= self._limit + 1:
            return []
        # The first part is long enough for the head: it has PART_BYTES, or is the only part.
        frame = OversizeFrame(self._size, parts[0][:HEAD_BYTES])
        self._forget_parts()
        self._discarding = True
        return [frame]

    def _forget_parts(self) -> None:
        self._parts.clear()
        self._size = 0

    def end(self) -> list[bytes | OversizeFrame]:
        """End the stream and return its last frame, if the last line has no newline.

        Returns a list of this one frame, or an empty list.
        """
        frame = self._check_length(self._complete_line(b""))
        return [frame] if frame else []

    @property
    def pending_bytes(self) -> int:
        """Return the size in bytes of the line that has begun but not ended."""
        return self._size

    @property
    def is_discarding(self) -> bool:
        """Return whether the rest of an oversize line is being discarded."""
        return self._discarding

    def _complete_line(self, line: bytes | memoryview) -> bytes:
        """Return the buffered beginning of a line joined with its end, and empty the buffer.

        If the beginning was discarded because the line is oversize, the end is discarded as well,
        and b"" is returned.
        line: the end of the line, up to its newline.
        """
        if self._discarding:
            self._discarding = False
            return b""

        whole = b"".join([*self._parts, line])
        self._forget_parts()
        return whole

    def _check_length(self, line: bytes) -> bytes | OversizeFrame:
        """Return the line without its "\\r", or an OversizeFrame if it exceeds the limit."""
        if line.endswith(b"\r"):
            line = line[:-1]
        return line if len(line) <= self._limit else OversizeFrame(len(line), line[:HEAD_BYTES])
