"""QuicRpcConnection: a QUIC connection. Each of its streams carries one request and its responses.

It is the base class of the client side (quic_link.py), which sends requests, and of the server side
(quic_listener.py), which answers them. The package aioquic implements QUIC without I/O: it turns
received datagrams into events, and returns the datagrams to send. This class passes the received
datagrams to aioquic, handles the events, and sends the datagrams.

For each packet that is sent, aioquic visits all open streams, so a packet costs as much CPU time as
handling a request. Two rules keep packets few:

- All datagrams of one read are handled before any datagram is sent, on every connection (see
  SENDING). So one packet carries the responses to several requests.
- An acknowledgement waits a short time (ACK_S), so that it can share a packet with data.

A peer that was killed cannot close its connection. So a side that has received nothing for PING_S
seconds sends a QUIC ping, and ends the connection if nothing arrives within ANSWER_S seconds.
Sources: the Orchestra plugin protocol, "One bidirectional QUIC stream per RPC"; RFC 9000, section
13.2 for acknowledgements.
"""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from datetime import UTC, datetime
from math import inf
from typing import Any, cast

from concertino.installation import missing_extra
from concertino.orchestra.frames import MAX_FRAME_BYTES, Assembler, FrameTooLarge
from concertino.orchestra.handshake import ALPN, QuicConnection, peer_name

try:
    from aioquic.asyncio.protocol import QuicConnectionProtocol
    from aioquic.quic import events
    from aioquic.tls import Epoch
except ImportError:
    raise ImportError(missing_extra("a hub or plugin", "orchestra")) from None

__all__ = ["CANCELLED", "QuicRpcConnection", "describe_end"]

log = logging.getLogger("concertino.orchestra")

# All times in seconds.
# The longest time between two checks of a connection's time limits.
TICK_S = 5.0
# After PING_S without a packet, send a ping, and wait ANSWER_S for a packet. Their sum is less than
# 10 s, the time within which the loss of a peer must be noticed.
PING_S, ANSWER_S = 3.0, 5.0
# How long the acknowledgement of a packet waits for data that can share a packet with it. It is
# well within the 25 ms that aioquic promises the peer.
ACK_S = 0.01
# How long an acknowledgement waits if a second packet has arrived, or a packet is missing. This is
# aioquic's own value, the resolution of a loop's timers.
SECOND_ACK_S = 0.001
# Time limit for the handshake. The Go implementation has 5 s, but hundreds of clients may connect
# at once to a busy machine.
HANDSHAKE_S = 15.0
# Time limit for a frame to arrive completely, from its first byte.
FRAME_S = 30.0
# Limit for the total size of the incomplete frames of one connection. The total is computed only
# when an incomplete frame has more than LONG_FRAME_BYTES.
MAX_INCOMPLETE_BYTES = 4 * MAX_FRAME_BYTES
LONG_FRAME_BYTES = 65536
# The error code with which this package resets the stream of a cancelled request.
CANCELLED = 1


class _Sending(threading.local):
    """A context manager that delays sending: all connections send at the end of the `with` block.

    The object is thread-local, because each event loop runs in a different thread. The blocks of
    one thread are never nested.

    Attribute:
    connections: the connections that may have data to send, as the keys of a dict; None outside of
        a `with` block.
    """

    connections: dict[QuicRpcConnection, None] | None = None

    def __enter__(self) -> None:
        self.connections = {}

    def __exit__(self, *_: object) -> None:
        connections, self.connections = self.connections, None
        for connection in connections or ():
            try:
                connection.finish_read()
            # An error of one connection must not affect other connections.
            except Exception:
                log.exception("sending over QUIC failed")


SENDING = _Sending()


class QuicRpcConnection(QuicConnectionProtocol):
    """One side of a QUIC connection. It receives frames and enforces time limits.

    It is an asyncio protocol. Received datagrams come from a UdpSocket (udp.py) on the client side,
    and from the listener on the server side. A derived class

    - overrides the methods _on_...() for the events that it handles,
    - sends frames with _send(),
    - adds an Assembler to `_incomplete` for each stream on which it receives frames.
    """

    # aioquic has no public interface for some needs of this class and of the derived classes. The
    # attributes whose names begin with an underscore, such as _spaces, _streams_queue and
    # _close_event, are those of aioquic 1.7.

    def __init__(self, quic: QuicConnection) -> None:
        super().__init__(quic)
        # Number of a stream -> its incomplete frame, and when the frame began; 0.0 for a frame
        # without a time limit.
        self._incomplete: dict[int, tuple[Assembler, float]] = {}
        # Whether the handshake is finished.
        self._is_ready = False
        self._is_ended = False
        # When the timer of aioquic's base class fires. This may be earlier than aioquic needs it,
        # but never later.
        self._wakeup_at = inf
        # Whether transmit() will be called, at the end of SENDING or in the next loop iteration.
        self._is_transmit_scheduled = False
        # When the last datagram was received, and when the last ping was sent.
        self._last_received = self._last_ping = self._loop.time()
        # When the peer's certificate expires; None before the handshake is finished.
        self._expires: datetime | None = None
        # Calls _on_tick(), which checks the time limits.
        self._tick_timer = self._loop.call_later(HANDSHAKE_S, self._on_tick)

    # Methods that derived classes implement. `stream` is the number of a stream.

    def _on_handshake(self, name: str) -> None:
        """Handle the end of the handshake. name: the name in the peer's certificate."""

    def _on_frame(self, stream: int, payload: bytes) -> None:
        """Handle the payload of a complete frame."""

    def _expects_more(self, stream: int) -> bool:
        """Return whether another frame may follow on a stream."""
        return False

    def _on_stream_error(self, stream: int, reason: str) -> None:
        """Handle an error of a stream: no complete frame will arrive on it."""

    def _on_stop_sending(self, stream: int) -> None:
        """Handle STOP_SENDING: the peer reads no more data of this side on this stream."""

    def _on_reset(self, stream: int) -> None:
        """Handle RESET_STREAM: the peer has cancelled its data on this stream."""
        self._drop(stream, "the other side gave it up")

    def _on_end(self, code: int, reason: str) -> None:
        """Handle the end of the connection. Called once.

        code: the QUIC error code; 0 if a side has closed the connection without an error.
        reason: the reason that the peer or aioquic has given; often empty.
        """

    # Sending

    def datagram_received(self, data: bytes | str, addr: Any) -> None:
        """Handle a datagram. Call this inside `with SENDING`: answers are sent when the block ends.

        data: the content of the datagram.
        addr: the address of its sender.
        """
        quic = cast(Any, self._quic)
        self._last_received = now = self._loop.time()
        if not self._is_ready:
            quic.receive_datagram(data, addr, now=now)
            self._transmit_soon()
        else:
            # aioquic sets ack_at, the time at which it must send an acknowledgement. Replace it by
            # the time for which this package lets an acknowledgement wait.
            space = quic._spaces[Epoch.ONE_RTT]
            had_ack = space.ack_at is not None
            quic.receive_datagram(data, addr, now=now)
            if space.ack_at is not None:
                # An earlier packet is not acknowledged yet, or a packet is missing: the numbers of
                # the received packets have a gap.
                is_urgent = had_ack or len(space.ack_queue) > 1
                space.ack_at = min(space.ack_at, now + SECOND_ACK_S) if is_urgent else now + ACK_S
            connections = SENDING.connections
            if connections is not None:
                connections[self] = None
        self._process_events()

        # If the peer has closed the connection, report the end now. aioquic would report it only
        # after its draining period of a second.
        closing = quic._close_event
        if closing is not None:
            self._report_end(closing.error_code, closing.reason_phrase)

    def finish_read(self) -> None:
        """Call transmit() if there is data to send. Otherwise, set a timer for an acknowledgement.

        SENDING calls this method at the end of its `with` block.
        """
        streams = cast(Any, self._quic)._streams_queue
        # Buffered data may be sendable now, because the peer has raised a flow control limit or has
        # not received a packet.
        if self._is_transmit_scheduled or any(not item.sender.buffer_is_empty for item in streams):
            self.transmit()
            return

        # Otherwise only an acknowledgement may be due: set the timer for it. If none is due, the
        # datagrams may have changed what aioquic must do next: let _handle_timer() ask soon.
        ack_at = cast(Any, self._quic)._spaces[Epoch.ONE_RTT].ack_at
        due = self._loop.time() + ACK_S if ack_at is None else ack_at
        if due < self._wakeup_at:
            self._set_timer(due)

    def _send(self, stream: int, frame: bytes, is_last: bool = True) -> None:
        """Send a frame on a stream.

        is_last: whether the stream ends with this frame.
        """
        self._quic.send_stream_data(stream, frame, end_stream=is_last)
        self._transmit_soon()

    def _transmit_soon(self) -> None:
        """Schedule transmit() for the end of `with SENDING`, or for the next loop iteration."""
        if self._is_transmit_scheduled:
            return
        self._is_transmit_scheduled = True
        connections = SENDING.connections
        if connections is not None:
            connections[self] = None
        else:
            self._loop.call_soon(self.transmit)

    def transmit(self) -> None:
        """Send the datagrams that are due, and set the timer for the next ones."""
        # Whether _transmit_soon() was called, which is the case whenever there is new data.
        has_new_data = self._is_transmit_scheduled
        self._is_transmit_scheduled = False
        if self._transport is None or self._transport.is_closing():
            return

        # If an acknowledgement waits, make it due now, so that it shares a packet with the new
        # data.
        quic = cast(Any, self._quic)
        if has_new_data and self._is_ready:
            space = quic._spaces[Epoch.ONE_RTT]
            if space.ack_at is not None:
                space.ack_at = 0.0

        for data, address in quic.datagrams_to_send(now=self._loop.time()):
            self._transport.sendto(data, address)
        due = quic.get_timer()
        if due is not None and due < self._wakeup_at:
            self._set_timer(due)

    def _set_timer(self, when: float) -> None:
        """Set the timer to a time; replaces the time that was set before."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(when, self._handle_timer)
        self._wakeup_at = when

    def _handle_timer(self) -> None:
        """Let aioquic do what is due, such as sending lost data again.

        It overrides the method of aioquic's base class.
        """
        # asyncio may call this a moment before _wakeup_at, for which the timer was set.
        now = max(self._wakeup_at, self._loop.time())
        self._timer, self._wakeup_at = None, inf
        due = self._quic.get_timer()
        if due is not None and due <= now:
            self._quic.handle_timer(now=now)
        with SENDING:
            self._transmit_soon()
            self._process_events()

    # Receiving

    def quic_event_received(self, event: events.QuicEvent) -> None:
        """Handle an event of aioquic, whose base class calls this method for each event."""
        if isinstance(event, events.StreamDataReceived):
            self._on_data(event.stream_id, event.data, event.end_stream)
        elif isinstance(event, events.StreamReset):
            self._on_reset(event.stream_id)
        elif isinstance(event, events.StopSendingReceived):
            self._on_stop_sending(event.stream_id)
        elif isinstance(event, events.HandshakeCompleted):
            if event.alpn_protocol != ALPN:
                # The TLS alert no_application_protocol.
                self._quic.close(error_code=0x178, reason_phrase=f"expected {ALPN}")
                return
            name, self._expires = peer_name(self._quic)
            self._is_ready = True
            self._tick_timer.cancel()
            # The first ping may be due after PING_S.
            self._tick_timer = self._loop.call_later(min(TICK_S, PING_S), self._on_tick)
            self._on_handshake(name)
        elif isinstance(event, events.ConnectionTerminated):
            self._report_end(event.error_code, event.reason_phrase)

    def _on_data(
        self,
        stream: int,
        data: bytes,
        is_end: bool,
    ) -> None:
        """Handle data on a stream.

        is_end: whether the stream ends with this data.
        """
        entry = self._incomplete.get(stream)
        # Ignore the data if the last frame of this stream is complete or was dropped.
        if entry is None:
            return

        assembler = entry[0]
        try:
            payloads = assembler.feed(data) if data else []
        except FrameTooLarge as exc:
            self._drop(stream, str(exc))
            return

        for payload in payloads:
            # This is the last frame, so any more data on the stream is ignored.
            if not self._expects_more(stream):
                del self._incomplete[stream]
                self._on_frame(stream, payload)
                return
            self._on_frame(stream, payload)
            # _on_frame() may have ended the stream.
            if stream not in self._incomplete:
                return
        if is_end:
            self._drop(stream, "it ended without a whole frame")
        # The sum is computed for long frames only, because it takes time.
        elif (
            assembler.buffered_bytes > LONG_FRAME_BYTES
            and self._total_incomplete() > MAX_INCOMPLETE_BYTES
        ):
            self._drop(stream, f"more than {MAX_INCOMPLETE_BYTES} bytes of unfinished frames")

    def _total_incomplete(self) -> int:
        return sum(assembler.buffered_bytes for assembler, _ in self._incomplete.values())

    def _drop(self, stream: int, reason: str) -> None:
        """Drop the incomplete frame of a stream, if there is one, and report the error."""
        if self._incomplete.pop(stream, None) is not None:
            self._on_stream_error(stream, reason)

    def _stop(self, stream: int) -> None:
        """Tell the peer to send no more data on a stream. Does nothing if the stream has ended."""
        with suppress(ValueError):
            self._quic.stop_stream(stream, CANCELLED)

    # Time limits and the end

    def _on_tick(self) -> None:
        """Check the time limits, send a ping if one is due, and schedule the next check."""
        now = self._loop.time()
        reason = self._reason_to_end(now)
        if reason:
            self.disconnect(reason, reason)
            return

        for stream, (_, start) in list(self._incomplete.items()):
            if start and now - start > FRAME_S:
                self._drop(stream, f"a frame took more than {FRAME_S:g} s")

        due = self._last_received + PING_S
        if now >= due:
            # If a ping was sent after the last packet, only wait for the answer.
            if self._last_ping <= self._last_received:
                self._last_ping = now
                # Any packet counts as the answer, so the identifier of the ping does not matter.
                self._quic.send_ping(0)
            due = self._last_ping + ANSWER_S
        self._tick_timer = self._loop.call_at(min(due, now + TICK_S), self._on_tick)
        self.transmit()

    def _reason_to_end(self, now: float) -> str:
        """Return the reason to end the connection now; empty to keep it open."""
        if not self._is_ready:
            return "the handshake took too long"
        if self._expires is not None and datetime.now(UTC) > self._expires:
            return "the certificate has expired"
        # Count from the ping and not from the last packet, because this process itself may have
        # been suspended since that packet.
        is_unanswered = self._last_ping > self._last_received
        if is_unanswered and now - self._last_ping >= ANSWER_S:
            return f"nothing was heard for {now - self._last_received:.1f} s"
        return ""

    def disconnect(self, peer_reason: str, local_reason: str) -> None:
        """End the connection. Does nothing if it has ended already.

        peer_reason: the reason that is sent to the peer. For "", the peer's log says that the other
            side closed the connection.
        local_reason: the reason that is passed to _on_end().
        """
        if not self._is_ended:
            self.close(error_code=0, reason_phrase=peer_reason)
            self._report_end(0, local_reason)

    def _report_end(self, code: int, reason: str) -> None:
        """Stop the timer and call _on_end(). Later calls do nothing."""
        if not self._is_ended:
            self._is_ended = True
            self._tick_timer.cancel()
            self._on_end(code, reason)


def describe_end(code: int, reason: str) -> str:
    """Return a text for users that says why a connection ended.

    code: the QUIC error code; 0 if there is no error.
    reason: the reason that the peer or aioquic has given; may be empty.
    """
    # Shorten and escape the reason, because it may come from the peer.
    text = reason[:200].encode("unicode_escape").decode()
    if text:
        return text
    return f"QUIC error {code:#x}" if code else "the other side closed the connection"
