"""client/subscriptions.py: requests that stay open, in 2026-07-28 (basic/patterns/subscriptions,
basic/patterns/cancellation).
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from client.scripted import SILENCE, Refusal, Script, modern, on_a_loop, opened

from concertino.client.client import Timeouts
from concertino.errors import Disconnected, ProtocolError, RpcError, TimedOut

SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"
CALL = {"tools/call": {"resultType": "complete", "content": []}}


def acknowledge(script: Script, message: dict[str, Any]) -> Any:
    meta = {SUBSCRIPTION: message["id"]}
    wanted = message["params"]["notifications"]
    script.notify("notifications/subscriptions/acknowledged", _meta=meta, notifications=wanted)
    return SILENCE


LISTENING: dict[str, Any] = {"subscriptions/listen": acknowledge, **CALL}


def update(script: Script, message: dict[str, Any], uri: str) -> None:
    script.notify("notifications/resources/updated", uri=uri, _meta={SUBSCRIPTION: message["id"]})


@pytest.mark.requirement("SU-4", "SU-5", "SU-7", side="client")
@on_a_loop
async def test_several_are_open_at_once_and_each_is_told_apart() -> None:
    """SU-4, SU-5."""
    seen: list[str] = []
    async with opened(LISTENING, updated=seen.append) as (client, script):
        await asyncio.gather(*(client.subscribe(f"x:{n}") for n in range(20)))
        asked = script.of("subscriptions/listen")
        assert len({each["id"] for each in asked}) == 20
        await client.unsubscribe("x:3")
        for n, each in enumerate(asked):
            update(script, each, f"x:{n}")
        await client.call_tool("x")
        assert seen == [f"x:{n}" for n in range(20) if n != 3]
        [cancelled] = script.of("notifications/cancelled")
        assert cancelled["params"]["requestId"] == asked[3]["id"]


@on_a_loop
async def test_a_watch_that_is_refused_keeps_the_previous_one_until_the_next() -> None:
    def listen(script: Script, message: dict[str, Any]) -> Any:
        if message["params"]["notifications"]["resourceSubscriptions"] == ["x:2"]:
            raise Refusal(-32603, "busy")
        return acknowledge(script, message)

    async with opened({"subscriptions/listen": listen}) as (client, script):
        await client.watch(frozenset({"x:1"}))
        with pytest.raises(RpcError, match="busy"):
            await client.watch(frozenset({"x:2"}))
        assert script.of("notifications/cancelled") == []
        await client.watch(frozenset({"x:3"}))
        await script.until(lambda: script.of("notifications/cancelled"))
        first = script.of("subscriptions/listen")[0]
        assert [
            cancelled["params"]["requestId"] for cancelled in script.of("notifications/cancelled")
        ] == [first["id"]]


@pytest.mark.requirement("CA-4", side="client")
@pytest.mark.parametrize("order", ["result", "cancelled", "result cancelled", "cancelled result"])
@on_a_loop
async def test_the_server_may_end_it_with_a_result_or_a_cancel_or_both_in_either_order(
    order: str, caplog: pytest.LogCaptureFixture
) -> None:
    """SU-8 says SHOULD send the result, SU-9 MUST send the cancel: both are taken, and it can be
    made again.
    """
    async with opened(LISTENING) as (client, script):
        await client.subscribe("x:1")
        [asked] = script.of("subscriptions/listen")
        for each in order.split():
            if each == "result":
                script.answer(
                    asked, {"resultType": "complete", "_meta": {SUBSCRIPTION: asked["id"]}}
                )
            else:
                script.notify(
                    "notifications/cancelled", requestId=asked["id"], reason="shutting down"
                )
        await client.call_tool("x")
        assert caplog.text.count("the server ended a subscription") == 1
        assert client.stray == 0
        assert not client._connection.current.channel.peer.outgoing
        await client.subscribe("x:1")
        assert len(script.of("subscriptions/listen")) == 2
        assert script.of("notifications/cancelled") == []  # one that has ended is not cancelled
        await client.unsubscribe("x:1")
        await client.call_tool("x")
        assert len(script.of("notifications/cancelled")) == 1


@pytest.mark.requirement("SU-12", side="client")
@on_a_loop
async def test_it_has_no_time_limit_once_it_is_acknowledged() -> None:
    """SU-12."""
    seen: list[str] = []
    times = Timeouts(request_s=2, total_s=2)
    async with opened(
        {**LISTENING, "tools/list": SILENCE}, updated=seen.append, timeouts=times
    ) as (client, script):
        await client.subscribe("x:1")
        with pytest.raises(TimedOut):
            await client.list_tools()
        update(script, script.of("subscriptions/listen")[0], "x:1")
        await client.call_tool("x")
        assert seen == ["x:1"]


@on_a_loop
async def test_one_that_is_not_acknowledged_is_given_up_in_time_and_the_server_is_told() -> None:
    times = Timeouts(request_s=0.05)
    async with opened({"subscriptions/listen": SILENCE}, timeouts=times) as (client, script):
        with pytest.raises(
            TimedOut, match=r"subscriptions/listen x:1: not acknowledged within 0\.05 s"
        ):
            await client.subscribe("x:1")
        await script.until(lambda: script.of("notifications/cancelled"))
        assert not client._connection.current.channel.peer.outgoing


@on_a_loop
async def test_one_that_is_refused_raises_what_the_server_says() -> None:
    def refuse(script: Script, message: dict[str, Any]) -> Any:
        raise Refusal(-32603, "Subscription limit reached")

    async with opened({"subscriptions/listen": refuse}) as (client, _):
        with pytest.raises(RpcError, match="Subscription limit reached"):
            await client.subscribe("x:1")
        assert not client._connection.current.channel.peer.outgoing


@on_a_loop
async def test_a_caller_that_is_cancelled_leaves_no_subscription() -> None:
    async with opened({"subscriptions/listen": SILENCE, **CALL}) as (client, script):
        subscribing = asyncio.ensure_future(client.subscribe("x:1"))
        await script.until(lambda: script.of("subscriptions/listen"))
        subscribing.cancel()
        await asyncio.wait([subscribing])
        await client.call_tool("x")
        assert len(script.of("notifications/cancelled")) == 1
        acknowledge(script, script.of("subscriptions/listen")[0])  # too late
        await client.call_tool("x")
        assert not client._connection.current.channel.peer.outgoing


@on_a_loop
async def test_the_same_subscribed_twice_at_once_is_open_once() -> None:
    async with opened(LISTENING) as (client, script):
        await asyncio.gather(client.subscribe("x:1"), client.subscribe("x:1"))
        await client.call_tool("x")
        assert (
            len(script.of("subscriptions/listen")) - len(script.of("notifications/cancelled")) == 1
        )
        await client.unsubscribe("x:1")
        await client.call_tool("x")
        assert len(script.of("subscriptions/listen")) == len(script.of("notifications/cancelled"))


@pytest.mark.parametrize("like", ["modern", "legacy"])
@on_a_loop
async def test_a_server_that_is_gone_is_said_at_once_to_who_subscribes(like: str) -> None:
    async with opened({"subscriptions/listen": SILENCE, "resources/subscribe": SILENCE}, like) as (
        client,
        script,
    ):
        subscribing = asyncio.ensure_future(client.subscribe("x:1"))
        await script.until(
            lambda: script.of("subscriptions/listen") + script.of("resources/subscribe")
        )
        await script.connection.close(0)
        with pytest.raises(Disconnected, match="the connection ended before the answer came"):
            await subscribing
        with pytest.raises(Disconnected, match="the connection ended"):
            await client.subscribe("x:2")
        script.over = True  # it closed first


@pytest.mark.requirement("SU-6", side="client")
@pytest.mark.parametrize("honoured", [{"toolsListChanged": True}, {}])
@on_a_loop
async def test_a_list_whose_changes_a_server_declares_and_does_not_tell_is_no_reason_not_to_use_it(
    honoured: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """SU-6: the acknowledged filter is compared with the one that was wanted."""

    def listen(script: Script, message: dict[str, Any]) -> Any:
        meta = {SUBSCRIPTION: message["id"]}
        script.notify(
            "notifications/subscriptions/acknowledged", _meta=meta, notifications=honoured
        )
        return SILENCE

    offers = modern(capabilities={"tools": {"listChanged": True}, "prompts": {"listChanged": True}})
    async with opened(
        {**offers, "subscriptions/listen": listen, **CALL}, changed=lambda _: None
    ) as (client, script):
        [asked] = script.of("subscriptions/listen")
        assert asked["params"]["notifications"] == {
            "toolsListChanged": True,
            "promptsListChanged": True,
        }
        assert (await client.call_tool("x")).content == []
        assert "promptsListChanged and does not provide it" in caplog.text


@pytest.mark.requirement("CA-7", "CA-8", side="client")
@pytest.mark.parametrize(
    "params",
    [
        {},
        {"_meta": 5},
        {"_meta": {}},
        {"_meta": {SUBSCRIPTION: None}},
        {"_meta": {SUBSCRIPTION: "1"}},
        {"_meta": {SUBSCRIPTION: True}, "notifications": 5},
    ],
)
@on_a_loop
async def test_acknowledgements_and_cancels_that_make_no_sense_are_ignored(params: Any) -> None:
    def listen(script: Script, message: dict[str, Any]) -> Any:
        script.notify("notifications/subscriptions/acknowledged", **params)
        script.notify("notifications/cancelled", **params)
        script.notify("notifications/cancelled", requestId="another")
        return acknowledge(script, message)

    async with opened({"subscriptions/listen": listen, **CALL}) as (client, _):
        await client.subscribe("x:1")
        await client.call_tool("x")


@on_a_loop
async def test_an_acknowledgement_of_another_shape_is_said() -> None:
    def listen(script: Script, message: dict[str, Any]) -> Any:
        meta = {SUBSCRIPTION: message["id"]}
        script.notify("notifications/subscriptions/acknowledged", _meta=meta, notifications="all")
        return SILENCE

    async with opened({"subscriptions/listen": listen}) as (client, _):
        with pytest.raises(ProtocolError, match=r"subscriptions/listen x:1: the acknowledgement"):
            await client.subscribe("x:1")
