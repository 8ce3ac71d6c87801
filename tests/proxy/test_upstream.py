"""Upstream: what a server sends by itself, and calls that go on while their client is asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from client.scripted import LEGACY, MODERN, SILENCE, Script, legacy, modern, on_a_loop
from proxy.proxy_rig import Caller, proxied

from concertino.backend import Host
from concertino.proxy import Proxy, forwarded_call
from concertino.transports.memory import memory_pair

TEXT = {"content": [{"type": "text", "text": "hello"}]}
COMPLETE = {"resultType": "complete", **TEXT}
FORM = {
    "message": "Who?",
    "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}},
    "x.example/hint": [1.0],
}
ANSWER = {"action": "accept", "content": {"name": "Ann"}}
ELICITS = {"elicitation": {"form": {}}}


def asks(method: str = "elicitation/create", params: Any = FORM) -> Any:
    """A handler that asks the client and answers nothing itself."""

    def handler(script: Script, message: dict[str, Any]) -> Any:
        id = f"s{len(script.of('tools/call')) or 1}"
        script.send({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
        return SILENCE

    return handler


def answers_of(script: Script) -> list[dict[str, Any]]:
    return [message for message in script.came if message.get("id") == "s1"]


async def answer_of(script: Script) -> dict[str, Any]:
    """What the server got for its request s1."""
    await script.until(lambda: answers_of(script))
    return answers_of(script)[0]


# Questions to a legacy caller


@on_a_loop
async def test_a_question_passes_to_a_legacy_caller_with_all_its_members() -> None:
    async with proxied({"tools/call": asks()}, capabilities=ELICITS) as (caller, script):
        id = caller.ask("tools/call", name="t", arguments={})
        await caller.until(lambda: caller.of("elicitation/create"))
        [request] = caller.of("elicitation/create")
        assert request["params"] == FORM
        caller.send({"id": request["id"], "result": ANSWER | {"x.example/more": 1}})
        assert (await answer_of(script))["result"] == ANSWER | {"x.example/more": 1}
        script.answer(script.of("tools/call")[0], TEXT)
        assert (await caller.response(id))["result"] == TEXT


@on_a_loop
async def test_an_error_of_the_caller_is_the_server_s_answer() -> None:
    async with proxied({"tools/call": asks()}, capabilities=ELICITS) as (caller, script):
        caller.ask("tools/call", name="t", arguments={})
        await caller.until(lambda: caller.of("elicitation/create"))
        error = {"code": -1, "message": "no"}
        caller.send({"id": caller.of("elicitation/create")[0]["id"], "error": error})
        assert (await answer_of(script))["error"] == error


@on_a_loop
async def test_the_server_is_told_that_a_caller_went_while_it_was_asked(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with proxied({"tools/call": asks()}, capabilities=ELICITS) as (caller, script):
        caller.ask("tools/call", name="t", arguments={})
        await caller.until(lambda: caller.of("elicitation/create"))
        await caller.connection.close(1)
        await script.until(lambda: answers_of(script) or script.of("notifications/cancelled"))
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("caller", [LEGACY, MODERN])
@on_a_loop
async def test_a_caller_is_not_asked_what_it_has_not_declared(caller: str) -> None:
    async with proxied({"tools/call": asks()}, caller=caller) as (client, script):
        client.ask("tools/call", name="t", arguments={})
        assert (await answer_of(script))["error"]["code"] == -32601
        assert client.of("elicitation/create") == []


@on_a_loop
async def test_a_question_that_the_server_withdraws_is_withdrawn_at_the_caller() -> None:
    async with proxied({"tools/call": asks()}, capabilities=ELICITS) as (caller, script):
        caller.ask("tools/call", name="t", arguments={})
        await caller.until(lambda: caller.of("elicitation/create"))
        script.notify("notifications/cancelled", requestId="s1")
        await caller.until(lambda: caller.of("notifications/cancelled"))
        [cancelled] = caller.of("notifications/cancelled")
        assert cancelled["params"]["requestId"] == caller.of("elicitation/create")[0]["id"]


@on_a_loop
async def test_a_question_that_belongs_to_no_call_waits_for_one() -> None:
    async with proxied({"tools/list": SILENCE}, capabilities={"roots": {}}) as (caller, script):
        # As many servers do it, right after the handshake.
        asks("roots/list", {})(script, {})
        caller.ask("tools/list")
        await caller.until(lambda: caller.of("roots/list"))
        roots = {"roots": [{"uri": "file:///a"}]}
        caller.send({"id": caller.of("roots/list")[0]["id"], "result": roots})
        assert (await answer_of(script))["result"] == roots


# Questions to a modern caller: the call to the server goes on


async def ask_modern(caller: Caller) -> dict[str, Any]:
    """Call the tool and return the `input_required` result."""
    result = (await caller.call("tools/call", name="t", arguments={}))["result"]
    assert result["resultType"] == "input_required"
    return result


def again(caller: Caller, asked: dict[str, Any], answer: Any = ANSWER) -> int:
    """Repeat the call with an answer to its only question."""
    [key] = asked["inputRequests"]
    return caller.ask(
        "tools/call",
        name="t",
        arguments={},
        requestState=asked["requestState"],
        inputResponses={key: answer},
    )


@on_a_loop
async def test_a_modern_caller_is_asked_and_the_server_is_called_once() -> None:
    async with proxied({"tools/call": asks()}, caller=MODERN, capabilities=ELICITS) as (
        caller,
        script,
    ):
        asked = await ask_modern(caller)
        [request] = asked["inputRequests"].values()
        assert request == {"method": "elicitation/create", "params": FORM}
        id = again(caller, asked)
        assert (await answer_of(script))["result"] == ANSWER
        script.answer(script.of("tools/call")[0], TEXT)
        assert (await caller.response(id))["result"]["content"] == TEXT["content"]
        assert len(script.of("tools/call")) == 1


@on_a_loop
async def test_a_server_may_ask_a_modern_caller_twice() -> None:
    async with proxied({"tools/call": asks()}, caller=MODERN, capabilities=ELICITS) as (
        caller,
        script,
    ):
        id = again(caller, await ask_modern(caller))
        await answer_of(script)
        script.came.clear()
        script.send({"jsonrpc": "2.0", "id": "s1", "method": "elicitation/create", "params": FORM})
        asked = (await caller.response(id))["result"]
        assert asked["resultType"] == "input_required"
        id = again(caller, asked, {"action": "decline"})
        assert (await answer_of(script))["result"] == {"action": "decline"}


@on_a_loop
async def test_what_a_server_asks_at_once_is_one_question_of_several_keys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A busy machine may need more than the usual time between the two requests.
    monkeypatch.setattr(forwarded_call, "QUIET_S", 0.5)

    def ask_twice(script: Script, message: dict[str, Any]) -> Any:
        asks()(script, message)
        second = {"jsonrpc": "2.0", "id": "s2", "method": "roots/list"}
        # Another process writes its requests one after the other.
        asyncio.get_running_loop().call_later(0.002, script.send, second)
        return SILENCE

    capabilities = ELICITS | {"roots": {}}
    async with proxied({"tools/call": ask_twice}, caller=MODERN, capabilities=capabilities) as (
        caller,
        _,
    ):
        requests = (await ask_modern(caller))["inputRequests"].values()
        assert [item["method"] for item in requests] == ["elicitation/create", "roots/list"]


REFUSAL = "method not found: the client has not declared elicitation"


@pytest.mark.parametrize(
    "outcome",
    [
        {"content": [{"type": "text", "text": "Whom?"}], "isError": True},
        {"code": -32603, "message": "Whom?"},
    ],
)
@on_a_loop
async def test_a_call_that_fails_for_lack_of_a_capability_names_it(
    outcome: dict[str, Any],
) -> None:
    async with proxied({"tools/call": asks()}, caller=MODERN) as (caller, script):
        id = caller.ask("tools/call", name="t", arguments={})
        assert (await answer_of(script))["error"] == {"code": -32601, "message": REFUSAL}
        member = "result" if "content" in outcome else "error"
        script.send({"jsonrpc": "2.0", "id": script.of("tools/call")[0]["id"], member: outcome})
        error = (await caller.response(id))["error"]
        assert error["code"] == -32021
        assert error["data"] == {"requiredCapabilities": {"elicitation": {}}}
        assert error["message"].endswith("Whom?")


@on_a_loop
async def test_a_server_may_do_without_a_capability() -> None:
    async with proxied({"tools/call": asks()}, caller=MODERN) as (caller, script):
        id = caller.ask("tools/call", name="t", arguments={})
        await answer_of(script)
        script.answer(script.of("tools/call")[0], TEXT)
        assert (await caller.response(id))["result"]["content"] == TEXT["content"]


@on_a_loop
async def test_a_call_that_nobody_continues_is_cancelled_when_it_expires() -> None:
    async with proxied(
        {"tools/call": asks()}, caller=MODERN, capabilities=ELICITS, expiry_s=0.01
    ) as (caller, script):
        asked = await ask_modern(caller)
        await script.until(lambda: script.of("notifications/cancelled"))
        [cancelled] = script.of("notifications/cancelled")
        assert cancelled["params"]["requestId"] == script.of("tools/call")[0]["id"]
        response = await caller.response(again(caller, asked))
        assert response["error"]["code"] == -32602


@on_a_loop
async def test_calls_beyond_the_cap_are_refused_and_cancelled() -> None:
    async with proxied({"tools/call": asks()}, caller=MODERN, capabilities=ELICITS, most=1) as (
        caller,
        script,
    ):
        await ask_modern(caller)
        response = await caller.call("tools/call", name="t", arguments={})
        assert response["error"]["code"] == -31001
        await script.until(lambda: script.of("notifications/cancelled"))


@on_a_loop
async def test_a_cancelled_round_cancels_the_call_at_the_server() -> None:
    async with proxied({"tools/call": asks()}, caller=MODERN, capabilities=ELICITS) as (
        caller,
        script,
    ):
        id = again(caller, await ask_modern(caller))
        await answer_of(script)
        caller.send({"method": "notifications/cancelled", "params": {"requestId": id}})
        await script.until(lambda: script.of("notifications/cancelled"))


@on_a_loop
async def test_calls_that_wait_for_their_client_end_with_the_proxy() -> None:
    async with proxied({"tools/call": asks()}, caller=MODERN, capabilities=ELICITS) as (
        caller,
        _,
    ):
        await ask_modern(caller)


# Log messages, subscriptions, other notifications


@on_a_loop
async def test_a_legacy_server_gets_the_level_that_its_caller_set() -> None:
    handlers = {"logging/setLevel": {}, "tools/call": TEXT}
    async with proxied(handlers) as (caller, script):
        await caller.call("tools/call", name="t", arguments={})
        assert script.of("logging/setLevel") == []
        await caller.call("logging/setLevel", level="debug")
        await caller.call("tools/call", name="t", arguments={})
        assert [message["params"] for message in script.of("logging/setLevel")] == [
            {"level": "debug"}
        ]


@on_a_loop
async def test_a_legacy_server_gets_the_level_of_a_modern_call() -> None:
    handlers = {"logging/setLevel": {}, "tools/call": TEXT}
    async with proxied(handlers, caller=MODERN) as (caller, script):
        level = {"io.modelcontextprotocol/logLevel": "warning"}
        await caller.call("tools/call", name="t", arguments={}, meta=level)
        [message] = script.of("logging/setLevel")
        assert message["params"] == {"level": "warning"}


@pytest.mark.parametrize("caller", [LEGACY, MODERN])
@pytest.mark.parametrize("server", ["legacy", "modern"])
@on_a_loop
async def test_log_messages_reach_the_newest_call_that_wants_them(server: str, caller: str) -> None:
    def log_and_reply(script: Script, message: dict[str, Any]) -> Any:
        script.notify("notifications/message", level="error", data={"a": 1}, logger="l")
        return COMPLETE if server == "modern" else TEXT

    handlers = {"logging/setLevel": {}, "tools/call": log_and_reply}
    async with proxied(handlers, server=server, caller=caller) as (client, _):
        level = {"io.modelcontextprotocol/logLevel": "info"} if caller == MODERN else None
        await client.call("tools/call", name="t", arguments={}, meta=level)
        [line] = client.of("notifications/message")
        assert line["params"] == {"level": "error", "data": {"a": 1}, "logger": "l"}


@on_a_loop
async def test_notifications_between_calls_reach_the_only_legacy_caller() -> None:
    async with proxied({"tools/call": TEXT}) as (caller, script):
        await caller.call("tools/call", name="t", arguments={})
        script.notify("notifications/message", level="error", data="later")
        script.notify("notifications/x.example/new", a={"b": 1})
        caller.checked = False
        await caller.until(lambda: caller.of("notifications/x.example/new"))
        assert caller.of("notifications/message")[0]["params"] == {
            "level": "error",
            "data": "later",
        }
        assert caller.of("notifications/x.example/new")[0]["params"] == {"a": {"b": 1}}


def acknowledge(script: Script, message: dict[str, Any]) -> Any:
    meta = {"io.modelcontextprotocol/subscriptionId": message["id"]}
    wanted = message["params"]["notifications"]
    script.notify("notifications/subscriptions/acknowledged", _meta=meta, notifications=wanted)
    return SILENCE


@on_a_loop
async def test_a_modern_server_gets_one_subscription_for_all_resources() -> None:
    handlers = modern({"resources": {"subscribe": True}}) | {"subscriptions/listen": acknowledge}
    async with proxied(handlers, server="modern") as (caller, script):
        await caller.call("resources/subscribe", uri="a:1")
        await caller.call("resources/subscribe", uri="a:2")

        def listening() -> list[dict[str, Any]]:
            closed = [item["params"]["requestId"] for item in script.of("notifications/cancelled")]
            return [item for item in script.of("subscriptions/listen") if item["id"] not in closed]

        def has_both() -> bool:
            wanted = [item["params"]["notifications"] for item in listening()]
            return wanted == [{"resourceSubscriptions": ["a:1", "a:2"]}]

        await script.until(has_both)
        meta = {"io.modelcontextprotocol/subscriptionId": listening()[0]["id"]}
        script.notify("notifications/resources/updated", uri="a:2", _meta=meta)
        await caller.until(lambda: caller.of("notifications/resources/updated"))
        await caller.call("resources/unsubscribe", uri="a:1")
        await caller.call("resources/unsubscribe", uri="a:2")
        await script.until(lambda: not listening())


@on_a_loop
async def test_a_legacy_server_gets_subscriptions_one_by_one() -> None:
    handlers = {"resources/subscribe": {}, "resources/unsubscribe": {}}
    async with proxied(handlers, caller=MODERN) as (caller, script):
        wanted = {"resourceSubscriptions": ["a:1", "a:2"]}
        id = caller.ask("subscriptions/listen", notifications=wanted)
        await script.until(lambda: len(script.of("resources/subscribe")) == 2)
        script.notify("notifications/resources/updated", uri="a:2")
        await caller.until(lambda: caller.of("notifications/resources/updated"))
        caller.send({"method": "notifications/cancelled", "params": {"requestId": id}})
        await script.until(lambda: len(script.of("resources/unsubscribe")) == 2)


# Heartbeats


@pytest.mark.parametrize("caller", [LEGACY, MODERN])
@on_a_loop
async def test_a_silent_call_gets_heartbeats_if_its_caller_wants_progress(caller: str) -> None:
    async with proxied({"tools/call": SILENCE}, caller=caller, heartbeat_s=0.01) as (
        client,
        script,
    ):
        id = client.ask("tools/call", name="t", arguments={}, meta={"progressToken": 5})
        await client.until(lambda: len(client.of("notifications/progress")) >= 2)
        [message] = script.of("tools/call")
        token = message["params"]["_meta"]["progressToken"]
        script.notify("notifications/progress", progressToken=token, progress=1, total=2)
        await client.until(lambda: reports(client)[-1].get("total"))
        script.answer(message, TEXT)
        await client.response(id)
        values = [params["progress"] for params in reports(client)]
        assert 1 in values
        assert values == sorted(set(values))


def reports(caller: Caller) -> list[dict[str, Any]]:
    return [line["params"] for line in caller.of("notifications/progress")]


@on_a_loop
async def test_a_caller_that_wants_no_progress_gets_none() -> None:
    async with proxied({"tools/call": SILENCE}, heartbeat_s=0.001) as (caller, script):
        id = caller.ask("tools/call", name="t", arguments={})
        await script.until(lambda: script.of("tools/call"))
        await asyncio.sleep(0.02)
        script.answer(script.of("tools/call")[0], TEXT)
        await caller.response(id)
        assert reports(caller) == []


# Several clients of one server


@asynccontextmanager
async def two_callers(uids: tuple[int, int]) -> AsyncIterator[tuple[Caller, Caller, Script]]:
    """Provide two modern callers, of these users, of one legacy server that answers no calls."""
    near, far = memory_pair()
    script = Script(far, legacy() | {"tools/call": SILENCE})
    async with Host(Proxy(near, isolation="shared")) as host:
        callers: list[Caller] = []
        for uid in uids:
            ours, theirs = memory_pair()
            theirs.facts = {"transport": "memory", "uid": uid}
            host.attach(theirs)
            callers.append(Caller(ours, MODERN, ELICITS))
            await callers[-1].initialize()
        yield callers[0], callers[1], script
        for caller in callers:
            await caller.connection.close(1)


def ask_client(script: Script, id: str) -> None:
    """Let the server ask its client something."""
    params = {"jsonrpc": "2.0", "id": id, "method": "elicitation/create", "params": FORM}
    script.send(params)


async def response_to(script: Script, id: str) -> dict[str, Any]:
    """Return what the server got for a request of its own."""

    def find() -> list[dict[str, Any]]:
        return [message for message in script.came if message.get("id") == id]

    await script.until(find)
    return find()[0]


async def leave_after_question(caller: Caller, script: Script) -> None:
    """Let a caller make a call, be asked something, and leave without an answer."""
    before = len(script.of("tools/call"))
    id = caller.ask("tools/call", name="t", arguments={})
    await script.until(lambda: len(script.of("tools/call")) > before)
    ask_client(script, "first")
    assert (await caller.response(id))["result"]["resultType"] == "input_required"
    await caller.connection.close(1)
    refused = await response_to(script, "first")
    assert "left" in refused["error"]["message"]


@on_a_loop
async def test_a_question_goes_to_a_client_that_is_there() -> None:
    async with two_callers((1000, 1000)) as (stays, leaves, script):
        id = stays.ask("tools/call", name="t", arguments={})
        await script.until(lambda: script.of("tools/call"))
        await leave_after_question(leaves, script)
        ask_client(script, "second")
        assert (await stays.response(id))["result"]["resultType"] == "input_required"


@on_a_loop
async def test_a_question_for_a_client_that_has_left_is_refused_and_not_shown_to_others() -> None:
    async with two_callers((1000, 2000)) as (stays, leaves, script):
        id = stays.ask("tools/call", name="t", arguments={})
        await script.until(lambda: script.of("tools/call"))
        await leave_after_question(leaves, script)
        ask_client(script, "second")
        assert "left" in (await response_to(script, "second"))["error"]["message"]
        script.answer(script.of("tools/call")[0], TEXT)
        assert "inputRequests" not in (await stays.response(id))["result"]
