"""ToolIndex: a search index that finds the tools for a task, the best one first.

    index = ToolIndex([ToolText(name="github_create_issue", description="Create an issue")])
    index.search("report a bug", 5)       # numbers of tools

The score is BM25F: the words of names, descriptions and arguments are counted with a weight for
each field, so that a word in a name counts more than a word in the description of an argument.
Words with the same meaning count for each other (tool_words.py), and phrases count for the words
that definitions of tools contain instead (tool_phrases.py). Words of a query that occur in no tool
are compared with the words of tools by the groups of three letters that both contain. Tools of the
server that a task is about are preferred (tool_families.py), and so are tools that do what the task
does (tool_actions.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from msgspec import Struct

from concertino.transforms.tool_actions import actions_of, rate_actions
from concertino.transforms.tool_families import ToolFamilies
from concertino.transforms.tool_phrases import find_meanings
from concertino.transforms.tool_words import (
    asks_to_read,
    is_verb,
    related_terms,
    terms_of,
    words_of_query,
)

__all__ = ["ToolIndex", "ToolText"]

# The numbers below are tuned with the measurements of docs/decisions/0023 and 0033.

# Field -> its weight, and how much a long text lowers the weight of its words (BM25's b).
FIELDS: Mapping[str, tuple[float, float]] = {
    "name": (2.0, 0.7),
    "title": (0.5, 0.5),
    "summary": (1.6, 0.5),
    "description": (0.5, 0.6),
    "arguments": (0.8, 0.6),
    "argument_texts": (0.2, 0.6),
    "tags": (1.5, 0.3),
}
# How soon more occurrences of a word in a tool count less (BM25's k1).
SATURATION = 1.2
# The share of a query's words that a tool has, weighted by their rarity, is raised to this power
# and multiplies the score. So tools that have all words of the query come first.
COVERAGE = 0.35
# If the whole name of a tool occurs in the query, its score is multiplied by 1 + this number.
NAMED = 0.8
# If a query contains a prefix word of a tool, the tool's score is multiplied by 1 + this number. A
# prefix word is one of the first two words of the tool's name, is not a verb, and is in the names
# of at least PREFIX_TOOLS tools. Such a word probably names a server, or a part of a server.
PREFIXED = 0.5
PREFIX_TOOLS = 5
# The score of a tool is multiplied by a number from ACTION_FLOOR to 1 that says how well its action
# agrees with the task's action. A tool without a known verb gets ACTION_UNKNOWN. A question adds
# QUESTION to the rating of reading.
ACTION_FLOOR = 0.8
ACTION_UNKNOWN = 0.9
QUESTION = 1.0
# If a query contains the name of a server, the scores of its tools are multiplied by this number.
SERVER_NAMED = 2.0
# The score of a tool is multiplied by 1 + this number * the rating of its family (0 to 1).
FAMILY = 0.7
# A word of the query that occurs in no tool is replaced by words of tools that are spelled
# similarly. Their likeness is the share of the groups of three letters that both have. LIKENESS is
# the smallest likeness; a word's likeness times LIKE_WEIGHT is its weight.
LIKENESS = 0.6
LIKE_WEIGHT = 0.6
# The largest number of terms in a query; the rest is ignored.
MAX_TERMS = 64


class ToolText(Struct, frozen=True):
    """The searchable texts of a tool. Each field is one string; "" if the tool has no such text.

    name, title: the name and the title of the tool.
    summary: the first sentence of the tool's description.
    description: the rest of the tool's description.
    arguments: the names of the tool's arguments.
    argument_texts: the descriptions of the arguments, and the strings in their `enum`.
    tags: more words for the search, from the tool's `_meta`.
    """

    name: str
    title: str = ""
    summary: str = ""
    description: str = ""
    arguments: str = ""
    argument_texts: str = ""
    tags: str = ""


class _Matches(Struct):
    """The tools that contain words of a query.

    scores: number of a tool -> the sum of its scores for the words of the query.
    covered: number of a tool -> the sum of the rarities of the query's words that the tool has.
    in_names: number of a tool -> the terms of its name that occur in the query, or mean the same as
        a word of the query, with their weights.
    total: the sum of the rarities of all words of the query.
    """

    scores: dict[int, float] = {}
    covered: dict[int, float] = {}
    in_names: dict[int, dict[str, float]] = {}
    total: float = 0.0


class ToolIndex:
    """An immutable set of tools that can be searched.

    tools: the texts of the tools. The index of a tool in this order is its number.
    """

    def __init__(self, tools: Iterable[ToolText]) -> None:
        texts = list(tools)
        counted = [_count_terms(tool) for tool in texts]
        self._size = len(counted)
        lengths = {
            field: max(1.0, sum(sum(tool[field].values()) for tool in counted) / (self._size or 1))
            for field in FIELDS
        }
        # Term -> number of a tool -> the weighted count of the term in the tool.
        self._postings: dict[str, dict[int, float]] = {}
        for number, fields in enumerate(counted):
            for field, terms in fields.items():
                weight, length_effect = FIELDS[field]
                relative_length = sum(terms.values()) / lengths[field]
                norm = 1 - length_effect + length_effect * relative_length
                for term, count in terms.items():
                    posting = self._postings.setdefault(term, {})
                    posting[number] = posting.get(number, 0.0) + weight * count / norm
        # Term -> how rare it is: BM25's inverse document frequency.
        self._rarity = {
            term: math.log(1 + (self._size - len(posting) + 0.5) / (len(posting) + 0.5))
            for term, posting in self._postings.items()
        }
        # The terms of each tool's name.
        self._names = [frozenset(fields["name"]) for fields in counted]
        # Term -> the numbers of the tools whose names contain it.
        self._tools_named: dict[str, list[int]] = {}
        for number, names in enumerate(self._names):
            for term in names:
                self._tools_named.setdefault(term, []).append(number)
        self._actions = [actions_of(terms_of(tool.name)) for tool in texts]
        self._prefix_words = [
            frozenset(
                term
                for term in terms_of(tool.name)[:2]
                if not is_verb(term) and len(self._tools_named[term]) >= PREFIX_TOOLS
            )
            for tool in texts
        ]
        self._families = ToolFamilies([tool.name for tool in texts], self._postings)
        self._trigrams = {term: _trigrams_of(term) for term in self._postings if len(term) > 3}

    def search(self, query: str, limit: int) -> list[int]:
        """Return the numbers of the best tools for a query, the best one first.

        query: the task in the words of the user.
        limit: the largest number of tools to return.
        Returns [] if no tool has a word of the query, or one with the same meaning.
        """
        scores = self._score(query)
        # Round the scores, so that floating-point errors do not affect the order. Tools with equal
        # scores keep the order of the constructor's argument.
        ranked = sorted(scores, key=lambda number: (-round(scores[number], 6), number))
        return ranked[:limit]

    def _score(self, query: str) -> dict[int, float]:
        """Return the score of each tool that contains at least one word of the query."""
        words = self._expand_query(query)
        matches = self._match(words)
        families = self._families.rate(words)
        actions = rate_actions(words, read_rating=QUESTION if asks_to_read(query) else 0.0)
        named_servers = self._families.tools_of_named_servers(query)
        scores: dict[int, float] = {}
        for number, score in matches.scores.items():
            in_name = matches.in_names.get(number, {})
            prefix = max((in_name.get(word, 0.0) for word in self._prefix_words[number]), default=0)
            scores[number] = score * (
                self._rate_agreement(number, actions)
                * (SERVER_NAMED if number in named_servers else 1.0)
                * (matches.covered[number] / matches.total) ** COVERAGE
                * (1 + NAMED * self._share_of_name(number, in_name))
                * (1 + PREFIXED * prefix)
                * (1 + FAMILY * families[number])
            )
        return scores

    def _match(self, words: Iterable[Mapping[str, float]]) -> _Matches:
        """Find the tools that contain at least one word of a query.

        words: for each word of the query, the terms to look for, with their weights.
        """
        matches = _Matches()
        scores, covered = matches.scores, matches.covered
        for alternatives in words:
            best, matched = self._score_word(alternatives)
            rarity = max(
                (self._rarity.get(term, 0.0) * weight for term, weight in alternatives.items()),
                default=0.0,
            )
            matches.total += rarity
            for number, score in best.items():
                scores[number] = scores.get(number, 0.0) + score
                covered[number] = covered.get(number, 0.0) + rarity * matched[number]
            for term, weight in alternatives.items():
                for number in self._tools_named.get(term, ()):
                    in_name = matches.in_names.setdefault(number, {})
                    in_name[term] = max(in_name.get(term, 0.0), weight)
        return matches

    def _rate_agreement(self, number: int, actions: Mapping[str, float]) -> float:
        """Return how well the action of a tool agrees with a task's, from ACTION_FLOOR to 1."""
        if not actions:
            return 1.0
        tool_actions = self._actions[number]
        if not tool_actions:
            return ACTION_UNKNOWN
        agreement = max(actions.get(action, 0.0) for action in tool_actions)
        return ACTION_FLOOR + (1 - ACTION_FLOOR) * agreement

    def _expand_query(self, query: str) -> list[Mapping[str, float]]:
        """Return for each word of a query the terms to look for, with their weights.

        A verb that is part of a known phrase is left out, because the phrase has a meaning of its
        own: `throw away` does not mean `throw`.
        """
        meanings = find_meanings(query)
        words = [
            self._expand(term, may_guess=may_guess)
            for term, may_guess in self._split_query(query).items()
            if not (term in meanings.in_phrases and is_verb(term))
        ]
        return [*words, *({term: weight} for term, weight in meanings.terms)]

    def _share_of_name(self, number: int, in_name: Mapping[str, float]) -> float:
        """Return the share of a tool's name that occurs in a query. Rare terms count more.

        in_name: the terms of the name that occur in the query, with their weights.
        """
        names = self._names[number]
        whole = sum(self._rarity[term] for term in names)
        return sum(self._rarity[term] * weight for term, weight in in_name.items()) / (whole or 1.0)

    def _score_word(
        self, alternatives: Mapping[str, float]
    ) -> tuple[dict[int, float], dict[int, float]]:
        """Rate the tools for one word of a query.

        alternatives: the terms to look for instead of the word, with their weights.
        Returns two mappings, for the tools that have one of the terms: number of the tool -> its
        score, and number of the tool -> the largest weight of the terms that it has.
        """
        best: dict[int, float] = {}
        matched: dict[int, float] = {}
        for term, weight in alternatives.items():
            rarity = self._rarity.get(term)
            if rarity is None:
                continue
            for number, count in self._postings[term].items():
                score = weight * rarity * count / (SATURATION + count)
                if score > best.get(number, 0.0):
                    best[number] = score
                matched[number] = max(matched.get(number, 0.0), weight)
        return best, matched

    def _expand(self, term: str, *, may_guess: bool) -> Mapping[str, float]:
        """Return the terms with the meaning of a term, with their weights.

        may_guess: whether a term that no tool has may be replaced by similarly spelled ones.
        """
        related = related_terms(term)
        # Terms of three letters or fewer resemble too many others.
        if not may_guess or len(term) < 4 or any(other in self._postings for other in related):
            return related
        trigrams = _trigrams_of(term)
        alike = {
            other: LIKE_WEIGHT * likeness
            for other, others in self._trigrams.items()
            if (likeness := 2 * len(trigrams & others) / (len(trigrams) + len(others))) >= LIKENESS
        }
        return {**alike, **related}

    def _split_query(self, query: str) -> dict[str, bool]:
        """Return each term of a query -> whether similarly spelled terms may replace the term.

        A name may not be replaced: it is spelled correctly and means nothing else.
        """
        terms: dict[str, bool] = {}
        for number, word in enumerate(words_of_query(query)):
            # The first word of a sentence has a capital letter, too.
            is_name = number > 0 and word[:1].isupper()
            for term in terms_of(word):
                terms.setdefault(term, not is_name)
        return dict(list(terms.items())[:MAX_TERMS])


def _count_terms(tool: ToolText) -> dict[str, dict[str, int]]:
    """Return field -> term -> how many times the term occurs in this text of the tool."""
    fields: dict[str, dict[str, int]] = {}
    for field in FIELDS:
        counts = fields[field] = {}
        for term in terms_of(getattr(tool, field)):
            counts[term] = counts.get(term, 0) + 1
    return fields


def _trigrams_of(term: str) -> frozenset[str]:
    padded = f"^{term}$"
    return frozenset(padded[start : start + 3] for start in range(len(padded) - 2))
