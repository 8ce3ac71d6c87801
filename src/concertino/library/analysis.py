"""Text to terms: what a document says and what a query asks for become the same words.

A term is lower case, without accents, stemmed as English. What programmers write with signs stays whole: `C++`, `C#`,
`.NET`, `3.11`. What they write as one word or as several is found either way: `node.js`, `NodeJS` and `nodejs` share
a term, so do `CI/CD` and `cicd`; `camelCase` and `snake_case` give their parts, too. Chinese, Japanese and Korean,
which have no spaces, become pairs of characters.

The work is done once per different word, not per word: a library repeats itself. The stemmer is tantivy's.
"""

from __future__ import annotations

import re
import unicodedata
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING

from concertino.errors import TargetError

if TYPE_CHECKING:
    from tantivy import TextAnalyzer

__all__ = ["ANALYSIS_VERSION", "STOP_WORDS", "Analyser", "analyser", "engine"]

ANALYSIS_VERSION = (
    1  # an index made by another version is made anew; raise it with every change of what follows
)
MAX_TERM = 64  # characters; what is longer is a key, a hash or data
MAX_COMPOUND = 2  # words that are taken as one, too: node.js, user_id; more are a path or a call
MAX_REMEMBERED = 200_000  # different words; about 30 MB

# Signs that join what is one thing to a reader: node.js, CI/CD, snake_case, event-driven, R&D, don't. Each repetition ends
# in a letter or digit, so that there is one way to read a text, whatever its length.
WORD = re.compile(r"\.?[^\W_]+(?:[.+#/&'\u2019_-]+[^\W_]+)*(?:\+\+|#)?")
# Bytes of UTF-8 that are in no word become spaces: str.split() finds the runs that hold words in a third of WORD's time.
RUNS = bytes(
    each if each > 127 or chr(each).isalnum() or chr(each) in ".+#/&'_-" else ord(" ")
    for each in range(256)
)
MAX_RUN = 200  # characters of a run that is remembered
PIECE = re.compile(r"[^\W_]+\+\+|[A-Za-z]#(?![^\W_])|[^\W_]+")
HUMP = re.compile(r"[A-Z]+(?![a-z])\d*|[A-Z]?[a-z]+\d*|\d+")
VERSION = re.compile(r"[vV]?(\d+(?:\.\d+)+)")
POSSESSIVE = re.compile(r"['\u2019]s\b")
APOSTROPHES = str.maketrans("", "", "'\u2019")
UNSPACED = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]+")
ALIASES = {  # short forms that mean nothing else where documents are about software
    "a11y": "accessibility",
    "i18n": "internationalization",
    "l10n": "localization",
    "o11y": "observability",
    "k8s": "kubernetes",
    "golang": "go",
    "js": "javascript",
    "ts": "typescript",
    "postgres": "postgresql",
}
DOTTED = {".net": "dotnet"}  # other words lose the dot they begin with: .env, .gitignore
# With a capital inside, but one word: whoever asks for Java does not mean JavaScript.
NAMES = frozenset(
    """bigquery clickhouse cloudformation coffeescript couchdb datadog devops dynamodb fastapi github gitlab graphql javascript
    jquery latex linkedin mariadb mlops mongodb mysql openai openapi opentelemetry postgresql powershell pytorch rabbitmq
    sqlite tensorflow typescript webassembly websocket wordpress youtube""".split()  # noqa: SIM905
)
STOP_WORDS = frozenset(  # Lucene's English ones
    """a an and are as at be but by for if in into is it no not of on or such that the their then there these they this to
    was will with""".split()  # noqa: SIM905
)


@cache
def engine() -> ModuleType:
    """The module tantivy. Raises `TargetError`, which names the extra, where it is not installed."""
    try:
        import tantivy
    except ImportError as why:
        raise TargetError(
            "searching a library needs tantivy: pip install 'concertino[library]'"
        ) from why
    return tantivy


@cache
def analyser() -> Analyser:
    """The one of this process: what it has learned serves every library, and every thread."""
    return Analyser()


class Analyser:
    """Text to terms. Safe to call from any thread."""

    def __init__(self) -> None:
        tantivy = engine()
        self._terms = _Terms(
            tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.whitespace())
            .filter(tantivy.Filter.stemmer("english"))
            .build()
        )

    def flat(self, text: str) -> str:
        """Its terms in order, with spaces between: what tantivy's own splitting at white space makes terms of."""
        if len(self._terms) > MAX_REMEMBERED:
            self._terms.clear()
        runs = (
            text.encode("utf-8", "surrogatepass")
            .translate(RUNS)
            .decode("utf-8", "surrogatepass")
            .split()
        )
        return " ".join(map(self._terms.__getitem__, runs))

    def words(self, text: str) -> list[str]:
        """As they are written: the pieces that terms are made of."""
        return WORD.findall(text)

    def terms(self, word: str) -> list[str]:
        """The terms of one word; none for a stop word."""
        return self.flat(word).split()

    def stems(self, words: list[str]) -> list[str]:
        """The stem of each of many words of a-z and digits. Nothing is remembered."""
        return self._terms.stemmer.analyze(" ".join(words))


class _Terms(dict[str, str]):
    """What is known of each run of characters without a space: its terms with spaces between."""

    def __init__(self, stemmer: TextAnalyzer) -> None:
        super().__init__()
        self.stemmer = stemmer

    def __missing__(self, run: str) -> str:
        if (
            run.isascii() and run.isalpha() and (run[1:] == run[1:].lower() or run.isupper())
        ):  # most of them
            found = self._term(run.lower())
        elif run.isalnum() or WORD.fullmatch(run):
            found = " ".join(dict.fromkeys(" ".join(self._of(run)).split()))
        else:
            found = " ".join(filter(None, [self[word] for word in WORD.findall(run)]))
        if len(run) <= MAX_RUN:
            self[run] = found
        return found

    def _term(self, lower: str) -> str:
        if lower in STOP_WORDS or len(lower) > MAX_TERM:
            return ""
        lower = ALIASES.get(lower, lower)
        return (
            self.stemmer.analyze(lower)[0] if lower.isascii() and lower[-1] not in "+#" else lower
        )

    def _of(self, word: str) -> list[str]:
        if not word.isascii():
            plain = unicodedata.normalize("NFKD", word)
            word = unicodedata.normalize(
                "NFC", "".join(each for each in plain if not unicodedata.combining(each))
            )
            if not word:  # U+FF9E alone: a letter by its kind, an accent by what it decomposes to
                return []
            if UNSPACED.search(word):
                return self._unspaced(word)
        if word[0] == "." and word.lower() in DOTTED:
            return [DOTTED[word.lower()]]
        if word.isalnum():
            return self._alone(word)
        version = VERSION.fullmatch(word) if word[-1].isdigit() else None
        if version is not None:
            return [version[1]]
        if "'" in word or "\u2019" in word:
            word = POSSESSIVE.sub("", word).translate(APOSTROPHES)
        pieces = PIECE.findall(word)
        found = [self[piece] if piece.isalnum() else self._term(piece.lower()) for piece in pieces]
        if "NET" in pieces[1:]:  # ASP.NET
            found.append(DOTTED[".net"])
        if 1 < len(pieces) <= MAX_COMPOUND:
            found.append(self._term("".join(pieces).lower()))
        return found

    def _alone(self, piece: str) -> list[str]:
        lower = piece.lower()
        found = [self._term(lower)]
        if piece != lower and piece.isascii() and lower not in NAMES:
            humps = HUMP.findall(piece)
            if len(humps) > 1:
                found += [self._term(hump.lower()) for hump in humps if len(hump) > 1]
        return found

    def _unspaced(self, word: str) -> list[str]:
        """Pairs of characters where there are no spaces; the rest as ever."""
        found: list[str] = []
        end = 0
        for run in UNSPACED.finditer(word):
            found += self[word[end : run.start()]].split() if run.start() > end else []
            found += [run[0][place : place + 2] for place in range(max(1, len(run[0]) - 1))]
            end = run.end()
        return found + (self[word[end:]].split() if end < len(word) else [])
