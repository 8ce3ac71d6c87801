"""`concertino search DIR "words"`: searches a library, and explains the scores.

Exit codes: 0 something was found, 1 nothing, 2 usage.
"""

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

DESCRIPTION = "Search the documents of a library as its clients do, and explain each score."


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of `concertino search` to its parser."""
    parser.add_argument(
        "folder", metavar="DIR", help="folder that contains resources/; - for RESOURCES_PATH"
    )
    parser.add_argument(
        "--resources",
        metavar="DIR",
        help="folder of resources (default: DIR/resources, or RESOURCES_PATH)",
    )
    parser.add_argument(
        "--scheme", metavar="NAME", help="scheme of the resource URIs (default: orchestr8)"
    )
    parser.add_argument("words", metavar="WORDS", nargs="+", help="words to look for")
    parser.add_argument("--json", action="store_true", help="print one JSON document, not lines")
    parser.add_argument(
        "--mode", help="print what a client receives: full, catalog, index or minimal"
    )
    parser.add_argument(
        "--max-tokens",
        type=int,
        default=3000,
        metavar="N",
        help="most tokens that --mode prints (default 3000)",
    )
    parser.add_argument(
        "--max-results", type=int, default=15, metavar="N", help="most documents (default 15)"
    )
    parser.add_argument(
        "--min-score", type=float, default=0.0, metavar="X", help="least score (default 0)"
    )
    parser.add_argument(
        "--tag",
        action="append",
        default=[],
        metavar="TAG",
        help="only documents with this tag; repeatable: all of them",
    )
    parser.add_argument(
        "--category",
        action="append",
        default=[],
        metavar="NAME",
        help="only documents of this category; repeatable: any of them",
    )
    parser.add_argument(
        "--tokenizer",
        default="estimate",
        metavar="NAME",
        help="estimate, cl100k_base or o200k_base",
    )
    parser.add_argument(
        "--no-cache", action="store_true", help="read and index everything, and write no cache"
    )


def run(args: Namespace, server: Sequence[str]) -> NoReturn:
    """Print the documents that match, and end the process."""
    try:
        query = _make_query(args)
        index = _make_index(args)
        if args.mode is not None:
            text = index.match(query)
            _print(text.text)
            sys.exit(0 if text.fragments else NOTHING)
        result = index.search(query)
    except (ConcertinoError, ValueError) as exc:
        print(f"concertino search: {exc}", file=sys.stderr)  # noqa: T201
        sys.exit(USAGE)

    explained = [(hit, index.explain(query, hit.document.uri)) for hit in result.hits]
    if args.json:
        _print(_format_json(query, result, explained, index))
    else:
        _print(_format_lines(result, explained, index))
    sys.exit(0 if result.hits else NOTHING)


def _make_query(args: Namespace) -> Query:
    """Return the query of the options. Raises ValueError that names a wrong one."""
    for name, value, most in (
        ("--max-tokens", args.max_tokens, 10**7),
        ("--max-results", args.max_results, 1000),
    ):
        if not 1 <= value <= most:
            raise ValueError(f"{name}: expected a number from 1 to {most}, got {value}")
    if args.mode not in (None, "full", "catalog", "index", "minimal"):
        raise ValueError(f"--mode: expected full, catalog, index or minimal, got {args.mode!r}")
    return Query(
        " ".join(args.words),
        max_tokens=args.max_tokens,
        max_results=args.max_results,
        min_score=args.min_score,
        tags=tuple(args.tag),
        categories=tuple(args.category),
        mode=args.mode or "full",
    )


def _make_index(args: Namespace) -> Index:
    """Return an index of the folder's current content, with the cache of `concertino serve`.

    Raises ConcertinoError, and ValueError if there is nothing to search.
    """
    count = counter(args.tokenizer)
    resources, _ = places(None if args.folder == "-" else args.folder, Folders(args.resources))
    if resources is None:
        raise ValueError("nothing to search: expected a folder of resources")

    library = Library(resources, scheme=args.scheme or "orchestr8")
    cache, no_index = (None, "") if args.no_cache else open_cache(library)
    if no_index:
        raise ValueError(no_index)
    loader = FileLoader(library.scheme, library.resources, None)
    if cache is not None:
        loader.known = cache.documents()
    documents = DocumentRegistry()
    documents.apply(loader.refresh())
    return Index.build(documents.documents(), cache=cache, count=count)


def _format_json(
    query: Query,
    result: SearchResult,
    explained: list[tuple[Hit, list[ScorePart]]],
    index: Index,
) -> str:
    document = {
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
    return format(encode(document), indent=2).decode()


def _format_lines(
    result: SearchResult, explained: list[tuple[Hit, list[ScorePart]]], index: Index
) -> str:
    lines: list[str] = []
    for word, correction in result.corrections.items():
        lines.append(f"no document contains {word}; looked for {correction} instead")
    if result.unknown:
        lines.append(f"no document contains: {', '.join(result.unknown)}")
    if lines:
        lines.append("")

    for rank, (hit, parts) in enumerate(explained, 1):
        document = hit.document
        tokens = index.length(document)
        lines.append(f"{rank:3}. {hit.score:7.2f}  {document.uri}  ({tokens} tokens)")
        lines.append(f"{'':14}{' '.join(document.title.split())}")
        by_term = sorted(parts, key=lambda part: result.terms.index(part.term))
        for term, own in groupby(by_term, key=lambda part: part.term):
            fields = list(own)
            sums = " + ".join(f"{part.score:.2f} {part.field}" for part in fields)
            lines.append(f"{'':14}{term} {sum(part.score for part in fields):.2f} = {sums}")
    if not explained:
        lines.append(f"None of {len(index.documents)} documents matches the query.")
    return "\n".join(lines)


def _print(text: str) -> None:
    """Print a text whose control characters a terminal must not interpret: it comes from files."""
    printable = "".join(char if char.isprintable() or char == "\n" else "\ufffd" for char in text)
    sys.stdout.write(printable.encode("utf-8", "replace").decode() + "\n")
