"""MessageDelivery: delivers the messages of a server that arrive in one loop iteration together.

A proxy may get the responses to many calls at nearly the same time, each on a connection of its
own. If each of them were delivered alone, the proxy would also write each alone, and wake its
client each time. So MessageDelivery delivers the first message of a loop iteration at once, and the
others together in the next iteration
(docs/decisions/0099-responses-of-a-server-reach-the-client-together.md). WriteTurn does the same
for the responses that a server sends.
"""

from __future__ import annotations

import asyncio

from concertino.transports.connection import Receiver

__all__ = ["MessageDelivery"]

# If the held messages have more bytes than this, they are delivered at once.
HELD_BYTES = 64 * 1024


class MessageDelivery:
    """Passes the messages of a server to a Receiver, in the order of their arrival.

    The first message in an iteration of the event loop is passed at once, and all later messages of
    the iteration together in the next one. Messages that arrive before open() are dropped.
    """

    def __init__(self) -> None:
        self._receiver: Receiver | None = None
        # Whether a message was delivered in this loop iteration, so that _end() will be called.
        self._is_holding = False
        # The other messages of this loop iteration, which _end() delivers together.
        self._held: list[bytes] = []
        self._held_bytes = 0

    def open(self, receiver: Receiver) -> None:
        """Deliver the messages that arrive from now on to `receiver`."""
        self._receiver = receiver

    def deliver(self, frame: bytes, is_alone: bool) -> None:
        """Deliver a message now, or with others in the next loop iteration.

        frame: the message, as JSON.
        is_alone: True if no other message is expected in this loop iteration. If another one comes
            nevertheless, it is delivered at once, too.
        """
        receiver = self._receiver
        if receiver is None:
            return
        if not self._is_holding:
            if not is_alone:
                self._is_holding = True
                asyncio.get_running_loop().call_soon(self._end)
            receiver.on_frames((frame,))
            return
        self._held.append(frame)
        self._held_bytes += len(frame)
        if self._held_bytes > HELD_BYTES:
            self._pass_held()

    def disconnect(self, exc: Exception) -> None:
        """Report the end of the session, after the messages that have arrived before it.

        exc: the reason.
        """
        self._pass_held()
        if self._receiver is not None:
            self._receiver.on_disconnect(exc)

    def close(self) -> None:
        """Drop the held messages, and all messages that arrive later."""
        self._receiver = None
        self._held.clear()

    def _end(self) -> None:
        self._is_holding = False
        self._pass_held()

    def _pass_held(self) -> None:
        """Deliver the held messages, as one batch."""
        held, self._held, self._held_bytes = self._held, [], 0
        if held and self._receiver is not None:
            self._receiver.on_frames(held)
