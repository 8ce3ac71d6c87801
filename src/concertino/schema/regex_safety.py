r"""Proves that Python's `re` matches a pattern in linear time, for every text.

msgspec matches patterns with `re`, which backtracks: it tries one alternative after the other.
For example, `^(a+)+$` takes exponential time for "aaa...b". Matching takes linear time if the next
character always decides which alternative applies, because all others fail at once.

find_backtracking() tries to prove this, for patterns in the syntax that `re` and ECMA-262 share. It
tolerates up to MAX_TRIES attempts for each character. If there is no proof, the pattern may still
be fast, but another engine matches it (make_linear_matcher).

The proof parses the pattern into a tree of parts (_Part). Each part knows with which characters a
match of it may begin. If two alternatives, or a repetition and the part after it, may begin with
the same character, `re` may try both; _Part.count_tries() counts these attempts.

Source: Bruggemann-Klein, Wood: One-unambiguous regular languages (1998). Decision 0007 compares the
possible ways.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from typing import Any, cast

from concertino.errors import RegistrationError

# How often `re` may examine one character of the text in a pattern that counts as linear. At this
# number, matching is slower by a constant factor, but still linear.
MAX_TRIES = 256
# The longest pattern that is examined. The work grows with the square of the number of
# alternatives.
MAX_CHARACTERS = 2000
# The largest depth of nested groups. It limits the recursion of _PatternReader.
MAX_GROUPS = 50
# A reason quotes at most this many characters of the pattern.
MAX_QUOTED = 80
# The last code point of Unicode.
_LAST = 0x10FFFF

# A set of characters: ranges (first code point, last code point), in any order.
Characters = list[tuple[int, int]]


def find_backtracking(pattern: str) -> str | None:
    """Return the reason, in a few words, why `re.search` may take more than linear time.

    Returns None if linear time is proved for the pattern.
    """
    try:
        if len(pattern) > MAX_CHARACTERS:
            raise _NoProof(f"it is longer than {MAX_CHARACTERS:,} characters")
        branches = _PatternReader(pattern).read_pattern()
        # Without the anchor `^`, `re` begins an attempt at each character of the text. Each
        # character is then examined in as many attempts as the longest match has characters.
        # read_pattern() has refused patterns without an anchor and without a longest match.
        tries = 0
        for is_anchored, part in branches:
            attempts = 1 if is_anchored else part.longest or 1
            tries += attempts * part.count_tries(follow=[], tail=0)
        if tries > MAX_TRIES:
            raise _NoProof("too many of its parts can match the same text")
    except _NoProof as exc:
        return str(exc)
    return None


def make_linear_matcher(pattern: str, reason: str) -> Callable[[str], bool]:
    """Return a function that returns whether a text contains a match of the pattern.

    The function uses the engine of jsonschema_rs, which does not backtrack and has the syntax of
    ECMA-262.
    reason: why `re` may be slow with this pattern, from find_backtracking(). For the error text.
    Raises RegistrationError if the engine is not installed, or does not know the pattern's syntax.
    """
    try:
        from jsonschema_rs import Draft202012Validator, RegexOptions, ValidationError
    except ImportError:
        from concertino.installation import missing_extra

        raise RegistrationError(
            f"{_describe_slow(pattern, reason)}; {_ADVICE}. "
            f"{missing_extra('A pattern as it is', 'validate')}"
        ) from None

    try:
        return Draft202012Validator({"pattern": pattern}, pattern_options=RegexOptions()).is_valid
    except ValidationError:
        raise RegistrationError(
            f"{_describe_slow(pattern, reason)}, and the linear engine does not accept it: "
            f"{_ADVICE}, without look-around and back-references"
        ) from None


def check_fields(schema: Any, path: str = "") -> None:
    """Raise RegistrationError if a field of a class has a pattern with which `re` may be slow.

    msgspec decodes the fields of classes, and has no other engine.
    schema: the JSON Schema of the class.
    path: the place of the schema, for the error text; "" for the class itself.
    """
    if isinstance(schema, list):
        for item in cast("list[Any]", schema):
            check_fields(item, path)

    tree = cast("dict[str, Any]", schema) if isinstance(schema, dict) else {}
    pattern = tree.get("pattern")
    if isinstance(pattern, str) and (reason := find_backtracking(pattern)):
        raise RegistrationError(
            f"{path}: {_describe_slow(pattern, reason)}; {_ADVICE}, or write a pydantic model, "
            f"whose engine is linear"
        )
    for keyword, value in tree.items():
        if keyword == "properties":
            for name, field in value.items():
                check_fields(field, f"{path}.{name}" if path else name)
        elif keyword not in ("default", "enum", "const", "examples"):
            check_fields(value, path)


_ADVICE = "rewrite it so that each character decides how to continue"


def _describe_slow(pattern: str, reason: str) -> str:
    """Return the beginning of the error about a pattern that `re` may match slowly."""
    return f"the pattern {pattern!r} could take Python's `re` very long ({reason})"


class _NoProof(Exception):
    """Raised if linear time cannot be proved. The text tells the pattern's author the reason."""


class _Part:
    """A part of a pattern. An instance of this class itself matches one character of a set.

    Subclasses are parts that consist of other parts.
    first: the characters with which a match may begin. The set may be larger than necessary.
    may_be_empty: whether the part can match the empty string.
    longest: the length of the longest match; None if there is no limit.
    """

    def __init__(
        self,
        first: Characters,
        *,
        may_be_empty: bool = False,
        longest: int | None = 1,
    ) -> None:
        self.first = first
        self.may_be_empty = may_be_empty
        self.longest = longest

    def count_tries(self, follow: Characters, tail: int | None) -> int:
        """Return how often `re` may examine the same text because of this part.

        follow: the characters with which the parts after this one may begin.
        tail: the length of the longest match of the parts after this one; None if there is no
            limit.
        Raises _NoProof if that may be any number of times.
        """
        return 1


class _Sequence(_Part):
    """Parts that follow each other, as in `ab`."""

    def __init__(self, parts: list[_Part]) -> None:
        first: Characters = []
        for part in parts:
            first = first + part.first
            if not part.may_be_empty:
                break
        longest: int | None = 0
        for part in parts:
            longest = _plus(longest, part.longest)
        super().__init__(
            first, may_be_empty=all(part.may_be_empty for part in parts), longest=longest
        )
        self.parts = parts

    def count_tries(self, follow: Characters, tail: int | None) -> int:
        # The attempts multiply: each attempt of one part may be followed by all attempts of the
        # next part. Go from the last part to the first, because a part needs to know what follows.
        total = 1
        for part in reversed(self.parts):
            total *= part.count_tries(follow, tail)
            follow = part.first + (follow if part.may_be_empty else [])
            tail = _plus(tail, part.longest)
        return min(total, MAX_TRIES + 1)


class _Choice(_Part):
    """Alternatives, as in `a|b`."""

    def __init__(self, branches: list[_Part]) -> None:
        lengths = [branch.longest for branch in branches if branch.longest is not None]
        longest = max(lengths) if len(lengths) == len(branches) else None
        first = [run for branch in branches for run in branch.first]
        super().__init__(
            first, may_be_empty=any(branch.may_be_empty for branch in branches), longest=longest
        )
        self.branches = branches

    def count_tries(self, follow: Characters, tail: int | None) -> int:
        counts = [branch.count_tries(follow, tail) for branch in self.branches]
        starts = [
            branch.first + (follow if branch.may_be_empty else []) for branch in self.branches
        ]
        # For example, in `(a|ab)c` both branches are tried for `ab`. If two branches can begin with
        # the same character, or if both can match the empty string, all branches may be tried.
        # Otherwise the next character decides.
        has_empty_branches = sum(branch.may_be_empty for branch in self.branches) > 1
        has_overlap = any(_overlap(one, two) for one, two in combinations(starts, 2))
        return sum(counts) if has_empty_branches or has_overlap else max(counts)


class _Repeat(_Part):
    """A repetition, as in `a*`, `a+`, `a?` and `a{2,3}`.

    part: the repeated part.
    least, most: how often the part may occur; most is None if there is no limit.
    text: the source of the repetition, for messages.
    """

    def __init__(
        self,
        part: _Part,
        least: int,
        most: int | None,
        text: str,
    ) -> None:
        longest = None if most is None or part.longest is None else most * part.longest
        super().__init__(part.first, may_be_empty=part.may_be_empty or least == 0, longest=longest)
        self.part = part
        self.least = least
        self.most = most
        self.text = text

    def count_tries(self, follow: Characters, tail: int | None) -> int:
        if self.part.may_be_empty and self.most != 1:
            raise _NoProof(f"{self.text} repeats a part that can match the empty string")

        # After the first occurrence of the repeated part come further occurrences, then the tail.
        later = None if self.most is None else max(self.most - 1, 0)
        inner_tail = _plus(tail, _times(later, self.part.longest))
        inner = self.part.count_tries(self.part.first + follow, inner_tail)

        # The repetition is ambiguous if the same character may continue it or come after it.
        is_ambiguous = self.least != self.most and _overlap(self.part.first, follow)
        if self.most is None:
            if inner > 1:
                raise _NoProof(f"{self.text} repeats a part that can match in several ways")
            if is_ambiguous and tail is None:
                raise _NoProof(f"{self.text} can end at many places, and so can the next part")
            if not is_ambiguous:
                return 1
            # At each possible end of the repetition, `re` tries the next parts, which examine up to
            # `tail` characters. So it examines a character up to `tail` times.
            return max(1, tail or 0)

        # Each occurrence of the part multiplies the attempts. The exponent is limited to 9, because
        # even 2**9 is more than MAX_TRIES.
        total = 1 if inner == 1 else min(inner ** min(self.most, 9), MAX_TRIES + 1)
        # An ambiguous repetition may also end after each number of occurrences.
        if is_ambiguous:
            total *= self.most - self.least + 1
        return min(total, MAX_TRIES + 1)


class _PatternReader:
    """Parses a pattern into parts.

    Raises _NoProof for syntax that `re` or ECMA-262 does not know, or that they interpret
    differently.
    text: the pattern.
    position: the index of the next character.
    groups: how many groups are open.
    """

    def __init__(self, pattern: str) -> None:
        self.text = pattern
        self.position = 0
        self.groups = 0

    def read_pattern(self) -> list[tuple[bool, _Part]]:
        """Parse the whole pattern, and return its alternatives.

        Each alternative is a pair: whether it begins with `^`, and its other parts as one part.
        """
        branches = [self.read_branch()]
        while self.skip("|"):
            branches.append(self.read_branch())
        if self.position < len(self.text):
            raise self.error_at_position()
        return branches

    def read_branch(self) -> tuple[bool, _Part]:
        """Parse one alternative of the whole pattern, such as `^ab$` in `^ab$|c`.

        Returns whether it begins with `^`, and its other parts as one part.
        """
        is_anchored = self.skip("^")
        parts = self.read_parts()
        if not self.skip("$") and parts:
            # Nothing can fail after the last part, so its repetitions cause no backtracking.
            # Replace them by the least number of repetitions, which is enough for a match.
            last = parts[-1]
            if isinstance(last, _Repeat) and not last.part.may_be_empty:
                parts[-1] = _Repeat(last.part, last.least, last.least, last.text)

        part = _Sequence(parts)
        if not is_anchored and part.longest is None:
            raise _NoProof("it may begin anywhere and has no longest match: begin it with ^")
        return is_anchored, part

    def read_parts(self) -> list[_Part]:
        """Parse the parts of an alternative, up to `|`, `)`, `$` or the end of the pattern."""
        parts: list[_Part] = []
        while self.position < len(self.text) and self.text[self.position] not in "|)$":
            start = self.position
            parts.append(self.read_repetition(self.read_part(), start))
        return parts

    def read_part(self) -> _Part:
        """Parse a character, a set or a group, without the quantifier that may follow it."""
        char = self.next()
        if char == "(":
            return self.read_group()
        if char == "[":
            return _Part(self.read_set())
        if char == ".":
            # Every character except the newline, whose code point is 10.
            return _Part(_complement([(10, 10)]))
        if char == "\\":
            return _Part(self.read_escape()[0])
        if char in "^*+?{}]":
            raise self.error_at_position()
        return _Part([(ord(char), ord(char))])

    def read_group(self) -> _Part:
        """Parse a group after its `(`."""
        if self.skip("?") and not self.skip(":"):
            raise _NoProof("it has groups that look around, refer back or set flags")
        self.groups += 1
        if self.groups > MAX_GROUPS:
            raise _NoProof("it is nested too deeply")
        branches: list[_Part] = [_Sequence(self.read_parts())]
        while self.skip("|"):
            branches.append(_Sequence(self.read_parts()))
        if not self.skip(")"):
            raise self.error_at_position()
        self.groups -= 1
        return _Choice(branches) if len(branches) > 1 else branches[0]

    def read_repetition(self, part: _Part, start: int) -> _Part:
        """Return a part, inside a _Repeat if a quantifier follows the part.

        start: the index in the pattern at which the part begins.
        """
        sign = self.peek()
        if sign not in ("*", "+", "?", "{"):
            return part
        self.position += 1
        least, most = _QUANTIFIERS.get(sign) or self.read_braces()
        # A `?` after a quantifier (lazy) changes only the order of the attempts.
        self.skip("?")
        if self.peek() in ("*", "+", "?", "{"):
            raise self.error_at_position()
        return _Repeat(part, least, most, self.text[start : self.position][:MAX_QUOTED])

    def read_braces(self) -> tuple[int, int | None]:
        """Parse the rest of `{2}`, `{2,}` or `{2,3}` after its brace.

        Returns how often the part must occur at least, and may occur at most; None instead of the
        second number if it may occur any number of times.
        """
        inside, brace, _ = self.text[self.position :].partition("}")
        low, comma, high = inside.partition(",")
        are_numbers = low.isdecimal() and (not high or high.isdecimal())
        # The limit of 12 characters keeps the numbers small.
        if not brace or not are_numbers or len(inside) > 12:
            raise self.error_at_position()
        self.position += len(inside) + 1
        if high and int(high) < int(low):
            raise self.error_at_position()
        if not comma:
            return int(low), int(low)
        return int(low), int(high) if high else None

    def read_set(self) -> Characters:
        """Parse a set after its `[`, and return all characters that it may match.

        The result may also contain characters that it does not match, because \\d and similar
        classes depend on the version of Unicode.
        """
        is_negated = self.skip("^")
        possible: Characters = []
        certain: Characters = []
        while not self.skip("]"):
            member = self.read_member()
            if self.peek() == "-" and self.peek(1) not in ("]", ""):
                self.position += 1
                start, end = _single_character(member[0]), _single_character(self.read_member()[0])
                if start is None or end is None or end < start:
                    raise self.error_at_position()
                member = [(start, end)], [(start, end)]
            possible, certain = possible + member[0], certain + member[1]

        # In ECMA-262 `[]` never matches and `[^]` always does; in `re` they mean something else.
        if not possible:
            raise self.error_at_position()
        return _complement(certain) if is_negated else possible

    def read_member(self) -> tuple[Characters, Characters]:
        """Parse one member of a set, such as `a` or `\\d` in `[a\\d]`.

        Returns two sets: the characters that it may match, and those that it certainly matches.
        """
        char = self.next()
        if char == "\\":
            return self.read_escape()
        return [(ord(char), ord(char))], [(ord(char), ord(char))]

    def read_escape(self) -> tuple[Characters, Characters]:
        """Parse an escape after its backslash.

        Returns two sets: the characters that it may match, and those that it certainly matches.
        """
        char = self.next()
        if char.lower() in _CLASSES:
            # Which characters beyond ASCII belong to a class depends on the version of Unicode.
            certain = _CLASSES[char.lower()]
            possible = [*certain, (128, _LAST)]
            if char.islower():
                return possible, certain
            return _complement(certain), _complement(possible)

        if char in "xu":
            length = 2 if char == "x" else 4
            digits = self.text[self.position : self.position + length]
            self.position += len(digits)
            if len(digits) < length or not set(digits) <= set("0123456789abcdefABCDEF"):
                raise self.error_at_position()
            code = int(digits, 16)
        elif char in _CONTROL:
            code = _CONTROL[char]
        elif char.isalnum() or char == "_":
            raise self.error_at_position()
        else:
            code = ord(char)
        return [(code, code)], [(code, code)]

    def next(self) -> str:
        """Return the next character, and step over it. Raises _NoProof at the end."""
        if self.position >= len(self.text):
            raise self.error_at_position()
        self.position += 1
        return self.text[self.position - 1]

    def peek(self, ahead: int = 0) -> str:
        """Return the next character, or the one `ahead` characters after it; "" after the end."""
        return self.text[self.position + ahead : self.position + ahead + 1]

    def skip(self, char: str) -> bool:
        """Return whether the next character is `char`, and step over it if so."""
        is_next = self.peek() == char
        if is_next:
            self.position += 1
        return is_next

    def error_at_position(self) -> _NoProof:
        """Return the error for syntax at the current position that is not understood."""
        character = min(self.position, len(self.text))
        text = f"its syntax at character {character} is not one that all engines share"
        return _NoProof(text)


_QUANTIFIERS: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
# Letter after a backslash -> code point, or code points in ASCII.
_CONTROL = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13}
_CLASSES: dict[str, Characters] = {
    "d": [(48, 57)],
    "w": [(48, 57), (65, 90), (95, 95), (97, 122)],
    # 28 to 31 are spaces in `re` but not in ECMA-262. `re` decides here, because it does the work.
    "s": [(9, 13), (28, 32)],
}


def _single_character(characters: Characters) -> int | None:
    """Return the code point of the character in a set; None if the set has several characters."""
    (start, end), *more = characters
    return None if more or start != end else start


def _plus(one: int | None, two: int | None) -> int | None:
    return None if one is None or two is None else one + two


def _times(count: int | None, longest: int | None) -> int | None:
    """Return the length of `count` matches of length `longest`; None stands for no limit."""
    if count == 0:
        return 0
    return None if count is None or longest is None else count * longest


def _complement(characters: Characters) -> Characters:
    """Return all characters but these."""
    others: Characters = []
    start = 0
    for low, high in sorted(characters):
        if start < low:
            others.append((start, low - 1))
        start = max(start, high + 1)
    return [*others, (start, _LAST)] if start <= _LAST else others


def _overlap(one: Characters, two: Characters) -> bool:
    return any(low <= end and start <= high for low, high in one for start, end in two)
