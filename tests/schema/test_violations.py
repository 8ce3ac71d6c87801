"""Tests of violations.py: the hook for custom types, and how failed decodes are described."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import PurePath
from typing import Any

import msgspec
import pytest
from msgspec import json

from concertino.schema.violations import (
    InvalidValue,
    SchemaViolation,
    custom_type,
    decode_hook,
    violations_of,
)


def refuse(value: Any) -> Any:
    raise InvalidValue([SchemaViolation("", "no"), SchemaViolation(".c", "never")])


def violations(expected: Any, text: bytes, path: str = "") -> list[str]:
    with pytest.raises(msgspec.ValidationError) as caught:
        json.decode(text, type=expected, dec_hook=decode_hook)
    return [str(violation) for violation in violations_of(caught.value, path)]


def test_a_violation_reads_as_path_and_message() -> None:
    assert str(SchemaViolation("a[0]", "expected int")) == "a[0]: expected int"
    assert str(SchemaViolation("", "expected int")) == "expected int"


def test_an_invalid_value_reads_as_all_its_violations() -> None:
    assert str(InvalidValue([SchemaViolation("", "no"), SchemaViolation(".c", "never")])) == (
        "no; .c: never"
    )


@pytest.mark.parametrize("convert", [str, lambda value: None, lambda value: [value]])
def test_a_custom_type_decodes_to_whatever_its_converter_returns(
    convert: Callable[[Any], Any],
) -> None:
    decoded = json.decode(b"[5]", type=list[custom_type(convert)], dec_hook=decode_hook)
    assert decoded == [convert(5)]


def test_a_path_is_decoded_from_text_alone() -> None:
    assert json.decode(b'"a"', type=PurePath, dec_hook=decode_hook) == PurePath("a")
    assert violations(list[PurePath], b"[5]") == ["[0]: expected a path as str, got int"]


def test_violations_of_a_custom_type_stand_below_its_place() -> None:
    assert violations(list[custom_type(refuse)], b"[5]", "a") == ["a[0]: no", "a[0].c: never"]


def test_violations_stand_below_the_path_of_the_value() -> None:
    assert violations(list[dict[str, int]], b'[{"b": "x"}]', "a") == [
        "a[0][...]: expected int, got str"
    ]
    assert violations(list[int], b'["x"]') == ["[0]: expected int, got str"]


def test_a_wrong_key_is_named_as_a_key() -> None:
    assert violations(dict[int, int], b'{"x": 1}', "a") == ["a: key: expected int, got str"]


def test_a_long_text_is_cut() -> None:
    error = msgspec.ValidationError("x" * 301)
    assert violations_of(error, "") == [SchemaViolation("", "x" * 300 + "...")]


def test_the_text_of_a_users_class_stays_as_it_is() -> None:
    @dataclasses.dataclass
    class Even:
        n: int

        def __post_init__(self) -> None:
            if self.n % 2:
                raise ValueError("Not `even`")

    Even.__annotations__["n"] = int
    assert violations(list[Even], b'[{"n": 1}]') == ["[0]: Not `even`"]
