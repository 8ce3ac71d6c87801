"""find_meanings(): what the phrases of a task mean in the words of tools (tool_meanings.txt)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

from msgspec import Struct

from concertino.transforms.tool_words import MAX_QUERY, WORD, stem_of

__all__ = ["Meanings", "find_meanings"]

VOCABULARY = Path(__file__).with_name("tool_meanings.txt")
# How many words may stand between two of a phrase: `throw the old one away`.
MAX_GAP = 3
# How much the words of a line count whose phrase is found, by whether it has several words.
PHRASE_WEIGHT = 0.8
WORD_WEIGHT = 0.5
# Each of n words counts 1/n**SHARE of that: several say more than one, but not n times as much.
SHARE = 0.25
# Words without which a phrase means the same.
ARTICLES = frozenset(("a", "an", "the", "my", "our", "your", "this", "that", "these", "those"))
# `what's` and `don't` are two words.
SHORT_FORMS = (
    (re.compile(r"n['\u2019]t\b"), " not"),
    (re.compile(r"['\u2019]ll\b"), " will"),
    (re.compile(r"\b(what|who|where|when|how|it|that|there)['\u2019]s\b"), r"\1 is"),
    (re.compile(r"['\u2019]s\b"), ""),
)

_Phrase = tuple[str, ...]


class _Line(Struct, frozen=True):
    """A line of the vocabulary: a phrase of it, and the terms that tools use."""

    number: int
    phrase: _Phrase
    terms: tuple[str, ...]


class Meanings(Struct, frozen=True):
    """What the phrases of a task mean.

    terms: each term that tools may use, with its weight; one may come several times. phrased: the
    stems of the words that stand in phrases, and may mean something else alone.
    """

    terms: tuple[tuple[str, float], ...]
    phrased: frozenset[str]


def find_meanings(query: str) -> Meanings:
    """Return what the phrases of a query mean. Each line of the vocabulary counts once."""
    stems = _stems_of(query[:MAX_QUERY])
    by_first = _lines()
    weights: dict[int, tuple[_Line, float]] = {}
    phrased: set[str] = set()
    for start, stem in enumerate(stems):
        for line in by_first.get(stem, ()):
            if not _stands_at(line.phrase, stems, start):
                continue
            weight = WORD_WEIGHT
            if len(line.phrase) > 1:
                weight = PHRASE_WEIGHT
                phrased.update(line.phrase)
            known = weights.get(line.number)
            if known is None or known[1] < weight:
                weights[line.number] = line, weight
    terms = tuple(
        (term, weight / len(line.terms) ** SHARE)
        for line, weight in weights.values()
        for term in line.terms
    )
    return Meanings(terms, frozenset(phrased))


def _stands_at(phrase: _Phrase, stems: list[str], start: int) -> bool:
    """Return whether a phrase begins at a word, with at most MAX_GAP words in each of its gaps."""
    at = start
    for stem in phrase[1:]:
        end = at + MAX_GAP + 2
        try:
            at = stems.index(stem, at + 1, end)
        except ValueError:
            return False
    return True


def _stems_of(text: str) -> list[str]:
    lower = text.lower()
    for short, words in SHORT_FORMS:
        lower = short.sub(words, lower)
    return [stem_of(word) for word in WORD.findall(lower) if word not in ARTICLES]


@cache
def _lines() -> Mapping[str, Iterable[_Line]]:
    """Return the lines of the vocabulary, for each phrase, by the first word of it."""
    lines: dict[str, list[_Line]] = {}
    for number, text in enumerate(VOCABULARY.read_text(encoding="utf-8").splitlines()):
        if not text or text.startswith("#"):
            continue
        words, _, phrases = text.partition(" < ")
        # Without duplicates, in order.
        terms = tuple(dict.fromkeys(map(stem_of, words.split())))
        for phrase in phrases.split(","):
            stems = tuple(_stems_of(phrase))
            lines.setdefault(stems[0], []).append(_Line(number, stems, terms))
    return lines
