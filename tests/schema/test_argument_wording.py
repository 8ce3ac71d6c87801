"""The details of arguments that do not fit are the same for typed and hand-written schemas."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

import pytest
from guards.asking import ask_server
from msgspec import Meta, Struct

from concertino import Server


class Line(Struct, forbid_unknown_fields=True):
    item: str


def order(
    requirements: Annotated[str, Meta(min_length=3, max_length=9, pattern="^[a-z]")],
    size: Literal["small", "large"] = "small",
    count: Annotated[int, Meta(ge=1, le=5)] = 1,
    note: str | None = None,
    lines: Annotated[list[Line], Meta(max_length=2)] = [],  # noqa: B006
    weight: Annotated[float, Meta(gt=0)] = 1.0,
) -> str:
    return "fits"


def take(arguments: dict[str, Any]) -> str:
    return "fits"


@pytest.fixture(scope="module")
def server() -> Server:
    """The same tool twice: with types, and with the schema that they make."""
    server = Server("s", argument_errors="protocol")
    server.add_tool(order, name="typed")
    [listed] = ask_server(server, ("tools/list", {}))
    schema = listed["tools"][0]["inputSchema"]
    server.add_tool(take, name="written", input_schema=schema)
    return server


def details(server: Server, tool: str, arguments: dict[str, Any]) -> list[str]:
    [error] = ask_server(server, ("tools/call", {"name": tool, "arguments": arguments}))
    assert (error.code, error.message) == (-32602, "Invalid params")
    return sorted(error.data["details"].split("; "))


GOOD = {"requirements": "a shop"}


CASES: list[tuple[dict[str, Any], list[str]]] = [
    ({}, ["Missing required field: requirements"]),
    ({"requirements": 5}, ["requirements: expected str, got int"]),
    ({"requirements": "ab"}, ["requirements: expected str of length >= 3"]),
    ({"requirements": "a" * 10}, ["requirements: expected str of length <= 9"]),
    ({"requirements": "A shop"}, ["requirements: expected str matching regex '^[a-z]'"]),
    (GOOD | {"size": "huge"}, ['size: expected one of ["small","large"], got \'huge\'']),
    (GOOD | {"count": 0}, ["count: expected int >= 1"]),
    (GOOD | {"count": 6}, ["count: expected int <= 5"]),
    (GOOD | {"count": 1.5}, ["count: expected int, got float"]),
    (GOOD | {"note": []}, ["note: expected str | null, got array"]),
    (GOOD | {"lines": {}}, ["lines: expected array, got object"]),
    (GOOD | {"lines": [{}]}, ["Missing required field: lines[0].item"]),
    (GOOD | {"lines": [{"item": "a", "x": 1}]}, ["lines[0].x: unknown argument"]),
    (GOOD | {"lines": [{"item": None}]}, ["lines[0].item: expected str, got null"]),
    (GOOD | {"lines": [{"item": ""}] * 3}, ["lines: expected array of length <= 2"]),
    (GOOD | {"weight": "1"}, ["weight: expected float, got str"]),
    (GOOD | {"cuont": 1}, ["cuont: unknown argument", "did you mean count?"]),
    (
        {"count": "1", "size": "small"},
        ["Missing required field: requirements", "count: expected int, got str"],
    ),
]


@pytest.mark.parametrize(("arguments", "expected"), CASES)
def test_both_kinds_of_schemas_have_the_same_words(
    server: Server, arguments: dict[str, Any], expected: list[str]
) -> None:
    assert details(server, "typed", arguments) == expected
    assert details(server, "written", arguments) == expected


def test_a_schema_without_properties_says_that_it_takes_no_arguments() -> None:
    server = Server("s", argument_errors="protocol")
    server.add_tool(
        take, name="none", input_schema={"type": "object", "additionalProperties": False}
    )
    assert details(server, "none", {"x": 1}) == [
        "it takes no arguments",
        "unknown argument",
    ]


def test_a_keyword_that_types_do_not_have_keeps_the_words_of_the_validator() -> None:
    server = Server("s", argument_errors="protocol")
    schema = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
    server.add_tool(take, name="unique", input_schema=schema)
    assert details(server, "unique", {"a": [1, 1]}) == ["a: [1,1] has non-unique elements"]


def test_numbers_of_any_size_are_quoted() -> None:
    server = Server("s", argument_errors="protocol")
    schema = {"type": "object", "properties": {"a": {"enum": [10**30, None]}}}
    server.add_tool(take, name="big", input_schema=json.loads(json.dumps(schema)))
    assert details(server, "big", {"a": 5}) == [f"a: expected one of [{10**30},null], got 5"]


def test_an_array_in_the_place_of_a_listed_value_is_named_by_its_type() -> None:
    server = Server("s", argument_errors="protocol")
    schema = {"type": "object", "properties": {"a": {"enum": [1, None]}}}
    server.add_tool(take, name="listed", input_schema=schema)
    assert details(server, "listed", {"a": [1]}) == ["a: expected one of [1,null], got array"]


def test_alternatives_that_are_no_types_keep_the_words_of_the_validator() -> None:
    server = Server("s", argument_errors="protocol")
    either = {"anyOf": [{"type": "string", "minLength": 3}, {"type": "integer"}]}
    server.add_tool(
        take, name="either", input_schema={"type": "object", "properties": {"a": either}}
    )
    [detail] = details(server, "either", {"a": "x"})
    assert detail.startswith("a: ")
    assert "expected" not in detail
