"""The outcome of a call, for metrics and traces: the name of the tool, and the kind of failure.

metrics.py and telemetry.py use this module. The names of labels and attributes follow the
OpenTelemetry conventions for MCP (semantic conventions, GenAI, "MCP").
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from msgspec import Raw, Struct
from msgspec.json import Decoder

from concertino.backend.interface import Call
from concertino.decode_errors import DECODE_ERRORS
from concertino.errors import BUSY, INVALID_PARAMS, METHOD_NOT_FOUND, RESOURCE_NOT_FOUND, RpcError
from concertino.types.results import CallToolResult, TextContent

__all__ = [
    "BOUNDARIES_S",
    "OTHER",
    "SERIES",
    "CallFailure",
    "Names",
    "failure_of",
    "failure_of_result",
    "name_of",
]

# The bucket boundaries for durations that the conventions recommend.
BOUNDARIES_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300)
# At most this many names, or combinations of labels, are counted separately. All others are counted
# together as OTHER, so that clients cannot fill the memory with names that they invent.
SERIES = 1000
# The name for calls that are not counted separately, as in the OpenTelemetry conventions.
OTHER = "_OTHER"
# The longest name that is reported, in characters. Longer names are cut.
LONGEST_NAME = 256

# The codes of JSON-RPC errors of a backend that does not know a name.
UNKNOWN_NAME_CODES = frozenset((INVALID_PARAMS, METHOD_NOT_FOUND, RESOURCE_NOT_FOUND))
# The codes in the results with which guards refuse calls of tools. A guard does not know whether
# the called name exists.
REFUSAL_CODES = frozenset(("RATE_LIMIT_EXCEEDED", "TOO_MANY_IN_FLIGHT"))


class CallFailure(Struct, frozen=True):
    """The way in which a call failed.

    kind: the value of the attribute `error.type`:
        - `tool_error` for a tool result with isError;
        - the code of an error response, such as `-32602`;
        - `cancelled`;
        - the name of the class for any other exception.
    code: the code of the error response; None if there is none.
    is_unknown: whether the call may have failed before a backend has found the tool, prompt or
        resource. The client may then have invented the name.
    """

    kind: str
    code: int | None = None
    is_unknown: bool = False


class Names:
    """The names of operations or methods that are counted separately, at most SERIES of them.

    An operation is a tool, prompt or resource. All other names are counted as OTHER. A name is
    added when a backend has handled a call of it, so that a client cannot fill the memory with
    invented names.
    known: the names that are counted separately from the beginning. They count towards SERIES.
    """

    def __init__(self, known: Iterable[str] = ()) -> None:
        self._known = set(known)

    def __contains__(self, name: str) -> bool:
        """Return whether the name is already counted separately."""
        return name in self._known

    def count_as(self, name: str, failure: CallFailure | None) -> str:
        """Return the name under which a call is counted: `name`, or OTHER.

        If the call shows that the name exists, the name is counted separately from now on.
        name: the name in the call.
        failure: how the call has failed; None if it has succeeded.
        """
        exists = failure is None or not failure.is_unknown
        if exists and len(self._known) < SERIES:
            self._known.add(name)
        return name if name in self._known else OTHER


class _Result(Struct, frozen=True, rename="camel"):
    """The only field of a tool result that this module reads."""

    is_error: bool = False


class _Refusal(Struct, frozen=True):
    """The only field of a guard's refusal, which is JSON, that this module reads."""

    code: str = ""


_decode_refusal = Decoder(_Refusal).decode
_decode_result = Decoder(_Result).decode


def name_of(call: Call) -> str | None:
    """Return the name of the called tool or prompt, or the URI of the resource that is read.

    The name is cut to LONGEST_NAME characters. Returns None for other methods.
    """
    name = call.name
    return None if name is None else name[:LONGEST_NAME]


def failure_of(error: BaseException) -> CallFailure:
    """Return the failure of a call that raised an exception."""
    if isinstance(error, RpcError):
        # A guard that refuses a prompt or resource raises BUSY before any backend sees the name.
        is_unknown = error.code in UNKNOWN_NAME_CODES or error.code == BUSY
        return CallFailure(str(error.code), error.code, is_unknown)
    # Backends report unknown names with an RpcError, so here a handler was probably running.
    if isinstance(error, asyncio.CancelledError):
        return CallFailure("cancelled")
    return CallFailure(type(error).__qualname__)


def failure_of_result(call: Call, result: Any) -> CallFailure | None:
    """Return the failure that the result of a call reports; None if it reports none.

    Only the result of a tool with isError is a failure. Its kind is `tool_error`.
    result: the result of the backend, as a Struct or as JSON.
    """
    if call.method != "tools/call":
        return None
    # Guards refuse with a CallToolResult, so JSON is never a guard's refusal.
    if isinstance(result, Raw):
        try:
            return CallFailure("tool_error") if _decode_result(result).is_error else None
        except DECODE_ERRORS:
            return None
    if not isinstance(result, CallToolResult) or not result.is_error:
        return None
    block = result.content[0] if result.content else None
    is_unknown = isinstance(block, TextContent) and _is_refusal(block.text)
    return CallFailure("tool_error", is_unknown=is_unknown)


def _is_refusal(text: str) -> bool:
    """Return whether an error text is a guard's refusal."""
    try:
        return text.startswith("{") and _decode_refusal(text).code in REFUSAL_CODES
    except DECODE_ERRORS:
        return False
