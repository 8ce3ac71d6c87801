"""features_as_tools.py: prompts and resources as tools."""

from __future__ import annotations

import json
from typing import Any

import pytest
from composition.parts import Part, client_of
from loops import on_a_loop
from msgspec import Raw
from msgspec.json import encode

from concertino import Server
from concertino.backend import Backend
from concertino.transforms import FeaturesAsTools


def make_server() -> Server:
    server = Server("s")

    @server.prompt
    def greet(name: str) -> str:
        "Greet somebody."
        return f"Say hello to {name}."

    @server.resource("notes://today")
    def today() -> str:
        return "Buy tea."

    @server.resource("pictures://{name}", mime_type="image/png")
    def picture(name: str) -> bytes:
        return b"\x89PNG"

    return server


async def call(backend: Backend, name: str, arguments: Any = None) -> Any:
    async with client_of(backend) as caller:
        return await caller.request("tools/call", {"name": name, "arguments": arguments or {}})


def both(server: Server) -> FeaturesAsTools:
    return FeaturesAsTools(server, prompts=True, resources=True)


@on_a_loop
async def test_the_tools_stand_behind_those_of_the_server() -> None:
    server = make_server()

    @server.tool
    def add(a: int) -> int:
        return a

    async with client_of(both(server)) as caller:
        tools = (await caller.request("tools/list"))["tools"]
    own = ["list_prompts", "get_prompt", "list_resources", "read_resource"]
    assert [tool["name"] for tool in tools] == ["add", *own]
    assert (await call(both(server), "add", {"a": 3}))["content"][0]["text"] == "3"


@on_a_loop
async def test_a_tool_of_the_server_with_such_a_name_is_hidden_on_each_page() -> None:
    def page(params: dict[str, Any]) -> Raw:
        names = ["get_prompt", "z"] if "cursor" in params else ["list_prompts", "a"]
        more = {} if "cursor" in params else {"nextCursor": "2"}
        return Raw(encode({"tools": [{"name": name, "inputSchema": {}} for name in names]} | more))

    part = Part({"tools/list": page}, tools=True, prompts=True)
    async with client_of(FeaturesAsTools(part, prompts=True)) as caller:
        first = await caller.request("tools/list")
        last = await caller.request("tools/list", {"cursor": first["nextCursor"]})
    assert [tool["name"] for tool in first["tools"]] == ["a"]
    assert [tool["name"] for tool in last["tools"]] == ["z", "list_prompts", "get_prompt"]


@on_a_loop
async def test_a_server_without_tools_has_these() -> None:
    async with client_of(FeaturesAsTools(make_server(), prompts=True)) as caller:
        tools = (await caller.request("tools/list"))["tools"]
    assert [tool["name"] for tool in tools] == ["list_prompts", "get_prompt"]


@on_a_loop
async def test_prompts_are_listed_and_rendered() -> None:
    listed = await call(both(make_server()), "list_prompts")
    [prompt] = json.loads(listed["content"][0]["text"])["prompts"]
    assert (prompt["name"], prompt["arguments"][0]["name"]) == ("greet", "name")
    arguments = {"name": "greet", "arguments": {"name": "Ada"}}
    result = await call(both(make_server()), "get_prompt", arguments)
    assert result["content"] == [{"type": "text", "text": "Say hello to Ada."}]


@on_a_loop
async def test_resources_are_listed_and_read() -> None:
    listed = await call(both(make_server()), "list_resources")
    found = json.loads(listed["content"][0]["text"])
    assert [item["uri"] for item in found["resources"]] == ["notes://today"]
    assert [item["uriTemplate"] for item in found["resourceTemplates"]] == ["pictures://{name}"]
    result = await call(both(make_server()), "read_resource", {"uri": "notes://today"})
    assert result["content"] == [{"type": "text", "text": "Buy tea."}]
    [block] = (await call(both(make_server()), "read_resource", {"uri": "pictures://a"}))["content"]
    assert block["type"] == "resource"
    assert block["resource"]["blob"] == "iVBORw=="


@pytest.mark.parametrize(
    ("name", "arguments", "text"),
    [
        ("get_prompt", {}, "Missing required field: name"),
        ("read_resource", {"uri": 1}, "Missing required field: uri"),
        ("get_prompt", {"name": "none"}, "Unknown prompt: none"),
        ("get_prompt", {"name": "greet"}, "name"),
        ("read_resource", {"uri": "notes://none"}, "notes://none"),
    ],
)
@on_a_loop
async def test_a_mistake_is_told_to_the_model(name: str, arguments: Any, text: str) -> None:
    result = await call(both(make_server()), name, arguments)
    assert result["isError"]
    assert text in json.dumps(result["content"])


@on_a_loop
async def test_without_prompts_the_list_is_empty() -> None:
    result = await call(both(Server("s")), "list_prompts")
    assert json.loads(result["content"][0]["text"]) == {"prompts": []}


@on_a_loop
async def test_a_tool_with_a_name_of_another_type_does_not_break_the_list() -> None:
    from concertino.backend.listing import _ListingContext  # pyright: ignore[reportPrivateUsage]
    from concertino.protocol.call import Call

    context: Any = _ListingContext()
    page = encode({"tools": [{"name": []}, {"name": "get_prompt"}, {"name": "add"}]})

    class Lists(Part):
        async def handle(self, call: Call, context: Any) -> Raw:
            # Another object each time, as a proxy returns it.
            return Raw(bytes(page))

    backend = FeaturesAsTools(Lists({}, tools=True), prompts=True)
    shown = await backend.handle(Call("tools/list"), context)
    assert isinstance(shown, Raw)
    names = [tool.get("name") for tool in json.loads(bytes(shown))["tools"]]
    assert names == [[], "add", "list_prompts", "get_prompt"]
    # The same list is the same object, whose encoded form is kept.
    assert await backend.handle(Call("tools/list"), context) is shown
