"""lint(): finds the defects of a library, for `concertino lint`.

Defects are invalid front matter, missing fields, ambiguous names, broken links, and documents that
no search finds; problems.py lists all kinds. The checked links are URIs of the library anywhere in
a text, and links to files of the form `[text](path)`. Links in code and links with placeholders are
ignored.
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
from concertino.library.file_parsing import decode_text
from concertino.library.folder import FileMissing, Folder
from concertino.library.front_matter import parse_front_matter
from concertino.library.index import Index
from concertino.library.outline import lines_outside_fences
from concertino.library.problems import LibraryProblem, Rule
from concertino.library.prompt_files import PromptFile, find_placeholders
from concertino.library.query import Query
from concertino.library.query_params import parse_query
from concertino.library.tokens import Counter
from concertino.library.uris import MATCH, REGISTRY, split_uri

# `[text](path)` or `[text](path "title")`.
LINK = re.compile(r"\[[^\]\n]*\]\(\s*<?([^\s)>]+)>?[^)\n]*\)")
# Code inside a line.
CODE = re.compile(r"`[^`\n]*`")
# A target that contains one of these is a placeholder, such as `<name>` or `docs/...`.
PLACEHOLDER = re.compile(r"[{}$<>]|\.\.\.|…")
ANY_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")

# The estimatedTokens of a document may differ from the real number by this factor.
MAX_FACTOR = 1.5
# A search for a document's own words must find the document among this many hits, the default
# number of hits.
MAX_RANK = 15

Findings = Iterator[LibraryProblem]


class LintFinding(Struct, frozen=True, order=True):
    """One defect of a file.

    folder: `resources` or `prompts`.
    path: the path of the file, relative to the directory.
    line: the line number, from 1; 0 for the file as a whole.
    rule: the kind of defect, such as "broken-link"; problems.py lists all kinds.
    message: a text about the defect, without the path.
    """

    folder: str
    path: str
    line: int
    rule: str
    message: str


class LintReport(Struct, frozen=True):
    """The result of lint().

    documents: how many documents were checked.
    prompts: how many prompts were checked.
    findings: the defects, sorted by `folder`, `path` and `line`.
    skipped: the kinds of defects that could not be looked for, each with the reason.
    """

    documents: int
    prompts: int
    findings: list[LintFinding]
    skipped: list[str]


def lint(
    resources: Folder | None,
    prompts: Folder | None,
    scheme: str,
    count: Counter,
) -> LintReport:
    """Read all files of a library, and return their defects. Blocks.

    Without tantivy, lint() cannot check whether searches find each document, and says so in
    LintReport.skipped.

    resources, prompts: the directories; None for a directory that the library does not have.
    scheme: the scheme of the library's URIs.
    count: counts the tokens of a text.
    Raises ConcertinoError if a file has front matter and PyYAML is not installed.
    """
    loader = FileLoader(scheme, resources, prompts)
    registry = DocumentRegistry()
    registry.apply(loader.refresh())
    documents = registry.documents()
    linter = _Linter(loader, registry, scheme, count)
    linter.check_parsing()
    linter.check_documents(documents)
    linter.check_prompts()

    skipped: list[str] = []
    try:
        linter.check_reachability(documents)
    except TargetError as exc:
        skipped.append(f"unreachable: {exc}")
    return LintReport(
        documents=len(documents),
        prompts=len(registry.prompts()),
        findings=sorted(linter.findings),
        skipped=skipped,
    )


class _Linter:
    """Collects the findings of one library.

    loader: has the parsed files.
    registry: finds files by URI.
    scheme: the scheme of the library's URIs.
    count: counts the tokens of a text.

    Attributes:
    findings: the findings of all checks so far.
    """

    def __init__(
        self,
        loader: FileLoader,
        registry: DocumentRegistry,
        scheme: str,
        count: Counter,
    ) -> None:
        self.findings: set[LintFinding] = set()
        self._loader = loader
        self._registry = registry
        self._links = _LinkChecker(registry, scheme)
        self._count = count

    def _add(
        self,
        folder: str,
        path: str,
        problems: Iterable[LibraryProblem],
    ) -> None:
        """Add the problems of a file to the findings.

        folder: `resources` or `prompts`.
        path: the path of the file, relative to the directory.
        """
        self.findings.update(
            LintFinding(
                folder=folder,
                path=path,
                line=problem.line,
                rule=problem.rule,
                message=problem.message,
            )
            for problem in problems
        )

    def check_parsing(self) -> None:
        """Add the problems that were found while reading the files."""
        for name, state in (
            ("resources", self._loader.resources),
            ("prompts", self._loader.prompts),
        ):
            if state is None:
                continue
            for path, problems in state.problems.items():
                self._add(name, path, problems)

    def check_documents(self, documents: list[Document]) -> None:
        """Check the fields, links and names of the documents."""
        for document in documents:
            body_line = _body_line(self._loader.resources, document.path)
            self._add("resources", document.path, _missing_fields(document))
            self._add("resources", document.path, _wrong_tokens(document, self._count))
            self._add("resources", document.path, self._links.check_document(document, body_line))
        for path, problem in _ambiguous_names(self._registry):
            self._add("resources", path, (problem,))
        for item in self._registry.find_shadowed():
            problem = _problem("shadowed", f"cannot be read: {item.uri} is something else")
            self._add("resources", item.path, (problem,))

    def check_prompts(self) -> None:
        """Check the names, arguments and links of the prompts."""
        state = self._loader.prompts
        if state is None:
            return
        for path, prompt in state.parsed.items():
            body_line = _body_line(state, path)
            self._add("prompts", path, _prompt_problems(prompt, path, self._registry))
            self._add("prompts", path, self._links.check_uris(prompt.body, body_line))

    def check_reachability(self, documents: list[Document]) -> None:
        """Check whether a search for a document's own words finds the document.

        documents: all documents of the library.
        Raises TargetError if tantivy is not installed.
        """
        problem = _problem("unreachable", "is not found by its own title, tags or purposes")
        for document in _unreachable(documents, self._count):
            self._add("resources", document.path, (problem,))


def _problem(rule: Rule, message: str) -> LibraryProblem:
    return LibraryProblem(rule, 0, message)


# The type of the parsed files does not matter, so it is Any.
def _body_line(state: FolderState[Any] | None, path: str) -> int:
    """Return the line number in the file at which its body begins; 1 if there is no such file."""
    if state is None or (file := state.files.get(path)) is None:
        return 1
    try:
        text = decode_text(state.folder.read(file)[0])
    except FileMissing:
        return 1
    return 1 if text is None else parse_front_matter(text).body_line


def _missing_fields(document: Document) -> Findings:
    """Yield a problem for each empty field among those that help to find a document."""
    for name, value in (
        ("tags", document.tags),
        ("capabilities", document.capabilities),
        ("useWhen", document.use_when),
        ("description", document.description),
    ):
        if not value:
            yield _problem("missing-field", f"{name}: neither in the front matter nor in the text")


def _wrong_tokens(document: Document, count: Counter) -> Findings:
    """Yield a problem if the author's estimatedTokens is far from the counted number."""
    claimed, counted = document.estimated_tokens, count(document.body)
    if claimed is not None and not counted / MAX_FACTOR <= claimed <= counted * MAX_FACTOR:
        yield _problem("tokens", f"estimatedTokens: {claimed} is written, {counted} are counted")


def _ambiguous_names(registry: DocumentRegistry) -> Iterator[tuple[str, LibraryProblem]]:
    """Yield (path, problem) for each file that shares a name with another file."""
    ambiguities = registry.ambiguities()
    for name, items in ambiguities.items():
        for item in items:
            others = [other for other in items if other is not item]
            ids = {other.id for other in others if isinstance(other, Document)}
            # The id of this document, if another document has the same id.
            shared_id = item.id if isinstance(item, Document) and item.id in ids else None
            # Skip an id with a directory or category before it if the id alone is reported.
            if shared_id in ambiguities and name.endswith(f"/{shared_id}"):
                continue
            rule: Rule = "duplicate-id" if name == shared_id else "ambiguous-name"
            uris = ", ".join(other.uri for other in others)
            yield item.path, _problem(rule, f"{name!r} could be {uris} too")


class _LinkChecker:
    """Finds broken links to files and to URIs of the library.

    registry: the files of the library.
    scheme: the scheme of the library's URIs.
    """

    def __init__(self, registry: DocumentRegistry, scheme: str) -> None:
        self._registry = registry
        self._scheme = scheme

    def check_document(self, document: Document, body_line: int) -> Findings:
        """Yield a problem for each broken link of a document.

        body_line: the line number in the file at which the document's body begins.
        """
        yield from self.check_uris(document.body, body_line)
        # Related resources are URIs or ids.
        for name in document.related:
            uri = name if "://" in name else f"{self._scheme}://{name}"
            if defect := self._find_defect(uri):
                yield _problem("broken-link", f"relatedResources: {defect}")

        for line, text in lines_outside_fences(document.body):
            for link in LINK.finditer(CODE.sub("", text)):
                target = unquote(link[1].partition("#")[0].partition("?")[0])
                # A path from the root of a website says nothing about the library.
                if not target or target.startswith("/"):
                    continue
                if ANY_SCHEME.match(target) or PLACEHOLDER.search(target):
                    continue
                folder = os.path.dirname(document.path)  # noqa: PTH120
                path = os.path.normpath(os.path.join(folder, target))  # noqa: PTH118
                if not self._registry.has_path(path.rstrip("/")):
                    message = f"{link[1]}: there is no {path}"
                    yield LibraryProblem("broken-link", body_line + line, message)

    def check_uris(self, body: str, body_line: int) -> Findings:
        """Yield a problem for each URI in a text that has the library's scheme and cannot be read.

        body: the text, in which URIs may be parts of links or stand alone.
        body_line: the line number in the file at which the text begins.
        """
        prefix = f"{self._scheme}://"
        pattern = re.compile(rf"{re.escape(prefix)}[^\s)\"'`|\]]*")
        for line, text in lines_outside_fences(body):
            for match in pattern.findall(text):
                # Punctuation at the end belongs to the sentence, not to the URI.
                uri = match.rstrip(".,;:*!?_")
                if uri == prefix or PLACEHOLDER.search(uri):
                    continue
                if defect := self._find_defect(uri):
                    yield LibraryProblem("broken-link", body_line + line, defect)

    def _find_defect(self, uri: str) -> str:
        """Return a description of the defect of a URI; "" if the URI can be read."""
        # The same cases as in ResourceReader.read().
        registry = self._registry
        parts = split_uri(self._scheme, uri)
        if parts is None:
            return f"{uri}: expected a URI of the scheme {self._scheme}"
        key, query = parts
        before, slash, last = key.rpartition("/")
        if last == MATCH and "/" not in before:
            category = registry.category(before) if slash else None
            if slash and category is None:
                return f"{uri}: there is no category {before!r}"
            return self._find_query_defect(uri, query, category)

        if key == REGISTRY or registry.category(key.removesuffix("/")) is not None:
            return ""
        try:
            exists = query is None and registry.find(key) is not None
        except Ambiguous as exc:
            return f"{uri}: could be {', '.join(exc.candidates)}"
        return "" if exists else f"{uri}: there is no such resource"

    def _find_query_defect(
        self,
        uri: str,
        query: str | None,
        category: str | None,
    ) -> str:
        """Return a description of the defect of a search URI; "" if there is none.

        query: the part of the URI after `?`. None if there is none: the text then speaks of
            searches in general, which is no defect.
        category: the category in the path of the URI; None if it searches all categories.
        """
        try:
            if query is not None:
                registry = self._registry
                parse_query(query, category, registry.category, registry.categories())
        except RpcError as exc:
            return f"{uri}: {exc.message}"
        return ""


def _prompt_problems(prompt: PromptFile, path: str, registry: DocumentRegistry) -> Findings:
    """Yield the defects of a prompt's name, description and arguments.

    path: the path of the prompt's file, relative to the directory of prompts.
    """
    served = registry.prompts()[prompt.name]
    if served.path != path:
        yield _problem(
            "prompt",
            f"name: {served.path} has the name {prompt.name!r} too, and is the one that is served",
        )
    if prompt.description is None:
        yield _problem("missing-field", "description: neither in the front matter nor in the text")

    used = find_placeholders(prompt.body)
    names = {argument.name for argument in prompt.accepted_arguments}
    # None stands for $ARGUMENTS, which uses all arguments.
    if None not in used:
        for name in sorted(names - set(filter(None, used))):
            yield _problem("prompt", f"arguments: {name!r} is nowhere in the text")

    # `${name}` is common in examples, so only `{{name}}` without spaces is a defect if there is no
    # such argument.
    for name in sorted({name for name in used if name and name not in names}):
        if f"{{{{{name}}}}}" in prompt.body:
            message = f"{{{{{name}}}}} stays as it is: there is no argument of this name"
            yield _problem("prompt", message)


def _unreachable(documents: list[Document], count: Counter) -> Iterator[Document]:
    """Yield the documents that a search for their own title, tags or purposes does not find."""
    index = Index.build(documents, count=count)
    for document in documents:
        own_texts = (
            f"{document.title} {' '.join(document.tags)}",
            *document.use_when,
            *document.capabilities,
            document.description,
            document.id,
        )
        if not any(text.strip() and _is_found(index, text, document) for text in own_texts):
            yield document


def _is_found(index: Index, text: str, document: Document) -> bool:
    hits = index.search(Query(text, max_results=MAX_RANK)).hits
    return any(hit.document is document for hit in hits)
