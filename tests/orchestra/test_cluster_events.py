"""cluster_events.py, nats/stream.py: events of several hubs, at a real server with JetStream."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import nats
import pytest
from loops import on_a_loop
from orchestra.hubs import SOMEBODY, write_plugins_file
from orchestra.nats_servers import NatsServerProcess, shared_nats_server

from concertino.nats.cluster import NatsCluster
from concertino.orchestra.authority import create_authority
from concertino.orchestra.certificates import Certificates
from concertino.orchestra.cluster_events import ClusterLog, protect_events
from concertino.orchestra.hub import Hub
from concertino.orchestra.nats_server import server_configuration
from concertino.orchestra.plugin_messages import (
    EventDelivery,
    PluginRequest,
    PluginResponse,
    Publish,
    StreamStart,
    Subscribe,
)
from concertino.orchestra.plugins_file import read_plugins
from concertino.orchestra.refusal_log import FIRST
from concertino.orchestra.structs import pack, unpack


@pytest.fixture
def server() -> Iterator[NatsServerProcess]:
    """A server with JetStream, whose store is empty."""
    with tempfile.TemporaryDirectory(prefix="nats") as folder:
        settings = f"jetstream {{ store_dir: {json.dumps(folder + '/store')} }}"
        process = NatsServerProcess(Path(folder), settings)
        yield process
        process.stop()


@asynccontextmanager
async def running(
    folder: Path, address: str, certificates: Certificates | None = None
) -> AsyncIterator[Hub]:
    file = read_plugins(write_plugins_file(folder))
    certs = None if certificates is None else certificates.folder
    hub = Hub(file, is_private=True, cluster=address, certs_dir=certs)
    await hub.start()
    try:
        yield hub
    finally:
        await hub.stop()


async def publish(hub: Hub, item: str, size: int = 0) -> PluginResponse:
    payload = pack({"item": item, "text": "x" * size}).struct
    event = Publish(topic="orders", event_type="made", payload=payload, source_plugin="me")
    return await hub.answer(PluginRequest(publish=event), SOMEBODY)


async def events(hub: Hub, after: str = "") -> AsyncIterator[EventDelivery]:
    subscribe = Subscribe(topic="orders", after=after)
    async for response in hub.stream(StreamStart(subscribe=subscribe), SOMEBODY):
        yield EventDelivery.FromString(response.stream_chunk.data)


def item(event: EventDelivery) -> object:
    return unpack(event.payload)["item"]


@on_a_loop
async def test_events_of_one_hub_reach_subscribers_of_all_and_cursors_are_valid_everywhere(
    folder: Path, server: NatsServerProcess
) -> None:
    async with running(folder, server.address) as one:
        async with running(folder, server.address) as other:
            here, there = events(one), events(other)
            waiting = [asyncio.ensure_future(anext(here)), asyncio.ensure_future(anext(there))]
            await asyncio.sleep(0)
            assert await publish(one, "soup") == PluginResponse()
            first, same = await asyncio.gather(*waiting)
            assert first == same
            assert (item(first), first.source_plugin, first.lost) == ("soup", "me", 0)
            await publish(other, "cake")
            assert item(await anext(here)) == "cake"
            # The position of one hub, at the other.
            assert item(await anext(events(other, first.cursor))) == "cake"
        # A hub that starts later has the events of before, for those with a cursor.
        async with running(folder, server.address) as late:
            assert item(await anext(events(late, first.cursor))) == "cake"
            news = asyncio.ensure_future(anext(events(late)))
            await asyncio.sleep(0)
            await publish(one, "tea")
            assert item(await news) == "tea"
    # The stream numbers them, from 1.
    connection = await nats.connect(server.address)
    info = await connection.jetstream().stream_info("ORCHESTRA_EVENTS")
    assert info.state.messages == 3
    assert re.fullmatch(r"e\.orchestrator\.[0-9a-f]{32}", *info.config.subjects)
    assert (info.config.max_bytes, info.config.num_replicas) == (16 * 2**20, 1)
    assert first.cursor[8:] == "-1"
    await connection.close()


@on_a_loop
async def test_a_stream_of_an_earlier_version_is_used_and_can_be_protected_while_hubs_run(
    folder: Path, server: NatsServerProcess, caplog: pytest.LogCaptureFixture
) -> None:
    """Hubs of versions before publish to a subject without a random token."""
    connection = await nats.connect(server.address)
    streams = connection.jetstream()
    assert "no stream yet" in await asyncio.to_thread(protect_events, server.address, None)
    await streams.add_stream(name="ORCHESTRA_EVENTS", subjects=["e.orchestrator"])
    async with running(folder, server.address) as one, running(folder, server.address) as other:
        texts = [line for line in caplog.messages if "concertino cluster events" in line]
        assert len(texts) == 2
        there = events(other)
        waiting = asyncio.ensure_future(anext(there))
        await asyncio.sleep(0)
        assert await publish(one, "soup") == PluginResponse()
        first = await waiting

        done = await asyncio.to_thread(protect_events, server.address, None)
        assert done == "its subject has a random token now"
        info = await streams.stream_info("ORCHESTRA_EVENTS")
        assert info.config.subjects is not None
        assert re.fullmatch(r"e\.orchestrator\.[0-9a-f]{32}", *info.config.subjects)
        # Nothing else has changed, and the hubs find the new subject.
        assert await publish(one, "cake") == PluginResponse()
        assert await publish(other, "tea") == PluginResponse()
        assert [item(await anext(there)) for _ in range(2)] == ["cake", "tea"]
        assert item(await anext(events(one, first.cursor))) == "cake"
        assert "already" in await asyncio.to_thread(protect_events, server.address, None)
    info = await streams.stream_info("ORCHESTRA_EVENTS")
    assert info.state.messages == 3
    await connection.close()


@on_a_loop
async def test_a_hub_that_may_not_publish_to_the_stream_keeps_its_events(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The permissions of earlier versions do not allow the subject with a random token."""
    settings = f"""
        jetstream {{ store_dir: {json.dumps(str(folder / "store"))} }}
        authorization {{
            users: [{{ user: u, password: p, permissions: {{ publish: {{ deny: "e.*.*" }} }} }}]
        }}
        no_auth_user: u
    """
    with tempfile.TemporaryDirectory(prefix="nats") as place:
        server = NatsServerProcess(Path(place), settings)
        try:
            async with running(folder, server.address) as hub:
                [text] = [line for line in caplog.messages if "events stay at this hub" in line]
                assert "permissions violation" in text.lower()
                stream = asyncio.ensure_future(anext(events(hub)))
                await asyncio.sleep(0)
                assert await publish(hub, "soup") == PluginResponse()
                assert item(await stream) == "soup"
        finally:
            server.stop()


@on_a_loop
async def test_events_go_on_after_a_restart_of_the_server_and_none_is_lost_or_doubled(
    folder: Path, server: NatsServerProcess
) -> None:
    async with running(folder, server.address) as one, running(folder, server.address) as other:
        stream = events(other)
        first = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        await publish(one, "before")
        assert item(await first) == "before"
        server.stop()
        # Published while no server is there: it waits for the acknowledgement.
        meanwhile = asyncio.ensure_future(publish(one, "meanwhile"))
        await asyncio.sleep(0)
        server.start()
        assert await meanwhile == PluginResponse()
        await publish(one, "after")
        found = [await anext(stream), await anext(stream)]
        assert [(item(event), event.cursor[8:], event.lost) for event in found] == [
            ("meanwhile", "-2", 0),
            ("after", "-3", 0),
        ]


@on_a_loop
async def test_the_end_of_the_log_reports_the_losses_that_were_only_counted(
    folder: Path,
    server: NatsServerProcess,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("concertino.orchestra.cluster_events.MAX_WAITING", 0)
    async with running(folder, server.address) as hub:
        for _ in range(FIRST + 3):
            hub._events._log.publish_soon(Publish(topic="orders"), "")
    assert caplog.messages[-1] == "the log of the cluster's events: 3 more events were lost"


@on_a_loop
async def test_small_events_count_with_what_they_take_in_memory() -> None:
    log = ClusterLog(cast("NatsCluster", None))
    log._max_bytes = 2000
    # Each takes 512 bytes and its content.
    for number in range(1, 5):
        log.handle(number, EventDelivery(topic="orders").SerializeToString())
    assert (log.first, log.last) == (2, 4)


@on_a_loop
async def test_while_the_cluster_stores_nothing_the_events_that_wait_are_limited(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = ClusterLog(cast("NatsCluster", None))
    has_stored = asyncio.Event()

    async def store(data: bytes) -> None:
        await has_stored.wait()

    monkeypatch.setattr(log._stream, "publish", store)
    for _ in range(1020):
        log.publish_soon(Publish(topic="orders"), "")
    assert len(log._tasks) == 1000
    # The first five are logged, the others counted.
    assert caplog.messages == 5 * ["an event of orders is lost: 1000 events are not stored yet"]
    has_stored.set()
    while log._tasks:
        await asyncio.sleep(0)


@on_a_loop
async def test_an_event_that_the_server_would_not_accept_is_refused(
    folder: Path, server: NatsServerProcess
) -> None:
    async with running(folder, server.address) as hub:
        refused = await publish(hub, "x", 2**20)
        assert refused.tool_call.error_code == "validation_error"
        assert await publish(hub, "x", 2**20 - 1000) == PluginResponse()


# Permissions from before hubs shared events.
OLD_PERMISSIONS = """
jetstream { store_dir: %s }
authorization { users: [{ user: a, password: b, permissions: { publish: { deny: "$JS.>" } } }] }
no_auth_user: a
"""


@pytest.mark.parametrize("is_enabled", [False, True])
@on_a_loop
async def test_where_the_cluster_cannot_store_events_they_stay_at_their_hub(
    folder: Path, caplog: pytest.LogCaptureFixture, is_enabled: bool
) -> None:
    server = shared_nats_server()
    if is_enabled:
        server = NatsServerProcess(folder, OLD_PERMISSIONS % json.dumps(f"{folder}/store"))
    with caplog.at_level(logging.WARNING):
        async with running(folder, server.address) as hub:
            stream = events(hub)
            first = asyncio.ensure_future(anext(stream))
            await asyncio.sleep(0)
            await publish(hub, "soup")
            assert item(await first) == "soup"
    if is_enabled:
        server.stop()
    assert "events stay at this hub, because the cluster cannot store them: " in caplog.text
    reason = "Permissions Violation" if is_enabled else "JetStream is not enabled in the servers"
    assert reason in caplog.text


@on_a_loop
async def test_hubs_need_no_more_than_the_permissions_of_hubs(folder: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="nats") as place:
        certificates = Certificates(Path(place) / "certs")
        create_authority(certificates)
        text = server_configuration([], certificates, Path(place) / "store", -1)
        settings = "\n".join(line for line in text.splitlines() if not line.startswith("listen:"))
        server = NatsServerProcess(Path(place), settings)
        address = server.address.replace("nats://", "tls://")
        try:
            async with running(folder, address, certificates) as hub:
                stream = events(hub)
                first = asyncio.ensure_future(anext(stream))
                await asyncio.sleep(0)
                await publish(hub, "soup")
                assert item(await first) == "soup"
            assert "Violation" not in (Path(place) / "server.log").read_text()
        finally:
            server.stop()
