"""client/client_connection.py: after a restart, calls that provably nobody has read are sent again,
and no others.

The server reads its stdin byte by byte, so that it never reads more than it wants to. It writes
down which calls it has begun.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from client.scripted import on_a_loop

from concertino import Limits
from concertino.client.client import Client
from concertino.client.server_parameters import ServerParameters
from concertino.client.supervision import Restart
from concertino.errors import Disconnected, TimedOut
from concertino.transports.process import ShutdownTimeouts

SOON = Restart(first_s=0.01, longest_s=0.05)
LADDER = ShutdownTimeouts(stdin_closed_s=5, terminated_s=5, killed_s=10)
ERAS = pytest.mark.parametrize("era", ["legacy", "modern"])
SERVER = r"""
import json, os, subprocess, sys, time
era, begun = sys.argv[1:]
def note(text):
    with open(begun, "a") as file: file.write(text + " ")
def read_line():
    line = bytearray()
    while line[-1:] != b"\n":
        byte = os.read(0, 1)
        if not byte: sys.exit()
        line += byte
    return json.loads(line)
def say(**message):
    os.write(1, json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
offer = {"tools": {}, "resources": {"subscribe": True}}
while True:
    message = read_line()
    method, id, params = message["method"], message.get("id"), message.get("params", {})
    if method == "server/discover" and era == "modern":
        say(id=id, result={
            "resultType": "complete", "supportedVersions": ["2026-07-28"], "capabilities": offer})
    elif method == "initialize":
        info = {"name": "reader", "version": "1"}
        say(id=id, result={
            "protocolVersion": "2025-11-25", "capabilities": offer, "serverInfo": info})
    elif method == "tools/list":
        note("list")
        say(id=id, result={"resultType": "complete", "tools": []})
    elif method == "subscriptions/listen":
        note("listen")
        meta = {"io.modelcontextprotocol/subscriptionId": id}
        say(method="notifications/subscriptions/acknowledged", params={
            "_meta": meta, "notifications": params["notifications"]})
    elif method == "tools/call":
        name = params["name"]
        note(name)
        if name == "child": subprocess.Popen(["sleep", "600"], stdout=subprocess.DEVNULL)
        if name == "ask" and "inputResponses" not in params:
            roots = {"method": "roots/list", "params": {}}
            say(id=id, result={
                "resultType": "input_required", "inputRequests": {"r": roots}, "requestState": "s"})
            note("asked")
            time.sleep(600)
        if name == "half":
            os.read(0, 10)
            note("read-half")
        if name in ("stop", "child", "half"):
            note("stopped")
            time.sleep(600)
        say(id=id, result={"resultType": "complete", "content": [{"type": "text", "text": name}]})
    elif id is not None:
        say(id=id, result={})
"""


class Reader:
    """The server, and what it has begun."""

    def __init__(self, folder: Path, era: str) -> None:
        self.begun = folder / "begun"
        self.begun.touch()
        program = folder / "reader.py"
        program.write_text(SERVER)
        self.target = ServerParameters(
            sys.executable, [program, era, str(self.begun)], ladder=LADDER
        )

    def calls(self) -> list[str]:
        return self.begun.read_text().split()

    async def has_noted(self, word: str) -> None:
        await until(lambda: word in self.calls())


async def until(condition: Callable[[], object]) -> None:
    """Look at every turn of the loop; on_a_loop() is the bound."""
    while not condition():
        await asyncio.sleep(0.001)


def begin(client: Client, name: str, **arguments: Any) -> asyncio.Task[Any]:
    return asyncio.ensure_future(client.call_tool(name, arguments, into=str))


def kill(client: Client) -> None:
    """End the process, and return when it has ended."""
    assert client.pid is not None
    os.kill(client.pid, signal.SIGKILL)
    os.waitid(os.P_PID, client.pid, os.WEXITED | os.WNOWAIT)


@pytest.mark.requirement("ER-9", side="client")
@ERAS
@on_a_loop
async def test_calls_that_are_still_in_the_pipe_are_sent_again_and_the_one_that_was_read_is_not(
    era: Any, tmp_path: Path
) -> None:
    reader = Reader(tmp_path, era)
    async with Client(reader.target, era=era, restart=SOON) as client:
        stopped = begin(client, "stop")
        await reader.has_noted("stopped")
        later = [begin(client, name) for name in "abc"]
        listed = asyncio.ensure_future(client.list_tools())
        extra = asyncio.ensure_future(
            client.call_tool("d", meta={"x": 1}, progress=lambda *args: None, into=str)
        )
        await asyncio.sleep(0)
        kill(client)
        with pytest.raises(Disconnected, match="in flight are not repeated"):
            await stopped
        assert await asyncio.gather(*later) == ["a", "b", "c"]
        assert await listed == []
        assert await extra == "d"
        assert client.restarts == 1
    assert sorted(reader.calls()) == ["a", "b", "c", "d", "list", "stop", "stopped"]


@on_a_loop
async def test_calls_that_are_still_in_the_queue_are_sent_again(tmp_path: Path) -> None:
    """The first one is too long for the pipe: its beginning is there, its rest is not."""
    reader = Reader(tmp_path, "legacy")
    limits = Limits(high_water_bytes=200_000)
    async with Client(reader.target, era="legacy", restart=SOON, limits=limits) as client:
        stopped = begin(client, "stop")
        await reader.has_noted("stopped")
        later = [begin(client, "long", text="x" * 100_000), begin(client, "after")]
        # More than may be buffered, so that the last one has not even been written.
        later += [begin(client, "much", text="x" * 200_000), begin(client, "last")]
        for _ in range(3):
            await asyncio.sleep(0)
        kill(client)
        assert await asyncio.gather(*later) == ["long", "after", "much", "last"]
        with pytest.raises(Disconnected):
            await stopped
    assert reader.calls() == ["stop", "stopped", "long", "after", "much", "last"]


@pytest.mark.parametrize("others", [0, 3])
@on_a_loop
async def test_a_call_whose_server_is_gone_when_it_is_written_is_sent_again(
    others: int, tmp_path: Path
) -> None:
    """The loop has had no chance to notice the end."""
    reader = Reader(tmp_path, "legacy")
    async with Client(reader.target, era="legacy", restart=SOON) as client:
        assert await begin(client, "a") == "a"
        kill(client)
        calls = [begin(client, str(number)) for number in range(others)]
        assert await client.call_tool("b", into=str) == "b"
        assert await asyncio.gather(*calls) == [str(number) for number in range(others)]
    assert sorted(reader.calls()) == sorted(["a", "b", *map(str, range(others))])


@on_a_loop
async def test_a_call_whose_beginning_was_read_is_not_sent_again(tmp_path: Path) -> None:
    reader = Reader(tmp_path, "legacy")
    async with Client(reader.target, era="legacy", restart=SOON) as client:
        half = begin(client, "half")
        await reader.has_noted("half")
        begun, whole = begin(client, "begun"), begin(client, "whole")
        await reader.has_noted("stopped")
        kill(client)
        for call in (half, begun):
            with pytest.raises(Disconnected):
                await call
        assert await whole == "whole"
    assert reader.calls() == ["half", "read-half", "stopped", "whole"]


@on_a_loop
async def test_calls_in_a_pipe_that_another_process_may_read_are_not_sent_again(
    tmp_path: Path,
) -> None:
    """The server has started a process that has its stdin open."""
    reader = Reader(tmp_path, "legacy")
    async with Client(reader.target, era="legacy", restart=SOON) as client:
        first = begin(client, "child")
        await reader.has_noted("stopped")
        in_pipe, in_queue = begin(client, "pipe"), begin(client, "queue", text="x" * 100_000)
        behind = begin(client, "behind")
        for _ in range(3):
            await asyncio.sleep(0)
        kill(client)
        for call in (first, in_pipe, in_queue):
            with pytest.raises(Disconnected):
                await call
        assert await behind == "behind"
    assert reader.calls() == ["child", "stopped", "behind"]


@on_a_loop
async def test_a_later_round_of_a_call_is_not_sent_again(tmp_path: Path) -> None:
    """The server has begun with it in the first round."""
    reader = Reader(tmp_path, "modern")
    roots = ["file:///x"]
    async with Client(reader.target, era="modern", restart=SOON, roots=roots) as client:
        call = begin(client, "ask")
        await reader.has_noted("asked")
        # The answer has been written when the loop has nothing left to do for it.
        before = client._connection.current.channel.peer.outgoing.next_id
        await until(lambda: client._connection.current.channel.peer.outgoing.next_id >= before)
        for _ in range(10):
            await asyncio.sleep(0.001)
        kill(client)
        with pytest.raises(Disconnected):
            await call
    assert reader.calls() == ["ask", "asked"]


@on_a_loop
async def test_a_subscription_that_nobody_has_read_is_asked_for_again(tmp_path: Path) -> None:
    reader = Reader(tmp_path, "modern")
    async with Client(reader.target, era="modern", restart=SOON) as client:
        stopped = begin(client, "stop")
        await reader.has_noted("stopped")
        subscribed = asyncio.ensure_future(client.subscribe("x:1"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        kill(client)
        await subscribed
        with pytest.raises(Disconnected):
            await stopped
    assert "listen" in reader.calls()


@on_a_loop
async def test_sending_again_takes_no_more_than_the_time_of_the_call(tmp_path: Path) -> None:
    reader = Reader(tmp_path, "legacy")
    async with Client(reader.target, era="legacy", restart=Restart(first_s=60)) as client:
        stopped = begin(client, "stop")
        await reader.has_noted("stopped")
        call = asyncio.ensure_future(client.call_tool("a", timeout_s=0.2))
        await asyncio.sleep(0)
        kill(client)
        with pytest.raises(TimedOut, match="tools/call a: not sent, because the server"):
            await call
        with pytest.raises(Disconnected):
            await stopped


@on_a_loop
async def test_without_a_restart_nothing_is_sent_again(tmp_path: Path) -> None:
    reader = Reader(tmp_path, "legacy")
    async with Client(reader.target, era="legacy") as client:
        stopped = begin(client, "stop")
        await reader.has_noted("stopped")
        call = begin(client, "a")
        await asyncio.sleep(0)
        kill(client)
        for task in (stopped, call):
            with pytest.raises(Disconnected) as caught:
                await task
            assert type(caught.value) is Disconnected
    assert reader.calls() == ["stop", "stopped"]
