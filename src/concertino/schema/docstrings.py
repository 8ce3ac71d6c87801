"""Parses docstrings: the description of a tool and of each of its parameters.

Google, NumPy and Sphinx style are supported. The description is the text before the first section.
Sections such as Returns, Raises and Examples are ignored. No library is used, because importing one
at every start would take longer than this parser.

Sources: Google Python Style Guide 3.8.3; numpydoc "Sections"; Sphinx "Info field lists".
"""

from __future__ import annotations

import re
from inspect import cleandoc

from msgspec import Struct


class ParsedDocstring(Struct, frozen=True):
    """The content of a docstring.

    description: the text before the first section; None if there is none.
    parameters: parameter -> its description. Names are without stars. Parameters without a
        description are left out.
    """

    description: str | None
    parameters: dict[str, str]


def parse_docstring(doc: str | None) -> ParsedDocstring:
    """Parse the docstring of a function.

    Never raises: text in an unknown style becomes part of the description.
    doc: the function's __doc__; None for a function without a docstring.
    """
    lines = cleandoc(doc or "").split("\n")
    parameters: dict[str, str] = {}
    # The description ends where the first section begins.
    description_end = len(lines)
    index = 0
    while index < len(lines):
        end = (
            _read_sphinx_field(lines, index, parameters)
            or _read_numpy_section(lines, index, parameters)
            or _read_google_section(lines, index, parameters)
        )
        if end:
            description_end = min(description_end, index)
        index = end or index + 1
    return ParsedDocstring("\n".join(lines[:description_end]).strip() or None, parameters)


# The titles of sections that describe parameters, in lower case.
_PARAMETERS = {
    "args",
    "arguments",
    "parameters",
    "params",
    "keyword args",
    "keyword arguments",
    "other parameters",
}
# The titles of all other sections, separated by bars.
_OTHERS = (
    "attributes|example|examples|except|exceptions|methods|note|notes|raise|raises|receives"
    "|references|return|returns|see also|todo|warning|warnings|warns|yield|yields"
)
_SECTIONS = _PARAMETERS | set(_OTHERS.split("|"))

# The patterns are strings, so that they are compiled only when a docstring needs them (1 to 2 ms).
# name, *name, **name: one parameter, or several that share a description
_NAMES = r"(?P<names>\\?\*{0,2}\w+(?:\s*,\s*\\?\*{0,2}\w+)*)"
# name (type): text
_GOOGLE_ITEM = _NAMES + r"\s*(?:\((?:[^()]|\([^()]*\))*\)\s*)?:(?:\s+(?P<text>.*))?$"
# name : type, with the text on the lines below
_NUMPY_ITEM = _NAMES + r"\s*(?::(?P<text>).*)?$"
# :param type name: text
_SPHINX_FIELD = r":(?P<field>[a-z]+)(?P<argument>\s[^:]*)?:(?:\s+(?P<text>.*))?$"

# The Sphinx fields that describe parameters, and all Sphinx fields.
_FIELD_PARAMETERS = {"param", "parameter", "arg", "argument", "key", "keyword"}
_OTHER_FIELDS = (
    "type|return|returns|rtype|raise|raises|except|exception"
    "|yield|yields|ytype|var|ivar|cvar|vartype|meta"
)
_FIELDS = _FIELD_PARAMETERS | set(_OTHER_FIELDS.split("|"))

# Each of the next three functions reads sections of one style. If a section starts at lines[index],
# the function adds its items to `parameters`, and returns the index of the line after the section.
# Otherwise it returns 0.


def _read_sphinx_field(lines: list[str], index: int, parameters: dict[str, str]) -> int:
    """Read a field such as `:param name: text`."""
    line = lines[index].strip()
    field = re.match(_SPHINX_FIELD, line) if line.startswith(":") else None
    if field is None or field["field"] not in _FIELDS:
        return 0

    end = _block_end(lines, index)
    if field["field"] in _FIELD_PARAMETERS and (words := (field["argument"] or "").split()):
        _add(parameters, words[-1], [field["text"] or "", *lines[index + 1 : end]])
    return end


def _read_numpy_section(lines: list[str], index: int, parameters: dict[str, str]) -> int:
    """Read a section whose heading is underlined with hyphens."""
    if not _is_numpy_heading(lines, index):
        return 0

    end = index + 2
    while end < len(lines) and not _is_numpy_heading(lines, end):
        end += 1
    if lines[index].strip().lower() in _PARAMETERS:
        _read_items(lines[index + 2 : end], _NUMPY_ITEM, parameters)
    return end


def _read_google_section(lines: list[str], index: int, parameters: dict[str, str]) -> int:
    """Read a section whose heading ends with a colon, such as `Args:`."""
    title = _google_title(lines[index])
    if not title:
        return 0

    end = _block_end(lines, index)
    if title in _PARAMETERS and not any(lines[index + 1 : end]):
        # Items that are not indented below their heading end at a blank line.
        while (
            end < len(lines)
            and re.match(_GOOGLE_ITEM, lines[end].strip())
            and not _google_title(lines[end])
        ):
            end = _block_end(lines, end)
            if not lines[end - 1]:
                break

    # A heading with nothing below it is part of the description.
    if not any(lines[index + 1 : end]):
        return 0
    if title in _PARAMETERS:
        _read_items(lines[index + 1 : end], _GOOGLE_ITEM, parameters)
    return end


def _google_title(line: str) -> str:
    """Return the title of a Google section, in lower case, if the line is one; else ""."""
    title, colon, rest = line.strip().lower().partition(":")
    return title if colon and not rest and title in _SECTIONS else ""


def _is_numpy_heading(lines: list[str], index: int) -> bool:
    """Return whether lines[index] is a heading, underlined with hyphens in the next line."""
    underline = lines[index + 1].strip() if index + 1 < len(lines) else ""
    return (
        lines[index].strip().lower() in _SECTIONS
        and len(underline) > 2
        and not underline.strip("-=")
    )


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _block_end(lines: list[str], index: int) -> int:
    """Return the index of the first line after the block below lines[index].

    The block consists of the lines that are blank or indented more than lines[index].
    """
    end = index + 1
    while end < len(lines) and (
        not lines[end].strip() or _indent(lines[end]) > _indent(lines[index])
    ):
        end += 1
    return end


def _read_items(lines: list[str], pattern: str, parameters: dict[str, str]) -> None:
    """Add the items of a section to `parameters`.

    pattern: matches the first line of an item. All items are indented like the first line.
    """
    margin = next((_indent(line) for line in lines if line.strip()), 0)
    names, text = "", list[str]()
    for line in lines:
        if _indent(line) <= margin and (item := re.match(pattern, line.strip())):
            _add(parameters, names, text)
            names, text = item["names"], [item["text"] or ""]
        else:
            text.append(line)
    _add(parameters, names, text)


def _add(parameters: dict[str, str], names: str, text: list[str]) -> None:
    if joined := " ".join(line.strip() for line in text if line.strip()):
        for name in filter(None, names.split(",")):
            parameters.setdefault(name.strip().lstrip("\\*"), joined)
