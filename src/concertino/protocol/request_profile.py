"""RequestProfile: the revision by which a request is served, and the client that has sent it.

Profiles determines the profile of each request of a session (protocol/session.py). A request of
MCP 2026-07-28 names its revision and its client in `_meta`. All other requests have the profile
that the handshake (`initialize`) has determined.
`_meta` is decoded here. All other params stay undecoded JSON until the backend needs them.
Spec: 2025-11-25 basic/lifecycle; 2026-07-28 basic/versioning, basic/index "_meta".
"""

# No `from __future__ import annotations` here: msgspec compiles annotations that are strings when
# it decodes their Struct, in 10 us each.

from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from msgspec import Raw, Struct
from msgspec.json import Decoder

from concertino.decode_errors import DECODE_ERRORS
from concertino.errors import INVALID_PARAMS, UNSUPPORTED_VERSION, RpcError
from concertino.jsonrpc.incoming_requests import IncomingRequest
from concertino.jsonrpc.messages import Id, describe_decode_error
from concertino.protocol.call import Call, ClientFacts, ServerFeatures
from concertino.protocol.revisions import (
    MODERN,
    REQUESTS,
    REVISION_BY_NAME,
    Revision,
    limit_capabilities,
    negotiate,
)
from concertino.protocol.wire_results import ResultEncoder
from concertino.types.results import LEVELS, Implementation, Level

if TYPE_CHECKING:
    from concertino.protocol.call_hooks import CallHooks, CallTimer
    from concertino.protocol.dialogue import Dialogue
    from concertino.protocol.principal import Principal

__all__ = [
    "CAPABILITIES",
    "CLIENT",
    "LOG_LEVEL",
    "QUOTED_CHARS",
    "VERSION",
    "InitializeParams",
    "Profiles",
    "RequestProfile",
    "SessionRequest",
    "describe_with_path",
    "pop_member",
]

# An error quotes at most this many characters of the client's input.
QUOTED_CHARS = 128

# The keys of `_meta` by which a request of MCP 2026-07-28 names its revision and its client.
VERSION = "io.modelcontextprotocol/protocolVersion"
CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
CLIENT = "io.modelcontextprotocol/clientInfo"
LOG_LEVEL = "io.modelcontextprotocol/logLevel"

# The session itself answers the requests of these features; the backend does not get them.
SESSION_FEATURES = frozenset(("logging", "subscriptions"))

_decode_object = Decoder(dict[str, Raw]).decode
# Creating a decoder takes longer than decoding with it: without the cache, reading the `_meta` of a
# request with a progress token takes 5.7 us instead of 2.2. _decoder_of(T) returns Decoder(T).
_decoder_of = cache(Decoder[Any])


class RequestProfile(Struct, frozen=True):
    """How one request is served: by which revision, and for which client.

    encoder: encodes results for the revision, which is `encoder.revision`.
    methods: the methods that the session passes to the backend.
    client: the client's description of itself.
    progress_token: the client's progress token; None if the client wants no progress.
    least_rank: the rank of the least severe log message that the client wants, a value of LEVELS,
        which maps level -> rank; None if the client wants no log messages.
    meta: the members of `_meta` that the protocol does not define, undecoded.
    principal: the verified user who makes the request; None if that is not known.
    """

    encoder: ResultEncoder
    methods: frozenset[str]
    client: ClientFacts
    progress_token: Id | None = None
    least_rank: int | None = None
    meta: Mapping[str, Raw] = {}
    principal: "Principal | None" = None


class ClientInfo(Struct, frozen=True):
    """The members of `clientInfo` that become part of ClientFacts."""

    name: str = ""
    version: str = ""
    title: str | None = None


class InitializeParams(Struct, rename="camel"):
    """The params of `initialize`."""

    protocol_version: str
    capabilities: dict[str, Any] = {}
    client_info: ClientInfo = ClientInfo()


class Profiles:
    """Determines the profile of each request of a session: its revision, its client and so on.

    get_features: returns the current features of the backend.
    principal: the user who makes the requests; None if the user is not known.

    Attributes:
    features: the features that get_features() has returned last.
    methods: Revision.modern -> the names of the methods that the backend serves.
    legacy: the profile of all requests that do not name a revision in `_meta`; None before
        `initialize`.
    declared: the names of the capabilities in the response to `initialize`.
    last_meta: the undecoded `_meta` of the last 2026-07-28 request, and the profile of that
        request; None before such a request. Most clients send the same `_meta` in every request, so
        the session looks here before it calls read().
    """

    def __init__(
        self, get_features: Callable[[], ServerFeatures], principal: "Principal | None" = None
    ) -> None:
        self._get_features = get_features
        self._principal = principal
        self.legacy: RequestProfile | None = None
        self.declared: frozenset[str] = frozenset()
        self.reload_features()

    def reload_features(self) -> None:
        """Get the backend's features again, and use them in the profiles of later requests."""
        self.features = self._get_features()
        served = [
            (name, definition)
            for name, definition in REQUESTS.items()
            if definition.feature
            and definition.feature not in SESSION_FEATURES
            and (self.features.other_methods or getattr(self.features, definition.feature))
        ]
        self.methods = {
            False: frozenset(name for name, definition in served if definition.legacy),
            True: frozenset(name for name, definition in served if definition.modern),
        }

        self.last_meta: tuple[Raw, RequestProfile] | None = None
        self._modern_encoder: ResultEncoder | None = None
        if self.legacy is not None:
            self._set_legacy(self.legacy.encoder, self.legacy.client, self.legacy.least_rank)

    def identify(self, principal: "Principal | None") -> None:
        """Set the principal, the verified user, of the requests that arrive from now on.

        Requests that have arrived before keep their principal.
        """
        self._principal = principal
        self.last_meta = None
        if self.legacy is not None:
            self._set_legacy(self.legacy.encoder, self.legacy.client, self.legacy.least_rank)

    def _set_legacy(
        self, encoder: ResultEncoder, client: ClientFacts, least_rank: int | None
    ) -> None:
        """Set the profile of all requests that do not name a revision in `_meta`.

        least_rank: the rank of the least severe log message that the client wants; None for none.
        """
        self.legacy = RequestProfile(
            encoder, self.methods[False], client, least_rank=least_rank, principal=self._principal
        )

    @property
    def can_subscribe(self) -> bool:
        """Return whether clients can subscribe to resources."""
        return self.features.resources and self.features.subscriptions

    def open_legacy(self, params: InitializeParams) -> Revision:
        """Create the profile of all requests that name no revision. Called for `initialize`.

        params: the params of `initialize`.
        Returns the revision for the response: the one that the client has requested, or the latest
        revision with `initialize` if the requested one is unknown.
        """
        revision = negotiate(params.protocol_version)
        client = params.client_info
        facts = ClientFacts(
            client.name, client.version, revision.name, params.capabilities, client.title
        )
        # A client that has not sent logging/setLevel gets messages from the level "info" on.
        self._set_legacy(ResultEncoder(revision, self.features.info), facts, LEVELS["info"])
        return revision

    def set_level(self, profile: RequestProfile, level: Level) -> None:
        """Set the level that a client has requested with `logging/setLevel`.

        profile: the profile of the request `logging/setLevel`.
        level: the level of the least severe log messages that the client wants.
        """
        # Only legacy revisions have this request, so its profile was made from `legacy`.
        self._set_legacy(profile.encoder, profile.client, LEVELS[level])

    def read(self, raw: Raw) -> RequestProfile | None:
        """Return the profile of a request that has a `_meta`: its revision, its client and so on.

        Returns None if `_meta` names no revision and the client has not sent `initialize` either.
        raw: the `_meta` as undecoded JSON.
        Raises RpcError for a malformed `_meta` and for an unknown revision.
        """
        try:
            meta = _decode_object(raw)
        except DECODE_ERRORS as exc:
            raise RpcError(
                INVALID_PARAMS, f"Invalid params: _meta: {describe_with_path(exc)}"
            ) from None

        token = pop_member(meta, "progressToken", Id)
        if VERSION not in meta:
            if self.legacy is None:
                return None
            legacy = self.legacy
            return RequestProfile(
                legacy.encoder,
                legacy.methods,
                legacy.client,
                token,
                legacy.least_rank,
                meta,
                self._principal,
            )

        requested: str = pop_member(meta, VERSION, str)
        revision = REVISION_BY_NAME.get(requested)
        if revision is None or not revision.modern:
            data = {"supported": [MODERN.name], "requested": requested[:QUOTED_CHARS]}
            raise RpcError(UNSUPPORTED_VERSION, "Unsupported protocol version", data)
        if CAPABILITIES not in meta:
            data = {"supported": [MODERN.name], "missing": [CAPABILITIES]}
            raise RpcError(INVALID_PARAMS, f"Invalid params: _meta lacks {CAPABILITIES}", data)

        declared: dict[str, Any] = pop_member(meta, CAPABILITIES, dict[str, Any])
        client = pop_member(meta, CLIENT, ClientInfo) or ClientInfo()
        level = pop_member(meta, LOG_LEVEL, Level)
        facts = ClientFacts(client.name, client.version, revision.name, declared, client.title)
        rank = None if level is None else LEVELS[level]
        if self._modern_encoder is None:
            self._modern_encoder = ResultEncoder(revision, self.features.info)
        profile = RequestProfile(
            self._modern_encoder, self.methods[True], facts, token, rank, meta, self._principal
        )
        # A `_meta` with a progress token does not come again: each request has another token.
        if token is None:
            # Copy the bytes, because `raw` refers to its whole frame and would keep that in memory.
            self.last_meta = (raw.copy(), profile)
        return profile

    def declare(self, revision: Revision) -> dict[str, Any]:
        """Return the server's capabilities for a response to a client of this revision."""
        features = self.features
        list_changed: dict[str, Any] = {"listChanged": True}
        subscribe: dict[str, Any] = {"subscribe": True} if self.can_subscribe else {}
        settings: dict[str, Any] = {
            "logging": {},
            "completions": {},
            "prompts": list_changed,
            "resources": {**subscribe, **list_changed},
            "tools": list_changed,
        }
        declared: dict[str, Any] = {
            name: value for name, value in settings.items() if getattr(features, name)
        }
        if features.experimental:
            declared["experimental"] = features.experimental
        if features.extensions:
            declared["extensions"] = features.extensions
        declared.update(features.other_capabilities)
        return limit_capabilities(declared, revision)


# The values of a SessionRequest until the session has determined its profile.
NO_CALL = Call("")
NO_PROFILE = RequestProfile(
    ResultEncoder(MODERN, Implementation("", "")), frozenset(), ClientFacts("", "", "", {})
)


class SessionRequest(IncomingRequest, eq=False):
    """A client's request, with the facts that the session and the runtime store about it.

    profile: how the request is served.
    call: the request in the form for the backend. Like `profile`, set before the handler starts.
    dialogue: the requests of the call to its client, and the answers; None if there are none.
    forwarded: another server's result for this call, undecoded, which Caller.pass_result() has
        stored; None if there is none. If the handler returns the same Raw object, and no guard
        checks results, the client gets the result unchanged.
    hooks: the functions that run at the end of the call; None for a call without guards. A guard is
        a wrapper of the backend, such as a rate limit.
    timer: the timer for the time limit of the call, while it runs; otherwise None.
    """

    profile: RequestProfile = NO_PROFILE
    call: Call = NO_CALL
    dialogue: "Dialogue | None" = None
    forwarded: Raw | None = None
    hooks: "CallHooks | None" = None
    timer: "CallTimer | None" = None


def pop_member(members: dict[str, Raw], name: str, type: Any) -> Any:
    """Remove a key from a JSON object and return its value, decoded as `type`.

    members: the object; its values are undecoded JSON.
    Returns None if the key is missing. Raises RpcError -32602 if the value has another type.
    """
    raw = members.pop(name, None)
    if raw is None:
        return None
    try:
        return _decoder_of(type).decode(raw)
    except DECODE_ERRORS as exc:
        raise RpcError(
            INVALID_PARAMS, f"Invalid params: {name}: {describe_with_path(exc)}"
        ) from None


def describe_with_path(exc: Exception) -> str:
    """Return the text of an exception of msgspec with the path to the wrong value in front.

    An example is `_meta.x: expected str, got int`.
    """
    text, _, path = describe_decode_error(exc).partition(" - at $.")
    # The text may quote what the client has sent, however long that is. Three times as many
    # characters leave room for msgspec's own words.
    text = text[0].lower() + text[1 : 3 * QUOTED_CHARS]
    return f"{path}: {text}" if path else text
