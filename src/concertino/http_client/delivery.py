"""MessageDelivery: passes the messages of a server on, those of one loop iteration together.

A proxy that gets the responses to many calls at nearly the same time, each on a connection of its
own, would otherwise write each of them to its client alone, and wake the client each time. So the
first message of a loop iteration is delivered at once, and the others follow together in the next
one (docs/decisions/0099-responses-of-a-server-reach-the-client-together.md). WriteTurn does the
same for the responses of a server.
"""

from __future__ import annotations

import asyncio

from concertino.transports.connection import Receiver

__all__ = ["MessageDelivery"]

# When more than this is held, in bytes, everything is delivered at once.
HELD_BYTES = 64 * 1024


class MessageDelivery:
    """Passes messages to a Receiver, in the order in which they come. Before open(), drops them."""

    def __init__(self) -> None:
        self._receiver: Receiver | None = None
        # Whether a message was delivered in this loop iteration, so that _end() will be called.
        self._is_holding = False
        # The further messages of this loop iteration, which _end() delivers together.
        self._held: list[bytes] = []
        self._held_bytes = 0

    def open(self, receiver: Receiver) -> None:
        """Deliver the messages that come from now on to `receiver`."""
        self._receiver = receiver

    def deliver(self, frame: bytes, is_alone: bool) -> None:
        """Pass on a message now, or with others in the next loop iteration.

        is_alone: whether no other message is expected soon, so that the next one need not be held.
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
        """Report the end of the session, after the messages that came before it."""
        self._pass_held()
        if self._receiver is not None:
            self._receiver.on_disconnect(exc)

    def close(self) -> None:
        """Drop what is held, and all messages that come later."""
        self._receiver = None
        self._held.clear()

    def _end(self) -> None:
        self._is_holding = False
        self._pass_held()

    def _pass_held(self) -> None:
        """Deliver everything that is held, as one batch."""
        held, self._held, self._held_bytes = self._held, [], 0
        if held and self._receiver is not None:
            self._receiver.on_frames(held)
