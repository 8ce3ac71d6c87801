"""make_counter(): makes functions that count the tokens of a text, for token budgets.

    make_counter("estimate")("Hello, world")      # 7

Tokens are the pieces into which a language model splits a text. The tokenizer `estimate` needs no
vocabulary (token_estimate.py). The other tokenizers count exactly, with the vocabularies of
OpenAI's models, which the extra `tokens` installs. Models of other vendors have other vocabularies,
and similar numbers of tokens.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from typing import TypeAlias

from concertino.errors import TargetError
from concertino.token_estimate import estimate

# Returns the number of tokens of a text.
Counter: TypeAlias = Callable[[str], int]

# At most this many characters are counted at once, because the tokenizers refuse more than 200,000
# tokens, and a character may take four.
MAX_PIECE = 50_000
BETWEEN_WORDS = re.compile("[a-z] [a-z]")

TOKENIZERS = ("estimate", "cl100k_base", "o200k_base")


def make_counter(name: str) -> Counter:
    """Return a function that counts the tokens of a text. Any thread may call the function.

    name: one of TOKENIZERS.
    Raises ValueError for an unknown name, and TargetError if the extra `tokens` is needed and not
    installed.
    """
    if name == "estimate":
        return estimate
    if name not in TOKENIZERS:
        raise ValueError(f"tokenizer: expected one of {', '.join(TOKENIZERS)}, got {name!r}")

    # On Python 3.11 and 3.12 the package reads its vocabularies in a deprecated way.
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        try:
            import bpe_openai  # pyright: ignore[reportMissingTypeStubs]
        except ImportError as exc:
            from concertino.installation import missing_extra

            raise TargetError(missing_extra(f"the tokenizer {name}", "tokens")) from exc
        encode = bpe_openai.get_encoding(name).encode_ordinary

    def count(text: str) -> int:
        return sum(len(encode(piece)) for piece in _pieces(text))

    return count


def _pieces(text: str) -> Iterator[str]:
    """Split a text into pieces whose tokens add up to the number of tokens of the text.

    A piece ends before a space between two letters, where every vocabulary begins a token. If there
    is no such place near MAX_PIECE characters, the text is cut elsewhere, and the sum may differ.
    """
    start = 0
    while len(text) - start > MAX_PIECE:
        end = start + MAX_PIECE
        # Nearly every text has a space between two words among 1,000 characters.
        places = [
            match.start() + 1 for match in BETWEEN_WORDS.finditer(text, max(start, end - 1000), end)
        ]
        end = places[-1] if places else end
        yield text[start:end]
        start = end
    yield text[start:]
