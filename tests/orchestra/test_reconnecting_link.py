"""reconnecting_link.py: links that reconnect to hubs that end, hang, refuse or do not exist."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from loops import on_a_loop
from orchestra.linked import CONNECTIONS, TRANSPORTS, Holding, Place, call, echo, health

from concertino.errors import Disconnected, ProtocolError
from concertino.orchestra import reconnecting_link
from concertino.orchestra.certificates import Certificates
from concertino.orchestra.link import open_link
from concertino.orchestra.reconnecting_link import ReconnectingLink
from concertino.orchestra.rpc_interface import RemotePeer, RpcConnection


@pytest.fixture(params=TRANSPORTS)
def place(request: pytest.FixtureRequest, folder: Path, certificates: Certificates) -> Place:
    return Place(request.param, folder, certificates)


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconnecting_link, "FIRST_S", 0.01)
    monkeypatch.setattr(reconnecting_link, "LAST_S", 0.05)


class LinkStates:
    """Whether the link is up, as it is told."""

    def __init__(self) -> None:
        self.states: list[bool] = []

    def __call__(self, up: bool) -> None:
        self.states.append(up)

    async def until(self, states: list[bool]) -> None:
        while self.states != states:
            await asyncio.sleep(0.001)


def opening(place: Place, address: str) -> partial[object]:
    return partial(
        open_link,
        address,
        certificates=place.certificates,
        name="tools.greeter-client",
        timeout_s=2.0,
    )


@on_a_loop
async def test_it_comes_back_with_the_hub_and_registers_each_time(place: Place) -> None:
    told = LinkStates()
    entered: list[RpcConnection] = []

    async def enter(link: RpcConnection) -> None:
        await link.request(health())
        entered.append(link)

    first = await place.listening(echo)
    link = ReconnectingLink(
        first.address, opening(place, first.address), on_connect=enter, on_change=told
    )  # type: ignore[arg-type]
    link.start()
    link.start()  # again: nothing
    await link.wait_up()
    assert (await link.request(call(arguments=b"abc"))).tool_call.result == b"abc"
    await first.close()
    await told.until([True, False])
    with pytest.raises(Disconnected, match="it is tried again"):
        await link.request(health())
    again = await place.listening(echo, first.address)
    await link.wait_up()
    assert (await link.request(health())).HasField("health")
    assert link.reconnects == 1
    assert len(entered) == 2
    assert told.states == [True, False, True]
    await link.close()
    assert told.states == [True, False, True, False]
    assert link.end_reason.done()
    with pytest.raises(Disconnected, match="the link was closed"):
        await link.request(health())
    await again.close()


@on_a_loop
async def test_what_is_under_way_when_the_hub_ends_fails_at_once_and_is_not_sent_again(
    place: Place,
) -> None:
    holding = Holding()
    first = await place.listening(holding)
    link = ReconnectingLink(first.address, opening(place, first.address))  # type: ignore[arg-type]
    link.start()
    await link.wait_up()
    task = asyncio.create_task(link.request(call()))
    await holding.began.acquire()
    await first.close()
    with pytest.raises(Disconnected):
        await task
    again = await place.listening(holding, first.address)
    await link.wait_up()
    await link.request(health())
    assert holding.running == 0
    await link.close()
    await again.close()


@on_a_loop
async def test_without_a_hub_requests_fail_at_once_and_it_is_told_once(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    listening = await place.listening(echo)
    await listening.close()
    link = ReconnectingLink(listening.address, opening(place, listening.address))  # type: ignore[arg-type]
    with pytest.raises(Disconnected, match="not connected yet"):
        await link.request(health())
    link.start()
    await asyncio.wait((link.end_reason,), timeout=0.3)  # some ten attempts
    assert not link.is_up
    with pytest.raises(Disconnected):
        await link.request(health())
    assert caplog.text.count("it is tried again") == 1
    await link.close()


@on_a_loop
async def test_a_hub_that_refuses_the_registration_is_not_up(place: Place) -> None:
    attempts = asyncio.Semaphore(0)

    async def enter(link: RpcConnection) -> None:
        attempts.release()
        raise ProtocolError("not you")

    listening = await place.listening(echo)
    link = ReconnectingLink(listening.address, opening(place, listening.address), on_connect=enter)  # type: ignore[arg-type]
    link.start()
    for _ in range(3):
        await attempts.acquire()
    assert not link.is_up
    with pytest.raises(Disconnected, match="not you"):
        await link.request(health())
    await link.close()
    await listening.close()


HUB = """
import asyncio, sys
sys.path.insert(0, {tests!r})
from concertino.orchestra.certificates import Certificates
from concertino.orchestra.link import listen_for_links
from orchestra.linked import echo

async def main():
    listening = await listen_for_links(
        {address!r}, echo, certificates=Certificates({certs!r}), name="orchestrator")
    print(listening.address, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.parametrize("place", CONNECTIONS, indirect=True)
@on_a_loop
async def test_a_hub_that_stands_still_is_noticed_by_its_pings_and_used_again_when_it_goes_on(
    place: Place,
) -> None:
    """SIGSTOP: nothing is closed, and no error comes. A real process."""
    address = f"unix:{place.folder}/hub" if place.transport == "unix" else "127.0.0.1:0"
    code = HUB.format(
        tests=str(Path(__file__).parents[1]), address=address, certs=str(place.certificates.folder)
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        address = (await process.stdout.readline()).decode().strip()
        link = ReconnectingLink(address, opening(place, address), health_s=0.2)  # type: ignore[arg-type]
        link.start()
        await link.wait_up()
        os.kill(process.pid, signal.SIGSTOP)
        while link.is_up:  # a busy machine may have made a ping late before
            await asyncio.sleep(0.001)
        with pytest.raises(
            Disconnected,
            match=r"no answer to a health ping within 0\.2 s|nobody answers|it is tried again",
        ):
            await link.request(health())
        os.kill(process.pid, signal.SIGCONT)
        await link.wait_up()
        async with asyncio.timeout(20):
            while True:  # the first new link may be one that was begun while it stood still
                try:
                    assert (await link.request(health())).HasField("health")
                    break
                except Disconnected:
                    await asyncio.sleep(0.01)
        await link.close()
    finally:
        process.kill()
        await process.communicate()


@pytest.mark.parametrize(
    "failure", [ValueError("no such address"), UnicodeError("label empty"), KeyError("a bug")]
)
@on_a_loop
async def test_whatever_an_attempt_raises_is_told_and_the_next_one_is_made(
    failure: Exception, folder: Path, certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    place = Place("unix", folder, certificates)
    attempts = iter([failure, failure])
    listening = await place.listening(echo)

    async def open() -> RpcConnection:
        for each in attempts:
            raise each
        return await open_link(listening.address)

    hub = ReconnectingLink(listening.address, open)
    hub.start()
    await hub.wait_up()
    assert (await hub.request(call())).HasField("tool_call")
    assert [str(failure) in record.getMessage() for record in caplog.records] == [True]
    await hub.close()
    await listening.close()


@on_a_loop
async def test_an_error_names_the_address_once(folder: Path) -> None:
    address = f"unix:{folder}/nobody"
    hub = ReconnectingLink(address, partial(open_link, address))
    hub.start()
    for _ in range(2):
        with pytest.raises(Disconnected) as caught:
            await hub.request(health())
        await asyncio.sleep(0)
    assert str(caught.value) == f"{address}: No such file or directory; it is tried again"
    await hub.close()


@on_a_loop
async def test_a_reason_is_told_once_although_it_keeps_the_link_away_after_it_has_ended_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Lost:
        """A link that is lost as soon as it is there."""

        peer = RemotePeer("localhost:1")

        def __init__(self) -> None:
            self.end_reason = asyncio.get_running_loop().create_future()
            self.end_reason.set_result("Connection refused")

        async def close(self, why: str) -> None: ...

    attempts = 0

    async def open() -> RpcConnection:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            return Lost()  # type: ignore[return-value]
        raise Disconnected("localhost:1: Connection refused")

    hub = ReconnectingLink("localhost:1", open)
    hub.start()
    while attempts < 3:
        await asyncio.sleep(0.001)
    await hub.close()
    assert [each.getMessage() for each in caplog.records] == [
        "localhost:1: Connection refused; connecting again"
    ]
