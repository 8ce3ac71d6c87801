"""Every choice that the simulated world makes, from one seed."""

from __future__ import annotations

from collections.abc import MutableSequence, Sequence
from random import Random
from typing import Any, TypeVar

__all__ = ["Calm", "Dice"]

T = TypeVar("T")


class Dice:
    """A seed's choices."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)

    def chance(self, probability: float) -> bool:
        return self._random.random() < probability

    def fraction(self) -> float:
        """0 up to 1, without it."""
        return self._random.random()

    def upto(self, most: int) -> int:
        """1 to most; often all of it."""
        return (
            most
            if most <= 1 or self._random.random() < 0.5
            else 1 + int(self._random.random() * most)
        )

    def below(self, bound: int) -> int:
        return int(self._random.random() * bound)

    def pick(self, options: Sequence[T]) -> T:
        return options[int(self._random.random() * len(options))]

    def shuffle(self, items: MutableSequence[Any]) -> None:
        self._random.shuffle(items)


class Calm(Dice):
    """No choices: everything happens at once, in order, in full. For runs in which one thing alone
    shall go wrong.
    """

    def __init__(self) -> None:
        super().__init__(0)

    def chance(self, probability: float) -> bool:
        return probability >= 1

    def fraction(self) -> float:
        return 0.0

    def upto(self, most: int) -> int:
        return most

    def below(self, bound: int) -> int:
        return 0

    def pick(self, options: Sequence[T]) -> T:
        return options[0]

    def shuffle(self, items: MutableSequence[Any]) -> None:
        pass
