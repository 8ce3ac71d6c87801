"""Tools that are generators: each yielded value ("chunk") is sent as progress.

    @server.tool
    async def count() -> AsyncIterator[str]:
        yield "one"
        yield "two"

MCP has no partial results. A client can show progress notifications while the call runs (MCP
2026-07-28 basic/patterns/progress). But the client may not have asked for progress, and if chunks
come too fast, some are not sent. Therefore the result, which schema/return_values.py makes,
contains all chunks again.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from functools import partial
from typing import Any

from msgspec import Raw

from concertino.backend.interface import Context
from concertino.schema.value_results import InvalidResult, text_of
from concertino.server.functions import Bound, Handler, InThread, maybe_await

# The largest number of chunks of one call.
MAX_CHUNKS = 100_000
# The largest number of characters of all chunks of one call, to stop generators that never end. A
# result of this size would be too large for a message (10 MiB by default) anyway.
MAX_CHARACTERS = 64 * 2**20

# A function that converts the arguments of a call, as JSON, to the arguments of a handler. The
# second argument is the context of the call.
Bind = Callable[[Raw | bytes, object], Bound]
# A function run(context, args, kwargs) that calls a handler in a call with this context.
Run = Callable[[Context, tuple[Any, ...], dict[str, Any]], Awaitable[Any]]


def collect_chunks(handler: Handler, in_thread: InThread | None) -> Run:
    """Return a function run(context, args, kwargs) that runs a generator.

    run() calls the generator function with the arguments `args` and `kwargs`. It sends each chunk
    as progress, with the context of the call, and returns the list of all chunks. When the call is
    cancelled, run() closes an `async def` generator at once. A `def` generator cannot be
    interrupted, so run() closes it after its next chunk.
    handler: the generator function.
    in_thread: in_thread(function) calls a function in a thread, and returns an awaitable of its
        result; None to run a `def` on the event loop.
    """

    async def run(context: Context, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        # Any, because a decorator around the generator function may return something else.
        generator: Any = await maybe_await(handler(*args, **kwargs))
        chunks = _Chunks(context)
        try:
            if hasattr(generator, "__anext__"):
                await _run_async(generator, chunks)
            elif not hasattr(generator, "__next__"):
                raise InvalidResult(f"expected a generator, got {type(generator).__name__}")
            elif in_thread is None:
                _run_sync(generator, chunks)
            else:
                await in_thread(partial(_run_sync, generator, chunks))
        finally:
            # If the call was cancelled, the thread may still run. Make it stop at its next chunk.
            chunks.is_needed = False
        return chunks.values

    return run


def bind_with_context(bind: Bind) -> Bind:
    """Return a Bind whose results fit run() of collect_chunks(), which has other parameters.

    run() takes the context of the call, and the arguments of the generator function as a tuple and
    a dict.
    bind: converts the arguments of a call to the arguments of the generator function.
    """

    def bind_run(raw: Raw | bytes, context: object) -> Bound:
        args, kwargs = bind(raw, context)
        return (context, args, kwargs), {}

    return bind_run


class _Chunks:
    """The chunks of one call.

    context: the context of the call.

    Attributes:
    values: the chunks so far.
    is_needed: whether the call still runs. False makes the generator stop.
    """

    def __init__(self, context: Context) -> None:
        self.values: list[Any] = []
        self.is_needed = True
        self.context = context
        self._characters = 0

    def add(self, chunk: Any) -> str:
        """Add a chunk and return its text for the progress notification.

        Raises InvalidResult for a chunk that cannot be sent, and if the call has too many chunks.
        """
        text = text_of(chunk)
        self.values.append(chunk)
        self._characters += len(text)
        if len(self.values) > MAX_CHUNKS or self._characters > MAX_CHARACTERS:
            raise InvalidResult(
                f"the generator yielded too much: expected at most {MAX_CHUNKS:,} chunks and "
                f"{MAX_CHARACTERS:,} characters in one call"
            )
        return text


async def _run_async(generator: AsyncGenerator[Any, None], chunks: _Chunks) -> None:
    """Add the chunks of an asynchronous generator to `chunks`, and send each as progress."""
    try:
        async for chunk in generator:
            text = chunks.add(chunk)
            await chunks.context.progress(len(chunks.values), None, text)
    finally:
        # Generators have aclose(), other asynchronous iterators do not.
        if hasattr(generator, "aclose"):
            await generator.aclose()


def _run_sync(generator: Generator[Any, None, None], chunks: _Chunks) -> None:
    """Add the chunks of a `def` generator to `chunks`, and send each as progress.

    Runs in a thread, or on the event loop if the tool is inline.
    """
    try:
        for chunk in generator:
            text = chunks.add(chunk)
            chunks.context.progress(len(chunks.values), None, text)
            if not chunks.is_needed or chunks.context.cancelled:
                break
    finally:
        # Generators have close(), other iterators do not.
        if hasattr(generator, "close"):
            generator.close()
