"""Subcalls: a tool that calls another tool of its server, in process.

Subcalls enter the outermost backend as a client's calls do: they pass every guard, and their
arguments are validated. They run in the task of the call that made them, so a cancellation reaches
them, and carry its trace context.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from typing import Any

from msgspec import UNSET, DecodeError, Raw, Struct, ValidationError, convert
from msgspec.json import decode, encode
from msgspec.structs import replace

from concertino.backend.interface import Backend, Call, Context, ContextWrapper, InputRequired
from concertino.errors import ProtocolError, ToolError
from concertino.runtime.tasks import DONE
from concertino.schema.json_values import encode_finite
from concertino.types.results import CallToolResult

__all__ = ["SubcallContext", "outermost"]

# How many calls may be nested. A tool that calls itself endlessly exceeds this limit.
MAX_DEPTH = 16
# How many subcalls one client's call may cause in all.
MAX_CALLS = 10_000
# How the text of a result in an envelope begins; see server/result_envelope.py.
ENVELOPE_START = '{\n  "success": true,\n  "data": '
# How many names an error shows at either end of a chain that is too long.
SHOWN = 3


class SubcallContext(ContextWrapper):
    """The context of a subcall, or the one that makes a client's call's first subcall.

    backend: the outermost backend.
    meta: the client's call's `_meta`, passed on for its trace context.
    chain: the names of the tools that call each other, the outermost first.
    count: holds the number of subcalls so far, shared by all inside one client's call.
    """

    def __init__(
        self,
        inner: Context,
        backend: Backend,
        meta: Mapping[str, Raw],
        chain: tuple[str, ...],
        count: list[int],
    ) -> None:
        super().__init__(inner)
        self._backend = backend
        self._meta = meta
        self._chain = chain
        self._count = count

    def progress(
        self,
        done: float,
        total: float | None = None,
        message: str | None = None,
    ) -> Awaitable[None]:
        # The client waits for the outer call, whose progress counts something else.
        return DONE

    def calling(self, context: Context) -> SubcallContext:
        """Return a context that makes subcalls of this one. context: around this one."""
        return SubcallContext(context, self._backend, self._meta, self._chain, self._count)

    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        into: Any = None,
    ) -> Any:
        """Call another tool. See backend.Context."""
        chain = (*self._chain, name)
        self._check_limits(chain)
        call = Call(
            "tools/call",
            {"name": Raw(encode(name)), "arguments": Raw(encode_finite(arguments or {}, name))},
            self._meta,
        )
        context = SubcallContext(self.inner, self._backend, self._meta, chain, self._count)
        task = asyncio.current_task()
        cancels = task.cancelling() if task is not None else 0

        answer = await self._backend.handle(call, context)
        for _ in range(MAX_DEPTH):
            if not isinstance(answer, InputRequired):
                break
            answers = await context.ask(answer.questions)
            answer = await self._backend.handle(
                Call(call.method, call.params, call.meta, answers, answer.state), context
            )

        result = _check_result(name, answer)
        # A cancellation is meant for all calls in this task. The inner tool may have caught it and
        # returned an error result, which must not hide it from the outer calls.
        if task is not None and task.cancelling() > cancels:
            raise asyncio.CancelledError
        return result if into is None else _convert_result(name, result, into)

    def _check_limits(self, chain: tuple[str, ...]) -> None:
        if len(chain) > MAX_DEPTH + 1:
            names = " > ".join((*chain[:SHOWN], "...", *chain[-SHOWN:]))
            raise ToolError(f"call_tool: more than {MAX_DEPTH} calls inside each other: {names}")
        self._count[0] += 1
        if self._count[0] > MAX_CALLS:
            raise ToolError(
                f"call_tool: {' > '.join(chain)}: more than {MAX_CALLS:,} calls inside one"
            )


def outermost(context: Context, backend: Backend, call: Call) -> SubcallContext:
    """Return the context that makes the subcalls of a client's call.

    context: the one that the subcalls are to have: the call's own, or one around it.
    """
    name = call.name if call.method == "tools/call" else None
    return SubcallContext(context, backend, call.meta, (name or call.method,), [0])


def _check_result(name: str, result: Struct | Raw) -> CallToolResult:
    """Return a tool's result, decoded. Raises ProtocolError if it is something else."""
    try:
        if isinstance(result, Raw):
            return decode(result, type=CallToolResult)
        if isinstance(result, CallToolResult):
            if isinstance(result.structured_content, Raw):
                return replace(result, structured_content=decode(result.structured_content))
            return result
    except DecodeError as exc:
        raise ProtocolError(f"tools/call {name}: expected the result of a tool: {exc}") from None
    raise ProtocolError(
        f"tools/call {name}: expected the result of a tool, got {type(result).__name__}"
    )


def _convert_result(name: str, result: CallToolResult, into: Any) -> Any:
    """Return a result as the type `into`, without its envelope if it has one.

    Raises ToolError with the text of an error result.
    """
    text = result.text
    if result.is_error:
        raise ToolError(text or f"{name} failed, and does not say why")
    content = result.structured_content
    try:
        if content is not UNSET:
            return convert(content, into)
        if text.startswith(ENVELOPE_START):
            return decode(decode(text, type=dict[str, Raw])["data"], type=into)
        return text if into is str else decode(text, type=into)
    except (DecodeError, ValidationError) as exc:
        kind = getattr(into, "__name__", into)
        raise ProtocolError(f"tools/call {name}: the result is no {kind}: {exc}") from None
