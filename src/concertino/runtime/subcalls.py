"""Calls inside a call: a tool that calls another tool of its server, in process.

They go in at the front, like a client's: through every guard, with the arguments checked. They run in the task of the call
that made them, so that a cancellation reaches them, and carry its trace context.
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
from concertino.runtime.context import DONE, CallContext
from concertino.types.results import CallToolResult, TextContent

__all__ = ["SubcallContext", "outermost"]

MAX_DEPTH = 16  # calls inside each other; deeper is a tool that calls itself
MAX_CALLS = 10_000  # that one call_tool() of a client's call may bring about, its own included
SHOWN = 3  # names at either end of a chain that is too long


class SubcallContext(ContextWrapper):
    """The context of a call inside another. chain: the tools that are under way, the outermost first."""

    def __init__(
        self,
        inner: Context,
        backend: Backend,
        meta: Mapping[str, Raw],
        chain: tuple[str, ...],
        calls: list[int],
    ) -> None:
        super().__init__(inner)
        self._backend = backend
        self._meta = meta
        self._chain = chain
        self._calls = calls  # one number, shared by all inside one call

    def progress(
        self, done: float, total: float | None = None, message: str | None = None
    ) -> Awaitable[None]:
        return DONE  # the caller's progress counts something else

    def calling(self, context: Context) -> SubcallContext:
        """The same for a context around this one."""
        return SubcallContext(context, self._backend, self._meta, self._chain, self._calls)

    async def call_tool(
        self, name: str, arguments: Mapping[str, Any] | None = None, *, into: Any = None
    ) -> Any:
        """See backend.Context. Any: one of its overloads."""
        chain = (*self._chain, name)
        if len(chain) > MAX_DEPTH + 1:
            shown = (*chain[:SHOWN], "...", *chain[-SHOWN:])
            raise ToolError(
                f"call_tool: more than {MAX_DEPTH} calls inside each other: {' > '.join(shown)}"
            )
        self._calls[0] += 1
        if self._calls[0] > MAX_CALLS:
            raise ToolError(
                f"call_tool: {' > '.join(chain)}: more than {MAX_CALLS:,} calls inside one"
            )
        call = Call(
            "tools/call",
            {"name": Raw(encode(name)), "arguments": Raw(encode(arguments or {}))},
            self._meta,
        )
        within = SubcallContext(self.inner, self._backend, self._meta, chain, self._calls)
        task = asyncio.current_task()
        cancels = task.cancelling() if task is not None else 0
        answer = await self._backend.handle(call, within)
        for _ in range(MAX_DEPTH):
            if not isinstance(answer, InputRequired):
                break
            answers = await within.ask(answer.questions)
            answer = await self._backend.handle(
                Call(call.method, call.params, call.meta, answers, answer.state), within
            )
        result = _result(name, answer)
        if task is not None and task.cancelling() > cancels:
            raise asyncio.CancelledError  # the tool took it for its own failure; it is meant for all that are under way
        return result if into is None else _structured(name, result, into)


def outermost(own: CallContext, context: Context) -> SubcallContext:
    """What a client's call makes its calls with. context: the one they are to have, which is around the call's own."""
    call: Call = own.incoming.call
    name = call.params.get("name")
    chain = (
        (str(decode(name)),) if name is not None and call.method == "tools/call" else (call.method,)
    )
    return SubcallContext(context, own.link.backend, call.meta, chain, [0])


def _result(name: str, result: Struct | Raw) -> CallToolResult:
    try:
        if isinstance(result, Raw):
            return decode(result, type=CallToolResult)
        if isinstance(result, CallToolResult):
            if isinstance(result.structured_content, Raw):
                return replace(result, structured_content=decode(result.structured_content))
            return result
    except DecodeError as why:
        raise ProtocolError(f"tools/call {name}: expected the result of a tool: {why}") from None
    raise ProtocolError(
        f"tools/call {name}: expected the result of a tool, got {type(result).__name__}"
    )


def _structured(name: str, result: CallToolResult, into: Any) -> Any:
    text = "\n".join(block.text for block in result.content if isinstance(block, TextContent))
    if result.is_error:
        raise ToolError(text or f"{name} failed, and does not say why")
    found = result.structured_content
    try:
        if found is not UNSET:
            return convert(found, into)
        return text if into is str else decode(text, type=into)
    except (DecodeError, ValidationError) as why:
        raise ProtocolError(
            f"tools/call {name}: the result is no {getattr(into, '__name__', into)}: {why}"
        ) from None
