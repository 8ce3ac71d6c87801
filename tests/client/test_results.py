"""client/output_validation.py: results of tools held against their output schemas (TO-13), by a
validator that fetches nothing.
"""

from __future__ import annotations

import socket
from typing import Any

import pytest
from client.scripted import SILENCE, Script, on_a_loop, opened

from concertino.client.client import Client, Timeouts
from concertino.client.output_validation import OutputValidator
from concertino.errors import ProtocolError
from concertino.transports.memory import memory_pair

# 2025-11-25 server/tools, "Output Schema": the example.
WEATHER = {
    "type": "object",
    "properties": {
        "temperature": {"type": "number", "description": "Temperature in celsius"},
        "conditions": {"type": "string", "description": "Weather conditions description"},
        "humidity": {"type": "number", "description": "Humidity percentage"},
    },
    "required": ["temperature", "conditions", "humidity"],
}
GOOD = {"temperature": 22.5, "conditions": "Partly cloudy", "humidity": 65}
DRAFT_7 = "http://json-schema.org/draft-07/schema#"


def tool(schema: Any) -> dict[str, Any]:
    return {"tools": [{"name": "t", "inputSchema": {"type": "object"}, "outputSchema": schema}]}


def gives(structured: Any, schema: Any = WEATHER, **more: Any) -> dict[str, Any]:
    result = {"resultType": "complete", "content": [], "structuredContent": structured, **more}
    return {"tools/list": {"resultType": "complete", **tool(schema)}, "tools/call": result}


@pytest.mark.requirement("TO-11", "TO-13", side="client")
@pytest.mark.parametrize("like", ["legacy", "modern"])
@on_a_loop
async def test_a_result_that_fits_comes_through_and_one_that_does_not_is_told_with_its_place(
    like: str,
) -> None:
    async with opened(gives(GOOD), like) as (client, script):
        await client.list_tools()
        assert (await client.call_tool("t")).structured_content == GOOD
        assert await client.call_tool("t", into=dict) == GOOD
        assert len(script.of("tools/list")) == 1
    async with opened(gives({**GOOD, "temperature": "warm"}), like) as (client, _):
        await client.list_tools()
        with pytest.raises(
            ProtocolError,
            match=r"tools/call t: the structured content does not fit the tool's output schema: "
            r"temperature: \"warm\" is not",
        ):
            await client.call_tool("t")


@pytest.mark.requirement("TO-13", side="client")
@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({}, "required"),
        ([], "is not of type"),
        (None, "is not of type"),
        ({**GOOD, "humidity": None}, "humidity"),
        (dict.fromkeys((*GOOD, *"abcdef"), "x"), "and"),
    ],
)
@on_a_loop
async def test_every_way_not_to_fit_is_found(wrong: Any, said: str) -> None:
    schema = WEATHER | {
        "properties": WEATHER["properties"] | {n: {"type": "number"} for n in "abcdef"}
    }  # pyright: ignore[reportOperatorIssue]
    async with opened(gives(wrong, schema)) as (client, _):
        await client.list_tools()
        with pytest.raises(ProtocolError, match=said):
            await client.call_tool("t")


@on_a_loop
async def test_a_promise_that_is_not_kept_at_all_is_told_but_a_tool_that_failed_owes_nothing() -> (
    None
):
    handlers = gives(None)
    del handlers["tools/call"]["structuredContent"]
    async with opened(handlers) as (client, _):
        await client.list_tools()
        with pytest.raises(
            ProtocolError, match="has an output schema, but its result has no structured content"
        ):
            await client.call_tool("t")
    handlers["tools/call"]["isError"] = True
    async with opened(handlers) as (client, _):
        await client.list_tools()
        assert (await client.call_tool("t")).is_error


@on_a_loop
async def test_results_are_checked_for_listed_tools_only_and_not_when_switched_off() -> None:
    async with opened(gives({})) as (client, script):
        assert (await client.call_tool("t")).structured_content == {}
        assert script.of("tools/list") == []
    async with opened(gives({}), validate=False) as (client, _):
        await client.list_tools()
        assert (await client.call_tool("t")).structured_content == {}
    async with opened(gives({})) as (client, _):
        await client.list_tools()
        assert (await client.call_tool("another")).structured_content == {}


@on_a_loop
async def test_a_schema_that_has_changed_meanwhile_is_fetched_before_anything_is_said() -> None:
    schemas = [WEATHER, {"type": "object"}]

    def listed(script: Script, message: dict[str, Any]) -> Any:
        return {"resultType": "complete", **tool(schemas[min(1, len(script.of("tools/list")) - 1)])}

    async with opened(gives({}) | {"tools/list": listed}) as (client, script):
        await client.list_tools()
        assert (await client.call_tool("t")).structured_content == {}
        assert len(script.of("tools/call")) == 1
        assert len(script.of("tools/list")) == 2


@pytest.mark.requirement("JS-2", side="client")
@pytest.mark.parametrize(
    "schema",
    [
        {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "type": "array",
            "prefixItems": [{"const": 1}],
        },
        {
            "$schema": "https://json-schema.org/draft/2019-09/schema",
            "type": "array",
            "items": [{"const": 1}],
        },
        {"$schema": DRAFT_7, "type": "array", "items": [{"const": 1}]},
        {
            "$schema": DRAFT_7,
            "$ref": "#/definitions/one",
            "definitions": {"one": {"items": [{"const": 1}]}},
        },
        {
            "$schema": "http://json-schema.org/draft-06/schema#",
            "type": "array",
            "items": [{"const": 1}],
        },
        {
            "$schema": "http://json-schema.org/draft-04/schema#",
            "type": "array",
            "items": [{"enum": [1]}],
        },
    ],
)
@on_a_loop
async def test_a_schema_is_read_in_the_dialect_that_it_names(schema: Any) -> None:
    """JS-2, JS-3. The TypeScript SDK 1 names draft 7, where `items` may be a list."""
    async with opened(gives([1, 2], schema)) as (client, _):
        await client.list_tools()
        assert (await client.call_tool("t")).structured_content == [1, 2]
    async with opened(gives([2, 2], schema)) as (client, _):
        await client.list_tools()
        with pytest.raises(ProtocolError, match="does not fit the tool's output schema: 0: "):
            await client.call_tool("t")


DEEP: dict[str, Any] = {}
for _ in range(200):
    DEEP = {"properties": {"x": DEEP}}


@pytest.mark.requirement("JS-3", "JS-6", "JS-7", side="client")
@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"$ref": "http://127.0.0.1:9/secret.json"}, "127.0.0.1:9"),
        ({"$ref": "file:///etc/passwd"}, "file:///etc/passwd"),
        ({"properties": {"x": {"$ref": "https://example.com/schema.json#/x"}}}, "example.com"),
        ({"$schema": DRAFT_7, "$ref": "http://127.0.0.1:9/secret.json"}, "127.0.0.1:9"),
        ({"$schema": "https://example.com/my-dialect"}, "my-dialect"),
        ({"type": "number", "minimum": "five"}, "minimum"),
        ({"type": "string", "pattern": "(a+)+(?=b)"}, "pattern"),
        (DEEP, "nested too deeply"),
        ({"enum": list(range(200_000))}, "too large"),
        ({"$ref": "#"}, "refers to itself"),
    ],
)
@on_a_loop
async def test_a_schema_that_cannot_be_enforced_is_refused_before_the_call_and_nothing_is_fetched(
    schema: Any, said: str
) -> None:
    """JS-3, JS-5, JS-6, JS-7."""
    async with opened(gives({}, schema)) as (client, script):
        [listed] = await client.list_tools()
        assert listed.output_schema == schema  # kept as it came
        with pytest.raises(
            ProtocolError,
            match=r"tools/call t: not called, because its output schema cannot be enforced",
        ) as caught:
            await client.call_tool("t")
        assert said in str(caught.value)
        assert "Client(validate=False)" in str(caught.value)
        assert script.of("tools/call") == []


@pytest.mark.requirement("JS-5", "JS-8", side="client")
@on_a_loop
async def test_a_reference_to_elsewhere_is_listed_as_it_came_and_nobody_goes_there() -> None:
    """Of the conformance suite: json-schema-ref-no-deref ("never fetch the `$ref` canary URL"),
    json-schema-2020-12-preservation.

    2026-07-28 basic/index: implementations must not automatically dereference a `$ref` that
    resolves to a network URI.
    """
    with socket.create_server(("127.0.0.1", 0)) as canary:
        canary.setblocking(False)
        url = f"http://127.0.0.1:{canary.getsockname()[1]}/canary.json"
        schema = {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "type": "object",
            "$defs": {"a": {"$anchor": "a", "type": "string"}},
            "properties": {"x": {"$ref": url}, "y": True},
            "allOf": [{"if": {"required": ["x"]}, "then": {"required": ["y"]}, "else": {}}],
            "additionalProperties": False,
        }
        tools = {
            "resultType": "complete",
            "tools": [{"name": "t", "inputSchema": schema, "outputSchema": schema}],
        }
        answer = {"resultType": "complete", "content": []}
        async with opened({"tools/list": tools, "tools/call": answer}) as (client, _):
            [listed] = await client.list_tools()
            assert listed.input_schema == schema
            assert list(listed.input_schema) == list(schema)
            with pytest.raises(ProtocolError, match="cannot be enforced"):
                await client.call_tool("t", {"x": 1})
        async with opened({"tools/list": tools, "tools/call": answer}, validate=False) as (
            client,
            _,
        ):
            await client.list_tools()
            assert (await client.call_tool("t", {"x": 1})).content == []
        with pytest.raises(BlockingIOError):
            canary.accept()


def test_without_the_extra_nothing_is_checked_unless_that_is_wanted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("concertino.client.output_validation.find_spec", lambda name: None)
    ours, _ = memory_pair()
    with pytest.raises(ImportError, match=r"pip install .*\[validate\]'"):
        Client(ours, validate=True)
    validator = OutputValidator(None)
    validator.learn([])
    assert validator.get("t") is None


@on_a_loop
async def test_a_result_that_does_not_fit_is_told_although_the_list_cannot_be_fetched_again() -> (
    None
):
    def once(script: Script, message: dict[str, Any]) -> Any:
        if len(script.of("tools/list")) > 1:
            return SILENCE
        return {"resultType": "complete", **tool(WEATHER)}

    handlers = gives({}) | {"tools/list": once}
    async with opened(handlers, timeouts=Timeouts(request_s=2)) as (client, _):
        await client.list_tools()
        with pytest.raises(ProtocolError, match="does not fit the tool's output schema"):
            await client.call_tool("t")
