"""Splits texts about tools into terms, which are stems of words, and finds terms of like meaning.

    terms_of("createPullRequest")         # ["creat", "pull", "request"]
    related_terms("add")                  # {"add": 1.0, "creat": 0.5, ...}

This module needs no dependency and no language model. tool_vocabulary.py lists the words with the
same meaning.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache, lru_cache

from concertino.library.analysis import ALIASES, HUMP, NAMES, STOP_WORDS
from concertino.transforms.tool_vocabulary import FORMS, NOUNS, VERBS

__all__ = [
    "asks_to_read",
    "is_verb",
    "related_terms",
    "stem_of",
    "terms_of",
    "words_of_query",
]

WORD = re.compile(r"[^\W_]+")
# How many characters of a query are read. The time of the patterns below grows with the square of
# this number.
MAX_QUERY = 1000
# The largest number of stems that are cached. The texts of a thousand tools have fewer.
MAX_STEMS = 2**14
# The weight of a term with the same meaning as a term of the query, for verbs and for nouns.
VERB_WEIGHT = 0.5
NOUN_WEIGHT = 0.6
# Words of questions that say nothing about a tool, in addition to the library's stop words.
FILLERS = frozenset(
    """
    about again all also am any anybody anything been before can could did do does done
    each ever every everything exactly from give had has have he her here him his how i
    its just know let like me mine more most much must my need now other our out please
    same say shall she should so some somebody someone something straight than them
    theirs thing things too up us use very want was we were what when where which while
    who whole whom whose why would you your
    """.split()  # noqa: SIM905
)

# The first words of questions and requests that are answered by reading something.
QUESTIONS = frozenset(
    """what which who whom whose when where why how is are was were does do did has have can show
    get tell list""".split()  # noqa: SIM905
)
# Patterns of data in a query, such as file names, and the words that replace the data. The patterns
# are applied in this order, each to the result of the pattern before.
SHAPES = (
    (re.compile(r"\b[\w*/-]*\.(?:png|jpe?g|gif|svg|webp)\b"), "image file"),
    (re.compile(r"\b[\w*/-]*\.(?:mp3|wav|ogg|mp4)\b"), "audio media file"),
    (re.compile(r"\b[\w*/-]*\.(?:docx?|odt)\b"), "docx"),
    (re.compile(r"\b[\w*/-]*\.(?:xlsx|xlsm|xls|ods)\b"), "xlsx"),
    (re.compile(r"\b[\w*/-]*\.csv\b"), "csv file"),
    (re.compile(r"\b[\w/-]*\.(?:txt|log|md|py|js|ts|c|go|rs|ya?ml|toml|json|ini|conf)\b"), "file"),
    (re.compile(r"\*\.\w+"), "files pattern"),
    (re.compile(r"https?://\S+|\b[\w-]+\.(?:com|org|net|io|dev)\b"), "url"),
    (re.compile(r"\b[A-Z][A-Z0-9]+-\d+\b"), "issue"),
    (re.compile(r"-?\b\d{1,3}\.\d+\s*,\s*-?\d{1,3}\.\d+"), "coordinates latitude longitude"),
    (re.compile(r"\b[A-Z]{1,2}\d{1,4}(?::[A-Z]{1,2}\d{1,4})?\b"), "cell range"),
    (re.compile(r"\b[\w.]+@[\w.]+\b"), "email"),
    (re.compile(r"(?<!\w)#[a-z][\w-]*"), "channel"),
    (re.compile(r"\b[0-9a-f]*\d[0-9a-f]*[a-f][0-9a-f]{2,}\b"), "revision commit"),
)


def words_of_query(query: str) -> list[str]:
    """Return the words of a query by which tools are searched, in the order of the query.

    - Words that say nothing about a tool, such as `the` and `please`, and numbers are left out.
    - A file name, an address or other data is replaced by the words that tool definitions use for
      it: `notes.txt`, for example, by `file`.
    - Only the first 1,000 characters are read.
    """
    text = query[:MAX_QUERY]
    for shape, words in SHAPES:
        text = shape.sub(f" {words} ", text)
    return [word for word in WORD.findall(text) if not _is_filler(word) and not word.isdigit()]


def _is_filler(word: str) -> bool:
    lower = word.lower()
    return lower in FILLERS or lower in STOP_WORDS or len(lower) < 2


def terms_of(text: str) -> list[str]:
    """Return the terms (stems of words) of a text or name, in their order.

    Names such as `createIssue` are split into words. Stop words, such as `the`, are left out.
    """
    terms: list[str] = []
    for word in WORD.findall(text):
        # Split words such as createIssue at their capital letters, but not names such as GitHub.
        is_whole = word.islower() or not word.isascii() or word.lower() in NAMES
        parts = [word] if is_whole else HUMP.findall(word)
        for part in parts or [word]:
            lower = part.lower()
            if lower not in STOP_WORDS:
                terms.append(stem_of(ALIASES.get(lower, lower)))
    return terms


@lru_cache(MAX_STEMS)
def stem_of(word: str) -> str:
    """Return the stem of an English word, such as "creat" for "creates".

    Most forms of a word have the same stem. The stem need not be a word itself.
    word: the word, in lower case.
    """
    word = FORMS.get(word, word)
    if len(word) < 4 or not word.isascii() or not word.isalpha():
        return word
    # Plurals, and the third person of verbs.
    if word.endswith("ies"):
        word = word[:-3] + "y"
    elif word.endswith(("sses", "xes", "ches", "shes", "zes")):
        word = word[:-2]
    elif word.endswith("s") and not word.endswith(("ss", "us", "is")):
        word = word[:-1]
    # "stopping" and "stopped" become "stop".
    for ending in ("ing", "ed"):
        rest = word.removesuffix(ending)
        if rest != word and len(rest) > 2 and any(letter in "aeiouy" for letter in rest):
            # But keep the two letters of words such as "seeing", "telling" and "missing".
            if rest[-1] == rest[-2] and rest[-1] not in "aeiouls":
                rest = rest[:-1]
            word = rest
            break
    # "creation" becomes "creat", as "create" does below; "validation" becomes "validat".
    if len(word) > 6 and word.endswith("ation"):
        word = word[:-5] + "at"
    elif len(word) > 6 and word.endswith("ion"):
        word = word[:-3]
    if len(word) > 3 and word.endswith("e"):
        word = word[:-1]
    if len(word) > 3 and word.endswith("y"):
        word = word[:-1] + "i"
    return word


@cache
def _related_by_term() -> Mapping[str, Mapping[str, float]]:
    """Return term -> the terms with the same meaning, with weights, from the vocabulary."""
    related: dict[str, dict[str, float]] = {}
    for lines, weight in (
        (VERBS.strip().splitlines(), VERB_WEIGHT),
        (NOUNS.strip().splitlines(), NOUN_WEIGHT),
    ):
        for line in lines:
            stems = [stem_of(word) for word in line.split()]
            for stem in stems:
                own = related.setdefault(stem, {stem: 1.0})
                for other in stems:
                    own[other] = max(own.get(other, 0.0), weight)
    return related


@cache
def _verbs() -> frozenset[str]:
    return frozenset(map(stem_of, VERBS.split()))


def is_verb(term: str) -> bool:
    """Return whether a term is the stem of a verb in the vocabulary (tool_vocabulary.py)."""
    return term in _verbs()


def asks_to_read(query: str) -> bool:
    """Return whether a query begins like a question, and so probably asks for no change."""
    words = WORD.findall(query[:MAX_QUERY].lower())
    return bool(words) and words[0] in QUESTIONS


def related_terms(term: str) -> Mapping[str, float]:
    """Return the terms of the vocabulary that mean about the same as a term, with their weights.

    The weights are from 0 to 1. The result also contains the term itself, with the weight 1.0.
    """
    return _related_by_term().get(term) or {term: 1.0}
