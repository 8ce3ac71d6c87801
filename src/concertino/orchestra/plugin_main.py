"""The process of a plugin: flags, certificates, READY, the hub that is told, and the end.

    --listen-addr ADDR         where the hub calls it: unix:PATH, or HOST:PORT for QUIC; localhost:0 unless given
    --orchestrator-addr ADDR   the hub, where it registers
    --certs-dir DIR            ~/.orchestra/certs unless given
    --manifest                 print what it is, one line of JSON, and leave

When it can be called, one line on stderr says `READY ADDR`. A hub of ours puts its process id into CONCERTINO_HUB_PID, and the
plugin ends when that process is gone. Exit codes: 0 the end, 1 it could not start or the hub refused it, 2 usage.
Source: the Orchestra plugin protocol, "SDK".
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from msgspec.json import encode

from concertino.errors import ConcertinoError
from concertino.logs import handler as logging_setup
from concertino.logs.redact import refresh
from concertino.logs.writer import BoundedWriter
from concertino.orchestra.certificates import Certificates, default_folder
from concertino.orchestra.flags import add_flags
from concertino.orchestra.link import (
    RpcConnection,
    checked_orchestrator,
    listen_for_links,
    open_link,
)
from concertino.orchestra.plugin_pb2 import PluginRequest
from concertino.orchestra.reconnecting_link import ReconnectingLink
from concertino.runtime.process import exit_process
from concertino.runtime.service import bounded_stderr
from concertino.transports.listeners import errno_message

if TYPE_CHECKING:
    from concertino.orchestra.plugin import Plugin

__all__ = ["HUB_PID", "run", "run_plugin"]

HUB_PID = "CONCERTINO_HUB_PID"
DRAIN_S = 2.0
REGISTER_S = 5.0
FAILED = 1


def run(plugin: Plugin, arguments: Sequence[str] | None = None) -> NoReturn:
    """See Plugin.run."""
    parser = argparse.ArgumentParser(
        prog=plugin.name, description=f"{plugin.name}, a plugin of an Orchestra hub."
    )
    add_flags(parser)
    run_plugin(plugin, parser.parse_args(arguments))


def run_plugin(plugin: Plugin, given: argparse.Namespace) -> NoReturn:
    """Run with the flags of add_flags(), as they were parsed."""
    if given.manifest:
        sys.stdout.write(manifest_line(plugin))
        sys.stdout.flush()
        os._exit(0)
    refresh()
    writer = bounded_stderr()
    logging_setup.configure(component=plugin.name, writer=writer)
    log = logging.getLogger(f"concertino.{plugin.name}")
    code = FAILED
    try:
        code = asyncio.run(_serve(plugin, given, writer, log))
    except (ConcertinoError, OSError, ValueError) as why:
        log.error("%s", errno_message(why))
    except BaseException:
        log.exception("%s failed", plugin.name)
    exit_process(code, writer)


def manifest_line(plugin: Plugin) -> str:
    """The answer to --manifest: upstream's members, whose lists are never null."""
    about = plugin.manifest()
    texts = ("id", "version", "description", "author", "language")
    lists = ("tools", "storage", "transport", "ai", "prompts", "events")
    said: dict[str, Any] = {name: getattr(about, name) for name in texts}
    said |= {f"provides_{name}": list(getattr(about, f"provides_{name}")) for name in lists}
    said |= {
        f"needs_{name}": list(getattr(about, f"needs_{name}"))
        for name in ("storage", "events", "ai", "tools")
    }
    return encode(said).decode() + "\n"


async def _serve(
    plugin: Plugin, given: argparse.Namespace, writer: BoundedWriter, log: logging.Logger
) -> int:
    if given.orchestrator_addr:
        checked_orchestrator(given.orchestrator_addr)
    loop = asyncio.get_running_loop()
    over: asyncio.Future[int] = loop.create_future()
    alone = asyncio.Event()  # the hub is gone

    def end(code: int = 0) -> None:
        if not over.done():
            over.set_result(code)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _obey, over, alone, end)
    _watch_hub(loop, alone, end)
    plugin.on_end = end
    certificates = Certificates(given.certs_dir or default_folder())
    await plugin.start(_Outlet())
    listening = await listen_for_links(
        given.listen_addr,
        plugin.answer,
        certificates=_provided(certificates, plugin.name, given.listen_addr),
        name=plugin.name,
        admits=lambda name: name in ("orchestrator", f"orchestrator-to-{plugin.name}"),
    )
    writer.write(f"READY {listening.address}\n".encode())
    hub: ReconnectingLink | None = None
    if given.orchestrator_addr:
        client = f"{plugin.name}-client"
        opening = partial(
            open_link,
            given.orchestrator_addr,
            certificates=_provided(certificates, client, given.orchestrator_addr),
            name=client,
            expects="orchestrator",
        )
        hub = ReconnectingLink(
            given.orchestrator_addr, opening, entered=partial(_register, plugin, log, end)
        )
        plugin.hub = hub
        hub.start()
    code = await over
    await listening.close(DRAIN_S)
    if hub is not None:
        await hub.close()
    await plugin.shut_down()
    await plugin.close()
    return code


def _obey(over: asyncio.Future[int], alone: asyncio.Event, end: Any) -> None:
    """The first signal drains, the second ends at once; the one that comes with the hub's end says nothing new."""
    if over.done() and not alone.is_set():
        os._exit(0)
    end()


def _provided(certificates: Certificates, name: str, address: str) -> Certificates | None:
    """Where the certificate of this name is; issued first if there is none and it can be. A Unix socket needs none."""
    if address.startswith("unix:"):
        return None
    from concertino.orchestra.authority import ensure

    ensure(certificates, name)
    return certificates


async def _register(plugin: Plugin, log: logging.Logger, end: Any, link: RpcConnection) -> None:
    """Tell the hub what this plugin is."""
    response = await link.request(PluginRequest(register=plugin.manifest()), REGISTER_S)
    if not response.HasField("register"):
        refused = response.tool_call.error_message or "it did not answer the registration"
    elif response.register.accepted:
        log.info("registered at %s", link.peer.address)
        return
    else:
        refused = response.register.reject_reason or "no reason was given"
    log.error("the hub at %s refuses this plugin: %s", link.peer.address, refused)
    end(FAILED)


def _watch_hub(loop: asyncio.AbstractEventLoop, alone: asyncio.Event, end: Any) -> None:
    """End when the hub's process is gone, however it went; where the system can tell."""
    said = os.environ.get(HUB_PID, "")
    if not said.isdecimal():
        return
    try:
        descriptor = os.pidfd_open(int(said))
    except ProcessLookupError:
        end()
    except (AttributeError, OSError):  # not Linux, or an old kernel
        pass
    else:
        loop.add_reader(descriptor, lambda: (loop.remove_reader(descriptor), alone.set(), end()))


class _Outlet:
    """Nobody is told of changes: the plugin protocol has no word for them."""

    def report_change(self, what: object) -> None:
        pass

    def report_update(self, uri: str) -> None:
        pass
