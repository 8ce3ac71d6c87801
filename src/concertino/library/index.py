"""An index of documents: which of them fit a query, in which order.

tantivy keeps the terms of each document in four fields and adds up their BM25 scores. The field `text` holds
everything, once: what a document says of itself and its body, so that a word counts as rare or common over whole
documents (the thought of BM25F). Title, tags, and purposes (description, capabilities, useWhen) are fields of their
own with a share of their score; docs/decisions/0009 has the measurements.

The order is score, then URI. Scores are rounded as they are shown, so that what the sum of floats leaves behind
decides nothing. A word that no document knows is replaced by the most frequent known one that is a single slip away
(repair.py).

One update at a time; searches go on meanwhile, in any thread, on the state before it. No thread of tantivy's survives
an update.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from concertino.library.analysis import Analyser, analyser, engine
from concertino.library.cache import Cache, CacheFile, IndexDirectory
from concertino.library.document import Document
from concertino.library.query import MAX_QUERY_CHARACTERS, MAX_TERMS, Query
from concertino.library.rendering import Hit, RenderedText, assemble
from concertino.library.spelling import correct_spelling
from concertino.library.tokens import Counter, estimate

if TYPE_CHECKING:
    import tantivy

__all__ = ["WEIGHTS", "Index", "Part", "SearchHit", "category_key"]

logger = logging.getLogger("concertino.library")

WEIGHTS = {
    "title": 0.4,
    "tags": 0.3,
    "purposes": 0.3,
    "text": 1.0,
}  # of a field's score; docs/decisions/0009
DIGITS = 4  # of a score, behind the point
HEAP_BYTES = (
    15_000_000  # the least tantivy takes: memory of its one writer thread, while there is one
)
BULK_HEAP_BYTES = 100_000_000  # for many documents at once: fewer segments to merge
BULK = 5_000  # documents
MAX_DEAD_SHARE = (
    0.25  # removed documents still count in what is rare and common; above, the index is built anew
)
MAX_STALE_SHARE = (
    0.02  # of the documents that differ from the cache file; above, it is written anew
)
MAX_REPAIRS = 8  # unknown words of a query that are looked at closer
MAX_LENGTHS = 200_000  # documents whose length is remembered
MARGIN = 8  # more hits than are wanted, to see those of the same score


class Part(Struct, frozen=True):
    """What one term of a query gave to a document's score, through one field."""

    term: str
    field: str
    score: float


class SearchHit(Struct, frozen=True):
    """hits: best first. terms: what was looked for. repairs: unknown words, and what was looked for instead. unknown: words
    that no document has, nor anything close to them."""

    hits: list[Hit]
    terms: list[str]
    repairs: dict[str, str]
    unknown: list[str]


class _State(Struct, frozen=True):
    """What a search needs, replaced as a whole. Numbers are given to documents as they come, and never again."""

    searcher: tantivy.Searcher
    documents: Mapping[int, Document]
    numbers: Mapping[str, int]  # by URI
    following: int
    dead: int  # documents that were removed and still lie in the index


class Index:
    """Documents that can be searched. Make one with `Index.build`. count: what budgets are counted by."""

    def __init__(
        self, store: tantivy.Index, state: _State, count: Counter, workplace: IndexDirectory | None
    ) -> None:
        self._store = store
        self._state = state
        self.count = count
        self._workplace = workplace  # held as long as the index: its files lie there
        self._analyser = analyser()
        self._updating = threading.Lock()
        self._lengths: dict[str, int] = {}  # of bodies, by digest

    @classmethod
    def build(
        cls, documents: Iterable[Document], *, cache: Cache | None = None, count: Counter = estimate
    ) -> Index:
        """An index of the documents; of two with the same URI, the last. What can be is taken from the cache, which
        is brought up to date.

        count: what budgets are counted by. Raises TargetError where tantivy is not installed. A cache that cannot be read or
        written costs time, not the index: it says so in the log.
        """
        wanted = {document.uri: document for document in documents}
        kept = cache.kept() if cache is not None else None
        if cache is not None and kept is not None:
            index = cls._reopened(kept, wanted, cache, count)
            if index is not None:
                return index
        size = sum(len(document.body) for document in wanted.values())
        workplace = cache.workplace(document_bytes=size) if cache is not None else None
        if cache is not None and workplace is not None:
            try:
                index = cls._made(wanted.values(), count, workplace)
                index._keep(cache)
                return index
            except ValueError as why:  # no space, most likely
                logger.warning("no index cache in %s: %s", cache.folder, why)
        return cls._made(wanted.values(), count, None)

    @classmethod
    def _made(
        cls, documents: Iterable[Document], count: Counter, workplace: IndexDirectory | None
    ) -> Index:
        tantivy = engine()
        store = tantivy.Index(
            _schema(), path=str(workplace.folder) if workplace is not None else None
        )
        store.config_reader("manual")  # else a thread of tantivy's looks for changes
        numbered = list(enumerate(documents))
        index = cls(store, _State(store.searcher(), {}, {}, 0, 0), count, workplace)
        index._commit((), numbered)
        numbers = {document.uri: number for number, document in numbered}
        index._state = _State(store.searcher(), dict(numbered), numbers, len(numbered), 0)
        return index

    @classmethod
    def _reopened(
        cls, kept: CacheFile, wanted: Mapping[str, Document], cache: Cache, count: Counter
    ) -> Index | None:
        """The index of the cache, with what has changed since; None if that is too much, or it cannot be opened."""
        known = {document.uri: document for document in kept.documents}
        changed = [
            each
            for uri, each in wanted.items()
            if known.get(uri) is not each and known.get(uri) != each
        ]
        removed = known.keys() - wanted.keys()
        differing = len(changed) + len(removed)
        if differing > MAX_DEAD_SHARE * len(known):
            return None
        workplace = cache.workplace(
            kept.files, sum(len(document.body) for document in kept.documents)
        )
        if workplace is None:
            return None
        tantivy = engine()
        try:
            store = tantivy.Index.open(str(workplace.folder))
            store.config_reader("manual")
            store.reload()
            documents = dict(zip(kept.numbers, kept.documents, strict=True))
            numbers = {document.uri: number for number, document in documents.items()}
            index = cls(
                store,
                _State(store.searcher(), documents, numbers, kept.following, kept.dead),
                count,
                workplace,
            )
            if changed or removed:
                index.update(changed, removed)
        except ValueError as why:  # all that tantivy raises
            logger.warning("the index cache %s cannot be opened (%s): made anew", cache.path, why)
            return None
        if differing > MAX_STALE_SHARE * len(known):
            index._keep(cache)
        return index

    def update(self, changed: Iterable[Document], removed: Iterable[str] = ()) -> None:
        """Take in documents, new ones and new versions, and leave out those of the URIs `removed`. Searches see it
        when this returns.

        Takes some 10 ms, 90 ms where the index lies on a disk, and more with many documents; call it in a thread.
        """
        with self._updating:
            coming = {document.uri: document for document in changed}
            leaving = set(removed) - coming.keys()
            self._write(list(coming.values()), leaving)

    def _write(self, coming: Sequence[Document], leaving: Iterable[str]) -> None:
        state = self._state
        documents, numbers = dict(state.documents), dict(state.numbers)
        gone = [uri for uri in (*leaving, *(each.uri for each in coming)) if uri in numbers]
        dead = state.dead + len(gone)
        following = state.following
        for uri in gone:
            del documents[numbers.pop(uri)]
        for number, document in enumerate(coming, following):
            documents[number] = document
            numbers[document.uri] = number
        following += len(coming)
        if dead > MAX_DEAD_SHARE * len(documents):
            self._start_anew(documents)
            return
        try:
            self._commit(gone, [(numbers[each.uri], each) for each in coming])
        except (
            ValueError
        ) as why:  # all that tantivy raises: no space, or somebody took its files away
            if self._workplace is None:
                raise
            logger.warning(
                "the index in %s cannot be written (%s): made anew in memory",
                self._workplace.folder,
                why,
            )
            self._start_anew(documents)
            return
        self._state = _State(self._store.searcher(), documents, numbers, following, dead)

    def _commit(self, gone: Sequence[str], coming: Sequence[tuple[int, Document]]) -> None:
        writer = self._store.writer(BULK_HEAP_BYTES if len(coming) > BULK else HEAP_BYTES, 1)
        for uri in gone:
            writer.delete_documents_by_term("uri", uri)
        for number, document in coming:
            writer.add_document(_entry(document, number, self._analyser))
        writer.commit()
        writer.wait_merging_threads()  # ends the writer's threads, too
        self._store.reload()

    def _start_anew(self, documents: Mapping[int, Document]) -> None:
        """In memory: the files of the workplace belong to the index that goes."""
        new = Index._made(documents.values(), self.count, None)
        self._store, self._state, self._workplace = new._store, new._state, None

    def _keep(self, cache: Cache) -> None:
        state = self._state
        if self._workplace is not None:
            cache.keep(
                list(state.documents),
                list(state.documents.values()),
                state.following,
                state.dead,
                self._workplace,
            )

    @property
    def documents(self) -> list[Document]:
        """All of them, by URI."""
        state = self._state
        return [state.documents[state.numbers[uri]] for uri in sorted(state.numbers)]

    def length(self, document: Document) -> int:
        """The tokens of its body. Counted once: a tokenizer takes a second for 10 MB."""
        known = self._lengths.get(document.digest)
        if known is None:
            if len(self._lengths) > MAX_LENGTHS:
                self._lengths.clear()
            known = self._lengths[document.digest] = self.count(document.body)
        return known

    def match(self, query: Query) -> RenderedText:
        """What fits the query, written as its mode says and within its budget. Any thread; the same query gives the same bytes."""
        return assemble(query, self.search(query).hits, self.count, self.length)

    def search(self, query: Query) -> SearchHit:
        """What fits the query, best first: documents that have at least one of its words."""
        return self._search(query, self._state)

    def _search(self, query: Query, state: _State) -> SearchHit:
        terms, repairs, unknown = self._terms(query.text, state.searcher)
        if not terms:
            return SearchHit([], terms, repairs, unknown)
        asked = self._asked(query, terms)
        limit = query.max_results + MARGIN
        while True:
            found = state.searcher.search(asked, limit, count=False).hits
            if len(found) < limit or round(found[-1][0], DIGITS) < round(
                found[query.max_results - 1][0], DIGITS
            ):
                break
            limit *= 4  # the last one wanted scores as much as others that were not seen yet: the URI decides
        numbers = state.searcher.fast_field_values("number", [address for _, address in found])
        hits = [
            Hit(state.documents[int(number)], round(score, DIGITS))
            for number, (score, _) in zip(numbers, found, strict=True)
            if number is not None and round(score, DIGITS) >= query.min_score
        ]
        hits.sort(key=lambda hit: (-hit.score, hit.document.uri))
        return SearchHit(hits[: query.max_results], terms, repairs, unknown)

    def explain(self, query: Query, uri: str) -> list[Part]:
        """Which term gave how much through which field to the score of the document of this URI, most first; empty if
        it is not found."""
        state = self._state
        schema, searcher = self._store.schema, state.searcher
        tantivy = engine()
        own = (tantivy.Occur.Must, tantivy.Query.const_score_query(_term(schema, "uri", uri), 0.0))
        parts: list[Part] = []
        for term in self._terms(query.text, searcher)[0]:
            for field, weight in WEIGHTS.items():
                asked = tantivy.Query.boolean_query(
                    [own, (tantivy.Occur.Must, _weighed(schema, field, term, weight))]
                )
                parts += [
                    Part(term, field, score)
                    for score, _ in searcher.search(asked, 1, count=False).hits
                ]
        return sorted(parts, key=lambda part: (-part.score, part.term, part.field))

    def _terms(
        self, text: str, searcher: tantivy.Searcher
    ) -> tuple[list[str], dict[str, str], list[str]]:
        """The terms of a query that documents have, the words that were repaired, those that nothing is known of."""
        seen: dict[str, None] = {}
        terms: list[str] = []
        repairs: dict[str, str] = {}
        unknown: list[str] = []
        for word in dict.fromkeys(self._analyser.words(text[:MAX_QUERY_CHARACTERS])):
            own = [term for term in self._analyser.terms(word) if term not in seen]
            seen.update(dict.fromkeys(own[: MAX_TERMS - len(seen)]))
            known = [term for term in own if term in seen and searcher.doc_freq("text", term)]
            if own and not known and own[0] in seen:
                better = (
                    correct_spelling(word, self._analyser, searcher)
                    if len(repairs) + len(unknown) < MAX_REPAIRS
                    else None
                )
                if better is None:
                    unknown.append(word)
                else:
                    repairs[word] = better.word
                    known = [better.term] if better.term not in terms else []
            terms += known
            if len(seen) >= MAX_TERMS:
                break
        return terms, repairs, unknown

    def _asked(self, query: Query, terms: Sequence[str]) -> tantivy.Query:
        tantivy = engine()
        schema = self._store.schema
        text = tantivy.Query.boolean_query(
            [
                (tantivy.Occur.Should, _weighed(schema, field, term, weight))
                for term in terms
                for field, weight in WEIGHTS.items()
            ]
        )
        conditions = [[_term(schema, "tag", tag.casefold())] for tag in query.tags]
        if query.categories:
            conditions.append(
                [_term(schema, "category", category_key(each)) for each in query.categories]
            )
        if not conditions:
            return text
        must = [(tantivy.Occur.Must, text)]
        for anyone in conditions:
            either = tantivy.Query.boolean_query([(tantivy.Occur.Should, each) for each in anyone])
            must.append((tantivy.Occur.Must, tantivy.Query.const_score_query(either, 0.0)))
        return tantivy.Query.boolean_query(must)


def category_key(name: str) -> str:
    """The same for the singular and the plural of a category: `skill`, `Skills`; `best-practice`, `best-practices`;
    `category`, `categories`."""
    name = name.strip().casefold()
    if name.endswith("ies"):
        return name[:-3] + "y"
    return name[:-1] if name.endswith("s") and not name.endswith("ss") else name


def _schema() -> tantivy.Schema:
    builder = engine().SchemaBuilder()
    for field in WEIGHTS:
        builder = builder.add_text_field(field, tokenizer_name="whitespace", index_option="freq")
    for field in ("uri", "category", "tag"):
        builder = builder.add_text_field(field, tokenizer_name="raw", index_option="basic")
    return builder.add_unsigned_field("number", fast=True).build()


def _entry(document: Document, number: int, analyser: Analyser) -> tantivy.Document:
    flat = analyser.flat
    title = flat(f"{document.title} {document.id}")
    tags = flat(" ".join(document.tags))
    purposes = flat("\n".join((document.description, *document.capabilities, *document.use_when)))
    entry = engine().Document()
    entry.add_text("title", title)
    entry.add_text("tags", tags)
    entry.add_text("purposes", purposes)
    entry.add_text(
        "text", " ".join((title, tags, purposes, flat(document.path), flat(document.body)))
    )
    entry.add_text("uri", document.uri)
    entry.add_text("category", category_key(document.category))
    for tag in document.tags:
        entry.add_text("tag", tag.casefold())
    entry.add_unsigned("number", number)
    return entry


def _term(schema: tantivy.Schema, field: str, term: str) -> tantivy.Query:
    return engine().Query.term_query(schema, field, term, "basic")


def _weighed(schema: tantivy.Schema, field: str, term: str, weight: float) -> tantivy.Query:
    query = engine().Query
    return query.boost_query(query.term_query(schema, field, term, "freq"), weight)
