"""The official Python client, `mcp` 2.x, over stdio against a real process of ours, in both eras.

What it accepts is checked by it: it validates every result against its own models of the revision,
and structured content against the output schema that tools/list showed.
"""

from __future__ import annotations

import asyncio
import base64
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import IO, Any

import anyio
import mcp_types as types
import pytest
from mcp import Client, MCPError, StdioServerParameters, stdio_client

import concertino

SOURCE = str(Path(concertino.__file__).parents[1])  # the client passes on little of its environment
TOUR = Path(__file__).parents[2] / "examples" / "tour.py"
ERAS = {"legacy": "2025-11-25", "auto": "2026-07-28", "2026-07-28": "2026-07-28"}
mode = pytest.mark.parametrize("mode", ERAS)

Talk = Callable[[Client], Awaitable[Any]]


def talk(mode: str, what: Talk, **settings: Any) -> str:
    """Run `what` with a client connected to examples/tour.py; returns what the server logged, to
    its very end.
    """

    async def run(errlog: IO[str]) -> None:
        environment = {"LOG_LEVEL": "debug", "PYTHONPATH": SOURCE}
        parameters = StdioServerParameters(
            command=sys.executable, args=[str(TOUR)], env=environment
        )
        async with Client(stdio_client(parameters, errlog=errlog), mode=mode, **settings) as client:
            await asyncio.wait_for(what(client), 20)

    with tempfile.TemporaryFile("w+") as errlog:
        asyncio.run(run(errlog))
        errlog.seek(0)
        return errlog.read()


def text_of(result: types.CallToolResult) -> str:
    [block] = result.content
    assert isinstance(block, types.TextContent)
    return block.text


@mode
def test_it_connects_in_the_era_it_chose_and_the_server_ends_with_it(mode: str) -> None:
    async def what(client: Client) -> None:
        assert client.protocol_version == ERAS[mode]
        if mode != "2026-07-28":  # pinned, it asks nothing when it connects
            assert client.server_info is not None
            assert client.server_info.name == "tour"
            assert client.instructions == "Small tools that show what a server can do."
            assert client.server_capabilities.tools is not None

    assert "Shutting down tour MCP server" in talk(mode, what)


@mode
def test_it_lists_the_tools_with_their_schemas(mode: str) -> None:
    async def what(client: Client) -> None:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert list(tools) == ["add", "statistics", "divide", "bake", "wait", "swatch", "chat"]
        add = tools["add"]
        assert add.description == "Add two integers."
        assert add.input_schema == {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
            "additionalProperties": False,
        }
        assert add.annotations is not None
        assert add.annotations.read_only_hint is True

    talk(mode, what)


@mode
def test_it_takes_structured_content_that_fits_the_schema_shown(mode: str) -> None:
    async def what(client: Client) -> None:
        await (
            client.list_tools()
        )  # so that the client knows the output schemas, and checks the results against them
        added = await client.call_tool("add", {"a": 2, "b": 40})
        assert text_of(added) == "42"
        assert added.structured_content == (42 if ERAS[mode] == "2026-07-28" else {"result": 42})
        described = await client.call_tool("statistics", {"values": [3, 4, 8]})
        assert described.structured_content == {"count": 3, "mean": 5.0, "largest": 8.0}
        divided = await client.call_tool("divide", {"a": 1, "b": 4})
        assert text_of(divided) == "0.25"

    talk(mode, what)


@mode
def test_it_takes_an_image(mode: str) -> None:
    async def what(client: Client) -> None:
        [picture] = (await client.call_tool("swatch", {"red": 200, "green": 0, "blue": 0})).content
        assert isinstance(picture, types.ImageContent)
        assert picture.mime_type == "image/png"
        assert base64.b64decode(picture.data).startswith(b"\x89PNG")

    talk(mode, what)


@mode
def test_errors_of_the_model_are_results_and_errors_of_the_client_are_errors(mode: str) -> None:
    async def what(client: Client) -> None:
        failed = await client.call_tool("divide", {"a": 1, "b": 0})
        assert failed.is_error
        assert text_of(failed) == "b is 0: give another divisor"
        refused = await client.call_tool("divide", {"a": "one", "c": 3})
        assert refused.is_error
        for name in ("a: expected float", "Missing required field: b", "c: unknown argument"):
            assert name in text_of(refused)
        with pytest.raises(MCPError, match="Unknown tool: multiply") as unknown:
            await client.call_tool("multiply", {})
        assert unknown.value.code == -32602

    talk(mode, what)


@mode
def test_it_hears_progress_and_log_messages(mode: str) -> None:
    heard: list[tuple[float, float | None, str | None]] = []
    logged: list[types.LoggingMessageNotificationParams] = []

    async def progress(done: float, total: float | None, message: str | None) -> None:
        heard.append((done, total, message))

    async def log(params: types.LoggingMessageNotificationParams) -> None:
        logged.append(params)

    async def what(client: Client) -> None:
        result = await client.call_tool(
            "bake", {"cake": "plum", "minutes": 2}, progress_callback=progress
        )
        assert text_of(result) == "One plum cake."

    talk(mode, what, logging_callback=log, log_level="info")
    assert heard == [(1, 2, "1 of 2 minutes"), (2, 2, "2 of 2 minutes")]
    assert [(params.level, params.data) for params in logged] == [
        ("info", "plum cake goes into the oven")
    ]


def test_in_2026_07_28_it_hears_no_log_messages_unless_it_asks() -> None:
    logged: list[types.LoggingMessageNotificationParams] = []

    async def log(params: types.LoggingMessageNotificationParams) -> None:
        logged.append(params)

    async def what(client: Client) -> None:
        await client.call_tool("bake", {"cake": "plum", "minutes": 1})

    talk("auto", what, logging_callback=log)
    assert logged == []


@mode
@pytest.mark.parametrize(
    "tool", [("wait", {"seconds": 60}), ("bake", {"cake": "plum", "minutes": 600})]
)
def test_a_call_that_it_gives_up_is_stopped_and_the_next_is_served(
    mode: str, tool: tuple[str, dict[str, Any]]
) -> None:
    async def what(client: Client) -> None:
        await client.call_tool(
            "add", {"a": 1, "b": 1}
        )  # the server has started; else the call may be given up in its queue
        with anyio.move_on_after(0.3) as scope:
            await client.call_tool(*tool)
        assert scope.cancelled_caught
        assert text_of(await client.call_tool("add", {"a": 1, "b": 1})) == "2"

    assert "was cancelled" in talk(mode, what)


@mode
def test_fifty_calls_side_by_side_are_all_answered(mode: str) -> None:
    async def what(client: Client) -> None:
        calls = [client.call_tool("bake", {"cake": "apple", "minutes": 1}) for _ in range(25)]
        calls += [client.call_tool("divide", {"a": 1, "b": 2}) for _ in range(25)]
        results = await asyncio.gather(*calls)
        assert [text_of(result) for result in results] == ["One apple cake."] * 25 + ["0.5"] * 25

    talk(mode, what)


@mode
def test_a_print_in_a_tool_does_not_disturb_it(mode: str) -> None:
    async def what(client: Client) -> None:
        assert (
            text_of(
                await client.call_tool("chat", {"text": '{"jsonrpc":"2.0","id":1,"result":{}}'})
            )
            == "printed"
        )

    log = talk(mode, what)
    assert '{"jsonrpc":"2.0","id":1,"result":{}}' in log
    assert "tour.py:" in log  # the first stray print is named by file and line


@pytest.mark.filterwarnings("ignore::mcp.MCPDeprecationWarning")
def test_ping_and_the_level_of_log_messages_belong_to_the_handshake() -> None:
    logged: list[types.LoggingMessageNotificationParams] = []

    async def log(params: types.LoggingMessageNotificationParams) -> None:
        logged.append(params)

    async def what(client: Client) -> None:
        await client.send_ping()
        await client.set_logging_level("error")
        await client.call_tool("bake", {"cake": "plum", "minutes": 1})

    talk("legacy", what, logging_callback=log)
    assert logged == []
