"""Our client against servers of others: `mcp` 2.x and 1.x, FastMCP, the TypeScript SDK, and
server-everything of npm.

They run in real processes. What each of them speaks was found by trying. The Python ones that
cannot live beside `mcp` 2.x get environments of their own below .tools.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from interop import node
from interop.tools import python_with

from concertino.client.client import Client, Timeouts
from concertino.client.supervision import Restart
from concertino.errors import Incompatible, RpcError, TimedOut, ToolError
from concertino.transports.process_exit import live_members
from concertino.types.results import TextContent

pytestmark = pytest.mark.slow
SERVERS = Path(__file__).parent / "servers"
PATIENT = Timeouts(connect_s=60, probe_s=15)  # they take a second or two to start


def command_of(which: str) -> list[Any]:
    if which == "mcp 2":
        return [sys.executable, SERVERS / "mcp_2.py"]
    if which == "mcp 2 changing":
        return [sys.executable, SERVERS / "mcp_2_changing.py"]
    if which == "mcp 1":
        return [python_with("mcp1", "mcp>=1.20,<2"), SERVERS / "mcp_1.py"]
    if which == "fastmcp":
        return [python_with("fastmcp", "fastmcp>=4"), SERVERS / "fastmcp_3.py"]
    modules = node.packages() / "node_modules"
    if which == "everything":
        return [
            node.node(),
            modules / "@modelcontextprotocol" / "server-everything" / "dist" / "index.js",
            "stdio",
        ]
    copy = (
        modules.parent / "typescript_2_server.mjs"
    )  # what imports packages has to lie beside them
    copy.write_text((SERVERS / "typescript_2.mjs").read_text())
    return [node.node(), copy]


def elicit(question: Any, server: Any) -> dict[str, Any]:
    [field] = question.requested_schema["properties"]
    return {field: "Ada"}


def run(which: str, era: Any, converse: Any, **settings: Any) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(120):
            async with Client(
                command_of(which), era=era, timeouts=PATIENT, elicit=elicit, **settings
            ) as client:
                pid = client.pid
                await converse(client)
        assert pid is not None
        assert live_members(pid) == []
        assert client.stray == 0, client.strays

    asyncio.run(bounded())


@pytest.mark.requirement("RE-4", "CX-2", side="client")
@pytest.mark.parametrize(
    ("which", "era", "spoken"),
    [
        ("mcp 2", "auto", "2026-07-28"),
        ("mcp 2", "legacy", "2025-11-25"),
        ("mcp 1", "auto", "2025-11-25"),
        ("mcp 1", "legacy", "2025-11-25"),
        ("fastmcp", "auto", "2026-07-28"),
        ("fastmcp", "legacy", "2025-11-25"),
    ],
)
def test_python_servers_of_others(which: str, era: str, spoken: str) -> None:
    async def converse(client: Client) -> None:
        assert client.protocol_version == spoken
        assert {tool.name for tool in await client.list_tools()} == {
            "add",
            "greet",
            "slow",
            "sleep",
            "fail",
        }
        assert await client.call_tool("add", {"a": 1, "b": 2}, into=int) == 3
        failed = await client.call_tool("fail")
        assert failed.is_error
        assert isinstance(failed.content[0], TextContent)
        wrong = await client.call_tool("add", {"a": "x", "b": 2})
        assert wrong.is_error
        assert [template.uri_template for template in await client.list_resource_templates()] == [
            "note://{name}"
        ]
        assert (await client.read_resource("note://ada")).contents[0].text == "about ada"
        assert [prompt.name for prompt in await client.list_prompts()] == ["review"]
        prompt = await client.get_prompt("review", {"code": "x = 1"})
        assert prompt.messages[0].content == TextContent("Review x = 1")
        told: list[Any] = []
        await client.call_tool("slow", progress=lambda *said: told.append(said))
        assert told == [(1, 3, "step 1"), (2, 3, "step 2"), (3, 3, "step 3")]
        with pytest.raises(TimedOut):
            await client.call_tool("sleep", timeout_s=0.2)
        sums = await asyncio.gather(
            *(client.call_tool("add", {"a": n, "b": n}, into=int) for n in range(50))
        )
        assert sums == [2 * n for n in range(50)]

    run(which, era, converse)


@pytest.mark.parametrize(
    ("which", "era"),
    [("mcp 2", "auto"), ("mcp 2", "legacy"), ("mcp 1", "auto"), ("fastmcp", "legacy")],
)
def test_they_ask_and_are_answered(which: str, era: str) -> None:
    """In rounds of input since 2026-07-28, by a request before."""

    async def converse(client: Client) -> None:
        assert await client.call_tool("greet", into=str) == "accept Ada"

    run(which, era, converse)


def test_what_fastmcp_4_cannot_ask_in_2026_is_told_as_the_failure_of_its_tool() -> None:
    """Its `Context.elicit` makes requests only, which that revision has not; it may learn to."""

    async def converse(client: Client) -> None:
        with pytest.raises(ToolError, match="unavailable on 2026-07-28"):
            await client.call_tool("greet", into=str)

    run("fastmcp", "auto", converse)


@pytest.mark.requirement("SU-4", "SU-10", side="client")
def test_subscriptions_of_the_official_server() -> None:
    """SU-2 to SU-10 with `mcp` 2.x: acknowledged, told apart, ended by either side, and open again
    after a restart.
    """
    updated: list[str] = []
    changed: list[str] = []

    async def converse(client: Client) -> None:
        assert client.protocol_version == "2026-07-28"

        async def until(told: list[str], wanted: list[str]) -> None:
            while len(told) < len(
                wanted
            ):  # run() is the bound: its streams are not in step with its answers
                await asyncio.sleep(0.01)
            await client.ping()
            assert told == wanted

        async def touch(uris: list[str], wanted: list[str]) -> None:
            updated.clear()
            for uri in uris:
                await client.call_tool("touch", {"uri": uri})
            await until(updated, wanted)

        await asyncio.gather(*(client.subscribe(f"note://{name}") for name in "abc"))
        await touch(["note://a", "note://other", "note://c"], ["note://a", "note://c"])
        await client.unsubscribe("note://a")
        await touch(["note://a", "note://b"], ["note://b"])
        await client.call_tool("grow")
        await until(changed, ["tools"])
        assert await client.call_tool("hang_up", into=str) == "3"  # b, c, and the lists
        await client.ping()
        await touch(["note://b"], [])
        await client.subscribe("note://b")
        await touch(["note://b", "note://c"], ["note://b"])
        assert client.pid is not None
        first = client.pid
        updated.clear()
        os.kill(first, signal.SIGKILL)
        await until(
            updated, ["note://b", "note://c"]
        )  # all that was asked for, and not the one that was given up
        assert client.pid != first
        await touch(["note://b", "note://a"], ["note://b"])
        assert set(changed) == {"tools", "prompts", "resources"}

    settings: dict[str, Any] = {"updated": updated.append, "changed": changed.append}
    run("mcp 2 changing", "auto", converse, restart=Restart(first_s=0.1), **settings)


@pytest.mark.parametrize(("era", "spoken"), [("auto", "2026-07-28"), ("legacy", "2025-11-25")])
def test_a_typescript_server_of_version_2(era: str, spoken: str) -> None:
    async def converse(client: Client) -> None:
        assert client.protocol_version == spoken
        assert client.server_info.name == "typescript"
        assert await client.call_tool("add", {"a": 1, "b": 2}, into=int) == 3
        assert (await client.call_tool("add", {"a": "x"})).is_error
        with pytest.raises(RpcError) as caught:
            await client.call_tool("no such tool")
        assert caught.value.code == -32602

    run("typescript", era, converse)


@pytest.mark.parametrize("which", ["mcp 1", "everything"])
def test_a_server_with_a_handshake_is_no_modern_one(which: str) -> None:
    async def converse(client: Client) -> None:
        raise AssertionError("it was opened")

    with pytest.raises(Incompatible, match=r"the server does not speak 2026-07-28: .*\(-32\d+\)$"):
        run(which, "modern", converse)


@pytest.mark.requirement("CX-4", side="client")
def test_server_everything_has_some_of_everything(tmp_path: Path) -> None:
    changes: list[str] = []

    async def converse(client: Client) -> None:
        assert client.protocol_version == "2025-11-25"
        names = {tool.name for tool in await client.list_tools()}
        assert {"echo", "get-sum"} <= names
        assert await client.call_tool("echo", {"message": "hello"}, into=str) == "Echo: hello"
        resources = await client.list_resources()
        assert (await client.read_resource(resources[0].uri)).contents
        assert await client.list_resource_templates()
        prompts = {prompt.name: prompt for prompt in await client.list_prompts()}
        assert (await client.get_prompt("simple-prompt")).messages
        assert "simple-prompt" in prompts
        told: list[float] = []
        name = "trigger-long-running-operation"
        if name in names:
            await client.call_tool(
                name, {"duration": 0.4, "steps": 4}, progress=lambda done, *_: told.append(done)
            )
            assert told == [1, 2, 3, 4]
        await client.ping()

    run("everything", "auto", converse, changed=changes.append, roots=[tmp_path.as_uri()])
