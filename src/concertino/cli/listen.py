"""Serves many clients on sockets: `concertino serve TARGET...` with --unix, --tcp or --http.

The process serves until SIGTERM or SIGINT. Without these options, `concertino serve` serves one
client over stdin and stdout (serve.py).
"""

from __future__ import annotations

import atexit
import errno
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NoReturn

from concertino.backend.interface import Backend
from concertino.cli.folders import LibraryOptions
from concertino.cli.server_files import ServerFileOptions
from concertino.cli.target_loading import FAILED, USAGE, load_or_exit
from concertino.cli.targets import LoadedTarget
from concertino.cli.workers import run_workers
from concertino.logs import handler as logging_setup
from concertino.runtime.process import run as run_process
from concertino.runtime.shutdown import exit_process
from concertino.runtime.socket_frontend import SocketFrontend
from concertino.runtime.worker_link import is_worker
from concertino.transports.listeners import (
    Listener,
    errno_message,
    inherited_listeners,
    listen_tcp,
    listen_unix,
    split_address,
)
from concertino.transports.stdio import bounded_stderr

if TYPE_CHECKING:
    from concertino.http.options import HttpOptions
    from concertino.runtime.entry import LoopFactory


def serve_sockets(
    targets: Sequence[str],
    options: LibraryOptions,
    file_options: ServerFileOptions,
    *,
    unix: Sequence[str],
    tcp: Sequence[str],
    http: HttpOptions | None,
    workers: int | None,
    loop_factory: LoopFactory | None,
    allow_remote: bool,
    max_connections: int | None,
    log_format: str | None,
    trace: bool | None,
    traceback: bool,
    strict: bool,
    wrap: Callable[[LoadedTarget], Backend],
) -> NoReturn:
    """Serve the targets on sockets until SIGTERM or SIGINT, and end the process.

    targets: the files, modules, folders or server files to serve; several are served as one.
    options: the options for a folder of Markdown.
    file_options: the options for server files such as mcp.json.
    unix, tcp: the addresses to listen at, in addition to the sockets that systemd passes.
    http: the settings for clients that speak HTTP; None for clients that send lines of JSON-RPC.
    workers: how many worker processes serve; None to serve in this process.
    loop_factory: makes the event loop; None for the one that the target has asked for.
    allow_remote: whether `tcp` may contain addresses that other machines can reach.
    max_connections: how many clients may be connected at the same time; None for the default.
    log_format, trace: the format of the log, and whether it shows each message; None to let
        environment variables decide.
    traceback: whether to log the whole traceback if a target cannot be imported.
    strict: whether to exit if one of several targets cannot be imported. False: log it, and serve
        the others.
    wrap: called with the loaded target; returns its backend with guards and other wrappers around.
    Exit codes: 0 after the signal; 1 if a target cannot be imported or started, or an address
    cannot be listened at; 2 if a target does not exist, or an address is not allowed.
    """
    writer = bounded_stderr()
    logging_setup.configure(format=log_format, component="concertino", writer=writer)
    log = logging_setup.logger("concertino")
    try:
        # Listen before the target is imported, which may take long. Clients that connect meanwhile
        # then wait, and are not refused.
        listeners = _open_listeners(unix, tcp, http, allow_remote)
    except (ValueError, OSError) as exc:
        text = errno_message(exc)
        if isinstance(exc, OSError) and exc.errno == errno.EADDRINUSE and tcp:
            text += "; another program listens there: choose another port, or 0 for a free one"
        log.error("%s", text)
        exit_process(FAILED if isinstance(exc, OSError) else USAGE, writer)

    if workers is not None and not is_worker():
        exit_process(run_workers(workers, listeners), writer)

    if http is None:
        frontend = SocketFrontend(listeners, writer, max_connections)
    else:
        from concertino.http.frontend import HttpFrontend

        frontend = HttpFrontend(listeners, writer, http)
    target = load_or_exit(
        targets, options, file_options, frontend, traceback=traceback, strict=strict
    )
    run_process(
        wrap(target),
        frontend,
        limits=target.limits,
        log_format=log_format,
        trace=trace,
        loop_factory=loop_factory or target.loop_factory,
    )


def _open_listeners(
    unix: Sequence[str],
    tcp: Sequence[str],
    http: HttpOptions | None,
    allow_remote: bool,
) -> list[Listener]:
    """Return the listeners at these addresses, and the listeners that systemd has passed.

    A worker process only returns the listeners that it has inherited. They include those at the
    addresses, which its parent has opened.
    Raises ValueError for an address that is not allowed, and OSError if listening fails.
    """
    # Over HTTP, check_exposure() has its own rules for addresses that other machines can reach.
    allow_remote = allow_remote or http is not None
    addresses = [split_address(text) for text in tcp]
    listeners = list(inherited_listeners(os.environ, allow_remote=allow_remote))
    if not is_worker():
        for host, port in addresses:
            listeners.append(listen_tcp(host, port, allow_remote=allow_remote))
        for path in unix:
            listeners.append(listen_unix(path))
            atexit.register(listeners[-1].remove)
    if http is not None:
        from concertino.http.exposure import check_exposure
        from concertino.http.server import ENDPOINT

        check_exposure(http, listeners, ENDPOINT)
    if not listeners:
        raise ValueError("LISTEN_FDS: no socket was given; name one with --http, --unix or --tcp")
    return listeners
