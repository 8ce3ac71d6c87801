"""index.py and repair.py: what is found, in which order, and that it stays so."""

from __future__ import annotations

import json
import random
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from math import log
from pathlib import Path
from typing import Any

import pytest
import tantivy
from hypothesis import given, settings
from hypothesis import strategies as st
from library.search_documents import CATEGORIES, WORDS, libraries, make_document, phrases
from msgspec.structs import replace

from concertino.library.analysis import shared_analyser
from concertino.library.document import Document
from concertino.library.index import DIGITS, WEIGHTS, Index, category_term
from concertino.library.query import MAX_TERMS, Query

# An index takes 10 ms and a few threads to make: fewer examples than usual, each with several
# queries.
few = settings(max_examples=15, deadline=None)


def find_uris(index: Index, text: str, **asked: Any) -> list[str]:
    return [hit.document.uri.rpartition("/")[2] for hit in index.search(Query(text, **asked)).hits]


# What is found


def test_every_part_of_a_document_can_be_found() -> None:
    index = Index.build(
        [
            make_document(
                "alpha-id",
                "the body says bravo",
                title="Charlie",
                tags=("delta",),
                category="guides",
            ),
            make_document(
                "other",
                capabilities=("Echoes foxtrots",),
                use_when=("Golfing in hotels",),
                description="about India",
            ),
        ]
    )
    for word in ("alpha", "bravo", "charlie", "delta", "guides"):
        assert find_uris(index, word) == ["alpha-id"], word
    for word in ("echoing", "foxtrot", "golf", "hotel", "india"):
        assert find_uris(index, word) == ["other"], word


@pytest.mark.parametrize("name", ["C++", "C#", ".NET", "node.js", "k8s", "CI/CD", "F#"])
def test_technical_names_find_theirs_and_no_other(name: str) -> None:
    names = ["C++", "C#", ".NET", "node.js", "k8s", "CI/CD", "F#", "C", "net", "script"]
    index = Index.build(
        [
            make_document(f"d{number}", f"All about {item} here", title="x")
            for number, item in enumerate(names)
        ]
    )
    assert find_uris(index, name)[0] == f"d{names.index(name)}"
    if name not in ("node.js", "CI/CD"):
        assert len(find_uris(index, name)) == 1


def test_a_title_counts_more_than_a_body() -> None:
    index = Index.build(
        [
            make_document("a", "caching of things", title="one"),
            make_document("b", "one of things", title="caching"),
        ]
    )
    assert find_uris(index, "caching") == ["b", "a"]


def test_nothing_is_found_for_no_words_and_for_unknown_ones() -> None:
    index = Index.build([make_document("a", "words")])
    for text in ("", "the of and", "...", "zzyzzy", "\0", "\U0001f600"):
        assert find_uris(index, text) == []
    assert Index.build([]).search(Query("words")).hits == []


def test_words_that_no_document_has_do_not_keep_the_others_from_being_found() -> None:
    index = Index.build([make_document("a", "kubernetes"), make_document("b", "other")])
    result = index.search(Query("kubernetes zzyzzyzzy"))
    assert [hit.document.id for hit in result.hits] == ["a"]
    assert (result.corrections, result.unknown) == ({}, ["zzyzzyzzy"])


@pytest.mark.parametrize(
    "typo",
    [
        "kuberntes",
        "kubernetse",
        "kuberenetes",
        "kubermetes",
        "ubernetes",
        "Kubernetees",
        "deploymnet",
    ],
)
def test_a_slip_is_repaired(typo: str) -> None:
    index = Index.build(
        [make_document("a", "kubernetes deployment"), make_document("b", "kubectl")]
    )
    assert find_uris(index, typo) == ["a"]
    assert list(index.search(Query(typo)).corrections) == [typo]


def test_a_correction_prefers_the_same_first_letter_then_the_more_frequent_word() -> None:
    index = Index.build(
        [
            make_document("a", "matter"),
            make_document("b", "batter"),
            make_document("c", "batter"),
            make_document("d", "better"),
            make_document("e", "better better"),
        ]
    )
    assert index.search(Query("battes")).corrections == {"battes": "batter"}
    assert index.search(Query("mutter")).corrections == {"mutter": "matter"}


def test_short_words_and_known_ones_are_not_repaired() -> None:
    index = Index.build([make_document("a", "part ship"), make_document("b", "token")])
    assert index.search(Query("pact shap token")).corrections == {}


# Filters


def library_of_categories() -> Index:
    return Index.build(
        [
            make_document("s", "word", category="skills", tags=("Red", "blue")),
            make_document("a", "word", category="agents", tags=("red",)),
            make_document("b", "word", category="best-practices", tags=("green",)),
            make_document("g", "word", category="strategies"),
            make_document("c", "word", category="classes"),
        ]
    )


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("skills",), "s"),
        (("skill",), "s"),
        (("Skill", "agents"), "as"),
        (("best-practice",), "b"),
        (("strategy",), "g"),
        (("strategies",), "g"),
        (("nothing",), ""),
        ((), "abcgs"),
    ],
)
def test_categories_in_the_singular_or_plural(names: tuple[str, ...], expected: str) -> None:
    assert sorted(find_uris(library_of_categories(), "word", categories=names)) == list(expected)


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        (("red",), "as"),
        (("RED", "Blue"), "s"),
        (("red", "green"), ""),
        (("re",), ""),
        (("green",), "b"),
    ],
)
def test_all_tags_are_required(tags: tuple[str, ...], expected: str) -> None:
    assert sorted(find_uris(library_of_categories(), "word", tags=tags)) == list(expected)


def test_filters_change_no_score() -> None:
    index = library_of_categories()
    everything = {hit.document.uri: hit.score for hit in index.search(Query("word skills")).hits}
    [only] = index.search(Query("word skills", tags=("red",), categories=("skill",))).hits
    assert only.score == everything[only.document.uri]


def test_min_score_and_max_results_bound_what_is_found() -> None:
    index = library_of_categories()
    scores = [hit.score for hit in index.search(Query("word skills")).hits]
    assert find_uris(index, "word skills", min_score=scores[0]) == ["s"]
    assert find_uris(index, "word skills", min_score=scores[0] + 1) == []
    assert len(find_uris(index, "word", max_results=2)) == 2


@given(
    st.sampled_from(
        ["skills", "agents", "best-practices", "strategies", "categories", "guides", "k8s-ops"]
    )
)
def test_singular_and_plural_have_one_key(name: str) -> None:
    singular = name[:-3] + "y" if name.endswith("ies") else name.removesuffix("s")
    assert category_term(name) == category_term(singular) == category_term(name.upper())


# Order


def test_what_fits_as_well_is_in_the_order_of_the_uris_wherever_the_cut_is() -> None:
    names = [f"n{number:03}" for number in range(300)]
    shuffled = random.Random(1).sample(names, len(names))
    index = Index.build([make_document(name, "same words", title="same") for name in shuffled])
    for most in (1, 7, 15, 100, 300, 400):
        assert find_uris(index, "words", max_results=most) == names[:most]


def model_scores(documents: list[Document], text: str) -> dict[str, float]:
    """What index.py says the score is, from the formula of BM25 (k1 = 1.2, b = 0.75) and the terms
    of the analyser.
    """
    flat = shared_analyser().analyse
    entries = []
    for document in documents:
        title = flat(f"{document.title} {document.id}").split()
        tags = flat(" ".join(document.tags)).split()
        purposes = flat(
            "\n".join((document.description, *document.capabilities, *document.use_when))
        ).split()
        whole = title + tags + purposes + flat(document.path).split() + flat(document.body).split()
        entries.append({"title": title, "tags": tags, "purposes": purposes, "text": whole})
    scores = dict.fromkeys((document.uri for document in documents), 0.0)
    for term in dict.fromkeys(flat(text).split()):
        for field, weight in WEIGHTS.items():
            having = sum(term in entry[field] for entry in entries)
            average = sum(len(entry[field]) for entry in entries) / len(entries)
            idf = log(1 + (len(entries) - having + 0.5) / (having + 0.5))
            for document, entry in zip(documents, entries, strict=True):
                often = entry[field].count(term)
                if often:
                    length = 1 - 0.75 + 0.75 * len(entry[field]) / average
                    scores[document.uri] += weight * idf * often * 2.2 / (often + 1.2 * length)
    return {uri: score for uri, score in scores.items() if score}


@few
@given(libraries(), phrases(5))
def test_scores_are_those_of_bm25_over_four_fields(documents: list[Document], text: str) -> None:
    index = Index.build(documents)
    expected = model_scores(documents, text)
    hits = index.search(Query(text, max_results=100)).hits
    assert {hit.document.uri for hit in hits} >= set(expected)  # a repaired word finds more
    if not index.search(Query(text)).corrections:
        # tantivy keeps lengths above 40 terms in one byte: near, not equal.
        assert {hit.document.uri: hit.score for hit in hits} == pytest.approx(expected, rel=0.05)


@few
@given(libraries(), phrases(6), st.randoms(use_true_random=False))
def test_the_order_in_which_documents_come_changes_nothing(
    documents: list[Document], text: str, chance: random.Random
) -> None:
    shuffled = chance.sample(documents, len(documents))
    one, other = Index.build(documents), Index.build(shuffled)
    for mode in ("full", "catalog", "index", "minimal"):
        query = Query(text, mode=mode)
        assert one.match(query) == other.match(query) == one.match(query)


@few
@given(libraries(), phrases(4))
def test_an_explanation_adds_up_to_the_score(documents: list[Document], text: str) -> None:
    index = Index.build(documents)
    for hit in index.search(Query(text)).hits:
        parts = index.explain(Query(text), hit.document.uri)
        assert sum(part.score for part in parts) == pytest.approx(hit.score, abs=10**-DIGITS * 2)
    assert index.explain(Query(text), "orchestr8://no/such") == []


@few
@given(
    libraries(),
    phrases(5),
    st.sampled_from(CATEGORIES),
    st.lists(st.sampled_from(WORDS), max_size=2),
)
def test_filtered_hits_are_the_unfiltered_ones_that_pass(
    documents: list[Document], text: str, category: str, tags: list[str]
) -> None:
    index = Index.build(documents)
    everything = index.search(Query(text, max_results=100)).hits
    expected = [
        hit
        for hit in everything
        if hit.document.category == category
        and {tag.casefold() for tag in tags} <= {tag.casefold() for tag in hit.document.tags}
    ]
    assert (
        index.search(Query(text, max_results=100, categories=(category,), tags=tuple(tags))).hits
        == expected
    )


# Changes


@pytest.mark.slow
@few
@given(st.lists(libraries(), min_size=2, max_size=4), phrases(4))
def test_after_changes_the_same_is_found_as_if_it_had_always_been_so(
    history: list[list[Document]], text: str
) -> None:
    index = Index.build(history[0])
    for before, after in pairwise(history):
        kept = {document.uri for document in after}
        index.update(after, [document.uri for document in before if document.uri not in kept])
    fresh = Index.build(history[-1])
    assert index.documents == fresh.documents
    asked = Query(text, max_results=100)
    assert {hit.document.uri for hit in index.search(asked).hits} == {
        hit.document.uri for hit in fresh.search(asked).hits
    }


def test_a_change_is_found_when_the_update_returns_and_what_was_removed_is_not() -> None:
    index = Index.build([make_document(f"d{number}", "common words") for number in range(50)])
    index.update(
        [make_document("d7", "zebra common"), make_document("new", "giraffe")],
        ["orchestr8://skills/d8", "orchestr8://skills/unknown"],
    )
    assert find_uris(index, "zebra") == ["d7"]
    assert find_uris(index, "giraffe") == ["new"]
    assert "d8" not in find_uris(index, "common", max_results=100)
    assert len(find_uris(index, "common", max_results=100)) == 49
    assert len(index.documents) == 50


def test_after_many_changes_scores_are_those_of_a_fresh_index() -> None:
    """Removed documents count in what is rare and common until the index is made anew,
    which it is.
    """
    documents = [make_document(f"d{number}", f"common word{number}") for number in range(20)]
    index = Index.build(documents)
    for turn in range(12):
        index.update([make_document(f"d{turn}", f"common changed{turn}")])
    now = [
        *(make_document(f"d{turn}", f"common changed{turn}") for turn in range(12)),
        *documents[12:],
    ]
    index.update([], [])
    fresh = {
        hit.document.uri: hit.score
        for hit in Index.build(now).search(Query("common", max_results=50)).hits
    }
    hits = {
        hit.document.uri: hit.score for hit in index.search(Query("common", max_results=50)).hits
    }
    assert hits == pytest.approx(fresh, rel=0.5)
    for turn in range(12):
        assert find_uris(index, f"changed{turn}") == [f"d{turn}"]


def test_searches_go_on_in_other_threads_during_updates() -> None:
    index = Index.build([make_document(f"d{number}", "steady words") for number in range(30)])
    wrong: list[object] = []
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            try:
                hits = find_uris(index, "steady", max_results=100)
                if len(hits) != 30:
                    wrong.append(hits)
            except Exception as why:
                wrong.append(why)

    threads = [threading.Thread(target=look) for _ in range(3)]
    for thread in threads:
        thread.start()
    for turn in range(20):
        index.update([make_document(f"d{turn}", f"steady words turn {turn}")])
    done.set()
    for thread in threads:
        thread.join(20)
    assert wrong == []


# Bounds


def test_of_a_query_the_first_64_terms_count() -> None:
    index = Index.build([make_document("first", "word0"), make_document("last", "word99")])
    text = " ".join(f"word{number}" for number in range(100))
    assert len(index.search(Query(text)).terms) <= MAX_TERMS
    assert find_uris(index, text) == ["first"]


@pytest.mark.parametrize(
    "text",
    [
        "kubernetes " * 10_000,
        "k" * 100_000,
        "k-" * 50_000,
        " ".join(f"unknown{number:05}" for number in range(10_000)),
        "\u65e5" * 100_000,
        '"(+-*:^~[]{}\\' * 8_000,
    ],
    ids=[
        "repeated",
        "one word",
        "hyphens",
        "unknown words",
        "unspaced",
        "syntax of query languages",
    ],
)
def test_work_for_a_query_is_bounded_whatever_its_length(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted, not timed: look-ups in the dictionary and terms searched for."""
    index = Index.build([make_document("a", "kubernetes")])
    looked: list[str] = []
    searcher = index._snapshot.searcher

    class Counting:
        def doc_freq(self, field: str, term: str) -> int:
            looked.append(term)
            return searcher.doc_freq(field, term)

        def __getattr__(self, name: str) -> Any:
            return getattr(searcher, name)

    monkeypatch.setattr(index, "_snapshot", replace(index._snapshot, searcher=Counting()))  # pyright: ignore
    result = index.match(Query(text))
    assert result.tokens <= result.limit
    assert (
        len(looked) <= MAX_TERMS + 8 * 2000
    )  # of 8 words of at most 24 letters, all that is one slip away


def threads_of_this_process() -> Iterator[str]:
    for task in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # it ended just now
            yield (task / "comm").read_text().strip()


@pytest.mark.skipif(
    sys.platform != "linux", reason="threads of other than Python are listed by Linux only"
)
def test_no_thread_of_tantivy_is_left() -> None:
    index = Index.build([make_document("a", "words")])
    index.update([make_document("b", "words")])
    deadline = threading.Event()
    for _ in range(100):  # they are told to end and go when they next run: at most 5 s are waited
        names = set(threads_of_this_process())
        if not any(
            name.startswith(("merge_thread", "segment_upd", "thrd-tantivy", "thread-tantivy"))
            for name in names
        ):
            return
        deadline.wait(0.05)
    raise AssertionError(f"still there: {names}")


def test_documents_with_anything_in_them_can_be_indexed() -> None:
    strange = [
        "\0",
        "\ud800",
        "\u202e",
        "\U0001f600" * 1000,
        "a" * 70_000,
        "x " * 200_000,
        "`" * 10_000,
    ]
    index = Index.build(
        [make_document(f"d{place}", text + " findme") for place, text in enumerate(strange)]
    )
    assert len(find_uris(index, "findme")) == len(strange)


def test_tantivy_s_own_explanation_names_the_fields_that_were_searched() -> None:
    """The scores come from tantivy: its explanation of the top hit has the same sum."""
    index = Index.build(
        [make_document("a", "alpha beta", title="alpha"), make_document("b", "beta")]
    )
    query = Query("alpha")
    asked = index._make_query(query, ["alpha"])
    [(score, address)] = index._snapshot.searcher.search(asked, 1).hits
    explained = json.loads(asked.explain(index._snapshot.searcher, address).to_json())
    assert explained["value"] == pytest.approx(score)
    assert isinstance(address, tantivy.DocAddress)
    assert index.search(query).hits[0].score == round(score, DIGITS)
