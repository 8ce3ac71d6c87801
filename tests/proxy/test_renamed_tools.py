"""renamed_tools.py: tools under other names."""

from __future__ import annotations

import pytest
from composition.parts import client_of
from loops import on_a_loop

from concertino import RpcError, Server
from concertino.proxy.renamed_tools import RenamedTools


def renamed() -> RenamedTools:
    server = Server("s")

    @server.tool
    def one() -> str:
        "One."
        return "1"

    @server.tool
    def two() -> str:
        "Two."
        return "2"

    @server.tool
    def three() -> str:
        "Three."
        return "3"

    return RenamedTools(server, {"one": "first", "two": "three"})


@on_a_loop
async def test_tools_are_listed_under_their_new_names() -> None:
    async with client_of(renamed()) as caller:
        tools = (await caller.request("tools/list"))["tools"]
    # `three` is another tool now, which hides the one of that name.
    assert [(tool["name"], tool["description"]) for tool in tools] == [
        ("first", "One."),
        ("three", "Two."),
    ]


@pytest.mark.parametrize(("name", "text"), [("first", "1"), ("three", "2")])
@on_a_loop
async def test_a_tool_is_called_by_its_new_name(name: str, text: str) -> None:
    async with client_of(renamed()) as caller:
        result = await caller.request("tools/call", {"name": name})
    assert result["content"][0]["text"] == text


@pytest.mark.parametrize("name", ["one", "two", "none"])
@on_a_loop
async def test_the_old_name_is_unknown(name: str) -> None:
    async with client_of(renamed()) as caller:
        with pytest.raises(RpcError, match=f"Unknown tool: {name}"):
            await caller.request("tools/call", {"name": name})


@on_a_loop
async def test_an_unknown_tool_is_named_as_the_caller_named_it() -> None:
    async with client_of(RenamedTools(Server("s"), {"gone": "new"})) as caller:
        with pytest.raises(RpcError, match="Unknown tool: new"):
            await caller.request("tools/call", {"name": "new"})
