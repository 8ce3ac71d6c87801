"""What is wrong with a library, file by file: for its authors, before anybody asks.

Links are looked at outside of code only, and not where they hold a placeholder. Of links to files (CommonMark 6.3) as far as
`[text](path)`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import unquote

from msgspec import Struct

from concertino.errors import RpcError, TargetError
from concertino.library.document import Document
from concertino.library.document_registry import Ambiguous, DocumentRegistry
from concertino.library.file_loader import FileLoader, FolderState
from concertino.library.file_parsing import text_of
from concertino.library.folder import Folder
from concertino.library.front_matter import front_matter
from concertino.library.index import Index
from concertino.library.outline import lines_outside_fences
from concertino.library.problems import LibraryProblem
from concertino.library.prompt_files import PromptFile, placeholders
from concertino.library.query import Query
from concertino.library.query_params import query_of
from concertino.library.tokens import Counter
from concertino.library.uris import MATCH, REGISTRY, parts_of

__all__ = ["LintFinding", "LintReport", "lint"]

LINK = re.compile(r"\[[^\]\n]*\]\(\s*<?([^\s)>]+)>?[^)\n]*\)")
CODE = re.compile(r"`[^`\n]*`")
PLACEHOLDER = re.compile(r"[{}$<>]|\.\.\.|…")
SOME_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
FACTOR = 1.5  # how far estimatedTokens may be from what is counted, up or down
REACHED = 15  # among so many: a match's own default
FIELDS = ("tags", "capabilities", "use_when", "description")


class LintFinding(Struct, frozen=True, order=True):
    """folder: `resources` or `prompts`; path: below it."""

    folder: str
    path: str
    line: int
    rule: str
    message: str


class LintReport(Struct, frozen=True):
    """findings: sorted. skipped: what could not be looked for, and why."""

    documents: int
    prompts: int
    findings: list[LintFinding]
    skipped: list[str]


def lint(
    resources: Folder | None, prompts: Folder | None, scheme: str, count: Counter
) -> LintReport:
    """Look at everything. Blocks. Raises ConcertinoError where front matter is to be read and PyYAML is missing."""
    collection = FileLoader(scheme, resources, prompts)
    shelf = DocumentRegistry()
    shelf.apply(collection.refresh())
    found: set[LintFinding] = set()

    def add(folder: str, path: str, problems: Iterable[LibraryProblem]) -> None:
        found.update(
            LintFinding(folder, path, each.line, each.rule, each.message) for each in problems
        )

    for name, side in (("resources", collection.resources), ("prompts", collection.prompts)):
        for path, problems in () if side is None else side.problems.items():
            add(name, path, problems)
    documents = shelf.documents()
    for each in documents:
        first = _first_line(collection.resources, each.path)
        add(
            "resources",
            each.path,
            [*_missing(each), *_tokens(each, count), *_links(each, first, shelf, scheme)],
        )
    for path, problem in (*_names(shelf), *_shadowed(shelf)):
        add("resources", path, (problem,))
    side = collection.prompts
    for path, prompt in () if side is None else side.made.items():
        first = _first_line(side, path)
        add(
            "prompts",
            path,
            [*_prompt(prompt, path, shelf), *_uris(prompt.body, first, shelf, scheme)],
        )
    skipped: list[str] = []
    try:
        for each in _unreachable(documents, count):
            add(
                "resources",
                each.path,
                (
                    LibraryProblem(
                        "unreachable", 0, "is not found by its own title, tags or purposes"
                    ),
                ),
            )
    except TargetError as why:
        skipped.append(f"unreachable: {why}")
    return LintReport(len(documents), len(shelf.prompts()), sorted(found), skipped)


def _first_line(side: FolderState[Any] | None, path: str) -> int:  # Any: whatever was made of it
    """The number of the body's first line in its file."""
    if side is None or (found := side.found.get(path)) is None:
        return 1
    text = text_of(side.folder.read(found)[0])
    return 1 if text is None else front_matter(text).body_line


def _missing(document: Document) -> Iterator[LibraryProblem]:
    for field in FIELDS:
        if not getattr(document, field):
            name = "useWhen" if field == "use_when" else field
            yield LibraryProblem(
                "missing-field", 0, f"{name}: neither in the front matter nor in the text"
            )


def _tokens(document: Document, count: Counter) -> Iterator[LibraryProblem]:
    claimed, counted = document.estimated_tokens, count(document.body)
    if claimed is not None and not counted / FACTOR <= claimed <= counted * FACTOR:
        yield LibraryProblem(
            "tokens", 0, f"estimatedTokens: {claimed} is written, {counted} are counted"
        )


def _names(shelf: DocumentRegistry) -> Iterator[tuple[str, LibraryProblem]]:
    for name, items in shelf.ambiguities().items():
        for item in items:
            others = ", ".join(each.uri for each in items if each is not item)
            same_id = isinstance(item, Document) and any(
                isinstance(each, Document) and each is not item and each.id == item.id == name
                for each in items
            )
            if "/" in name and same_id:
                continue
            rule = "duplicate-id" if same_id else "ambiguous-name"
            yield item.path, LibraryProblem(rule, 0, f"{name!r} could be {others} too")


def _shadowed(shelf: DocumentRegistry) -> Iterator[tuple[str, LibraryProblem]]:
    for item in shelf.shadowed():
        yield (
            item.path,
            LibraryProblem("shadowed", 0, f"cannot be read: {item.uri} is something else"),
        )


def _links(
    document: Document, first: int, shelf: DocumentRegistry, scheme: str
) -> Iterator[LibraryProblem]:
    yield from _uris(document.body, first, shelf, scheme)
    for name in document.related:  # URIs, or ids alone
        uri = name if "://" in name else f"{scheme}://{name}"
        if problem := _broken(uri, shelf, scheme):
            yield LibraryProblem("broken-link", 0, f"relatedResources: {problem}")
    for line, text in lines_outside_fences(document.body):
        for link in LINK.finditer(CODE.sub("", text)):
            target = unquote(link[1].partition("#")[0].partition("?")[0])
            if (
                not target
                or SOME_SCHEME.match(target)
                or target.startswith("/")
                or PLACEHOLDER.search(target)
            ):
                continue
            path = os.path.normpath(os.path.join(os.path.dirname(document.path), target))  # noqa: PTH118, PTH120
            if not shelf.has(path.rstrip("/")):
                yield LibraryProblem("broken-link", first + line, f"{link[1]}: there is no {path}")


def _uris(body: str, first: int, shelf: DocumentRegistry, scheme: str) -> Iterator[LibraryProblem]:
    """URIs of the library itself, wherever they stand in a text."""
    begin = f"{scheme}://"
    for line, text in lines_outside_fences(body):
        if begin not in text:
            continue
        for each in re.findall(rf"{re.escape(begin)}[^\s)\"'`|\]]*", text):
            uri = each.rstrip(".,;:*!?_")
            if (
                uri != begin
                and not PLACEHOLDER.search(uri)
                and (problem := _broken(uri, shelf, scheme))
            ):
                yield LibraryProblem("broken-link", first + line, problem)


def _broken(uri: str, shelf: DocumentRegistry, scheme: str) -> str:
    """What is wrong with a URI; empty for nothing."""
    parts = parts_of(scheme, uri)
    if parts is None:
        return f"{uri}: expected a URI of the scheme {scheme}"
    key, query = parts
    category, slash, rest = key.rpartition("/")
    if rest == MATCH and "/" not in category:
        known = shelf.category(category) if slash else None
        if slash and known is None:
            return f"{uri}: there is no category {category!r}"
        try:
            if query is not None:
                query_of(query, known, shelf.category, shelf.categories())
        except RpcError as why:
            return f"{uri}: {why.message}"
        return ""
    if key == REGISTRY or shelf.category(key.removesuffix("/")) is not None:
        return ""
    try:
        return (
            ""
            if query is None and shelf.find(key) is not None
            else f"{uri}: there is no such resource"
        )
    except Ambiguous as why:
        return f"{uri}: could be {', '.join(why.candidates)}"


def _prompt(prompt: PromptFile, path: str, shelf: DocumentRegistry) -> Iterator[LibraryProblem]:
    other = shelf.prompts()[prompt.name]
    if other.path != path:
        yield LibraryProblem(
            "prompt",
            0,
            f"name: {other.path} has the name {prompt.name!r} too, and is the one that is served",
        )
    if prompt.description is None:
        yield LibraryProblem(
            "missing-field", 0, "description: neither in the front matter nor in the text"
        )
    used = placeholders(prompt.body)
    names = {each.name for each in prompt.taken}
    for name in sorted(names - set(filter(None, used))):
        if None not in used:
            yield LibraryProblem("prompt", 0, f"arguments: {name!r} is nowhere in the text")
    for name in sorted(
        {each for each in used if each and each not in names and f"{{{{{each}}}}}" in prompt.body}
    ):
        yield LibraryProblem(
            "prompt", 0, f"{{{{{name}}}}} stays as it is: there is no argument of this name"
        )


def _unreachable(documents: list[Document], count: Counter) -> Iterator[Document]:
    """Those that are not among the first for anything that they say of themselves."""
    index = Index.build(documents, count=count)
    for each in documents:
        own = (
            f"{each.title} {' '.join(each.tags)}",
            *each.use_when,
            *each.capabilities,
            each.description,
            each.id,
        )
        if not any(text.strip() and _finds(index, text, each) for text in own):
            yield each


def _finds(index: Index, text: str, document: Document) -> bool:
    return any(
        hit.document.uri == document.uri
        for hit in index.search(Query(text, max_results=REACHED)).hits
    )
