"""PluginRun: one run of a plugin's program, as a process of the hub.

A hub starts plugins, programs with tools, and forwards requests to them. PluginProcess
(plugin_process.py) owns the present run, and starts the next one when the run is over. A run has
these steps:

1. start() starts the process, waits for `READY ADDRESS` on its stderr, connects to this address,
   sends the requests `register` and `boot`, and fetches the lists of tools and prompts.
2. wait_end() pings the plugin until the plugin does not answer or its process has ended.
3. close() ends the process.

Source: the Orchestra plugin protocol, "Orchestrator".
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from concertino.errors import ConcertinoError, Disconnected, ProtocolError, TimedOut
from concertino.logs.redact import learn_named_secrets
from concertino.orchestra.authority import ensure_certificate
from concertino.orchestra.certificates import Certificates
from concertino.orchestra.idleness import wait_until_idle, watch_work
from concertino.orchestra.link import open_link
from concertino.orchestra.plugin_entry import PluginEntry
from concertino.orchestra.plugin_main import HUB_PID
from concertino.orchestra.plugin_messages import (
    BootRequest,
    HealthRequest,
    HealthResult,
    ListPromptsRequest,
    ListToolsRequest,
    PluginManifest,
    PluginRequest,
    PluginResponse,
    PromptDefinition,
    ShutdownRequest,
    ToolDefinition,
)
from concertino.orchestra.plugin_output import PluginOutput
from concertino.orchestra.rpc_interface import (
    TIMEOUT_S,
    ForwardingConnection,
    HandshakeFailure,
    RpcConnection,
)
from concertino.proxy.file_server import START_S
from concertino.proxy.proxy import OPENING_S
from concertino.transports.process import INHERITED, ChildProcess, ShutdownTimeouts, spawn

__all__ = ["HubEnvironment", "LaunchSettings", "PluginRun"]

# All times in seconds.
# Time limit for READY, as in the Go implementation.
READY_S = 10.0
# After this time, the hub reports what a plugin that boots waits for. It is a little longer than
# the time after which the Proxy of an MCP server knows that.
SLOW_BOOT_S = OPENING_S + 1.0
# Time limit for register, and for each list.
STEP_S = 10.0
# Time limit for the boot of an MCP server: the time limit of the server's start, and some time to
# report a failure.
MCP_BOOT_S = START_S + 15.0
# The pause between two health pings, and the time limit for the answer to one.
HEALTH_S = 5.0
# A plugin that sleeps (uses no processor time, idleness.py) for one of the next three times while
# it starts no longer delays other plugins and requests. This one holds before READY, for a plugin
# with a Unix socket.
IDLE_S = 0.25
# Before READY, for a plugin with QUIC. It is shorter, because these plugins start one after
# another.
QUIC_IDLE_S = 0.1
# After READY. It is longer, because a plugin that boots may wait for other programs.
BOOT_IDLE_S = 2.0
# Time limit for the answer to a shutdown request.
SHUTDOWN_S = 2.0
# The pause between two checks whether the calls of a run are finished.
DRAIN_POLL_S = 0.05
# How long to wait for the exit status after the connection is lost.
EXIT_STATUS_S = 0.25

# A Python program that starts the plugin, so that the kernel ends the plugin when the hub is
# killed. prctl(1, 15) is PR_SET_PDEATHSIG with SIGTERM; the setting survives execve. The comparison
# of the parent's id finds a hub that was killed before prctl(). Plugins of this package would
# notice the end of the hub themselves (HUB_PID), but other plugins would not.
# Starting this interpreter takes 15 ms. A preexec_fn is no alternative: it would run with copies of
# the locks that the hub's threads hold.
DIE_WITH_HUB = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 15)
if os.getppid() != int(sys.argv[1]):
    sys.exit("the hub is gone")
try:
    os.execvp(sys.argv[2], sys.argv[2:])
except OSError as exc:
    sys.exit(f"{sys.argv[2]}: {exc.strerror}")
"""


class HubEnvironment(Struct, frozen=True):
    """Settings that all plugins of a hub share.

    folder: the directory for the plugins' sockets; its mode is 0700.
    socket_address: the hub's address for plugins with `socket: true`.
    network_address: the hub's address for all other plugins; empty if the hub has no such plugins.
    certificates: the certificates, which QUIC needs.
    starts: the semaphore that limits how many plugins start at the same time.
    """

    folder: Path
    socket_address: str
    network_address: str
    certificates: Certificates
    starts: asyncio.Semaphore


class LaunchSettings(Struct, frozen=True):
    """Settings for starting and ending one plugin.

    entry: the plugin's entry in the plugins file.
    number: a number that no other plugin of the hub has, for the name of the plugin's socket.
    timeouts: how long the process may take to end after its stdin is closed, after SIGTERM, and
        after SIGKILL.
    log: the plugin's logger.
    """

    entry: PluginEntry
    number: int
    timeouts: ShutdownTimeouts
    log: logging.Logger


class PluginRun:
    """One run of a plugin's program. Call start(), then wait_end(), then close().

    settings: the plugin's entry in the plugins file, its logger and its time limits.

    Attributes:
    link: the connection to the plugin; None while there is none.
    exited: a task that returns the exit status; None while there is no process.
    address: the address at which the plugin listens; empty until the plugin has written its line
        `READY ADDRESS`.
    health: the problem in the plugin's answer to the last health ping, such as "DEGRADED the disk
        is full"; empty if the plugin is healthy.
    """

    def __init__(self, settings: LaunchSettings) -> None:
        self.link: ForwardingConnection | None = None
        self.exited: asyncio.Task[int] | None = None
        self.address = ""
        self.health = ""
        self._settings = settings
        self._log = settings.log
        self._child: ChildProcess | None = None
        # The task that fetches the lists again, see fetch_again().
        self._fetching: asyncio.Task[None] | None = None
        # The tools and prompts that the plugin has sent last.
        self._tools: list[ToolDefinition] = []
        self._prompts: list[PromptDefinition] = []

    @property
    def pid(self) -> int | None:
        """The id of the process and of its process group; None while there is no process."""
        return None if self._child is None else self._child.pid

    async def start(
        self,
        environment: HubEnvironment,
        on_idle: Callable[[], None],
        on_work: Callable[[float], None],
        on_slow_boot: Callable[[str], None],
    ) -> tuple[list[ToolDefinition], list[PromptDefinition]]:
        """Start the process, connect, register and boot. Returns the plugin's tools and prompts.

        environment: the settings that all plugins of the hub share.
        on_idle: called if the plugin uses no processor time for a while. Other plugins and requests
            need not wait for it then. May be called twice: before READY and after it.
        on_work: called again and again before READY, with the processor time that the plugin has
            used so far, in seconds.
        on_slow_boot: called once if the plugin has not booted within SLOW_BOOT_S seconds. Its
            argument is a text for users that says what the plugin waits for.
        Raises ConcertinoError, OSError or ValueError if the plugin does not start. Call close()
        after an exception, too.
        """
        self.address = await self._wait_ready(environment, on_idle, on_work)
        exited = self.exited
        assert exited is not None
        # Wait until the plugin has booted, or its process has ended. If the plugin sleeps for a
        # while before that, call on_idle(), and wait on.
        boot = asyncio.get_running_loop().create_task(
            self._connect_and_boot(environment, on_slow_boot)
        )
        idle = self._watch_idleness(BOOT_IDLE_S)
        try:
            await asyncio.wait((boot, exited, idle), return_when=asyncio.FIRST_COMPLETED)
            if not boot.done() and not exited.done():
                on_idle()
                await asyncio.wait((boot, exited), return_when=asyncio.FIRST_COMPLETED)
            if not boot.done():
                raise Disconnected("it ended while it was being started")
            return boot.result()
        finally:
            idle.cancel()
            if not boot.done():
                boot.cancel()
                await asyncio.wait((boot,))

    async def _wait_ready(
        self,
        environment: HubEnvironment,
        on_idle: Callable[[], None],
        on_work: Callable[[float], None],
    ) -> str:
        """Start the process, wait for its READY line, and return the address in this line.

        on_idle: called if the plugin sleeps before READY.
        on_work: called again and again before READY, with the processor time that the plugin has
            used so far, in seconds.
        Raises Disconnected if the process ends before READY, TimedOut if READY does not come within
        READY_S, and ProtocolError for another address than the expected one. Raises SpawnError,
        OSError or ValueError if the process cannot be started.
        """
        time = asyncio.get_running_loop().time
        # Only some plugins may start at the same time. When a plugin sleeps, its start leaves this
        # block, and so no longer counts: a plugin that sleeps does not slow down the other starts.
        async with environment.starts:
            until = time() + READY_S
            address, output = self._spawn(environment)
            exited = self.exited
            assert exited is not None
            idle = self._watch_idleness(IDLE_S if self._settings.entry.socket else QUIC_IDLE_S)
            work = self._watch_work(on_work)
            try:
                await asyncio.wait(
                    (output.ready, exited, idle),
                    timeout=READY_S,
                    return_when=asyncio.FIRST_COMPLETED,
                )
            finally:
                idle.cancel()
                work.cancel()
        left_s = until - time()
        if not output.ready.done() and not exited.done() and left_s > 0:
            on_idle()
            await asyncio.wait(
                (output.ready, exited), timeout=left_s, return_when=asyncio.FIRST_COMPLETED
            )

        if not output.ready.done():
            if exited.done():
                raise Disconnected("it ended before READY")
            raise TimedOut(
                f"expected READY on its stderr within {READY_S:g} s, got none "
                "(an MCP server needs `protocol: mcp`)"
            )
        ready = output.ready.result()
        if address.startswith("unix:") and ready != address:
            raise ProtocolError(f"expected READY {address}, got READY {ready}")
        return ready

    def _watch_idleness(self, for_s: float) -> asyncio.Task[None]:
        """Return a task that ends when the process has slept for some seconds."""
        assert self._child is not None
        return asyncio.get_running_loop().create_task(wait_until_idle(self._child.pid, for_s))

    def _watch_work(self, on_work: Callable[[float], None]) -> asyncio.Task[None]:
        """Return a task that calls on_work with the processor time that the process has used."""
        assert self._child is not None
        return asyncio.get_running_loop().create_task(watch_work(self._child.pid, on_work))

    def _spawn(self, environment: HubEnvironment) -> tuple[str, PluginOutput]:
        """Start the process. Returns the address at which it must listen, and its output."""
        entry = self._settings.entry
        variables = {
            name: os.environ.get(name, "") if value is None else value
            for name, value in entry.env.items()
        }
        # From now on, logs do not show the secrets among these variables.
        learn_named_secrets(variables)

        address, hub_address = "localhost:0", environment.network_address
        output = PluginOutput(self._log)
        if entry.socket:
            address = f"unix:{environment.folder / f'{self._settings.number}.sock'}"
            hub_address = environment.socket_address
            output = PluginOutput(self._log, address)
        program, inherited_names = _program(entry.binary)
        command = [
            *program,
            *entry.args,
            f"--orchestrator-addr={hub_address}",
            f"--listen-addr={address}",
            f"--certs-dir={environment.certificates.folder}",
        ]
        child = spawn(
            command,
            env={**variables, HUB_PID: str(os.getpid())},
            inherit=inherited_names,
            stderr=output,
            # The time limits of the steps that end the process.
            ladder=self._settings.timeouts,
        )
        # Begin to read stdout and stderr.
        child.open(output)
        self._child = child
        self.exited = asyncio.get_running_loop().create_task(child.wait())
        return address, output

    async def _connect_and_boot(
        self, environment: HubEnvironment, on_slow_boot: Callable[[str], None]
    ) -> tuple[list[ToolDefinition], list[PromptDefinition]]:
        """Connect to the plugin, and send register and boot. Returns its tools and prompts.

        on_slow_boot: see start().
        """
        id = self._settings.entry.id
        # _wait_ready() has checked that a plugin with a socket listens at its assigned address.
        if self.address.startswith("unix:"):
            link = self.link = await open_link(self.address)
        else:
            name = f"orchestrator-to-{id}"
            ensure_certificate(environment.certificates, name)
            link = self.link = await open_link(
                self.address, certificates=environment.certificates, name=name, expects=id
            )

        response = await link.request(PluginRequest(register=PluginManifest(id=id)), STEP_S)
        if not response.register.accepted:
            reason = response.register.reject_reason or _error_text(response)
            raise HandshakeFailure(f"it refuses to be {id}: {reason}")

        # on_boot functions may take long, and npx may have to install an MCP server first.
        entry = self._settings.entry
        limit_s = MCP_BOOT_S if entry.is_mcp else TIMEOUT_S
        request = PluginRequest(boot=BootRequest(config=dict(entry.config)))
        watch = asyncio.get_running_loop().create_task(self._watch_boot(link, on_slow_boot))
        try:
            response = await link.request(request, limit_s)
        finally:
            watch.cancel()
        if not response.boot.ready:
            reason = response.boot.error or _error_text(response)
            raise HandshakeFailure(f"it could not boot: {reason}")

        return await self.fetch_lists(link)

    async def _watch_boot(self, link: RpcConnection, on_slow: Callable[[str], None]) -> None:
        """Wait SLOW_BOOT_S seconds. Then ask the plugin what it waits for, and call on_slow.

        on_slow: called with a text for users that says what the plugin waits for.
        """
        await asyncio.sleep(SLOW_BOOT_S)
        reason = ""
        with suppress(ConcertinoError):
            response = await link.request(PluginRequest(health=HealthRequest()), STEP_S)
            # The message of a plugin that says it is healthy does not explain the wait.
            if response.health.status != HealthResult.HEALTHY:
                reason = response.health.message
        on_slow(reason or f"it has not booted within {SLOW_BOOT_S:g} s")

    async def fetch_lists(
        self, link: RpcConnection
    ) -> tuple[list[ToolDefinition], list[PromptDefinition]]:
        """Request the plugin's tools and prompts, and return them.

        If the plugin answers a request with an error, the previous list is returned; without a
        previous list, an empty one.
        link: the connection to the plugin.
        Raises the exceptions of link.request().
        """
        # The previous list stays, so that tools of an MCP server stay callable if the server ends
        # while the plugin lists its tools.
        response = await link.request(PluginRequest(list_tools=ListToolsRequest()), STEP_S)
        if response.HasField("list_tools"):
            self._tools = list(response.list_tools.tools)
        else:
            self._log.warning("it does not list its tools: %s", _error_text(response))

        # Old Go plugins do not know this request and return an error. They have no prompts.
        response = await link.request(PluginRequest(list_prompts=ListPromptsRequest()), STEP_S)
        if response.HasField("list_prompts"):
            self._prompts = list(response.list_prompts.prompts)
        return self._tools, self._prompts

    def fetch_again(
        self, on_lists: Callable[[list[ToolDefinition], list[PromptDefinition]], object]
    ) -> None:
        """Fetch the tools and prompts of the running plugin again, in the background.

        on_lists: called with the tools and prompts. It is not called if the plugin does not answer.
        """
        # The responses to earlier requests may not contain the latest change.
        if self._fetching is not None:
            self._fetching.cancel()

        async def fetch() -> None:
            assert self.link is not None
            try:
                on_lists(*await self.fetch_lists(self.link))
            except ConcertinoError as exc:
                self._log.warning("its lists could not be fetched again: %s", exc)

        self._fetching = asyncio.get_running_loop().create_task(fetch())

    async def wait_end(self) -> str:
        """Wait until the process exits, the connection is lost, or a health ping fails.

        Call this after start(). Returns a text for users that says what has happened. A moment
        later, exit_reason() may return the exit status, which says more.
        """
        link, exited = self.link, self.exited
        assert link is not None
        assert exited is not None
        pings = asyncio.get_running_loop().create_task(self._ping(link))
        try:
            await asyncio.wait(
                (link.end_reason, exited, pings), return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            pings.cancel()
        if exited.done():
            return _describe_exit(exited.result())
        return link.end_reason.result() if link.end_reason.done() else pings.result()

    async def _ping(self, link: ForwardingConnection) -> str:
        """Send health pings, and log changes of the health. Returns why a ping has failed."""
        while True:
            await asyncio.sleep(HEALTH_S)
            try:
                response = await link.request(PluginRequest(health=HealthRequest()), HEALTH_S)
            except TimedOut:
                return f"it did not answer a health ping within {HEALTH_S:g} s"
            except ConcertinoError as exc:
                return str(exc)

            health = response.health
            problem = ""
            if health.status != HealthResult.HEALTHY:
                problem = f"{HealthResult.Status.Name(health.status)} {health.message}"
            if problem != self.health:
                self.health = problem
                self._log.warning("it says that it is %s", problem or "well again")

    async def exit_reason(self) -> str:
        """Wait up to 0.25 s for the end of the process, and return how it ended.

        Call this when the connection is lost, because the exit status says more about the cause
        than the error of the connection. Returns a text for users; "" if the process has not ended
        in this time.
        """
        # While this method waits, close() may cancel the task and set the attribute to None.
        exited = self.exited
        if exited is None:
            return ""
        await asyncio.wait((exited,), timeout=EXIT_STATUS_S)
        is_known = exited.done() and not exited.cancelled()
        return _describe_exit(exited.result()) if is_known else ""

    async def drain(self, limit_s: float) -> None:
        """Wait until the plugin has answered all requests, or the connection has ended.

        limit_s: the longest wait, in seconds.
        """
        time = asyncio.get_running_loop().time
        until = time() + limit_s
        link = self.link
        while link is not None and link.in_progress and not link.end_reason.done():
            if time() >= until:
                return
            await asyncio.sleep(DRAIN_POLL_S)

    async def shut_down(self, limit_s: float = SHUTDOWN_S) -> None:
        """Send a shutdown request, and wait for the response. Logs a warning if there is none.

        limit_s: how long to wait, in seconds. The request tells the plugin this limit.
        """
        if self.link is None:
            return
        shutdown = ShutdownRequest(timeout_seconds=max(1, int(limit_s)))
        try:
            await self.link.request(PluginRequest(shutdown=shutdown), limit_s)
        except ConcertinoError as exc:
            self._log.warning("it did not answer the shutdown: %s", exc)

    async def close(self, reason: str) -> None:
        """Close the connection, end the process, and kill the rest of its process group.

        reason: the text of the Disconnected that pending requests raise.
        """
        link, self.link = self.link, None
        if self._fetching is not None:
            self._fetching.cancel()
        try:
            if link is not None:
                await link.close(reason)
        finally:
            if self._child is not None:
                # Do not wait until the process has read its stdin: a plugin gets no input there.
                await self._child.close(0.0)
                self._child = None
            if self.exited is not None:
                self.exited.cancel()
                self.exited = None


def _program(binary: str) -> tuple[list[str], Sequence[str]]:
    """Return the command of a plugin, and the names of the variables that its process inherits.

    A Python file, and the command `concertino`, run with the hub's own interpreter: they need
    neither PATH nor an executable bit, and can import concertino.
    """
    if binary == "concertino":
        return [sys.executable, "-m", "concertino"], (*INHERITED, "PYTHONPATH")

    command, variables = [binary], INHERITED
    # If the file is missing, leave the command as it is: the error of spawn() then names the file,
    # while Python would only exit with code 2.
    if binary.endswith(".py") and Path(binary).exists():
        command, variables = [sys.executable, binary], (*INHERITED, "PYTHONPATH")
    # If the program does not exist, spawn() reports that better than DIE_WITH_HUB.
    # The flags make the start fast and independent of the plugin's variables: isolated (-I),
    # without the module site (-S), and with the program in the next argument (-c).
    if sys.platform == "linux" and shutil.which(command[0]) is not None:
        return [sys.executable, "-ISc", DIE_WITH_HUB, str(os.getpid()), *command], variables
    return command, variables


def _describe_exit(status: int) -> str:
    """Return a text that says how a process has ended.

    status: the exit status; -N after signal N.
    """
    if status < 0:
        return f"it was ended by signal {-status}"
    return f"it ended with exit code {status}"


def _error_text(response: PluginResponse) -> str:
    """Return the text of a plugin's error response."""
    # The error response to a request of any kind is a failed tool_call.
    error = response.tool_call
    return error.error_message or error.error_code or "it gives no reason"
