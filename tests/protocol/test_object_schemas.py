"""object_schemas.py: the schemas of values that travel in an object.

Expected schemas are written out, or tried with the validator of another project.
"""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest

from concertino.protocol.object_schemas import to_object_schema


@pytest.mark.requirement("TO-15")
@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (
            {"type": "integer"},
            {
                "type": "object",
                "properties": {"result": {"type": "integer"}},
                "required": ["result"],
                "x-fastmcp-wrap-result": True,
            },
        ),
        (
            {"$ref": "#/$defs/P", "$defs": {"P": {"type": "object"}}},
            {"type": "object", "$ref": "#/$defs/P", "$defs": {"P": {"type": "object"}}},
        ),
        (
            {"anyOf": [{"type": "object"}, {"type": "null"}]},
            {
                "type": "object",
                "anyOf": [
                    {
                        "properties": {"result": {"anyOf": [{"type": "object"}, {"type": "null"}]}},
                        "required": ["result"],
                        "x-fastmcp-wrap-result": True,
                    },
                    {"anyOf": [{"type": "object"}, {"type": "null"}]},
                ],
            },
        ),
        (
            {
                "type": "array",
                "items": {"$ref": "#"},
                "$defs": {"D": {"$ref": "#/items"}},
                "$schema": "s",
            },
            {
                "type": "object",
                "properties": {
                    "result": {"type": "array", "items": {"$ref": "#/properties/result"}}
                },
                "required": ["result"],
                "x-fastmcp-wrap-result": True,
                "$defs": {"D": {"$ref": "#/properties/result/items"}},
                "$schema": "s",
            },
        ),
    ],
)
def test_an_output_schema_describes_what_travels(schema: dict[str, Any], expected: dict[str, Any]):
    assert to_object_schema(schema) == expected


U = "https://example.com/s"
ARRAY = {"type": "array", "items": {"$ref": "#/$defs/i"}, "$defs": {"i": {"type": "integer"}}}
TREE = {"anyOf": [{"type": "integer"}, {"type": "array", "items": {"$ref": "#"}}]}
P = {"$anchor": "p", "type": "object", "propertyNames": {"const": "a"}}
POINT = {"anyOf": [{"$ref": "#/$defs/p"}, {"type": "null"}], "$defs": {"p": P}}
NAMED: list[tuple[dict[str, Any], Any, Any]] = [  # a schema, what fits it, what does not
    ({"$id": U, **ARRAY}, [1], ["a"]),
    ({"$id": f"{U}#", **ARRAY}, [1], ["a"]),
    ({"$id": "urn:a:b", **ARRAY}, [1], ["a"]),
    ({"$id": U, **POINT}, {"a": 1}, 5),
    ({"$id": U, **POINT}, None, [1]),
    (POINT, {"a": 1}, 5),
    ({"$id": U, **ARRAY, "items": {"$ref": f"{U}#/$defs/i"}}, [1], ["a"]),
    ({"$id": U, **TREE}, [[1], 2], [["a"]]),
    ({"$id": U, "type": ["array", "integer"], "items": {"$ref": U}}, [[1], 2], [["a"]]),
    ({"$id": U, "type": ["array", "integer"], "items": {"$ref": "s#"}}, [[1], 2], [["a"]]),
    ({"$id": U, "type": ["array", "integer"], "items": {"$dynamicRef": "#"}}, [[1], 2], [["a"]]),
    ({"type": ["array", "integer"], "items": {"$ref": "#me"}, "$anchor": "me"}, [[1], 2], [["a"]]),
    (
        {
            "type": ["array", "object"],
            "maxProperties": 0,
            "items": {"$ref": "#me"},
            "$anchor": "me",
        },
        [[], {}],
        [["a"]],
    ),
    (
        {
            "type": "array",
            "items": {"$id": U, "type": ["array", "integer"], "items": {"$ref": "#"}},
        },
        [[1, [2]]],
        [[1, ["a"]]],
    ),
    (
        {
            "type": "array",
            "items": {"$ref": U},
            "$defs": {"e": {"$id": U, "$ref": "#/$defs/f", "$defs": {"f": {"const": 1}}}},
        },
        [1],
        [2],
    ),
]


def test_an_id_that_is_no_text_is_kept_and_names_nothing():
    schema = {"$id": 5, "type": "array", "items": {"$ref": "#/$defs/a"}, "$defs": {"a": {}}}
    found = to_object_schema(schema)
    assert found["$id"] == 5
    assert found["properties"]["result"]["items"] == {"$ref": "#/$defs/a"}


@pytest.mark.parametrize(("schema", "good", "bad"), NAMED, ids=str)
def test_an_output_schema_with_names_of_its_own_describes_what_travels(
    schema: dict[str, Any], good: Any, bad: Any
):
    assert jsonschema.Draft202012Validator(schema).is_valid(good)
    assert not jsonschema.Draft202012Validator(schema).is_valid(bad)
    found = to_object_schema(schema)
    assert found["type"] == "object"
    validator = jsonschema.Draft202012Validator(found)
    travels = good if isinstance(good, dict) else {"result": good}
    validator.validate(travels)
    assert not validator.is_valid({"result": bad})
