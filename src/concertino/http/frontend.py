"""HttpFrontend: serves a process's clients over HTTP.

    run(backend, HttpFrontend(listeners, bounded_stderr(), HttpOptions()))   # runtime/process.py

`concertino serve --http` and `server.run(http=...)` use it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import NoReturn

from msgspec import Struct

from concertino.backend.interface import Backend
from concertino.http.exposure import check_exposure
from concertino.http.options import HttpOptions
from concertino.http.server import ENDPOINT, HttpServer
from concertino.http.tls import TlsCertificate
from concertino.http.worker_peers import WorkerPeers
from concertino.jsonrpc.limits import Limits
from concertino.logs.writer import BoundedWriter
from concertino.runtime.entry import LoopFactory
from concertino.runtime.freed_memory import limit_freed_memory
from concertino.runtime.host import Host, Wrap
from concertino.runtime.process import run
from concertino.runtime.service_manager import notify_ready
from concertino.runtime.shutdown import ShutdownWatchdog
from concertino.runtime.tasks import hide_from_all_tasks
from concertino.runtime.worker_link import follow_parent, worker_place
from concertino.transports.listeners import Listener, listen_tcp, listen_unix, split_address
from concertino.transports.stdio import bounded_stderr

__all__ = ["HttpFrontend", "run_http", "split_http_address"]

# Added to errors that name options of the command line, if run_http() got no options.
IN_CODE = (
    "in code: http_options=HttpOptions(authorization=..., tls=..., public_url=...), from "
    "concertino.http"
)


class HttpFrontend:
    """Lets clients reach the backend of this process over HTTP, until SIGTERM or SIGINT.

    Implements Frontend (runtime/process.py), which has the docstrings of the methods. After the
    signal, no more clients are accepted, and running calls may take limits.drain_s more seconds.

    listeners: the listening sockets. This object closes them.
    writer: writes the log to stderr without blocking; made by bounded_stderr().
    options: the settings of the HTTP server.
    """

    def __init__(
        self, listeners: Sequence[Listener], writer: BoundedWriter, options: HttpOptions
    ) -> None:
        self.writer = writer
        self._listeners = listeners
        self._options = options
        self._host: Host
        self._server: HttpServer
        self._serving: asyncio.Task[None]

    def prepare(self, limits: Limits, log: logging.Logger) -> int:
        # Without authorization, warn once for each address that other machines can reach.
        if self._options.no_auth:
            for listener in self._listeners:
                if listener.is_remote:
                    log.warning(
                        "%s: other machines may be able to connect, and everybody who does can "
                        "call all tools (--no-auth)",
                        listener.address,
                    )
        # No descriptor: an HTTP server has no input whose end would end the process.
        return -1

    def open(self, host: Host, wrap: Wrap, watchdog: ShutdownWatchdog) -> asyncio.Future[None]:
        self._host = host
        limit_freed_memory(host.budget)
        # With --workers, this process is one of several that share sessions, because each request
        # of a client may reach another process.
        place = worker_place()
        peers = None if place is None else WorkerPeers(place)
        self._server = HttpServer(host, self._listeners, self._options, wrap, peers)
        # A handler that cancels all tasks must not cancel this task.
        self._serving = hide_from_all_tasks(asyncio.get_running_loop().create_task(self._serve()))
        return self._serving

    async def _serve(self) -> None:
        """Serve until stop() is called. Raises the error of a listener that cannot be used."""
        await self._server.start()
        # Scripts wait for these lines: their text must not change.
        log = logging.getLogger("concertino")
        for address in self._server.addresses:
            log.info("Listening on %s", address)
        # wait() does not raise the error of a failed start; run() reports that.
        await asyncio.wait((self._host.started,))
        if self._host.start_failure is None:
            # Tell the parent of a worker process, or a service manager such as systemd, that this
            # process is ready.
            follow_parent()
            notify_ready()
        await self._server.closed

    def stop(self) -> None:
        self._host.drain()
        self._server.stop()

    def refuse(self, failure: BaseException | str) -> bool:
        """Close the listeners, because the backend could not start.

        failure: why the backend could not start; it is not sent to anybody.
        Always returns False, because no client has got an error response.
        """
        for listener in self._listeners:
            listener.close()
        return False

    def exit_code(self) -> int:
        return 0

    def release(self) -> None:
        # Not close(), because the server has closed the sockets.
        for listener in self._listeners:
            listener.remove()


def run_http(
    backend: Backend,
    address: str,
    *,
    options: Struct | None = None,
    limits: Limits | None = None,
    loop_factory: LoopFactory | None = None,
) -> NoReturn:
    """Serve a backend over HTTP until SIGTERM or SIGINT, then end the process.

        run_http(server, "127.0.0.1:8000")

    backend: the Backend to serve, such as a Server.
    address: HOST:PORT, or unix:PATH.
    options: an HttpOptions; None for the defaults.
    limits: the limits of each session, such as the size of a message; None for the defaults.
    loop_factory: makes the event loop; None for asyncio's own.
    Raises TypeError for an address that is not a string, and OSError for one that cannot be used.
    Raises ValueError
    - for a malformed address,
    - for certificate files that cannot be used,
    - for an address that other machines can reach, unless the options say who may call the server
      (or `no_auth`), how connections are encrypted, and by which URL clients know it.
    """
    chosen = HttpOptions() if options is None else options
    if not isinstance(chosen, HttpOptions):
        raise TypeError(f"http_options: expected HttpOptions, got {type(chosen).__name__}")
    if not isinstance(address, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(
            f"run: http: expected '127.0.0.1:8000', another HOST:PORT or unix:PATH, got {address!r}"
        )
    is_unix, name = split_http_address(address)
    listener = listen_unix(name) if is_unix else listen_tcp(*split_address(name), allow_remote=True)
    try:
        check_exposure(chosen, [listener], ENDPOINT)
        if chosen.tls is not None:
            # The server loads it again. Here an error is found before the server starts.
            TlsCertificate(chosen.tls)
    except ValueError as exc:
        listener.close()
        # The text names options of the command line. Tell how to set them in code.
        if options is None:
            exc.add_note(IN_CODE)
        raise
    frontend = HttpFrontend([listener], bounded_stderr(), chosen)
    run(backend, frontend, limits=limits, loop_factory=loop_factory)


def split_http_address(address: str) -> tuple[bool, str]:
    """Return (True, PATH) for `unix:PATH`, and (False, HOST:PORT) for any other address."""
    path = address.removeprefix("unix:")
    return path != address, path
