"""`concertino serve TARGET... --unix PATH --tcp HOST:PORT`: serves many clients on sockets."""

from __future__ import annotations

import atexit
import os
from collections.abc import Sequence
from typing import NoReturn

from concertino.cli.folders import Folders
from concertino.cli.guards import WrapBackend
from concertino.cli.serve import FAILED, USAGE, load_or_exit
from concertino.logs import handler as logging_setup
from concertino.runtime.process import exit_process
from concertino.runtime.service import bounded_stderr, run_service
from concertino.transports.listeners import (
    Listener,
    errno_message,
    inherited_listeners,
    listen_tcp,
    listen_unix,
    split_address,
)

__all__ = ["serve_on_sockets"]


def serve_on_sockets(
    targets: Sequence[str],
    folders: Folders,
    *,
    unix: Sequence[str],
    tcp: Sequence[str],
    allow_remote: bool,
    max_connections: int | None,
    log_format: str | None,
    trace: bool | None,
    traceback: bool,
    guard: WrapBackend | None = None,
) -> NoReturn:
    """Serve the targets on these sockets and those that systemd passed, and end the process.

    guard: wraps the backend. Exit codes: 2 if there is no such server or an address is not allowed,
    1 if listening, importing or starting failed.
    """
    writer = bounded_stderr()
    logging_setup.configure(format=log_format, component="concertino", writer=writer)
    log = logging_setup.logger("concertino")
    listeners: list[Listener] = []
    try:
        addresses = [split_address(text) for text in tcp]
        listeners += inherited_listeners(os.environ, allow_remote=allow_remote)

        # Listen before the target is imported, which may take long: clients can connect and wait.
        for host, port in addresses:
            listeners.append(listen_tcp(host, port, allow_remote=allow_remote))
        for path in unix:
            listeners.append(listen_unix(path))
            atexit.register(listeners[-1].remove)
        if not listeners:
            raise ValueError("LISTEN_FDS: no socket was given; name one with --unix or --tcp")
    except (ValueError, OSError) as exc:
        log.error("%s", errno_message(exc))
        exit_process(FAILED if isinstance(exc, OSError) else USAGE, writer)

    found = load_or_exit(targets, folders, writer, traceback=traceback)
    run_service(
        guard(found.backend) if guard else found.backend,
        listeners,
        writer=writer,
        max_connections=max_connections,
        limits=found.limits,
        log_format=log_format,
        trace=trace,
        loop_factory=found.loop_factory,
    )
