"""`concertino serve TARGET... --unix PATH --tcp HOST:PORT`: the same server for many clients, at sockets."""

from __future__ import annotations

import atexit
import os
from collections.abc import Sequence
from typing import NoReturn

from concertino.cli.folders import Folders
from concertino.cli.guards import Guard
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

__all__ = ["serve_at"]


def serve_at(
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
    guard: Guard | None = None,
) -> NoReturn:
    """Serve what the targets name at these sockets, and at those that systemd gave. Ends the process.

    2 when there is no such server or an address may not be listened at, 1 when it cannot be, or importing or starting failed.
    guard: is put around what is served.
    """
    writer = bounded_stderr()
    logging_setup.configure(format=log_format, component="concertino", writer=writer)
    log = logging_setup.logger("concertino")
    listeners: list[Listener] = []
    try:
        places = [split_address(text) for text in tcp]
        listeners += inherited_listeners(os.environ, allow_remote=allow_remote)
        # Before the target is imported: that may take long, and whoever connects meanwhile waits.
        for host, port in places:
            listeners.append(listen_tcp(host, port, allow_remote=allow_remote))
        for path in unix:
            listeners.append(listen_unix(path))
            atexit.register(listeners[-1].remove)
        if not listeners:
            raise ValueError("LISTEN_FDS: no socket was given; name one with --unix or --tcp")
    except (ValueError, OSError) as why:
        log.error("%s", errno_message(why))
        exit_process(FAILED if isinstance(why, OSError) else USAGE, writer)
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
