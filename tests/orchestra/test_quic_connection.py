"""quic_connection.py: when a connection sends, and what it sends at once."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aioquic.quic.connection import QuicConnection
from loops import on_a_loop
from orchestra.linked import call, echo
from orchestra.quics import client, hub, other_end

from concertino.orchestra.certificates import Certificates
from concertino.orchestra.rpc_interface import RequestHandler


@asynccontextmanager
async def open_linked(
    certificates: Certificates, answer: RequestHandler = echo
) -> AsyncIterator[tuple[Any, Any]]:
    """A link, and the connection at its other end."""
    async with hub(certificates, answer) as listening:
        link = await client(listening, certificates)
        try:
            yield link, other_end(listening)
        finally:
            await link.close()


class StoppedLoop:
    """A loop whose clock stands: nothing that is for later is ever due."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._now = self._loop.time()

    def time(self) -> float:
        return self._now

    def call_at(self, when: float, callback: Callable[[], object]) -> asyncio.TimerHandle:
        return self._loop.call_later(3600, callback)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)


@pytest.fixture
def datagram_sizes(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The sizes of the datagrams of each sending, on both sides."""
    sizes: list[list[int]] = []
    send = QuicConnection.datagrams_to_send

    def counted(self: QuicConnection, now: float) -> Any:
        found = send(self, now)
        sizes.append([len(data) for data, _ in found])
        return found

    monkeypatch.setattr(QuicConnection, "datagrams_to_send", counted)
    return sizes


@on_a_loop
async def test_datagrams_are_no_larger_than_upstream_accepts(
    certificates: Certificates,
    datagram_sizes: list[list[int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    serialize = QuicConnection._serialize_transport_parameters

    def with_limit_of_quic_go(self: QuicConnection) -> bytes:
        # max_udp_payload_size (0x03) of 1452, as a varint of two bytes: RFC 9000 section 18.2.
        return serialize(self) + bytes.fromhex("03 02 45ac")

    monkeypatch.setattr(QuicConnection, "_serialize_transport_parameters", with_limit_of_quic_go)
    async with open_linked(certificates) as (link, _):
        await link.request(call(arguments=bytes(300_000)))
    assert max(map(max, filter(None, datagram_sizes))) == 1452


@on_a_loop
async def test_datagrams_on_a_loopback_address_have_up_to_8_KiB(
    certificates: Certificates, datagram_sizes: list[list[int]]
) -> None:
    async with open_linked(certificates) as (link, _):
        handshake = max(map(max, filter(None, datagram_sizes)))
        await link.request(call(arguments=bytes(300_000)))
    assert handshake <= 1452
    assert max(map(max, filter(None, datagram_sizes))) == 8192


@on_a_loop
async def test_datagrams_to_other_hosts_are_no_larger_than_a_packet_of_the_internet(
    certificates: Certificates,
    datagram_sizes: list[list[int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(QuicConnection, "get_peer_address", lambda _: ("192.0.2.1", 1))
    async with open_linked(certificates) as (link, _):
        await link.request(call(arguments=bytes(300_000)))
    assert max(map(max, filter(None, datagram_sizes))) == 1452


@on_a_loop
async def test_acknowledgements_go_with_requests_and_responses(
    certificates: Certificates, datagram_sizes: list[list[int]]
) -> None:
    async with open_linked(certificates) as (link, answering):
        for each in (link.connection, answering):
            each._loop = StoppedLoop()
        await link.request(call())
        datagram_sizes.clear()
        for _ in range(20):
            await link.request(call())
        assert sum(map(len, datagram_sizes)) == 40  # for each call two
        assert (
            len(datagram_sizes) <= 42
            # No datagram was sent in vain, but when an earlier timer was due.
        )
        assert (
            len(answering._quic._streams) <= 2
        )  # each response but the last is known to have arrived
        for each in (link.connection, answering):
            each._loop = asyncio.get_running_loop()


@on_a_loop
async def test_a_connection_that_is_idle_does_nothing(
    certificates: Certificates, datagram_sizes: list[list[int]]
) -> None:
    async with open_linked(certificates) as (link, _):
        await link.request(call())
        # What is due after a request: acknowledgements, after 25 ms at most, and their timers.
        await asyncio.sleep(0.2)
        datagram_sizes.clear()
        await asyncio.sleep(0.5)
        assert len(datagram_sizes) <= 2


@on_a_loop
async def test_an_acknowledgement_that_nothing_goes_with_is_sent_by_itself(
    certificates: Certificates,
) -> None:
    async with open_linked(certificates) as (link, answering):
        await link.request(call(arguments=bytes(200_000)))
        async with asyncio.timeout(10):
            while answering.is_sending:
                await asyncio.sleep(0.001)


@on_a_loop
async def test_the_loop_turns_often_while_something_large_is_sent(
    certificates: Certificates, datagram_sizes: list[list[int]]
) -> None:
    """The way of decision 0013 stands on aioquic's pacing: a burst is a quarter of the window, and
    16 datagrams at most.
    """
    turns = 0
    loop = asyncio.get_running_loop()

    def turn() -> None:
        nonlocal turns
        turns += 1
        loop.call_soon(turn)

    async with open_linked(certificates) as (link, _):
        turn()
        before, size = turns, 4_000_000
        assert len((await link.request(call(arguments=bytes(size)))).tool_call.result) == size
        assert max(map(len, datagram_sizes)) <= 17
        # Both ends are on this loop, so one turn may send a burst in each direction.
        assert turns - before > size // (17 * 8192)


@on_a_loop
async def test_what_gets_lost_on_the_way_is_sent_again(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(7)
    lost = 0
    send = QuicConnection.datagrams_to_send

    def losing(self: QuicConnection, now: float) -> Any:
        nonlocal lost
        found = send(self, now)
        kept = [each for each in found if chance.random() > 0.1]
        lost += len(found) - len(kept)
        return kept

    async with open_linked(certificates) as (link, _):
        monkeypatch.setattr(QuicConnection, "datagrams_to_send", losing)
        for n in range(30):
            assert (await link.request(call(arguments=b"%d" % n))).tool_call.result == b"%d" % n
        data = [bytes([n]) * 20_000 for n in range(20)]
        responses = await asyncio.gather(*(link.request(call(arguments=each)) for each in data))
        assert [each.tool_call.result for each in responses] == data
        assert lost > 20
        monkeypatch.setattr(QuicConnection, "datagrams_to_send", send)
