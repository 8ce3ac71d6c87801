"""json_values.py: Python values as JSON trees, and the places of NaN and infinity."""

from __future__ import annotations

import datetime
import enum
import math

import msgspec
import pytest
from msgspec import Raw

from concertino.schema import json_values
from concertino.schema.json_values import encode_finite, find_nan, json_value, nan_path


class Color(enum.Enum):
    RED = "r"


def test_a_value_becomes_the_json_tree_that_is_written() -> None:
    assert json_value((1, Color.RED, {"a": datetime.date(2020, 1, 1)})) == [
        1,
        "r",
        {"a": "2020-01-01"},
    ]
    for bad in (float("nan"), [float("inf")], object(), "\ud800"):
        with pytest.raises((ValueError, TypeError)):
            json_value(bad)


def test_nan_is_found_at_any_depth() -> None:
    nan = float("nan")
    assert nan_path({"a": [1, (1.5, None, "x")], "b": {"c": {2}}}) is None
    assert nan_path(nan) == ""
    assert nan_path({"a": [1, {"b": nan}]}) == "a[1].b"
    assert nan_path([[-float("inf")]]) == "[0][0]"
    assert nan_path({1: {nan}}) == "1[0]"


@pytest.mark.parametrize("number", [math.nan, -math.nan, math.inf, -math.inf])
def test_nan_is_found_beside_integers_that_messagepack_lacks(number: float) -> None:
    assert find_nan({"a": [2**64, None, {"b": number}]}, "x") == "x.a[2].b"
    assert find_nan([None, {"b": number}]) == "[1].b"
    assert find_nan({"a": 2**64, "b": None}) is None


def test_a_value_with_null_is_not_walked_for_nan(monkeypatch: pytest.MonkeyPatch) -> None:
    def walk(*_: object) -> None:
        raise AssertionError("176 ms for 4 MB")

    monkeypatch.setattr(json_values, "nan_path", walk)
    for value in (
        None,
        [1.5, 1e308, -0.0, 5e-324],
        {"é": "Ë\x7fð", "b": b"\xcb\x7f", "c": Raw(b"1")},
    ):
        assert encode_finite([None, value])


def test_the_path_of_a_nan_starts_with_the_given_one():
    nan = float("nan")
    assert nan_path([nan], "x") == "x[0]"
    assert nan_path({"a": nan}, "x") == "x.a"
    assert nan_path(nan, "x") == "x"


class Point(msgspec.Struct):
    x: float
    label: str | None = None


def test_a_nan_in_any_value_is_refused_where_it_would_become_null() -> None:
    assert encode_finite({"a": [1.5, None], "b": Point(2.0)}) == (
        b'{"a":[1.5,null],"b":{"x":2.0,"label":null}}'
    )
    assert encode_finite(msgspec.Raw(b'{"a":null}')) == b'{"a":null}'
    assert encode_finite("null") == b'"null"'
    with pytest.raises(ValueError, match=r"^expected a finite number, got NaN or infinity$"):
        encode_finite(float("inf"))
    with pytest.raises(ValueError, match=r"^point\.x: expected a finite number"):
        encode_finite(Point(float("nan")), "point")
    with pytest.raises(ValueError, match=r"^a\[1\]: "):
        encode_finite({"r": msgspec.Raw(b"null"), "a": [1, float("-inf")]})
