"""Query: what a client asks of a library's index."""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

Mode: TypeAlias = Literal["full", "catalog", "index", "minimal"]

# Terms and characters of a query; the rest is ignored.
MAX_TERMS = 64
MAX_QUERY_CHARACTERS = 8192


class Query(Struct, frozen=True):
    """A search in a library.

    text: the words to look for. max_tokens: budget of the rendered response. max_results: most
    fragments. min_score: least score. tags: all are required. categories: any of them matches,
    in singular or plural; empty for all. mode: how the response is rendered; see rendering.py.
    """

    text: str
    max_tokens: int = 3000
    max_results: int = 15
    min_score: float = 0.0
    tags: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    mode: Mode = "full"
