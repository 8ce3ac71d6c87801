"""Index: finds the documents that match a query, best first.

    index = Index.build(documents)
    result = index.search(Query("retry timeouts"))      # result.hits
    text = index.match(Query("retry timeouts")).text    # rendered within a token budget

The package tantivy, a search engine, stores the terms of each document in four fields. The score of
a document is the sum of the fields' BM25 scores. The field `text` contains all metadata and the
body, so that BM25 counts the rarity of a word over whole documents. Title, tags, and purposes
(description, capabilities, useWhen) are additional fields with weights; docs/decisions/0009 has the
measurements.

Results are ordered by score, then by URI. Scores are rounded to the displayed digits first, so
that floating-point errors do not affect the order. A word of the query that no document contains is
replaced by the most frequent word of the documents that is one typing error away (spelling.py).

Updates run one after the other. Searches may run in any thread during an update, and see the state
before the update.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from concertino.library.analysis import Analyser, import_tantivy, shared_analyser
from concertino.library.cache import Cache, CacheFile, IndexDirectory
from concertino.library.document import Document
from concertino.library.query import MAX_QUERY_CHARACTERS, MAX_TERMS, Query
from concertino.library.rendering import Hit, RenderedText, render
from concertino.library.spelling import correct_spelling
from concertino.library.tokens import Counter
from concertino.library.uris import singular
from concertino.token_estimate import estimate

if TYPE_CHECKING:
    import tantivy

logger = logging.getLogger("concertino.library")

# Field -> factor of its score; docs/decisions/0009.
WEIGHTS = {"title": 0.4, "tags": 0.3, "purposes": 0.3, "text": 1.0}

# Scores are rounded to this many decimals.
DIGITS = 4

# The memory of tantivy's writer thread: the least that tantivy accepts. For more than BULK
# documents at once, the thread gets more memory, and then writes fewer segments that must be
# merged.
HEAP_BYTES = 15_000_000
BULK_HEAP_BYTES = 100_000_000
BULK = 5_000

# tantivy includes removed documents in its frequencies of words, until it merges its segments. If
# their share of all documents is larger, the index is built again. So is a cached index if a larger
# share of its documents has to be removed or replaced.
MAX_REMOVED_SHARE = 0.25

# If a larger share of the documents differs from the cache file, the file is written again.
MAX_STALE_SHARE = 0.02

# At most this many unknown words of a query are corrected.
MAX_CORRECTIONS = 8

# At most this many documents have their length in tokens remembered.
MAX_LENGTHS = 200_000

# This many hits more than the query asks for are requested from tantivy, see Index._find_hits().
MARGIN = 8


class ScorePart(Struct, frozen=True):
    """The part of a document's score that comes from one term of the query in one field.

    term: a word of the query without its ending.
    field: the part of the document that contains the term, a key of WEIGHTS such as "title".
    score: the number that is added to the document's score.
    """

    term: str
    field: str
    score: float


class SearchResult(Struct, frozen=True):
    """The result of a search.

    hits: the matching documents, best first.
    terms: the terms that were searched for, which are words without their endings.
    corrections: a word of the query that no document contains -> the word that was searched for
        instead.
    unknown: words of the query that no document contains, and that have no correction.
    """

    hits: list[Hit]
    terms: list[str]
    corrections: dict[str, str]
    unknown: list[str]


class _Snapshot(Struct, frozen=True):
    """The state that a search uses. An update replaces the whole object.

    searcher: tantivy's view of its index after the update.
    documents: number in tantivy's index -> document. A new version of a document gets a new number.
    next_number: the number for the next document.
    removed_count: how many removed documents still count in tantivy's word frequencies.
    """

    searcher: tantivy.Searcher
    documents: Mapping[int, Document]
    next_number: int
    removed_count: int


class Index:
    """A set of documents that can be searched.

        index = Index.build(documents)
        hits = index.search(Query("retry timeouts")).hits

    Call Index.build() to create an Index. It passes these arguments:

    store: the index of tantivy, the search engine.
    snapshot: the documents in this index, and a tantivy.Searcher that finds them.
    count: counts the tokens of a text, for token budgets.
    directory: the files of tantivy's index; None if the index is in this process's memory.
    """

    def __init__(
        self,
        store: tantivy.Index,
        snapshot: _Snapshot,
        count: Counter,
        directory: IndexDirectory | None,
    ) -> None:
        self._store = store
        self._snapshot = snapshot
        self.count = count
        # The directory is removed from the disk when the IndexDirectory is garbage-collected, so
        # keep a reference to it.
        self._directory = directory
        self._analyser = shared_analyser()
        self._update_lock = threading.Lock()
        # Digest of a document -> tokens of its body.
        self._lengths: dict[str, int] = {}

    @classmethod
    def build(
        cls,
        documents: Iterable[Document],
        *,
        cache: Cache | None = None,
        count: Counter = estimate,
    ) -> Index:
        """Return an index of the documents. Blocks.

        documents: the documents. If several have the same URI, the last one is used.
        cache: the cache file of the library; None to use no cache.
            - If the file contains most of the documents, the index in it is updated and returned.
            - Otherwise a new index is built, and stored in the file.
            - A file that cannot be read or written is logged, and not used.
        count: counts the tokens of a text, for token budgets.
        Raises TargetError if tantivy is not installed.
        """
        wanted = {doc.uri: doc for doc in documents}
        if cache is None:
            return cls._create(wanted.values(), count, None)

        content = cache.load()
        if content is not None:
            index = cls._reopen(content, wanted, cache, count)
            if index is not None:
                return index

        size = sum(len(doc.body) for doc in wanted.values())
        directory = cache.make_directory(document_bytes=size)
        if directory is not None:
            try:
                index = cls._create(wanted.values(), count, directory)
                index._save(cache)
                return index
            except ValueError as exc:
                # Most likely there is no space left.
                logger.warning("no index cache in %s: %s", cache.folder, exc)
        return cls._create(wanted.values(), count, None)

    @classmethod
    def _create(
        cls,
        documents: Iterable[Document],
        count: Counter,
        directory: IndexDirectory | None,
    ) -> Index:
        """Return a new index of the documents.

        directory: where tantivy writes its files; None for this process's memory.
        Raises ValueError if tantivy cannot write the files.
        """
        tantivy = import_tantivy()
        store = tantivy.Index(
            _make_schema(), path=None if directory is None else str(directory.folder)
        )
        # In any other mode tantivy starts a thread that looks for changes.
        store.config_reader("manual")
        numbered = list(enumerate(documents))
        empty = _Snapshot(searcher=store.searcher(), documents={}, next_number=0, removed_count=0)
        index = cls(store, empty, count, directory)
        index._commit((), numbered)
        # A searcher sees only the documents of the commits before its creation.
        index._snapshot = _Snapshot(
            searcher=store.searcher(),
            documents=dict(numbered),
            next_number=len(numbered),
            removed_count=0,
        )
        return index

    @classmethod
    def _reopen(
        cls,
        content: CacheFile,
        wanted: Mapping[str, Document],
        cache: Cache,
        count: Counter,
    ) -> Index | None:
        """Return the index from a cache file, after an update to the current documents.

        content: the content of the cache file.
        wanted: URI -> document, all documents that the index must contain.
        Returns None if too many documents differ, if there is no directory for the index, or if
        tantivy cannot open it.
        """
        cached = {doc.uri: doc for doc in content.documents}
        # Most documents are the objects from the cache file. Test that first, because to compare
        # two documents takes longer.
        changed = [
            doc
            for uri, doc in wanted.items()
            if cached.get(uri) is not doc and cached.get(uri) != doc
        ]
        removed = cached.keys() - wanted.keys()
        differing = len(changed) + len(removed)
        if differing > MAX_REMOVED_SHARE * len(cached):
            return None

        size = sum(len(doc.body) for doc in content.documents)
        directory = cache.make_directory(content.files, size)
        if directory is None:
            return None
        tantivy = import_tantivy()
        try:
            store = tantivy.Index.open(str(directory.folder))
            store.config_reader("manual")
            store.reload()
            documents = dict(zip(content.numbers, content.documents, strict=True))
            has_all = _has_exactly(store.searcher(), documents.keys())
            if not has_all or store.schema != _make_schema():
                # Caught below, like tantivy's own errors.
                raise ValueError("it does not contain the documents of the cache")
            snapshot = _Snapshot(
                searcher=store.searcher(),
                documents=documents,
                next_number=content.next_number,
                removed_count=content.removed_count,
            )
            index = cls(store, snapshot, count, directory)
            if changed or removed:
                index.update(changed, removed)
        except BaseException as exc:
            if not _is_engine_error(exc):
                raise
            logger.warning("the index cache %s cannot be opened (%s): made anew", cache.path, exc)
            return None
        if differing > MAX_STALE_SHARE * len(cached):
            index._save(cache)
        return index

    def update(self, changed: Iterable[Document], removed: Iterable[str] = ()) -> None:
        """Add new and changed documents, and remove documents.

        Blocks for about 10 ms, or 90 ms if the index is on a disk, and longer with many documents.
        So call this in a thread. Searches that begin after update() has returned see the changes.
        changed: the new and changed documents. Each replaces the document with the same URI.
        removed: the URIs of the documents to remove.
        """
        with self._update_lock:
            added = {doc.uri: doc for doc in changed}
            self._apply(added.values(), removed)

    def _apply(self, added: Collection[Document], removed: Iterable[str]) -> None:
        """Change tantivy's index, or build a new one, and replace the snapshot that searches use.

        added: new and changed documents. Each replaces the document with the same URI.
        removed: the URIs of the documents to remove.
        """
        old = self._snapshot
        # The old versions of the added documents are removed, too.
        outdated = {*removed, *(doc.uri for doc in added)}
        numbered = list(enumerate(added, old.next_number))
        documents = {
            number: doc for number, doc in old.documents.items() if doc.uri not in outdated
        }
        removed_count = old.removed_count + len(old.documents) - len(documents)
        documents.update(numbered)

        if removed_count > MAX_REMOVED_SHARE * len(documents):
            self._rebuild_in_memory(documents)
            return
        try:
            self._commit(outdated, numbered)
        except BaseException as exc:
            # The disk is full, or somebody has removed the files. Neither can happen to an index in
            # memory.
            if self._directory is None or not _is_engine_error(exc):
                raise
            logger.warning(
                "the index in %s cannot be written (%s): made anew in memory",
                self._directory.folder,
                exc,
            )
            self._rebuild_in_memory(documents)
            return
        self._snapshot = _Snapshot(
            searcher=self._store.searcher(),
            documents=documents,
            next_number=old.next_number + len(numbered),
            removed_count=removed_count,
        )

    def _commit(self, removed: Iterable[str], added: Sequence[tuple[int, Document]]) -> None:
        """Write a change to tantivy's index. Blocks. Raises ValueError if it cannot be written.

        removed: the URIs of the documents to remove.
        added: pairs of a number and a document.
        """
        heap_bytes = BULK_HEAP_BYTES if len(added) > BULK else HEAP_BYTES
        writer = self._store.writer(heap_bytes, num_threads=1)
        for uri in removed:
            writer.delete_documents_by_term("uri", uri)
        for number, document in added:
            writer.add_document(_make_entry(document, number, self._analyser))
        writer.commit()
        # This also ends the threads of the writer.
        writer.wait_merging_threads()
        self._store.reload()

    def _rebuild_in_memory(self, documents: Mapping[int, Document]) -> None:
        """Replace tantivy's index by a new one that contains these documents."""
        # The directory cannot be used again, because searches may still read the old index in it.
        new = Index._create(documents.values(), self.count, None)
        self._store, self._snapshot, self._directory = new._store, new._snapshot, None

    def _save(self, cache: Cache) -> None:
        """Write the index to the cache file, unless it is in memory."""
        snapshot = self._snapshot
        if self._directory is not None:
            cache.save(
                snapshot.documents, snapshot.next_number, snapshot.removed_count, self._directory
            )

    @property
    def documents(self) -> list[Document]:
        """Return all documents, in the order of their URIs."""
        return sorted(self._snapshot.documents.values(), key=lambda document: document.uri)

    def length(self, document: Document) -> int:
        """Return the number of tokens of a document's body."""
        # Remember the number, because a tokenizer needs a second for 10 MB.
        length = self._lengths.get(document.digest)
        if length is None:
            if len(self._lengths) > MAX_LENGTHS:
                self._lengths.clear()
            length = self.count(document.body)
            self._lengths[document.digest] = length
        return length

    def match(self, query: Query) -> RenderedText:
        """Search, and return the result as a text in the query's mode, within its token budget.

        Any thread may call this, also during an update(). The same query returns the same text
        until the next update().
        """
        return render(query, self.search(query).hits, self.count, self.length)

    def search(self, query: Query) -> SearchResult:
        """Return the documents that contain at least one word of the query, best first.

        The documents also meet the query's conditions, such as its tags. Any thread may call this.
        """
        snapshot = self._snapshot
        result = self._analyse_query(query.text, snapshot.searcher)
        if result.terms:
            result.hits.extend(self._find_hits(query, result.terms, snapshot))
        return result

    def _find_hits(
        self,
        query: Query,
        terms: Sequence[str],
        snapshot: _Snapshot,
    ) -> list[Hit]:
        """Return the best documents that contain at least one of the terms."""
        # Documents with the same score are ordered by URI, which tantivy does not do. So request
        # more hits, until the score falls below that of the last wanted hit: then all documents
        # with that score are among the hits.
        engine_query = self._make_query(query, terms)
        limit = query.max_results + MARGIN
        while True:
            # Pairs of a score and an address, with the highest score first.
            found = snapshot.searcher.search(engine_query, limit, count=False).hits
            scores = [round(score, DIGITS) for score, _ in found]
            if len(scores) < limit or scores[-1] < scores[query.max_results - 1]:
                break
            limit *= 4

        numbers = snapshot.searcher.fast_field_values("number", [address for _, address in found])
        hits = [
            Hit(snapshot.documents[int(number)], score)
            for number, score in zip(numbers, scores, strict=True)
            # None would stand for a document without a number, and every document has one.
            if number is not None and score >= query.min_score
        ]
        hits.sort(key=lambda hit: (-hit.score, hit.document.uri))
        return hits[: query.max_results]

    def explain(self, query: Query, uri: str) -> list[ScorePart]:
        """Explain the score of a document: return the parts of which it is the sum, highest first.

        uri: the URI of the document.
        Returns [] if the document contains no word of the query.
        """
        schema, searcher = self._store.schema, self._snapshot.searcher
        tantivy = import_tantivy()
        # Selects the document, and adds 0 to its score.
        only_this = tantivy.Query.const_score_query(_term_query(schema, "uri", uri), 0.0)
        parts: list[ScorePart] = []
        for term in self._analyse_query(query.text, searcher).terms:
            for field, weight in WEIGHTS.items():
                engine_query = tantivy.Query.boolean_query(
                    [
                        (tantivy.Occur.Must, only_this),
                        (tantivy.Occur.Must, _weighted_query(schema, field, term, weight)),
                    ]
                )
                hits = searcher.search(engine_query, 1, count=False).hits
                parts += [ScorePart(term, field, score) for score, _ in hits]
        return sorted(parts, key=lambda part: (-part.score, part.term, part.field))

    def _analyse_query(self, text: str, searcher: tantivy.Searcher) -> SearchResult:
        """Return a SearchResult without hits: the terms to search for, and what was corrected.

        A word of which no document contains a term is corrected, or added to `unknown`.
        text: the words of the query.
        """
        result = SearchResult(hits=[], terms=[], corrections={}, unknown=[])
        seen: set[str] = set()
        for word in dict.fromkeys(self._analyser.words(text[:MAX_QUERY_CHARACTERS])):
            terms = [term for term in self._analyser.terms(word) if term not in seen]
            terms = terms[: MAX_TERMS - len(seen)]
            seen.update(terms)
            known = [term for term in terms if searcher.doc_freq("text", term)]
            result.terms.extend(known)
            if terms and not known:
                self._correct_word(result, word, searcher)
            if len(seen) >= MAX_TERMS:
                break
        return result

    def _correct_word(
        self,
        result: SearchResult,
        word: str,
        searcher: tantivy.Searcher,
    ) -> None:
        """Add an unknown word to result.corrections, or to result.unknown if it has none."""
        correction = None
        if len(result.corrections) + len(result.unknown) < MAX_CORRECTIONS:
            correction = correct_spelling(word, self._analyser, searcher)
        if correction is None:
            result.unknown.append(word)
            return
        result.corrections[word] = correction.word
        if correction.term not in result.terms:
            result.terms.append(correction.term)

    def _make_query(self, query: Query, terms: Sequence[str]) -> tantivy.Query:
        """Return the query for tantivy.

        A document must have at least one of the terms, all tags, and one of the categories.
        """
        tantivy = import_tantivy()
        schema = self._store.schema
        text = tantivy.Query.boolean_query(
            [
                (tantivy.Occur.Should, _weighted_query(schema, field, term, weight))
                for term in terms
                for field, weight in WEIGHTS.items()
            ]
        )

        conditions = [[_term_query(schema, "tag", tag.casefold())] for tag in query.tags]
        if query.categories:
            conditions.append(
                [_term_query(schema, "category", category_term(name)) for name in query.categories]
            )
        if not conditions:
            return text

        # Conditions select documents, but do not change their scores.
        must = [(tantivy.Occur.Must, text)]
        for alternatives in conditions:
            any_of = tantivy.Query.boolean_query(
                [(tantivy.Occur.Should, alternative) for alternative in alternatives]
            )
            must.append((tantivy.Occur.Must, tantivy.Query.const_score_query(any_of, 0.0)))
        return tantivy.Query.boolean_query(must)


def _has_exactly(searcher: tantivy.Searcher, numbers: Collection[int]) -> bool:
    """Return whether an index contains the documents with these numbers, and no others."""
    if searcher.num_docs != len(numbers):
        return False
    everything = import_tantivy().Query.all_query()
    hits = searcher.search(everything, max(1, len(numbers)), count=False).hits
    stored = searcher.fast_field_values("number", [address for _, address in hits])
    return set(stored) == set(numbers)


def _is_engine_error(exc: BaseException) -> bool:
    """Return whether tantivy has raised an exception: a ValueError, or a panic of its Rust code.

    The class of panics cannot be imported, and does not derive from Exception.
    """
    return isinstance(exc, ValueError) or type(exc).__name__ == "PanicException"


def category_term(name: str) -> str:
    """Return the term of a category in the index: the same for `skill`, `skills` and `Skills`."""
    return singular(name.strip().casefold())


def _make_schema() -> tantivy.Schema:
    """Return the fields of tantivy's index."""
    # The Analyser has joined the terms of scored fields by spaces, and scores need their
    # frequencies ("freq"). A value of the other text fields is one term as a whole ("raw"), without
    # frequencies ("basic"). A "fast" field is stored as a column, for fast_field_values().
    builder = import_tantivy().SchemaBuilder()
    for field in WEIGHTS:
        builder = builder.add_text_field(field, tokenizer_name="whitespace", index_option="freq")
    for field in ("uri", "category", "tag"):
        builder = builder.add_text_field(field, tokenizer_name="raw", index_option="basic")
    return builder.add_unsigned_field("number", fast=True).build()


def _make_entry(document: Document, number: int, analyser: Analyser) -> tantivy.Document:
    """Return a document in the form that tantivy stores: the fields of _make_schema().

    number: the document's number in the index.
    """
    analyse = analyser.analyse
    title = analyse(f"{document.title} {document.id}")
    tags = analyse(" ".join(document.tags))
    purposes = analyse(
        "\n".join((document.description, *document.capabilities, *document.use_when))
    )
    everything = (title, tags, purposes, analyse(document.path), analyse(document.body))

    entry = import_tantivy().Document()
    entry.add_text("title", title)
    entry.add_text("tags", tags)
    entry.add_text("purposes", purposes)
    entry.add_text("text", " ".join(everything))
    entry.add_text("uri", document.uri)
    entry.add_text("category", category_term(document.category))
    for tag in document.tags:
        entry.add_text("tag", tag.casefold())
    entry.add_unsigned("number", number)
    return entry


def _term_query(schema: tantivy.Schema, field: str, term: str) -> tantivy.Query:
    """Return a query for documents with this term in a field that is not scored."""
    return import_tantivy().Query.term_query(schema, field, term, "basic")


def _weighted_query(
    schema: tantivy.Schema,
    field: str,
    term: str,
    weight: float,
) -> tantivy.Query:
    query = import_tantivy().Query
    return query.boost_query(query.term_query(schema, field, term, "freq"), weight)
