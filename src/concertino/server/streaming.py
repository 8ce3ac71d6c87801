"""Tools that are generators: each chunk is told as progress, with its text, and the whole is the result.

The protocol has no partial results; progress notifications are what a caller may look at meanwhile (2026-07-28
basic/patterns/progress). They are for showing only: a caller that asked for none, or got not all of them because it reads slowly or
they come fast (Limits.progress_per_s), loses nothing.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator
from functools import partial
from typing import Any, cast

from msgspec import Raw

from concertino.backend.interface import Context
from concertino.schema.return_values import InvalidResult, text_of
from concertino.server.functions import Bound, Handler, InThread, maybe_await

__all__ = ["streamed"]

MAX_CHUNKS = 100_000  # that one call may yield
MAX_CHARACTERS = (
    64 * 2**20
)  # of their texts together; a message has at most 10 MiB by default, the rest is a mistake found early
Bind = Callable[[Raw | bytes, object], Bound]


def streamed(handler: Handler, bind: Bind, in_thread: InThread | None) -> tuple[Handler, Bind]:
    """A generator as an `async def` that gives the list of what it yields, and a bind() that gives it the call's context first.

    in_thread: where a `def` runs; None: on the loop. Whoever gives up a call closes its generator: at once if it is an
    `async def`, after its next chunk if it is a `def`.
    """

    async def run(context: Context, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        # Any: a decorator that kept the name of a generator function may give whatever it likes.
        made: Any = await maybe_await(handler(*args, **kwargs))
        chunks = _Chunks(context)
        try:
            if hasattr(made, "__anext__"):
                await _drawn(made, chunks)
            elif not hasattr(made, "__next__"):
                raise InvalidResult(f"expected a generator, got {type(made).__name__}")
            elif in_thread is None:
                _drained(made, chunks)
            else:
                await in_thread(partial(_drained, made, chunks))
        finally:
            chunks.wanted = False
        return chunks.all

    def bind_all(raw: Raw | bytes, context: object) -> Bound:
        return (context, *bind(raw, context)), {}

    return run, bind_all


class _Chunks:
    """What one call has yielded. wanted: False when nobody waits for more."""

    def __init__(self, context: Context) -> None:
        self.all: list[Any] = []
        self.wanted = True
        self.context = context
        self._characters = 0

    def add(self, chunk: Any) -> str:
        """Keep a chunk; its text. Raises BadResult for what cannot be sent, and for too much."""
        text = text_of(chunk)
        self.all.append(chunk)
        self._characters += len(text)
        if len(self.all) > MAX_CHUNKS or self._characters > MAX_CHARACTERS:
            raise InvalidResult(
                f"too much was yielded: expected at most {MAX_CHUNKS:,} chunks and {MAX_CHARACTERS:,} characters in one call"
            )
        return text


async def _drawn(made: AsyncGenerator[Any, None], chunks: _Chunks) -> None:
    try:
        async for chunk in made:
            text = chunks.add(chunk)
            await chunks.context.progress(len(chunks.all), None, text)
    finally:
        if hasattr(made, "aclose"):
            await made.aclose()


def _drained(made: Generator[Any, None, None], chunks: _Chunks) -> None:
    try:
        for chunk in made:
            chunks.context.progress(len(chunks.all) + 1, None, chunks.add(chunk))
            if not chunks.wanted or chunks.context.cancelled:
                break
    finally:
        close = cast("Callable[[], None]", getattr(made, "close", lambda: None))
        close()
