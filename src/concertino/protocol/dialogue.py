"""What one call asks its client, and what it heard: the questions of this round, the answers of all rounds, the state between.

Before 2026-07-28 a question is a request of the server's, and one round is all there is. Since then the call ends with its
questions, and is made again with the answers; what was heard until then travels in a sealed state, so that nothing is kept for a
client that may never come back. An answer counts for the very question that it was given to: when a handler asks another under the
same key, that is asked anew. Answers that come without a state (a client may know what will be asked) count for whatever has
their key.
Spec: 2026-07-28 basic/patterns/mrtr, client/elicitation, client/sampling, client/roots; 2025-11-25 and older: the same pages.
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

INPUT_METHODS = frozenset(
    ("tools/call", "prompts/get", "resources/read")
)  # mrtr: what may be answered with input_required
MAX_ROUNDS = 16  # of one call
MAX_KEY = 128  # characters
SHOWN = 200  # characters of what came that are given back in an error
ANY = ""  # in the place of a question's digest: the answer came before the question

_ANSWERS: Mapping[str, Callable[[Raw], Any]] = {
    "elicitation/create": Decoder(ElicitResult).decode,
    "sampling/createMessage": Decoder(CreateMessageResult).decode,
    "roots/list": Decoder(ListRootsResult).decode,
}


class _Chain(Struct, array_like=True):
    """What a state holds. asked: key -> (method, digest) of the last round's questions. answered: key -> (digest, answer)."""

    round: int
    asked: dict[str, tuple[str, str]]
    answered: dict[str, tuple[str, Raw]]
    kept: dict[str, Raw]
    state: bytes


class Dialogue:
    """round: how many times the client was asked so far. state: the backend's own. kept: what `once` made."""

    def __init__(self) -> None:
        self.round = 0
        self.state = b""
        self.saved: dict[str, Raw] = {}
        self.unanswered: dict[str, InputRequest] = {}  # in this round, and not answered
        self.suspended = False  # this round is over: the answer is what was asked
        self.thread_waits: set[Any] = set()  # what threads wait for, to be cancelled with the call
        self.once_futures: dict[str, Any] = {}  # what `once` is making: key -> a future
        self.sent_futures: dict[
            str, Any
        ] = {}  # what the client is being asked (before 2026-07-28): key -> a future
        self._elicitation_ids: dict[str, str] = {}  # key -> the id of a visit to a URL (2025-11-25)
        self._answered: dict[str, tuple[str, Raw]] = {}
        self._digests: dict[
            str, str
        ] = {}  # key -> digest of every question of this round, answered or not
        self._numbered = 0

    @property
    def answers(self) -> dict[str, Raw]:
        """All answers so far, by key."""
        return {key: answer for key, (_, answer) in self._answered.items()}

    def next_key(self) -> str:
        """The key of a question that was given none: q1, q2 and so on, in the order of asking."""
        self._numbered += 1
        return f"q{self._numbered}"

    def elicitation_id(self, key: str) -> str:
        """The id of the visit to a URL that is asked for under this key. It says nothing, and nobody else has it."""
        from uuid import uuid4

        return self._elicitation_ids.setdefault(key, str(uuid4()))

    def ask(self, questions: Mapping[str, InputRequest]) -> dict[str, Raw] | None:
        """Return the answers, or None when one of them is still to come; then `asked` has grown.

        Raises ValueError for a key that another question has in this round, InvalidClientResponse for an answer of the wrong shape.
        """
        found: dict[str, Raw] = {}
        for key, question in questions.items():
            if not 0 < len(key) <= MAX_KEY:
                raise ValueError(
                    f"ask: key: expected 1 to {MAX_KEY} characters, got {key[:MAX_KEY]!r}"
                )
            mark = _request_digest(question)
            if self._digests.setdefault(key, mark) != mark:
                raise ValueError(
                    f"ask: key {key!r}: another question has it in this call; give each a key of its own"
                )
            known, answer = self._answered.get(key, (None, Raw()))
            if known == ANY:
                check_response(key, question.method, answer)
                self._answered[key] = mark, answer
            elif known != mark:
                self.unanswered[key] = question
                continue
            found[key] = answer
        return found if len(found) == len(questions) else None

    def add_answer(self, key: str, answer: Raw) -> None:
        """The client has answered at once (before 2026-07-28). Raises InvalidClientResponse for an answer of the wrong shape."""
        question = self.unanswered.pop(key)
        check_response(key, question.method, answer)
        self._answered[key] = _request_digest(question), answer

    def seal_state(self, seal: Seal, bound: bytes, state: bytes) -> str:
        """A token with all that the next round needs. Raises ValueError when it is too large, RpcError after MAX_ROUNDS."""
        self.count_round()
        asked = {key: (each.method, _request_digest(each)) for key, each in self.unanswered.items()}
        answered = {
            key: each for key, each in self._answered.items() if each[0] != ANY and key not in asked
        }  # what is asked anew has no answer yet, whatever had its key before
        return seal.create_token(
            encode(_Chain(self.round, asked, answered, self.saved, state)), bound
        )

    def count_round(self) -> None:
        """The client is asked once more. Raises RpcError when that was often enough."""
        self.round += 1
        if self.round > MAX_ROUNDS:
            text = f"Internal error: the client was asked {MAX_ROUNDS} times in one call, which is the limit"
            raise RpcError(INTERNAL_ERROR, text)

    def resume(self, content: bytes, answers: Mapping[str, Raw]) -> None:
        """Go on where a state says. Raises InvalidClientResponse for an answer of the wrong shape; those that nobody asked for are ignored.

        Raises InvalidState for what another release of this package has sealed with the same key.
        """
        try:
            chain = _chain(content)
        except DecodeError:
            raise InvalidState(NOT_OURS) from None
        self.round, self.saved, self.state, self._answered = (
            chain.round,
            chain.kept,
            chain.state,
            chain.answered,
        )
        for key, (method, mark) in chain.asked.items():
            if key in answers:
                check_response(key, method, answers[key])
                self._answered[key] = mark, answers[key]

    def accept_early_answers(self, answers: Mapping[str, Raw]) -> None:
        """Answers without a state: to questions that may come."""
        self._answered = {key: (ANY, answer) for key, answer in answers.items()}


_chain = Decoder(_Chain).decode


def resume_dialogue(
    seal: Callable[[], Seal],
    token: str | None,
    answers: Mapping[str, Raw],
    bound: Callable[[], bytes],
) -> tuple[Dialogue, OpenedState | None]:
    """The dialogue that a repeated call goes on with, and its state, to be spent when the call is accepted.

    Raises RpcError -32602 for a state that is not to be trusted, and for an answer of the wrong shape.
    """
    dialogue = Dialogue()
    if token is None:
        dialogue.accept_early_answers(answers)
        return dialogue, None
    try:
        sealed = seal().open_token(token, bound())
        dialogue.resume(sealed.content, answers)
    except InvalidState as why:
        raise RpcError(INVALID_PARAMS, f"Invalid params: requestState: {why}") from None
    return dialogue, sealed


def binding(method: str, params: Mapping[str, Raw], principal: bytes, server: bytes = b"") -> bytes:
    """What a state belongs to: this call, whatever the spelling of its params, by this caller, of this server."""
    try:
        canonical = encode(decode(encode(params)), order="sorted")
    except (DecodeError, RecursionError):  # too deep to be read; nothing says that it must be
        canonical = encode(params)
    return digest(method.encode(), canonical, principal, server)


def check_response(key: str, method: str, answer: Raw) -> None:
    """Raise InvalidClientResponse if an answer has not the shape that questions of this method have."""
    try:
        _ANSWERS[method](answer)
    except (DecodeError, RecursionError) as why:
        raise InvalidClientResponse(
            f"{key[:SHOWN]}: an answer to {method}: {str(why).replace('`', '')[:SHOWN]}"
        ) from None


def _request_digest(question: InputRequest) -> str:
    """Stands for a question."""
    return b2a_base64(
        digest(question.method.encode(), question.params)[:12], newline=False
    ).decode()


# What is asked, and of whom


def to_wire_request(question: ClientRequest) -> InputRequest:
    """A question as a method and its params. Raises ValueError for one that is not complete, or none at all."""
    if isinstance(question, ListRoots):
        return InputRequest("roots/list")
    if isinstance(question, Sampling):
        return InputRequest("sampling/createMessage", Raw(encode(question)))
    if isinstance(question, Elicitation):
        needed = "requested_schema" if question.mode == "form" else "url"
        if getattr(question, needed) is None:
            raise ValueError(f"ask: an Elicitation of mode {question.mode} needs {needed}")
        if question.mode == "form" and not isinstance(
            (question.requested_schema or {}).get("properties"), Mapping
        ):
            raise ValueError(
                "ask: an Elicitation of mode form needs a requested_schema with properties"
            )
        return InputRequest("elicitation/create", Raw(encode(question)))
    if question.method not in CLIENT_REQUESTS:
        raise ValueError(
            f"ask: expected one of {', '.join(CLIENT_REQUESTS)}, got {question.method[:SHOWN]!r}"
        )
    if kind := _KINDS.get(question.method):
        try:
            to_wire_request(decode(question.params, type=kind))
        except DecodeError as why:
            raise ValueError(
                f"ask: {question.method}: {str(why).replace('`', '')[:SHOWN]}"
            ) from None
    return question


_KINDS: Mapping[str, type[Elicitation | Sampling]] = {
    "elicitation/create": Elicitation,
    "sampling/createMessage": Sampling,
}


def downgrade_request(
    question: InputRequest, revision: Revision, client: ClientFacts, name: Callable[[], str]
) -> InputRequest:
    """A question as this client may be asked it. name: makes up the id that a visit to a URL has in 2025-11-25.

    Raises MissingCapability if it did not declare that it answers such a question, or its revision cannot carry it.
    """
    feature = CLIENT_REQUESTS[question.method]
    offered: Mapping[str, Any] | None = client.capabilities.get(feature)
    if not isinstance(offered, Mapping) or (feature == "elicitation" and not revision.elicitation):
        raise _missing_capability(client, {feature: {}})
    if feature == "roots":
        return InputRequest(question.method)
    params: dict[str, Any] = decode(question.params)
    params.pop("_meta", None)
    if feature == "sampling":
        _lower_sampling(params, revision, client, offered)
    else:
        _lower_elicitation(params, revision, client, offered, name)
    return InputRequest(question.method, Raw(encode(params)))


def _lower_sampling(
    params: dict[str, Any], revision: Revision, client: ClientFacts, offered: Mapping[str, Any]
) -> None:
    if ("tools" in params or "toolChoice" in params) and not (
        revision.visits and "tools" in offered
    ):
        raise _missing_capability(client, {"sampling": {"tools": {}}})
    if (
        params.get("includeContext", "none") != "none"
        and revision.visits
        and "context" not in offered
    ):
        raise _missing_capability(client, {"sampling": {"context": {}}})
    if not revision.visits:  # a message has one piece of content, of fewer kinds
        messages: list[dict[str, Any]] = params.get("messages", [])
        params["messages"] = parts = [
            {**message, "content": part}
            for message in messages
            for part in _as_list(message["content"])
        ]
        for kind in {each["content"]["type"] for each in parts} - {
            "text",
            "image",
            "audio" if revision.audio else "",
        }:
            required: dict[str, Any] = {} if kind == "audio" else {"tools": {}}
            raise MissingCapability(
                f"content of type {kind} is not part of {revision.name}", {"sampling": required}
            )


def _as_list(content: Any) -> list[Any]:
    return content if isinstance(content, list) else [content]  # pyright: ignore[reportUnknownVariableType]  # decoded JSON


def _lower_elicitation(
    params: dict[str, Any],
    revision: Revision,
    client: ClientFacts,
    offered: Mapping[str, Any],
    name: Callable[[], str],
) -> None:
    if params.get("mode", "form") == "url":
        if not revision.visits or "url" not in offered:
            raise _missing_capability(client, {"elicitation": {"url": {}}})
        if revision.modern:
            params.pop("elicitationId", None)
        else:
            params.setdefault("elicitationId", name())
        return
    if (
        revision.visits and "form" not in offered and "url" in offered
    ):  # an empty object means forms
        raise _missing_capability(client, {"elicitation": {"form": {}}})
    if not revision.visits:
        params.pop("mode", None)
        schema = params["requestedSchema"]
        fields: dict[str, dict[str, Any]] = schema["properties"]
        if multiple := next(
            (field for field, each in fields.items() if each.get("type") == "array"), None
        ):
            text = f"a field of several choices ({multiple}) is not part of {revision.name}"
            raise MissingCapability(text, {"elicitation": {"form": {}}})
        params["requestedSchema"] = {
            **schema,
            "properties": {key: _downgrade_field(each) for key, each in fields.items()},
        }


def _downgrade_field(field: dict[str, Any]) -> dict[str, Any]:
    """A field for 2025-06-18: no defaults but of truth values, and titles of choices beside them."""
    field = {
        key: value
        for key, value in field.items()
        if key != "default" or field.get("type") == "boolean"
    }
    if (choices := field.pop("oneOf", None)) is not None:
        field["enum"] = [each["const"] for each in choices]
        field["enumNames"] = [each["title"] for each in choices]
    return field


def _missing_capability(client: ClientFacts, required: dict[str, Any]) -> MissingCapability:
    [(feature, parts)] = required.items()
    what = ".".join((feature, *parts))
    return MissingCapability(
        f"the client {client.name[:SHOWN]!r} has not declared {what}", required
    )
