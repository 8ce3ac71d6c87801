"""server/server.py: what a Server offers, and how its calls are answered; over a memory pair."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial, wraps
from typing import Any

import pytest
from loops import on_a_loop
from msgspec import Struct

from concertino import Context, Limits, RpcError, Server, ToolError, image
from concertino.backend import Host
from concertino.client import RawClient
from concertino.errors import NotRegistered, RegistrationError
from concertino.runtime import entry
from concertino.server.registry import Registry
from concertino.transports import connect, memory_pair
from concertino.types import Icon, ImageContent, TextContent

PNG = b"\x89PNG\r\n\x1a\n" + bytes(8)
MODERN = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}


class Served:
    """A server with a client of 2025-11-25."""

    def __init__(self, server: Server, notified: Any = None) -> None:
        self._host = Host(server)
        self._notified = notified
        self.caller: RawClient
        self.opened: Any

    async def __aenter__(self) -> Served:
        await self._host.__aenter__()
        ours, theirs = memory_pair()
        self._host.attach(theirs)
        self.caller = connect(ours, self._notified)
        self.opened = await self.caller.request(
            "initialize", {"protocolVersion": "2025-11-25", "capabilities": {}}
        )
        self.caller.notify("notifications/initialized")
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.caller.aclose()
        await self._host.__aexit__(*error)

    async def call(self, tool: str, /, **arguments: Any) -> Any:
        return await self.caller.request("tools/call", {"name": tool, "arguments": arguments})

    async def text(self, tool: str, /, **arguments: Any) -> str:
        result = await self.call(tool, **arguments)
        assert not result.get("isError"), result
        return result["content"][0]["text"]

    async def failure(self, tool: str, /, **arguments: Any) -> str:
        result = await self.call(tool, **arguments)
        assert result["isError"] is True
        return result["content"][0]["text"]

    async def tools(self) -> dict[str, Any]:
        return {each["name"]: each for each in (await self.caller.request("tools/list"))["tools"]}


# What is offered


@pytest.mark.requirement("CX-3")
@on_a_loop
async def test_what_is_said_about_a_server() -> None:
    server = Server(
        "shop",
        version="3.1",
        title="The shop",
        instructions="Buy.",
        icons=[Icon("https://example.org/i.png", mime_type="image/png")],
        experimental={"x": {"y": 1}},
        extensions={"org.example/z": {}},
    )
    async with Served(server) as served:
        assert served.opened == {
            "protocolVersion": "2025-11-25",
            "capabilities": {
                "logging": {},
                "tools": {"listChanged": True},
                "experimental": {"x": {"y": 1}},
            },
            "serverInfo": {
                "name": "shop",
                "version": "3.1",
                "title": "The shop",
                "icons": [{"src": "https://example.org/i.png", "mimeType": "image/png"}],
            },
            "instructions": "Buy.",
        }
        found = await served.caller.request("server/discover", {"_meta": MODERN})
        assert found["capabilities"]["extensions"] == {"org.example/z": {}}


@on_a_loop
async def test_what_is_said_about_a_tool() -> None:
    server = Server("shop")

    @server.tool(
        title="Buy it",
        read_only=False,
        destructive=True,
        idempotent=False,
        open_world=True,
        icons=[Icon("data:,x")],
        meta={"org.example/price": 5},
    )
    async def buy(item: str, count: int = 1) -> str:
        """Buy something.

        Args:
            item: What.
        """
        return item * count

    async with Served(server) as served:
        tool = (await served.tools())["buy"]
        assert tool["title"] == "Buy it"
        assert tool["description"] == "Buy something."
        assert tool["annotations"] == {
            "readOnlyHint": False,
            "destructiveHint": True,
            "idempotentHint": False,
            "openWorldHint": True,
        }
        assert tool["icons"] == [{"src": "data:,x"}]
        assert tool["_meta"] == {"org.example/price": 5}
        assert tool["inputSchema"]["properties"]["item"] == {
            "type": "string",
            "description": "What.",
        }
        assert tool["inputSchema"]["required"] == ["item"]
        assert "outputSchema" not in tool


@on_a_loop
async def test_a_tool_without_hints_has_no_annotations() -> None:
    server = Server("x")
    server.add_tool(lambda: "x", name="f")
    async with Served(server) as served:
        assert set((await served.tools())["f"]) == {"name", "inputSchema"}


def test_the_decorator_gives_the_function_back() -> None:
    server = Server("x")

    def one() -> str:
        return "1"

    assert server.tool(one) is one
    assert server.tool(name="two")(one) is one


@on_a_loop
async def test_every_kind_of_callable_can_be_a_tool() -> None:
    class Adder:
        def __init__(self, start: int) -> None:
            self.start = start

        def add(self, a: int) -> int:
            return self.start + a

        async def add_later(self, a: int) -> int:
            await asyncio.sleep(0)
            return self.start + a

        async def __call__(self, a: int) -> int:
            return self.start - a

        @classmethod
        def of_class(cls) -> str:
            return cls.__name__

        @staticmethod
        def of_nobody() -> str:
            return "nobody"

    def returns_awaitable(a: int) -> Any:
        return adder.add_later(a)

    adder = Adder(10)
    server = Server("x")
    server.add_tool(adder.add)
    server.add_tool(adder.add_later)
    server.add_tool(adder, name="called")
    server.add_tool(Adder.of_class)
    server.add_tool(Adder.of_nobody)
    server.add_tool(partial(adder.add, 5), name="bound")
    server.add_tool(partial(adder.add_later, 6), name="bound_later")
    server.add_tool(returns_awaitable)
    server.add_tool(returns_awaitable, name="inline_awaitable", inline=True)
    async with Served(server) as served:
        assert await served.text("add", a=1) == "11"
        assert await served.text("add_later", a=2) == "12"
        assert await served.text("called", a=3) == "7"
        assert await served.text("of_class") == "Adder"
        assert await served.text("of_nobody") == "nobody"
        assert await served.text("bound") == "15"
        assert await served.text("bound_later") == "16"
        assert await served.text("returns_awaitable", a=4) == "14"
        assert await served.text("inline_awaitable", a=5) == "15"


@on_a_loop
async def test_the_context_is_given_and_is_no_argument() -> None:
    server = Server("x")

    @server.tool
    async def who(context: Context, a: int = 1) -> str:
        return f"{context.client.name} {a}"

    @server.tool
    def only_by_keyword(a: int, *, ctx: Context) -> str:
        return f"{ctx.client.protocol_version} {a}"

    async with Served(server) as served:
        tools = await served.tools()
        assert set(tools["who"]["inputSchema"]["properties"]) == {"a"}
        assert await served.text("who") == " 1"
        assert await served.text("only_by_keyword", a=2) == "2025-11-25 2"


@on_a_loop
async def test_a_def_around_an_async_def_is_a_def() -> None:
    """What a wrapper is called as counts, not what it wraps."""

    async def later(a: int) -> int:
        await asyncio.sleep(0)
        return a

    @wraps(later)
    def now(a: int) -> int:
        return asyncio.run(later(a))

    def plain(a: int) -> int:
        return a

    @wraps(plain)
    async def in_time(a: int) -> int:
        return await later(plain(a))

    class Called:
        async def __call__(self, a: int) -> int:
            return await later(a)

    server = Server("x")
    server.add_tool(now, name="now")
    server.add_tool(partial(partial(now), 2), name="partly")
    server.add_tool(in_time, name="in_time")
    server.add_tool(partial(Called(), a=4), name="called")
    async with Served(server) as served:
        assert await served.text("now", a=1) == "1"
        assert await served.text("partly") == "2"
        assert await served.text("in_time", a=3) == "3"
        assert await served.text("called") == "4"
    assert {name: tool.is_async for name, tool in server._registered_tools.entries.items()} == {
        "now": False,
        "partly": False,
        "in_time": True,
        "called": True,
    }


# Registration errors name the tool and what to write


@pytest.mark.requirement("TO-5")
@pytest.mark.parametrize("name", ["", "with space", "ü", "x" * 129, "a/b", "a\n"])
def test_a_name_that_clients_refuse_is_refused(name: str) -> None:
    with pytest.raises(RegistrationError, match="pass name="):
        Server("x").add_tool(lambda: "x", name=name)


def test_a_lambda_needs_a_name() -> None:
    with pytest.raises(RegistrationError, match=r"<lambda>.*pass name="):
        Server("x").add_tool(lambda: "x")


@pytest.mark.requirement("TO-5")
def test_a_name_of_128_characters_is_accepted() -> None:
    Server("x").add_tool(lambda: "x", name="x" * 128)


@pytest.mark.requirement("TO-5")
def test_the_same_name_twice_is_refused_and_the_first_stays() -> None:
    server = Server("x")
    server.add_tool(lambda: "first", name="f")
    with pytest.raises(
        RegistrationError,
        match=r"a tool named 'f' is already registered \(test_server.py:\d+\); pass name=... or "
        r"call remove_tool\('f'\) first",
    ):
        server.add_tool(lambda: "second", name="f")
    assert list(server._registered_tools.entries) == ["f"]


def test_what_cannot_be_described_is_refused_by_name() -> None:
    def takes_anything(*args: int) -> str:
        return "x"

    def takes_object(x: type) -> str:
        return "x"

    def generates() -> int:  # type: ignore[misc]
        yield 1

    server = Server("x")
    for handler in (takes_anything, takes_object, generates):
        with pytest.raises(RegistrationError, match=handler.__name__):
            server.add_tool(handler)
    assert server._registered_tools.entries == {}


SURROGATE = "\ud800"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"name": 5}, "name: expected str | null, got int"),
        ({"title": 5}, "title: expected str | null, got int"),
        ({"title": object()}, "title: expected JSON, got object"),
        ({"title": SURROGATE}, "title: 'utf-8' codec can't encode character"),
        ({"description": ["x"]}, "description: expected str | null, got array"),
        ({"read_only": "yes"}, "read_only: expected bool | null, got str"),
        ({"destructive": 1}, "destructive: expected bool | null, got int"),
        ({"idempotent": 1}, "idempotent: expected bool"),
        ({"open_world": 1}, "open_world: expected bool"),
        ({"icons": "x"}, "icons: expected array | null, got str"),
        ({"icons": [Icon(5)]}, "icons[0].src: expected str, got int"),  # type: ignore[arg-type]
        ({"icons": [{}]}, "icons[0]: object missing required field src"),
        ({"meta": [1]}, "meta: expected object | null, got array"),
        ({"meta": {"a": object()}}, "meta: expected JSON, got object"),
        ({"meta": {(1, 2): 1}}, "meta: "),
        ({"meta": {"a": [float("nan")]}}, "meta: holds NaN or infinity at a[0]"),
        (
            {"title": 1, "icons": 2},
            "title: expected str | null, got int; icons: expected array | null, got int",
        ),
        ({"inline": 1}, "inline: expected bool, got int"),
        ({"input_schema": 5}, "input_schema: expected object | null, got int"),
    ],
)
def test_a_setting_of_a_tool_that_clients_could_not_read_is_refused(
    settings: dict[str, Any], said: str
) -> None:
    def f() -> str:
        return "x"

    server = Server("x")
    with pytest.raises(RegistrationError) as refused:
        server.add_tool(f, **settings)
    assert str(refused.value).startswith(f"f: {said}")
    assert server._registered_tools.entries == {}


def test_what_is_read_from_a_function_is_checked_too() -> None:
    def f() -> str:
        return "x"

    f.__doc__ = f"Say {SURROGATE}."
    with pytest.raises(RegistrationError, match=r"f: description: .*surrogates not allowed"):
        Server("x").add_tool(f)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"name": 5}, "name: expected str, got int"),
        ({"version": 5}, "version: expected str, got int"),
        ({"version": None}, "version: expected str, got null"),
        ({"title": SURROGATE}, "title: 'utf-8' codec can't encode character"),
        ({"instructions": 7}, "instructions: expected str | null, got int"),
        ({"icons": [Icon(5)]}, "icons[0].src: expected str, got int"),  # type: ignore[arg-type]
        ({"experimental": [1]}, "experimental: expected object | null, got array"),
        ({"experimental": {"a": 1}}, "experimental[...]: expected object, got int"),
        ({"extensions": {"a": {"b": object()}}}, "extensions: expected JSON, got object"),
        ({"extensions": {"a": {"b": float("inf")}}}, "extensions: holds NaN or infinity at a.b"),
    ],
)
def test_a_setting_of_a_server_that_clients_could_not_read_is_refused(
    settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValueError) as refused:  # noqa: PT011  # the text is compared below
        Server(**{"name": "x", **settings})
    assert str(refused.value).startswith(said)


# 2026-07-28 basic/index, `_meta`: labels between dots, then a slash, then a name, which may be
# empty.
KEYS = [
    "",
    "a",
    "a1",
    "1",
    "a.b-c_d",
    "com.example/x",
    "a/b",
    "x-y.z9/0",
    "io.modelcontextprotocol/ui",
    "com.example/",
]
NO_KEYS = [
    "-a",
    "a-",
    "a b",
    "_x",
    "é",
    "a\n",
    "/a",
    "1a/x",
    "a-/x",
    "a..b/x",
    ".a/x",
    "a./x",
    "a/b/c",
]


@pytest.mark.requirement("ME-16")
@pytest.mark.parametrize("key", [*KEYS, *NO_KEYS])
def test_a_key_of_meta_follows_the_grammar(key: str) -> None:
    def f() -> str:
        return "x"

    server = Server("x")
    if key in KEYS:
        server.add_tool(f, meta={key: 1})
        assert server._registered_tools.entries["f"].tool.meta == {key: 1}
    else:
        with pytest.raises(RegistrationError) as refused:
            server.add_tool(f, meta={"fine": 1, key: 1})
        assert (
            str(refused.value)
            == f"f: meta: expected keys like 'name' or 'com.example/name', got {key!r}"
        )
        with pytest.raises(RegistrationError, match=r"^prompt 'f': meta: "):
            server.add_prompt(f, meta={key: 1})
        with pytest.raises(RegistrationError, match=r"^resource 'x://a': meta: "):
            server.add_resource("x://a", text="", meta={key: 1})


@pytest.mark.requirement("CX-1")
@pytest.mark.parametrize("key", [*KEYS, *NO_KEYS])
def test_the_name_of_an_extension_has_a_prefix(key: str) -> None:
    if key in KEYS and "/" in key:
        assert Server("x", extensions={key: {}}).features().extensions == {key: {}}
    else:
        with pytest.raises(
            ValueError, match=r"extensions: expected names like 'com.example/name', got "
        ):
            Server("x", extensions={key: {}})


def test_a_name_where_the_function_belongs_is_refused() -> None:
    server: Any = Server("x")
    with pytest.raises(RegistrationError, match="expected a function, got 'add'; write name='add'"):
        server.tool("add")
    with pytest.raises(RegistrationError, match=r"expected a function, got 5$"):
        server.add_tool(5)


def test_a_method_without_its_object_is_refused() -> None:
    class Adder:
        def add(self, a: int) -> int:
            return a

    def free(self: int) -> int:
        return self

    def untyped(self) -> int:  # type: ignore[no-untyped-def]
        return self

    @wraps(Adder.add)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return Adder.add(*args, **kwargs)

    server = Server("x")
    for handler in (Adder.add, wrapped):
        with pytest.raises(
            RegistrationError, match=r"add: .*Adder\.add is .*pass a bound method.*object\.add"
        ):
            server.add_tool(handler)
    server.add_tool(Adder().add)
    server.add_tool(free)
    with pytest.raises(
        RegistrationError,
        match=r"^untyped: untyped\(\) is no method, so nothing fills its parameter 'self'; remove "
        r"the parameter, or give it a type if clients are meant to fill it$",
    ):
        server.add_tool(untyped)


def test_removing_what_is_not_there_is_a_key_error_with_the_closest_name() -> None:
    server = Server("x")
    server.add_tool(lambda: 1, name="add")
    server.add_prompt(lambda: "", name="greet")
    server.add_resource("config://app", text="")
    server.add_resource("notes://{day}", lambda day: day)
    for remove, name, text in (
        (server.remove_tool, "ad", "no tool is registered as 'ad'; did you mean 'add'?"),
        (server.remove_tool, "zzz", "no tool is registered as 'zzz'"),
        (
            server.remove_prompt,
            "great",
            "no prompt is registered as 'great'; did you mean 'greet'?",
        ),
        (
            server.remove_resource,
            "config://ap",
            "no resource or template is registered as 'config://ap'; did you mean 'config://app'?",
        ),
        (
            server.remove_resource,
            "note://{day}",
            "no resource or template is registered as 'note://{day}'; "
            "did you mean 'notes://{day}'?",
        ),
    ):
        with pytest.raises(KeyError) as failure:
            remove(name)
        assert (type(failure.value), str(failure.value)) == (NotRegistered, text)


def test_a_wrong_setting_is_refused() -> None:
    with pytest.raises(ValueError, match="argument_errors"):
        Server("x", argument_errors="ignore")  # type: ignore[arg-type]


@on_a_loop
async def test_run_inside_a_running_loop_is_refused() -> None:
    with pytest.raises(RuntimeError, match=r"concertino\.serve"):
        Server("x").run()


def test_run_only_records_the_server_while_a_target_is_imported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run_calls: list[Any] = []
    monkeypatch.setattr(entry, "run_calls", ContextVar("run_calls", default=run_calls))
    server = Server("x")
    server.run()
    server.run(limits=(limits := Limits()), loop_factory=asyncio.new_event_loop)
    assert [(call.backend, call.limits, call.loop_factory) for call in run_calls] == [
        (server, None, None),
        (server, limits, asyncio.new_event_loop),
    ]


# Calls


@pytest.mark.requirement("JR-16", "TO-7")
@on_a_loop
async def test_an_unknown_tool_and_malformed_params_are_protocol_errors() -> None:
    server = Server("x")
    server.add_tool(lambda: "x", name="f")
    async with Served(server) as served:
        for params, text in (
            ({"name": "g", "arguments": {}}, "Unknown tool: g"),
            ({"arguments": {}}, "Invalid params"),
            ({"name": 5}, "Invalid params"),
            ({"name": "f", "arguments": []}, "Invalid params"),
            ({"name": "f", "arguments": "x"}, "Invalid params"),
            ({"name": "f", "arguments": None}, "Invalid params"),
        ):
            with pytest.raises(RpcError) as refused:
                await served.caller.request("tools/call", params)
            assert (refused.value.code, refused.value.message) == (-32602, text), params
            assert refused.value.data["details"]
            if params.get("name") == "f":
                assert refused.value.data["details"].startswith("arguments: expected ")
        assert (await served.caller.request("tools/call", {"name": "f"}))["content"][0][
            "text"
        ] == "x"
        for cursor in ("page 2", None):
            with pytest.raises(RpcError) as refused:
                await served.caller.request("tools/list", {"cursor": cursor})
            assert refused.value.code == -32602
            assert refused.value.data["details"].startswith("cursor: ")
        for method in ("prompts/list", "resources/read", "completion/complete"):
            with pytest.raises(RpcError) as refused:
                await served.caller.request(method)
            assert refused.value.code == -32601


def adding() -> Callable[..., int]:
    def add(a: int, b: int) -> int:
        return a + b

    return add


@pytest.mark.requirement("TO-8")
@on_a_loop
async def test_arguments_that_do_not_fit_are_a_result_that_names_each_problem() -> None:
    server = Server("x")
    server.add_tool(adding())
    async with Served(server) as served:
        body = json.loads(await served.failure("add", a="1", c=3))
        assert body["code"] == "INVALID_ARGUMENTS"
        assert [detail["path"] for detail in body["details"]] == ["a", "b", "c"]
        assert "Missing required field: b" in body["error"]
        assert "a: expected int, got str" in body["error"]


@on_a_loop
async def test_many_unknown_arguments_are_a_result_too() -> None:
    server = Server("x")
    server.add_tool(adding())
    async with Served(server) as served:
        text = await served.failure("add", a=1, b=2, **{f"k{n}": n for n in range(1000)})
        assert "more unknown arguments" in text
        assert len(text) < 20_000


@on_a_loop
async def test_arguments_that_do_not_fit_can_be_protocol_errors() -> None:
    server = Server("x", argument_errors="protocol")
    server.add_tool(adding())
    async with Served(server) as served:
        with pytest.raises(RpcError) as refused:
            await served.call("add", a="1")
        assert refused.value.code == -32602
        assert "Missing required field: b" in refused.value.data["details"]


@on_a_loop
async def test_coercion_is_off_unless_asked_for() -> None:
    for coerce in (False, True):
        server = Server("x", coerce=coerce)
        server.add_tool(adding())
        async with Served(server) as served:
            result = await served.call("add", a="1", b=2)
            assert bool(result.get("isError")) is not coerce


@pytest.mark.requirement("TO-10")
@on_a_loop
async def test_the_texts_of_errors() -> None:
    class Quiet(Exception):
        pass

    class Mute(Exception):
        def __str__(self) -> str:
            raise ValueError

    server = Server("x")
    errors = (ToolError("in my words"), ValueError("no"), Quiet(), Mute(), ValueError("x" * 5000))
    for number, error in enumerate(errors):
        server.add_tool(partial(_raise, error), name=f"f{number}")
    async with Served(server) as served:
        assert await served.failure("f0") == "in my words"
        assert await served.failure("f1") == "ValueError: no"
        assert await served.failure("f2") == "Quiet"
        assert await served.failure("f3") == "Mute"
        assert await served.failure("f4") == "ValueError: " + "x" * 988


def _raise(error: BaseException) -> str:
    raise error


@on_a_loop
async def test_content_of_every_kind_comes_through() -> None:
    class Point(Struct):
        x: int
        y: int

    server = Server("x")

    async def point() -> Point:
        return Point(1, 2)

    async def mixed() -> list[TextContent | ImageContent]:
        return [TextContent("see"), image(PNG)]

    server.add_tool(point)
    server.add_tool(mixed)
    async with Served(server) as served:
        assert (await served.call("point"))["structuredContent"] == {"x": 1, "y": 2}
        content = (await served.call("mixed"))["content"]
        assert [block["type"] for block in content] == ["text", "image"]


@pytest.mark.requirement("SU-13")
@on_a_loop
async def test_adding_and_removing_while_it_runs_is_announced_once_each() -> None:
    heard: list[str] = []
    server = Server("x")
    async with Served(server, lambda method, params: heard.append(method)) as served:
        await served.tools()
        server.add_tool(lambda: "x", name="f")
        assert await served.text("f") == "x"
        server.remove_tool("f")
        with pytest.raises(RpcError):
            await served.call("f")
        with pytest.raises(RegistrationError):
            server.add_tool(lambda: "x")
        await served.tools()
    assert heard == ["notifications/tools/list_changed"] * 2
    server.add_tool(lambda: "x", name="after_the_end")


def test_of_two_tools_of_one_name_the_one_that_is_removed_is_known_to_be_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = Server("x")
    server.add_tool(lambda: "1", name="f")
    remove = Registry.remove
    replaced: list[Any] = []

    def after_another_thread(catalogue: Any, name: str) -> Any:
        monkeypatch.setattr(Registry, "remove", remove)
        server.remove_tool("f")
        server.add_tool(lambda: "2", name="f")
        replaced.append(server._registered_tools.entries["f"])
        return remove(catalogue, name)

    monkeypatch.setattr(Registry, "remove", after_another_thread)
    server.remove_tool("f")
    assert "f" not in server._registered_tools.entries
    assert [each.is_inactive for each in replaced] == [True]


@on_a_loop
async def test_a_tool_added_by_a_thread_while_the_list_is_made_is_in_the_next_list() -> None:
    server = Server("x")
    server.add_tool(lambda: "x", name="a")

    class Slow(dict[str, Any]):
        def __iter__(self) -> Any:
            names = list(super().__iter__())
            thread = threading.Thread(target=lambda: server.add_tool(lambda: "x", name="b"))
            thread.start()
            thread.join()
            return iter(names)

    async with Served(server) as served:
        server._registered_tools.entries = Slow(server._registered_tools.entries)
        assert list(await served.tools()) == ["a"]
        assert list(await served.tools()) == ["a", "b"]


@on_a_loop
async def test_a_list_that_is_held_does_not_change() -> None:
    """So no thread can change it under who reads it."""
    server = Server("x")
    server.add_tool(lambda: "x", name="a")
    held = server._registered_tools.entries
    server.add_tool(lambda: "x", name="b")
    server.remove_tool("a")
    assert (list(held), list(server._registered_tools.entries)) == (["a"], ["b"])


@on_a_loop
async def test_what_is_served_twice_goes_on_when_one_ends() -> None:
    heard: list[str] = []
    server, gate = Server("x"), threading.Event()

    @server.tool
    def wait() -> str:
        gate.wait(20)
        return "done"

    async with Served(server, lambda method, params: heard.append(method)) as first:
        async with Served(server) as second:
            await second.tools()
            calls = [
                asyncio.create_task(first.text("wait")) for _ in range(40)
            ]  # more than there are threads
            await first.tools()
        gate.set()
        assert await asyncio.gather(*calls) == ["done"] * 40
        server.add_tool(lambda: "x", name="f")
        await first.tools()
        assert heard == ["notifications/tools/list_changed"]
    assert not server._hosts.count


@on_a_loop
async def test_what_is_served_in_two_loops_has_threads_in_each() -> None:
    server = Server("x")

    @server.tool
    def say() -> str:
        return "said"

    async def elsewhere() -> str:
        async with Served(server) as served:
            return await served.text("say")

    async with Served(server) as served:
        assert await served.text("say") == "said"
        assert await asyncio.to_thread(lambda: asyncio.run(elsewhere())) == "said"
        assert await served.text("say") == "said"


@on_a_loop
async def test_a_change_after_the_loop_of_an_outlet_is_closed_is_harmless() -> None:
    class Closed:
        def report_change(self, what: str) -> None:
            raise RuntimeError("Event loop is closed")

    server = Server("x")
    await server.start(Closed())
    server.add_tool(lambda: "x", name="f")
    await server.close()
    assert list(server._registered_tools.entries) == ["f"]


@on_a_loop
async def test_a_call_under_way_outlives_its_tool() -> None:
    server, gate = Server("x"), asyncio.Event()

    async def wait() -> str:
        await gate.wait()
        return "done"

    server.add_tool(wait)
    async with Served(server) as served:
        call = asyncio.create_task(served.text("wait"))
        await served.tools()
        server.remove_tool("wait")
        gate.set()
        assert await call == "done"


# Hand-written schemas

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer", "minimum": 1}, "b": {"$ref": "#/$defs/name"}},
    "required": ["a"],
    "additionalProperties": False,
    "$defs": {"name": {"type": "string", "pattern": "^[a-z]+$"}},
}


@on_a_loop
async def test_a_hand_written_schema_is_shown_and_enforced() -> None:
    server = Server("x")

    def take(arguments: dict[str, Any]) -> str:
        return json.dumps(arguments)

    async def take_with_context(arguments: dict[str, Any], context: Context) -> str:
        return f"{arguments} {context.cancelled}"

    server.add_tool(take, input_schema=SCHEMA)
    server.add_tool(take_with_context, input_schema=SCHEMA)
    async with Served(server) as served:
        assert (await served.tools())["take"]["inputSchema"] == SCHEMA
        assert json.loads(await served.text("take", a=5, b="x")) == {"a": 5, "b": "x"}
        assert await served.text("take_with_context", a=5) == "{'a': 5} False"
        for arguments in ({}, {"a": 0}, {"a": "1"}, {"a": 1, "b": "X"}, {"a": 1, "c": 1}):
            assert (
                json.loads(await served.failure("take", **arguments))["code"] == "INVALID_ARGUMENTS"
            )
        body = json.loads(await served.failure("take", a=0, b=5))
        assert sorted(detail["path"] for detail in body["details"]) == ["a", "b"]
        for given in ([], "x", None):
            with pytest.raises(RpcError) as refused:
                await served.caller.request("tools/call", {"name": "take", "arguments": given})
            assert refused.value.code == -32602


@on_a_loop
async def test_a_hand_written_schema_finds_few_problems_and_cuts_each() -> None:
    server = Server("x")
    schema = {"type": "object", "additionalProperties": {"type": "integer"}}
    server.add_tool(lambda arguments: "x", name="f", input_schema=schema)
    async with Served(server) as served:
        text = await served.failure("f", **{f"{n}" + "k" * 5000: "v" * 5000 for n in range(100)})
        details = json.loads(text)["details"]
        assert len(details) == 20
        assert {len(detail["path"]) for detail in details} == {303}
        assert {detail["message"] for detail in details} == {"expected int, got str"}


@pytest.mark.requirement("TO-6", "JS-4")
@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({}, "type 'object'"),
        ({"type": "array"}, "type 'object'"),
        ({"type": "object", "properties": 5}, "input_schema"),
        ({"type": "object", "properties": {"a": {"type": "no such type"}}}, "input_schema"),
        (
            {"type": "object", "properties": {"a": {"$ref": "http://169.254.169.254/x"}}},
            "input_schema",
        ),
        ({"type": "object", "properties": {"a": {"$ref": "file:///etc/passwd"}}}, "input_schema"),
        ({"type": "object", "properties": {"a": {"$ref": "#/$defs/none"}}}, "input_schema"),
    ],
)
def test_a_hand_written_schema_that_is_wrong_is_refused_by_name(
    schema: dict[str, Any], said: str
) -> None:
    with pytest.raises(RegistrationError) as refused:
        Server("x").add_tool(lambda arguments: "x", name="mine", input_schema=schema)
    assert said in str(refused.value)
    assert str(refused.value).startswith("mine")


@pytest.mark.parametrize("handler", [lambda: "x", lambda a, b: "x"])
def test_a_handler_of_a_hand_written_schema_takes_one_dict(handler: Any) -> None:
    with pytest.raises(RegistrationError, match="takes one dict"):
        Server("x").add_tool(handler, name="mine", input_schema={"type": "object"})


def test_a_hand_written_schema_without_the_extra_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "jsonschema_rs", None)
    with pytest.raises(RegistrationError, match=r"mine: .*pip install .*\[validate\]'"):
        Server("x").add_tool(lambda arguments: "x", name="mine", input_schema={"type": "object"})
