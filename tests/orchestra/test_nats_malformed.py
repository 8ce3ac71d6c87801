"""Messages over NATS that no program of this package sends: whoever gets them stays connected."""

from __future__ import annotations

import asyncio

import pytest
from loops import on_a_loop
from orchestra.linked import call, echo
from orchestra.nats_servers import shared_nats_server
from orchestra.test_nats_faults import caller, connected, fresh_name, reply_to, worker

from concertino.errors import Disconnected
from concertino.nats.connection import NatsConnection
from concertino.nats.protocol import NatsMessage
from concertino.orchestra import cluster_plugins, nats_link
from concertino.orchestra.cluster_plugins import MAX_MANIFESTS, ClusterPlugin, PluginDiscovery
from concertino.orchestra.nats_link import NatsLink
from concertino.orchestra.nats_listener import NatsListener
from concertino.orchestra.nats_messages import (
    ACK,
    ASK,
    announcement_subject,
    discovery_subject,
    encode_headers,
    heartbeat_subject,
    request_headers,
    request_subject,
    worker_subject,
)
from concertino.orchestra.plugin_pb2 import PluginManifest


async def is_worker_connected(listener: NatsListener, name: str) -> bool:
    """Return whether a worker still has the connection it began with, after it has answered."""
    [connection] = listener._workers
    async with caller(name) as link:
        await link.request(call(), 60)
    return not connection.ended.done()


@pytest.mark.parametrize("header", ["Left", "Until"])
@on_a_loop
async def test_a_time_limit_of_hundreds_of_digits_does_not_disconnect_a_worker(header: str) -> None:
    name = fresh_name()
    async with worker(name) as listener, connected(shared_nats_server().address) as cluster:
        fields = {"Left": "60000", "Until": "1", header: "9" * 400}
        lines = [f"{key}:{value}" for key, value in fields.items()]
        headers = "\r\n".join(("NATS/1.0", *lines, "", "")).encode()
        subject = request_subject(name, "orchestrator")
        cluster.connection.publish(subject, b"", reply_to(name), headers)
        await cluster.connection.flush()
        assert await is_worker_connected(listener, name)


@on_a_loop
async def test_a_question_about_a_request_cannot_contain_commands_for_the_server() -> None:
    """They would be carried out in the name of the worker."""
    name = fresh_name()
    async with worker(name) as listener, connected(shared_nats_server().address) as cluster:
        for text in (f"{reply_to(name)} 2 3", f"{reply_to(name)} 0 0\nPUB forged 0\n"):
            headers = encode_headers(ASK, Call=text)
            subject = worker_subject(name, "all", "orchestrator")
            cluster.connection.publish(subject, b"", headers=headers)
        await cluster.connection.flush()
        assert await is_worker_connected(listener, name)


@on_a_loop
async def test_an_ack_cannot_contain_commands_for_the_server() -> None:
    """They would be carried out in the name of the caller, which may be the hub."""
    name = fresh_name()
    address = shared_nats_server().address
    async with connected(address, name) as cluster, connected(address) as hub:
        stolen: asyncio.Queue[bytes] = asyncio.Queue()

        def acknowledge(message: NatsMessage) -> None:
            # The caller publishes the cancellation of this call to w.CALLEE.WORKER.CALLER. As
            # much as the line says would be the payload: also the caller's other messages.
            worker = f"{name}.orchestrator 0 400\n"
            cluster.connection.publish(
                message.reply, b"", headers=encode_headers(ACK, Worker=worker)
            )

        cluster.connection.subscribe(request_subject(name, "*"), acknowledge)
        cluster.connection.subscribe("w.>", lambda message: stolen.put_nowait(message.payload))
        await cluster.connection.flush()
        link = NatsLink(hub, "orchestrator", name)
        with pytest.raises(Disconnected, match="the ack has an invalid worker id; the request may"):
            await link.request(call(), 60)
        await hub.connection.flush()
        await link.close()
        # The one message is the cancellation.
        await cluster.connection.flush()
        assert [stolen.get_nowait() for _ in range(stolen.qsize())] == [b""]


@on_a_loop
async def test_bytes_that_are_no_text_in_a_subject_disconnect_nobody() -> None:
    name = fresh_name()
    address = shared_nats_server().address
    async with connected(address, name) as cluster, worker(name), connected(address) as hub:
        link = NatsLink(hub, "orchestrator", name)
        connection = hub.connection
        await connection.flush()
        for odd in (b"\xff", b"a\x0bb", b"\x0c"):
            _send_raw(cluster.connection, b"PUB h.%b.%b 0\r\n\r\n", name, odd)
            _send_raw(cluster.connection, b"PUB o.%b.orchestrator %b 0\r\n\r\n", name, odd)
        await cluster.connection.flush()
        await link.request(call(), 60)
        await link.close()
        assert not connection.ended.done()


def _send_raw(connection: NatsConnection, command: bytes, name: str, odd: bytes) -> None:
    connection._write(command % (name.replace(".", "/").encode(), odd))


@on_a_loop
async def test_an_answer_of_jetstream_to_another_plugin_is_no_heartbeat(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A plugin may choose the subject where JetStream publishes it, but it is never empty."""
    monkeypatch.setattr(nats_link, "LOST_S", 0.3)
    name = fresh_name()
    address = shared_nats_server().address
    async with connected(address, name) as cluster, caller(name) as link:
        acknowledged = asyncio.Event()

        def acknowledge(message: NatsMessage) -> None:
            cluster.connection.publish(message.reply, b"", headers=encode_headers(ACK, Worker="1"))
            acknowledged.set()

        async def forge() -> None:
            while True:
                cluster.connection.publish(heartbeat_subject(name, "1"), b'{"stream":"KV"}')
                await asyncio.sleep(0.05)

        cluster.connection.subscribe(request_subject(name, "*"), acknowledge)
        await cluster.connection.flush()
        forgery = asyncio.create_task(forge())
        with pytest.raises(Disconnected, match="worker 1 was lost"):
            await link.request(call(), 20)
        forgery.cancel()


@pytest.mark.parametrize(
    "payload", [b'{"stream":"KV","seq":1}', PluginManifest(id="tools.other").SerializeToString()]
)
@on_a_loop
async def test_an_announcement_without_the_manifest_of_its_plugin_brings_no_plugin(
    monkeypatch: pytest.MonkeyPatch, payload: bytes
) -> None:
    """It would keep a plugin that has left, or take the places of others."""
    monkeypatch.setattr(cluster_plugins, "FIRST_DISCOVERY_S", 0.0)
    name = fresh_name()
    async with connected(shared_nats_server().address) as cluster:
        plugins = PluginDiscovery(cluster, lambda id: id != name, lambda: None)
        await plugins.open()
        cluster.connection.publish(announcement_subject(name, "1"), payload)
        await cluster.connection.flush()
        assert not plugins._plugins
        await plugins.close()


@on_a_loop
async def test_a_hub_keeps_few_manifests_of_a_plugin_and_each_once() -> None:
    """They may have 1 MiB each, and a plugin may announce thousands of workers."""
    async with connected(shared_nats_server().address) as cluster:
        plugin = ClusterPlugin(cluster, fresh_name())
        fetches = [
            plugin.add_manifest(f"{number:x}", PluginManifest(version=version).SerializeToString())
            for number, version in enumerate(4 * [str(n) for n in range(50)])
        ]
        assert fetches.count(True) == len(set(map(id, plugin.manifests.values()))) == MAX_MANIFESTS
        assert len(plugin.manifests) == 4 * MAX_MANIFESTS
        await plugin.close()


@on_a_loop
async def test_an_answer_of_jetstream_to_another_plugin_makes_no_worker_announce_itself() -> None:
    name = fresh_name()
    async with connected(shared_nats_server().address, name) as cluster:
        announced: list[NatsMessage] = []
        listener = NatsListener(cluster, name, echo, manifest=b"x")
        cluster.connection.subscribe(announcement_subject(name, "*"), announced.append)
        for payload in (b"", b'{"stream":"KV"}'):
            await cluster.connection.flush()
            announced.clear()
            cluster.connection.publish(discovery_subject("orchestrator"), payload)
            # The second time, the announcement of the worker arrives.
            for _ in range(2):
                await cluster.connection.flush()
            assert len(announced) == (not payload)
        await listener.close()


@pytest.mark.parametrize("end", ["1", "1.2.3", "1.-", "*.2", "1.", '"a".1'])
@on_a_loop
async def test_a_request_with_another_kind_of_reply_subject_is_not_run(end: str) -> None:
    name = fresh_name()
    begun: list[object] = []

    async def answer(request: object, peer: object) -> None:
        begun.append(request)

    async with worker(name, answer) as listener, connected(shared_nats_server().address) as cluster:
        cluster.connection.publish(
            request_subject(name, "orchestrator"),
            call().SerializeToString(),
            reply_to(name).removesuffix("1.2") + end,
            request_headers(60, None),
        )
        await cluster.connection.flush()
        [connection] = listener._workers
        await connection.flush()
        assert not begun


@on_a_loop
async def test_an_announcement_that_repeats_a_manifest_is_not_decoded_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = fresh_name()
    decoded: list[str] = []
    is_manifest_of = cluster_plugins._is_manifest_of

    def decode(id: str, payload: bytes) -> bool:
        decoded.append(id)
        return is_manifest_of(id, payload)

    monkeypatch.setattr(cluster_plugins, "_is_manifest_of", decode)
    address = shared_nats_server().address
    async with connected(address) as hub, connected(address, name) as cluster:
        first, second = (PluginManifest(id=name, version=version) for version in ("1", "2"))
        listener = NatsListener(cluster, name, echo, manifest=first.SerializeToString())
        plugins = PluginDiscovery(hub, lambda id: False, lambda: None)
        await plugins.open()
        while name not in plugins.by_id:
            await asyncio.sleep(0.01)
        decoded.clear()
        for manifest in (first, first, second):
            listener.announce(manifest.SerializeToString())
        await cluster.connection.flush()
        await hub.connection.flush()
        assert decoded.count(name) == 1
        await plugins.close()
        await listener.close()
