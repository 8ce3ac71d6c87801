"""`concertino search DIR WORDS`: show the documents that a library finds for a query, and why.

A library is a folder of Markdown documents, which `concertino serve DIR` offers to MCP clients.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from itertools import groupby

from msgspec.json import encode, format

from concertino.cli import UsageError
from concertino.cli.folders import DEFAULT_SCHEME, LibraryOptions, find_library_folders
from concertino.cli.options import add_library_options, add_repeatable, add_tokenizer
from concertino.cli.serving import reject_extra_args
from concertino.errors import ConcertinoError
from concertino.library.document_registry import DocumentRegistry
from concertino.library.file_loader import FileLoader
from concertino.library.index import Index, ScorePart, SearchResult
from concertino.library.library import Library, open_cache
from concertino.library.query import Query
from concertino.library.rendering import Hit
from concertino.library.tokens import make_counter

# Exit code if nothing was found.
NOTHING = 1
MODES = ("full", "catalog", "index", "minimal")

DESCRIPTION = (
    "Search a library as its clients do, and show how each document earned its score. "
    "Exit codes: 0 documents were found, 1 nothing was found, 2 usage."
)


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `concertino search` to its parser."""
    parser.usage = "concertino search [OPTIONS] DIR WORDS..."
    parser.add_argument(
        "folder", metavar="DIR", help="folder that holds resources/, or - for RESOURCES_PATH"
    )
    add_library_options(parser, with_prompts=False)
    parser.add_argument("words", metavar="WORDS", nargs="+", help="words to search for")
    parser.add_argument("--json", action="store_true", help="print one JSON document, not lines")
    parser.add_argument(
        "--mode", help="print the text that a client gets: full, catalog, index or minimal"
    )
    parser.add_argument(
        "--max-tokens",
        type=int,
        default=3000,
        metavar="N",
        help="largest size of that text in tokens (default 3000)",
    )
    parser.add_argument(
        "--max-results",
        type=int,
        default=15,
        metavar="N",
        help="largest number of documents (default 15)",
    )
    parser.add_argument(
        "--min-score", type=float, default=0.0, metavar="X", help="lowest score of a document"
    )
    add_repeatable(parser, "--tag", "TAG", "tag that a document must have; repeatable: all of them")
    add_repeatable(
        parser, "--category", "NAME", "category of the documents; repeatable: any of them"
    )
    add_tokenizer(parser)
    parser.add_argument(
        "--no-cache", action="store_true", help="read all files again, and write no cache file"
    )


def run(args: Namespace, server: Sequence[str]) -> int:
    """Search a library, a folder of Markdown files, and print the results.

    Returns the exit code: 0 for results, 1 for none.

    args: the parsed arguments.
    server: the words after `--`. This command accepts none.
    Raises UsageError for a folder or an option that cannot be used.
    """
    reject_extra_args(args, server)
    try:
        query = _make_query(args)
        index = _build_index(args)
        # With --mode, show the text that a client gets. Otherwise show the hits and their scores.
        if args.mode is not None:
            matches = index.match(query)
            _print(matches.text)
            return 0 if matches.fragments else NOTHING
        result = index.search(query)
    except (ConcertinoError, ValueError) as exc:
        raise UsageError(str(exc)) from None

    # For each document, the parts of its score by term and field.
    explained = [(hit, index.explain(query, hit.document.uri)) for hit in result.hits]
    if args.json:
        _print(_format_json(query, result, explained, index))
    else:
        _print(_format_lines(result, explained, index))
    return 0 if result.hits else NOTHING


def _make_query(args: Namespace) -> Query:
    """Return the query for the options. Raises ValueError if an option is out of its range."""
    for name, value, maximum in (
        ("--max-tokens", args.max_tokens, 10**7),
        ("--max-results", args.max_results, 1000),
    ):
        if not 1 <= value <= maximum:
            raise ValueError(f"{name}: expected a number from 1 to {maximum}, got {value}")
    if args.mode is not None and args.mode not in MODES:
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


def _build_index(args: Namespace) -> Index:
    """Return an index of the documents in the folder. Raises ValueError or ConcertinoError.

    Unless --no-cache is given, only files that have changed are read; all other documents come from
    the cache file of `concertino serve`.
    """
    count_tokens = make_counter(args.tokenizer)
    target = None if args.folder == "-" else args.folder
    resources, _ = find_library_folders(target, LibraryOptions(args.resources))
    if resources is None:
        raise ValueError("nothing to search: expected a folder of resources")
    library = Library(resources, scheme=args.scheme or DEFAULT_SCHEME)
    cache, problem = (None, "") if args.no_cache else open_cache(library)
    if problem:
        raise ValueError(problem)

    # Load the documents as Library does. Documents of the cache whose files are unchanged are not
    # read again.
    loader = FileLoader(library.scheme, library.resources, prompts=None)
    if cache is not None:
        loader.cached = cache.documents()
    registry = DocumentRegistry()
    registry.apply(loader.refresh())
    return Index.build(registry.documents(), cache=cache, count=count_tokens)


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
    """Return lines for people: each document, with the terms and fields that add to its score."""
    lines: list[str] = []
    for word, correction in result.corrections.items():
        lines.append(f"no document contains {word}; looked for {correction} instead")
    if result.unknown:
        lines.append(f"no document contains: {', '.join(result.unknown)}")
    if lines:
        lines.append("")

    indent = " " * 14
    for number, (hit, parts) in enumerate(explained, 1):
        document = hit.document
        tokens = f"({index.length(document)} tokens)"
        lines.append(f"{number:3}. {hit.score:7.2f}  {document.uri}  {tokens}")
        lines.append(f"{indent}{' '.join(document.title.split())}")
        by_term = sorted(parts, key=lambda part: result.terms.index(part.term))
        for term, group in groupby(by_term, key=lambda part: part.term):
            fields = list(group)
            sums = " + ".join(f"{part.score:.2f} {part.field}" for part in fields)
            lines.append(f"{indent}{term} {sum(part.score for part in fields):.2f} = {sums}")
    if not explained:
        lines.append(f"None of {len(index.documents)} documents matches the query.")
    return "\n".join(lines)


def _print(text: str) -> None:
    """Print a text with its control characters replaced."""
    # The text of a document must neither control the terminal nor fail to encode for stdout.
    safe = "".join(char if char.isprintable() or char == "\n" else "\ufffd" for char in text)
    sys.stdout.write(safe.encode("utf-8", "replace").decode() + "\n")
