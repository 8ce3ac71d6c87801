"""One plugin of a hub: its process, the link to it, what it offers; and started again when it ends.

    waiting -> starting -> running -> backing-off -> starting ...        stopping -> stopped

A start is: the process, `READY ADDRESS` on its stderr, the link, register, boot, the lists of its tools and prompts. Any step that
fails ends the attempt. While it runs, it is asked every five seconds whether it is well. It is over when its process ends, its link
is lost, or it does not answer that; then calls under way fail, what is left of its process group is ended and reaped, and a new
start follows after a pause that grows. What it offered stays known meanwhile: lists do not flap, and calls say what is the matter.
Source: the Orchestra plugin protocol, "Orchestrator".
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from random import uniform
from typing import Literal

from msgspec import Struct

from concertino.errors import ConcertinoError, Disconnected, ProtocolError, TimedOut
from concertino.logs.redact import learn
from concertino.orchestra.certificates import Certificates
from concertino.orchestra.link import (
    TIMEOUT_S,
    ConnectionRefused,
    DirectLink,
    RpcConnection,
    open_link,
)
from concertino.orchestra.pending_response import PendingResponse, Told
from concertino.orchestra.plugin_main import HUB_PID
from concertino.orchestra.plugin_output import PluginOutput
from concertino.orchestra.plugin_pb2 import (
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
from concertino.orchestra.plugins_file import PluginEntry
from concertino.transports.process import INHERITED, ChildProcess, ShutdownTimeouts, spawn

__all__ = ["HubEnvironment", "PluginProcess", "State"]

State = Literal["waiting", "starting", "running", "backing-off", "stopping", "stopped"]

READY_S = 10.0  # upstream's time for READY
STEP_S = 10.0  # for register, and for each list
HEALTH_S = 5.0  # between two health pings, and for one to be answered
FIRST_S, LONGEST_S = 0.5, 60.0  # the pause before a start; doubled each time
STEADY_S = 60.0  # who ran for so long begins anew with the pauses
LAST_WORDS_S = 0.25  # for the exit status, once the link is lost
SHUTDOWN_S = 2.0  # for the answer to a shutdown, and for calls under way after it


# A program that does not look at HUB_PID, or not yet, would outlive a hub that is killed: the kernel ends it then (prctl(2),
# PR_SET_PDEATHSIG, which execve keeps). Set by an interpreter that becomes the program, 15 ms: a preexec_fn would fork the hub's
# threads' locks.
BOUND = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 15)
if os.getppid() != int(sys.argv[1]):
    sys.exit("the hub is gone")
try:
    os.execvp(sys.argv[2], sys.argv[2:])
except OSError as why:
    sys.exit(f"{sys.argv[2]}: {why.strerror}")
"""


class HubEnvironment(Struct, frozen=True):
    """What all plugins of a hub have in common.

    folder: for sockets, 0700. socket_address, network_address: where the hub is reached by plugins with `socket: true`, and by the
    others. starts: how many may be on their way to READY at once.
    """

    folder: Path
    socket_address: str
    network_address: str
    certificates: Certificates
    starts: asyncio.Semaphore


class PluginProcess:
    """See above. Next: start(). Made and used on one event loop.

    dependencies: which must run before this one is started for the first time. told: called when its state or what it offers has
    changed. ladder: how its process is ended. ready: it has run. settled: it has run, or the first attempt has failed, or waits for
    one that failed.
    """

    def __init__(
        self,
        entry: PluginEntry,
        number: int,
        dependencies: Sequence[PluginProcess],
        told: Callable[[], None],
        ladder: ShutdownTimeouts,
    ) -> None:
        self.entry = entry
        self.id = entry.id
        self.state: State = "waiting"
        self.why = "it was not started yet"
        self.restarts = 0
        self.address = ""  # where it was called last
        self.manifest = PluginManifest(id=entry.id)
        self.tools: Sequence[ToolDefinition] = ()
        self.prompts: Sequence[PromptDefinition] = ()
        self.storage: frozenset[str] = frozenset(entry.provides_storage)
        self.ready = asyncio.Event()
        self.settled = asyncio.Event()
        self.dependencies = dependencies
        self._number = number
        self._told = told
        self._ladder = ladder
        self._log = logging.getLogger(f"concertino.hub.{entry.id}")
        self._child: ChildProcess | None = None
        self._exited: asyncio.Task[int] | None = None
        self._link: DirectLink | None = None
        self._in_flight = 0
        self._task: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """Of its process, which is its group's number too; None while there is none."""
        return None if self._child is None else self._child.pid

    def start(self, ground: HubEnvironment) -> None:
        """Begin, in the background."""
        self._task = asyncio.get_running_loop().create_task(
            self._run(ground), name=f"plugin {self.id}"
        )

    def registered(self, manifest: PluginManifest) -> None:
        """The plugin has said what it is."""
        self.manifest = manifest
        self.storage = frozenset(self.entry.provides_storage) | frozenset(manifest.provides_storage)
        self._told()

    async def request(self, request: PluginRequest, timeout_s: float = TIMEOUT_S) -> PluginResponse:
        """Pass a request on, as Link.request does. Raises Disconnected at once if the plugin does not run."""
        link = self._link
        if link is None or self.state != "running":
            raise Disconnected(f"it is not running ({self.state}): {self.why}")
        self._in_flight += 1
        try:
            return await link.request(request, timeout_s)
        finally:
            self._in_flight -= 1

    def pass_on(self, body: bytes, timeout_s: float, told: Told) -> PendingResponse | None:
        """As DirectLink.pass_on; call passed_back() when told. None also for what request() raises an error for."""
        link = self._link
        if link is None or self.state != "running":
            return None
        try:
            waiting = link.pass_on(body, timeout_s, told)
        except ConcertinoError:
            return None
        if waiting is not None:
            self._in_flight += 1
        return waiting

    def passed_back(self) -> None:
        """What was passed on is over."""
        self._in_flight -= 1

    async def stop(self, until: float, dependents: Sequence[asyncio.Task[None]] = ()) -> None:
        """End the plugin: ask it, let its calls finish, then down the ladder of transports.process.

        until: by the loop's clock, how long it may be asked and waited for; the ladder comes after. dependents: ends to wait for
        first.
        """
        time = asyncio.get_running_loop().time
        if dependents:
            await asyncio.wait(dependents, timeout=max(0.0, until - time()))
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))
        was_running = self.state == "running"
        self._set("stopping", "the hub ends")
        link, exited = self._link, self._exited
        if was_running and link is not None and exited is not None:
            left = min(SHUTDOWN_S, until - time())
            if left > 0:
                ask = PluginRequest(shutdown=ShutdownRequest(timeout_seconds=max(1, int(left))))
                try:
                    await link.request(ask, left)
                except ConcertinoError as why:
                    self._log.warning("it did not answer the shutdown: %s", why)
            if self._in_flight:
                await asyncio.wait((exited,), timeout=max(0.0, min(SHUTDOWN_S, until - time())))
        await self._bring_down()
        self._set("stopped", "the hub ends")

    # Life

    async def _run(self, ground: HubEnvironment) -> None:
        await self._await_dependencies()
        time = asyncio.get_running_loop().time
        pause = FIRST_S
        while True:
            self._set("starting", self.why)
            try:
                await self._start(ground)
            except (ConcertinoError, OSError, ValueError) as why:
                ended = await self._ending()
                self._failed(ended or str(why))
            except Exception as why:  # ours: but a plugin that nobody looks after would be lost, and the hub wait for it
                self._log.exception("it could not be started")
                self._failed(f"{type(why).__name__}: {why}")
            else:
                since = time()
                self._set("running", "")
                self.ready.set()
                self.settled.set()
                self._log.info(
                    "runs: version %s, %s", self.manifest.version or "unknown", self._offer()
                )
                self._failed(await self._until_over())
                if time() - since >= STEADY_S:
                    pause = FIRST_S
            await self._bring_down()
            wait = uniform(0.75, 1.0) * pause
            pause = min(LONGEST_S, 2 * pause)
            self._log.warning("%s; it is started again in %.3g s", self.why, wait)
            self.settled.set()
            await asyncio.sleep(wait)
            self.restarts += 1

    async def _await_dependencies(self) -> None:
        for each in self.dependencies:
            await each.settled.wait()
            if not each.ready.is_set():
                self.why = f"it depends on {each.id}, which does not run"
                self._log.warning("not started: %s", self.why)
                self.settled.set()
                await each.ready.wait()

    async def _start(self, ground: HubEnvironment) -> None:
        """Bring it to where it can be called. Raises ConcertinoError, OSError, ValueError."""
        loop = asyncio.get_running_loop()
        async with ground.starts:
            address, output = self._spawn(ground)
            exited = self._exited
            assert exited is not None
            await asyncio.wait(
                (output.ready, exited), timeout=READY_S, return_when=asyncio.FIRST_COMPLETED
            )
        if not output.ready.done():
            if exited.done():
                raise Disconnected("it ended before READY")
            raise TimedOut(f"expected READY on its stderr within {READY_S:g} s, got none")
        said = output.ready.result()
        if address.startswith("unix:") and said != address:
            raise ProtocolError(f"expected READY {address}, got READY {said}")
        introduction = loop.create_task(self._introduce(ground, said))
        try:
            await asyncio.wait((introduction, exited), return_when=asyncio.FIRST_COMPLETED)
            if not introduction.done():
                raise Disconnected("it ended while it was being started")
            introduction.result()
        finally:
            if not introduction.done():
                introduction.cancel()
                await asyncio.wait((introduction,))

    def _spawn(self, ground: HubEnvironment) -> tuple[str, PluginOutput]:
        """Start the process. Returns where it is told to listen, and what it writes."""
        entry = self.entry
        environment = {
            name: os.environ.get(name, "") if value is None else value
            for name, value in entry.env.items()
        }
        learn(environment)
        address, hub = "localhost:0", ground.network_address
        if entry.socket:
            address, hub = f"unix:{ground.folder / f'{self._number}.sock'}", ground.socket_address
        output = PluginOutput(self._log)
        program, inherited = _program(entry.binary)
        command = [
            *program,
            *entry.args,
            f"--orchestrator-addr={hub}",
            f"--listen-addr={address}",
            f"--certs-dir={ground.certificates.folder}",
        ]
        child = spawn(
            command,
            env={**environment, HUB_PID: str(os.getpid())},
            inherit=inherited,
            stderr=output,
            ladder=self._ladder,
        )
        child.open(output)
        self._child = child
        self._exited = asyncio.get_running_loop().create_task(child.wait())
        return address, output

    async def _introduce(self, ground: HubEnvironment, address: str) -> None:
        """The link, register, boot, and what it offers."""
        self.address = address
        if address.startswith("unix:"):
            link = self._link = await open_link(address)
        else:
            from concertino.orchestra.authority import ensure

            name = f"orchestrator-to-{self.id}"
            ensure(ground.certificates, name)
            link = self._link = await open_link(
                address, certificates=ground.certificates, name=name, expects=self.id
            )
        answer = await link.request(PluginRequest(register=PluginManifest(id=self.id)), STEP_S)
        if not answer.register.accepted:
            raise ConnectionRefused(
                f"it refuses to be {self.id}: {answer.register.reject_reason or _error(answer)}"
            )
        answer = await link.request(PluginRequest(boot=BootRequest(config=dict(self.entry.config))))
        if not answer.boot.ready:
            raise ConnectionRefused(f"it could not boot: {answer.boot.error or _error(answer)}")
        answer = await link.request(PluginRequest(list_tools=ListToolsRequest()), STEP_S)
        if not answer.HasField("list_tools"):
            self._log.warning("it does not list its tools: %s", _error(answer))
        tools = list(answer.list_tools.tools)
        answer = await link.request(PluginRequest(list_prompts=ListPromptsRequest()), STEP_S)
        self.tools, self.prompts = (
            tools,
            list(answer.list_prompts.prompts),
        )  # upstream's old plugins refuse to list prompts

    async def _until_over(self) -> str:
        """Wait until the plugin ends, or is as good as ended. Returns why."""
        link, exited = self._link, self._exited
        assert link is not None
        assert exited is not None
        pings = asyncio.get_running_loop().create_task(self._ping(link))
        try:
            await asyncio.wait((link.lost, exited, pings), return_when=asyncio.FIRST_COMPLETED)
        finally:
            pings.cancel()
        if exited.done():
            return _ended(exited.result())
        self._set(
            "backing-off", link.lost.result() if link.lost.done() else pings.result()
        )  # calls fail from now on
        return await self._ending() or self.why

    async def _ping(self, link: RpcConnection) -> str:
        """Ask again and again whether it is well. Returns when it does not say, with the reason."""
        said = ""
        while True:
            await asyncio.sleep(HEALTH_S)
            try:
                answer = (
                    await link.request(PluginRequest(health=HealthRequest()), HEALTH_S)
                ).health
            except TimedOut:
                return f"it did not answer a health ping within {HEALTH_S:g} s"
            except ConcertinoError as why:
                return str(why)
            now = (
                ""
                if answer.status == HealthResult.HEALTHY
                else f"{HealthResult.Status.Name(answer.status)} {answer.message}"
            )
            if now != said:
                said = now
                self._log.warning("it says that it is %s", now or "well again")

    async def _ending(self) -> str:
        """How its process ended, if it has, or does within a moment: that tells more than a link that is lost."""
        if self._exited is None:
            return ""
        await asyncio.wait((self._exited,), timeout=LAST_WORDS_S)
        return _ended(self._exited.result()) if self._exited.done() else ""

    async def _bring_down(self) -> None:
        """Nothing is left of it afterwards."""
        link, self._link = self._link, None
        child = self._child
        try:
            if link is not None:
                await link.close(self.why)
        finally:
            if child is not None:
                await child.close(0.0)
                self._child = None
            if self._exited is not None:
                self._exited.cancel()
                self._exited = None

    def _failed(self, why: str) -> None:
        self._set("backing-off", why)

    def _set(self, state: State, why: str) -> None:
        self.state, self.why = state, why
        self._told()

    def _offer(self) -> str:
        return f"{len(self.tools)} tools, {len(self.prompts)} prompts, storage {', '.join(sorted(self.storage)) or 'none'}"


def _program(binary: str) -> tuple[list[str], Sequence[str]]:
    """How a plugin is started, and which of the hub's variables it gets.

    A Python file, and the command concertino, run in the hub's own Python: they need neither PATH nor a mode, and find concertino.
    """
    if binary == "concertino":
        return [sys.executable, "-m", "concertino"], (*INHERITED, "PYTHONPATH")
    words, inherited = [binary], INHERITED
    if binary.endswith(".py"):
        words, inherited = [sys.executable, binary], (*INHERITED, "PYTHONPATH")
    # What cannot be started is told by who starts it.
    if sys.platform == "linux" and shutil.which(words[0]) is not None:
        return [sys.executable, "-ISc", BOUND, str(os.getpid()), *words], inherited
    return words, inherited


def _ended(status: int) -> str:
    return (
        f"it was ended by signal {-status}" if status < 0 else f"it ended with exit code {status}"
    )


def _error(answer: PluginResponse) -> str:
    """What an answer says that is not the one asked for."""
    return answer.tool_call.error_message or answer.tool_call.error_code or "it gives no reason"
