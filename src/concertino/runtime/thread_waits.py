"""wait_in_thread(): lets the thread of a `def` handler wait for an awaitable on the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

__all__ = ["wait_in_thread"]

T = TypeVar("T")


def wait_in_thread(
    awaitable: Awaitable[T],
    loop: asyncio.AbstractEventLoop,
    waits: set[Future[Any]],
    is_over: Callable[[], bool],
) -> T:
    """Run an awaitable on the loop and return its result. See Context.wait.

    waits: holds the future of the wait; whoever ends the call cancels all that are there.
    is_over: whether that happened already. Then asyncio.CancelledError is raised.
    Raises RuntimeError if it is called on the loop itself.
    """
    # The public asyncio.get_running_loop() raises when there is none.
    if asyncio._get_running_loop() is loop:  # pyright: ignore[reportPrivateUsage]
        if isinstance(awaitable, Coroutine):
            awaitable.close()
        raise RuntimeError(
            "Context.wait is for `def` handlers, which run in a thread; write `await` instead"
        )
    future = asyncio.run_coroutine_threadsafe(_await(awaitable), loop)
    waits.add(future)
    # The call may have ended just before the future was added.
    if is_over():
        future.cancel()
    try:
        return future.result()
    except CancelledError:
        raise asyncio.CancelledError from None
    finally:
        waits.discard(future)


# run_coroutine_threadsafe() takes coroutines only.
async def _await(awaitable: Awaitable[T]) -> T:
    return await awaitable
