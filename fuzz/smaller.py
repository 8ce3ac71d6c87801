"""A small input that fails at the same place as a large one: pieces are taken out, then bytes made
plain, while it still does.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable

__all__ = ["fault", "smaller"]

ATTEMPTS = 20_000  # executions at most


def fault(one: Callable[[bytes], None], data: bytes) -> str | None:
    """How a target fails: kind and place of the exception. None when it does not."""
    try:
        one(data)
    except Exception as why:
        place = traceback.extract_tb(why.__traceback__)[-1]
        return (
            f"{type(why).__name__} in {place.name}() at"
            f" {place.filename.rpartition('/')[2]}:{place.lineno}"
        )
    return None


def smaller(one: Callable[[bytes], None], data: bytes) -> bytes:
    """The smallest input found that fails at the same place; `data` itself when there is none."""
    wanted = fault(one, data)
    if wanted is None:
        return data
    left = ATTEMPTS

    def fails(candidate: bytes) -> bool:
        nonlocal left
        left -= 1
        return left > 0 and fault(one, candidate) == wanted

    size = len(data)
    while size:
        at = 0
        while at < len(data):
            candidate = data[:at] + data[at + size :]
            if fails(candidate):
                data = candidate
            else:
                at += size
        size //= 2
    for at in range(len(data)):
        for plain in b" a0":
            candidate = data[:at] + bytes([plain]) + data[at + 1 :]
            if data[at] not in b" a0" and fails(candidate):
                data = candidate
                break
    return data
