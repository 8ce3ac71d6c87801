"""Operations: tools that take so long that their client asks for the result later.

    operations = Operations(server)

    @operations.tool(message="Rendering...", estimated_time="5 minutes")
    async def render(scene: str, context: Context) -> str: ...

If the function returns within answer_after_s seconds, its result is the result of the call, as for
any other tool. Otherwise the work continues, and the call returns
`{"status": "in_progress", "message", "estimatedTime", "operationId"}`. The client passes the
operationId to the tools `get_operation` and `cancel_operation`, which Operations adds to the
server.

The operationId is a handle (MCP 2026-07-28 "Explicit State Handles"): it works on every connection
and in every revision, for any client that knows it. It is random, so that it cannot be guessed.
long_operation.py has the class of a single operation.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from inspect import Parameter, Signature
from typing import Annotated, Any, TypeVar, Unpack, cast, overload

from msgspec import Meta

from concertino.backend.interface import Context
from concertino.errors import RegistrationError, ToolError
from concertino.runtime.threads import Threads
from concertino.schema.return_values import chunk_shaper, is_generator, result_shaper
from concertino.schema.signature import read_signature
from concertino.schema.value_results import shape_any
from concertino.server.functions import (
    CONTEXT_PARAMETER,
    Handler,
    HandlerCall,
    call_handler,
    describe_missing_object,
    is_async,
    is_unbound_method,
)
from concertino.server.long_operation import LongOperation, Work
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
from concertino.types.results import CallToolResult

__all__ = ["Operations"]

log = logging.getLogger("concertino.operations")
H = TypeVar("H", bound=Handler)
# How many seconds a call of get_operation may wait. Most clients give a call this much time.
MAX_WAIT_S = 60.0
# An error quotes at most this many characters of an unknown handle.
MAX_HANDLE = 100
# How many seconds the server waits for the end of cancelled operations when it shuts down.
CLEANUP_S = 1.0


class Operations:
    """The long operations of one server.

        operations = Operations(server)

        @operations.tool(message="Rendering...", estimated_time="5 minutes")
        async def render(scene: str, context: Context) -> str: ...

    Each call of such a tool is a long operation. The work may continue after the call was answered.

    server: the server. It gets the tools get_operation and cancel_operation, with which clients ask
        for the result of an operation later, or cancel the operation.
    at_most: how many operations may run at the same time. Further calls get an error result with
        the code TOO_MANY_OPERATIONS. Cancelled operations do not count, even if their functions are
        still cleaning up.
    limit_s: how many seconds an operation may take before it is cancelled.
    kept_s: how many seconds a result is stored after the end of its operation.
    kept: how many results are stored at most. The oldest ones are dropped first.
    max_kept_bytes: how many bytes the stored results may have together, as JSON.
    clock: returns the time in seconds; must not go backwards.
    Raises ValueError for a number that is not positive, and RegistrationError if the server has
    started already.
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
        # Handle -> operation. Among those that have ended, the one that ended first comes first.
        self._operations: dict[str, LongOperation] = {}
        # Replaced by new threads at each start of the server, which ends them. (A Threads without
        # jobs has no threads.)
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
        """Register a function as a tool that may take long. Returns the function unchanged.

        If the function returns within answer_after_s seconds, the client gets its result.
        Otherwise the function continues to run, and the client gets a status that contains an
        operationId. The client passes this id to the tool get_operation to get the result later.

        The function may be anything that Server.tool accepts, including generators, but:

        - The tool has no output schema, because it returns either the result or a status. The
          function's result is nevertheless checked against its annotation.
        - The options input_schema and output_schema are not accepted.
        - After the call was answered, progress that the function reports goes only to clients whose
          call of get_operation waits at that time.
        - The function cannot ask the client anything. Let another tool do that before the operation
          starts.

        handler: the function, if the decorator is written without parentheses.
        message: the text of the status, until the function reports progress with another text.
        estimated_time: the expected duration for people, such as "30 seconds"; None if unknown.
        answer_after_s: how many seconds the call waits for the result before it returns the status;
            0 returns the status at once.
        Raises RegistrationError for an invalid function or option, ValueError for an invalid time.
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
        """Register a function as a tool whose work may continue after the call was answered.

        handler: the function.
        message: the text of the status, until the function reports progress with another text.
        estimated_time: the expected duration for people; None if it is not known.
        answer_after_s: how many seconds a call waits for the result before it returns the status.
        options: the other options of the tool, such as `title`.
        Raises RegistrationError for an invalid function or option.
        """
        author_function, options = handler, options.copy()
        name = str(options.pop("name", None) or getattr(handler, "__name__", ""))
        inline = options.pop("inline", False)
        has_schema = "input_schema" in options or "output_schema" in options
        if callable(handler) and is_unbound_method(handler):
            raise RegistrationError(f"{name}: {describe_missing_object(handler)}")
        if not callable(handler) or has_schema:
            raise RegistrationError(
                f"{name or handler!r}: expected a function or a bound method, without schemas "
                f"written by hand"
            )
        make_shaper = chunk_shaper if is_generator(handler) else result_shaper
        # From here on, `handler` is a function without parameters for lifespan values and
        # dependencies: it supplies these arguments to the author's function.
        handler = self._server.fill(handler, inline=inline, in_thread=self._in_thread)
        shape = make_shaper(handler, inject=(Context,)).shape
        # Only the results of the function get an envelope, and not the status that start() returns.
        if options.pop("envelope", self._server.envelope):
            from concertino.server.result_envelope import wrap_result

            shape = wrap_result(shape, self._server.features().info.version)
        run = self._make_run(handler, inline, shape)
        signature, context_name = _signature_with_context(handler)

        # The server calls this function for each call of the tool. It begins an operation, whose
        # task calls the handler. Then it waits for the result for answer_after_s seconds.
        async def start(*args: Any, **kwargs: Any) -> CallToolResult:
            bound = signature.bind(*args, **kwargs)
            context: Context = bound.arguments[context_name or CONTEXT_PARAMETER]
            operation = self._make_operation(name, context, message, estimated_time)
            if context_name is None:
                del bound.arguments[CONTEXT_PARAMETER]
            else:
                bound.arguments[context_name] = operation.context
            self._begin(operation, partial(run, operation.context, bound.args, bound.kwargs))
            try:
                await operation.wait_for_end(context, answer_after_s)
            except asyncio.CancelledError:
                # The client has cancelled the call before it got the handle, so it can never ask
                # for the result. Cancel the operation as well.
                operation.end("cancelled")
                self._operations.pop(operation.id, None)
                raise
            # If the operation has ended, the client gets its result now and never gets the handle,
            # so the result need not be stored.
            if operation.has_ended:
                self._operations.pop(operation.id, None)
            return self._read_result(operation)

        # add_tool() reads the name, description and parameters of the tool from these attributes.
        start.__name__ = start.__qualname__ = name
        start.__doc__ = handler.__doc__
        start.__annotations__ = {
            parameter.name: parameter.annotation for parameter in signature.parameters.values()
        }
        start.__annotations__["return"] = CallToolResult
        cast("Any", start).__signature__ = signature
        self._server.add_tool(start, name=name, **options)
        # Server.disable(author_function) recognizes the tool by this attribute. Set it only after
        # add_tool(), which would otherwise make the tool's schema from the author's function.
        cast("Any", start).__wrapped__ = author_function

    def _make_run(
        self,
        handler: Any,
        inline: bool,
        shape: Callable[[Any], CallToolResult],
    ) -> Run:
        """Return a function run(context, args, kwargs) that calls the handler.

        `args` and `kwargs` are the arguments for the handler. `context` reports the progress of a
        handler that is a generator: each chunk that it yields.
        inline: whether a `def` runs on the event loop, not in a thread.
        shape: converts the handler's value to a result.
        """
        run_generator = handler_call = None
        if is_generator(handler):
            run_generator = collect_chunks(handler, None if inline else self._in_thread)
        else:
            handler_call = HandlerCall(handler, is_async(handler), inline)

        async def run(context: Context, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if run_generator is not None:
                return shape(await run_generator(context, args, kwargs))
            assert handler_call is not None
            return await call_handler(handler_call, (args, kwargs), self._in_thread, shape)

        return run

    async def _in_thread(self, function: Callable[[], Any]) -> Any:
        """Call a function in a thread, and return its result."""
        return await self._threads.run(function)

    # One operation

    def _make_operation(
        self,
        name: str,
        context: Context,
        message: str,
        estimated_time: str | None,
    ) -> LongOperation:
        """Return a new operation that has not begun. Raises ToolError if too many are running."""
        self._drop_results()
        running = sum(not operation.has_ended for operation in self._operations.values())
        if running >= self._at_most:
            raise ToolError(
                "TOO_MANY_OPERATIONS",
                f"{running} operations are running; no more are started meanwhile",
                suggestion="Wait until one of them has ended, or cancel one with cancel_operation",
            )
        operation = LongOperation(name, context, message, estimated_time)
        self._operations[operation.id] = operation
        return operation

    def _begin(
        self,
        operation: LongOperation,
        work: Work,
    ) -> None:
        """Start the task and the time limit of an operation.

        work: calls the handler and returns the result of the tool.
        """
        operation.task = task = asyncio.create_task(
            operation.run(work), name="concertino operation"
        )
        timer = asyncio.get_running_loop().call_later(self._limit_s, operation.end, "timed_out")

        def on_done(task: asyncio.Task[None]) -> None:
            timer.cancel()
            # An exception here comes from a `finally` block of the handler, which has raised while
            # the task was being cancelled.
            if not task.cancelled() and (exc := task.exception()) is not None:
                log.error(
                    "operation %s failed while it was cancelled", operation.name, exc_info=exc
                )
            operation.ended_at = self._clock()
            operation.listeners = ()
            # The context refers to the request that has started the operation. Free that memory.
            del operation.context
            # An operation that was cancelled or timed out has ended already.
            if not operation.has_ended:
                outcome = operation.outcome
                has_failed = outcome is None or outcome.result.is_error
                operation.end("failed" if has_failed else "completed")
            # Move the operation behind those that have ended before.
            if self._operations.pop(operation.id, None) is not None:
                self._operations[operation.id] = operation
                self._drop_results()

        task.add_done_callback(on_done)

    def _drop_results(self) -> None:
        """Drop results that have expired, and the oldest results while a limit is exceeded."""
        ended = [item for item in self._operations.values() if item.ended_at is not None]
        count, size, now = len(ended), sum(item.size for item in ended), self._clock()
        for operation in ended:
            ended_at = operation.ended_at
            is_too_old = ended_at is not None and now - ended_at >= self._kept_s
            if not is_too_old and count <= self._kept and size <= self._max_kept_bytes:
                return
            del self._operations[operation.id]
            count, size = count - 1, size - operation.size

    def _find(self, handle: str) -> LongOperation:
        """Return the operation with this handle. Raises ToolError if there is none."""
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

    def _read_result(self, operation: LongOperation) -> CallToolResult:
        """Return the result of an operation, or its status while it runs.

        Raises ToolError if it was cancelled or has timed out.
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
        if operation.outcome is not None:
            return operation.outcome.result
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
        return self._read_result(operation)

    async def _cancel(self, operationId: str) -> CallToolResult:  # noqa: N803
        """Stop an operation that is in progress. Has no effect on an operation that has ended.

        Args:
            operationId: the operationId of the result whose status was "in_progress".
        """
        operation = self._find(operationId)
        operation.end("cancelled")
        return shape_any({"status": operation.state, "operationId": operation.id})

    async def _lifespan(self) -> AsyncIterator[None]:
        """Create the threads when the server starts; cancel all operations when it ends."""
        self._threads = Threads(self._at_most)
        yield
        running = [item for item in self._operations.values() if not item.has_ended]
        for operation in running:
            operation.end("cancelled")
        if running:
            log.warning("%d operations were cut off", len(running))
            await asyncio.wait([operation.task for operation in running], timeout=CLEANUP_S)
        self._operations.clear()
        self._threads.close()


def _signature_with_context(handler: Handler) -> tuple[Signature, str | None]:
    """Return the signature for `start` in Operations._add(), and the name of a parameter.

    The signature is the handler's, with resolved annotations and the return type CallToolResult.
    The name is that of the handler's parameter for the Context. If the handler has no such
    parameter, the name is None, and the signature gets the additional parameter CONTEXT_PARAMETER.
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
