"""LibraryProblem: a defect of a file in a library, for the log and for `concertino lint`."""

from __future__ import annotations

from typing import Literal, get_args

from msgspec import Struct

Rule = Literal[
    # The front matter is invalid YAML, or has a key twice.
    "front-matter",
    "missing-field",
    # A field has a value of the wrong kind.
    "field",
    "unreadable",
    "oversized",
    # The target of a symbolic link is outside of the folder.
    "outside",
    "duplicate-id",
    "ambiguous-name",
    # Another file or a catalogue has the same URI.
    "shadowed",
    "broken-link",
    # estimatedTokens is far from the real count.
    "tokens",
    # A search for the document's own words does not find it.
    "unreachable",
    "prompt",
]
RULES: tuple[Rule, ...] = get_args(Rule)


class LibraryProblem(Struct, frozen=True):
    """One defect of a file.

    line: the line in the file, from 1; 0 for the file as a whole.
    message: the text, without the name of the file.
    """

    rule: Rule
    line: int
    message: str
