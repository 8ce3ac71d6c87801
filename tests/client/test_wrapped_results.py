"""client/wrapped_results.py: structured content means the same whatever the revision, and an object
stays an object.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Literal

import pytest
from client.scripted import SILENCE, Refusal, Script, on_a_loop, opened

from concertino import Client, Server
from concertino.types import CallToolResult, TextContent

RESULT_3 = {"result": 3}
ERAS = ("legacy", "modern")


@dataclass
class Point:
    x: int
    y: int


@dataclass
class Outcome:
    result: int


def a_server() -> Server:
    server = Server("values")

    @server.tool
    async def number() -> int:
        return 3

    @server.tool
    async def numbers() -> list[int]:
        return [1, 2]

    @server.tool
    async def outcome() -> Outcome:
        return Outcome(3)

    @server.tool
    async def maybe(point: bool) -> Point | None:
        return Point(1, 2) if point else None

    @server.tool
    async def either(whole: bool) -> dict[str, int] | int:
        return 3 if whole else {"result": 3}

    @server.tool
    async def anything(whole: bool) -> Any:
        return 3 if whole else {"result": 3}

    @server.tool
    async def by_hand() -> CallToolResult:
        return CallToolResult([TextContent("the outcome is good")], {"result": "good"})

    return server


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize(
    ("name", "arguments", "value"),
    [
        ("number", {}, 3),
        ("numbers", {}, [1, 2]),
        ("outcome", {}, {"result": 3}),
        ("maybe", {"point": True}, {"x": 1, "y": 2}),
        ("maybe", {"point": False}, None),
        ("either", {"whole": True}, 3),
        ("either", {"whole": False}, {"result": 3}),
        ("anything", {"whole": True}, 3),
        ("anything", {"whole": False}, {"result": 3}),
        ("by_hand", {}, {"result": "good"}),
    ],
)
@on_a_loop
async def test_structured_content_is_the_value_that_the_tool_returned(
    era: Literal["legacy", "modern"], name: str, arguments: dict[str, Any], value: Any
) -> None:
    async with Client(a_server(), era=era) as client:
        result = await client.call_tool(name, arguments)
        assert result.structured_content == value
        assert result.json() == value
        # The same by the slow path.
        assert (await client.call_tool(name, arguments, meta={"a": 1})).structured_content == value
        # And after the schemas are known, which the results then have to fit as they were sent.
        await client.list_tools()
        assert (await client.call_tool(name, arguments)).structured_content == value


def tool_list(schema: Any) -> dict[str, Any]:
    tool = {"name": "t", "inputSchema": {"type": "object"}, "outputSchema": schema}
    return {"resultType": "complete", "tools": [tool]}


def tool_result(content: Any, text: str) -> dict[str, Any]:
    blocks = [{"type": "text", "text": text}]
    return {"resultType": "complete", "content": blocks, "structuredContent": content}


RESULT_SCHEMA = {
    "type": "object",
    "properties": {"result": {"type": "integer"}},
    "required": ["result"],
}
# As FastMCP 3 lists `-> int`.
FASTMCP = {**RESULT_SCHEMA, "x-fastmcp-wrap-result": True}
# As the official SDK, mcp 1.x, lists `-> int`; an object with this member has the same schema.
UNMARKED = {**RESULT_SCHEMA, "title": "addOutput"}


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize(
    ("schema", "content", "text", "value"),
    [
        (FASTMCP, RESULT_3, "3", 3),
        (FASTMCP, RESULT_3, "three", 3),
        (UNMARKED, RESULT_3, "3", RESULT_3),
        ({**RESULT_SCHEMA, "x-fastmcp-wrap-result": False}, RESULT_3, "3", RESULT_3),
        ({"type": "object", "anyOf": []}, RESULT_3, "3", RESULT_3),
        ({"type": "object", "anyOf": [True]}, RESULT_3, "3", RESULT_3),
        ({"type": "object", "anyOf": [FASTMCP, True]}, RESULT_3, "three", 3),
        ({"type": "object", "anyOf": [FASTMCP, True]}, {"result": {}}, "none", {"result": {}}),
        ({"type": "object", "anyOf": [FASTMCP, True]}, RESULT_3, '{"result": 3}', RESULT_3),
        (None, RESULT_3, "3", 3),
        (None, RESULT_3, '{"result": 3}', RESULT_3),
        (None, {"result": "good"}, "good", {"result": "good"}),
        (None, {"result": None}, "", {"result": None}),
        (FASTMCP, {**RESULT_3, "unit": "m"}, "3", {**RESULT_3, "unit": "m"}),
    ],
)
@on_a_loop
async def test_a_value_is_taken_out_where_the_schema_or_without_one_the_text_says_so(
    era: str, schema: Any, content: Any, text: str, value: Any
) -> None:
    answers = {"tools/list": tool_list(schema), "tools/call": tool_result(content, text)}
    if schema is None:
        del answers["tools/list"]["tools"][0]["outputSchema"]
    async with opened(answers, era, validate=False) as (client, _):
        assert (await client.call_tool("t")).structured_content == value


@on_a_loop
async def test_the_list_is_fetched_once_and_again_when_it_has_changed() -> None:
    schemas = [FASTMCP, UNMARKED]
    answers = {
        "tools/list": lambda script, message: tool_list(schemas[0]),
        "tools/call": tool_result(RESULT_3, "3"),
    }
    async with opened(answers, "legacy", validate=False) as (client, script):
        for _ in range(2):
            assert (await client.call_tool("t")).structured_content == 3
        assert len(script.of("tools/list")) == 1

        schemas.pop(0)
        script.send({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
        for _ in range(2):
            assert (await client.call_tool("t")).structured_content == RESULT_3
        assert len(script.of("tools/list")) == 2


@on_a_loop
async def test_results_that_arrive_during_the_fetch_wait_for_the_list() -> None:
    answers = {"tools/list": SILENCE, "tools/call": tool_result(RESULT_3, "three")}
    async with opened(answers, "legacy", validate=False) as (client, script):
        calls = [asyncio.create_task(client.call_tool("t")) for _ in range(3)]
        await script.until(lambda: script.of("tools/list") and len(script.of("tools/call")) == 3)

        # The first call, which fetches the list, is cancelled. Another one fetches it then.
        calls[0].cancel()
        await script.until(lambda: len(script.of("tools/list")) == 2)
        script.answer(script.of("tools/list")[1], tool_list(FASTMCP))
        results = await asyncio.gather(*calls[1:])
        assert [result.structured_content for result in results] == [3, 3]


@on_a_loop
async def test_other_results_fetch_no_list() -> None:
    answers = {"tools/list": tool_list(FASTMCP), "tools/call": tool_result({"sum": 3}, "3")}
    async with opened(answers, "legacy") as (client, script):
        assert (await client.call_tool("t")).structured_content == {"sum": 3}
        assert (await client.call_tool("t", into=dict)) == {"sum": 3}
        assert script.of("tools/list") == []


@on_a_loop
async def test_without_the_list_the_text_decides() -> None:
    def refuse(script: Script, message: dict[str, Any]) -> Any:
        raise Refusal(-32603, "no list today")

    answers = {"tools/list": refuse, "tools/call": tool_result(RESULT_3, "3")}
    async with opened(answers, "legacy") as (client, script):
        for _ in range(2):
            assert (await client.call_tool("t")).structured_content == 3
        assert len(script.of("tools/list")) == 1
