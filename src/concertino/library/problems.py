"""What is wrong with a file of a library: said in the log when it is read, and by `concertino lint`."""

from __future__ import annotations

from typing import Literal, get_args

from msgspec import Struct

__all__ = ["RULES", "LibraryProblem", "Rule"]

Rule = Literal[
    "front-matter",  # cannot be read, or not as it was meant
    "missing-field",
    "field",  # has a value that does not fit
    "unreadable",
    "oversized",
    "outside",  # a link that leads out of the folder
    "duplicate-id",
    "ambiguous-name",
    "shadowed",  # by a file or a catalogue of the same URI
    "broken-link",
    "tokens",  # estimatedTokens is far from what is counted
    "unreachable",  # no query can find it
    "prompt",
]
RULES: tuple[Rule, ...] = get_args(Rule)


class LibraryProblem(Struct, frozen=True):
    """line: in the file, from 1; 0 for the file as a whole. message: without the file's name."""

    rule: Rule
    line: int
    message: str
