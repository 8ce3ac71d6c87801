"""Tests of custom_decoders.py: the values that each converter returns, and how it refuses others.

test_type_schema.py tests which types get a converter, and their schemas.
"""

from __future__ import annotations

import datetime
import pathlib
import sys
from collections.abc import Callable
from typing import Annotated, Any

import pydantic
import pytest

from concertino.errors import RegistrationError
from concertino.schema.custom_decoders import (
    make_member_converter,
    make_pattern_converter,
    make_pydantic_converter,
    make_union_converter,
)
from concertino.schema.violations import InvalidValue

DAY = datetime.date(2020, 1, 1)
SLOW = "^(a|a)*$"
NO_ENGINE = r"pip install .*\[validate\]'"


class Person(pydantic.BaseModel):
    name: str


def refusal(convert: Callable[[Any], Any], value: Any) -> list[str]:
    with pytest.raises(InvalidValue) as refused:
        convert(value)
    return [str(problem) for problem in refused.value.violations]


@pytest.mark.parametrize(
    ("members", "strict", "value", "expected"),
    [
        ([datetime.date, str], True, "2020-01-01", DAY),
        ([datetime.date, str], True, "soon", "soon"),
        ([str, datetime.date], True, "2020-01-01", "2020-01-01"),
        ([datetime.date, int], False, "7", 7),
        ([dict[int, int], str], True, {"1": 2}, {1: 2}),
        ([pathlib.PurePath, int], True, "a", pathlib.PurePath("a")),
    ],
    ids=str,
)
def test_the_first_member_of_a_union_that_takes_a_value_has_it(
    members: list[Any], strict: bool, value: Any, expected: Any
) -> None:
    found = make_union_converter(members, strict)(value)
    assert (type(found), found) == (type(expected), expected)


def test_what_no_member_takes_is_told_once_for_each_reason() -> None:
    convert = make_union_converter([datetime.date, datetime.time, str, str], True)
    said = (
        "fits no member of the union: expected date, got int; or expected time, got int; or "
        "expected str, got int"
    )
    assert refusal(convert, 7) == [said]
    assert refusal(make_union_converter([list[int], int], True), ["x"]) == [
        "fits no member of the union: [0]: expected int, got str; or expected int, got array"
    ]


def test_members_are_told_apart_by_type_and_value() -> None:
    convert = make_member_converter([(1, "one"), (True, "yes"), (1.0, "float"), ([1, "x"], "pair")])
    assert [convert(value) for value in (1, True, 1.0, [1, "x"])] == ["one", "yes", "float", "pair"]
    assert refusal(convert, False) == ['expected one of 1, true, 1.0, [1,"x"]']


def test_a_pattern_and_its_limits_hold() -> None:
    convert = make_pattern_converter(SLOW, {"max_length": 3}, "for a reason")
    assert convert("aaa") == "aaa"
    assert refusal(convert, "b") == ["expected str matching regex '^(a|a)*$'"]
    assert refusal(convert, "aaaa") == ["expected str of length <= 3"]
    assert refusal(convert, 5) == ["expected str, got int"]


def test_a_pattern_without_the_linear_engine_is_refused_when_it_is_registered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "jsonschema_rs", None)
    with pytest.raises(RegistrationError, match=NO_ENGINE):
        make_pattern_converter(SLOW, {}, "for a reason")


def test_pydantic_says_what_is_wrong_and_where() -> None:
    people = pydantic.TypeAdapter[Any](dict[str, list[Person]])
    convert = make_pydantic_converter(people)
    assert convert({"a": [{"name": "x"}]}) == {"a": [Person(name="x")]}
    assert refusal(convert, {"a": [{"name": 1}, {}]}) == [
        ".a[0].name: Input should be a valid string",
        ".a[1].name: Field required",
    ]


def test_reports_of_pydantic_are_bounded() -> None:
    assert (
        len(refusal(make_pydantic_converter(pydantic.TypeAdapter[Any](list[Person])), [{}] * 100))
        == 20
    )
    assert refusal(
        make_pydantic_converter(pydantic.TypeAdapter[Any](dict[str, Person])), {"k" * 100: {}}
    ) == [f".{'k' * 80}.name: Field required"]


def test_other_errors_of_a_users_pydantic_hook_are_not_problems_of_the_value() -> None:
    hook = pydantic.AfterValidator(lambda value: {}[value])
    with pytest.raises(KeyError):
        make_pydantic_converter(pydantic.TypeAdapter[Any](Annotated[str, hook]))("x")
