"""Proxy: any MCP server, in any language, as a Backend.

    run(Proxy(["npx", "-y", "@modelcontextprotocol/server-everything"]))

If client and server speak the same era, calls and results are passed on undecoded; otherwise the
session translates the results, as for any Backend. An Upstream (proxy/upstream.py) is one
connection to the server; this module decides which clients share one. proxy/manifests.py remembers
the server's features and lists from its last run, so that clients need not wait for first answers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, Literal, get_args

from msgspec import Raw, Struct

from concertino.backend.caller import CallerSession
from concertino.backend.interface import (
    Call,
    ChangeKind,
    ClientFacts,
    Context,
    Notifier,
    SupportsHeldOpening,
    opens_with_handshake,
)
from concertino.backend.methods import LIST_METHODS
from concertino.client.client import Client, Timeouts
from concertino.client.client_connection import FOREVER
from concertino.client.negotiation import Era, HandshakeChoice
from concertino.client.server_stderr import Sink
from concertino.client.supervision import Restart
from concertino.client.targets import ServerParameters, Target, parse_target
from concertino.errors import METHOD_NOT_FOUND, ConcertinoError, RpcError
from concertino.excerpts import shorten
from concertino.jsonrpc.limits import Limits
from concertino.protocol.call import ServerFeatures
from concertino.protocol.revisions import by_name
from concertino.proxy.failures import to_rpc_error
from concertino.proxy.features import features_before_start, features_of
from concertino.proxy.heartbeat import Heartbeat
from concertino.proxy.manifest_cache import Manifest, ManifestCache
from concertino.proxy.manifests import Manifests, describe_differences
from concertino.proxy.parked_calls import ParkedCalls
from concertino.proxy.server_status import ServerStatus, add_source, remove_source
from concertino.proxy.upstream import Upstream, UpstreamSettings
from concertino.transports.guardian import guardian
from concertino.transports.process import ShutdownTimeouts

__all__ = ["HEARTBEAT_S", "OPENING_S", "SHUTDOWN", "Isolation", "Proxy"]

log = logging.getLogger("concertino.proxy")

# How a server is ended with the process that serves it: all steps fit into the time of its end.
SHUTDOWN = ShutdownTimeouts(stdin_closed_s=0.8, terminated_s=0.6, killed_s=0.5)

# When a server that ended is started again. Clients wait for it, so the pauses stay short, and a
# crash loop ends after 15 s in an error for each call; half a minute later a call tries again.
RESTART = Restart(longest_s=2.0, retry_s=30.0)
# After how many seconds of silence a caller that wants progress gets some.
HEARTBEAT_S = 15.0
# How long a client's first request waits for the server, if nothing is known of it.
OPENING_S = 10.0
# How long a server that has been started waits for the message that tells the first client's era.
FIRST_MESSAGE_S = 2.0
# How often a call that waits for the server's start reports progress, in seconds, and how much.
START_BEAT_S = 1.0
START_STEP = 1e-9
# How much of the server's last line on stderr is shown, in characters.
MAX_LINE = 200

Isolation = Literal["auto", "shared", "principal", "session"]
LIST_KINDS: tuple[ChangeKind, ...] = ("tools", "prompts", "resources")
# Identifies the server that is started before any client needs one.
FIRST = object()

# What a server before 2026-07-28 is told of its client when that is not known yet.
EVERYTHING: Mapping[str, Any] = {
    "elicitation": {"form": {}, "url": {}},
    "sampling": {"tools": {}, "context": {}},
    "roots": {"listChanged": True},
}


class Proxy:
    """A Backend that forwards every call to another server.

    target: the server, as for Client: a command, ServerParameters, `unix:PATH`, `tcp:HOST:PORT`, a
        Backend or a Connection.
    name: the server's name in logs and errors; by default derived from the target.
    era: see Client. With "auto", a server that speaks both eras is opened in the era of its first
        client.
    restart: when to restart a server that has ended; by default soon, up to ten times in a row, and
        again for a call half a minute later.
    stderr: see Client.
    limits: the limits of the connection to the server.
    connect_s: the limit for the start of the server, in seconds.
    isolation: which clients share a connection to the server, and so a process of it. With
        `shared`, all clients share it; with `principal`, the clients of one verified user; with
        `session`, none. "auto" means `principal`, and `session` for a server before 2026-07-28
        that sets log levels or asks its client something.
    heartbeat_s: the time of silence after which the proxy sends progress of its own to a client
        that wants progress, in seconds; None for never.
    idle_s: the time without calls after which the server is ended, in seconds; it is started again
        for the next call. None for never.
    parked: the calls that wait for an answer of their client; not shared with other proxies.
    opening_s: the time that a client's first request waits for the server to start, in seconds.
        Then it is refused with the last line of the server's stderr; the start goes on.
    cache: keeps the features and lists of servers. If the server has run before, clients get its
        first answers and lists from the cache, and only calls wait for the start. For commands.
    lazy: whether to start a server that is in the cache only when a call needs it.
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
        isolation: Isolation = "auto",
        heartbeat_s: float | None = HEARTBEAT_S,
        idle_s: float | None = None,
        parked: ParkedCalls | None = None,
        opening_s: float = OPENING_S,
        cache: ManifestCache | None = None,
        lazy: bool = False,
    ) -> None:
        if isolation not in get_args(Isolation):
            expected = ", ".join(get_args(Isolation))
            raise ValueError(f"isolation: expected one of {expected}, got {isolation!r}")
        times = {"heartbeat_s": heartbeat_s, "idle_s": idle_s, "opening_s": opening_s}
        for option, value in times.items():
            if value is not None and not value > 0:
                raise ValueError(f"{option}: expected a positive number of seconds, got {value!r}")
        location = parse_target(target)
        self.name = name or location.name
        self._can_reopen = location.can_reopen
        self._starts_program = location.can_reopen and not isinstance(target, str)
        self._is_guarded = False
        make_client = partial(
            Client,
            target,
            name=self.name,
            # The client that waits for a call decides how long.
            timeouts=Timeouts(connect_s, request_s=FOREVER, total_s=FOREVER),
            limits=limits,
            stderr=stderr,
            restart=RESTART if restart is None and self._can_reopen else restart,
            validate=False,
        )
        # Report a wrong argument now.
        make_client(era=era)
        self._settings = UpstreamSettings(
            self.name,
            make_client,
            heartbeat_s,
            ParkedCalls() if parked is None else parked,
            self._on_question,
            self._on_list_changed,
        )
        self._era: Era = era
        # Whether the first client has opened its session with a handshake; None before that.
        self._has_handshake: bool | None = None
        self._isolation = isolation
        self._idle_s = idle_s
        self._idle_timer: asyncio.TimerHandle | None = None
        self._opening_s = opening_s
        self._is_lazy = lazy
        self._manifests = _make_manifests(self.name, target, era, cache)
        self._features = self._unknown = features_before_start(self.name)
        self._outlet: Notifier
        # The upstream for sessions that have none yet; None once it belongs to some.
        self._unclaimed: Upstream | None = None
        # Any hashable: what sessions that share an upstream have in common.
        self._upstreams: dict[object, Upstream] = {}
        self._openings: dict[object, _Opening] = {}
        self._by_session: dict[CallerSession | None, Upstream] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._watched: frozenset[str] = frozenset()

    # Backend

    async def start(self, outlet: Notifier) -> None:
        """Start the server or connect to it. Raises ConcertinoError if that is impossible.

        Returns at once if the server is in the cache.
        """
        self._outlet = outlet
        add_source(self._server_statuses)
        if self._starts_program:
            guardian.acquire()
            self._is_guarded = True
        known = None if self._manifests is None else self._manifests.get(b"")
        if known is not None:
            self._learn_features(known)
            if not self._is_lazy:
                self._begin_first()
        else:
            if isinstance(outlet, SupportsHeldOpening):
                outlet.hold_opening(self._opening_s, self._describe_refusal)
            await self._begin_first().task
        if self._idle_s is not None:
            self._idle_timer = asyncio.get_running_loop().call_later(self._idle_s, self._end_idle)

    async def renew(self) -> None:
        """Start new processes of the server, and let them take over from those that run.

        Calls under way finish at the old processes, which are ended then. If nothing runs, because
        start() has failed, one process is started. Raises ConcertinoError if a new process does not
        start; then the old ones go on.
        """
        if self._openings:
            # What they have loaded may be old already.
            await asyncio.wait([opening.task for opening in self._openings.values()])
        old = self._open_upstreams()
        running = [upstream for upstream in old if upstream.client.state != "closed"]
        new = [
            Upstream(self._settings, self._outlet, item.capabilities, item.era) for item in running
        ]
        if not new:
            new = [self._make_first()]
        openings = [asyncio.ensure_future(upstream.open()) for upstream in new]
        try:
            await asyncio.gather(*openings)
        except BaseException:
            # When one fails, gather() leaves the others under way.
            for opening in openings:
                opening.cancel()
            await asyncio.gather(*openings, return_exceptions=True)
            await asyncio.gather(*(upstream.close() for upstream in new))
            raise
        if not running:
            self._unclaimed = new[0]
            await new[0].watch(self._watched)
        for before, upstream in zip(running, new, strict=False):
            if before is self._unclaimed:
                self._unclaimed = upstream
            for table in (self._upstreams, self._by_session):
                for key in [key for key, item in table.items() if item is before]:
                    table[key] = upstream  # pyright: ignore[reportArgumentType]
            await upstream.take_over(before)
            self._run_closing(before.close_after_calls())
        for upstream in new:
            self._on_list_changed(upstream)
        if not running:
            self._outlet.report_change("features")

    def features(self) -> ServerFeatures:
        """Return what the server offers; everything before it has started."""
        return self._features

    async def handle(self, call: Call, context: Context) -> Struct | Raw:
        """Forward a call and return the server's result, or what it asks the client.

        Raises RpcError as the server does, and with -32603 if it has ended.
        """
        session = context.caller.session
        upstream = self._by_session.get(session)
        if upstream is None and call.method in LIST_METHODS:
            if (known := self._known_list(call, session)) is not None:
                revision, result = known
                context.caller.pass_result(result, revision)
                return result
            # A list that is read without a client, as at the start of a composition, leaves nothing
            # behind: it needs no process of its own.
            if session is None:
                await self._wait_for_first()
                upstream = self._upstream_for_lists()
        if upstream is None:
            upstream = await self._assign_patiently(session, context)
            upstream.host = context.client.title or context.client.name or upstream.host
        return await upstream.handle(call, context)

    async def watch(self, uris: frozenset[str]) -> None:
        """Subscribe to these resources at the server: for each client where its calls go."""
        self._watched = uris
        rest = uris
        wanted: dict[Upstream, frozenset[str]] = {}
        for upstream in self._open_upstreams():
            own = frozenset[str]().union(*(item.subscribed_uris for item in upstream.sessions))
            wanted[upstream] = own & uris
            rest -= own
        # Those of clients that have not made a call yet. No other user's server may report on them.
        for upstream in wanted:
            if not upstream.is_private:
                wanted[upstream] |= rest
                break
        for upstream, own in wanted.items():
            await upstream.watch(own)

    def on_client_notification(
        self,
        session: CallerSession,
        method: str,
        params: Mapping[str, Raw],
    ) -> None:
        """Forward a notification, such as that the client's roots have changed, to its server.

        Before the client's first call there is nothing that the server could know of it.
        """
        upstream = self._by_session.get(session)
        if upstream is not None and not upstream.is_modern:
            upstream.forward_notification(method, params)

    async def close(self) -> None:
        """End the server with everything that it started."""
        remove_source(self._server_statuses)
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        openings = [opening.task for opening in self._openings.values()]
        for opening in openings:
            opening.cancel()
        self._settings.parked.cancel()
        upstreams = self._open_upstreams()
        if self._manifests is not None:
            await self._manifests.close()
        ends = [upstream.close() for upstream in upstreams]
        await asyncio.gather(*ends, *self._closing, *openings, return_exceptions=True)
        if self._is_guarded:
            self._is_guarded = False
            guardian.release()

    def _server_statuses(self) -> list[ServerStatus]:
        """Return what the processes of the server are doing, for `concertino ps`."""
        starting = [opening.upstream for opening in self._openings.values()]
        every = (self._unclaimed, *self._upstreams.values(), *starting)
        upstreams = {item: None for item in every if item}
        return [item.status() for item in upstreams] or [ServerStatus(self.name, "idle")]

    # Which client uses which upstream

    def _open_upstreams(self) -> list[Upstream]:
        """Return all upstreams that are open, each once."""
        every = (*self._upstreams.values(), self._unclaimed)
        return list(dict.fromkeys(item for item in every if item is not None))

    def _upstream_for_lists(self) -> Upstream | None:
        """Return an upstream for calls without a connection: one that no verified user has."""
        return self._unclaimed or next(
            (
                upstream
                for upstream in self._upstreams.values()
                if not any(session.principal for session in upstream.sessions)
            ),
            None,
        )

    def _key_of(self, session: CallerSession | None) -> object:
        """Return what the sessions have in common that share this session's upstream."""
        if not self._can_reopen or self._isolation == "shared":
            return None
        if self._isolation == "session":
            return session
        # A call without a connection comes from a user as little known as one over stdin.
        return b"" if session is None else session.principal

    async def _assign(self, session: CallerSession | None, client: ClientFacts) -> Upstream:
        """Return the upstream for a session, opened first if need be. Raises RpcError."""
        await self._wait_for_first()
        key = self._key_of(session)
        upstream = self._upstreams.get(key)
        if upstream is None and self._unclaimed is not None:
            upstream, self._unclaimed = self._unclaimed, None
            self._upstreams[key] = upstream
        if upstream is None:
            upstream = await self._wait_for(self._openings.get(key) or self._begin_for(key, client))
        upstream.is_private = key is not None
        self._by_session[session] = upstream
        self._learn_lists(upstream, self._principal_of(session))
        if session is not None and session not in upstream.sessions:
            upstream.sessions.add(session)
            session.closed.add_done_callback(partial(self._on_session_end, session))
            if self._watched:
                await self.watch(self._watched)
        return upstream

    async def _wait_for_first(self) -> None:
        """Wait for the server that was started before any client needed one. Raises RpcError."""
        if (first := self._openings.get(FIRST)) is not None:
            await self._wait_for(first)

    async def _wait_for(self, opening: _Opening) -> Upstream:
        """Wait until a server has started. Raises RpcError."""
        try:
            # Others may wait for it, so it goes on when this call is cancelled.
            return await asyncio.shield(opening.task)
        except ConcertinoError as exc:
            raise to_rpc_error(self.name, exc) from None

    async def _assign_patiently(self, session: CallerSession | None, context: Context) -> Upstream:
        """Return the upstream for a session, and report progress while its server starts."""
        if not context.caller.wants_progress:
            return await self._assign(session, context.client)
        with Heartbeat(context, START_BEAT_S, self._describe_start, START_STEP):
            return await self._assign(session, context.client)

    def _begin_first(self) -> _Opening:
        """Begin to start a server before any client needs one."""
        return self._begin(FIRST, self._make_first())

    def _begin_for(self, key: object, client: ClientFacts) -> _Opening:
        """Begin to start a server for a client, in the client's era."""

        async def prefers_handshake() -> bool:
            return not by_name[client.protocol_version].modern

        return self._begin(key, self._make_upstream(client.capabilities, prefers_handshake))

    def _make_first(self) -> Upstream:
        """Return an upstream to be opened in the era of the first client."""
        return self._make_upstream(EVERYTHING, self._first_has_handshake)

    def _make_upstream(
        self, capabilities: Mapping[str, Any], prefers_handshake: HandshakeChoice
    ) -> Upstream:
        era = prefers_handshake if self._era == "auto" else self._era
        return Upstream(self._settings, self._outlet, capabilities, era)

    async def _first_has_handshake(self) -> bool:
        # A server that is restarted keeps its era.
        if self._has_handshake is None:
            self._has_handshake = await opens_with_handshake(self._outlet, FIRST_MESSAGE_S)
        return self._has_handshake

    def _begin(self, key: object, upstream: Upstream) -> _Opening:
        """Begin to start a server, for the sessions with this key."""
        task = asyncio.get_running_loop().create_task(self._open(key, upstream))
        task.add_done_callback(self._on_opened)
        opening = self._openings[key] = _Opening(upstream, task)
        return opening

    async def _open(self, key: object, upstream: Upstream) -> Upstream:
        try:
            await upstream.open()
        finally:
            del self._openings[key]
        self._learn_features(upstream.client)
        if key is FIRST:
            self._unclaimed = upstream
            self._learn_lists(upstream, b"")
        else:
            self._upstreams[key] = upstream
        return upstream

    def _on_opened(self, task: asyncio.Task[Upstream]) -> None:
        # Perhaps nobody waits for it.
        if not task.cancelled() and (error := task.exception()) is not None:
            log.debug("%s: %s", self.name, error)

    def _describe_start(self, waited_s: float) -> str:
        """Return what people should know while a server starts."""
        opening = next(iter(self._openings.values()), None)
        line = "" if opening is None else opening.upstream.client.stderr_tail.rpartition("\n")[2]
        text = f"{self.name} is still starting after {round(waited_s, 1):g} s"
        return f"{text}; it wrote last: {shorten(line, MAX_LINE)}" if line else text

    def _describe_refusal(self) -> str:
        return f"Internal error: {self._describe_start(self._opening_s)}; try again later"

    def _on_session_end(self, session: CallerSession, closed: object) -> None:
        """Forget a session, and end the server that was started for it alone."""
        upstream = self._by_session.pop(session, None)
        if upstream is None:
            return
        upstream.sessions.discard(session)
        if self._upstreams.get(session) is upstream:
            self._end(upstream)

    def _end(self, upstream: Upstream) -> None:
        """End a server in the background. A new one is opened for the next call."""
        for table in (self._upstreams, self._by_session):
            for key in [key for key, item in table.items() if item is upstream]:
                del table[key]  # pyright: ignore[reportArgumentType]
        self._run_closing(upstream.close())

    def _run_closing(self, closing_work: Coroutine[Any, Any, None]) -> None:
        closing = asyncio.get_running_loop().create_task(closing_work)
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    def _end_idle(self) -> None:
        """End the servers that had no calls for idle_s, and look again later."""
        assert self._idle_s is not None
        loop = asyncio.get_running_loop()
        for upstream in {*self._upstreams.values()}:
            if not upstream.is_busy and loop.time() - upstream.last_used >= self._idle_s:
                log.info("%s: idle for %g s, so it is ended", self.name, self._idle_s)
                self._end(upstream)
        self._idle_timer = loop.call_later(self._idle_s / 2, self._end_idle)

    def _on_question(self) -> None:
        if self._isolation == "principal":
            self._isolate("it asks its client something")

    def _isolate(self, reason: str) -> None:
        """Give each session that has made no call yet a server of its own."""
        self._isolation = "session"
        if self._can_reopen:
            log.info("%s: each client gets a server process of its own: %s", self.name, reason)

    # What the server reports

    def _on_list_changed(self, upstream: Upstream) -> None:
        """Learn what the server offers now: it may have been replaced by a newer one."""
        self._learn_features(upstream.client)
        if self._manifests is not None:
            principals = {self._principal_of(session) for session in upstream.sessions}
            for principal in principals or {b""}:
                self._manifests.learn(upstream.client, principal)

    def _learn_features(self, server: Client | Manifest) -> None:
        """Take over what the server offers, and decide which clients share one."""
        features = features_of(server)
        if features != self._features:
            self._features, before = features, self._features
            # Clients have been told only what was known.
            if before is not self._unknown:
                self._outlet.report_change("features")
        if self._isolation == "auto":
            self._isolation = "principal"
            revision = server.revision if isinstance(server, Manifest) else server.protocol_version
            if not by_name[revision].modern and features.logging:
                self._isolate("it has log levels")

    # The lists that are known before the server runs

    def _principal_of(self, session: CallerSession | None) -> bytes:
        """Return whose lists a session gets: users share none, unless they share the server."""
        if session is None or self._isolation == "shared":
            return b""
        return session.principal

    def _known_list(self, call: Call, session: CallerSession | None) -> tuple[str, Raw] | None:
        """Return a list and its revision if it is known and the server does not run yet.

        Raises RpcError for a list of a feature that it has not declared: most hosts ask for all
        lists when they open a server, and should not wait for its start to get nothing.
        """
        if self._manifests is None or call.params or self._unclaimed is not None:
            return None
        if self._key_of(session) in self._upstreams:
            return None
        manifest = self._manifests.get(self._principal_of(session))
        if manifest is None:
            return None
        if call.method.partition("/")[0] not in manifest.capabilities:
            raise RpcError(METHOD_NOT_FOUND, f"method not found: {call.method}")
        result = manifest.lists.get(call.method)
        return None if result is None else (manifest.revision, result)

    def _learn_lists(self, upstream: Upstream, principal: bytes) -> None:
        """Keep what a server that has just started lists, unless that was done before."""
        if self._manifests is not None and principal not in upstream.learned_for:
            upstream.learned_for.add(principal)
            self._manifests.learn(upstream.client, principal, self._on_learned)

    def _on_learned(self, known: Manifest | None, manifest: Manifest) -> None:
        """Tell clients which lists have changed since the server ran last."""
        if known is None:
            return
        if differences := describe_differences(known, manifest):
            text = ", ".join(differences)
            log.info("%s: it has changed since its last start: %s", self.name, text)
        for kind in LIST_KINDS:
            if any(
                known.lists.get(method) != manifest.lists.get(method)
                for method in LIST_METHODS
                if method.startswith(kind)
            ):
                self._outlet.report_change(kind)


class _Opening(Struct, frozen=True):
    """A server that is starting."""

    upstream: Upstream
    task: asyncio.Task[Upstream]


def _make_manifests(
    name: str,
    target: Target,
    era: Era,
    cache: ManifestCache | None,
) -> Manifests | None:
    """Return what is known of a server; None if nothing is kept, as for all but commands."""
    if cache is None or isinstance(target, str):
        return None
    if not isinstance(target, ServerParameters):
        if not isinstance(target, Sequence):
            return None
        target = ServerParameters(target[0], target[1:])
    return Manifests(name, partial(cache.file_of, target, era))
