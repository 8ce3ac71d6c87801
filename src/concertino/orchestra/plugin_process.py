"""PluginProcess: one plugin of a hub. It runs the plugin's program, and restarts the program.

A hub starts plugins, programs with tools, and forwards requests to them. A PluginSet
(plugin_set.py) has one PluginProcess for each enabled plugin. The states of a PluginProcess are:

    waiting -> starting -> running -> backing-off -> starting ...
    any of these states -> stopping -> stopped

A run of the program (plugin_run.py) is over when the process ends, the connection is lost, or the
plugin does not answer a health ping. Then pending calls fail, the rest of the process group is
killed, and a new run starts after a pause (`backing-off`), which is doubled each time. During the
pause, the plugin's tools and prompts stay in the hub's lists, and calls of them fail with the
reason.
Source: the Orchestra plugin protocol, "Orchestrator".
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing, suppress
from functools import partial
from random import uniform
from typing import Literal

import msgspec

from concertino.errors import ConcertinoError, Disconnected
from concertino.orchestra.first_start import FirstStart
from concertino.orchestra.hub_calls import CALL_S, ChangeFailed
from concertino.orchestra.pending_response import PendingResponse, ResponseCallback
from concertino.orchestra.plugin_entry import PluginEntry
from concertino.orchestra.plugin_messages import (
    PluginManifest,
    PluginRequest,
    PluginResponse,
    PromptDefinition,
    ToolDefinition,
)
from concertino.orchestra.plugin_record import PluginRecord
from concertino.orchestra.plugin_replacement import PluginReplacement
from concertino.orchestra.plugin_run import HubEnvironment, LaunchSettings, PluginRun
from concertino.orchestra.routes import PluginFeatures
from concertino.orchestra.rpc_interface import TIMEOUT_S, ForwardingConnection
from concertino.orchestra.streams import ResponseStream
from concertino.transports.listeners import errno_message

__all__ = ["PluginProcess", "State"]

State = Literal["waiting", "starting", "running", "backing-off", "stopping", "stopped"]

# The first and the longest pause before a new run, in seconds. The pause is doubled each time.
FIRST_S, LONGEST_S = 0.5, 60.0
# After a run of at least this length, in seconds, the next pause is FIRST_S again.
STEADY_S = 60.0
# How long stop() waits for the answer to a shutdown request, and then for the end of the process,
# in seconds.
STOP_STEP_S = 2.0
# How long restart() and replace() wait for the start of a plugin that does not run, in seconds.
RESTART_S = 15.0
# Reasons why a plugin does not run, for errors of calls.
REMOVED = "it is no longer in the plugins file"
RESTARTED = "it is being restarted"


class PluginProcess:
    """A plugin of a hub, with its current run and its state. Use it on one event loop.

    It implements HubPlugin (hub_calls.py), the interface by which the hub sends requests to a
    plugin.

    settings: the plugin's entry in the plugins file, its logger, and the time limits for its end.
    dependencies: the plugins that must have run before this plugin is started for the first time.
    on_change: called when the plugin's state, tools or prompts have changed, and when requests
        need no longer wait for the plugin's first start (first_start.py).
    previous: another plugin that uses QUIC. This plugin awaits its first start, because some Go
        plugins must not start at the same time. None to await none.

    Attributes:
    state: one of the states in the type State; the head of this module has their order.
    reason: why the plugin is not running; empty while it runs.
    record: the number of calls and restarts, and the last failure.
    features: the plugin's manifest, tools, prompts and storage types. They are kept while the
        plugin is restarted.
    first_start: the progress of the plugin's first start, for which requests wait.
    """

    def __init__(
        self,
        settings: LaunchSettings,
        dependencies: Sequence[PluginProcess],
        on_change: Callable[[], None],
        previous: PluginProcess | None = None,
    ) -> None:
        entry = settings.entry
        self.state: State = "waiting"
        self.reason = "it has not started yet"
        self.record = PluginRecord()
        self.features = PluginFeatures(
            PluginManifest(id=entry.id), storage=frozenset(entry.provides_storage)
        )
        self.first_start = FirstStart(on_change, previous.first_start if previous else None)
        self.dependencies = dependencies
        self._settings = settings
        self._on_change = on_change
        self._run = PluginRun(settings)
        # Has the run that will replace `_run`, and earlier runs that still finish their calls.
        self._replacement = PluginReplacement(settings.log)
        # How many requests the plugin has not answered yet.
        self._in_flight = 0
        # The tasks that find out why calls that were sent with forward() got no response.
        self._explaining: set[asyncio.Task[Disconnected]] = set()
        # The task of _supervise(); None before start().
        self._task: asyncio.Task[None] | None = None

    @property
    def entry(self) -> PluginEntry:
        """The plugin's entry in the plugins file."""
        return self._settings.entry

    @property
    def id(self) -> str:
        return self._settings.entry.id

    @property
    def uses_quic(self) -> bool:
        """Whether the plugin uses QUIC, as Go plugins do, and not a Unix socket."""
        return not self._settings.entry.socket

    @property
    def is_local(self) -> bool:
        """True: the hub runs this plugin itself."""
        return True

    @property
    def provides_ai(self) -> Sequence[str]:
        """The names of the AI providers, such as "claude", that the plugin gives access to.

        The names in the plugins file come first, then those in the plugin's manifest.
        """
        named = self._settings.entry.provides_ai
        return [*dict.fromkeys((*named, *self.features.manifest.provides_ai))]

    @property
    def pid(self) -> int | None:
        """The id of the plugin's process and process group; None while no process runs."""
        return self._run.pid

    @property
    def restarts(self) -> int:
        """How many times the program was started again."""
        return self.record.restarts

    @property
    def groups(self) -> frozenset[int]:
        """The ids of the process groups of the plugin.

        Usually there is one. While the plugin's process is being replaced, there are more: for the
        new process, and for earlier processes that still finish their calls.
        """
        groups = {*self._replacement.groups()}
        # The id of a process group is the id of its first process.
        if self.pid is not None:
            groups.add(self.pid)
        return frozenset(groups)

    @property
    def is_being_replaced(self) -> bool:
        """Whether a new process that will replace the present one is starting, or starts soon."""
        return self._replacement.is_pending or self._replacement.next_run is not None

    def set_replacement_pending(self, is_pending: bool) -> None:
        """Make the hub's requests for this plugin wait, or end their wait if is_pending is False.

        They wait while replace() will be called soon or is running.
        """
        self._replacement.is_pending = is_pending
        self._on_change()

    @property
    def calls(self) -> int:
        """How many requests the plugin has not answered yet."""
        return self._in_flight

    @property
    def health(self) -> str:
        """The problem in the answer to the last health ping; empty if the plugin is healthy."""
        return self._run.health

    @property
    def address(self) -> str:
        """The address at which the plugin's process listens; empty before the process listens."""
        return self._run.address

    def start(self, environment: HubEnvironment) -> None:
        """Begin to run the program, in a background task, and restart it whenever it ends.

        environment: the settings that all plugins of the hub share.
        """
        self._start_supervising(environment, is_started=False)

    def _start_supervising(self, environment: HubEnvironment, *, is_started: bool) -> None:
        """Start the task that runs _supervise().

        is_started: whether the present run of the program has started already.
        """
        self._task = asyncio.get_running_loop().create_task(
            self._supervise(environment, is_started), name=f"plugin {self.id}"
        )

    async def _stop_supervising(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))

    def on_register(self, manifest: PluginManifest) -> None:
        """Store the manifest that the plugin has sent to register at the hub.

        If the plugin is running, fetch its lists of tools and prompts again.
        """
        storage = frozenset(self.entry.provides_storage) | frozenset(manifest.provides_storage)
        self.features = msgspec.structs.replace(self.features, manifest=manifest, storage=storage)
        self._on_change()
        # A running plugin registers again when its tools or prompts have changed.
        if self.state == "running":
            self._run.fetch_again(self._on_lists)

    def _on_lists(
        self, tools: Sequence[ToolDefinition], prompts: Sequence[PromptDefinition]
    ) -> None:
        """Store the tools and prompts that were fetched again."""
        self.features = msgspec.structs.replace(self.features, tools=tools, prompts=prompts)
        self._on_change()

    def _running_link(self) -> ForwardingConnection:
        """Return the connection to the plugin. Raises Disconnected if the plugin does not run."""
        link = self._run.link
        if link is None or self.state != "running":
            raise Disconnected(f"it is not running ({self.state}): {self.reason}")
        return link

    async def request(self, request: PluginRequest, timeout_s: float = TIMEOUT_S) -> PluginResponse:
        """Send a request, and return the response, which has the request's id.

        Raises:
            Disconnected: the plugin does not run, or ends before it has answered.
            TimedOut: there was no response within timeout_s seconds.
            FrameTooLarge: the request is too long.
            ProtocolError: the response is invalid.
            ChangeFailed: the request is the first tool call after the plugin's files were changed,
                and the changed code does not start.
        """
        if request.HasField("tool_call"):
            self._refuse_once()
        link, run = self._running_link(), self._run
        self._begin_call()
        try:
            return await link.request(request, timeout_s)
        except Disconnected as exc:
            raise await self._explain_loss(run, exc) from None
        finally:
            self._in_flight -= 1

    def forward(
        self,
        body: bytes,
        timeout_s: float,
        callback: ResponseCallback,
        stream: str = "",
    ) -> PendingResponse | None:
        """Send a serialized tool call or stream_start, and return its pending response.

        body: the PluginRequest, serialized without its id.
        timeout_s: the time limit of the call or of the whole stream.
        callback: called with the response, or with an exception. For a stream, also called with
            each chunk.
        stream: the id of the stream in a stream_start; "" for a tool call.
        Returns None if nothing was sent: the output buffer is full, the plugin does not run, or the
        call is too long. Use request() then, which waits or raises the reason. Otherwise, call
        end_forward() when the call is over. Unlike RpcClient.forward(), raises nothing.
        """
        on_outcome = partial(self._on_outcome, self._run, callback)
        try:
            pending = self._running_link().forward(body, timeout_s, on_outcome, stream)
        except ConcertinoError:
            return None
        if pending is not None:
            self._begin_call()
        return pending

    async def stream(self, request: PluginRequest, timeout_s: float) -> ResponseStream:
        """Call a tool as a stream, and yield the plugin's responses.

        request: contains a stream_start. This method replaces its request id and stream id.
        timeout_s: the time limit of the whole stream.
        Raises the same exceptions as request() does for a tool call.
        """
        self._refuse_once()
        link, run = self._running_link(), self._run
        self._begin_call()
        try:
            async with aclosing(link.stream(request, timeout_s)) as responses:
                async for response in responses:
                    yield response
        except Disconnected as exc:
            raise await self._explain_loss(run, exc) from None
        finally:
            self._in_flight -= 1

    def _refuse_once(self) -> None:
        """Raise ChangeFailed for the first call after the plugin's changed code failed to start.

        Later calls are sent to the old process, which still runs.
        """
        # The user who has changed the code sees the error in the next call.
        failure, self.record.unsent_failure = self.record.unsent_failure, ""
        if failure:
            raise ChangeFailed(
                f"the changed code does not start: {failure}\n"
                "This call did nothing. The code before the change runs on."
            )

    def _on_outcome(
        self, run: PluginRun, callback: ResponseCallback, outcome: bytes | BaseException
    ) -> None:
        """Call the callback of forward() with an outcome.

        If the connection was lost, first find out the reason, such as the exit code of the process.
        run: the run to which the call was sent.
        """
        if not isinstance(outcome, Disconnected):
            callback(outcome)
            return
        task = asyncio.get_running_loop().create_task(self._explain_loss(run, outcome))
        self._explaining.add(task)
        task.add_done_callback(self._explaining.discard)
        task.add_done_callback(lambda done: callback(done.result()))

    async def _explain_loss(self, run: PluginRun, exc: Disconnected) -> Disconnected:
        """Return an error that says why a call got no response, such as how the process ended.

        run: the run to which the call was sent.
        exc: the error of the connection, which was lost.
        """
        # The socket's address at the beginning of the error tells users nothing.
        reason = str(exc).removeprefix(f"{run.address}: ")
        # If the hub itself has closed the run, its link is None, and `exc` has the hub's reason.
        if run.link is not None:
            # While the plugin stops, its exit code says less than why it stops.
            is_stopping = self.state == "stopping"
            reason = self.reason if is_stopping else await run.exit_reason() or reason
        return Disconnected(f"{reason}; this call got no response")

    def _begin_call(self) -> None:
        """Count a call in the record, and count it as in progress."""
        self._in_flight += 1
        self.record.calls += 1

    def end_forward(self) -> None:
        """Count a call of forward() as ended, for `calls` and for stop()."""
        self._in_flight -= 1

    async def replace(self, settings: LaunchSettings, environment: HubEnvironment) -> None:
        """Start a new process, with other settings or because files of the program have changed.

        - If the new process starts, it gets all calls, and the old process ends after its calls.
        - If the new process fails to start, the old process goes on.
        - A plugin that does not run is started at once, unless it was stopped.

        settings: the plugin's settings from now on.
        environment: the settings that all plugins of the hub share.
        Returns when the new process has started or failed to start.
        """
        self._settings = settings
        if self.state == "running":
            await self._replacement.run(partial(self._take_over, environment))
        elif self.state not in ("stopping", "stopped"):
            await self._stop_supervising()
            await self._run.close(self.reason)
            await self._start_again(environment, "its program was changed")

    async def _take_over(self, environment: HubEnvironment) -> None:
        """Start a new process. When it has started, it gets the calls instead of the present one.

        If the new process fails to start, the present process goes on.
        """
        # No task supervises the present process while the new process starts.
        await self._stop_supervising()
        old = self._run
        new = PluginRun(self._settings)
        self._replacement.next_run = new
        self._on_change()
        try:
            # No other plugin waits for this start, so nobody needs reports of its progress.
            tools, prompts = await new.start(environment, _do_nothing, _do_nothing, _do_nothing)
            self._run = new
        except (ConcertinoError, OSError, ValueError) as exc:
            self.record.failed_change = await new.exit_reason() or errno_message(exc)
            self._settings.log.error(
                "the changed plugin does not start: %s; the one before the change runs on",
                self.record.failed_change,
            )
        else:
            self.record.failed_change = ""
            self.record.restarts += 1
            self.features = msgspec.structs.replace(self.features, tools=tools, prompts=prompts)
            self._replacement.retire(old)
            self._settings.log.info("the changed plugin runs")
        finally:
            self._replacement.next_run = None
            # The start has failed or was cancelled. No call waits for the new process.
            if self._run is not new:
                await new.close(self.record.failed_change)
            self._start_supervising(environment, is_started=True)
            self._on_change()

    async def restart(self, until: float, environment: HubEnvironment) -> None:
        """End the process after its pending calls, and start the program again at once.

        Waits until the new process has started or failed, at most 15 seconds after the end of the
        old one.
        until: when to stop waiting for the calls of the old process, by the loop's clock.
        environment: the settings that all plugins of the hub share.
        """
        await self.stop(until, reason=RESTARTED)
        await self._start_again(environment, RESTARTED)

    async def _start_again(self, environment: HubEnvironment, reason: str) -> None:
        """Start the program without a pause, even if its last runs have failed.

        Waits until the program has started or failed, but at most RESTART_S.
        reason: why the plugin is not running before it has started, for the errors of calls.
        """
        self.record.restarts += 1
        self._set_state("waiting", reason)
        self._replacement.start_ended.clear()
        self.start(environment)
        with suppress(TimeoutError):
            async with asyncio.timeout(RESTART_S):
                await self._replacement.start_ended.wait()

    async def stop(
        self,
        until: float,
        dependents: Sequence[asyncio.Task[None]] = (),
        reason: str = "the hub ends",
    ) -> None:
        """Send a shutdown request, wait for pending calls, then end the process.

        until: when to stop waiting for the plugin, by the loop's clock. If the process still runs
            then, its stdin is closed, and it gets SIGTERM and at last SIGKILL.
        dependents: the tasks that run stop() for the plugins that depend on this one. They are
            awaited first, because those plugins may still use this one.
        reason: why the plugin is stopped, for the errors of pending and later calls.
        """
        time = asyncio.get_running_loop().time
        if dependents:
            await asyncio.wait(dependents, timeout=max(0.0, until - time()))
        await self._replacement.cancel()
        await self._stop_supervising()

        # Only a plugin that has booted gets a shutdown request.
        was_running = self.state == "running"
        self._set_state("stopping", reason)
        link, exited = self._run.link, self._run.exited
        if was_running and link is not None and exited is not None:
            limit_s = min(STOP_STEP_S, until - time())
            if limit_s > 0:
                await self._run.shut_down(limit_s)
            # After the shutdown request, a plugin ends by itself when its calls have finished.
            if self._in_flight:
                await asyncio.wait((exited,), timeout=max(0.0, min(STOP_STEP_S, until - time())))

        await self._run.close(self.reason)
        await self._replacement.close()
        # Let the calls that got no response raise their errors first.
        if self._explaining:
            await asyncio.wait(self._explaining)
        self._set_state("stopped", reason)

    async def retire(self) -> None:
        """End a plugin that is no longer in the plugins file, when its pending calls have ended.

        Waits for these calls at most CALL_S (600 s), the time limit of a call. New calls fail at
        once.
        """
        await self._replacement.cancel()
        await self._stop_supervising()
        if self.state == "running":
            self._set_state("stopping", REMOVED)
            await self._run.drain(CALL_S)
            await self._run.shut_down()
        await self._run.close(REMOVED)
        await self._replacement.close()
        self._set_state("stopped", REMOVED)

    async def _supervise(self, environment: HubEnvironment, is_started: bool) -> None:
        """Run the program, and start it again whenever a run is over. Does not return.

        is_started: whether to begin with the end of the present run; otherwise with a new run.
        """
        if not is_started:
            # Wait for the dependencies, and for the previous plugin over QUIC (FirstStart).
            others = {plugin.id: plugin.first_start for plugin in self.dependencies}
            await self.first_start.await_turn(others, self._on_failed_dependency)
        time = asyncio.get_running_loop().time
        pause = FIRST_S
        while True:
            # Only before the first iteration, a run may have started already.
            if is_started or await self._start_run(environment):
                is_started = False
                start = time()
                await self._until_end()
                if time() - start >= STEADY_S:
                    pause = FIRST_S

            await self._run.close(self.reason)
            # A random pause, so that plugins which failed together do not start together.
            wait_s = uniform(0.75, 1.0) * pause
            pause = min(LONGEST_S, 2 * pause)
            self._settings.log.warning("%s; it is started again in %.3g s", self.reason, wait_s)
            # If this was the first start, it has failed, and requests no longer wait for it.
            self.first_start.end()
            await asyncio.sleep(wait_s)
            self.record.restarts += 1

    def _on_failed_dependency(self, id: str) -> None:
        """Record that this plugin does not start. id: the plugin that it needs."""
        self.reason = f"it depends on {id}, which does not run"
        self._settings.log.warning("not started: %s", self.reason)

    async def _start_run(self, environment: HubEnvironment) -> bool:
        """Start a new run. Returns whether it succeeded; if not, self.reason says why."""
        self._set_state("starting", self.reason)
        self._run = PluginRun(self._settings)
        # This run has the plugin's changed code, so an earlier failure of this code no longer
        # counts.
        self.record.forget_change()
        try:
            # Requests no longer wait for a plugin that uses no processor time before it is ready.
            tools, prompts = await self._run.start(
                environment,
                on_idle=self.first_start.settle,
                on_work=self.first_start.on_work,
                on_slow_boot=self._on_slow_boot,
            )
        except (ConcertinoError, OSError, ValueError) as exc:
            self._set_state("backing-off", await self._run.exit_reason() or errno_message(exc))
            return False
        # Any other exception is a bug in this package. If it ended this task, the plugin would
        # never start again, and calls would wait for the plugin.
        except Exception as exc:
            self._settings.log.exception("it could not be started")
            self._set_state("backing-off", f"{type(exc).__name__}: {exc}")
            return False

        features = msgspec.structs.replace(self.features, tools=tools, prompts=prompts)
        self.features = features
        self._set_state("running", "")
        self.first_start.has_run.set()
        self.first_start.end()
        self._settings.log.info(
            "runs: version %s, %d tools, %d prompts, storage %s",
            features.manifest.version or "unknown",
            len(features.tools),
            len(features.prompts),
            ", ".join(sorted(features.storage)) or "none",
        )
        return True

    def _on_slow_boot(self, reason: str) -> None:
        """Report what the plugin waits for. The start goes on, but nobody waits for it any more.

        reason: a text for users.
        """
        self._settings.log.warning("it does not run yet: %s", reason)
        self._set_state("starting", reason)
        self.first_start.end()

    async def _until_end(self) -> None:
        """Wait until the run is over, and set the state and the reason."""
        reason = await self._run.wait_end()
        # Change the state at once, so that calls fail from now on. Replace the reason when the exit
        # status is known, which may be a little later.
        self._set_state("backing-off", reason)
        self._set_state("backing-off", await self._run.exit_reason() or reason)

    def _set_state(self, state: State, reason: str) -> None:
        """Change the state, and report it. reason: why the plugin is not running, or empty."""
        # In all other states, the start that _start_again() waits for has succeeded or failed.
        if state not in ("waiting", "starting"):
            self._replacement.start_ended.set()
        if state == "backing-off":
            self.record.set_error(reason)
        self.state, self.reason = state, reason
        self._on_change()


def _do_nothing(value: object = None) -> None:
    pass
