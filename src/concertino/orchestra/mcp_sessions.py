"""McpSessions: the MCP sessions of a plugin that offers an MCP server (mcp_plugin.py).

A hub forwards calls to its plugins. The calls come from other plugins, and from MCP clients that a
bridge connects to the hub. For the tool calls of each caller, McpSessions opens a separate MCP
session with the server, through a Proxy (proxy/). If the plugin's entry in the plugins file has
`isolation`, the Proxy starts a process of the server for each session, because a server may keep
state for its client. One more session, `main`, fetches the lists, gets prompts and reads resources.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, NoReturn

from msgspec import Raw, Struct

from concertino.backend.interface import Backend, Call, Context, Notifier
from concertino.client.client import Client, Timeouts
from concertino.client.pending_request import FOREVER
from concertino.client.request_handlers import Sample
from concertino.errors import (
    INTERNAL_ERROR,
    METHOD_NOT_FOUND,
    ConcertinoError,
    Incompatible,
    NotSupported,
    RpcError,
)
from concertino.jsonrpc.limits import Limits
from concertino.orchestra.request_path import PATH, extend_path, make_step
from concertino.orchestra.trace_context import TRACE_KEYS
from concertino.protocol.call import ServerFeatures
from concertino.proxy.features import features_before_start
from concertino.proxy.file_server import START_S
from concertino.runtime.host import Host
from concertino.transports.memory import memory_pair
from concertino.types.resources_and_prompts import GetPromptResult, ListPromptsResult
from concertino.types.results import CallToolResult, ListToolsResult

__all__ = ["McpSessions", "list_or_nothing"]

# How many sessions of callers are kept open. If there are more, the least recently used sessions
# are closed, unless a call runs in them.
MAX_SESSIONS = 64
# How long opening a session may take, in seconds, if its server must be started first.
OPEN_S = START_S + 5.0
NOT_STARTED = "the server of the plugin does not run"
# Requests have no time limit in the plugin, because the hub limits the time of each call.
TIMEOUTS = Timeouts(connect_s=OPEN_S, request_s=FOREVER, total_s=FOREVER)

Meta = Mapping[str, object]
Handler = Callable[[Client, Mapping[str, Raw], Context, Meta], Awaitable[Struct]]
"""Handles a call in a session, and returns the result of the call.

It gets the client of the session, the call's params, the call's context, and the `_meta` for the
request to the server."""


class _CallerSession:
    """The MCP session that runs the tool calls of one caller.

    client: the MCP client of the session.

    Attribute:
    calls: how many calls are in progress in the session.
    """

    def __init__(self, client: Client) -> None:
        self.client = client
        self.calls = 0


class McpSessions:
    """A Backend that sends the calls of a plugin to an MCP server. Call open() before use.

    name: the plugin's id.
    on_change: called with the name of a list of the server that has changed: "tools", "prompts" or
        "resources".
    on_update: called with the URI of a resource that has changed, if the plugin has subscribed to
        the resource with main.watch().
    find_model: called for each new session of a caller. Returns the function that answers the
        server's sampling requests in this session; None if there is none.
    """

    def __init__(
        self,
        name: str,
        on_change: Callable[[str], object],
        on_update: Callable[[str], object],
        find_model: Callable[[], Awaitable[Sample | None]],
    ) -> None:
        self._name = name
        self._find_model = find_model
        # The entry of this plugin in the list of the plugins that have passed a request on.
        self._path_entry = make_step(name)
        self._on_change = on_change
        self._on_update = on_update
        # Runs the server between open() and close().
        self._host: Host | None = None
        # (caller's plugin id, id of the caller's own MCP session) -> session. The most recently
        # used session is at the end.
        self._sessions: dict[tuple[str, str], _CallerSession] = {}
        # Held while a session is opened, so that two calls of a caller do not open two.
        self._lock = asyncio.Lock()
        self._main: Client | None = None
        # Why the server has not started yet, if that takes long.
        self._delay = ""
        self._handlers: Mapping[str, Handler] = {
            "tools/list": _list_tools,
            "tools/call": _call_tool,
            "prompts/list": _list_prompts,
            "prompts/get": _get_prompt,
        }

    @property
    def main(self) -> Client:
        """The client of the session that fetches lists, gets prompts and reads resources.

        Raises RpcError before open().
        """
        if self._main is None:
            raise RpcError(INTERNAL_ERROR, NOT_STARTED)
        return self._main

    async def open(self, server: Backend) -> None:
        """Start the server, and open the session `main`.

        server: a Backend that runs the MCP server, such as a FileServer.
        Raises ConcertinoError if the server does not start, or the session cannot be opened.
        """
        host = self._host = Host(server, Limits(opening_s=OPEN_S))
        # Not `async with`, because close() leaves the Host.
        await host.__aenter__()
        try:
            self._main = await self._connect_main(host)
        except BaseException as exc:
            await self.close()
            # The error of the client does not say why. If the server has failed to start, raise the
            # error of its start.
            failure = host.start_failure if host.started.done() else None
            if isinstance(exc, ConcertinoError) and isinstance(failure, ConcertinoError):
                raise failure from None
            raise

    async def _connect_main(self, host: Host) -> Client:
        """Open the session `main`, which reports changes of the server. Wait for a slow server."""
        while True:
            has_started = host.started.done()
            try:
                return await self._connect(host, changed=self._on_change, updated=self._on_update)
            except Incompatible as exc:
                # If the start of the server takes several seconds, a Proxy refuses sessions
                # (hold_opening()), but goes on starting the server.
                if has_started or not isinstance(exc.__cause__, RpcError):
                    raise
                # The refusal of a session begins with this text (protocol/session.py).
                self._delay = exc.__cause__.message.removeprefix("Internal error: ")
                await asyncio.wait((host.started,))

    def describe_delay(self) -> str:
        """Return a text that says why the server is not ready yet; "" if the reason is unknown."""
        if self._main is None:
            return self._delay
        method = self._main.pending_method
        return f"{self._name} has not answered {method}" if method else ""

    async def _connect(self, host: Host, **options: Any) -> Client:
        """Open a session with the server. options: keyword arguments for the Client."""
        ours, theirs = memory_pair()
        host.attach(theirs)
        # The Proxy translates between revisions of MCP, so this session can use the newest revision
        # even if the server has an older one. Results are passed on, so they are not validated
        # against the tools' output schemas.
        client = Client(
            ours, name=self._name, era="modern", timeouts=TIMEOUTS, validate=False, **options
        )
        await client.open()
        return client

    async def start(self, outlet: Notifier) -> None:
        """Do nothing: open() starts the server."""

    def features(self) -> ServerFeatures:
        """Return all features, because the server may have any of them when it has started."""
        return features_before_start(self._name)

    async def watch(self, uris: frozenset[str]) -> None:
        """Do nothing: mcp_updates.py subscribes to resources with main.watch() instead."""

    async def handle(self, call: Call, context: Context) -> Struct | Raw:
        """Handle a tool call in the session of its caller, and any other call in `main`.

        Raises RpcError if the server does not answer, or answers with an error.
        """
        handler = self._handlers[call.method]
        try:
            # Read once, because the context makes a new dict each time.
            received = context.meta
            meta = self.forwarded_meta(received.get(PATH, ()))
            meta |= {key: received[key] for key in TRACE_KEYS if key in received}
            if call.method != "tools/call":
                return await handler(self.main, call.params, context, meta)
            async with self._session_of_caller(context) as client:
                return await handler(client, call.params, context, meta)
        except ConcertinoError as exc:
            _raise_rpc_error(exc)

    def forwarded_meta(self, path: Sequence[str]) -> dict[str, object]:
        """Return the `_meta` for a request that this plugin sends to its MCP server.

        path: which plugins have passed the request on so far. The result also contains this plugin,
            at the end of the list, so that no request runs in a circle between hubs
            (request_path.py).
        Raises RpcError if this plugin is on the list already, or if the list is too long.
        """
        return {PATH: extend_path(path, self._path_entry)}

    @asynccontextmanager
    async def _session_of_caller(self, context: Context) -> AsyncGenerator[Client, None]:
        """Yield the client of the session of a call's caller, inside a `with` block for the call.

        If the caller has no session, opens one. The session stays open at least until the end of
        the block.
        """
        meta = context.meta
        key = str(meta.get("orchestra/caller", "")), str(meta.get("orchestra/session", ""))
        # Remove the session and add it again, so that it is at the end.
        session = self._sessions.pop(key, None)
        if session is None:
            host = self._host
            if host is None:
                raise RpcError(INTERNAL_ERROR, NOT_STARTED)
            async with self._lock:
                # Another call of the caller may have opened the session in the meantime.
                session = self._sessions.pop(key, None)
                if session is None:
                    model = await self._find_model()
                    session = _CallerSession(await self._connect(host, sample=model))
        self._sessions[key] = session
        session.calls += 1
        try:
            yield session.client
        finally:
            session.calls -= 1
            await self._close_unused()

    async def _close_unused(self) -> None:
        """Close the least recently used sessions without calls if there are over MAX_SESSIONS."""
        excess = len(self._sessions) - MAX_SESSIONS
        if excess > 0:
            idle = [key for key, session in self._sessions.items() if not session.calls]
            for key in idle[:excess]:
                await self._sessions.pop(key).client.aclose()

    async def close(self) -> None:
        """Close all sessions, and end the server."""
        clients = [session.client for session in self._sessions.values()]
        self._sessions.clear()
        if self._main is not None:
            clients.append(self._main)
        for client in clients:
            await client.aclose()
        host, self._host = self._host, None
        if host is not None:
            await host.__aexit__(None, None, None)


async def _list_tools(client: Client, params: object, context: Context, meta: Meta) -> Struct:
    return ListToolsResult(await list_or_nothing(client.list_tools()))


async def _list_prompts(client: Client, params: object, context: Context, meta: Meta) -> Struct:
    return ListPromptsResult(await list_or_nothing(client.list_prompts()))


async def _call_tool(
    client: Client, params: Mapping[str, Raw], context: Context, meta: Meta
) -> Struct:
    # Client.call_tool() is not used, because it would unwrap structured content.
    return await client.request(
        "tools/call",
        params,
        into=CallToolResult,
        progress=context.progress if context.caller.wants_progress else None,
        meta=meta,
    )


async def _get_prompt(
    client: Client, params: Mapping[str, Raw], context: Context, meta: Meta
) -> Struct:
    return await client.request("prompts/get", params, into=GetPromptResult, meta=meta)


async def list_or_nothing(listing: Awaitable[list[Any]]) -> list[Any]:
    """Await a request for a list, and return the list; [] if the server has no such list.

    listing: the request, such as the result of Client.list_tools().
    Raises any other error of the request.
    """
    try:
        return await listing
    except NotSupported:
        return []
    except RpcError as exc:
        if exc.code == METHOD_NOT_FOUND:
            return []
        raise


def _raise_rpc_error(exc: ConcertinoError) -> NoReturn:
    if isinstance(exc, RpcError):
        raise exc
    raise RpcError(INTERNAL_ERROR, str(exc)) from None
