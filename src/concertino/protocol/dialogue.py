"""Dialogue: the questions of one call to its client, and the client's answers.

A "client request" is an elicitation, a sampling or a roots request: a server makes it while it
handles a call. The handler gives each one a key, such as "confirm".

- Before MCP 2026-07-28 the server sends it as a JSON-RPC request while the call runs.
- Since 2026-07-28 the server answers the call with the result type `input_required`. This result
  contains the client requests and a token, `requestState`. The client repeats the call with its
  answers and the token, which begins the next round of the call. The token contains the answers of
  all earlier rounds, sealed against changes (protocol/seal.py), so the server stores nothing
  between rounds.

An answer belongs to one key and one request. If the handler sends a different request with the same
key in a later round, the client is asked again; within a round that is an error. A client may also
send answers without a token, before it is asked ("early answers"); such an answer is used for the
first request with its key.

client_request_forms.py translates client requests for clients of older revisions.
Spec: 2026-07-28 basic/patterns/mrtr, client/elicitation, client/sampling, client/roots; 2025-11-25
and older: the same pages.
"""

from __future__ import annotations

from binascii import b2a_base64
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Raw, Struct
from msgspec.json import decode, encode

from concertino.decode_errors import DECODE_ERRORS
from concertino.errors import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    InvalidClientResponse,
    RpcError,
)
from concertino.jsonrpc.messages import describe_decode_error
from concertino.protocol.seal import NOT_OURS, InvalidState, OpenedState, Seal, digest
from concertino.types.client_requests import (
    CreateMessageResult,
    ElicitResult,
    InputRequest,
    ListRootsResult,
)

__all__ = [
    "INPUT_METHODS",
    "MAX_KEY",
    "MAX_ROUNDS",
    "Dialogue",
    "check_response",
    "digest_call",
    "resume_dialogue",
    "use_state",
]

# The methods whose response may be input_required (basic/patterns/mrtr).
INPUT_METHODS = frozenset(("tools/call", "prompts/get", "resources/read"))

# How many times one call may ask the client.
MAX_ROUNDS = 16

# The longest key, in characters.
MAX_KEY = 128

# An error quotes at most this many characters of the client's input.
QUOTED_CHARS = 200

# The digest of an early answer, which may be used for any request with its key.
ANY_REQUEST = ""

# No Decoders, because making them would delay the start of programs whose clients ask nothing.
_ANSWER_TYPES: Mapping[str, type[Struct]] = {
    "elicitation/create": ElicitResult,
    "sampling/createMessage": CreateMessageResult,
    "roots/list": ListRootsResult,
}


class _SealedDialogue(Struct, array_like=True):
    """The content of the token that a client stores while it answers, sealed against changes.

    round: how many times the client was asked so far.
    asked: the client requests of the last round: key -> (method, digest of the request).
    answered: the answers of all earlier rounds: key -> (digest of the request, answer).
    saved: the values that Context.once() computed: key -> value.
    state: bytes that the backend needs to continue the call (InputRequired.state).
    """

    round: int
    asked: dict[str, tuple[str, str]]
    answered: dict[str, tuple[str, Raw]]
    saved: dict[str, Raw]
    state: bytes


class HandlerWaits:
    """The futures for which the handler of one call waits. The runtime makes and completes them.

    threads: the futures for which threads of the handler wait; they are cancelled with the call.
    saved_values: key -> a future that is done when Context.once() has computed the value of the
        key.
    client_answers: key -> a future that is done when the client has answered the request of the
        key, or the timeout of the request has passed. Only in revisions before MCP 2026-07-28.
    """

    # The futures are Any, because this package imports neither asyncio nor concurrent.futures.
    def __init__(self) -> None:
        self.threads: set[Any] = set()
        self.saved_values: dict[str, Any] = {}
        self.client_answers: dict[str, Any] = {}


class Dialogue:
    """The client requests (elicitation, sampling, roots) of one call, and the client's answers.

    A call has several rounds: a round ends when the client is asked, and the next one begins with
    its answers. Since MCP 2026-07-28, the handler runs from its start in each round.

    round: how many times the client was asked so far.
    state: bytes that the backend needs to continue the call (InputRequired.state).
    saved: the values that Context.once() computed, by key.
    unanswered: the client requests of this round that have no answer yet, by key.
    forwarded: the client requests in `unanswered` that come from another server, through a proxy:
        key -> the request as undecoded JSON. A client of MCP 2026-07-28 gets them unchanged.
    suspended: whether this round is over, so that the call must be answered with `input_required`.
        runtime/client_questions.py sets it.
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
        """Return the elicitationId of an elicitation with a URL (MCP 2025-11-25).

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
                # From now on the early answer belongs to this request.
                check_response(key, request.method, answer)
                self._answered[key] = request_digest, answer
            elif answered_digest != request_digest:
                # There is no answer, or only one to a different request.
                self.unanswered[key] = request
                continue
            answers[key] = answer
        return answers if len(answers) == len(requests) else None

    def add_answer(self, key: str, answer: Raw) -> None:
        """Add the client's response to a client request that was sent (before MCP 2026-07-28).

        key: the key of the request, which is in `unanswered`.
        Raises InvalidClientResponse for an answer of the wrong shape.
        """
        # A malformed answer ends the wait for this request, too.
        request = self.unanswered.pop(key)
        check_response(key, request.method, answer)
        self._answered[key] = _digest_request(request), answer

    def seal_state(
        self,
        seal: Seal,
        call_digest: bytes,
        state: bytes,
    ) -> str:
        """Return the `requestState` for the client: a token that contains this dialogue.

        The client sends the token back when it repeats the call with its answers.
        seal: signs the token.
        call_digest: the result of digest_call() for the call; only this call can use the token.
        state: bytes that the backend needs when the call is repeated. (The attribute `state` has
            the bytes of the earlier round.)
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
        return seal.create_token(content, call_digest)

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
        """Restore this dialogue from the content of a `requestState`, and add the client's answers.

        Answers to requests that were not sent in the last round are ignored.
        Raises InvalidClientResponse for an answer of the wrong shape. Raises InvalidState for
        content in another format, which another release of concertino may have sealed with the same
        key.
        """
        try:
            sealed = decode(content, type=_SealedDialogue)
        except DECODE_ERRORS:
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
        """Set the answers that a client has sent before it was asked, without a `requestState`.

        ask() uses such an answer for the first client request that has the key of the answer.
        """
        self._answered = {key: (ANY_REQUEST, answer) for key, answer in answers.items()}


def resume_dialogue(
    get_seal: Callable[[], Seal],
    token: str | None,
    answers: Mapping[str, Raw],
    get_call_digest: Callable[[], bytes],
) -> tuple[Dialogue, OpenedState | None]:
    """Restore the dialogue of a call that the client repeats with answers, a token, or both.

    Returns the dialogue, and the opened token, or None if there is no token. The caller must pass
    an opened token to use_state(), unless the server rejects the call as busy.
    get_seal: returns the Seal that opens the token.
    token: the call's `requestState`; None if it has none.
    answers: the call's `inputResponses`, by key.
    get_call_digest: returns digest_call() of the call.
    Raises RpcError -32602 for a token that is not acceptable, InvalidClientResponse for an answer
    of the wrong shape.
    """
    dialogue = Dialogue()
    if token is None:
        dialogue.accept_early_answers(answers)
        return dialogue, None
    try:
        opened = get_seal().open_token(token, get_call_digest())
        dialogue.resume(opened.content, answers)
    except InvalidState as exc:
        raise _refuse_state(exc) from None
    return dialogue, opened


def use_state(seal: Seal, opened: OpenedState) -> None:
    """Mark a `requestState` as used, so that no later call that sends it back is accepted.

    opened: the opened token, from resume_dialogue().
    Raises RpcError if another call has used the token since resume_dialogue() opened it, or if the
    shared record of used tokens cannot be read.
    """
    try:
        seal.mark_used(opened)
    except InvalidState as exc:
        raise _refuse_state(exc) from None


def _refuse_state(reason: InvalidState) -> RpcError:
    """Return the error for a call whose `requestState` is not acceptable."""
    return RpcError(INVALID_PARAMS, f"Invalid params: requestState: {reason}")


def digest_call(
    method: str,
    params: Mapping[str, Raw],
    principal: bytes,
    server: bytes = b"",
) -> bytes:
    """Return a digest of a call, to which the `requestState` of its result is bound.

    The server accepts the state only from a call with the same digest: the same caller must repeat
    the same call. Params that are equal as JSON values give the same digest.
    principal: the identity of the caller, b"" if the connection does not know it.
    server: the server's name.
    """
    try:
        canonical = encode(decode(encode(params)), order="sorted")
    except DECODE_ERRORS:
        # Deep nesting is allowed, but the decoder has a limit. Use the bytes of the params; equal
        # JSON with other whitespace then has another digest.
        canonical = encode(params)
    return digest(method.encode(), canonical, principal, server)


def check_response(key: str, method: str, answer: Raw) -> None:
    """Raise InvalidClientResponse if an answer is not a valid result for its method.

    key: the key of the answer, for the error.
    method: the method of the client request, for example `elicitation/create`. If the specification
        does not define it, every JSON value is a valid answer.
    """
    try:
        decode(answer, type=_ANSWER_TYPES.get(method, Any))
    except DECODE_ERRORS as exc:
        reason = describe_decode_error(exc, QUOTED_CHARS)
        raise InvalidClientResponse(
            f"{key[:QUOTED_CHARS]}: an answer to {method}: {reason}"
        ) from None


def _digest_request(request: InputRequest) -> str:
    """Return 16 characters that identify the method and params of a client request."""
    # The token contains this for each request, so it is short. Two equal digests would only let the
    # handler's own answer to another request with the same key pass.
    short = digest(request.method.encode(), request.params)[:12]
    return b2a_base64(short, newline=False).decode()
