"""mcp_events.py: events/* as the triggers-and-events draft describes them, at a real hub."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from http_service import modern, modern_headers
from loops import on_a_loop
from orchestra.hubs import SOMEBODY, sdk, write_plugins_file
from stdio.harness import Process, call, notification, request

from concertino import Server, compose
from concertino.backend import Backend, ChangeKind, Host, Principal
from concertino.client import RawClient
from concertino.errors import ConcertinoError, Disconnected, RpcError
from concertino.guards import Redact, TimeLimit
from concertino.http import Authorization, HttpOptions, HttpServer
from concertino.orchestra import client_events
from concertino.orchestra.bridge import Bridge
from concertino.orchestra.event_log import EventLog
from concertino.orchestra.hub import Hub
from concertino.orchestra.hub_backend import HubBackend
from concertino.orchestra.hub_events import EVENT_TYPE
from concertino.orchestra.mcp_events import _is_visible
from concertino.orchestra.plugin_messages import (
    EventDelivery,
    PluginRequest,
    PluginResponse,
    Publish,
    StreamChunk,
    Timestamp,
)
from concertino.orchestra.plugins_file import read_plugins
from concertino.orchestra.rpc_interface import error_response
from concertino.orchestra.streams import ResponseStream
from concertino.orchestra.structs import pack
from concertino.proxy import Proxy
from concertino.transports import connect, listen_tcp, memory_pair

INITIALIZE = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "c", "version": "1"},
}
SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"


class Rig:
    """A hub, a client of it, and the notifications that the client has got."""

    def __init__(self, hub: Hub, client: RawClient, heard: asyncio.Queue[Any]) -> None:
        self.hub = hub
        self.client = client
        self.heard = heard

    async def publish(
        self, item: str, topic: str = "orders", audience: str = "", **more: Any
    ) -> None:
        payload = pack({"item": item, **more}).struct
        event = Publish(
            topic=topic, event_type="created", payload=payload, source_plugin="me",
            audience=audience,
        )  # fmt: skip
        response = await self.hub.answer(PluginRequest(publish=event), SOMEBODY)
        assert not response.HasField("tool_call"), response

    async def poll(self, cursor: str | None, **params: Any) -> Any:
        return await self.client.request(
            "events/poll", {"name": "orders", "cursor": cursor, **params}
        )

    def stream(self, cursor: str | None = None, **params: Any) -> asyncio.Task[Any]:
        request = {"name": "orders", "cursor": cursor, **params}
        return asyncio.ensure_future(self.client.request("events/stream", request))

    @property
    def log(self) -> EventLog:
        return self.hub._events._log


def with_hub(hub: Hub) -> HubBackend:
    return HubBackend(
        lambda request, _: hub.answer(request, SOMEBODY),
        stream=lambda request, _: hub.stream(request.stream_start, SOMEBODY),
    )


def guarded(hub: Hub) -> Backend:
    return Redact(with_hub(hub))


def time_limited(hub: Hub) -> Backend:
    return TimeLimit(with_hub(hub), 0.01)


def bridged(hub: Hub) -> Backend:
    return Bridge(hub.addresses[0])


def composed(hub: Hub) -> Backend:
    return compose(other=Server("other"), hub=with_hub(hub))


@asynccontextmanager
async def running(
    folder: Path, backend_of: Callable[[Hub], Backend] = with_hub
) -> AsyncIterator[Rig]:
    hub = Hub(read_plugins(write_plugins_file(folder)), listen_addr=f"unix:{folder}/hub")
    await hub.start()
    heard: asyncio.Queue[Any] = asyncio.Queue()
    try:
        async with Host(backend_of(hub)) as host:
            ours, theirs = memory_pair()
            served = host.attach(theirs)
            client = connect(ours, lambda method, params: heard.put_nowait((method, params)))
            result = await client.request("initialize", INITIALIZE)
            assert result["capabilities"]["events"] == {}
            rig = Rig(hub, client, heard)
            # The topic is known from its first event on.
            await rig.publish("first")
            yield rig
            await client.aclose()
            await served.closed
    finally:
        await hub.stop()


def items(result: Any) -> list[str]:
    return [event["data"]["item"] for event in result["events"]]


async def refusal(request: Any) -> tuple[int, Any]:
    with pytest.raises(RpcError) as refused:
        await request
    return refused.value.code, refused.value.data


@on_a_loop
async def test_a_poll_without_a_cursor_begins_now_and_the_next_goes_on_there(folder: Path) -> None:
    async with running(folder) as rig:
        begun = await rig.poll(None)
        assert begun == {
            "events": [],
            "cursor": begun["cursor"],
            "truncated": False,
            "hasMore": False,
            "nextPollMs": 5000,
        }
        await rig.publish("soup", number=2**60)
        await rig.publish("other", topic="others")
        await rig.publish("cake")
        found = await rig.poll(begun["cursor"])
        first = found["events"][0]
        assert abs(datetime.fromisoformat(first["timestamp"]).timestamp() - time.time()) < 60
        assert first == {
            "eventId": first["eventId"],
            "name": "orders",
            "timestamp": first["timestamp"],
            "data": {"item": "soup", "number": 2**60},
            "_meta": {"orchestra/type": "created", "orchestra/source": "me"},
        }
        assert items(found) == ["soup", "cake"]
        assert (found["truncated"], found["hasMore"]) == (False, False)
        # The same events have the same ids, and filters are arguments.
        again = await rig.poll(begun["cursor"], arguments={"item": "cake"})
        assert again["events"] == found["events"][1:]
        assert items(await rig.poll(found["cursor"])) == []


@on_a_loop
async def test_a_poll_returns_a_limited_batch_and_says_that_there_is_more(folder: Path) -> None:
    async with running(folder) as rig:
        cursor = (await rig.poll(None))["cursor"]
        for item in ("a", "b", "c"):
            await rig.publish(item, text="x" * 500_000)
        part = await rig.poll(cursor, maxEvents=1)
        assert (items(part), part["hasMore"]) == (["a"], True)
        # Two of them fit into 1 MiB.
        part = await rig.poll(cursor)
        assert (items(part), part["hasMore"]) == (["a", "b"], True)
        part = await rig.poll(part["cursor"])
        assert (items(part), part["hasMore"]) == (["c"], False)


@on_a_loop
async def test_a_gap_is_reported_with_a_fresh_cursor(folder: Path) -> None:
    async with running(folder) as rig:
        cursor = (await rig.poll(None))["cursor"]
        await rig.publish("old")
        # The log has dropped the two oldest events.
        rig.log._max_bytes = 1
        await rig.publish("lost")
        rig.log._max_bytes = 2**20
        await rig.publish("kept")
        found = await rig.poll(cursor)
        assert (items(found), found["truncated"]) == (["kept"], True)
        # A cursor from before a restart of the hub.
        found = await rig.poll("00000000-7")
        assert (items(found), found["truncated"]) == (["kept"], True)
        assert not (await rig.poll(found["cursor"]))["truncated"]


@on_a_loop
async def test_events_that_are_too_old_for_the_client_are_skipped(folder: Path) -> None:
    async with running(folder) as rig:
        cursor = (await rig.poll(None))["cursor"]
        await rig.publish("old")
        await rig.publish("new")
        first = rig.log.first
        for number in (first, first + 1):
            event = rig.log.get(number)
            assert event is not None
            event.delivery.timestamp.CopyFrom(Timestamp(seconds=1))
        found = await rig.poll(cursor, maxAgeMs=60_000)
        assert (items(found), found["truncated"]) == (["new"], True)
        assert items(await rig.poll(cursor)) == ["old", "new"]

        stream = rig.stream(cursor, maxAgeMs=60_000)
        method, params = await rig.heard.get()
        assert (method, params["truncated"]) == ("notifications/events/active", True)
        method, params = await rig.heard.get()
        assert (method, params["data"]["item"]) == ("notifications/events/event", "new")
        stream.cancel()


@on_a_loop
async def test_an_old_event_for_somebody_else_is_not_reported_as_missing(folder: Path) -> None:
    async with running(folder) as rig:
        cursor = (await rig.poll(None))["cursor"]
        await rig.publish("secret", audience="ann")
        event = rig.log.get(rig.log.last)
        assert event is not None
        event.delivery.timestamp.CopyFrom(Timestamp(seconds=1))
        guess = {"maxAgeMs": 1, "arguments": {"item": "secret"}}
        found = await rig.poll(cursor, **guess)
        assert (items(found), found["truncated"]) == ([], False)
        stream = rig.stream(cursor, **guess)
        assert (await rig.heard.get())[1]["truncated"] is False
        stream.cancel()


@pytest.mark.parametrize(
    ("audience", "issuer", "expected"),
    [
        ("ann", "https://a.example", True),
        ("https://a.example ann", "https://a.example", True),
        ("https://a.example ann", "https://b.example", False),
        ("ann", "unix:", False),
    ],
)
def test_an_audience_may_name_the_issuer_of_its_subject(
    audience: str, issuer: str, expected: bool
) -> None:
    ann = Principal("ann", "client", issuer)
    assert _is_visible(EventDelivery(audience=audience), ann) is expected
    # Another issuer cannot name a user so that the event is for this user.
    forged = Principal("https://a.example ann", "client", "https://b.example")
    assert not _is_visible(EventDelivery(audience="https://a.example ann"), forged)


class Updates:
    """Passes reported updates of resources on."""

    def __init__(self, report_update: Callable[[str], None]) -> None:
        self.report_update = report_update

    def report_change(self, what: ChangeKind) -> None:
        raise AssertionError("no list has changed")


def refusing(code: str) -> Callable[[Hub], Backend]:
    """A hub that refuses streams, which must have the time limit of a request."""

    async def refuse(request: PluginRequest, timeout_s: float) -> ResponseStream:
        assert timeout_s == 30
        yield error_response("", code, "text")

    return lambda hub: HubBackend(lambda request, _: hub.answer(request, SOMEBODY), stream=refuse)


@pytest.mark.parametrize(("code", "expected"), [("unknown_request", -32014), ("busy", -32603)])
@on_a_loop
async def test_only_a_hub_without_streams_is_reported_as_unsupported(
    folder: Path, code: str, expected: int
) -> None:
    async with running(folder, refusing(code)) as rig:
        assert (await refusal(rig.poll(None)))[0] == expected


@on_a_loop
async def test_an_event_that_cannot_be_decoded_is_an_error(folder: Path) -> None:
    async def garbage(request: PluginRequest, timeout_s: float) -> ResponseStream:
        yield PluginResponse(stream_chunk=StreamChunk(data=b"\xff"))

    def backend(hub: Hub) -> Backend:
        return HubBackend(lambda request, _: hub.answer(request, SOMEBODY), stream=garbage)

    async with running(folder, backend) as rig:
        with pytest.raises(RpcError, match="orchestrator: an event of the hub cannot be decoded"):
            await rig.poll(None)


@on_a_loop
async def test_after_an_event_that_cannot_be_decoded_the_next_stream_begins(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(client_events, "RETRY_S", 0.0)
    written = EventDelivery(topic="storage.changed")
    uri = "tool://tasks/1"
    written.payload = pack({"path": uri, "storage_type": "mcp"}).struct
    chunks = [b"\xff", written.SerializeToString()]

    async def one(chunk: bytes) -> ResponseStream:
        yield PluginResponse(stream_chunk=StreamChunk(content_type=EVENT_TYPE, data=chunk))
        if chunk != b"\xff":
            await asyncio.Event().wait()

    async def no_answer(request: PluginRequest, timeout_s: float) -> PluginResponse:
        raise Disconnected("nobody")

    updated: asyncio.Queue[str] = asyncio.Queue()
    events = client_events.ClientEvents(no_answer, lambda request, _: one(chunks.pop(0)))
    events.start(Updates(updated.put_nowait))
    events.watch(frozenset({uri}))
    async with asyncio.timeout(10):
        assert await updated.get() == uri
    await events.close()
    assert "an event of the hub cannot be decoded" in caplog.text


@on_a_loop
async def test_a_proxy_passes_lists_and_polls_on(folder: Path) -> None:
    async with running(folder, lambda hub: Proxy(with_hub(hub))) as rig:
        topics = await rig.client.request("events/list", {})
        assert [event["name"] for event in topics["events"]] == ["orders", "storage.changed"]
        cursor = (await rig.poll(None))["cursor"]
        await rig.publish("soup")
        assert items(await rig.poll(cursor)) == ["soup"]


# A guard's time limit is for calls of tools, prompts and resources, and not for streams.
@pytest.mark.parametrize("backend_of", [with_hub, time_limited, bridged, composed])
@on_a_loop
async def test_a_stream_sends_events_as_notifications_until_it_is_cancelled(
    folder: Path, backend_of: Callable[[Hub], Backend], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("concertino.orchestra.hub_events.POSITION_S", 0.05)
    async with running(folder, backend_of) as rig:
        cursor = (await rig.poll(None))["cursor"]
        await rig.publish("missed")
        stream = rig.stream(cursor)
        meta = {SUBSCRIPTION: 3}
        active = {"cursor": cursor, "truncated": False, "_meta": meta}
        assert await rig.heard.get() == ("notifications/events/active", active)
        method, event = await rig.heard.get()
        assert method == "notifications/events/event"
        assert event["data"] == {"item": "missed"}
        assert (event["eventId"], event["_meta"]) == (event["cursor"], meta)

        # While nothing happens that the client wants, its position moves on nevertheless.
        await rig.publish("x", topic="others")
        while (await rig.heard.get())[1]["cursor"] == event["cursor"]:
            pass
        await rig.publish("soup")
        while (heard := await rig.heard.get())[0] != "notifications/events/event":
            assert heard[0] == "notifications/events/heartbeat"
        assert heard[1]["data"] == {"item": "soup"}
        stream.cancel()
        # Nothing of the stream is left at the hub.
        while rig.log._waiting:
            await asyncio.sleep(0.01)


@on_a_loop
async def test_the_end_of_the_server_ends_streams_with_a_result(folder: Path) -> None:
    async with running(folder) as rig:
        stream = rig.stream()
        await rig.heard.get()
        # The client half-closes, as a host does that ends a server over stdio.
        rig.client._connection.other._receiver.on_eof()  # type: ignore[attr-defined]
        begun = time.monotonic()
        assert await stream == {}
        # It does not take the time that is for calls.
        assert time.monotonic() - begun < 1.9


@on_a_loop
async def test_a_client_that_leaves_with_a_stream_cuts_off_no_call(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(folder) as rig:
        stream = rig.stream()
        await rig.heard.get()
        lost = ConnectionResetError("the client has crashed")
        rig.client._connection.other._receiver.on_disconnect(lost)  # type: ignore[attr-defined]
        while rig.log._waiting:
            await asyncio.sleep(0.01)
    assert "cut off" not in caplog.text
    with pytest.raises(ConcertinoError):
        await stream


@on_a_loop
async def test_the_errors_of_the_draft(folder: Path) -> None:
    async with running(folder) as rig:
        ask = rig.client.request
        poll = {"name": "orders", "cursor": None}
        for method in ("events/poll", "events/stream"):
            for name in ("unheard", "*", "resources.watched"):
                unknown = await refusal(ask(method, {**poll, "name": name}))
                assert unknown == (-32011, {"kind": "event"})
            for wrong in (
                {"cursor": "x"},
                {"cursor": 1},
                {"arguments": {"item": 1}},
                {"arguments": dict.fromkeys(map(str, range(33)), "")},
                {"maxEvents": 0},
                {"maxAgeMs": -1},
                {"maxAgeMs": 10**18},
            ):
                assert (await refusal(ask(method, {**poll, **wrong})))[0] == -32602
        assert (await refusal(ask("events/poll", {})))[0] == -32602
        # Webhooks need a user, and there is none here.
        assert (await refusal(ask("events/subscribe", poll)))[0] == -32012
        assert (await refusal(ask("events/other", poll)))[0] == -32601

        streams = [rig.stream() for _ in range(16)]
        for _ in streams:
            await rig.heard.get()
        exhausted = await refusal(rig.stream())
        assert exhausted == (-32013, {"limit": "subscriptions", "max": 16})
        streams[0].cancel()
        while True:
            # The place is free when the cancellation has arrived.
            last = rig.stream()
            done, _ = await asyncio.wait(
                (last, heard := asyncio.ensure_future(rig.heard.get())),
                return_when=asyncio.FIRST_COMPLETED,
            )
            if heard in done:
                break
        for stream in (last, *streams):
            stream.cancel()


@on_a_loop
async def test_the_list_has_the_topics_of_events_and_of_the_hub(folder: Path) -> None:
    async with running(folder) as rig:
        await rig.publish("x", topic="resources.watched")
        listed = await rig.client.request("events/list")
        assert [item["name"] for item in listed["events"]] == ["orders", "storage.changed"]
        assert listed["events"][0]["delivery"] == ["push", "poll"]
        assert (await refusal(rig.client.request("events/list", {"cursor": "x"})))[0] == -32602


@on_a_loop
async def test_a_guard_redacts_secrets_in_events(folder: Path) -> None:
    async with running(folder, guarded) as rig:
        cursor = (await rig.poll(None))["cursor"]
        await rig.publish("ghp_" + "a1B2" * 9)
        assert items(await rig.poll(cursor)) == ["[REDACTED]"]
        stream = rig.stream(cursor)
        await rig.heard.get()
        assert (await rig.heard.get())[1]["data"] == {"item": "[REDACTED]"}
        stream.cancel()


class Connection:
    """One HTTP connection that sends requests of 2026-07-28 with a token."""

    def __init__(self, port: int, token: str) -> None:
        self._port = port
        self._token = token

    async def post(self, method: str, **params: Any) -> None:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        message = modern(method, **params)
        body = json.dumps(message).encode()
        headers = {
            "Host": "localhost",
            "Content-Type": "application/json",
            "Authorization": f"Bearer {self._token}",
            "Content-Length": str(len(body)),
            **modern_headers(message),
        }
        lines = [f"{name}: {value}" for name, value in headers.items()]
        self._writer.write("\r\n".join(["POST /mcp HTTP/1.1", *lines, "", ""]).encode() + body)

    async def read(self) -> Any:
        """The next message that is no heartbeat, in the body or in an event."""
        size = 0
        while True:
            line = await self._reader.readline()
            assert line, "the response has ended"
            if line.startswith(b"Content-Length: "):
                size = int(line[16:])
            if line == b"\r\n" and size:
                return json.loads(await self._reader.readexactly(size))
            text = line.removeprefix(b"data: ")
            if text.startswith(b"{") and b"/heartbeat" not in text:
                return json.loads(text)

    def close(self) -> None:
        self._writer.transport.abort()


def identify(token: str) -> Principal:
    return Principal(token, "client")


@on_a_loop
async def test_over_http_events_for_one_user_reach_only_this_user(folder: Path) -> None:
    hub = Hub(read_plugins(write_plugins_file(folder)), is_private=True)
    await hub.start()
    listener = listen_tcp("127.0.0.1", 0)
    port = listener.socket.getsockname()[1]
    options = HttpOptions(authorization=Authorization((identify,)))
    async with Host(with_hub(hub)) as host:
        http = HttpServer(host, [listener], options)
        await http.start()
        rig = Rig(hub, None, asyncio.Queue())  # type: ignore[arg-type]
        await rig.publish("first")
        cursor = rig.log.cursor_of(1)
        ann, bob = (Connection(port, name) for name in ("ann", "bob"))
        for client in (ann, bob):
            await client.post("events/stream", name="orders", cursor=cursor)
            method = "notifications/events/active"
            assert (await client.read())["method"] == method
        await rig.publish("for ann", audience="ann")
        await rig.publish("for all")
        assert (await ann.read())["params"]["data"] == {"item": "for ann"}
        assert (await ann.read())["params"]["data"] == {"item": "for all"}
        assert (await bob.read())["params"]["data"] == {"item": "for all"}
        for client, expected in ((ann, ["for ann", "for all"]), (bob, ["for all"])):
            client.close()
            await client.post("events/poll", name="orders", cursor=cursor)
            answer = await client.read()
            assert items(answer["result"]) == expected
            client.close()
        # With a user, webhooks are refused as unsupported.
        await ann.post("events/subscribe", name="orders")
        error = (await ann.read())["error"]
        assert (error["code"], error["data"]["value"]) == (-32014, "webhook")
        ann.close()
        # The connections that were closed have ended their streams.
        while rig.log._waiting:
            await asyncio.sleep(0.01)
        host.drain()
        http.stop()
        await http.closed
    await hub.stop()


KITCHEN = """
from concertino import Plugin
plugin = Plugin("tools.kitchen", provides_events=["dishes"])

@plugin.tool
async def serve(dish: str) -> str:
    await plugin.publish("dishes", {"item": dish}, "served")
    return dish

plugin.run()
"""


@pytest.mark.parametrize("is_modern", [False, True])
def test_events_reach_a_client_through_a_hub_a_bridge_and_a_proxy(
    folder: Path, is_modern: bool
) -> None:
    """All of them, and the plugin, are processes."""
    address = f"unix:{folder}/hub"
    path = write_plugins_file(folder, sdk(folder, "tools.kitchen", KITCHEN), listen_addr=address)
    bridge = ["-m", "concertino", "bridge", "--orchestrator-addr", address]
    proxy = ["-m", "concertino", "proxy", "--", sys.executable, *bridge]
    hub = Process(["-m", "concertino", "orchestrate", str(path)])
    with hub, Process(proxy) as client:
        hub.until_stderr("Listening on")
        if not is_modern:
            client.initialize()
        params = {"name": "dishes", "cursor": None}
        client.send(request("watch", "events/stream", params, modern=is_modern))
        client.pump(lambda: bool(notified(client)))
        for id, dish in enumerate(("soup", "bread")):
            answer = client.ask(call(id, "serve", {"dish": dish}, modern=is_modern))
            assert not answer["result"].get("isError"), answer
        client.pump(lambda: len(notified(client)) == 3)
        active, soup, bread = notified(client)
        assert active["method"] == "notifications/events/active"
        for message, dish in ((soup, "soup"), (bread, "bread")):
            assert message["method"] == "notifications/events/event"
            assert message["params"]["data"] == {"item": dish}
            assert message["params"]["_meta"] == {SUBSCRIPTION: "watch"}
        # After a cancellation, the client goes on after its last cursor, with another request.
        client.send(notification("notifications/cancelled", {"requestId": "watch"}))
        params["cursor"] = soup["params"]["cursor"]
        client.send(request("again", "events/stream", params, modern=is_modern))
        client.pump(lambda: len(notified(client)) == 5)
        again = notified(client)[-1]["params"]
        assert (again["data"], again["_meta"]) == ({"item": "bread"}, {SUBSCRIPTION: "again"})
        assert client.answers("watch") == []


def notified(client: Process) -> list[Any]:
    """The notifications of events that a client has got, without heartbeats."""
    return [
        message
        for message in client.messages
        if str(message.get("method")).startswith("notifications/events/")
        and not message["method"].endswith("/heartbeat")
    ]
