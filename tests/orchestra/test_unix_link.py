"""unix_link.py: links over Unix sockets, against peers that misbehave, byte by byte."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
from pathlib import Path
from typing import Any

import pytest
from loops import on_a_loop
from orchestra.linked import Holding, call, echo, health

from concertino.errors import Disconnected
from concertino.orchestra import link, rpc_server, unix_link
from concertino.orchestra.frames import MAX_FRAME_BYTES
from concertino.orchestra.link import listen_for_links, open_link
from concertino.orchestra.plugin_pb2 import (
    HealthResult,
    PluginRequest,
    PluginResponse,
    StreamCancel,
    StreamChunk,
    StreamEnd,
    StreamStart,
    ToolRequest,
)
from concertino.orchestra.rpc_interface import HandshakeFailure, RemotePeer
from concertino.runtime.tasks import read_batch_of

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def frame(message: PluginRequest | PluginResponse) -> bytes:
    data = message.SerializeToString()
    return len(data).to_bytes(4, "big") + data


async def response(reader: asyncio.StreamReader) -> PluginResponse:
    size = int.from_bytes(await reader.readexactly(4), "big")
    return PluginResponse.FromString(await reader.readexactly(size))


@on_a_loop
async def test_the_socket_is_its_owner_s_alone(folder: Path) -> None:
    listening = await listen_for_links(f"unix:{folder}/s", echo)
    assert stat.S_IMODE((folder / "s").stat().st_mode) == 0o600
    await listening.close()
    assert not (folder / "s").exists()


@on_a_loop
async def test_a_folder_that_others_may_enter_is_refused_with_what_mends_it(folder: Path) -> None:
    folder.chmod(0o755)
    with pytest.raises(PermissionError, match=f"chmod 700 {folder}"):
        await listen_for_links(f"unix:{folder}/s", echo)


@on_a_loop
async def test_who_asks_is_known_by_its_process(folder: Path) -> None:
    seen: list[link.RemotePeer] = []

    async def answer(request: PluginRequest, peer: link.RemotePeer) -> PluginResponse:
        seen.append(peer)
        return await echo(request, peer)

    listening = await listen_for_links(f"unix:{folder}/s", answer)
    link = await open_link(listening.address)
    await link.request(health())
    expected = RemotePeer(f"unix:{folder}/s", None, os.getpid(), os.geteuid())
    assert seen == [expected]
    assert link.peer == expected
    await link.close()
    await listening.close()


@pytest.mark.parametrize("trusting", ["listening", "connecting"])
@on_a_loop
async def test_another_user_is_refused_on_either_side(
    folder: Path, trusting: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Two users cannot be had here, so what is asked for is who may be trusted: the system's answer
    itself is sockets.py's.
    """
    listening = await listen_for_links(f"unix:{folder}/s", echo)
    if trusting == "connecting":
        monkeypatch.setattr(unix_link, "is_trusted", lambda uid, own: False)
        with pytest.raises(HandshakeFailure, match=f"runs as uid {os.geteuid()}"):
            await open_link(listening.address)
    else:
        monkeypatch.setattr("concertino.transports.listeners.is_trusted", lambda uid, own: False)
        link = await open_link(listening.address)
        with pytest.raises(Disconnected):
            await link.request(health())
        assert "refused a connection" in caplog.text
        await link.close()
    await listening.close()


async def open_pair(folder: Path, answer: link.Answer = echo) -> tuple[link.RpcListener, Streams]:
    listening = await listen_for_links(f"unix:{folder}/s", answer)
    return listening, await asyncio.open_unix_connection(folder / "s")


@pytest.mark.parametrize("header", [b"\x01\x00\x00\x01", b"\xff\xff\xff\xff"])
@on_a_loop
async def test_a_frame_that_says_it_is_too_long_ends_the_connection_and_no_other(
    folder: Path, header: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    listening, (reader, writer) = await open_pair(folder)
    other = await open_link(listening.address)
    writer.write(header)
    assert await reader.read() == b""
    assert (await other.request(health())).HasField("health")
    assert "at most 16777216 are allowed" in caplog.text
    writer.close()
    await other.close()
    await listening.close()


@pytest.mark.parametrize(
    "payload",
    [
        b"\xff",
        b"\x0a\x02id\xa2\x01\x05\x0a\x03ab",  # cut short within
        b"\x0a\x02id\xa2\x01\x04\x0a\x02\xff\xff",  # a name that is not UTF-8
        b"\x0a\x02id" + b"\xa2\x01" * 1,
        b"\x0a\x02id" + b"\x1b" * 10_000,  # groups in groups
    ],
)
@on_a_loop
async def test_what_is_no_request_is_answered_with_an_error_and_the_next_is_served(
    folder: Path, payload: bytes
) -> None:
    listening, (reader, writer) = await open_pair(folder)
    writer.write(len(payload).to_bytes(4, "big") + payload + frame(health()))
    refused = await response(reader)
    assert refused.tool_call.error_code == "invalid_request"
    assert refused.request_id == ("id" if payload.startswith(b"\x0a\x02id") else "")
    assert (await response(reader)).HasField("health")
    writer.close()
    await listening.close()


@on_a_loop
async def test_an_empty_frame_is_a_request_for_nothing(folder: Path) -> None:
    listening, (reader, writer) = await open_pair(folder)
    writer.write(b"\0\0\0\0")
    assert (await response(reader)).request_id == ""
    writer.close()
    await listening.close()


@on_a_loop
async def test_one_byte_at_a_time_is_served(folder: Path) -> None:
    listening, (reader, writer) = await open_pair(folder)
    for byte in frame(call(arguments=b"abc")):
        writer.write(bytes([byte]))
        await writer.drain()
        await asyncio.sleep(0)
    assert (await response(reader)).tool_call.result == b"abc"
    writer.close()
    await listening.close()


@on_a_loop
async def test_a_frame_that_is_never_finished_ends_the_connection(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(unix_link, "FRAME_S", 0.05)
    listening, (reader, writer) = await open_pair(folder)
    writer.write(frame(health()) + b"\x00\x00")
    assert (await response(reader)).HasField("health")
    assert await reader.read() == b""
    assert "a frame took more than 0.05 s" in caplog.text
    writer.close()
    await listening.close()


@on_a_loop
async def test_the_same_id_twice_is_answered_once(folder: Path) -> None:
    holding = Holding()
    listening, (reader, writer) = await open_pair(folder, holding)
    writer.write(frame(call()) * 2 + frame(health()))
    assert (await response(reader)).HasField("health")
    holding.go.set()
    assert (await response(reader)).request_id == "mine"
    writer.write_eof()
    assert await reader.read() == b""
    writer.close()
    await listening.close()


@on_a_loop
async def test_a_cancel_is_not_answered_be_it_of_what_is_unknown_or_done(folder: Path) -> None:
    listening, (reader, writer) = await open_pair(folder)
    writer.write(frame(call()))
    assert (await response(reader)).request_id == "mine"
    for id in ("mine", "nobody's", ""):
        writer.write(frame(PluginRequest(request_id=id, stream_cancel=StreamCancel(stream_id=id))))
    writer.write(frame(health()))
    assert (await response(reader)).HasField("health")  # and nothing to the others
    writer.close()
    await listening.close()


@on_a_loop
async def test_beyond_the_limit_of_requests_at_once_the_next_is_told_busy(folder: Path) -> None:
    holding = Holding()
    listening = await listen_for_links(f"unix:{folder}/s", holding)
    link = await open_link(listening.address)
    tasks = [asyncio.create_task(link.request(call())) for _ in range(rpc_server.MAX_IN_FLIGHT)]
    for _ in tasks:
        await holding.began.acquire()
    response = await link.request(call())
    assert response.tool_call.error_code == "busy"
    holding.go.set()
    assert all(each.tool_call.success for each in await asyncio.gather(*tasks))
    await link.close()
    await listening.close()


@on_a_loop
async def test_reading_pauses_while_requests_hold_too_much_memory(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rpc_server, "MAX_BYTES_IN_FLIGHT", 1_000_000)
    holding = Holding()
    listening = await listen_for_links(f"unix:{folder}/s", holding)
    link = await open_link(listening.address)
    tasks = [asyncio.create_task(link.request(call(arguments=bytes(400_000)))) for _ in range(20)]
    for _ in range(3):
        await holding.began.acquire()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):  # an upper bound of what must not happen
            await holding.began.acquire()
    assert holding.running <= 4
    holding.go.set()
    assert all(each.tool_call.success for each in await asyncio.gather(*tasks))
    await link.close()
    await listening.close()


@on_a_loop
async def test_who_does_not_read_its_responses_holds_up_only_itself(folder: Path) -> None:
    began = 0

    async def large(request: PluginRequest, peer: link.RemotePeer) -> PluginResponse:
        nonlocal began
        began += 1
        return await echo(request, peer)

    listening, (reader, writer) = await open_pair(folder, large)
    big = frame(call(arguments=bytes(500_000)))
    other = await open_link(listening.address)
    sending = asyncio.create_task(send_copies(writer, big, 100))
    while not sending.done():
        before = began
        assert (await other.request(call(), timeout_s=5)).tool_call.success
        await asyncio.sleep(0.02)
        if began == before + 1:  # nothing but our own: it is held
            break
    assert began < 60  # of some hundred: what it did not take was not even asked for
    for _ in range(100):
        assert len((await response(reader)).tool_call.result) == 500_000
    await sending
    writer.close()
    await other.close()
    await listening.close()


async def send_copies(writer: asyncio.StreamWriter, data: bytes, times: int) -> None:
    for number in range(times):
        writer.write(data.replace(b"mine", b"%04d" % number))
        await writer.drain()


@on_a_loop
async def test_a_request_waits_for_room_while_the_other_side_does_not_read(folder: Path) -> None:
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(folder / "s"))
    server.listen()
    link = await open_link(f"unix:{folder}/s")
    stuck = [
        asyncio.create_task(link.request(call(arguments=bytes(2**20)), timeout_s=0.3))
        for _ in range(20)
    ]
    await asyncio.wait(stuck)
    assert {type(task.exception()).__name__ for task in stuck} == {"TimedOut"}
    assert link._connection._output.held < 25 * 2**20  # type: ignore[attr-defined]
    server.close()
    link.on_eof()  # type: ignore[attr-defined]
    await link.close()


@pytest.mark.parametrize(
    "said",
    [
        b"\xff\xff\xff\xff",
        b"\x00\x00\x00\x02\x0a\x05",
        frame(PluginResponse(request_id="nobody's")),
        b"",
    ],
)
@on_a_loop
async def test_whatever_a_broken_hub_says_a_request_ends(folder: Path, said: bytes) -> None:
    async def broken(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(said)
        await writer.drain()
        writer.close()

    server = await asyncio.start_unix_server(broken, folder / "s")
    link = await open_link(f"unix:{folder}/s")
    with pytest.raises(Disconnected):
        await link.request(health())
    await link.close()
    server.close()


@on_a_loop
async def test_a_response_that_is_none_fails_its_request_and_not_the_link(folder: Path) -> None:
    async def answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while size := await reader.read(4):
            request = PluginRequest.FromString(
                await reader.readexactly(int.from_bytes(size, "big"))
            )
            good = frame(PluginResponse(request_id=request.request_id))
            bad = b"\x0a\x24" + request.request_id.encode() + b"\xa2\x01\x7f"
            writer.write(
                good * 2 if request.HasField("health") else len(bad).to_bytes(4, "big") + bad
            )
        writer.close()

    server = await asyncio.start_unix_server(answers, folder / "s")
    link = await open_link(f"unix:{folder}/s")
    with pytest.raises(Exception, match="the response cannot be decoded"):
        await link.request(call())
    await link.request(health())  # answered twice: the second is nobody's
    await link.request(health())
    await link.close()
    server.close()


@on_a_loop
async def test_a_header_that_promises_much_takes_no_memory(folder: Path) -> None:
    import tracemalloc

    listening, (_, writer) = await open_pair(folder)
    tracemalloc.start()
    try:
        writer.write(MAX_FRAME_BYTES.to_bytes(4, "big") + b"x" * 1000)
        await writer.drain()
        for _ in range(10):
            await asyncio.sleep(0)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()
    writer.close()
    await listening.close()


@on_a_loop
async def test_what_follows_from_one_response_is_asked_in_its_order(folder: Path) -> None:
    """The first request leaves at once and the others at the end of the reading, whatever was read
    alone before.
    """
    asked: list[str] = []

    async def answer(request: PluginRequest, peer: link.RemotePeer) -> PluginResponse:
        asked.append(request.tool_call.tool_name)
        return await echo(request, peer)

    listening = await listen_for_links(f"unix:{folder}/s", answer)
    link = await open_link(listening.address)
    expected: list[str] = []
    for turn in range(3):
        await link.request(call("first"))  # this goes on inside of the reading of the response
        names = [f"{turn}.{number}" for number in range(4)]
        expected += ["first", *names]
        sent = [
            link.forward(
                PluginRequest(tool_call=ToolRequest(tool_name=name)).SerializeToString(), 10
            )
            for name in names
        ]
        for each in sent:
            assert each is not None
            assert PluginResponse.FromString(await each).HasField("tool_call")
    assert asked == expected
    await link.close()
    await listening.close()


@on_a_loop
async def test_a_link_whose_other_side_takes_nothing_is_closed_in_bounded_time(
    folder: Path,
) -> None:
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(f"{folder}/s")
        silent.listen()
        link = await open_link(f"unix:{folder}/s")
        with silent.accept()[0]:
            large = PluginRequest(tool_call=ToolRequest(tool_name="x", arguments=bytes(800_000)))
            asked = asyncio.ensure_future(link.request(large, 100))
            await asyncio.sleep(0)
            await link.close()
            with pytest.raises(Disconnected, match="the link was closed"):
                await asked


@on_a_loop
async def test_a_response_may_have_its_id_behind_the_rest(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"{folder}/s")
        server.listen()
        server.setblocking(False)
        loop = asyncio.get_running_loop()
        accepting = asyncio.ensure_future(loop.sock_accept(server))
        link = await open_link(f"unix:{folder}/s")
        peer, _ = await accepting
        with peer:
            asked = asyncio.ensure_future(link.request(health()))
            frame = await loop.sock_recv(peer, 65536)
            id = PluginRequest.FromString(frame[4:]).request_id
            body = PluginResponse(health=HealthResult(message="well")).SerializeToString()
            payload = body + PluginResponse(request_id=id).SerializeToString()
            junk = b"\x12\xff"
            for each in (junk, payload):
                await loop.sock_sendall(peer, len(each).to_bytes(4, "big") + each)
            assert (await asked).health.message == "well"
        await link.close()


@on_a_loop
async def test_an_id_that_is_no_text_is_refused_and_not_passed_on(folder: Path) -> None:
    def relay(body: bytes, peer: link.RemotePeer, respond: link.Respond) -> Any:
        raise AssertionError("it is not passed on")

    listening = unix_link.listen_unix_links(f"{folder}/s", echo, relay)
    reader, writer = await asyncio.open_unix_connection(folder / "s")
    payload = (
        b"\x0a\x02\xff\xfe"
        + PluginRequest(tool_call=ToolRequest(tool_name="x")).SerializeToString()
    )
    writer.write(len(payload).to_bytes(4, "big") + payload)
    answer = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
    assert PluginResponse.FromString(answer).tool_call.error_code == "invalid_request"
    writer.close()
    await listening.close()


@on_a_loop
async def test_what_fails_when_a_response_is_passed_back_costs_no_other_its_own(
    folder: Path,
) -> None:
    told: list[str] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda _, context: told.append(context["message"])
    )
    listening = await listen_for_links(f"unix:{folder}/s", echo)
    link = await open_link(listening.address)
    assert isinstance(link, unix_link.UnixLink)
    came: list[bytes | BaseException] = []

    def fails(outcome: bytes | BaseException) -> None:
        raise MemoryError

    body = PluginRequest(tool_call=ToolRequest(tool_name="echo")).SerializeToString()
    waiting = [link.forward(body, 10, each) for each in (fails, came.append)]
    assert None not in waiting
    await link.request(call())
    assert len(told) == 1
    assert len(came) == 1
    await link.close()
    await listening.close()


@on_a_loop
async def test_what_the_first_chunk_causes_is_sent_before_the_next_responses_are_handled(
    folder: Path,
) -> None:
    loop = asyncio.get_running_loop()
    events: list[str] = []
    ended = asyncio.Event()

    def on_response(outcome: bytes | BaseException) -> None:
        assert isinstance(outcome, bytes), outcome
        kind = str(PluginResponse.FromString(outcome).WhichOneof("response"))
        events.append(kind)
        read_batch_of(loop).defer(lambda: events.append(f"sent for {kind}"))
        if kind == "stream_end":
            ended.set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        size = int.from_bytes(await reader.readexactly(4), "big")
        id = PluginRequest.FromString(await reader.readexactly(size)).request_id
        chunks = [
            frame(PluginResponse(request_id=id, stream_chunk=StreamChunk(sequence=number)))
            for number in range(2)
        ]
        end = frame(PluginResponse(request_id=id, stream_end=StreamEnd(success=True)))
        writer.write(b"".join((*chunks, end)))
        await reader.read()
        writer.close()

    async with await asyncio.start_unix_server(serve, folder / "s"):
        link = await open_link(f"unix:{folder}/s")
        assert isinstance(link, unix_link.UnixLink)
        start = PluginRequest(stream_start=StreamStart(stream_id="s", tool_name="t", window=1000))
        assert link.forward(start.SerializeToString(), 10, on_response, "s") is not None
        async with asyncio.timeout(20):
            await ended.wait()
        assert events == [
            "stream_chunk",
            "sent for stream_chunk",
            "stream_chunk",
            "stream_end",
            "sent for stream_chunk",
            "sent for stream_end",
        ]
        await link.close()
