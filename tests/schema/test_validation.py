"""schema_problems.py: whether a value fits is what another implementation says; how it does not, is
named within bounds.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import jsonschema
import jsonschema_rs
import pytest

from concertino.errors import RegistrationError
from concertino.schema.validation import MAX_VIOLATIONS, VALIDATORS, violation_finder
from concertino.schema.violations import SchemaViolation

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer", "minimum": 0},
        "a/b": {"type": "null"},
    },
    "required": ["name"],
    "additionalProperties": False,
}
TREE: dict[str, Any] = {
    "type": "object",
    "properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}, "n": {"type": "integer"}},
    "required": ["n"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    "schema", [PERSON, TREE, {"anyOf": [{"type": "null"}, {"type": "array", "maxItems": 2}]}, {}]
)
@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        [1, 2, 3],
        {},
        {"name": "a"},
        {"name": 1},
        {"name": "a", "age": -1},
        {"n": 1},
        {"n": 1, "left": {}},
        {"x": 1},
        "a",
        5,
    ],
)
def test_a_value_fits_where_another_implementation_says_so(
    schema: dict[str, Any], value: Any
) -> None:
    fits = jsonschema.Draft202012Validator(schema).is_valid(value)
    assert (violation_finder(schema, "schema")(value, 100) == []) is fits


def test_problems_are_named_by_their_place() -> None:
    assert violation_finder(PERSON, "schema")({"name": 5, "age": -1}, 30) == [
        SchemaViolation("name", '5 is not of type "string"'),
        SchemaViolation("age", "-1 is less than the minimum of 0"),
    ]


@pytest.mark.parametrize("dialect", VALIDATORS)
def test_every_dialect_that_servers_publish_is_known(dialect: str) -> None:
    find = violation_finder({"type": "object", "required": ["a"]}, "schema", dialect)
    assert find({"a": 1}, 10) == []
    assert len(find({}, 10)) == 1


def test_where_naming_every_problem_has_no_bound_members_are_named() -> None:
    find = violation_finder(TREE, "schema")  # it refers to itself
    bad = {"left": {"n": "x"}, "a/b": 1, **{f"x{number}": 1 for number in range(50)}}
    found = find(bad, 1000)
    assert found[:3] == [
        SchemaViolation("n", "required, but missing"),
        SchemaViolation("left", "does not fit its schema"),
        SchemaViolation("a/b", "unknown name"),
    ]
    assert len(found) == MAX_VIOLATIONS
    assert find([1], 3) == [SchemaViolation("n", "required, but missing")]
    large = violation_finder(PERSON, "schema")
    assert large({"name": 1}, 10**9) == [
        SchemaViolation("name", "does not fit its schema")
    ]  # many bytes
    assert large({"name": "a", "age": list(range(60_000))}, 10) == [
        SchemaViolation("age", "does not fit its schema")
    ]  # values
    assert large([[1]] * 60_000, 10) == [SchemaViolation("name", "required, but missing")]
    plain = violation_finder({"type": "array", "items": {"type": "null"}}, "schema")
    assert plain([1] * 60_000, 10) == [SchemaViolation("", "does not fit the schema")]


def test_members_that_a_pattern_allows_are_not_unknown() -> None:
    schema = {
        "patternProperties": {"^x": {"type": "null"}},
        "additionalProperties": False,
        "not": {"$ref": "#/$defs/all"},
        "$defs": {"all": {}},
    }
    assert violation_finder(schema, "schema")({"x": None}, 10**9) == [
        SchemaViolation("", "does not fit the schema")
    ]


def test_long_values_are_quoted_short() -> None:
    [problem] = violation_finder({"type": "integer"}, "schema")("x" * 10_000, 10_000)
    assert len(problem.message) < 400
    assert problem.message.endswith("...")


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"$ref": "https://example.com/a.json"}, "schema: "),
        ({"type": "nonsense"}, 'schema: #/type: "nonsense" is not'),
        (
            {"pattern": "(?=a)"},
            "patterns are matched in linear time, without look-around and back-references",
        ),
    ],
)
def test_a_schema_that_cannot_be_enforced_is_refused(schema: dict[str, Any], text: str) -> None:
    with pytest.raises(RegistrationError) as refused:
        violation_finder(schema, "schema")
    assert text in str(refused.value)


def test_without_the_extra_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jsonschema_rs", None)
    with pytest.raises(RegistrationError, match=r"pip install .*\[validate\]'"):
        violation_finder({}, "input_schema")


def test_nothing_is_fetched_whatever_the_validator_would_like(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def curious(schema: object, *, retriever: Callable[[str], object], **_: object) -> None:
        retriever("https://example.com/a.json")

    monkeypatch.setattr(jsonschema_rs, "Draft202012Validator", curious)
    with pytest.raises(
        RegistrationError,
        match=r"schema: https://example\.com/a\.json is not in the schema, and never fetched",
    ):
        violation_finder({}, "schema")


def test_a_value_beyond_what_can_be_taken_over_does_not_fit() -> None:
    deep: Any = 1
    for _ in range(300):
        deep = [deep]
    assert violation_finder({"const": 1}, "schema")(deep, 1000) == [
        SchemaViolation("", "does not fit the schema")
    ]
