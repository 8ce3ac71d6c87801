"""Calls that a Proxy forwards without a task: backend/callback_calls.py and Upstream.begin()."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from client.scripted import MODERN, SILENCE, Script, on_a_loop
from proxy.proxy_rig import Caller, proxied

from concertino.backend.callback_calls import callback_beginner_of
from concertino.proxy import Proxy
from concertino.transports.memory import memory_pair

TEXT = {"content": [{"type": "text", "text": "hello"}]}


def silent(script: Script, message: dict[str, Any]) -> Any:
    return SILENCE


@on_a_loop
async def test_a_forwarded_call_has_no_task_and_one_that_wants_progress_has() -> None:
    async with proxied({"tools/call": silent}) as (caller, script):
        # The first call of a session finds its server, in a task.
        caller.ask("tools/call", name="first", arguments={})
        await script.until(lambda: len(script.of("tools/call")) == 1)
        before = len(asyncio.all_tasks())
        ids = [caller.ask("tools/call", name="t", arguments={}) for _ in range(10)]
        await script.until(lambda: len(script.of("tools/call")) == 11)
        assert len(asyncio.all_tasks()) == before
        caller.ask("tools/call", {"progressToken": 1}, name="t", arguments={})
        await script.until(lambda: len(script.of("tools/call")) == 12)
        assert len(asyncio.all_tasks()) == before + 1
        for message in script.of("tools/call")[1:11]:
            script.send({"jsonrpc": "2.0", "id": message["id"], "result": TEXT})
        for id in ids:
            assert (await caller.response(id))["result"] == TEXT


@on_a_loop
async def test_a_cancelled_call_is_cancelled_once_and_gets_no_response() -> None:
    async with proxied({"tools/call": silent}, server="modern", caller=MODERN) as (caller, script):
        caller.ask("tools/call", name="first", arguments={})
        await script.until(lambda: len(script.of("tools/call")) == 1)
        id = caller.ask("tools/call", name="t", arguments={})
        await script.until(lambda: len(script.of("tools/call")) == 2)
        sent = script.of("tools/call")[1]
        caller.send({"method": "notifications/cancelled", "params": {"requestId": id}})
        await script.until(lambda: script.of("notifications/cancelled"))
        # It comes too late, and belongs to nobody.
        result = {"resultType": "complete", **TEXT}
        script.send({"jsonrpc": "2.0", "id": sent["id"], "result": result})
        await caller.call("tools/list")
        assert not [line for line in caller.lines if line.get("id") == id]
        [message] = script.of("notifications/cancelled")
        assert message["params"]["requestId"] == sent["id"]


@on_a_loop
async def test_an_error_of_the_server_passes_and_the_end_of_the_server_is_an_error() -> None:
    async with proxied({"tools/call": silent}) as (caller, script):
        caller.ask("tools/call", name="first", arguments={})
        await script.until(lambda: len(script.of("tools/call")) == 1)
        ids = [caller.ask("tools/call", name=name, arguments={}) for name in ("a", "b")]
        await script.until(lambda: len(script.of("tools/call")) == 3)
        sent = script.of("tools/call")[1]
        error = {"code": -32001, "message": "no", "data": [1]}
        script.send({"jsonrpc": "2.0", "id": sent["id"], "error": error})
        assert (await caller.response(ids[0]))["error"] == error
        await script.connection.close(1)
        script.over = True
        failed = (await caller.response(ids[1]))["error"]
        assert failed["code"] == -32603
        assert "the connection ended" in failed["message"]


@on_a_loop
async def test_a_request_that_is_long_or_has_newlines_arrives_as_it_was() -> None:
    def echo(script: Script, message: dict[str, Any]) -> Any:
        text = message["params"]["arguments"]["text"]
        return {"content": [{"type": "text", "text": text}]}

    async with proxied({"tools/call": echo}) as (caller, _):
        await caller.call("tools/call", name="t", arguments={"text": "first"})
        for text in ("short", "x" * 100_000, "two\nlines"):
            response = await caller.call("tools/call", name="t", arguments={"text": text})
            assert response["result"]["content"][0]["text"] == text


def test_a_subclass_with_its_own_handle_gets_all_calls() -> None:
    class Own(Proxy):
        def handle(self, call: Any, context: Any) -> Any:
            return super().handle(call, context)

    assert callback_beginner_of(Proxy(memory_pair()[0])) is not None
    assert callback_beginner_of(Own(memory_pair()[0])) is None


# Calls of clients of 2026-07-28 to an older server, which may ask the client something

ELICITS = {"elicitation": {"form": {}}}
QUESTION = {
    "jsonrpc": "2.0",
    "id": "s1",
    "method": "elicitation/create",
    "params": {"message": "Who?", "requestedSchema": {"type": "object", "properties": {}}},
}
ANSWER = {"action": "accept", "content": {}}


@asynccontextmanager
async def asked_in_second_call() -> AsyncIterator[tuple[Caller, Script, int]]:
    """Provide the caller, the script, and the id of the caller's second request for a call.

    The server was called twice, and has asked for an answer in the second call. The caller has sent
    its answer, and the server has received it.
    """
    async with proxied({"tools/call": silent}, caller=MODERN, capabilities=ELICITS) as (
        caller,
        script,
    ):
        first = caller.ask("tools/call", name="first", arguments={})
        await script.until(lambda: len(script.of("tools/call")) == 1)
        script.answer(script.of("tools/call")[0], TEXT)
        await caller.response(first)

        before = len(asyncio.all_tasks())
        id = caller.ask("tools/call", name="t", arguments={})
        await script.until(lambda: len(script.of("tools/call")) == 2)
        assert len(asyncio.all_tasks()) == before
        script.send(QUESTION)
        asked = (await caller.response(id))["result"]
        assert asked["resultType"] == "input_required"

        [(key, request)] = asked["inputRequests"].items()
        assert request == {"method": QUESTION["method"], "params": QUESTION["params"]}
        state = asked["requestState"]
        answers = {key: ANSWER}
        id = caller.ask(
            "tools/call", name="t", arguments={}, requestState=state, inputResponses=answers
        )
        await script.until(lambda: [item for item in script.came if item.get("id") == "s1"])
        yield caller, script, id


@on_a_loop
async def test_a_call_without_a_task_goes_on_after_its_client_has_answered_a_question() -> None:
    async with asked_in_second_call() as (caller, script, id):
        [answer] = [item for item in script.came if item.get("id") == "s1"]
        assert answer["result"] == ANSWER
        script.answer(script.of("tools/call")[1], TEXT)
        assert (await caller.response(id))["result"]["content"] == TEXT["content"]
        assert len(script.of("tools/call")) == 2


@on_a_loop
async def test_a_call_that_has_asked_its_client_may_fail() -> None:
    async with asked_in_second_call() as (caller, script, id):
        error = {"code": -32001, "message": "no"}
        sent = script.of("tools/call")[1]
        script.send({"jsonrpc": "2.0", "id": sent["id"], "error": error})
        assert (await caller.response(id))["error"] == error


@on_a_loop
async def test_a_call_that_has_asked_its_client_is_cancelled_at_the_server() -> None:
    async with asked_in_second_call() as (caller, script, id):
        sent = script.of("tools/call")[1]
        caller.send({"method": "notifications/cancelled", "params": {"requestId": id}})
        await script.until(lambda: script.of("notifications/cancelled"))
        script.answer(sent, TEXT)
        await caller.call("tools/list")
        assert not [line for line in caller.lines if line.get("id") == id]
        [message] = script.of("notifications/cancelled")
        assert message["params"]["requestId"] == sent["id"]


@on_a_loop
async def test_the_end_of_the_server_is_an_error_for_a_call_that_has_asked_its_client() -> None:
    async with asked_in_second_call() as (caller, script, id):
        await script.connection.close(1)
        script.over = True
        failed = (await caller.response(id))["error"]
        assert failed["code"] == -32603
        assert "the connection ended" in failed["message"]
