"""Converts `input_required` results between the server and the clients of a proxy.

A server of MCP 2026-07-28 asks its client with an `input_required` result. The proxy passes the
questions on undecoded, so that fields unknown to this package reach the client. Instead of the
server's `requestState`, the client gets a state of the proxy, which the proxy encrypts and binds to
the caller. There are two kinds:

- ServerState, if the server speaks 2026-07-28, contains the server's own state.
- ParkedState, if the server is older, contains the handle of the call, which goes on at the server
  while the client is asked (parked_calls.py).

Spec: 2026-07-28 basic/patterns/mrtr.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Raw, Struct
from msgspec.json import Decoder, encode

from concertino.decode_errors import DECODE_ERRORS
from concertino.errors import INTERNAL_ERROR, RpcError, invalid_params
from concertino.protocol.call import Call, InputRequired

__all__ = [
    "ParkedState",
    "ServerState",
    "make_parked_questions",
    "read_state",
    "to_input_required",
    "to_server_call",
]

# Nearly all servers write resultType first, so a complete result begins with these bytes.
COMPLETE = b'{"resultType":"complete"'
# The value of resultType in the JSON of every result that asks for input. Searching for these bytes
# takes less time than decoding a long result.
ASKS = b'"input_required"'
NULL = Raw(b"null")


class _InputRequiredResult(Struct, rename="camel"):
    """The fields of an `input_required` result that a proxy reads."""

    result_type: str = "complete"
    input_requests: dict[str, Raw] = {}
    request_state: Raw = NULL


class ServerState(Struct, array_like=True, tag="server"):
    """The `requestState` that a proxy gives its client if the server speaks 2026-07-28.

    asked: the keys of the server's last questions in `inputRequests`.
    state: the server's `requestState`, as JSON; `null` if the server has sent none.
    """

    asked: list[str]
    state: Raw


class ParkedState(Struct, array_like=True, tag="parked"):
    """The `requestState` that a proxy gives its client if the server is older than 2026-07-28.

    handle: the key of the call in ParkedCalls.
    """

    handle: bytes


_decode_result = Decoder(_InputRequiredResult).decode
_decode_state = Decoder(ServerState | ParkedState).decode


def to_input_required(raw: Raw) -> InputRequired | None:
    """Return the questions in an `input_required` result of the server; None for any other result.

    The state of the InputRequired is a ServerState.
    raw: the server's result, undecoded.
    Raises RpcError if the questions are malformed.
    """
    # Nearly all results are complete. Recognize them without decoding or copying a long result.
    if memoryview(raw)[: len(COMPLETE)].tobytes() == COMPLETE or ASKS not in bytes(raw):
        return None
    try:
        result = _decode_result(raw)
    except DECODE_ERRORS as exc:
        raise RpcError(INTERNAL_ERROR, f"Internal error: the server's question: {exc}") from None
    if result.result_type != "input_required":
        return None
    state = encode(ServerState(list(result.input_requests), result.request_state))
    return InputRequired(result.input_requests, state)


def make_parked_questions(questions: Mapping[str, Raw], handle: bytes) -> InputRequired:
    """Return an InputRequired with the questions of a parked call, and a ParkedState as its state.

    A parked call goes on at the server while the client is asked.
    questions: key -> the question, as a member of `inputRequests`.
    handle: the key of the call in ParkedCalls.
    """
    return InputRequired(questions, encode(ParkedState(handle)))


def read_state(state: bytes) -> ServerState | ParkedState:
    """Decode the `requestState` that a client has sent back with its answers.

    Raises RpcError if it is not a state of a proxy.
    """
    try:
        return _decode_state(state)
    except DECODE_ERRORS:
        raise invalid_params("requestState: not one of this proxy's") from None


def to_server_call(call: Call, state: ServerState) -> Call:
    """Return the call that the server gets when a client repeats its call with answers.

    The result has the server's own `requestState`, and only the answers to the server's last
    questions.
    call: the client's call, with its answers.
    state: the state in this call, decoded by read_state().
    """
    answers: Mapping[str, Raw] = {
        key: call.answers[key] for key in state.asked if key in call.answers
    }
    server_state = b"" if state.state == NULL else bytes(state.state)
    return Call(call.method, call.params, call.meta, answers, server_state)
