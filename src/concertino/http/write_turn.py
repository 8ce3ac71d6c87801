"""WriteTurn: writes most responses of one loop iteration together, in the next iteration.

A client process on the same machine sleeps until a response arrives, and waking it is the most
expensive part of sending a small response. A client process with many connections, such as a
reverse proxy, falls asleep again between two responses of one loop iteration, and each response
wakes it again. So the first response of an iteration is written at once, and all other responses of
this iteration are written together in the next one. With 64 connections of one program, a call
takes about a tenth less CPU time
(docs/decisions/0082-responses-of-one-iteration-leave-together.md).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sized

__all__ = ["WriteTurn"]

# Larger output is written at once, so that the transport counts it as unread from the beginning.
SMALL_BYTES = 16 * 1024


class WriteTurn:
    """Writes the small outputs of several connections together, to wake their client only once.

    All connections of a server share one object. The first output of a loop iteration is written at
    once, and all later outputs of this iteration in the next one. The output of each connection
    stays in order.

    connections: the open connections of the server, of which only the number is used. If there is
        only one, no output is held back.
    """

    def __init__(self, connections: Sized) -> None:
        self._connections = connections
        self._loop = asyncio.get_running_loop()
        # Whether something was written in this loop iteration, so that small output is held until
        # end() is called in the next one.
        self._holds_output = False
        # The output that waits for the next loop iteration.
        self._held: list[tuple[asyncio.Transport, bytes]] = []

    def write(self, transport: asyncio.Transport, data: bytes) -> None:
        """Write output to a transport now, or hold it until the next loop iteration.

        Output of more than 16 KiB is written at once, after all output that is held.
        """
        # Large results make iterations long. The held output should not wait for one more
        # iteration, and of the same transport, it must be written first.
        if len(data) > SMALL_BYTES:
            self.end()
            transport.write(data)
        elif self._holds_output:
            self._held.append((transport, data))
        else:
            if len(self._connections) > 1:
                self._holds_output = True
                self._loop.call_soon(self.end)
            transport.write(data)

    def end(self) -> None:
        """Write the held output. A connection must call this before it closes its transport."""
        self._holds_output = False
        held, self._held = self._held, []
        for transport, data in held:
            try:
                transport.write(data)
            # An error of one transport must not keep the output of other transports from being
            # written.
            except Exception as exc:
                self._loop.call_exception_handler(
                    {"message": "a response was not written", "exception": exc}
                )
