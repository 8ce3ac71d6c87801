"""Frames of the plugin protocol: four bytes of length, big-endian, then one serialized message.

Hubs, plugins and bridges exchange such frames. The message, the payload of the frame, is a
PluginRequest or a PluginResponse. A frame longer than MAX_FRAME_BYTES is refused as soon as its
length has arrived, and nothing after it can be read, because the receiver cannot find the start of
the next frame. Memory grows with the bytes received, not with the length in the header.
Source: the Orchestra plugin protocol, "Framing".
"""

from __future__ import annotations

from concertino.errors import ProtocolError

__all__ = ["HEADER_BYTES", "MAX_FRAME_BYTES", "Assembler", "FrameTooLarge", "encode_frame"]

# The header of a frame: the size of the payload as a big-endian integer.
HEADER_BYTES = 4
# The protocol's limit for the payload, without the header, in both directions.
MAX_FRAME_BYTES = 16 * 2**20


class FrameTooLarge(ProtocolError):
    """A payload is longer than the limit. size, limit: in bytes."""

    def __init__(self, size: int, limit: int = MAX_FRAME_BYTES) -> None:
        super().__init__(f"a frame of {size} bytes; at most {limit} are allowed")
        self.size = size
        self.limit = limit


def encode_frame(payload: bytes) -> bytes:
    """Return the frame of a payload: its length (4 bytes, big-endian), then the payload.

    Raises FrameTooLarge if the payload is longer than MAX_FRAME_BYTES.
    """
    if len(payload) > MAX_FRAME_BYTES:
        raise FrameTooLarge(len(payload))
    return len(payload).to_bytes(HEADER_BYTES, "big") + payload


class Assembler:
    """Assembles frames from a byte stream, in time linear in the number of bytes.

    max_frame_bytes: the largest payload that is accepted.

    Attribute:
    buffered_bytes: how many bytes of an incomplete frame have arrived, with its header; 0 if no
        frame is incomplete.
    """

    __slots__ = ("_buffer", "_limit", "_missing", "buffered_bytes")

    def __init__(self, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self._limit = max_frame_bytes
        self._buffer = bytearray()
        # How many bytes must arrive until the header, or the frame, is complete.
        self._missing = HEADER_BYTES
        self.buffered_bytes = 0

    def feed(self, chunk: bytes | bytearray | memoryview) -> list[bytes]:
        """Add received bytes, and return the payloads of the frames that they complete, in order.

        Raises FrameTooLarge for a frame whose length is above the limit. The payloads of complete
        frames before it in the same chunk are lost. Do not call feed() again after this error.
        """
        # Fast path: the chunk is exactly one frame, as most short messages are.
        size = len(chunk) - HEADER_BYTES
        if (
            not self.buffered_bytes
            and int.from_bytes(chunk[:HEADER_BYTES], "big") == size <= self._limit
        ):
            return [bytes(chunk[HEADER_BYTES:])]

        buffer = self._buffer
        buffer += chunk

        # Fast path: the chunk completes neither header nor frame, as in the middle of a long frame.
        if len(chunk) < self._missing:
            self._missing -= len(chunk)
            self.buffered_bytes = len(buffer)
            return []

        payloads, start = self._split(buffer)
        if start == len(buffer):
            # A new object, so that the memory of a long frame is released.
            self._buffer = bytearray()
        else:
            del buffer[:start]
        self.buffered_bytes = len(self._buffer)
        return payloads

    def _split(self, buffer: bytearray) -> tuple[list[bytes], int]:
        """Return the payloads of the complete frames and the offset after the last of them."""
        payloads: list[bytes] = []
        start = 0
        with memoryview(buffer) as view:
            while True:
                left = len(buffer) - start
                if left < HEADER_BYTES:
                    self._missing = HEADER_BYTES - left
                    return payloads, start

                size = int.from_bytes(view[start : start + HEADER_BYTES], "big")
                if size > self._limit:
                    raise FrameTooLarge(size, self._limit)
                if left < HEADER_BYTES + size:
                    self._missing = HEADER_BYTES + size - left
                    return payloads, start

                payloads.append(bytes(view[start + HEADER_BYTES : start + HEADER_BYTES + size]))
                start += HEADER_BYTES + size
