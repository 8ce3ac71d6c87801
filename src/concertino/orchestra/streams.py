"""A QUIC connection as streams of one frame each way: what both ends of a link have in common, in the network's thread.

What is asked and answered on them is in quic.py. Sources: the Orchestra plugin protocol, "One bidirectional QUIC stream per RPC";
RFC 9000.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, cast

from concertino.orchestra.frames import MAX_FRAME_BYTES, Assembler, FrameTooLarge
from concertino.orchestra.handshake import ALPN, QuicConnection, peer_name
from concertino.orchestra.network import Across

from aioquic.asyncio.protocol import QuicConnectionProtocol  # isort: skip  # handshake.py says what to install
from aioquic.quic import events  # isort: skip

__all__ = ["CANCELLED", "NetConnection", "reason"]

TICK_S = 5.0  # how often a connection looks at its clock
PING_S = 15.0  # upstream's period for keeping alive
GATHER_S = 0.0005  # for something to be sent along with an acknowledgement; saves a sixth of the CPU time of a call
HANDSHAKE_S = 5.0
FRAME_S = 30.0  # for a frame to be complete once it has begun
MAX_ARRIVING_BYTES = 4 * MAX_FRAME_BYTES  # of frames that are not complete, of one connection
CANCELLED = 1  # the code of our resets


class NetConnection(QuicConnectionProtocol):
    """What both ends have in common: streams of frames, a clock, and a word when it is over."""

    def __init__(self, quic: QuicConnection, across: Across) -> None:
        super().__init__(quic)
        self._across = across
        self._arriving: dict[int, tuple[Assembler, float]] = {}  # stream -> its frame so far, and when it began
        self._ready = False
        self._ended = False
        self._pinged = self._began = self._loop.time()
        self._expires: datetime | None = None
        self._clock = self._loop.call_later(TICK_S, self._tick)

    # Derived classes say what these mean.

    def _opened(self, name: str) -> None:
        """The handshake is completed."""

    def _taken(self, stream: int, payload: bytes) -> None:
        """A frame is complete."""

    def _broken(self, stream: int, why: str) -> None:
        """There will be no frame on this stream."""

    def _unwanted(self, stream: int) -> None:
        """The other side does not want what is sent on this stream."""

    def _over(self, code: int, why: str) -> None:
        """The connection has ended."""

    def datagram_received(self, data: bytes | str, addr: Any) -> None:
        """As aioquic's, but what is due is sent a moment later: with the response, or for several datagrams at once.

        Without that, an acknowledgement of its own is built between a request and its response, or none is found to be due.
        """
        self._quic.receive_datagram(cast(bytes, data), addr, now=self._loop.time())
        self._process_events()
        closing = cast(Any, self._quic)._close_event
        if closing is not None:
            # Refused, by us as well: aioquic tells of it a second later, when nothing can come any more.
            self.transmit()
            self._end(closing.error_code, closing.reason_phrase)
        elif self._transmit_task is None:
            self._transmit_task = self._loop.call_later(GATHER_S, self.transmit)

    def _transmit_soon(self) -> None:
        """Something new is to be sent: in this turn of the loop."""
        if isinstance(self._transmit_task, asyncio.TimerHandle):
            self._transmit_task.cancel()
            self._transmit_task = None
        super()._transmit_soon()

    def transmit(self) -> None:
        if self._transmit_task is not None:
            self._transmit_task.cancel()  # when something else sends before
        if self._transport is not None and not self._transport.is_closing():
            super().transmit()

    def quic_event_received(self, event: events.QuicEvent) -> None:
        if isinstance(event, events.StreamDataReceived):
            self._data(event.stream_id, event.data, event.end_stream)
        elif isinstance(event, events.StreamReset):
            self._drop(event.stream_id, "the other side gave it up")
        elif isinstance(event, events.StopSendingReceived):
            self._unwanted(event.stream_id)
        elif isinstance(event, events.HandshakeCompleted):
            if event.alpn_protocol != ALPN:
                self._quic.close(error_code=0x178, reason_phrase=f"expected {ALPN}")  # no_application_protocol
                return
            name, self._expires = peer_name(self._quic)
            self._ready = True
            self._opened(name)
        elif isinstance(event, events.ConnectionTerminated):
            self._end(event.error_code, event.reason_phrase)

    def _data(self, stream: int, data: bytes, end: bool) -> None:
        entry = self._arriving.get(stream)
        if entry is None:
            return  # its frame is complete, or it was given up: whatever else comes is overlooked
        try:
            payloads = entry[0].feed(data) if data else []
        except FrameTooLarge as why:
            self._drop(stream, str(why))
            return
        if payloads:
            del self._arriving[stream]
            self._taken(stream, payloads[0])
        elif end:
            self._drop(stream, "it ended without a whole frame")
        elif entry[0].held > 65536 and self._held() > MAX_ARRIVING_BYTES:
            self._drop(stream, f"more than {MAX_ARRIVING_BYTES} bytes of unfinished frames")

    def _held(self) -> int:
        return sum(assembler.held for assembler, _ in self._arriving.values())

    def _drop(self, stream: int, why: str) -> None:
        if self._arriving.pop(stream, None) is not None:
            self._broken(stream, why)

    def _stop(self, stream: int) -> None:
        """Ask the other side to send no more on a stream."""
        with suppress(ValueError):  # it is gone already
            self._quic.stop_stream(stream, CANCELLED)

    def _tick(self) -> None:
        self._clock = self._loop.call_later(TICK_S, self._tick)
        now = self._loop.time()
        if not self._ready and now - self._began > HANDSHAKE_S:
            self.close(error_code=0, reason_phrase="the handshake took too long")
        elif self._expires is not None and datetime.now(UTC) > self._expires:
            self.close(error_code=0, reason_phrase="the certificate has expired")
        else:
            for stream, (_, began) in list(self._arriving.items()):
                if began and now - began > FRAME_S:
                    self._drop(stream, f"a frame took more than {FRAME_S:g} s")
            if now - self._pinged >= PING_S:
                self._pinged = now
                self._quic.send_ping(0)
            self.transmit()

    def _end(self, code: int, why: str) -> None:
        if not self._ended:
            self._ended = True
            self._clock.cancel()
            self._over(code, why)


def reason(code: int, why: str) -> str:
    """The end of a connection in words; they may be the other side's."""
    said = why[:200].encode("unicode_escape").decode()
    return said or (f"QUIC error {code:#x}" if code else "the other side closed the connection")
