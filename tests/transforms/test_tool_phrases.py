"""tool_phrases.py: phrases of tasks, and the words that tools use for what they mean."""

from __future__ import annotations

import pytest

from concertino.transforms.tool_phrases import VOCABULARY, find_meanings
from concertino.transforms.tool_words import MAX_QUERY, stem_of


def terms(query: str) -> set[str]:
    return {term for term, _ in find_meanings(query).terms}


@pytest.mark.parametrize(
    ("query", "word"),
    [
        ("get rid of the old one", "delete"),
        # Words between those of a phrase, and other forms of them.
        ("throw the old draft away", "delete"),
        ("somebody threw it away", "delete"),
        ("hand ABC-1 to Ada", "assign"),
        ("how many are there", "count"),
        # Short forms, with either apostrophe.
        ("what's on for me", "event"),
        ("what\u2019s on for me", "event"),
        # Articles say nothing.
        ("where on my disk is it", "search"),
        ("dinner with Ada", "calendar"),
    ],
)
def test_a_phrase_means_the_words_that_tools_use(query: str, word: str) -> None:
    assert stem_of(word) in terms(query)


@pytest.mark.parametrize(
    "query",
    [
        "",
        "throw one two three four away",
        "away throw",
        # Only the beginning of a query counts.
        "x " * (MAX_QUERY // 2) + "throw away",
    ],
)
def test_other_words_are_no_phrase(query: str) -> None:
    assert stem_of("delete") not in terms(query)


def test_the_words_of_a_phrase_are_known_and_a_single_word_counts_less() -> None:
    phrase, word = find_meanings("throw it away"), find_meanings("birthday")
    assert phrase.in_phrases >= {stem_of("throw"), stem_of("away")}
    assert not word.in_phrases
    assert 0 < max(weight for _, weight in word.terms) < max(weight for _, weight in phrase.terms)


def test_a_line_counts_once_for_all_its_phrases() -> None:
    twice = find_meanings("throw it away and throw it out and get rid of it")
    once = find_meanings("throw it away")
    assert sorted(twice.terms)[:1] == sorted(once.terms)[:1]
    counts = [term for term, _ in twice.terms].count(stem_of("delete"))
    assert counts == [term for term, _ in once.terms].count(stem_of("delete"))


def test_each_line_of_the_vocabulary_has_words_and_phrases() -> None:
    lines = VOCABULARY.read_text().splitlines()
    entries = [line for line in lines if line and not line.startswith("#")]
    for line in entries:
        words, mark, phrases = line.partition(" < ")
        assert mark, line
        assert all([words.strip(), *map(str.strip, phrases.split(","))]), line
    assert len(set(entries)) == len(entries) > 400
