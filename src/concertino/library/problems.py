"""LibraryProblem: a defect of a file in a library, for the log and for `concertino lint`."""

from __future__ import annotations

from typing import Literal, get_args

from msgspec import Struct

# The kinds of defects.
Rule = Literal[
    # The front matter is invalid YAML, or has a key twice.
    "front-matter",
    # Neither the front matter nor the text has, for example, a description.
    "missing-field",
    # A field of the front matter has a value of the wrong type.
    "field",
    # The file is no text in UTF-8, or cannot be read.
    "unreadable",
    # The file or the directory is too large or too deep.
    "oversized",
    # The target of a symbolic link is outside of the directory.
    "outside",
    # Two documents have the same id.
    "duplicate-id",
    # Two files have the same name, so that a URI with this name could mean both.
    "ambiguous-name",
    # Another file or a catalogue has the same URI.
    "shadowed",
    # A link leads to no file and no resource of the library.
    "broken-link",
    # estimatedTokens is far from the real count.
    "tokens",
    # A search for the document's own words does not find it.
    "unreachable",
    # An argument or a placeholder of a prompt is not used, or its name is not unique.
    "prompt",
]
RULES: tuple[Rule, ...] = get_args(Rule)


class LibraryProblem(Struct, frozen=True):
    """One defect of a file.

    rule: the kind of defect, such as "broken-link"; Rule lists all kinds.
    line: the line in the file, from 1; 0 for the file as a whole.
    message: a text about the defect, without the name of the file.
    """

    rule: Rule
    line: int
    message: str
