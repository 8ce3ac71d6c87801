"""SyncClient: the same client for scripts and notebooks, without async. Usable from several threads at once.

An event loop runs in a thread of its own, from open() to close(). Functions given to the client are called there.
"""

from __future__ import annotations

import asyncio
import atexit
import threading
from collections.abc import Coroutine, Mapping
from types import TracebackType
from typing import Any, TypeVar, overload

from concertino.client.client import Client
from concertino.client.pending_request import Progress
from concertino.client.request_handlers import Roots
from concertino.client.supervision import State
from concertino.client.targets import Target
from concertino.errors import ConcertinoError
from concertino.types.results import (
    CallToolResult,
    Completion,
    GetPromptResult,
    Implementation,
    Level,
    Prompt,
    PromptReference,
    ReadResourceResult,
    Resource,
    ResourceTemplate,
    ResourceTemplateReference,
    Tool,
)

__all__ = ["SyncClient"]

T = TypeVar("T")
NOT_OPEN = "this client is not open: use `with SyncClient(...) as client:`"
OWN = "a function that was given to a SyncClient cannot call it: it would wait for itself"
LOOK_S = 1.0  # how often a call that takes long looks whether the loop is still there


class SyncClient:
    """A server to call, without async. Use it with `with`, or call open() and close().

    target, settings: as for Client. Methods are those of Client, and raise the same. A call that is interrupted by Ctrl-C is
    cancelled at the server.
    """

    def __init__(self, target: Target, **settings: Any) -> None:
        self._client = Client(target, **settings)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def open(self) -> None:
        """Start or connect. Raises what Client.open() raises; nothing is left running then."""
        with self._lock:
            if self._loop is not None:
                raise RuntimeError("a SyncClient is opened once; make another")
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(
                target=_run_loop,
                args=(self._loop, self._client),
                name=f"concertino client {self._client.name}",
                daemon=True,
            )
            self._thread.start()
            atexit.register(self.close)  # what is never closed must not leave its server behind
        try:
            self._run(self._client.open())
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the server with everything that it started. Bounded; may be called again, from any thread."""
        if threading.current_thread() is self._thread:
            raise RuntimeError(OWN)
        with self._lock:
            if self._loop is None or self._thread is None or not self._thread.is_alive():
                return
            try:
                self._loop.call_soon_threadsafe(
                    self._loop.stop
                )  # the thread closes the client then
            except RuntimeError:  # it has
                pass
            self._thread.join()
            atexit.unregister(self.close)

    def __enter__(self) -> SyncClient:
        self.open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        loop, thread = self._loop, self._thread
        if loop is None or thread is None or not thread.is_alive():
            work.close()
            raise RuntimeError(NOT_OPEN)
        if threading.current_thread() is thread:
            work.close()
            raise RuntimeError(OWN)
        try:
            future = asyncio.run_coroutine_threadsafe(work, loop)
        except RuntimeError:  # it was closed just now
            work.close()
            raise RuntimeError(NOT_OPEN) from None
        try:
            while True:
                try:
                    return future.result(LOOK_S)
                except TimeoutError:
                    if future.done():
                        return (
                            future.result()
                        )  # what came between the two, or the call's own TimeoutError
                    if not thread.is_alive():  # it was closed before it came to this
                        raise RuntimeError(NOT_OPEN) from None
        except BaseException:
            future.cancel()  # KeyboardInterrupt; no effect on what is done
            raise

    # What is known

    @property
    def server(self) -> str:
        """What the server calls itself, for people."""
        return self._client.server

    @property
    def server_info(self) -> Implementation:
        """Who the server says it is: never a ground for trust."""
        return self._client.server_info

    @property
    def protocol_version(self) -> str:
        """The revision that is spoken."""
        return self._client.protocol_version

    @property
    def capabilities(self) -> Mapping[str, Any]:
        """What the server declares."""
        return self._client.capabilities

    @property
    def instructions(self) -> str | None:
        """How the server wants to be used."""
        return self._client.instructions

    @property
    def state(self) -> State:
        """How the server is. As Client.state."""
        return self._client.state

    @property
    def restarts(self) -> int:
        """How often the server was started again."""
        return self._client.restarts

    @property
    def failure(self) -> ConcertinoError | None:
        """What ended the server last, if it ended by itself or could not be started again."""
        return self._client.failure

    @property
    def pid(self) -> int | None:
        """The server's process, if this client started one."""
        return self._client.pid

    @property
    def exit_status(self) -> int | None:
        """The exit code of the server's process, or minus the signal that ended it."""
        return self._client.exit_status

    @property
    def stderr_tail(self) -> str:
        """The last 8 KiB that the server wrote to stderr, without secrets."""
        return self._client.stderr_tail

    @property
    def stray(self) -> int:
        """How many lines of the server's were skipped."""
        return self._client.stray

    @property
    def strays(self) -> list[str]:
        """The last lines that were skipped, shortened."""
        return self._client.strays

    # Requests

    @overload
    def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout_s: float | None = None,
        progress: Progress | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> CallToolResult: ...

    @overload
    def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        into: type[T],
        timeout_s: float | None = None,
        progress: Progress | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> T: ...

    def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        into: type[Any] | None = None,
        timeout_s: float | None = None,
        progress: Progress | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call a tool. As Client.call_tool."""
        # None is a value of `into` at run time; the overloads are for callers.
        call: Any = self._client.call_tool
        return self._run(
            call(name, arguments, into=into, timeout_s=timeout_s, progress=progress, meta=meta)
        )

    def list_tools(self) -> list[Tool]:
        """Every tool, from all pages."""
        return self._run(self._client.list_tools())

    def list_resources(self) -> list[Resource]:
        """Every resource, from all pages."""
        return self._run(self._client.list_resources())

    def list_resource_templates(self) -> list[ResourceTemplate]:
        """Every resource template, from all pages."""
        return self._run(self._client.list_resource_templates())

    def read_resource(self, uri: str, *, timeout_s: float | None = None) -> ReadResourceResult:
        """Read a resource. As Client.read_resource."""
        return self._run(self._client.read_resource(uri, timeout_s=timeout_s))

    def subscribe(self, uri: str) -> None:
        """Ask to be told when a resource changes."""
        self._run(self._client.subscribe(uri))

    def unsubscribe(self, uri: str) -> None:
        """No longer be told."""
        self._run(self._client.unsubscribe(uri))

    def list_prompts(self) -> list[Prompt]:
        """Every prompt, from all pages."""
        return self._run(self._client.list_prompts())

    def get_prompt(
        self,
        name: str,
        arguments: Mapping[str, str] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> GetPromptResult:
        """A prompt, filled in with its arguments."""
        return self._run(self._client.get_prompt(name, arguments, timeout_s=timeout_s))

    def complete(
        self,
        ref: PromptReference | ResourceTemplateReference,
        argument: str,
        value: str,
        *,
        chosen: Mapping[str, str] | None = None,
    ) -> Completion:
        """Values that an argument may have. As Client.complete."""
        return self._run(self._client.complete(ref, argument, value, chosen=chosen))

    def request(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        into: Any = None,
        timeout_s: float | None = None,
        progress: Progress | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> Any:
        """Send any request. As Client.request."""
        return self._run(
            self._client.request(
                method, params, into=into, timeout_s=timeout_s, progress=progress, meta=meta
            )
        )

    def ping(self) -> None:
        """Ask whether the server is there."""
        self._run(self._client.ping())

    def set_log_level(self, level: Level) -> None:
        """Ask for log messages of this level, and worse ones."""
        self._run(self._client.set_log_level(level))

    def set_roots(self, roots: Roots) -> None:
        """Name other places that the server may work in."""

        async def set_roots() -> None:
            self._client.set_roots(roots)

        self._run(set_roots())

    def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Send a notification."""

        async def notify() -> None:
            self._client.notify(method, params)

        self._run(notify())


def _run_loop(loop: asyncio.AbstractEventLoop, client: Client) -> None:
    """Until stop(), or until a function of the user's raises SystemExit; then all is closed, and what is under way cancelled."""
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        ending = loop.create_task(_end(client))
        ending.add_done_callback(lambda _: loop.stop())
        while not ending.done():  # another stop() may come
            loop.run_forever()
        loop.close()


async def _end(client: Client) -> None:
    await client.aclose()
    if left := asyncio.all_tasks() - {asyncio.current_task()}:
        for task in left:
            task.cancel()
        await asyncio.wait(left)
