"""Portal: runs an event loop in a thread, on which other threads can call async functions.

portal = Portal("my loop", on_stop)
result = portal.call(client.list_tools)   # blocks
portal.stop()
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

__all__ = ["Portal", "PortalClosed"]

P = ParamSpec("P")
T = TypeVar("T")
# How often a waiting call checks that the thread is still alive.
ALIVE_CHECK_S = 1.0


class PortalClosed(RuntimeError):
    """Raised by call() if the thread of the Portal has ended."""


class Portal:
    """An event loop in a daemon thread, like anyio's BlockingPortal.

    name: the name of the thread.
    on_stop: an async function that stop() runs on the loop. Afterwards, all tasks that still run
        are cancelled.
    """

    def __init__(self, name: str, on_stop: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._loop = asyncio.new_event_loop()
        self._on_stop = on_stop
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def is_own_thread(self) -> bool:
        """Return whether the calling thread runs the event loop, so that call() would deadlock."""
        return threading.current_thread() is self._thread

    def call(
        self,
        function: Callable[P, Coroutine[Any, Any, T]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Call an async function on the event loop of the other thread, and return its result.

        Blocks until the function has returned. If the waiting thread is interrupted, for example by
        Ctrl-C, the call is cancelled.
        args, kwargs: the arguments for the function.
        Raises the exception of the function, and PortalClosed if the other thread has ended.
        """
        if not self._thread.is_alive():
            raise PortalClosed
        work = function(*args, **kwargs)
        try:
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:
            # The loop was closed just now.
            work.close()
            raise PortalClosed from None

        try:
            while True:
                try:
                    return future.result(ALIVE_CHECK_S)
                except TimeoutError:
                    # If the future is done, the function itself has raised TimeoutError, or it has
                    # returned just now.
                    if future.done():
                        return future.result()
                    # The loop may have been closed before it has called the function.
                    if not self._thread.is_alive():
                        raise PortalClosed from None
        except BaseException:
            # An example is KeyboardInterrupt. Cancelling a future that is done has no effect.
            future.cancel()
            raise

    def stop(self) -> None:
        """Run on_stop, end the loop, and wait for the thread. May be called again."""
        if not self._thread.is_alive():
            return
        try:
            self._loop.call_soon_threadsafe(self._loop.stop)
        except RuntimeError:
            # The loop is closed already.
            pass
        self._thread.join()

    def _run(self) -> None:
        """Run the loop until stop(), or until a callback raises SystemExit."""
        loop = self._loop
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
        finally:
            end = loop.create_task(self._end())
            end.add_done_callback(lambda _: loop.stop())
            # Another call of stop() may stop the loop again before _end() is done.
            while not end.done():
                loop.run_forever()
            loop.close()

    async def _end(self) -> None:
        """Run on_stop, then cancel the other tasks of the loop and wait for their end."""
        await self._on_stop()
        if tasks := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
