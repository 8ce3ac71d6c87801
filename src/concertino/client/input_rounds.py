"""InputRounds: answers the questions that a server asks before it finishes a request (2026-07-28).

The server asks with an `input_required` result, which contains questions (requests such as
elicitations) and a state. The client then sends its own request again, with its answers and this
state. This is one round. The rounds end when a result is complete.
Spec: 2026-07-28 basic/patterns/mrtr.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from msgspec import Raw, Struct
from msgspec.json import Decoder, encode

from concertino.client.channel_ending import UnreadRequest
from concertino.client.pending_request import quote_frame, request_label
from concertino.client.request_handlers import RequestHandlers
from concertino.decode_errors import DECODE_ERRORS
from concertino.errors import Disconnected, ProtocolError
from concertino.logs.formats import escape_controls
from concertino.types.client_requests import InputRequiredResult
from concertino.types.results import Implementation

__all__ = ["InputRounds"]

# The methods whose response may be input_required (basic/patterns/mrtr).
METHODS_WITH_INPUT = frozenset(("tools/call", "prompts/get", "resources/read"))


class _ResultType(Struct, rename="camel"):
    """The type of a result."""

    result_type: str = "complete"


_decode_result_type = Decoder(_ResultType).decode
_decode_input_required = Decoder(InputRequiredResult).decode


class InputRounds:
    """Answers the server's `input_required` results until the result of a request is complete.

    handlers: the object that answers the server's questions, with the user's functions.
    max_rounds: how many times the server may ask during one request.
    """

    def __init__(self, handlers: RequestHandlers, max_rounds: int) -> None:
        self._handlers = handlers
        self._max_rounds = max_rounds

    async def complete(
        self,
        raw: Raw,
        method: str,
        subject: str,
        body: bytes,
        send: Callable[[bytes], Awaitable[Raw]],
        server: Implementation,
    ) -> Raw:
        """Return the complete result of a request. If the server asks questions first, answer them.

        raw: the first result of the request.
        method: the method of the request.
        subject: the name or URI in the request, for errors; "" if there is none.
        body: the params of the request, without `_meta`.
        send: an async function send(body) that sends the request again with these params, and
            returns the result.
        server: the server's name and version, for the user's functions.
        Raises
        - ProtocolError for a result of unknown type, and if the server asks too often,
        - RpcError if a question cannot be answered,
        - the errors of `send`.
        """
        label = request_label(method, subject)
        for _ in range(self._max_rounds):
            required = _input_required(raw, method, label)
            if required is None:
                return raw
            try:
                raw = await send(await self._answer(body, required, server))
            except UnreadRequest as exc:
                # The request must not be sent again from its start, because the server has worked
                # on it in an earlier round.
                raise Disconnected(str(exc), exc.exit_status, exc.stderr) from None
        if _input_required(raw, method, label) is None:
            return raw
        raise ProtocolError(
            f"{label}: the server asked for input {self._max_rounds} times and still asks"
        )

    async def _answer(
        self,
        body: bytes,
        required: InputRequiredResult,
        server: Implementation,
    ) -> bytes:
        """Return the params for the next round: `body` with the answers and the state added."""
        # input_requests is a dict of key -> question. The answers get the same keys.
        added: dict[str, Any] = {}
        if required.input_requests:
            answers: dict[str, Raw] = {}
            # Answer one question after the other, because a person may have to answer them.
            for key, question in required.input_requests.items():
                answer = await self._handlers.answer(question.method, question.params, server)
                answers[key] = Raw(answer)
            added["inputResponses"] = answers
        if bytes(required.request_state):
            added["requestState"] = required.request_state
        # Join the two JSON objects. Neither is empty: the methods with input have params, and
        # `required` has questions or a state.
        return b"%b,%b" % (body[:-1], encode(added)[1:])


def _input_required(raw: Raw, method: str, label: str) -> InputRequiredResult | None:
    """Return a result as InputRequiredResult, which has the questions; None if it is complete.

    label: the method and subject of the request, for errors.
    Raises ProtocolError if the result is neither complete nor `input_required`, or if it is
    `input_required` for a method that does not allow it.
    """
    try:
        kind = _decode_result_type(raw).result_type
        if kind == "complete":
            return None
        if kind == "input_required" and method in METHODS_WITH_INPUT:
            required = _decode_input_required(raw)
            if required.input_requests or bytes(required.request_state):
                return required
            raise ProtocolError(
                f"{label}: the server asked for input without a question: {quote_frame(raw)}"
            )
    except DECODE_ERRORS as exc:
        raise ProtocolError(f"{label}: expected a result, got {quote_frame(raw)}: {exc}") from None
    raise ProtocolError(
        f"{label}: a result of unknown type {escape_controls(kind[:100])!r}: {quote_frame(raw)}"
    )
