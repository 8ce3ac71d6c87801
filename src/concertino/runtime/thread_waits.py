"""wait_in_thread(), the core of Context.wait(): a `def` handler waits for a coroutine.

A `def` handler runs in a thread. The awaitable runs on the event loop, and the thread blocks until
it is done, or until the call is cancelled.
"""

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
    """Run an awaitable on `loop`, block this thread until it is done, and return its result.

    waits: the futures for which threads of the call wait. The runtime cancels these futures when
        the call is cancelled. This function adds its own future while it waits.
    is_over: returns whether the call has ended already.
    Raises the exception of the awaitable, and asyncio.CancelledError if the call ends first. Raises
    RuntimeError if called in the thread of the loop itself, because the loop could not run while
    this function waits.
    """
    # Returns None if no loop runs, where the public asyncio.get_running_loop() raises.
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


async def _await(awaitable: Awaitable[T]) -> T:
    """Await any awaitable in a coroutine, which asyncio.run_coroutine_threadsafe() requires."""
    return await awaitable
