"""One MCP conversation, seen from the server: its lifecycle, the profile of each request, and what the session answers itself.

A request with the 2026-07-28 `_meta` is served by the rules of that revision, on its own, whatever came before it. Any other
belongs to the conversation that `initialize` opened. A malformed opener changes nothing. Calls for the backend leave through
`start`, as canonical Calls; results come back through respond() and are lowered to the caller's revision.
Spec: 2025-11-25 basic/lifecycle, server/resources "Subscriptions"; 2026-07-28 basic/versioning, basic/index, server/discover,
basic/patterns/cancellation.
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
from concertino.jsonrpc.limits import Limits
from concertino.jsonrpc.messages import Id, Message, decode_request, encode_id, encode_notification
from concertino.jsonrpc.peer import (
    RESULT,
    IncomingRequest,
    NotificationThrottle,
    OutgoingRequest,
    Peer,
    Send,
)
from concertino.jsonrpc.token_bucket import TokenBucket
from concertino.protocol.call import Call, ClientFacts, InputRequired, ServerFeatures
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
from concertino.types.results import LEVELS, CallToolResult, Level, TextContent

if TYPE_CHECKING:
    from concertino.protocol.dialogue import Dialogue
    from concertino.protocol.seal import OpenedState, Seal
    from concertino.protocol.wanted_updates import WantedUpdates
    from concertino.types.client_requests import InputRequest

__all__ = ["LIFECYCLE", "RequestProfile", "Session", "State"]


class State(Enum):
    """How far the handshake of the older revisions is. Requests of 2026-07-28 neither need it nor change it."""

    FRESH = "no initialize yet"
    OPENED = "initialize answered"
    READY = "in operation"


# What came -> the next state; None: refused. 2025-11-25 basic/lifecycle. `initialized` is a courtesy that some clients forget: a
# request of theirs after initialize says the same.
LIFECYCLE: Mapping[State, Mapping[str, State | None]] = {
    State.FRESH: {"initialize": State.OPENED, "initialized": State.FRESH, "request": None},
    State.OPENED: {"initialize": None, "initialized": State.READY, "request": State.READY},
    State.READY: {"initialize": None, "initialized": State.READY, "request": State.READY},
}


class RequestProfile(Struct, frozen=True):
    """By which rules a request is served, and for whom.

    token: where its progress goes. level: rank of the least severe log message wanted, None for no messages at all.
    meta: the members of `_meta` that are not the protocol's.
    """

    encoder: ResultEncoder
    served: frozenset[str]
    client: ClientFacts
    token: Id | None = None
    level: int | None = None
    meta: Mapping[str, Raw] = {}


VERSION = "io.modelcontextprotocol/protocolVersion"
CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
CLIENT = "io.modelcontextprotocol/clientInfo"
LOG_LEVEL = "io.modelcontextprotocol/logLevel"
OWN = frozenset(("logging", "subscriptions"))  # features whose requests the session answers itself
SHOWN = 128  # characters of what came that are given back in an error
ENVELOPE_BYTES = 1024  # more than an answer has around its result, but for an id of that length
_object = Decoder(dict[str, Raw]).decode


class _Client(Struct, frozen=True):
    name: str = ""
    version: str = ""
    title: str | None = None


class _InitializeParams(Struct, rename="camel"):
    protocol_version: str
    capabilities: dict[str, Any] = {}
    client_info: _Client = _Client()


class _CancelParams(Struct, rename="camel"):
    request_id: Id
    reason: str = ""


class Session:
    """Give it every frame; it answers through `send`, and hands calls for the backend to `start`.

    offer: asked again whenever the backend says that it changed. clock: seconds, steady. watch: told when `watched` changed.
    seal: what closes and opens the states of calls that ask their client; made when it is first needed. principal: who the caller
    is, as far as the connection tells. later: told when something was held back that peer.on_drain() sends, a moment later.
    Answer every started call exactly once, with respond() or fail(); tell peer.add_running() of those that outlive their first step;
    call admit() when something was answered or output drained.
    """

    def __init__(
        self,
        features: Callable[[], ServerFeatures],
        send: Send,
        start: Callable[[IncomingRequest], None],
        limits: Limits,
        clock: Callable[[], float],
        on_subscriptions_changed: Callable[[], object] = lambda: None,
        *,
        seal: Callable[[], Seal] | None = None,
        principal: bytes = b"",
        schedule_flush: Callable[[], object] = lambda: None,
    ) -> None:
        self.state = State.FRESH
        self.peer = Peer(send, limits, clock)
        self._get_features = features
        self._start = start
        self._limits = limits
        self._surely_fits = limits.max_message_bytes - ENVELOPE_BYTES  # bytes of a result
        self._legacy_profile: RequestProfile | None = None  # set by initialize
        self._last_meta: tuple[Raw, RequestProfile] | None = (
            None  # the `_meta` last seen, and what it says: clients repeat it
        )
        self._modern_encoder: ResultEncoder | None = None  # for 2026-07-28
        self._clock = clock
        self._on_subscriptions_changed = on_subscriptions_changed
        self._make_seal = seal
        self._principal = principal
        self._schedule_flush = schedule_flush
        self._declared: frozenset[str] = frozenset()  # what initialize said that there is
        self._subscriptions: WantedUpdates | None = None  # once there are any
        self.dropped_logs = 0  # log messages not sent: too many, or the client does not read
        self.reload_features()

    # What comes in

    def receive(self, frame: bytes) -> None:
        """Take one frame. Raises nothing that the bytes could cause."""
        try:
            if not frame.isascii():  # msgspec does not look at the UTF-8 of members it keeps raw
                str(frame, "utf-8")
            request = decode_request(frame)
        except (DecodeError, UnicodeDecodeError, RecursionError):
            return self._receive_other(frame)
        id = request.id
        peer = self.peer
        if id in peer.running or id in peer.waiting:
            return self._receive_other(frame)
        return self._open(IncomingRequest(id, request.method, request.params, len(frame)))

    def _receive_other(self, frame: bytes) -> None:
        """A frame that is no request, or not a plain one."""
        event = self.peer.receive(frame)
        if type(event) is IncomingRequest:
            self._open(event)
        elif event is None:
            return
        elif type(event) is Message:
            self._on_notification(event)
        else:
            for each in event:  # pyright: ignore[reportGeneralTypeIssues, reportUnknownVariableType]  # a batch: the list is left
                if type(each) is IncomingRequest:  # pyright: ignore[reportUnknownArgumentType]
                    self._open(each)
                else:
                    self._on_notification(each)  # pyright: ignore[reportUnknownArgumentType]

    def close(self) -> list[IncomingRequest]:
        """The connection is gone: peer.close(), and nothing is started any more. Returns the calls that will not be answered."""
        self._start = _start_nothing
        self._schedule_flush = _flush_nothing
        return self.peer.close()

    def admit(self) -> None:
        """Start waiting calls, as many as the limits allow."""
        while (incoming := self.peer.pop_waiting()) is not None:
            self._start(incoming)

    def _open(self, incoming: IncomingRequest) -> None:
        """Find a request's profile, answer what is the session's to answer, hand the rest on."""
        params = incoming.params
        raw = params.pop("_meta", None)
        if raw is None:
            profile = self._legacy_profile
        elif self._last_meta is not None and raw == self._last_meta[0]:
            profile = self._last_meta[1]
        else:
            try:
                profile = self._read_profile(raw)
            except RpcError as refused:
                return self.peer.fail(incoming, refused.code, refused.message, refused.data)
        method = incoming.method
        if profile is not None and method in profile.served:
            incoming.profile = profile
            if raw is not None and ("requestState" in params or "inputResponses" in params):
                return self._resume(incoming, profile)
            incoming.call = Call(method, params, profile.meta)
            if self.state is not State.READY and not profile.encoder.revision.modern:
                self.state = LIFECYCLE[self.state]["request"] or self.state
            if self.peer.admit(incoming):
                self._start(incoming)
            return None
        return self._handle_own(incoming, profile)

    def _admit(
        self,
        incoming: IncomingRequest,
        profile: RequestProfile,
        call: Call,
        sealed: OpenedState | None,
    ) -> None:
        """As the end of _open(). sealed: what is spent, once the call is accepted."""
        incoming.call = call
        if self.state is not State.READY and not profile.encoder.revision.modern:
            self.state = LIFECYCLE[self.state]["request"] or self.state
        admitted = self.peer.admit(incoming)
        if sealed is not None and incoming.open:
            self._get_seal().mark_used(sealed)
        if admitted:
            self._start(incoming)

    def _resume(self, incoming: IncomingRequest, profile: RequestProfile) -> None:
        """A call that is made again, with answers to its questions (2026-07-28). To older ones these members mean nothing."""
        from concertino.protocol.dialogue import ASKING, binding, resume_dialogue

        params = incoming.params
        method = incoming.method
        given = {
            name: params.pop(name) for name in ("requestState", "inputResponses") if name in params
        }
        if not profile.encoder.revision.modern or method not in ASKING:
            return self._admit(incoming, profile, Call(method, params, profile.meta), None)
        try:
            token: str | None = _member(given, "requestState", str)
            answers: dict[str, Raw] = _member(given, "inputResponses", dict[str, Raw]) or {}
            dialogue, sealed = resume_dialogue(
                self._get_seal, token, answers, lambda: binding(method, params, *self._state_owner)
            )
        except RpcError as refused:
            return self.peer.fail(incoming, refused.code, refused.message, refused.data)
        incoming.dialogue = dialogue
        return self._admit(
            incoming,
            profile,
            Call(method, params, profile.meta, dialogue.answers, dialogue.state),
            sealed,
        )

    @property
    def _state_owner(self) -> tuple[bytes, bytes]:
        """Whose conversation a state belongs to. The server's name: others may have the same key, and a tool of the same name."""
        return self._principal, self._features.info.name.encode()

    def _get_seal(self) -> Seal:
        if self._make_seal is None:
            raise RuntimeError(
                "this session was made without a seal; this is a fault of concertino"
            )
        return self._make_seal()

    def _handle_own(self, incoming: IncomingRequest, profile: RequestProfile | None) -> None:
        """The requests that never reach a backend, and those that cannot be served."""
        method = incoming.method
        rule = REQUESTS.get(method)
        modern = profile is not None and profile.encoder.revision.modern
        if rule is None or (profile is not None and not (rule.modern if modern else rule.legacy)):
            return self.peer.fail(incoming, METHOD_NOT_FOUND, f"method not found: {method[:SHOWN]}")
        try:
            if method == "initialize":
                return self._initialize(incoming)
            if method == "ping":
                return self.peer.respond(incoming, b"{}")
            if profile is None:
                missing = [VERSION, CAPABILITIES]
                text = f"neither initialize was seen nor has params._meta the members {' and '.join(missing)}"
                raise RpcError(
                    INVALID_PARAMS,
                    text,
                    {"supported": [each.name for each in REVISIONS], "missing": missing},
                )
            if method == "server/discover":
                return self._discover(incoming, profile)
            if method == "subscriptions/listen":
                incoming.profile = profile
                return self._wanted_updates().listen(incoming, self._features)
            if method == "logging/setLevel" and self._features.logging:
                return self._set_level(incoming, profile)
            if rule.feature == "subscriptions" and self._can_subscribe:
                return self._subscribe(incoming)
        except RpcError as refused:
            return self.peer.fail(incoming, refused.code, refused.message, refused.data)
        return self.peer.fail(incoming, METHOD_NOT_FOUND, f"method not found: {method[:SHOWN]}")

    def _read_profile(self, raw: Raw) -> RequestProfile | None:
        """What a request's `_meta` says."""
        try:
            meta = _object(raw)
        except ValidationError as why:
            raise RpcError(INVALID_PARAMS, f"Invalid params: _meta: {_describe(why)}") from None
        token = _member(meta, "progressToken", Id)
        if VERSION not in meta:
            if self._legacy_profile is None:
                return None
            legacy = self._legacy_profile
            return RequestProfile(
                legacy.encoder, legacy.served, legacy.client, token, legacy.level, meta
            )
        requested = _member(meta, VERSION, str)
        revision = by_name.get(requested or "")
        if revision is None or not revision.modern:
            data = {"supported": [MODERN.name], "requested": requested and requested[:SHOWN]}
            raise RpcError(UNSUPPORTED_VERSION, "Unsupported protocol version", data)
        if CAPABILITIES not in meta:
            data = {"supported": [MODERN.name], "missing": [CAPABILITIES]}
            raise RpcError(INVALID_PARAMS, f"Invalid params: _meta lacks {CAPABILITIES}", data)
        offered: dict[str, Any] = _member(meta, CAPABILITIES, dict[str, Any])
        client = _member(meta, CLIENT, _Client) or _Client()
        level = _member(meta, LOG_LEVEL, Level)
        self.peer.unknown_id = None
        facts = ClientFacts(client.name, client.version, revision.name, offered, client.title)
        rank = None if level is None else LEVELS[level]
        if self._modern_encoder is None:
            self._modern_encoder = ResultEncoder(revision, self._features.info)
        profile = RequestProfile(
            self._modern_encoder, self._backend_methods[True], facts, token, rank, meta
        )
        if token is None:
            self._last_meta = (
                raw.copy(),
                profile,
            )  # a copy: the original would keep its whole frame alive
        return profile

    def _on_notification(self, message: Message) -> None:
        """A notification. Nothing is ever answered; what is unknown or malformed is ignored."""
        if message.method == "notifications/cancelled":
            try:
                cancelled = Decoder(_CancelParams).decode(encode(message.params))
            except DecodeError:
                return
            self.peer.cancel(cancelled.request_id, cancelled.reason)
        elif message.method == "notifications/initialized":
            self.state = LIFECYCLE[self.state]["initialized"] or self.state

    # What the session answers itself

    def _initialize(self, incoming: IncomingRequest) -> None:
        following = LIFECYCLE[self.state]["initialize"]
        if following is None or incoming.batch is not None:
            why = "in a batch" if following is not None else "a second time on this connection"
            raise RpcError(INVALID_REQUEST, f"Invalid Request: initialize {why}")
        try:
            asked = Decoder(_InitializeParams).decode(encode(incoming.params))
        except ValidationError as why:
            raise RpcError(INVALID_PARAMS, f"Invalid params: {_describe(why)}") from None
        revision = negotiate(asked.protocol_version)
        client = asked.client_info
        facts = ClientFacts(
            client.name, client.version, revision.name, asked.capabilities, client.title
        )
        encoder = ResultEncoder(revision, self._features.info)
        self._legacy_profile = RequestProfile(
            encoder, self._backend_methods[False], facts, level=LEVELS["info"]
        )
        self.state = following
        declared = self._capabilities(revision)
        self._declared = frozenset(declared)
        self.peer.batches = revision.batches
        if revision.idless_errors:
            self.peer.unknown_id = None
        result: dict[str, Any] = {
            "protocolVersion": revision.name,
            "capabilities": declared,
            "serverInfo": implementation(self._features.info, revision),
        }
        if self._features.instructions is not None:
            result["instructions"] = self._features.instructions
        self.peer.respond(incoming, encode(result))

    def _discover(self, incoming: IncomingRequest, profile: RequestProfile) -> None:
        revision = profile.encoder.revision
        result: dict[str, Any] = {
            "supportedVersions": [revision.name],
            "capabilities": self._capabilities(revision),
        }
        result |= {"ttlMs": self._features.ttl_ms, "cacheScope": self._features.cache_scope}
        if self._features.instructions is not None:
            result["instructions"] = self._features.instructions
        self.peer.respond(incoming, profile.encoder.encode(Raw(encode(result)), incoming.method))

    def _set_level(self, incoming: IncomingRequest, profile: RequestProfile) -> None:
        level = _member(incoming.params, "level", Level)
        if level is None:
            raise RpcError(
                INVALID_PARAMS, f"Invalid params: level: expected one of {', '.join(LEVELS)}"
            )
        self._legacy_profile = RequestProfile(
            profile.encoder, profile.served, profile.client, level=LEVELS[level]
        )
        self.peer.respond(incoming, b"{}")

    def _subscribe(self, incoming: IncomingRequest) -> None:
        """`resources/subscribe` and `unsubscribe`. Whether there is such a resource is not asked: it may come, and go."""
        uri = _member(incoming.params, "uri", str)
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
        """The URIs whose changes this client wants to hear of."""
        return frozenset() if self._subscriptions is None else self._subscriptions.subscribed_uris

    @property
    def open_subscriptions(self) -> int:
        """How many subscriptions are open: requests that are under way, and no calls."""
        return 0 if self._subscriptions is None else self._subscriptions.open_count

    def end_subscriptions(self) -> None:
        """Close those that are open, in order: the client is told."""
        if self._subscriptions is not None:
            self._subscriptions.close_all()

    @property
    def _can_subscribe(self) -> bool:
        return self._features.resources and self._features.subscriptions

    def _capabilities(self, revision: Revision) -> dict[str, Any]:
        offer = self._features
        listed: dict[str, Any] = {"listChanged": True}
        updated: dict[str, Any] = {"subscribe": True} if self._can_subscribe else {}
        features: dict[str, Any] = {
            name: value
            for name, value in (
                ("logging", {}),
                ("completions", {}),
                ("prompts", listed),
                ("resources", {**updated, **listed}),
                ("tools", listed),
            )
            if getattr(offer, name)
        }
        for name, settings in (
            ("experimental", offer.experimental),
            ("extensions", offer.extensions),
        ):
            if settings:
                features[name] = settings
        return capabilities(features, revision)

    # What the backend says

    def respond(
        self,
        incoming: IncomingRequest,
        result: Struct | Raw,
        passes: Callable[[str], bool] | None = None,
    ) -> bool:
        """Answer a call with a canonical result. One that cannot be encoded, or is too large, becomes an answer that says so.

        passes: see ResultEncoder.result(). Returns False for what may have to be changed first: it is not answered.
        """
        if not incoming.open:
            return True
        try:
            body = incoming.profile.encoder.encode(result, incoming.method, passes)
        except (TypeError, ValueError, DecodeError, RecursionError, OverflowError) as why:
            self._respond_unencodable(incoming, f"the result cannot be written as JSON: {why}")
            return True
        if len(body) > self._surely_fits:
            limit = self._limits.max_message_bytes
            size = len(RESULT % (encode_id(incoming.id), body))
            if size > limit:
                self._respond_unencodable(
                    incoming,
                    f"the result makes a message of {size} bytes; the limit is {limit} bytes",
                )
                return True
        if not body:
            return False
        self.peer.respond(incoming, body)
        return True

    def _respond_unencodable(self, incoming: IncomingRequest, text: str) -> None:
        if incoming.method != "tools/call":
            return self.peer.fail(incoming, INTERNAL_ERROR, f"Internal error: {text}")
        result = CallToolResult([TextContent(text)], is_error=True)
        return self.peer.respond(incoming, incoming.profile.encoder.encode(result, incoming.method))

    def progress(
        self, incoming: IncomingRequest, done: float, total: float | None, message: str | None
    ) -> None:
        """Tell the caller how far its call is, if it asked, is not answered, and done is more than before. Both are finite.

        While output is held above the high-water mark, or when there were too many of late, only the newest is kept; it leaves when
        output drains, a moment later, or before the answer.
        A text that makes it longer than a message may be is left out.
        """
        profile: RequestProfile = incoming.profile
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

    def log(
        self, incoming: IncomingRequest, level: Level, data: object, logger: str | None
    ) -> None:
        """Send the caller a log message, if logging is offered, it asked for this level, and its call is not answered.

        As progress(): of those that are too many, or that nobody reads, the newest is kept, and the others are counted.
        """
        profile: RequestProfile = incoming.profile
        if not self._features.logging:  # server/utilities/logging: who sends messages declares it
            return
        # A handshake's level may have been set since this call came in.
        wanted = (
            profile.level
            if profile.encoder.revision.modern or self._legacy_profile is None
            else self._legacy_profile.level
        )
        if wanted is None or not incoming.open or LEVELS[level] < wanted:
            return
        params: dict[str, Any] = {"level": level, "data": data}
        if logger is not None:
            params["logger"] = logger
        body = encode(params)
        if len(body) + ENVELOPE_BYTES > self._limits.max_message_bytes:
            self.dropped_logs += 1
            return
        if not self._send_throttled(
            incoming, "log", encode_notification("notifications/message", body)
        ):
            self.dropped_logs += 1

    def _send_throttled(self, incoming: IncomingRequest, what: str, frame: bytes) -> bool:
        """Send a frame of a call that says more than the one before it, or keep it. False if another was lost for it."""
        throttle = incoming.throttle
        if throttle is None:
            limits = self._limits
            throttle = NotificationThrottle(
                TokenBucket(limits.progress_per_s, self._clock),
                TokenBucket(limits.logs_per_s, self._clock),
            )
            incoming.throttle = throttle
        bucket = throttle.progress if what == "progress" else throttle.log
        lost = throttle.suppressed.pop(what, None) is not None
        if self.peer.buffered_bytes < self._limits.high_water_bytes and bucket.take():
            self.peer.send_frame(frame, incoming.id)
        else:
            throttle.suppressed[what] = frame
            self._schedule_flush()
        return not lost

    def fail(self, incoming: IncomingRequest, code: int, message: str, data: object = None) -> None:
        """Answer a call with a canonical error. Raises what makes one impossible to write."""
        self.peer.fail(
            incoming,
            incoming.profile.encoder.error_code(code, data, incoming.method),
            message,
            data,
        )

    # Questions to the client

    def dialogue(self, incoming: IncomingRequest) -> Dialogue:
        """What this call asks its client. Raises RpcError if its method may not ask."""
        from concertino.protocol.dialogue import ASKING, Dialogue

        if incoming.dialogue is None:
            incoming.dialogue = Dialogue()
        if incoming.method not in ASKING:
            raise RpcError(
                INTERNAL_ERROR, f"Internal error: {incoming.method} may not ask the client anything"
            )
        return incoming.dialogue

    def send_client_request(
        self, question: InputRequest, done: Callable[[Raw | Exception], object]
    ) -> OutgoingRequest:
        """Ask the client now (before 2026-07-28). done: see Peer.request. Raises RpcError when too many wait for answers."""
        limit = self._limits.max_questions
        if len(self.peer.outgoing) >= limit:
            raise RpcError(
                BUSY,
                f"busy: {limit} questions wait for the client's answers",
                {"maxQuestions": limit},
            )
        return self.peer.request(question.method, bytes(question.params), done)

    def reply_suspended(self, incoming: IncomingRequest) -> None:
        """Answer a call with what its dialogue has asked (2026-07-28). Raises RpcError when it cannot be."""
        self._send_input_required(incoming, self.dialogue(incoming), incoming.call.state)

    def reply_input_required(self, incoming: IncomingRequest, wanted: InputRequired) -> None:
        """Answer a call with the questions of its backend (2026-07-28). Raises RpcError, or ValueError for what is no question."""
        self._send_input_required(
            incoming, self.load_client_requests(incoming, wanted), wanted.state
        )

    def load_client_requests(self, incoming: IncomingRequest, wanted: InputRequired) -> Dialogue:
        """The dialogue, with the questions of the backend and no others. Raises RpcError, or ValueError for what is no question."""
        from concertino.protocol.dialogue import downgrade_request, to_wire_request

        dialogue = self.dialogue(incoming)
        profile: RequestProfile = incoming.profile
        if not wanted.questions and not wanted.state:
            raise ValueError("InputRequired: expected questions, or a state, or both")
        dialogue.unanswered = {
            key: downgrade_request(
                to_wire_request(question),
                profile.encoder.revision,
                profile.client,
                partial(dialogue.elicitation_id, key),
            )
            for key, question in wanted.questions.items()
        }
        return dialogue

    def _send_input_required(
        self, incoming: IncomingRequest, dialogue: Dialogue, state: bytes
    ) -> None:
        from concertino.protocol.dialogue import binding

        call: Call = incoming.call
        bound = binding(call.method, call.params, *self._state_owner)
        seal = self._get_seal()
        try:
            token = dialogue.seal_state(seal, bound, state)
        except ValueError as why:
            raise RpcError(INTERNAL_ERROR, f"Internal error: {why}") from None
        result: dict[str, Any] = {"resultType": "input_required", "requestState": token}
        if dialogue.unanswered:
            result["inputRequests"] = dialogue.unanswered
        self.respond(incoming, Raw(encode(result)))

    # What changes

    def report_change(self, what: str) -> None:
        """A list is no longer what it was. Said to clients in operation that were told of it when they connected.

        2026-07-28 clients ask by subscribing. A client that does not read is told once, when it does.
        """
        self.reload_features()
        if self._subscriptions is not None:
            self._subscriptions.report_change(what)
        if self.state is State.READY and what in self._declared:
            self.peer.send_coalesced(
                encode_notification(f"notifications/{what}/list_changed", b"{}")
            )

    def report_update(self, uri: str) -> None:
        """The content of a resource is no longer what it was. Said to those who subscribed to it, as changed() is."""
        if self._subscriptions is not None:
            self._subscriptions.report_update(uri)

    def reload_features(self) -> None:
        """Ask the backend again what it offers."""
        self._features = self._get_features()
        methods = [
            (name, rule)
            for name, rule in REQUESTS.items()
            if rule.feature and rule.feature not in OWN
        ]
        offered = [(name, rule) for name, rule in methods if getattr(self._features, rule.feature)]
        self._backend_methods = {
            False: frozenset(name for name, rule in offered if rule.legacy),
            True: frozenset(name for name, rule in offered if rule.modern),
        }
        self._last_meta = self._modern_encoder = None
        if self._legacy_profile is not None:
            self._legacy_profile = RequestProfile(
                self._legacy_profile.encoder,
                self._backend_methods[False],
                self._legacy_profile.client,
                level=self._legacy_profile.level,
            )


def _start_nothing(incoming: IncomingRequest) -> None:
    """Starts nothing, for a closed session."""


def _flush_nothing() -> None:
    """Nothing is held back, in a closed session."""


def _member(members: dict[str, Raw], name: str, kind: Any) -> Any:
    """Take one member out, decoded as `kind`; None if it is not there."""
    raw = members.pop(name, None)
    if raw is None:
        return None
    try:
        return Decoder(kind).decode(raw)
    except DecodeError as why:
        raise RpcError(INVALID_PARAMS, f"Invalid params: {name}: {_describe(why)}") from None


def _describe(why: DecodeError) -> str:
    """msgspec's sentence in our form: `_meta.x: expected str, got int`."""
    text, _, path = str(why).replace("`", "").partition(" - at $.")
    text = text[0].lower() + text[1 : 3 * SHOWN]
    return f"{path}: {text}" if path else text
