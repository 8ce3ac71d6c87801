"""A QUIC connection as streams of one frame each way: what both ends of a link have in common; and when it sends.

aioquic is without I/O: what is received makes events, and what is due is asked for. It is asked here once for all that one datagram
has brought about, on whichever connection: a response that came may let a task ask again, and a hub passes on what it was asked.
An acknowledgement goes with what is sent, and waits for that a little; a packet of its own costs as much as a request.
What is asked and answered on streams is in quic.py.
Sources: the Orchestra plugin protocol, "One bidirectional QUIC stream per RPC"; RFC 9000, section 13.2 for acknowledgements.
"""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from datetime import UTC, datetime
from math import inf
from typing import Any, cast

from concertino.orchestra.frames import MAX_FRAME_BYTES, Assembler, FrameTooLarge
from concertino.orchestra.handshake import ALPN, QuicConnection, peer_name

from aioquic.asyncio.protocol import QuicConnectionProtocol  # isort: skip  # handshake.py says what to install
from aioquic.quic import events  # isort: skip
from aioquic.tls import Epoch  # isort: skip

__all__ = ["CANCELLED", "QuicRpcConnection", "reason"]

log = logging.getLogger("concertino.orchestra")

TICK_S = 5.0  # how often a connection looks at its clock
PING_S = 15.0  # upstream's period for keeping alive
# How long an acknowledgement waits for something to go with: of one packet, well within the 25 ms that aioquic promises the peer;
# of a second, or when one is missing, aioquic's own 1 ms, which is as soon as the timers of a loop can.
ACK_S, SECOND_ACK_S = 0.01, 0.001
HANDSHAKE_S = 5.0
FRAME_S = 30.0  # for a frame to be complete once it has begun
MAX_ARRIVING_BYTES = 4 * MAX_FRAME_BYTES  # of frames that are not complete, of one connection
CANCELLED = 1  # the code of our resets


class _Reading(threading.local):
    """Who has something to send when what is being read in this thread is read."""

    connections: list[QuicRpcConnection] | None = None  # None: nothing is being read


_reading = _Reading()


class QuicRpcConnection(QuicConnectionProtocol):
    """What both ends have in common: streams of frames, a clock, and a word when it is over."""

    def __init__(self, quic: QuicConnection) -> None:
        super().__init__(quic)
        self._arriving: dict[
            int, tuple[Assembler, float]
        ] = {}  # stream -> its frame so far, and when it began
        self._ready = False
        self._ended = False
        self._looks_at = inf  # when it is looked whether something is due: not later than it is
        self._sends = False  # at the end of the reading, or in the next turn of the loop
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

    def _given_up(self, stream: int) -> None:
        """The other side sends no more on this stream, and what it has sent does not count."""
        self._drop(stream, "the other side gave it up")

    def _over(self, code: int, why: str) -> None:
        """The connection has ended."""

    # When it sends

    def datagram_received(self, data: bytes | str, addr: Any) -> None:
        quic = cast(Any, self._quic)
        now = self._loop.time()
        if not self._ready:
            quic.receive_datagram(data, addr, now=now)
            self._process_events_and_send(is_due=True)
        else:
            space = quic._spaces[Epoch.ONE_RTT]
            owed = space.ack_at is not None
            quic.receive_datagram(data, addr, now=now)
            if space.ack_at is not None:
                is_urgent = owed or len(space.ack_queue) > 1  # a second one, or one is missing
                space.ack_at = min(space.ack_at, now + SECOND_ACK_S) if is_urgent else now + ACK_S
            # What was received may let go on what was held back, or bring back what was lost.
            self._process_events_and_send(
                any(not each.sender.buffer_is_empty for each in quic._streams_queue)
            )
            due = (
                now + ACK_S if space.ack_at is None else space.ack_at
            )  # at the latest, for all else that was received
            if due < self._looks_at:
                self._look(due)
        closing = quic._close_event
        if closing is not None:
            # Refused, by us as well: aioquic tells of it a second later, when nothing can come any more.
            self._end(closing.error_code, closing.reason_phrase)

    def _process_events_and_send(self, is_due: bool) -> None:
        """Send at once what the events bring about, on whichever connection. is_due: here something is to be sent without them."""
        sending: list[QuicRpcConnection] = []
        _reading.connections = sending
        try:
            self._process_events()
        finally:
            _reading.connections = None
            if is_due and not self._sends:
                sending.append(self)
            for each in sending:
                try:
                    each.transmit()
                except Exception:  # the others are to send all the same
                    log.exception("sending over QUIC failed")

    def _send(self, stream: int, frame: bytes) -> None:
        """Send a frame and the end of its stream, in one call."""
        self._quic.send_stream_data(stream, frame, end_stream=True)
        self._transmit_soon()

    def _transmit_soon(self) -> None:
        """Something new is to be sent: when what is being read is read, else in the next turn of the loop."""
        if self._sends:
            return
        self._sends = True
        if _reading.connections is not None:
            _reading.connections.append(self)
        else:
            self._loop.call_soon(self.transmit)

    def transmit(self) -> None:
        """Send what is due, and see to it that this is called again when something else is."""
        is_new, self._sends = self._sends, False
        if self._transport is None or self._transport.is_closing():
            return
        quic = cast(Any, self._quic)
        if is_new and self._ready and (space := quic._spaces[Epoch.ONE_RTT]).ack_at is not None:
            space.ack_at = 0.0  # it goes with what is sent
        for data, address in quic.datagrams_to_send(now=self._loop.time()):
            self._transport.sendto(data, address)
        due = quic.get_timer()
        if due is not None and due < self._looks_at:
            self._look(due)

    def _look(self, when: float) -> None:
        """Look then whether something is due. What is there already, and later, is given up."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(when, self._handle_timer)
        self._looks_at = when

    def _handle_timer(self) -> None:
        now = max(self._looks_at, self._loop.time())
        self._timer, self._looks_at = None, inf
        due = self._quic.get_timer()
        if due is not None and due <= now:
            self._quic.handle_timer(now=now)
        self._process_events_and_send(is_due=True)

    def quic_event_received(self, event: events.QuicEvent) -> None:
        if isinstance(event, events.StreamDataReceived):
            self._data(event.stream_id, event.data, event.end_stream)
        elif isinstance(event, events.StreamReset):
            self._given_up(event.stream_id)
        elif isinstance(event, events.StopSendingReceived):
            self._unwanted(event.stream_id)
        elif isinstance(event, events.HandshakeCompleted):
            if event.alpn_protocol != ALPN:
                self._quic.close(
                    error_code=0x178, reason_phrase=f"expected {ALPN}"
                )  # no_application_protocol
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

    def leave(self, phrase: str, why: str) -> None:
        """End the connection. phrase: what the other side is told. why: what is said here."""
        if not self._ended:
            self.close(error_code=0, reason_phrase=phrase)
            self._end(0, why)

    def _end(self, code: int, why: str) -> None:
        if not self._ended:
            self._ended = True
            self._clock.cancel()
            self._over(code, why)


def reason(code: int, why: str) -> str:
    """The end of a connection in words; they may be the other side's."""
    said = why[:200].encode("unicode_escape").decode()
    return said or (f"QUIC error {code:#x}" if code else "the other side closed the connection")
