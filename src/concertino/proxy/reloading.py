"""ReloadingProxy: a Proxy that restarts its server when the server's files are saved.

The client's connection stays open. A call that arrives after a file was saved waits for the new
process; calls that are running finish in the old one. If the new code does not start, the next call
of a tool is answered with the reason, and the old code goes on serving.

Files are often saved in steps: an editor empties a file and then writes it, or removes it and puts
another one in its place, and a user saves twice. So the proxy starts the new code when the files
have not changed for a moment, and starts it again if they change during the start. A call waits for
all of this, at most WAIT_S.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from typing import Any

from msgspec import Raw, Struct
from msgspec.json import encode

from concertino.backend.interface import Call, ChangeKind, Context, Notifier
from concertino.backend.listing import list_items
from concertino.backend.methods import LIST_METHODS
from concertino.backend.wrappers import BackendWrapper
from concertino.errors import INTERNAL_ERROR, ConcertinoError, RpcError
from concertino.protocol.call import ServerFeatures
from concertino.proxy.failures import add_name
from concertino.proxy.pinned_tools import compare_tools
from concertino.proxy.proxy import Proxy
from concertino.proxy.source_files import SourceFiles, forget_bytecode
from concertino.types.results import error_result

__all__ = ["ReloadingProxy"]

log = logging.getLogger("concertino.proxy")

# If files change during a start that has already taken longer than this, in seconds, the start is
# cancelled, because importing a module may hang. A shorter start is completed first.
HANGS_S = 1.0
# How many times the server is started in a row, if files change during each start. There must be a
# limit, because a server may itself change a watched file when it starts.
MAX_STARTS = 5
# The time that calls wait for new code, in seconds.
WAIT_S = 10.0
# The error text of a concertino server that cannot start (backend/start_failure.py); an error code
# in parentheses may follow.
REASON = re.compile(r"(cannot start: .*?)(?: \(-\d+\))?$", re.DOTALL)
# Method of a list -> the kind of change to report, which is also the name of the feature.
LISTS: Mapping[str, ChangeKind] = {
    "tools/list": "tools",
    "prompts/list": "prompts",
    "resources/list": "resources",
    "resources/templates/list": "resources",
}

# Method of a list -> name of each item -> the item's JSON.
Definitions = Mapping[str, Mapping[str, str]]


class ReloadingProxy(BackendWrapper):
    """A Backend that forwards calls to a Proxy, and restarts its server when files have changed.

    proxy: forwards calls to the server.
    files: the files that are watched.
    on_close: awaited at the end of close(), to release resources, such as processes that were
        started in advance (WarmProgram); None for nothing.
    """

    def __init__(
        self,
        proxy: Proxy,
        files: SourceFiles,
        on_close: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        super().__init__(proxy)
        self._proxy = proxy
        self._files = files
        self._on_close = on_close
        self._outlet: Notifier
        # Whether the server runs, with the newest code or with older code.
        self._serves = False
        # Why the newest code does not run; "" if it runs, or is still starting for the first time.
        self._failure = ""
        # Whether a client has got the reason in _failure. Also True if there is no reason.
        self._is_failure_sent = True
        # The task that starts new code; None while no such task runs.
        self._reloading: asyncio.Task[None] | None = None
        # Whether a call has waited WAIT_S for the task in _reloading. Then later calls do not wait.
        self._is_late = False
        # The task that watches the files.
        self._following: asyncio.Task[None] | None = None
        # The task that compares the lists of old and new code; None while no such task runs.
        self._comparing: asyncio.Task[None] | None = None
        # The lists of the code that was compared last; None before the first comparison.
        self._definitions: Definitions | None = None

    # Backend

    async def start(self, outlet: Notifier) -> None:
        """Start the server, and begin to watch the files.

        Raises nothing if the server cannot start: calls then get the reason, until files change.
        """
        self._outlet = outlet
        # Later checks compare with the files as they are now.
        self._files.accept()
        if not self._files.is_complete:
            log.warning("%s: too many files to watch; name fewer with --watch", self._proxy.name)
        if not await self._run_start(self._proxy.start(outlet)):
            self._begin_reload()
        elif self._serves:
            self._compare_soon()
        loop = asyncio.get_running_loop()
        self._following = loop.create_task(self._follow(), name="watch files of a server")

    def features(self) -> ServerFeatures:
        return self._proxy.features()

    async def handle(self, call: Call, context: Context) -> Struct | Raw:
        """Forward a call to the newest saved code. Waits at most 10 s for that code to start.

        If that code does not start, one tools/call is not forwarded, and gets the reason as its
        result: this call or the next one. All other calls go to the older code, which still runs.
        Raises RpcError with the reason if no older code runs either.
        """
        await self._wait_for_new_code()
        if not self._serves:
            self._is_failure_sent = True
            raise RpcError(INTERNAL_ERROR, self._failure)
        if not self._is_failure_sent and call.method == "tools/call":
            self._is_failure_sent = True
            text = f"{self._failure}\nThis call did nothing. The code before the change serves on."
            return error_result(text)
        return await self._proxy.handle(call, context)

    async def watch(self, uris: frozenset[str]) -> None:
        await self._proxy.watch(uris)

    async def close(self) -> None:
        """End the server, and stop watching the files."""
        tasks = [item for item in (self._following, self._reloading, self._comparing) if item]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._files.close()
        await self._proxy.close()
        if self._on_close is not None:
            await self._on_close()

    # Changes

    async def _wait_for_new_code(self) -> None:
        """Wait until the code that was saved before this call runs, or has failed to start.

        If neither happens within 10 s, records that as the failure of the code. Later calls then do
        not wait for this code.
        """
        # While a start runs, do not check the files: _reload() does so when the start has ended.
        # But a late start may hang and never end, so then check them in each call.
        if (self._reloading is None or self._is_late) and await self._files.check():
            self._is_late = False
            self._begin_reload()
        if self._reloading is None or self._is_late:
            return
        # Not `await self._reloading`: if the call were cancelled, it would cancel the reload.
        done, _ = await asyncio.wait((self._reloading,), timeout=WAIT_S)
        if not done and not self._is_late:
            self._is_late = True
            self._record_failure(f"the new code has not started within {WAIT_S:g} s")

    async def _follow(self) -> None:
        """Check the files at intervals, and begin a reload after each change, until cancelled."""
        while True:
            await asyncio.sleep(self._files.poll_s)
            if self._reloading is None and await self._files.check():
                self._begin_reload()

    def _begin_reload(self) -> None:
        """Start the new code, unless a start is already running."""
        if self._reloading is None:
            self._reloading = asyncio.get_running_loop().create_task(self._reload())
            self._reloading.add_done_callback(self._on_reloaded)

    def _on_reloaded(self, reloading: asyncio.Task[None]) -> None:
        self._reloading = None
        self._is_late = False
        if not reloading.cancelled() and (exc := reloading.exception()) is not None:
            log.error("%s: a change could not be applied", self._proxy.name, exc_info=exc)

    async def _reload(self) -> None:
        """Replace the server's processes by new ones, until these run the newest code.

        Gives up after five starts.
        """
        was_serving = self._serves
        began = asyncio.get_running_loop().time()
        has_ended = False
        for _ in range(MAX_STARTS):
            self._is_late = False
            # Wait until the files do not change any more, and let Python compile the changed ones.
            forget_bytecode(await self._files.settle())
            has_ended = await self._run_start(self._proxy.renew())
            if not await self._files.check():
                break
        if not has_ended:
            self._record_failure("files change again and again while the new code starts")
        if self._failure:
            return
        took_ms = 1000 * (asyncio.get_running_loop().time() - began)
        log.info("%s: the new code serves after %.0f ms", self._proxy.name, took_ms)
        if not was_serving:
            # No code has served before, so clients may have got empty lists.
            self._report(LISTS)
        self._compare_soon()

    async def _run_start(self, start: Coroutine[Any, Any, None]) -> bool:
        """Start code, and record either that the code serves, or the reason why it does not.

        start: the coroutine that starts the code: start() or renew() of the Proxy.
        Returns True if the start has ended by itself, successfully or with an error. Returns False
        if files have changed during a start that takes longer than 1 s: the start is cancelled.
        """
        starting = asyncio.get_running_loop().create_task(start)
        try:
            await asyncio.wait((starting,), timeout=HANGS_S)
            while not starting.done():
                if await self._files.check():
                    log.info("%s: files have changed, so a long start ends", self._proxy.name)
                    return False
                await asyncio.wait((starting,), timeout=self._files.poll_s)
            starting.result()
        except ConcertinoError as exc:
            self._record_failure(exc)
        else:
            self._serves = True
            self._failure, self._is_failure_sent = "", True
        finally:
            # End the start if files have changed, or if this task was cancelled. Cancelling a task
            # that has ended has no effect.
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
        return True

    def _record_failure(self, exc: ConcertinoError | str) -> None:
        """Record the reason why the newest code does not run."""
        reason = REASON.search(str(exc))
        # Keep only the reason of a concertino server; the Client puts a text about the protocol
        # revision around it.
        self._failure = add_name(self._proxy.name, reason[1] if reason else str(exc))
        self._is_failure_sent = False
        rest = "; the code before the change serves on" if self._serves else ""
        log.error("%s%s", self._failure, rest)

    def _compare_soon(self) -> None:
        """Compare the old and the new lists in the background, so that calls are not delayed."""
        if self._comparing is None:
            self._comparing = asyncio.get_running_loop().create_task(self._compare())
            self._comparing.add_done_callback(self._on_compared)

    def _on_compared(self, comparing: asyncio.Task[None]) -> None:
        self._comparing = None
        if not comparing.cancelled() and (exc := comparing.exception()) is not None:
            log.info("%s: the lists could not be compared: %s", self._proxy.name, exc)

    async def _compare(self) -> None:
        """Notify clients of the lists that the new code has changed, and log changed tools."""
        before = self._definitions
        now = self._definitions = await self._read_definitions()
        if before is None:
            return
        self._report([method for method in LISTS if before[method] != now[method]])
        old, new = before["tools/list"], now["tools/list"]
        for line in compare_tools(old, new, label_before="before"):
            log.warning("%s", line)
        if removed := sorted(old.keys() - new.keys()):
            log.warning("%s: tools that are gone: %s", self._proxy.name, ", ".join(removed))

    def _report(self, methods: Iterable[str]) -> None:
        """Notify clients that lists have changed. methods: keys of LISTS."""
        changes: set[ChangeKind] = {LISTS[method] for method in methods}
        for kind in changes:
            self._outlet.report_change(kind)

    async def _read_definitions(self) -> Definitions:
        """Return the present lists of the server. A list that it has not declared is empty."""
        features = self._proxy.features()
        definitions: dict[str, dict[str, str]] = {}
        for method, feature in LISTS.items():
            name_member = LIST_METHODS[method].name_member
            is_declared = getattr(features, feature)
            items = await list_items(self._proxy.name, self._proxy, method) if is_declared else []
            definitions[method] = {
                getattr(item, name_member): encode(item, order="sorted").decode() for item in items
            }
        return definitions
