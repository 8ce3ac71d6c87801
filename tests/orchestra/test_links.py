"""link.py, rpc_client.py, rpc_server.py: behaviour over every transport, with both ends in this
process.
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
from loops import on_a_loop
from orchestra.linked import CONNECTIONS, TRANSPORTS, Holding, Place, call, echo, health

from concertino.errors import Disconnected, TimedOut
from concertino.orchestra import link, rpc_server
from concertino.orchestra.certificates import Certificates
from concertino.orchestra.frames import MAX_FRAME_BYTES, FrameTooLarge
from concertino.orchestra.plugin_pb2 import PluginRequest, PluginResponse, ToolResponse
from concertino.orchestra.rpc_client import new_request_id
from concertino.orchestra.rpc_interface import RemotePeer


@pytest.fixture(params=TRANSPORTS)
def place(request: pytest.FixtureRequest, folder: Path, certificates: Certificates) -> Place:
    return Place(request.param, folder, certificates)


@on_a_loop
async def test_a_request_gets_its_response_under_the_id_that_its_caller_gave(place: Place) -> None:
    async with place.open_link_to(echo) as link:
        response = await link.request(call(arguments=b"\x0a\x00"))
    assert response.request_id == "mine"
    assert response.tool_call.result == b"\x0a\x00"


@on_a_loop
async def test_the_request_itself_is_not_changed(place: Place) -> None:
    request = call()
    async with place.open_link_to(echo) as link:
        await link.request(request)
    assert request == call()


@on_a_loop
async def test_many_at_once_are_never_mixed_up(place: Place) -> None:
    async def backwards(request: PluginRequest, peer: RemotePeer) -> PluginResponse:
        for _ in range(500 - int(request.tool_call.arguments)):  # the first is answered last
            await asyncio.sleep(0)
        return await echo(request, peer)

    async with place.open_link_to(backwards) as link:
        responses = await asyncio.gather(
            *(link.request(call(arguments=b"%d" % n)) for n in range(500))
        )
    assert [int(response.tool_call.result) for response in responses] == list(range(500))


@on_a_loop
async def test_a_slow_one_does_not_hold_up_the_others(place: Place) -> None:
    holding = Holding()
    async with place.open_link_to(holding) as link:
        slow = asyncio.create_task(link.request(call()))
        await holding.began.acquire()
        assert (await link.request(health())).HasField("health")
        assert not slow.done()
        holding.go.set()
        await slow


@on_a_loop
async def test_responses_that_nobody_reads_are_dropped_beyond_a_limit(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rpc_server, "MAX_UNREAD_BYTES", 2_000_000)
    holding = Holding()
    async with place.open_link_to(holding) as link:
        large = call(arguments=bytes(900_000))
        tasks = [asyncio.create_task(link.request(large)) for _ in range(10)]
        for _ in tasks:
            await holding.began.acquire()
        # All responses arise before anything can be read.
        holding.go.set()
        answers = [response.tool_call for response in await asyncio.gather(*tasks)]
        sent = [answer for answer in answers if answer.success]
        assert 1 <= len(sent) <= 3
        assert {answer.error_code for answer in answers if not answer.success} == {"unread"}
        assert (await link.request(large)).tool_call.success


@pytest.mark.parametrize("size", [0, 1, 1452, 65535, 65536, 2**20 + 7])
@on_a_loop
async def test_any_size_comes_back_as_it_went(place: Place, size: int) -> None:
    data = bytes(range(256)) * (size // 256 + 1)
    async with place.open_link_to(echo) as link:
        assert (await link.request(call(arguments=data[:size]))).tool_call.result == data[:size]


@pytest.mark.slow
@on_a_loop
async def test_the_longest_frame_passes_and_a_longer_one_is_refused_before_it_is_sent(
    place: Place,
) -> None:
    taken: list[int] = []

    async def measure(request: PluginRequest, peer: RemotePeer) -> PluginResponse:
        taken.append(request.ByteSize())
        return PluginResponse(tool_call=ToolResponse(success=True))

    async with place.open_link_to(measure) as link:
        taken.clear()
        request = call(arguments=bytes(MAX_FRAME_BYTES - 64))
        request.request_id = new_request_id()  # as long as the link's own
        request.tool_call.arguments += bytes(MAX_FRAME_BYTES - request.ByteSize())
        assert request.ByteSize() == MAX_FRAME_BYTES
        await link.request(request)
        request.tool_call.arguments += b"\0"
        with pytest.raises(FrameTooLarge, match="16777217 bytes"):
            await link.request(request)
        await link.request(health())
    assert taken[0] == MAX_FRAME_BYTES
    assert len(taken) == 2


@on_a_loop
async def test_a_response_that_fits_no_frame_is_told_as_an_error(place: Place) -> None:
    async def huge(request: PluginRequest, peer: RemotePeer) -> PluginResponse:
        return PluginResponse(tool_call=ToolResponse(success=True, result=bytes(MAX_FRAME_BYTES)))

    async with place.open_link_to(huge) as link:
        response = await link.request(call())
    assert response.request_id == "mine"
    assert response.tool_call.error_code == "response_too_large"
    assert re.search(
        r"has 167772\d\d bytes, and a frame at most 16777216", response.tool_call.error_message
    )


@on_a_loop
async def test_what_answering_raises_is_told_without_its_text_and_logged(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(request: PluginRequest, peer: RemotePeer) -> PluginResponse:
        raise RuntimeError("the password is 1234")

    async with place.open_link_to(broken) as link:
        response = await link.request(call())
        assert response.tool_call.error_code == "internal_error"
        assert "1234" not in response.tool_call.error_message
        assert (await link.request(call())).tool_call.error_code == "internal_error"
    assert "the password is 1234" in caplog.text


@on_a_loop
async def test_after_its_time_a_request_fails_and_the_other_side_is_told(place: Place) -> None:
    holding = Holding()
    async with place.open_link_to(holding) as link:
        with pytest.raises(TimedOut, match=r"no response to tool_call within 0\.05 s"):
            await link.request(call(), timeout_s=0.05)
        await holding.cancelled.acquire()
        assert (await link.request(health())).HasField("health")


@on_a_loop
async def test_a_cancelled_request_is_cancelled_over_there(place: Place) -> None:
    holding = Holding()
    async with place.open_link_to(holding) as link:
        others = [asyncio.create_task(link.request(call())) for _ in range(3)]
        for _ in others:
            await holding.began.acquire()
        others[1].cancel()
        await holding.cancelled.acquire()
        assert holding.running == 2
        holding.go.set()
        assert (await others[0]).tool_call.success
        assert (await others[2]).tool_call.success
        assert others[1].cancelled()


@on_a_loop
async def test_cancelled_at_once_nothing_is_left_behind(place: Place) -> None:
    async with place.open_link_to(echo) as link:
        for steps in range(6):
            task = asyncio.create_task(link.request(call()))
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait((task,))
        assert not link._pending  # type: ignore[attr-defined]
        assert (await link.request(health())).HasField("health")


@on_a_loop
async def test_when_the_link_is_closed_what_is_under_way_fails_and_is_cancelled_over_there(
    place: Place,
) -> None:
    holding = Holding()
    async with place.open_link_to(holding) as link:
        task = asyncio.create_task(link.request(call()))
        await holding.began.acquire()
        await link.close()
        with pytest.raises(Disconnected):
            await task
        await holding.cancelled.acquire()
        assert link.end_reason.done()
        with pytest.raises(Disconnected):
            await link.request(health())
        await link.close()  # again


@pytest.mark.parametrize("place", CONNECTIONS, indirect=True)
@on_a_loop
async def test_when_who_answers_ends_what_is_under_way_fails_at_once(place: Place) -> None:
    holding = Holding()
    listening = await place.listening(holding)
    link = await place.connect_to(listening)
    task = asyncio.create_task(link.request(call()))
    await holding.began.acquire()
    await listening.close()
    with pytest.raises(Disconnected):
        await task
    await link.end_reason
    await holding.cancelled.acquire()
    await link.close()


@pytest.mark.parametrize("place", CONNECTIONS, indirect=True)
@on_a_loop
async def test_ending_in_peace_answers_what_was_asked(place: Place) -> None:
    holding = Holding()
    listening = await place.listening(holding)
    link = await place.connect_to(listening)
    task = asyncio.create_task(link.request(call(arguments=b"x" * 100_000)))
    await holding.began.acquire()
    closing = asyncio.create_task(listening.close(drain_s=20))
    await asyncio.sleep(0)
    holding.go.set()
    assert len((await task).tool_call.result) == 100_000
    await closing
    await link.end_reason
    await link.close()


@on_a_loop
async def test_nobody_there_is_told_at_once(place: Place) -> None:
    listening = await place.listening(echo)
    await listening.close()
    with pytest.raises(Disconnected):
        await link.open_link(
            listening.address,
            certificates=place.certificates,
            name="tools.greeter-client",
            timeout_s=0.5,
        )


@on_a_loop
async def test_an_address_can_be_listened_at_again(place: Place) -> None:
    listening = await place.listening(echo)
    await listening.close()
    again = await place.listening(echo, listening.address)
    link = await place.connect_to(again)
    assert (await link.request(health())).HasField("health")
    await link.close()
    await again.close()


@pytest.mark.parametrize(
    ("address", "why"),
    [
        (
            "nohost",
            r"'nohost': expected HOST:PORT, as in localhost:50100 or \[::1\]:50100, or unix:PATH",
        ),
        ("localhost:99999", "'localhost:99999': expected HOST:PORT"),
        (
            "192.0.2.1:0",
            "192.0.2.1:0: Cannot assign requested address",
        ),  # an address of no machine: RFC 5737
        ("unix:", "unix:'': expected a path"),
        (
            "unix:/tmp/hub",
            "unix:/tmp/hub: all users share /tmp: mkdir -m 700 /tmp/NAME, and put it there",
        ),
        ("unix:/not/there/hub", "unix:/not/there/hub: /not/there: No such file or directory"),
    ],
)
@on_a_loop
async def test_who_cannot_listen_says_where_and_what_to_do(
    address: str, why: str, certificates: Certificates
) -> None:
    with pytest.raises((OSError, ValueError), match=why):
        await link.listen_for_links(address, echo, certificates=certificates, name="orchestrator")


@on_a_loop
async def test_a_port_that_is_taken_is_named(certificates: Certificates) -> None:
    listening = await link.listen_for_links(
        "localhost:0", echo, certificates=certificates, name="orchestrator"
    )
    with pytest.raises(OSError, match=f"{listening.address}: Address already in use"):
        await link.listen_for_links(
            listening.address, echo, certificates=certificates, name="orchestrator"
        )
    await listening.close()


def test_ids_are_uuids_of_version_7_and_grow() -> None:
    ids = [new_request_id() for _ in range(1000)]
    assert len(set(ids)) == 1000
    assert ids == sorted(ids)
    assert all(
        re.fullmatch(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", id)
        for id in ids
    )


def test_who_may_speak_for_a_plugin() -> None:
    assert RemotePeer("a", "tools.greeter").may_register_as("tools.greeter")
    assert RemotePeer("a", "tools.greeter-client").may_register_as("tools.greeter")
    assert not RemotePeer("a", "tools.greeter-client").may_register_as("tools")
    assert not RemotePeer("a", "tools.other-client").may_register_as("tools.greeter")
    assert RemotePeer("unix:/s", None, 1, 1000).may_register_as("tools.greeter")
    assert not RemotePeer("a").may_register_as("tools.greeter")
