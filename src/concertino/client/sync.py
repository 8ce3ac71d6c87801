"""SyncClient: a Client for scripts and notebooks, without async.

A SyncClient has a Client, and a thread that runs an event loop from open() to close()
(client/portal.py). Each method of SyncClient runs the async method of the Client in that thread,
and waits for its result. The user's functions, such as `elicit`, are called in that thread too.
Several threads may share one SyncClient.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable, Coroutine, Mapping
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, TypeVar

from concertino.client.client import Client
from concertino.client.connection_facts import ConnectionFacts
from concertino.client.portal import Portal, PortalClosed
from concertino.client.request_handlers import Roots
from concertino.client.targets import Target

__all__ = ["SyncClient"]

P = ParamSpec("P")
T = TypeVar("T")
NOT_OPEN = "this client is not open: use `with SyncClient(...) as client:`"
OWN_THREAD = (
    "a function that was given to a SyncClient cannot call that client: it would wait for itself"
)


def _blocking(
    method: Callable[Concatenate[Client, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[SyncClient, P], T]:
    """Return a method of SyncClient that calls an async method of its Client."""

    @wraps(method)
    def call(self: SyncClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        client = self._client  # pyright: ignore[reportPrivateUsage]
        return self._call(method, client, *args, **kwargs)  # pyright: ignore[reportPrivateUsage]

    return call


class SyncClient(ConnectionFacts):
    """A client for one server, without async. Use it with `with`, or call open() and close().

        with SyncClient(["python", "server.py"]) as client:
            result = client.call_tool("add", {"a": 1, "b": 2})

    The methods do the same as those of Client and raise the same errors, but block until the result
    has arrived. Several threads may call them. If Ctrl-C interrupts a method, its request is
    cancelled at the server. At the end of the program, a client that is still open is closed.

    target: the server: a command as a list of words, ServerParameters, a URL, HttpParameters,
        `unix:PATH`, `tcp:HOST:PORT`, or another target of Client.
    settings: the keyword arguments of Client, such as `timeouts` and `elicit`. Functions such as
        `elicit` are called in another thread, and cannot use this client.
    """

    def __init__(self, target: Target, **settings: Any) -> None:
        self._client = Client(target, **settings)
        self._connection = self._client._connection
        self._portal: Portal | None = None
        self._lock = threading.Lock()

    def open(self) -> None:
        """Start the server or connect to it, and negotiate the revision.

        Raises the same exceptions as Client.open(), such as SpawnError if the program cannot be
        started, and Disconnected if no server can be reached. Raises RuntimeError if this client
        was opened before.
        """
        with self._lock:
            if self._portal is not None:
                raise RuntimeError("a SyncClient can be opened once; make another one")
            name = f"concertino client {self._client.name}"
            self._portal = Portal(name, self._client.aclose)
            # End the server even if the program never closes this client.
            atexit.register(self.close)
        try:
            self._call(self._client.open)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the connection, and end the server and all processes that it has started.

        A server that is a program first gets time to end by itself (ServerParameters.ladder has the
        times). Requests for which other threads wait raise Disconnected. May be called again.
        Raises RuntimeError if one of the functions of this client, such as `elicit`, calls it.
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
        self,
        method: Callable[P, Coroutine[Any, Any, T]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Call an async method on the Client's event loop, and wait for its result."""
        portal = self._portal
        if portal is None:
            raise RuntimeError(NOT_OPEN)
        if portal.is_own_thread:
            raise RuntimeError(OWN_THREAD)
        try:
            return portal.call(method, *args, **kwargs)
        except PortalClosed:
            raise RuntimeError(NOT_OPEN) from None

    # Requests, with the signatures and docstrings of Client. The methods of Client for proxies
    # (watch, forward, begin_forward) are left out.

    call_tool = _blocking(Client.call_tool)
    list_tools = _blocking(Client.list_tools)
    list_resources = _blocking(Client.list_resources)
    list_resource_templates = _blocking(Client.list_resource_templates)
    read_resource = _blocking(Client.read_resource)
    subscribe = _blocking(Client.subscribe)
    unsubscribe = _blocking(Client.unsubscribe)
    list_prompts = _blocking(Client.list_prompts)
    get_prompt = _blocking(Client.get_prompt)
    complete = _blocking(Client.complete)
    request = _blocking(Client.request)
    ping = _blocking(Client.ping)
    set_log_level = _blocking(Client.set_log_level)

    def set_roots(self, roots: Roots) -> None:
        """Replace the roots. A server of a revision before 2026-07-28 is notified of the change.

        roots: file:// URIs or Roots, or a function without arguments that returns them.
        Raises RuntimeError if this client was created without `roots` or is not open, and
        ValueError for a URI that does not begin with file://.
        """

        async def set_roots() -> None:
            self._client.set_roots(roots)

        self._call(set_roots)

    def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Send a notification.

        params: the params of the notification; None for no params.
        Raises RuntimeError if this client is not open.
        """

        async def notify() -> None:
            self._client.notify(method, params)

        self._call(notify)
