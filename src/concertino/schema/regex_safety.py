"""Whether Python's `re`, which msgspec matches patterns with, takes a time linear in the text, whatever the text.

`re` tries one way after the other. It is linear where the next character says which way to go: then a wrong way ends at once. That
is looked at here, for the syntax that `re` and ECMA-262 share; with room for a few ways more, up to MAX_TRIES for any character.
What cannot be shown to be linear is not necessarily slow, only unknown. What happens then: schema.py.
Source: Bruggemann-Klein, Wood: One-unambiguous regular languages (1998). Decision 0007 compares the ways there are.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from typing import Any, cast

from concertino.errors import RegistrationError

__all__ = ["check_fields", "find_backtracking", "linear"]

MAX_TRIES = 256
MAX_CHARACTERS = (
    2000  # of a pattern; also the bound for the work here, which is quadratic in alternatives
)
MAX_GROUPS = 50  # in each other
_LAST = 0x10FFFF
Characters = list[tuple[int, int]]  # first and last of each run, in no order
ANY: Characters = [(0, _LAST)]


def find_backtracking(pattern: str) -> str | None:
    """Why matching a pattern may take more than linear time with `re.search`, in a few words; None when it cannot."""
    try:
        if len(pattern) > MAX_CHARACTERS:
            raise _Unproved(f"it is longer than {MAX_CHARACTERS:,} characters")
        branches = _Reader(pattern).pattern()
        if (
            sum(
                part.tries([], 0) * (1 if anchored else part.longest or 1)
                for anchored, part in branches
            )
            > MAX_TRIES
        ):
            raise _Unproved("too many of its parts can match the same text")
    except _Unproved as why:
        return str(why)
    return None


def linear(pattern: str, why: str) -> Callable[[str], bool]:
    """What tells whether a text matches somewhere, by an engine without backtracking, as ECMA-262 reads it.

    why: from why_not_linear, for the RegistrationError when there is no such engine here, or it does not know the syntax.
    """
    try:
        from jsonschema_rs import Draft202012Validator, RegexOptions, ValidationError
    except ImportError:
        raise RegistrationError(
            f"{_slow(pattern, why)}; {_ADVICE}, or have it matched by a linear engine: pip install 'concertino[validate]'"
        ) from None
    try:
        return Draft202012Validator({"pattern": pattern}, pattern_options=RegexOptions()).is_valid
    except ValidationError:
        raise RegistrationError(
            f"{_slow(pattern, why)}, and the linear engine does not take it: {_ADVICE}, without look-around and back-references"
        ) from None


def check_fields(schema: Any, path: str = "") -> None:
    """Refuse patterns of the fields of a class, as its schema shows them, that `re` may take long for: msgspec uses no other.

    Raises RegistrationError naming the field.
    """
    if isinstance(schema, list):
        for item in cast("list[Any]", schema):
            check_fields(item, path)
    tree = cast("dict[str, Any]", schema) if isinstance(schema, dict) else {}
    pattern = tree.get("pattern")
    if isinstance(pattern, str) and (why := find_backtracking(pattern)):
        raise RegistrationError(
            f"{path}: {_slow(pattern, why)}; {_ADVICE}, or write a pydantic model, whose engine is linear"
        )
    for word, value in tree.items():
        if word == "properties":
            for name, field in value.items():
                check_fields(field, f"{path}.{name}" if path else name)
        elif word not in ("default", "enum", "const", "examples"):
            check_fields(value, path)


_ADVICE = "write it so that each character says how to go on"


def _slow(pattern: str, why: str) -> str:
    return f"the pattern {pattern!r} could take Python's `re` very long ({why})"


class _Unproved(Exception):
    """The reason, for people."""


class _Part:
    """A part of a pattern: one character of some. first: what it may begin with, at least; longest: None for no bound.

    tries(follow, tail): how often the same text may be looked at in a row, when `follow` may come after the part, and at
    most `tail` characters are matched after it. Raises _Unproved where that has no bound.
    """

    def __init__(self, first: Characters, *, empty: bool = False, longest: int | None = 1) -> None:
        self.first = first
        self.empty = empty
        self.longest = longest

    def tries(self, follow: Characters, tail: int | None) -> int:
        return 1


class _Sequence(_Part):
    def __init__(self, parts: list[_Part]) -> None:
        first: Characters = []
        for part in parts:
            first = first + part.first
            if not part.empty:
                break
        longest: int | None = 0
        for part in parts:
            longest = _plus(longest, part.longest)
        super().__init__(first, empty=all(part.empty for part in parts), longest=longest)
        self.parts = parts

    def tries(self, follow: Characters, tail: int | None) -> int:
        total = 1
        for part in reversed(self.parts):
            total *= part.tries(follow, tail)
            follow = part.first + (follow if part.empty else [])
            tail = _plus(tail, part.longest)
        return min(total, MAX_TRIES + 1)


class _Choice(_Part):
    def __init__(self, branches: list[_Part]) -> None:
        lengths = [branch.longest for branch in branches]
        longest = (
            None if None in lengths else max(length for length in lengths if length is not None)
        )
        first = [run for branch in branches for run in branch.first]
        super().__init__(first, empty=any(branch.empty for branch in branches), longest=longest)
        self.branches = branches

    def tries(self, follow: Characters, tail: int | None) -> int:
        each = [branch.tries(follow, tail) for branch in self.branches]
        starts = [branch.first + (follow if branch.empty else []) for branch in self.branches]
        unclear = sum(branch.empty for branch in self.branches) > 1
        unclear = unclear or any(_meet(one, other) for one, other in combinations(starts, 2))
        return sum(each) if unclear else max(each)


class _Repeat(_Part):
    """text: for people."""

    def __init__(self, part: _Part, least: int, most: int | None, text: str) -> None:
        longest = None if most is None or part.longest is None else most * part.longest
        super().__init__(part.first, empty=part.empty or least == 0, longest=longest)
        self.part = part
        self.least = least
        self.most = most
        self.text = text

    def tries(self, follow: Characters, tail: int | None) -> int:
        if self.part.empty and self.most != 1:
            raise _Unproved(f"{self.text} repeats what may be empty")
        rest = None if self.most is None else 0 if self.most < 2 else self.part.longest
        inside = self.part.tries(
            self.part.first + follow, _plus(tail, rest and rest * ((self.most or 1) - 1))
        )
        unclear = self.least != self.most and _meet(self.part.first, follow)
        if self.most is None:
            if inside > 1:
                raise _Unproved(f"{self.text} repeats what can match in several ways")
            if unclear and tail is None:
                raise _Unproved(f"{self.text} can end at many places, and so can what follows")
            return max(1, tail or 0) if unclear else 1
        total = 1 if inside == 1 else min(inside ** min(self.most, 9), MAX_TRIES + 1)
        return min(total * (self.most - self.least + 1 if unclear else 1), MAX_TRIES + 1)


class _Reader:
    """Reads a pattern. Anything that `re` and ECMA-262 do not both know, or do not mean alike, is _Unproved."""

    def __init__(self, pattern: str) -> None:
        self.text = pattern
        self.at = 0
        self.groups = 0

    def pattern(self) -> list[tuple[bool, _Part]]:
        """The alternatives, each with whether it begins at the start of the text only."""
        branches = [self.branch()]
        while self.take("|"):
            branches.append(self.branch())
        if self.at < len(self.text):
            raise self.unknown()
        return branches

    def branch(self) -> tuple[bool, _Part]:
        anchored = self.take("^")
        parts = self.parts()
        if (
            not self.take("$")
            and parts
            and isinstance(last := parts[-1], _Repeat)
            and not last.part.empty
        ):
            parts[-1] = _Repeat(
                last.part, last.least, last.least, last.text
            )  # after these nothing can fail any more
        part = _Sequence(parts)
        if not anchored and part.longest is None:
            raise _Unproved("it may begin anywhere and has no longest match: begin it with ^")
        return anchored, part

    def parts(self) -> list[_Part]:
        parts: list[_Part] = []
        while self.at < len(self.text) and self.text[self.at] not in "|)$":
            start = self.at
            parts.append(self.repeated(self.part(), start))
        return parts

    def part(self) -> _Part:
        char = self.next()
        if char == "(":
            return self.group()
        if char == "[":
            return _Part(self.characters())
        if char == ".":
            return _Part(_others([(10, 10)]))
        if char == "\\":
            return _Part(self.escaped()[0])
        if char in "^*+?{}]":
            raise self.unknown()
        return _Part([(ord(char), ord(char))])

    def group(self) -> _Part:
        if self.take("?") and not self.take(":"):
            raise _Unproved("it has groups that look around, refer back or set flags")
        self.groups += 1
        if self.groups > MAX_GROUPS:
            raise _Unproved("it is nested too deeply")
        branches: list[_Part] = [_Sequence(self.parts())]
        while self.take("|"):
            branches.append(_Sequence(self.parts()))
        if not self.take(")"):
            raise self.unknown()
        self.groups -= 1
        return _Choice(branches) if len(branches) > 1 else branches[0]

    def repeated(self, part: _Part, start: int) -> _Part:
        sign = self.text[self.at : self.at + 1]
        if sign not in ("*", "+", "?", "{"):
            return part
        self.at += 1
        least, most = _TIMES.get(sign) or self.times()
        self.take("?")  # the order in which ways are tried does not matter here
        if self.text[self.at : self.at + 1] in ("*", "+", "?", "{"):
            raise self.unknown()
        return _Repeat(part, least, most, self.text[start : self.at][:80])

    def times(self) -> tuple[int, int | None]:
        inside, found, _ = self.text[self.at :].partition("}")
        low, comma, high = inside.partition(",")
        if not found or not low.isdecimal() or not (high or "0").isdecimal() or len(inside) > 12:
            raise self.unknown()
        self.at += len(inside) + 1
        if high and int(high) < int(low):
            raise self.unknown()
        return int(low), (int(high) if high else None) if comma else int(low)

    def characters(self) -> Characters:
        """What is in [...]: at least what may match, since \\d and its like depend on the version of Unicode."""
        negated = self.take("^")
        perhaps: Characters = []
        surely: Characters = []
        while not self.take("]"):
            low = self.one()
            if self.text[self.at : self.at + 1] == "-" and self.text[
                self.at + 1 : self.at + 2
            ] not in ("]", ""):
                self.at += 1
                high = self.one()
                start, end = low[0][0][0], high[0][0][1]
                if not _is_one(low) or not _is_one(high) or end < start:
                    raise self.unknown()
                low = [(start, end)], [(start, end)]
            perhaps, surely = perhaps + low[0], surely + low[1]
        if not perhaps:  # `[]` is never and `[^]` always in ECMA-262, and something else in `re`
            raise self.unknown()
        return _others(surely) if negated else perhaps

    def one(self) -> tuple[Characters, Characters]:
        char = self.next()
        if char == "\\":
            return self.escaped()
        return [(ord(char), ord(char))], [(ord(char), ord(char))]

    def escaped(self) -> tuple[Characters, Characters]:
        """What may match, and what surely matches."""
        char = self.next()
        if char.lower() in _CLASSES:
            surely, perhaps = _CLASSES[char.lower()], [*_CLASSES[char.lower()], (128, _LAST)]
            return (perhaps, surely) if char.islower() else (_others(surely), _others(perhaps))
        if char in "xu":
            digits = self.text[self.at : self.at + (2 if char == "x" else 4)]
            self.at += len(digits)
            if len(digits) < (2 if char == "x" else 4) or not set(digits) <= set(
                "0123456789abcdefABCDEF"
            ):
                raise self.unknown()
            code = int(digits, 16)
        elif char in _CONTROL:
            code = _CONTROL[char]
        elif char.isalnum() or char == "_":
            raise self.unknown()
        else:
            code = ord(char)
        return [(code, code)], [(code, code)]

    def next(self) -> str:
        if self.at >= len(self.text):
            raise self.unknown()
        self.at += 1
        return self.text[self.at - 1]

    def take(self, char: str) -> bool:
        found = self.text[self.at : self.at + 1] == char
        self.at += found
        return found

    def unknown(self) -> _Unproved:
        return _Unproved(
            f"its syntax at character {min(self.at, len(self.text))} is not one that all engines share"
        )


_TIMES: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_CONTROL = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13}
_CLASSES: dict[str, Characters] = {
    "d": [(48, 57)],
    "w": [(48, 57), (65, 90), (95, 95), (97, 122)],
    "s": [(9, 13), (28, 32)],  # 28 to 31 in `re` only, which is what matches here
}


def _is_one(found: tuple[Characters, Characters]) -> bool:
    (start, end), *more = found[0]
    return not more and start == end


def _plus(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other


def _others(characters: Characters) -> Characters:
    """All characters but these."""
    found: Characters = []
    start = 0
    for low, high in sorted(characters):
        if start < low:
            found.append((start, low - 1))
        start = max(start, high + 1)
    return [*found, (start, _LAST)] if start <= _LAST else found


def _meet(one: Characters, other: Characters) -> bool:
    return any(low <= end and start <= high for low, high in one for start, end in other)
