"""constraints.py: the metadata of Annotated. Keywords are those of JSON Schema 2020-12 Validation.

test_type_schema.py tests how constraints pass through unions and stop at containers.
"""

from __future__ import annotations

import datetime
import re
from typing import Any, cast

import annotated_types as at
import msgspec
import pydantic
import pytest
import typing_extensions
from msgspec import Meta

from concertino.schema.constraints import Constraints, NeedsPydantic, describe, split_metadata
from concertino.schema.violations import decode_hook

# A pattern that Python's `re` may need exponential time for.
SLOW = "^(a+)+$"
STRING = {"type": "string"}
INTEGER = {"type": "integer"}


def collect(*metadata: object) -> Constraints:
    constraints = Constraints()
    for item in metadata:
        constraints.collect(item)
    return constraints


def decode(type: Any, text: str) -> Any:
    return msgspec.json.decode(text, type=type, dec_hook=decode_hook)


@pytest.mark.parametrize(
    ("item", "kind", "schema", "expected"),
    [
        (at.Gt(1), int, INTEGER, {"exclusiveMinimum": 1}),
        (at.Ge(1), int, INTEGER, {"minimum": 1}),
        (at.Lt(1), float, {"type": "number"}, {"exclusiveMaximum": 1}),
        (at.Le(1), float, {"type": "number"}, {"maximum": 1}),
        (at.MultipleOf(5), int, INTEGER, {"multipleOf": 5}),
        (at.MinLen(1), str, STRING, {"minLength": 1}),
        (at.MaxLen(1), list[int], {"type": "array"}, {"maxItems": 1}),
        (at.MinLen(1), dict[str, int], {"type": "object"}, {"minProperties": 1}),
        (Meta(pattern="^a"), str, STRING, {"pattern": "^a"}),
    ],
)
def test_a_constraint_that_fits_becomes_a_keyword(
    item: object, kind: Any, schema: dict[str, Any], expected: dict[str, Any]
):
    constraints = collect(item)
    type, with_constraints = constraints.apply(kind, schema)
    assert with_constraints == {**schema, **expected}
    assert type.__origin__ == kind
    assert constraints.find_unfit() == []


def test_msgspec_checks_the_constraints():
    type, _ = collect(at.Ge(1), at.Le(3)).apply(int, INTEGER)
    assert decode(type, "3") == 3
    with pytest.raises(msgspec.ValidationError):
        decode(type, "4")


def test_a_constraint_that_does_not_fit_is_reported():
    constraints = collect(at.Ge(1), at.MinLen(2))
    assert constraints.apply(str, STRING)[1] == {"type": "string", "minLength": 2}
    assert constraints.find_unfit() == ["ge"]
    assert constraints.apply(type(None), {"type": "null"}) == (type(None), {"type": "null"})


def test_without_constraints_a_type_stays_as_it_is_and_its_schema_is_copied():
    kind, schema = Constraints().apply(str, STRING)
    assert kind is str
    assert schema == STRING
    assert schema is not STRING


def test_a_time_zone_has_no_keyword():
    kind, schema = collect(Meta(tz=True)).apply(datetime.datetime, {"type": "string"})
    assert schema == {"type": "string"}
    assert decode(kind, '"2020-01-01T00:00:00Z"').tzinfo is not None
    with pytest.raises(msgspec.ValidationError):
        decode(kind, '"2020-01-01T00:00:00"')


def test_the_keywords_of_str_fit_no_other_type_that_is_written_as_a_string():
    constraints = collect(at.MinLen(2))
    assert constraints.apply(datetime.date, STRING) == (datetime.date, STRING)
    assert constraints.find_unfit() == ["min_length"]


def test_an_inner_annotated_has_the_constraints_of_the_outer_one_but_reports_its_own():
    outer = collect(at.Ge(1))
    inner = outer.copy()
    inner.collect(at.MinLen(2))
    assert inner.apply(int, INTEGER)[1] == {"type": "integer", "minimum": 1}
    assert inner.find_unfit() == ["min_length"]
    # The outer one counts as used, because the inner type used it.
    assert outer.find_unfit() == []


def test_a_predicate_is_no_constraint():
    assert collect(at.Predicate(bool)).apply(int, INTEGER) == (int, INTEGER)


def test_a_pattern_may_be_compiled():
    constraints = Constraints()
    for item in split_metadata(pydantic.Field(pattern=cast("str", re.compile("^a")))):
        constraints.collect(item)
    assert constraints.apply(str, STRING)[1] == {"type": "string", "pattern": "^a"}


def test_a_slow_pattern_of_msgspec_is_matched_by_the_linear_engine():
    kind, schema = collect(Meta(pattern=SLOW, max_length=3)).apply(str, STRING)
    assert schema == {"type": "string", "pattern": SLOW, "maxLength": 3}
    assert decode(kind, '"aa"') == "aa"
    for text in ('"b"', '"aaaa"', "5"):
        with pytest.raises(msgspec.ValidationError):
            decode(kind, text)


def test_a_slow_pattern_of_pydantic_is_left_to_pydantic():
    constraints = Constraints()
    for item in split_metadata(pydantic.Field(pattern=SLOW)):
        constraints.collect(item)
    with pytest.raises(NeedsPydantic):
        constraints.apply(str, STRING)


def test_an_interval_is_split_into_its_constraints():
    assert set(split_metadata(at.Interval(ge=1, lt=9))) == {at.Ge(1), at.Lt(9)}
    assert split_metadata(at.Ge(1)) == [at.Ge(1)]
    assert split_metadata("text") == ["text"]


def test_a_field_of_pydantic_is_split_into_itself_and_its_constraints():
    field = pydantic.Field(ge=1, description="D")
    assert split_metadata(field) == [field, at.Ge(1)]


def test_other_metadata_of_pydantic_needs_pydantic():
    with pytest.raises(NeedsPydantic):
        split_metadata(pydantic.AfterValidator(abs))


@pytest.mark.parametrize(
    ("item", "words"),
    [
        ("How many.", {"description": "How many."}),
        (typing_extensions.Doc("How many."), {"description": "How many."}),
        (
            Meta(title="T", description="D", examples=[1], extra_json_schema={"x-y": 2}),
            {"title": "T", "description": "D", "examples": [1], "x-y": 2},
        ),
        (Meta(title="T"), {"title": "T"}),
        (
            pydantic.Field(title="T", description="D", examples=[1]),
            {"title": "T", "description": "D", "examples": [1]},
        ),
        (at.Ge(1), {}),
        (5, {}),
    ],
)
def test_metadata_describes_a_type(item: object, words: dict[str, Any]):
    assert describe(item) == words
