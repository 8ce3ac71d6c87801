"""Dialogue: the questions of one call to its client, and the client's answers.

A "client request" is an elicitation, a sampling or a roots request: a server makes it while it
handles a call. The handler gives each one a key, such as "confirm".

- Before 2026-07-28 the server sends it as a JSON-RPC request while the call runs.
- Since 2026-07-28 the server answers the call with the result type `input_required`. This result
  contains the client requests and a state. The client repeats the call with its answers and the
  state, which begins the next round of the call. The state contains the answers of all earlier
  rounds, sealed against changes (protocol/seal.py), so the server stores nothing between rounds.

An answer belongs to one key and one request. If the handler sends a different request with the same
key, the client is asked again. A client may also send answers without a state, before it is asked
("early answers"); such an answer is used for any request with its key.

The second half of this file translates client requests for clients of older revisions.
Spec: 2026-07-28 basic/patterns/mrtr, client/elicitation, client/sampling, client/roots; 2025-11-25
and older: the same pages.
"""

from __future__ import annotations

from binascii import b2a_base64
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import DecodeError, Raw, Struct
from msgspec.json import Decoder, decode, encode

from concertino.errors import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    InvalidClientResponse,
    MissingCapability,
    RpcError,
)
from concertino.jsonrpc.messages import describe_decode_error
from concertino.protocol.call import ClientFacts
from concertino.protocol.revisions import Revision
from concertino.protocol.seal import NOT_OURS, InvalidState, OpenedState, Seal, digest
from concertino.types.client_requests import (
    CLIENT_REQUESTS,
    ClientRequest,
    CreateMessageResult,
    Elicitation,
    ElicitResult,
    InputRequest,
    ListRoots,
    ListRootsResult,
    Sampling,
)

__all__ = [
    "INPUT_METHODS",
    "MAX_KEY",
    "MAX_ROUNDS",
    "Dialogue",
    "binding",
    "check_response",
    "downgrade_request",
    "read_forwarded",
    "resume_dialogue",
    "to_wire_request",
    "use_state",
]

# The methods whose response may be input_required (basic/patterns/mrtr).
INPUT_METHODS = frozenset(("tools/call", "prompts/get", "resources/read"))

# How often one call may ask the client.
MAX_ROUNDS = 16

# The longest key, in characters.
MAX_KEY = 128

# An error quotes at most this many characters of the client's input.
QUOTED_CHARS = 200

# The digest of an early answer, which may be used for any request with its key.
ANY_REQUEST = ""

_ANSWER_DECODERS: Mapping[str, Callable[[Raw], Any]] = {
    "elicitation/create": Decoder(ElicitResult).decode,
    "sampling/createMessage": Decoder(CreateMessageResult).decode,
    "roots/list": Decoder(ListRootsResult).decode,
}


class _SealedDialogue(Struct, array_like=True):
    """The content of a sealed state.

    round: how many times the client was asked so far.
    asked: the client requests of the last round: key -> (method, digest of the request).
    answered: the answers of all earlier rounds: key -> (digest of the request, answer).
    saved: the values that Context.once() computed: key -> value.
    state: the backend's own state, see InputRequired.state.
    """

    round: int
    asked: dict[str, tuple[str, str]]
    answered: dict[str, tuple[str, Raw]]
    saved: dict[str, Raw]
    state: bytes


class HandlerWaits:
    """The futures for which the handler of one call waits. The runtime makes and completes them.

    threads: the futures for which threads of the handler wait; they are cancelled with the call.
    once: key -> a future that is done when Context.once() has computed the value of the key.
    sent: key -> a future that is done when the client has answered the request of the key, or its
        timeout has passed (before 2026-07-28).
    """

    def __init__(self) -> None:
        self.threads: set[Any] = set()
        self.once: dict[str, Any] = {}
        self.sent: dict[str, Any] = {}


class Dialogue:
    """The client requests and answers of one call.

    round: how many times the client was asked so far.
    state: the backend's own state, see InputRequired.state.
    saved: the values that Context.once() computed, by key.
    unanswered: the client requests of this round that have no answer yet, by key.
    forwarded: the unanswered client requests that come from another server, as JSON. The client
        gets them unchanged (2026-07-28).
    suspended: whether this round is over, so that the call must be answered with `input_required`.
    waits: the futures for which the handler waits.
    """

    def __init__(self) -> None:
        self.round = 0
        self.state = b""
        self.saved: dict[str, Raw] = {}
        self.unanswered: dict[str, InputRequest] = {}
        self.forwarded: dict[str, Raw] = {}
        self.suspended = False
        self.waits = HandlerWaits()
        # key -> the elicitationId of an elicitation with a URL (2025-11-25)
        self._elicitation_ids: dict[str, str] = {}
        # key -> (digest of the request, answer)
        self._answered: dict[str, tuple[str, Raw]] = {}
        # key -> digest of the request; for all requests of this round, with an answer or without
        self._digests: dict[str, str] = {}
        # The number of the last key that next_key() has made.
        self._last_number = 0

    @property
    def answers(self) -> dict[str, Raw]:
        """Return all answers so far, by key."""
        return {key: answer for key, (_, answer) in self._answered.items()}

    def next_key(self) -> str:
        """Return a new key for a client request that has none: q1, q2 and so on."""
        self._last_number += 1
        return f"q{self._last_number}"

    def elicitation_id(self, key: str) -> str:
        """Return the elicitationId of an elicitation with a URL (2025-11-25).

        The id is random. Later calls with the same key return the same id.
        """
        from uuid import uuid4

        return self._elicitation_ids.setdefault(key, str(uuid4()))

    def ask(self, requests: Mapping[str, InputRequest]) -> dict[str, Raw] | None:
        """Return the answers to client requests, by key; None if any answer is missing.

        Client requests without an answer are added to `unanswered`.
        Raises ValueError for a key that is empty, too long, or used by another request of this
        round, and InvalidClientResponse for an answer of the wrong shape.
        """
        answers: dict[str, Raw] = {}
        for key, request in requests.items():
            if not 0 < len(key) <= MAX_KEY:
                text = f"ask: key: expected 1 to {MAX_KEY} characters, got {key[:MAX_KEY]!r}"
                raise ValueError(text)
            request_digest = _digest_request(request)
            if self._digests.setdefault(key, request_digest) != request_digest:
                raise ValueError(
                    f"ask: key {key!r}: another request of this call has the same key; "
                    "pass a different key for each"
                )

            answered_digest, answer = self._answered.get(key, (None, Raw()))
            if answered_digest == ANY_REQUEST:
                check_response(key, request.method, answer)
                self._answered[key] = request_digest, answer
            elif answered_digest != request_digest:
                self.unanswered[key] = request
                continue
            answers[key] = answer
        return answers if len(answers) == len(requests) else None

    def add_answer(self, key: str, answer: Raw) -> None:
        """Add the client's response to a client request that was sent (before 2026-07-28).

        key: the key of the request, which is in `unanswered`.
        Raises InvalidClientResponse for an answer of the wrong shape.
        """
        request = self.unanswered.pop(key)
        check_response(key, request.method, answer)
        self._answered[key] = _digest_request(request), answer

    def seal_state(
        self,
        seal: Seal,
        bound: bytes,
        state: bytes,
    ) -> str:
        """Return the `requestState` for the client: a token that contains this dialogue.

        bound: the result of binding() for the call; only this call can use the token.
        state: the backend's own state, which becomes part of the token.
        Raises ValueError if the token would be too large, RpcError after MAX_ROUNDS rounds.
        """
        self.count_round()
        asked = {
            key: (request.method, _digest_request(request))
            for key, request in self.unanswered.items()
        }
        # Leave out early answers that no request has used. Also leave out the old answers of keys
        # whose request is now a different one, so that the client is asked again.
        answered = {
            key: entry
            for key, entry in self._answered.items()
            if entry[0] != ANY_REQUEST and key not in asked
        }
        content = encode(_SealedDialogue(self.round, asked, answered, self.saved, state))
        return seal.create_token(content, bound)

    def count_round(self) -> None:
        """Count one more round. Raises RpcError after MAX_ROUNDS rounds."""
        self.round += 1
        if self.round > MAX_ROUNDS:
            text = (
                f"Internal error: the client was asked {MAX_ROUNDS} times in one call, "
                "which is the limit"
            )
            raise RpcError(INTERNAL_ERROR, text)

    def resume(self, content: bytes, answers: Mapping[str, Raw]) -> None:
        """Restore this dialogue from the content of a token, and add the client's answers.

        Answers to requests that were not sent in the last round are ignored.
        Raises InvalidClientResponse for an answer of the wrong shape. Raises InvalidState for
        content in another format, which another release of concertino may have sealed with the same
        key.
        """
        try:
            sealed = _decode_sealed(content)
        except DecodeError:
            raise InvalidState(NOT_OURS) from None
        self.round = sealed.round
        self.saved = sealed.saved
        self.state = sealed.state
        self._answered = sealed.answered
        for key, (method, request_digest) in sealed.asked.items():
            if key in answers:
                check_response(key, method, answers[key])
                self._answered[key] = request_digest, answers[key]

    def accept_early_answers(self, answers: Mapping[str, Raw]) -> None:
        """Add answers that came without a state; each is used for any request with its key."""
        self._answered = {key: (ANY_REQUEST, answer) for key, answer in answers.items()}


_decode_sealed = Decoder(_SealedDialogue).decode


def resume_dialogue(
    get_seal: Callable[[], Seal],
    token: str | None,
    answers: Mapping[str, Raw],
    bound: Callable[[], bytes],
) -> tuple[Dialogue, OpenedState | None]:
    """Return the dialogue of a call that comes with answers, with a state, or with both.

    The second element of the result is the opened state, or None without a token. The caller must
    mark this state as used once the call is accepted.
    get_seal: returns the Seal that opens the token.
    token: the call's `requestState`; None if it has none.
    answers: the call's `inputResponses`, by key.
    bound: returns binding() of the call.
    Raises RpcError -32602 for a state that is not acceptable, InvalidClientResponse for an answer
    of the wrong shape.
    """
    dialogue = Dialogue()
    if token is None:
        dialogue.accept_early_answers(answers)
        return dialogue, None
    try:
        opened = get_seal().open_token(token, bound())
        dialogue.resume(opened.content, answers)
    except InvalidState as exc:
        raise _refuse_state(exc) from None
    return dialogue, opened


def use_state(seal: Seal, opened: OpenedState) -> None:
    """Mark a state as used.

    Raises RpcError if another process has already used it, or if the shared record of used states
    cannot be read.
    """
    try:
        seal.mark_used(opened)
    except InvalidState as exc:
        raise _refuse_state(exc) from None


def _refuse_state(reason: InvalidState) -> RpcError:
    """Return the error for a call whose `requestState` is not acceptable."""
    return RpcError(INVALID_PARAMS, f"Invalid params: requestState: {reason}")


def binding(
    method: str,
    params: Mapping[str, Raw],
    principal: bytes,
    server: bytes = b"",
) -> bytes:
    """Return a digest of a call. A state is accepted only from a call with the same digest.

    method, params: the method and params of the call. Params that are equal as JSON values give the
        same digest.
    principal: the identity of the caller, b"" if the connection does not know it.
    server: the server's name.
    """
    try:
        canonical = encode(decode(encode(params)), order="sorted")
    except (DecodeError, RecursionError):
        # The params are nested too deeply for the decoder, which is allowed. Use their bytes.
        canonical = encode(params)
    return digest(method.encode(), canonical, principal, server)


def check_response(key: str, method: str, answer: Raw) -> None:
    """Raise InvalidClientResponse if an answer is not a valid result for its method.

    key: the key of the answer, for the error.
    method: the method of the client request, for example `elicitation/create`. If the specification
        does not define it, every JSON value is a valid answer.
    """
    try:
        _ANSWER_DECODERS.get(method, decode)(answer)
    except (DecodeError, RecursionError) as exc:
        reason = describe_decode_error(exc, QUOTED_CHARS)
        raise InvalidClientResponse(
            f"{key[:QUOTED_CHARS]}: an answer to {method}: {reason}"
        ) from None


def _digest_request(request: InputRequest) -> str:
    """Return 16 characters that identify the method and params of a client request."""
    short = digest(request.method.encode(), request.params)[:12]
    return b2a_base64(short, newline=False).decode()


# Translation of client requests for clients of older revisions


def to_wire_request(request: ClientRequest) -> InputRequest:
    """Return a client request as an InputRequest: a method and params in the form of 2026-07-28.

    A request that is an InputRequest already is checked and returned.
    Raises ValueError for an incomplete request, and for an unknown method.
    """
    if isinstance(request, ListRoots):
        return InputRequest("roots/list")
    if isinstance(request, Sampling):
        return InputRequest("sampling/createMessage", Raw(encode(request)))
    if isinstance(request, Elicitation):
        _check_elicitation(request)
        return InputRequest("elicitation/create", Raw(encode(request)))

    if request.method not in CLIENT_REQUESTS:
        expected = ", ".join(CLIENT_REQUESTS)
        quoted = request.method[:QUOTED_CHARS]
        raise ValueError(f"ask: expected one of {expected}, got {quoted!r}")
    if request_type := _REQUEST_TYPES.get(request.method):
        try:
            to_wire_request(decode(request.params, type=request_type))
        except DecodeError as exc:
            reason = describe_decode_error(exc, QUOTED_CHARS)
            raise ValueError(f"ask: {request.method}: {reason}") from None
    return request


def _check_elicitation(request: Elicitation) -> None:
    """Raise ValueError if an elicitation has no URL (mode url) or no schema (mode form)."""
    if request.mode == "url":
        if request.url is None:
            raise ValueError("ask: an Elicitation of mode url needs url")
        return
    if request.requested_schema is None:
        raise ValueError("ask: an Elicitation of mode form needs requested_schema")
    if not isinstance(request.requested_schema.get("properties"), Mapping):
        raise ValueError(
            "ask: an Elicitation of mode form needs a requested_schema with properties"
        )


_REQUEST_TYPES: Mapping[str, type[Elicitation | Sampling]] = {
    "elicitation/create": Elicitation,
    "sampling/createMessage": Sampling,
}


def downgrade_request(
    request: InputRequest,
    revision: Revision,
    client: ClientFacts,
    make_id: Callable[[], str],
) -> InputRequest:
    """Return a client request in a form that the client's revision defines.

    revision: the revision by which the call is served.
    client: the client, with the capabilities that it has declared.
    make_id: returns the elicitationId of an elicitation with a URL, for 2025-11-25.
    Raises MissingCapability if the client has not declared the capability for this request, or if
    the revision has no such request.
    """
    feature = CLIENT_REQUESTS[request.method]
    declared = _check_declared(feature, revision, client)
    if feature == "roots":
        return InputRequest(request.method)

    params: dict[str, Any] = decode(request.params)
    params.pop("_meta", None)
    if feature == "sampling":
        _downgrade_sampling(params, revision, client, declared)
    else:
        _downgrade_elicitation(params, revision, client, declared, make_id)
    return InputRequest(request.method, Raw(encode(params)))


def _check_declared(feature: str, revision: Revision, client: ClientFacts) -> Mapping[str, Any]:
    """Return the settings that a client has declared for a capability.

    feature: the name of the capability, such as "elicitation".
    Raises MissingCapability if the client has not declared it, or its revision does not have it.
    """
    declared: Mapping[str, Any] | None = client.capabilities.get(feature)
    if not isinstance(declared, Mapping) or (feature == "elicitation" and not revision.elicitation):
        raise _missing_capability(client, {feature: {}})
    return declared


def read_forwarded(raw: Raw, revision: Revision, client: ClientFacts) -> InputRequest:
    """Decode a client request of another server, which the client gets unchanged (2026-07-28).

    Raises MissingCapability if the client has not declared the capability for it, and ValueError if
    `raw` is not a client request.
    """
    request = _decode_input_request(raw)
    if (feature := CLIENT_REQUESTS.get(request.method)) is not None:
        _check_declared(feature, revision, client)
    return request


_decode_input_request = Decoder(InputRequest).decode


def _downgrade_sampling(
    params: dict[str, Any],
    revision: Revision,
    client: ClientFacts,
    declared: Mapping[str, Any],
) -> None:
    """Change the params of a sampling request to a form that the client's revision defines.

    declared: the client's capability `sampling`.
    """
    wants_tools = "tools" in params or "toolChoice" in params
    if wants_tools and not (revision.sampling_tools and "tools" in declared):
        raise _missing_capability(client, {"sampling": {"tools": {}}})
    wants_context = params.get("includeContext", "none") != "none"
    if wants_context and revision.sampling_tools and "context" not in declared:
        raise _missing_capability(client, {"sampling": {"context": {}}})
    if revision.sampling_tools:
        return

    # In older revisions the content of a message is one block and not a list, and there are fewer
    # kinds of blocks.
    messages: list[dict[str, Any]] = params.get("messages", [])
    params["messages"] = parts = [
        {**message, "content": content}
        for message in messages
        for content in _as_list(message["content"])
    ]
    known = {"text", "image", "audio" if revision.audio else ""}
    for kind in {part["content"]["type"] for part in parts} - known:
        required: dict[str, Any] = {} if kind == "audio" else {"tools": {}}
        text = f"content of type {kind} is not part of {revision.name}"
        raise MissingCapability(text, {"sampling": required})


def _as_list(content: Any) -> list[Any]:
    """Return the content of a message as a list of blocks; a single block becomes a list of one."""
    if isinstance(content, list):
        # The elements are decoded JSON.
        return content  # pyright: ignore[reportUnknownVariableType]
    return [content]


def _downgrade_elicitation(
    params: dict[str, Any],
    revision: Revision,
    client: ClientFacts,
    declared: Mapping[str, Any],
    make_id: Callable[[], str],
) -> None:
    """Change the params of an elicitation to a form that the client's revision defines.

    declared: the client's capability `elicitation`.
    """
    if params.get("mode", "form") == "url":
        if not revision.url_elicitation or "url" not in declared:
            raise _missing_capability(client, {"elicitation": {"url": {}}})
        if revision.modern:
            params.pop("elicitationId", None)
        else:
            params.setdefault("elicitationId", make_id())
        return

    # `"elicitation": {}` means the same as `"elicitation": {"form": {}}`.
    if revision.url_elicitation and "form" not in declared and "url" in declared:
        raise _missing_capability(client, {"elicitation": {"form": {}}})
    if revision.url_elicitation:
        return

    params.pop("mode", None)
    schema = params["requestedSchema"]
    fields: dict[str, dict[str, Any]] = schema["properties"]
    if multiple := next(
        (name for name, field in fields.items() if field.get("type") == "array"), None
    ):
        text = f"a field of several choices ({multiple}) is not part of {revision.name}"
        raise MissingCapability(text, {"elicitation": {"form": {}}})
    downgraded = {name: _downgrade_field(field) for name, field in fields.items()}
    params["requestedSchema"] = {**schema, "properties": downgraded}


def _downgrade_field(field: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a form field in the form of 2025-06-18.

    In that revision only booleans have defaults, and the titles of choices are in `enumNames`.
    """
    field = {
        key: value
        for key, value in field.items()
        if key != "default" or field.get("type") == "boolean"
    }
    if (choices := field.pop("oneOf", None)) is not None:
        field["enum"] = [choice["const"] for choice in choices]
        field["enumNames"] = [choice["title"] for choice in choices]
    return field


def _missing_capability(client: ClientFacts, required: dict[str, Any]) -> MissingCapability:
    """Return the error for a client that lacks a capability.

    required: the capability as clients declare it, such as {"elicitation": {"url": {}}}.
    """
    [(feature, parts)] = required.items()
    path = ".".join((feature, *parts))
    text = f"the client {client.name[:QUOTED_CHARS]!r} has not declared {path}"
    return MissingCapability(text, required)
