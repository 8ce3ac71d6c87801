"""assembly.py: budgets are kept, whatever is counted by; what is shown can be read."""

from __future__ import annotations

import json
import re
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from library.search_documents import libraries, make_document, phrases

from concertino.library.document import Document
from concertino.library.index import Index
from concertino.library.query import Query
from concertino.library.rendering import Hit, render
from concertino.library.tokens import Counter, make_counter
from concertino.token_estimate import estimate

Mode = Literal["full", "catalog", "index", "minimal"]
MODES = st.sampled_from(["full", "catalog", "index", "minimal"])


def words_and_signs(text: str) -> int:
    """A counter for which a whole can have more than its parts: each run of letters, and each place
    where two parts meet oddly.
    """
    return len(re.findall(r"\w+|[^\w\s]", text)) + text.count("\n\n")


few = settings(max_examples=25, deadline=None)
COUNTERS: list[Counter] = [estimate, len, words_and_signs]


def hits(documents: list[Document]) -> list[Hit]:
    return [
        Hit(document, float(len(documents) - place)) for place, document in enumerate(documents)
    ]


def by_length(text: str) -> int:
    """The characters by 4.1, rounded up: a counter whose results can be calculated by hand."""
    return -(-len(text) * 10 // 41)


@few
@given(
    libraries(),
    phrases(5),
    st.one_of(st.integers(1, 60), st.integers(1, 3000)),
    MODES,
    st.sampled_from(COUNTERS),
)
def test_no_text_exceeds_its_budget(
    documents: list[Document], text: str, limit: int, mode: Mode, count: Counter
) -> None:
    result = render(Query(text, max_tokens=limit, mode=mode), hits(documents), count)
    assert count(result.text) == result.tokens <= limit == result.limit
    assert result.fragments == len(result.uris)


def test_no_text_exceeds_its_budget_by_an_exact_tokenizer() -> None:
    count = make_counter("o200k_base")
    documents = [
        make_document(
            f"d{number}", f"# T\n\n{'word ' * number}\n\n## Two\n\ncode: `x={number}`" * 3
        )
        for number in range(1, 60)
    ]
    for mode in ("full", "catalog", "index", "minimal"):
        for limit in (1, 7, 30, 100, 333, 1000, 5000):
            result = render(Query("word", max_tokens=limit, mode=mode), hits(documents), count)
            assert count(result.text) == result.tokens <= limit


@few
@given(libraries(), phrases(5), st.integers(1, 3000), MODES)
def test_every_uri_in_the_text_is_one_of_a_document(
    documents: list[Document], text: str, limit: int, mode: Mode
) -> None:
    result = render(Query(text, max_tokens=limit, mode=mode), hits(documents), by_length)
    known = {document.uri for document in documents}
    assert set(re.findall(r"orchestr8://[\w/.-]+", result.text)) <= known
    assert set(result.uris) <= known
    assert all(uri in result.text for uri in result.uris)


@few
@given(libraries(), st.integers(1, 3000))
def test_a_cut_fragment_ends_at_a_heading_or_a_paragraph(
    documents: list[Document], limit: int
) -> None:
    result = render(Query("x", max_tokens=limit), hits(documents), by_length)
    for document in documents:
        if document.uri not in result.uris:
            continue
        shown = result.text.split(f"<!-- {document.uri} -->\n\n", 1)[1]
        body = document.body.strip()
        if f"[cut here to fit; the whole text: {document.uri}]" not in result.text:
            assert shown.startswith(body)
            continue
        shown = shown.split("\n\n[cut here to fit;", 1)[0]
        assert body.startswith(shown)
        behind = body[len(shown) :]
        assert re.match(r"\s*#{1,6} ", behind) or (
            len(result.uris) == 1 and re.match(r"[ \t]*\n[ \t]*\n", behind)
        )
        assert shown.count("```") % 2 == 0


def test_full_shows_whole_fragments_best_first_and_says_what_was_used() -> None:
    result = render(
        Query("x"),
        hits([make_document("b", "# B\n\nsecond"), make_document("a", "# A\n\nfirst\n")]),
        by_length,
    )
    above = (
        "<!-- orchestr8://skills/b -->\n\n# B\n\nsecond\n\n---\n\n<!-- orchestr8://skills/a"
        " -->\n\n# A\n\nfirst"
    )
    assert len(above) == 90
    assert (
        result.text == above + "\n\n---\n\n2 of 2 fragments, 22 of 3000 tokens up to here."
    )  # 90 / 4.1 = 21.95
    assert (result.mime_type, result.fragments, result.tokens) == (
        "text/markdown",
        2,
        by_length(result.text),
    )


def test_a_fragment_too_long_is_cut_before_a_heading_and_names_its_uri() -> None:
    body = (
        "# Long\n\nIntroduction.\n\n```sh\n## no heading\n```\n\n## One\n\n"
        + "a " * 150
        + "\n\n## Two\n\n"
        + "b " * 2000
    )
    result = render(Query("x", max_tokens=150), hits([make_document("long", body)]), by_length)
    assert result.text == (
        "<!-- orchestr8://skills/long -->\n\n# Long\n\nIntroduction.\n\n```sh\n## no"
        " heading\n```\n\n## One\n\n"
        + ("a " * 150).rstrip()
        + "\n\n[cut here to fit; the whole text: orchestr8://skills/long]\n\n---\n\n1 of 1"
        " fragments, 110 of 150 tokens up to here."
    )


def test_what_cannot_be_cut_is_named_and_what_fits_behind_it_is_shown() -> None:
    result = render(
        Query("x", max_tokens=200),
        hits([make_document("huge", "a " * 5000), make_document("small", "# Small\n\ntext")]),
        by_length,
    )
    assert result.uris == ("orchestr8://skills/small",)
    assert (
        "Left out for lack of space:\n- orchestr8://skills/huge - huge (2440 tokens)" in result.text
    )


def test_rather_than_nothing_the_first_paragraphs_are_shown() -> None:
    body = "# Long\n\nWhat it is for.\n\nWhen.\n\n```\n\n" + "code\n" * 500 + "```\n\n## Two\n\nend"
    result = render(
        Query("x", max_tokens=60),
        hits([make_document("long", body), make_document("other", body)]),
        by_length,
    )
    assert result.uris == ("orchestr8://skills/long",)
    assert result.text.startswith(
        "<!-- orchestr8://skills/long -->\n\n# Long\n\nWhat it is for.\n\nWhen.\n\n"
        "[cut here to fit; the whole text: orchestr8://skills/long]\n\n---\n\n1 of 2 fragments"
    )


def test_rather_than_nothing_the_section_of_a_worse_one_is_shown() -> None:
    found = hits(
        [
            make_document("huge", "a " * 5000),
            make_document("long", "# Long\n\nIntroduction.\n\n## One\n\n" + "b " * 2000),
        ]
    )
    result = render(Query("x", max_tokens=100), found, by_length)
    assert result.uris == ("orchestr8://skills/long",)
    assert "# Long\n\nIntroduction.\n\n[cut here" in result.text


@pytest.mark.parametrize(
    ("limit", "text"),
    [(16, "orchestr8://skills/huge - huge (2440 tokens)"), (6, "orchestr8://skills/huge"), (5, "")],
)
def test_where_no_part_fits_the_best_one_is_named(limit: int, text: str) -> None:
    result = render(
        Query("x", max_tokens=limit), hits([make_document("huge", "a " * 5000)]), by_length
    )
    assert (result.text, result.fragments) == (text, 0)


def test_a_catalog_has_an_entry_for_each() -> None:
    document = make_document(
        "a",
        "x" * 41,
        title="On\nA",
        tags=("t1", "t2"),
        capabilities=("does",),
        use_when=("u1", "u2", "u3", "u4"),
    )
    result = render(Query("x", mode="catalog"), [Hit(document, 1.5)], by_length)
    assert (
        result.text.split("\n\n---\n\n")[0]
        == "## On A\norchestr8://skills/a (10 tokens, score 1.50)\nTags: t1, t2\n- Can: does\n-"
        " For: u1\n- For: u2\n- For: u3"
    )


def test_an_index_has_a_line_for_each_and_minimal_is_json() -> None:
    found = hits([make_document("a", "x" * 41, title="On A"), make_document("b", "", title="On B")])
    lines = render(Query("x", mode="index"), found, by_length).text.split("\n")
    assert lines[:2] == [
        "orchestr8://skills/a - On A (10 tokens)",
        "orchestr8://skills/b - On B (0 tokens)",
    ]
    result = render(Query("x", mode="minimal"), found, by_length)
    assert result.mime_type == "application/json"
    assert json.loads(result.text)["fragments"] == [
        {"uri": "orchestr8://skills/a", "title": "On A", "tokens": 10, "score": 2.0},
        {"uri": "orchestr8://skills/b", "title": "On B", "tokens": 0, "score": 1.0},
    ]


@few
@given(libraries(), st.integers(1, 400))
def test_minimal_is_json_whatever_the_budget(documents: list[Document], limit: int) -> None:
    json.loads(
        render(Query("x", max_tokens=limit, mode="minimal"), hits(documents), by_length).text
    )


@pytest.mark.parametrize("mode", ["full", "catalog", "index"])
def test_nothing_found_is_said(mode: Mode) -> None:
    result = render(Query("zebra", mode=mode), [], by_length)
    assert (result.text, result.fragments) == ("No fragment matches 'zebra'.", 0)
    assert render(Query("zebra", mode=mode, max_tokens=2), [], by_length).text == ""


def test_a_huge_document_is_counted_once_however_often_it_is_found() -> None:
    counted: list[int] = []

    def count(text: str) -> int:
        counted.append(len(text))
        return by_length(text)

    sections = "".join(f"\n\n## Section {number}\n\n" + "words " * 100 for number in range(5000))
    index = Index.build(
        [make_document("huge", "# Huge\n\nAll about zebras." + sections)], count=count
    )
    for _ in range(3):
        result = index.match(Query("zebras", max_tokens=500))
        assert result.fragments == 1
    size = len(sections)
    assert sum(length > size for length in counted) == 1
    assert (
        sum(length for length in counted if length < size) < 3 * 60_000
    )  # 500 tokens are 2,050 characters


def test_blank_lines_around_a_body_cost_nothing() -> None:
    body = "\n" * 5000 + "# Short\n\nAll that there is." + "\n" * 5000
    result = render(Query("x", max_tokens=60), hits([make_document("short", body)]), by_length)
    assert "# Short\n\nAll that there is.\n\n---\n\n1 of 1 fragments" in result.text
