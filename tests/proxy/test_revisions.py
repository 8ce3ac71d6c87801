"""Proxy: a server of each of the five revisions, and callers of each of the five.

The server is a script with the results of its revision. Whatever either side gets is checked by the
official schema of its own revision: what the caller gets by proxy_rig.py, and what the server gets
here.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from itertools import product
from typing import Any

import pytest
import wire
from client.scripted import LEGACY, MODERN, SILENCE, Refusal, Script, legacy, modern, on_a_loop
from proxy.proxy_rig import Caller, proxied
from wire import REVISIONS

OLDEST, MARCH, JUNE = REVISIONS[:3]
each_pair = pytest.mark.parametrize(("server", "caller"), list(product(REVISIONS, REVISIONS)))
ICONS = [{"src": "https://x/y.png", "mimeType": "image/png", "sizes": ["48x48"]}]
# The members of each item of a list, by the first revision that has them.
Members = Mapping[str, Mapping[str, Any]]
TOOL: Members = {
    OLDEST: {"name": "t", "description": "Does it", "inputSchema": {"type": "object"}},
    MARCH: {"annotations": {"readOnlyHint": True}},
    JUNE: {"title": "T", "outputSchema": {"type": "object"}, "_meta": {"v/k": 1}},
    LEGACY: {"icons": ICONS},
}
PROMPT: Members = {
    OLDEST: {"name": "p", "arguments": [{"name": "a", "required": True}]},
    JUNE: {"title": "P", "_meta": {"v/k": 1}},
    LEGACY: {"icons": ICONS},
}
RESOURCE: Members = {
    OLDEST: {"uri": "a:1", "name": "r", "size": 5, "annotations": {"priority": 1}},
    JUNE: {"title": "R", "_meta": {"v/k": 1}},
    LEGACY: {"icons": ICONS},
}
TEMPLATE: Members = {
    OLDEST: {"uriTemplate": "a:{b}", "name": "m"},
    JUNE: {"title": "M", "_meta": {"v/k": 1}},
    LEGACY: {"icons": ICONS},
}
LISTS = {
    "tools/list": ("tools", TOOL),
    "prompts/list": ("prompts", PROMPT),
    "resources/list": ("resources", RESOURCE),
    "resources/templates/list": ("resourceTemplates", TEMPLATE),
}
CAPABILITIES: Members = {
    OLDEST: {"tools": {}, "prompts": {}, "resources": {"subscribe": True}, "logging": {}},
    MARCH: {"completions": {}},
}
TEXT = {"content": [{"type": "text", "text": "hello"}]}
PNG = {"type": "image", "data": "aGk=", "mimeType": "image/png"}
CONTENTS = {"contents": [{"uri": "a:1", "mimeType": "text/plain", "text": "hello"}]}
MESSAGES = {"messages": [{"role": "user", "content": {"type": "text", "text": "hello"}}]}
VALUES = {"completion": {"values": ["x"], "total": 1, "hasMore": False}}
SAMPLING = {
    "messages": [{"role": "user", "content": {"type": "text", "text": "hi"}}],
    "maxTokens": 5,
}
SAMPLED = {"role": "assistant", "content": {"type": "text", "text": "ho"}, "model": "m"}
SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"
# What each server does not know of the requests that begin a connection.
UNKNOWN_ERA = dict.fromkeys(REVISIONS, "server/discover") | {MODERN: "initialize"}


def until(revision: str, members: Members) -> dict[str, Any]:
    """Return the members that a revision has."""
    return {
        key: value
        for since in members
        if since <= revision
        for key, value in members[since].items()
    }


def result_of(server: str, result: Mapping[str, Any], *, is_cacheable: bool = False) -> Any:
    """Return a result as a server of a revision says it."""
    if server != MODERN:
        return dict(result)
    cache = {"ttlMs": 0, "cacheScope": "private"} if is_cacheable else {}
    return {"resultType": "complete", **result, **cache}


def opening(server: str, capabilities: Mapping[str, Any]) -> dict[str, Any]:
    """Return the handlers of the first requests to a server of a revision."""
    if server == MODERN:
        return modern(capabilities)
    return legacy(server, capabilities) | {"logging/setLevel": {}}


def listen(script: Script, request: Any) -> Any:
    """Begin a subscription, as a server of 2026-07-28."""
    meta = {SUBSCRIPTION: request["id"]}
    wanted = request["params"]["notifications"]
    script.notify("notifications/subscriptions/acknowledged", _meta=meta, notifications=wanted)
    return SILENCE


@asynccontextmanager
async def bridged(
    server: str, caller: str, handlers: Mapping[str, Any]
) -> AsyncIterator[tuple[Caller, Script]]:
    """Provide a caller and a script of these revisions. Check all that the script gets."""
    async with proxied(
        opening(server, until(server, CAPABILITIES)) | dict(handlers),
        server="modern" if server == MODERN else "legacy",
        caller=caller,
        capabilities={"sampling": {}, "roots": {}},
    ) as (client, script):
        yield client, script
    for message in script.came:
        # The first request may be one of the other era, to find out which one the server speaks.
        if message.get("method", UNKNOWN_ERA[server]) != UNKNOWN_ERA[server]:
            wire.check_sent(message, server)


@each_pair
@on_a_loop
async def test_lists_have_the_members_that_both_revisions_have(server: str, caller: str) -> None:
    handlers = {
        method: result_of(server, {member: [until(server, item)]}, is_cacheable=True)
        for method, (member, item) in LISTS.items()
    }
    for method, result in handlers.items():
        wire.check_result(method, result, server)
    async with bridged(server, caller, handlers) as (client, _):
        for method, (member, item) in LISTS.items():
            result = (await client.call(method))["result"]
            assert result[member] == [until(min(server, caller), item)]


@each_pair
@on_a_loop
async def test_results_of_each_kind_arrive(server: str, caller: str) -> None:
    structured = {**TEXT, "structuredContent": {"a": 1}} if server >= JUNE else TEXT
    handlers = {
        "tools/call": result_of(server, {**structured, "isError": False}),
        "resources/read": result_of(server, CONTENTS, is_cacheable=True),
        "prompts/get": result_of(server, MESSAGES),
        "completion/complete": result_of(server, VALUES),
    }
    async with bridged(server, caller, handlers) as (client, _):
        called = (await client.call("tools/call", name="t", arguments={}))["result"]
        assert called["content"] == TEXT["content"]
        assert called.get("structuredContent") == (
            {"a": 1} if min(server, caller) >= JUNE else None
        )
        read = await client.call("resources/read", uri="a:1")
        assert read["result"]["contents"] == CONTENTS["contents"]
        prompt = await client.call("prompts/get", name="p", arguments={"a": "x"})
        assert prompt["result"]["messages"] == MESSAGES["messages"]
        argument = {"name": "a", "value": "x"}
        ref = {"type": "ref/prompt", "name": "p"}
        completed = await client.call("completion/complete", ref=ref, argument=argument)
        assert completed["result"]["completion"] == VALUES["completion"]


@each_pair
@on_a_loop
async def test_content_that_an_older_revision_lacks_does_not_reach_it(
    server: str, caller: str
) -> None:
    audio = {"type": "audio", "data": "aGk=", "mimeType": "audio/wav"}
    link = {"type": "resource_link", "uri": "a:1", "name": "r"}
    embedded = {"type": "resource", "resource": CONTENTS["contents"][0]}
    since = {OLDEST: [*TEXT["content"], PNG, embedded], MARCH: [audio], JUNE: [link]}
    content = [block for first, blocks in since.items() if first <= server for block in blocks]
    handlers = {"tools/call": result_of(server, {"content": content})}
    async with bridged(server, caller, handlers) as (client, _):
        got = (await client.call("tools/call", name="t", arguments={}))["result"]["content"]
        # An older client gets sound as an embedded resource, and links as texts.
        assert len(got) == len(content)
        known = [block for first, blocks in since.items() if first <= caller for block in blocks]
        assert got[: len(known)] == content[: len(known)]
        assert {block["type"] for block in got[len(known) :]} <= {"text", "resource"}


@each_pair
@on_a_loop
async def test_errors_have_the_codes_of_the_caller_s_revision(server: str, caller: str) -> None:
    def refuse(code: int, message: str) -> Any:
        def handler(script: Script, request: Any) -> Any:
            raise Refusal(code, message, {"uri": "a:2"})

        return handler

    handlers = {
        "tools/call": refuse(-32602, "Unknown tool: t"),
        "resources/read": refuse(-32602 if server == MODERN else -32002, "Resource not found"),
        "prompts/get": refuse(-32603, "broken"),
    }
    async with bridged(server, caller, handlers) as (client, _):
        error = (await client.call("tools/call", name="t", arguments={}))["error"]
        assert (error["code"], error["message"]) == (-32602, "Unknown tool: t")
        error = (await client.call("resources/read", uri="a:2"))["error"]
        expected = -32602 if caller == MODERN else -32002
        assert (error["code"], error["data"]) == (expected, {"uri": "a:2"})
        error = (await client.call("prompts/get", name="p"))["error"]
        assert (error["code"], error["message"]) == (-32603, "broken")


@each_pair
@on_a_loop
async def test_progress_arrives_once(server: str, caller: str) -> None:
    def report(script: Script, request: Any) -> Any:
        token = request["params"]["_meta"]["progressToken"]
        # 2024-11-05 has no message.
        more = {"message": "half"} if server >= MARCH else {}
        script.notify("notifications/progress", progressToken=token, progress=1, total=2, **more)
        return result_of(server, TEXT)

    async with bridged(server, caller, {"tools/call": report}) as (client, _):
        id = client.ask("tools/call", name="t", arguments={}, meta={"progressToken": "p"})
        await client.response(id)
        [line] = client.of("notifications/progress")
        more = {"message": "half"} if min(server, caller) >= MARCH else {}
        assert line["params"] == {"progressToken": "p", "progress": 1, "total": 2, **more}


@each_pair
@on_a_loop
async def test_log_messages_arrive_at_the_level_that_the_caller_wants(
    server: str, caller: str
) -> None:
    def log(script: Script, request: Any) -> Any:
        script.notify("notifications/message", level="error", data={"a": 1}, logger="l")
        return result_of(server, TEXT)

    key = "io.modelcontextprotocol/logLevel"
    async with bridged(server, caller, {"tools/call": log}) as (client, script):
        meta = {key: "warning"} if caller == MODERN else None
        if meta is None:
            await client.call("logging/setLevel", level="warning")
        id = client.ask("tools/call", name="t", arguments={}, meta=meta)
        await client.response(id)
        [line] = client.of("notifications/message")
        assert line["params"] == {"level": "error", "data": {"a": 1}, "logger": "l"}
        if server == MODERN:
            [call] = script.of("tools/call")
            assert call["params"]["_meta"][key] == "warning"
        else:
            [level] = script.of("logging/setLevel")
            assert level["params"] == {"level": "warning"}


@each_pair
@on_a_loop
async def test_a_question_is_asked_and_answered_in_each_side_s_way(
    server: str, caller: str
) -> None:
    def ask(script: Script, request: Any) -> Any:
        if server != MODERN:
            question = {"id": "s1", "method": "sampling/createMessage", "params": SAMPLING}
            script.send({"jsonrpc": "2.0", **question})
            return SILENCE
        if "inputResponses" in request["params"]:
            assert request["params"]["requestState"] == "opaque"
            assert request["params"]["inputResponses"] == {"k": SAMPLED}
            return result_of(server, TEXT)
        questions = {"k": {"method": "sampling/createMessage", "params": SAMPLING}}
        asked = {"inputRequests": questions, "requestState": "opaque"}
        return {"resultType": "input_required", **asked}

    async with bridged(server, caller, {"tools/call": ask}) as (client, script):
        id = client.ask("tools/call", name="t", arguments={})
        if caller == MODERN:
            asked = (await client.response(id))["result"]
            [(key, question)] = asked["inputRequests"].items()
            assert question == {"method": "sampling/createMessage", "params": SAMPLING}
            again = {"requestState": asked["requestState"], "inputResponses": {key: SAMPLED}}
            id = client.ask("tools/call", name="t", arguments={}, **again)
        else:
            await client.until(lambda: client.of("sampling/createMessage"))
            [request] = client.of("sampling/createMessage")
            assert request["params"] == SAMPLING
            client.send({"id": request["id"], "result": SAMPLED})
        if server != MODERN:

            def answers() -> list[Any]:
                return [message["result"] for message in script.came if message.get("id") == "s1"]

            await script.until(answers)
            assert answers() == [SAMPLED]
            script.answer(script.of("tools/call")[0], TEXT)
        assert (await client.response(id))["result"]["content"] == TEXT["content"]
        assert len(script.of("tools/call")) == (2 if server == MODERN else 1)


@pytest.mark.parametrize("caller", [OLDEST, MARCH])
@pytest.mark.parametrize("server", [JUNE, LEGACY, MODERN])
@on_a_loop
async def test_forms_are_refused_if_the_caller_s_revision_has_none(
    server: str, caller: str
) -> None:
    params = {"message": "Who?", "requestedSchema": {"type": "object", "properties": {}}}

    def ask(script: Script, request: Any) -> Any:
        if server != MODERN:
            question = {"id": "s1", "method": "elicitation/create", "params": params}
            script.send({"jsonrpc": "2.0", **question})
            return SILENCE
        questions = {"k": {"method": "elicitation/create", "params": params}}
        return {"resultType": "input_required", "inputRequests": questions}

    async with bridged(server, caller, {"tools/call": ask}) as (client, script):
        id = client.ask("tools/call", name="t", arguments={})
        if server != MODERN:

            def errors() -> list[Any]:
                return [message["error"] for message in script.came if message.get("id") == "s1"]

            await script.until(errors)
            assert errors()[0]["code"] == -32601
            script.answer(script.of("tools/call")[0], TEXT)
            assert (await client.response(id))["result"]["content"] == TEXT["content"]
        else:
            response = await client.response(id)
            assert "elicitation" in str(response)
        assert client.of("elicitation/create") == []


@each_pair
@on_a_loop
async def test_subscriptions_are_made_in_each_side_s_way(server: str, caller: str) -> None:
    handlers: dict[str, Any] = {"resources/subscribe": {}, "resources/unsubscribe": {}}
    if server == MODERN:
        handlers = {"subscriptions/listen": listen}
    begin = "subscriptions/listen" if server == MODERN else "resources/subscribe"
    async with bridged(server, caller, handlers) as (client, script):
        if caller == MODERN:
            id = client.ask(
                "subscriptions/listen", notifications={"resourceSubscriptions": ["a:1"]}
            )
        else:
            await client.call("resources/subscribe", uri="a:1")
        await script.until(lambda: script.of(begin))
        [request] = script.of(begin)
        meta = {"_meta": {SUBSCRIPTION: request["id"]}}
        more = meta if server == MODERN else {}
        script.notify("notifications/resources/updated", uri="a:1", **more)
        await client.until(lambda: client.of("notifications/resources/updated"))
        assert client.of("notifications/resources/updated")[0]["params"]["uri"] == "a:1"
        if caller == MODERN:
            client.send({"method": "notifications/cancelled", "params": {"requestId": id}})
        else:
            await client.call("resources/unsubscribe", uri="a:1")
        end = "notifications/cancelled" if server == MODERN else "resources/unsubscribe"
        await script.until(lambda: script.of(end))


@each_pair
@on_a_loop
async def test_changed_lists_are_reported_in_each_side_s_way(server: str, caller: str) -> None:
    capabilities = {"tools": {"listChanged": True}}
    handlers = opening(server, capabilities) | {"subscriptions/listen": listen}
    async with bridged(server, caller, handlers) as (client, script):
        if caller == MODERN:
            client.ask("subscriptions/listen", notifications={"toolsListChanged": True})
            await client.until(lambda: client.of("notifications/subscriptions/acknowledged"))
        else:
            await client.call("ping")
        more: dict[str, Any] = {}
        if server == MODERN:
            await script.until(lambda: script.of("subscriptions/listen"))
            request = script.of("subscriptions/listen")[-1]
            more = {"_meta": {SUBSCRIPTION: request["id"]}}
        script.notify("notifications/tools/list_changed", **more)
        await client.until(lambda: client.of("notifications/tools/list_changed"))


@each_pair
@on_a_loop
async def test_a_cancellation_reaches_the_server(server: str, caller: str) -> None:
    async with bridged(server, caller, {"tools/call": SILENCE}) as (client, script):
        id = client.ask("tools/call", name="t", arguments={})
        await script.until(lambda: script.of("tools/call"))
        params = {"requestId": id, "reason": "enough"}
        client.send({"method": "notifications/cancelled", "params": params})
        await script.until(lambda: script.of("notifications/cancelled"))
        [cancelled] = script.of("notifications/cancelled")
        assert cancelled["params"]["requestId"] == script.of("tools/call")[0]["id"]


# No other revision has batches.
@pytest.mark.parametrize("server", [MARCH])
@pytest.mark.parametrize("caller", REVISIONS)
@on_a_loop
async def test_batches_of_a_server_arrive_one_by_one(server: str, caller: str) -> None:
    async with bridged(server, caller, {"tools/call": SILENCE}) as (client, script):
        ids = [client.ask("tools/call", name="t", arguments={}) for _ in range(2)]
        await script.until(lambda: len(script.of("tools/call")) == 2)
        ask = {"id": "s1", "method": "ping"}
        answers = [{"id": call["id"], "result": TEXT} for call in script.of("tools/call")]
        batch = [{"jsonrpc": "2.0", **message} for message in (ask, *answers)]
        script.send(json.dumps(batch).encode())
        for id in ids:
            assert (await client.response(id))["result"]["content"] == TEXT["content"]
        # JSON-RPC answers a batch by a batch.
        await script.until(lambda: any(isinstance(item, list) for item in script.came))
        [answer] = [item for item in script.came if isinstance(item, list)]
        assert answer == [{"jsonrpc": "2.0", "id": "s1", "result": {}}]
        script.came.remove(answer)


@pytest.mark.parametrize("caller", REVISIONS)
@on_a_loop
async def test_progress_and_log_messages_in_the_batch_of_their_result_arrive(caller: str) -> None:
    def work(script: Script, request: Any) -> Any:
        token = request["params"]["_meta"]["progressToken"]
        answer = {"id": request["id"], "result": TEXT}
        messages = (
            {"method": "notifications/progress", "params": {"progressToken": token, "progress": 1}},
            {"method": "notifications/message", "params": {"level": "error", "data": "a"}},
        )
        batch = [{"jsonrpc": "2.0", **message} for message in (answer, *messages)]
        script.send(batch)
        return SILENCE

    async with bridged(MARCH, caller, {"tools/call": work}) as (client, _):
        meta = {"progressToken": "p", "io.modelcontextprotocol/logLevel": "warning"}
        id = client.ask("tools/call", name="t", arguments={}, meta=meta)
        assert (await client.response(id))["result"]["content"] == TEXT["content"]
        [progress] = client.of("notifications/progress")
        assert progress["params"] == {"progressToken": "p", "progress": 1}
        [message] = client.of("notifications/message")
        assert message["params"] == {"level": "error", "data": "a"}


# No other revision has this error.
@pytest.mark.parametrize("server", [LEGACY])
@pytest.mark.parametrize("caller", REVISIONS)
@on_a_loop
async def test_an_error_that_2026_07_28_lacks_becomes_an_internal_error(
    server: str, caller: str
) -> None:
    elicitation = {"mode": "url", "elicitationId": "e", "url": "https://x/y", "message": "Log in"}

    def refuse(script: Script, request: Any) -> Any:
        raise Refusal(-32042, "Log in first", {"elicitations": [elicitation]})

    async with bridged(server, caller, {"tools/call": refuse}) as (client, _):
        # Our own servers have no such error, so the rig would refuse it.
        client.checked = caller == MODERN
        error = (await client.call("tools/call", name="t", arguments={}))["error"]
        code = -32603 if caller == MODERN else -32042
        data = {"elicitations": [elicitation]}
        assert error == {"code": code, "message": "Log in first", "data": data}
