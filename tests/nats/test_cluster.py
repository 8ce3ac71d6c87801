"""nats/cluster.py: the time limit of open(), and the errors without a connection."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from loops import on_a_loop
from orchestra.nats_servers import shared_nats_server

from concertino.errors import Disconnected
from concertino.nats.cluster import NatsCluster
from concertino.nats.servers import NatsOptions, parse_servers


@pytest.fixture
def silent() -> Iterator[str]:
    """The addresses of two servers that accept connections and never send anything."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2)]
        yield ",".join(f"nats://127.0.0.1:{item.getsockname()[1]}" for item in sockets)


@on_a_loop
async def test_opening_a_cluster_of_silent_servers_ends_at_the_time_limit(silent: str) -> None:
    cluster = NatsCluster(parse_servers(silent), NatsOptions("test"))
    # Each server alone would have 5 s to answer.
    async with asyncio.timeout(4):
        with pytest.raises(Disconnected, match=r"no answer within 0\.1 s"):
            await cluster.open(0.2)


@on_a_loop
async def test_silent_servers_leave_time_for_the_server_that_answers(silent: str) -> None:
    address = f"{silent},{shared_nats_server().address}"
    cluster = NatsCluster(parse_servers(address), NatsOptions("test"))
    await cluster.open(6)
    assert cluster.is_up
    await cluster.close()


@on_a_loop
async def test_the_error_says_that_the_servers_are_tried_again_only_while_they_are() -> None:
    cluster = NatsCluster(parse_servers(shared_nats_server().address), NatsOptions("test"))
    unreached = "the cluster cannot be reached: "
    with pytest.raises(Disconnected, match=f"^{re.escape(unreached)}not connected yet$"):
        _ = cluster.connection
    await cluster.open()
    await cluster.close()
    with pytest.raises(Disconnected, match=f"^{re.escape(unreached)}the connection was closed$"):
        _ = cluster.connection
