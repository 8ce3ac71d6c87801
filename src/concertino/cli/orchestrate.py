"""`concertino orchestrate plugins.yaml`: run a hub until SIGTERM or SIGINT.

A hub starts the plugins that the file lists, and forwards requests to them (orchestra/hub.py).
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import resource
import signal
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

from concertino.cli import FAILED, USAGE
from concertino.cli.options import add_log_format
from concertino.cli.serving import exit_on_signals, reject_extra_args
from concertino.errors import ConcertinoError
from concertino.logs import handler as logging_setup
from concertino.logs.redact import refresh
from concertino.runtime.shutdown import exit_process
from concertino.transports.listeners import errno_message
from concertino.transports.stdio import bounded_stderr

if TYPE_CHECKING:
    from concertino.orchestra.hub import Hub
    from concertino.orchestra.hub_control import HubControl
    from concertino.orchestra.plugins_file import PluginsFile
    from concertino.orchestra.plugins_reload import PluginsReload

DESCRIPTION = (
    "Start the plugins of a file and pass requests on to them, until SIGTERM or SIGINT. Changes of "
    "the file are applied while the hub runs. "
    "Exit codes: 0 after a signal, 1 when the hub could not listen, 2 usage or an unusable file."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `concertino orchestrate` to its parser."""
    parser.usage = "concertino orchestrate [OPTIONS] plugins.yaml"
    parser.add_argument("file", metavar="plugins.yaml", help="file that lists the plugins")
    parser.add_argument(
        "--listen-addr",
        metavar="ADDR",
        help="address for bridges and plugins, instead of that in the file: HOST:PORT for QUIC, "
        "or unix:PATH",
    )
    parser.add_argument(
        "--certs-dir",
        metavar="DIR",
        help="folder of the certificates, instead of that in the file",
    )
    parser.add_argument(
        "--cluster",
        metavar="ADDR",
        help="a NATS cluster of hubs and plugins, which share their tools: tls://HOST,HOST,...",
    )
    parser.add_argument(
        "--trust",
        action="store_true",
        help="apply changes of the file at once; without it, a plugin with another command waits "
        "for `concertino approve`",
    )
    add_log_format(parser)


def run(args: argparse.Namespace, server: Sequence[str]) -> NoReturn:
    """Run the hub, which starts plugins and passes calls to them, and end the process.

    args: the parsed arguments. `args.file` is the path of plugins.yaml, which lists the plugins.
    server: the words after `--`. This command accepts none.
    Exit codes: 0 after a signal, 1 if the hub cannot listen or fails, 2 if plugins.yaml or an
    address cannot be used.
    """
    reject_extra_args(args, server)
    writer = bounded_stderr()
    # Learn the secrets in the environment before anything is logged, so that no log shows them.
    refresh()
    logging_setup.configure(format=args.log_format, component="hub", writer=writer)
    log = logging.getLogger("concertino.hub")
    exit_on_signals(writer)
    code = FAILED
    try:
        from concertino.orchestra.plugins_file import InvalidPluginsFile, read_plugins

        try:
            file = read_plugins(args.file)
        except InvalidPluginsFile as exc:
            log.error("%s", exc)
            exit_process(USAGE, writer)
        file.log_notes(log)
        raise_descriptor_limit()
        asyncio.run(_run_hub(file, args, log))
        code = 0
    except ValueError as exc:
        # An address is malformed.
        log.error("%s", exc)
        code = USAGE
    except (ConcertinoError, OSError, ImportError) as exc:
        log.error("%s", errno_message(exc))
    except BaseException:
        log.exception("the hub failed")
    exit_process(code, writer)


async def _run_hub(file: PluginsFile, args: argparse.Namespace, log: logging.Logger) -> None:
    """Run a hub until the first signal. The second signal kills it at once."""
    from concertino.orchestra.hub import Hub
    from concertino.orchestra.hub_control import HubControl
    from concertino.orchestra.plugins_reload import PluginsReload

    hub = Hub(file, listen_addr=args.listen_addr, certs_dir=args.certs_dir, cluster=args.cluster)
    loop = asyncio.get_running_loop()
    stopping: asyncio.Future[None] = loop.create_future()

    def stop() -> None:
        if stopping.done():
            hub.kill()
            os._exit(0)
        stopping.set_result(None)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    control = HubControl(hub)
    reload = PluginsReload(hub, file, trust=args.trust)
    starting = loop.create_task(_start(hub, control, reload))
    try:
        await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
        # A signal may come while the hub starts.
        if not starting.done():
            starting.cancel()
            await asyncio.wait((starting,))
        else:
            # Raises the exception of a start that has failed.
            starting.result()
            # Scripts look for this line.
            for address in hub.addresses:
                log.info("Listening on %s", address)
            await stopping
    finally:
        # Plugins may run even if the start has failed.
        await control.close()
        await reload.close()
        await hub.stop()


async def _start(hub: Hub, control: HubControl, reload: PluginsReload) -> None:
    """Start a hub, and wait until each plugin is ready, has failed or seems to wait for something.

    From hub.launch() on, the hub answers requests; hub.settle() waits for its plugins.

    control: accepts the commands of `concertino hub`, once it is opened here.
    reload: applies changes of the file that lists the plugins, once it is opened here.
    """
    await hub.launch()
    await control.open(os.environ)
    reload.open()
    await hub.settle()


def raise_descriptor_limit() -> None:
    """Raise the limit for open descriptors as far as the system allows."""
    # The hub needs seven descriptors for each plugin.
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft = hard if hard != resource.RLIM_INFINITY else 65536
    # macOS may report that there is no limit, and still refuse this value.
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    except (ValueError, OSError):
        pass
