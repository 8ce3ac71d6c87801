"""udp.py: datagrams that wait are handed over together, as far as the loop may stand still."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
from loops import on_a_loop
from orchestra.linked import call
from orchestra.quics import client, hub, other_end

from concertino.orchestra import udp
from concertino.orchestra.certificates import Certificates
from concertino.orchestra.plugin_pb2 import PluginResponse
from concertino.orchestra.udp import Address, UdpSocket


class Handler:
    """Keeps the datagrams of each read."""

    def __init__(self, takes_s: float = 0.0) -> None:
        self.reads: list[list[bytes]] = []
        self.errors: list[Exception] = []
        self.more = asyncio.Event()
        self.takes_s = takes_s

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        pass

    def datagrams_received(self, datagrams: Iterator[tuple[bytes, Address]]) -> None:
        self.reads.append([])
        for data, _ in datagrams:
            self.reads[-1].append(data)
            time.sleep(self.takes_s)
        self.more.set()

    def error_received(self, exc: Exception) -> None:
        self.errors.append(exc)
        self.more.set()

    async def until(self, count: int) -> None:
        async with asyncio.timeout(10):
            while sum(map(len, self.reads)) < count:
                self.more.clear()
                await self.more.wait()


def bound() -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind(("127.0.0.1", 0))
    return sock


@on_a_loop
async def test_datagrams_that_wait_come_together_and_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(udp, "TURN_S", 60)
    handler, sock = Handler(), bound()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for number in range(5):
            sender.sendto(b"%d" % number, sock.getsockname())
    transport = UdpSocket(sock, handler)
    await handler.until(5)
    assert handler.reads == [[b"0", b"1", b"2", b"3", b"4"]]
    transport.close()


@pytest.mark.parametrize("limit", ["time", "count"])
@on_a_loop
async def test_the_loop_gets_its_turn_between_many(
    limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if limit == "count":
        monkeypatch.setattr(udp, "TURN_DATAGRAMS", 1)
        monkeypatch.setattr(udp, "TURN_S", 60)
    handler, sock = Handler(udp.TURN_S if limit == "time" else 0.0), bound()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for number in range(3):
            sender.sendto(b"%d" % number, sock.getsockname())
    transport = UdpSocket(sock, handler)
    await handler.until(3)
    assert handler.reads == [[b"0"], [b"1"], [b"2"]]
    transport.close()


@on_a_loop
async def test_what_the_system_reports_reaches_the_handler_and_a_closed_socket_is_quiet() -> None:
    handler = Handler()
    with bound() as gone:
        nobody = gone.getsockname()
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.connect(nobody)
    transport = UdpSocket(sock, handler)
    transport.sendto(b"hello", nobody)
    async with asyncio.timeout(10):
        await handler.more.wait()
    assert isinstance(handler.errors[0], ConnectionRefusedError)
    transport.close()
    assert transport.is_closing()
    errors = len(handler.errors)
    transport.sendto(b"hello", nobody)
    transport.close()
    assert len(handler.errors) == errors


@on_a_loop
async def test_one_packet_answers_all_requests_of_a_read(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client in Go sends each request in packets of its own, 64 of them at once."""
    monkeypatch.setattr(udp, "TURN_S", 60)
    async with hub(certificates) as listening:
        link = await client(listening, certificates)
        await link.request(call())
        transport: Any = other_end(listening)._transport
        sent: list[bytes] = []
        send = UdpSocket.sendto

        def recorded(self: UdpSocket, data: bytes, addr: object = None) -> None:
            if self is transport:
                sent.append(data)
            send(self, data, addr)

        monkeypatch.setattr(UdpSocket, "sendto", recorded)
        loop = asyncio.get_running_loop()
        loop.remove_reader(transport._socket)
        requests: list[asyncio.Task[PluginResponse]] = []
        for _ in range(6):
            # Each is sent in the next iteration of the loop, so in a packet of its own.
            requests.append(asyncio.create_task(link.request(call())))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        loop.add_reader(transport._socket, transport._on_readable)
        await asyncio.gather(*requests)
        # A second one may only acknowledge. Without the turn there are six.
        assert len(sent) <= 2
        await link.close()
