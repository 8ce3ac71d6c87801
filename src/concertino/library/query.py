"""Query: a search in a library, as query_params.py parses it and index.py answers it."""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

Mode: TypeAlias = Literal["full", "catalog", "index", "minimal"]

# The largest number of terms, and of characters, of a query. The rest is ignored.
MAX_TERMS = 64
MAX_QUERY_CHARACTERS = 8192


class Query(Struct, frozen=True):
    """A search in a library.

    text: the words to look for.
    max_tokens: the token budget of the rendered text.
    max_results: the largest number of documents.
    min_score: documents with a lower score are left out.
    tags: a document must have all of them.
    categories: a document must be in one of them, in singular or plural; empty for all categories.
    mode: how the result is rendered; see rendering.py.
    """

    text: str
    max_tokens: int = 3000
    max_results: int = 15
    min_score: float = 0.0
    tags: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    mode: Mode = "full"
