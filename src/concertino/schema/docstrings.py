"""Docstrings -> a description of the tool and of each parameter: Google, NumPy and Sphinx (reStructuredText) styles.

The description is the summary and the extended text before the first section; Returns, Raises, Examples and the like
are dropped. A parser of our own: it runs at every start, and importing a library would cost more than all of it.
Sources: Google Python Style Guide 3.8.3; numpydoc "Sections"; Sphinx "Info field lists".
"""

from __future__ import annotations

import re
from inspect import cleandoc

from msgspec import Struct

__all__ = ["Doc", "parse"]


class Doc(Struct, frozen=True):
    """description: None when there is none. parameters: name (without stars) -> text; none for those without a text."""

    description: str | None
    parameters: dict[str, str]


def parse(doc: str | None) -> Doc:
    """Read a docstring as Python gives it. Raises nothing: what is not understood belongs to the description."""
    lines = cleandoc(doc or "").split("\n")
    parameters: dict[str, str] = {}
    described = len(lines)  # lines that are the description: those before the first section
    index = 0
    while index < len(lines):
        end = (
            _sphinx(lines, index, parameters)
            or _numpy(lines, index, parameters)
            or _google(lines, index, parameters)
        )
        if end:
            described = min(described, index)
        index = end or index + 1
    return Doc("\n".join(lines[:described]).strip() or None, parameters)


_PARAMETERS = {
    "args",
    "arguments",
    "parameters",
    "params",
    "keyword args",
    "keyword arguments",
    "other parameters",
}
_OTHERS = (
    "attributes|example|examples|except|exceptions|methods|note|notes|raise|raises|receives|references|return|returns"
    "|see also|todo|warning|warnings|warns|yield|yields"
)
_SECTIONS = _PARAMETERS | set(_OTHERS.split("|"))
# The patterns are compiled by `re` when the first docstring needs them: 1 to 2 ms.
_NAMES = r"(?P<names>\\?\*{0,2}\w+(?:\s*,\s*\\?\*{0,2}\w+)*)"
_GOOGLE_ITEM = (
    _NAMES + r"\s*(?:\((?:[^()]|\([^()]*\))*\)\s*)?:(?:\s+(?P<text>.*))?$"
)  # name (type): text
_NUMPY_ITEM = _NAMES + r"\s*(?::(?P<text>).*)?$"  # name : type, and the text below
_FIELD = r":(?P<field>[a-z]+)(?P<argument>\s[^:]*)?:(?:\s+(?P<text>.*))?$"  # :param type name: text
_FIELD_PARAMETERS = {"param", "parameter", "arg", "argument", "key", "keyword"}
_FIELDS = _FIELD_PARAMETERS | {
    *(
        "type",
        "return",
        "returns",
        "rtype",
        "raise",
        "raises",
        "except",
        "exception",
        "yield",
        "yields",
        "ytype",
    ),
    *("var", "ivar", "cvar", "vartype", "meta"),
}

# Each of the three below reads the section that starts at a line, and gives the line after it; 0 when none starts.


def _sphinx(lines: list[str], index: int, parameters: dict[str, str]) -> int:
    field = re.match(_FIELD, line) if (line := lines[index].strip()).startswith(":") else None
    if field is None or field["field"] not in _FIELDS:
        return 0
    end = _block(lines, index)
    if field["field"] in _FIELD_PARAMETERS and (words := (field["argument"] or "").split()):
        _add(parameters, words[-1], [field["text"] or "", *lines[index + 1 : end]])
    return end


def _numpy(lines: list[str], index: int, parameters: dict[str, str]) -> int:
    if not _is_underlined(lines, index):
        return 0
    end = index + 2
    while end < len(lines) and not _is_underlined(lines, end):
        end += 1
    if lines[index].strip().lower() in _PARAMETERS:
        _items(lines[index + 2 : end], _NUMPY_ITEM, parameters)
    return end


def _google(lines: list[str], index: int, parameters: dict[str, str]) -> int:
    if not (title := _title(lines[index])):
        return 0
    end = _block(lines, index)
    if title in _PARAMETERS and not any(lines[index + 1 : end]):
        # Items at the indentation of their heading; they end at a blank line.
        while (
            end < len(lines)
            and re.match(_GOOGLE_ITEM, lines[end].strip())
            and not _title(lines[end])
        ):
            end = _block(lines, end)
            if not lines[end - 1]:
                break
    if not any(lines[index + 1 : end]):
        return 0  # a heading with nothing under it is prose
    if title in _PARAMETERS:
        _items(lines[index + 1 : end], _GOOGLE_ITEM, parameters)
    return end


def _title(line: str) -> str:
    """The section that a line opens in Google's style, in lower case; "" for another line."""
    title = line.strip().lower()
    return title[:-1] if title.endswith(":") and title[:-1] in _SECTIONS else ""


def _is_underlined(lines: list[str], index: int) -> bool:
    underline = lines[index + 1].strip() if index + 1 < len(lines) else ""
    return (
        lines[index].strip().lower() in _SECTIONS
        and len(underline) > 2
        and not underline.strip("-=")
    )


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _block(lines: list[str], index: int) -> int:
    """The line after those that are blank or stand deeper than the given one."""
    end = index + 1
    while end < len(lines) and (
        not lines[end].strip() or _indent(lines[end]) > _indent(lines[index])
    ):
        end += 1
    return end


def _items(lines: list[str], pattern: str, parameters: dict[str, str]) -> None:
    """Read the items of a parameter section: the first line's indentation is that of all items."""
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
