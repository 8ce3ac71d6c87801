"""Query: a search in a library, as query_params.py parses it and index.py answers it."""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

Mode: TypeAlias = Literal["full", "catalog", "index", "minimal"]

# A query has at most this many terms and characters. Further terms and characters are ignored.
MAX_TERMS = 64
MAX_QUERY_CHARACTERS = 8192


class Query(Struct, frozen=True):
    """A search in a library.

    text: the words to look for. A document must contain at least one of them.
    max_tokens: the largest number of tokens of the text that is returned.
    max_results: the largest number of documents.
    min_score: documents with a lower score are left out.
    tags: a document must have all of these tags; () for no condition.
    categories: a document must be in one of these categories, whose names may be in singular or
        plural; () for all categories.
    mode: what the text shows: `full` whole documents, `catalog` a few lines for each document,
        `index` one line for each, `minimal` JSON with the URI, title, length and score of each.
    """

    text: str
    max_tokens: int = 3000
    max_results: int = 15
    min_score: float = 0.0
    tags: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    mode: Mode = "full"
