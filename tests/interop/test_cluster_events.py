"""Events of two hubs at three NATS servers, one of which is killed."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import nats
from loops import on_a_loop_within
from nats_chaos import free_ports
from orchestra.nats_servers import NatsServerProcess
from orchestra.test_cluster_events import events, item, publish, running

COUNT = 40


def start_servers(folder: Path) -> list[NatsServerProcess]:
    ports = free_ports(3)
    routes = ", ".join(f'"nats-route://127.0.0.1:{port}"' for port in ports)
    servers: list[NatsServerProcess] = []
    for number, port in enumerate(ports):
        place = folder / f"s{number}"
        place.mkdir()
        settings = (
            f"server_name: s{number}\n"
            f"jetstream {{ store_dir: {json.dumps(str(place / 'store'))} }}\n"
            f'cluster {{ name: c, listen: "127.0.0.1:{port}", routes: [{routes}] }}\n'
        )
        servers.append(NatsServerProcess(place, settings))
    return servers


@on_a_loop_within(120)
async def test_events_survive_the_kill_of_the_server_that_leads_their_stream(
    tmp_path: Path,
) -> None:
    servers = start_servers(tmp_path)
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
