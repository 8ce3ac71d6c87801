"""Writes YAML with the same bytes as Go's library yaml.v3, so that both write the same files.

PyYAML's writer chooses other quotes and another indentation. This module differs from yaml.v3 in
one case: yaml.v3 writes some strings in a form that it cannot read back correctly. This module
quotes these strings.
Source: encode.go, emitterc.go and sorter.go of yaml.v3 3.0.1.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from functools import cmp_to_key
from math import isfinite
from operator import itemgetter
from typing import Any, Literal, cast
from unicodedata import category

from concertino.yaml_core import EXACT, MERGE, NULLS, is_time, resolve_plain

__all__ = ["write_mapping"]

# Columns of indentation for one level.
INDENT = 4
# A longer key is written as `? key`, and its value on the next line.
MAX_KEY_BYTES = 128
# Line breaks.
_BREAKS = "\r\n\x85\u2028\u2029"
# Strings that YAML 1.1 reads as booleans. They are quoted, and so are strings that YAML 1.1 reads
# as numbers of base 60, such as `1:30`.
_OLD_WORDS = frozenset(
    [
        "y",
        "Y",
        "yes",
        "Yes",
        "YES",
        "on",
        "On",
        "ON",
        "n",
        "N",
        "no",
        "No",
        "NO",
        "off",
        "Off",
        "OFF",
    ]
)
_OLD_NUMBER = re.compile(r"[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?")
# Matches characters that yaml.v3 escapes: control characters except newline, the byte order mark,
# and characters above U+FFFF.
_ESCAPED = re.compile("[^\n\x20-\x7e\xa0-\ud7ff\ue000-\ufefe\uff00-\ufffd]")
# Also matches line breaks, `"` and the backslash.
_ESCAPED_OR_BREAK = re.compile(
    r"[^\x20\x21\x23-\x5b\x5d-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd]"
)
_ESCAPES = {
    "\0": "0", "\a": "a", "\b": "b", "\t": "t", "\n": "n", "\v": "v", "\f": "f", "\r": "r",
    "\x1b": "e", '"': '"', "\\": "\\", "\x85": "N", "\u2028": "L", "\u2029": "P",
}  # fmt: skip
# Matches strings that need quotes: with an indicator at the beginning, a colon before a blank, or a
# `#` after a blank.
_INDICATOR = re.compile(
    r"---|\.\.\.|[#,\[\]{}&*!|>'\"%@`]|[?:-](?:[ \t]|\Z)|.*?(?:.:(?:[ \t]|\Z)|[ \t\0]#)", re.DOTALL
)


def write_mapping(members: Mapping[str, Any], *, max_depth: int) -> str:
    """Return a JSON object as YAML, with its outermost keys in the order of their code points.

    members: the object: key -> value.
    max_depth: the largest depth of lists and mappings.
    Raises ValueError for a value that JSON cannot express, and for deeper nesting.
    """
    if not members:
        return "{}\n"
    writer = _Writer(max_depth)
    writer.write_members(sorted(members.items(), key=itemgetter(0)), indent=0, depth=0)
    return writer.finish()


class _Writer:
    """Writes one document.

    max_depth: the largest depth of lists and mappings.
    """

    def __init__(self, max_depth: int) -> None:
        self._max_depth = max_depth
        self._parts: list[str] = []
        # The column of the next character.
        self._column = 0
        # Whether a space or the start of the line precedes the next character.
        self._after_blank = True
        # Whether the line contains only spaces, `-`, `?` and `:` so far. If it does, a nested
        # collection continues in this line, as in `- a: 1`.
        self._only_indicators = True

    def finish(self) -> str:
        """Return the document that was written."""
        self._indent(0)
        return "".join(self._parts)

    # Structure

    def write_members(
        self,
        members: list[tuple[str, Any]],
        indent: int,
        depth: int,
    ) -> None:
        """Write the keys and values of a mapping, each pair on a line of its own.

        members: the pairs (key, value), in order.
        indent: the indentation of the keys, in columns.
        depth: how many lists and mappings contain the mapping.
        """
        for key, value in members:
            if not isinstance(key, str):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise ValueError(f"a key: expected a text, got {type(key).__name__}")
            self._indent(indent)
            if len(key.encode()) <= MAX_KEY_BYTES and not any(c in _BREAKS for c in key):
                # A key without line breaks is never written as a block, so it needs no indentation.
                self._write_text(key, outer_indent=0, indent=0, is_outermost=depth == 0)
                self._write_token(":", attached=True)
            else:
                self._write_token("?", continues=True)
                self._write_text(key, indent, _next_indent(indent), is_outermost=depth == 0)
                self._indent(indent)
                self._write_token(":", continues=True)
            self._write_node(value, indent, _next_indent(indent), depth + 1)

    def _write_node(
        self,
        value: Any,
        outer_indent: int,
        indent: int,
        depth: int,
    ) -> None:
        """Write a value.

        outer_indent: the indentation of the list or mapping that contains the value.
        indent: the indentation of the value's own items or keys.
        depth: how many lists and mappings contain the value.
        """
        if depth > self._max_depth:
            raise ValueError(f"more than {self._max_depth} levels")
        if isinstance(value, str):
            self._write_text(value, outer_indent, indent)
        elif isinstance(value, Mapping):
            members = sorted(cast("Mapping[str, Any]", value).items(), key=_natural_order)
            if members:
                self.write_members(members, indent, depth)
            else:
                self._write_word("{}")
        elif isinstance(value, (list, tuple)):
            items = cast("list[Any]", value)
            for item in items:
                self._indent(indent)
                self._write_token("-", continues=True)
                self._write_node(item, indent, indent + 2, depth + 1)
            if not items:
                self._write_word("[]")
        else:
            self._write_word(_format_scalar(value))

    def _write_text(
        self,
        text: str,
        outer_indent: int,
        indent: int,
        *,
        is_outermost: bool = False,
    ) -> None:
        """Write a key, or a value that is a string.

        outer_indent: the indentation of the list or mapping that contains the string.
        indent: the indentation of the lines of a string that is written in several lines.
        is_outermost: whether the string is a key of the outermost mapping.
        """
        reads_as_text = _reads_as_key if is_outermost else _reads_as_text
        style = _choose_style(text, indent - outer_indent, reads_as_text(text))
        if style == "plain":
            self._write_word(text)
        elif style == "single":
            self._write_word("'" + text.replace("'", "''") + "'")
        elif style == "double":
            self._write_word(_quote(text))
        else:
            self._write_literal(text, indent)

    def _write_literal(self, text: str, indent: int) -> None:
        """Write a string as a literal block, with one line for each of its lines."""
        # What YAML calls the indentation indicator: without it, readers would count the spaces at
        # the beginning of the text as indentation.
        indentation = str(INDENT) if text[0] == " " else ""
        # What YAML calls the chomping indicator: how many newlines the text ends with.
        chomping = ""
        if text[-1] not in _BREAKS:
            chomping = "-"
        elif text[-2] in _BREAKS:
            chomping = "+"
        self._write_word(f"|{indentation}{chomping}")
        for line in text.removesuffix("\n").split("\n"):
            self._break()
            if line:
                self._parts.append(" " * indent + line)
        if text[-1] == "\n":
            self._break()
        else:
            self._only_indicators = False
        self._after_blank = True

    # Characters

    def _indent(self, indent: int) -> None:
        """Begin a line with this indentation, unless the current line is at this column already."""
        is_beyond = self._column > indent
        is_attached = self._column == indent and not self._after_blank
        # A line that has only `-`, `?` and `:` so far continues, if this column is still free.
        if not self._only_indicators or is_beyond or is_attached:
            self._break()
        self._parts.append(" " * (indent - self._column))
        self._column = indent
        self._after_blank = True

    def _break(self) -> None:
        """End the line."""
        self._parts.append("\n")
        self._column = 0
        self._only_indicators = True

    def _write_token(
        self,
        text: str,
        *,
        attached: bool = False,
        continues: bool = False,
    ) -> None:
        """Write an indicator or a word, with a space before it if necessary.

        attached: whether to write no space before it in any case.
        continues: whether a nested collection may follow in the same line.
        """
        if not attached and not self._after_blank:
            text = f" {text}"
        self._parts.append(text)
        self._column += len(text)
        self._after_blank = False
        self._only_indicators = self._only_indicators and continues

    def _write_word(self, text: str) -> None:
        """Write a word that no collection can follow in the same line."""
        self._write_token(text)


def _next_indent(indent: int) -> int:
    """Return the next larger multiple of INDENT."""
    return INDENT * (indent // INDENT + 1)


def _choose_style(
    text: str, relative_indent: int, reads_as_text: bool
) -> Literal["plain", "single", "double", "literal"]:
    """Return the style in which yaml.v3 writes a text.

    relative_indent: the indentation of the text as a literal block, relative to its parent.
    reads_as_text: whether YAML readers read the text without quotes as this text.
    """
    if "\n" in text:
        return "literal" if _is_readable_literal(text, relative_indent) else "double"
    if not reads_as_text or _ESCAPED.search(text) or any(c in _BREAKS for c in text):
        return "double"
    if not text or text[0] == " " or text[-1] == " " or _INDICATOR.match(text):
        return "single"
    return "plain"


def _is_readable_literal(text: str, relative_indent: int) -> bool:
    """Return whether yaml.v3 writes a text as a literal block that YAML readers can read back.

    relative_indent: the indentation of the block, relative to its parent.
    """
    # Of the escaped characters, only the tab may be in a literal block.
    if _ESCAPED.search(text.replace("\t", "")) or any(c in "\u2028\u2029" for c in text):
        return False
    if text[-1] == " " or " \n" in text or text[0] == "\n":
        return False
    # If the text begins with a space, yaml.v3 writes the indentation as `|4`, always with a 4.
    if text[0] == " ":
        return relative_indent == INDENT
    # PyYAML cannot read a block that begins with a tab.
    return text[0] != "\t"


def _reads_as_text(text: str) -> bool:
    """Return whether YAML readers, even of YAML 1.1, read an unquoted text as the same text."""
    if text == MERGE or text in _OLD_WORDS or _OLD_NUMBER.fullmatch(text):
        return False
    return isinstance(resolve_plain(text), str) and not is_time(text)


def _reads_as_key(text: str) -> bool:
    """Return whether an outermost key may be written without quotes.

    yaml.v3 reads all unquoted keys as texts, except null and `<<`. _choose_style() quotes an empty
    key nevertheless.
    """
    return not text or (text not in NULLS and text != MERGE)


def _quote(text: str) -> str:
    """Return a string with double quotes around it, and escape sequences inside."""
    # If the text begins with a byte order mark, yaml.v3 escapes every character of it.
    pattern = re.compile(".", re.DOTALL) if text.startswith("\ufeff") else _ESCAPED_OR_BREAK
    return f'"{pattern.sub(_escape, text)}"'


def _escape(match: re.Match[str]) -> str:
    """Return the escape sequence for a character in a text with double quotes."""
    character = match[0]
    if character in _ESCAPES:
        return "\\" + _ESCAPES[character]
    code = ord(character)
    if 0xD800 <= code <= 0xDFFF:
        raise ValueError("a text with a lone surrogate")
    if code <= 0xFF:
        return f"\\x{code:02X}"
    return f"\\u{code:04X}" if code <= 0xFFFF else f"\\U{code:08X}"


def _format_scalar(value: object) -> str:
    """Return null, a bool or a number as YAML. Raises ValueError for any other value."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        # Write the digits of larger integers, because they are not exact as doubles.
        return _format_double(float(value)) if -EXACT <= value <= EXACT else str(value)
    if isinstance(value, float) and isfinite(value):
        return _format_double(value)
    raise ValueError(f"expected a JSON value, got {type(value).__name__}")


def _format_double(number: float) -> str:
    """Return a number in Go's format 'g': the shortest digits, with an exponent from a million."""
    sign, digits, exponent = Decimal(repr(number)).as_tuple()
    text = "".join(map(str, digits)).rstrip("0") or "0"
    power = len(digits) - 1 + cast(int, exponent)
    if number == 0 or -4 <= power < 6:
        return repr(number).removesuffix(".0")
    fraction = f".{text[1:]}" if len(text) > 1 else ""
    return f"{'-' if sign else ''}{text[0]}{fraction}e{power:+03d}"


@cmp_to_key
def _natural_order(left: tuple[str, Any], right: tuple[str, Any]) -> int:
    """Compare two nested keys like yaml.v3: numbers by value, and letters after other characters.

    For example, `a2` comes before `a10`, and `a_` before `ab`.
    Returns a negative number if `left` comes first, and a positive one if `right` does.
    left, right: pairs of a key and its value.
    """
    a, b = left[0], right[0]
    # Whether the last character that both keys share is a digit.
    after_digit = False
    for index, (x, y) in enumerate(zip(a, b, strict=False)):
        if x == y:
            after_digit = _is_digit(x)
            continue
        x_letter, y_letter = category(x)[0] == "L", category(y)[0] == "L"
        if x_letter and y_letter:
            return -1 if x < y else 1
        if x_letter or y_letter:
            # A letter comes before another character after a digit, and otherwise after it.
            is_left_first = x_letter if after_digit else y_letter
            return -1 if is_left_first else 1
        return _compare_numbers(a, b, index)
    return len(a) - len(b)


def _compare_numbers(a: str, b: str, index: int) -> int:
    """Compare two keys by the numbers in them.

    index: the position of the first character that differs. In neither key is it a letter.
    """
    # If one of the keys has a 0 here, it is a leading zero only if the digits before it, which both
    # keys share, are zeros too. Otherwise put a 1 before both numbers, so that the 0 counts.
    start = 0
    if "0" in (a[index], b[index]):
        before = index
        while before and _is_digit(a[before - 1]) and not start:
            before -= 1
            start = int(a[before] != "0")
    x, x_end = _read_digits(a, index, start)
    y, y_end = _read_digits(b, index, start)
    if x != y:
        return -1 if x < y else 1
    if x_end != y_end:
        return -1 if x_end < y_end else 1
    return -1 if a[index] < b[index] else 1


def _read_digits(text: str, index: int, number: int) -> tuple[int, int]:
    """Read digits from text[index] on; return the number, and the index after them.

    number: the digit that is put before them: 1 if a zero at the beginning counts, otherwise 0.
    """
    while index < len(text) and _is_digit(text[index]):
        number = number * 10 + ord(text[index]) - ord("0")
        index += 1
    # Go's integers have 64 bits and overflow.
    return (number + 2**63) % 2**64 - 2**63, index


def _is_digit(character: str) -> bool:
    return category(character) == "Nd"
