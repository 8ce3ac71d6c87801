"""client/client.py: what can be asked of a server, and what comes back.

Shapes are those of the specification.
"""

from __future__ import annotations

import asyncio
import sys
from contextvars import Context, ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from client.scripted import SILENCE, Script, on_a_loop, opened
from msgspec import UNSET, Raw

from concertino import Server
from concertino.backend import Host
from concertino.client.client import Client
from concertino.client.notifications import LogMessage
from concertino.errors import ProtocolError, ToolError
from concertino.runtime.acceptor import serve_connections
from concertino.transports import listen_unix
from concertino.types.completion import PromptReference
from concertino.types.resources_and_prompts import Prompt, Resource, ResourceTemplate
from concertino.types.results import TextContent, Tool

EXAMPLE = Path(__file__).parents[2] / "examples" / "calculator.py"
BOTH = pytest.mark.parametrize("like", ["legacy", "modern"])


@dataclass
class Point:
    x: int
    y: int


def gives(**result: Any) -> dict[str, Any]:
    return {"tools/call": {"resultType": "complete", "content": [], **result}}


# Tools


@pytest.mark.requirement("FR-20", side="client")
@pytest.mark.parametrize("era", ["auto", "legacy", "modern"])
@on_a_loop
async def test_a_program_is_started_called_and_ended(era: Any) -> None:
    async with Client([sys.executable, EXAMPLE], era=era) as client:
        assert client.server == "calculator"
        assert [tool.name for tool in await client.list_tools()] == ["add"]
        assert await client.call_tool("add", {"a": 1, "b": 2}, into=int) == 3
        assert client.exit_status is None
    assert client.exit_status == 0


@pytest.mark.requirement("FR-15", side="client")
@on_a_loop
async def test_a_server_in_this_process_is_called_and_closed() -> None:
    server = Server("here")

    @server.tool
    async def double(n: int) -> int:
        return 2 * n

    async with Client(server) as client:
        assert await client.call_tool("double", {"n": 4}, into=int) == 8
        assert (client.pid, client.exit_status) == (None, None)


@pytest.mark.requirement("FR-14", side="client")
@on_a_loop
async def test_a_server_at_a_socket_is_called(tmp_path: Path) -> None:
    server = Server("there")

    @server.tool
    async def double(n: int) -> int:
        return 2 * n

    place = str(tmp_path / "s")
    async with Host(server) as host:
        with serve_connections(host, listen_unix(place)):
            async with Client(f"unix:{place}") as client:
                assert await client.call_tool("double", {"n": 4}, into=int) == 8


@pytest.mark.requirement("TO-16", side="client")
@pytest.mark.parametrize(
    ("result", "into", "value"),
    [
        ({"structuredContent": {"x": 1, "y": 2}}, Point, Point(1, 2)),
        ({"structuredContent": 5}, int, 5),
        ({"structuredContent": None}, type(None), None),
        ({"structuredContent": {"result": 5}}, int, 5),
        ({"structuredContent": {"result": 5}}, dict, {"result": 5}),
        ({"content": [{"type": "text", "text": '{"x":1,"y":2}'}]}, Point, Point(1, 2)),
        ({"content": [{"type": "text", "text": "plain"}]}, str, "plain"),
        ({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, str, "a\nb"),
    ],
)
@on_a_loop
async def test_what_a_tool_gives_comes_as_the_type_that_is_wanted(
    result: Any, into: Any, value: Any
) -> None:
    async with opened(gives(**result)) as (client, _):
        assert await client.call_tool("x", into=into) == value


@pytest.mark.requirement("TO-21", side="client")
@on_a_loop
async def test_what_is_not_of_the_type_is_shown_and_a_failed_tool_raises_its_text() -> None:
    async with opened(gives(structuredContent={"x": "one"})) as (client, _):
        with pytest.raises(
            ProtocolError,
            match=r"tools/call p: the result is no .*Point.*: Expected `int`, got `str`",
        ):
            await client.call_tool("p", into=Point)
    async with opened(gives(isError=True, content=[{"type": "text", "text": "no such city"}])) as (
        client,
        _,
    ):
        assert (await client.call_tool("p")).is_error
        with pytest.raises(ToolError, match="no such city"):
            await client.call_tool("p", into=Point)


@pytest.mark.requirement("TO-16", side="client")
@on_a_loop
async def test_a_result_without_structured_content_says_so() -> None:
    async with opened(gives()) as (client, _):
        assert (await client.call_tool("x")).structured_content is UNSET
    async with opened(gives(structuredContent=None)) as (client, _):
        assert (await client.call_tool("x")).structured_content is None  # TO-16: null is a value


@pytest.mark.requirement("ME-18", "ME-19", side="client")
@BOTH
@on_a_loop
async def test_members_for_meta_are_sent_beside_our_own(like: str) -> None:
    async with opened(gives(), like) as (client, script):
        await client.call_tool("x", meta={"traceparent": "00-1-2-01"}, progress=lambda *_: None)
        meta = script.of("tools/call")[0]["params"]["_meta"]
        assert meta["traceparent"] == "00-1-2-01"
        assert isinstance(meta["progressToken"], int)
        assert ("io.modelcontextprotocol/protocolVersion" in meta) is (like == "modern")


# Lists


def make_pages(key: str, pages: list[tuple[list[Any], Any]]) -> Any:
    """Pages with their cursors: (items, nextCursor or None)."""

    def handler(script: Script, message: dict[str, Any]) -> Any:
        cursor = message["params"].get("cursor")
        index = 0 if cursor is None else 1 + [after for _, after in pages].index(cursor)
        items, after = pages[index]
        return {"resultType": "complete", key: items} | (
            {} if after is None else {"nextCursor": after}
        )

    return handler


@pytest.mark.requirement("RE-8", "PG-1", "PG-2", "PG-3", "PG-5", side="client")
@BOTH
@on_a_loop
async def test_lists_are_read_to_their_last_page(like: str) -> None:
    """PG-3: an empty cursor is a cursor."""
    tool = {"name": "t", "inputSchema": {"type": "object"}}
    handlers = {
        "tools/list": make_pages("tools", [([tool], "a"), ([], ""), ([tool], None)]),
        "resources/list": make_pages(
            "resources", [([{"uri": "x:1", "name": "one"}], "a"), ([], None)]
        ),
        "resources/templates/list": make_pages(
            "resourceTemplates", [([{"uriTemplate": "x:{n}", "name": "n"}], None)]
        ),
        "prompts/list": make_pages("prompts", [([{"name": "p"}], None)]),
    }
    async with opened(handlers, like) as (client, script):
        assert await client.list_tools() == [Tool("t", {"type": "object"})] * 2
        assert [message["params"].get("cursor") for message in script.of("tools/list")] == [
            None,
            "a",
            "",
        ]
        assert await client.list_resources() == [Resource("x:1", "one")]
        assert await client.list_resource_templates() == [ResourceTemplate("x:{n}", "n")]
        assert await client.list_prompts() == [Prompt("p")]


@on_a_loop
async def test_a_list_that_goes_in_circles_ends() -> None:
    async with opened({"tools/list": {"tools": [], "nextCursor": "a"}}) as (client, _):
        with pytest.raises(ProtocolError, match="repeats itself: the cursor 'a' came twice"):
            await client.list_tools()


# Resources, prompts, completion


@pytest.mark.requirement("PM-5", "CP-3", side="client")
@BOTH
@on_a_loop
async def test_resources_and_prompts_are_read(like: str) -> None:
    handlers = {
        "resources/read": {
            "contents": [{"uri": "x:1", "text": "hello"}, {"uri": "x:2", "blob": "aGk="}]
        },
        "prompts/get": {"messages": [{"role": "user", "content": {"type": "text", "text": "hi"}}]},
        "completion/complete": {"completion": {"values": ["Paris"], "total": 1, "hasMore": False}},
    }
    async with opened({k: v | {"resultType": "complete"} for k, v in handlers.items()}, like) as (
        client,
        script,
    ):
        read = await client.read_resource("x:1")
        assert [each.text for each in read.contents] == ["hello", UNSET]
        assert read.contents[1].blob == b"hi"
        prompt = await client.get_prompt("p", {"a": "1"})
        assert prompt.messages[0].content == TextContent("hi")
        assert script.of("prompts/get")[0]["params"]["arguments"] == {"a": "1"}
        completed = await client.complete(
            PromptReference("p"), "city", "Pa", chosen={"country": "FR"}
        )
        assert completed.values == ["Paris"]
        params = script.of("completion/complete")[0]["params"]
        assert {key: params[key] for key in ("ref", "argument", "context")} == {
            "ref": {"type": "ref/prompt", "name": "p"},
            "argument": {"name": "city", "value": "Pa"},
            "context": {"arguments": {"country": "FR"}},
        }


@on_a_loop
async def test_a_subscription_of_an_older_server() -> None:
    seen: list[str] = []
    told = asyncio.Event()

    def updated(uri: str) -> None:
        seen.append(uri)
        told.set()

    async with opened(
        {"resources/subscribe": {}, "resources/unsubscribe": {}}, "legacy", updated=updated
    ) as (
        client,
        script,
    ):
        await client.subscribe("x:1")
        await client.subscribe("x:1")
        assert len(script.of("resources/subscribe")) == 1
        script.notify("notifications/resources/updated", uri="x:1")
        await told.wait()
        await client.unsubscribe("x:1")
        await client.unsubscribe("x:1")
        assert len(script.of("resources/unsubscribe")) == 1
    assert seen == ["x:1"]


SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"


@on_a_loop
async def test_a_subscription_since_2026() -> None:
    """The request stays open; what comes for it names it; giving it up is a cancel (SU-2, SU-3,
    SU-4, SU-7).
    """
    seen: list[str] = []
    told = asyncio.Event()

    def listen(script: Script, message: dict[str, Any]) -> Any:
        script.notify(
            "notifications/subscriptions/acknowledged",
            _meta={SUBSCRIPTION: message["id"]},
            notifications=message["params"]["notifications"],
        )
        return SILENCE

    def updated(uri: str) -> None:
        seen.append(uri)
        told.set()

    async with opened({"subscriptions/listen": listen}, updated=updated) as (client, script):
        await client.subscribe("x:1")
        [asked] = script.of("subscriptions/listen")
        assert asked["params"]["notifications"] == {"resourceSubscriptions": ["x:1"]}
        script.notify("notifications/resources/updated", uri="x:0", _meta={SUBSCRIPTION: "another"})
        script.notify("notifications/resources/updated", uri="x:0")
        script.notify(
            "notifications/resources/updated", uri="x:1", _meta={SUBSCRIPTION: asked["id"]}
        )
        await told.wait()
        assert seen == ["x:1"]
        await client.unsubscribe("x:1")
        await script.until(lambda: script.of("notifications/cancelled"))
        assert script.of("notifications/cancelled")[0]["params"]["requestId"] == asked["id"]
        script.answer(asked, {"resultType": "complete", "_meta": {SUBSCRIPTION: asked["id"]}})


@pytest.mark.requirement("SU-6", side="client")
@pytest.mark.parametrize(
    "honoured", [{}, {"resourceSubscriptions": []}, {"toolsListChanged": True}]
)
@on_a_loop
async def test_a_subscription_that_is_not_honoured_is_given_up(honoured: Any) -> None:
    """SU-6."""

    def listen(script: Script, message: dict[str, Any]) -> Any:
        meta = {SUBSCRIPTION: message["id"]}
        script.notify(
            "notifications/subscriptions/acknowledged", _meta=meta, notifications=honoured
        )
        return SILENCE

    async with opened({"subscriptions/listen": listen}) as (client, script):
        with pytest.raises(ProtocolError, match="does not provide resourceSubscriptions"):
            await client.subscribe("x:1")
        await script.until(lambda: script.of("notifications/cancelled"))


@on_a_loop
async def test_a_subscription_that_ends_at_once_is_said_and_can_be_made_again() -> None:
    ending: Any = {"resultType": "complete", "_meta": {SUBSCRIPTION: 1}}
    async with opened({"subscriptions/listen": ending}) as (client, script):
        for _ in range(2):
            with pytest.raises(
                ProtocolError, match="ended the subscription before it was acknowledged"
            ):
                await client.subscribe("x:1")
        assert len(script.of("subscriptions/listen")) == 2


@BOTH
@on_a_loop
async def test_a_storm_of_changes_makes_one_refresh_at_a_time(like: str) -> None:
    under_way = most = runs = 0
    release = asyncio.Event()
    again = asyncio.Event()

    async def changed(what: str) -> None:
        nonlocal under_way, most, runs
        assert what == "tools"
        runs += 1
        under_way += 1
        most = max(most, under_way)
        if runs == 2:
            again.set()
        await release.wait()
        under_way -= 1
        if runs == 1:
            raise ValueError("the changes during a refresh that fails are not lost")

    ids: list[Any] = []

    def listen(script: Script, message: dict[str, Any]) -> Any:
        ids.append(message["id"])
        meta = {SUBSCRIPTION: message["id"]}
        wanted = message["params"]["notifications"]
        script.notify("notifications/subscriptions/acknowledged", _meta=meta, notifications=wanted)
        return SILENCE

    from client.scripted import legacy, modern

    offers = {"legacy": legacy, "modern": modern}[like](
        capabilities={"tools": {"listChanged": True}}
    )
    handlers = offers | {"subscriptions/listen": listen, "tools/list": {"tools": []}}
    async with opened(handlers, like, changed=changed) as (client, script):
        meta = {"_meta": {SUBSCRIPTION: ids[0]}} if ids else {}
        for _ in range(1000):
            script.notify("notifications/tools/list_changed", **meta)
        await client.list_tools()
        assert runs == 1
        release.set()
        await again.wait()
    assert (runs, most) == (2, 1)


# The rest


@pytest.mark.requirement("LO-2", "LO-7", side="client")
@BOTH
@on_a_loop
async def test_log_messages_come_at_the_level_that_was_asked_for(like: str) -> None:
    logged: list[LogMessage] = []
    async with opened({"logging/setLevel": {}, **gives()}, like, logged=logged.append) as (
        client,
        script,
    ):
        await client.set_log_level("warning")
        await client.call_tool("x")
        if like == "legacy":
            assert script.of("logging/setLevel")[0]["params"] == {"level": "warning"}
        else:
            meta = script.of("tools/call")[0]["params"]["_meta"]
            assert meta["io.modelcontextprotocol/logLevel"] == "warning"
        script.notify("notifications/message", level="error", data={"a": 1}, logger="db")
        script.notify("notifications/message", level="loud", data=1)
        await client.call_tool("x")
    assert logged == [LogMessage("error", {"a": 1}, "db")]


@on_a_loop
async def test_any_request_can_be_sent_and_its_result_had_as_it_came() -> None:
    async with opened({"x/y": {"resultType": "complete", "n": 1.50}}) as (client, script):
        assert await client.request("x/y", {"a": 1}) == {"resultType": "complete", "n": 1.5}
        raw = await client.request("x/y", into=Raw)
        assert bytes(raw) == b'{"resultType": "complete", "n": 1.5}'
        assert script.of("x/y")[0]["params"]["a"] == 1


@pytest.mark.requirement("JR-11", side="client")
@on_a_loop
async def test_other_notifications_are_passed_on_and_ours_are_sent() -> None:
    seen: list[Any] = []
    async with opened(gives(), notified=lambda *said: seen.append(said)) as (client, script):
        script.notify("notifications/elicitation/complete", elicitationId="e")
        client.notify("notifications/x", {"a": 1})
        await client.call_tool("x")
        assert script.of("notifications/x")[0]["params"] == {"a": 1}
    assert seen == [("notifications/elicitation/complete", {"elicitationId": "e"})]


@on_a_loop
async def test_a_function_that_fails_is_logged_and_nothing_else_suffers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fails(*_: Any) -> None:
        raise RuntimeError("mine")

    async with opened(
        gives(), "legacy", notified=fails, updated=fails, logged=fails, changed=fails
    ) as (
        client,
        script,
    ):
        script.notify("notifications/x")
        script.notify("notifications/resources/updated", uri="x")
        script.notify("notifications/message", level="info", data=1)
        script.notify("notifications/tools/list_changed")
        await client.call_tool("x", progress=fails)
    assert caplog.text.count("RuntimeError: mine") == 4


@on_a_loop
async def test_a_client_is_opened_once_and_used_while_it_is_open() -> None:
    client = Client(Server("x"))
    with pytest.raises(RuntimeError, match="is not open"):
        await client.list_tools()
    await client.open()
    with pytest.raises(RuntimeError, match="opened once"):
        await client.open()
    await client.aclose()
    await client.aclose()


def test_a_client_belongs_to_one_loop() -> None:
    client = Client(Server("x"))
    with asyncio.Runner() as first, asyncio.Runner() as second:
        first.run(client.open())
        with pytest.raises(RuntimeError, match="belongs to the event loop"):
            second.run(client.call_tool("x"))
        first.run(client.aclose())


@BOTH
@on_a_loop
async def test_answers_to_requests_of_different_kinds_may_come_in_any_order(like: str) -> None:
    asked: list[tuple[Script, dict[str, Any]]] = []
    tool = {"name": "x", "inputSchema": {"type": "object"}}
    results: dict[str, Any] = {
        "tools/call": {"content": [{"type": "text", "text": "\u00fc"}]},
        "tools/list": {"tools": [tool], "ttlMs": 0, "cacheScope": "private"},
    }

    def later(script: Script, message: dict[str, Any]) -> Any:
        asked.append((script, message))
        return SILENCE

    async with opened(dict.fromkeys(results, later), like) as (client, script):
        for turned in (False, True):
            asked.clear()
            under_way = asyncio.gather(
                client.call_tool("x"), client.list_tools(), client.call_tool("100% x")
            )
            await script.until(lambda: len(asked) == 3)
            for to, message in reversed(asked) if turned else asked:
                to.answer(message, {"resultType": "complete", **results[message["method"]]})
            first, tools, second = await under_way
            assert [tool.name for tool in tools] == ["x"]
            assert first == second
            assert first.content == [TextContent("\u00fc")]
        assert [message["params"]["name"] for message in script.of("tools/call")] == [
            "x",
            "100% x",
        ] * 2
        assert client.stray == 0


@on_a_loop
async def test_what_a_task_sets_after_a_call_stays_set() -> None:
    """In a context that was empty before, as a program's first one mostly is; such a context counts
    as false.
    """
    seen: ContextVar[str] = ContextVar("seen", default="nothing")

    async with opened(gives()) as (client, _):

        async def task() -> str:
            await client.call_tool("x")
            seen.set("something")
            await asyncio.sleep(0)
            return seen.get()

        assert (
            await asyncio.get_running_loop().create_task(task(), context=Context()) == "something"
        )


@pytest.mark.requirement("TO-11", side="client")
@BOTH
@on_a_loop
async def test_every_message_can_be_seen(like: str) -> None:
    seen: list[tuple[str, str]] = []
    async with opened(gives(), like, trace=lambda way, text: seen.append((way, text))) as (
        client,
        script,
    ):
        await client.call_tool("x")
        sent = [text for way, text in seen if way == "->"]
        assert len(sent) == len(script.came)
        assert any('"content"' in text for way, text in seen if way == "<-")


@on_a_loop
async def test_a_function_that_is_shown_messages_may_fail() -> None:
    def fails(way: str, text: str) -> None:
        raise RuntimeError("mine")

    async with opened(gives(), trace=fails) as (client, _):
        assert not (await client.call_tool("x")).is_error


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"restart": True}, r"restart: expected Restart\(\.\.\.\), got True"),
        ({"timeouts": 5}, "timeouts: expected Timeouts"),
        ({"limits": {}}, "limits: expected Limits"),
        (
            {"stderr": 2},
            "stderr: expected a function that takes a line, or the path of a file, got int",
        ),
        ({"roots": "file:///x"}, "roots: expected a list of file:// URIs, got 'file:///x'"),
        (
            {"roots": [Path("/x")]},
            r"roots: expected a URI that begins with file://, got PosixPath\('/x'\)",
        ),
        ({"elicit": "yes"}, "elicit: expected a function, got 'yes'"),
        ({"sample": 1}, "sample: expected a function, got 1"),
        ({"changed": []}, r"changed: expected a function, got \[\]"),
        ({"rounds": 0}, "rounds: expected at least 1, got 0"),
        ({"era": "new"}, "era: expected auto, modern or legacy, got 'new'"),
    ],
)
def test_settings_that_make_no_sense_are_refused_at_once(settings: Any, said: str) -> None:
    with pytest.raises((TypeError, ValueError), match=said):
        Client([sys.executable], **settings)


@BOTH
@on_a_loop
async def test_what_is_asked_for_wrongly_is_refused_before_anything_is_sent(like: str) -> None:
    async with opened(gives(), like) as (client, script):
        came = len(script.came)
        with pytest.raises(
            TypeError, match=r"progress: expected a function of \(done, total, message\), got 5"
        ):
            await client.call_tool("x", progress=5)  # pyright: ignore[reportArgumentType, reportCallIssue]
        with pytest.raises(ValueError, match=r"level: expected one of debug, info, .*, got 'loud'"):
            await client.set_log_level("loud")  # pyright: ignore[reportArgumentType]
        with pytest.raises(TypeError):
            await client.call_tool("x", {"a": object()})
        assert [each for each in script.came[came:] if "id" in each] == []


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("calculator.py", "; did you mean ['python', 'calculator.py']?"),
        ("python calculator.py", "; did you mean ['python', 'calculator.py']?"),
        ("localhost:8000/mcp", "; did you mean 'http://localhost:8000/mcp'?"),
        ("ftp://localhost:8000/mcp", ""),
        ("", ""),
    ],
)
def test_a_text_that_is_no_address_may_have_been_a_command(text: str, hint: str) -> None:
    with pytest.raises(ValueError, match="expected unix:PATH") as error:
        Client(text)
    assert str(error.value) == (
        "expected unix:PATH, tcp:HOST:PORT or a URL, or a command as a list of words, "
        f"got {text!r}{hint}"
    )
