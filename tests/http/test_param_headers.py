"""Headers for arguments. The rules are in ../shared/spec/HTTP.md, HM-40 to HM-47."""

from __future__ import annotations

from typing import Any

import pytest

from concertino.http.param_headers import (
    InvalidAnnotation,
    encode_header_text,
    find_mismatch,
    param_header_lines,
    read_annotations,
)


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


REGION = {"type": "string", "x-mcp-header": "Region"}


def test_arguments_are_repeated_in_headers() -> None:
    headers = read_annotations(
        _object(
            region=REGION,
            limit={"type": ["integer", "null"], "x-mcp-header": "Limit"},
            options=_object(dry={"type": "boolean", "x-mcp-header": "Dry-Run"}),
            plain={"type": "string"},
        )
    )

    arguments = {"region": "eu", "limit": 7, "options": {"dry": True}, "plain": "x"}
    assert param_header_lines(headers, arguments) == (
        b"Mcp-Param-Region: eu\r\nMcp-Param-Limit: 7\r\nMcp-Param-Dry-Run: true\r\n"
    )
    # Null, missing, and of another type.
    assert param_header_lines(headers, {"limit": None, "options": 3, "region": 1.5}) == b""
    assert param_header_lines(headers, {"region": "", "limit": 2**53}) == b"Mcp-Param-Region: \r\n"


@pytest.mark.parametrize(
    "schema",
    [
        _object(a={"type": "string", "x-mcp-header": ""}),
        _object(a={"type": "string", "x-mcp-header": "My Region"}),
        _object(a={"type": "string", "x-mcp-header": "R\u00e9gion"}),
        _object(a={"type": "string", "x-mcp-header": 5}),
        _object(a={"type": "number", "x-mcp-header": "A"}),
        _object(a={"x-mcp-header": "A"}),
        _object(a={"type": "array", "items": REGION}),
        _object(a={"oneOf": [REGION]}),
        _object(a=REGION, b={"type": "string", "x-mcp-header": "REGION"}),
        {"type": "object", "$defs": {"a": REGION}},
        {"type": "object", "x-mcp-header": "A"},
    ],
)
def test_annotations_that_are_invalid_are_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(InvalidAnnotation):
        read_annotations(schema)


def test_data_named_like_the_annotation_is_no_annotation() -> None:
    schema = _object(**{"x-mcp-header": {"type": "string", "default": {"x-mcp-header": " "}}})

    assert read_annotations(schema) == {}


# The Base64 was written by `printf TEXT | base64`.
@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("us-west1", "us-west1"),
        ("a b", "a b"),
        ("", ""),
        (" a", "=?base64?IGE=?="),
        ("a\tb", "=?base64?YQli?="),
        ("\u00fc", "=?base64?w7w=?="),
        ("a\r\nX: y", "=?base64?YQ0KWDogeQ==?="),
        ("=?base64?YQ==?=", "=?base64?PT9iYXNlNjQ/WVE9PT89?="),
        ("=?base64?YQ==", "=?base64?YQ=="),
    ],
)
def test_text_that_a_header_cannot_carry_is_encoded(text: str, value: str) -> None:
    assert encode_header_text(text) == value


HEADERS = read_annotations(
    _object(
        region=REGION,
        limit={"type": "integer", "x-mcp-header": "Limit"},
        options=_object(dry={"type": "boolean", "x-mcp-header": "Dry-Run"}),
    )
)


@pytest.mark.parametrize(
    ("arguments", "lines", "problem"),
    [
        ({"region": "eu"}, {"region": "eu"}, None),
        ({"region": ""}, {"region": ""}, None),
        ({"region": "Z\u00fcrich"}, {"region": "=?base64?WsO8cmljaA==?="}, None),
        # A prefix without the suffix is the text itself.
        ({"region": "=?base64?eu"}, {"region": "=?base64?eu"}, None),
        # HM-50: integers are compared as numbers.
        ({"limit": 42}, {"limit": "42.0"}, None),
        ({"limit": 42.0}, {"limit": "42"}, None),
        ({"limit": -7}, {"limit": "-7"}, None),
        ({"options": {"dry": True}}, {"dry-run": "true"}, None),
        # HM-51: nothing is expected for null and for what is missing.
        ({"region": None}, {}, None),
        ({}, {}, None),
        (None, {}, None),
        # A value of a wrong type is refused as an argument.
        ({"region": ["eu"], "limit": 1.5}, {}, None),
        ({"region": "eu"}, {}, "Mcp-Param-Region is missing"),
        ({"options": {"dry": False}}, {}, "Mcp-Param-Dry-Run is missing"),
        ({"region": "eu"}, {"region": "us"}, "Mcp-Param-Region is not the argument region"),
        ({"region": "eu"}, {"region": "EU"}, "Mcp-Param-Region is not the argument region"),
        ({"region": "a"}, {"region": "=?base64?YQ?="},
         "Mcp-Param-Region is not the argument region"),
        ({"region": None}, {"region": "eu"}, "Mcp-Param-Region is not the argument region"),
        ({"region": "true"}, {"region": "x"}, "Mcp-Param-Region is not the argument region"),
        ({"limit": 42}, {"limit": "43"}, "Mcp-Param-Limit is not the argument limit"),
        ({"limit": 42}, {"limit": "42.5"}, "Mcp-Param-Limit is not the argument limit"),
        ({"limit": 1}, {"limit": "true"}, "Mcp-Param-Limit is not the argument limit"),
        ({"options": {"dry": True}}, {"dry-run": "1"},
         "Mcp-Param-Dry-Run is not the argument options.dry"),
    ],
)  # fmt: skip
def test_headers_are_compared_with_the_arguments(
    arguments: Any, lines: dict[str, str], problem: str | None
) -> None:
    values = {f"mcp-param-{name}".encode(): text.encode() for name, text in lines.items()}

    assert find_mismatch(HEADERS, values, (), arguments) == problem


def test_a_header_that_comes_twice_is_refused() -> None:
    values = {b"mcp-param-region": b"eu, eu"}

    problem = find_mismatch(HEADERS, values, {b"mcp-param-region"}, {"region": "eu, eu"})

    assert problem == "Mcp-Param-Region came more than once"
