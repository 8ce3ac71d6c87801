"""Answers the requests of a client whose server cannot start with the reason.

Without an answer a host shows "connection closed" and nothing else. The first request is awaited
for a limited time; after it, there is a moment for further ones, since a client whose
`server/discover` failed sends `initialize` next.
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
import stat
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, cast

from concertino.backend.start_failure import start_failure_text
from concertino.errors import INTERNAL_ERROR
from concertino.jsonrpc.framing import Framer, OversizeFrame
from concertino.jsonrpc.limits import Limits
from concertino.jsonrpc.messages import Id
from concertino.jsonrpc.peer import Peer
from concertino.jsonrpc.requests import IncomingRequest

__all__ = ["RefusedInput", "refuse_clients", "refuse_requests", "refuse_script_client"]

# How long to wait for the first request.
FIRST_S = 2.0
# How long further requests are answered after the first one.
MORE_S = 0.5

READ_BYTES = 2**16
# How the answer to a message without an id begins.
NO_ID = b'{"jsonrpc":"2.0","id":null,'


class RefusedInput:
    """Receives the frames of a connection whose backend cannot start.

    failure: why it cannot start. drain: called when there is nothing left to wait for.
    """

    def __init__(
        self,
        peer: Peer[Any],
        failure: BaseException,
        loop: asyncio.AbstractEventLoop,
        drain: Callable[[], object],
    ) -> None:
        self._peer = peer
        self._text = start_failure_text(failure)
        self._loop = loop
        self._drain = drain
        self._has_refused = False
        self._timer = loop.call_later(FIRST_S, drain)

    def receive(self, frame: bytes) -> None:
        """Answer the requests in a frame. Raises nothing that the bytes could cause."""
        if _refuse_frame(self._peer, frame, self._text):
            self._on_refused()

    def refuse(self, requests: list[Any]) -> None:
        """Answer requests that the peer has received before."""
        for request in requests:
            self._peer.fail(request, INTERNAL_ERROR, self._text)
            self._on_refused()

    def close(self) -> None:
        """Wait no longer, since the connection has ended."""
        self._timer.cancel()

    def _on_refused(self) -> None:
        if not self._has_refused:
            self._has_refused = True
            self._timer.cancel()
            self._timer = self._loop.call_later(MORE_S, self._drain)


def refuse_script_client(failure: Exception | str) -> None:
    """Answer the requests of the client, if any, whose server is a script that has failed.

    failure: see start_failure_text().
    A host gives its server pipes or sockets. Whatever else stdin and stdout are, the script was not
    started by one.
    """
    try:
        modes = [os.fstat(descriptor).st_mode for descriptor in (0, 1)]
    except OSError:
        return
    if all(stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) for mode in modes):
        refuse_requests(0, 1, failure)


def refuse_clients(sockets: Sequence[socket.socket], failure: BaseException | str) -> bool:
    """Answer the requests of several clients at once, and disconnect them.

    failure: see start_failure_text(). Returns whether there was a request.
    """
    told: list[bool] = []

    def refuse(sock: socket.socket) -> None:
        told.append(refuse_requests(sock.fileno(), sock.fileno(), failure))
        sock.close()

    threads = [threading.Thread(target=refuse, args=(sock,), daemon=True) for sock in sockets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(FIRST_S + MORE_S)
    return any(told)


def refuse_requests(reading: int, writing: int, failure: BaseException | str) -> bool:
    """Answer the requests that come at a descriptor, without an event loop.

    failure: see start_failure_text(). Returns whether there was one, at the end of the input, when
    nobody reads the answers any more, or when the time is over. Nothing is awaited from a terminal,
    since a person has read the log by then.
    """
    if os.isatty(reading):
        return False

    def send(frame: bytes, request_id: Id | None) -> int:
        # Malformed input may be no client's: perhaps the script is part of a pipeline.
        if frame.startswith(NO_ID):
            return 0
        # A short line fits into a pipe at once, if anything does.
        if writable.poll(max(0.0, until - time.monotonic()) * 1000):
            os.write(writing, frame + b"\n")
        return 0

    text = start_failure_text(failure)
    poll, writable = select.poll(), select.poll()
    # Only to notice that nobody reads; if both are one socket, the next line replaces this.
    poll.register(writing, 0)
    poll.register(reading, select.POLLIN)
    writable.register(writing, select.POLLOUT)
    limits = Limits()
    framer = Framer(limits.max_message_bytes)
    peer: Peer[IncomingRequest] = Peer(send, limits, time.monotonic)
    has_refused = False
    until = time.monotonic() + FIRST_S
    try:
        while _is_input_ready(poll, reading, until - time.monotonic()):
            try:
                chunk = os.read(reading, READ_BYTES)
            except BlockingIOError:
                continue
            for frame in framer.feed(chunk) if chunk else framer.end():
                if isinstance(frame, OversizeFrame):
                    peer.on_frame_too_long(frame.size)
                elif _refuse_frame(peer, frame, text) and not has_refused:
                    has_refused = True
                    until = time.monotonic() + MORE_S
            if not chunk:
                break
    except OSError:
        # The client is gone.
        pass
    return has_refused


def _is_input_ready(poll: select.poll, reading: int, within_s: float) -> bool:
    """Wait for input, or its end. Returns False if none comes, or nobody reads what is written."""
    return within_s > 0 and reading in dict(poll.poll(within_s * 1000))


def _refuse_frame(peer: Peer[Any], frame: bytes, text: str) -> bool:
    """Answer the requests in a frame. Returns whether there was one."""
    # Any: as for the peer, whose requests have several classes.
    event: Any = peer.receive(frame)
    has_refused = False
    for message in cast("list[Any]", event) if isinstance(event, list) else [event]:
        if isinstance(message, IncomingRequest):
            peer.fail(message, INTERNAL_ERROR, text)
            has_refused = True
    return has_refused
