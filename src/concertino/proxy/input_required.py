"""`input_required` results of a server of 2026-07-28, as its proxy passes them on.

The server's state travels inside the proxy's own, which is sealed and bound to the caller. The
questions stay as they are, so that members which this package does not know reach the client.
Spec: 2026-07-28 basic/patterns/mrtr.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import DecodeError, Raw, Struct
from msgspec.json import Decoder, encode

from concertino.errors import INTERNAL_ERROR, RpcError, invalid_params
from concertino.protocol.call import Call, InputRequired

__all__ = ["restore", "to_input_required"]

# How nearly all servers begin a complete result.
COMPLETE = b'{"resultType":"complete"'
# The value of resultType, as it is in the JSON of every result that asks for input. Looking for it
# takes less time than decoding a long result.
ASKS = b'"input_required"'


NULL = Raw(b"null")


class _InputRequiredResult(Struct, rename="camel"):
    result_type: str = "complete"
    input_requests: dict[str, Raw] = {}
    request_state: Raw = NULL


class _State(Struct, array_like=True):
    """What the proxy's state holds: the keys of the round's questions, and the server's state."""

    asked: list[str]
    state: Raw


_decode_result = Decoder(_InputRequiredResult).decode
_decode_state = Decoder(_State).decode


def to_input_required(raw: Raw) -> InputRequired | None:
    """Return what a result asks; None if it is complete.

    Raises RpcError if it asks in a form that nobody could answer.
    """
    if memoryview(raw)[: len(COMPLETE)].tobytes() == COMPLETE or ASKS not in bytes(raw):
        return None
    try:
        result = _decode_result(raw)
    except DecodeError as exc:
        raise RpcError(INTERNAL_ERROR, f"Internal error: the server's question: {exc}") from None
    if result.result_type != "input_required":
        return None
    state = encode(_State(list(result.input_requests), result.request_state))
    return InputRequired(result.input_requests, state)


def restore(call: Call) -> Call:
    """Return a repeated call with the server's own state, and the answers to its last questions.

    The call of a client that answers in advance has no state, and is returned as it is.
    Raises RpcError for a state that is none of a proxy's.
    """
    if not call.state:
        return call
    try:
        known = _decode_state(call.state)
    except DecodeError:
        raise invalid_params("requestState: it is none of this proxy's") from None
    answers: Mapping[str, Raw] = {
        key: call.answers[key] for key in known.asked if key in call.answers
    }
    state = b"" if known.state == NULL else bytes(known.state)
    return Call(call.method, call.params, call.meta, answers, state)
