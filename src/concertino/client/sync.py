"""SyncClient: a Client for scripts and notebooks, without async. Several threads may share one.

An event loop runs in a thread of its own, from open() to close(). The functions that the client was
given are called there.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable, Coroutine, Mapping
from types import TracebackType
from typing import Any, ParamSpec, TypeVar, overload

from concertino.client.client import Client
from concertino.client.client_connection import ConnectionFacts
from concertino.client.pending_request import Progress
from concertino.client.portal import Portal, PortalClosed
from concertino.client.request_handlers import Roots
from concertino.client.targets import Target
from concertino.types.results import (
    CallToolResult,
    Completion,
    GetPromptResult,
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

P = ParamSpec("P")
T = TypeVar("T")
NOT_OPEN = "this client is not open: use `with SyncClient(...) as client:`"
OWN_THREAD = (
    "a function that was given to a SyncClient cannot call that client: it would wait for itself"
)


class SyncClient(ConnectionFacts):
    """A client for one server, without async. Use it with `with`, or call open() and close().

    target, settings: as for Client. The methods and properties are those of Client and raise the
    same errors. A call that is interrupted by Ctrl-C is cancelled at the server.
    """

    def __init__(self, target: Target, **settings: Any) -> None:
        self._client = Client(target, **settings)
        self._connection = self._client._connection
        self._portal: Portal | None = None
        self._lock = threading.Lock()

    def open(self) -> None:
        """Start or connect. Raises what Client.open() raises; nothing is left running then."""
        with self._lock:
            if self._portal is not None:
                raise RuntimeError("a SyncClient can be opened once; make another one")
            name = f"concertino client {self._client.name}"
            self._portal = Portal(name, self._client.aclose)
            # A client that is never closed must not leave its server behind.
            atexit.register(self.close)
        try:
            self._call(self._client.open)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the server with everything it started.

        Bounded; may be called again, from any thread.
        """
        portal = self._portal
        if portal is not None and portal.is_own_thread:
            raise RuntimeError(OWN_THREAD)
        with self._lock:
            if self._portal is not None:
                self._portal.stop()
                atexit.unregister(self.close)

    def __enter__(self) -> SyncClient:
        self.open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _call(
        self, method: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Call an async method of the Client on its loop."""
        portal = self._portal
        if portal is None:
            raise RuntimeError(NOT_OPEN)
        if portal.is_own_thread:
            raise RuntimeError(OWN_THREAD)
        try:
            return portal.call(method, *args, **kwargs)
        except PortalClosed:
            raise RuntimeError(NOT_OPEN) from None

    # Requests: the signatures are repeated for the sake of editors and type checkers.

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
        """Call a tool, see Client.call_tool()."""
        # At run time `into` may be None; the overloads are for callers.
        call_tool: Any = self._client.call_tool
        return self._call(
            call_tool,
            name,
            arguments,
            into=into,
            timeout_s=timeout_s,
            progress=progress,
            meta=meta,
        )

    def list_tools(self) -> list[Tool]:
        """Return every tool, from all pages."""
        return self._call(self._client.list_tools)

    def list_resources(self) -> list[Resource]:
        """Return every resource, from all pages."""
        return self._call(self._client.list_resources)

    def list_resource_templates(self) -> list[ResourceTemplate]:
        """Return every resource template, from all pages."""
        return self._call(self._client.list_resource_templates)

    def read_resource(self, uri: str, *, timeout_s: float | None = None) -> ReadResourceResult:
        """Read a resource, see Client.read_resource()."""
        return self._call(self._client.read_resource, uri, timeout_s=timeout_s)

    def subscribe(self, uri: str) -> None:
        """Subscribe to changes of a resource, see Client.subscribe()."""
        self._call(self._client.subscribe, uri)

    def unsubscribe(self, uri: str) -> None:
        """End the subscription to a resource, if there is one."""
        self._call(self._client.unsubscribe, uri)

    def list_prompts(self) -> list[Prompt]:
        """Return every prompt, from all pages."""
        return self._call(self._client.list_prompts)

    def get_prompt(
        self,
        name: str,
        arguments: Mapping[str, str] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> GetPromptResult:
        """Return a prompt, filled in with its arguments."""
        return self._call(self._client.get_prompt, name, arguments, timeout_s=timeout_s)

    def complete(
        self,
        ref: PromptReference | ResourceTemplateReference,
        argument: str,
        value: str,
        *,
        chosen: Mapping[str, str] | None = None,
    ) -> Completion:
        """Complete the value of an argument, see Client.complete()."""
        return self._call(self._client.complete, ref, argument, value, chosen=chosen)

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
        """Send any request, see Client.request()."""
        return self._call(
            self._client.request,
            method,
            params,
            into=into,
            timeout_s=timeout_s,
            progress=progress,
            meta=meta,
        )

    def ping(self) -> None:
        """Ask whether the server is there."""
        self._call(self._client.ping)

    def set_log_level(self, level: Level) -> None:
        """Ask for log messages of this level and above."""
        self._call(self._client.set_log_level, level)

    def set_roots(self, roots: Roots) -> None:
        """Offer other roots, see Client.set_roots()."""

        async def set_roots() -> None:
            self._client.set_roots(roots)

        self._call(set_roots)

    def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Send a notification."""

        async def notify() -> None:
            self._client.notify(method, params)

        self._call(notify)
