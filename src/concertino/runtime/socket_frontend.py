"""The clients of a process that connect to sockets.

Start, end, signals and exit codes are those of runtime/process.py. stdin and stdout are not used
for the protocol and stay as they are. Writing to stderr never blocks, as with a stdio server.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Iterator, Sequence

from concertino.jsonrpc.limits import Limits
from concertino.logs.writer import BoundedWriter
from concertino.runtime.acceptor import Acceptor, serve_connections
from concertino.runtime.host import Host, Wrap
from concertino.runtime.shutdown import ShutdownWatchdog
from concertino.transports.listeners import Listener

__all__ = ["SocketFrontend"]

# How many clients of a listener are told that the server cannot start.
MAX_TOLD = 64


class SocketFrontend:
    """Clients that connect to listening sockets, until SIGTERM or SIGINT.

    After the signal no client is accepted, the socket files are removed, and calls under way get
    the drain time.
    writer: what bounded_stderr() returned.
    max_connections: clients at once at each listener; by default as the limits say.
    """

    def __init__(
        self,
        listeners: Sequence[Listener],
        writer: BoundedWriter,
        max_connections: int | None,
    ) -> None:
        self.writer = writer
        self._listeners = listeners
        self._max_connections = max_connections
        self._acceptor: Acceptor
        self._closed: asyncio.Future[None]

    def prepare(self, limits: Limits, log: logging.Logger) -> int:
        for listener in self._listeners:
            if listener.is_remote:
                log.warning(
                    "%s: other machines may be able to connect, "
                    "and every client can call all tools",
                    listener.address,
                )
        return -1

    def open(
        self,
        host: Host,
        wrap: Wrap,
        watchdog: ShutdownWatchdog,
    ) -> asyncio.Future[None]:
        loop = asyncio.get_running_loop()
        self._closed = loop.create_future()
        self._acceptor = serve_connections(
            host, *self._listeners, max_connections=self._max_connections, wrap=wrap
        )

        # A forked child that returns into this loop must not serve the parent's clients.
        os.register_at_fork(after_in_child=lambda: loop.call_soon(os._exit, 0))

        # Scripts wait for these lines: their text must not change.
        log = logging.getLogger("concertino")
        for address in self._acceptor.addresses:
            log.info("Listening on %s", address)
        return self._closed

    def stop(self) -> None:
        self._acceptor.close()
        if not self._closed.done():
            self._closed.set_result(None)

    def refuse(self, failure: BaseException | str) -> bool:
        """Tell the clients that have connected already; later ones find no listener.

        Those of an inherited listener are left to the next process that gets it.
        """
        from concertino.runtime.refusal import refuse_clients

        sockets: list[socket.socket] = []
        for listener in self._listeners:
            if not listener.is_inherited:
                listener.remove()
                sockets += _accept_trusted(listener)
                listener.close()
        return refuse_clients(sockets, failure)

    def exit_code(self) -> int:
        return 0

    def release(self) -> None:
        for listener in self._listeners:
            listener.remove()


def _accept_trusted(listener: Listener) -> Iterator[socket.socket]:
    """Accept the clients that wait, and close those that are not allowed."""
    for _ in range(MAX_TOLD):
        try:
            sock = listener.accept()
        except OSError:
            # Nobody waits any more, or no descriptor is left.
            return
        try:
            listener.examine(sock)
        except OSError:
            sock.close()
        else:
            yield sock
