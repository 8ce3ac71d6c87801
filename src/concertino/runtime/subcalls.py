"""Implements Context.call_tool(): a handler calls another tool of the same server.

    @server.tool
    async def report(context: Context) -> str:
        total = await context.call_tool("add", {"a": 1, "b": 2}, into=int)

Such a call is called a subcall here. It enters the outermost backend, as calls from clients do, so
every guard applies and the arguments are validated. It runs in the task of the handler that makes
the subcall, so cancelling the handler cancels the subcall as well. A subcall has the same `_meta`
as the client's call, and therefore the same trace context.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from typing import Any

from msgspec import UNSET, Raw, Struct, convert
from msgspec.json import decode, encode
from msgspec.structs import replace

from concertino.backend.call_hooks import argument_verdict
from concertino.backend.interface import DONE, Backend, Call, Context, InputRequired
from concertino.backend.wrappers import ContextWrapper
from concertino.decode_errors import DECODE_ERRORS
from concertino.errors import ProtocolError, ToolError
from concertino.schema.json_values import encode_finite
from concertino.types.results import CallToolResult

__all__ = ["SubcallContext", "make_subcall_context"]

# How many subcalls may be nested, which limits a tool that calls itself without end.
MAX_DEPTH = 16
# How many times one subcall may return InputRequired, which asks the client.
MAX_QUESTION_ROUNDS = 16
# How many subcalls may come from one subcall of a client's call. Counted are that subcall, the
# subcalls of its tool, and so on. This limits a tool that calls itself several times.
MAX_CALLS = 10_000
# The beginning of a tool's text with Server(envelope=True); see server/result_envelope.py.
ENVELOPE_START = '{\n  "success": true,\n  "data": '
# How many names the error about too many nested calls shows from each end of the chain.
SHOWN_NAMES = 3


class SubcallContext(ContextWrapper):
    """A Context whose call_tool() calls tools of the same server.

    The called tool gets another SubcallContext. progress() sends nothing. All other methods are
    forwarded to `inner`.

    inner: the context of the client's call, or a wrapper around it.
    backend: the outermost backend, with all guards, which handles the subcalls.
    meta: the `_meta` of the client's call, passed on for its trace context.
    chain: the names of the tools that call each other; the tool of the client's call comes first.
    count: a list with one item, the number of subcalls so far. It is a list because the contexts of
        all subcalls inside one another share it.
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
        # Send nothing. The client would take it for progress of the tool that it called itself.
        return DONE

    def subcall_context(self, context: Context) -> SubcallContext:
        """Return a SubcallContext whose subcalls use `context`, with the same limits.

        context: this context, or a wrapper around it. The called tools use `context` for everything
            except call_tool(). A wrapper passes itself, so that it sees their log messages.
        """
        return SubcallContext(context, self._backend, self._meta, self._chain, self._count)

    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        into: Any = None,
    ) -> Any:
        """Call another tool of the same server, in this process.

        arguments: the arguments of the tool; None for no arguments.
        into: the type to which the result is converted; None for a CallToolResult.

        Raises RpcError for an unknown tool, and ToolError for more than 16 nested calls (MAX_DEPTH)
        or more than 10,000 calls inside one (MAX_CALLS). With `into`, raises ToolError with the
        text of the result if the tool has failed, and ProtocolError if the result does not fit.
        """
        chain = (*self._chain, name)
        self._count_subcall(chain)
        call = Call(
            "tools/call",
            {"name": Raw(encode(name)), "arguments": Raw(encode_finite(arguments or {}, name))},
            self._meta,
        )
        context = SubcallContext(self.inner, self._backend, self._meta, chain, self._count)
        task = asyncio.current_task()
        # If this number grows during the subcall, the task was cancelled.
        cancels_before = task.cancelling() if task is not None else 0

        # This variable tells a guard whether the arguments of the call that it guards were refused.
        # A refusal of the arguments of a subcall must not count for the outer call.
        outer = argument_verdict.get()
        argument_verdict.set(None)
        try:
            answer = await self._handle(call, context)
        finally:
            argument_verdict.set(outer)

        result = _check_result(name, answer)
        # The task was cancelled while the inner tool ran. Even if that tool has caught the
        # CancelledError and returned a result, the outer tool must be cancelled.
        if task is not None and task.cancelling() > cancels_before:
            raise asyncio.CancelledError
        return result if into is None else _convert_result(name, result, into)

    async def _handle(self, call: Call, context: SubcallContext) -> Struct | Raw:
        """Handle a subcall with the outermost backend. If the tool needs input, ask the client."""
        answer = await self._backend.handle(call, context)
        for _ in range(MAX_QUESTION_ROUNDS):
            if not isinstance(answer, InputRequired):
                break
            answers = await context.ask(answer.questions)
            answer = await self._backend.handle(
                Call(call.method, call.params, call.meta, answers, answer.state), context
            )
        return answer

    def _count_subcall(self, chain: tuple[str, ...]) -> None:
        """Count one more subcall. Raises ToolError if there are too many or they nest too deeply.

        chain: the names of the tools that call each other, including the tool of this subcall.
        """
        # The first name is the tool of the client's call, which is no subcall.
        if len(chain) > MAX_DEPTH + 1:
            names = " > ".join((*chain[:SHOWN_NAMES], "...", *chain[-SHOWN_NAMES:]))
            raise ToolError(f"call_tool: more than {MAX_DEPTH} calls inside each other: {names}")
        self._count[0] += 1
        if self._count[0] > MAX_CALLS:
            raise ToolError(
                f"call_tool: {' > '.join(chain)}: more than {MAX_CALLS:,} calls inside one"
            )


def make_subcall_context(context: Context, backend: Backend, call: Call) -> SubcallContext:
    """Return the context with which the handler of a client's call calls other tools (subcalls).

    context: the context of the call, or a wrapper around it.
    backend: the outermost backend, with all guards, which handles the subcalls.
    call: the call of the client.
    """
    name = call.name if call.method == "tools/call" else None
    return SubcallContext(context, backend, call.meta, (name or call.method,), [0])


def _check_result(name: str, result: Struct | Raw) -> CallToolResult:
    """Return a subcall's result as a CallToolResult.

    name: the name of the tool, for the error.
    Raises ProtocolError if the result is not the result of a tool.
    """
    try:
        if isinstance(result, Raw):
            return decode(result, type=CallToolResult)
        if isinstance(result, CallToolResult):
            if isinstance(result.structured_content, Raw):
                return replace(result, structured_content=decode(result.structured_content))
            return result
    except DECODE_ERRORS as exc:
        raise ProtocolError(f"tools/call {name}: expected the result of a tool: {exc}") from None
    raise ProtocolError(
        f"tools/call {name}: expected the result of a tool, got {type(result).__name__}"
    )


def _convert_result(name: str, result: CallToolResult, into: Any) -> Any:
    """Return a tool's result as an object of the type `into`.

    The object is made from the structured content. If there is none, the text is decoded as JSON;
    for the type str, the text itself is returned. If the text is an envelope
    (server/result_envelope.py), only its member `data` is used.
    Raises ToolError with the tool's text if the tool failed, and ProtocolError if the result does
    not fit the type.
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
    except DECODE_ERRORS as exc:
        kind = getattr(into, "__name__", into)
        raise ProtocolError(f"tools/call {name}: the result is no {kind}: {exc}") from None
