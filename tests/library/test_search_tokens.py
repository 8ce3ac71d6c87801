"""tokens.py: what budgets are counted in."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from corpora import each_corpus
from hypothesis import given
from hypothesis import strategies as st

from concertino.library.tokens import MAX_PIECE, counter, estimate


def test_an_estimate_is_characters_by_four_point_one_rounded_up() -> None:
    assert [estimate("a" * length) for length in (0, 1, 4, 5, 8, 9, 41, 42, 410, 4100)] == [
        0,
        1,
        1,
        2,
        2,
        3,
        10,
        11,
        100,
        1000,
    ]


@given(st.integers(0, 10**6))
def test_an_estimate_is_never_less_than_the_quotient(length: int) -> None:
    assert length * 10 <= estimate("x" * length) * 41 < length * 10 + 41


@each_corpus
@pytest.mark.parametrize("name", ["o200k_base", "cl100k_base"])
def test_the_estimate_is_within_a_tenth_of_the_count_for_four_of_five_files(
    name: str, corpus: Path
) -> None:
    exact = counter(name)
    texts = [path.read_text(encoding="utf-8") for path in corpus.rglob("*.md")]
    near = sum(abs(estimate(text) - exact(text)) <= 0.1 * exact(text) for text in texts)
    assert near >= 0.8 * len(texts)


def test_a_tokenizer_counts_as_its_vocabulary_says() -> None:
    # tiktoken's documentation: "tiktoken is great!" is [83, 1609, 5963, 374, 2294, 0] in cl100k_base.
    assert counter("cl100k_base")("tiktoken is great!") == 6
    assert counter("o200k_base")("") == 0


def test_long_texts_and_what_looks_like_a_special_token_are_counted() -> None:
    count = counter("o200k_base")
    assert count("<|endoftext|>") > 1
    assert count("word " * MAX_PIECE) == pytest.approx(MAX_PIECE, rel=0.01)


def test_an_unknown_tokenizer_is_refused_by_name() -> None:
    with pytest.raises(
        ValueError, match="tokenizer: expected one of estimate, cl100k_base, o200k_base, got 'gpt9'"
    ):
        counter("gpt9")


def test_without_the_extra_it_is_named() -> None:
    code = (
        "import sys; sys.modules['bpe_openai'] = None\n"
        "from concertino.errors import TargetError\n"
        "from concertino.library.tokens import counter, estimate\n"
        "assert counter('estimate') is estimate\n"
        "try: counter('o200k_base')\n"
        "except TargetError as why: print(why)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=20
    )
    assert (
        done.stdout
        == "the tokenizer o200k_base needs bpe-openai: pip install 'concertino[tokens]'\n"
    )
