"""Frames of the plugin protocol: four bytes of length, big-endian, then a serialized PluginRequest or PluginResponse.

The length is looked at before memory is taken: a frame that says it is longer than MAX_FRAME_BYTES ends the conversation, since
what follows cannot be told apart from its content. Memory grows with the bytes that have come, not with the length they promise.
Source: the Orchestra plugin protocol, "Framing".
"""

from __future__ import annotations

from concertino.errors import ProtocolError

__all__ = ["HEADER_BYTES", "MAX_FRAME_BYTES", "Assembler", "FrameTooLarge", "framed"]

HEADER_BYTES = 4
MAX_FRAME_BYTES = 16 * 2**20  # of the payload alone; the protocol's limit in both directions


class FrameTooLarge(ProtocolError):
    """A payload is longer than a frame may be. size, limit: in bytes."""

    def __init__(self, size: int, limit: int = MAX_FRAME_BYTES) -> None:
        super().__init__(f"a frame of {size} bytes; at most {limit} are allowed")
        self.size = size
        self.limit = limit


def framed(payload: bytes) -> bytes:
    """The payload with its length before it. Raises FrameTooLarge."""
    if len(payload) > MAX_FRAME_BYTES:
        raise FrameTooLarge(len(payload))
    return len(payload).to_bytes(HEADER_BYTES, "big") + payload


class Assembler:
    """Collects what comes and gives the payloads of the frames that are complete, in time linear in the bytes.

    held: bytes of a frame that is not complete. 0: between two frames.
    """

    __slots__ = ("_held", "_limit", "_missing", "held")

    def __init__(self, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self._limit = max_frame_bytes
        self._held = bytearray()
        self._missing = HEADER_BYTES  # bytes without which nothing more can be said
        self.held = 0

    def feed(self, chunk: bytes | bytearray | memoryview) -> list[bytes]:
        """Take the next bytes. Returns the payloads they complete, in order.

        Raises FrameTooLarge for a length above the limit; the frames before it are lost, and nothing may be fed afterwards.
        """
        size = len(chunk) - HEADER_BYTES
        if not self.held and int.from_bytes(chunk[:HEADER_BYTES], "big") == size <= self._limit:
            return [bytes(chunk[HEADER_BYTES:])]  # the usual case of a short frame
        held = self._held
        held += chunk
        if (
            len(chunk) < self._missing
        ):  # the usual case of a long frame; the length before it is known to be allowed
            self._missing -= len(chunk)
            self.held = len(held)
            return []
        payloads: list[bytes] = []
        start = 0
        with memoryview(held) as view:
            while True:
                left = len(held) - start
                if left < HEADER_BYTES:
                    self._missing = HEADER_BYTES - left
                    break
                size = int.from_bytes(view[start : start + HEADER_BYTES], "big")
                if size > self._limit:
                    raise FrameTooLarge(size, self._limit)
                if left < HEADER_BYTES + size:
                    self._missing = HEADER_BYTES + size - left
                    break
                payloads.append(bytes(view[start + HEADER_BYTES : start + HEADER_BYTES + size]))
                start += HEADER_BYTES + size
        if start == len(held):
            self._held = bytearray()  # a long frame's memory goes with it
        else:
            del held[:start]
        self.held = len(self._held)
        return payloads
