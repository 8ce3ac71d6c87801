"""server/access.py: tags, enable() and disable(), and what only some callers may see."""

from __future__ import annotations

import asyncio
import logging
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
import wire
from hypothesis import given
from hypothesis import strategies as st
from loops import on_a_loop
from server.served import Served

from concertino import Client, Context, Guard, RpcError, Server, compose
from concertino.backend import Host
from concertino.backend.listing import list_names
from concertino.errors import NotRegistered, RegistrationError
from concertino.server import Operations
from concertino.transports import listen_unix, serve_connections
from concertino.types import Implementation

LISTS = {
    "tools/list": "tools",
    "prompts/list": "prompts",
    "resources/list": "resources",
    "resources/templates/list": "resourceTemplates",
}


class Database: ...


def everything(**options: Any) -> Server:
    """A server with one of each kind, all with these options, and a tool without."""
    server = Server("x")

    @server.tool(**options)
    async def erase() -> str:
        return "erased"

    @server.prompt(**options)
    def review(depth: Literal["deep", "flat"]) -> str:
        return f"Review it, {depth}."

    @server.resource("config://app", **options)
    def config() -> str:
        return "on"

    @server.resource("notes://{day}", **options)
    def note(day: Literal["monday", "tuesday"]) -> str:
        return f"Note of {day}"

    @server.tool
    async def status() -> str:
        return "fine"

    @server.tool
    async def relay(name: str, context: Context) -> str:
        return (await context.call_tool(name)).content[0].text  # type: ignore[union-attr]

    return server


# What a client may ask of that server, and the name by which an error calls what is not there.
USES: dict[str, tuple[str, dict[str, Any], str]] = {
    "tools/call": ("tools/call", {"name": "erase"}, "Unknown tool: erase"),
    "prompts/get": (
        "prompts/get",
        {"name": "review", "arguments": {"depth": "deep"}},
        "Unknown prompt: review",
    ),
    "resources/read": ("resources/read", {"uri": "config://app"}, "Resource not found"),
    "template": ("resources/read", {"uri": "notes://monday"}, "Resource not found"),
    "completion of a prompt": (
        "completion/complete",
        {
            "ref": {"type": "ref/prompt", "name": "review"},
            "argument": {"name": "depth", "value": "d"},
        },
        "Unknown prompt: review",
    ),
    "completion of a template": (
        "completion/complete",
        {
            "ref": {"type": "ref/resource", "uri": "notes://{day}"},
            "argument": {"name": "day", "value": "m"},
        },
        "Unknown resource template: notes://{day}",
    ),
}
uses = pytest.mark.parametrize("use", USES)


async def names(served: Served) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for method, member in LISTS.items():
        items = await served.all_pages(method, member)
        found[member] = [
            item.get("uri", item.get("uriTemplate", item["name"]) if "uri" not in item else "")
            for item in items
        ]
    return found


ALL = {
    "tools": ["erase", "status", "relay"],
    "prompts": ["review"],
    "resources": ["config://app"],
    "resourceTemplates": ["notes://{day}"],
}
REST = {"tools": ["status", "relay"], "prompts": [], "resources": [], "resourceTemplates": []}


# Tags


@pytest.mark.parametrize("version", wire.REVISIONS)
@on_a_loop
async def test_clients_see_the_tags_where_their_revision_has_a_place_for_them(version: str) -> None:
    server = everything(tags={"write", "admin"}, meta={"com.example/team": "a"})
    async with Served(server, version) as served:
        for method, member in LISTS.items():
            first = (await served.ask(method))[member][0]
            has_meta = version >= "2025-06-18"
            expected = {"concertino/tags": ["admin", "write"], "com.example/team": "a"}
            assert first.get("_meta") == (expected if has_meta else None), method


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tags": "admin"},
         "tags: expected texts of 1 to 128 characters, as in {'admin'}, got 'admin'; write "
         "{'admin'}"),
        ({"tags": {1}}, "tags: expected texts of 1 to 128 characters, as in {'admin'}, got {1}"),
        ({"tags": [""]}, "tags: expected texts of 1 to 128 characters, as in {'admin'}, got ['']"),
        ({"tags": 5}, "tags: expected texts of 1 to 128 characters, as in {'admin'}, got 5"),
        ({"visible": True},
         "visible: expected a function of a Context, as in visible=lambda context: ..., got True"),
    ],
)  # fmt: skip
def test_options_that_do_not_fit_are_refused_by_name(options: Any, message: str) -> None:
    server = Server("x")
    expected = re.escape(message)
    with pytest.raises(RegistrationError, match=f"^tool 'f': {expected}$"):
        server.tool(name="f", **options)(lambda: "x")
    with pytest.raises(RegistrationError, match=f"^prompt 'p': {expected}$"):
        server.prompt(name="p", **options)(lambda: "x")
    with pytest.raises(RegistrationError, match=f"^resource 'a://b': {expected}$"):
        server.add_resource("a://b", text="x", **options)


def test_visible_cannot_be_an_async_def() -> None:
    async def visible(context: Context) -> bool:
        return True

    with pytest.raises(RegistrationError, match="visible: expected a `def` or a lambda, got an"):
        Server("x").tool(name="f", visible=visible)(lambda: "x")  # type: ignore[arg-type]


def test_a_resource_for_some_callers_is_not_for_shared_caches() -> None:
    server = Server("x")
    with pytest.raises(RegistrationError, match="cache_scope='public' would show it to callers"):
        server.add_resource("a://b", text="x", cache_scope="public", visible=lambda context: True)


# Disabling


@uses
@pytest.mark.parametrize("version", ["2025-11-25", wire.MODERN])
@on_a_loop
async def test_what_is_disabled_is_as_unknown_as_what_never_was(use: str, version: str) -> None:
    server = everything(tags={"admin"})
    method, params, message = USES[use]
    async with Served(server, version) as served:
        before = await served.ask(method, **params)
        server.disable(tags={"admin"})
        disabled = await served.refused(method, **params)
        assert message in disabled.message
        assert await names(served) == REST
        server.enable(tags={"admin"})
        assert await served.ask(method, **params) == before
        assert await names(served) == ALL

    # Compare with a server on which it was never registered.
    other = Server("x")
    other.prompt(name="other")(lambda depth: "x")
    other.resource("other://{day}")(lambda day: "x")
    other.complete("other", "depth")(lambda value: [])
    async with Served(other, version) as served:
        unknown = await served.refused(method, **params)
        assert (disabled.code, disabled.message, disabled.data) == (
            unknown.code,
            unknown.message,
            unknown.data,
        )


@on_a_loop
async def test_a_tool_cannot_call_a_disabled_tool() -> None:
    server = everything()
    server.disable("erase")
    async with Served(server) as served:
        result = await served.ask("tools/call", name="relay", arguments={"name": "erase"})
        assert result["isError"]
        assert "Unknown tool: erase" in result["content"][0]["text"]


def test_names_uris_templates_and_functions_select() -> None:
    server = Server("x")
    tool = server.tool(name="a")(lambda: "x")

    class Notes:
        def read(self) -> str:
            return "x"

    notes = Notes()
    server.add_resource("notes://all", notes.read)
    server.add_resource("app://{x}", lambda x: x, name="app")
    server.add_prompt(lambda: "x", name="a")

    def enabled() -> list[str]:
        groups = server._features.registries().values()
        return sorted(name for group in groups for each in group for name in each.entries)

    assert enabled() == ["a", "a", "app://{x}", "notes://all"]
    server.disable(tool)
    assert enabled() == ["a", "app://{x}", "notes://all"]
    server.disable("a", notes.read)  # the prompt has the same name
    assert enabled() == ["app://{x}"]
    server.disable("app://{x}")
    assert enabled() == []
    server.enable("a", "notes://all", "app://{x}")
    assert enabled() == ["a", "a", "app://{x}", "notes://all"]


def test_functions_that_get_lifespan_values_and_long_operations_select_too() -> None:
    server = Server("x")
    operations = Operations(server)

    @server.lifespan
    def database() -> Iterator[Database]:
        yield Database()

    @server.tool
    async def query(database: Database) -> str:
        return "x"

    @operations.tool
    async def render() -> str:
        return "x"

    assert {"render", "query"} <= set(server._registered_tools.entries)
    server.disable(render, query)
    assert not {"render", "query"} & set(server._registered_tools.entries)


@pytest.mark.parametrize(
    ("arguments", "tags", "error", "message"),
    [
        (("eraze",), (), NotRegistered, "disable: no tool, prompt or resource is registered as "
         "'eraze'; did you mean 'erase'?"),
        ((len,), (), LookupError, "disable: expected a name or a registered function, "
         "got <built-in function len>"),
        (("status", "nothing like it"), (), NotRegistered, "disable: no tool, prompt or resource "
         "is registered as 'nothing like it'"),
        ((), (), ValueError, "disable: expected names, functions, or tags={...}"),
        ((), "admin", ValueError,
         "disable: tags: expected texts of 1 to 128 characters, as in {'admin'}, got 'admin'; "
         "write {'admin'}"),
    ],
)  # fmt: skip
def test_a_selection_that_does_not_fit_changes_nothing(
    arguments: Any, tags: Any, error: type[Exception], message: str
) -> None:
    server = everything(tags={"admin"})
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        server.disable(*arguments, tags=tags)
    assert list(server._registered_tools.entries) == ["erase", "status", "relay"]


def test_the_last_call_that_selects_something_decides_also_for_what_comes_later() -> None:
    server = Server("x")

    def add(name: str, *tags: str) -> None:
        server.add_tool(lambda: "x", name=name, tags=tags)

    def enabled() -> list[str]:
        return list(server._registered_tools.entries)

    server.disable(tags={"admin", "slow"})
    add("a", "admin")
    add("b", "slow", "admin")
    add("c")
    assert enabled() == ["c"]
    server.enable("a")
    server.disable("c")
    assert enabled() == ["a"]
    server.enable(tags={"admin"})  # the last that selects b, which is slow, too
    assert enabled() == ["a", "b"]
    server.disable(tags={"slow"})
    server.enable(tags={"nothing has it"})
    assert enabled() == ["a"]
    server.remove_tool("c")
    add("c")  # another tool, of which nothing has been said
    assert enabled() == ["a", "c"]


def test_a_disabled_name_is_taken_and_can_be_removed() -> None:
    server = everything()
    server.disable("erase", "review", "config://app", "notes://{day}")
    with pytest.raises(RegistrationError, match=r"already registered \(test_access.py:\d+\)"):
        server.add_tool(lambda: "x", name="erase")
    with pytest.raises(RegistrationError, match=r"already registered \(test_access.py:\d+\)"):
        server.add_resource("notes://{day}", lambda day: "x")
    server.remove_tool("erase")
    server.remove_prompt("review")
    server.remove_resource("config://app")
    server.remove_resource("notes://{day}")
    server.add_tool(lambda: "x", name="erase")


@on_a_loop
async def test_clients_are_notified_once_for_each_list_that_changes() -> None:
    server = everything(tags={"admin"})
    for number in range(20):
        server.add_tool(lambda: "x", name=f"tool{number}", tags={"admin", "many"})
    async with Served(server) as served:
        await served.pause()
        server.disable(tags={"admin"})
        await served.pause()
        kinds = ["prompts", "resources", "tools"]
        changes = [f"notifications/{kind}/list_changed" for kind in kinds]
        assert sorted(method for method, _ in served.heard) == changes
        served.heard.clear()
        server.disable(tags={"many"})
        server.disable("erase")
        server.enable("status")
        await served.pause()
        assert served.heard == []
        server.enable(tags={"many"})
        await served.pause()
        assert [method for method, _ in served.heard] == ["notifications/tools/list_changed"]


@on_a_loop
async def test_prompts_that_are_disabled_at_the_start_are_a_feature_all_the_same() -> None:
    server = everything(tags={"admin"})
    server.disable(tags={"admin"})
    async with Served(server) as served:
        capabilities = served.opened["capabilities"]
        assert {"tools", "prompts", "resources", "completions"} <= set(capabilities)
        assert await names(served) == REST
        server.enable(tags={"admin"})
        assert await names(served) == ALL


@on_a_loop
async def test_a_call_that_runs_when_its_tool_is_disabled_ends_as_it_would_have() -> None:
    server = Server("x")
    began, may_end = asyncio.Event(), asyncio.Event()

    @server.tool
    async def slow() -> str:
        began.set()
        await may_end.wait()
        return "done"

    async with Served(server) as served:
        call = asyncio.create_task(served.ask("tools/call", name="slow"))
        await began.wait()
        server.disable(slow)
        assert "Unknown tool" in (await served.refused("tools/call", name="slow")).message
        may_end.set()
        assert (await call)["content"][0]["text"] == "done"


@on_a_loop
async def test_a_guard_around_the_server_knows_what_is_disabled() -> None:
    """It looks a tool up once and calls it directly from then on."""
    server = everything()
    guarded = Guard(server, max_in_flight=5, rate_limit="*=100/60")
    async with Client(guarded) as client:
        for _ in range(2):
            assert (await client.call_tool("erase")).content[0].text == "erased"
            server.disable("erase")
            with pytest.raises(RpcError, match="Unknown tool: erase"):
                await client.call_tool("erase")
            server.enable("erase")


@on_a_loop
async def test_subscribers_of_a_disabled_resource_hear_nothing() -> None:
    server = everything()
    async with Served(server) as served:
        for uri in ("config://app", "notes://monday", "other://x"):
            await served.ask("resources/subscribe", uri=uri)

        async def heard() -> list[str]:
            served.heard.clear()
            for uri in ("config://app", "notes://monday", "other://x"):
                server.resource_updated(uri)
            await served.pause()
            return [params["uri"] for method, params in served.heard if "updated" in method]

        assert await heard() == ["config://app", "notes://monday", "other://x"]
        server.disable("config://app", "notes://{day}")
        assert await heard() == ["other://x"]
        server.enable("notes://{day}")
        assert await heard() == ["notes://monday", "other://x"]


def test_threads_may_disable_and_add_at_the_same_time() -> None:
    server = Server("x")
    begin = threading.Barrier(4)

    def work(number: int) -> None:
        begin.wait()
        for item in range(50):
            server.add_tool(lambda: "x", name=f"t{number}-{item}", tags={f"tag{number}"})
            (server.disable if item % 2 else server.enable)(tags={f"tag{number}"})

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert server._registered_tools.entries == {}
    server.enable(tags={"tag0", "tag1", "tag2", "tag3"})
    assert len(server._registered_tools.entries) == 200


# Visible to some callers


def is_ann(context: Context) -> bool:
    return context.client.name == "ann"


def client_of(target: Any, name: str) -> Client:
    return Client(target, info=Implementation(name, "1"), era="legacy")


async def visible_names(client: Client) -> dict[str, list[str]]:
    return {
        "tools": [tool.name for tool in await client.list_tools()],
        "prompts": [prompt.name for prompt in await client.list_prompts()],
        "resources": [resource.uri for resource in await client.list_resources()],
        "resourceTemplates": [item.uri_template for item in await client.list_resource_templates()],
    }


@on_a_loop
async def test_two_clients_of_one_socket_see_and_use_different_things(tmp_path: Path) -> None:
    server = everything(visible=is_ann)
    path = str(tmp_path / "s")
    async with Host(server) as host:
        with serve_connections(host, listen_unix(path)):
            async with client_of(f"unix:{path}", "ann") as ann, client_of(f"unix:{path}",
                "bob") as bob:  # fmt: skip
                views = await asyncio.gather(*(visible_names(each) for each in (ann, bob) * 10))
                assert views == [ALL, REST] * 10
                for method, params, message in USES.values():
                    await ann.request(method, params)
                    with pytest.raises(RpcError, match=re.escape(message)):
                        await bob.request(method, params)
                relayed = [await each.call_tool("relay", {"name": "erase"}) for each in (ann, bob)]
                assert [result.is_error for result in relayed] == [False, True]


@pytest.mark.parametrize("visible", [True, False])
@on_a_loop
async def test_lists_and_content_that_differ_by_caller_are_private(visible: bool) -> None:
    options = {"visible": lambda context: True} if visible else {}
    server = Server("x", cache_scope="public", ttl_s=60)
    server.add_tool(lambda: "x", name="a", **options)
    server.add_tool(lambda: "x", name="b")
    server.add_prompt(lambda: "x", name="a", **options)
    server.add_resource("a://a", text="x", **options)
    server.add_resource("a://{x}", lambda x: x, name="x", **options)
    server.add_resource("b://b", text="x")
    scope = "private" if visible else "public"
    async with Served(server, wire.MODERN) as served:
        for method in LISTS:
            assert (await served.ask(method))["cacheScope"] == scope
        for uri in ("a://a", "a://x"):
            assert (await served.ask("resources/read", uri=uri))["cacheScope"] == scope
        assert (await served.ask("resources/read", uri="b://b"))["cacheScope"] == "public"


@on_a_loop
async def test_only_the_lists_that_differ_are_private() -> None:
    server = Server("x", cache_scope="public")
    server.add_tool(lambda: "x", name="a", visible=is_ann)
    server.add_prompt(lambda: "x", name="a")
    async with Served(server, wire.MODERN) as served:
        assert (await served.ask("tools/list"))["cacheScope"] == "private"
        assert (await served.ask("prompts/list"))["cacheScope"] == "public"
        server.remove_tool("a")
        assert (await served.ask("tools/list"))["cacheScope"] == "public"


@on_a_loop
async def test_all_pages_of_a_composed_list_have_one_scope() -> None:
    first = Server("first", cache_scope="public", page_size=1)
    second = Server("second", cache_scope="public")
    for server in (first, second):
        server.add_tool(lambda: "x", name="a")
        server.add_tool(lambda: "x", name="b")
    second.add_tool(lambda: "x", name="c", visible=lambda context: False)
    composed: Any = compose(first=first, second=second)
    async with Served(composed, wire.MODERN) as served:
        page = await served.ask("tools/list")
        scopes = [page["cacheScope"]]
        while "nextCursor" in page:
            page = await served.ask("tools/list", cursor=page["nextCursor"])
            scopes.append(page["cacheScope"])
        assert scopes == ["private"] * 2


@given(
    size=st.integers(1, 4),
    steps=st.lists(
        st.tuples(
            st.sampled_from(["add", "hidden", "disable", "enable", "remove"]), st.integers(0, 11)
        ),
        max_size=30,
    ),
)
def test_pages_are_full_and_hold_each_visible_item_once(
    size: int, steps: list[tuple[str, int]]
) -> None:
    """Against a list that is filtered as a whole."""
    server = Server("x", page_size=size)
    # name -> [is visible, is enabled], in the order of registration.
    model: dict[str, list[bool]] = {}
    for action, number in steps:
        name = f"t{number}"
        if action in ("add", "hidden") and name not in model:
            shown = {"add": lambda context: True, "hidden": lambda context: False}
            server.add_tool(lambda: "x", name=name, visible=shown[action])
            model[name] = [action == "add", True]
        elif name in model and action == "remove":
            server.remove_tool(name)
            del model[name]
        elif name in model and action in ("disable", "enable"):
            getattr(server, action)(name)
            model[name][1] = action == "enable"

    async def pages() -> list[list[str]]:
        found: list[list[str]] = []
        async with Served(server) as served:
            params: dict[str, Any] = {}
            while True:
                page = await served.ask("tools/list", **params)
                found.append([tool["name"] for tool in page["tools"]])
                if "nextCursor" not in page:
                    return found
                params = {"cursor": page["nextCursor"]}

    expected = [name for name, flags in model.items() if all(flags)]
    chunks = [expected[at : at + size] for at in range(0, len(expected), size)]
    assert asyncio.run(pages()) == (chunks or [[]])


@on_a_loop
async def test_a_list_goes_on_where_it_was_when_items_are_disabled_in_between() -> None:
    server = Server("x", page_size=2)
    for name in "abcdef":
        server.add_tool(lambda: "x", name=name)
    async with Served(server) as served:
        page = await served.ask("tools/list")
        server.disable("a", "b", "d")  # also the one that the cursor names
        page = await served.ask("tools/list", cursor=page["nextCursor"])
        assert [tool["name"] for tool in page["tools"]] == ["c", "e"]
        server.enable("a", "d")
        page = await served.ask("tools/list", cursor=page["nextCursor"])
        assert [tool["name"] for tool in page["tools"]] == ["f"]


@pytest.mark.parametrize(
    ("visible", "logged"),
    [
        (lambda context: 1 / 0, "tool 'f' is hidden: its `visible` failed"),
        (lambda context: sys.exit(), "tool 'f' is hidden: its `visible` failed"),
        (lambda context: None, "tool 'f' is hidden: its `visible` returned "
         "NoneType instead of bool"),
        (lambda context: 1, "tool 'f' is hidden: its `visible` returned int instead of bool"),
        (lambda context: asyncio.sleep(0), "tool 'f' is hidden: its `visible` returned "
         "coroutine instead of bool"),
        (lambda: True, "tool 'f' is hidden: its `visible` failed"),
    ],
)  # fmt: skip
@on_a_loop
async def test_a_check_that_fails_hides_and_is_logged_once(
    visible: Any, logged: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = Server("x")
    server.add_tool(lambda: "x", name="f", visible=visible)
    with caplog.at_level(logging.ERROR, "concertino.access"):
        async with Served(server) as served:
            for _ in range(3):
                assert (await served.ask("tools/list"))["tools"] == []
                assert "Unknown tool: f" in (await served.refused("tools/call", name="f")).message
    assert [record.getMessage() for record in caplog.records] == [logged]


@on_a_loop
async def test_visible_may_log_when_a_composed_server_reads_the_list() -> None:
    """No warning that a coroutine was never awaited."""

    def visible(context: Context) -> bool:
        context.log("info", "asked")
        context.progress(1)
        return True

    server = everything(visible=visible)
    assert await list_names("x", server, "tools/list") == ["erase", "status", "relay"]


@on_a_loop
async def test_whoever_may_not_see_a_tool_does_not_learn_its_arguments_either() -> None:
    """A guard checks arguments before it counts a call."""
    server = Server("x")

    @server.tool(visible=is_ann, rate_limit="1/60")
    async def erase(path: str) -> str:
        return "erased"

    for target in (server, Guard(server, rate_limit="erase=100/60")):
        async with client_of(target, "bob") as bob:
            for arguments in ({}, {"path": "x"}, {"path": "x"}):
                with pytest.raises(RpcError, match="Unknown tool: erase"):
                    await bob.call_tool("erase", arguments)

    async with client_of(server, "ann") as ann:
        assert not (await ann.call_tool("erase", {"path": "x"})).is_error
        refused = await ann.call_tool("erase", {"path": "x"})
        assert "RATE_LIMIT_EXCEEDED" in refused.content[0].text  # type: ignore[union-attr]


@on_a_loop
async def test_what_callers_see_may_change_and_they_are_told() -> None:
    shown: list[str] = []
    server = Server("x")
    server.add_tool(lambda: "x", name="extra", visible=lambda context: bool(shown), inline=True)
    server.add_prompt(lambda: "x", name="extra", visible=lambda context: bool(shown))
    async with Served(server) as served:
        assert (await served.ask("tools/list"))["tools"] == []
        shown.append("now")
        server.tools_changed()
        server.prompts_changed()
        await served.pause()
        assert [method for method, _ in served.heard] == [
            "notifications/tools/list_changed",
            "notifications/prompts/list_changed",
        ]
        assert [tool["name"] for tool in (await served.ask("tools/list"))["tools"]] == ["extra"]
