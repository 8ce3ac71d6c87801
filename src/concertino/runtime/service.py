"""Runs a server as a process that serves many clients on sockets.

Start, end, signals and exit codes are those of runtime/process.py. stdin and stdout are not used
for the protocol and stay as they are. Writing to stderr never blocks, as with a stdio server.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from concertino.backend.interface import Backend
from concertino.jsonrpc.limits import Limits
from concertino.logs.stderr_redirect import StderrRedirect, adopt_handlers
from concertino.logs.writer import BoundedWriter
from concertino.runtime.acceptor import Acceptor, serve_connections
from concertino.runtime.host import Host
from concertino.runtime.process import LoopFactory, ShutdownWatchdog, Wrap, run_behind
from concertino.transports.listeners import Listener
from concertino.transports.stdio import open_missing

__all__ = ["bounded_stderr", "run_service"]


def bounded_stderr() -> BoundedWriter:
    """Replace sys.stderr by a writer that never blocks, and return that writer.

    Call it once, before opening sockets: it also makes sure that no socket gets the number of
    stdin, stdout or stderr.
    """
    open_missing()
    original = sys.stderr
    # None if stderr was closed at the start.
    if original is not None:  # pyright: ignore[reportUnnecessaryComparison]
        original.flush()
    writer = BoundedWriter(2)
    sys.stderr = StderrRedirect(writer)
    adopt_handlers((original,), sys.stderr)
    return writer


def run_service(
    backend: Backend,
    listeners: Sequence[Listener],
    *,
    writer: BoundedWriter,
    max_connections: int | None = None,
    limits: Limits | None = None,
    log_format: str | None = None,
    trace: bool | None = None,
    loop_factory: LoopFactory | None = None,
) -> NoReturn:
    """Serve a backend to all clients that connect, until SIGTERM or SIGINT; then end the process.

    After the signal no client is accepted, the socket files are removed, and calls under way get
    the drain time.
    writer: what bounded_stderr() returned.
    max_connections: clients at once; by default as `limits` says.
    The other parameters are those of process.run().
    """
    run_behind(
        _SocketFrontend(listeners, writer, max_connections),
        backend,
        limits=limits,
        log_format=log_format,
        trace=trace,
        loop_factory=loop_factory,
    )


class _SocketFrontend:
    """Clients that connect to listening sockets."""

    def __init__(
        self, listeners: Sequence[Listener], writer: BoundedWriter, max_connections: int | None
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

    def open(self, host: Host, wrap: Wrap, watchdog: ShutdownWatchdog) -> asyncio.Future[None]:
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

    def release(self) -> None:
        for listener in self._listeners:
            listener.remove()
