"""trace_connection(): wraps a Connection so that a function gets the text of every message.

    connection = trace_connection(connection, lambda direction, text: print(direction, text))

A frame is the JSON text of one JSON-RPC message or batch, as bytes. Secrets are removed from the
text that the function gets; the frames themselves are passed on unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from concertino.jsonrpc.messages import Id
from concertino.logs.redact import redactor
from concertino.transports.connection import (
    Connection,
    Receiver,
    SupportsDirectSend,
    SupportsOversizeReports,
    SupportsPolling,
    SupportsSubscriptions,
)

__all__ = ["TracedConnection", "trace_connection"]

# The type of a function show(direction, text). The direction is "->" for a sent frame and "<-" for
# a received one.
Show = Callable[[str, str], object]


def trace_connection(inner: Connection, show: Show) -> TracedConnection:
    """Return a Connection that forwards to `inner` and calls `show` for every frame.

    inner: a Connection that is not open yet.
    show: called as show(direction, text). The direction is "->" for a sent frame and "<-" for a
        received one; the text is the frame without secrets.

    The returned Connection implements the same optional interfaces of transports/connection.py as
    `inner`, so tracing does not change how messages are sent and received.
    """
    # Make a class that has the methods of the optional interfaces of `inner`, and no others.
    mixins = [mixin for protocol, mixin in _OPTIONAL_PARTS.items() if isinstance(inner, protocol)]
    traced: type[TracedConnection] = type("TracedConnection", (*mixins, TracedConnection), {})
    return traced(inner, show)


class TracedConnection:
    """Forwards everything to and from another Connection. Made by trace_connection().

    inner: the other Connection.
    show: called with "->" or "<-", and the frame as text without secrets.
    """

    def __init__(self, inner: Connection, show: Show) -> None:
        self._inner = inner
        self._show = show
        self._receiver: Receiver
        # A frame from send_and_poll() that was not the expected response. defer_line() delivers the
        # frame to on_frames() in the next loop iteration, where it must not be shown again.
        self._deferred_line: bytes | None = None

    @property
    def facts(self) -> Mapping[str, object]:
        return self._inner.facts

    def _show_frame(self, direction: str, frame: bytes) -> None:
        self._show(direction, redactor().frame(frame).decode("utf-8", "backslashreplace"))

    # Connection

    def open(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._inner.open(self)

    def write(self, frame: bytes, request_id: Id | None) -> int:
        self._show_frame("->", frame)
        return self._inner.write(frame, request_id)

    def flush(self) -> None:
        self._inner.flush()

    def pause(self, paused: bool) -> None:
        self._inner.pause(paused)

    async def close(self, within_s: float) -> None:
        await self._inner.close(within_s)

    # Receiver

    def on_frames(self, frames: Sequence[bytes]) -> None:
        for frame in frames:
            if frame == self._deferred_line:
                self._deferred_line = None
            else:
                self._show_frame("<-", frame)
        self._receiver.on_frames(frames)

    def on_frame_too_long(self, size: int) -> None:
        self._show("<-", f"({size} bytes or more, over the limit)")
        self._receiver.on_frame_too_long(size)

    def on_drain(self, held: int) -> None:
        self._receiver.on_drain(held)

    def on_eof(self) -> None:
        self._receiver.on_eof()

    def on_disconnect(self, exc: Exception) -> None:
        self._receiver.on_disconnect(exc)


class _DirectSend(TracedConnection):
    _inner: SupportsDirectSend  # pyright: ignore[reportIncompatibleVariableOverride]

    def send(self, frame: bytes, request_id: Id | None) -> int:
        self._show_frame("->", frame)
        return self._inner.send(frame, request_id)


class _Polling(TracedConnection):
    _inner: SupportsPolling  # pyright: ignore[reportIncompatibleVariableOverride]

    def send_and_poll(self, frame: bytes, request_id: Id | None) -> bytes | int:
        self._show_frame("->", frame)
        outcome = self._inner.send_and_poll(frame, request_id)
        if isinstance(outcome, bytes):
            self._show_frame("<-", outcome)
        return outcome

    def defer_line(self, line: bytes) -> None:
        self._deferred_line = line
        self._inner.defer_line(line)


class _OversizeReports(TracedConnection):
    _inner: SupportsOversizeReports  # pyright: ignore[reportIncompatibleVariableOverride]

    @property
    def is_discarding(self) -> bool:
        return self._inner.is_discarding

    @property
    def oversize_head(self) -> bytes:
        return self._inner.oversize_head


class _Subscriptions(TracedConnection):
    _inner: SupportsSubscriptions  # pyright: ignore[reportIncompatibleVariableOverride]

    def hold_open(self, request_id: Id) -> None:
        self._inner.hold_open(request_id)


# Optional interface -> the class that implements it for a TracedConnection.
_OPTIONAL_PARTS: dict[type, type[TracedConnection]] = {
    SupportsDirectSend: _DirectSend,
    SupportsPolling: _Polling,
    SupportsOversizeReports: _OversizeReports,
    SupportsSubscriptions: _Subscriptions,
}
