"""SocketFrontend: serves the clients that connect to listening sockets.

    run(backend, SocketFrontend(listeners, bounded_stderr(), None))

`concertino serve --listen` uses it. run() is the one of runtime/process.py, with the same signals
and exit codes as for stdio. stdin and stdout are left alone, since the protocol does not use them.
Writing to stderr never blocks.
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
from concertino.runtime.freed_memory import limit_freed_memory
from concertino.runtime.host import Host, Wrap
from concertino.runtime.shutdown import ShutdownWatchdog
from concertino.transports.listeners import Listener

__all__ = ["SocketFrontend"]

# When the server cannot start, at most this many clients of each listener get the reason.
MAX_REFUSED = 64


class SocketFrontend:
    """The source of a server's clients that connect to listening sockets; a Frontend for run().

    It serves until SIGTERM or SIGINT. Then it accepts no more clients and removes the socket files,
    and running calls may finish within the drain time.

    listeners: the listening sockets; closed by this object.
    writer: writes log lines to stderr without blocking; made by bounded_stderr().
    max_connections: how many clients each listener may have at the same time; None for
        Limits.max_connections.
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
        limit_freed_memory(host.budget)
        self._acceptor = serve_connections(
            host, *self._listeners, max_connections=self._max_connections, wrap=wrap
        )

        # If a handler calls os.fork() and the child returns into this loop, end the child: it must
        # not serve the parent's clients.
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
        """Answer the clients that have connected so far with the reason for the failed start.

        Then closes the listeners. A listener that the service manager has passed to this process
        stays open, so that its clients can wait for the next process.
        Returns whether any client got an answer.
        """
        from concertino.runtime.refusal import refuse_clients

        sockets: list[socket.socket] = []
        for listener in self._listeners:
            if not listener.is_inherited:
                # Remove the socket file first, so that no client connects that nobody accepts.
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
    """Accept the clients that wait to connect; yield those that the listener allows."""
    for _ in range(MAX_REFUSED):
        try:
            sock = listener.accept()
        except OSError:
            # No client waits any more, or this process can open no more descriptors.
            return
        try:
            listener.examine(sock)
        except OSError:
            sock.close()
        else:
            yield sock
