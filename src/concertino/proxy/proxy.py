"""Proxy: any MCP server, in any language, as a Backend.

    run(Proxy(["npx", "-y", "@modelcontextprotocol/server-everything"]))

MCP has two eras: revisions up to 2025-11-25 are "legacy" (a session begins with `initialize`),
2026-07-28 is "modern" (it has no handshake). If client and server speak the same era, calls and
results are passed on undecoded. Otherwise the client's session (protocol/session.py) translates the
results, as for any Backend.

An Upstream (upstream.py) is one connection to the server. upstream_pool.py has all upstreams of a
Proxy, and sharing.py decides which clients share one. manifests.py remembers the server's features
and lists from its last run, so that clients get them before the server has started. If a legacy
server asks a modern client something, the call is *parked* until the client answers: the server
still works on it, but no request of the client waits for it (parked_calls.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from functools import partial
from types import CoroutineType
from typing import Any

from msgspec import Raw, Struct

from concertino.backend.call_hooks import is_overridden
from concertino.backend.callback_calls import BeginByCallback, CancelCall, EndsCalls
from concertino.backend.caller import CallerSession
from concertino.backend.interface import (
    Call,
    ClientFacts,
    Context,
    Notifier,
    SupportsHeldOpening,
)
from concertino.backend.methods import LIST_METHODS
from concertino.client.client import Client, Timeouts
from concertino.client.negotiation import Era
from concertino.client.pending_request import FOREVER
from concertino.client.server_parameters import HttpParameters
from concertino.client.server_stderr import Sink
from concertino.client.supervision import Restart
from concertino.client.targets import Target, parse_target
from concertino.errors import INTERNAL_ERROR, ConcertinoError, RpcError
from concertino.excerpts import shorten
from concertino.jsonrpc.limits import Limits
from concertino.protocol.call import ServerFeatures
from concertino.protocol.revisions import REVISION_BY_NAME
from concertino.proxy.failures import to_rpc_error
from concertino.proxy.features import features_before_start, features_of
from concertino.proxy.heartbeat import Heartbeat
from concertino.proxy.idle_timer import IdleTimer
from concertino.proxy.input_required import ParkedState, read_state, to_server_call
from concertino.proxy.manifest_cache import Manifest, ManifestCache
from concertino.proxy.manifests import (
    changed_lists,
    describe_differences,
    make_manifests,
)
from concertino.proxy.parked_calls import ParkedCalls, resume_parked
from concertino.proxy.server_status import ServerStatus, add_source, describe_error, remove_source
from concertino.proxy.sharing import Isolation, ServerSharing
from concertino.proxy.upstream import Upstream, UpstreamSettings
from concertino.proxy.upstream_maker import UpstreamMaker
from concertino.proxy.upstream_pool import FIRST, Opening, UpstreamPool
from concertino.transports.guardian import guardian
from concertino.transports.process import ShutdownTimeouts

__all__ = ["HEARTBEAT_S", "OPENING_S", "SHUTDOWN", "Isolation", "Proxy"]

log = logging.getLogger("concertino.proxy")

# The time limits for ending a server. Their sum is less than the time that this process has to end
# itself, so that the server is never left behind.
SHUTDOWN = ShutdownTimeouts(stdin_closed_s=0.8, terminated_s=0.6, killed_s=0.5)

# When a server that has ended is started again. Clients wait for it, so the pauses are short. After
# about 15 s of failing starts, calls are answered with an error; a call half a minute later starts
# the server again.
RESTART = Restart(longest_s=2.0, retry_s=30.0)
# The default of heartbeat_s.
HEARTBEAT_S = 15.0
# The default of opening_s.
OPENING_S = 10.0
# The interval at which a call that waits for the server's start reports progress, in seconds.
START_BEAT_S = 1.0
# The `step` of the Heartbeat for these reports. Progress must increase, so even after a start of
# minutes their sum must be less than the first progress that the server reports for the call.
START_STEP = 1e-9
# How much of the server's last line on stderr is shown, in characters.
MAX_LINE = 200


class Proxy:
    """A Backend that forwards every call to another MCP server, which it starts or connects to.

        run(Proxy(["npx", "-y", "@modelcontextprotocol/server-everything"]))

    The server:

    target: the server, as for Client: a command, ServerParameters, an address such as `unix:PATH`
        or a URL, HttpParameters, a Backend or a Connection.
    name: the server's name in logs and errors; by default derived from the target.
    era: which revisions to speak with the server: "legacy" (up to 2025-11-25, with `initialize`) or
        "modern" (2026-07-28). "auto" finds out what the server speaks; with a server that speaks
        both, the era of the proxy's first client is used.
    stderr: a function called with each line of the server's stderr, or the path of a file to append
        the lines to. By default, the lines are logged.
    limits: the sizes that messages and queues of the connection to the server may have; None for
        the defaults.
    isolation: which clients share a connection to the server, and so a server process:
        - "shared": all clients share one.
        - "principal": the clients of one verified user share one.
        - "session": each client has its own.
        - "auto" (the default): like "session" for a server older than 2026-07-28 that has log
          levels or asks its client something; like "principal" for any other server.

    Its start and end:

    restart: when to restart a server that has ended. By default it is restarted soon, up to ten
        times in a row. Half a minute after the last try, the next call starts it again.
    connect_s: how long the start of the server, or the connection to it, may take, in seconds.
    opening_s: how long a client's first request waits for the server to start, in seconds. After
        that the request is refused, and the error contains the last line of the server's stderr.
        The start goes on, and later requests are answered when it has succeeded.
    heartbeat_s: if the server sends nothing about a call for this time, in seconds, the proxy
        itself sends progress, to a client that wants progress. None for never.
    idle_s: the time without calls after which the server is ended, in seconds; it is started again
        for the next call. None (the default) for never.
    ping_s: how often to ping the server, in seconds. If the server then sends nothing for the same
        time, its calls fail and it is started again. None (the default) for never.

    What the proxy stores:

    parked: stores the calls that wait for an answer of their client. Each proxy needs a ParkedCalls
        of its own; None makes one with default limits.
    cache: stores the features and lists of a server that is a command. If the server has run
        before, clients get these from the cache, and only calls wait for the start. None to store
        nothing.
    lazy: whether to start the server only when a call needs it, if its features and lists are in
        the cache.
    Raises ValueError for a time that is not positive, and for `ping_s` with a Backend or Connection
    as target, because these cannot be started again.
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
        ping_s: float | None = None,
        parked: ParkedCalls | None = None,
        opening_s: float = OPENING_S,
        cache: ManifestCache | None = None,
        lazy: bool = False,
    ) -> None:
        times = {
            "heartbeat_s": heartbeat_s,
            "idle_s": idle_s,
            "ping_s": ping_s,
            "opening_s": opening_s,
        }
        for option, value in times.items():
            # Not `value <= 0`, which would accept NaN.
            if value is not None and not value > 0:
                raise ValueError(f"{option}: expected a positive number of seconds, got {value!r}")
        location = parse_target(target)
        if ping_s is not None and not location.can_reopen:
            raise ValueError(
                "ping_s: expected a program or an address as target: others cannot be restarted"
            )
        self.name = name or location.name
        self._sharing = ServerSharing(self.name, isolation, location.can_reopen)
        # A Backend and a Connection cannot be opened again, and addresses are no programs.
        is_address = isinstance(target, (str, HttpParameters))
        self._starts_program = location.can_reopen and not is_address
        # Whether start() has started the guardian (transports/guardian.py).
        self._is_guarded = False
        make_client = partial(
            Client,
            target,
            name=self.name,
            # No time limit: the client that waits for a call decides how long it waits.
            timeouts=Timeouts(
                connect_s,
                request_s=FOREVER,
                total_s=FOREVER,
                # A server that is silent for this time is pinged, and then gets the same time.
                ping_every_s=ping_s or FOREVER,
                ping_s=ping_s or FOREVER,
            ),
            limits=limits,
            stderr=stderr,
            restart=RESTART if restart is None and location.can_reopen else restart,
            # Results are passed on as they are; their clients validate them.
            validate=False,
        )
        # Make a Client only to raise the error for a wrong argument now, and not when the first
        # client connects.
        make_client(era=era)
        settings = UpstreamSettings(
            name=self.name,
            place=location.name if is_address and name else "it",
            make_client=make_client,
            heartbeat_s=heartbeat_s,
            parked=ParkedCalls() if parked is None else parked,
            on_question=self._sharing.on_question,
            on_change=self._on_list_changed,
        )
        self._maker = UpstreamMaker(settings, era)
        self._opening_s = opening_s
        self._manifests = make_manifests(self.name, target, era, cache, lazy)
        # The features of the server; None before they are known.
        self._features: ServerFeatures | None = None
        # Sends notifications to the clients; set by start().
        self._outlet: Notifier
        self._pool = UpstreamPool(self.name)
        self._idle_timer = IdleTimer(self._pool, self.name, idle_s)
        # The resources that clients subscribe to.
        self._watched: frozenset[str] = frozenset()

    # Backend

    async def start(self, outlet: Notifier) -> None:
        """Start the server or connect to it, and wait until it has started.

        If the server's features and lists are in the cache, returns at once: the server starts in
        the background or, with `lazy`, only when a call needs it.
        outlet: the notifier that sends notifications to the clients.
        Raises ConcertinoError if the server cannot be started or reached.
        """
        self._outlet = self._maker.outlet = outlet
        add_source(self._server_statuses)
        if self._starts_program:
            # If this process is killed, the guardian ends the programs that it has started.
            guardian.acquire()
            self._is_guarded = True
        # A manifest has the features and lists from the server's last run. No client is known yet,
        # so take the manifest for unverified users (b"").
        known = None if self._manifests is None else self._manifests.get(b"")
        if self._manifests is not None and known is not None:
            self._learn_features(known)
            if not self._manifests.is_lazy:
                self._begin_first()
        else:
            # The first requests of clients wait for the features, at most opening_s.
            if isinstance(outlet, SupportsHeldOpening):
                outlet.hold_opening(self._opening_s, self._describe_refusal)
            await self._begin_first().task
        self._idle_timer.start()

    async def renew(self) -> None:
        """Replace each running process of the server by a new process, which gets all new calls.

        Returns when the new processes serve. Running calls finish in the old processes, which are
        then ended. If no process runs, for example because start() has failed, starts one.
        Raises ConcertinoError if a new process does not start; then the old ones continue to serve.
        """
        had_none = not self._pool.list_open()
        for upstream in await self._pool.renew(self._maker.make_again):
            self._on_list_changed(upstream)
        await self.watch(self._watched)
        if had_none:
            self._outlet.report_change("features")

    def features(self) -> ServerFeatures:
        """Return the server's features. While they are not known, every feature is declared."""
        return self._features or features_before_start(self.name)

    def handle(self, call: Call, context: Context) -> CoroutineType[Any, Any, Struct | Raw]:
        """Forward a call and return the server's result, or InputRequired if the server asks.

        Raises RpcError with the server's error, or -32603 if the server has ended.
        """
        # For nearly all calls, return the coroutine of Upstream.handle() itself. To await it in a
        # coroutine of this class would delay each result. Only a repeated call, with answers to
        # questions, has a `state`.
        if not call.state:
            upstream = self._pool.find_for_session(context.caller.session)
            if upstream is not None:
                return upstream.handle(call, context)
        return self._handle_first_or_repeated(call, context)

    def callback_beginner(self) -> BeginByCallback | None:
        """Return the function that forwards a call without a task, which saves CPU time.

        backend/callback_calls.py describes the function. Returns None if a subclass has overridden
        handle(), which the runtime must then call.
        """
        return None if is_overridden(self, Proxy.handle, self.handle) else self._begin_call

    def _begin_call(
        self, call: Call, context: Context, runner: EndsCalls, slot: Any
    ) -> CancelCall | None:
        """Forward a call of a session that has an upstream, without a task.

        Returns None if the session has no upstream, or if the call needs a task.
        """
        if call.state:
            return None
        caller = context.caller
        upstream = self._pool.find_for_session(caller.session)
        return None if upstream is None else upstream.begin(call, context, caller, runner, slot)

    async def _handle_first_or_repeated(self, call: Call, context: Context) -> Struct | Raw:
        """Forward the first call of a session, or a call with the client's answers to questions."""
        if call.state:
            state = read_state(call.state)
            if isinstance(state, ParkedState):
                parked = self._maker.settings.parked
                return await resume_parked(self.name, parked, state, call, context)
            # The server speaks 2026-07-28, and has asked with a `requestState` of its own.
            call = to_server_call(call, state)
        session = context.caller.session
        upstream = self._pool.find_for_session(session)
        if upstream is None and call.method in LIST_METHODS:
            if (known := self._find_known_list(call, session)) is not None:
                revision, result = known
                context.caller.pass_result(result, revision)
                return result
            # A composition reads lists at its start, without a client. It can share any process,
            # except one that belongs to a verified user.
            if session is None:
                await self._wait_for_first()
                upstream = self._pool.find_for_lists()
        if upstream is None:
            upstream = await self._assign_with_progress(session, context)
            # For `concertino ps`.
            sessions = upstream.sessions
            sessions.host = context.client.title or context.client.name or sessions.host
        return await upstream.handle(call, context)

    async def watch(self, uris: frozenset[str]) -> None:
        """Subscribe to these resources at the server, and to no others.

        Each resource is subscribed to over the server connection of the client that watches it.
        uris: all resources that clients subscribe to now.
        """
        self._watched = uris
        unwatched = uris
        by_upstream: dict[Upstream, frozenset[str]] = {}
        for upstream in self._pool.list_open():
            subscribed = upstream.sessions.subscribed_uris
            by_upstream[upstream] = subscribed & uris
            unwatched -= subscribed
        # The other resources are those of clients that have made no call yet, and so have no
        # upstream. An upstream that belongs to one user must not watch them.
        for upstream in by_upstream:
            if not upstream.sessions.is_private:
                by_upstream[upstream] |= unwatched
                break
        for upstream, watched in by_upstream.items():
            await upstream.watch(watched)

    def on_client_notification(
        self,
        session: CallerSession,
        method: str,
        params: Mapping[str, Raw],
    ) -> None:
        """Forward a notification of a client, such as notifications/roots/list_changed.

        Drops the notification in two cases: before the client's first call, with which the client
        gets a connection to the server; and for a server of 2026-07-28, which knows no such
        notifications.
        session: the connection of the client.
        method, params: the method and the undecoded params of the notification.
        """
        upstream = self._pool.find_for_session(session)
        if upstream is not None and not upstream.is_modern:
            upstream.forward_notification(method, params)

    async def close(self) -> None:
        """End all processes of the server, with everything that they have started."""
        remove_source(self._server_statuses)
        self._idle_timer.stop()
        self._pool.stop_opening()
        self._maker.settings.parked.cancel()
        if self._manifests is not None:
            await self._manifests.close()
        await self._pool.close()
        if self._is_guarded:
            self._is_guarded = False
            guardian.release()

    def _server_statuses(self) -> list[ServerStatus]:
        """Return the state of each process of the server, for `concertino ps`."""
        statuses = [item.status() for item in self._pool.list_all()]
        if (failure := self._pool.failure) is not None:
            statuses.append(ServerStatus(self.name, "failed", last_error=describe_error(failure)))
        return statuses or [ServerStatus(self.name, "idle")]

    # Which client uses which upstream

    async def _assign(self, session: CallerSession | None, client: ClientFacts) -> Upstream:
        """Return the upstream for a session. Opens one if there is none. Raises RpcError."""
        await self._wait_for_first()
        key = self._sharing.key_of(session)
        upstream = self._pool.claim(key)
        while upstream is None:
            await self._wait_for(self._pool.openings.get(key) or self._begin_for(session, client))
            # The features of the server, which are known now, may have changed the isolation.
            key = self._sharing.key_of(session)
            # The opened upstream may have been replaced or ended meanwhile.
            upstream = self._pool.claim(key)
        # None is the key of all sessions together.
        upstream.sessions.is_private = key is not None
        is_new = self._pool.find_for_session(session) is None
        self._pool.assign(session, upstream)
        self._learn_lists(upstream, self._sharing.principal_of(session))
        # The session may have subscribed to resources before its first call. It now has an upstream
        # over which they can be subscribed to.
        if is_new and session is not None and self._watched:
            await self.watch(self._watched)
        return upstream

    async def _wait_for_first(self) -> None:
        """Wait for the process that start() has begun to start, if any. Raises RpcError."""
        if (first := self._pool.openings.get(FIRST)) is not None:
            await self._wait_for(first)

    async def _wait_for(self, opening: Opening) -> None:
        """Wait until a server has started. Raises RpcError."""
        try:
            # Other calls may wait for the same start, so it continues if this call is cancelled.
            await asyncio.shield(opening.task)
        except asyncio.CancelledError:
            # Either this call was cancelled, or close() has cancelled the start.
            task = asyncio.current_task()
            if not opening.task.cancelled() or (task is not None and task.cancelling()):
                raise
            text = f"Internal error: {self.name}: the proxy was closed"
            raise RpcError(INTERNAL_ERROR, text) from None
        except ConcertinoError as exc:
            raise to_rpc_error(self.name, exc) from None

    async def _assign_with_progress(
        self, session: CallerSession | None, context: Context
    ) -> Upstream:
        """Return the upstream for a session, and report progress while its server starts.

        Raises RpcError.
        """
        if not context.caller.wants_progress:
            return await self._assign(session, context.client)
        with Heartbeat(context, START_BEAT_S, self._describe_start, START_STEP):
            return await self._assign(session, context.client)

    def _begin_first(self) -> Opening:
        """Begin to start a server before any client needs one."""
        return self._pool.begin(FIRST, self._maker.make_first(), self._on_opened)

    def _begin_for(self, session: CallerSession | None, client: ClientFacts) -> Opening:
        """Begin to start a server for a client. Raises RpcError.

        The server is opened with the handshake `initialize` if the client has used this handshake.
        """
        key = self._sharing.key_of(session)
        upstream = self._maker.make_for(client)
        try:
            # If the key is the session itself, no other session can use the upstream.
            owner = session if key is session else None
            return self._pool.begin(key, upstream, self._on_opened, owner)
        except ConcertinoError as exc:
            raise to_rpc_error(self.name, exc) from None

    def _on_opened(self, upstream: Upstream) -> None:
        """Learn the features of a server that has just started."""
        self._learn_features(upstream.client)
        # No session uses the unclaimed upstream yet, so its lists are those of unverified users.
        if upstream is self._pool.unclaimed:
            self._learn_lists(upstream, b"")

    def _describe_start(self, waited_s: float) -> str:
        """Return a message for people: that the server is starting, and how far it has come.

        The message has the server's last line on stderr, or else the request that the server has
        not answered.
        """
        text = f"{self.name} is still starting after {round(waited_s, 1):g} s"
        opening = next(iter(self._pool.openings.values()), None)
        if opening is None:
            return text
        client = opening.upstream.client
        _, _, line = client.stderr_tail.rpartition("\n")
        if line:
            return f"{text}; it wrote last: {shorten(line, MAX_LINE)}"
        method = client.pending_method
        place = self._maker.settings.place
        return f"{text}; {place} has not answered {method}" if method else text

    def _describe_refusal(self) -> str:
        """Return the error for a client whose first request has waited too long for the start."""
        return f"Internal error: {self._describe_start(self._opening_s)}; try again later"

    # What the server reports

    def _on_list_changed(self, upstream: Upstream) -> None:
        """Learn the features and lists again. The process may run a newer version of the server."""
        self._learn_features(upstream.client)
        if self._manifests is not None:
            principals = {self._sharing.principal_of(session) for session in upstream.sessions}
            # Without a session, read the lists that unverified users (b"") get.
            for principal in principals or {b""}:
                self._manifests.learn(upstream.client, principal)

    def _learn_features(self, server: Client | Manifest) -> None:
        """Use the features of a server from now on, and decide which clients share a process."""
        features = features_of(server)
        if features != self._features:
            self._features, before = features, self._features
            # Clients get no features before the first ones are known, so only later changes are
            # reported.
            if before is not None:
                self._outlet.report_change("features")
        revision = server.revision if isinstance(server, Manifest) else server.protocol_version
        is_modern = REVISION_BY_NAME[revision].modern
        self._sharing.learn(is_modern=is_modern, has_log_levels=features.logging)

    # The lists that are known before the server runs

    def _find_known_list(self, call: Call, session: CallerSession | None) -> tuple[str, Raw] | None:
        """Return the revision and the result of a list call from the last run of the server.

        Returns None if the list is not known, or if the server of this session already runs.
        Raises RpcError if the server has not declared the feature.
        """
        pool = self._pool
        # A call with params wants a later page of the running server's list. An unclaimed upstream
        # is a running server.
        if self._manifests is None or call.params or pool.unclaimed is not None:
            return None
        if pool.has(self._sharing.key_of(session)):
            return None
        return self._manifests.find_list(self._sharing.principal_of(session), call.method)

    def _learn_lists(self, upstream: Upstream, principal: bytes) -> None:
        """Read and store the lists that a principal gets from a server that has just started.

        Does nothing if they have been read from this upstream already.
        """
        if self._manifests is not None and principal not in upstream.learned_for:
            upstream.learned_for.add(principal)
            self._manifests.learn(upstream.client, principal, self._on_learned)

    def _on_learned(self, known: Manifest | None, manifest: Manifest) -> None:
        """Notify clients of the lists that have changed since the last run of the server."""
        if known is None:
            return
        if differences := describe_differences(known, manifest):
            text = ", ".join(differences)
            log.info("%s: it has changed since its last start: %s", self.name, text)
        for kind in changed_lists(known, manifest):
            self._outlet.report_change(kind)
