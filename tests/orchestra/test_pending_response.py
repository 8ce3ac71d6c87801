"""pending_response.py: a task that awaits a response continues as after a future of asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from contextvars import Context, ContextVar

from concertino.orchestra.pending_response import PendingResponse
from concertino.runtime.tasks import eager_task_runner


class Link:
    def forget(self, key: Hashable) -> None:
        raise AssertionError("nothing is given up here")


def test_what_a_task_sets_after_a_request_stays_set() -> None:
    """In a context that was empty before, as a program's first one mostly is; such a context counts
    as false.
    """
    seen: ContextVar[str] = ContextVar("seen", default="nothing")

    async def main() -> str:
        loop = asyncio.get_running_loop()
        waiting = PendingResponse(loop, Link(), "a request", 10.0, loop.time() + 10.0)

        async def task() -> str:
            loop.call_soon(waiting.resolve, b"response")
            assert await waiting == b"response"
            seen.set("something")
            await asyncio.sleep(0)
            return seen.get()

        async with asyncio.timeout(10):
            return await loop.create_task(task(), context=Context())

    assert asyncio.run(main()) == "something"


def test_a_cancel_between_the_first_step_and_the_task_reaches_the_sender() -> None:
    """A read batch may bring a call and its cancel; an eager first step has sent the
    request then.
    """
    forgotten: list[Hashable] = []

    class Sender(Link):
        def forget(self, key: Hashable) -> None:
            forgotten.append(key)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        pending = PendingResponse(loop, Sender(), "a request", 10.0, loop.time() + 10.0, "key")

        async def call() -> bytes:
            return await pending

        ended: asyncio.Future[BaseException | None] = loop.create_future()
        start = eager_task_runner(loop, lambda _, value, error: ended.set_result(error))

        def begin_and_cancel() -> None:
            task = start(call(), None)
            assert task is not None
            task.cancel()

        loop.call_soon(begin_and_cancel)
        async with asyncio.timeout(10):
            assert isinstance(await ended, asyncio.CancelledError)

    asyncio.run(main())
    assert forgotten == ["key"]
