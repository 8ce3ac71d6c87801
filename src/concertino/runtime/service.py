"""A process that serves many clients at sockets. Its start, end, signals and exit codes are those of runtime/process.py.

stdin and stdout are not the protocol here, and stay what they are. stderr never makes anybody wait, as over stdio.
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
    """Make sys.stderr a writer that never blocks. Call it early, once; no socket gets a number of stdin, stdout or stderr then."""
    open_missing()
    before = sys.stderr
    if before is not None:  # pyright: ignore[reportUnnecessaryComparison]  # None if it was closed at start
        before.flush()
    writer = BoundedWriter(2)
    sys.stderr = StderrRedirect(writer)
    adopt_handlers((before,), sys.stderr)
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
    """Serve a backend to whoever connects, until SIGTERM or SIGINT; then end the process.

    Nobody is let in any more then, the sockets' files are removed, and calls under way get the drain time. writer: what
    bound_stderr() gave. max_connections: the limits say it otherwise. The rest is as for process.run().
    """
    entrance = _Sockets(listeners, writer, max_connections)
    run_behind(
        entrance,
        backend,
        limits=limits,
        log_format=log_format,
        trace=trace,
        loop_factory=loop_factory,
    )


class _Sockets:
    """Listeners as the entrance of a process."""

    def __init__(
        self, listeners: Sequence[Listener], writer: BoundedWriter, max_connections: int | None
    ) -> None:
        self.writer = writer
        self._listeners = listeners
        self._max_connections = max_connections
        self._accepting: Acceptor
        self._over: asyncio.Future[None]

    def prepare(self, limits: Limits, log: logging.Logger) -> int:
        for listener in self._listeners:
            if listener.is_remote:
                log.warning(
                    "%s: other machines may reach it, and whoever does can call every tool",
                    listener.address,
                )
        return -1

    def open(self, host: Host, wrap: Wrap, end: ShutdownWatchdog) -> asyncio.Future[None]:
        loop = asyncio.get_running_loop()
        self._over = loop.create_future()
        self._accepting = serve_connections(
            host, *self._listeners, max_connections=self._max_connections, wrap=wrap
        )
        # A forked child has no business in the loop, if it ever comes back into it.
        os.register_at_fork(after_in_child=lambda: loop.call_soon(os._exit, 0))
        log = logging.getLogger("concertino")
        for address in self._accepting.addresses:
            log.info("Listening on %s", address)  # a stable line: scripts look for it
        return self._over

    def stop(self) -> None:
        self._accepting.close()
        if not self._over.done():
            self._over.set_result(None)

    def release(self) -> None:
        for listener in self._listeners:
            listener.remove()
