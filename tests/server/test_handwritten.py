"""server/custom_tools.py: schemas written by hand, from registration to a call's answer. Whether a
value fits is what `jsonschema`, another implementation, says; schemas must come out of a list as
they went in.
"""

from __future__ import annotations

import asyncio
import json
import socket
import time
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from concertino import Server
from concertino.backend import Host
from concertino.client import RawClient
from concertino.errors import RegistrationError
from concertino.schema.arguments import InvalidArguments
from concertino.schema.value_results import InvalidResult
from concertino.server.custom_tools import custom_binder, result_validator
from concertino.transports import connect, memory_pair
from concertino.types import CallToolResult, TextContent

MODERN = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}
# seconds that anything here may take: hundreds of times what it needs, and nothing to what has no
# bound
BOUND = 5.0


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]
    def refused(*_: object) -> None:
        pytest.fail("a schema made somebody connect")

    monkeypatch.setattr(socket.socket, "connect", refused)
    monkeypatch.setattr(socket, "getaddrinfo", refused)


def take(arguments: dict[str, Any]) -> str:
    return json.dumps(arguments)


def objects(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def problems(schema: dict[str, Any], arguments: Any) -> list[tuple[str, str]]:
    """What is wrong with arguments; nothing if they fit. Fails when finding out takes long."""
    bind = custom_binder(take, schema)
    raw = Raw(json.dumps(arguments).encode())
    start = time.monotonic()
    try:
        assert bind(raw, None) == ((arguments,), {})
        found = []
    except InvalidArguments as bad:
        found = [(problem.path, problem.message) for problem in bad.violations]
    assert time.monotonic() - start < BOUND
    return found


def refusal(schema: Any, **more: Any) -> str:
    with pytest.raises(RegistrationError) as refused:
        Server("x").add_tool(take, name="mine", input_schema=schema, **more)
    return str(refused.value)


async def ask(server: Server, method: str, params: dict[str, Any]) -> Any:
    async with asyncio.timeout(20), Host(server) as host:
        ours, theirs = memory_pair()
        host.attach(theirs)
        caller: RawClient = connect(ours)
        answer = await caller.request(method, {**params, "_meta": MODERN})
        await caller.aclose()
        return answer


# Kept whole

WHOLE: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "$id": "https://example.com/order",
    "$comment": "every keyword, in an order of its own",
    "x-mine": {"$ref": "not a reference", "z": 1, "a": [None, 1.5]},
    "type": "object",
    "title": "Order",
    "$defs": {
        "z": {
            "$anchor": "zed",
            "type": ["string", "null"],
            "pattern": "^[a-z]+$",
            "format": "email",
        },
        "a": {
            "$dynamicAnchor": "node",
            "type": "object",
            "properties": {"next": {"$dynamicRef": "#node"}},
        },
        "c": True,
        "b": {
            "$id": "embedded",
            "type": "string",
            "contentMediaType": "application/json",
            "contentEncoding": "base64",
        },
    },
    "properties": {
        "z": {"$ref": "#zed", "default": None, "deprecated": True},
        "tree": {"$ref": "#/$defs/a", "readOnly": True},
        "b": {"$ref": "embedded"},
        "any": True,
        "none": False,
        "big": {"type": "integer", "maximum": 123456789012345678901234567890, "multipleOf": 1},
    },
    "required": [],
    "patternProperties": {
        "^x-": {"items": False, "prefixItems": [{"const": 1}], "minItems": 1, "uniqueItems": True}
    },
    "allOf": [
        {
            "if": {"required": ["z"]},
            "then": {"required": ["b"]},
            "else": {"not": {"required": ["none"]}},
        }
    ],
    "anyOf": [{"minProperties": 0}, {"maxProperties": 9}],
    "oneOf": [{"propertyNames": {"maxLength": 50}}],
    "dependentSchemas": {"z": {"dependentRequired": {"z": ["b"]}}},
    "unevaluatedProperties": {"contains": {"enum": [1, "a", None]}, "minContains": 0},
    "examples": [{"z": "é"}],
}


@pytest.mark.requirement("JS-8")
def test_every_keyword_and_its_order_is_kept_through_a_list() -> None:
    server = Server("x")
    server.add_tool(take, input_schema=WHOLE, output_schema=WHOLE)
    (tool,) = asyncio.run(ask(server, "tools/list", {}))["tools"]
    assert json.dumps(tool["inputSchema"]) == json.dumps(WHOLE)
    assert json.dumps(tool["outputSchema"]) == json.dumps(WHOLE)


def test_the_author_s_own_object_is_neither_kept_nor_changed() -> None:
    schema = objects(a={"type": "integer"})
    server = Server("x")
    server.add_tool(take, input_schema=schema)
    schema["properties"]["a"]["type"] = "string"
    (tool,) = asyncio.run(ask(server, "tools/list", {}))["tools"]
    assert tool["inputSchema"] == objects(a={"type": "integer"})
    assert schema == objects(a={"type": "string"})


# Refused


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (
            {"type": "object", "$schema": "http://json-schema.org/draft-07/schema#"},
            "only JSON Schema 2020-12 is supported",
        ),
        (
            objects(a={"$ref": "http://169.254.169.254/x"}),
            "mine: input_schema: #/properties/a/$ref: expected a reference",
        ),
        (objects(a={"$ref": "file:///etc/passwd"}), "never fetched"),
        (objects(a={"$dynamicRef": "http://169.254.169.254/x"}), "never fetched"),
        (objects(a={"$ref": "#/properties/b"}, b={"$ref": "#/properties/a"}), "refers to itself"),
        (objects(a={"minimum": "x"}), "mine: input_schema: #/properties/a/minimum: "),
        (objects(a={"pattern": "("}), "mine: input_schema: #/properties/a/pattern: "),
        (objects(a={"pattern": "(?=a)b"}), "linear time, without look-around and back-references"),
        (objects(a={"pattern": r"(a)\1"}), "linear time, without look-around and back-references"),
        ({"type": "object", "patternProperties": {"(?<!a)b": True}}, "linear time"),
        ({"type": "object", "propertyNames": {"pattern": "a{1000}{1000}"}}, "linear time"),
        ({"type": "object", "properties": 5}, "input_schema: #/properties: "),
        ({"type": "object", "allOf": [{} for _ in range(10_001)]}, "mine: input_schema: too large"),
    ],
)
def test_a_schema_that_cannot_be_enforced_is_refused_with_its_place(
    schema: dict[str, Any], said: str
) -> None:
    assert said in refusal(schema)
    if said.startswith("mine: input_schema: "):
        assert refusal({"type": "object"}, output_schema=schema).startswith("mine: output_schema: ")


def test_an_input_schema_is_of_objects_and_an_output_schema_of_anything() -> None:
    assert (
        refusal({"type": "array"})
        == "mine: input_schema: expected type 'object' at its root, got 'array'"
    )
    Server("x").add_tool(take, input_schema={"type": "object"}, output_schema={"type": "array"})


def test_deep_and_cyclic_objects_are_refused_in_bounded_time() -> None:
    start = time.monotonic()
    deep: dict[str, Any] = {}
    for _ in range(10_000):
        deep = objects(a=deep)
    cyclic = objects()
    cyclic["properties"]["a"] = cyclic
    shared: dict[str, Any] = {}
    for _ in range(60):
        shared = {"anyOf": [shared, shared]}
    for schema in (deep, cyclic, {"type": "object", **shared}):
        assert refusal(schema).startswith("mine: input_schema: ")
        assert refusal({"type": "object"}, output_schema=schema).startswith("mine: output_schema: ")
    assert time.monotonic() - start < BOUND


def test_an_object_that_is_no_json_is_refused() -> None:
    assert refusal({"type": "object", "default": float("nan")}).startswith("mine: input_schema: ")
    assert refusal({"type": "object", "default": object()}).startswith("mine: input_schema: ")


# Arguments


@pytest.mark.requirement("JS-7")
@pytest.mark.parametrize(
    "pattern", ["^(a+)+$", "^(a|a)*$", "(x+x+)+y", "^([a-zA-Z0-9])(([\\-.]|[_]+)?([a-zA-Z0-9]+))*$"]
)
def test_a_catastrophic_pattern_is_matched_in_bounded_time(pattern: str) -> None:
    assert problems(objects(a={"pattern": pattern}), {"a": "x" * 3 + "a" * 30_000 + "!"})
    assert (
        problems(
            {"type": "object", "patternProperties": {pattern: False}},
            {"x" * 3 + "a" * 30_000 + "!": 1},
        )
        == []
    )


def test_a_tree_is_checked_to_the_depth_that_json_may_have() -> None:
    tree = {
        "type": "object",
        "required": ["v"],
        "properties": {"v": {"type": "integer"}, "l": {"$ref": "#"}},
    }
    value: dict[str, Any] = {"v": 1}
    wrong: dict[str, Any] = {"v": "x"}
    for _ in range(400):
        value, wrong = {"v": 1, "l": value}, {"v": 1, "l": wrong}
    assert problems(tree, value) == []
    assert problems(tree, wrong) == [("l", "does not fit its schema")]
    assert problems(tree, {"l": {}}) == [
        ("v", "required, but missing"),
        ("l", "does not fit its schema"),
    ]


def branching(leaf: object, depth: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """A schema whose alternatives all contain it, and arguments of some depth: the errors of all
    alternatives are 3 ** depth.
    """
    node = {
        "oneOf": [
            *(
                {
                    "type": "object",
                    "properties": {"k": {"const": k}, "l": {"$ref": "#/$defs/n"}},
                    "required": ["k"],
                }
                for k in "abc"
            ),
            {"type": "integer"},
        ]
    }
    value = leaf
    for n in range(depth):
        value = {"k": "abc"[n % 3], "l": value}
    schema = {
        **objects(**{"a/b~": {"$ref": "#/$defs/n"}}),
        "additionalProperties": False,
        "$defs": {"n": node},
    }
    return schema, {"a/b~": value}


def test_alternatives_that_contain_each_other_are_told_apart_in_bounded_time() -> None:
    assert problems(*branching(5, 80)) == []
    schema, value = branching("x", 80)
    assert problems(schema, value) == [("a/b~", "does not fit its schema")]
    assert problems(schema, {**value, "more": 1}) == [
        ("a/b~", "does not fit its schema"),
        ("more", "unknown name"),
    ]


def test_a_problem_that_lies_in_no_single_argument_is_told_of_the_whole() -> None:
    schema = {
        **objects(a={"$ref": "#/$defs/t"}),
        "maxProperties": 1,
        "$defs": {"t": {"items": {"$ref": "#/$defs/t"}}},
    }
    assert problems(schema, {"a": 1, "b": 2}) == [("", "does not fit the schema")]


def test_problems_of_many_values_are_not_listed() -> None:
    schema = objects(
        a={"items": {"anyOf": [{"type": "integer"}, {"type": "null"}]}}, b={"type": "integer"}
    )
    assert problems(schema, {"a": ["x"] * 300_000, "b": 5}) == [("a", "does not fit its schema")]
    assert len(problems(schema, {"a": ["x"] * 100, "b": "x"})) == 20


def test_problems_of_large_values_are_not_listed() -> None:
    schema = objects(a={"allOf": [{"type": "integer"}] * 500})
    assert problems(schema, {"a": "x" * 1_000_000}) == [("a", "does not fit its schema")]


def test_values_deeper_than_the_checker_can_quote_do_not_fit_where_they_are_quoted() -> None:
    value: list[Any] = []
    for _ in range(300):
        value = [value]
    assert problems(objects(a={"type": "array"}), {"a": value}) == []
    assert problems(objects(a={"type": "string"}), {"a": value}) == [
        ("", "does not fit the schema")
    ]


FITTING = objects(
    a={"type": "integer", "minimum": 1},
    b={"enum": ["x", None]},
    c={"items": {"type": "string", "pattern": "^a"}},
) | {"required": ["a"], "additionalProperties": False}


@given(
    st.dictionaries(
        st.sampled_from("abcd"),
        st.integers(-2, 2)
        | st.sampled_from(["x", None, 1.0])
        | st.lists(st.sampled_from(["a", "b", 1])),
    )
)
def test_what_fits_is_what_fits_elsewhere(arguments: dict[str, Any]) -> None:
    assert (not problems(FITTING, arguments)) == jsonschema.Draft202012Validator(FITTING).is_valid(
        arguments
    )


# Results


def test_a_result_that_does_not_fit_its_schema_is_an_error_that_says_so() -> None:
    server = Server("x")
    schema = {"type": "array", "items": {"type": "integer"}}
    server.add_tool(lambda: [1, 2], name="good", output_schema=schema)
    server.add_tool(lambda: [1, "x"], name="bad", output_schema=schema)
    server.add_tool(
        lambda: CallToolResult([TextContent("no")], is_error=True),
        name="failed",
        output_schema=schema,
    )
    good = asyncio.run(ask(server, "tools/call", {"name": "good"}))
    assert (good["structuredContent"], good["content"]) == (
        [1, 2],
        [{"type": "text", "text": "[1,2]"}],
    )
    bad = asyncio.run(ask(server, "tools/call", {"name": "bad"}))
    assert bad["isError"] is True
    assert "structuredContent" not in bad
    assert (
        bad["content"][0]["text"]
        == 'the result does not fit its output_schema: 1: "x" is not of type "integer"'
    )
    assert asyncio.run(ask(server, "tools/call", {"name": "failed"}))["content"][0]["text"] == "no"


def test_a_result_is_checked_whatever_its_type() -> None:
    conform = result_validator({"type": ["null", "integer"]})
    conform(b"null")
    conform(Raw(b"5"))
    with pytest.raises(InvalidResult, match='"x" is not'):
        conform(b'"x"')
    recursive = result_validator(
        {"anyOf": [{"type": "integer"}, {"type": "array", "items": {"$ref": "#"}}]}
    )
    recursive(b"[1,[2,[]]]")
    with pytest.raises(InvalidResult, match="does not fit the schema"):
        recursive(b'[1,[2,["x"]]]')


def test_a_generator_is_refused_with_an_output_schema() -> None:
    def generate() -> Any:
        yield 1

    with pytest.raises(RegistrationError, match="mine: a generator cannot be a result"):
        Server("x").add_tool(generate, name="mine", output_schema={})
