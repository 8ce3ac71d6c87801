"""ToolFamilies: estimates from the words of a task which server's tools it needs.

Tools whose names begin with the same words are a family: a composition calls tools `server_tool`,
and some servers use such prefixes themselves. If a word occurs in the tools of one family only,
such as `leaderboard` in the tools of Redis, a task with this word is probably for that family. This
helps even if the description of the right tool does not contain the word. Words are compared by
their terms; a term is the stem of a word (tool_words.py).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence

from concertino.transforms.tool_words import MAX_QUERY, WORD, is_verb, terms_of

__all__ = ["ToolFamilies"]

SEPARATOR = re.compile(r"[_./]+")
# The smallest number of tools in a family.
LEAST_SIZE = 4
# How many parts of a tool's name may be the family's name: `jira`, or `jira_sprint`.
LEVELS = 2
# A word of this many letters or more names a server whose name begins with the word.
LEAST_LETTERS = 4
# The name of a server counts only if nearly all tools with this word are the server's: at most this
# share may be tools of other servers. `word` and `email` are in the texts of many servers.
LARGEST_SHARE = 0.1
# A family in which a term occurs this often gets half of the largest possible weight for the term.
SATURATION = 8.0


class ToolFamilies:
    """The families of a list of tools.

    A family is at least four tools whose names begin with the same word, or the same two words.
    names: the names of the tools. A tool's index in this list is its number.
    postings: for each term (stem of a word), the tools with this term in their texts: number of the
        tool -> how often it has the term; important texts may count more than once.
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
        # Term -> family -> the weight of the term for this family.
        self._weights = {
            term: self._weigh(posting, len(members)) for term, posting in postings.items()
        }
        # Name of a server in lower case, with spaces -> its tools. A family with one word is taken
        # for a server; one with two words, such as `jira_sprint`, for a part of a server.
        self._servers: dict[str, frozenset[int]] = {}
        for family, numbers in members.items():
            tools = frozenset(numbers)
            is_server = "_" not in family and len(tools) >= LEAST_SIZE
            if is_server and _is_name(family, tools, postings):
                self._servers[" ".join(WORD.findall(family.lower()))] = tools

    def tools_of_named_servers(self, query: str) -> frozenset[int]:
        """Return the numbers of the tools of all servers that a query names.

        A family whose name is one word counts as the tools of a server with this name. The query
        may also have only the first letters of the name, at least four: `argo` for `argocd`.
        query: the task in the words of the user.
        """
        words = WORD.findall(query[:MAX_QUERY].lower())
        text = f" {' '.join(words)} "
        long_words = tuple(word for word in words if len(word) >= LEAST_LETTERS)
        return frozenset(
            number
            for server, numbers in self._servers.items()
            if f" {server} " in text or any(map(server.startswith, long_words))
            for number in numbers
        )

    def _weigh(self, posting: Mapping[int, float], families: int) -> Mapping[str, float]:
        """Return family -> the weight of a term. A term that few families have gets a high weight.

        posting: number of a tool -> how many times the term occurs in it.
        families: the number of all families, also of those below LEAST_SIZE.
        """
        counts: dict[str, float] = {}
        for number, count in posting.items():
            for family in self._of_tool[number]:
                counts[family] = counts.get(family, 0.0) + count
        # BM25's inverse document frequency, for families in place of documents.
        rarity = math.log(1 + (families - len(counts) + 0.5) / (len(counts) + 0.5))
        return {family: rarity * count / (SATURATION + count) for family, count in counts.items()}

    def rate(self, words: Iterable[Mapping[str, float]]) -> list[float]:
        """Return for each tool a rating, 0 to 1: how probably the task is for the tool's family.

        The list has the order of the tools. A tool without a family has 0.
        words: for each word of the task, the terms with its meaning: term -> weight. The term of
            the word itself has the weight 1.0, terms of similar meaning have 0 to 1.
        """
        ratings: dict[str, float] = {}
        for word in words:
            best: dict[str, float] = {}
            for term, term_weight in word.items():
                for family, weight in self._weights.get(term, {}).items():
                    best[family] = max(best.get(family, 0.0), term_weight * weight)
            for family, rating in best.items():
                ratings[family] = ratings.get(family, 0.0) + rating
        # Without the minimum of 1.0, even the weakest hint would rate its family with 1.
        highest = max([1.0, *ratings.values()])
        return [
            max((ratings.get(family, 0.0) / highest for family in families), default=0.0)
            for families in self._of_tool
        ]


def _families_of(name: str) -> list[str]:
    """Return the possible names of a tool's families, such as `jira` and `jira_sprint`.

    A prefix that ends with a verb, such as `create`, is not the name of a family.
    """
    words = SEPARATOR.split(name)
    return [
        "_".join(words[:count])
        for count in range(1, min(LEVELS, len(words) - 1) + 1)
        if not all(map(is_verb, terms_of(words[count - 1])))
    ]


def _is_name(
    server: str,
    tools: frozenset[int],
    postings: Mapping[str, Mapping[int, float]],
) -> bool:
    """Return whether some word of a server's name occurs almost only in the server's own tools."""
    return any(
        len(posting.keys() - tools) <= LARGEST_SHARE * len(posting)
        for term in terms_of(server)
        if (posting := postings.get(term))
    )
