"""request_queue.py: handlers that block the event loop, with a clock that only they advance."""

from __future__ import annotations

import asyncio
from typing import Any

from loops import on_a_loop

from concertino.orchestra.request_queue import CAUTIOUS_S, SLOW_S, ArrivedRequest, RequestQueue


class Worker:
    """Handles requests; the handler of the request `!` fails.

    blocks_s: how long each handler blocks the event loop.
    clock_s: the time.
    done: the requests that were handled, and with is_connected also what was sent, in order.
    """

    def __init__(self, blocks_s: float, *, is_connected: bool = False) -> None:
        self.blocks_s = blocks_s
        self.is_connected = is_connected
        self.clock_s = 0.0
        self.done: list[str] = []
        self.waiting: list[str] = []
        self._output: list[str] = []
        self.queue = RequestQueue(self._handle, self._acknowledge)
        asyncio.get_running_loop().time = lambda: self.clock_s  # type: ignore[method-assign]

    def put(self, replies: str) -> None:
        for reply in replies:
            self.queue.put(ArrivedRequest("c", reply, b"", 60.0))

    def _handle(self, request: ArrivedRequest) -> None:
        self.done.append(request.reply)
        self.clock_s += self.blocks_s
        self._send(f"response to {request.reply}")
        if request.reply == "!":
            raise ValueError

    def _acknowledge(self, request: ArrivedRequest) -> None:
        self.waiting.append(request.reply)
        self._send(f"ack to {request.reply}")

    def _send(self, text: str) -> None:
        """Write in the next iteration of the event loop, as NatsConnection does."""
        if not self.is_connected:
            return
        if not self._output:
            asyncio.get_running_loop().call_soon(self._write)
        self._output.append(text)

    def _write(self) -> None:
        self.done += self._output
        self._output.clear()


@on_a_loop
async def test_requests_that_take_no_time_are_handled_at_once() -> None:
    worker = Worker(blocks_s=0.0)
    worker.put("abcd")
    assert worker.done == [*"abcd"]
    assert worker.waiting == []


@on_a_loop
async def test_requests_wait_after_one_that_blocks_for_long() -> None:
    worker = Worker(blocks_s=1.5 * SLOW_S)
    worker.put("abcd")
    assert worker.waiting == [*"bcd"]
    for count in (1, 2, 3, 4):
        # Other work of the event loop gets its turn between two requests.
        assert worker.done == [*"abcd"[:count]]
        await asyncio.sleep(0)
    worker.put("e")
    assert worker.done == [*"abcd"]
    await asyncio.sleep(0)
    worker.clock_s += CAUTIOUS_S
    worker.put("f")
    assert worker.done == [*"abcdef"]


@on_a_loop
async def test_requests_wait_after_several_that_block_for_long_together() -> None:
    worker = Worker(blocks_s=0.4 * SLOW_S)
    worker.put("abcdefgh")
    assert worker.done == [*"abc"]
    assert worker.waiting == [*"defgh"]
    for handled in ("abcdef", "abcdefgh"):
        await asyncio.sleep(0)
        assert worker.done == [*handled]


@on_a_loop
async def test_requests_of_several_iterations_of_the_loop_do_not_count_together() -> None:
    worker = Worker(blocks_s=0.6 * SLOW_S)
    for reply in "abcd":
        worker.put(reply)
        await asyncio.sleep(0)
    assert worker.waiting == []


@on_a_loop
async def test_acks_and_responses_leave_before_the_next_handler_blocks() -> None:
    worker = Worker(blocks_s=1.5 * SLOW_S, is_connected=True)
    worker.put("a")
    await asyncio.sleep(0)
    worker.put("b")
    worker.put("c")
    for _ in range(4):
        await asyncio.sleep(0)
    a, b, c = (f"response to {reply}" for reply in "abc")
    assert worker.done == ["a", a, "ack to b", "ack to c", "b", b, "c", c]


@on_a_loop
async def test_a_request_that_fails_does_not_stop_those_behind_it() -> None:
    worker = Worker(blocks_s=1.5 * SLOW_S)
    failures: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, what: failures.append(what))
    worker.put("a!b")
    for _ in range(2):
        await asyncio.sleep(0)
    assert worker.done == [*"a!b"]
    assert [type(what["exception"]) for what in failures] == [ValueError]
