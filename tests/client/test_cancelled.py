"""A client that is cancelled, at every place where it waits, leaves nothing: no process, no
descriptor, no task, no waiting call.

The places are counted by running the scenario once; then it is run again for each, and cancelled
there.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import types
from collections.abc import Coroutine, Generator
from pathlib import Path
from typing import Any

import pytest
from client.scripted import SILENCE, on_a_loop, opened

from concertino import Server
from concertino.client.client import Client, Timeouts
from concertino.client.outcome import attempt
from concertino.client.server_parameters import ServerParameters
from concertino.client.supervision import Restart
from concertino.transports import polling
from concertino.transports.process import ShutdownTimeouts
from concertino.transports.process_exit import live_members

MISBEHAVING = Path(__file__).parent / "misbehaving.py"
ANSWER = 'answer(id, {"content": []})'
PATIENT = ShutdownTimeouts(stdin_closed_s=5, terminated_s=5, killed_s=10)


@types.coroutine
def cancelled_at(
    work: Coroutine[Any, Any, Any], place: int, places: list[int]
) -> Generator[Any, Any, Any]:
    """Run work, and cancel its task at the place-th time that it waits. places: counts them."""
    thrown: BaseException | None = None
    while True:
        try:
            waiting = work.send(None) if thrown is None else work.throw(thrown)
        except StopIteration as stop:
            return stop.value
        thrown = None
        places[0] += 1
        if places[0] == place:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
        try:
            yield waiting
        except BaseException as error:
            thrown = error


async def with_a_process(pids: list[int], era: Any) -> None:
    speaks = "legacy" if era == "legacy" else "modern"
    target = ServerParameters(sys.executable, [str(MISBEHAVING), speaks, ANSWER], ladder=PATIENT)
    client = Client(target, era=era, timeouts=Timeouts(probe_s=20))
    start = client._connection._start

    async def noted() -> Any:
        conversation = await start()
        assert conversation.opened.child is not None
        pids.append(conversation.opened.child.pid)
        return conversation

    client._connection._start = noted
    async with client:
        await client.call_tool("x")
        await asyncio.gather(client.call_tool("x"), client.call_tool("y", progress=lambda *_: None))


async def check_restart(pids: list[int], era: Any) -> None:
    """The server dies in a call and is started again; a call waits for it, and subscriptions are
    made anew.
    """
    speaks = "legacy" if era == "legacy" else "modern"
    code = f"os._exit(1) if arguments else {ANSWER}"
    target = ServerParameters(sys.executable, [str(MISBEHAVING), speaks, code], ladder=PATIENT)
    rules = Restart(first_s=0.001, longest_s=0.001)
    client = Client(
        target, era=era, timeouts=Timeouts(probe_s=20), restart=rules, changed=lambda what: None
    )
    start = client._connection._start

    async def noted() -> Any:
        conversation = await start()
        assert conversation.opened.child is not None
        pids.append(conversation.opened.child.pid)
        return conversation

    client._connection._start = noted
    async with client:
        await attempt(client.call_tool("x", {"die": True}))
        await client.call_tool("x")


async def in_memory(pids: list[int], era: Any) -> None:
    server = Server("x")

    @server.tool
    async def wait() -> int:
        await asyncio.sleep(0)
        return 1

    async with Client(server, era=era) as client:
        await client.list_tools()
        await client.call_tool("wait")


@pytest.mark.parametrize("patient", [True, False], ids=["goes on", "the loop ends"])
@pytest.mark.parametrize("era", ["auto", "legacy"])
@pytest.mark.parametrize("scenario", [with_a_process, check_restart, in_memory])
def test_nothing_is_left_wherever_it_is_cancelled(
    scenario: Any, era: str, patient: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Without polls each response is awaited, so that every run has the same places to cancel at.
    monkeypatch.setattr(polling, "MAX_POLLS", 0)

    async def run(place: int) -> tuple[int, bool, list[int]]:
        places = [0]
        pids: list[int] = []

        async def whole() -> None:
            await cancelled_at(scenario(pids, era), place, places)

        task = asyncio.ensure_future(whole())
        async with asyncio.timeout(30):
            await asyncio.wait([task])
            others = asyncio.all_tasks() - {asyncio.current_task()}  # what still closes
            if patient and others:
                await asyncio.wait(others)
                assert asyncio.all_tasks() == {asyncio.current_task()}
        if not task.cancelled():
            task.result()
        return places[0], task.cancelled(), pids

    descriptors = set(os.listdir("/proc/self/fd"))
    count, cancelled, _ = asyncio.run(run(0))
    assert not cancelled
    assert count >= 4
    for place in range(1, count + 1):
        _, cancelled, pids = asyncio.run(run(place))
        assert cancelled, place
        assert [member for pid in pids for member in live_members(pid)] == [], place
        for pid in pids:
            with pytest.raises(ProcessLookupError):  # not even a zombie
                os.kill(pid, 0)
        assert set(os.listdir("/proc/self/fd")) == descriptors, place


@pytest.mark.requirement("CA-1", "CA-3", side="client")
@pytest.mark.parametrize("like", ["legacy", "modern"])
@on_a_loop
async def test_a_call_that_is_cancelled_is_cancelled_at_the_server(like: str) -> None:
    async with opened({"tools/call": SILENCE, "tools/list": {"tools": []}}, like) as (
        client,
        script,
    ):
        call = asyncio.ensure_future(client.call_tool("x"))
        await script.until(lambda: script.of("tools/call"))
        call.cancel()
        await asyncio.wait([call])
        assert call.cancelled()
        await client.list_tools()
        [asked], [cancelled] = script.of("tools/call"), script.of("notifications/cancelled")
        assert cancelled["params"] == {"requestId": asked["id"], "reason": "the caller gave up"}
        assert not client._connection.current.channel.peer.outgoing


@on_a_loop
async def test_a_cancel_that_comes_together_with_a_failure_leaves_no_complaint(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """asyncio logs exceptions that nobody has seen."""
    async with opened({"tools/call": SILENCE}) as (client, script):
        call = asyncio.ensure_future(client.call_tool("x"))
        await script.until(lambda: script.of("tools/call"))
        client._connection.current.channel.end()
        call.cancel()
        await asyncio.wait([call])
    del call
    gc.collect()
    assert "never retrieved" not in caplog.text
