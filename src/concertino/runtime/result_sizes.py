"""Estimates how large the result of a call will be, before the result is encoded as JSON.

Only the first items of lists and dicts are examined, so an estimate takes a microsecond. The thread
pool (runtime/threads.py) and result_turns.py use it to treat large results in another way.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import islice
from typing import Any, cast

from msgspec import Raw, Struct, structs

__all__ = ["LARGE_BYTES", "LARGE_ITEMS", "is_large_result", "least_size", "probable_size"]

# Results of at least this size are large: they may have to wait before they are sent.
LARGE_BYTES = 256 * 1024
# A result is probably large, too, if it contains a list or dict of this many items.
LARGE_ITEMS = 1024
# The size of an item that is neither a text nor a collection, with its key.
ITEM_BYTES = 10
# The size of a list or dict is estimated from its first items, and from the first items of these,
# down to this depth.
SAMPLE = 8
SAMPLE_DEPTH = 4


def least_size(result: Any) -> int:
    """Return a lower bound for the size of a result as JSON, in bytes; takes a microsecond.

    Only the strings among the first items of the result are counted. Returns 0 if the result cannot
    be examined.
    """
    try:
        return _measure(result, 0)
    except Exception:
        return 0


def probable_size(value: Any) -> int:
    """Return about how many bytes a large value has as JSON, at least LARGE_BYTES.

    The size is extrapolated from the first items of the value.
    """
    try:
        return max(LARGE_BYTES, _measure(value, ITEM_BYTES, is_whole=True))
    except Exception:
        return LARGE_BYTES


def is_large_result(value: Any) -> bool:
    """Return whether a handler's result is probably large; takes a microsecond.

    A string of LARGE_BYTES is large, and so is a list or dict that has LARGE_ITEMS items, or whose
    first items have LARGE_BYTES together. An object counts like the dict of its attributes. Returns
    True if the result cannot be examined, because another thread changes it or one of its methods
    fails.
    """
    try:
        # Count so much for each item that LARGE_ITEMS items reach LARGE_BYTES.
        return _measure(value, LARGE_BYTES // LARGE_ITEMS) >= LARGE_BYTES
    except Exception:
        return True


def _attributes_of(value: object) -> Collection[Any]:
    """Return the values of an object's attributes, such as the fields of a dataclass."""
    # A dict, or a pair of dicts if the class has __slots__; None without attributes.
    state: Any = object.__getstate__(value)
    members = cast("tuple[Any, ...]", state if isinstance(state, tuple) else (state,))
    return [item for member in members if member for item in member.values()]


def _measure(value: Any, item_bytes: int, depth: int = SAMPLE_DEPTH, is_whole: bool = False) -> int:
    """Return the length of the strings in a value, plus item_bytes for each item of a collection.

    Only the first SAMPLE items of a collection are examined, down to `depth` levels.
    is_whole: whether to extrapolate from the first items of a collection to all of them.
    """
    if isinstance(value, str | bytes | Raw):
        return len(cast("str", value))
    items: Collection[Any] = ()
    if isinstance(value, Struct):
        items = structs.astuple(value)
    elif isinstance(value, dict):
        items = cast("dict[Any, Any]", value).values()
    elif isinstance(value, list | tuple | set | frozenset):
        items = cast("list[Any]", value)
    elif not isinstance(value, int | float | None):
        items = _attributes_of(value)
    length = len(items) * item_bytes
    if depth:
        sample = 0
        for item in islice(items, SAMPLE):
            sample += _measure(item, item_bytes, depth - 1, is_whole)
        if is_whole and len(items) > SAMPLE:
            sample = sample * len(items) // SAMPLE
        length += sample
    return length
