"""attempt(): returns a failure as a value instead of raising it."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Generic, Literal, TypeVar

from msgspec import Struct

from concertino.errors import ConcertinoError

__all__ = ["Failure", "Success", "attempt"]

T = TypeVar("T")


class Success(Struct, Generic[T], frozen=True):
    """The result of attempt() if nothing was raised.

    `ok` is True, so that type checkers narrow the type after `if outcome.ok`.
    """

    value: T
    ok: Literal[True] = True


class Failure(Struct, frozen=True):
    """The result of attempt() if a ConcertinoError was raised. error: that exception."""

    error: ConcertinoError
    ok: Literal[False] = False


async def attempt(work: Awaitable[T]) -> Success[T] | Failure:
    """Await something and return its result as Success, or the ConcertinoError it raised as
    Failure.

    All other exceptions are raised as usual: mistakes in the program, and CancelledError.
    """
    try:
        return Success(await work)
    except ConcertinoError as exc:
        return Failure(exc)
