"""parse_json(): parses JSON with comments and trailing commas, as editors write it.

The grammar is RFC 8259, plus `//` and `/* */` comments where white space is allowed, plus a comma
after the last item. Nothing else of JSON5 is accepted, because hosts accept different parts of it,
and a file is meant for several hosts. A repeated name in an object is an error, because parsers
disagree about which of the two values counts.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Mapping
from math import isfinite
from typing import NoReturn

from concertino.proxy.file_values import FileMember, FileValue, InvalidText, Scalar

__all__ = ["parse_json"]

# The deepest nesting of lists and objects. The files of hosts need 6 levels; without a limit, the
# recursive parser could exhaust Python's stack.
MAX_DEPTH = 64
# The longest number, in characters. Python's time to parse an integer grows with its square.
MAX_DIGITS = 300

# White space and comments.
SPACE = re.compile(r"(?:[ \t\n\r]+|//[^\n\r]*|/\*.*?\*/)*", re.DOTALL)
# The part of a string up to its end, an escape, or a character that a string must not contain.
PLAIN = re.compile(r'[^"\\\x00-\x1f]*')
NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
# A number, true, false or null; or what stands in the place of one, for the error.
WORD = re.compile(r"[A-Za-z0-9_$.+-]+")
HEX = re.compile(r"[0-9a-fA-F]{4}")
ESCAPES = {
    '"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t",
}  # fmt: skip
LITERALS: Mapping[str, bool | None] = {"true": True, "false": False, "null": None}


def parse_json(text: str) -> FileValue:
    """Parse a JSON text with comments, and return its value, with the position of each part.

    Raises InvalidText with the position of the first error.
    """
    return _Parser(text.removeprefix("\ufeff")).parse()


class _Parser:
    """A recursive descent parser for one text."""

    def __init__(self, text: str) -> None:
        self._text = text
        # The index of the next character.
        self._at = 0
        # How many lists and objects contain the next character.
        self._depth = 0
        self._line_starts = [0, *(match.end() for match in re.finditer(r"\r\n|\n|\r", text))]

    def parse(self) -> FileValue:
        """Return the value of the whole text."""
        self._skip_space()
        value = self._read_value()
        self._skip_space()
        if self._at < len(self._text):
            self._fail(f"expected nothing after the value, got {self._describe_next()}")
        return value

    # Positions

    def _locate(self, at: int) -> tuple[int, int]:
        """Return the line and column of the character with an index, counted from 1."""
        line = bisect_right(self._line_starts, at)
        return line, at - self._line_starts[line - 1] + 1

    def _fail(self, problem: str, at: int | None = None) -> NoReturn:
        raise InvalidText(problem, *self._locate(self._at if at is None else at))

    def _next(self) -> str:
        """Return the next character; "" at the end of the text."""
        return self._text[self._at : self._at + 1]

    def _describe_next(self) -> str:
        """Return the next character or word, for an error message."""
        if self._at >= len(self._text):
            return "the end of the file"
        word = WORD.match(self._text, self._at)
        return repr(self._text[self._at] if word is None else word[0][:40])

    def _skip_space(self) -> None:
        match = SPACE.match(self._text, self._at)
        assert match is not None, "the pattern matches the empty text"
        self._at = match.end()
        if self._text.startswith("/*", self._at):
            self._fail("expected */ at the end of this comment, got the end of the file")

    # Values

    def _read_value(self) -> FileValue:
        """Read the value at `_at`, and move `_at` behind it, like the methods below."""
        line, column = self._locate(self._at)
        character = self._next()
        if character == "{":
            return FileValue(self._read_object(), line, column)
        if character == "[":
            return FileValue(self._read_list(), line, column)
        if character == '"':
            return FileValue(self._read_string(), line, column)
        return FileValue(self._read_scalar(), line, column)

    def _read_scalar(self) -> Scalar:
        """Read a number, true, false or null."""
        start = self._at
        word = WORD.match(self._text, start)
        if word is None:
            hint = "; texts stand in double quotes" if self._next() == "'" else ""
            self._fail(f"expected a value, got {self._describe_next()}{hint}")
        if word[0] in LITERALS:
            self._at = word.end()
            return LITERALS[word[0]]
        number = NUMBER.fullmatch(word[0])
        if number is None:
            self._fail(
                f"expected a value, got {self._describe_next()}; texts stand in double quotes"
            )
        self._at = word.end()
        if len(word[0]) > MAX_DIGITS:
            self._fail("expected a number of fewer digits", start)
        if number[1] is None and number[2] is None:
            return int(word[0])
        value = float(word[0])
        if not isfinite(value):
            self._fail(f"expected a smaller number, got {word[0]}", start)
        return value

    def _read_object(self) -> Mapping[str, FileMember]:
        """Read an object. A name that comes twice is an error."""
        opened = self._enter()
        members: dict[str, FileMember] = {}
        while not self._try_close("}"):
            start = self._at
            line, column = self._locate(start)
            if self._next() != '"':
                hint = "; names stand in double quotes" if self._next() else ""
                self._fail(f"expected a name or '}}', got {self._describe_next()}{hint}")
            name = self._read_string()
            if (first := members.get(name)) is not None:
                self._fail(
                    f"expected {name!r} once, got it again; it is in line {first.line}", start
                )
            self._skip_space()
            if self._next() != ":":
                self._fail(f"expected ':' after the name {name!r}, got {self._describe_next()}")
            self._at += 1
            self._skip_space()
            members[name] = FileMember(self._read_value(), line, column)
            self._skip_comma("}", opened)
        return members

    def _read_list(self) -> tuple[FileValue, ...]:
        opened = self._enter()
        items: list[FileValue] = []
        while not self._try_close("]"):
            items.append(self._read_value())
            self._skip_comma("]", opened)
        return tuple(items)

    def _enter(self) -> int:
        """Skip an opening bracket and return its index."""
        self._depth += 1
        if self._depth > MAX_DEPTH:
            self._fail(f"expected at most {MAX_DEPTH} levels of lists and objects")
        opened = self._at
        self._at += 1
        self._skip_space()
        return opened

    def _try_close(self, bracket: str) -> bool:
        """Skip a closing bracket if it is the next character. Returns whether it was."""
        if self._next() != bracket:
            return False
        self._at += 1
        self._depth -= 1
        return True

    def _skip_comma(self, bracket: str, opened: int) -> None:
        """Skip the comma after an item. Before the closing bracket, the comma may be missing.

        bracket: the closing bracket of the list or object.
        opened: the index of its opening bracket, for the error.
        """
        self._skip_space()
        character = self._next()
        if character == ",":
            self._at += 1
            self._skip_space()
        elif character != bracket:
            line, column = self._locate(opened)
            self._fail(
                f"expected ',' or the {bracket!r} of line {line}, column {column}, "
                f"got {self._describe_next()}"
            )

    def _read_string(self) -> str:
        """Read a string in double quotes."""
        opened = self._at
        self._at += 1
        parts: list[str] = []
        while True:
            match = PLAIN.match(self._text, self._at)
            assert match is not None, "the pattern matches the empty text"
            parts.append(match[0])
            self._at = match.end()
            character = self._next()
            if character == '"':
                self._at += 1
                break
            if character != "\\":
                problem = "the end of the file" if not character else f"{character!r}"
                # At the end of a line, the closing quote is probably missing, so point to the
                # opening quote. Point to any other character itself.
                is_cut_off = character in ("", "\n", "\r")
                self._fail(
                    f"expected '\"' at the end of this text, got {problem}",
                    opened if is_cut_off else self._at,
                )
            parts.append(self._read_escape())
        joined = "".join(parts)
        if not any("\ud800" <= character <= "\udfff" for character in joined):
            return joined
        # Two escapes can stand for one character (a surrogate pair).
        try:
            return joined.encode("utf-16", "surrogatepass").decode("utf-16")
        except UnicodeDecodeError:
            self._fail("expected both halves of a surrogate pair in this text", opened)

    def _read_escape(self) -> str:
        """Read an escape in a string, and return the character that it stands for."""
        start = self._at
        letter = self._text[start + 1 : start + 2]
        if letter == "u":
            match = HEX.match(self._text, start + 2)
            if match is None:
                self._fail("expected four hexadecimal digits after \\u")
            self._at = match.end()
            return chr(int(match[0], 16))
        if letter not in ESCAPES:
            self._fail(
                f"expected an escape such as \\n or \\\\, got {self._text[start : start + 2]!r}"
            )
        self._at += 2
        return ESCAPES[letter]
