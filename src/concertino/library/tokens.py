"""How long a text is, in the tokens of a language model: what a budget is counted in.

The estimate needs no vocabulary: 4.1 characters are taken for a token, which is within 10 % of the count of a
tokenizer for four of five files of English Markdown, and further off for other scripts. Who needs the exact figure
chooses a tokenizer: the extra `tokens` brings the vocabularies of OpenAI's models inside a package. Models of other
makers have vocabularies of their own, which these come near.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TypeAlias

from concertino.errors import TargetError

__all__ = ["TOKENIZERS", "Counter", "counter", "estimate"]

Counter: TypeAlias = Callable[[str], int]
MAX_PIECE = 50_000  # characters; the tokenizer refuses more than 200,000 tokens, so what is longer is counted in pieces
TOKENIZERS = ("estimate", "cl100k_base", "o200k_base")


def estimate(text: str) -> int:
    """Characters / 4.1, rounded up; 0 for no text."""
    return -(-len(text) * 10 // 41)  # whole numbers: the same on every machine


def counter(name: str) -> Counter:
    """What counts the tokens of a text: `estimate`, or exactly, by the vocabulary of that name.

    Raises ValueError for an unknown name, TargetError where the extra is missing. What is returned may be called from
    any thread.
    """
    if name == "estimate":
        return estimate
    if name not in TOKENIZERS:
        raise ValueError(f"tokenizer: expected one of {', '.join(TOKENIZERS)}, got {name!r}")
    with warnings.catch_warnings(
        action="ignore", category=DeprecationWarning
    ):  # how it reads its vocabularies, on 3.11 and 3.12
        try:
            import bpe_openai  # pyright: ignore[reportMissingTypeStubs]
        except ImportError as why:
            raise TargetError(
                f"the tokenizer {name} needs bpe-openai: pip install 'concertino[tokens]'"
            ) from why
        encode = bpe_openai.get_encoding(name).encode_ordinary

    def count(text: str) -> int:
        return sum(
            len(encode(text[place : place + MAX_PIECE])) for place in range(0, len(text), MAX_PIECE)
        )

    return count
