"""Parses front matter: the YAML between two `---` lines at the beginning of a Markdown file.

Every scalar is read as text, as it is written: `version: 1.10` stays `1.10`, and `title: On` is
not a boolean. YAML's aliases are errors, because a few lines of them can expand to gigabytes.

Invalid front matter does not raise: it is ignored, and reported as a LibraryProblem.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from concertino.errors import ConcertinoError
from concertino.library.problems import LibraryProblem
from concertino.yaml_core import NULLS, DisallowedYaml, InvalidYaml, YamlNode, read_node

__all__ = ["FrontMatter", "Value", "parse_front_matter", "split_front_matter"]

# The value of a field; None for a field without a value.
Value = str | list["Value"] | dict[str, "Value"] | None

# The longest block, in characters. The longest of 413 real ones has 4,300.
MAX_CHARACTERS = 65536

# The largest depth of lists and mappings. Real files have 3 levels.
MAX_DEPTH = 16

# The largest number of YAML values in one block.
MAX_VALUES = 4096

FENCE = "---"
# A YAML 1.1 document ends with either of them.
ENDS = (FENCE, "...")


class FrontMatter(Struct, frozen=True):
    """The front matter of a file, and the rest of the file.

    values: key -> value of each field; {} if there is no valid front matter.
    body: the text after the front matter; the whole text if there is none.
    body_line: the line number in the file at which the body begins, from 1.
    problems: the defects of the front matter.
    """

    values: Mapping[str, Value]
    body: str
    body_line: int
    problems: tuple[LibraryProblem, ...] = ()


def parse_front_matter(text: str) -> FrontMatter:
    """Parse the front matter of a Markdown text, whose lines may end with LF or CRLF.

    text: the whole text. If it has no front matter, the result has no values.
    Raises ConcertinoError if there is front matter and PyYAML is not installed.
    """
    block, body, body_line, problem = split_front_matter(text)
    if block is None:
        return FrontMatter(
            values={},
            body=body,
            body_line=body_line,
            problems=() if problem is None else (problem,),
        )
    problems: list[LibraryProblem] = []
    values = _parse_block(block, problems)
    return FrontMatter(values=values, body=body, body_line=body_line, problems=tuple(problems))


def split_front_matter(text: str) -> tuple[str | None, str, int, LibraryProblem | None]:
    """Split a Markdown text into front matter and body.

    Front matter begins with a first line `---`, and ends with the next line that is `---` or `...`.
    Returns four values:
    - the YAML text; None if there is no front matter;
    - the body;
    - the line number at which the body begins, from 1;
    - a problem if the front matter has no end, and so belongs to the body; otherwise None.
    """
    first, newline, _ = text.partition("\n")
    if first.rstrip() != FENCE or not newline:
        return None, text, 1, None

    block_start = len(first) + 1
    start, line = block_start, 1
    while start < len(text):
        line += 1
        line_end = text.find("\n", start)
        after = len(text) if line_end < 0 else line_end + 1
        # The first condition is fast, and false for nearly all lines.
        if text[start : start + 3] in ENDS and text[start:after].rstrip() in ENDS:
            return text[block_start:start], text[after:], line + 1, None
        start = after

    message = "begins with --- and does not end with one: taken as text"
    return None, text, 1, LibraryProblem("front-matter", 1, message)


def _parse_block(block: str, problems: list[LibraryProblem]) -> Mapping[str, Value]:
    """Return the fields of a YAML text. If it is invalid, return {} and add to `problems`.

    Raises ConcertinoError if PyYAML is not installed.
    """

    def refuse(line: int, message: str) -> Mapping[str, Value]:
        """Add a problem, and return the fields of invalid front matter: none."""
        problems.append(LibraryProblem("front-matter", line, f"{message}: not used"))
        return {}

    if len(block) > MAX_CHARACTERS:
        return refuse(1, f"has {len(block)} characters, the limit is {MAX_CHARACTERS}")

    try:
        root = read_node(block, max_depth=MAX_DEPTH, max_values=MAX_VALUES)
    except ModuleNotFoundError:
        from concertino.installation import missing_extra

        raise ConcertinoError(missing_extra("front matter", "library")) from None
    except DisallowedYaml as exc:
        return refuse(_file_line(exc.line), str(exc))
    except InvalidYaml as exc:
        problem = "cannot be read" if exc.line is None else str(exc)
        return refuse(_file_line(exc.line), f"is not YAML: {problem}")

    value = None if root is None else _to_value(root, problems)
    if value is None or value == "":
        return {}
    if not isinstance(value, dict):
        kind = "a list" if isinstance(value, list) else "a text"
        return refuse(_file_line(None), f"expected `key: value` lines, got {kind}")
    return value


def _file_line(line: int | None) -> int:
    """Return the line number in the file for a line number in the YAML text, both from 1.

    line: the number in the YAML text, which begins in line 2 of the file; None if it is not known.
        For None, returns the first line of the YAML text.
    """
    return 1 + (line or 1)


def _to_value(node: YamlNode, problems: list[LibraryProblem]) -> Value:
    """Convert a YAML node; scalars become texts. Add duplicate keys to `problems`."""
    if node.kind == "scalar":
        return None if node.plain and node.value in NULLS else node.value
    if node.kind == "sequence":
        return [_to_value(item, problems) for item in node.value]

    members: dict[str, Value] = {}
    # read_node() has refused keys that are not scalars.
    for key, value in node.value:
        if key.value in members:
            message = f"has {key.value!r} twice: the last one counts"
            problems.append(LibraryProblem("front-matter", _file_line(key.line), message))
        members[key.value] = _to_value(value, problems)
    return members
