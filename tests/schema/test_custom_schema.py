"""schema_checks.py: which hand-written schemas are refused, with what words, and how much work the
others can cause.

Which references resolve is taken from `jsonschema`'s `referencing`, another implementation; extents
are counted by hand.
"""

from __future__ import annotations

import json
import random
import socket
from typing import Any

import jsonschema
import pytest
import referencing.exceptions

from concertino.errors import RegistrationError
from concertino.schema.custom_schema import DIALECT, SchemaSize, check_references, check_size

TREE = {"type": "object", "properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}}}


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]
    def refused(*_: object) -> None:
        pytest.fail("a schema made somebody connect or open a file")

    monkeypatch.setattr(socket.socket, "connect", refused)
    monkeypatch.setattr(socket, "getaddrinfo", refused)


def refusal(schema: Any) -> str:
    def looked_at() -> None:
        check_size(schema)
        check_references(schema)

    with pytest.raises(RegistrationError) as refused:
        looked_at()
    return str(refused.value)


# Size


def nest(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(levels - 1):
        schema = {"not": schema}
    return schema


def test_a_schema_of_100_levels_passes_and_of_101_does_not() -> None:
    check_size(nest(100))
    assert (
        refusal(nest(102)) == "nested too deeply, or contains itself: expected at most 100 levels"
    )


@pytest.mark.requirement("JS-7")
def test_a_schema_of_depth_10_000_is_refused() -> None:
    assert "nested too deeply" in refusal(nest(10_000))


@pytest.mark.requirement("JS-7")
def test_a_schema_of_100_000_subschemas_is_refused() -> None:
    assert "too large: expected at most" in refusal({"anyOf": [{} for _ in range(100_000)]})
    assert (
        refusal({"anyOf": [{} for _ in range(10_001)]})
        == "too large: expected at most 10,000 subschemas"
    )
    assert check_references({"anyOf": [{} for _ in range(10_000)]}) == SchemaSize(10_001, False)
    assert refusal({"anyOf": [True] * 10_001}) == "too large: expected at most 10,000 subschemas"


def test_an_object_that_contains_itself_is_refused() -> None:
    schema: dict[str, Any] = {"type": "object"}
    schema["properties"] = {"a": schema}
    assert "contains itself" in refusal(schema)
    items: list[Any] = []
    items.append(items)
    assert "contains itself" in refusal({"enum": items})


def test_an_object_that_contains_itself_ten_times_is_refused_before_it_grows() -> None:
    schema: dict[str, Any] = {}
    schema["allOf"] = [schema] * 10
    assert refusal(schema) == "too large: expected at most 100,000 values in it"


def test_one_object_shared_2_to_the_90_times_is_refused() -> None:
    schema: Any = {}
    for _ in range(90):
        schema = {"anyOf": (schema, schema)}
    assert "100,000 values" in refusal(schema)


def test_a_schema_of_more_than_a_million_characters_is_refused() -> None:
    check_size({"description": "x" * (2**20 - 11)})
    assert (
        refusal({"description": "x" * 2**20})
        == "too large: expected at most 1,048,576 characters in it"
    )
    assert "1,048,576 characters" in refusal({"properties": {"x" * 2**20: 5}})


def test_what_is_no_schema_is_left_to_others() -> None:
    check_size(5)
    check_size({5: None, "x": 1.5})
    odd = {
        "properties": 5,
        "allOf": {},
        "$ref": 5,
        "$id": 5,
        "$anchor": 5,
        "not": 5,
        "$defs": [],
        "items": None,
    }
    assert check_references(odd) == SchemaSize(1, False)


# Dialects


@pytest.mark.requirement("JS-1", "JS-2")
@pytest.mark.parametrize("said", [DIALECT, DIALECT + "#"])
def test_the_dialect_is_2020_12(said: str) -> None:
    assert check_references({"$schema": said, "items": {"$schema": said}}) == SchemaSize(2, False)


@pytest.mark.requirement("JS-3")
@pytest.mark.parametrize(
    ("said", "words"),
    [
        (
            "http://json-schema.org/draft-07/schema#",
            ["draft-07", "$defs for definitions", "prefixItems"],
        ),
        ("http://json-schema.org/draft-06/schema#", ["draft-06", "$defs for definitions"]),
        ("http://json-schema.org/draft-04/schema#", ["draft-04", "$id for id"]),
        ("http://json-schema.org/draft-03/schema#", ["draft-03 (http"]),
        (
            "https://json-schema.org/draft/2019-09/schema",
            ["draft 2019-09", "$dynamicRef for $recursiveRef"],
        ),
        ("https://example.com/mine", ["got 'https://example.com/mine'"]),
        (5, ["got 5"]),
        (None, ["got None"]),
        ("x" * 500, ["xxx..."]),
    ],
)
def test_another_dialect_is_refused_by_name(said: Any, words: list[str]) -> None:
    text = refusal({"$schema": said})
    assert text.startswith("#/$schema: only JSON Schema 2020-12 is supported, got ")
    assert "leave $schema out, or write 'https://json-schema.org/draft/2020-12/schema'" in text
    assert all(word in text for word in words)
    assert len(text) < 500


@pytest.mark.requirement("JS-3")
def test_another_dialect_inside_is_refused_with_its_place() -> None:
    text = refusal({"$defs": {"a/b~": {"$schema": "http://json-schema.org/draft-07/schema"}}})
    assert text.startswith("#/$defs/a~1b~0/$schema: only JSON Schema 2020-12")


def test_a_dialect_in_data_is_data() -> None:
    said = {"$schema": "http://json-schema.org/draft-07/schema", "$ref": "http://169.254.169.254/"}
    assert (
        check_references(
            {"const": said, "enum": [said], "default": said, "examples": [said], "x": said}
        ).expanded
        == 1
    )


# References


@pytest.mark.requirement("JS-5", "JS-6")
@pytest.mark.parametrize("word", ["$ref", "$dynamicRef"])
@pytest.mark.parametrize(
    "target",
    [
        "http://169.254.169.254/latest/meta-data/",
        "https://json-schema.org/draft/2020-12/schema",
        "http://json-schema.org/draft-07/schema#",
        "file:///etc/passwd",
        "other.json#/$defs/a",
        "/etc/passwd",
        "//169.254.169.254/",
        "urn:x:y",
        "data:application/json,{}",
    ],
)
def test_a_reference_to_elsewhere_is_refused(word: str, target: str) -> None:
    for schema in ({word: target}, {"$id": "https://example.com/a", word: target}):
        text = refusal({"type": "object", "properties": {"a": {"anyOf": [schema]}}})
        assert text.startswith(
            f"#/properties/a/anyOf/0/{word}: expected a reference inside the schema, got '{target}'"
        )
        assert "never fetched: copy what it refers to into $defs" in text


@pytest.mark.requirement("JS-6")
@pytest.mark.parametrize(
    "target",
    ["#/$defs/none", "#none", "#/enum/0", "#/prefixItems/5", "#/prefixItems/x", "#/type/x"],
)
def test_a_reference_to_nothing_is_refused(target: str) -> None:
    schema = {"type": "array", "enum": [5], "prefixItems": [{}], "$ref": target}
    assert refusal(schema) == f"#/$ref: there is no '{target}' in the schema"


@pytest.mark.parametrize(
    "schema", [{"$id": "http://a", "$ref": "http://[x"}, {"$id": "http://a", "$ref": "//[x"}]
)
def test_a_reference_that_is_no_uri_is_refused(schema: dict[str, Any]) -> None:
    assert "#/$ref: expected a URI, got" in refusal(schema)


RESOLVING: list[dict[str, Any]] = [
    {"$ref": "#/$defs/a%20b~1c~0", "$defs": {"a b/c~": {"const": 1}}},
    {"$ref": "#here", "$defs": {"a": {"$anchor": "here", "const": 1}}},
    {"$dynamicRef": "#here", "$defs": {"a": {"$dynamicAnchor": "here", "const": 1}}},
    {"$id": "https://x.y/z", "$ref": "z#/$defs/a", "$defs": {"a": {"const": 1}}},
    {"$id": "https://x.y/z", "$ref": "https://x.y/z#/$defs/a", "$defs": {"a": {"const": 1}}},
    {"$id": "https://x.y/z", "$ref": "#/$defs/a", "$defs": {"a": {"const": 1}}},
    {"$id": "urn:x:y", "$ref": "#/$defs/a", "$defs": {"a": {"const": 1}}},
    {"$ref": "inner", "$defs": {"a": {"$id": "inner", "const": 1}}},
    {
        "$id": "https://x.y/z",
        "$ref": "w",
        "$defs": {"a": {"$id": "/w", "$ref": "#/$defs/b", "$defs": {"b": {"const": 1}}}},
    },
    {
        "$id": "https://x.y/",
        "$ref": "w#n",
        "$defs": {"a": {"$id": "w", "$defs": {"b": {"$anchor": "n", "const": 1}}}},
    },
    {"$ref": "#/prefixItems/1", "prefixItems": [{}, {"const": 1}]},
    {"$ref": "#/mine/a", "mine": {"a": {"const": 1}}},
    {"$ref": "#/mine/a", "mine": {"a": {"$ref": "#/mine/b"}, "b": {"const": 1}}},
    {"$ref": "#/definitions/a", "definitions": {"a": {"const": 1}}},
]


@pytest.mark.parametrize("schema", RESOLVING, ids=json.dumps)
def test_every_form_of_reference_inside_a_schema_is_known(schema: dict[str, Any]) -> None:
    validator = jsonschema.Draft202012Validator({**schema, "$schema": DIALECT})
    assert validator.is_valid(1)
    assert not validator.is_valid(2)
    extent = check_references(schema)
    assert not extent.recursive
    assert extent.expanded >= 2


def test_an_embedded_resource_has_pointers_of_its_own() -> None:
    schema = {"$defs": {"a": {"$id": "https://x.y/a", "$ref": "#/$defs/b"}, "b": {}}}
    assert refusal(schema) == "#/$defs/a/$ref: there is no '#/$defs/b' in the schema"
    with pytest.raises(referencing.exceptions.Unresolvable):
        jsonschema.Draft202012Validator({"$ref": "https://x.y/a", **schema}).is_valid(1)


def test_a_reference_to_true_or_false_is_one() -> None:
    assert (
        check_references(
            {"$ref": "#/$defs/a", "$dynamicRef": "#/$defs/b", "$defs": {"a": True, "b": False}}
        ).expanded
        == 1
    )


# Recursion


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"allOf": [{"not": {"$ref": "#"}}]},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
        {"$defs": {"a": {"anyOf": [{"type": "null"}, {"if": {"$ref": "#/$defs/a"}}]}}},
        {"dependentSchemas": {"a": {"$ref": "#"}}},
        {"$dynamicAnchor": "a", "oneOf": [{"$dynamicRef": "#a"}]},
    ],
    ids=json.dumps,
)
def test_a_loop_that_stays_at_one_value_is_refused(schema: dict[str, Any]) -> None:
    assert "refers to itself for the same value" in refusal(schema)


def test_a_loop_is_named_by_its_members() -> None:
    assert refusal({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}).startswith(
        "#/$defs/a, #/$defs/b: refers to itself"
    )


RECURSIVE: list[tuple[dict[str, Any], int]] = [
    (TREE, 3),
    ({"$defs": {"a": {"items": {"$ref": "#/$defs/a"}}}, "$ref": "#/$defs/a"}, 3),
    ({"$dynamicAnchor": "n", "additionalProperties": {"$dynamicRef": "#n"}}, 2),
    (
        {
            "prefixItems": [{"$ref": "#"}],
            "contains": {"anyOf": [{"$ref": "#"}, {"$ref": "#/$defs/b"}]},
            "$defs": {"b": {}},
        },
        6,
    ),
]


@pytest.mark.parametrize(("schema", "expanded"), RECURSIVE, ids=str)
def test_a_schema_of_trees_is_taken(schema: dict[str, Any], expanded: int) -> None:
    assert check_references(schema) == SchemaSize(expanded, True)


def doubling(times: int) -> dict[str, Any]:
    """Each definition applies the one before twice: 2 ** times in all."""
    definitions: dict[str, Any] = {"0": {}}
    for n in range(times):
        definitions[str(n + 1)] = {
            "properties": {"a": {"$ref": f"#/$defs/{n}"}, "b": {"$ref": f"#/$defs/{n}"}}
        }
    return {"$ref": f"#/$defs/{times}", "$defs": definitions}


def test_references_are_counted_each_time_they_are_followed() -> None:
    # d(0) = 1 and d(n+1) = 3 + 2 d(n), of which the root is one more.
    assert check_references(doubling(1)) == SchemaSize(6, False)
    assert check_references(doubling(3)) == SchemaSize(30, False)
    assert check_references(doubling(14)).expanded == 4 * 2**14 - 3 + 1


def test_a_schema_that_doubles_90_times_is_refused() -> None:
    assert (
        refusal(doubling(90))
        == "its references lead to more than 100,000 subschemas when each is followed"
    )


def test_definitions_that_nobody_refers_to_cost_nothing() -> None:
    assert check_references({"$defs": doubling(10)["$defs"]}) == SchemaSize(1, False)


@pytest.mark.no_cover
@pytest.mark.parametrize("seed", range(200))
def test_loops_are_found_in_any_graph(seed: int) -> None:
    """Against reachability worked out step by step: a loop at one value is a node that reaches
    itself by references alone.
    """
    dice = random.Random(seed)
    size = dice.randrange(1, 8)
    leads = {n: [dice.randrange(size) for _ in range(dice.randrange(3))] for n in range(size)}
    schema = {
        "$defs": {str(n): {"allOf": [{"$ref": f"#/$defs/{to}"} for to in leads[n]]} for n in leads}
    }
    reach = {n: set(leads[n]) for n in leads}
    for _ in range(size):
        reach = {n: reach[n].union(*(reach[to] for to in reach[n])) for n in reach}
    if any(n in reach[n] for n in reach):
        assert "refers to itself" in refusal(schema)
    else:
        assert check_references(schema) == SchemaSize(1, False)
    inside = {
        "$defs": {
            str(n): {"prefixItems": [{"$ref": f"#/$defs/{to}"} for to in leads[n]]} for n in leads
        }
    }
    assert check_references(inside).recursive == any(n in reach[n] for n in reach)
