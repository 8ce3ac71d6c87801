"""Answers `input_required` results: what a server asks its client during a request.

Since 2026-07-28 such a result contains the questions. The client sends the request again with all
answers and with the state that the server gave it, until the result is complete.
Spec: 2026-07-28 basic/patterns/mrtr.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from msgspec import DecodeError, Raw, Struct
from msgspec.json import Decoder, encode

from concertino.client.pending_request import UnreadRequest, quote_frame, request_label
from concertino.client.request_handlers import RequestHandlers
from concertino.errors import Disconnected, ProtocolError
from concertino.logs.formats import escape_controls
from concertino.types.client_requests import InputRequiredResult
from concertino.types.results import Implementation

__all__ = ["InputRounds"]

# Only these methods may be answered with input_required (basic/patterns/mrtr).
METHODS_WITH_INPUT = frozenset(("tools/call", "prompts/get", "resources/read"))


class _ResultType(Struct, rename="camel"):
    result_type: str = "complete"


_decode_result_type = Decoder(_ResultType).decode
_decode_input_required = Decoder(InputRequiredResult).decode


class InputRounds:
    """Completes the results of requests. max_rounds: how often one request may ask for input."""

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
        """Answer the server's questions and return the complete result.

        raw: the first result. body: the params it belongs to. send: sends the request with other
        params. server: passed to the handlers. Raises ProtocolError for results of an unknown type,
        and if the server asks too often.
        """
        label = request_label(method, subject)
        for _ in range(self._max_rounds):
            question = _input_required(raw, method, label)
            if question is None:
                return raw
            try:
                raw = await send(await self._answer(body, question, server))
            except UnreadRequest as exc:
                # The server has begun with this call in an earlier round.
                raise Disconnected(str(exc), exc.exit_status, exc.stderr) from None
        if _input_required(raw, method, label) is None:
            return raw
        raise ProtocolError(
            f"{label}: the server asked for input {self._max_rounds} times and still asks"
        )

    async def _answer(
        self,
        body: bytes,
        question: InputRequiredResult,
        server: Implementation,
    ) -> bytes:
        """Return the params of the next round: the old ones, the answers, the server's state."""
        added: dict[str, Any] = {}
        if question.input_requests:
            answers: dict[str, Raw] = {}
            # One after the other, because a person may be asked.
            for key, request in question.input_requests.items():
                answer = await self._handlers.answer(request.method, request.params, server)
                answers[key] = Raw(answer)
            added["inputResponses"] = answers
        if bytes(question.request_state):
            added["requestState"] = question.request_state
        return b"%b,%b" % (body[:-1], encode(added)[1:])


def _input_required(raw: Raw, method: str, label: str) -> InputRequiredResult | None:
    """Return what the server asks for; None if the result is complete."""
    try:
        kind = _decode_result_type(raw).result_type
        if kind == "complete":
            return None
        if kind == "input_required" and method in METHODS_WITH_INPUT:
            question = _decode_input_required(raw)
            if question.input_requests or bytes(question.request_state):
                return question
            raise ProtocolError(
                f"{label}: the server asked for input without a question: {quote_frame(raw)}"
            )
    except (DecodeError, RecursionError) as exc:
        raise ProtocolError(f"{label}: expected a result, got {quote_frame(raw)}: {exc}") from None
    raise ProtocolError(
        f"{label}: a result of unknown type {escape_controls(kind[:100])!r}: {quote_frame(raw)}"
    )
