"""Requests of clients, and how each is served: by which revision, for which client.

A request of 2026-07-28 says so itself, in its `_meta`. All others have the profile of the
conversation that `initialize` opened. Most params stay raw until the backend decodes them; the
protocol's own members are taken out here, one by one.
Spec: 2025-11-25 basic/lifecycle; 2026-07-28 basic/versioning, basic/index "_meta".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from msgspec import DecodeError, Raw, Struct, ValidationError
from msgspec.json import Decoder

from concertino.errors import INVALID_PARAMS, UNSUPPORTED_VERSION, RpcError
from concertino.jsonrpc.messages import Id, describe_decode_error
from concertino.jsonrpc.requests import IncomingRequest
from concertino.protocol.call import Call, ClientFacts, ServerFeatures
from concertino.protocol.revisions import (
    MODERN,
    REQUESTS,
    Revision,
    by_name,
    capabilities,
    negotiate,
)
from concertino.protocol.wire_results import ResultEncoder
from concertino.types.results import LEVELS, Implementation, Level

if TYPE_CHECKING:
    from concertino.protocol.call_hooks import CallHooks, CallTimer
    from concertino.protocol.dialogue import Dialogue

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

# Characters of the client's input that an error quotes.
QUOTED_CHARS = 128

VERSION = "io.modelcontextprotocol/protocolVersion"
CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
CLIENT = "io.modelcontextprotocol/clientInfo"
LOG_LEVEL = "io.modelcontextprotocol/logLevel"

# Features whose requests the session answers itself.
SESSION_FEATURES = frozenset(("logging", "subscriptions"))

_decode_object = Decoder(dict[str, Raw]).decode


class RequestProfile(Struct, frozen=True):
    """How one request is served: by which revision, and for which client.

    encoder: writes results for the client's revision.
    methods: the methods that go to the backend.
    token: the client's progress token; None if it wants no progress.
    level: rank of the least severe log message that the client wants; None for no messages.
    meta: the members of `_meta` that the protocol does not define.
    """

    encoder: ResultEncoder
    methods: frozenset[str]
    client: ClientFacts
    token: Id | None = None
    level: int | None = None
    meta: Mapping[str, Raw] = {}


class ClientInfo(Struct, frozen=True):
    """The members of `clientInfo` that backends may see."""

    name: str = ""
    version: str = ""
    title: str | None = None


class InitializeParams(Struct, rename="camel"):
    """The params of `initialize`."""

    protocol_version: str
    capabilities: dict[str, Any] = {}
    client_info: ClientInfo = ClientInfo()


class Profiles:
    """The profiles that the server's features and the client's handshake allow.

    features: what the backend offers now.
    methods: the requests of these features, by whether the revision is 2026-07-28.
    legacy: the profile of the conversation that initialize opened; None before.
    declared: names of the capabilities that the response to initialize declared.
    last_meta: the last `_meta` with its profile. Clients repeat it, so it is not decoded again.
    """

    def __init__(self, get_features: Callable[[], ServerFeatures]) -> None:
        self._get_features = get_features
        self.legacy: RequestProfile | None = None
        self.declared: frozenset[str] = frozenset()
        self.reload_features()

    def reload_features(self) -> None:
        """Ask the backend for its features and drop what was derived from the old ones."""
        self.features = self._get_features()
        served = [
            (name, method)
            for name, method in REQUESTS.items()
            if method.feature
            and method.feature not in SESSION_FEATURES
            and getattr(self.features, method.feature)
        ]
        self.methods = {
            False: frozenset(name for name, method in served if method.legacy),
            True: frozenset(name for name, method in served if method.modern),
        }

        self.last_meta: tuple[Raw, RequestProfile] | None = None
        self._modern_encoder: ResultEncoder | None = None
        if self.legacy is not None:
            legacy = self.legacy
            self.legacy = RequestProfile(
                legacy.encoder, self.methods[False], legacy.client, level=legacy.level
            )

    @property
    def can_subscribe(self) -> bool:
        """Return whether clients can subscribe to resources."""
        return self.features.resources and self.features.subscriptions

    def open_legacy(self, params: InitializeParams) -> Revision:
        """Open the legacy conversation and return its revision."""
        revision = negotiate(params.protocol_version)
        client = params.client_info
        facts = ClientFacts(
            client.name, client.version, revision.name, params.capabilities, client.title
        )
        encoder = ResultEncoder(revision, self.features.info)
        self.legacy = RequestProfile(encoder, self.methods[False], facts, level=LEVELS["info"])
        return revision

    def set_level(self, profile: RequestProfile, level: Level) -> None:
        """Set the least severe log message that the legacy client wants. profile: its profile."""
        self.legacy = RequestProfile(
            profile.encoder, profile.methods, profile.client, level=LEVELS[level]
        )

    def read(self, raw: Raw) -> RequestProfile | None:
        """Return the profile that a request's `_meta` asks for.

        None if it belongs to a legacy conversation that was not opened. Raises RpcError for a
        malformed `_meta` and for an unknown revision.
        """
        try:
            meta = _decode_object(raw)
        except ValidationError as exc:
            raise RpcError(
                INVALID_PARAMS, f"Invalid params: _meta: {describe_with_path(exc)}"
            ) from None

        token = pop_member(meta, "progressToken", Id)
        if VERSION not in meta:
            if self.legacy is None:
                return None
            legacy = self.legacy
            return RequestProfile(
                legacy.encoder, legacy.methods, legacy.client, token, legacy.level, meta
            )

        requested = pop_member(meta, VERSION, str)
        revision = by_name.get(requested or "")
        if revision is None or not revision.modern:
            quoted = requested and requested[:QUOTED_CHARS]
            data = {"supported": [MODERN.name], "requested": quoted}
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
        profile = RequestProfile(self._modern_encoder, self.methods[True], facts, token, rank, meta)
        if token is None:
            # A copy of `raw`, because the original keeps its whole frame in memory.
            self.last_meta = (raw.copy(), profile)
        return profile

    def declare(self, revision: Revision) -> dict[str, Any]:
        """Return the capabilities that a client of this revision gets."""
        features = self.features
        listed: dict[str, Any] = {"listChanged": True}
        updated: dict[str, Any] = {"subscribe": True} if self.can_subscribe else {}
        settings: dict[str, Any] = {
            "logging": {},
            "completions": {},
            "prompts": listed,
            "resources": {**updated, **listed},
            "tools": listed,
        }
        declared: dict[str, Any] = {
            name: value for name, value in settings.items() if getattr(features, name)
        }
        if features.experimental:
            declared["experimental"] = features.experimental
        if features.extensions:
            declared["extensions"] = features.extensions
        return capabilities(declared, revision)


# Placeholders until the session has read the request.
NO_CALL = Call("")
NO_PROFILE = RequestProfile(
    ResultEncoder(MODERN, Implementation("", "")), frozenset(), ClientFacts("", "", "", {})
)


class SessionRequest(IncomingRequest, eq=False):
    """A client's request, with everything that the session knows about it.

    profile: how it is served; call: the canonical request for the backend. Both are set before the
    request is passed to `start`.
    dialogue: what the call asks its client; None until it asks, or is repeated with answers.
    hooks: what to do at the end of the call, set by whoever begins it.
    timer: the call's time limit, while it waits.
    """

    profile: RequestProfile = NO_PROFILE
    call: Call = NO_CALL
    dialogue: Dialogue | None = None
    hooks: CallHooks | None = None
    timer: CallTimer | None = None


def pop_member(members: dict[str, Raw], name: str, type: Any) -> Any:
    """Remove one member and return it decoded as `type`; None if it is missing.

    Raises RpcError if it does not fit the type.
    """
    raw = members.pop(name, None)
    if raw is None:
        return None
    try:
        return Decoder(type).decode(raw)
    except DecodeError as exc:
        raise RpcError(
            INVALID_PARAMS, f"Invalid params: {name}: {describe_with_path(exc)}"
        ) from None


def describe_with_path(exc: DecodeError) -> str:
    """Return msgspec's text with the path in front: `_meta.x: expected str, got int`."""
    text, _, path = describe_decode_error(exc).partition(" - at $.")
    text = text[0].lower() + text[1 : 3 * QUOTED_CHARS]
    return f"{path}: {text}" if path else text
