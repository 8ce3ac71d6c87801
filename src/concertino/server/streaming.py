"""Tools that are generators: each chunk is sent as progress, and all chunks are the result.

The protocol has no partial results; a progress notification is what a client can show in the
meantime (2026-07-28 basic/patterns/progress). Progress is for display only. A client that did not
ask for it, or missed some because it reads slowly or they come fast (Limits.progress_per_s), gets
everything with the result. schema/return_values.py turns the chunks into one result.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from functools import partial
from typing import Any, cast

from msgspec import Raw

from concertino.backend.interface import Context
from concertino.schema.return_values import InvalidResult, text_of
from concertino.server.functions import Bound, Handler, InThread, maybe_await

# Of one call.
MAX_CHUNKS = 100_000
# Of their texts together. A message has at most 10 MiB by default, so more is an early-found bug.
MAX_CHARACTERS = 64 * 2**20

Bind = Callable[[Raw | bytes, object], Bound]
Run = Callable[[Context, tuple[Any, ...], dict[str, Any]], Awaitable[Any]]


def collect_chunks(handler: Handler, in_thread: InThread | None) -> Run:
    """Return an `async def` that runs a generator and returns the list of its chunks.

    It takes the call's context, and the arguments of the handler. in_thread: where a `def` runs;
    None: on the event loop. When a call is cancelled its generator is closed: an `async def` at
    once, a `def` after its next chunk.
    """

    async def run(context: Context, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        # Any: a decorator around the generator function may return something else.
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
            # The thread may still run; it stops at its next chunk.
            chunks.is_needed = False
        return chunks.values

    return run


def bind_with_context(bind: Bind) -> Bind:
    """Return a bind() for the result of collect_chunks(). bind: that of the generator."""
    return lambda raw, context: ((context, *bind(raw, context)), {})


class _Chunks:
    """The chunks of one call. is_needed: False once nobody waits for more."""

    def __init__(self, context: Context) -> None:
        self.values: list[Any] = []
        self.is_needed = True
        self.context = context
        self._characters = 0

    def add(self, chunk: Any) -> str:
        """Add a chunk and return its text.

        Raises InvalidResult for one that cannot be sent, and if there are too many.
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
    try:
        async for chunk in generator:
            text = chunks.add(chunk)
            await chunks.context.progress(len(chunks.values), None, text)
    finally:
        # Only generators have aclose(); other iterators do not.
        if hasattr(generator, "aclose"):
            await generator.aclose()


def _run_sync(generator: Generator[Any, None, None], chunks: _Chunks) -> None:
    try:
        for chunk in generator:
            chunks.context.progress(len(chunks.values) + 1, None, chunks.add(chunk))
            if not chunks.is_needed or chunks.context.cancelled:
                break
    finally:
        # Only generators have close(); other iterators do not.
        close = cast("Callable[[], None]", getattr(generator, "close", lambda: None))
        close()
