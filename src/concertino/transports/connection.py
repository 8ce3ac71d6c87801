"""How frames travel. A Connection carries frames (one JSON text each, bytes without the newline) to a Receiver and back.

stdio, a child process, a socket and memory are Connections; a message trace, a recorder or a tap is one around another.
Everything here runs on one event loop and never blocks it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from concertino.jsonrpc.messages import Id

__all__ = ["Connection", "Receiver"]


class Receiver(Protocol):
    """Takes what a Connection brings: the driver, or a Connection around another. Called on the loop; raises nothing."""

    def on_frames(self, batch: Sequence[bytes]) -> None:
        """Every complete frame of one read, in order."""
        ...

    def on_frame_too_long(self, size: int) -> None:
        """A frame passed the limit when it had `size` bytes; the rest of it is discarded."""
        ...

    def on_drain(self, held: int) -> None:
        """Held output fell below the low-water mark; held: bytes still kept."""
        ...

    def on_eof(self) -> None:
        """No more input will come; output may go on."""
        ...

    def on_disconnect(self, why: Exception) -> None:
        """Nothing can be written any more."""
        ...


class Connection(Protocol):
    """One way to one other side.

    It may have, to save time: send(frame, about), which is write() and flush() in one step, and delivers nothing meanwhile;
    exchange(frame, about), the same, which may give the next line that came instead of delivering it, and takes it back by
    postpone(line); outside_tasks, True where frames are delivered by the loop itself and never inside of a task.
    """

    @property
    def facts(self) -> Mapping[str, object]:
        """What is known about the other side: pid, uid, address, exit status."""
        ...

    def open(self, to: Receiver) -> None:
        """Start to deliver. Called once, on the loop that everything will run on."""
        ...

    def write(self, frame: bytes, about: Id | None) -> int:
        """Queue one frame. about: the request it belongs to. Returns the bytes now held."""
        ...

    def flush(self) -> None:
        """Send what is queued, as far as the other side takes it; never blocks."""
        ...

    def pause(self, paused: bool) -> None:
        """Stop reading, or go on."""
        ...

    async def close(self, within_s: float) -> None:
        """Flush for at most within_s seconds, then release everything. May be called again."""
        ...
