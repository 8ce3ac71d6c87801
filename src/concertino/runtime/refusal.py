"""Answers a client's first requests with the reason why its server cannot start.

If the process just ended, the host (the application that has started the server) would show
"connection closed" and nothing else. The server therefore waits up to FIRST_S seconds for the first
request and answers it. Then it answers further requests for MORE_S seconds, because a client whose
`server/discover` has failed usually sends `initialize` next.

RefusedInput does this for a connection on a running event loop. refuse_requests() does it without
an event loop, for failures that happen before there is one. A frame is the JSON text of one
message, or of one batch.
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
from concertino.jsonrpc.incoming_requests import IncomingRequest
from concertino.jsonrpc.limits import Limits
from concertino.jsonrpc.messages import Id
from concertino.jsonrpc.peer import Peer

__all__ = [
    "RefusedInput",
    "refuse_clients",
    "refuse_frame",
    "refuse_requests",
    "refuse_script_client",
]

# How many seconds to wait for the first request.
FIRST_S = 2.0
# For how many seconds further requests are answered after the first one.
MORE_S = 0.5

# The size of one read.
READ_BYTES = 2**16
# The beginning of an error response to a message whose id cannot be read.
NO_ID = b'{"jsonrpc":"2.0","id":null,'


class RefusedInput:
    """Answers the requests of one connection whose backend cannot start.

    peer: decodes the frames and sends the responses.
    failure: the exception because of which the backend cannot start.
    loop: the event loop, for the timer.
    drain: ends the connection. Called 0.5 s (MORE_S) after the first request; if none comes, 2 s
        (FIRST_S) after this object was made.
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
        # Whether a request was answered.
        self._has_refused = False
        self._timer = loop.call_later(FIRST_S, drain)

    def receive(self, frame: bytes) -> None:
        """Answer the requests in a frame with the failure. Malformed frames raise nothing."""
        if refuse_frame(self._peer, frame, self._text):
            self._on_refused()

    def refuse(self, requests: list[Any]) -> None:
        """Answer requests that have arrived before this object was made."""
        for request in requests:
            self._peer.fail(request, INTERNAL_ERROR, self._text)
            self._on_refused()

    def close(self) -> None:
        """Stop the timer, because the connection has ended."""
        self._timer.cancel()

    def _on_refused(self) -> None:
        """Restart the timer with MORE_S seconds when the first request was answered."""
        if not self._has_refused:
            self._has_refused = True
            self._timer.cancel()
            self._timer = self._loop.call_later(MORE_S, self._drain)


def refuse_script_client(failure: BaseException | str, *, waits: bool = True) -> bool:
    """Answer the requests on stdin with the failure, if a host has started this script.

    A host, the application that starts MCP servers, connects stdin and stdout to pipes or sockets.
    If one of them is anything else, such as a terminal or a file, this function does nothing.
    failure: the exception that ends the script, or a text that describes it.
    waits: whether to wait up to 2 s (FIRST_S) for a first request if none has arrived so far.
    Returns whether a host has sent a request.
    """
    try:
        modes = [os.fstat(descriptor).st_mode for descriptor in (0, 1)]
    except OSError:
        # stdin or stdout is closed.
        return False
    is_client_connected = all(stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) for mode in modes)
    if not is_client_connected:
        return False
    if not waits:
        readable, _, _ = select.select([0], [], [], 0)
        if not readable:
            return False
    return refuse_requests(0, 1, failure)


def refuse_clients(sockets: Sequence[socket.socket], failure: BaseException | str) -> bool:
    """Answer the requests of several clients at the same time, then close their sockets.

    failure: the reason why the server cannot start: an exception, or a text that describes it.
    Returns whether any client has sent a request.
    """
    has_request: list[bool] = []

    def refuse(sock: socket.socket) -> None:
        has_request.append(refuse_requests(sock.fileno(), sock.fileno(), failure))
        sock.close()

    threads = [threading.Thread(target=refuse, args=(sock,), daemon=True) for sock in sockets]
    for thread in threads:
        thread.start()
    for thread in threads:
        # Do not wait longer for a client that does not read its response.
        thread.join(FIRST_S + MORE_S)
    return any(has_request)


def refuse_requests(reading: int, writing: int, failure: BaseException | str) -> bool:
    """Answer the requests of one client with the failure. Blocks; needs no event loop.

    The function returns 0.5 s (MORE_S) after the first request; if none comes, 2 s (FIRST_S) after
    its start. It returns sooner when the input ends, or when nobody can read the responses any
    more. If the input is a terminal, it does nothing, because a person can read the log.

    reading, writing: the file descriptors of the input and of the output; may be the same.
    failure: the reason why the server cannot start: an exception, or a text that describes it.
    Returns whether the client has sent a request.
    """
    if os.isatty(reading):
        return False

    text = start_failure_text(failure)
    readable, writable = select.poll(), select.poll()
    # With no event mask, poll() reports only that the other side has closed its end. If both
    # descriptors are the same socket, the second registration replaces the first one.
    readable.register(writing, 0)
    readable.register(reading, select.POLLIN)
    writable.register(writing, select.POLLOUT)
    until = time.monotonic() + FIRST_S

    def send(frame: bytes, request_id: Id | None) -> int:
        # Do not answer malformed input. If the script was started in a shell's pipeline, its input
        # does not come from an MCP client.
        if frame.startswith(NO_ID):
            return 0
        # A response is short, so when the pipe can take anything, it takes the whole line.
        if writable.poll(max(0.0, until - time.monotonic()) * 1000):
            os.write(writing, frame + b"\n")
        return 0

    limits = Limits()
    framer = Framer(limits.max_message_bytes)
    peer: Peer[IncomingRequest] = Peer(send, limits, time.monotonic)
    has_refused = False
    try:
        while _is_input_ready(readable, reading, until - time.monotonic()):
            try:
                chunk = os.read(reading, READ_BYTES)
            except BlockingIOError:
                continue
            # At the end of the input, end() returns a last line without a newline.
            for frame in framer.feed(chunk) if chunk else framer.end():
                if isinstance(frame, OversizeFrame):
                    peer.on_frame_too_long(frame.size)
                elif refuse_frame(peer, frame, text) and not has_refused:
                    has_refused = True
                    until = time.monotonic() + MORE_S
            if not chunk:
                break
    except OSError:
        # The client is gone.
        pass
    return has_refused


def _is_input_ready(readable: select.poll, reading: int, within_s: float) -> bool:
    """Wait up to `within_s` seconds for input. Returns whether there is input, or its end.

    Also returns False if the other side has closed its end of the output.
    """
    return within_s > 0 and reading in dict(readable.poll(within_s * 1000))


def refuse_frame(peer: Peer[Any], frame: bytes, text: str) -> bool:
    """Answer each request in a frame with an error. Returns whether there was a request.

    peer: decodes the frame, and sends the responses.
    text: the message of the error.
    """
    # Any, because Peer is generic in the class of its requests.
    event: Any = peer.receive(frame)
    # peer.receive() returns a list for a batch, and None for an invalid frame or a response.
    messages = cast("list[Any]", event) if isinstance(event, list) else [event]
    has_refused = False
    for message in messages:
        if isinstance(message, IncomingRequest):
            peer.fail(message, INTERNAL_ERROR, text)
            has_refused = True
    return has_refused
