"""LibraryProblem: a defect of a file of a library, for the log and for `concertino lint`."""

from __future__ import annotations

from typing import Literal, get_args

from msgspec import Struct

Rule = Literal[
    # The block of YAML cannot be parsed, or not as it was meant.
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
    # No query finds the document.
    "unreachable",
    "prompt",
]
RULES: tuple[Rule, ...] = get_args(Rule)


class LibraryProblem(Struct, frozen=True):
    """One defect of a file.

    line: in the file, from 1; 0 for the file as a whole. message: without the file's name.
    """

    rule: Rule
    line: int
    message: str
