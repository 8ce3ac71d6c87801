"""What the specification asks of a client, where no other file of this folder shows it; each test
quotes or names its sentence.

The client scenarios of the official conformance suite that need no HTTP are here too, over a memory
pair.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest
import wire
from client.scripted import (
    LEGACY,
    MODERN,
    SILENCE,
    VERSION,
    Refusal,
    Script,
    legacy,
    modern,
    on_a_loop,
    opened,
)

from concertino.client.client import Client
from concertino.errors import Incompatible, ProtocolError, RpcError, TimedOut
from concertino.transports.memory import memory_pair
from concertino.types.completion import PromptReference

CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
INFO = "io.modelcontextprotocol/clientInfo"
FORM = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "default": "John Doe"},
        "age": {"type": "integer", "default": 30},
        "score": {"type": "number", "default": 95.5},
        "status": {"type": "string", "enum": ["active", "inactive"], "default": "active"},
        "verified": {"type": "boolean", "default": True},
    },
}
ELICIT = {
    "method": "elicitation/create",
    "params": {"message": "Who?", "mode": "form", "requestedSchema": FORM},
}
DONE = {"resultType": "complete", "content": []}


class Onlooker(Script):
    """A script that holds every line against the schema of its revision before it looks at it."""

    lines: list[bytes]
    wrong: list[str]
    revision: str

    def on_frames(self, batch: Sequence[bytes]) -> None:
        for frame in batch:
            self.lines.append(frame)
            try:
                self.look(frame)
            except (wire.Violation, KeyError) as why:
                self.wrong.append(f"{why!r}: {frame!r}")
        super().on_frames(batch)

    def look(self, frame: bytes) -> None:
        value = wire.one_json(frame)
        version = value.get("params", {}).get("_meta", {}).get(VERSION)
        method = value.get("method")
        if method is None:
            wire.check(
                value, self.revision, "JSONRPCResponse" if "result" in value else self.error_name()
            )
        elif "id" in value:
            definition = wire._methods(version or self.revision, "Request")[method]
            wire.check(value, version or self.revision, definition)
        else:
            wire.check(value, self.revision, wire._methods(self.revision, "Notification")[method])

    def error_name(self) -> str:
        return "JSONRPCErrorResponse" if self.revision >= "2025-11-25" else "JSONRPCError"


def empty(key: str) -> dict[str, Any]:
    return {"resultType": "complete", key: []}


@pytest.mark.requirement(
    "FR-1",
    "FR-2",
    "FR-3",
    "FR-5",
    "JR-1",
    "JR-2",
    "JR-3",
    "JR-4",
    "JR-5",
    "JR-10",
    "JR-17",
    "ME-1",
    "MR-17",
    side="client",
)
@pytest.mark.parametrize("revision", wire.REVISIONS)
@on_a_loop
async def test_every_line_of_a_client_of_everything_fits_the_schema_of_the_revision(
    revision: str,
) -> None:
    """FR-5: "The client MUST NOT write anything to the server's stdin that is not a valid MCP
    message"; FR-12 and JR-17 too.
    """

    def call(script: Script, message: dict[str, Any]) -> Any:
        params = message["params"]
        if revision == MODERN and "requestState" not in params:
            questions = {"a": WHOLE, "b": SAMPLE, "c": {"method": "roots/list"}}
            return {"resultType": "input_required", "inputRequests": questions, "requestState": "s"}
        return DONE

    def listen(script: Script, message: dict[str, Any]) -> Any:
        meta = {"io.modelcontextprotocol/subscriptionId": message["id"]}
        wanted = message["params"]["notifications"]
        script.notify("notifications/subscriptions/acknowledged", _meta=meta, notifications=wanted)
        return SILENCE

    handlers = {
        **(modern() if revision == MODERN else legacy(revision)),
        "tools/list": empty("tools"),
        "tools/call": call,
        "resources/list": empty("resources"),
        "resources/templates/list": empty("resourceTemplates"),
        "resources/read": {"resultType": "complete", "contents": []},
        "prompts/list": empty("prompts"),
        "prompts/get": {"resultType": "complete", "messages": []},
        "completion/complete": {"resultType": "complete", "completion": {"values": []}},
        "subscriptions/listen": listen,
        **{
            method: {}
            for method in (
                "ping",
                "logging/setLevel",
                "resources/subscribe",
                "resources/unsubscribe",
            )
        },
    }
    ours, theirs = memory_pair()
    script = Onlooker.__new__(Onlooker)
    script.lines, script.wrong, script.revision = [], [], revision
    Script.__init__(script, theirs, handlers)
    settings: dict[str, Any] = {
        "elicit": lambda *_: {},
        "sample": lambda *_: "Hello",
        "roots": ["file:///a"],
    }
    async with Client(ours, changed=lambda _: None, **settings) as client:
        assert client.protocol_version == revision
        await client.call_tool(
            "x", {"text": "two\nlines \u2028 and an 😀"}, progress=lambda *_: None
        )
        await client.list_tools()
        await client.list_resources()
        await client.list_resource_templates()
        await client.list_prompts()
        await client.read_resource("x:1")
        await client.get_prompt("p", {"a": "1"})
        await client.complete(PromptReference("p"), "a", "b", chosen={"c": "d"})
        await client.subscribe("x:1")
        await client.unsubscribe("x:1")
        await client.set_log_level("warning")
        await client.ping()
        client.set_roots(["file:///b"])
        if revision != MODERN:
            for id, question in enumerate(
                (WHOLE, SAMPLE, {"method": "roots/list"}, {"method": "no/such"})
            ):
                script.send({"jsonrpc": "2.0", "id": id, "params": {}, **question})
            await script.until(lambda: sum("method" not in each for each in script.came) == 4)
        call_late = asyncio.ensure_future(client.request("tools/list", timeout_s=5))
        call_late.cancel()
        await asyncio.wait([call_late])
        await client.ping()
    assert len({each["id"] for each in script.came if "method" in each and "id" in each}) == sum(
        "method" in each and "id" in each for each in script.came
    )
    assert script.wrong == []
    assert not any(line.startswith(b"[") for line in script.lines)
    assert all(isinstance(json.loads(line), dict) for line in script.lines)


# The published schema of an ElicitResult knows integers only (REQUIREMENTS A.27-6).
WHOLE = {
    "method": "elicitation/create",
    "params": {
        "message": "?",
        "requestedSchema": {
            "type": "object",
            "properties": {"n": {"type": "integer", "default": 1}},
        },
    },
}
SAMPLE = {
    "method": "sampling/createMessage",
    "params": {
        "messages": [{"role": "user", "content": {"type": "text", "text": "Hi"}}],
        "maxTokens": 10,
    },
}


# Of the official conformance suite


@pytest.mark.requirement("FR-18", "ME-1", "ME-2", "ME-16", "ME-17", "EL-1", side="client")
@on_a_loop
async def test_request_metadata() -> None:
    """request-metadata: the triple on each request, with roots, sampling and elicitation
    declared.
    """
    settings: dict[str, Any] = {
        "elicit": lambda *_: {},
        "sample": lambda *_: "x",
        "roots": ["file:///a"],
    }
    handlers = {"tools/list": empty("tools"), "tools/call": DONE, "prompts/list": empty("prompts")}
    async with opened(handlers, **settings) as (client, script):
        await client.list_tools()
        await client.call_tool("x")
        await client.call_tool("x", progress=lambda *_: None, meta={"a": 1})
        await client.list_prompts()
        assert len(script.came) == 5
        for message in script.came:
            meta = message["params"]["_meta"]
            assert meta[VERSION] == MODERN
            assert meta[CAPABILITIES] == {"elicitation": {"form": {}}, "sampling": {}, "roots": {}}
            assert meta[INFO].keys() >= {"name", "version"}


@pytest.mark.requirement("ER-5", "ER-15", side="client")
@pytest.mark.parametrize("method", ["server/discover", "tools/list"])
@on_a_loop
async def test_a_revision_that_is_refused_and_named_among_the_supported_is_asked_for_once_more(
    method: str,
) -> None:
    """request-metadata: "retry on -32022 with a supported version"; ER-15 (SHOULD pick a mutual
    version and retry).
    """
    refusals = 1

    def refuse(script: Script, message: dict[str, Any]) -> Any:
        nonlocal refusals
        if refusals == 0:
            return modern()["server/discover"] | empty("tools")
        refusals -= 1
        raise Refusal(
            -32022,
            "Unsupported protocol version",
            {"supported": [MODERN, LEGACY], "requested": MODERN},
        )

    async with opened({method: refuse}) as (client, script):
        assert await client.request("tools/list") if method == "tools/list" else True
        first, second = script.of(method)
        assert first["id"] != second["id"]  # JR-4
        assert first["params"] == second["params"]
        assert script.of("initialize") == []
        refusals = 2
        if method == "tools/list":
            with pytest.raises(RpcError, match="Unsupported protocol version"):
                await client.list_tools()
    refusals = 9
    ours, theirs = memory_pair()
    script = Script(theirs, modern() | {"server/discover": refuse})
    with pytest.raises(Incompatible, match="Unsupported protocol version"):
        await Client(ours).open()
    assert len(script.of("server/discover")) == 2


@pytest.mark.requirement("ME-15", "MR-15", "MR-16", side="client")
@on_a_loop
async def test_the_states_of_rounds_are_echoed_where_they_belong_and_nowhere_else() -> None:
    """sep-2322-client-request-state: its four tools, two of them at the same time as the first
    (MR-13 to MR-16, ME-15).
    """

    def call(script: Script, message: dict[str, Any]) -> Any:
        params = message["params"]
        again = "inputResponses" in params or "requestState" in params
        if params["name"] == "test_mrtr_unrelated":
            assert not again
            return DONE
        if params["name"] == "test_mrtr_no_result_type":
            return {"content": [{"type": "text", "text": "complete"}]}
        state = (
            {}
            if params["name"] == "test_mrtr_no_state"
            else {"requestState": "opaque \u2603 state"}
        )
        if not again:
            return {"resultType": "input_required", "inputRequests": {"confirm": ELICIT}, **state}
        assert params["inputResponses"] == {
            "confirm": {
                "action": "accept",
                "content": {name: field["default"] for name, field in FORM["properties"].items()},
            }  # pyright: ignore[reportAttributeAccessIssue]
        }
        assert params.get("requestState") == state.get("requestState")
        assert params["arguments"] == {"n": 1}
        return DONE

    async def elicit(question: Any, server: Any) -> dict[str, Any]:
        await client.call_tool("test_mrtr_unrelated")  # while the other waits for its answer
        return {}

    async with opened({"tools/call": call}, elicit=elicit) as (client, script):
        names = (
            "test_mrtr_echo_state",
            "test_mrtr_no_state",
            "test_mrtr_unrelated",
            "test_mrtr_no_result_type",
        )
        results = await asyncio.gather(*(client.call_tool(name, {"n": 1}) for name in names))
        assert [len(each.content) for each in results] == [0, 0, 0, 1]
        ids = [each["id"] for each in script.of("tools/call")]
        assert len(set(ids)) == len(ids) == 8


@pytest.mark.requirement("EL-9", side="client")
@pytest.mark.parametrize("like", ["legacy", "modern"])
@on_a_loop
async def test_the_defaults_of_a_form_are_applied(like: str) -> None:
    """elicitation-sep1034-client-defaults: "accept with defaults applied"; every primitive type has
    one (EL-9).
    """
    defaults = {"name": "John Doe", "age": 30, "score": 95.5, "status": "active", "verified": True}
    answers: list[Any] = []

    def call(script: Script, message: dict[str, Any]) -> Any:
        if like == "modern" and "inputResponses" not in message["params"]:
            return {"resultType": "input_required", "inputRequests": {"q": ELICIT}}
        if like == "modern":
            answers.append(message["params"]["inputResponses"]["q"])
        else:
            script.send({"jsonrpc": "2.0", "id": "q", **ELICIT})
        return DONE

    async with opened({"tools/call": call}, like, elicit=lambda *_: {}) as (client, script):
        await client.call_tool("test_client_elicitation_defaults")
        if like == "legacy":
            await script.until(lambda: [each for each in script.came if each.get("id") == "q"])
            answers += [each["result"] for each in script.came if each.get("id") == "q"]
        assert answers == [{"action": "accept", "content": defaults}]


# Others


@pytest.mark.requirement("EL-4", side="client")
@on_a_loop
async def test_a_mode_that_a_question_does_not_name_is_a_form() -> None:
    """EL-4, EL-2: `{}` declares forms alone, and absent is form."""
    seen: list[str] = []

    def elicit(question: Any, server: Any) -> str:
        seen.append(question.mode)
        return "decline"

    async with opened({}, "legacy", elicit=elicit) as (_, script):
        params = {"message": "Who?", "requestedSchema": FORM}
        script.send({"jsonrpc": "2.0", "id": 1, "method": "elicitation/create", "params": params})
        await script.until(
            lambda: [each for each in script.came if each.get("id") == 1 and "result" in each]
        )
    assert seen == ["form"]


@pytest.mark.requirement("CH-7", side="client")
@on_a_loop
async def test_a_cursor_that_has_become_invalid_starts_the_list_anew_once() -> None:
    """CH-7: "Invalid cursor -> drop cached pages, restart"."""
    tool = {"name": "t", "inputSchema": {"type": "object"}}
    stale = 1

    def listed(script: Script, message: dict[str, Any]) -> Any:
        nonlocal stale
        if "cursor" not in message["params"]:
            return {"resultType": "complete", "tools": [tool], "nextCursor": "a"}
        if stale:
            stale -= 1
            raise Refusal(-32602, "Invalid cursor")
        return {"resultType": "complete", "tools": [tool]}

    async with opened({"tools/list": listed}) as (client, script):
        assert len(await client.list_tools()) == 2
        assert len(script.of("tools/list")) == 4
        stale = 9
        with pytest.raises(RpcError, match="Invalid cursor"):
            await client.list_tools()


@pytest.mark.requirement("CH-3", "CH-4", "CH-6", side="client")
@on_a_loop
async def test_nothing_is_served_from_a_cache() -> None:
    """CH-3, CH-4, CH-6 hold because every list and every resource is asked for again, whatever its
    `ttlMs` says.
    """
    lists = {**empty("tools"), "ttlMs": 60_000, "cacheScope": "public"}
    read = {"resultType": "complete", "contents": [], "ttlMs": 60_000, "cacheScope": "private"}
    async with opened({"tools/list": lists, "resources/read": read}) as (client, script):
        for _ in range(2):
            await client.list_tools()
            await client.read_resource("x:1")
        assert len(script.of("tools/list")) == len(script.of("resources/read")) == 2


@pytest.mark.requirement("JR-13", "LC-1", "LC-7", "LC-8", "LC-14", side="client")
@on_a_loop
async def test_initialize_is_alone_until_it_is_answered_and_initialized_follows_it() -> None:
    """LC-1, LC-7, LC-8, JR-13: nothing but ping before the answer, no batch, then
    `notifications/initialized`.
    """

    def initialize(script: Script, message: dict[str, Any]) -> Any:
        script.send(
            {"jsonrpc": "2.0", "id": "p", "method": "ping"},
            {"jsonrpc": "2.0", "id": "r", "method": "roots/list"},
        )
        return legacy()["initialize"]

    settings: dict[str, Any] = {"era": "legacy", "roots": ["file:///a"]}
    async with opened(
        {"initialize": initialize, "tools/list": {"tools": []}}, "legacy", **settings
    ) as (
        client,
        script,
    ):
        await client.list_tools()
        assert [each.get("method") or each["id"] for each in script.came] == [
            "initialize",
            "p",
            "notifications/initialized",
            "tools/list",
        ]


@pytest.mark.requirement("EC-4", side="client")
@on_a_loop
async def test_not_found_is_known_by_either_code() -> None:
    """EC-4: "SHOULD still accept -32002"."""
    for code in (-32002, -32602):

        def read(script: Script, message: dict[str, Any], code: int = code) -> Any:
            raise Refusal(code, "Resource not found", {"uri": "x:1"})

        async with opened({"resources/read": read}) as (client, _):
            with pytest.raises(RpcError, match="Resource not found") as caught:
                await client.read_resource("x:1")
            assert caught.value.data == {"uri": "x:1"}


@pytest.mark.requirement("ME-8", "TO-18", side="client")
@on_a_loop
async def test_what_is_said_of_a_tool_and_a_server_changes_nothing() -> None:
    """ME-8, TO-18: names and annotations are shown as they came, with the defaults of the schema,
    and nothing follows from them.
    """
    tools = [
        {
            "name": "a",
            "inputSchema": {"type": "object"},
            "annotations": {"readOnlyHint": True, "title": "A"},
        },
        {"name": "b", "inputSchema": {"type": "object"}},
    ]
    async with opened(
        {"tools/list": {"resultType": "complete", "tools": tools}, "tools/call": DONE}
    ) as (client, _):
        first, second = await client.list_tools()
        assert first.annotations is not None
        assert first.annotations.read_only_hint is True
        assert second.annotations is None
        assert await client.call_tool("a") == await client.call_tool("b")


@pytest.mark.requirement("JR-19", side="client")
@on_a_loop
async def test_a_locally_raised_error_is_of_another_type_than_one_of_the_server() -> None:
    """JR-19."""

    def refuse(script: Script, message: dict[str, Any]) -> Any:
        raise Refusal(-32001, "Request timed out")

    async with opened({"x": refuse, "y": SILENCE}) as (client, _):
        with pytest.raises(RpcError):
            await client.request("x")
        with pytest.raises(TimedOut):
            await client.request("y", timeout_s=0.05)


@pytest.mark.requirement("FR-10", "FR-11", "JR-12", "JR-14", "JR-15", side="client")
@on_a_loop
async def test_a_batch_is_received_in_2025_03_26_and_malformed_elsewhere() -> None:
    """JR-12, JR-14, JR-15. Batches are never sent."""
    seen: list[str] = []

    def call(script: Script, message: dict[str, Any]) -> Any:
        script.send(
            [
                {"jsonrpc": "2.0", "method": "notifications/x"},
                {"jsonrpc": "2.0", "id": "p", "method": "ping"},
                {"jsonrpc": "2.0", "id": "q", "method": "ping"},
                {"jsonrpc": "2.0", "id": message["id"], "result": DONE},
            ]
        )
        return SILENCE

    class Arrays(Script):
        def on_frames(self, batch: Sequence[bytes]) -> None:
            super().on_frames([each for each in batch if not each.startswith(b"[")])
            answers.extend(json.loads(each) for each in batch if each.startswith(b"["))

    answers: list[Any] = []
    ours, theirs = memory_pair()
    Arrays(theirs, legacy("2025-03-26") | {"tools/call": call})
    async with Client(ours, notified=lambda method, _: seen.append(method)) as client:
        assert (await client.call_tool("x")).content == []
    assert seen == ["notifications/x"]
    assert answers == [
        [{"jsonrpc": "2.0", "id": "p", "result": {}}, {"jsonrpc": "2.0", "id": "q", "result": {}}]
    ]
    async with opened({"tools/call": call}, "legacy") as (client, _):
        with pytest.raises(ProtocolError, match="malformed: batches are not part of this protocol"):
            await client.call_tool("x")


@pytest.mark.requirement("CA-10", side="client")
@on_a_loop
async def test_the_reason_of_a_cancel_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """CA-10."""
    begun = asyncio.Event()

    async def elicit(question: Any, server: Any) -> None:
        begun.set()
        await asyncio.Event().wait()

    caplog.set_level("INFO")
    async with opened({"ping": {}}, "legacy", elicit=elicit) as (client, script):
        script.send({"jsonrpc": "2.0", "id": 7, **ELICIT})
        await begun.wait()
        script.notify("notifications/cancelled", requestId=7, reason="the user \x1b[31m left")
        await client.ping()
    assert "cancels its request: the user \\x1b[31m left" in caplog.text


@pytest.mark.requirement("IC-3", side="client")
@pytest.mark.parametrize(("title", "shown"), [("The Title", "The Title"), (None, "script")])
@on_a_loop
async def test_a_server_is_called_by_its_title(title: str | None, shown: str) -> None:
    """IC-3."""
    handlers = legacy()
    handlers["initialize"]["serverInfo"] = {
        "name": "script",
        "version": "1",
        "websiteUrl": "https://x.example/",
    }
    if title is not None:
        handlers["initialize"]["serverInfo"]["title"] = title
    async with opened(handlers, "legacy") as (client, _):
        assert client.server == shown
        assert client.server_info.website_url == "https://x.example/"
