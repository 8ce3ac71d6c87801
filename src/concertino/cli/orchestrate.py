"""`concertino orchestrate plugins.yaml`: a hub, until SIGTERM or SIGINT."""

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

__all__ = ["DESCRIPTION", "add_arguments", "more_descriptors", "run"]

FAILED, USAGE = 1, 2


DESCRIPTION = (
    "Start the plugins of a file, and pass requests on to them, until SIGTERM or SIGINT. "
    "0: the end; 1: the hub could not listen; 2: usage, or a file that cannot be used."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What can be said of a hub."""
    parser.add_argument("file", metavar="plugins.yaml", help="which plugins there are")
    parser.add_argument(
        "--listen-addr",
        metavar="ADDR",
        help="where bridges and plugins connect, instead of what the file says: HOST:PORT for QUIC, or unix:PATH",
    )
    parser.add_argument(
        "--certs-dir", metavar="DIR", help="certificates, instead of what the file says"
    )
    add_log_format(parser)


def run(given: argparse.Namespace, server: Sequence[str]) -> NoReturn:
    """Be a hub. Ends the process: 0 the end, 1 it cannot listen, 2 the file cannot be used."""
    reject_extra_args(given, server)
    writer = bounded_stderr()
    refresh()
    logging_setup.configure(format=given.log_format, component="hub", writer=writer)
    log = logging.getLogger("concertino.hub")
    exit_on_signals(writer)
    code = FAILED
    try:
        from concertino.orchestra.hub import Hub
        from concertino.orchestra.plugins_file import InvalidPluginsFile, read_plugins

        try:
            file = read_plugins(given.file)
        except InvalidPluginsFile as why:
            log.error("%s", why)
            exit_process(USAGE, writer)
        for warning in file.warnings:
            log.warning("%s", warning)
        for entry in file.plugins:
            if not entry.enabled:
                log.info("%s is not started: enabled is not true", entry.id)
        more_descriptors()
        asyncio.run(_run(Hub, file, given, log))
        code = 0
    except ValueError as why:  # an address that is none
        log.error("%s", why)
        code = USAGE
    except (ConcertinoError, OSError, ImportError) as why:
        log.error("%s", errno_message(why))
    except BaseException:
        log.exception("the hub failed")
    exit_process(code, writer)


async def _run(
    make: type[Hub], file: PluginsFile, given: argparse.Namespace, log: logging.Logger
) -> None:
    hub = make(file, listen_addr=given.listen_addr, certs_dir=given.certs_dir)
    loop = asyncio.get_running_loop()
    over: asyncio.Future[None] = loop.create_future()

    def end() -> None:
        if over.done():  # the second signal
            hub.kill()
            os._exit(0)
        over.set_result(None)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end)
    starting = loop.create_task(hub.start())
    await asyncio.wait((starting, over), return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()
        await asyncio.wait((starting,))
    elif (failure := starting.exception()) is not None:
        raise failure
    else:
        for address in hub.addresses:
            log.info("Listening on %s", address)  # a stable line: scripts look for it
        await over
    await hub.stop()


def more_descriptors() -> None:
    """A plugin needs seven of them: as many as the system allows."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (hard if hard != resource.RLIM_INFINITY else 65536, hard)
        )
    except (ValueError, OSError):  # macOS has a lower limit than it says
        pass
