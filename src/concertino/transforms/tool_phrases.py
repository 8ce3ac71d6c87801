"""find_meanings(): translates phrases of a query into the words that tools use.

    delete remove < get rid of, throw away

Such a line of the vocabulary, tool_meanings.txt, means: a query with the phrase `get rid of` or
`throw away` is about tools with the words `delete` or `remove`. ToolIndex uses this to find tools
that have no word in common with the query.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

from msgspec import Struct

from concertino.transforms.tool_words import MAX_QUERY, WORD, stem_of

__all__ = ["Meanings", "find_meanings"]

VOCABULARY = Path(__file__).with_name("tool_meanings.txt")
# How many other words may be between two words of a phrase, as in `throw the old one away`.
MAX_GAP = 3
# The weight of a line of the vocabulary, of which a phrase of several words was found.
PHRASE_WEIGHT = 0.8
# The weight of a line of which only a single word was found.
WORD_WEIGHT = 0.5
# If the line has n words of tools, each one gets the weight divided by n**SHARE. So several words
# count more than one word, but not n times as much.
SHARE = 0.25
# Words that are ignored, because phrases mean the same without them.
ARTICLES = frozenset(("a", "an", "the", "my", "our", "your", "this", "that", "these", "those"))
# Contractions, and the words that replace them: `don't` becomes `do not`.
SHORT_FORMS = (
    (re.compile(r"n['\u2019]t\b"), " not"),
    (re.compile(r"['\u2019]ll\b"), " will"),
    (re.compile(r"\b(what|who|where|when|how|it|that|there)['\u2019]s\b"), r"\1 is"),
    (re.compile(r"['\u2019]s\b"), ""),
)

_Phrase = tuple[str, ...]


class _Entry(Struct, frozen=True):
    """One phrase of the vocabulary.

    number: the number of its line.
    phrase: the stems of the words of the phrase.
    terms: the stems of the words that tools use.
    """

    number: int
    phrase: _Phrase
    terms: tuple[str, ...]


class Meanings(Struct, frozen=True):
    """What the phrases in a query mean: the result of find_meanings().

    terms: the words that tools use instead of the phrases: (stem of the word, weight from 0 to 1).
        A stem may occur more than once.
    in_phrases: the stems of the words in the query that belong to a phrase of several words. Such a
        word may mean something else by itself, such as `throw` in `throw away`.
    """

    terms: tuple[tuple[str, float], ...]
    in_phrases: frozenset[str]


def find_meanings(query: str) -> Meanings:
    """Find the phrases of the vocabulary, tool_meanings.txt, in a query. Return their meanings.

    If the query has several phrases of one line of the vocabulary, the line counts once.
    query: the task in the words of the user. Only the first 1,000 characters are read.
    """
    stems = _stems_of(query[:MAX_QUERY])
    by_first = _read_vocabulary()
    # Number of a line -> the phrase of it with the greatest weight that was found.
    found: dict[int, tuple[_Entry, float]] = {}
    in_phrases: set[str] = set()
    for start, stem in enumerate(stems):
        for entry in by_first.get(stem, ()):
            if not _occurs_at(entry.phrase, stems, start):
                continue
            weight = WORD_WEIGHT
            if len(entry.phrase) > 1:
                weight = PHRASE_WEIGHT
                in_phrases.update(entry.phrase)
            known = found.get(entry.number)
            if known is None or known[1] < weight:
                found[entry.number] = entry, weight
    terms = tuple(
        (term, weight / len(entry.terms) ** SHARE)
        for entry, weight in found.values()
        for term in entry.terms
    )
    return Meanings(terms, frozenset(in_phrases))


def _occurs_at(phrase: _Phrase, stems: list[str], start: int) -> bool:
    """Return whether a phrase occurs in a text, and begins with the word at index `start`.

    Between two words of the phrase there may be up to MAX_GAP other words.
    """
    at = start
    for stem in phrase[1:]:
        # The next word may stand up to MAX_GAP + 1 places later; `end` is the index behind that.
        end = at + MAX_GAP + 2
        try:
            at = stems.index(stem, at + 1, end)
        except ValueError:
            return False
    return True


def _stems_of(text: str) -> list[str]:
    """Return the stems of the words of a text, without articles.

    Contractions are replaced by full words first: `don't` by `do not`.
    """
    lower = text.lower()
    for short, words in SHORT_FORMS:
        lower = short.sub(words, lower)
    return [stem_of(word) for word in WORD.findall(lower) if word not in ARTICLES]


@cache
def _read_vocabulary() -> Mapping[str, Iterable[_Entry]]:
    """Return the phrases of the vocabulary, by the stem of their first word."""
    entries: dict[str, list[_Entry]] = {}
    for number, text in enumerate(VOCABULARY.read_text(encoding="utf-8").splitlines()):
        if not text or text.startswith("#"):
            continue
        words, _, phrases = text.partition(" < ")
        # Use dict.fromkeys() to remove duplicates, because it keeps the order.
        terms = tuple(dict.fromkeys(map(stem_of, words.split())))
        for phrase in phrases.split(","):
            stems = tuple(_stems_of(phrase))
            entries.setdefault(stems[0], []).append(_Entry(number, stems, terms))
    return entries
