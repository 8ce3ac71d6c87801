"""tool_search.py: find_tools and call_tool instead of a long list."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from typing import Any, Literal

import pytest
from composition.parts import Part, client_of
from loops import on_a_loop
from msgspec import Raw
from msgspec.json import encode

from concertino import Context, RpcError, Server
from concertino.backend.call_hooks import call_starter_of
from concertino.guards import Guard
from concertino.token_estimate import estimate
from concertino.transforms import ToolSearch
from concertino.transforms.tool_search import MAX_LISTS


def make_server() -> Server:
    server = Server("s")

    @server.tool
    def add(a: int, b: int) -> int:
        "Add two integers."
        return a + b

    @server.tool
    async def count(to: int, context: Context) -> str:
        "Count, and report how far it is."
        for number in range(1, to + 1):
            await context.progress(number, to)
        return "counted"

    @server.tool
    def divide(a: int, b: int) -> float:
        "Divide one number by another."
        return a / b

    return server


def part_of(count: int) -> Part:
    """Return a backend with so many tools, which have members that nobody knows."""
    tools = [
        {
            "name": f"tool_{number}",
            "description": f"Does task number {number}. " + "More about it. " * 30,
            "inputSchema": {"type": "object", "properties": {}},
            "x-unknown": number,
        }
        for number in range(count)
    ]
    result = {"content": [{"type": "text", "text": "done"}], "x-unknown": 1}
    answers = {"tools/list": Raw(encode({"tools": tools})), "tools/call": Raw(encode(result))}
    return Part(answers, tools=True)


async def call(caller: Any, name: str, arguments: dict[str, Any]) -> Any:
    return await caller.request("tools/call", {"name": name, "arguments": arguments})


@on_a_loop
async def test_two_tools_stand_for_all() -> None:
    async with client_of(ToolSearch(make_server(), "search")) as caller:
        tools = (await caller.request("tools/list"))["tools"]
    assert [tool["name"] for tool in tools] == ["find_tools", "call_tool"]
    assert estimate(json.dumps(tools)) <= 800


@pytest.mark.parametrize(("count", "budget", "is_searched"), [(3, 10_000, False), (3, 300, True)])
@on_a_loop
async def test_auto_shows_a_list_that_is_within_the_budget(
    count: int, budget: int, is_searched: bool
) -> None:
    backend = ToolSearch(part_of(count), "auto", budget_tokens=budget)
    async with client_of(backend) as caller:
        tools = (await caller.request("tools/list"))["tools"]
    assert (tools[0]["name"] == "find_tools") is is_searched
    assert len(tools) == (2 if is_searched else count)


@on_a_loop
async def test_all_shows_every_list() -> None:
    async with client_of(ToolSearch(part_of(300), "all")) as caller:
        assert len((await caller.request("tools/list"))["tools"]) == 300
        # It goes to the backend, which answers every call.
        result = await call(caller, "find_tools", {"query": "x"})
    assert result["content"][0]["text"] == "done"


@on_a_loop
async def test_find_tools_returns_what_a_call_needs() -> None:
    async with client_of(ToolSearch(make_server(), "search")) as caller:
        result = await call(caller, "find_tools", {"query": "sum of two integers: add"})
        found = json.loads(result["content"][0]["text"])["tools"]
    assert found[0]["name"] == "add"
    assert found[0]["description"] == "Add two integers."
    assert found[0]["inputSchema"]["required"] == ["a", "b"]


@on_a_loop
async def test_what_is_found_stays_within_its_budget() -> None:
    backend = ToolSearch(part_of(50), "search", found_tokens=500)
    async with client_of(backend) as caller:
        result = await call(caller, "find_tools", {"query": "task"})
    text = result["content"][0]["text"]
    assert len(json.loads(text)["tools"]) >= 5
    assert estimate(text) <= 500


@pytest.mark.parametrize("arguments", [{}, {"query": ""}, {"query": 1}])
@on_a_loop
async def test_find_tools_wants_a_query(arguments: dict[str, Any]) -> None:
    async with client_of(ToolSearch(make_server(), "search")) as caller:
        result = await call(caller, "find_tools", arguments)
    assert result["isError"]
    assert "query" in result["content"][0]["text"]


@on_a_loop
async def test_find_tools_says_when_no_tool_fits() -> None:
    async with client_of(ToolSearch(make_server(), "search")) as caller:
        result = await call(caller, "find_tools", {"query": "xylophone"})
    assert "No tool of 3" in result["content"][0]["text"]


@on_a_loop
async def test_call_tool_passes_the_result_through_unchanged() -> None:
    async with client_of(ToolSearch(part_of(2), "search")) as caller:
        result = await call(caller, "call_tool", {"name": "tool_1", "arguments": {"q": 1}})
    assert result["content"] == [{"type": "text", "text": "done"}]


@pytest.mark.parametrize("arguments", [{"a": 1, "b": 2}, '{"a": 1, "b": 2}'])
@on_a_loop
async def test_call_tool_calls_the_tool_with_its_arguments(arguments: object) -> None:
    async with client_of(ToolSearch(make_server(), "search")) as caller:
        result = await call(caller, "call_tool", {"name": "add", "arguments": arguments})
    assert result["structuredContent"] == {"result": 3}


@on_a_loop
async def test_a_failed_call_is_the_tools_own_failure() -> None:
    async with client_of(ToolSearch(make_server(), "search")) as caller:
        result = await call(caller, "call_tool", {"name": "add", "arguments": {"a": 1}})
    assert result["isError"]
    assert result["content"][0]["text"].startswith(
        '{"error":"Invalid arguments: Missing required field: b"'
    )


@on_a_loop
async def test_progress_of_the_tool_reaches_the_client() -> None:
    told: list[str] = []
    async with client_of(ToolSearch(make_server(), "search"), told) as caller:
        await caller.request(
            "tools/call",
            {
                "name": "call_tool",
                "arguments": {"name": "count", "arguments": {"to": 2}},
                "_meta": {"progressToken": "p"},
            },
        )
    assert told.count("notifications/progress") >= 1


@pytest.mark.parametrize(
    ("name", "hint"), [("ad", "did you mean 'add'?"), ("xylophone", "find_tools")]
)
@on_a_loop
async def test_an_unknown_name_gets_a_suggestion(name: str, hint: str) -> None:
    async with client_of(ToolSearch(make_server(), "search")) as caller:
        result = await call(caller, "call_tool", {"name": name})
    assert result["isError"]
    text = result["content"][0]["text"]
    assert text.startswith(f"Unknown tool: {name}")
    assert hint in text


@pytest.mark.parametrize("arguments", [{"name": 1}, {"name": "add", "arguments": "no JSON"}])
@on_a_loop
async def test_arguments_of_another_type_are_refused(arguments: dict[str, Any]) -> None:
    async with client_of(ToolSearch(make_server(), "search")) as caller:
        with pytest.raises(RpcError, match="Invalid params"):
            await call(caller, "call_tool", arguments)


@on_a_loop
async def test_a_call_without_a_name_says_so() -> None:
    async with client_of(ToolSearch(make_server(), "search")) as caller:
        result = await call(caller, "call_tool", {"arguments": {}})
    assert result["content"][0]["text"].startswith("Missing required field: name")


@on_a_loop
async def test_a_tool_can_be_called_by_its_own_name() -> None:
    async with client_of(ToolSearch(make_server(), "search")) as caller:
        result = await call(caller, "add", {"a": 1, "b": 2})
    assert result["structuredContent"] == {"result": 3}


@on_a_loop
async def test_guards_count_and_refuse_the_real_tool() -> None:
    guarded = Guard(make_server(), rate_limit="add=1/3600", deny="divide")
    async with client_of(ToolSearch(guarded, "search")) as caller:
        add = {"name": "add", "arguments": {"a": 1, "b": 2}}
        assert not (await call(caller, "call_tool", add)).get("isError")
        assert (await call(caller, "call_tool", add))["isError"]
        other = {"name": "count", "arguments": {"to": 0}}
        assert not (await call(caller, "call_tool", other)).get("isError")
        found = await call(caller, "find_tools", {"query": "divide numbers"})
        assert "divide" not in found["content"][0]["text"].replace("Divide", "")
        refused = await call(caller, "call_tool", {"name": "divide", "arguments": {}})
    assert refused["content"][0]["text"].startswith("Unknown tool: divide")


@on_a_loop
async def test_a_short_list_may_have_a_tool_called_find_tools() -> None:
    server = Server("s")

    @server.tool
    def find_tools() -> str:
        return "own"

    async with client_of(ToolSearch(server, "auto")) as caller:
        assert (await call(caller, "find_tools", {}))["content"][0]["text"] == "own"


@on_a_loop
async def test_tools_that_come_later_are_found() -> None:
    server = make_server()
    async with client_of(ToolSearch(server, "search")) as caller:
        await call(caller, "find_tools", {"query": "add"})

        @server.tool
        def translate(text: str) -> str:
            "Translate a text into French."
            return text

        result = await call(caller, "find_tools", {"query": "translate to French"})
    assert json.loads(result["content"][0]["text"])["tools"][0]["name"] == "translate"


@on_a_loop
async def test_a_list_of_several_pages_is_searched_as_a_whole() -> None:
    def answer(params: dict[str, Any]) -> Raw:
        number = 2 if "cursor" in params else 1
        tool = {"name": f"page{number}", "inputSchema": {"type": "object"}}
        page: dict[str, Any] = {"tools": [tool]}
        if number == 1:
            page["nextCursor"] = "2"
        return Raw(encode(page))

    backend = ToolSearch(Part({"tools/list": answer}, tools=True), "search")
    async with client_of(backend) as caller:
        result = await call(caller, "find_tools", {"query": "page2"})
    assert json.loads(result["content"][0]["text"])["tools"][0]["name"] == "page2"


@on_a_loop
async def test_an_empty_cursor_does_not_reveal_the_list_behind_the_search() -> None:
    async with client_of(ToolSearch(make_server(), "search")) as caller:
        page = await caller.request("tools/list", {"cursor": ""})
    assert [tool["name"] for tool in page["tools"]] == ["find_tools", "call_tool"]


@on_a_loop
async def test_a_cursor_is_refused_if_the_list_is_the_two_tools() -> None:
    async with client_of(ToolSearch(part_of(3), "search")) as caller:
        with pytest.raises(RpcError) as caught:
            await caller.request("tools/list", {"cursor": "2"})
    assert caught.value.code == -32602
    assert caught.value.data == {"details": "cursor: not one of this server's"}


@pytest.mark.parametrize(
    ("options", "message"),
    [({"mode": "some"}, "mode"), ({"budget_tokens": 0}, "budget_tokens")],
)
def test_invalid_options_are_named(options: Any, message: Literal["mode"]) -> None:
    with pytest.raises(ValueError, match=message):
        ToolSearch(make_server(), **options)


@on_a_loop
async def test_tools_without_a_name_are_not_shown_and_the_others_work() -> None:
    tools = [{"name": 5}, {}, {"name": None}, {"name": "issue", "description": None}]
    answers = {
        "tools/list": Raw(encode({"tools": tools})),
        "tools/call": Raw(encode({"content": [{"type": "text", "text": "done"}]})),
    }
    backend = ToolSearch(Part(answers, tools=True), "search")
    async with client_of(backend) as caller:
        assert len((await caller.request("tools/list"))["tools"]) == 2
        found = await call(caller, "find_tools", {"query": "make an issue"})
        assert [tool["name"] for tool in json.loads(found["content"][0]["text"])["tools"]] == [
            "issue"
        ]
        result = await call(caller, "call_tool", {"name": "issue"})
    assert result["content"][0]["text"] == "done"


@on_a_loop
async def test_calls_by_name_begin_as_without_the_search() -> None:
    guard = Guard(make_server(), rate_limit="add=2/60", timeout_s=60)
    search = ToolSearch(guard, "search")
    assert call_starter_of(search) is not None
    async with client_of(search) as caller:
        assert len((await caller.request("tools/list"))["tools"]) == 2
        found = await call(caller, "find_tools", {"query": "add numbers"})
        assert json.loads(found["content"][0]["text"])["tools"][0]["name"] == "add"
        numbers = {"a": 1, "b": 2}
        # Both ways count for one rate.
        assert (await call(caller, "add", numbers))["content"][0]["text"] == "3"
        wrapped = await call(caller, "call_tool", {"name": "add", "arguments": numbers})
        assert wrapped["content"][0]["text"] == "3"
        refused = await call(caller, "add", numbers)
    assert refused["isError"]


def test_without_a_guard_or_with_another_handle_there_is_no_faster_way() -> None:
    class Other(ToolSearch):
        async def handle(self, call: Any, context: Any) -> Any:
            return await super().handle(call, context)

    assert call_starter_of(ToolSearch(make_server())) is None
    assert call_starter_of(Other(Guard(make_server()))) is None


@on_a_loop
async def test_a_tool_with_the_name_of_the_search_does_not_take_its_place() -> None:
    server = Server("s")

    @server.tool
    def find_tools(query: str) -> str:
        return f"own {query}"

    async with client_of(ToolSearch(Guard(server), "search")) as caller:
        own = await call(
            caller, "call_tool", {"name": "find_tools", "arguments": {"query": "a tool"}}
        )
        searched = await call(caller, "find_tools", {"query": "find"})
    assert own["content"][0]["text"] == "own a tool"
    assert searched["content"][0]["text"].startswith('{"tools":')


@on_a_loop
async def test_users_who_see_different_tools_do_not_build_the_index_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from concertino.transforms import tool_search
    from concertino.transforms.tool_index import ToolIndex, ToolText

    sizes: list[int] = []

    class Counted(ToolIndex):
        def __init__(self, tools: Iterable[ToolText]) -> None:
            texts = list(tools)
            sizes.append(len(texts))
            super().__init__(texts)

    monkeypatch.setattr(tool_search, "ToolIndex", Counted)
    lists = [encode({"tools": [{"name": f"issue_{n}"} for n in range(size)]}) for size in (2, 3)]
    turns = itertools.cycle(lists)
    # Another object each time, as a proxy returns it.
    part = Part({"tools/list": lambda _: Raw(bytes(next(turns)))}, tools=True)
    async with client_of(ToolSearch(part, "search")) as caller:
        found = [await call(caller, "find_tools", {"query": "issue"}) for _ in range(6)]
    counts = [len(json.loads(result["content"][0]["text"])["tools"]) for result in found]
    assert sorted(sizes) == [2, 3]
    assert sorted(counts) == [2, 2, 2, 3, 3, 3]


@on_a_loop
async def test_only_the_last_lists_are_remembered() -> None:
    sizes = itertools.count(1)
    part = Part(
        {
            "tools/list": lambda _: Raw(
                encode({"tools": [{"name": f"t{n}"} for n in range(next(sizes))]})
            )
        },
        tools=True,
    )
    search = ToolSearch(part, "search")
    async with client_of(search) as caller:
        for _ in range(MAX_LISTS + 3):
            await call(caller, "find_tools", {"query": "t0"})
    lists = search._lists  # pyright: ignore[reportPrivateUsage]
    assert len(lists) == MAX_LISTS
    assert len(lists[0].tools) > len(lists[-1].tools)
