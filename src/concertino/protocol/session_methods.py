"""SessionMethods: answers the requests of a client that the session does not pass to its backend.

These are initialize, ping, server/discover, logging/setLevel and the requests about subscriptions.
Requests of unknown methods get their error here.
Spec: 2025-11-25 basic/lifecycle, server/resources "Subscriptions"; 2026-07-28 basic/versioning,
server/discover.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from msgspec import Raw
from msgspec.json import Decoder, encode

from concertino.decode_errors import DECODE_ERRORS
from concertino.errors import INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, RpcError
from concertino.jsonrpc.peer import Peer
from concertino.protocol.lifecycle import Lifecycle
from concertino.protocol.request_profile import (
    CAPABILITIES,
    QUOTED_CHARS,
    VERSION,
    InitializeParams,
    Profiles,
    RequestProfile,
    SessionRequest,
    describe_with_path,
    pop_member,
)
from concertino.protocol.revisions import LEGACY, REQUESTS, REVISIONS, limit_implementation
from concertino.protocol.subscriptions import Subscriptions
from concertino.types.results import LEVELS, Level

__all__ = ["SessionMethods"]

# An example of `initialize`, for errors that tell a person what to send first.
OPENER = (
    '{"jsonrpc":"2.0","id":0,"method":"initialize","params":{'
    f'"protocolVersion":"{LEGACY[-1].name}",'
    '"capabilities":{},"clientInfo":{"name":"me","version":"1"}}}'
)


class SessionMethods:
    """The MCP methods that one session answers itself.

    The parameters are objects of the session:

    peer: the JSON-RPC layer, which sends the responses.
    profiles: the profiles of the requests; `initialize` sets their revision and their client.
    lifecycle: the state of the handshake.
    subscriptions: the resources and lists to which the client subscribes.
    """

    def __init__(
        self,
        peer: Peer[SessionRequest],
        profiles: Profiles,
        lifecycle: Lifecycle,
        subscriptions: Subscriptions,
    ) -> None:
        self._peer = peer
        self._profiles = profiles
        self._lifecycle = lifecycle
        self._subscriptions = subscriptions

    def answer(self, incoming: SessionRequest, profile: RequestProfile | None) -> None:
        """Answer a request, with an error if its method does not exist for the client.

        profile: the revision and the client of the request; None if the request names no revision,
            and the client has not sent `initialize`.
        """
        method = incoming.method
        definition = REQUESTS.get(method)
        if definition is None:
            is_defined = False
        elif profile is None:
            # The revision is unknown, so accept the methods of all revisions.
            is_defined = True
        elif profile.encoder.revision.modern:
            is_defined = definition.modern
        else:
            is_defined = definition.legacy

        try:
            handle = self._find_handler(method, profile) if is_defined else None
            if handle is not None:
                return handle(incoming)
        except RpcError as exc:
            return self._peer.fail(incoming, exc.code, exc.message, exc.data)
        text = f"method not found: {method[:QUOTED_CHARS]}"
        return self._peer.fail(incoming, METHOD_NOT_FOUND, text)

    def _find_handler(
        self, method: str, profile: RequestProfile | None
    ) -> Callable[[SessionRequest], None] | None:
        """Return the function that answers requests of an MCP method.

        Returns None if the server has not declared the capability that the method belongs to.
        profile: the profile of the request; None if the client has not sent `initialize`.
        Raises RpcError if the profile is None, unless the method is `initialize` or `ping`.
        """
        if method == "initialize":
            return self._initialize
        if method == "ping":
            return self._ping
        if profile is None:
            missing = [VERSION, CAPABILITIES]
            text = (
                "neither initialize was seen nor has params._meta "
                f"the members {' and '.join(missing)}; send first: {OPENER}"
            )
            supported = [revision.name for revision in REVISIONS]
            raise RpcError(INVALID_PARAMS, text, {"supported": supported, "missing": missing})

        if method == "server/discover":
            return partial(self._discover, profile)
        if method == "subscriptions/listen":
            return partial(self._listen, profile)
        if method == "logging/setLevel" and self._profiles.features.logging:
            return partial(self._set_level, profile)
        if REQUESTS[method].feature == "subscriptions" and self._profiles.can_subscribe:
            return self._subscribe
        return None

    def _initialize(self, incoming: SessionRequest) -> None:
        """Answer `initialize`, and set the revision for later requests that name none in `_meta`.

        Raises RpcError if the client was already initialized, or for malformed params.
        """
        is_first = self._lifecycle.allows("initialize")
        if not is_first or incoming.batch is not None:
            when = "in a batch" if is_first else "a second time on this connection"
            raise RpcError(INVALID_REQUEST, f"Invalid Request: initialize {when}")
        try:
            params = Decoder(InitializeParams).decode(encode(incoming.params))
        except DECODE_ERRORS as exc:
            # For a person who types `"params": {}` by hand, the error shows what to send instead.
            data = {"details": "Missing required field: protocolVersion", "send": OPENER}
            lacks_version = "protocolVersion" not in incoming.params
            raise RpcError(
                INVALID_PARAMS,
                f"Invalid params: {describe_with_path(exc)}",
                data if lacks_version else None,
            ) from None

        profiles = self._profiles
        revision = profiles.open_legacy(params)
        self._lifecycle.advance("initialize")
        declared = profiles.declare(revision)
        profiles.declared = frozenset(declared)
        self._peer.batches.accepted = revision.batches
        if revision.idless_errors:
            self._peer.invalid_input.unknown_id = None

        result: dict[str, Any] = {
            "protocolVersion": revision.name,
            "capabilities": declared,
            "serverInfo": limit_implementation(profiles.features.info, revision),
        }
        if profiles.features.instructions is not None:
            result["instructions"] = profiles.features.instructions
        self._peer.respond(incoming, encode(result))

    def _ping(self, incoming: SessionRequest) -> None:
        """Answer `ping`."""
        self._peer.respond(incoming, b"{}")

    def _discover(self, profile: RequestProfile, incoming: SessionRequest) -> None:
        """Answer `server/discover` with the server's capabilities and instructions."""
        revision = profile.encoder.revision
        features = self._profiles.features
        result: dict[str, Any] = {
            "supportedVersions": [revision.name],
            "capabilities": self._profiles.declare(revision),
            "ttlMs": features.ttl_ms,
            "cacheScope": features.cache_scope,
        }
        if features.instructions is not None:
            result["instructions"] = features.instructions
        body = profile.encoder.encode(Raw(encode(result)), incoming.method)
        self._peer.respond(incoming, body)

    def _set_level(self, profile: RequestProfile, incoming: SessionRequest) -> None:
        """Answer `logging/setLevel`. Raises RpcError for an unknown level."""
        level = pop_member(incoming.params, "level", Level)
        if level is None:
            text = f"Invalid params: level: expected one of {', '.join(LEVELS)}"
            raise RpcError(INVALID_PARAMS, text)
        self._profiles.set_level(profile, level)
        self._peer.respond(incoming, b"{}")

    def _listen(self, profile: RequestProfile, incoming: SessionRequest) -> None:
        """Open a subscription; `subscriptions/listen` is answered when the subscription ends."""
        incoming.profile = profile
        self._subscriptions.wanted_updates().listen(
            incoming, self._profiles.features, profile.encoder.encode_closing
        )

    def _subscribe(self, incoming: SessionRequest) -> None:
        """Answer `resources/subscribe` and `resources/unsubscribe`.

        The resource need not exist: it may appear later.
        """
        uri = pop_member(incoming.params, "uri", str)
        if uri is None:
            raise RpcError(INVALID_PARAMS, "Invalid params: uri: required, but missing")
        updates = self._subscriptions.wanted_updates()
        if incoming.method == "resources/unsubscribe":
            updates.unsubscribe(uri)
        else:
            updates.subscribe(uri)
        self._lifecycle.advance("request")
        self._peer.respond(incoming, b"{}")
