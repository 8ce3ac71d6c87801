"""`concertino orchestrate plugins.yaml`: runs a hub until SIGTERM or SIGINT."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import resource
import signal
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

from concertino.cli.serving import add_log_format, exit_on_signals, reject_extra_args
from concertino.errors import ConcertinoError
from concertino.logs import handler as logging_setup
from concertino.logs.redact import refresh
from concertino.runtime.process import exit_process
from concertino.runtime.service import bounded_stderr
from concertino.transports.listeners import errno_message

if TYPE_CHECKING:
    from concertino.orchestra.hub import Hub
    from concertino.orchestra.plugins_file import PluginsFile

__all__ = ["DESCRIPTION", "add_arguments", "raise_descriptor_limit", "run"]

FAILED, USAGE = 1, 2

# Tried as a limit for descriptors if the system has none.
MANY_DESCRIPTORS = 65536

DESCRIPTION = (
    "Start the plugins of a file and forward requests to them until SIGTERM or SIGINT."
    " Exit codes: 0 stopped by a signal, 1 the hub could not listen, 2 usage, or the file cannot be"
    " used."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `concertino orchestrate` to its parser."""
    parser.add_argument("file", metavar="plugins.yaml", help="the plugins to start")
    parser.add_argument(
        "--listen-addr",
        metavar="ADDR",
        help="address for bridges and plugins: HOST:PORT for QUIC, or unix:PATH"
        " (default: that of the file)",
    )
    parser.add_argument(
        "--certs-dir", metavar="DIR", help="certificates (default: those of the file)"
    )
    add_log_format(parser)


def run(args: argparse.Namespace, server: Sequence[str]) -> NoReturn:
    """Run a hub, and end the process.

    Exit codes: 0 it was stopped, 1 it could not listen, 2 the file cannot be used.
    """
    reject_extra_args(args, server)
    writer = bounded_stderr()
    refresh()
    logging_setup.configure(format=args.log_format, component="hub", writer=writer)
    log = logging.getLogger("concertino.hub")
    exit_on_signals(writer)
    code = FAILED
    try:
        from concertino.orchestra.hub import Hub
        from concertino.orchestra.plugins_file import InvalidPluginsFile, read_plugins

        try:
            file = read_plugins(args.file)
        except InvalidPluginsFile as exc:
            log.error("%s", exc)
            exit_process(USAGE, writer)
        for warning in file.warnings:
            log.warning("%s", warning)
        for entry in file.plugins:
            if not entry.enabled:
                log.info("%s is not started: enabled is not true", entry.id)
        raise_descriptor_limit()
        asyncio.run(_run(Hub, file, args, log))
        code = 0
    except ValueError as exc:
        # A malformed address.
        log.error("%s", exc)
        code = USAGE
    except (ConcertinoError, OSError, ImportError) as exc:
        log.error("%s", errno_message(exc))
    except BaseException:
        log.exception("the hub failed")
    exit_process(code, writer)


async def _run(
    hub_type: type[Hub], file: PluginsFile, args: argparse.Namespace, log: logging.Logger
) -> None:
    """Run a hub until a signal. A second signal kills its plugins and ends the process at once."""
    hub = hub_type(file, listen_addr=args.listen_addr, certs_dir=args.certs_dir)
    loop = asyncio.get_running_loop()
    stopped: asyncio.Future[None] = loop.create_future()

    def on_signal() -> None:
        if stopped.done():
            hub.kill()
            os._exit(0)
        stopped.set_result(None)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)

    start = loop.create_task(hub.start())
    await asyncio.wait((start, stopped), return_when=asyncio.FIRST_COMPLETED)
    if not start.done():
        start.cancel()
        await asyncio.wait((start,))
    elif (exc := start.exception()) is not None:
        raise exc
    else:
        for address in hub.addresses:
            # Scripts look for this text.
            log.info("Listening on %s", address)
        await stopped
    await hub.stop()


def raise_descriptor_limit() -> None:
    """Raise the limit of open descriptors to what the system allows; each plugin needs seven."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft = hard if hard != resource.RLIM_INFINITY else MANY_DESCRIPTORS
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    except (ValueError, OSError):
        # The real limit of macOS is lower than the one it reports.
        pass
