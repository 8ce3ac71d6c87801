"""What is decided of an operation that may be called, once; and what that means for each of its calls until they end.

A Plan is the Terms of its calls (runtime/call_hooks.py): whoever carries a call out, a driver or Guard itself, tells it the end.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any

from msgspec import UNSET, Raw, Struct

from concertino.errors import RpcError
from concertino.guards.operation_names import operation
from concertino.guards.rates import Window
from concertino.guards.refusals import refuse
from concertino.guards.secrets import without_secrets_error
from concertino.guards.sizes import AROUND, ESCAPED, LIMITED, OversizeStore, cut, size_of
from concertino.logs.redact import make_clean_check, redactor
from concertino.runtime.call_hooks import Permits
from concertino.types.results import CallToolResult, TextContent

__all__ = ["LEFT_OVER", "LeftOver", "OperationPolicy"]

LEFT_OVER = 1024  # calls that go on after their time
SHOWN = 128  # characters of a name, given back


class LeftOver:
    """Work that goes on although its call was answered, because its time was over. are_many: no more of it is begun."""

    __slots__ = ("are_many", "tasks")

    def __init__(self) -> None:
        self.tasks: set[asyncio.Task[None]] = set()
        self.are_many = False

    def add(self, task: asyncio.Task[None]) -> None:
        self.tasks.add(task)
        self.are_many = len(self.tasks) >= LEFT_OVER

    def remove(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        self.are_many = len(self.tasks) >= LEFT_OVER


class OperationPolicy:
    """method, name: of the operation. windows: its rates.

    stays: there is something to do until the end of a call, or at it. redact: nothing with a secret is answered.
    """

    __slots__ = (
        "_kept",
        "_max_bytes",
        "left_over",
        "method",
        "name",
        "passes",
        "redact",
        "slots",
        "stays",
        "timeout_s",
        "windows",
    )

    def __init__(
        self,
        method: str,
        name: str,
        windows: tuple[Window, ...],
        slots: Permits | None,
        timeout_s: float | None,
        max_bytes: int | None,
        redact: bool,
        kept: OversizeStore,
        left: LeftOver,
    ) -> None:
        self.method = method
        self.name = name
        self.windows = windows
        self.slots = slots
        self.timeout_s = timeout_s
        self._max_bytes = max_bytes
        self.redact = redact
        self.passes = _passing(max_bytes, redact)
        self._kept = kept
        self.left_over = None if timeout_s is None else left
        self.stays = bool(slots or timeout_s or self.passes)

    @property
    def shown(self) -> str:
        """The operation as people are told of it: without secrets, and not too long."""
        text = redactor().text(operation(self.method, self.name))
        return text if len(text) <= SHOWN else text[:SHOWN] + "..."

    # The end of a call

    def done(self, result: Any) -> Struct | Raw:
        """What is answered instead of what the backend gave, a Struct of whatever kind or Raw. Raises RpcError."""
        if self.passes is None:
            return result
        if (
            type(result) is CallToolResult
            and len(result.content) == 1
            and result.structured_content is UNSET
        ):
            block = result.content[0]
            if (
                type(block) is TextContent
                and (type(block.text) is str and block.annotations is None and block.meta is None)
                and (result.meta is None and self.passes(block.text))
            ):
                return result
        return self._finished(result)

    def failed(self, error: BaseException) -> BaseException:
        """What is answered instead of what the backend raised."""
        return (
            without_secrets_error(error) if self.redact and isinstance(error, RpcError) else error
        )

    def timed_out(self, task: asyncio.Task[None]) -> CallToolResult:
        """What a call is answered whose time is over. Its work goes on in this task, and keeps its slot, until left()."""
        if self.left_over is not None:
            self.left_over.add(task)
        return self.too_late()

    def left(self, task: asyncio.Task[None]) -> None:
        """The work of a call that had timed_out() is over as well."""
        if self.left_over is not None:
            self.left_over.remove(task)
        self.end()

    def end(self) -> None:
        """The work of a call is over."""
        if self.slots is not None:
            self.slots.free += 1

    def too_late(self) -> CallToolResult:
        """The answer of a call whose time is over. Raises RpcError."""
        return refuse(
            self.method,
            "TIMED_OUT",
            f"{self.shown} took longer than {self.timeout_s:g} s and was stopped.",
            "Ask for less at once, or try again later.",
            limitSeconds=self.timeout_s,
        )

    def _finished(self, result: Any) -> Struct | Raw:
        """A result without secrets and not too large."""
        if self.redact:
            result = redactor().value(result)
        most = self._max_bytes
        if (
            most is None
            or not isinstance(result, (Raw, *LIMITED))
            or (size := size_of(result)) <= most
        ):
            return result
        if self.method == "tools/call":
            return cut(result, self.name, size, most, self._kept)
        said = f"The result of {self.shown} has {size} bytes; {most} are allowed."
        return refuse(
            self.method, "RESULT_TOO_LARGE", said, "Ask for less.", limitBytes=most, sizeBytes=size
        )


def _passing(max_bytes: int | None, redact: bool) -> Callable[[str], bool] | None:
    """Whether a text is surely short enough and without secrets; None if nothing is asked of it."""
    if max_bytes is None:
        return make_clean_check(sys.maxsize) if redact else None
    most = (max_bytes - AROUND) // ESCAPED  # characters

    def short(text: str) -> bool:
        return len(text) <= most

    return make_clean_check(most) if redact else short
