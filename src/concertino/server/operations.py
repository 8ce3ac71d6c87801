"""Long operations: a tool returns a handle, by which the client asks for the result later.

    operations = Operations(server)

    @operations.tool(message="Rendering...", estimated_time="5 minutes")
    async def render(scene: str, context: Context) -> str: ...

A result that is ready within answer_after_s seconds is returned as for any other tool. Otherwise
the result of the call is `{"status": "in_progress", "message", "estimatedTime", "operationId"}`
and the work continues. The client passes the operationId (a handle) to the tools get_operation and
cancel_operation, which the first Operations of a server adds. A handle is valid on every connection
and in every revision. Every client that knows a handle may use it, so handles cannot be guessed
(2026-07-28 "Explicit State Handles").
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import Future
from functools import partial
from inspect import Parameter, Signature
from typing import Annotated, Any, Literal, TypeVar, Unpack, cast, overload

from msgspec import Meta
from msgspec.json import encode

from concertino.backend.interface import Context, ContextWrapper
from concertino.errors import RegistrationError, ToolError
from concertino.runtime.thread_waits import wait_in_thread
from concertino.runtime.threads import Threads
from concertino.schema.return_values import (
    InvalidResult,
    chunk_shaper,
    is_generator,
    result_shaper,
    shape_any,
)
from concertino.schema.signature import read_signature
from concertino.server.functions import (
    CONTEXT_PARAMETER,
    Handler,
    HandlerCall,
    call_handler,
    is_async,
    lacks_self,
)
from concertino.server.options import (
    AccessOptions,
    ToolGuards,
    ToolOptions,
    ToolSettings,
    show_options,
)
from concertino.server.server import Server
from concertino.server.settings import check_positive
from concertino.server.streaming import Run, collect_chunks
from concertino.server.tool_errors import describe_exception, error_result, tool_error_result
from concertino.types.results import CallToolResult

__all__ = ["Operations"]

log = logging.getLogger("concertino.operations")
H = TypeVar("H", bound=Handler)
T = TypeVar("T")
Work = Callable[[], Awaitable[CallToolResult]]
# How long get_operation may wait for the end: the time that most clients allow for a call.
MAX_WAIT_S = 60.0
# Characters of an unknown handle that an error quotes.
MAX_HANDLE = 100
# For operations that are cancelled when the server ends.
CLEANUP_S = 1.0
State = Literal["in_progress", "completed", "failed", "cancelled", "timed_out"]


class Operations:
    """The long operations of one server.

    at_most: how many run at once; a call beyond that fails with the code TOO_MANY_OPERATIONS.
    limit_s: seconds after which an operation is cancelled.
    kept_s: seconds for which a result is stored after the end of its operation.
    kept, max_kept_bytes: the largest number and the largest total size of stored results; the
    oldest are dropped first. clock: returns monotonic seconds.
    Raises ValueError for an argument that is not positive, RegistrationError once the server has
    started.
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
        # By handle. Those that have ended are in the order of their end.
        self._operations: dict[str, _Operation] = {}
        self._threads = Threads(at_most)
        server.lifespan(self._lifespan)
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
        **options: Unpack[ToolOptions],
    ) -> Callable[[H], H]: ...
    @show_options(ToolSettings, ToolGuards, AccessOptions)
    def tool(
        self,
        handler: Any = None,
        *,
        message: str = "Working...",
        estimated_time: str | None = None,
        answer_after_s: float = 1.0,
        **options: Any,
    ) -> Any:
        """Register a function as a tool that may take long; return it unchanged.

        message: text of the first result, until the function reports progress with a text of its
        own. estimated_time: for people, such as "30 seconds". answer_after_s: how long the call
        waits for the result before it returns a handle; 0 returns the handle at once.
        The function may be anything that Server.tool accepts, including generators. The tool has no
        output schema, because it returns two kinds of results, but the function's result is still
        checked against its annotation. input_schema and output_schema are not accepted.
        Progress goes to the calls of get_operation that wait at that time. The function cannot send
        client requests; send them in another tool, before the operation starts.
        Raises RegistrationError for a function or option that cannot be offered, ValueError for an
        invalid time.
        """
        if not 0 <= answer_after_s < float("inf"):
            raise ValueError(f"answer_after_s: expected 0 or more seconds, got {answer_after_s!r}")

        def decorate(handler: Any) -> Any:
            self._add(handler, message, estimated_time, answer_after_s, options)
            return handler

        return decorate if handler is None else decorate(handler)

    def _add(
        self,
        handler: Any,
        message: str,
        estimated_time: str | None,
        answer_after_s: float,
        options: dict[str, Any],
    ) -> None:
        author, options = handler, options.copy()
        name = str(options.pop("name", None) or getattr(handler, "__name__", ""))
        inline = options.pop("inline", False)
        has_schema = "input_schema" in options or "output_schema" in options
        if not callable(handler) or lacks_self(handler) or has_schema:
            raise RegistrationError(
                f"{name or handler!r}: expected a function or a bound method, without schemas "
                f"written by hand"
            )
        make_shaper = chunk_shaper if is_generator(handler) else result_shaper
        handler = self._server.fill(handler, inline=inline, in_thread=self._in_thread)
        shape = make_shaper(handler, inject=(Context,)).shape
        # Here and not around start(), whose results say how the operation gets on.
        if options.pop("envelope", self._server.envelope):
            from concertino.server.result_envelope import wrap_result

            shape = wrap_result(shape, self._server.features().info.version)
        run = self._runner(handler, inline, shape)
        signature, context_name = _signature_with_context(handler)

        async def start(*args: Any, **kwargs: Any) -> CallToolResult:
            bound = signature.bind(*args, **kwargs)
            context: Context = bound.arguments[context_name or CONTEXT_PARAMETER]
            operation = self._new(name, context, message, estimated_time)
            if context_name is None:
                del bound.arguments[CONTEXT_PARAMETER]
            else:
                bound.arguments[context_name] = operation.context
            self._begin(operation, partial(run, operation.context, bound.args, bound.kwargs))
            try:
                await operation.wait_for_end(context, answer_after_s)
            except asyncio.CancelledError:
                # The client does not have the handle yet, so it could never ask for the result.
                operation.end("cancelled")
                self._operations.pop(operation.id, None)
                raise
            if operation.state != "in_progress":
                self._operations.pop(operation.id, None)
            return self._result(operation)

        start.__name__ = start.__qualname__ = name
        start.__doc__ = handler.__doc__
        start.__annotations__ = {
            parameter.name: parameter.annotation for parameter in signature.parameters.values()
        }
        start.__annotations__["return"] = CallToolResult
        cast("Any", start).__signature__ = signature
        self._server.add_tool(start, name=name, **options)
        # Not before: the tool's schema is that of `start`. Server.disable(handler) finds it so.
        cast("Any", start).__wrapped__ = author

    def _runner(
        self,
        handler: Any,
        inline: bool,
        shape: Callable[[Any], CallToolResult],
    ) -> Run:
        """Return what runs the handler and returns its result."""
        chunks = function = None
        if is_generator(handler):
            chunks = collect_chunks(handler, None if inline else self._in_thread)
        else:
            function = HandlerCall(handler, is_async(handler), inline)

        async def run(context: Context, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if chunks is not None:
                return shape(await chunks(context, args, kwargs))
            assert function is not None
            return await call_handler(function, (args, kwargs), self._in_thread, shape)

        return run

    async def _in_thread(self, function: Callable[[], Any]) -> Any:
        return await self._threads.run(function)

    # One operation

    def _new(
        self,
        name: str,
        context: Context,
        message: str,
        estimated_time: str | None,
    ) -> _Operation:
        self._drop_results()
        running = sum(operation.is_running for operation in self._operations.values())
        if running >= self._at_most:
            raise ToolError(
                "TOO_MANY_OPERATIONS",
                f"{running} operations are running; no more are started meanwhile",
                suggestion="Wait until one of them has ended, or cancel one with cancel_operation",
            )
        operation = _Operation(name, context, message, estimated_time)
        self._operations[operation.id] = operation
        return operation

    def _begin(
        self,
        operation: _Operation,
        work: Work,
    ) -> None:
        operation.task = task = asyncio.create_task(
            _run_operation(operation, work), name="concertino operation"
        )
        timer = asyncio.get_running_loop().call_later(self._limit_s, operation.end, "timed_out")

        def on_done(task: asyncio.Task[None]) -> None:
            timer.cancel()
            # A `finally` of the handler may raise while the task is cancelled.
            if not task.cancelled() and (exc := task.exception()) is not None:
                log.error(
                    "operation %s failed while it was cancelled", operation.name, exc_info=exc
                )
            operation.ended_at = self._clock()
            operation.listeners = ()
            # The context holds the message that began this.
            del operation.context
            if operation.is_running:
                has_failed = operation.result is None or operation.result.is_error
                operation.end("failed" if has_failed else "completed")
            # Move it behind those that have ended before.
            if self._operations.pop(operation.id, None) is not None:
                self._operations[operation.id] = operation
                self._drop_results()

        task.add_done_callback(on_done)

    def _drop_results(self) -> None:
        """Drop results that are too old, or too many."""
        ended = [item for item in self._operations.values() if item.ended_at is not None]
        count, size, now = len(ended), sum(item.size for item in ended), self._clock()
        for operation in ended:
            ended_at = operation.ended_at
            is_too_old = ended_at is not None and now - ended_at >= self._kept_s
            if not is_too_old and count <= self._kept and size <= self._max_kept_bytes:
                return
            del self._operations[operation.id]
            count, size = count - 1, size - operation.size

    def _find(self, handle: str) -> _Operation:
        """Return the operation with a handle. Raises ToolError if there is none."""
        self._drop_results()
        operation = self._operations.get(handle)
        if operation is None:
            raise ToolError(
                "OPERATION_NOT_FOUND",
                f"There is no operation {handle[:MAX_HANDLE]!r}",
                suggestion=f"Results are kept for {self._kept_s:g} seconds after the end; if this "
                f"one is gone, call its tool again",
            )
        return operation

    def _result(self, operation: _Operation) -> CallToolResult:
        """Return the result of an operation, or its status while it runs.

        Raises ToolError if it was cancelled.
        """
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
        if operation.result is not None:
            return operation.result
        return shape_any(operation.status())

    # The tools

    async def _get(
        self,
        operationId: str,  # noqa: N803
        context: Context,
        waitSeconds: Annotated[float, Meta(ge=0, le=MAX_WAIT_S)] = 0,  # noqa: N803
    ) -> CallToolResult:
        """Return the result of an operation that was in progress, or its current progress.

        Args:
            operationId: the operationId of the result whose status was "in_progress".
            waitSeconds: how long to wait for the end of the operation before answering that it is
                still in progress.
        """
        operation = self._find(operationId)
        await operation.wait_for_end(context, waitSeconds)
        return self._result(operation)

    async def _cancel(self, operationId: str) -> CallToolResult:  # noqa: N803
        """Stop an operation that is in progress. Has no effect on an operation that has ended.

        Args:
            operationId: the operationId of the result whose status was "in_progress".
        """
        operation = self._find(operationId)
        operation.end("cancelled")
        return shape_any({"status": operation.state, "operationId": operation.id})

    async def _lifespan(self) -> AsyncIterator[None]:
        self._threads = Threads(self._at_most)
        yield
        running = [item for item in self._operations.values() if item.is_running]
        for operation in running:
            operation.end("cancelled")
        if running:
            log.warning("%d operations were cut off", len(running))
            await asyncio.wait([operation.task for operation in running], timeout=CLEANUP_S)
        self._operations.clear()
        self._threads.close()


class _Operation:
    """One call of a tool that may take long.

    done: the last (progress, total) reported; None before. size: bytes of its result.
    ended_at: time by the clock of Operations; None while it runs.
    listeners: contexts of the calls that currently wait for it. Each change replaces the tuple,
    because other threads read it.
    """

    def __init__(
        self,
        name: str,
        context: Context,
        message: str,
        estimated_time: str | None,
    ) -> None:
        self.id = "op_" + os.urandom(16).hex()
        self.name = name
        self.state: State = "in_progress"
        self.message = message
        self.estimated_time = estimated_time
        self.done: tuple[float, float | None] | None = None
        self.waits: set[Future[Any]] = set()
        self.loop = asyncio.get_running_loop()
        self.context = _OperationContext(context, self)
        self.task: asyncio.Task[None]
        self.result: CallToolResult | None = None
        self.size = 0
        self.ended_at: float | None = None
        self.listeners: tuple[Context, ...] = ()

    @property
    def is_running(self) -> bool:
        """Return whether it has not ended yet."""
        return self.state == "in_progress"

    def end(self, state: State) -> None:
        """Set the final state and cancel the work if it still runs. Later calls have no effect."""
        if self.state == "in_progress":
            self.state = state
            self.task.cancel()
            for wait in tuple(self.waits):
                wait.cancel()

    def status(self) -> dict[str, Any]:
        """Return the result for a call of get_operation while the operation runs."""
        status: dict[str, Any] = {"status": "in_progress", "message": self.message}
        if self.estimated_time is not None:
            status["estimatedTime"] = self.estimated_time
        status["operationId"] = self.id
        if self.done is not None:
            done, total = self.done
            status |= {"progress": done} if total is None else {"progress": done, "total": total}
        return status

    async def wait_for_end(self, context: Context, timeout_s: float) -> None:
        """Wait for the end, at most timeout_s; report progress to the caller in the meantime."""
        if self.done is not None:
            context.progress(*self.done, self.message)
        if self.task.done() or not timeout_s:
            return
        self.listeners = (*self.listeners, context)
        try:
            await asyncio.wait([self.task], timeout=timeout_s)
        finally:
            self.listeners = tuple(item for item in self.listeners if item is not context)


class _OperationContext(ContextWrapper):
    """The context of an operation. It may outlive the call that started the operation."""

    def __init__(self, inner: Context, operation: _Operation) -> None:
        super().__init__(inner)
        self._operation = operation

    @property
    def cancelled(self) -> bool:
        return not self._operation.is_running

    def progress(
        self,
        done: float,
        total: float | None = None,
        message: str | None = None,
    ) -> Awaitable[None]:
        # Raises for invalid progress, so it comes first. It sends nothing once the call is over.
        sent = self.inner.progress(done, total, message)
        operation = self._operation
        operation.done = done, total
        operation.message = operation.message if message is None else message
        for listener in operation.listeners:
            if listener is not self.inner:
                listener.progress(done, total, message)
        return sent

    def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        into: Any = None,
    ) -> Coroutine[Any, Any, Any]:
        # Pass this context, because the context of the call counts as cancelled after the call.
        return cast("Any", self.inner).calling(self).call_tool(name, arguments, into=into)

    def wait(self, awaitable: Awaitable[T]) -> T:
        """Wait as Context.wait() does, until the operation (not its call) is cancelled."""
        operation = self._operation
        return wait_in_thread(awaitable, operation.loop, operation.waits, lambda: self.cancelled)

    async def _needs_the_call(self, *_: object, **__: object) -> Any:
        raise ToolError(
            "the call of a long operation may be over: it cannot ask the client, nor be made "
            "again; ask in another tool, before"
        )

    ask = elicit = elicit_url = sample = roots = once = _needs_the_call


async def _run_operation(operation: _Operation, work: Work) -> None:
    """Run the handler and store its result, with errors as Server.handle() reports them."""
    try:
        result = await work()
        # Encoding fails for a result that cannot be sent.
        operation.size = len(encode(result))
    except (ToolError, InvalidResult) as exc:
        result = tool_error_result(exc)
        # An estimate of the size: the error may hold values that cannot be encoded.
        operation.size = len(repr(result))
    except BaseException as exc:
        if not operation.is_running:
            raise
        from concertino.backend.user_errors import exc_info_for_users

        log.error("operation %s failed", operation.name, exc_info=exc_info_for_users(exc))
        result = error_result(describe_exception(exc))
    operation.result = result


def _signature_with_context(handler: Handler) -> tuple[Signature, str | None]:
    """Return a handler's signature, with resolved annotations and a parameter for the context.

    The second value is the name of the handler's own parameter for it; None if it has none.
    """
    signature = read_signature(handler, (Context,))
    own = next((item.name for item in signature.parameters if item.injected), None)
    parameters = [
        Parameter(
            item.name,
            Parameter.KEYWORD_ONLY if item.keyword_only else Parameter.POSITIONAL_OR_KEYWORD,
            default=item.default,
            annotation=item.annotation,
        )
        for item in signature.parameters
    ]
    if own is None:
        parameters.append(Parameter(CONTEXT_PARAMETER, Parameter.KEYWORD_ONLY, annotation=Context))
    return Signature(parameters, return_annotation=CallToolResult), own
