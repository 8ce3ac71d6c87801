"""ToolFamilies: which server's tools a task is for, as far as its words tell.

A composition calls tools `server_name`, and some servers do so themselves. Tools whose names begin
alike are a family, and the words of a task say for which: `leaderboard` is said of no other server
than Redis, even where its description of the right tool lacks the word.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence

from concertino.transforms.tool_words import is_verb, terms_of

__all__ = ["ToolFamilies"]

SEPARATOR = re.compile(r"[_./]+")
# How many tools a family has at least, and how many parts of a name may name families.
LEAST_SIZE = 4
LEVELS = 2
# A family that has a term this often is half as much about it as one that has nothing else.
SATURATION = 8.0


class ToolFamilies:
    """The families of some tools. It never changes.

    names: of the tools. postings: term -> number of a tool -> how often the tool has the term.
    """

    def __init__(
        self,
        names: Sequence[str],
        postings: Mapping[str, Mapping[int, float]],
    ) -> None:
        members: dict[str, list[int]] = {}
        for number, name in enumerate(names):
            for family in _families_of(name):
                members.setdefault(family, []).append(number)
        self._of_tool: list[list[str]] = [[] for _ in names]
        for family, numbers in members.items():
            if len(numbers) >= LEAST_SIZE:
                for number in numbers:
                    self._of_tool[number].append(family)
        # Term -> family -> how much it is about the term, by how few others are.
        self._weights = {
            term: self._weigh(posting, len(members)) for term, posting in postings.items()
        }

    def _weigh(self, posting: Mapping[int, float], families: int) -> Mapping[str, float]:
        counts: dict[str, float] = {}
        for number, count in posting.items():
            for family in self._of_tool[number]:
                counts[family] = counts.get(family, 0.0) + count
        rarity = math.log(1 + (families - len(counts) + 0.5) / (len(counts) + 0.5))
        return {family: rarity * count / (SATURATION + count) for family, count in counts.items()}

    def rate(self, parts: Iterable[Mapping[str, float]]) -> list[float]:
        """Return for each tool how much a task is for its family, from 0 to 1.

        parts: for each word of the task the terms to look for, with their weights.
        """
        rates: dict[str, float] = {}
        for part in parts:
            best: dict[str, float] = {}
            for term, weight in part.items():
                for family, own in self._weights.get(term, {}).items():
                    best[family] = max(best.get(family, 0.0), weight * own)
            for family, rate in best.items():
                rates[family] = rates.get(family, 0.0) + rate
        # Weak hints stay weak.
        highest = max(1.0, *rates.values()) if rates else 1.0
        return [
            max((rates.get(family, 0.0) / highest for family in families), default=0.0)
            for families in self._of_tool
        ]


def _families_of(name: str) -> list[str]:
    """Return what may be the names of a tool's families: `jira` and `jira_sprint`, but no verb."""
    words = SEPARATOR.split(name)
    return [
        "_".join(words[:count])
        for count in range(1, min(LEVELS, len(words) - 1) + 1)
        if not all(map(is_verb, terms_of(words[count - 1])))
    ]
