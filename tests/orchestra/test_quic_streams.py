"""quic_link.py: streams that begin, end and are reset in every way, by a peer of plain aioquic."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aioquic.asyncio.client import connect as dial
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.quic import events
from loops import on_a_loop
from orchestra.linked import Holding, Recording, call, echo, health
from orchestra.quics import client, hub, other_end

from concertino.errors import ProtocolError, TimedOut
from concertino.orchestra import handshake, quic_connection, quic_listener
from concertino.orchestra.certificates import Certificates
from concertino.orchestra.plugin_pb2 import PluginRequest, PluginResponse
from concertino.orchestra.rpc_interface import RemotePeer, RpcListener


class Stranger(QuicConnectionProtocol):
    """A client that says what it is told to, and keeps what it hears."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.heard: dict[int, bytes] = {}
        self.ended: dict[int, asyncio.Event] = {}

    def say(self, data: bytes, end: bool = True, stream: int | None = None) -> int:
        stream = self._quic.get_next_available_stream_id() if stream is None else stream
        self.heard.setdefault(stream, b"")
        self.ended.setdefault(stream, asyncio.Event())
        self._quic.send_stream_data(stream, data, end)
        self.transmit()
        return stream

    async def response(self, stream: int) -> PluginResponse:
        await self.ended[stream].wait()
        size = int.from_bytes(self.heard[stream][:4], "big")
        assert len(self.heard[stream]) == size + 4
        return PluginResponse.FromString(self.heard[stream][4:])

    def quic_event_received(self, event: events.QuicEvent) -> None:
        if isinstance(event, events.StreamDataReceived) and event.stream_id in self.heard:
            self.heard[event.stream_id] += event.data
            if event.end_stream:
                self.ended[event.stream_id].set()


@asynccontextmanager
async def open_raw_client(
    listening: RpcListener, certificates: Certificates
) -> AsyncIterator[Stranger]:
    identity = certificates.identity("tools.greeter-client")
    host, port = listening.address.split(":")
    shown = handshake.make_configuration("client", identity, host)
    async with dial(host, int(port), configuration=shown, create_protocol=Stranger) as protocol:
        assert isinstance(protocol, Stranger)
        yield protocol


def frame(request: PluginRequest) -> bytes:
    data = request.SerializeToString()
    return len(data).to_bytes(4, "big") + data


@on_a_loop
async def test_a_request_is_answered_when_its_frame_is_complete_not_when_its_stream_ends(
    certificates: Certificates,
) -> None:
    async with hub(certificates) as listening, open_raw_client(listening, certificates) as peer:
        stream = peer.say(frame(call(arguments=b"abc")), end=False)
        response = await peer.response(stream)
        assert response.request_id == "mine"
        assert response.tool_call.result == b"abc"
        peer.say(b"and more", True, stream)
        assert (await peer.response(peer.say(frame(health())))).HasField("health")


@pytest.mark.parametrize(
    "late", [b"", b"and more", frame(call(arguments=b"again"))], ids=["end", "bytes", "frame"]
)
@on_a_loop
async def test_what_comes_after_a_response_is_overlooked_and_costs_nobody_else_anything(
    certificates: Certificates, late: bytes
) -> None:
    """quic-go sends the end of a longer request in a packet of its own: it may come when the
    request is answered.
    """
    recording = Recording()
    async with (
        hub(certificates, recording) as listening,
        open_raw_client(listening, certificates) as peer,
    ):
        wrong = complaints()
        stream = peer.say(frame(call(arguments=b"abc")), end=False)
        assert (await peer.response(stream)).tool_call.result == b"abc"
        peer._quic.send_stream_data(stream, late, end_stream=True)
        assert (await peer.response(peer.say(frame(health())))).HasField(
            "health"
        )  # in the same packet
        answering = other_end(listening)
        await wait_until_forgotten(peer, answering)
    assert len(recording.requests) == 2
    assert not wrong


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (b"\xff\xff\xff\xff", "4294967295 bytes"),
        (b"\x01\x00\x00\x01", "16777217 bytes"),
        (b"\x00\x00", "it ended without a whole frame"),
        (b"\x00\x00\x00\x05abc", "it ended without a whole frame"),
        (b"", "it ended without a whole frame"),
        (b"\x00\x00\x00\x02\x0a\xff", "cannot be decoded"),
        (b"\x00\x00\x00\x03\x1b\x1b\x1b", "cannot be decoded"),
    ],
)
@on_a_loop
async def test_what_is_no_request_is_answered_with_an_error_and_other_streams_go_on(
    certificates: Certificates, said: bytes, why: str
) -> None:
    async with hub(certificates) as listening, open_raw_client(listening, certificates) as peer:
        response = await peer.response(peer.say(said))
        assert response.tool_call.error_code == "invalid_request"
        assert why in response.tool_call.error_message
        assert (await peer.response(peer.say(frame(health())))).HasField("health")


@on_a_loop
async def test_a_frame_that_is_never_finished_is_given_up(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quic_connection, "TICK_S", 0.02)
    monkeypatch.setattr(quic_connection, "FRAME_S", 0.05)
    async with hub(certificates) as listening, open_raw_client(listening, certificates) as peer:
        slow = peer.say(b"\x00\x00\x00\x05a", end=False)
        other = peer.say(frame(health()))
        assert (await peer.response(other)).HasField("health")
        assert (
            "a frame took more than 0.05 s" in (await peer.response(slow)).tool_call.error_message
        )


@on_a_loop
async def test_unfinished_frames_take_no_more_memory_than_allowed(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quic_connection, "MAX_INCOMPLETE_BYTES", 300_000)
    async with hub(certificates) as listening, open_raw_client(listening, certificates) as peer:
        unfinished = [
            peer.say((200_000).to_bytes(4, "big") + bytes(150_000), end=False) for _ in range(3)
        ]
        done, _ = await asyncio.wait(
            [asyncio.create_task(peer.response(stream)) for stream in unfinished],
            return_when=asyncio.FIRST_COMPLETED,
        )
        assert "unfinished frames" in done.pop().result().tool_call.error_message
        finished = 0
        for stream in unfinished:
            if not peer.ended[stream].is_set():
                peer.say(bytes(50_000), True, stream)
                await peer.response(stream)
                finished += 1
        assert finished


@on_a_loop
async def test_a_reset_or_a_stop_cancels_the_request(certificates: Certificates) -> None:
    holding = Holding()
    async with (
        hub(certificates, holding) as listening,
        open_raw_client(listening, certificates) as peer,
    ):
        for act in (
            lambda s: peer._quic.stop_stream(s, 1),
            lambda s: peer._quic.reset_stream(s, 1),
        ):
            stream = peer.say(frame(call()), end=False)
            await holding.began.acquire()
            act(stream)
            peer.transmit()
            await holding.cancelled.acquire()
        assert (await peer.response(peer.say(frame(health())))).HasField("health")


@pytest.mark.parametrize(
    "said", [frame(call()), b"\x00\x00", b""], ids=["whole", "half", "nothing"]
)
@on_a_loop
async def test_a_reset_alone_gives_a_stream_back(certificates: Certificates, said: bytes) -> None:
    """Without asking us to send no more, which our own links do as well."""
    holding = Holding()
    async with (
        hub(certificates, holding) as listening,
        open_raw_client(listening, certificates) as peer,
    ):
        answering = other_end(listening)
        for _ in range(3):
            stream = peer.say(said, end=False)
            assert (await peer.response(peer.say(frame(health())))).HasField("health")
            peer._quic.reset_stream(stream, 1)
            peer.transmit()
        await wait_until_forgotten(peer, answering)
    assert holding.running == 0


@pytest.mark.parametrize(
    "said", [frame(call()), b"\x00\x00\x00\x02\x0a\xff"], ids=["request", "nonsense"]
)
@on_a_loop
async def test_a_request_that_comes_together_with_its_cancel_troubles_nobody(
    certificates: Certificates, said: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with hub(certificates) as listening, open_raw_client(listening, certificates) as peer:
        wrong = complaints()
        answering = other_end(listening)
        stream = peer._quic.get_next_available_stream_id()
        peer._quic.send_stream_data(stream, said, end_stream=True)
        peer._quic.stop_stream(stream, 1)
        assert (await peer.response(peer.say(frame(health())))).HasField(
            "health"
        )  # in the same packet
        await wait_until_forgotten(peer, answering)
    assert not wrong
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


@on_a_loop
async def test_a_request_that_comes_after_its_cancel_troubles_nobody(
    certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    holding = Holding()
    async with (
        hub(certificates, holding) as listening,
        open_raw_client(listening, certificates) as peer,
    ):
        answering = other_end(listening)
        stream = peer.say(b"", end=False)
        peer._quic.stop_stream(stream, 1)
        assert (await peer.response(peer.say(frame(health())))).HasField("health")
        peer.say(frame(call()), True, stream)
        await holding.began.acquire()
        await wait_until_forgotten(peer, answering, but={stream})
        holding.go.set()
        assert (await peer.response(peer.say(frame(health())))).HasField("health")
        await wait_until_forgotten(peer, answering)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


@on_a_loop
async def test_a_large_request_that_is_cancelled_half_way_troubles_nobody(
    certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    async with hub(certificates) as listening:
        wrong = complaints()
        link: Any = await client(listening, certificates)
        answering = other_end(listening)
        asking = asyncio.create_task(link.request(call(arguments=bytes(8_000_000))))
        while not answering._incomplete:
            await asyncio.sleep(0)
        asking.cancel()
        assert (await link.request(health())).HasField("health")
        await wait_until_forgotten(link.connection, answering)
        await link.close()
    assert not wrong
    assert not caplog.records


@on_a_loop
async def test_an_answer_that_comes_in_spite_of_a_cancel_is_dropped(
    certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    async def answer(request: PluginRequest, peer: RemotePeer) -> PluginResponse:
        if request.HasField("tool_call"):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                pass
        return await echo(request, peer)

    async with hub(certificates, answer) as listening:
        link: Any = await client(listening, certificates)
        answering = other_end(listening)
        asking = asyncio.create_task(link.request(call()))
        while not answering._open:
            await asyncio.sleep(0)
        asking.cancel()
        assert (await link.request(health())).HasField("health")
        await wait_until_forgotten(link.connection, answering)
        await link.close()
    assert not caplog.records


def complaints() -> list[Any]:
    """What this loop complains of, from now on."""
    heard: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: heard.append(context))
    return heard


async def wait_until_forgotten(asking: Any, answering: Any, but: set[int] = set()) -> None:  # noqa: B006
    """Wait until no stream is left at either end, and nothing that was kept of one. but: those
    whose answers are awaited.
    """
    async with asyncio.timeout(10):
        while asking._quic._streams or answering._quic._streams:
            await asyncio.sleep(0.001)
    assert answering._open == but
    assert not answering._receiving
    assert not answering._incomplete


@on_a_loop
async def test_more_requests_than_streams_are_all_answered(certificates: Certificates) -> None:
    running = most = 0

    async def answer(request: PluginRequest, peer: RemotePeer) -> PluginResponse:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return await echo(request, peer)

    async with hub(certificates, answer) as listening:
        link = await client(listening, certificates)
        responses = await asyncio.gather(
            *(link.request(call(arguments=b"%d" % n)) for n in range(1000))
        )
        assert [int(each.tool_call.result) for each in responses] == list(range(1000))
        assert 1 < most <= handshake.STREAMS
        for n in range(300):  # one after the other: streams are given back
            assert (await link.request(call(arguments=b"%d" % n))).tool_call.result == b"%d" % n
        await link.close()


@on_a_loop
async def test_cancelled_requests_give_their_streams_back(certificates: Certificates) -> None:
    holding = Holding()
    async with hub(certificates, holding) as listening:
        link = await client(listening, certificates)
        for _ in range(handshake.STREAMS * 3):
            with pytest.raises(TimedOut):
                await link.request(call(), timeout_s=0)
        assert (await link.request(health())).HasField("health")
        # The last cancel may come after this answer: QUIC keeps no order between streams.
        await holding.idle.wait()
        await link.close()


@pytest.mark.parametrize(
    "said",
    [b"", b"\x00\x00", b"\xff\xff\xff\xff", b"\x00\x00\x00\x02\x0a\x7f", b"\x00\x00\x00\x01"],
)
@on_a_loop
async def test_whatever_a_broken_hub_says_a_request_ends(
    certificates: Certificates, said: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = quic_listener._QuicServerConnection._send
    monkeypatch.setattr(
        quic_listener._QuicServerConnection,
        "_send",
        lambda self, stream, frame, is_last=True: send(self, stream, said),
    )
    async with hub(certificates) as listening:
        link = await client(listening, certificates)
        for _ in range(2):
            with pytest.raises(ProtocolError, match=r"no response|cannot be decoded"):
                await link.request(call())
        await link.close()
