"""What can be asked of a library's index."""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

__all__ = ["MAX_QUERY_CHARACTERS", "MAX_TERMS", "Mode", "Query"]

Mode: TypeAlias = Literal["full", "catalog", "index", "minimal"]
MAX_TERMS = 64  # of a query; what comes after them is not looked for
MAX_QUERY_CHARACTERS = 8192  # more is not read


class Query(Struct, frozen=True):
    """text: the words to look for; of those that mean something, the first 64 count. max_tokens: what the answer may have.

    max_results: at most so many fragments. min_score: only those that score as much. tags: all of them required.
    categories: any of them, in the singular or plural; empty for all. mode: how the answer is written, see assembly.py.
    """

    text: str
    max_tokens: int = 3000
    max_results: int = 15
    min_score: float = 0.0
    tags: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    mode: Mode = "full"
