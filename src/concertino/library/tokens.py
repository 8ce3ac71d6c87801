"""Counts the tokens that a text has for a language model, for budgets.

`estimate` needs no vocabulary: see token_estimate.py. For exact counts the extra `tokens` brings
the vocabularies of OpenAI's models in a package. Models of other vendors have other vocabularies,
whose counts are similar.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from typing import TypeAlias

from concertino.errors import TargetError
from concertino.token_estimate import estimate

Counter: TypeAlias = Callable[[str], int]

# Characters counted at once: the tokenizer refuses more than 200,000 tokens.
MAX_PIECE = 50_000
BETWEEN_WORDS = re.compile("[a-z] [a-z]")

TOKENIZERS = ("estimate", "cl100k_base", "o200k_base")


def counter(name: str) -> Counter:
    """Return the function that counts tokens: `estimate`, or exactly by the named vocabulary.

    The function may be called from any thread. Raises ValueError for an unknown name, TargetError
    if the extra is not installed.
    """
    if name == "estimate":
        return estimate
    if name not in TOKENIZERS:
        raise ValueError(f"tokenizer: expected one of {', '.join(TOKENIZERS)}, got {name!r}")

    # On 3.11 and 3.12 the package reads its vocabularies in a deprecated way.
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
    """Yield the text in pieces that have together as many tokens as the text.

    They end between a letter and a space before a letter, where every vocabulary begins a token.
    Only a text of MAX_PIECE characters without such a place is cut elsewhere.
    """
    start = 0
    while len(text) - start > MAX_PIECE:
        end = start + MAX_PIECE
        places = [
            match.start() + 1 for match in BETWEEN_WORDS.finditer(text, max(start, end - 1000), end)
        ]
        end = places[-1] if places else end
        yield text[start:end]
        start = end
    yield text[start:]
