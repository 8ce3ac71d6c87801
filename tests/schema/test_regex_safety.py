"""patterns.py: which patterns Python's `re` matches in linear time. That those taken are linear is
counted by a matcher of our own below, which backtracks as `re` does; those known for having brought
down servers must be refused.
"""

from __future__ import annotations

import random
import re
import sys
from typing import Any

import pytest

from concertino.errors import RegistrationError
from concertino.schema.regex_safety import check_fields, find_backtracking, make_linear_matcher

LINEAR = [
    *(
        "",
        "^",
        "$",
        "^$",
        "|",
        "a",
        "^a",
        "a$",
        "^a|b$",
        "^[a-z]+$",
        "[a-z]+",
        "^[A-Za-z_][A-Za-z0-9_]*$",
        "^.*$",
        "^a|^b|c",
    ),
    *(
        r"^\d{4}-\d{2}-\d{2}$",
        "^-?(0|[1-9][0-9]*)$",
        r"^[\w.+-]+@[\w-]+\.[\w.-]+$",
        r"^.*\.(jpg|png)$",
        r"^\+?[1-9]\d{1,14}$",
    ),
    *(
        "^[A-Z]{2,3}[0-9A-Z]{4}$",
        "^[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}$",
        r"^https?://[^\s/]+(/\S*)?$",
    ),
    *(
        "^(?:a|b)*$",
        "^(?:[a-z]+;)*$",
        r"^[^\d]\d",
        r"^\x41\u0042\t\/\-$",
        "^a*?b+?$",
        "^a{3}$",
        "^a{2,}$",
        "^(a?)?$",
    ),
    *(
        r"^[a\]\-z]+-$",
        "^(|a)b$",
        "^a{0}b{1}$",
        "^(ab?){1}$",
        r"^[\x41-\x5a]$",
        r"^\s*[^\s]\S$",
        "foo.*",
        "^(ab|cd)+$",
    ),
]
# the first four are of published incidents and the OWASP page on ReDoS; the others their neighbours
SLOW = [
    *(
        "^(a+)+$",
        "^([a-zA-Z]+)*$",
        "^(a|aa)+$",
        r"^(([a-z])+.)+[A-Z]([a-z])+$",
        "(x+x+)+y",
        r"^(\w+\s?)*$",
        r"(?:.*=.*)",
    ),
    *(
        "^(a|a)*$",
        "^(a*)*$",
        "^(a?){50}a{50}$",
        "^(a|b|ab){30}$",
        "^.*.*$",
        "^a*a*$",
        "a*b",
        r"\s+$",
        "^(.*a){11}$",
        "^(a|a?)+$",
    ),
    *(
        "^[^@]+@[^@]+\\.[^@]+$",
        r"^(\d+,)*\d+$",
        r"^\d+\d+$",
        r"^(é|\w)*$",
        r"^(\d|٣)*$",
        r"^[^a]*b*[^b]*$",
        "[a-z]{1,300}$",
        "^a?" * 9,
    ),
    *(
        "^(a?b?)*$",
        "^(aa?){2,}$",
        "^(a|ab)(c|bcd)(d*)$" * 3,
        "^a{0,300}a$",
        r"^[^\D]*\d$5",
        "^" + "(a|a)" * 9,
        "^.{0,99}.{0,99}.{0,99}$",
    ),
]
UNKNOWN = [
    *(
        "(?=a)b",
        "(?!a)b",
        "(?<=a)b",
        "(?<!a)b",
        r"(a)\1",
        "(?P<n>a)",
        "(?<n>a)",
        "(?i)a",
        r"\bx",
        r"\p{L}",
        r"\Ax\Z",
        "(?#c)",
    ),
    *(
        "a{",
        "a}",
        "a{x}",
        "a{,5}",
        "a{1",
        "a{2,1}",
        "a{1000000000000}",
        "(a",
        "a)",
        "[a",
        "[",
        "[]",
        "[^]",
        "a**",
        "a*+",
        "a++",
        "*a",
    ),
    *(
        "^^a",
        "a^",
        "a$b",
        "(a$)",
        "]",
        r"[z-a]",
        r"[\d-z]",
        r"[a-\w]",
        r"\x4",
        r"\u00g0",
        "\\",
        r"\_",
        "a{1,x}",
        "a??*",
        "a{1}{2}",
    ),
    *("(" * 60 + ")" * 60, "a" * 2001, "[a-", "[a\\"),
]


@pytest.mark.parametrize("pattern", LINEAR)
def test_a_pattern_that_never_has_to_go_back_is_taken(pattern: str) -> None:
    re.compile(pattern)
    assert find_backtracking(pattern) is None


@pytest.mark.parametrize("pattern", SLOW)
def test_a_pattern_that_may_go_back_far_is_refused(pattern: str) -> None:
    why = find_backtracking(pattern)
    assert why
    assert len(why) < 200


@pytest.mark.parametrize("pattern", UNKNOWN, ids=lambda pattern: pattern[:20])
def test_a_pattern_of_other_syntax_is_refused(pattern: str) -> None:
    assert find_backtracking(pattern)


def test_what_is_wrong_is_named() -> None:
    assert (
        find_backtracking("^x(a+b)+?[ab]+z*$")
        == "(a+b)+? can end at many places, and so can the next part"
    )
    assert find_backtracking("^(a|a)*$") == "(a|a)* repeats a part that can match in several ways"
    assert find_backtracking("^(a*)*$") == "(a*)* repeats a part that can match the empty string"
    assert find_backtracking("(?=a)") == "it has groups that look around, refer back or set flags"
    assert (
        find_backtracking("a*b")
        == "it may begin anywhere and has no longest match: begin it with ^"
    )
    assert find_backtracking("ab)") == "its syntax at character 2 is not one that all engines share"


def test_a_long_pattern_is_looked_at_in_bounded_time() -> None:
    """It would take hours if parts were looked at again for each part that holds them."""
    for pattern in (
        "(?:a|" * 49 + "b" + ")" * 49,
        "^" + "|".join("ab" for _ in range(600)),
        "^" + "a?" * 900,
    ):
        find_backtracking(pattern)
    assert find_backtracking("^(" + "|".join(chr(1000 + n) for n in range(900)) + ")*$") is None


# Counted

Program = list[tuple[str, Any, Any]]


def compile_pattern(pattern: str) -> Program:
    """Instructions for the subset that `patterns` below makes: Thompson's construction, tried depth
    first as `re` does.
    """
    at = 0

    def alternatives() -> Program:
        nonlocal at
        one = sequence()
        while pattern[at : at + 1] == "|":
            at += 1
            other = sequence()
            one = [("split", 1, len(one) + 2), *one, ("jump", len(other) + 1, None), *other]
        return one

    def sequence() -> Program:
        program: Program = []
        while at < len(pattern) and pattern[at] not in "|)":
            program += item()
        return program

    def item() -> Program:
        nonlocal at
        char = pattern[at]
        at += 1
        if char == "(":
            part = alternatives()
            at += 1
        elif char == "[":
            end = pattern.index("]", at)
            part, at = [("char", pattern[at:end], None)], end + 1
        else:
            part = (
                [("char", "abc" if char == "." else char, None)]
                if char not in "^$"
                else [(char, None, None)]
            )
        sign = pattern[at : at + 1]
        at += sign in ("*", "+", "?") and sign != ""
        if sign == "?":
            return [("split", 1, len(part) + 1), *part]
        if sign == "*":
            return [("split", 1, len(part) + 2), *part, ("jump", -len(part) - 1, None)]
        return [*part, ("split", -len(part), 1)] if sign == "+" else part

    return alternatives()


def steps(program: Program, text: str, limit: int) -> int:
    """How many instructions a search takes, up to a limit."""
    count = 0
    for start in range(len(text) + 1):
        waiting = [(0, start)]
        while waiting:
            at, place = waiting.pop()
            while count <= limit:
                count += 1
                if at == len(program):
                    return count
                kind, one, other = program[at]
                if kind == "char":
                    if place == len(text) or text[place] not in one:
                        break
                    at, place = at + 1, place + 1
                elif kind == "split":
                    waiting.append((at + other, place))
                    at += one
                elif kind == "jump":
                    at += one
                elif place == (0 if kind == "^" else len(text)):
                    at += 1
                else:
                    break
    return count


def random_pattern(dice: random.Random, depth: int) -> str:
    def one() -> str:
        if depth and dice.random() < 0.4:
            return f"({random_pattern(dice, depth - 1)})" + dice.choice(["", "*", "+", "?"])
        return dice.choice(["a", "b", "c", ".", "[ab]", "[bc]"]) + dice.choice(
            ["", "", "*", "+", "?"]
        )

    branches = [
        "".join(one() for _ in range(dice.randint(1, 4))) for _ in range(dice.choice([1, 1, 2]))
    ]
    return "|".join(branches)


TEXTS = [
    unit * (600 // len(unit)) + end
    for unit in ("a", "b", "c", "ab", "abc", "aab", "bc", "acb")
    for end in ("", "!", "a!")
]


@pytest.mark.no_cover
def test_the_matcher_of_this_file_finds_slow_what_is_slow() -> None:
    assert steps(compile_pattern("^(a+)+$"), "a" * 40 + "!", 10**6) > 10**6
    assert steps(compile_pattern("^a*a*$"), "a" * 600 + "!", 10**6) > 600 * 250
    assert steps(compile_pattern("^a*b$"), "a" * 600 + "!", 10**6) < 600 * 6


@pytest.mark.no_cover
@pytest.mark.parametrize("seed", range(30))
def test_no_text_makes_a_taken_pattern_slow(seed: int) -> None:
    """30 KB of text at 4 tries for a character is a tenth of a second; these short patterns have no
    more than about 12.
    """
    dice = random.Random(seed)
    taken = 0
    while taken < 12:
        pattern = f"^{random_pattern(dice, 2)}$" if dice.random() < 0.8 else random_pattern(dice, 1)
        if "|" not in pattern.partition("(")[0] and find_backtracking(pattern) is None:
            taken += 1
            program = compile_pattern(pattern)
            for text in TEXTS:
                tries = steps(program, text, 10**6) / (len(text) + 2) / len(program)
                assert tries < 24, (pattern, text[:9])


# The other engine


def test_the_linear_engine_matches_anywhere_and_knows_ecma_262() -> None:
    matches = make_linear_matcher("(x+x+)+y$", "why")
    assert matches("--xxxxy")
    assert not matches("xxxxy\n")
    assert not matches("x" * 30_000)


def test_without_the_linear_engine_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jsonschema_rs", None)
    with pytest.raises(
        RegistrationError,
        match=r"'\(a\+\)\+' could take .* very long \(why\).*pip install .*\[validate\]'",
    ):
        make_linear_matcher("(a+)+", "why")


@pytest.mark.parametrize("pattern", ["(?=a)", r"(a)\1"])
def test_what_the_linear_engine_does_not_know_is_refused(pattern: str) -> None:
    with pytest.raises(
        RegistrationError, match=r"very long \(why\), and the linear engine does not accept it"
    ):
        make_linear_matcher(pattern, "why")


def test_fields_with_slow_patterns_are_named() -> None:
    slow = {"type": "string", "pattern": "^(a+)+$"}
    text = r"^P.x: the pattern '\^\(a\+\)\+\$' could take .* or write a pydantic model"
    for field in (
        slow,
        {"anyOf": [{"type": "null"}, slow]},
        {"items": slow},
        {"propertyNames": slow},
    ):
        with pytest.raises(RegistrationError, match=text):
            check_fields({"properties": {"P": {"properties": {"x": field}}}})


def test_fields_with_quick_patterns_and_data_are_not() -> None:
    quick = {"type": "string", "pattern": "^a+$"}
    data = {"pattern": "^(a+)+$"}
    check_fields(
        {
            "properties": {
                "pattern": {"anyOf": [quick, True]},
                "x": {"const": data, "enum": [data], "default": data, "pattern": 5},
            }
        }
    )
