"""attempt(): a failure as a value, for those who rather look than catch."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Generic, Literal, TypeVar

from msgspec import Struct

from concertino.errors import ConcertinoError

__all__ = ["Failure", "Success", "attempt"]

T = TypeVar("T")


class Success(Struct, Generic[T], frozen=True):
    """It went well. ok is True, so that `if outcome.ok` tells the two apart."""

    value: T
    ok: Literal[True] = True


class Failure(Struct, frozen=True):
    """It did not. error: what would have been raised."""

    error: ConcertinoError
    ok: Literal[False] = False


async def attempt(work: Awaitable[T]) -> Success[T] | Failure:
    """Await something, and give back what it gave, or the ConcertinoError that it raised.

    Everything else is raised as ever: mistakes in the program, and CancelledError.
    """
    try:
        return Success(await work)
    except ConcertinoError as error:
        return Failure(error)
