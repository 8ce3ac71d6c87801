"""What came of a call, for those who count and time: its name, bounded, and its kind of failure.

Names of the OpenTelemetry conventions for MCP are used by both (opentelemetry.io, semantic conventions, GenAI, "MCP").
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
    """kind: `error.type`. code: of an error answer. is_unknown: perhaps nobody has what was named, for no backend has looked."""

    kind: str
    code: int | None = None
    is_unknown: bool = False


class Names:
    """The names that are counted by themselves, at most SERIES: a call of each came to a backend that has it. Others are OTHER.

    So whoever makes names up fills nothing, whether a server does not know them or a guard before it refuses everybody.
    """

    def __init__(self) -> None:
        self._known: set[str] = set()

    def counted(self, name: str, failure: CallFailure | None) -> str:
        """What a call of this name is counted as. failure: what came of it."""
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
    """What a call names, as far as it is reported."""
    name = call.name
    return None if name is None else name[:LONGEST_NAME]


def failure_of(error: BaseException) -> CallFailure:
    """Of a call that raised."""
    if isinstance(error, RpcError):
        return CallFailure(
            str(error.code), error.code, error.code in NOBODY_HAS_IT or error.code == BUSY
        )
    return CallFailure(
        "cancelled" if isinstance(error, asyncio.CancelledError) else type(error).__qualname__
    )


def failure_of_result(call: Call, result: Any) -> CallFailure | None:
    """Of one that returned: `tool_error` for a result that is an error."""
    if call.method != "tools/call":
        return None
    if isinstance(result, Raw):
        try:
            return CallFailure("tool_error") if _result(result).is_error else None
        except DecodeError:
            return None
    if not isinstance(result, CallToolResult) or not result.is_error:
        return None
    said = result.content[0] if result.content else None
    return CallFailure(
        "tool_error", is_unknown=isinstance(said, TextContent) and _is_refused(said.text)
    )


def _is_refused(text: str) -> bool:
    """Whether a guard says that it let nothing through."""
    try:
        return text.startswith("{") and _refusal(text).code in REFUSED
    except (DecodeError, UnicodeError):
        return False
