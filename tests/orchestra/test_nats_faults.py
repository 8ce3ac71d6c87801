"""Requests over NATS when workers, servers and connections fail. Real servers and processes."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import tempfile
import weakref
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from loops import on_a_loop
from orchestra.linked import Holding, call, echo
from orchestra.nats_servers import NatsServerProcess, shared_nats_server

from concertino.errors import Disconnected
from concertino.nats.cluster import NatsCluster
from concertino.nats.connection import NatsConnection
from concertino.nats.protocol import ServerInfo
from concertino.nats.servers import NatsOptions, parse_servers
from concertino.orchestra import cluster_plugins, nats_link, nats_worker, worker_places
from concertino.orchestra.cluster_plugins import PluginDiscovery
from concertino.orchestra.nats_cluster import nats_options
from concertino.orchestra.nats_link import NatsLink
from concertino.orchestra.nats_listener import NatsListener
from concertino.orchestra.nats_messages import (
    PIECE_BYTES,
    STREAM_CONTROL,
    announcement_subject,
    discovery_subject,
    encode_headers,
    reply_prefix,
    request_headers,
    request_subject,
    worker_subject,
)
from concertino.orchestra.plugin_pb2 import (
    ListPromptsResponse,
    ListToolsResponse,
    PluginManifest,
    PluginRequest,
    PluginResponse,
    StreamCancel,
    StreamChunk,
    StreamStart,
    ToolResponse,
)
from concertino.orchestra.rpc_interface import RemotePeer, RequestHandler
from concertino.orchestra.streams import ResponseStream

# A worker that appends a line to a file for each call that it begins. The tool `hold` never ends,
# and `block` blocks its event loop.
WORKER = """
import asyncio, sys, time
sys.path.insert(0, {tests!r})
from orchestra.linked import echo
from concertino.nats.cluster import NatsCluster
from concertino.nats.servers import NatsOptions, parse_servers
from concertino.orchestra.nats_listener import NatsListener

async def answer(request, peer):
    with open({record!r}, "a") as file:
        file.write("call\\n")
    if request.tool_call.tool_name == "hold":
        print("holding", flush=True)
        await asyncio.Event().wait()
    if request.tool_call.tool_name == "block":
        time.sleep(0.15)
    return await echo(request, peer)

async def main():
    cluster = NatsCluster(parse_servers({address!r}), NatsOptions("worker"))
    await cluster.open()
    listener = NatsListener(cluster, {name!r}, answer)
    await listener.wait_accepted()
    print("ready", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""
# Each test has plugins of its own, because the tests share a server.
_count = iter(range(1_000_000))


def fresh_name() -> str:
    return f"tools.p{next(_count)}"


def reply_to(name: str) -> str:
    """Return a reply subject for the hub's request to a plugin."""
    return f"{reply_prefix('orchestrator', name)}1.2"


@pytest.fixture
def server() -> Iterator[NatsServerProcess]:
    """A server of this test alone, which it may kill."""
    with tempfile.TemporaryDirectory(prefix="nats") as folder:
        process = NatsServerProcess(Path(folder))
        yield process
        process.stop()


@asynccontextmanager
async def connected(address: str, name: str = "orchestrator") -> AsyncIterator[NatsCluster]:
    cluster = NatsCluster(parse_servers(address), NatsOptions(name))
    await cluster.open()
    try:
        yield cluster
    finally:
        await cluster.close()


@asynccontextmanager
async def worker(
    name: str, answer: RequestHandler = echo, address: str = ""
) -> AsyncIterator[NatsListener]:
    async with connected(address or shared_nats_server().address, name) as cluster:
        listener = NatsListener(cluster, name, answer)
        await listener.wait_accepted()
        try:
            yield listener
        finally:
            await listener.close()


async def take_places(
    link: NatsLink, holding: Holding, count: int
) -> list[asyncio.Task[PluginResponse]]:
    """Return so many requests, of which the worker has begun each."""
    requests = [asyncio.create_task(link.request(call(), 60)) for _ in range(count)]
    for _ in requests:
        await holding.began.acquire()
    return requests


@asynccontextmanager
async def caller(
    callee: str, address: str = "", from_: str = "orchestrator"
) -> AsyncIterator[NatsLink]:
    async with connected(address or shared_nats_server().address) as cluster:
        link = NatsLink(cluster, from_, callee)
        try:
            yield link
        finally:
            await link.close()


class WorkerProcess:
    def __init__(self, name: str, folder: Path, address: str) -> None:
        self.record = folder / "calls"
        code = WORKER.format(
            tests=str(Path(__file__).parents[1]),
            record=str(self.record),
            address=address,
            name=name,
        )
        self.process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)

    async def wait_for(self, word: str) -> None:
        assert self.process.stdout is not None
        line = await asyncio.to_thread(self.process.stdout.readline)
        assert line.decode().strip() == word

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@asynccontextmanager
async def held_call(
    folder: Path,
) -> AsyncIterator[tuple[WorkerProcess, NatsLink, asyncio.Task[PluginResponse]]]:
    """A worker process that holds a call: the process, the link, and the call."""
    name = fresh_name()
    process = WorkerProcess(name, folder, shared_nats_server().address)
    try:
        await process.wait_for("ready")
        async with caller(name) as link:
            request = asyncio.create_task(link.request(call("hold"), 600))
            await process.wait_for("holding")
            yield process, link, request
    finally:
        process.kill()


@on_a_loop
async def test_without_a_worker_a_request_fails_at_once() -> None:
    async with caller(fresh_name()) as link:
        # Less than any time limit of the link: the server itself answers.
        async with asyncio.timeout(nats_link.ACK_S * 0.9):
            with pytest.raises(Disconnected, match=r"no process of tools\.p.* is connected"):
                await link.request(call(), 60)


@on_a_loop
async def test_a_killed_worker_is_noticed_and_its_call_was_run_once(folder: Path) -> None:
    async with held_call(folder) as (process, link, request):
        process.kill()
        with pytest.raises(Disconnected, match="may have been executed"):
            await request
        assert process.record.read_text() == "call\n"
        with pytest.raises(Disconnected, match="is connected to the cluster"):
            await link.request(call(), 60)


@on_a_loop
async def test_a_stopped_worker_is_noticed(folder: Path) -> None:
    """SIGSTOP: its connection stays open, and its heartbeats end."""
    async with held_call(folder) as (process, link, request):
        os.kill(process.process.pid, signal.SIGSTOP)
        with pytest.raises(Disconnected, match="may have been executed"):
            await request
        # Nobody else answers, and nobody says whether this one will.
        with pytest.raises(Disconnected, match=r"no worker has answered within 1 s"):
            await link.request(call(), 60)


@pytest.mark.slow
@on_a_loop
async def test_calls_that_wait_for_others_that_block_their_worker_do_not_fail(folder: Path) -> None:
    name = fresh_name()
    process = WorkerProcess(name, folder, shared_nats_server().address)
    try:
        await process.wait_for("ready")
        async with caller(name) as link:
            # Together they take longer than the time limits of acks and heartbeats.
            responses = await asyncio.gather(*(link.request(call("block"), 60) for _ in range(12)))
        assert all(response.tool_call.success for response in responses)
        assert process.record.read_text() == "call\n" * 12
    finally:
        process.kill()


@on_a_loop
async def test_a_call_that_takes_longer_than_the_limits_goes_on_as_long_as_its_worker_lives() -> (
    None
):
    name = fresh_name()
    holding = Holding()
    async with worker(name, holding), caller(name) as link:
        request = asyncio.create_task(link.request(call(), 60))
        await holding.began.acquire()
        beats = asyncio.Semaphore(0)
        link._on_heartbeat = lambda message: beats.release()  # type: ignore[method-assign]
        async with connected(shared_nats_server().address) as cluster:
            cluster.connection.subscribe(f"h.{name.replace('.', '/')}.*", lambda _: beats.release())
            for _ in range(6):
                await beats.acquire()
        assert not request.done()
        holding.go.set()
        assert (await request).tool_call.success


@on_a_loop
async def test_another_worker_is_asked_after_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_places, "MAX_IN_FLIGHT", 1)
    monkeypatch.setattr(nats_link, "MAX_ATTEMPTS", 1000)
    name = fresh_name()
    first, second = Holding(), Holding()
    async with worker(name, first), worker(name, second), caller(name) as link:
        # Each worker has room for one request, so the server's choice at random is corrected.
        requests = [asyncio.create_task(link.request(call(), 60)) for _ in range(2)]
        await first.began.acquire()
        await second.began.acquire()
        monkeypatch.setattr(nats_link, "MAX_ATTEMPTS", 3)
        refused = await link.request(call(), 60)
        assert refused.tool_call.error_code == "busy"
        assert (first.running, second.running) == (1, 1)
        first.go.set()
        second.go.set()
        for request in requests:
            assert (await request).tool_call.success


@on_a_loop
async def test_another_worker_is_asked_if_one_has_a_clock_that_is_fast(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its clock says that each request is late. The caller knows that there is time left."""
    lefts = iter([-600.0, -600.0, 60.0])
    monkeypatch.setattr(nats_worker, "read_time_left", lambda fields: next(lefts))
    name = fresh_name()
    async with worker(name), caller(name) as link:
        assert (await link.request(call(), 60)).tool_call.success
        monkeypatch.setattr(nats_worker, "read_time_left", lambda fields: -600.0)
        monkeypatch.setattr(nats_link, "MAX_ATTEMPTS", 2)
        refused = await link.request(call(), 60)
    assert refused.tool_call.error_message == (
        f"{name}: 2 requests for a worker were refused: late by the clock of its machine"
    )


@on_a_loop
async def test_a_worker_that_leaves_finishes_its_calls_and_gets_no_more() -> None:
    name = fresh_name()
    holding = Holding()
    async with worker(name, holding) as leaving, caller(name) as link:
        request = asyncio.create_task(link.request(call(), 60))
        await holding.began.acquire()
        closing = asyncio.create_task(leaving.close(drain_s=20))
        async with worker(name):
            # If the server had sent it to the first one before, it is refused and sent again.
            assert (await link.request(call(), 60)).tool_call.success
            holding.go.set()
            assert (await request).tool_call.success
            await closing


@on_a_loop
async def test_a_worker_that_ends_at_once_tells_its_callers() -> None:
    name = fresh_name()
    holding = Holding()
    async with worker(name, holding) as ending, caller(name) as link:
        request = asyncio.create_task(link.request(call(), 60))
        await holding.began.acquire()
        await ending.close()
        with pytest.raises(Disconnected, match="has ended; the request may have been executed"):
            await request


@on_a_loop
async def test_a_worker_whose_leaving_is_cancelled_tells_its_callers() -> None:
    name = fresh_name()
    holding = Holding()
    async with worker(name, holding) as leaving, caller(name) as link:
        request = asyncio.create_task(link.request(call(), 60))
        await holding.began.acquire()
        closing = asyncio.create_task(leaving.close(drain_s=600))
        async with worker(name):
            assert (await link.request(call(), 60)).tool_call.success
        closing.cancel()
        with pytest.raises(Disconnected, match="has ended; the request may have been executed"):
            await request


@on_a_loop
async def test_nothing_of_a_closed_listener_stays_at_its_connection() -> None:
    name = fresh_name()
    address = shared_nats_server().address
    async with connected(address, name) as cluster, connected(address) as other:
        listener = NatsListener(cluster, name, echo, manifest=b"x")
        await listener.close()
        await cluster.connection.flush()
        announced: list[bytes] = []
        other.connection.subscribe(
            announcement_subject(name, "*"), lambda message: announced.append(message.headers)
        )
        other.connection.publish(discovery_subject("orchestrator"), b"")
        # First the question arrives at the listener's connection, then its answer at the other.
        for connection in (other.connection, cluster.connection, cluster.connection):
            await connection.flush()
        await other.connection.flush()
        assert announced == []
        assert cluster.connection.on_refusal == []
        freed = weakref.ref(listener)
        del listener
        gc.collect()
        assert freed() is None


@on_a_loop
async def test_a_connection_that_is_older_than_a_listener_may_retire() -> None:
    name = fresh_name()
    async with worker(name), connected(shared_nats_server().address, name) as cluster:
        listener = NatsListener(cluster, name, echo)
        async with connected(shared_nats_server().address, name) as older:
            [retire] = cluster.on_retire
            retire(older.connection)
        await listener.close()


@on_a_loop
async def test_workers_that_differ_have_their_lists_fetched_once_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cluster_plugins, "DISCOVER_S", 0.05)
    name = fresh_name()
    address = shared_nats_server().address

    async def answer(request: PluginRequest, peer: RemotePeer) -> PluginResponse:
        if request.HasField("list_tools"):
            return PluginResponse(list_tools=ListToolsResponse())
        return PluginResponse(list_prompts=ListPromptsResponse())

    async with (
        connected(address, name) as one,
        connected(address, name) as two,
        connected(address) as hub,
    ):
        manifests = [
            PluginManifest(id=name, version="1", provides_storage=["files"]),
            PluginManifest(id=name, version="2"),
        ]
        storing, offered = (
            NatsListener(cluster, name, answer, manifest=manifest.SerializeToString())
            for cluster, manifest in zip((one, two), manifests, strict=True)
        )
        changed: asyncio.Queue[None] = asyncio.Queue()
        announced: asyncio.Queue[None] = asyncio.Queue()
        plugins = PluginDiscovery(hub, lambda id: id != name, lambda: changed.put_nowait(None))
        hub.connection.subscribe(
            announcement_subject(name, "*"), lambda _: announced.put_nowait(None)
        )
        await plugins.open()
        for _ in range(2):
            await asyncio.wait_for(changed.get(), 60)
        while not announced.empty():
            announced.get_nowait()
        for _ in range(8):
            await asyncio.wait_for(announced.get(), 60)
        assert changed.empty()
        # Whichever manifest came last, requests for documents are not refused for ever.
        assert plugins.by_id[name].features.storage == {"files"}

        # The lists may be those of the worker that has left.
        await storing.close()
        await asyncio.wait_for(changed.get(), 60)
        assert plugins.by_id[name].features.storage == set()
        await plugins.close()
        await offered.close()


@on_a_loop
async def test_a_cancelled_request_is_cancelled_at_its_worker() -> None:
    name = fresh_name()
    holding = Holding()
    async with worker(name, holding), caller(name) as link:
        request = asyncio.create_task(link.request(call(), 60))
        await holding.began.acquire()
        request.cancel()
        await holding.cancelled.acquire()


@on_a_loop
async def test_a_late_request_is_refused_and_not_run() -> None:
    name = fresh_name()
    holding = Holding()
    async with worker(name, holding), connected(shared_nats_server().address) as cluster:
        answers: asyncio.Queue[bytes] = asyncio.Queue()
        connection = cluster.connection
        connection.subscribe(reply_to(name), lambda message: answers.put_nowait(message.headers))
        connection.publish(
            request_subject(name, "orchestrator"),
            call().SerializeToString(),
            reply_to(name),
            request_headers(-0.001, None),
        )
        assert b"Reason:late" in await answers.get()
        assert holding.running == 0


@on_a_loop
async def test_a_response_goes_to_the_inbox_of_its_caller_only() -> None:
    name = fresh_name()
    holding = Holding()
    async with worker(name, holding), connected(shared_nats_server().address) as cluster:
        seen: list[str] = []
        connection = cluster.connection
        connection.subscribe(">", lambda message: seen.append(message.subject))
        foreign = [
            "i.other.1.2",
            reply_prefix("other", name) + "1.2",
            reply_prefix("orchestrator", "tools.other") + "1.2",
            "o.tools/victim.orchestrator",
        ]
        for reply in (*foreign, ""):
            headers = request_headers(60, None)
            connection.publish(request_subject(name, "orchestrator"), b"", reply, headers)
        # A request that is answered shows that the ones before it were handled.
        async with caller(name) as link:
            request = asyncio.create_task(link.request(call(), 60))
            await holding.began.acquire()
            request.cancel()
        assert not set(seen) & set(foreign)
        assert holding.running <= 1


@on_a_loop
async def test_a_call_is_not_begun_by_a_message_about_streams() -> None:
    """It would have no time limit, and would not count for those of its worker."""
    name = fresh_name()
    begun: list[bytes] = []

    async def answer(request: PluginRequest, peer: RemotePeer) -> PluginResponse:
        begun.append(request.tool_call.arguments)
        return PluginResponse(tool_call=ToolResponse(success=True))

    async with (
        worker(name, answer) as listener,
        connected(shared_nats_server().address) as cluster,
    ):
        link = NatsLink(cluster, "orchestrator", name)
        # The worker knows a caller after its first call.
        await link.request(call(arguments=b"1"), 60)
        [process] = listener._workers.values()
        subject = worker_subject(name, process.id, "orchestrator")
        for payload in (call(arguments=b"2").SerializeToString(), b"\xff"):
            cluster.connection.publish(subject, payload, headers=encode_headers(STREAM_CONTROL))
        # It comes after them, over the same connections.
        await link.request(call(arguments=b"3"), 60)
        assert begun == [b"1", b"3"]
        await link.close()


@on_a_loop
async def test_long_messages_pass_in_pieces_both_ways_beside_short_ones() -> None:
    name = fresh_name()
    payload = os.urandom(10_000_000)
    async with worker(name), caller(name) as link:
        long = [asyncio.create_task(link.request(call(arguments=payload), 60)) for _ in range(3)]
        short = 0
        while not all(task.done() for task in long):
            assert (await link.request(call(arguments=b"%d" % short), 60)).tool_call.success
            short += 1
        for task in long:
            assert (await task).tool_call.result == payload
    # With 230 pieces on their way, short requests are answered between them.
    assert short >= 10


@on_a_loop
async def test_a_server_that_refuses_long_messages_is_not_used() -> None:
    """Else one call of 200 KB would disconnect a hub, and all its calls would fail."""
    with tempfile.TemporaryDirectory(prefix="nats") as folder:
        process = NatsServerProcess(Path(folder), "max_payload: 128KB")
        servers = parse_servers(process.address)
        try:
            with pytest.raises(Disconnected, match="max_payload is 131072, and must be at least 3"):
                await NatsCluster(servers, nats_options(servers, "orchestrator", None)).open(1)
        finally:
            process.stop()


@pytest.mark.parametrize("is_request_whole", [True, False], ids=["response", "request"])
@on_a_loop
async def test_pieces_of_a_caller_that_falls_silent_are_dropped(
    monkeypatch: pytest.MonkeyPatch, is_request_whole: bool
) -> None:
    monkeypatch.setattr(nats_worker, "PIECE_S", 0.05)
    name = fresh_name()
    # The response is as long as the request, so both need several pieces.
    payload = call(arguments=bytes(1_000_000)).SerializeToString()

    async def answer_long(request: PluginRequest, peer: RemotePeer) -> PluginResponse:
        return PluginResponse(tool_call=ToolResponse(success=True, result=bytes(1_000_000)))

    async with (
        worker(name, answer_long) as listener,
        connected(shared_nats_server().address) as cluster,
    ):
        messages: asyncio.Queue[bytes] = asyncio.Queue()
        connection = cluster.connection
        connection.subscribe(reply_to(name), lambda item: messages.put_nowait(item.headers))
        sent = call().SerializeToString() if is_request_whole else payload[:PIECE_BYTES]
        size = None if is_request_whole else len(payload)
        connection.publish(
            request_subject(name, "orchestrator"),
            sent,
            reply_to(name),
            request_headers(60, size),
        )
        # The ack, after which this caller says nothing more.
        assert b"Kind:ack" in await messages.get()
        [process] = listener._workers.values()
        while process._accepted:
            await asyncio.sleep(0.005)
        assert process._incoming.held_bytes == process._outgoing.held_bytes == 0
        # Others are served, who may be slow.
        monkeypatch.setattr(nats_worker, "PIECE_S", 60.0)
        async with caller(name) as link:
            assert (await link.request(call(), 60)).tool_call.success


@on_a_loop
async def test_a_request_that_is_begun_again_and_again_takes_no_room_from_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker_places, "MAX_BYTES_IN_FLIGHT", 2_000_000)
    name = fresh_name()
    async with worker(name), connected(shared_nats_server().address) as cluster:
        for _ in range(3):
            cluster.connection.publish(
                request_subject(name, "orchestrator"),
                bytes(PIECE_BYTES),
                reply_to(name),
                request_headers(60, 900_000),
            )
        async with caller(name, from_="tools.other") as link:
            response = await link.request(call(arguments=bytes(1_000_000)), 60)
            assert response.tool_call.success


@on_a_loop
async def test_a_worker_refuses_requests_above_the_total_size_of_those_in_progress(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker_places, "MAX_BYTES_IN_FLIGHT", 2_000_000)
    name = fresh_name()
    holding = Holding()
    async with worker(name, holding), caller(name) as link:
        requests = [
            asyncio.create_task(link.request(call(arguments=bytes(size)), 60))
            # One in pieces, and others that are whole.
            for size in (1_000_000, 200_000, 200_000)
        ]
        for _ in requests:
            await holding.began.acquire()
        response = await link.request(call(arguments=bytes(200_000)), 60)
        assert response.tool_call.error_code == "busy"
        # Three quarters are for one caller, and the rest for others.
        async with caller(name, from_="tools.other") as other:
            second = asyncio.create_task(other.request(call(arguments=bytes(200_000)), 60))
            await holding.began.acquire()
            holding.go.set()
            assert (await second).tool_call.success
        await asyncio.gather(*requests)
        # Their bytes do not count any more.
        assert (await link.request(call(arguments=bytes(1_500_000)), 60)).tool_call.success


@on_a_loop
async def test_hubs_of_one_cluster_are_told_apart_and_have_a_share_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker_places, "MAX_IN_FLIGHT", 8)
    monkeypatch.setattr(nats_link, "MAX_ATTEMPTS", 2)
    name = fresh_name()
    holding = Holding()
    peers: list[RemotePeer] = []

    async def answer(request: PluginRequest, peer: RemotePeer) -> PluginResponse:
        peers.append(peer)
        return await holding(request, peer)

    async with worker(name, answer), caller(name) as one, caller(name) as other:
        requests = await take_places(one, holding, 6)
        assert not (await one.request(call(), 60)).tool_call.success
        requests.append(asyncio.create_task(other.request(call(), 60)))
        await holding.began.acquire()
        holding.go.set()
        await asyncio.gather(*requests)
    assert {peer.name for peer in peers} == {"orchestrator"}
    addresses = [one._cluster.id] * 6 + [other._cluster.id]
    assert [peer.address for peer in peers] == [f"nats:orchestrator/{id}" for id in addresses]


@on_a_loop
async def test_processes_of_a_plugin_share_the_places_of_one_caller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker_places, "MAX_IN_FLIGHT", 8)
    monkeypatch.setattr(nats_link, "MAX_ATTEMPTS", 2)
    name = fresh_name()
    holding = Holding()
    async with (
        worker(name, holding),
        caller(name, from_="tools.a") as one,
        caller(name, from_="tools.a") as other,
    ):
        requests = await take_places(one, holding, 6)
        assert not (await other.request(call(), 60)).tool_call.success
        holding.go.set()
        await asyncio.gather(*requests)


@on_a_loop
async def test_one_caller_cannot_take_all_places_of_a_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker_places, "MAX_IN_FLIGHT", 8)
    monkeypatch.setattr(nats_link, "MAX_ATTEMPTS", 2)
    name = fresh_name()
    holding = Holding()
    async with worker(name, holding), caller(name) as link:
        requests = await take_places(link, holding, 6)
        refused = await link.request(call(), 60)
        assert refused.tool_call.error_message == (
            f"{name}: 2 requests for a worker were refused: "
            "no place for more requests of this caller"
        )
        async with caller(name, from_="tools.other") as other:
            requests.append(asyncio.create_task(other.request(call(), 60)))
            await holding.began.acquire()
            holding.go.set()
            for response in await asyncio.gather(*requests):
                assert response.tool_call.success


@on_a_loop
async def test_a_stream_ends_at_its_time_limit_if_its_caller_was_lost() -> None:
    name = fresh_name()
    closed = asyncio.Event()

    async def chunks() -> ResponseStream:
        try:
            while True:
                yield PluginResponse(stream_chunk=StreamChunk(data=b"x"))
        finally:
            closed.set()

    async def answer(request: PluginRequest, peer: RemotePeer) -> ResponseStream:
        return chunks()

    async with worker(name, answer), connected(shared_nats_server().address) as cluster:
        # A caller that sends no credit for the chunks, and no cancellation.
        start = PluginRequest(stream_start=StreamStart(stream_id="1", window=1024))
        cluster.connection.publish(
            request_subject(name, "orchestrator"),
            start.SerializeToString(),
            reply_to(name),
            request_headers(0.2, None),
        )
        async with asyncio.timeout(20):
            await closed.wait()


@on_a_loop
async def test_nothing_of_a_stream_stays_that_is_cancelled_while_a_long_chunk_is_sent() -> None:
    name = fresh_name()

    async def chunks() -> ResponseStream:
        yield PluginResponse(stream_chunk=StreamChunk(data=bytes(1_000_000)))
        await asyncio.Event().wait()

    async def answer(request: PluginRequest, peer: RemotePeer) -> ResponseStream:
        return chunks()

    async with (
        worker(name, answer) as listener,
        connected(shared_nats_server().address) as cluster,
    ):
        pieces: asyncio.Queue[bytes] = asyncio.Queue()
        cluster.connection.subscribe(reply_to(name), lambda m: pieces.put_nowait(m.headers))
        start = PluginRequest(stream_start=StreamStart(stream_id="1", window=2**20))
        cluster.connection.publish(
            request_subject(name, "orchestrator"),
            start.SerializeToString(),
            reply_to(name),
            request_headers(60, None),
        )
        while b"Kind:piece" not in await pieces.get():
            pass
        # The caller sends no receipts, and cancels the stream.
        [process] = listener._workers.values()
        cancel = PluginRequest(stream_cancel=StreamCancel(stream_id="1"))
        cluster.connection.publish(
            worker_subject(name, process.id, "orchestrator"),
            cancel.SerializeToString(),
            headers=encode_headers(STREAM_CONTROL),
        )
        while process._accepted:
            await asyncio.sleep(0.005)
        assert process._outgoing.held_bytes == 0


@on_a_loop
async def test_a_shutdown_that_is_announced_twice_is_followed_by_one_change_of_server() -> None:
    async with connected(shared_nats_server().address) as cluster:
        old = cluster.connection
        changes: list[NatsConnection] = []
        cluster.on_connect.append(changes.append)
        old.on_info(ServerInfo(lame_duck=True))
        # Again and again, while the new connection is opened.
        while not changes:
            await asyncio.sleep(0)
            old.on_info(ServerInfo(lame_duck=True))
        await old.ended
        assert changes == [cluster.connection]


@on_a_loop
async def test_requests_fail_while_the_server_is_away_and_pass_when_it_is_back(
    server: NatsServerProcess,
) -> None:
    name = fresh_name()
    holding = Holding()
    async with worker(name, holding, server.address), caller(name, server.address) as link:
        request = asyncio.create_task(link.request(call(), 60))
        await holding.began.acquire()
        server.stop()
        with pytest.raises(Disconnected, match="may have been executed"):
            await request
        with pytest.raises(Disconnected, match="the cluster cannot be reached"):
            await link.request(call(), 60)
        server.start()
        holding.go.set()
        while True:
            try:
                response = await link.request(call(), 60)
                break
            except Disconnected:
                await asyncio.sleep(0.005)
        assert response.tool_call.success


@on_a_loop
async def test_a_server_that_shuts_down_in_peace_interrupts_no_call() -> None:
    with tempfile.TemporaryDirectory(prefix="nats") as folder:
        first_folder, second_folder = Path(folder, "1"), Path(folder, "2")
        first_folder.mkdir()
        second_folder.mkdir()
        # Lame-duck mode lasts at least 30 s; clients should be gone before that.
        settings = 'lame_duck_duration: "30s"\nlame_duck_grace_period: "25s"\n'
        routes = 'cluster {{ name: test, listen: "127.0.0.1:{}", routes: [{}] }}\n'
        first = NatsServerProcess(first_folder, settings + routes.format(-1, ""))
        route = f'"nats-route://127.0.0.1:{first.cluster_port}"'
        second = NatsServerProcess(second_folder, settings + routes.format(-1, route))
        try:
            await _use_both(first, second)
        finally:
            first.stop()
            second.stop()


async def _use_both(first: NatsServerProcess, second: NatsServerProcess) -> None:
    name = fresh_name()
    holding = Holding()
    async with (
        connected(f"{first.address},{second.address}", name) as cluster,
        caller(name, f"{first.address},{second.address}") as link,
    ):
        listener = NatsListener(cluster, name, holding)
        await listener.wait_accepted()
        while True:
            # The servers tell each other of subscriptions, which takes a moment.
            request = asyncio.create_task(link.request(call(), 60))
            began = asyncio.create_task(holding.began.acquire())
            await asyncio.wait((request, began), return_when=asyncio.FIRST_COMPLETED)
            if began.done():
                break
            began.cancel()
        old = cluster.connection.server
        lame = first if old.port == first.port else second
        lame.signal(signal.SIGUSR2)
        while not cluster.is_up or cluster.connection.server == old:
            await asyncio.sleep(0.005)
        assert not request.done()
        holding.go.set()
        assert (await request).tool_call.success
        while True:
            try:
                assert (await link.request(call(), 60)).tool_call.success
                break
            except Disconnected:
                await asyncio.sleep(0.005)
        await listener.close()


@on_a_loop
async def test_no_call_is_run_twice_while_workers_come_and_go() -> None:
    name = fresh_name()
    runs: dict[bytes, int] = {}

    async def count(request: PluginRequest, peer: RemotePeer) -> PluginResponse:
        key = request.tool_call.arguments
        runs[key] = runs.get(key, 0) + 1
        await asyncio.sleep(0)
        return PluginResponse(tool_call=ToolResponse(success=True))

    answered: list[bytes] = []

    async def ask(link: NatsLink, number: int) -> None:
        key = b"%d" % number
        try:
            await link.request(call(arguments=key), 60)
        except Disconnected:
            return
        answered.append(key)

    async with worker(name, count), caller(name) as link:
        for round in range(20):
            async with worker(name, count) as leaving:
                await asyncio.gather(*(ask(link, round * 100 + n) for n in range(50)))
                asks = [ask(link, round * 100 + 50 + n) for n in range(50)]
                await asyncio.gather(leaving.close(drain_s=20), *asks)
    assert set(runs.values()) == {1}
    assert set(answered) <= runs.keys()
    # Workers that leave refuse what they get afterwards, so nothing was lost here.
    assert len(answered) == 2000
