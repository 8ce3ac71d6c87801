"""attempt(): returns an error as a value instead of raising it.

    outcome = await attempt(client.call_tool("add", {"a": 1}))
    if outcome.ok:
        print(outcome.value)
    else:
        print(outcome.error)

Exceptions that are no ConcertinoError are raised as usual.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Generic, Literal, TypeVar

from msgspec import Struct

from concertino.errors import ConcertinoError

__all__ = ["Failure", "Success", "attempt"]

T = TypeVar("T")


class Success(Struct, Generic[T], frozen=True):
    """The result of attempt() if nothing was raised.

    value: the result of the awaitable.
    ok: True; Failure has False. Type checkers use it to tell the two classes apart.
    """

    value: T
    ok: Literal[True] = True


class Failure(Struct, frozen=True):
    """The result of attempt() if a ConcertinoError was raised.

    error: the exception.
    ok: False.
    """

    error: ConcertinoError
    ok: Literal[False] = False


async def attempt(work: Awaitable[T]) -> Success[T] | Failure:
    """Await a call, and return Success with its result or Failure with its ConcertinoError.

    Other exceptions are raised as usual, such as CancelledError, or TypeError for a mistake in the
    program.

    work: the call, such as client.call_tool("add", {"a": 1}), without `await`.
    """
    try:
        return Success(await work)
    except ConcertinoError as exc:
        return Failure(exc)
