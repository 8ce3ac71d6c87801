"""A word that no document has, and the one that was probably meant.

All that is one slip away (a letter too many, too few, another one, two exchanged: Damerau's four, 80 % of all
misspellings) is tried against the dictionary of the index; the most frequent one is taken. Some 600 look-ups for a
word of ten letters, 1 ms; no second dictionary is kept.
"""

from __future__ import annotations

from string import ascii_lowercase, digits
from typing import TYPE_CHECKING

from msgspec import Struct

from concertino.library.analysis import Analyser

if TYPE_CHECKING:
    import tantivy

__all__ = ["SpellingCorrection", "correct_spelling"]

LETTERS = ascii_lowercase + digits
MIN_LENGTH = 5  # shorter words have too many neighbours, and names (Pact, SHAP) are often short
MAX_LENGTH = 24


class SpellingCorrection(Struct, frozen=True):
    """word: as it would be written. term: what it is in the index."""

    word: str
    term: str


def correct_spelling(
    word: str, analyser: Analyser, searcher: tantivy.Searcher
) -> SpellingCorrection | None:
    """The known word that is one slip away from an unknown one; None where there is none, or the word is of no kind
    that can be repaired."""
    lower = word.lower()
    if not (MIN_LENGTH <= len(lower) <= MAX_LENGTH and lower.isascii() and lower.isalnum()):
        return None
    near = sorted(_slips(lower))
    known = [
        (
            candidate[0] != lower[0],
            -frequency,
            candidate,
            term,
        )  # hardly anybody misses the first letter
        for candidate, term in zip(near, analyser.stems(near), strict=True)
        if (frequency := searcher.doc_freq("text", term))
    ]
    if not known:
        return None
    *_, candidate, term = min(known)
    return SpellingCorrection(candidate, term)


def _slips(word: str) -> set[str]:
    halves = [(word[:place], word[place:]) for place in range(len(word) + 1)]
    found = {left + right[1:] for left, right in halves if right}
    found |= {left + right[1] + right[0] + right[2:] for left, right in halves if len(right) > 1}
    found |= {left + letter + right[1:] for left, right in halves if right for letter in LETTERS}
    found |= {left + letter + right for left, right in halves for letter in LETTERS}
    return found - {word, ""}
