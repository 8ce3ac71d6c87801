"""Proxy: any MCP server, in any language, as a Backend.

    run(Proxy(["npx", "-y", "@modelcontextprotocol/server-everything"]))

Calls and results pass undecoded where client and server are of one era; the session translates
results where they are not, as those of any Backend.
"""

from __future__ import annotations

import logging
from typing import Any

from msgspec import Raw, Struct

from concertino.backend.interface import Call, Context, Notifier
from concertino.client.client import Client, Timeouts
from concertino.client.client_connection import FOREVER
from concertino.client.negotiation import Era
from concertino.client.server_stderr import Sink
from concertino.client.supervision import Restart
from concertino.client.targets import Target, parse_target
from concertino.errors import ConcertinoError
from concertino.jsonrpc.limits import Limits
from concertino.protocol.call import ServerFeatures
from concertino.protocol.revisions import MODERN
from concertino.proxy.failures import to_rpc_error
from concertino.proxy.features import features_before_start, features_of
from concertino.proxy.input_required import restore, to_input_required

__all__ = ["Proxy"]

log = logging.getLogger("concertino.proxy")


class Proxy:
    """A Backend that forwards every call to another server.

    target: as for Client: a command, ServerParameters, `unix:PATH`, `tcp:HOST:PORT`, a Backend or
    a Connection. name: for logs and errors, by default derived from the target.
    era: see Client. restart: when to restart a server that ended; by default soon, up to ten times
    in a row. stderr: see Client. limits: of the connection to the server.
    connect_s: how long the server may take to start.
    """

    def __init__(
        self,
        target: Target,
        *,
        name: str | None = None,
        era: Era = "auto",
        restart: Restart | None = None,
        stderr: Sink | None = None,
        limits: Limits | None = None,
        connect_s: float = 60.0,
    ) -> None:
        location = parse_target(target)
        self.name = name or location.name
        if restart is None and location.can_reopen:
            restart = Restart()
        self._features = features_before_start(self.name)
        self._outlet: Notifier | None = None
        self._subscribed: frozenset[str] = frozenset()
        self._client = Client(
            target,
            name=self.name,
            era=era,
            # Whoever waits for a call decides how long.
            timeouts=Timeouts(connect_s, request_s=FOREVER, total_s=FOREVER),
            limits=limits,
            stderr=stderr,
            restart=restart,
            validate=False,
            changed=self._on_list_changed,
            updated=self._on_resource_updated,
        )

    # Backend

    async def start(self, outlet: Notifier) -> None:
        """Start the server or connect to it. Raises ConcertinoError if that is impossible."""
        self._outlet = outlet
        try:
            await self._client.open()
        except ConcertinoError as exc:
            # Its text says all; the class and the place where it was raised would add nothing.
            raise ConcertinoError(f"{self.name}: {exc}") from None
        self._features = features_of(self._client)

    def features(self) -> ServerFeatures:
        """Return what the server offers; everything before it has started."""
        return self._features

    async def handle(self, call: Call, context: Context) -> Struct | Raw:
        """Forward a call and return the server's result, or what it asks the client.

        Raises RpcError as the server does, and with -32603 if it has ended.
        """
        client = self._client
        caller = context.caller
        progress: Any = context.progress if caller.wants_progress else None
        try:
            raw = await client.forward(
                restore(call) if call.state else call,
                context.client,
                level=caller.log_level,
                progress=progress,
            )
        except ConcertinoError as exc:
            raise to_rpc_error(self.name, exc) from None
        revision = client.protocol_version
        if revision == MODERN.name and (question := to_input_required(raw)) is not None:
            return question
        caller.pass_result(raw, revision)
        return raw

    async def watch(self, uris: frozenset[str]) -> None:
        """Subscribe to these resources at the server, and to no others."""
        before, self._subscribed = self._subscribed, uris
        for uri in sorted(before - uris):
            await self._client.unsubscribe(uri)
        for uri in sorted(uris - before):
            await self._client.subscribe(uri)

    async def close(self) -> None:
        """End the server with everything that it started."""
        await self._client.aclose()

    # The server's notifications

    def _on_list_changed(self, name: str) -> None:
        if self._outlet is not None and name in ("tools", "prompts", "resources"):
            self._outlet.report_change(name)

    def _on_resource_updated(self, uri: str) -> None:
        if self._outlet is not None:
            self._outlet.report_update(uri)
