"""Long operations: a tool that takes its time answers with a handle, and is asked again by it.

    operations = Operations(server)

    @operations.tool(message="Rendering...", estimated_time="5 minutes")
    async def render(scene: str, context: Context) -> str: ...

What is done within answer_after_s seconds is answered as by any other tool. Else the answer is `{"status": "in_progress",
"message", "estimatedTime", "operationId"}`, the work goes on, and the tools get_operation and cancel_operation, which come with
the first Operations of a server, are how a client asks for it. The handle is all that ties them together: it works from any
connection and in every revision, and whoever has it may ask, so it cannot be guessed (2026-07-28 "Explicit State Handles").
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import CancelledError as ThreadCancelled
from concurrent.futures import Future
from functools import partial
from inspect import Parameter, Signature
from threading import get_ident
from typing import Annotated, Any, Literal, TypeVar, cast, overload

from msgspec import Meta, Raw
from msgspec.json import encode

from concertino.backend.interface import Context, ContextWrapper
from concertino.errors import RegistrationError, ToolError
from concertino.runtime.threads import Threads
from concertino.schema.return_values import InvalidResult, chunk_shaper, is_generator, result_shaper
from concertino.schema.signature import read_signature
from concertino.server.functions import Handler, HandlerCall, call_handler, is_async, lacks_self
from concertino.server.server import Server
from concertino.server.settings import check_positive
from concertino.server.streaming import collect_chunks
from concertino.server.tool_errors import describe_exception, error_result, tool_error_result
from concertino.types.results import CallToolResult, TextContent

__all__ = ["Operations"]

log = logging.getLogger("concertino.operations")
H = TypeVar("H", bound=Handler)
T = TypeVar("T")
Work = Callable[[], Awaitable[Any]]
Run = Callable[[Context, tuple[Any, ...], dict[str, Any]], Awaitable[Any]]
MAX_WAIT_S = 60.0  # that get_operation waits for an end: what most clients allow a call
MAX_HANDLE = 100  # characters of one that came
CLEANUP_S = 1.0  # for operations that the end of the server has cut off
State = Literal["in_progress", "completed", "failed", "cancelled", "timed_out"]


class Operations:
    """The long operations of one server.

    at_most: how many run at once; one more is refused with the code TOO_MANY_OPERATIONS. limit_s: seconds after which one is
    cancelled. kept_s: seconds for which a result is kept after its end; kept, max_kept_bytes: how many, and of what size together:
    beyond either the oldest go. clock: seconds, steady.
    Raises ValueError for what is not positive, RegistrationError once the server has started.
    """

    def __init__(
        self,
        server: Server,
        *,
        at_most: int = 64,
        limit_s: float = 3600.0,
        kept_s: float = 600.0,
        kept: int = 256,
        max_kept_bytes: int = 64 * 2**20,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        sizes = {
            "at_most": at_most,
            "limit_s": limit_s,
            "kept_s": kept_s,
            "kept": kept,
            "max_kept_bytes": max_kept_bytes,
        }
        check_positive("operations", sizes)
        self._server = server
        self._at_most = at_most
        self._limit_s = limit_s
        self._kept_s = kept_s
        self._kept = kept
        self._max_kept_bytes = max_kept_bytes
        self._clock = clock
        self._operations: dict[
            str, _Operation
        ] = {}  # what has ended, in the order of its end, and what runs
        self._threads = Threads(at_most)
        server.lifespan(self._living)
        server.add_tool(self._get, name="get_operation", read_only=True)
        server.add_tool(self._cancel, name="cancel_operation", idempotent=True)

    @overload
    def tool(self, handler: H) -> H: ...
    @overload
    def tool(
        self,
        *,
        message: str = ...,
        estimated_time: str | None = ...,
        answer_after_s: float = ...,
        inline: bool = ...,
        **settings: Any,
    ) -> Callable[[H], H]: ...
    def tool(
        self,
        handler: Any = None,
        *,
        message: str = "Working...",
        estimated_time: str | None = None,
        answer_after_s: float = 1.0,
        inline: bool = False,
        **settings: Any,
    ) -> Any:
        """ServerFeatures a function as a tool that may take long; gives the function back.

        message: what the first answer says, until the function tells a text of its progress. estimated_time: for people, such as
        "30 seconds". answer_after_s: how long the call waits for the result before it answers with a handle; 0: never.
        The function may be anything that Server.tool takes, a generator too; settings are the rest of add_tool's. No output schema
        is shown, since the answer may be of two kinds; the result is of the function's own type nevertheless.
        Its Context tells progress to whoever waits for it now; questions to the client have to be asked before.
        Raises RegistrationError for what cannot be offered, and ValueError for a time that is none.
        """
        if not 0 <= answer_after_s < float("inf"):
            raise ValueError(f"answer_after_s: expected 0 or more seconds, got {answer_after_s!r}")

        def decorate(handler: Any) -> Any:
            self._add(handler, _Told(message, estimated_time), answer_after_s, inline, settings)
            return handler

        return decorate if handler is None else decorate(handler)

    def _add(
        self,
        handler: Any,
        told_first: _Told,
        answer_after_s: float,
        inline: bool,
        settings: dict[str, Any],
    ) -> None:
        name = str(settings.pop("name", None) or getattr(handler, "__name__", ""))
        if (
            not callable(handler)
            or lacks_self(handler)
            or "input_schema" in settings
            or "output_schema" in settings
        ):
            raise RegistrationError(
                f"{name or handler!r}: expected a function or a bound method, without schemas written by hand"
            )
        shape = (chunk_shaper if is_generator(handler) else result_shaper)(
            handler, inject=(Context,)
        ).shape
        run = self._runner(handler, inline)
        signature, own = _with_context(handler)

        async def start(*args: Any, **kwargs: Any) -> CallToolResult:
            bound = signature.bind(*args, **kwargs)
            context: Context = bound.arguments[_CONTEXT if own is None else own]
            operation = self._new(name, context, told_first)
            if own is None:
                del bound.arguments[_CONTEXT]
            else:
                bound.arguments[own] = operation.context
            self._begin(operation, partial(run, operation.context, bound.args, bound.kwargs), shape)
            try:
                await operation.attended(context, answer_after_s)
            except asyncio.CancelledError:
                operation.end("cancelled")  # nobody knows its handle
                self._operations.pop(operation.id, None)
                raise
            if operation.state != "in_progress":
                self._operations.pop(operation.id, None)
            return self._answer(operation)

        start.__name__ = start.__qualname__ = name
        start.__doc__ = handler.__doc__
        start.__annotations__ = {
            each.name: each.annotation for each in signature.parameters.values()
        }
        start.__annotations__["return"] = CallToolResult
        cast("Any", start).__signature__ = signature
        self._server.add_tool(start, name=name, **settings)

    def _runner(self, handler: Any, inline: bool) -> Run:
        if is_generator(handler):
            return collect_chunks(handler, _unbound, None if inline else self._in_thread)[0]
        function = HandlerCall(handler, is_async(handler), inline)

        async def run(context: Context, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            return await call_handler(function, (args, kwargs), self._in_thread)

        return run

    async def _in_thread(self, function: Callable[[], Any]) -> Any:
        return await self._threads.run(function)

    # One operation

    def _new(self, name: str, context: Context, told_first: _Told) -> _Operation:
        self._sweep()
        running = sum(each.state == "in_progress" for each in self._operations.values())
        if running >= self._at_most:
            raise ToolError(
                "TOO_MANY_OPERATIONS",
                f"{running} operations are running; no more are started meanwhile",
                suggestion="Wait until one of them has ended, or cancel one with cancel_operation",
            )
        operation = _Operation(name, context, told_first)
        self._operations[operation.id] = operation
        return operation

    def _begin(
        self, operation: _Operation, work: Work, shape: Callable[[Any], CallToolResult]
    ) -> None:
        operation.task = task = asyncio.create_task(
            _carried(operation, work, shape), name="concertino operation"
        )
        timer = asyncio.get_running_loop().call_later(self._limit_s, operation.end, "timed_out")

        def ended(task: asyncio.Task[None]) -> None:
            timer.cancel()
            if (
                not task.cancelled() and (error := task.exception()) is not None
            ):  # a `finally` that fails, for instance
                log.error(
                    "operation %s failed while it was cancelled", operation.name, exc_info=error
                )
            operation.ended_at = self._clock()
            operation.listeners = ()
            del operation.context  # it holds the message that began this
            if operation.state == "in_progress":
                operation.end(
                    "failed"
                    if operation.result is None or operation.result.is_error
                    else "completed"
                )
            if self._operations.pop(operation.id, None) is not None:  # to the end of the order
                self._operations[operation.id] = operation
                self._sweep()

        task.add_done_callback(ended)

    def _sweep(self) -> None:
        """Forget results that are too old, or too many."""
        over = [each for each in self._operations.values() if each.ended_at is not None]
        count, size, now = len(over), sum(each.size for each in over), self._clock()
        for each in over:
            too_old = each.ended_at is not None and now - each.ended_at >= self._kept_s
            if not too_old and count <= self._kept and size <= self._max_kept_bytes:
                return
            del self._operations[each.id]
            count, size = count - 1, size - each.size

    def _find(self, handle: str) -> _Operation:
        self._sweep()
        operation = self._operations.get(handle)
        if operation is None:
            raise ToolError(
                "OPERATION_NOT_FOUND",
                f"There is no operation {handle[:MAX_HANDLE]!r}",
                suggestion=f"Results are kept for {self._kept_s:g} seconds after the end; if this one is gone, call its tool again",
            )
        return operation

    def _answer(self, operation: _Operation) -> CallToolResult:
        if operation.state == "cancelled":
            raise ToolError(
                "OPERATION_CANCELLED",
                f"{operation.name} was cancelled",
                suggestion=f"Call {operation.name} again if it is still wanted",
            )
        if operation.state == "timed_out":
            raise ToolError(
                "OPERATION_TIMED_OUT",
                f"{operation.name} was cancelled after {self._limit_s:g} seconds",
                suggestion="Ask for less at once",
            )
        return _as_json(operation.shown()) if operation.result is None else operation.result

    # The tools

    async def _get(
        self,
        operationId: str,  # noqa: N803  # as the answer calls it
        context: Context,
        waitSeconds: Annotated[float, Meta(ge=0, le=MAX_WAIT_S)] = 0,  # noqa: N803
    ) -> CallToolResult:
        """Ask for an operation that was in progress: its result, or how far it is.

        Args:
            operationId: as the answer that said "in_progress" gave it.
            waitSeconds: for how long to wait for the end before answering that it is still in progress.
        """
        operation = self._find(operationId)
        await operation.attended(context, waitSeconds)
        return self._answer(operation)

    async def _cancel(self, operationId: str) -> CallToolResult:  # noqa: N803
        """Stop an operation that is in progress. One that has ended stays as it is.

        Args:
            operationId: as the answer that said "in_progress" gave it.
        """
        operation = self._find(operationId)
        operation.end("cancelled")
        return _as_json({"status": operation.state, "operationId": operation.id})

    async def _living(self) -> AsyncIterator[None]:
        self._threads = Threads(self._at_most)
        yield
        running = [each for each in self._operations.values() if each.state == "in_progress"]
        for each in running:
            each.end("cancelled")
        if running:
            log.warning("%d operations were cut off", len(running))
            await asyncio.wait([each.task for each in running], timeout=CLEANUP_S)
        self._operations.clear()
        self._threads.close()


class _Told:
    """What an operation says of itself before it has told of its progress."""

    def __init__(self, message: str, estimated_time: str | None) -> None:
        self.message = message
        self.estimated_time = estimated_time


class _Operation:
    """One call of a tool that may take long. listeners: contexts of calls that wait for it now."""

    def __init__(self, name: str, context: Context, told_first: _Told) -> None:
        self.id = "op_" + os.urandom(16).hex()
        self.name = name
        self.state: State = "in_progress"
        self.context = _Detached(context, self)
        self.task: asyncio.Task[None]
        self.result: CallToolResult | None = None
        self.size = 0
        self.ended_at: float | None = None
        self.progress: tuple[float, float | None] | None = None
        self.message = told_first.message
        self._estimated_time = told_first.estimated_time
        self.listeners: tuple[Context, ...] = ()  # replaced by each change: threads read it
        self.loop = asyncio.get_running_loop()
        self.thread = get_ident()
        self.waits: set[Future[Any]] = set()  # of its thread, for what runs on the loop

    def end(self, state: State) -> None:
        """Once; what is still under way is cancelled."""
        if self.state == "in_progress":
            self.state = state
            self.task.cancel()
            for each in tuple(self.waits):
                each.cancel()

    async def attended(self, context: Context, for_s: float) -> None:
        """Wait for the end, at most so long; the caller is told of the progress meanwhile."""
        if self.progress is not None:
            context.progress(*self.progress, self.message)
        if self.task.done() or not for_s:
            return
        self.listeners = (*self.listeners, context)
        try:
            await asyncio.wait([self.task], timeout=for_s)
        finally:
            self.listeners = tuple(each for each in self.listeners if each is not context)

    def shown(self) -> dict[str, Any]:
        shown: dict[str, Any] = {"status": "in_progress", "message": self.message}
        if self._estimated_time is not None:
            shown["estimatedTime"] = self._estimated_time
        shown["operationId"] = self.id
        if self.progress is not None:
            done, total = self.progress
            shown |= {"progress": done} if total is None else {"progress": done, "total": total}
        return shown


class _Detached(ContextWrapper):
    """The context of an operation: its call may be answered long before it ends."""

    def __init__(self, inner: Context, operation: _Operation) -> None:
        super().__init__(inner)
        self._operation = operation

    @property
    def cancelled(self) -> bool:
        return self._operation.state != "in_progress"

    def progress(
        self, done: float, total: float | None = None, message: str | None = None
    ) -> Awaitable[None]:
        told_to = self.inner.progress(
            done, total, message
        )  # raises for what is no progress; a call that is over hears nothing
        operation = self._operation
        operation.progress = done, total
        if message is not None:
            operation.message = message
        for each in operation.listeners:
            if each is not self.inner:
                each.progress(done, total, message)
        return told_to

    def call_tool(
        self, name: str, arguments: Mapping[str, Any] | None = None, *, into: Any = None
    ) -> Coroutine[Any, Any, Any]:
        # With this context, not the call's own: that one counts as cancelled once it is answered.
        return cast("Any", self.inner).calling(self).call_tool(name, arguments, into=into)

    def wait(self, awaitable: Awaitable[T]) -> T:
        """See backend.Context; the call's own waits no longer than for the call."""
        operation = self._operation
        if operation.thread == get_ident():
            if isinstance(awaitable, Coroutine):
                awaitable.close()
            raise RuntimeError(
                "Context.wait is for `def` handlers, which run in a thread; write `await` instead"
            )
        future = asyncio.run_coroutine_threadsafe(_awaited(awaitable), operation.loop)
        operation.waits.add(future)
        if self.cancelled:  # perhaps before this was added
            future.cancel()
        try:
            return future.result()
        except ThreadCancelled:
            raise asyncio.CancelledError from None
        finally:
            operation.waits.discard(future)

    async def _needs_the_call(self, *_: object, **__: object) -> Any:
        raise ToolError(
            "the call of a long operation may be over: it cannot ask the client, nor be made again; ask in another tool, before"
        )

    ask = elicit = elicit_url = sample = roots = once = _needs_the_call


async def _awaited(awaitable: Awaitable[T]) -> T:
    return await awaitable


async def _carried(
    operation: _Operation, work: Work, shape: Callable[[Any], CallToolResult]
) -> None:
    """As Server.handle answers a call."""
    try:
        result = shape(await work())
        operation.size = len(encode(result))  # which what cannot be sent does not pass
    except (ToolError, InvalidResult) as error:
        result = tool_error_result(error)
        operation.size = len(repr(result))  # about its bytes; it may hold what cannot be encoded
    except BaseException as error:
        if operation.state != "in_progress":
            raise
        log.exception("operation %s failed", operation.name)
        result = error_result(describe_exception(error))
    operation.result = result


_CONTEXT = "concertino_context"


def _with_context(handler: Handler) -> tuple[Signature, str | None]:
    """A handler's signature, its annotations resolved, with a parameter for the context; the name of its own, if it has one."""
    found = read_signature(handler, (Context,))
    own = next((each.name for each in found.parameters if each.injected), None)
    parameters = [
        Parameter(
            each.name,
            Parameter.KEYWORD_ONLY if each.keyword_only else Parameter.POSITIONAL_OR_KEYWORD,
            default=each.default,
            annotation=each.annotation,
        )
        for each in found.parameters
    ]
    if own is None:
        parameters.append(Parameter(_CONTEXT, Parameter.KEYWORD_ONLY, annotation=Context))
    return Signature(parameters, return_annotation=CallToolResult), own


def _unbound(raw: Raw | bytes, context: object) -> Any:
    raise RuntimeError("the arguments are bound already; this is a fault of concertino")


def _as_json(body: Mapping[str, Any]) -> CallToolResult:
    raw = encode(body)
    return CallToolResult([TextContent(raw.decode())], Raw(raw))
