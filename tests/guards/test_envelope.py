"""The envelope: the shape of the Orchestre system's protocol reference."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from guards.asking import ask_server, text_of

from concertino import Context, Server, ToolError
from concertino.errors import RegistrationError
from concertino.server import Contexts, Operations
from concertino.types import CallToolResult, TextContent


def make_enveloped(handler: Callable[..., Any]) -> Any:
    server = Server("orchestre", version="3.0.0")
    server.add_tool(handler, envelope=True, name="tool")
    listed, result = ask_server(server, ("tools/list", {}), ("tools/call", {"name": "tool"}))
    assert "outputSchema" not in listed["tools"][0]
    return result


def test_an_envelope_is_text_with_an_indent_of_two() -> None:
    def analyze() -> dict[str, list[int]]:
        return {"scores": [7]}

    result = make_enveloped(analyze)
    assert "structuredContent" not in result
    text, found = re.subn(
        r'"timestamp": "\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"',
        '"timestamp": "NOW"',
        text_of(result),
    )
    assert found == 1
    expected = {
        "success": True,
        "data": {"scores": [7]},
        "metadata": {"timestamp": "NOW", "version": "3.0.0"},
    }
    assert text == json.dumps(expected, indent=2)


@pytest.mark.parametrize(
    ("value", "data"),
    [
        ("text", "text"),
        (None, None),
        ([1, "a"], [1, "a"]),
        (
            [TextContent("a"), TextContent("b")],
            [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
        ),
    ],
    ids=["text", "nothing", "list", "blocks"],
)
def test_the_data_of_an_envelope(value: Any, data: Any) -> None:
    def tool() -> Any:
        return value

    assert json.loads(text_of(make_enveloped(tool)))["data"] == data


def test_a_result_of_its_own_and_an_error_get_no_envelope() -> None:
    assert text_of(make_enveloped(lambda: CallToolResult([TextContent("mine")]))) == "mine"

    def fail() -> str:
        raise ToolError("A", "no")

    assert json.loads(text_of(make_enveloped(fail))) == {"error": "no", "code": "A"}


def test_a_server_puts_the_results_of_all_its_tools_into_envelopes() -> None:
    server = Server("orchestre", version="3.0.0", envelope=True)

    @server.tool
    def add(a: int) -> int:
        return a + 1

    @server.tool(rate_limit="9/60")
    def letters() -> Iterator[str]:
        yield from "ab"

    @server.tool(envelope=False)
    def bare() -> str:
        return "bare"

    Contexts().add_tools(server)
    results = ask_server(
        server,
        ("tools/call", {"name": "add", "arguments": {"a": 1}}),
        ("tools/call", {"name": "letters"}),
        ("tools/call", {"name": "bare"}),
        ("tools/call", {"name": "set_context", "arguments": {"key": "k", "value": 1}}),
    )
    bodies = [json.loads(text_of(result)) for result in (*results[:2], results[3])]
    assert [list(body) for body in bodies] == [["success", "data", "metadata"]] * 3
    assert [bodies[0]["data"], bodies[1]["data"], bodies[2]["data"]["success"]] == [2, "ab", True]
    assert text_of(results[2]) == "bare"


def test_the_result_of_a_long_operation_has_an_envelope() -> None:
    server = Server("orchestre", version="3.0.0", envelope=True)

    async def slow() -> int:
        return 5

    Operations(server).tool(slow)
    [result] = ask_server(server, ("tools/call", {"name": "slow"}))
    assert json.loads(text_of(result))["data"] == 5


def test_a_tool_that_calls_another_gets_what_is_in_the_envelope() -> None:
    server = Server("orchestre", version="3.0.0", envelope=True)

    @server.tool
    def analyze() -> dict[str, list[int]]:
        return {"scores": [7]}

    @server.tool
    def name() -> str:
        return "shop"

    @server.tool
    async def plan(context: Context) -> list[object]:
        scores = await context.call_tool("analyze", into=dict[str, list[int]])
        return [scores, await context.call_tool("name", into=str)]

    [result] = ask_server(server, ("tools/call", {"name": "plan"}))
    assert json.loads(text_of(result))["data"] == [{"scores": [7]}, "shop"]


def test_an_envelope_and_a_schema_of_what_is_in_it_exclude_each_other() -> None:
    def tool() -> dict[str, int]:
        return {}

    with pytest.raises(RegistrationError, match="envelope"):
        Server("s").add_tool(tool, name="t", envelope=True, output_schema={"type": "object"})
