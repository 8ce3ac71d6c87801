"""composed_backend.py: several backends as one, over a memory connection and by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest
from composition.parts import Failing, GatedPart, Part, calculator, client_of
from loops import on_a_loop
from msgspec import UNSET, Raw
from msgspec.json import encode

from concertino import ConcertinoError, RpcError, Server, compose, run
from concertino.backend import Host
from concertino.backend.interface import Backend, Call, Notifier
from concertino.composition.composed_backend import ComposedBackend
from concertino.composition.part_names import PrefixNames
from concertino.composition.rules import CompositionRules
from concertino.errors import RegistrationError
from concertino.types import resources_and_prompts, results
from concertino.types.results import Implementation


def greeter() -> Server:
    server = Server("greeter", instructions="Greet.")

    @server.tool
    async def add_greeting(name: str) -> str:
        "Greet."
        return f"Hello, {name}"

    return server


@on_a_loop
async def test_tools_of_all_parts_are_listed_and_called_under_their_parts_names() -> None:
    async with client_of(compose(math=calculator(), words=greeter())) as caller:
        listed = (await caller.request("tools/list"))["tools"]
        assert [tool["name"] for tool in listed] == ["math_add", "words_add_greeting"]
        assert listed[0]["inputSchema"]["required"] == ["a", "b"]
        result = await caller.request(
            "tools/call", {"name": "math_add", "arguments": {"a": 2, "b": 3}}
        )
        assert result["structuredContent"] == {"result": 5}
        result = await caller.request(
            "tools/call", {"name": "words_add_greeting", "arguments": {"name": "you"}}
        )
        assert result["content"][0]["text"] == "Hello, you"


@on_a_loop
async def test_resources_of_a_part_that_limits_some_by_scopes_can_be_read() -> None:
    part = Server("part")
    part.add_resource("data://limited", text="limited", scopes={"data:read"})
    part.add_resource("data://open", text="open", visible=lambda context: context.principal is None)
    async with client_of(compose(part=part, other=calculator())) as caller:
        for uri, text in [("data://limited", "limited"), ("data://open", "open")]:
            result = await caller.request("resources/read", {"uri": uri})
            assert result["contents"][0]["text"] == text


@on_a_loop
async def test_the_composition_says_who_it_is_and_what_all_parts_say() -> None:
    composed = compose("orchestra", math=calculator(), words=greeter())
    assert composed.features().info == Implementation("orchestra", "0.0.0")
    assert composed.features().instructions == "math: Add.\n\nwords: Greet."
    assert compose(math=calculator(), words=greeter()).features().info.name == "math+words"
    assert compose(Implementation("x", "3"), a=calculator()).features().info.version == "3"


def test_what_any_part_offers_is_offered_and_the_first_part_is_heard_where_two_differ() -> None:
    one = Part({}, prompts=True, experimental={"x": {"by": "one"}})
    other = Part(
        {},
        completions=True,
        experimental={"x": {"by": "other"}, "y": {}},
        extensions={"e.com/z": {}, "io.modelcontextprotocol/tasks": {}},
    )
    offer = compose(one=one, other=other).features()
    assert (offer.tools, offer.prompts, offer.resources, offer.completions, offer.logging) == (
        0,
        1,
        0,
        1,
        0,
    )
    assert offer.experimental == {"x": {"by": "one"}, "y": {}}
    assert offer.extensions == {"e.com/z": {}, "io.modelcontextprotocol/tasks": {}}
    assert offer.instructions is None


@pytest.mark.parametrize("name", ["add", "math", "math_", "nobody_add", "words_add", "_add", ""])
@on_a_loop
async def test_a_tool_that_no_part_has_is_unknown(name: str) -> None:
    async with client_of(compose(math=calculator(), words=greeter())) as caller:
        with pytest.raises(RpcError, match="Unknown tool") as caught:
            await caller.request("tools/call", {"name": name, "arguments": {}})
        assert caught.value.code == -32602


@pytest.mark.parametrize("params", [{}, {"name": 5}, {"name": None}])
@pytest.mark.parametrize(
    "method", ["tools/call", "prompts/get", "resources/read", "completion/complete"]
)
@on_a_loop
async def test_malformed_params_are_refused(method: str, params: dict[str, Any]) -> None:
    part = Part(
        {
            "resources/list": resources_and_prompts.ListResourcesResult([]),
            "resources/templates/list": resources_and_prompts.ListResourceTemplatesResult([]),
        },
        tools=True,
        prompts=True,
        resources=True,
        completions=True,
    )
    async with client_of(compose(a=part)) as caller:
        with pytest.raises(RpcError) as caught:
            await caller.request(method, params)
        assert caught.value.code == -32602


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ([], "at least one backend"),
        ([""], "1 to 64"),
        (["a b"], "1 to 64"),
        (["a" * 65], "1 to 64"),
        (["a", "a_b"], "begin with a_"),
        (["a_b_c", "a_b"], "begin with a_b_"),
    ],
)
def test_names_that_cannot_be_told_apart_are_refused(names: list[str], text: str) -> None:
    with pytest.raises(RegistrationError, match=text):
        compose(**{name: calculator() for name in names})


def test_names_with_a_common_beginning_are_fine() -> None:
    assert list(compose(a=calculator(), ab=calculator(), b_a=calculator()).parts) == [
        "a",
        "ab",
        "b_a",
    ]


def resources(*uris: str, templates: tuple[str, ...] = (), **more: Any) -> Part:
    def read(params: dict[str, Any]) -> Any:
        uri = params["uri"]
        if uri in uris or any(uri.startswith(each.partition("{")[0]) for each in templates):
            return results.ReadResourceResult(
                [results.ResourceContents(uri, text=f"of {uris or templates}")]
            )
        return RpcError(-32602, "Resource not found", {"uri": uri})

    listed = resources_and_prompts.ListResourcesResult(
        [resources_and_prompts.Resource(uri, uri) for uri in uris]
    )
    shapes = resources_and_prompts.ListResourceTemplatesResult(
        [resources_and_prompts.ResourceTemplate(each, each) for each in templates]
    )
    answers = {
        "resources/list": listed,
        "resources/templates/list": shapes,
        "resources/read": read,
        **more,
    }
    return Part(answers, resources=True)


@on_a_loop
async def test_resources_keep_their_uris_and_are_read_from_the_part_that_has_them() -> None:
    one, other = resources("a:1", "a:2"), resources("b:1", templates=("t:{x}",))
    async with client_of(compose(one=one, other=other, tools=calculator())) as caller:
        listed = await caller.request("resources/list")
        assert [each["uri"] for each in listed["resources"]] == ["a:1", "a:2", "b:1"]
        listed = await caller.request("resources/templates/list")
        assert [each["uriTemplate"] for each in listed["resourceTemplates"]] == ["t:{x}"]
        one.calls.clear()
        assert (await caller.request("resources/read", {"uri": "b:1"}))["contents"][0][
            "text"
        ] == "of ('b:1',)"
        assert one.calls == []
        assert (await caller.request("resources/read", {"uri": "t:5"}))["contents"][0][
            "uri"
        ] == "t:5"
        with pytest.raises(RpcError) as caught:
            await caller.request("resources/read", {"uri": "c:1"})
        assert caught.value.data == {"uri": "c:1"}


@on_a_loop
async def test_an_error_that_is_no_not_found_is_not_hidden_by_asking_the_next_part() -> None:
    broken = resources(**{"resources/read": RpcError(-32603, "disk full")})
    other = resources(templates=("t:{x}",))
    async with client_of(compose(one=broken, other=other)) as caller:
        with pytest.raises(RpcError, match="disk full"):
            await caller.request("resources/read", {"uri": "t:1"})


@pytest.mark.parametrize(
    "twice",
    [
        (resources("a:1"), resources("a:2", "a:1")),
        (resources(templates=("t:{x}",)), resources(templates=("t:{x}",))),
    ],
)
@on_a_loop
async def test_two_parts_with_one_resource_do_not_start(twice: tuple[Part, Part]) -> None:
    async with Host(compose(one=twice[0], other=twice[1])) as host:
        await asyncio.wait([host.started])
        error = host.started.exception()
        assert isinstance(error, RegistrationError)
        assert "both one and other have the resource" in str(error)


def make_paged(items: list[str]) -> Callable[[dict[str, Any]], Any]:
    def page(params: dict[str, Any]) -> Any:
        cursor = params.get("cursor")
        at = 0 if cursor is None else items.index(cursor) if cursor in items else -1
        if at < 0:
            return RpcError(-32602, "Invalid params", {"details": "cursor"})
        following = items[at + 1] if at + 1 < len(items) else None
        return Raw(
            encode(
                {
                    "tools": [{"name": items[at], "inputSchema": {"type": "object"}}],
                    "nextCursor": following,
                }
            )
        )

    return page


@on_a_loop
async def test_a_list_goes_on_where_a_part_has_a_further_page() -> None:
    parts = compose(
        a=Part({"tools/list": make_paged(["1", "2:x", ""])}, tools=True),
        b=calculator(),
        c=Part({"tools/list": make_paged(["3", "4"])}, tools=True),
    )
    async with client_of(parts) as caller:
        pages: list[list[str]] = []
        params: dict[str, Any] = {}
        while True:
            page = await caller.request("tools/list", params)
            pages.append([tool["name"] for tool in page["tools"]])
            if "nextCursor" not in page:
                break
            params = {"cursor": page["nextCursor"]}
        assert pages == [["a_1"], ["a_2:x"], ["a_", "b_add", "c_3"], ["c_4"]]


@pytest.mark.parametrize("cursor", ["a", "nobody:1", "b:9", ":", 5])
@on_a_loop
async def test_a_cursor_that_was_never_given_is_refused(cursor: Any) -> None:
    parts = compose(a=calculator(), b=Part({"tools/list": make_paged(["3", "4"])}, tools=True))
    async with client_of(parts) as caller:
        with pytest.raises(RpcError) as caught:
            await caller.request("tools/list", {"cursor": cursor})
        assert caught.value.code == -32602


@on_a_loop
async def test_the_empty_cursor_is_the_beginning() -> None:
    async with client_of(compose(a=calculator(), b=greeter())) as caller:
        page = await caller.request("tools/list", {"cursor": ""})
        assert [tool["name"] for tool in page["tools"]] == ["a_add", "b_add_greeting"]


@on_a_loop
async def test_the_strictest_part_says_how_long_a_list_may_be_kept() -> None:
    def part(**hints: Any) -> Part:
        return Part({"tools/list": results.ListToolsResult([], **hints)}, tools=True)

    context: Any = None
    public = part(ttl_ms=5000, cache_scope="public")
    for other, ttl_ms, scope in [
        (part(ttl_ms=300, cache_scope="public"), 300, "public"),
        (part(ttl_ms=0, cache_scope="private"), 0, UNSET),
        (part(), UNSET, UNSET),
    ]:
        listed: Any = await compose(a=public, b=other).handle(Call("tools/list"), context)
        assert (listed.ttl_ms, listed.cache_scope) == (ttl_ms, scope)


@on_a_loop
async def test_all_pages_of_a_list_have_the_scope_of_the_strictest_part() -> None:
    """2026-07-28 server/utilities/caching: servers MUST give the pages of one list the same
    cacheScope.
    """

    def part(scope: Any) -> Server:
        server = Server("part", cache_scope=scope, page_size=1)
        for name in ("one", "other"):
            server.add_tool(lambda: None, name=name)
        return server

    context: Any = None
    for scopes, expected in [
        (("public", "public"), {"public"}),
        (("public", "private"), {UNSET}),
        (("private", "public"), {UNSET}),
    ]:
        composed = compose(a=part(scopes[0]), b=part(scopes[1]))
        found: list[Any] = []
        params: dict[str, Raw] = {}
        while not found or params:
            page: Any = await composed.handle(Call("tools/list", params), context)
            found.append(page.cache_scope)
            params = {} if page.next_cursor is None else {"cursor": Raw(encode(page.next_cursor))}
        assert (len(found), set(found)) == (3, expected)


@on_a_loop
async def test_a_list_is_the_same_object_while_no_part_has_another() -> None:
    server = calculator()
    composed = compose(a=server, b=greeter())
    context: Any = None
    first = await composed.handle(Call("tools/list"), context)
    assert await composed.handle(Call("tools/list"), context) is first
    server.remove_tool("add")
    assert await composed.handle(Call("tools/list"), context) is not first


@on_a_loop
async def test_prompts_and_their_completions_go_to_their_part() -> None:
    answer = resources_and_prompts.GetPromptResult(
        [resources_and_prompts.PromptMessage("user", results.TextContent("hi"))]
    )
    values = resources_and_prompts.CompleteResult(resources_and_prompts.Completion(["x"]))
    one = Part(
        {
            "prompts/list": resources_and_prompts.ListPromptsResult(
                [resources_and_prompts.Prompt("ask")]
            ),
            "prompts/get": answer,
            "completion/complete": values,
        },
        prompts=True,
        completions=True,
    )
    async with client_of(compose(one=one, other=calculator())) as caller:
        assert [each["name"] for each in (await caller.request("prompts/list"))["prompts"]] == [
            "one_ask"
        ]
        got = await caller.request("prompts/get", {"name": "one_ask", "arguments": {"a": "b"}})
        assert got["messages"][0]["content"]["text"] == "hi"
        argument = {"name": "a", "value": ""}
        params = {"ref": {"type": "ref/prompt", "name": "one_ask"}, "argument": argument}
        assert (await caller.request("completion/complete", params))["completion"]["values"] == [
            "x"
        ]
        assert one.calls[-2:] == [
            ("prompts/get", {"name": "ask", "arguments": {"a": "b"}}),
            (
                "completion/complete",
                {"ref": {"type": "ref/prompt", "name": "ask"}, "argument": argument},
            ),
        ]
        for name in ("other_ask", "ask", "nobody_ask"):
            params = {"ref": {"type": "ref/prompt", "name": name}, "argument": argument}
            with pytest.raises(RpcError, match="Unknown prompt"):
                await caller.request("completion/complete", params)
            with pytest.raises(RpcError, match="Unknown prompt"):
                await caller.request("prompts/get", {"name": name})


@on_a_loop
async def test_the_variables_of_a_template_are_completed_by_its_part() -> None:
    values = resources_and_prompts.CompleteResult(resources_and_prompts.Completion(["x"]))
    one = resources("a:1")
    other = resources(templates=("t:{x}",), **{"completion/complete": values})
    async with client_of(compose(one=one, other=other, more=Part({}, completions=True))) as caller:
        params = {
            "ref": {"type": "ref/resource", "uri": "t:{x}"},
            "argument": {"name": "x", "value": ""},
        }
        assert (await caller.request("completion/complete", params))["completion"]["values"] == [
            "x"
        ]


@on_a_loop
async def test_after_a_change_a_part_that_completes_nothing_does_not_hide_one_that_does() -> None:
    values = resources_and_prompts.CompleteResult(resources_and_prompts.Completion(["x"]))
    plain = Server("plain")
    plain.add_resource("a:1", text="")
    gone = resources(
        "a:2", **{"completion/complete": RpcError(-32002, "Resource not found", {"uri": "t:{x}"})}
    )
    other = resources(templates=("t:{x}",), **{"completion/complete": values})
    async with client_of(
        compose(plain=plain, gone=gone, other=other, more=Part({}, completions=True))
    ) as caller:
        plain.remove_resource("a:1")
        params = {
            "ref": {"type": "ref/resource", "uri": "t:{x}"},
            "argument": {"name": "x", "value": ""},
        }
        assert (await caller.request("completion/complete", params))["completion"]["values"] == [
            "x"
        ]


@on_a_loop
async def test_changes_of_any_part_reach_the_clients() -> None:
    told: list[str] = []
    server = calculator()
    async with client_of(compose(a=server, b=greeter()), told) as caller:
        server.remove_tool("add")
        assert [tool["name"] for tool in (await caller.request("tools/list"))["tools"]] == [
            "b_add_greeting"
        ]
        assert told == ["notifications/tools/list_changed"]


@on_a_loop
async def test_a_resource_that_moves_to_another_part_is_found_there() -> None:
    one, other = resources("a:1"), resources(templates=("a:{x}",))
    async with client_of(compose(one=one, other=other)) as caller:
        one._answers = {
            **one._answers,
            "resources/read": RpcError(-32602, "Resource not found", {"uri": "a:1"}),
        }
        one.outlet.report_change("resources")
        assert (await caller.request("resources/read", {"uri": "a:1"}))["contents"][0][
            "text"
        ] == "of ('a:{x}',)"


@on_a_loop
async def test_a_resource_that_a_second_part_adds_is_the_first_ones_and_listed_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    one, two = Server("one"), Server("two")
    one.add_resource("a:1", text="of one")
    two.add_resource("b:1", text="of two")
    composed = compose(one=one, two=two)
    async with client_of(composed) as caller:

        async def listed() -> list[tuple[str, str]]:
            return [
                (each["uri"], each["name"])
                for each in (await caller.request("resources/list"))["resources"]
            ]

        async def text(uri: str) -> str:
            return (await caller.request("resources/read", {"uri": uri}))["contents"][0]["text"]

        two.add_resource("a:1", text="of two, too", name="second")
        one.add_resource("c:1", text="new")
        assert await listed() == [("a:1", "a:1"), ("c:1", "c:1"), ("b:1", "b:1")]
        assert "both one and two have the resource a:1: it is read from one" in caplog.text
        assert await text("a:1") == "of one"
        one.remove_resource("a:1")
        assert await text("a:1") == "of two, too"
        assert await listed() == [("c:1", "c:1"), ("b:1", "b:1"), ("a:1", "second")]
        await composed.watch(frozenset({"a:1", "b:1", "c:1"}))
        assert (one.watched, two.watched) == ({"c:1"}, {"a:1", "b:1"})


@on_a_loop
async def test_a_part_whose_list_fails_after_a_change_is_asked_again() -> None:
    one, other = resources("a:1"), resources("b:1")
    async with client_of(compose(one=one, other=other)) as caller:
        whole = one._answers
        one._answers = {**whole, "resources/list": RpcError(-32603, "busy")}
        one.outlet.report_change("resources")
        with pytest.raises(RpcError, match="busy"):
            await caller.request("resources/list")
        one._answers = {
            **whole,
            "resources/list": resources_and_prompts.ListResourcesResult(
                [resources_and_prompts.Resource("b:1", "mine")]
            ),
        }
        listed = await caller.request("resources/list")
        assert [each["name"] for each in listed["resources"]] == ["mine"]


@on_a_loop
async def test_a_list_without_an_end_is_an_error_at_the_start() -> None:
    endless = resources_and_prompts.ListResourcesResult(
        [resources_and_prompts.Resource("a:1", "1")], "again"
    )
    async with Host(
        compose(one=resources(), other=resources(**{"resources/list": endless}))
    ) as host:
        await asyncio.wait([host.started])
        assert (
            str(host.started.exception())
            == "other: resources/list: the server repeats itself: the cursor 'again' came twice"
        )


@on_a_loop
async def test_errors_speak_of_the_names_that_callers_know() -> None:
    part = calculator()
    part.add_prompt(lambda: "hello", name="hi")
    part.add_resource("x:{y}", lambda y: y)
    part.complete("x:{y}", "y")(lambda value: [])
    async with client_of(compose(math=part)) as caller:
        for method, params, message in (
            ("tools/call", {"name": "math_nope"}, "Unknown tool: math_nope"),
            ("prompts/get", {"name": "math_nope"}, "Unknown prompt: math_nope"),
            (
                "completion/complete",
                {
                    "ref": {"type": "ref/prompt", "name": "math_nope"},
                    "argument": {"name": "a", "value": ""},
                },
                "Unknown prompt: math_nope",
            ),
        ):
            with pytest.raises(RpcError) as caught:
                await caller.request(method, params)
            assert (caught.value.code, caught.value.message) == (-32602, message)
            assert "'math_nope'" in str(caught.value.data)
        bad = (await caller.request("tools/call", {"name": "math_add", "arguments": {}}))[
            "content"
        ][0]["text"]
        assert "Missing required field: a" in bad
        assert "add" not in bad  # it is math_add here


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (lambda: compose(a=None), "compose: a: expected a Server or another Backend, got NoneType"),  # type: ignore[arg-type]
        (
            lambda: compose(a=Server),
            "compose: a: expected a Server or another Backend, got the class Server; give an "
            "object",
        ),  # type: ignore[arg-type]
        (
            lambda: compose(5, a=Server("s")),
            "compose: expected a name or an Implementation, got int",
        ),  # type: ignore[arg-type]
    ],
)
def test_what_is_no_backend_is_refused(made: Callable[[], object], text: str) -> None:
    with pytest.raises(RegistrationError) as refused:
        made()
    assert str(refused.value) == text


def test_run_refuses_what_is_no_backend() -> None:
    with pytest.raises(TypeError, match="run: expected a Server or another Backend, got int"):
        run(5)  # type: ignore[arg-type]


@on_a_loop
async def test_a_part_that_does_not_start_is_named_and_all_are_closed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    good, bad = Part({}), Failing({})
    async with Host(compose(strict=True, good=good, bad=bad)) as host:
        await asyncio.wait([host.started])
        assert str(host.started.exception()) == "bad: OSError: no such database"
    assert (good.began, good.closed, bad.began, bad.closed) == (1, 1, 1, 1)
    assert "bad failed to close" in caplog.text


class Hanging(Part):
    async def start(self, outlet: Notifier) -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self.began -= 1


@on_a_loop
async def test_a_part_that_hangs_at_its_start_does_not_hide_that_another_fails() -> None:
    hanging, nobody = Hanging({}), Any
    async with asyncio.timeout(10):
        with pytest.raises(ConcertinoError, match="b: OSError: no such database"):
            await compose(strict=True, a=hanging, b=Failing({})).start(nobody)  # type: ignore[arg-type]
    assert hanging.began == -1


@on_a_loop
async def test_a_composition_can_be_a_part_of_another() -> None:
    async with client_of(compose(outer=compose(inner=calculator()))) as caller:
        assert [tool["name"] for tool in (await caller.request("tools/list"))["tools"]] == [
            "outer_inner_add"
        ]
        result = await caller.request(
            "tools/call", {"name": "outer_inner_add", "arguments": {"a": 1, "b": 1}}
        )
        assert result["structuredContent"] == {"result": 2}


@on_a_loop
async def test_a_method_that_no_backend_has_is_not_found() -> None:
    context: Any = None
    with pytest.raises(RpcError, match="method not found: tasks/get"):
        await compose(a=calculator()).handle(Call("tasks/get"), context)


@on_a_loop
async def test_each_part_watches_its_own_resources_and_those_that_nobody_lists() -> None:
    one, other, tools = resources("a:1"), resources("b:1"), Part({}, tools=True)
    composed = compose(one=one, other=other, tools=tools)
    outlet: Any = None
    await composed.start(outlet)
    await composed.watch(frozenset(("a:1", "b:1", "c:1")))
    assert one.watched == [frozenset(("a:1", "c:1"))]
    assert other.watched == [frozenset(("b:1", "c:1"))]
    assert tools.watched == []


def composition(rules: CompositionRules, **parts: Backend) -> ComposedBackend:
    return ComposedBackend(Implementation("c", "1"), parts, PrefixNames(parts), rules)


@on_a_loop
async def test_the_other_parts_are_served_if_one_does_not_start(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with client_of(compose(math=calculator(), bad=Failing({}, tools=True))) as caller:
        listed = (await caller.request("tools/list"))["tools"]
        assert [tool["name"] for tool in listed] == ["math_add"]
        with pytest.raises(RpcError, match=r"cannot start: bad: OSError: no such database \("):
            await caller.request("tools/call", {"name": "bad_x"})
    assert "cannot start: bad: OSError: no such database" in caplog.text


@on_a_loop
async def test_if_all_parts_fail_the_composition_fails() -> None:
    composed = compose(one=Failing({}), two=Failing({}))
    with pytest.raises(
        ConcertinoError, match=r"^one: OSError: no such database \(.*\); two: OSError"
    ):
        await composed.start(cast("Any", None))


@on_a_loop
async def test_a_part_that_starts_late_is_announced() -> None:
    late, changes = GatedPart(tools=True), asyncio.Queue[str]()

    class Outlet:
        def report_change(self, what: str) -> None:
            changes.put_nowait(what)

    composed = composition(
        CompositionRules(start_s=0.01, lists_s=0.02), math=calculator(), late=late
    )
    await composed.start(cast("Any", Outlet()))
    listed: Any = await composed.handle(Call("tools/list"), cast("Any", None))
    # Nobody may keep a list that is not complete.
    assert ([tool.name for tool in listed.tools], listed.ttl_ms) == (["math_add"], 0)
    late.gate.set()
    assert {await changes.get() for _ in range(4)} == {"features", "tools", "prompts", "resources"}
    await composed.close()
    assert (late.began, late.closed) == (1, 1)


@on_a_loop
async def test_closing_a_composition_ends_the_start_of_a_slow_part() -> None:
    rules = CompositionRules(start_s=0.01)
    async with client_of(composition(rules, math=calculator(), never=GatedPart())) as caller:
        assert len((await caller.request("tools/list"))["tools"]) == 1
