"""ResultTurns: spreads the work of sending large results over several iterations of the event loop.

Encoding and writing 1 MB takes 0.2 to 0.7 ms. If many calls with large results end at once, the
requests of all other clients wait meanwhile. So only some large results are sent in each iteration,
and the rest wait. For most results, UnreadResults (jsonrpc/unread_results.py) reserved the memory
when their calls started. It reserves none for calls of tools that are known for small results; if
such a call returns a large result, UnreadResults.may_postpone() says whether the result may wait.

Here, a "value" is what a handler returns. To "convert" it is to encode it as JSON, and to check
that the JSON fits the output schema of its tool. For a list or dict this takes longer than sending:
1 to 10 ms for 1 MB. Values that many calls return at once therefore wait as well (convert_in_turn),
and one of them is converted in an iteration. A long list is encoded in parts, one in an iteration,
and the JSON of other large values is checked in parts (finish_conversion).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakKeyDictionary

from msgspec import Raw

from concertino.errors import INTERNAL_ERROR
from concertino.jsonrpc.incoming_requests import IncomingRequest
from concertino.jsonrpc.unread_results import ResultDropped
from concertino.runtime.result_sizes import (
    LARGE_BYTES,
    LARGE_ITEMS,
    is_large_result,
    probable_size,
)
from concertino.runtime.tasks import busy_loops, subject_of

if TYPE_CHECKING:
    from concertino.schema.return_values import EncodeItems, ResultShaper
    from concertino.types.results import CallToolResult

__all__ = ["ResultTurns", "convert_in_turn", "finish_conversion", "result_turns_of"]

# When results of this size together have been sent in one iteration, the next ones wait.
TURN_BYTES = 2 * 2**20
# To convert a value takes about as long as to send a result of this many times the size.
CONVERSION_COST = 8
# A long list is converted in parts of about this size, which take 3 to 10 ms each.
PART_BYTES = 512 * 1024


class ResultTurns:
    """Decides which large results are sent in the current iteration of an event loop.

    Each loop has one such object: result_turns_of(loop). In one iteration, it either sends large
    results, with a total of about 2 MiB (TURN_BYTES), or lets one call convert a large value to
    JSON, or a part of it. (A value is what a handler returns.) All other results and values wait in
    order.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        # How many bytes were sent in this iteration.
        self._sent = 0
        # Size and function of each result that waits.
        self._waiting: deque[tuple[int, Callable[[], object]]] = deque()
        # A function for each value that waits to be converted, which lets its call continue. Among
        # them are functions of call_after_waiting(). Values come after the results that wait, so
        # that few converted values are in memory.
        self._conversions: deque[Callable[[], object]] = deque()
        # An object for the call that converts its value in this iteration or the next ones; None if
        # there is none. Each call has an object of its own, so that it resets only its own turn.
        self._converting: object = None
        # Whether _begin_turn() will run in the next iteration.
        self._is_scheduled = False

    def may_send(self, size: int) -> bool:
        """Return whether a large result may be sent in this iteration, and count it if so.

        If this returns False, the caller must pass the result to send_later().
        size: the probable size of the result in bytes.
        """
        if self._waiting or self._sent >= TURN_BYTES:
            return False
        self._sent += size
        self._schedule()
        return True

    def send_later(self, size: int, send: Callable[[], object]) -> None:
        """Call `send` in a later iteration; results are sent in the order of these calls.

        size: the probable size of the result in bytes.
        send: sends the result.
        """
        self._waiting.append((size, send))
        self._schedule()

    def call_after_waiting(self, callback: Callable[[], object]) -> None:
        """Call `callback` when all results that wait now were sent, and all values converted.

        If no result and no value waits, calls it at once.
        """
        if self._conversions or self._converting:
            self._conversions.append(callback)
            # The value that is converted now may become a small result, which schedules nothing.
            self._schedule()
        elif self._waiting:
            # 0 bytes, because this sends nothing.
            self._waiting.append((0, callback))
        else:
            callback()

    async def wait_to_convert(self) -> None:
        """Wait until a large value may be converted.

        The caller must convert its value before it awaits anything else: the next value may be
        converted as soon as the caller's task waits.
        """
        turn: asyncio.Future[None] = self._loop.create_future()
        self._conversions.append(partial(self._begin_conversion, turn))
        self._schedule()
        try:
            await turn
        finally:
            if self._converting is turn:
                self._converting = None

    async def run_in_steps(self, steps: Iterable[None]) -> None:
        """Run a generator that converts a value, up to its next `yield` in each iteration.

        No other large value is converted meanwhile, so that few converted values are in memory.
        """
        self._converting = turn = object()
        try:
            for _ in steps:
                self._schedule()
                await asyncio.sleep(0)
        finally:
            if self._converting is turn:
                self._converting = None

    def must_wait(self) -> bool:
        """Return whether a large value may not be converted in this iteration."""
        is_waiting = self._waiting or self._conversions or self._converting
        return bool(is_waiting) or self._sent >= TURN_BYTES

    def _begin_conversion(self, turn: asyncio.Future[None]) -> None:
        """Let a value be converted, unless its call was cancelled."""
        if not turn.done():
            self._converting = turn
            turn.set_result(None)

    def count_conversion(self, size: int) -> None:
        """Count a value that was converted in this iteration.

        size: the size of its JSON in bytes.
        """
        self._sent += size * CONVERSION_COST
        self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            busy_loops.add(self._loop)
            self._loop.call_soon(self._begin_turn)

    def _begin_turn(self) -> None:
        """Send results that wait, or let a value be converted. Runs early in each iteration."""
        self._is_scheduled = False
        busy_loops.discard(self._loop)
        self._sent = 0
        while self._waiting and self._sent < TURN_BYTES:
            size, send = self._waiting.popleft()
            self._sent += size
            # Schedule first: `send` may raise.
            self._schedule()
            send()
        # Begin one conversion, if nothing was sent and no other value is being converted. The loop
        # goes on only after callbacks that convert nothing: a call that was cancelled, for example.
        while self._conversions:
            if self._waiting or self._sent or self._converting:
                break
            # Schedule first: the callback may raise.
            if len(self._conversions) > 1:
                self._schedule()
            begin = self._conversions.popleft()
            begin()
        if self._conversions or self._converting:
            self._schedule()


_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, ResultTurns] = WeakKeyDictionary()


def result_turns_of(loop: asyncio.AbstractEventLoop) -> ResultTurns:
    """Return the ResultTurns of a loop; all connections on the loop share it."""
    turns = _turns.get(loop)
    if turns is None:
        # A loop that was closed while results waited is still in this set.
        busy_loops.difference_update([item for item in list(busy_loops) if item.is_closed()])
        turns = _turns[loop] = ResultTurns(loop)
    return turns


async def convert_in_turn(value: Any, shaper: ResultShaper) -> CallToolResult:
    """Convert a handler's value to a result. A large value may first wait for its turn.

    A large value waits if other large values or results wait, or if much was sent in this loop
    iteration. Call this in the task of the call.
    shaper: converts a handler's value to the result of its tool.
    Raises ResultDropped if only memory for a small result was reserved (UnreadResults), and none is
    left. Raises the exceptions of shaper.shape().
    """
    task = asyncio.current_task()
    if task is None:
        return shaper.shape(value)
    turns = result_turns_of(asyncio.get_running_loop())
    must_wait = turns.must_wait() and is_large_result(value)
    encode_items = shaper.encode_items if type(value) is list else None
    items = [] if encode_items is None else cast("list[Any]", value)
    # How many items have about PART_BYTES together.
    part_items = max(1, len(items) * PART_BYTES // probable_size(items))
    is_divided = len(items) >= LARGE_ITEMS and part_items < len(items)
    if must_wait or is_divided:
        # JSON with an output schema is sent twice, as structured content and as text.
        copies = 1 if shaper.schema is None else 2
        with _count_postponed(subject_of(task), value, copies):
            if must_wait:
                await turns.wait_to_convert()
            if encode_items is not None and is_divided:
                encoded = bytearray()
                try:
                    await turns.run_in_steps(
                        _encode_in_parts(items, part_items, encode_items, encoded)
                    )
                except Exception:
                    # An item is wrong. The conversion of the whole list, below, raises an exception
                    # that names the place of the item in the list. It takes the time of the parts
                    # again, but only for a handler that has a bug.
                    pass
                else:
                    # Imported here, because proxies do not need it.
                    from concertino.schema.value_results import structured_result

                    turns.count_conversion(len(encoded))
                    return structured_result(encoded, encoded.decode())

    result = shaper.encode(value)
    content = result.structured_content
    if type(content) is Raw and len(content) >= LARGE_BYTES:
        await finish_conversion(result, content, shaper)
    return result


def _encode_in_parts(
    items: list[Any], count: int, encode_items: EncodeItems, encoded: bytearray
) -> Generator[None]:
    """Append the JSON of a list to `encoded`, and pause after each part.

    count: how many items a part has.
    """
    # The list may be changed during the pauses.
    items = items.copy()
    for start in range(0, len(items), count):
        if start:
            yield
        part = encode_items(items[start : start + count])
        # Each part is a JSON array. A comma replaces the two brackets between parts: the last byte
        # of the buffer, and the first one of the part. There is one buffer, because the parts
        # and the whole list would take twice the memory.
        encoded[-1:] = b"," if start else b""
        encoded += memoryview(part)[1:] if start else part


async def finish_conversion(result: CallToolResult, content: Raw, shaper: ResultShaper) -> None:
    """Count a large value that was converted, and check in parts whether it fits the output schema.

    result: the result that shaper.encode() has made from the value.
    content: the structured content of the result.
    shaper: converts a handler's value to the result of its tool.
    Raises ResultDropped if only memory for a small result was reserved, and none is left. Raises
    the exceptions of shaper.shape().
    """
    turns = result_turns_of(asyncio.get_running_loop())
    turns.count_conversion(len(content))
    if shaper.check_parts is None or result.is_error:
        return
    steps = shaper.check_parts(content)
    task = asyncio.current_task()
    if task is None:
        # Without a task there is nothing that could pause, so check all parts now.
        list(steps)
        return
    # The content is also in the text of the result.
    with _count_postponed(subject_of(task), content, copies=2):
        await turns.run_in_steps(steps)


@contextmanager
def _count_postponed(call: object, value: Any, copies: int) -> Generator[None]:
    """Count a value while it waits or is converted, if a small result of its call was expected.

    call: the request of the call, or any other object.
    copies: how often the response contains the JSON of the value.
    Raises ResultDropped if there is no memory for the result.
    """
    is_call = isinstance(call, IncomingRequest)
    # If a large result was expected, memory for it was reserved when the call started.
    if not is_call or call.unread is None or call.expected_bytes >= LARGE_BYTES:
        yield
        return
    unread, size = call.unread, copies * probable_size(value)
    if not unread.may_postpone(size):
        # drop() counts the dropped result, and returns the text of the error.
        raise ResultDropped(INTERNAL_ERROR, unread.drop(size))
    unread.postpone(call, size)
    try:
        yield
    finally:
        unread.end_postponed(size)
