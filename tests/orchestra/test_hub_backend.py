"""hub_backend.py, translation.py and resource_translation.py, without any process: lists, their
changes, and results.

The shuffled Structs are made as upstream's Go makes them: the members of a map in any order.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some
from loops import on_a_loop
from msgspec import UNSET, Raw
from orchestra.bridges import definition, gave, make_failure, tools

from concertino.backend.caller import DetachedCaller
from concertino.backend.interface import Call
from concertino.errors import Disconnected, ResourceNotFound, RpcError, TimedOut
from concertino.orchestra.hub_backend import HubBackend
from concertino.orchestra.hub_calls import CALL_S
from concertino.orchestra.plugin_pb2 import (
    ListPromptsResponse,
    PluginRequest,
    PluginResponse,
    PromptDefinition,
    StorageEntry,
    StorageListResponse,
    StorageReadResponse,
)
from concertino.orchestra.resource_translation import (
    read_request,
    read_result,
    resources_of,
)
from concertino.orchestra.rpc_interface import TIMEOUT_S
from concertino.orchestra.structs import pack, unpack
from concertino.orchestra.translation import (
    call_request,
    call_result,
    caller_fields,
    stream_request,
)
from concertino.types.results import CallToolResult, TextContent

# A caller that wants no progress.
CONTEXT: Any = SimpleNamespace(caller=DetachedCaller())
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "string"}, "b": {"type": "integer"}},
    "required": ["a"],
}
SHUFFLED = {
    "required": ["a"],
    "properties": {"b": {"type": "integer"}, "a": {"type": "string"}},
    "type": "object",
}


class FakeHub:
    """An Notifier, and a hub whose answers can be changed."""

    def __init__(self) -> None:
        self.lists: list[str] = []
        self.asked: list[tuple[str, float]] = []
        self.answer: PluginResponse | Exception = PluginResponse()
        self.front = HubBackend(self._ask)

    def report_change(self, what: str) -> None:
        self.lists.append(what)

    def report_update(self, uri: str) -> None:
        raise AssertionError

    async def _ask(self, request: PluginRequest, timeout_s: float) -> PluginResponse:
        self.asked.append((request.WhichOneof("request") or "", timeout_s))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    async def call(self, method: str, **params: Any) -> Any:
        given = {name: Raw(json.dumps(value).encode()) for name, value in params.items()}
        return await self.front.handle(Call(method, given), CONTEXT)


@on_a_loop
async def test_a_list_in_another_order_is_the_same_object_and_no_change() -> None:
    told = FakeHub()
    await told.front.start(told)  # type: ignore[arg-type]
    told.answer = tools(definition("greet", "", SCHEMA), definition("count"))
    first = await told.call("tools/list")
    told.answer = tools(definition("count"), definition("greet", "", SHUFFLED))
    await told.front.refresh()
    assert await told.call("tools/list") is first  # so that it is encoded once
    assert told.lists == []


@on_a_loop
async def test_two_tools_of_one_name_in_any_order_are_one_list_and_one_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Upstream's hub lists both, and calls the last; 24 lists are two minutes of a bridge."""
    caplog.set_level("WARNING", "concertino")
    told = FakeHub()
    await told.front.start(told)  # type: ignore[arg-type]
    definitions = [
        definition("list_notes", "of the workspace", SCHEMA),
        definition("list_notes", "of everybody"),
        definition("list_notes", "of everybody", SCHEMA),
        definition("greet"),
    ]
    told.answer = tools(*definitions)
    first = await told.call("tools/list")
    assert [tool.name for tool in first.tools] == ["greet", "list_notes"]
    for order in itertools.permutations(definitions):
        shuffled = [
            definition(each.name, each.description, SHUFFLED) if each.input_schema else each
            for each in order
        ]
        told.answer = tools(*shuffled)
        await told.front.refresh()
        assert await told.call("tools/list") is first
    assert told.lists == []
    said = [each.getMessage() for each in caplog.records if "list_notes" in each.getMessage()]
    assert said == ["a tool is left out: there are two of the name 'list_notes'"]


@on_a_loop
async def test_two_prompts_of_one_name_in_any_order_are_one_list() -> None:
    told = FakeHub()
    await told.front.start(told)  # type: ignore[arg-type]
    prompts = [PromptDefinition(name="hello", description=each) for each in ("one", "two")]
    told.answer = PluginResponse(list_prompts=ListPromptsResponse(prompts=prompts))
    first = await told.call("prompts/list")
    told.answer = PluginResponse(list_prompts=ListPromptsResponse(prompts=prompts[::-1]))
    await told.front.refresh()
    assert await told.call("prompts/list") is first
    assert told.lists == []


@on_a_loop
async def test_who_was_given_no_list_is_told_of_none() -> None:
    told = FakeHub()
    await told.front.start(told)  # type: ignore[arg-type]
    told.answer = tools(definition("greet"))
    await told.front.refresh()
    assert told.asked == []
    assert told.lists == []


@pytest.mark.parametrize(
    "now",
    [
        tools(),
        tools(definition("greet", "in other words", SCHEMA)),
        tools(definition("greet", "", {**SCHEMA, "required": []})),
        tools(definition("greet", "", SCHEMA), definition("bow")),
    ],
)
def test_every_change_is_told_once(now: PluginResponse) -> None:
    @on_a_loop
    async def told_once() -> None:
        told = FakeHub()
        await told.front.start(told)  # type: ignore[arg-type]
        told.answer = tools(definition("greet", "", SCHEMA))
        await told.call("tools/list")
        told.answer = now
        await told.front.refresh()
        await told.front.refresh()
        assert told.lists == ["tools"]

    told_once()


@on_a_loop
async def test_prompts_are_told_of_by_themselves() -> None:
    told = FakeHub()
    await told.front.start(told)  # type: ignore[arg-type]
    told.answer = PluginResponse(list_prompts=ListPromptsResponse())
    await told.call("prompts/list")
    told.answer = PluginResponse(
        list_prompts=ListPromptsResponse(prompts=[PromptDefinition(name="hello")])
    )
    await told.front.refresh()
    assert told.lists == ["prompts"]


@pytest.mark.parametrize(
    "why", [Disconnected("gone"), TimedOut("late"), make_failure("list_tools_error", "broken")]
)
def test_a_list_that_could_not_be_had_is_told_of_when_it_can(why: Any) -> None:
    @on_a_loop
    async def told_later() -> None:
        told = FakeHub()
        await told.front.start(told)  # type: ignore[arg-type]
        told.answer = why
        with pytest.raises(RpcError) as caught:
            await told.call("tools/list")
        assert caught.value.code == -32603
        told.answer = tools()
        await told.front.refresh()
        assert told.lists == ["tools"]

    told_later()


@on_a_loop
async def test_tools_have_ten_minutes_and_everything_else_half_a_one() -> None:
    told = FakeHub()
    told.answer = gave({"text": "done"})
    await told.call("tools/call", name="x")
    told.answer = tools()
    await told.call("tools/list")
    told.answer = PluginResponse(storage_list=StorageListResponse())
    await told.call("resources/list")
    assert told.asked == [
        ("tool_call", CALL_S),
        ("list_tools", TIMEOUT_S),
        *[("storage_list", TIMEOUT_S)] * 4,
    ]
    assert (CALL_S, TIMEOUT_S) == (600.0, 30.0)


@on_a_loop
async def test_a_cursor_is_nobody_s_but_the_empty_one() -> None:
    told = FakeHub()
    told.answer = tools()
    await told.call("tools/list", cursor="")
    with pytest.raises(RpcError) as caught:
        await told.call("tools/list", cursor="more")
    assert caught.value.code == -32602


@on_a_loop
async def test_of_three_kinds_of_resources_one_that_fails_ends_the_others() -> None:
    ended: list[str] = []

    async def ask(request: PluginRequest, timeout_s: float) -> PluginResponse:
        if request.storage_list.prefix == "notes/":
            raise Disconnected("gone")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append(request.storage_list.prefix)
            raise
        raise AssertionError

    with pytest.raises(RpcError) as caught:
        await HubBackend(ask).handle(Call("resources/list"), CONTEXT)
    assert caught.value.message == "orchestrator: gone"
    assert sorted(ended) == ["", "docs/", "features/"]


# Translation

# On a machine that does much else, making input takes long as well.
unhurried = settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])

JSON = some.recursive(
    some.none()
    | some.booleans()
    | some.integers(-(10**25), 10**25)
    | some.floats(allow_nan=False, allow_infinity=False)
    | some.text(some.characters(exclude_categories=["Cs"]), max_size=8),
    lambda inner: (
        some.lists(inner, max_size=3)
        | some.dictionaries(some.text("abc", max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


def same(one: Any, other: Any) -> bool:
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def test_a_call_and_a_stream_of_a_tool_say_the_same() -> None:
    """Only a call has its own encoder."""
    params = {"name": Raw(b'"t"'), "arguments": Raw(b'{"n":9007199254740993}')}
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    meta = {
        "traceparent": Raw(b'"%s"' % trace.encode()),
        "orchestra/provider": Raw(b'"openai"'),
    }
    call = PluginRequest.FromString(call_request(params, meta, caller_fields("session"))).tool_call
    start = stream_request(params, meta, "session").stream_start
    assert start.trace_parent == call.trace_parent == trace
    assert start.arguments_json == call.arguments_json == b'{"n":9007199254740993}'
    for name in ("tool_name", "arguments", "caller_plugin", "provider", "session_id"):
        assert getattr(start, name) == getattr(call, name) != type(getattr(call, name))()

    nothing = stream_request({"name": Raw(b'"t"')}, {}, "session").stream_start
    assert not nothing.HasField("arguments")
    assert not nothing.HasField("arguments_json")


@unhurried
@given(some.dictionaries(some.text("abc", max_size=3), JSON, max_size=4))
def test_arguments_arrive_as_they_were_said(arguments: dict[str, Any]) -> None:
    params = {"name": Raw(b'"x"'), "arguments": Raw(json.dumps(arguments).encode())}
    sent = PluginRequest.FromString(call_request(params, {}, caller_fields("session"))).tool_call
    assert same(_floats(unpack(sent.arguments, sent.arguments_json)), _floats(arguments))


@unhurried
@given(
    some.dictionaries(some.text("abc", max_size=3), JSON, max_size=4), some.text("xyz", max_size=4)
)
def test_a_result_is_its_text_or_all_of_it_as_json(result: dict[str, Any], text: str) -> None:
    (block,) = _result(result)
    assert isinstance(block, TextContent)
    assert same(_floats(json.loads(block.text)), _floats(result))
    assert _result({**result, "text": text}) == [TextContent(text)]


def _result(result: dict[str, Any]) -> list[Any]:
    said: CallToolResult = call_result(gave(result).tool_call)
    assert not said.is_error
    return said.content


def _floats(value: Any) -> Any:
    """Whole numbers as integers, as far as a double holds them exactly: JSON knows one kind of
    number.
    """
    if isinstance(value, float) and value.is_integer() and abs(value) <= 2**53:
        return int(value)
    if isinstance(value, list):
        return [_floats(each) for each in value]
    if isinstance(value, dict):
        return {key: _floats(each) for key, each in value.items()}
    return value


def test_the_json_of_a_result_has_sorted_keys_whatever_their_order_on_the_wire() -> None:
    orders: list[dict[str, Any]] = [
        {"b": {"d": 1, "c": [{"f": 2**60, "e": 0}]}, "a": "\u00e9"},
        {"a": "\u00e9", "b": {"c": [{"e": 0, "f": 2**60}], "d": 1}},
    ]
    for order in orders:
        found = call_result(gave(order).tool_call)
        expected = '{"a":"\u00e9","b":{"c":[{"e":0,"f":1152921504606846976}],"d":1}}'
        assert found.content == [TextContent(expected)]
        assert found.structured_content == Raw(expected.encode())


@pytest.mark.parametrize(
    ("result", "structured"),
    [
        ({"text": "just a text"}, None),
        ({}, None),
        ({"n": 3}, {"n": 3}),
        ({"text": 3}, {"text": 3}),
        ({"text": "3 items", "items": [1, 2, 3]}, {"text": "3 items", "items": [1, 2, 3]}),
        (
            {"text": "", "content": [{"type": "image", "data": "AAEC", "mimeType": "image/png"}]},
            None,
        ),
    ],
)
def test_an_object_of_upstream_s_plugins_is_structured_content(
    result: dict[str, Any], structured: dict[str, Any] | None
) -> None:
    found = call_result(gave(result).tool_call)
    if structured is None:
        assert found.structured_content is UNSET
    else:
        assert json.loads(bytes(found.structured_content)) == structured


def test_pictures_of_plugins_made_with_the_sdk_follow_the_text() -> None:
    picture = {"type": "image", "data": "AAEC", "mimeType": "image/png"}
    blocks = _result({"text": "look", "content": [{"type": "text", "text": "look"}, picture]})
    assert [type(each).__name__ for each in blocks] == ["TextContent", "ImageContent"]
    assert blocks[1].data == b"\x00\x01\x02"
    assert [type(each).__name__ for each in _result({"text": "", "content": [picture]})] == [
        "ImageContent"
    ]
    # A plugin's own member of that name is none of MCP's.
    for own in ("words", [1], [{"type": "image"}], [{"type": "odd"}], {"a": 1}):
        assert _result({"text": "look", "content": own}) == [TextContent("look")]


IDS = some.text(
    some.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\\"),
    min_size=1,
    max_size=20,
)


@unhurried
@given(
    some.lists(
        IDS.filter(lambda id: all(part not in ("", ".", "..") for part in id.split("/"))),
        unique=True,
    )
)
def test_every_resource_that_is_listed_can_be_read_under_its_uri(ids: list[str]) -> None:
    paths = sorted(f"notes/{id}.md" for id in ids)
    listed = resources_of([StorageEntry(path=path) for path in reversed(paths)], "notes")
    asked = [
        read_request({"uri": Raw(json.dumps(each.uri).encode())})[1].storage_read.path
        for each in listed
    ]
    assert asked == paths


def test_an_empty_document_with_a_version_is_there() -> None:
    empty = PluginResponse(storage_read=StorageReadResponse(version=1))
    (found,) = read_result("orchestra://notes/x", empty).contents
    assert found.text == ""
    with_metadata = PluginResponse(storage_read=StorageReadResponse(metadata=pack({"a": 1}).struct))
    assert read_result("orchestra://notes/x", with_metadata).contents[0].text == ""
    with pytest.raises(ResourceNotFound):
        read_result("orchestra://notes/x", PluginResponse(storage_read=StorageReadResponse()))


@pytest.mark.parametrize(
    "arguments",
    [b'{"a":"\\ud800"}', b'{"a":1e400}', b"[1]", b"3", b'{"a":' + b"[" * 200 + b"]" * 200 + b"}"],
)
def test_arguments_that_no_struct_can_hold_are_refused(arguments: bytes) -> None:
    with pytest.raises(RpcError) as caught:
        call_request({"name": Raw(b'"x"'), "arguments": Raw(arguments)}, {}, b"")
    assert caught.value.code == -32602
    assert caught.value.message.startswith("tools/call params.arguments: ")
