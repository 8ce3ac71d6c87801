"""Proxy: what passes between a client and a server, and in which form."""

from __future__ import annotations

import asyncio
from contextlib import closing
from typing import Any, cast

import pytest
from client.scripted import LEGACY, MODERN, SILENCE, Refusal, Script, modern, on_a_loop
from proxy.proxy_rig import CAPABILITIES, CLIENT, INFO, VERSION, proxied
from simulation.dice import Calm
from simulation.loop import Poller, VirtualLoop

from concertino import Server
from concertino.backend.interface import Notifier
from concertino.backend.listing import list_names
from concertino.jsonrpc.limits import Limits
from concertino.proxy import Proxy

OLD = ("2024-11-05", "2025-03-26", "2025-06-18")
TEXT = {"content": [{"type": "text", "text": "hello"}]}
COMPLETE = {"resultType": "complete", **TEXT}
SERVER_INFO = "io.modelcontextprotocol/serverInfo"


def answer_to(lines: list[bytes], id: int) -> bytes:
    """The result of a response, as the bytes that came."""
    head = b'{"jsonrpc":"2.0","id":%d,"result":' % id
    [line] = [line for line in lines if line.startswith(head)]
    return line.removeprefix(head).removesuffix(b"}")


# One era: nothing is decoded


@on_a_loop
async def test_a_legacy_result_reaches_a_legacy_caller_as_it_is() -> None:
    # Spaces, an escape, unknown members and their order are what decoding would change.
    result = rb'{"x.example/new" : [1.0, 1e2],"content":[{"type":"text","text":"\u0041"}]}'

    def reply(script: Script, message: dict[str, Any]) -> Any:
        script.send(b'{"jsonrpc":"2.0","id":%d,"result":%b}' % (message["id"], result))
        return SILENCE

    async with proxied({"tools/call": reply}) as (caller, _):
        id = caller.ask("tools/call", name="t", arguments={})
        await caller.response(id)
        assert answer_to(caller.frames, id) == result


@on_a_loop
async def test_a_modern_result_reaches_a_modern_caller_as_it_is() -> None:
    result = (
        rb'{"resultType" : "complete","y":{"z":null},"content":[{"type":"text","text":"\u00e9"}]}'
    )

    def reply(script: Script, message: dict[str, Any]) -> Any:
        script.send(b'{"jsonrpc":"2.0","id":%d,"result":%b}' % (message["id"], result))
        return SILENCE

    async with proxied({"tools/call": reply}, server="modern", caller=MODERN) as (caller, _):
        id = caller.ask("tools/call", name="t", arguments={})
        await caller.response(id)
        assert answer_to(caller.frames, id) == result


@on_a_loop
async def test_params_reach_the_server_with_members_that_nobody_knows() -> None:
    async with proxied({"tools/call": TEXT}) as (caller, script):
        await caller.call(
            "tools/call", name="t", arguments={"a": [1.0, "é"]}, extra={"b": None}, meta={"v/k": 1}
        )
        [message] = script.of("tools/call")
        assert message["params"] == {
            "name": "t",
            "arguments": {"a": [1.0, "é"]},
            "extra": {"b": None},
            "_meta": {"v/k": 1},
        }


@pytest.mark.parametrize("caller", OLD)
@on_a_loop
async def test_an_older_caller_gets_no_members_that_its_revision_lacks(caller: str) -> None:
    tool = {"name": "t", "inputSchema": {"type": "object"}, "icons": [{"src": "https://x/y.png"}]}
    async with proxied({"tools/list": {"tools": [tool]}}, caller=caller) as (client, _):
        response = await client.call("tools/list")
        assert response["result"]["tools"] == [{"name": "t", "inputSchema": {"type": "object"}}]


# Two eras: the session translates


@on_a_loop
async def test_a_modern_caller_gets_modern_results_of_a_legacy_server() -> None:
    async with proxied({"tools/call": TEXT}, caller=MODERN) as (caller, _):
        result = (await caller.call("tools/call", name="t", arguments={}))["result"]
        assert result["resultType"] == "complete"
        assert result["content"] == TEXT["content"]
        assert result["_meta"][SERVER_INFO]["name"] == "script"


@on_a_loop
async def test_a_legacy_caller_gets_legacy_results_of_a_modern_server() -> None:
    tools = {
        "resultType": "complete",
        "ttlMs": 5,
        "cacheScope": "public",
        "tools": [{"name": "t", "inputSchema": {"type": "object"}}],
    }
    async with proxied({"tools/call": COMPLETE, "tools/list": tools}, server="modern") as (
        caller,
        script,
    ):
        assert (await caller.call("tools/call", name="t", arguments={}))["result"] == TEXT
        listed = (await caller.call("tools/list"))["result"]
        assert listed == {"tools": tools["tools"]}
        [call] = script.of("tools/call")
        assert call["params"]["_meta"][VERSION] == MODERN


@on_a_loop
async def test_a_modern_server_gets_the_name_and_capabilities_of_the_caller() -> None:
    capabilities = {"elicitation": {"form": {}}, "sampling": {}}
    async with proxied(
        {"tools/call": COMPLETE}, server="modern", caller=MODERN, capabilities=capabilities
    ) as (caller, script):
        await caller.call("tools/call", name="t", arguments={})
        caller.capabilities = {"roots": {}}
        await caller.call("tools/call", name="t", arguments={}, meta={"v/k": 1})
        first, second = (message["params"]["_meta"] for message in script.of("tools/call"))
        assert first == {VERSION: MODERN, CAPABILITIES: capabilities, CLIENT: INFO}
        assert second == {VERSION: MODERN, CAPABILITIES: {"roots": {}}, CLIENT: INFO, "v/k": 1}


@on_a_loop
async def test_a_legacy_caller_cannot_change_what_the_proxy_says_in_meta() -> None:
    # Without the version, a caller's `_meta` is not one of 2026-07-28, so its members pass.
    meta = {CAPABILITIES: {"sampling": {}}, "v/k": 1}
    async with proxied({"tools/call": COMPLETE}, server="modern") as (caller, script):
        await caller.call("tools/call", name="t", arguments={}, meta=meta)
        [message] = script.of("tools/call")
        assert message["params"]["_meta"][CAPABILITIES] == {}
        assert message["params"]["_meta"]["v/k"] == 1


# Errors


@pytest.mark.parametrize("server", ["legacy", "modern"])
@pytest.mark.parametrize("caller", [LEGACY, MODERN])
@on_a_loop
async def test_an_error_passes_with_its_code_text_and_data(server: str, caller: str) -> None:
    def refuse(script: Script, message: dict[str, Any]) -> Any:
        raise Refusal(-30000, "no more", {"why": ["a", 1.5]})

    async with proxied({"tools/call": refuse}, server=server, caller=caller) as (client, _):
        response = await client.call("tools/call", name="t", arguments={})
        assert response["error"] == {
            "code": -30000,
            "message": "no more",
            "data": {"why": ["a", 1.5]},
        }


@pytest.mark.parametrize(
    ("server", "sent", "caller", "expected"),
    [
        ("legacy", -32002, LEGACY, -32002),
        ("legacy", -32002, MODERN, -32602),
        ("modern", -32602, LEGACY, -32002),
        ("modern", -32602, MODERN, -32602),
        # What is not translated stays as the server has sent it, whatever the specification says.
        ("legacy", -32602, LEGACY, -32602),
        ("modern", -32002, MODERN, -32002),
    ],
)
@on_a_loop
async def test_a_missing_resource_has_the_code_of_the_caller_s_revision(
    server: str, sent: int, caller: str, expected: int
) -> None:
    def refuse(script: Script, message: dict[str, Any]) -> Any:
        raise Refusal(sent, "Resource not found", {"uri": "a:b"})

    async with proxied({"resources/read": refuse}, server=server, caller=caller) as (client, _):
        response = await client.call("resources/read", uri="a:b")
        assert response["error"]["code"] == expected


# What the server offers


@on_a_loop
async def test_the_handshake_shows_the_server_behind_the_proxy() -> None:
    result = {
        "protocolVersion": "2025-11-25",
        "capabilities": {"tools": {}, "tasks": {"list": {}}, "experimental": {"e": {"f": 1}}},
        "serverInfo": {"name": "real", "version": "3", "title": "Real"},
        "instructions": "Be kind.",
    }
    async with proxied({"initialize": result}) as (caller, _):
        [opened] = [line["result"] for line in caller.lines if line.get("id") == 1]
        assert opened["serverInfo"] == result["serverInfo"]
        assert opened["instructions"] == "Be kind."
        assert opened["capabilities"] == {
            "tools": {"listChanged": True},
            "tasks": {"list": {}},
            "experimental": {"e": {"f": 1}},
        }


@on_a_loop
async def test_extensions_of_a_modern_server_are_shown_to_modern_callers() -> None:
    result = {
        "resultType": "complete",
        "supportedVersions": [MODERN],
        "capabilities": {"tools": {}, "extensions": {"x.example/y": {"z": 1}}},
        "ttlMs": 0,
        "cacheScope": "private",
    }
    async with proxied({"server/discover": result}, server="modern", caller=MODERN) as (caller, _):
        shown = (await caller.call("server/discover"))["result"]
        assert shown["capabilities"]["extensions"] == {"x.example/y": {"z": 1}}


@pytest.mark.parametrize(("server", "caller"), [("legacy", LEGACY), ("modern", MODERN)])
@on_a_loop
async def test_methods_that_the_specification_does_not_have_pass(server: str, caller: str) -> None:
    handlers = {"x.example/do": {"resultType": "complete", "deep": {"a": 1}}}
    async with proxied(handlers, server=server, caller=caller) as (client, script):
        client.checked = False
        response = await client.call("x.example/do", b=2, requestState="mine")
        assert response["result"]["deep"] == {"a": 1}
        [message] = script.of("x.example/do")
        assert message["params"]["b"] == 2
        assert message["params"]["requestState"] == "mine"

        refused = await client.call("x.example/other")
        assert refused["error"]["code"] == -32601


@on_a_loop
async def test_a_list_that_the_server_has_not_declared_is_its_own_to_refuse() -> None:
    result = {
        "protocolVersion": "2025-11-25",
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "real", "version": "3"},
    }
    listed = {"prompts": [], "x.example/more": 1}
    async with proxied({"initialize": result, "prompts/list": listed}) as (caller, _):
        assert (await caller.call("prompts/list"))["result"] == listed
        response = await caller.call("resources/list")
        assert response["error"]["code"] == -32601


# Questions of a modern server


QUESTION = {
    "resultType": "input_required",
    "requestState": "the server's",
    "inputRequests": {
        "who": {
            "method": "elicitation/create",
            "params": {
                "message": "Who?",
                "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}},
                "x.example/hint": 1,
            },
        }
    },
}
ANSWER = {"action": "accept", "content": {"name": "Ann"}}


def ask_once(script: Script, message: dict[str, Any]) -> Any:
    return COMPLETE if "inputResponses" in message["params"] else QUESTION


@on_a_loop
async def test_a_question_passes_to_a_modern_caller_and_its_state_is_sealed() -> None:
    async with proxied(
        {"tools/call": ask_once},
        server="modern",
        caller=MODERN,
        capabilities={"elicitation": {"form": {}}},
    ) as (caller, script):
        asked = (await caller.call("tools/call", name="t", arguments={}))["result"]
        assert asked["resultType"] == "input_required"
        assert asked["inputRequests"] == QUESTION["inputRequests"]
        assert asked["requestState"] != "the server's"

        again = await caller.call(
            "tools/call",
            name="t",
            arguments={},
            requestState=asked["requestState"],
            inputResponses={"who": ANSWER},
        )
        assert again["result"]["content"] == TEXT["content"]
        params = script.of("tools/call")[-1]["params"]
        assert params["requestState"] == "the server's"
        assert params["inputResponses"] == {"who": ANSWER}


@on_a_loop
async def test_a_state_of_another_call_is_refused_and_never_reaches_the_server() -> None:
    async with proxied(
        {"tools/call": ask_once},
        server="modern",
        caller=MODERN,
        capabilities={"elicitation": {}},
    ) as (caller, script):
        asked = (await caller.call("tools/call", name="t", arguments={}))["result"]
        response = await caller.call(
            "tools/call",
            name="other",
            arguments={},
            requestState=asked["requestState"],
            inputResponses={"who": ANSWER},
        )
        assert response["error"]["code"] == -32602
        assert len(script.of("tools/call")) == 1


@on_a_loop
async def test_the_server_gets_the_answers_of_the_last_round_only() -> None:
    def ask_twice(script: Script, message: dict[str, Any]) -> Any:
        responses = message["params"].get("inputResponses", {})
        if "again" in responses:
            return COMPLETE
        if "who" in responses:
            request = QUESTION["inputRequests"]["who"]
            return QUESTION | {"inputRequests": {"again": request}, "requestState": "second"}
        return QUESTION

    async with proxied(
        {"tools/call": ask_twice},
        server="modern",
        caller=MODERN,
        capabilities={"elicitation": {}},
    ) as (caller, script):
        state = None
        for key in ("who", "again"):
            extra = {"inputResponses": {"who": ANSWER}, "requestState": state} if state else {}
            asked = (await caller.call("tools/call", name="t", arguments={}, **extra))["result"]
            assert set(asked["inputRequests"]) == {key}
            state = asked["requestState"]
        await caller.call(
            "tools/call",
            name="t",
            arguments={},
            requestState=state,
            inputResponses={"again": ANSWER},
        )
        params = script.of("tools/call")[-1]["params"]
        assert params["requestState"] == "second"
        assert params["inputResponses"] == {"again": ANSWER}


@on_a_loop
async def test_a_question_of_a_modern_server_becomes_a_request_to_a_legacy_caller() -> None:
    async with proxied(
        {"tools/call": ask_once}, server="modern", capabilities={"elicitation": {}}
    ) as (caller, script):
        id = caller.ask("tools/call", name="t", arguments={})
        await caller.until(lambda: caller.of("elicitation/create"))
        [request] = caller.of("elicitation/create")
        assert request["params"]["message"] == "Who?"
        caller.send({"id": request["id"], "result": ANSWER})
        assert (await caller.response(id))["result"] == TEXT
        params = script.of("tools/call")[-1]["params"]
        assert params["requestState"] == "the server's"
        assert params["inputResponses"] == {"who": ANSWER}


@on_a_loop
async def test_a_question_that_the_caller_does_not_answer_is_an_error() -> None:
    async with proxied({"tools/call": ask_once}, server="modern", caller=MODERN) as (caller, _):
        response = await caller.call("tools/call", name="t", arguments={})
        assert response["error"]["code"] == -32021


@on_a_loop
async def test_a_result_that_only_speaks_of_questions_is_a_result() -> None:
    text = {"content": [{"type": "text", "text": '"input_required"'}]}
    handlers = {"tools/call": text | {"resultType": "complete"}}
    async with proxied(handlers, server="modern", caller=MODERN) as (caller, _):
        result = (await caller.call("tools/call", name="t", arguments={}))["result"]
        assert result["content"] == text["content"]


# Progress, cancellation, the end


@pytest.mark.parametrize("server", ["legacy", "modern"])
@pytest.mark.parametrize("caller", [LEGACY, MODERN])
@on_a_loop
async def test_progress_is_asked_for_only_if_the_caller_did(server: str, caller: str) -> None:
    def report(script: Script, message: dict[str, Any]) -> Any:
        if (token := message["params"].get("_meta", {}).get("progressToken")) is not None:
            params = {"progressToken": token, "progress": 1, "total": 2, "message": "half"}
            script.notify("notifications/progress", **params)
        return COMPLETE if server == "modern" else TEXT

    async with proxied({"tools/call": report}, server=server, caller=caller) as (client, script):
        await client.call("tools/call", name="t", arguments={})
        await client.call("tools/call", name="t", arguments={}, meta={"progressToken": "p"})
        metas = [message["params"].get("_meta", {}) for message in script.of("tools/call")]
        assert ["progressToken" in meta for meta in metas] == [False, True]
        assert [line["params"] for line in client.of("notifications/progress")] == [
            {"progressToken": "p", "progress": 1, "total": 2, "message": "half"}
        ]


@pytest.mark.parametrize("jitter_s", [0.0, 0.03])
@pytest.mark.parametrize("caller", [LEGACY, MODERN])
def test_progress_that_a_server_limits_is_not_limited_again(caller: str, jitter_s: float) -> None:
    """Only what comes earlier than the limit allows, by the jitter, may be replaced by newer."""
    rate = Limits().progress_per_s
    sent = 6 * rate
    dice = Calm()
    loop = VirtualLoop(Poller(lambda descriptor: 0, dice), dice)

    async def call() -> list[float]:
        async with proxied({"tools/call": SILENCE}, caller=caller) as (client, script):
            id = client.ask("tools/call", name="t", arguments={}, meta={"progressToken": 5})
            await script.until(lambda: script.of("tools/call"))
            [message] = script.of("tools/call")
            token = message["params"]["_meta"]["progressToken"]
            # As many at once, and then as many in each second, as the limit allows.
            begin = loop.time()
            for number in range(1, sent + 1):
                due_s = max(0, number - rate) / rate
                late_s = jitter_s if number % 7 == 0 else 0
                await asyncio.sleep(begin + due_s + late_s - loop.time())
                script.notify("notifications/progress", progressToken=token, progress=number)
            script.answer(message, TEXT)
            await client.response(id)
            return [line["params"]["progress"] for line in client.of("notifications/progress")]

    with closing(loop):
        got = loop.run_until_complete(call())
    assert got[-1] == sent
    assert got == sorted(set(got))
    assert sent - len(got) <= 1 + jitter_s * rate


@on_a_loop
async def test_a_cancellation_reaches_the_server() -> None:
    async with proxied({"tools/call": SILENCE}) as (caller, script):
        id = caller.ask("tools/call", name="t", arguments={})
        await script.until(lambda: script.of("tools/call"))
        caller.send({"method": "notifications/cancelled", "params": {"requestId": id}})
        await script.until(lambda: script.of("notifications/cancelled"))
        [message] = script.of("notifications/cancelled")
        assert message["params"]["requestId"] == script.of("tools/call")[0]["id"]


@on_a_loop
async def test_a_call_fails_with_what_happened_when_the_server_ends() -> None:
    async with proxied({"tools/call": SILENCE}, name="far") as (caller, script):
        id = caller.ask("tools/call", name="t", arguments={})
        await script.until(lambda: script.of("tools/call"))
        await script.connection.close(1)
        script.over = True
        error = (await caller.response(id))["error"]
        assert error["code"] == -32603
        assert error["message"].startswith("far: tools/call: the connection ended before")


@pytest.mark.parametrize("server", ["legacy", "modern"])
@pytest.mark.parametrize("caller", [LEGACY, MODERN])
@on_a_loop
async def test_changed_lists_reach_the_caller(server: str, caller: str) -> None:
    handlers: dict[str, Any] = {"subscriptions/listen": acknowledge}
    if server == "modern":
        handlers |= modern({"tools": {"listChanged": True}})
    async with proxied(handlers, server=server, caller=caller) as (client, script):
        if caller == MODERN:
            client.ask("subscriptions/listen", notifications={"toolsListChanged": True})
        if server == "modern":
            await script.until(lambda: script.of("subscriptions/listen"))
            meta = {"io.modelcontextprotocol/subscriptionId": listening(script)["id"]}
            script.notify("notifications/tools/list_changed", _meta=meta)
        else:
            script.notify("notifications/tools/list_changed")
        await client.until(lambda: client.of("notifications/tools/list_changed"))


def listening(script: Script) -> dict[str, Any]:
    return script.of("subscriptions/listen")[-1]


def acknowledge(script: Script, message: dict[str, Any]) -> Any:
    meta = {"io.modelcontextprotocol/subscriptionId": message["id"]}
    wanted = message["params"]["notifications"]
    script.notify("notifications/subscriptions/acknowledged", _meta=meta, notifications=wanted)
    return SILENCE


@on_a_loop
async def test_lists_are_read_without_a_client() -> None:
    server = Server("s")

    @server.tool
    def add(a: int, b: int) -> int:
        "Add."
        return a + b

    proxy = Proxy(server)
    await proxy.start(cast("Notifier", None))
    assert await list_names("s", proxy, "tools/list") == ["add"]
    await proxy.close()


def test_only_a_server_that_can_be_restarted_is_pinged() -> None:
    with pytest.raises(ValueError, match="ping_s: expected a program or an address"):
        Proxy(Server("shop", version="1"), ping_s=1)
