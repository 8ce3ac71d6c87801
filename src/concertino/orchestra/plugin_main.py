"""run(), run_plugin(): run the process of a plugin, from its flags to its shutdown.

    --listen-addr ADDR         where the plugin listens for the hub: unix:PATH, or HOST:PORT for
                               QUIC; localhost:0 by default
    --orchestrator-addr ADDR   the address of the hub, where the plugin registers
    --certs-dir DIR            the directory of certificates; ~/.orchestra/certs by default
    --cluster ADDR             join a NATS cluster instead of a hub; see cluster_worker.py
    --config NAME=VALUE        with --cluster: a setting for the plugin's on_boot functions
    --manifest                 print the plugin's manifest, one line of JSON, and exit

When the plugin is ready for calls, it writes the line `READY ADDR` to stderr.

A plugin ends with its hub. A hub of this package passes its process id in CONCERTINO_HUB_PID, and
the plugin ends when this process ends. A hub of the Go implementation does not set the variable.
Under such a hub, the plugin ends when it cannot reach the hub and its parent process is gone.

Exit codes: 0 after a regular shutdown, 1 if the plugin could not start or the hub refused it, 2 for
wrong flags.
Source: the Orchestra plugin protocol, "SDK".
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import shlex
import signal
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any, NoReturn

from msgspec.json import encode

from concertino.errors import ConcertinoError
from concertino.logs import handler as logging_setup
from concertino.logs.redact import refresh
from concertino.logs.writer import BoundedWriter
from concertino.orchestra.authority import ensure_certificate
from concertino.orchestra.certificates import HUB, Certificates, default_folder
from concertino.orchestra.flags import add_flags
from concertino.orchestra.link import check_hub_address, listen_for_links, open_link
from concertino.orchestra.plugin_messages import PluginRequest, PluginResponse
from concertino.orchestra.reconnecting_link import ReconnectingLink
from concertino.orchestra.rpc_interface import RemotePeer, Responses, RpcConnection
from concertino.orchestra.runnable_plugin import RunnablePlugin
from concertino.orchestra.streams import ChunkSender, StreamRun
from concertino.runtime.shutdown import exit_process
from concertino.runtime.tasks import loop_watch_of
from concertino.transports.listeners import errno_message
from concertino.transports.stdio import bounded_stderr

__all__ = ["HUB_PID", "run", "run_plugin"]

HUB_PID = "CONCERTINO_HUB_PID"
# How long pending calls may take to finish when the plugin ends, in seconds.
DRAIN_S = 2.0
# How long the hub may take to answer the registration, in seconds.
REGISTER_S = 5.0
# The pause between two attempts to write READY while the pipe of stderr is full, in seconds.
FLUSH_S = 0.02
# How long the hub must be unreachable before the plugin ends because its parent process is gone, in
# seconds.
UNREACHABLE_S = 2.0
# The exit code if the plugin could not start, or the hub refused it.
FAILED = 1


def run(plugin: RunnablePlugin, arguments: Sequence[str] | None = None) -> NoReturn:
    """Parse command-line flags, and run a plugin with them until the hub or a signal ends it.

    arguments: the flags; None for the flags of this process.
    Ends the process with exit code 2 if the flags are wrong.
    """
    parser = argparse.ArgumentParser(
        prog=plugin.name, description=f"{plugin.name}, a plugin of an Orchestra hub."
    )
    add_flags(parser)
    run_plugin(plugin, parser.parse_args(arguments))


def run_plugin(plugin: RunnablePlugin, args: argparse.Namespace) -> NoReturn:
    """Run a plugin until the hub or a signal ends it. Then end the process.

    args: the parsed flags of add_flags() (flags.py).
    """
    if args.manifest:
        sys.stdout.write(manifest_line(plugin))
        sys.stdout.flush()
        os._exit(0)

    # From now on, logs hide the secrets among the environment variables.
    refresh()
    writer = bounded_stderr()
    logging_setup.configure(component=plugin.name, writer=writer)
    log = logging.getLogger(f"concertino.{plugin.name}")
    code = FAILED
    try:
        code = asyncio.run(_serve(plugin, args, writer, log))
    except (ConcertinoError, OSError, ValueError) as exc:
        log.error("%s", errno_message(exc))
        # A user who has started the file by hand, without a hub, probably wants to try its tools.
        has_hub = args.orchestrator_addr or args.cluster or HUB_PID in os.environ
        if not has_hub and sys.argv[0].endswith(".py"):
            file = shlex.quote(sys.argv[0])
            log.info("a hub starts its plugins; to try this one: concertino serve %s", file)
    except BaseException:
        log.exception("%s failed", plugin.name)
    exit_process(code, writer)


def manifest_line(plugin: RunnablePlugin) -> str:
    """Return the output of --manifest: one line of JSON, with the same keys as a Go plugin prints.

    Empty lists are [], never null.
    """
    manifest = plugin.manifest()
    texts = ("id", "version", "description", "author", "language")
    lists = ("tools", "storage", "transport", "ai", "prompts", "events")
    needs = ("storage", "events", "ai", "tools")
    members: dict[str, Any] = {name: getattr(manifest, name) for name in texts}
    members |= {f"provides_{name}": list(getattr(manifest, f"provides_{name}")) for name in lists}
    members |= {f"needs_{name}": list(getattr(manifest, f"needs_{name}")) for name in needs}
    return encode(members).decode() + "\n"


class _End:
    """Starts the shutdown of the process: calls end, and then the on_shutdown functions run.

    Attributes:
    code: a future for the exit code. The shutdown begins when the future gets its result.
    is_hub_gone: whether the process ends because the hub has ended.
    """

    def __init__(self) -> None:
        self.code: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.is_hub_gone = False

    def begin(self, code: int = 0) -> None:
        """Start the shutdown of the process, and return at once.

        code: the exit code. Later calls change nothing, not even the exit code.
        """
        if not self.code.done():
            self.code.set_result(code)

    def on_signal(self) -> None:
        """Start the shutdown at the first SIGTERM or SIGINT, and exit at once at the second."""
        # When the hub ends, the kernel sends SIGTERM (DIE_WITH_HUB in plugin_run.py), usually after
        # on_hub_end(). This signal must not count as a second one.
        if self.code.done() and not self.is_hub_gone:
            # The user has asked for this exit, so it is no failure.
            os._exit(0)
        self.begin()

    def on_hub_end(self) -> None:
        """Start the shutdown because the hub's process has ended."""
        self.is_hub_gone = True
        self.begin()


class _WatchedCalls:
    """Passes requests to a plugin, and logs a warning if a request blocks the event loop.

    A thread of the LoopWatch (runtime/tasks.py) logs the warning. The thread sleeps while no
    request is in progress.
    """

    def __init__(self, plugin: RunnablePlugin, loop: asyncio.AbstractEventLoop) -> None:
        self._plugin = plugin
        self._in_progress = 0
        self._watch = loop_watch_of(loop)
        self._watch.begin(lambda: self._in_progress > 0)

    async def answer(self, request: PluginRequest, peer: RemotePeer) -> Responses:
        """Answer one request of the hub. This method is a RequestHandler (rpc_interface.py)."""
        # Health pings come every few seconds, and must not wake the thread of an idle process.
        if self._watch.is_asleep and not request.HasField("health"):
            self._watch.wake()
        self._in_progress += 1
        try:
            response = await self._plugin.answer(request, peer)
        finally:
            self._in_progress -= 1
        # The handler of a stream returns a function that will run the tool; see StreamRun.
        return partial(self._run_stream, response) if callable(response) else response

    async def _run_stream(self, run: StreamRun, chunks: ChunkSender) -> PluginResponse:
        """Run a stream, and count it as a request in progress until it ends."""
        self._in_progress += 1
        try:
            return await run(chunks)
        finally:
            self._in_progress -= 1


class _ParentWatch:
    """Ends the process when the hub cannot be reached and the parent process is gone.

    A hub is the parent process of its plugins, so both conditions together mean that the hub has
    ended. One condition alone does not: an unreachable hub may come back, and a plugin that a shell
    has started may outlive the shell.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        end: _End,
        log: logging.Logger,
    ) -> None:
        self._loop = loop
        self._end = end
        self._log = log
        self._parent = os.getppid()
        # Start the timer now, because there is no connection to the hub yet.
        self._timer = loop.call_later(UNREACHABLE_S, self._check)

    def on_change(self, is_up: bool) -> None:
        """Handle a new connection to the hub, or the loss of the connection.

        is_up: whether there is a connection now.
        """
        self._timer.cancel()
        if not is_up:
            self._timer = self._loop.call_later(UNREACHABLE_S, self._check)

    def _check(self) -> None:
        """End this process if its parent has ended. Otherwise check again later."""
        # When a parent process ends, the system gives its child another parent.
        if os.getppid() == self._parent:
            self._timer = self._loop.call_later(UNREACHABLE_S, self._check)
        else:
            self._log.warning("the hub and the process that started this plugin are gone")
            self._end.on_hub_end()


async def _serve(
    plugin: RunnablePlugin,
    args: argparse.Namespace,
    writer: BoundedWriter,
    log: logging.Logger,
) -> int:
    """Run the plugin until its end, and return the exit code.

    args: the parsed flags.
    writer: writes to stderr.
    """
    if args.orchestrator_addr:
        check_hub_address(args.orchestrator_addr)
    loop = asyncio.get_running_loop()
    end = _End()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end.on_signal)
    _watch_hub(loop, end)
    plugin.on_end = end.begin

    certificates = Certificates(args.certs_dir or default_folder())
    calls = _WatchedCalls(plugin, loop)
    # Start the plugin before READY is written, because the hub sends requests as soon as it reads
    # that line.
    await plugin.start(_NoNotifier())
    try:
        if args.cluster:
            # Imported here, because most plugins are in no cluster.
            from concertino.orchestra.cluster_worker import ClusterWorker, read_settings

            worker = ClusterWorker(plugin, calls.answer)
            address = await worker.open(args.cluster, certificates, read_settings(args.config))
            ready = _report_ready(writer, address)
            code = await end.code
            ready.cancel()
            await worker.close(DRAIN_S)
        else:
            code = await _serve_hub(plugin, args, certificates, calls, writer, log, end)
        await plugin.shut_down()
    finally:
        # The plugin may be unable to listen. Its lifespan functions must end nevertheless.
        await plugin.close()
    return code


async def _serve_hub(
    plugin: RunnablePlugin,
    args: argparse.Namespace,
    certificates: Certificates,
    calls: _WatchedCalls,
    writer: BoundedWriter,
    log: logging.Logger,
    end: _End,
) -> int:
    """Listen for the hub's connection, register at the hub, and wait for the end of the process.

    Without --orchestrator-addr, the plugin listens but does not register.
    Returns the exit code.
    """
    hub_address: str | None = args.orchestrator_addr
    loop = asyncio.get_running_loop()
    listener = await listen_for_links(
        args.listen_addr,
        calls.answer,
        certificates=_prepare_certificate(certificates, plugin.name, args.listen_addr),
        name=plugin.name,
        # Only a hub may connect over QUIC. These are the names in the certificates of hubs.
        admits=lambda name: name in (HUB, f"{HUB}-to-{plugin.name}"),
    )
    ready = _report_ready(writer, listener.address)

    hub: ReconnectingLink | None = None
    if hub_address:
        client = f"{plugin.name}-client"
        connect = partial(
            open_link,
            hub_address,
            certificates=_prepare_certificate(certificates, client, hub_address),
            name=client,
            expects=HUB,
        )
        hub = ReconnectingLink(
            hub_address,
            connect,
            on_connect=partial(_register, plugin, log, end),
            on_change=_ParentWatch(loop, end, log).on_change,
        )
        plugin.hub = hub
        hub.start()

    # Close the listener first. Then no new calls can arrive, and the caller of this function can
    # run the on_shutdown functions after the last call.
    code = await end.code
    ready.cancel()
    await listener.close(DRAIN_S)
    if hub is not None:
        await hub.close()
    return code


def _report_ready(writer: BoundedWriter, address: str) -> asyncio.Task[None]:
    """Write the line READY to stderr. If the pipe is full, the returned task writes it later."""
    # Log lines may wait in the writer already. Write READY before them, so that it is not dropped.
    writer.write_first(f"READY {address}\n".encode())
    return asyncio.get_running_loop().create_task(_flush(writer))


async def _flush(writer: BoundedWriter) -> None:
    """Write the buffered lines of stderr, such as READY, when the hub has made room for them."""
    while writer.pending:
        await asyncio.sleep(FLUSH_S)
        writer.flush()


def _prepare_certificate(
    certificates: Certificates, name: str, address: str
) -> Certificates | None:
    """Return the certificates for a connection; None for a Unix socket, which needs none.

    If the plugin's certificate is missing, it is issued first.
    name: the name in the plugin's certificate.
    address: where the plugin listens or connects.
    Raises CertificateError if the certificate cannot be issued.
    """
    if address.startswith("unix:"):
        return None
    ensure_certificate(certificates, name)
    return certificates


async def _register(
    plugin: RunnablePlugin,
    log: logging.Logger,
    end: _End,
    link: RpcConnection,
) -> None:
    """Register at the hub with the manifest. End the process if the hub refuses the plugin.

    link: the connection to the hub. ReconnectingLink calls this function for each new connection.
    """
    response = await link.request(PluginRequest(register=plugin.manifest()), REGISTER_S)
    if not response.HasField("register"):
        reason = response.tool_call.error_message or "it did not answer the registration"
    elif response.register.accepted:
        log.info("registered at %s", link.peer.address)
        return
    else:
        reason = response.register.reject_reason or "no reason was given"
    log.error("the hub at %s refuses this plugin: %s", link.peer.address, reason)
    end.begin(FAILED)


def _watch_hub(loop: asyncio.AbstractEventLoop, end: _End) -> None:
    """End this process when the process in the variable HUB_PID ends.

    Does nothing without the variable, and on systems without pidfd.
    """
    pid = os.environ.get(HUB_PID, "")
    if not pid.isdecimal():
        return
    try:
        descriptor = os.pidfd_open(int(pid))
    except ProcessLookupError:
        # The hub has ended already.
        end.begin()
        return
    except (AttributeError, OSError):
        # This system has no pidfd: it is not Linux, or its kernel is old.
        return

    def on_end() -> None:
        loop.remove_reader(descriptor)
        end.on_hub_end()

    loop.add_reader(descriptor, on_end)


class _NoNotifier:
    """A Notifier that ignores all changes, because the plugin protocol cannot report them."""

    def report_change(self, what: object) -> None:
        pass

    def report_update(self, uri: str) -> None:
        pass
