"""hub_events.py, plugin_events.py: events between plugins that are processes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from loops import on_a_loop
from orchestra.hubs import SOMEBODY, call_tool, raw, running, sdk, store, until, write_plugins_file

from concertino import Client
from concertino.orchestra import refusal_log
from concertino.orchestra.bridge import Bridge
from concertino.orchestra.client_events import ClientEvents
from concertino.orchestra.event_log import EventLog, EventReader
from concertino.orchestra.hub import Hub
from concertino.orchestra.hub_backend import HubBackend
from concertino.orchestra.hub_events import HubEvents, _with_positions
from concertino.orchestra.plugin_pb2 import (
    EventDelivery,
    PluginRequest,
    PluginResponse,
    Publish,
    StorageWriteRequest,
    StorageWriteResponse,
    StreamStart,
    Subscribe,
)
from concertino.orchestra.plugins_file import read_plugins
from concertino.orchestra.streams import ResponseStream
from concertino.orchestra.structs import pack, unpack

PUBLISHER = """
from concertino import Plugin
plugin = Plugin("tools.shop")
@plugin.tool
async def order(item: str, to: str = "all") -> str:
    await plugin.publish("orders", {"item": item, "to": to, "number": 2**60}, "created")
    return "ordered"
plugin.run()
"""
# Writes what it gets into the file LOG, one line of JSON for each event.
SUBSCRIBER = """
import json, os
from concertino import Plugin
plugin = Plugin("tools.kitchen")
log = os.environ["LOG"]
def note(name, event):
    with open(log, "a") as file:
        line = [name, event.type, event.payload["item"], event.payload["number"], event.source]
        file.write(json.dumps(line) + "\\n")
@plugin.on_event("orders")
async def on_order(event):
    if event.payload["item"] == "die" and not os.path.exists(log + ".died"):
        open(log + ".died", "w").close()
        os._exit(9)
    note("all", event)
@plugin.on_event("orders", filters={"to": "me"})
def on_mine(event):
    note("mine", event)
    if event.payload["item"] == "bad":
        raise ValueError("no such dish")
plugin.run()
"""


def publish(item: str, to: str = "all") -> PluginRequest:
    payload = pack({"item": item, "to": to, "number": 1}).struct
    return PluginRequest(publish=Publish(topic="orders", payload=payload, source_plugin="me"))


async def lines(log: Path, count: int) -> list[list[object]]:
    """Wait until a file has so many lines, and return them."""
    async with asyncio.timeout(60):
        while not log.exists() or log.read_text().count("\n") < count:
            await asyncio.sleep(0.01)
    return [json.loads(line) for line in log.read_text().splitlines()]


def kitchen(folder: Path) -> Path:
    log = {"LOG": str(folder / "log")}
    return write_plugins_file(
        folder,
        sdk(folder, "tools.shop", PUBLISHER),
        sdk(folder, "tools.kitchen", SUBSCRIBER, env=log),
    )


async def subscribed(hub: Hub) -> None:
    """Wait until the kitchen has registered its two subscriptions."""
    async with asyncio.timeout(60):
        while len(hub._events._deliveries) < 2:
            await asyncio.sleep(0.01)


@on_a_loop
async def test_events_reach_the_functions_of_other_plugins(folder: Path) -> None:
    async with running(kitchen(folder)) as hub:
        await subscribed(hub)
        assert (await call_tool(hub, "order", item="soup")).tool_call.success
        await lines(folder / "log", 1)
        await call_tool(hub, "order", item="cake", to="me")
        heard = await lines(folder / "log", 3)
    assert heard[0] == ["all", "created", "soup", 2**60, "tools.shop"]
    assert sorted(map(str, (line[:3] for line in heard[1:]))) == [
        "['all', 'created', 'cake']",
        "['mine', 'created', 'cake']",
    ]


@on_a_loop
async def test_an_event_that_happens_while_a_position_is_sent_comes_at_once() -> None:
    log = EventLog()
    for _ in range(1001):
        log.publish_soon(Publish(topic="b"), "x")
    # It begins before events that it does not want. The second position is behind all of them.
    subscribe = Subscribe(topic="a", after=log.cursor_of(0), positions=True)
    found = _with_positions(EventReader(log, subscribe))
    assert (await anext(found)).cursor == log.cursor_of(0)
    assert (await anext(found)).cursor == log.cursor_of(1001)
    log.publish_soon(Publish(topic="a"), "x")
    news = asyncio.ensure_future(anext(found))
    await asyncio.sleep(0)
    assert news.done()
    assert news.result().topic == "a"


@on_a_loop
async def test_an_event_is_sent_again_to_a_plugin_that_died_with_it(folder: Path) -> None:
    async with running(kitchen(folder)) as hub:
        await subscribed(hub)
        for item in ("one", "die", "two"):
            await hub.answer(publish(item), SOMEBODY)
        heard = await lines(folder / "log", 3)
        assert [line[2] for line in heard] == ["one", "die", "two"]
        assert hub.plugins["tools.kitchen"].restarts == 1

        # What is published while it is down arrives when it is back.
        pid = hub.plugins["tools.kitchen"].pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await until(hub, "tools.kitchen", "backing-off")
        await hub.answer(publish("three"), SOMEBODY)
        assert (await lines(folder / "log", 4))[3][2] == "three"


@on_a_loop
async def test_a_function_that_raises_does_not_hold_up_the_next_event(
    folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refusal_log, "INTERVAL_S", 1e9)
    async with running(kitchen(folder)) as hub:
        await subscribed(hub)
        await hub.answer(publish("bad", "me"), SOMEBODY)
        await hub.answer(publish("good", "me"), SOMEBODY)
        heard = await lines(folder / "log", 4)
        assert sorted(str(line[2]) for line in heard) == ["bad", "bad", "good", "good"]
        failure = "tools.kitchen: handling an event has failed: orders: ValueError: no such dish"
        assert caplog.messages.count(failure) == 1
        # Many failures get few lines.
        for _ in range(50):
            await hub.answer(publish("bad", "me"), SOMEBODY)
        await lines(folder / "log", 104)
    assert caplog.messages.count(failure) == refusal_log.FIRST
    assert (
        f"tools.kitchen: {51 - refusal_log.FIRST} more events were not handled" in caplog.messages
    )


# A Go program declares topics in its manifest or subscribes by a request, and answers with an
# empty response. Its Publish has no fields of ours.
LIKE_GO = """
easy = answer
async def answer(request, peer):
    if request.HasField("boot"):
        link = await open_link(hub)
        await link.request(PluginRequest(register=PluginManifest(
            id="tools.go", needs_events=["auto"])))
        told = await link.request(PluginRequest(subscribe=Subscribe(
            subscription_id="s", topic="asked", filters={"to": "go"})))
        assert told.event_delivery.subscription_id == "s", told
    if request.HasField("publish"):
        with open(__file__ + ".log", "a") as file:
            file.write(f'["{request.publish.topic}", "{request.publish.subscription_id}"]\\n')
        if request.publish.event_type == "last":
            await (await open_link(hub)).request(PluginRequest(
                unsubscribe=Unsubscribe(subscription_id="s")))
        return PluginResponse()
    return await easy(request, peer)
"""


@on_a_loop
async def test_plugins_of_the_go_sdk_subscribe_by_manifest_and_by_request(folder: Path) -> None:
    async with running(write_plugins_file(folder, raw(folder, "tools.go", LIKE_GO))) as hub:
        payload = pack({"to": "go"}).struct
        log = folder / "tools_go.py.log"
        for topic, type in (("auto", ""), ("asked", ""), ("other", ""), ("asked", "last")):
            event = Publish(topic=topic, event_type=type, payload=payload)
            await hub.answer(PluginRequest(publish=event), SOMEBODY)
        expected = ["asked", "s"]
        heard = await lines(log, 3)
        assert sorted(heard) == [expected, expected, ["auto", "auto-tools.go-auto"]]
        async with asyncio.timeout(60):
            while len(hub._events._deliveries) > 1:
                await asyncio.sleep(0.01)
        for topic in ("asked", "auto"):
            event = Publish(topic=topic, payload=payload)
            await hub.answer(PluginRequest(publish=event), SOMEBODY)
        assert (await lines(log, 4))[3:] == [["auto", "auto-tools.go-auto"]]


@on_a_loop
async def test_others_than_plugins_get_events_as_a_stream(folder: Path) -> None:
    async with running(write_plugins_file(folder)) as hub:
        subscribe = Subscribe(subscription_id="x", topic="orders")
        refused = await hub.answer(PluginRequest(subscribe=subscribe), SOMEBODY)
        assert refused.tool_call.error_code == "not_a_plugin"

        events = hub.stream(StreamStart(stream_id="s", subscribe=subscribe), SOMEBODY)
        first = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0)
        await hub.answer(publish("soup"), SOMEBODY)
        chunk = (await first).stream_chunk
        assert (chunk.stream_id, chunk.content_type) == ("s", "application/x-orchestra-event")
        event = EventDelivery.FromString(chunk.data)
        assert (event.subscription_id, event.cursor[8:]) == ("x", "-1")
        assert unpack(event.payload) == {"item": "soup", "to": "all", "number": 1}
        await events.aclose()

        # It goes on behind the last event that it has.
        await hub.answer(publish("cake"), SOMEBODY)
        subscribe.after = event.cursor
        events = hub.stream(StreamStart(stream_id="s", subscribe=subscribe), SOMEBODY)
        event = EventDelivery.FromString((await anext(events)).stream_chunk.data)
        assert unpack(event.payload)["item"] == "cake"
        await events.aclose()

        invalid = StreamStart(stream_id="s", subscribe=Subscribe())
        [end] = [response async for response in hub.stream(invalid, SOMEBODY)]
        assert end.stream_end.error_code == "validation_error"
        unusable = await hub.answer(PluginRequest(publish=Publish()), SOMEBODY)
        assert unusable.tool_call.error_message == "topic: expected 1 to 256 characters, got 0"


STORE = """
from concertino import Plugin
from concertino.orchestra.storage import StoredDocument
plugin = Plugin("storage.memory")
class Memory:
    def read(self, path): return StoredDocument(b"text", {}, 1)
    def write(self, path, content, metadata, expected_version): return 1
    def delete(self, path): pass
    def list(self, prefix, pattern): return []
plugin.add_storage(Memory())
plugin.run()
"""


@pytest.mark.parametrize("capability", [["orders"], "orders", 1, {"topics": "orders"}])
def test_a_client_whose_capability_has_another_form_gets_no_events(capability: object) -> None:
    context: Any = SimpleNamespace(
        caller=SimpleNamespace(session=object()),
        client=SimpleNamespace(capabilities={"experimental": {"orchestra/events": capability}}),
    )
    unused: Any = None
    # Without an event loop, this would fail if it began to read events.
    ClientEvents(unused, unused).on_call(context)


@pytest.mark.parametrize("is_remote", [False, True])
@on_a_loop
async def test_clients_get_updates_of_stored_documents_and_the_events_that_they_ask_for(
    folder: Path, is_remote: bool
) -> None:
    path = write_plugins_file(folder, sdk(folder, "storage.memory", STORE))
    heard: asyncio.Queue[object] = asyncio.Queue()
    capability = {"experimental": {"orchestra/events": {"topics": ["orders"]}}}

    async def refuse(method: str, params: bytes) -> bytes:
        raise AssertionError(method)

    options: dict[str, Any] = {
        "updated": heard.put_nowait,
        "notified": lambda method, params: heard.put_nowait((method, params)),
        "capabilities": capability,
        "answer_any": refuse,
        "era": "legacy",
    }
    hub = Hub(read_plugins(path), is_private=not is_remote, listen_addr=f"unix:{folder}/hub")
    backend = HubBackend(lambda request, _: hub.answer(request, SOMEBODY), stream=stream_of(hub))
    await hub.start()
    try:
        if is_remote:
            backend = Bridge(f"unix:{folder}/hub")
        async with Client(backend, **options) as client, asyncio.timeout(60):
            await client.list_tools()
            await client.subscribe("orchestra://notes/a%20b")
            # The streams of events begin behind the newest event: send until one arrives.
            while heard.empty():
                await store(hub, "notes/a b.md", b"x")
                await hub.answer(publish("soup"), SOMEBODY)
                await asyncio.sleep(0.05)
            found = [await heard.get(), await heard.get()]
        event = {"topic": "orders", "event_type": "", "source": "me"}
        event["payload"] = {"item": "soup", "to": "all", "number": 1}  # type: ignore[assignment]
        assert "orchestra://notes/a%20b" in found
        assert ("notifications/event", event) in found
    finally:
        await hub.stop()


def stream_of(hub: Hub) -> Callable[[PluginRequest, float], ResponseStream]:
    return lambda request, _: hub.stream(request.stream_start, SOMEBODY)


def test_a_document_whose_path_is_too_long_for_an_event_is_written_all_the_same(
    caplog: pytest.LogCaptureFixture,
) -> None:
    write = StorageWriteRequest(path="x" * 2**20, storage_type="markdown")
    done = PluginResponse(storage_write=StorageWriteResponse(success=True))
    HubEvents().on_storage(PluginRequest(storage_write=write), "storage_write", done)
    assert "nobody is told of a document that was written: expected an event of at most" in (
        caplog.text
    )
