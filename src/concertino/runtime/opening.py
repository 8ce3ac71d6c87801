"""Holds back the first messages of a client while the backend is still starting.

Without this, a server would answer `initialize` at once, and if its backend then failed to start,
the client would only see the connection end. The first messages are therefore held back for up to
Limits.opening_s seconds. If the backend fails in this time, the client's first request gets an
error response with the reason. A frame is the JSON text of one message, or of one batch.

ServerConnection imports this module only if a message arrives before the backend has started.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from msgspec import Struct
from msgspec.json import Decoder

from concertino.decode_errors import DECODE_ERRORS

__all__ = ["EarlyInput", "FirstMessage", "is_handshake", "is_opening"]

# If a client sends more than this, its messages are not held back any longer.
MAX_FRAMES = 64
MAX_BYTES = 2**20
# The requests whose results say what a server offers.
OPENING_METHODS = frozenset(("initialize", "server/discover"))


class _Method(Struct):
    """The only member of a message that this module decodes."""

    method: str = ""


_decode = Decoder(_Method).decode


def is_opening(frame: bytes) -> bool:
    """Return whether a frame is `initialize` or `server/discover`; False for a malformed frame."""
    return _method_of(frame) in OPENING_METHODS


def is_handshake(frame: bytes) -> bool:
    """Return whether a frame is the request `initialize` of the revisions before MCP 2026-07-28."""
    return _method_of(frame) == "initialize"


def _method_of(frame: bytes) -> str:
    """Return the method of a frame, or "" for a malformed one."""
    try:
        return _decode(frame).method
    except DECODE_ERRORS:
        return ""


class FirstMessage:
    """Lets a task wait for the first message of a connection.

    ServerConnection makes one when a task calls opens_with_handshake(). When the first frame
    arrives, ServerConnection sets the result of `answer`, and then passes the frame to `receive`.

    receive: the function that gets the first frame and all later ones. ServerConnection replaces it
        if the backend starts, or fails to start, while the task waits.

    Attribute:
    answer: a future whose result says whether the first message is `initialize`.
    """

    def __init__(self, receive: Callable[[bytes], None]) -> None:
        self.receive = receive
        self.answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()


class EarlyInput:
    """The frames that a client has sent before the backend has started.

    until: the time until which the frames are held, by the loop's clock.
    release: must process the frames. Called on the loop at the time `until`, or sooner if there are
        MAX_FRAMES frames or more than MAX_BYTES.

    Attributes:
    frames: the frames in the order of their arrival.
    has_ended: whether the client's input has ended after these frames.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        until: float,
        release: Callable[[], object],
    ) -> None:
        self.frames: list[bytes] = []
        self.has_ended = False
        self._size = 0
        self._loop = loop
        self._release = release
        self._timer = loop.call_at(until, release)

    def hold_until(self, until: float) -> None:
        """Change the time until which the frames are held.

        until: the new time, by the loop's clock. It may be earlier or later than the time before.
        """
        self._timer.cancel()
        self._timer = self._loop.call_at(until, self._release)

    def hold(self, frame: bytes) -> None:
        """Add a frame. Schedules release() when there are too many frames or too many bytes."""
        self.frames.append(frame)
        size_before = self._size
        self._size += len(frame)
        # Schedule release() only for the frame with which a limit is reached, not for later ones.
        has_reached_count = len(self.frames) == MAX_FRAMES
        has_reached_size = size_before <= MAX_BYTES and self._size > MAX_BYTES
        if has_reached_count or has_reached_size:
            self._loop.call_soon(self._release)

    def end(self, within_s: float) -> None:
        """Record that the client's input has ended.

        The frames are then held for at most `within_s` more seconds.
        """
        self.has_ended = True
        self.hold_until(min(self._timer.when(), self._loop.time() + within_s))

    def close(self) -> None:
        """Cancel the timer, so that `release` is not called. The frames stay available."""
        self._timer.cancel()
