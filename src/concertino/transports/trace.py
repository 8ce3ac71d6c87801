"""A message trace: a Connection around another that shows every frame, redacted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from concertino.jsonrpc.messages import Id
from concertino.logs.redact import redactor
from concertino.transports.connection import Connection, Receiver

__all__ = ["TracedConnection"]

Show = Callable[[str, str], object]  # (direction, the frame's text)


class TracedConnection:
    """Forwards everything. show: called with `<-` for what came or `->` for what goes, and the frame as text without secrets."""

    def __init__(self, inner: Connection, show: Show) -> None:
        self._inner = inner
        self._show = show
        self._to: Receiver

    @property
    def facts(self) -> Mapping[str, object]:
        return self._inner.facts

    @property
    def is_discarding(self) -> bool:
        return getattr(self._inner, "is_discarding", False)

    @property
    def overlong_head(self) -> bytes:
        return getattr(self._inner, "overlong_head", b"")

    def _see(self, direction: str, frame: bytes) -> None:
        self._show(direction, redactor().frame(frame).decode("utf-8", "backslashreplace"))

    # Connection

    def open(self, to: Receiver) -> None:
        self._to = to
        self._inner.open(self)

    def write(self, frame: bytes, about: Id | None) -> int:
        self._see("->", frame)
        return self._inner.write(frame, about)

    def flush(self) -> None:
        self._inner.flush()

    def pause(self, paused: bool) -> None:
        self._inner.pause(paused)

    async def close(self, within_s: float) -> None:
        await self._inner.close(within_s)

    # Receiver

    def on_frames(self, batch: Sequence[bytes]) -> None:
        for frame in batch:
            self._see("<-", frame)
        self._to.on_frames(batch)

    def on_frame_too_long(self, size: int) -> None:
        self._show("<-", f"({size} bytes or more, over the limit)")
        self._to.on_frame_too_long(size)

    def on_drain(self, held: int) -> None:
        self._to.on_drain(held)

    def on_eof(self) -> None:
        self._to.on_eof()

    def on_disconnect(self, why: Exception) -> None:
        self._to.on_disconnect(why)
