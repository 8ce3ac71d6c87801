"""nats/connection.py with real servers."""

from __future__ import annotations

import asyncio
import re
import signal
import socket
import ssl
from pathlib import Path

import pytest
from loops import on_a_loop
from orchestra.nats_servers import NatsServerProcess
from tls_certificates import write_certificate

from concertino.errors import Disconnected
from concertino.nats.connection import open_connection
from concertino.nats.servers import NatsOptions, NatsServer, parse_servers


@pytest.mark.parametrize("has_tls", [False, True])
@on_a_loop
async def test_callers_go_on_until_1_mib_is_buffered(tmp_path: Path, has_tls: bool) -> None:
    settings, context = "", None
    if has_tls:
        certificate, key = write_certificate(tmp_path)
        settings = f'tls: {{ cert_file: "{certificate}", key_file: "{key}" }}'
        context = ssl.create_default_context(cafile=certificate)
    server = NatsServerProcess(tmp_path, settings)
    try:
        connection = await open_connection(
            NatsServer("localhost", server.port), NatsOptions("test", tls=context)
        )
        full: list[bool] = []
        connection.on_full.append(full.append)
        server.signal(signal.SIGSTOP)
        while not full:
            connection.publish("x", bytes(2**16))
            await asyncio.sleep(0)
        assert full == [True]
        assert 2**20 < connection.unsent_bytes < 2**20 + 2**18
        connection.abort("the test is over")
    finally:
        server.stop()


@on_a_loop
async def test_a_connection_is_closed_while_its_server_reads_the_remaining_output(
    tmp_path: Path,
) -> None:
    server = NatsServerProcess(tmp_path)
    try:
        connection = await open_connection(
            NatsServer("localhost", server.port), NatsOptions("test")
        )
        server.signal(signal.SIGSTOP)
        while connection.unsent_bytes < 2**18:
            connection.publish("x", bytes(2**16))
            await asyncio.sleep(0)
        closing = asyncio.ensure_future(connection.close())
        await asyncio.sleep(0)
        server.signal(signal.SIGCONT)
        await closing
    finally:
        server.stop()


@on_a_loop
async def test_a_port_at_which_nobody_listens_refuses_the_connection() -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        address = f"nats://127.0.0.1:{reserved.getsockname()[1]}"
        [server] = parse_servers(address)
        with pytest.raises(Disconnected, match=re.escape(f"{address}: Connection refused")):
            await open_connection(server, NatsOptions("test"))
