"""event_streams.py: notifications that belong to events/stream requests reach their client."""

from __future__ import annotations

from typing import Any

import pytest
from client.scripted import ERAS, LEGACY, MODERN, SILENCE, Refusal, Script, on_a_loop
from proxy.proxy_rig import Caller, proxied

from concertino.backend import Host
from concertino.proxy import Proxy
from concertino.transports.memory import memory_pair

SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"
EVENT = "notifications/events/event"
SERVER = {"events/stream": SILENCE}


def send_event(script: Script, request: dict[str, Any], cursor: str, **more: Any) -> None:
    meta = {SUBSCRIPTION: request["id"]}
    script.notify(EVENT, cursor=cursor, **more, _meta=meta)


async def begin_stream(caller: Caller, script: Script, name: str) -> tuple[int, dict[str, Any]]:
    """Send events/stream. Returns its id at the caller, and the request that the server got."""
    caller.checked = False
    id = caller.ask("events/stream", name=name)
    count = len(script.of("events/stream"))
    await script.until(lambda: len(script.of("events/stream")) > count)
    return id, script.of("events/stream")[-1]


@pytest.mark.parametrize("caller", [LEGACY, MODERN])
@pytest.mark.parametrize("server", ["legacy", "modern"])
@on_a_loop
async def test_a_notification_of_a_stream_gets_the_id_of_the_clients_request(
    server: str, caller: str
) -> None:
    async with proxied(SERVER, server=server, caller=caller) as (client, script):
        first, first_request = await begin_stream(client, script, "a")
        second, second_request = await begin_stream(client, script, "b")
        assert first_request["params"]["name"] == "a"
        send_event(script, second_request, "2")
        send_event(script, first_request, "1", data={"item": "soup"})
        await client.until(lambda: len(client.of(EVENT)) == 2)
        assert [line["params"] for line in client.of(EVENT)] == [
            {"cursor": "2", "_meta": {SUBSCRIPTION: second}},
            {"cursor": "1", "data": {"item": "soup"}, "_meta": {SUBSCRIPTION: first}},
        ]
        # The response comes after the last notification.
        send_event(script, first_request, "3")
        script.answer(first_request, {"resultType": "complete"})
        await client.response(first)
        assert client.of(EVENT)[-1]["params"]["cursor"] == "3"


@on_a_loop
async def test_streams_of_two_clients_of_one_server_do_not_mix() -> None:
    near, far = memory_pair()
    script = Script(far, ERAS["legacy"]() | SERVER)
    async with Host(Proxy(near, isolation="shared")) as host:
        one, two = [await attach(host) for _ in range(2)]
        _, first = await begin_stream(one, script, "a")
        _, second = await begin_stream(two, script, "a")
        send_event(script, second, "for two")
        send_event(script, first, "for one")
        await one.until(lambda: one.of(EVENT))
        await two.until(lambda: two.of(EVENT))
        assert [line["params"]["cursor"] for line in one.of(EVENT)] == ["for one"]
        assert [line["params"]["cursor"] for line in two.of(EVENT)] == ["for two"]
        for client in (one, two):
            await client.connection.close(1)


async def attach(host: Host) -> Caller:
    ours, theirs = memory_pair()
    host.attach(theirs)
    client = Caller(ours, LEGACY, {})
    await client.initialize()
    return client


@on_a_loop
async def test_a_stream_that_its_client_cancels_is_cancelled_at_the_server() -> None:
    async with proxied(SERVER) as (client, script):
        id, request = await begin_stream(client, script, "a")
        client.send({"method": "notifications/cancelled", "params": {"requestId": id}})
        await script.until(lambda: script.of("notifications/cancelled"))
        [cancelled] = script.of("notifications/cancelled")
        assert cancelled["params"]["requestId"] == request["id"]
        # What the server sends before it knows belongs to no request any more.
        send_event(script, request, "late")
        assert (await client.call("ping"))["result"] == {}
        assert client.of(EVENT) == []


@on_a_loop
async def test_the_servers_refusal_of_a_stream_reaches_the_client() -> None:
    def refuse(script: Script, message: dict[str, Any]) -> Any:
        raise Refusal(-32011, "NotFound", {"kind": "event"})

    async with proxied({"events/stream": refuse}) as (client, script):
        id, _ = await begin_stream(client, script, "a")
        assert (await client.response(id))["error"] == {
            "code": -32011, "message": "NotFound", "data": {"kind": "event"},
        }  # fmt: skip


@on_a_loop
async def test_the_end_of_the_server_ends_its_streams_with_an_error() -> None:
    async with proxied(SERVER) as (client, script):
        id, _ = await begin_stream(client, script, "a")
        await script.connection.close(1)
        assert (await client.response(id))["error"]["code"] == -32603
        script.over = True


@on_a_loop
async def test_events_for_a_client_that_does_not_read_are_limited() -> None:
    async with proxied(SERVER) as (client, script):
        id, request = await begin_stream(client, script, "a")
        client.connection.pause(True)
        text = "x" * 300_000
        for cursor in range(100):
            send_event(script, request, str(cursor), text=text)
        # Now the server is told that nobody wants more.
        await script.until(lambda: script.of("notifications/cancelled"))
        client.connection.pause(False)
        error = (await client.response(id))["error"]
        assert error["code"] == -32603
        assert "send events/stream again with the last cursor" in error["message"]
        # The first ones have come without a gap, so the client can go on after the last.
        cursors = [line["params"]["cursor"] for line in client.of(EVENT)]
        assert cursors == [str(number) for number in range(len(cursors))]
        assert len(cursors) < 100
