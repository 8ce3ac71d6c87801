"""ResultTurns: spreads the work of sending large results over several iterations of the event loop.

Encoding and writing 1 MB takes 0.2 to 0.7 ms. If many calls with large results end at once, the
requests of all other clients wait meanwhile. So only some large results are sent in each iteration,
and the others wait. For most of them, UnreadResults (jsonrpc/unread_results.py) has reserved memory
when their calls started. It reserves none for calls of tools that are known for small results; if
such a call returns a large result, UnreadResults.may_postpone() says whether the result may wait.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection
from itertools import islice
from typing import Any, cast
from weakref import WeakKeyDictionary

from msgspec import Raw, Struct, structs

__all__ = ["LARGE_BYTES", "ResultTurns", "is_large_result", "least_size", "result_turns_of"]

# When results of this size together have been sent in one iteration, the next ones wait.
TURN_BYTES = 8 * 2**20
# Results of at least this size are large, and may have to wait for a later iteration.
LARGE_BYTES = 256 * 1024
# A result is probably large, too, if it contains a list or dict of this many items.
LARGE_ITEMS = 1024
# The size of a list or dict is estimated from its first items, and from the first items of these,
# down to this depth.
SAMPLE = 8
SAMPLE_DEPTH = 4


class ResultTurns:
    """Decides which large results are sent in the current iteration of an event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        # How many bytes were sent in this iteration.
        self._sent = 0
        # Size and function of each result that waits.
        self._waiting: deque[tuple[int, Callable[[], object]]] = deque()
        # Whether _begin_turn() will run in the next iteration.
        self._is_scheduled = False

    def may_send(self, size: int) -> bool:
        """Return whether a large result may be sent in this iteration, and count it if so.

        size: the probable size of the result in bytes.
        If this returns False, the caller must pass the result to send_later().
        """
        if self._waiting or self._sent >= TURN_BYTES:
            return False
        self._sent += size
        self._schedule()
        return True

    def send_later(self, size: int, send: Callable[[], object]) -> None:
        """Call `send` in a later iteration; results are sent in the order of these calls."""
        self._waiting.append((size, send))
        self._schedule()

    def call_after_waiting(self, callback: Callable[[], object]) -> None:
        """Call `callback` when the results that wait now were sent; at once if none waits."""
        if self._waiting:
            self._waiting.append((0, callback))
        else:
            callback()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._begin_turn)

    def _begin_turn(self) -> None:
        """Send results that wait. Runs at the beginning of the next iteration."""
        self._is_scheduled = False
        self._sent = 0
        while self._waiting and self._sent < TURN_BYTES:
            size, send = self._waiting.popleft()
            self._sent += size
            # Schedule first: `send` may raise.
            self._schedule()
            send()


_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, ResultTurns] = WeakKeyDictionary()


def result_turns_of(loop: asyncio.AbstractEventLoop) -> ResultTurns:
    """Return the ResultTurns of a loop; all connections on the loop share it."""
    turns = _turns.get(loop)
    if turns is None:
        turns = _turns[loop] = ResultTurns(loop)
    return turns


def least_size(result: Any) -> int:
    """Return how many bytes a result has at least as JSON; takes a microsecond.

    This is the sum of the lengths of texts in it; 0 if the result cannot be examined.
    """
    try:
        return _measure(result, 0)
    except Exception:
        return 0


def is_large_result(value: Any) -> bool:
    """Return whether a handler's result is probably large; takes a microsecond.

    Texts of LARGE_BYTES are large, and so are lists and dicts of LARGE_ITEMS items. True if the
    result cannot be examined: another thread may change it meanwhile, and its methods may fail.
    """
    try:
        return _measure(value, LARGE_BYTES // LARGE_ITEMS) >= LARGE_BYTES
    except Exception:
        return True


def _measure(value: Any, item_bytes: int, depth: int = SAMPLE_DEPTH) -> int:
    """Return the length of the texts in a value, and item_bytes for each item of a collection."""
    if isinstance(value, str | bytes | Raw):
        return len(cast("str", value))
    items: Collection[Any] = ()
    if isinstance(value, Struct):
        items = structs.astuple(value)
    elif isinstance(value, dict):
        items = cast("dict[Any, Any]", value).values()
    elif isinstance(value, list | tuple):
        items = cast("list[Any]", value)
    length = len(items) * item_bytes
    if depth:
        for item in islice(items, SAMPLE):
            length += _measure(item, item_bytes, depth - 1)
    return length
