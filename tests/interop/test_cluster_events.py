"""Streams and buckets at three NATS servers: replicas, and events when a server is killed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import nats
import pytest
from loops import on_a_loop_within
from orchestra.nats_servers import start_jetstream_cluster
from orchestra.test_cluster_events import events, item, publish, running

from concertino.cli import main

COUNT = 40


@on_a_loop_within(120)
async def test_what_is_on_one_server_is_stored_on_three_when_there_are_so_many(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    servers = start_jetstream_cluster(tmp_path)
    address = "nats://" + ",".join(server.address.removeprefix("nats://") for server in servers)
    try:
        connection = await nats.connect([server.address for server in servers])
        streams = connection.jetstream()
        while True:
            # The servers elect a leader first.
            try:
                await streams.add_stream(name="ORCHESTRA_EVENTS", subjects=["e.orchestrator"])
                break
            except nats.errors.Error:
                await asyncio.sleep(0.1)
        await streams.publish("e.orchestrator", b"")

        async def replicas(stream: str) -> int | None:
            return (await streams.stream_info(stream)).config.num_replicas

        async with running(tmp_path, address):
            assert await replicas("ORCHESTRA_EVENTS") == 3
        await streams.create_key_value(bucket="notes")
        for count, text in [(1, "exists already"), (3, ", now on 3 servers instead of 1")]:
            command = ["cluster", "buckets", "notes", "--cluster", address]
            with pytest.raises(SystemExit) as ended:
                await asyncio.to_thread(main, [*command, "--replicas", str(count)])
            assert ended.value.code == 0
            assert text in capsys.readouterr().out
            assert await replicas("KV_notes") == count
        await connection.close()
    finally:
        for server in servers:
            server.stop()


@on_a_loop_within(120)
async def test_events_survive_the_kill_of_the_server_that_leads_their_stream(
    tmp_path: Path,
) -> None:
    servers = start_jetstream_cluster(tmp_path)
    address = ",".join(server.address.removeprefix("nats://") for server in servers)
    try:
        async with (
            running(tmp_path, f"nats://{address}") as one,
            running(tmp_path, f"nats://{address}") as other,
        ):
            stream = events(other)
            first = asyncio.ensure_future(anext(stream))
            await asyncio.sleep(0)
            while (await publish(one, "0")).HasField("tool_call"):
                pass
            seen = [await first]
            connection = await nats.connect([server.address for server in servers])
            info = await connection.jetstream().stream_info("ORCHESTRA_EVENTS")
            assert info.config.num_replicas == 3
            assert info.cluster is not None
            await connection.close()

            leader = servers[int(str(info.cluster.leader)[1:])]
            for number in range(1, COUNT):
                if number == COUNT // 2:
                    leader.stop()
                while (await publish(one if number % 2 else other, str(number))).HasField(
                    "tool_call"
                ):
                    # It may be stored nevertheless, and then comes twice.
                    pass
            while item(seen[-1]) != str(COUNT - 1):
                seen.append(await anext(stream))
            assert list(dict.fromkeys(map(item, seen))) == [str(number) for number in range(COUNT)]
            assert all(event.lost == 0 for event in seen)
            numbers = [int(event.cursor[9:]) for event in seen]
            assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    finally:
        for server in servers:
            server.stop()
