"""A search without guidance: seeded, in plain Python, for the normal test run. What a long search
finds is in the corpus.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

__all__ = ["mutations"]


def mutations(
    corpus: Sequence[bytes], tokens: Sequence[bytes], max_bytes: int, seed: int, count: int
) -> Iterator[bytes]:
    """`count` inputs made of those in the corpus; the same ones for the same arguments."""
    chance = Random(seed)
    for _ in range(count):
        data = chance.choice(corpus)
        for _ in range(chance.choice((1, 1, 2, 3, 5))):
            data = _change(data, corpus, tokens, chance)
        yield data[:max_bytes]


def _change(data: bytes, corpus: Sequence[bytes], tokens: Sequence[bytes], chance: Random) -> bytes:
    at = chance.randrange(len(data) + 1)
    size = chance.choice((1, 1, 1, 2, 4, 8, 16))
    match chance.randrange(7):
        case 0:
            return data[:at] + data[at + size :]
        case 1:
            return data[:at] + chance.choice(tokens) + data[at:]
        case 2:
            return data[:at] + chance.choice(tokens) + data[at + size :]
        case 3:
            return data[:at] + chance.randbytes(1) + data[at + 1 :]
        case 4:
            return data[:at] + data[at : at + size] * 2 + data[at + size :]
        case 5:
            other = chance.choice(corpus)
            return data[:at] + other[chance.randrange(len(other) + 1) :]
        case _:
            return (
                data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :]
                if at < len(data)
                else data
            )
