"""part_view.py: what passes between clients and the servers behind a composition of proxies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from client.scripted import EVERYTHING, LEGACY, MODERN, SILENCE, Script, legacy, modern, on_a_loop
from proxy.proxy_rig import Caller

from concertino.backend import Host
from concertino.composition.composed_backend import ComposedBackend
from concertino.composition.part_names import BoundedNames
from concertino.composition.rules import CompositionRules
from concertino.proxy import Proxy
from concertino.transports.memory import memory_pair
from concertino.types.results import Implementation

RULES = CompositionRules(start_s=5, lists_s=5, list_limit_s=5, maps_uris=True)
TASKS = {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}
RELATED = "io.modelcontextprotocol/related-task"
NO_RESOURCES = {
    "resources/list": {"resources": []},
    "resources/templates/list": {"resourceTemplates": []},
}


def tool(**members: Any) -> dict[str, Any]:
    return {"name": "run", "inputSchema": {"type": "object"}, **members}


@asynccontextmanager
async def composed(
    servers: Mapping[str, Mapping[str, Any]],
    *,
    callers: int = 1,
    caller: str = LEGACY,
    capabilities: Mapping[str, Any] | None = None,
) -> AsyncIterator[tuple[list[Caller], dict[str, Script]]]:
    """Provide callers that have done their handshake, and the scripts of the parts by name.

    servers: name -> all handlers of the script.
    """
    scripts: dict[str, Script] = {}
    parts: dict[str, Proxy] = {}
    for name, handlers in servers.items():
        near, far = memory_pair()
        scripts[name] = Script(far, NO_RESOURCES | dict(handlers))
        parts[name] = Proxy(near, name=name)
    backend = ComposedBackend(Implementation("all", "1"), parts, BoundedNames(parts), RULES)
    async with AsyncExitStack() as stack:
        host = await stack.enter_async_context(Host(backend))
        clients: list[Caller] = []
        for _ in range(callers):
            ours, theirs = memory_pair()
            served = host.attach(theirs)
            client = Caller(ours, caller, capabilities or {})
            # The schema refuses what it does not know; these tests are about that.
            client.checked = False
            await client.initialize()
            clients.append(client)

            async def leave(ours: Any = ours, served: Any = served) -> None:
                await ours.close(1)
                await served.closed

            stack.push_async_callback(leave)
        yield clients, scripts


@pytest.mark.parametrize(("servers", "caller"), [((legacy,) * 2, LEGACY), ((modern,) * 2, MODERN),
                                                 ((legacy, modern), MODERN)])  # fmt: skip
@on_a_loop
async def test_items_of_lists_keep_the_members_that_nobody_knows(servers: Any, caller: str) -> None:
    unknown = {"x.example/cost": {"usd": [1.50, 12345678901234567890]}}
    lists = {
        "tools/list": {"tools": [tool(**unknown)]},
        "prompts/list": {"prompts": [{"name": "p", **unknown}]},
        "resources/list": {"resources": [{"uri": "a:1", "name": "r", **unknown}]},
        "resources/templates/list": {
            "resourceTemplates": [{"uriTemplate": "a:{x}", "name": "t", **unknown}]
        },
    }
    handlers = {name: make() | lists for name, make in zip("ab", servers, strict=True)}
    async with composed(handlers, caller=caller) as ([client], _):
        for method, (member, names) in {
            "tools/list": ("tools", ["a_run", "b_run"]),
            "prompts/list": ("prompts", ["a_p", "b_p"]),
            "resources/list": ("resources", ["r", "r"]),
            "resources/templates/list": ("resourceTemplates", ["t", "t"]),
        }.items():
            items = (await client.call(method))["result"][member]
            assert [item["name"] for item in items] == names
            assert [item["x.example/cost"] for item in items] == list(unknown.values()) * 2
        listed = (await client.call("resources/list"))["result"]["resources"]
        assert [item["uri"] for item in listed] == ["a:1", "b+a:1"]


@on_a_loop
async def test_a_client_before_2026_gets_valid_items_of_a_modern_server() -> None:
    """A schema that is `true` has no form there."""
    schema = {"type": "object", "properties": {"any": True}}
    lists = {"tools/list": {"resultType": "complete", "tools": [tool(inputSchema=schema)]}}
    handlers = {"a": legacy() | {"tools/list": {"tools": [tool()]}}, "b": modern() | lists}
    async with composed(handlers) as ([client], _):
        listed = (await client.call("tools/list"))["result"]
        assert listed["tools"][1]["inputSchema"]["properties"] == {"any": {}}
        assert "ttlMs" not in listed


@on_a_loop
async def test_one_malformed_item_leaves_out_its_part_only() -> None:
    handlers = {
        "bad": legacy() | {"tools/list": {"tools": [{"name": "no schema"}]}},
        "good": legacy() | {"tools/list": {"tools": [tool()]}},
    }
    async with composed(handlers) as ([client], _):
        listed = (await client.call("tools/list"))["result"]["tools"]
        assert [item["name"] for item in listed] == ["good_run"]


def with_tasks(name: str) -> dict[str, Any]:
    """A server of 2025-11-25 with one task, whose id another server has, too."""
    task = {"taskId": "1", "status": "working", "owner": name}
    related = {RELATED: {"taskId": "1"}}
    return legacy(capabilities={**EVERYTHING, "tasks": TASKS}) | {
        "tools/call": {"task": task, "_meta": related},
        "tasks/get": task,
        "tasks/cancel": {**task, "status": "cancelled"},
        "tasks/list": {"tasks": [task]},
        "tasks/result": {"content": [{"type": "text", "text": name}], "_meta": related},
    }


@on_a_loop
async def test_tasks_of_two_servers_have_different_ids_and_lead_back() -> None:
    async with composed({"a": with_tasks("A"), "b": with_tasks("B")}) as ([client], scripts):
        created = await client.call("tools/call", name="b_run", arguments={}, task={"ttl": 5})
        assert created["result"]["task"]["taskId"] == "b+1"
        assert created["result"]["_meta"] == {RELATED: {"taskId": "b+1"}}
        [called] = scripts["b"].of("tools/call")
        assert called["params"]["task"] == {"ttl": 5}

        for method in ("tasks/get", "tasks/cancel"):
            result = (await client.call(method, taskId="b+1"))["result"]
            assert (result["taskId"], result["owner"]) == ("b+1", "B")
            assert scripts["b"].of(method)[-1]["params"]["taskId"] == "1"
        outcome = (await client.call("tasks/result", taskId="a+1"))["result"]
        assert outcome["content"][0]["text"] == "A"
        assert outcome["_meta"][RELATED] == {"taskId": "a+1"}
        listed = (await client.call("tasks/list"))["result"]["tasks"]
        assert [task["taskId"] for task in listed] == ["a+1", "b+1"]


@pytest.mark.parametrize("id", ["1", "c+1", "", 5])
@on_a_loop
async def test_a_task_that_no_server_has_is_refused_without_asking_one(id: Any) -> None:
    async with composed({"a": with_tasks("A"), "b": with_tasks("B")}) as ([client], scripts):
        response = await client.call("tasks/get", taskId=id)
        assert response["error"]["code"] == -32602
        assert not scripts["a"].of("tasks/get") + scripts["b"].of("tasks/get")


@on_a_loop
async def test_the_capabilities_of_tasks_are_joined() -> None:
    partial = legacy(capabilities={**EVERYTHING, "tasks": {"requests": {"x": {"run": {}}}}})
    async with composed({"a": partial, "b": with_tasks("B")}) as ([client], _):
        shown = client.lines[0]["result"]["capabilities"]["tasks"]
        requests = {"x": {"run": {}}, "tools": {"call": {}}}
        assert shown == {"list": {}, "cancel": {}, "requests": requests}
        listed = (await client.call("tasks/list"))["result"]["tasks"]
        assert [task["taskId"] for task in listed] == ["b+1"]


@on_a_loop
async def test_notifications_and_questions_about_a_task_have_its_shown_id() -> None:
    capabilities = {"elicitation": {"form": {}}}
    handlers = {"a": with_tasks("A"), "b": with_tasks("B") | {"tools/call": SILENCE}}
    async with composed(handlers, capabilities=capabilities) as ([client], scripts):
        called = client.ask("tools/call", name="b_run", arguments={})
        b = scripts["b"]
        await b.until(lambda: b.of("tools/call"))
        b.notify("notifications/tasks/status", taskId="1", status="working")
        await client.until(lambda: client.of("notifications/tasks/status"))
        [told] = client.of("notifications/tasks/status")
        assert told["params"]["taskId"] == "b+1"

        meta = {RELATED: {"taskId": "1"}}
        params = {"message": "?", "requestedSchema": {"type": "object"}, "_meta": meta}
        b.send({"jsonrpc": "2.0", "id": "q", "method": "elicitation/create", "params": params})
        await client.until(lambda: client.of("elicitation/create"))
        [question] = client.of("elicitation/create")
        assert question["params"]["_meta"][RELATED] == {"taskId": "b+1"}
        answer = {"action": "decline", "_meta": {RELATED: {"taskId": "b+1"}}}
        client.send({"id": question["id"], "result": answer})
        await b.until(lambda: any(message.get("id") == "q" for message in b.came))
        [answered] = [message for message in b.came if message.get("id") == "q"]
        assert answered["result"]["_meta"][RELATED] == {"taskId": "1"}
        b.answer(b.of("tools/call")[0], {"content": []})
        await client.response(called)


@on_a_loop
async def test_a_question_to_the_model_has_the_uris_that_clients_see() -> None:
    resource = {"uri": "r:1", "name": "r"}
    lists = {"resources/list": {"resources": [resource]}, "tools/call": SILENCE}
    handlers = {name: legacy() | lists for name in ("a", "b")}
    async with composed(handlers, capabilities={"sampling": {}}) as ([client], scripts):
        listed = (await client.call("resources/list"))["result"]["resources"]
        assert [item["uri"] for item in listed] == ["r:1", "b+r:1"]
        called = client.ask("tools/call", name="b_run", arguments={})
        b = scripts["b"]
        await b.until(lambda: b.of("tools/call"))
        link = {"type": "resource_link", **resource}
        results = [{"type": "tool_result", "toolUseId": "1", "content": [link]}]
        params = {"messages": [{"role": "user", "content": results}], "maxTokens": 1}
        request = {"jsonrpc": "2.0", "id": 1, "method": "sampling/createMessage", "params": params}
        b.send(request)
        await client.until(lambda: client.of("sampling/createMessage"))
        [question] = client.of("sampling/createMessage")
        [result] = question["params"]["messages"][0]["content"]
        assert result["content"] == [link | {"uri": "b+r:1"}]
        client.send({"id": question["id"], "result": {"role": "assistant", "content": []}})
        await b.until(
            lambda: any(message.get("id") == 1 and "result" in message for message in b.came)
        )
        b.answer(b.of("tools/call")[0], {"content": []})
        await client.response(called)


@on_a_loop
async def test_a_change_of_the_roots_reaches_the_servers_that_the_client_has_called() -> None:
    handlers = {name: legacy() | {"tools/call": {"content": []}} for name in ("a", "b", "c")}
    async with composed(handlers) as ([client], scripts):
        await client.call("tools/call", name="a_run", arguments={})
        await client.call("tools/call", name="b_run", arguments={})
        client.send({"method": "notifications/roots/list_changed"})
        for name in ("a", "b"):
            script = scripts[name]
            await script.until(lambda script=script: script.of("notifications/roots/list_changed"))
        assert scripts["c"].of("notifications/roots/list_changed") == []


@on_a_loop
async def test_an_update_of_a_resource_reaches_those_that_subscribed_to_this_server_s() -> None:
    """Both servers have `a:1`; that of the second one is `two+a:1` for clients."""
    lists = {
        "resources/list": {"resources": [{"uri": "a:1", "name": "r"}]},
        "resources/subscribe": {},
        "resources/unsubscribe": {},
        "tools/call": {"content": []},
    }
    handlers = {"one": legacy() | lists, "two": legacy() | lists}
    async with composed(handlers, callers=2) as ([first, second], scripts):
        for client in (first, second):
            for part in ("one", "two"):
                await client.call("tools/call", name=f"{part}_run", arguments={})
        await first.call("resources/subscribe", uri="a:1")
        await second.call("resources/subscribe", uri="two+a:1")
        two = scripts["two"]
        await two.until(lambda: two.of("resources/subscribe"))
        assert [message["params"] for message in two.of("resources/subscribe")] == [{"uri": "a:1"}]

        two.notify("notifications/resources/updated", uri="a:1")
        await second.until(lambda: second.of("notifications/resources/updated"))
        [told] = second.of("notifications/resources/updated")
        assert told["params"] == {"uri": "two+a:1"}
        await first.call("ping")
        assert first.of("notifications/resources/updated") == []


@on_a_loop
async def test_a_list_that_changes_for_one_client_only_is_read_again() -> None:
    uris = ["a:1"]

    def list_resources(script: Script, message: dict[str, Any]) -> dict[str, Any]:
        return {"resources": [{"uri": uri, "name": "r"} for uri in uris]}

    lists = {"resources/list": list_resources, "tools/call": {"content": []}}
    other = {"resources/list": {"resources": [{"uri": "a:2", "name": "r"}]}}
    async with composed({"one": legacy() | other, "two": legacy() | lists}) as ([client], scripts):
        await client.call("tools/call", name="two_run", arguments={})
        uris.append("a:2")
        scripts["two"].notify("notifications/resources/list_changed")
        await client.until(lambda: client.of("notifications/resources/list_changed"))
        listed = (await client.call("resources/list"))["result"]["resources"]
        assert [item["uri"] for item in listed] == ["a:2", "a:1", "two+a:2"]


@on_a_loop
async def test_a_session_that_has_ended_is_forgotten() -> None:
    near, far = memory_pair()
    script = Script(far, legacy() | NO_RESOURCES | {"tools/call": {"content": []}})
    parts = {"a": Proxy(near)}
    backend = ComposedBackend(Implementation("all", "1"), parts, BoundedNames(parts), RULES)
    async with Host(backend) as host:
        ours, theirs = memory_pair()
        served = host.attach(theirs)
        client = Caller(ours, LEGACY, {})
        await client.initialize()
        await client.call("tools/call", name="a_run", arguments={})
        view = backend._view_of("a")
        assert len(view._sessions) == 1
        await ours.close(1)
        await served.closed
        await asyncio.sleep(0)
        assert not view._sessions
    assert script.over
