"""What each pair of listings on the pages "From FastMCP" and "From mcp" does, on both sides."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from docs.pages import DOCS, environment

from concertino import Client, RpcError
from concertino.client import LogMessage, ServerParameters
from concertino.types import ImageContent, PromptReference, TextContent

__all__ = ["FROM_FASTMCP", "FROM_MCP", "TOPICS", "check_server", "run_client", "run_test"]

FROM_FASTMCP = DOCS / "how-to" / "from-fastmcp.md"
FROM_MCP = DOCS / "how-to" / "from-mcp.md"
PNG = b"\x89PNG\r\n\x1a\n"


async def text_of(client: Client, tool: str, **arguments: object) -> str:
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result
    [content] = result.content
    assert isinstance(content, TextContent)
    return content.text


async def check_tools(client: Client) -> None:
    [tool] = await client.list_tools()
    assert (tool.name, tool.description) == ("price", "Say what something costs.")
    assert tool.annotations is not None
    assert tool.annotations.read_only_hint
    assert tool.input_schema["required"] == ["item"]
    item, amount = (tool.input_schema["properties"][name] for name in ("item", "amount"))
    assert (item["type"], item["description"].rstrip(".")) == ("string", "as the shop names it")
    assert (amount["type"], amount["minimum"], amount["default"]) == ("integer", 1, 1)
    result = await client.call_tool("price", {"item": "plum", "amount": 2})
    assert result.structured_content == {"item": "plum", "total": 3.0}
    assert (await client.call_tool("price", {"item": "plum", "amount": 0})).is_error
    assert client.instructions == "Prices are in euros."


async def check_context(client: Client) -> None:
    steps: list[tuple[float, float | None, str | None]] = []
    if "logging" in client.capabilities:  # mcp logs without declaring it
        await client.set_log_level("info")
    result = await client.call_tool(
        "bake", {"minutes": 2}, progress=lambda *step: steps.append(step)
    )
    assert result.content == [TextContent("a cake")]
    assert steps == [(1, 2, "minute 1"), (2, 2, "minute 2")]


async def check_resources(client: Client) -> None:
    assert [item.uri for item in await client.list_resources()] == ["notes://index"]
    templates = await client.list_resource_templates()
    assert [item.uri_template for item in templates] == ["notes://notes/{name}"]
    [index] = (await client.read_resource("notes://index")).contents
    assert (index.mime_type, str(index.text).replace(" ", "")) == (
        "application/json",
        '{"shopping":19}',
    )
    [note] = (await client.read_resource("notes://notes/shopping")).contents
    assert note.text == "Eggs, flour, plums."
    try:
        await client.read_resource("notes://notes/none")
    except RpcError:
        return
    raise AssertionError("a note that does not exist was read")


async def check_prompts(client: Client) -> None:
    [prompt] = await client.list_prompts()
    assert prompt.description == "Ask for a better text."
    asked = await client.get_prompt("improve", {"text": "helo"})
    assert [(item.role, item.content) for item in asked.messages] == [
        ("user", TextContent("Improve this in a plain style: helo")),
        ("assistant", TextContent("Here is a better one:")),
    ]
    found = await client.complete(PromptReference("improve"), "style", "pl")
    assert found.values == ["plain"]


async def check_lifespan(client: Client) -> None:
    [tool] = await client.list_tools()
    assert list(tool.input_schema["properties"]) == ["name"]
    assert [await text_of(client, "visit", name=name) for name in ("Ada", "Bob")] == ["1", "2"]


async def check_session(client: Client) -> None:
    pay = next(tool for tool in await client.list_tools() if tool.name == "pay")
    assert list(pay.input_schema["properties"]) == ["amount"]
    assert await text_of(client, "pay", amount=2) == "paid 2"
    assert await text_of(client, "audit") == "opened closed"


async def check_resolved(client: Client) -> None:
    [tool] = await client.list_tools()
    assert list(tool.input_schema["properties"]) == ["title"]
    assert await text_of(client, "order", title="Dune") == "Dune: 2 left"


async def check_errors(client: Client) -> None:
    assert await text_of(client, "withdraw", amount=20) == "80"
    refused = await client.call_tool("withdraw", {"amount": 200})
    assert refused.is_error
    [content] = refused.content
    assert isinstance(content, TextContent)
    assert content.text.endswith("at most 100 at a time")


async def check_pictures(client: Client) -> None:
    text, picture = (await client.call_tool("dot")).content
    assert text == TextContent("one dot")
    assert isinstance(picture, ImageContent)
    assert (picture.data[: len(PNG)], picture.mime_type) == (PNG, "image/png")


async def check_asking(client: Client) -> None:
    assert await text_of(client, "book", to="Rome") == "Ada to Rome, 2 seats"
    if "describe" in [tool.name for tool in await client.list_tools()]:
        assert await text_of(client, "describe", to="Rome") == "A city on seven hills."


async def check_guarded(client: Client) -> None:
    result = await client.call_tool("search", {"words": "plums"})
    size = sum(len(item.text) for item in result.content if isinstance(item, TextContent))
    assert 0 < size <= 1000


async def check_lowlevel(client: Client) -> None:
    [tool] = await client.list_tools()
    assert tool.input_schema["properties"]["text"]["maxLength"] == 100
    assert await text_of(client, "reverse", text="plum") == "mulp"


async def check_together(client: Client) -> None:
    names = [tool.name for tool in await client.list_tools()]
    assert sorted(names) == ["bank_withdraw", "shop_price"]
    assert await text_of(client, "bank_withdraw", amount=1) == "99"


TOPICS: dict[str, Callable[[Client], Awaitable[None]]] = {
    "tools.py": check_tools,
    "context.py": check_context,
    "resources.py": check_resources,
    "prompts.py": check_prompts,
    "lifespan.py": check_lifespan,
    "session.py": check_session,
    "resolved.py": check_resolved,
    "errors.py": check_errors,
    "pictures.py": check_pictures,
    "asking.py": check_asking,
    "guarded.py": check_guarded,
    "lowlevel.py": check_lowlevel,
    "together.py": check_together,
}


async def check_server(python: str | Path, name: str, folder: Path) -> None:
    """Start a listing with an interpreter, and use it as its topic says.

    `fastmcp_tools.py` and `tools.py` have the topic of the latter. What it logs to the client is
    part of its topic where there is something to log.
    """
    logged: list[object] = []

    def log(message: LogMessage) -> None:
        logged.append((message.level, message.data))

    topic = name.removeprefix("fastmcp_").removeprefix("mcp_")
    target = ServerParameters(
        str(python), ["-W", "ignore", name], cwd=str(folder), env=package_on_path()
    )
    async with Client(
        target,
        era="legacy",  # in 2025-11-25 a server may log without being asked in each request
        elicit=lambda question, server: {"name": "Ada", "seats": 2},
        sample=lambda question, server: "A city on seven hills.",
        logged=log,
    ) as client:
        await TOPICS[topic](client)
    if topic == "context.py":
        [(level, data)] = logged
        # FastMCP puts its messages into an object.
        assert (level, data["msg"] if isinstance(data, dict) else data) == (
            "info",
            "the oven is hot",
        )


def package_on_path() -> dict[str, str]:
    return {"PYTHONPATH": environment()["PYTHONPATH"]}


def run_client(python: str | Path, name: str, folder: Path) -> str:
    """Run a listing that is a client, where `python` is the one that has our package; return what
    it printed.
    """
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return run([str(python), "-W", "ignore", name], folder, PATH=path)


def run_test(python: str | Path, name: str, folder: Path) -> None:
    """Run the functions of a listing that is a test, without pytest, which its Python may lack."""
    code = "import runpy, sys; sys.path.insert(0, '.'); m = runpy.run_path(sys.argv[1])\n"
    code += "tests = [m[name] for name in m if name.startswith('test_')]\n"
    code += "assert tests\nfor test in tests: test()"
    run([str(python), "-W", "ignore", "-c", code, name], folder)


def run(command: list[str], folder: Path, **more: str) -> str:
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment(**more),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
