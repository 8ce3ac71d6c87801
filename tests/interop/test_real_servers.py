"""Our client against servers of others: `mcp` 2.x and 1.x, FastMCP, the TypeScript SDK, and server-everything of npm.

They run in real processes. What each of them speaks was found by trying. The Python ones that cannot live beside `mcp` 2.x get
environments of their own below .tools.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import node
import pytest

from concertino.client.client import Client, Timeouts
from concertino.errors import RpcError, TimedOut
from concertino.protocol.types import TextContent
from concertino.transports.process import _living

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
SERVERS = Path(__file__).parent / "servers"
PATIENT = Timeouts(connect_s=60, probe_s=15)  # they take a second or two to start


def python_with(name: str, requirement: str) -> Path:
    """An interpreter that has a package, in an environment made once."""
    folder = ROOT / ".tools" / f"{name}-venv-{sys.version_info.major}.{sys.version_info.minor}"
    python = folder / "bin" / "python"
    if not (folder / "complete").exists():
        venv.create(folder, clear=True, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", requirement], check=True)
        (folder / "complete").touch()
    return python


def command_of(which: str) -> list[Any]:
    if which == "mcp 2":
        return [sys.executable, SERVERS / "mcp_2.py"]
    if which == "mcp 1":
        return [python_with("mcp1", "mcp>=1.20,<2"), SERVERS / "mcp_1.py"]
    if which == "fastmcp":
        return [python_with("fastmcp", "fastmcp>=3"), SERVERS / "fastmcp_3.py"]
    modules = node.packages() / "node_modules"
    if which == "everything":
        return [node.node(), modules / "@modelcontextprotocol" / "server-everything" / "dist" / "index.js", "stdio"]
    copy = modules.parent / "typescript_2_server.mjs"  # what imports packages has to lie beside them
    copy.write_text((SERVERS / "typescript_2.mjs").read_text())
    return [node.node(), copy]


def elicit(question: Any, server: Any) -> dict[str, Any]:
    [field] = question.requested_schema["properties"]
    return {field: "Ada"}


def run(which: str, era: Any, converse: Any, **settings: Any) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(120):
            async with Client(command_of(which), era=era, timeouts=PATIENT, elicit=elicit, **settings) as client:
                pid = client.pid
                await converse(client)
        assert pid is not None
        assert _living(pid) == []
        assert client.stray == 0, client.strays

    asyncio.run(bounded())


@pytest.mark.parametrize(
    ("which", "era", "spoken"),
    [
        ("mcp 2", "auto", "2026-07-28"),
        ("mcp 2", "legacy", "2025-11-25"),
        ("mcp 1", "auto", "2025-11-25"),
        ("mcp 1", "legacy", "2025-11-25"),
        ("fastmcp", "auto", None),
        ("fastmcp", "legacy", "2025-11-25"),
    ],
)
def test_python_servers_of_others(which: str, era: str, spoken: str | None) -> None:
    async def converse(client: Client) -> None:
        assert spoken is None or client.protocol_version == spoken
        assert {tool.name for tool in await client.list_tools()} == {"add", "greet", "slow", "sleep", "fail"}
        assert await client.call_tool("add", {"a": 1, "b": 2}, into=int) == 3
        failed = await client.call_tool("fail")
        assert failed.is_error
        assert isinstance(failed.content[0], TextContent)
        wrong = await client.call_tool("add", {"a": "x", "b": 2})
        assert wrong.is_error
        assert [template.uri_template for template in await client.list_resource_templates()] == ["note://{name}"]
        assert (await client.read_resource("note://ada")).contents[0].text == "about ada"
        assert [prompt.name for prompt in await client.list_prompts()] == ["review"]
        prompt = await client.get_prompt("review", {"code": "x = 1"})
        assert prompt.messages[0].content == TextContent("Review x = 1")
        told: list[Any] = []
        await client.call_tool("slow", progress=lambda *said: told.append(said))
        assert told == [(1, 3, "step 1"), (2, 3, "step 2"), (3, 3, "step 3")]
        with pytest.raises(TimedOut):
            await client.call_tool("sleep", timeout_s=0.2)
        sums = await asyncio.gather(*(client.call_tool("add", {"a": n, "b": n}, into=int) for n in range(50)))
        assert sums == [2 * n for n in range(50)]

    run(which, era, converse)


@pytest.mark.parametrize(
    ("which", "era"), [("mcp 2", "auto"), ("mcp 2", "legacy"), ("mcp 1", "auto"), ("fastmcp", "legacy")]
)
def test_they_ask_and_are_answered(which: str, era: str) -> None:
    """In rounds of input since 2026-07-28, by a request before."""

    async def converse(client: Client) -> None:
        assert await client.call_tool("greet", into=str) == "accept Ada"

    run(which, era, converse)


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
            await client.call_tool(name, {"duration": 0.4, "steps": 4}, progress=lambda done, *_: told.append(done))
            assert told == [1, 2, 3, 4]
        await client.ping()

    run("everything", "auto", converse, changed=changes.append, roots=[tmp_path.as_uri()])
