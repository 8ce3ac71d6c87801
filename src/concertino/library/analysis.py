"""Analyser: converts text to search terms, the same way for documents and queries.

    shared_analyser().analyse("Running snake_case servers")      # "run snake case snakecas server"

- Terms are in lower case, without accents, and stemmed as English. Stop words are dropped.
- Words with signs that programmers use stay whole: `C++`, `C#`, `.NET`, `3.11`.
- A word of several parts becomes one term for each part and one for the whole. So `node.js`,
  `NodeJS` and `nodejs` share a term, as do `CI/CD` and `cicd`, or `camelCase` and `camel_case`.
- Chinese, Japanese and Korean text, which has no spaces, becomes pairs of characters.

A text is split into *runs* at its spaces, a run into *words*, a word into *pieces* at its signs,
and a piece in camelCase into *humps*. The terms of each run are remembered, since the documents of
a library repeat their words. The stemmer is that of the package tantivy.
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

# Increase this number with every change of the rules in this module. An index that was stored with
# another version is not used.
ANALYSIS_VERSION = 1

# The longest term, in characters. Longer words are keys, hashes or data.
MAX_TERM = 64

# A word of up to this many pieces (node.js, user_id) is also indexed as one term. A word with more
# pieces is probably a path or a function call.
MAX_COMPOUND = 2

# The terms of at most this many different runs are remembered, which takes about 30 MB.
MAX_REMEMBERED = 200_000
# The longest run whose terms are remembered, in characters. Longer runs are hardly ever repeated.
MAX_RUN = 200

# One word, with the signs inside it: node.js, CI/CD, snake_case, event-driven, R&D, don't. Each
# repetition ends in a letter or digit, so a text can be matched in one way only, in linear time.
WORD = re.compile(r"\.?[^\W_]+(?:[.+#/&'\u2019_-]+[^\W_]+)*(?:\+\+|#)?")

# A table for bytes.translate(), which replaces each UTF-8 byte that is not part of a word by a
# space. Splitting at spaces then takes a third of the time of WORD.
TO_RUNS = bytes(
    byte if byte > 127 or chr(byte).isalnum() or chr(byte) in ".+#/&'_-" else ord(" ")
    for byte in range(256)
)

# One piece: a word such as C++, a letter such as C#, or letters and digits without signs.
PIECE = re.compile(r"[^\W_]+\+\+|[A-Za-z]#(?![^\W_])|[^\W_]+")
HUMP = re.compile(r"[A-Z]+(?![a-z])\d*|[A-Z]?[a-z]+\d*|\d+")

VERSION = re.compile(r"[vV]?(\d+(?:\.\d+)+)")
POSSESSIVE = re.compile(r"['\u2019]s\b")
APOSTROPHES = str.maketrans("", "", "'\u2019")

# Scripts without spaces between words: kana, Han and Hangul.
UNSPACED = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]+")

# Abbreviations that are unambiguous in documents about software.
ALIASES = {
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

# Words whose leading dot matters. Other words, such as .env, lose it.
DOTTED = {".net": "dotnet"}

# Names with inner capitals that are one word: a query for Java must not find JavaScript.
NAMES = frozenset(
    """bigquery clickhouse cloudformation coffeescript couchdb datadog devops dynamodb fastapi
    github gitlab graphql javascript jquery latex linkedin mariadb mlops mongodb mysql openai
    openapi opentelemetry postgresql powershell pytorch rabbitmq sqlite tensorflow typescript
    webassembly websocket wordpress youtube""".split()  # noqa: SIM905
)

# Lucene's English stop words.
STOP_WORDS = frozenset(
    """a an and are as at be but by for if in into is it no not of on or such that the their then
    there these they this to was will with""".split()  # noqa: SIM905
)


@cache
def import_tantivy() -> ModuleType:
    """Return the module tantivy, the search engine.

    Raises TargetError if tantivy is not installed. The text names the extra to install.
    """
    try:
        import tantivy
    except ImportError as exc:
        from concertino.installation import missing_extra

        raise TargetError(missing_extra("searching a library", "library")) from exc
    return tantivy


@cache
def shared_analyser() -> Analyser:
    """Return the Analyser of this process. All libraries share the terms that it remembers."""
    return Analyser()


class Analyser:
    """Converts text to search terms: lower-case words without their endings and accents.

    Frequent words such as "the" are dropped. The docstring of this module has all rules. Any thread
    may use an Analyser. Creating one raises TargetError if tantivy is not installed.
    """

    def __init__(self) -> None:
        tantivy = import_tantivy()
        self._terms = _TermCache(
            tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.whitespace())
            .filter(tantivy.Filter.stemmer("english"))
            .build()
        )

    def analyse(self, text: str) -> str:
        """Return the terms of a text in order, joined by spaces; "" if it has none."""
        # Another thread may be reading the terms. A missing entry is only computed again.
        if len(self._terms) > MAX_REMEMBERED:
            self._terms.clear()
        # A text from JSON may contain lone surrogates, which strict UTF-8 cannot encode.
        runs = (
            text.encode("utf-8", "surrogatepass")
            .translate(TO_RUNS)
            .decode("utf-8", "surrogatepass")
            .split()
        )
        return " ".join(map(self._terms.__getitem__, runs))

    def words(self, text: str) -> list[str]:
        """Return the words of a text in order, as they are written, such as "node.js"."""
        return WORD.findall(text)

    def terms(self, word: str) -> list[str]:
        """Return the terms of one word: usually one, several for "node.js", [] for a stop word."""
        return self.analyse(word).split()

    def stems(self, words: list[str]) -> list[str]:
        """Return one stem for each word, also for a stop word.

        words: words that consist of the characters a-z and 0-9.
        """
        # Do not remember the stems: spelling.py passes many words that are used only once.
        return self._terms.stemmer.analyze(" ".join(words))


class _TermCache(dict[str, str]):
    """Maps a run, which is text without spaces, to its terms with spaces between them.

    A missing entry is computed when it is looked up, also by `self[word]` in these methods.
    """

    def __init__(self, stemmer: TextAnalyzer) -> None:
        super().__init__()
        self.stemmer = stemmer

    def __missing__(self, run: str) -> str:
        # Most runs are plain words, in lower case, capitalized or in capitals.
        if run.isascii() and run.isalpha() and (run[1:] == run[1:].lower() or run.isupper()):
            terms = self._term(run.lower())
        # The run is one word, for example with signs or in camelCase.
        elif run.isalnum() or WORD.fullmatch(run):
            # Each item may be several terms or none. Keep their order, and each term once.
            words = " ".join(self._terms_of_word(run)).split()
            terms = " ".join(dict.fromkeys(words))
        else:
            terms = " ".join(filter(None, [self[word] for word in WORD.findall(run)]))

        if len(run) <= MAX_RUN:
            self[run] = terms
        return terms

    def _term(self, lower: str) -> str:
        """Return the term of a word in lower case; "" for a stop word or a very long word."""
        if lower in STOP_WORDS or len(lower) > MAX_TERM:
            return ""
        lower = ALIASES.get(lower, lower)
        if lower.isascii() and lower[-1] not in "+#":
            return self.stemmer.analyze(lower)[0]
        return lower

    def _terms_of_word(self, word: str) -> list[str]:
        """Return the terms of a word with signs, capitals or other scripts, with duplicates."""
        if not word.isascii():
            word = _strip_accents(word)
            # The result is empty for U+FF9E alone, which counts as a letter but decomposes to an
            # accent.
            if not word:
                return []
            if UNSPACED.search(word):
                return self._terms_of_unspaced(word)

        if word[0] == "." and word.lower() in DOTTED:
            return [DOTTED[word.lower()]]
        if word.isalnum():
            return self._terms_of_piece(word)
        version = VERSION.fullmatch(word) if word[-1].isdigit() else None
        if version is not None:
            return [version[1]]
        return self._terms_of_compound(word)

    def _terms_of_compound(self, word: str) -> list[str]:
        """Return the terms of a word with signs: one for each piece, and one for the whole word."""
        if "'" in word or "\u2019" in word:
            word = POSSESSIVE.sub("", word).translate(APOSTROPHES)
        pieces = PIECE.findall(word)
        terms = [self[piece] if piece.isalnum() else self._term(piece.lower()) for piece in pieces]
        # ASP.NET also has the term of .NET.
        if "NET" in pieces[1:]:
            terms.append(DOTTED[".net"])
        if 1 < len(pieces) <= MAX_COMPOUND:
            terms.append(self._term("".join(pieces).lower()))
        return terms

    def _terms_of_piece(self, piece: str) -> list[str]:
        """Return the terms of one piece: the whole piece, and its humps if it is camelCase."""
        lower = piece.lower()
        terms = [self._term(lower)]
        if piece != lower and piece.isascii() and lower not in NAMES:
            humps = HUMP.findall(piece)
            if len(humps) > 1:
                terms += [self._term(hump.lower()) for hump in humps if len(hump) > 1]
        return terms

    def _terms_of_unspaced(self, word: str) -> list[str]:
        """Return the terms of a word that contains a script without spaces.

        The terms are pairs of characters of that script, and the terms of the other parts.
        """
        terms: list[str] = []
        end = 0
        for run in UNSPACED.finditer(word):
            if run.start() > end:
                terms += self[word[end : run.start()]].split()
            characters = run[0]
            # A single character is a term of its own.
            pairs = max(1, len(characters) - 1)
            terms += [characters[start : start + 2] for start in range(pairs)]
            end = run.end()
        if end < len(word):
            terms += self[word[end:]].split()
        return terms


def _strip_accents(word: str) -> str:
    decomposed = unicodedata.normalize("NFKD", word)
    return unicodedata.normalize(
        "NFC", "".join(char for char in decomposed if not unicodedata.combining(char))
    )
