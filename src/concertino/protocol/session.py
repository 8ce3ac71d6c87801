"""Session: the server's side of one MCP connection, without I/O.

    session = Session(features, send, start, Limits(), time.monotonic)
    session.receive(frame)           # calls start(request) for a request of the backend
    session.respond(request, result) # calls send(frame, id)

The session determines the revision of MCP by which each request is served. It answers some
requests itself, such as `initialize` and `ping` (protocol/session_methods.py). It passes all other
requests to `start`, each with a Call in the form of revision 2026-07-28, also for clients of older
revisions.
The backend returns results in that form, too; respond() encodes them for the client's revision.

A request whose `_meta` names revision 2026-07-28 ("modern") is served by that revision, at any
time. Every other request is served by the revision that `initialize` has agreed on ("legacy").
runtime/server_connection.py connects a session to a Connection and a Backend.
Spec: 2025-11-25 basic/lifecycle; 2026-07-28 basic/versioning, basic/index,
basic/patterns/cancellation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING

from msgspec import DecodeError, Raw, Struct
from msgspec.json import Decoder, encode

from concertino.decode_errors import DECODE_ERRORS
from concertino.errors import (
    BUSY,
    INTERNAL_ERROR,
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
from concertino.protocol.lifecycle import Lifecycle
from concertino.protocol.request_profile import Profiles, RequestProfile, SessionRequest
from concertino.protocol.revisions import REQUESTS, REVISION_BY_NAME
from concertino.protocol.session_methods import SessionMethods
from concertino.protocol.subscriptions import Subscriptions
from concertino.types.results import error_result

if TYPE_CHECKING:
    from concertino.protocol.call_dialogues import CallDialogues
    from concertino.protocol.principal import Principal
    from concertino.protocol.seal import Seal
    from concertino.types.client_requests import InputRequest

__all__ = ["Session", "is_refusing_scopes"]

# Whether the error that is being sent is an InsufficientScope of this process. The runtime
# (runtime/call_answers.py) sets it around fail(); an HTTP connection (http/caller.py) reads it
# while it writes the response. The error code alone does not tell: an error that is forwarded from
# another server may have the same code.
is_refusing_scopes: ContextVar[bool] = ContextVar("is_refusing_scopes", default=False)

# The template RESULT for an integer id, which is the usual kind.
INT_ID_RESULT = b'{"jsonrpc":"2.0","id":%d,"result":%b}'
# What precedes the result in a response.
RESULT_HEAD = b'{"jsonrpc":"2.0","id":%b,"result":'


class _CancelParams(Struct, rename="camel"):
    """The params of `notifications/cancelled`."""

    request_id: Id
    reason: str = ""


class Session:
    """The server's side of one MCP connection, without I/O.

        session = Session(features, send, start, Limits(), time.monotonic)
        session.receive(frame)           # calls start(request) for a request of the backend
        session.respond(request, result) # calls send(frame, id)

    The owner of the session must call admit() after each response, and when output has drained.

    features: returns the current features of the backend; called again when the backend reports a
        change.
    send: called with each frame (a JSON text without the newline) to be sent, and with the id of
        the request to which the frame belongs. Returns how many bytes of output are buffered.
    start: called with each request for the backend. It must answer the request exactly once, with
        respond() or fail(). If it will do so later, it must call peer.add_running() at once.
    limits: the limits for the sizes, numbers and rates of messages.
    clock: returns the time in seconds; must not go backwards.
    on_subscriptions_changed: called when subscriptions.uris may have changed.
    seal: returns the Seal, which signs the `requestState` of calls that ask their client for input;
        called for each state. None if no call of the session asks its client.
    principal: the user of the client; None if the connection does not know the user.
    schedule_flush: called when a notification is kept for later. It must arrange a call of
        peer.on_drain(), which sends such notifications, a moment later.
    budget: the memory that unread responses may take, in all sessions that share the budget; by
        default the session has one of its own.
    on_notification: called with the method and the params of each notification of a client before
        MCP 2026-07-28 that the session does not process itself.

    Attributes:
    start: the argument `start`; it may be replaced.
    lifecycle: the state of the handshake.
    peer: the JSON-RPC layer, with the tables of requests.
    subscriptions: what the client has subscribed to.
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
        self.lifecycle = Lifecycle()
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
        self.subscriptions = Subscriptions(self.peer, limits, on_subscriptions_changed)
        self._methods = SessionMethods(
            self.peer, self._profiles, self.lifecycle, self.subscriptions
        )
        self._on_other_notification = on_notification

    @property
    def dialogues(self) -> CallDialogues:
        """Return the object through which the calls of this session ask the client for input."""
        if self._dialogues is None:
            # Imported here, because most servers never ask their client anything.
            from concertino.protocol.call_dialogues import CallDialogues

            self._dialogues = CallDialogues(self._profiles, self._seal, self._identity)
        return self._dialogues

    def identify(self, principal: Principal | None) -> None:
        """Set the principal, the verified user, of the requests that arrive from now on.

        Called when the client has a new access token. The scopes may differ from those of the old
        token, but Principal.identity must be the same. Requests that have arrived before keep their
        principal.
        """
        self._profiles.identify(principal)

    # Input

    def receive(self, frame: bytes) -> None:
        """Process one frame from the client. Raises nothing, whatever the frame contains.

        Requests for the backend are passed to `start`, or queued if the limits do not allow that
        now. The session answers all other requests itself.
        frame: the JSON text of one message or batch, without the newline.
        """
        try:
            # msgspec does not check that members which it leaves undecoded are valid UTF-8.
            if not frame.isascii():
                str(frame, "utf-8")
            request = decode_request(frame)
        except DECODE_ERRORS:
            return self._receive_other(frame)

        id = request.id
        peer = self.peer
        if id in peer.running or id in peer.waiting:
            return self._receive_other(frame)
        return self._open(SessionRequest(id, request.method, request.params, len(frame)))

    def _receive_other(self, frame: bytes) -> None:
        """Process a frame that decode_request() rejects, or a request whose id is in use.

        Such a frame is a notification, a batch, a response, a request with unknown members, or
        invalid.
        """
        # This answers invalid frames and requests whose id is in use, and processes responses.
        event = self.peer.receive(frame)
        if event is None:
            return
        for message in event if isinstance(event, list) else [event]:
            if isinstance(message, SessionRequest):
                self._open(message)
            else:
                self._on_notification(message)

    def close(self) -> list[SessionRequest]:
        """Close the session, because the connection is closed. No other request is started.

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
        """Start, queue or answer a request, by its profile: its revision, its client and so on."""
        params = incoming.params
        meta = params.pop("_meta", None)
        profiles = self._profiles
        if meta is None:
            profile = profiles.legacy
        elif profiles.last_meta is not None and meta == profiles.last_meta[0]:
            # Most clients send the same `_meta` in every request, so it need not be decoded again.
            profile = profiles.last_meta[1]
        else:
            try:
                profile = profiles.read(meta)
            except RpcError as exc:
                return self.peer.fail(incoming, exc.code, exc.message, exc.data)
            if profile is not None and profile.encoder.revision.idless_errors:
                # Error responses to frames without a readable id have no member `id` from now on.
                self.peer.invalid_input.unknown_id = None

        method = incoming.method
        if profile is not None and method in profile.methods:
            incoming.profile = profile
            # Requests without `_meta` are legacy, which does not define these two params.
            if meta is not None and ("requestState" in params or "inputResponses" in params):
                return self._resume(incoming, profile)
            # These lines do the same as _forward(). They are repeated here to save nearly every
            # request a function call.
            incoming.call = Call(method, params, profile.meta)
            if self.lifecycle.state != "ready" and not profile.encoder.revision.modern:
                self.lifecycle.advance("request")
            # peer.admit() returns False if it has queued the request, or answered that this server
            # is busy. Session.admit() later starts queued requests.
            if self.peer.admit(incoming):
                self.start(incoming)
            return None
        if profile is not None and method not in REQUESTS and profiles.features.other_methods:
            return self._forward(incoming, profile)
        return self._methods.answer(incoming, profile)

    def _resume(self, incoming: SessionRequest, profile: RequestProfile) -> None:
        """Start or queue a call that the client repeats with its answers (MCP 2026-07-28).

        The call's response was `input_required` before, so that the client asks its user or model.
        The repeated call contains the answers and the state that the response contained.
        """
        try:
            incoming.call, opened_state = self.dialogues.resume(incoming, profile)
        except RpcError as exc:
            return self.peer.fail(incoming, exc.code, exc.message, exc.data)
        if not profile.encoder.revision.modern:
            self.lifecycle.advance("request")
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

    def _forward(self, incoming: SessionRequest, profile: RequestProfile) -> None:
        """Start or queue a request whose method the specification does not define.

        Only a backend with `other_methods` gets such requests.
        """
        incoming.profile = profile
        incoming.call = Call(incoming.method, incoming.params, profile.meta)
        if not profile.encoder.revision.modern:
            self.lifecycle.advance("request")
        if self.peer.admit(incoming):
            self.start(incoming)

    def _on_notification(self, message: Message) -> None:
        """Process a notification. A malformed or unknown notification is ignored."""
        if message.method == "notifications/cancelled":
            try:
                params = Decoder(_CancelParams).decode(encode(message.params))
            except DECODE_ERRORS:
                return
            self.peer.cancel(params.request_id, params.reason)
        elif message.method == "notifications/initialized":
            self.lifecycle.advance("initialized")
        elif (
            self._on_other_notification is not None
            and self._profiles.legacy is not None
            and isinstance(message.method, str)
        ):
            self._on_other_notification(message.method, message.params)

    # Responses of the backend

    def respond(
        self,
        incoming: SessionRequest,
        result: Struct | Raw,
        passes: Callable[[str], bool] | None = None,
    ) -> bool:
        """Send the response to a request, unless the request was answered or cancelled before.

        If the result cannot be encoded, or is too large, an error is sent instead.

        result: a result in the form of revision 2026-07-28.
        passes: passes(text) returns whether the guards, which are wrappers of the backend, would
            leave a result with this single text unchanged (CallHooks.accepts_text). None if
            the guards need not see the result, or have seen it.

        Returns False, with nothing sent, if a guard has to see the result first: then pass the
        result through the guards, and call respond() again without `passes`. Otherwise True.
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

        # encode() returns b"" if the guards must see the result first.
        if not body:
            return False
        peer = self.peer
        id = incoming.id
        if len(body) > JOINED_BYTES:
            head = RESULT_HEAD % encode(id)
            if self._refuse_if_too_large(incoming, len(head) + len(body) + 1):
                return True
            frame = b"".join((head, body, b"}"))
            # Free its memory now: the transport may copy the frame.
            body = b""
        else:
            frame = INT_ID_RESULT % (id, body) if type(id) is int else RESULT % (encode(id), body)

        # In the usual case the handler has returned in its first step, so the request is in no
        # table of open requests, and the response is small. Then two lines replace
        # peer.send_response(). They do not record the size of the response, which matters only for
        # large ones. Saving that function call makes a small call 1 % faster.
        if (
            len(frame) <= peer.unread.small_bytes
            and incoming.table is None
            and incoming.batch is None
            and incoming.throttle is None
        ):
            incoming.open = False
            peer.buffered_bytes = peer.send(frame, id)
            return True

        if not self._refuse_if_too_large(incoming, len(frame)):
            peer.send_response(incoming, frame)
        return True

    def refuse_large(self, incoming: SessionRequest, result: Struct | Raw, least_size: int) -> bool:
        """Answer with an error if a result certainly exceeds the limit of a message.

        This saves the time to encode such a result.
        least_size: a lower bound of the size of the result's texts, in bytes.
        Returns True if the error was sent, and False if the result may be small enough, or the call
        was answered or cancelled.
        """
        return (
            incoming.open
            and least_size > self._limits.max_message_bytes
            and incoming.profile.encoder.sends_all(result)
            and self._refuse_if_too_large(incoming, least_size, "more than ")
        )

    def _refuse_if_too_large(self, incoming: SessionRequest, size: int, bound: str = "") -> bool:
        """Answer with an error if a response exceeds the limit of a message.

        Returns whether the error was sent.

        size: the length of the response in bytes.
        bound: "more than " if the response is longer than this.
        """
        limit = self._limits.max_message_bytes
        if size <= limit:
            return False
        # Remember that results of this tool are large: further calls would need as much memory,
        # although only an error is sent.
        self.peer.unread.on_response(incoming, limit)
        text = f"the result makes a message of {bound}{size} bytes; the limit is {limit} bytes"
        self._respond_unencodable(incoming, text)
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
        """Send an error response to a request, unless it was answered or cancelled before.

        code, data: as in revision 2026-07-28; the code is translated to the client's revision.
        message: the text of the error.
        revision: the revision of the server that has sent the error; "" if this server has made it.
            If that revision and the client's are both 2026-07-28, or both older, the code is not
            translated.
        Raises msgspec's errors if `data` cannot be encoded.
        """
        encoder = incoming.profile.encoder
        if not revision or REVISION_BY_NAME[revision].modern != encoder.revision.modern:
            code = encoder.error_code(code, data, incoming.method)
        self.peer.fail(incoming, code, message, data)

    # Requests to the client

    def send_client_request(
        self,
        request: InputRequest,
        done: Callable[[Raw | Exception], object],
        about: Id | None = None,
    ) -> OutgoingRequest:
        """Send a request to the client (before MCP 2026-07-28).

        There is no time limit; to stop waiting, call peer.abandon().

        done: called once, unless the request is abandoned: with the result as undecoded JSON, or
            with an RpcError, ProtocolError or Disconnected.
        about: the id of the call whose handler asks the client; None if no call does.
        Raises RpcError if max_questions requests already wait for the client's responses.
        """
        limit = self._limits.max_questions
        if len(self.peer.outgoing) >= limit:
            text = f"busy: {limit} questions wait for the client's answers"
            raise RpcError(BUSY, text, {"maxQuestions": limit})
        return self.peer.request(request.method, bytes(request.params), done, about=about)

    def reply_suspended(self, incoming: SessionRequest) -> None:
        """Answer a call with `input_required`. Called when its handler has used Context.ask().

        The response contains the client requests (elicitations and so on) of the handler that have
        no answer, and a state that the client sends back with its answers.
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
        dialogue = self.dialogues.set_client_requests(incoming, wanted)
        result = self.dialogues.encode_client_requests(incoming.call, dialogue, wanted.state)
        self.respond(incoming, result)

    # Changes in the backend

    def report_change(self, what: str) -> None:
        """Get the backend's features again, and notify the client that a list has changed.

        An MCP 2026-07-28 client is notified if it has subscribed to the list. A client of an older
        revision is notified after the handshake, if the response to `initialize` has declared the
        capability `what`.
        what: "tools", "prompts" or "resources". For any other word, such as "features", the client
            is not notified.
        """
        self.reload_features()
        self.subscriptions.report_change(what)
        if self.lifecycle.state == "ready" and what in self._profiles.declared:
            self.peer.send_coalesced(
                encode_notification(f"notifications/{what}/list_changed", b"{}")
            )

    def reload_features(self) -> None:
        """Get the features of the backend again. Called when they have changed."""
        self._profiles.reload_features()


def _start_nothing(incoming: SessionRequest) -> None:
    """Ignore a request. Replaces `start` when the session is closed."""
