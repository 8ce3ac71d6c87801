"""One MCP conversation, as the server sees it.

The session decides by which revision each request is served, answers what it can answer itself
(initialize, ping, server/discover, logging/setLevel, subscriptions), and hands all other requests
to `start` as canonical Calls. The backend's results come back through respond() and are encoded for
the caller's revision.

A request whose `_meta` names revision 2026-07-28 is served by the rules of that revision, whatever
came before it. Every other request belongs to the conversation that `initialize` opened. A
malformed `initialize` changes nothing.
Spec: 2025-11-25 basic/lifecycle, server/resources "Subscriptions"; 2026-07-28 basic/versioning,
basic/index, server/discover, basic/patterns/cancellation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import DecodeError, Raw, Struct, ValidationError
from msgspec.json import Decoder, encode

from concertino.errors import (
    BUSY,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    UNSUPPORTED_VERSION,
    RpcError,
)
from concertino.jsonrpc.incoming_requests import IncomingRequest, NotificationThrottle
from concertino.jsonrpc.limits import Limits
from concertino.jsonrpc.messages import (
    Id,
    Message,
    decode_request,
    describe_decode_error,
    encode_id,
    encode_notification,
)
from concertino.jsonrpc.outgoing_requests import OutgoingRequest
from concertino.jsonrpc.peer import RESULT, Peer, Send
from concertino.jsonrpc.token_bucket import TokenBucket
from concertino.protocol.call import Call, ClientFacts, InputRequired, ServerFeatures
from concertino.protocol.call_hooks import CallHooks, CallTimer
from concertino.protocol.revisions import (
    MODERN,
    REQUESTS,
    REVISIONS,
    Revision,
    by_name,
    capabilities,
    implementation,
    negotiate,
)
from concertino.protocol.wire_results import ResultEncoder
from concertino.types.results import LEVELS, CallToolResult, Implementation, Level, TextContent

if TYPE_CHECKING:
    from concertino.protocol.dialogue import Dialogue
    from concertino.protocol.seal import OpenedState, Seal
    from concertino.protocol.wanted_updates import WantedUpdates
    from concertino.types.client_requests import InputRequest

__all__ = ["LIFECYCLE", "RequestProfile", "Session", "SessionRequest", "State"]


class State(Enum):
    """Progress of the legacy handshake. Requests of 2026-07-28 neither need nor change it."""

    FRESH = "no initialize yet"
    OPENED = "initialize answered"
    READY = "in operation"


# What came -> the next state; None: rejected. 2025-11-25 basic/lifecycle.
# Some clients never send `initialized`; their first request after initialize implies it.
LIFECYCLE: Mapping[State, Mapping[str, State | None]] = {
    State.FRESH: {"initialize": State.OPENED, "initialized": State.FRESH, "request": None},
    State.OPENED: {"initialize": None, "initialized": State.READY, "request": State.READY},
    State.READY: {"initialize": None, "initialized": State.READY, "request": State.READY},
}

VERSION = "io.modelcontextprotocol/protocolVersion"
CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
CLIENT = "io.modelcontextprotocol/clientInfo"
LOG_LEVEL = "io.modelcontextprotocol/logLevel"

# Features whose requests the session answers itself.
SESSION_FEATURES = frozenset(("logging", "subscriptions"))

# Characters of the client's input that an error quotes.
QUOTED_CHARS = 128

# More than the bytes that a response adds to its result, unless its id is very long.
ENVELOPE_BYTES = 1024

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


class _ClientInfo(Struct, frozen=True):
    name: str = ""
    version: str = ""
    title: str | None = None


class _InitializeParams(Struct, rename="camel"):
    protocol_version: str
    capabilities: dict[str, Any] = {}
    client_info: _ClientInfo = _ClientInfo()


class _CancelParams(Struct, rename="camel"):
    request_id: Id
    reason: str = ""


class _Profiles:
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

    def open_legacy(self, params: _InitializeParams) -> Revision:
        """Open the legacy conversation and return its revision."""
        revision = negotiate(params.protocol_version)
        client = params.client_info
        facts = ClientFacts(
            client.name, client.version, revision.name, params.capabilities, client.title
        )
        encoder = ResultEncoder(revision, self.features.info)
        self.legacy = RequestProfile(encoder, self.methods[False], facts, level=LEVELS["info"])
        return revision

    def read(self, raw: Raw) -> RequestProfile | None:
        """Return the profile that a request's `_meta` asks for.

        None if it belongs to a legacy conversation that was not opened. Raises RpcError for a
        malformed `_meta` and for an unknown revision.
        """
        try:
            meta = _decode_object(raw)
        except ValidationError as exc:
            raise RpcError(INVALID_PARAMS, f"Invalid params: _meta: {_describe(exc)}") from None

        token = _pop_member(meta, "progressToken", Id)
        if VERSION not in meta:
            if self.legacy is None:
                return None
            legacy = self.legacy
            return RequestProfile(
                legacy.encoder, legacy.methods, legacy.client, token, legacy.level, meta
            )

        requested = _pop_member(meta, VERSION, str)
        revision = by_name.get(requested or "")
        if revision is None or not revision.modern:
            quoted = requested and requested[:QUOTED_CHARS]
            data = {"supported": [MODERN.name], "requested": quoted}
            raise RpcError(UNSUPPORTED_VERSION, "Unsupported protocol version", data)
        if CAPABILITIES not in meta:
            data = {"supported": [MODERN.name], "missing": [CAPABILITIES]}
            raise RpcError(INVALID_PARAMS, f"Invalid params: _meta lacks {CAPABILITIES}", data)

        declared: dict[str, Any] = _pop_member(meta, CAPABILITIES, dict[str, Any])
        client = _pop_member(meta, CLIENT, _ClientInfo) or _ClientInfo()
        level = _pop_member(meta, LOG_LEVEL, Level)
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


class _StateSeal:
    """The seal of a session, made on first use, and the owner that its states are bound to."""

    def __init__(self, make_seal: Callable[[], Seal] | None, principal: bytes) -> None:
        self._make_seal = make_seal
        self.principal = principal

    def get(self) -> Seal:
        """Return the seal."""
        if self._make_seal is None:
            raise RuntimeError(
                "this session was made without a seal; this is a fault of concertino"
            )
        return self._make_seal()


class Session:
    """The server's end of one connection: pass it every frame; it answers through `send`.

    features: returns what the backend offers; called again when the backend reports a change.
    start: called with each request for the backend. Answer it exactly once, with respond() or
    fail(). If its first step does not finish it, call peer.add_running(). Call admit() after a
    response, or after output drained.
    clock: returns seconds; must not go backwards.
    on_subscriptions_changed: called when subscribed_uris has changed.
    seal: returns the Seal for the states of calls that ask their client; called on first use.
    principal: identifies the caller, as far as the connection knows it.
    schedule_flush: called when a notification was suppressed; call peer.on_drain() a moment later.

    dropped_logs: log messages that were not sent: too many, too long, or the client does not read.
    """

    def __init__(
        self,
        features: Callable[[], ServerFeatures],
        send: Send,
        start: Callable[[SessionRequest], None],
        limits: Limits,
        clock: Callable[[], float],
        on_subscriptions_changed: Callable[[], object] = lambda: None,
        *,
        seal: Callable[[], Seal] | None = None,
        principal: bytes = b"",
        schedule_flush: Callable[[], object] = lambda: None,
    ) -> None:
        self.state = State.FRESH
        self.peer = Peer(send, limits, clock, request_type=SessionRequest)
        self.dropped_logs = 0
        self._start = start
        self._limits = limits
        # A result of at most this many bytes fits into a message for sure.
        self._fitting_bytes = limits.max_message_bytes - ENVELOPE_BYTES
        self._profiles = _Profiles(features)
        self._clock = clock
        self._schedule_flush = schedule_flush
        self._seal = _StateSeal(seal, principal)
        # None until the first subscription.
        self._subscriptions: WantedUpdates | None = None
        self._on_subscriptions_changed = on_subscriptions_changed

    # Input

    def receive(self, frame: bytes) -> None:
        """Process one frame. Raises nothing that the bytes could cause."""
        try:
            # msgspec does not check the UTF-8 of members that it keeps raw.
            if not frame.isascii():
                str(frame, "utf-8")
            request = decode_request(frame)
        except (DecodeError, UnicodeDecodeError, RecursionError):
            return self._receive_other(frame)

        id = request.id
        peer = self.peer
        if id in peer.running or id in peer.waiting:
            return self._receive_other(frame)
        return self._open(SessionRequest(id, request.method, request.params, len(frame)))

    def _receive_other(self, frame: bytes) -> None:
        """Process a frame that is not a plain request."""
        event = self.peer.receive(frame)
        if event is None:
            return
        for message in event if isinstance(event, list) else [event]:
            if isinstance(message, SessionRequest):
                self._open(message)
            else:
                self._on_notification(message)

    def close(self) -> list[SessionRequest]:
        """Close the session after the connection was lost; nothing is started any more.

        Returns the requests that stay unanswered.
        """
        self._start = _start_nothing
        self._schedule_flush = _flush_nothing
        return self.peer.close()

    def admit(self) -> None:
        """Start queued requests, as many as the limits allow."""
        while (incoming := self.peer.pop_waiting()) is not None:
            self._start(incoming)

    def _open(self, incoming: SessionRequest) -> None:
        """Find a request's profile and start it, or answer it here."""
        params = incoming.params
        raw = params.pop("_meta", None)
        profiles = self._profiles
        if raw is None:
            profile = profiles.legacy
        elif profiles.last_meta is not None and raw == profiles.last_meta[0]:
            profile = profiles.last_meta[1]
        else:
            try:
                profile = profiles.read(raw)
            except RpcError as exc:
                return self.peer.fail(incoming, exc.code, exc.message, exc.data)
            if profile is not None and profile.encoder.revision.idless_errors:
                self.peer.invalid_input.unknown_id = None

        method = incoming.method
        if profile is not None and method in profile.methods:
            incoming.profile = profile
            if raw is not None and ("requestState" in params or "inputResponses" in params):
                return self._resume(incoming, profile)
            # The same steps as in _admit(), without a call: nearly every request takes this path.
            incoming.call = Call(method, params, profile.meta)
            if self.state is not State.READY and not profile.encoder.revision.modern:
                self.state = LIFECYCLE[self.state]["request"] or self.state
            if self.peer.admit(incoming):
                self._start(incoming)
            return None
        return self._answer_here(incoming, profile)

    def _admit(self, incoming: SessionRequest, call: Call, opened: OpenedState | None) -> None:
        """Start or queue a call. opened: the state to mark as used once the call is accepted."""
        incoming.call = call
        if self.state is not State.READY and not incoming.profile.encoder.revision.modern:
            self.state = LIFECYCLE[self.state]["request"] or self.state
        admitted = self.peer.admit(incoming)
        # A call that was rejected as busy may be repeated with the same state.
        if opened is not None and incoming.open:
            self._seal.get().mark_used(opened)
        if admitted:
            self._start(incoming)

    def _resume(self, incoming: SessionRequest, profile: RequestProfile) -> None:
        """Start a call that is repeated with the client's answers (2026-07-28).

        The two members mean nothing in older revisions, and are ignored there.
        """
        from concertino.protocol.dialogue import INPUT_METHODS, binding, resume_dialogue

        params = incoming.params
        method = incoming.method
        members = {
            name: params.pop(name) for name in ("requestState", "inputResponses") if name in params
        }
        if not profile.encoder.revision.modern or method not in INPUT_METHODS:
            return self._admit(incoming, Call(method, params, profile.meta), None)

        try:
            token: str | None = _pop_member(members, "requestState", str)
            answers: dict[str, Raw] = _pop_member(members, "inputResponses", dict[str, Raw]) or {}
            dialogue, opened = resume_dialogue(
                self._seal.get, token, answers, lambda: binding(method, params, *self._state_owner)
            )
        except RpcError as exc:
            return self.peer.fail(incoming, exc.code, exc.message, exc.data)
        incoming.dialogue = dialogue
        call = Call(method, params, profile.meta, dialogue.answers, dialogue.state)
        return self._admit(incoming, call, opened)

    @property
    def _state_owner(self) -> tuple[bytes, bytes]:
        """Return the principal and the server's name, which states are bound to.

        The name, because another server may have the same key and a tool of the same name.
        """
        return self._seal.principal, self._profiles.features.info.name.encode()

    def _answer_here(self, incoming: SessionRequest, profile: RequestProfile | None) -> None:
        """Answer a request that never reaches a backend, or that cannot be served."""
        method = incoming.method
        known = REQUESTS.get(method)
        modern = profile is not None and profile.encoder.revision.modern
        try:
            # Without a profile the revision is unknown, so any revision's method will do.
            if known is not None and (
                profile is None or (known.modern if modern else known.legacy)
            ):
                answer = self._find_handler(method, profile)
                if answer is not None:
                    return answer(incoming)
        except RpcError as exc:
            return self.peer.fail(incoming, exc.code, exc.message, exc.data)
        text = f"method not found: {method[:QUOTED_CHARS]}"
        return self.peer.fail(incoming, METHOD_NOT_FOUND, text)

    def _find_handler(
        self, method: str, profile: RequestProfile | None
    ) -> Callable[[SessionRequest], None] | None:
        """Return the method that answers a request of the session's own; None if there is none.

        Raises RpcError if the request needs a profile and has none.
        """
        if method == "initialize":
            return self._initialize
        if method == "ping":
            return self._ping
        if profile is None:
            missing = [VERSION, CAPABILITIES]
            text = (
                "neither initialize was seen nor has params._meta "
                f"the members {' and '.join(missing)}"
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

    def _on_notification(self, message: Message) -> None:
        """Process a notification. It is never answered; an unknown or malformed one is ignored."""
        if message.method == "notifications/cancelled":
            try:
                params = Decoder(_CancelParams).decode(encode(message.params))
            except DecodeError:
                return
            self.peer.cancel(params.request_id, params.reason)
        elif message.method == "notifications/initialized":
            self.state = LIFECYCLE[self.state]["initialized"] or self.state

    # Requests that the session answers

    def _initialize(self, incoming: SessionRequest) -> None:
        next_state = LIFECYCLE[self.state]["initialize"]
        if next_state is None or incoming.batch is not None:
            when = "in a batch" if next_state is not None else "a second time on this connection"
            raise RpcError(INVALID_REQUEST, f"Invalid Request: initialize {when}")
        try:
            params = Decoder(_InitializeParams).decode(encode(incoming.params))
        except ValidationError as exc:
            raise RpcError(INVALID_PARAMS, f"Invalid params: {_describe(exc)}") from None

        profiles = self._profiles
        revision = profiles.open_legacy(params)
        self.state = next_state
        declared = profiles.declare(revision)
        profiles.declared = frozenset(declared)
        self.peer.batches = revision.batches
        if revision.idless_errors:
            self.peer.invalid_input.unknown_id = None

        result: dict[str, Any] = {
            "protocolVersion": revision.name,
            "capabilities": declared,
            "serverInfo": implementation(profiles.features.info, revision),
        }
        if profiles.features.instructions is not None:
            result["instructions"] = profiles.features.instructions
        self.peer.respond(incoming, encode(result))

    def _ping(self, incoming: SessionRequest) -> None:
        self.peer.respond(incoming, b"{}")

    def _discover(self, profile: RequestProfile, incoming: SessionRequest) -> None:
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
        self.peer.respond(incoming, body)

    def _set_level(self, profile: RequestProfile, incoming: SessionRequest) -> None:
        level = _pop_member(incoming.params, "level", Level)
        if level is None:
            text = f"Invalid params: level: expected one of {', '.join(LEVELS)}"
            raise RpcError(INVALID_PARAMS, text)
        self._profiles.legacy = RequestProfile(
            profile.encoder, profile.methods, profile.client, level=LEVELS[level]
        )
        self.peer.respond(incoming, b"{}")

    def _listen(self, profile: RequestProfile, incoming: SessionRequest) -> None:
        incoming.profile = profile
        self._wanted_updates().listen(
            incoming, self._profiles.features, profile.encoder.encode_closing
        )

    def _subscribe(self, incoming: SessionRequest) -> None:
        """Answer `resources/subscribe` and `resources/unsubscribe`.

        Whether the resource exists is not checked: it may appear and disappear.
        """
        uri = _pop_member(incoming.params, "uri", str)
        if uri is None:
            raise RpcError(INVALID_PARAMS, "Invalid params: uri: required, but missing")
        subscriptions = self._wanted_updates()
        if incoming.method == "resources/unsubscribe":
            subscriptions.unsubscribe(uri)
        else:
            subscriptions.subscribe(uri)
        self.state = LIFECYCLE[self.state]["request"] or self.state
        self.peer.respond(incoming, b"{}")

    def _wanted_updates(self) -> WantedUpdates:
        if self._subscriptions is None:
            from concertino.protocol.wanted_updates import WantedUpdates

            self._subscriptions = WantedUpdates(
                self.peer, self._limits, self._on_subscriptions_changed
            )
        return self._subscriptions

    @property
    def subscribed_uris(self) -> frozenset[str]:
        """Return the URIs of the resources that this client subscribes to."""
        return frozenset() if self._subscriptions is None else self._subscriptions.subscribed_uris

    @property
    def open_subscriptions(self) -> int:
        """Return how many subscriptions/listen requests are open. They count as running."""
        return 0 if self._subscriptions is None else self._subscriptions.open_count

    def end_subscriptions(self) -> None:
        """End all open subscriptions/listen requests with a response."""
        if self._subscriptions is not None:
            self._subscriptions.close_all()

    # Responses of the backend

    def respond(
        self,
        incoming: SessionRequest,
        result: Struct | Raw,
        passes: Callable[[str], bool] | None = None,
    ) -> bool:
        """Answer a call with a canonical result.

        A result that cannot be encoded, or is too large, becomes a response that says so.
        passes: see ResultEncoder.encode(). Returns False, without an answer, if the result may have
        to be changed first.
        Raises InputRequiredSignal if the result is an InputRequired.
        """
        if not incoming.open:
            return True
        try:
            body = incoming.profile.encoder.encode(result, incoming.method, passes)
        except (TypeError, ValueError, DecodeError, RecursionError, OverflowError) as exc:
            self._respond_unencodable(incoming, f"the result cannot be written as JSON: {exc}")
            return True

        if len(body) > self._fitting_bytes:
            limit = self._limits.max_message_bytes
            size = len(RESULT % (encode_id(incoming.id), body))
            if size > limit:
                text = f"the result makes a message of {size} bytes; the limit is {limit} bytes"
                self._respond_unencodable(incoming, text)
                return True
        if not body:
            return False
        self.peer.respond(incoming, body)
        return True

    def _respond_unencodable(self, incoming: SessionRequest, text: str) -> None:
        """Answer a call whose result cannot be sent: a tool's with isError, else with an error."""
        if incoming.method != "tools/call":
            return self.peer.fail(incoming, INTERNAL_ERROR, f"Internal error: {text}")
        result = CallToolResult([TextContent(text)], is_error=True)
        body = incoming.profile.encoder.encode(result, incoming.method)
        return self.peer.respond(incoming, body)

    def fail(self, incoming: SessionRequest, code: int, message: str, data: object = None) -> None:
        """Answer a call with a canonical error. Raises if `data` cannot be encoded."""
        code = incoming.profile.encoder.error_code(code, data, incoming.method)
        self.peer.fail(incoming, code, message, data)

    # Notifications about a call

    def progress(
        self, incoming: SessionRequest, done: float, total: float | None, message: str | None
    ) -> None:
        """Send a progress notification, if the client asked for progress and `done` has grown.

        done, total: finite numbers. Nothing is sent for a call that was answered.
        While output is above the high-water mark, or the rate is too high, only the newest
        notification is kept. It leaves when output drains, a moment later, or before the response.
        A message that makes the frame too long is left out.
        """
        profile = incoming.profile
        if profile.token is None or not incoming.open or done <= incoming.last_progress:
            return
        incoming.last_progress = done

        params: dict[str, Any] = {"progressToken": profile.token, "progress": done}
        if total is not None:
            params["total"] = total
        if message is not None and profile.encoder.revision.progress_text:
            params["message"] = message
        frame = encode_notification("notifications/progress", encode(params))
        if len(frame) > self._limits.max_message_bytes:
            params.pop("message", None)
            frame = encode_notification("notifications/progress", encode(params))
        self._send_throttled(incoming, "progress", frame)

    def log(self, incoming: SessionRequest, level: Level, data: object, logger: str | None) -> None:
        """Send a log message, if the server offers logging and the client wants this level.

        Nothing is sent for a call that was answered. Messages are held back like progress
        notifications: the newest one is kept, the others are counted in dropped_logs.
        """
        profile = incoming.profile
        # server/utilities/logging: only a server that declares logging may send messages.
        if not self._profiles.features.logging:
            return

        # logging/setLevel may have changed a legacy conversation's level since the call came in.
        legacy = self._profiles.legacy
        # pyright cannot narrow `legacy` in a conditional expression.
        if legacy is None or profile.encoder.revision.modern:  # noqa: SIM108
            least = profile.level
        else:
            least = legacy.level
        if least is None or not incoming.open or LEVELS[level] < least:
            return

        params: dict[str, Any] = {"level": level, "data": data}
        if logger is not None:
            params["logger"] = logger
        body = encode(params)
        if len(body) + ENVELOPE_BYTES > self._limits.max_message_bytes:
            self.dropped_logs += 1
            return
        frame = encode_notification("notifications/message", body)
        if not self._send_throttled(incoming, "log", frame):
            self.dropped_logs += 1

    def _send_throttled(self, incoming: SessionRequest, kind: str, frame: bytes) -> bool:
        """Send a notification, or keep it as the newest of its kind.

        Returns False if a kept notification was replaced, and so is lost.
        """
        throttle = incoming.throttle
        if throttle is None:
            limits = self._limits
            throttle = NotificationThrottle(
                TokenBucket(limits.progress_per_s, self._clock),
                TokenBucket(limits.logs_per_s, self._clock),
            )
            incoming.throttle = throttle

        bucket = throttle.progress if kind == "progress" else throttle.log
        lost = throttle.suppressed.pop(kind, None) is not None
        if self.peer.buffered_bytes < self._limits.high_water_bytes and bucket.take():
            self.peer.send_frame(frame, incoming.id)
        else:
            throttle.suppressed[kind] = frame
            self._schedule_flush()
        return not lost

    # Requests to the client

    def dialogue(self, incoming: SessionRequest) -> Dialogue:
        """Return the dialogue of a call. Raises RpcError if its method may not ask the client."""
        from concertino.protocol.dialogue import INPUT_METHODS, Dialogue

        if incoming.dialogue is None:
            incoming.dialogue = Dialogue()
        if incoming.method not in INPUT_METHODS:
            text = f"Internal error: {incoming.method} may not ask the client anything"
            raise RpcError(INTERNAL_ERROR, text)
        return incoming.dialogue

    def send_client_request(
        self, request: InputRequest, done: Callable[[Raw | Exception], object]
    ) -> OutgoingRequest:
        """Send a request to the client (before 2026-07-28).

        done: see Peer.request(). Raises RpcError if too many wait for a response.
        """
        limit = self._limits.max_questions
        if len(self.peer.outgoing) >= limit:
            text = f"busy: {limit} questions wait for the client's answers"
            raise RpcError(BUSY, text, {"maxQuestions": limit})
        return self.peer.request(request.method, bytes(request.params), done)

    def reply_suspended(self, incoming: SessionRequest) -> None:
        """Answer a call with the client requests of its dialogue (2026-07-28).

        Raises RpcError if that is impossible.
        """
        self._send_input_required(incoming, self.dialogue(incoming), incoming.call.state)

    def reply_input_required(self, incoming: SessionRequest, result: InputRequired) -> None:
        """Answer a call with the client requests of a backend's result (2026-07-28).

        Raises RpcError if that is impossible, ValueError for a malformed request.
        """
        dialogue = self.load_client_requests(incoming, result)
        self._send_input_required(incoming, dialogue, result.state)

    def load_client_requests(self, incoming: SessionRequest, result: InputRequired) -> Dialogue:
        """Return the call's dialogue with the client requests of a backend's result, and no others.

        Raises RpcError if the client cannot answer one, ValueError for a malformed request.
        """
        from concertino.protocol.dialogue import downgrade_request, to_wire_request

        dialogue = self.dialogue(incoming)
        profile = incoming.profile
        if not result.questions and not result.state:
            raise ValueError("InputRequired: expected questions, or a state, or both")
        dialogue.unanswered = {
            key: downgrade_request(
                to_wire_request(question),
                profile.encoder.revision,
                profile.client,
                partial(dialogue.elicitation_id, key),
            )
            for key, question in result.questions.items()
        }
        return dialogue

    def _send_input_required(
        self, incoming: SessionRequest, dialogue: Dialogue, state: bytes
    ) -> None:
        from concertino.protocol.dialogue import binding

        call = incoming.call
        bound = binding(call.method, call.params, *self._state_owner)
        seal = self._seal.get()
        try:
            token = dialogue.seal_state(seal, bound, state)
        except ValueError as exc:
            raise RpcError(INTERNAL_ERROR, f"Internal error: {exc}") from None
        result: dict[str, Any] = {"resultType": "input_required", "requestState": token}
        if dialogue.unanswered:
            result["inputRequests"] = dialogue.unanswered
        self.respond(incoming, Raw(encode(result)))

    # Changes in the backend

    def report_change(self, what: str) -> None:
        """Notify the client that a list has changed. what: tools, prompts or resources.

        A legacy client is notified once it is in operation, if initialize declared the feature; a
        2026-07-28 client if it subscribed. A client that does not read is notified once.
        """
        self.reload_features()
        if self._subscriptions is not None:
            self._subscriptions.report_change(what)
        if self.state is State.READY and what in self._profiles.declared:
            self.peer.send_coalesced(
                encode_notification(f"notifications/{what}/list_changed", b"{}")
            )

    def report_update(self, uri: str) -> None:
        """Notify the client of a changed resource, if it subscribed to the resource."""
        if self._subscriptions is not None:
            self._subscriptions.report_update(uri)

    def reload_features(self) -> None:
        """Ask the backend again what it offers."""
        self._profiles.reload_features()


def _start_nothing(incoming: SessionRequest) -> None:
    """Take the place of `start` in a closed session."""


def _flush_nothing() -> None:
    """Take the place of `schedule_flush` in a closed session."""


def _pop_member(members: dict[str, Raw], name: str, type: Any) -> Any:
    """Remove one member and return it decoded as `type`; None if it is missing.

    Raises RpcError if it does not fit the type.
    """
    raw = members.pop(name, None)
    if raw is None:
        return None
    try:
        return Decoder(type).decode(raw)
    except DecodeError as exc:
        raise RpcError(INVALID_PARAMS, f"Invalid params: {name}: {_describe(exc)}") from None


def _describe(exc: DecodeError) -> str:
    """Return msgspec's text with the path in front: `_meta.x: expected str, got int`."""
    text, _, path = describe_decode_error(exc).partition(" - at $.")
    text = text[0].lower() + text[1 : 3 * QUOTED_CHARS]
    return f"{path}: {text}" if path else text
