"""Session: the server's side of one MCP conversation, without I/O.

    session = Session(features, send, start, Limits(), time.monotonic)
    session.receive(frame)           # calls start(request) for a request of the backend
    session.respond(request, result) # calls send(frame, id)

The session determines the revision of each request. It answers initialize, ping, server/discover,
logging/setLevel and the requests about subscriptions itself. It passes all other requests to
`start`, each with a Call in the form of revision 2026-07-28, also for clients of older revisions.
The backend returns results in that form, too; respond() encodes them for the client's revision.

A request whose `_meta` names revision 2026-07-28 ("modern") is served by that revision, at any
time. Every other request is served by the revision that `initialize` has agreed on ("legacy").
runtime/server_connection.py connects a session to a Connection and a Backend.
Spec: 2025-11-25 basic/lifecycle, server/resources "Subscriptions"; 2026-07-28 basic/versioning,
basic/index, server/discover, basic/patterns/cancellation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from msgspec import DecodeError, Raw, Struct, ValidationError
from msgspec.json import Decoder, encode

from concertino.errors import (
    BUSY,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    RpcError,
)
from concertino.jsonrpc.limits import Limits
from concertino.jsonrpc.messages import (
    JOINED_BYTES,
    Id,
    Message,
    decode_request,
    encode_notification,
)
from concertino.jsonrpc.outgoing_requests import OutgoingRequest
from concertino.jsonrpc.peer import RESULT, Peer, Send
from concertino.jsonrpc.unread_results import ProcessBudget
from concertino.protocol.call import Call, InputRequired, ServerFeatures
from concertino.protocol.call_notifications import CallNotifications
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
from concertino.protocol.revisions import LEGACY, REQUESTS, REVISIONS, by_name, implementation
from concertino.types.results import LEVELS, Level, error_result

if TYPE_CHECKING:
    from concertino.protocol.call_dialogues import CallDialogues
    from concertino.protocol.principal import Principal
    from concertino.protocol.seal import Seal
    from concertino.protocol.wanted_updates import WantedUpdates
    from concertino.types.client_requests import InputRequest

__all__ = ["LIFECYCLE", "Session", "State", "is_refusing_scopes"]

# Whether the error that is being sent is an InsufficientScope of this process. An HTTP connection
# reads it while it writes the response. The error code alone does not tell: an error that is
# forwarded from another server may have the same code.
is_refusing_scopes: ContextVar[bool] = ContextVar("is_refusing_scopes", default=False)

# The state of the handshake. fresh: nothing has come. opened: `initialize` is answered. ready: the
# handshake is complete. Requests of 2026-07-28 need no handshake, and do not change the state.
State = Literal["fresh", "opened", "ready"]

# State -> kind of message -> next state, or None if the message is rejected (2025-11-25
# basic/lifecycle). Some clients never send notifications/initialized, so the first request after
# `initialize` completes the handshake as well.
LIFECYCLE: Mapping[State, Mapping[str, State | None]] = {
    "fresh": {"initialize": "opened", "initialized": "fresh", "request": None},
    "opened": {"initialize": None, "initialized": "ready", "request": "ready"},
    "ready": {"initialize": None, "initialized": "ready", "request": "ready"},
}

# An example of `initialize`, for errors that tell a person what to send first.
OPENER = (
    '{"jsonrpc":"2.0","id":0,"method":"initialize","params":{'
    f'"protocolVersion":"{LEGACY[-1].name}",'
    '"capabilities":{},"clientInfo":{"name":"me","version":"1"}}}'
)

# The template RESULT for an integer id, which is the usual kind.
INT_ID_RESULT = b'{"jsonrpc":"2.0","id":%d,"result":%b}'
# What precedes the result in a response.
RESULT_HEAD = b'{"jsonrpc":"2.0","id":%b,"result":'


class _CancelParams(Struct, rename="camel"):
    """The params of `notifications/cancelled`."""

    request_id: Id
    reason: str = ""


class Session:
    """The server's side of one MCP conversation.

    features: returns the current features of the backend; called again when the backend reports a
        change.
    send: sends a frame, see Peer.
    start: called with each request for the backend. It must answer the request exactly once, with
        respond() or fail(); if it will do so later, it must call peer.add_running() at once. The
        owner of the session must call admit() after each response, and when output has drained.
    clock: returns the time in seconds; must not go backwards.
    on_subscriptions_changed: called when subscribed_uris may have changed.
    seal: returns the Seal for the `requestState` of calls that ask their client for input. It is
        called when a state is sealed or opened.
    principal: the user of the client; None if the connection does not know the user.
    schedule_flush: called when a notification is kept for later. It must arrange a call of
        peer.on_drain(), which sends such notifications, a moment later.
    budget: the memory that unread responses may take, in all sessions that share the budget; by
        default the session has one of its own.
    on_notification: called with the method and the params of each notification of a client before
        2026-07-28 that the session does not process itself.

    Attributes:
    start: the argument `start`; it may be replaced.
    state: the state of the handshake.
    peer: the JSON-RPC layer, with the tables of requests.
    notifications: sends progress and log messages about calls.
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
        principal: Principal | None = None,
        schedule_flush: Callable[[], object] = lambda: None,
        budget: ProcessBudget | None = None,
        on_notification: Callable[[str, Mapping[str, Raw]], object] | None = None,
    ) -> None:
        self.state: State = "fresh"
        self.peer = Peer(send, limits, clock, request_type=SessionRequest, budget=budget)
        self.start = start
        self._limits = limits
        self._profiles = Profiles(features, principal)
        self.notifications = CallNotifications(
            self.peer, self._profiles, limits, clock, schedule_flush
        )
        self._seal = seal
        self._identity = b"" if principal is None else principal.identity
        self._dialogues: CallDialogues | None = None
        # None until the first subscription.
        self._subscriptions: WantedUpdates | None = None
        # Calls that hold_open() has been called for; some of them may have ended.
        self._held_open: list[SessionRequest] = []
        self._on_subscriptions_changed = on_subscriptions_changed
        self._on_other_notification = on_notification

    @property
    def dialogues(self) -> CallDialogues:
        """Return the object that manages what calls of this session ask their client."""
        if self._dialogues is None:
            # Imported here, because most servers never ask their client anything.
            from concertino.protocol.call_dialogues import CallDialogues

            self._dialogues = CallDialogues(self._profiles, self._seal, self._identity)
        return self._dialogues

    def identify(self, principal: Principal | None) -> None:
        """Set the principal of the requests that arrive from now on.

        Called when the client has a new token, whose scopes may differ from the old one's. The
        identity must be the same. Requests that have arrived before keep their principal.
        """
        self._profiles.identify(principal)

    # Input

    def receive(self, frame: bytes) -> None:
        """Process one frame from the client. Raises nothing, whatever the frame contains."""
        try:
            # msgspec does not check that members which it leaves undecoded are valid UTF-8.
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
        """Process a frame that is not a plain request, or a request whose id is in use.

        Such a frame is a notification, a batch, a response or invalid. Peer.receive() answers
        invalid frames and requests with used ids, and processes responses.
        """
        event = self.peer.receive(frame)
        if event is None:
            return
        for message in event if isinstance(event, list) else [event]:
            if isinstance(message, SessionRequest):
                self._open(message)
            else:
                self._on_notification(message)

    def close(self) -> list[SessionRequest]:
        """Close the session. Called when the connection is closed; no further request is started.

        Returns the requests that have no response. They will get none.
        """
        self.start = _start_nothing
        self.notifications.close()
        return self.peer.close()

    def admit(self) -> None:
        """Start as many queued requests as the limits allow."""
        while (incoming := self.peer.pop_waiting()) is not None:
            self.start(incoming)

    def _open(self, incoming: SessionRequest) -> None:
        """Find the profile of a request, and start, queue or answer the request."""
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
            # These lines do the same as _forward(). They are repeated here to save nearly every
            # request a function call.
            incoming.call = Call(method, params, profile.meta)
            if self.state != "ready" and not profile.encoder.revision.modern:
                self.state = LIFECYCLE[self.state]["request"] or self.state
            if self.peer.admit(incoming):
                self.start(incoming)
            return None
        return self._answer_here(incoming, profile)

    def _resume(self, incoming: SessionRequest, profile: RequestProfile) -> None:
        """Start or queue a call that the client repeats with its answers (2026-07-28).

        The call's response was `input_required` before, see protocol/dialogue.py.
        """
        try:
            incoming.call, opened_state = self.dialogues.resume(incoming, profile)
        except RpcError as exc:
            return self.peer.fail(incoming, exc.code, exc.message, exc.data)
        if self.state != "ready" and not profile.encoder.revision.modern:
            self.state = LIFECYCLE[self.state]["request"] or self.state
        admitted = self.peer.admit(incoming)

        # If the request was rejected as busy, it is no longer open. The client may then repeat it
        # with the same state.
        if opened_state is not None and incoming.open:
            try:
                self.dialogues.mark_used(opened_state)
            except RpcError as exc:
                return self.peer.fail(incoming, exc.code, exc.message, exc.data)
        if admitted:
            self.start(incoming)
        return None

    def _answer_here(self, incoming: SessionRequest, profile: RequestProfile | None) -> None:
        """Answer a request whose method the backend does not serve.

        The session has a result for its own methods, and an error for unknown ones. A backend with
        `other_methods` gets the methods that the specification does not define.
        """
        method = incoming.method
        known = REQUESTS.get(method)
        modern = profile is not None and profile.encoder.revision.modern
        if known is None and profile is not None and self._profiles.features.other_methods:
            return self._forward(incoming, profile)
        try:
            # Without a profile the revision is unknown. Then accept the methods of all revisions.
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

    def _forward(self, incoming: SessionRequest, profile: RequestProfile) -> None:
        """Start or queue a request for the backend, as _open() does for usual requests.

        It is called for requests whose method the specification does not define.
        """
        incoming.profile = profile
        incoming.call = Call(incoming.method, incoming.params, profile.meta)
        if self.state != "ready" and not profile.encoder.revision.modern:
            self.state = LIFECYCLE[self.state]["request"] or self.state
        if self.peer.admit(incoming):
            self.start(incoming)

    def _find_handler(
        self, method: str, profile: RequestProfile | None
    ) -> Callable[[SessionRequest], None] | None:
        """Return the method of this session that answers requests of an MCP method, or None.

        profile: the profile of the request; None if the client has not sent `initialize`.
        Raises RpcError if the profile is None and the MCP method needs one.
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

    def _on_notification(self, message: Message) -> None:
        """Process a notification. A malformed or unknown notification is ignored."""
        if message.method == "notifications/cancelled":
            try:
                params = Decoder(_CancelParams).decode(encode(message.params))
            except DecodeError:
                return
            self.peer.cancel(params.request_id, params.reason)
        elif message.method == "notifications/initialized":
            self.state = LIFECYCLE[self.state]["initialized"] or self.state
        elif (
            self._on_other_notification is not None
            and self._profiles.legacy is not None
            and isinstance(message.method, str)
        ):
            self._on_other_notification(message.method, message.params)

    # Requests that the session answers

    def _initialize(self, incoming: SessionRequest) -> None:
        """Answer `initialize`, and set the profile of the legacy requests that follow.

        Raises RpcError if the client was already initialized, or for malformed params.
        """
        next_state = LIFECYCLE[self.state]["initialize"]
        if next_state is None or incoming.batch is not None:
            when = "in a batch" if next_state is not None else "a second time on this connection"
            raise RpcError(INVALID_REQUEST, f"Invalid Request: initialize {when}")
        try:
            params = Decoder(InitializeParams).decode(encode(incoming.params))
        except ValidationError as exc:
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
        self.state = next_state
        declared = profiles.declare(revision)
        profiles.declared = frozenset(declared)
        self.peer.batches.accepted = revision.batches
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
        """Answer `ping`."""
        self.peer.respond(incoming, b"{}")

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
        self.peer.respond(incoming, body)

    def _set_level(self, profile: RequestProfile, incoming: SessionRequest) -> None:
        """Answer `logging/setLevel`. Raises RpcError for an unknown level."""
        level = pop_member(incoming.params, "level", Level)
        if level is None:
            text = f"Invalid params: level: expected one of {', '.join(LEVELS)}"
            raise RpcError(INVALID_PARAMS, text)
        self._profiles.set_level(profile, level)
        self.peer.respond(incoming, b"{}")

    def _listen(self, profile: RequestProfile, incoming: SessionRequest) -> None:
        """Open a subscription; `subscriptions/listen` is answered when the subscription ends."""
        incoming.profile = profile
        self._wanted_updates().listen(
            incoming, self._profiles.features, profile.encoder.encode_closing
        )

    def _subscribe(self, incoming: SessionRequest) -> None:
        """Answer `resources/subscribe` and `resources/unsubscribe`.

        The resource need not exist: it may appear later.
        """
        uri = pop_member(incoming.params, "uri", str)
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
        """Return the subscriptions of this session; the object is created on first use."""
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
        """Return how many subscriptions are open. peer.running contains their requests.

        These are the requests of subscriptions/listen, and the calls of hold_open().
        """
        count = 0 if self._subscriptions is None else self._subscriptions.open_count
        return count + sum(item.open for item in self._held_open)

    def end_subscriptions(self) -> None:
        """Answer the requests of all open subscriptions, which ends the subscriptions."""
        if self._subscriptions is not None:
            self._subscriptions.close_all()
        ended, self._held_open = self._held_open, []
        for incoming in ended:
            if incoming.open:
                self.respond(incoming, Raw(b"{}"))
                if incoming.on_cancel is not None:
                    incoming.on_cancel("the server ends the subscription")

    def hold_open(self, incoming: SessionRequest) -> None:
        """Treat a call that is being handled as a subscription. See Caller.hold_open().

        Does nothing if the call was answered or cancelled. Raises RpcError for a call in a batch.
        """
        if not incoming.open:
            return
        if incoming.batch is not None:
            text = f"Invalid Request: {incoming.method} in a batch, which would never be answered"
            raise RpcError(INVALID_REQUEST, text)
        incoming.params.clear()
        if incoming.table is None:
            incoming.size = 0
            self.peer.add_running(incoming, has_result=False)
        else:
            incoming.table.discount(incoming)
            self.peer.unread.on_end(incoming)
        self._held_open = [item for item in self._held_open if item.open]
        self._held_open.append(incoming)

    # Responses of the backend

    def respond(
        self,
        incoming: SessionRequest,
        result: Struct | Raw,
        passes: Callable[[str], bool] | None = None,
    ) -> bool:
        """Send the response to a call. Sends nothing if the call was answered or cancelled before.

        If the result cannot be encoded, or is too large, an error is sent instead.
        result: a result in the form of revision 2026-07-28.
        passes: CallHooks.accepts_text of the call's guards; None if no guard may change the result.
        Returns False, and sends nothing, if the result must pass through the guards first; see
        ResultEncoder.encode(). Otherwise returns True.
        Raises InputRequiredSignal if the result is an InputRequired.
        """
        if not incoming.open:
            return True
        forwarded = incoming.forwarded
        try:
            if forwarded is not None and result is forwarded and passes is None:
                body: bytes | Raw = forwarded
            else:
                body = incoming.profile.encoder.encode(result, incoming.method, passes)
        except (TypeError, ValueError, DecodeError, RecursionError, OverflowError) as exc:
            self._respond_unencodable(incoming, f"the result cannot be written as JSON: {exc}")
            return True

        if not body:
            return False
        peer = self.peer
        id = incoming.id
        if len(body) > JOINED_BYTES:
            frame = b"".join((RESULT_HEAD % encode(id), body, b"}"))
            # Free its memory now: the transport may copy the frame.
            body = b""
        else:
            frame = INT_ID_RESULT % (id, body) if type(id) is int else RESULT % (encode(id), body)

        # In the usual case the handler has returned in its first step, so the request is in no
        # table, and the response is small. The two lines in this block then replace
        # peer.send_response(), except that the size of a small response is not recorded. Saving
        # that function call makes a small call 1 % faster.
        if (
            len(frame) <= peer.unread.usual_bytes
            and incoming.table is None
            and incoming.batch is None
            and incoming.throttle is None
        ):
            incoming.open = False
            peer.buffered_bytes = peer.send(frame, id)
            return True

        limit = self._limits.max_message_bytes
        if len(frame) > limit:
            text = f"the result makes a message of {len(frame)} bytes; the limit is {limit} bytes"
            self._respond_unencodable(incoming, text)
        else:
            peer.send_response(incoming, frame)
        return True

    def _respond_unencodable(self, incoming: SessionRequest, text: str) -> None:
        """Answer a call whose result cannot be sent.

        tools/call gets a result with isError, all other methods get an error response.
        text: the reason why the result cannot be sent.
        """
        if incoming.method != "tools/call":
            return self.peer.fail(incoming, INTERNAL_ERROR, f"Internal error: {text}")
        result = error_result(text)
        body = incoming.profile.encoder.encode(result, incoming.method)
        return self.peer.respond(incoming, body)

    def fail(
        self,
        incoming: SessionRequest,
        code: int,
        message: str,
        data: object = None,
        revision: str = "",
    ) -> None:
        """Send an error response to a call.

        code, data: as in revision 2026-07-28; the code is translated to the client's revision.
        revision: for an error that another server has sent, the revision of that server; otherwise
            "". If that revision and the client's are both modern or both legacy, the code is sent
            unchanged.
        Raises msgspec's errors if `data` cannot be encoded.
        """
        encoder = incoming.profile.encoder
        if not revision or by_name[revision].modern != encoder.revision.modern:
            code = encoder.error_code(code, data, incoming.method)
        self.peer.fail(incoming, code, message, data)

    # Requests to the client

    def send_client_request(
        self,
        request: InputRequest,
        done: Callable[[Raw | Exception], object],
        about: Id | None = None,
    ) -> OutgoingRequest:
        """Send a request to the client (before 2026-07-28).

        done: called with the response, see Peer.request().
        about: the id of the call whose handler asks the client; None if no call does.
        Raises RpcError if too many requests wait for the client's responses.
        """
        limit = self._limits.max_questions
        if len(self.peer.outgoing) >= limit:
            text = f"busy: {limit} questions wait for the client's answers"
            raise RpcError(BUSY, text, {"maxQuestions": limit})
        return self.peer.request(request.method, bytes(request.params), done, about=about)

    def reply_suspended(self, incoming: SessionRequest) -> None:
        """Answer a call with `input_required`. Called when its handler has asked the client.

        The response contains the client requests for which the call's dialogue has no answer.
        Raises RpcError if the state is too large, or the client was asked too often.
        """
        dialogue = self.dialogues.open(incoming)
        call = incoming.call
        result = self.dialogues.encode_client_requests(call, dialogue, call.state)
        self.respond(incoming, result)

    def reply_input_required(self, incoming: SessionRequest, wanted: InputRequired) -> None:
        """Answer a call with `input_required`. Called when its backend has returned `wanted`.

        Raises RpcError if the client cannot answer a request, the state is too large, or the client
        was asked too often. Raises ValueError for a malformed client request.
        """
        dialogue = self.dialogues.load_client_requests(incoming, wanted)
        result = self.dialogues.encode_client_requests(incoming.call, dialogue, wanted.state)
        self.respond(incoming, result)

    # Changes in the backend

    def report_change(self, what: str) -> None:
        """Notify the client that a list has changed, if the specification allows it.

        A 2026-07-28 client gets the notification if it has subscribed to the list. A legacy client
        gets it after the handshake, if `initialize` has declared the list. While the client does
        not read, several changes are merged into one notification.
        what: "tools", "prompts" or "resources".
        """
        self.reload_features()
        if self._subscriptions is not None:
            self._subscriptions.report_change(what)
        if self.state == "ready" and what in self._profiles.declared:
            self.peer.send_coalesced(
                encode_notification(f"notifications/{what}/list_changed", b"{}")
            )

    def report_update(self, uri: str) -> None:
        """Notify the client that a resource has changed, if it has subscribed to the resource."""
        if self._subscriptions is not None:
            self._subscriptions.report_update(uri)

    def reload_features(self) -> None:
        """Get the features of the backend again. Called when they have changed."""
        self._profiles.reload_features()


def _start_nothing(incoming: SessionRequest) -> None:
    """Ignore a request. Replaces `start` when the session is closed."""
