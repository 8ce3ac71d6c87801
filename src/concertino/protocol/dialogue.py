"""The client requests of one call: open requests, answers so far, and the state between rounds.

Before 2026-07-28 a client request (elicitation, sampling, roots) is a request of the server's, sent
while the call runs. Since then the call ends with its client requests, and the client repeats it
with the answers. Answers of earlier rounds travel in a sealed state, so that the server keeps
nothing for a client that may never come back.

An answer counts only for the request that the client answered: if a handler sends a different
request under the same key, the client is asked again. Answers without a state come from a client
that knows the requests in advance; they count for any request with their key.
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
    "resume_dialogue",
    "to_wire_request",
]

# mrtr: the methods that may be answered with input_required.
INPUT_METHODS = frozenset(("tools/call", "prompts/get", "resources/read"))

# Rounds of one call.
MAX_ROUNDS = 16

# Characters of a key.
MAX_KEY = 128

# Characters of the client's input that an error quotes.
QUOTED_CHARS = 200

# Takes the place of a request's digest: the answer came before the request.
ANY_REQUEST = ""

_ANSWER_DECODERS: Mapping[str, Callable[[Raw], Any]] = {
    "elicitation/create": Decoder(ElicitResult).decode,
    "sampling/createMessage": Decoder(CreateMessageResult).decode,
    "roots/list": Decoder(ListRootsResult).decode,
}


class _SealedDialogue(Struct, array_like=True):
    """The content of a sealed state.

    asked: the requests of the last round: key -> (method, digest of the request).
    answered: key -> (digest of the request, answer).
    """

    round: int
    asked: dict[str, tuple[str, str]]
    answered: dict[str, tuple[str, Raw]]
    saved: dict[str, Raw]
    state: bytes


class Dialogue:
    """The client requests and answers of one call.

    round: how many times the client was asked so far.
    state: the backend's own state.
    saved: values that Context.once() computed, by key.
    unanswered: the requests of this round that have no answer yet, by key.
    suspended: this round is over; answer the call with `unanswered`.
    thread_waits: futures that threads wait for; cancel them with the call.
    once_futures: values that Context.once() is computing: key -> future.
    sent_futures: requests that were sent to the client (before 2026-07-28): key -> future.
    """

    def __init__(self) -> None:
        self.round = 0
        self.state = b""
        self.saved: dict[str, Raw] = {}
        self.unanswered: dict[str, InputRequest] = {}
        self.suspended = False
        self.thread_waits: set[Any] = set()
        self.once_futures: dict[str, Any] = {}
        self.sent_futures: dict[str, Any] = {}
        # key -> the id of an elicitation with a URL (2025-11-25)
        self._elicitation_ids: dict[str, str] = {}
        # key -> (digest of the request, answer)
        self._answered: dict[str, tuple[str, Raw]] = {}
        # key -> digest of every request of this round, answered or not
        self._digests: dict[str, str] = {}
        self._last_number = 0

    @property
    def answers(self) -> dict[str, Raw]:
        """Return all answers so far, by key."""
        return {key: answer for key, (_, answer) in self._answered.items()}

    def next_key(self) -> str:
        """Return the key for a request without one: q1, q2 and so on."""
        self._last_number += 1
        return f"q{self._last_number}"

    def elicitation_id(self, key: str) -> str:
        """Return the id of the elicitation with a URL under this key: random, and stable."""
        from uuid import uuid4

        return self._elicitation_ids.setdefault(key, str(uuid4()))

    def ask(self, requests: Mapping[str, InputRequest]) -> dict[str, Raw] | None:
        """Return the answers to these requests, or None if one of them is still missing.

        Requests without an answer are added to `unanswered`. Raises ValueError for a key that
        another request of this round has, InvalidClientResponse for an answer of the wrong shape.
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
        """Add the client's response to a request (before 2026-07-28).

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
        """Return a token that holds all that the next round needs.

        Raises ValueError if it is too large, RpcError after MAX_ROUNDS rounds.
        """
        self.count_round()
        asked = {
            key: (request.method, _digest_request(request))
            for key, request in self.unanswered.items()
        }
        # A request that is asked again has no answer yet, whatever its key had before.
        answered = {
            key: entry
            for key, entry in self._answered.items()
            if entry[0] != ANY_REQUEST and key not in asked
        }
        content = encode(_SealedDialogue(self.round, asked, answered, self.saved, state))
        return seal.create_token(content, bound)

    def count_round(self) -> None:
        """Count one more round. Raises RpcError after MAX_ROUNDS."""
        self.round += 1
        if self.round > MAX_ROUNDS:
            text = (
                f"Internal error: the client was asked {MAX_ROUNDS} times in one call, "
                "which is the limit"
            )
            raise RpcError(INTERNAL_ERROR, text)

    def resume(self, content: bytes, answers: Mapping[str, Raw]) -> None:
        """Continue from a state with the client's answers; unrelated answers are ignored.

        Raises InvalidClientResponse for an answer of the wrong shape, and InvalidState for a state
        that another release of this package sealed with the same key.
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
        """Keep answers that came without a state, for requests that may follow."""
        self._answered = {key: (ANY_REQUEST, answer) for key, answer in answers.items()}


_decode_sealed = Decoder(_SealedDialogue).decode


def resume_dialogue(
    get_seal: Callable[[], Seal],
    token: str | None,
    answers: Mapping[str, Raw],
    bound: Callable[[], bytes],
) -> tuple[Dialogue, OpenedState | None]:
    """Return the dialogue of a repeated call, and its state; None without a token.

    Mark the state as used once the call is accepted. bound: returns the binding() of the call.
    Raises RpcError -32602 for an unacceptable state, and for an answer of the wrong shape.
    """
    dialogue = Dialogue()
    if token is None:
        dialogue.accept_early_answers(answers)
        return dialogue, None
    try:
        opened = get_seal().open_token(token, bound())
        dialogue.resume(opened.content, answers)
    except InvalidState as exc:
        raise RpcError(INVALID_PARAMS, f"Invalid params: requestState: {exc}") from None
    return dialogue, opened


def binding(
    method: str,
    params: Mapping[str, Raw],
    principal: bytes,
    server: bytes = b"",
) -> bytes:
    """Return the digest that a state is bound to: this call by this caller of this server.

    Params that differ only in their spelling as JSON give the same digest.
    """
    try:
        canonical = encode(decode(encode(params)), order="sorted")
    except (DecodeError, RecursionError):
        # Nested too deeply to be decoded, which is not forbidden.
        canonical = encode(params)
    return digest(method.encode(), canonical, principal, server)


def check_response(key: str, method: str, answer: Raw) -> None:
    """Check the shape of an answer. Raises InvalidClientResponse if it does not fit the method."""
    try:
        _ANSWER_DECODERS[method](answer)
    except (DecodeError, RecursionError) as exc:
        reason = describe_decode_error(exc, QUOTED_CHARS)
        raise InvalidClientResponse(
            f"{key[:QUOTED_CHARS]}: an answer to {method}: {reason}"
        ) from None


def _digest_request(request: InputRequest) -> str:
    """Return 16 characters that identify a request."""
    short = digest(request.method.encode(), request.params)[:12]
    return b2a_base64(short, newline=False).decode()


# Requests as this client can be asked


def to_wire_request(request: ClientRequest) -> InputRequest:
    """Return a client request as a method and its params.

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
    """Raise ValueError if an elicitation lacks what its mode needs."""
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
    """Return a client request in the form that this client's revision knows.

    make_id: returns the id that an elicitation with a URL has in 2025-11-25.
    Raises MissingCapability if the client has not declared that it answers such a request, or its
    revision cannot carry it.
    """
    feature = CLIENT_REQUESTS[request.method]
    declared: Mapping[str, Any] | None = client.capabilities.get(feature)
    if not isinstance(declared, Mapping) or (feature == "elicitation" and not revision.elicitation):
        raise _missing_capability(client, {feature: {}})
    if feature == "roots":
        return InputRequest(request.method)

    params: dict[str, Any] = decode(request.params)
    params.pop("_meta", None)
    if feature == "sampling":
        _downgrade_sampling(params, revision, client, declared)
    else:
        _downgrade_elicitation(params, revision, client, declared, make_id)
    return InputRequest(request.method, Raw(encode(params)))


def _downgrade_sampling(
    params: dict[str, Any],
    revision: Revision,
    client: ClientFacts,
    declared: Mapping[str, Any],
) -> None:
    wants_tools = "tools" in params or "toolChoice" in params
    if wants_tools and not (revision.visits and "tools" in declared):
        raise _missing_capability(client, {"sampling": {"tools": {}}})
    wants_context = params.get("includeContext", "none") != "none"
    if wants_context and revision.visits and "context" not in declared:
        raise _missing_capability(client, {"sampling": {"context": {}}})
    if revision.visits:
        return

    # In older revisions a message has one piece of content, of fewer kinds.
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
    if params.get("mode", "form") == "url":
        if not revision.visits or "url" not in declared:
            raise _missing_capability(client, {"elicitation": {"url": {}}})
        if revision.modern:
            params.pop("elicitationId", None)
        else:
            params.setdefault("elicitationId", make_id())
        return

    # A client that declares an empty object knows forms.
    if revision.visits and "form" not in declared and "url" in declared:
        raise _missing_capability(client, {"elicitation": {"form": {}}})
    if revision.visits:
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
    """Return a form field for 2025-06-18.

    Only booleans have defaults there, and the titles of choices are in a separate list.
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
    [(feature, parts)] = required.items()
    path = ".".join((feature, *parts))
    text = f"the client {client.name[:QUOTED_CHARS]!r} has not declared {path}"
    return MissingCapability(text, required)
