"""composed_backend.py with lenient rules: one bad part does not hold up or fail the others."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, TypeVar, cast

import pytest
from composition.parts import Failing, GatedPart, Part, calculator, client_of
from loops import on_a_loop
from msgspec import Raw, Struct
from msgspec.json import decode, encode

from concertino import RpcError
from concertino.backend.interface import Backend, Call, Context, Notifier
from concertino.backend.listing import decode_page
from concertino.backend.methods import LIST_METHODS
from concertino.composition import part_starts
from concertino.composition.composed_backend import ComposedBackend
from concertino.composition.part_names import BoundedNames
from concertino.composition.rules import CompositionRules
from concertino.types import resources_and_prompts, results
from concertino.types.results import Implementation

LENIENT = CompositionRules(
    start_s=0.2, lists_s=0.2, may_be_empty=True, list_limit_s=0.2, maps_uris=True, drain_s=10
)


def lenient(parts: Mapping[str, Backend], rules: CompositionRules = LENIENT) -> ComposedBackend:
    return ComposedBackend(Implementation("c", "1"), parts, BoundedNames(parts), rules)


class Outlet:
    """A Notifier that keeps what it was told."""

    def __init__(self) -> None:
        self.changes: asyncio.Queue[str] = asyncio.Queue()
        self.updates: list[str] = []

    def report_change(self, what: str) -> None:
        self.changes.put_nowait(what)

    def report_update(self, uri: str) -> None:
        self.updates.append(uri)

    async def wait_for(self, what: str) -> None:
        while await self.changes.get() != what:
            pass


async def start_composition(
    parts: Mapping[str, Backend], rules: CompositionRules = LENIENT
) -> tuple[ComposedBackend, Outlet]:
    composed, outlet = lenient(parts, rules), Outlet()
    await composed.start(cast("Notifier", outlet))
    return composed, outlet


async def tool_names(composed: ComposedBackend) -> list[str]:
    listed = await composed.handle(Call("tools/list"), cast("Context", None))
    return [tool.name for tool in decode_page(listed, LIST_METHODS["tools/list"]).tools]


def call(name: str) -> Call:
    return Call("tools/call", {"name": Raw(encode(name)), "arguments": Raw(b"{}")})


def listing(*names: str) -> Raw:
    tools = [{"name": name, "inputSchema": {"type": "object"}} for name in names]
    return Raw(encode({"tools": tools}))


class Stuck(Part):
    """A part that answers when its gate is open."""

    def __init__(self, answers: Mapping[str, Any], **features: Any) -> None:
        super().__init__(answers, **features)
        self.gate = asyncio.Event()

    async def handle(self, call: Call, context: Context) -> Struct | Raw:
        await self.gate.wait()
        return await super().handle(call, context)


@on_a_loop
async def test_it_opens_without_the_parts_that_hang_or_fail() -> None:
    composed, _ = await start_composition(
        {"math": calculator(), "hangs": GatedPart(), "fails": Failing({})}
    )
    assert await tool_names(composed) == ["math_add"]
    assert list(composed.failures) == ["fails"]
    assert composed.failures["fails"].startswith("cannot start: fails: OSError: no such database")
    await composed.close()


@on_a_loop
async def test_it_opens_without_any_part() -> None:
    for parts in ({}, {"fails": Failing({})}):
        composed, _ = await start_composition(parts)
        assert await tool_names(composed) == []
        assert composed.features().tools is False
        await composed.close()


@on_a_loop
async def test_a_part_whose_list_fails_is_left_out_and_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broken = Part({"tools/list": RpcError(-32603, "out of order")}, tools=True)
    composed, _ = await start_composition({"broken": broken, "math": calculator()})
    assert await tool_names(composed) == ["math_add"]
    assert await tool_names(composed) == ["math_add"]
    assert caplog.text.count("broken is left out of tools/list: RpcError: out of order") == 1
    await composed.close()


@on_a_loop
async def test_a_part_whose_list_hangs_is_announced_when_it_has_answered() -> None:
    stuck = Stuck({"tools/list": listing("x")}, tools=True)
    composed, outlet = await start_composition({"stuck": stuck, "math": calculator()})
    assert await tool_names(composed) == ["math_add"]
    stuck.gate.set()
    await outlet.wait_for("tools")
    assert await tool_names(composed) == ["stuck_x", "math_add"]
    await composed.close()


@on_a_loop
async def test_resources_of_a_part_that_hangs_do_not_hold_up_the_others() -> None:
    stuck = Stuck({}, resources=True)
    files = Part(
        {
            "resources/list": resources_and_prompts.ListResourcesResult(
                [resources_and_prompts.Resource("u:1", "one")]
            ),
            "resources/templates/list": resources_and_prompts.ListResourceTemplatesResult([]),
        },
        resources=True,
    )
    composed, _ = await start_composition({"stuck": stuck, "files": files})
    listed: Any = await composed.handle(Call("resources/list"), cast("Context", None))
    assert [item.uri for item in listed.resources] == ["u:1"]
    await composed.close()


@on_a_loop
async def test_the_same_answers_are_the_same_list() -> None:
    part = Part({"tools/list": lambda params: listing("x", "y")}, tools=True)
    composed, _ = await start_composition({"a": part})
    context = cast("Context", None)
    first = await composed.handle(Call("tools/list"), context)
    assert await composed.handle(Call("tools/list"), context) is first
    assert len(part.calls) == 2
    await composed.close()


@on_a_loop
async def test_a_part_that_failed_serves_when_a_later_try_succeeds(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(part_starts, "LEAST_RETRY_S", 0.0)

    class Recovering(Part):
        async def start(self, outlet: Notifier) -> None:
            await super().start(outlet)
            if self.began < 4:
                raise OSError("not yet")

    part = Recovering({"tools/list": listing("x")}, tools=True)
    rules = CompositionRules(
        start_s=0.2, lists_s=0.0, may_be_empty=True, list_limit_s=5, retries_s=(0.0,)
    )
    composed, outlet = await start_composition({"late": part}, rules)
    while composed.failures:
        await outlet.wait_for("tools")
    assert await tool_names(composed) == ["late_x"]
    assert part.began == 4
    assert caplog.text.count("not yet") == 1
    await composed.close()


@on_a_loop
async def test_a_call_of_a_part_that_failed_gets_the_reason_and_makes_it_try_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(part_starts, "LEAST_RETRY_S", 0.0)
    failing = Failing({}, tools=True)
    rules = CompositionRules(start_s=0.2, lists_s=0, may_be_empty=True, retries_s=(3600.0,))
    composed, _ = await start_composition({"bad": failing}, rules)
    for tries in (2, 3):
        await asyncio.sleep(0)  # the pause before the next try has begun
        with pytest.raises(RpcError, match="cannot start: bad: OSError"):
            await composed.handle(call("bad_x"), cast("Context", None))
        while failing.began < tries:
            await asyncio.sleep(0)
    await composed.close()


# Other parts while it runs


@on_a_loop
async def test_parts_are_added_and_removed_and_those_that_stay_go_on() -> None:
    stays, goes = calculator(), Part({"tools/list": listing("x")}, tools=True)
    composed, outlet = await start_composition({"stays": stays, "goes": goes})
    assert await tool_names(composed) == ["stays_add", "goes_x"]
    comes = Part({"tools/list": listing("y")}, tools=True)
    await composed.change_parts({"comes": comes, "stays": stays})
    await outlet.wait_for("tools")
    while "comes_y" not in await tool_names(composed):
        await outlet.wait_for("tools")
    assert await tool_names(composed) == ["comes_y", "stays_add"]
    with pytest.raises(RpcError, match="Unknown tool: goes_x"):
        await composed.handle(call("goes_x"), cast("Context", None))
    await composed.close()
    assert (goes.began, goes.closed, comes.began, comes.closed) == (1, 1, 1, 1)


@on_a_loop
async def test_a_part_that_is_replaced_is_closed_after_its_calls() -> None:
    def answer(text: str) -> Mapping[str, Any]:
        return {
            "tools/list": listing("x"),
            "tools/call": results.CallToolResult([results.TextContent(text)]),
        }

    old, new = Stuck(answer("old"), tools=True), Part(answer("new"), tools=True)
    composed, outlet = await start_composition({"a": old})
    under_way = asyncio.create_task(composed.handle(call("a_x"), cast("Context", None)))
    await asyncio.sleep(0)  # it has reached the part
    await composed.change_parts({"a": new})
    fresh: Any = await composed.handle(call("a_x"), cast("Context", None))
    assert fresh.content[0].text == "new"
    assert old.closed == 0
    old.gate.set()
    finished: Any = await under_way
    assert finished.content[0].text == "old"
    await composed.close()
    assert (old.closed, new.closed) == (1, 1)
    await outlet.wait_for("tools")


@on_a_loop
async def test_a_part_that_is_removed_while_it_starts_is_closed() -> None:
    hanging = GatedPart()
    composed, _ = await start_composition({"hangs": hanging})
    await composed.change_parts({})
    await composed.close()
    assert (hanging.began, hanging.closed) == (0, 1)


# Names and URIs


@on_a_loop
async def test_a_shortened_name_is_called_before_it_was_listed() -> None:
    own_name = "t" * 80

    def answer(params: dict[str, Any]) -> Any:
        return results.CallToolResult([results.TextContent(params["name"])])

    part = Part({"tools/list": listing(own_name), "tools/call": answer}, tools=True)
    composed, _ = await start_composition({"a": part})
    shown = BoundedNames(["a"]).show("a", own_name)
    result: Any = await composed.handle(call(shown), cast("Context", None))
    assert result.content[0].text == own_name
    assert await tool_names(composed) == [shown]
    await composed.close()


PartType = TypeVar("PartType", bound=Part)


def notes(name: str, part_type: type[PartType]) -> PartType:
    def read(params: dict[str, Any]) -> Any:
        contents = results.ResourceContents(params["uri"], text=f"{name} {params['uri']}")
        return results.ReadResourceResult([contents])

    link = {"type": "resource_link", "uri": "note://1", "name": "one"}
    return part_type(
        {
            "resources/list": resources_and_prompts.ListResourcesResult(
                [resources_and_prompts.Resource("note://1", "one")]
            ),
            "resources/templates/list": resources_and_prompts.ListResourceTemplatesResult(
                [resources_and_prompts.ResourceTemplate("note://{id}/page", "page")]
            ),
            "resources/read": read,
            "tools/call": Raw(encode({"content": [link]})),
            "completion/complete": lambda params: Raw(
                encode({"completion": {"values": [params["ref"]["uri"]]}})
            ),
        },
        resources=True,
        tools=True,
        completions=True,
        subscriptions=True,
    )


@on_a_loop
async def test_a_resource_of_two_parts_is_listed_read_completed_and_linked_under_two_uris(
    caplog: pytest.LogCaptureFixture,
) -> None:
    composed, outlet = await start_composition(
        {"one": notes("1st", Part), "two": notes("2nd", Part)}
    )
    context = cast("Context", None)
    listed: Any = await composed.handle(Call("resources/list"), context)
    assert [item.uri for item in listed.resources] == ["note://1", "two+note://1"]
    listed = await composed.handle(Call("resources/templates/list"), context)
    assert [item.uri_template for item in listed.resource_templates] == [
        "note://{id}/page",
        "two+note://{id}/page",
    ]

    async def read(uri: str) -> Any:
        result = await composed.handle(Call("resources/read", {"uri": Raw(encode(uri))}), context)
        return decode(result if isinstance(result, Raw) else encode(result))["contents"][0]

    assert await read("note://1") == {"uri": "note://1", "text": "1st note://1"}
    assert await read("two+note://1") == {"uri": "two+note://1", "text": "2nd note://1"}
    assert (await read("two+note://7/page"))["uri"] == "two+note://7/page"
    with_link = {
        name: decode(cast("Raw", await composed.handle(call(f"{name}_x"), context)))
        for name in ("one", "two")
    }
    assert [with_link[name]["content"][0]["uri"] for name in with_link] == [
        "note://1",
        "two+note://1",
    ]
    ref = {"type": "ref/resource", "uri": "two+note://{id}/page"}
    completed = await composed.handle(
        Call(
            "completion/complete",
            {"ref": Raw(encode(ref)), "argument": Raw(b'{"name":"id","value":""}')},
        ),
        context,
    )
    assert decode(cast("Raw", completed))["completion"]["values"] == ["note://{id}/page"]
    assert "that of two is two+note://1 for clients" in caplog.text
    await composed.watch(frozenset(("two+note://1",)))
    one, two = (cast("Part", composed.parts[name]) for name in ("one", "two"))
    assert (one.watched, two.watched) == ([frozenset()], [frozenset(("note://1",))])
    two.outlet.report_update("note://1")
    assert outlet.updates == ["two+note://1"]
    await composed.close()


@on_a_loop
async def test_a_lenient_composition_is_served_like_any_backend() -> None:
    async with client_of(lenient({"math": calculator(), "bad": Failing({})})) as caller:
        result = await caller.request(
            "tools/call", {"name": "math_add", "arguments": {"a": 1, "b": 2}}
        )
        assert result["structuredContent"] == {"result": 3}


# Calls that wait while parts are removed


def prompt_completion(prompt: str) -> Call:
    ref = Raw(encode({"type": "ref/prompt", "name": prompt}))
    argument = Raw(b'{"name":"a","value":""}')
    return Call("completion/complete", {"ref": ref, "argument": argument})


@pytest.mark.parametrize(
    "waiting",
    [
        call("hangs_x"),
        Call("prompts/get", {"name": Raw(b'"hangs_x"')}),
        prompt_completion("hangs_x"),
    ],
    ids=lambda waiting: waiting.method,
)
@on_a_loop
async def test_a_call_that_waits_for_the_start_of_a_removed_part_says_so(waiting: Call) -> None:
    hanging = GatedPart(tools=True, prompts=True, completions=True)
    composed, _ = await start_composition({"hangs": hanging})
    under_way = asyncio.create_task(composed.handle(waiting, cast("Context", None)))
    await asyncio.sleep(0)  # it waits for the start
    await composed.change_parts({})
    with pytest.raises(RpcError, match="hangs was removed while the call waited for it"):
        await under_way
    await composed.close()


@on_a_loop
async def test_a_call_that_waits_for_the_start_of_a_replaced_part_gets_the_new_one() -> None:
    def answer(params: dict[str, Any]) -> Any:
        return results.CallToolResult([], f"started {new.began} time")

    new = Part({"tools/call": answer}, tools=True)
    composed, _ = await start_composition({"a": GatedPart(tools=True)})
    under_way = asyncio.create_task(composed.handle(call("a_x"), cast("Context", None)))
    await asyncio.sleep(0)  # it waits for the start
    await composed.change_parts({"a": new})
    result: Any = await under_way
    assert result.structured_content == "started 1 time"
    await composed.close()


@on_a_loop
async def test_a_call_that_waits_for_the_names_of_a_removed_part_says_so() -> None:
    own_name = "t" * 80
    stuck = Stuck({"tools/list": listing(own_name)}, tools=True)
    composed, _ = await start_composition({"a": stuck})
    shown = BoundedNames(["a"]).show("a", own_name)
    under_way = asyncio.create_task(composed.handle(call(shown), cast("Context", None)))
    await asyncio.sleep(0)  # it waits for the list
    await composed.change_parts({})
    stuck.gate.set()
    with pytest.raises(RpcError, match="a was removed while the call waited for it"):
        await under_way
    with pytest.raises(RpcError, match=f"Unknown tool: {shown}"):
        await composed.handle(call(shown), cast("Context", None))
    await composed.close()


@on_a_loop
async def test_a_list_that_waits_for_a_removed_part_is_answered() -> None:
    stuck = Stuck({"tools/list": listing("x")}, tools=True)
    composed, _ = await start_composition({"a": stuck})
    under_way = asyncio.create_task(tool_names(composed))
    await asyncio.sleep(0)  # it waits for the page of the part
    await composed.change_parts({"math": calculator()})
    stuck.gate.set()
    await under_way
    assert await tool_names(composed) == ["math_add"]
    await composed.close()


@on_a_loop
async def test_a_resource_is_looked_for_in_the_parts_that_are_left() -> None:
    refusal = {"resources/read": RpcError(-32602, "no such resource")}
    empty = {
        "resources/list": resources_and_prompts.ListResourcesResult([]),
        "resources/templates/list": resources_and_prompts.ListResourceTemplatesResult([]),
    }
    stuck, goes = Stuck({**empty, **refusal}, resources=True), Part(empty, resources=True)
    stuck.gate.set()
    composed, _ = await start_composition({"stuck": stuck, "goes": goes})
    stuck.gate.clear()
    read = Call("resources/read", {"uri": Raw(b'"note://9"')})
    under_way = asyncio.create_task(composed.handle(read, cast("Context", None)))
    await asyncio.sleep(0)  # the first part has been asked
    await composed.change_parts({"stuck": stuck})
    stuck.gate.set()
    with pytest.raises(RpcError, match="no such resource"):
        await under_way
    assert "resources/read" not in [method for method, _ in goes.calls]
    await composed.close()


@on_a_loop
async def test_a_resource_belongs_to_no_part_that_was_removed_while_it_was_asked() -> None:
    goes, stays = notes("goes", Stuck), notes("stays", Part)
    goes.gate.set()
    composed, _ = await start_composition({"goes": goes, "stays": stays})
    goes.outlet.report_change("resources")
    goes.gate.clear()
    read = Call("resources/read", {"uri": Raw(b'"note://1"')})
    under_way = asyncio.create_task(composed.handle(read, cast("Context", None)))
    await asyncio.sleep(0)  # both parts have been asked for their resources
    await composed.change_parts({"stays": stays})
    goes.gate.set()
    result: Any = await under_way
    assert result.contents[0].text == "stays note://1"
    await composed.close()


@on_a_loop
async def test_parts_may_change_while_each_is_told_which_resources_to_watch() -> None:
    class SlowWatch(Part):
        gate = asyncio.Event()

        async def watch(self, uris: frozenset[str]) -> None:
            await self.gate.wait()
            await super().watch(uris)

    slow, goes = notes("slow", SlowWatch), notes("goes", Part)
    composed, _ = await start_composition({"slow": slow, "goes": goes})
    uris = frozenset(("note://1",))
    under_way = asyncio.create_task(composed.watch(uris))
    await asyncio.sleep(0)  # the first part has been told
    await composed.change_parts({"slow": slow})
    slow.gate.set()
    await under_way
    assert (slow.watched[0], goes.watched) == (uris, [])
    await composed.close()


@on_a_loop
async def test_the_task_of_a_part_that_is_removed_meanwhile_has_its_id() -> None:
    task = Raw(b'{"task":{"taskId":"1"}}')
    capabilities: Any = {"tasks": {"requests": {"tools": {"call": {}}}}}
    stuck = Stuck({"tools/call": task}, tools=True, other_capabilities=capabilities)
    composed, _ = await start_composition({"a": stuck})
    under_way = asyncio.create_task(composed.handle(call("a_x"), cast("Context", None)))
    await asyncio.sleep(0)  # it has reached the part
    await composed.change_parts({})
    stuck.gate.set()
    assert decode(cast("Raw", await under_way)) == {"task": {"taskId": "a+1"}}
    await composed.close()
