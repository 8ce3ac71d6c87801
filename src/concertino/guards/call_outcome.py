"""The outcome of a call for metrics and traces: its name, bounded, and its kind of failure.

Names follow the OpenTelemetry conventions for MCP (semantic conventions, GenAI, "MCP").
"""

from __future__ import annotations

import asyncio
from typing import Any

from msgspec import DecodeError, Raw, Struct
from msgspec.json import Decoder

from concertino.backend.interface import Call
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

BOUNDARIES_S = (
    0.01,
    0.02,
    0.05,
    0.1,
    0.2,
    0.5,
    1,
    2,
    5,
    10,
    30,
    60,
    120,
    300,
)  # of durations; the conventions' advice
OTHER = "_OTHER"
SERIES = 1000  # names, or combinations of labels, that are counted; a further one is _OTHER
NOBODY_HAS_IT = frozenset((INVALID_PARAMS, METHOD_NOT_FOUND, RESOURCE_NOT_FOUND))
REFUSED = frozenset(
    ("RATE_LIMIT_EXCEEDED", "TOO_MANY_IN_FLIGHT")
)  # by a guard, which may not know who has what
LONGEST_NAME = 256  # characters that are reported


class CallFailure(Struct, frozen=True):
    """How a call failed.

    kind: `error.type`. code: of an error response. is_unknown: perhaps no backend has an operation of
    this name; none has confirmed it.
    """

    kind: str
    code: int | None = None
    is_unknown: bool = False


class Names:
    """The names that are counted by themselves, at most SERIES; others are counted as OTHER.

    A name gets in when a backend has handled a call of it, so made-up names use no memory, whether
    the server does not know them or a guard refuses everything.
    """

    def __init__(self) -> None:
        self._known: set[str] = set()

    def count_as(self, name: str, failure: CallFailure | None) -> str:
        """Return the name to count a call under. failure: of the call, if it failed."""
        if (failure is None or not failure.is_unknown) and len(self._known) < SERIES:
            self._known.add(name)
        return name if name in self._known else OTHER


class _Result(Struct, frozen=True, rename="camel"):
    is_error: bool = False


class _Refusal(Struct, frozen=True):
    code: str = ""


_refusal = Decoder(_Refusal).decode
_result = Decoder(_Result).decode


def name_of(call: Call) -> str | None:
    """Return the name that a call is reported under; None if it names nothing."""
    name = call.name
    return None if name is None else name[:LONGEST_NAME]


def failure_of(error: BaseException) -> CallFailure:
    """Return the failure of a call that raised an exception."""
    if isinstance(error, RpcError):
        return CallFailure(
            str(error.code), error.code, error.code in NOBODY_HAS_IT or error.code == BUSY
        )
    return CallFailure(
        "cancelled" if isinstance(error, asyncio.CancelledError) else type(error).__qualname__
    )


def failure_of_result(call: Call, result: Any) -> CallFailure | None:
    """Return the failure of a call that returned: `tool_error` for an error result, else None."""
    if call.method != "tools/call":
        return None
    if isinstance(result, Raw):
        try:
            return CallFailure("tool_error") if _result(result).is_error else None
        except DecodeError:
            return None
    if not isinstance(result, CallToolResult) or not result.is_error:
        return None
    block = result.content[0] if result.content else None
    return CallFailure(
        "tool_error", is_unknown=isinstance(block, TextContent) and _is_refusal(block.text)
    )


def _is_refusal(text: str) -> bool:
    """Return whether an error text is a guard's refusal."""
    try:
        return text.startswith("{") and _refusal(text).code in REFUSED
    except (DecodeError, UnicodeError):
        return False
