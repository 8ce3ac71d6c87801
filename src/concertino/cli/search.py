"""`concertino search DIR "words"`: what a library finds, and why. Exit codes: 0 something was found, 1 nothing, 2 usage."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from itertools import groupby
from typing import NoReturn

from msgspec.json import encode, format

from concertino.cli.folders import Folders, places
from concertino.errors import ConcertinoError
from concertino.library.document_registry import DocumentRegistry
from concertino.library.file_loader import FileLoader
from concertino.library.index import Index, ScorePart, SearchResult
from concertino.library.library import Library, open_cache
from concertino.library.query import Query
from concertino.library.rendering import Hit
from concertino.library.tokens import counter

__all__ = ["DESCRIPTION", "add_arguments", "run"]

NOTHING = 1
USAGE = 2


DESCRIPTION = (
    "Look for documents in a library as its clients do, and say what made each of them fit."
)


def add_arguments(search: ArgumentParser) -> None:
    """What can be said of a search."""
    search.add_argument(
        "folder", metavar="DIR", help="with resources/ in it; a - for RESOURCES_PATH"
    )
    search.add_argument(
        "--resources", metavar="DIR", help="its resources (else DIR/resources, or RESOURCES_PATH)"
    )
    search.add_argument("--scheme", metavar="NAME", help="of its URIs (default orchestr8)")
    search.add_argument("words", metavar="WORDS", nargs="+", help="what to look for")
    search.add_argument("--json", action="store_true", help="one JSON document instead of lines")
    search.add_argument("--mode", help="print what a client gets: full, catalog, index or minimal")
    search.add_argument(
        "--max-tokens", type=int, default=3000, metavar="N", help="... within so many tokens (3000)"
    )
    search.add_argument(
        "--max-results", type=int, default=15, metavar="N", help="at most so many documents (15)"
    )
    search.add_argument(
        "--min-score", type=float, default=0.0, metavar="X", help="only those that fit as well"
    )
    search.add_argument(
        "--tag",
        action="append",
        default=[],
        metavar="TAG",
        help="required; repeatable: all of them",
    )
    search.add_argument(
        "--category", action="append", default=[], metavar="NAME", help="repeatable: any of them"
    )
    search.add_argument(
        "--tokenizer",
        default="estimate",
        metavar="NAME",
        help="estimate, cl100k_base or o200k_base",
    )
    search.add_argument(
        "--no-cache", action="store_true", help="read and index everything, and keep nothing"
    )


def run(given: Namespace, server: Sequence[str]) -> NoReturn:
    """Print what was found, and end the process."""
    try:
        query = _query(given)
        index = _index(given)
        if given.mode is not None:
            found = index.match(query)
            _print(found.text)
            sys.exit(0 if found.fragments else NOTHING)
        result = index.search(query)
    except (ConcertinoError, ValueError) as why:
        print(f"concertino search: {why}", file=sys.stderr)  # noqa: T201
        sys.exit(USAGE)
    explained = [(hit, index.explain(query, hit.document.uri)) for hit in result.hits]
    if given.json:
        shown = {
            "query": query.text,
            "terms": result.terms,
            "repairs": result.corrections,
            "unknown": result.unknown,
            "documents": len(index.documents),
            "found": [
                {
                    "uri": hit.document.uri,
                    "title": hit.document.title,
                    "tokens": index.length(hit.document),
                    "score": hit.score,
                    "parts": parts,
                }
                for hit, parts in explained
            ],
        }
        _print(format(encode(shown), indent=2).decode())
    else:
        _print(_lines(result, explained, index))
    sys.exit(0 if result.hits else NOTHING)


def _query(given: Namespace) -> Query:
    """Raises ValueError naming what does not fit."""
    for name, value, most in (
        ("--max-tokens", given.max_tokens, 10**7),
        ("--max-results", given.max_results, 1000),
    ):
        if not 1 <= value <= most:
            raise ValueError(f"{name}: expected a number from 1 to {most}, got {value}")
    if given.mode not in (None, "full", "catalog", "index", "minimal"):
        raise ValueError(f"--mode: expected full, catalog, index or minimal, got {given.mode!r}")
    return Query(
        " ".join(given.words),
        max_tokens=given.max_tokens,
        max_results=given.max_results,
        min_score=given.min_score,
        tags=tuple(given.tag),
        categories=tuple(given.category),
        mode=given.mode or "full",
    )


def _index(given: Namespace) -> Index:
    """Of what the folder holds now; from the cache file that `concertino serve` uses, too."""
    count = counter(given.tokenizer)
    resources, _ = places(None if given.folder == "-" else given.folder, Folders(given.resources))
    if resources is None:
        raise ValueError("nothing to search: expected a folder of resources")
    library = Library(resources, scheme=given.scheme or "orchestr8")
    cache, missing = (None, "") if given.no_cache else open_cache(library)
    if missing:
        raise ValueError(missing)
    collection = FileLoader(library.scheme, library.resources, None)
    if cache is not None:
        collection.known = cache.documents()
    shelf = DocumentRegistry()
    shelf.apply(collection.refresh())
    return Index.build(shelf.documents(), cache=cache, count=count)


def _lines(result: SearchResult, explained: list[tuple[Hit, list[ScorePart]]], index: Index) -> str:
    lines: list[str] = []
    for word, instead in result.corrections.items():
        lines.append(f"{word}: nothing has this word; looked for {instead}")
    if result.unknown:
        lines.append(f"nothing has these words: {', '.join(result.unknown)}")
    lines += [""] if lines else []
    for place, (hit, parts) in enumerate(explained, 1):
        document = hit.document
        lines.append(
            f"{place:3}. {hit.score:7.2f}  {document.uri}  ({index.length(document)} tokens)"
        )
        lines.append(f"{'':14}{' '.join(document.title.split())}")
        by_term = sorted(parts, key=lambda part: result.terms.index(part.term))
        for term, own in groupby(by_term, key=lambda part: part.term):
            fields = list(own)
            sums = " + ".join(f"{part.score:.2f} {part.field}" for part in fields)
            lines.append(f"{'':14}{term} {sum(part.score for part in fields):.2f} = {sums}")
    if not explained:
        lines.append(f"None of {len(index.documents)} documents has what was looked for.")
    return "\n".join(lines)


def _print(text: str) -> None:
    """As a terminal can show it: a document may hold what would steer one."""
    shown = "".join(each if each.isprintable() or each == "\n" else "\ufffd" for each in text)
    sys.stdout.write(shown.encode("utf-8", "replace").decode() + "\n")
