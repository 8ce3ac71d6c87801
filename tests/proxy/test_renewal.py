"""Proxy.renew(): new processes of a server take over from those that run."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from client.scripted import on_a_loop
from proxy.test_processes import attached, command, lives, pid_of

from concertino.backend import Host
from concertino.errors import ConcertinoError
from concertino.proxy import Proxy

__all__ = ["command"]

# A program that fails; of several that start together, the first one waits for its end of input.
ONE_IS_SLOW = """
import os, sys

os.mkdir(sys.argv[2] + ".first")
sys.stdin.read()
"""


async def wait_for_deaths(pids: set[int]) -> None:
    """Wait until these processes are gone; on_a_loop() is the bound."""
    while any(map(lives, pids)):
        await asyncio.sleep(0.01)


async def wait_for_line(log: Path, line: str) -> None:
    """Wait until a server has noted something; on_a_loop() is the bound."""
    while line not in log.read_text().splitlines():
        await asyncio.sleep(0.01)


@on_a_loop
async def test_each_session_moves_to_a_new_process_of_its_own(command: list[str]) -> None:
    proxy = Proxy(command, isolation="session")
    async with Host(proxy) as host, attached(host) as first, attached(host) as second:
        old = [await pid_of(first), await pid_of(second)]
        await proxy.renew()
        new = [await pid_of(first), await pid_of(second)]
        assert len({*old, *new}) == 4
        assert [await pid_of(first), await pid_of(second)] == new
        await wait_for_deaths(set(old))


@on_a_loop
async def test_the_new_process_of_a_session_ends_with_the_session(command: list[str]) -> None:
    proxy = Proxy(command, isolation="session")
    async with Host(proxy) as host, attached(host) as stays:
        await pid_of(stays)
        async with attached(host) as leaves:
            await pid_of(leaves)
            await proxy.renew()
            kept, renewed = await pid_of(stays), await pid_of(leaves)
        await wait_for_deaths({renewed})
        assert await pid_of(stays) == kept


@on_a_loop
async def test_users_stay_apart_and_their_sessions_together(command: list[str]) -> None:
    proxy = Proxy(command, isolation="principal")
    async with (
        Host(proxy) as host,
        attached(host, 1000) as first,
        attached(host, 1000) as second,
        attached(host, 2000) as other,
    ):
        old = {await pid_of(caller) for caller in (first, second, other)}
        await proxy.renew()
        pids = [await pid_of(caller) for caller in (first, second, other)]
        assert pids[0] == pids[1] != pids[2]
        assert not old & set(pids)


@on_a_loop
async def test_a_call_under_way_ends_at_the_process_that_has_it(command: list[str]) -> None:
    proxy = Proxy(command, isolation="shared")
    async with Host(proxy) as host, attached(host) as busy, attached(host) as other:
        old = await pid_of(busy)
        held = busy.ask("tools/call", name="hold", arguments={})
        await wait_for_line(Path(command[-1]), "call hold")
        await proxy.renew()
        assert await pid_of(other) != old
        Path(command[-1] + ".go").touch()
        response = await busy.response(held)
        assert response["result"]["content"][0]["text"] == str(old)
        await wait_for_deaths({old})


@on_a_loop
async def test_a_user_s_new_process_does_not_learn_what_other_users_watch(
    command: list[str],
) -> None:
    proxy = Proxy(command, isolation="principal")
    log = Path(command[-1])
    async with (
        Host(proxy) as host,
        attached(host, 1000) as first,
        attached(host, 2000) as other,
    ):
        await pid_of(first)
        await proxy.renew()
        await other.call("resources/subscribe", uri="file:///private")
        others = await pid_of(other)
        await wait_for_line(log, f"subscribe {others}")
        renewed = await pid_of(first)
        assert f"subscribe {renewed}" not in log.read_text().splitlines()


@on_a_loop
async def test_every_session_keeps_its_process_if_the_new_code_does_not_start(
    command: list[str],
) -> None:
    proxy = Proxy(command, isolation="session")
    async with Host(proxy) as host, attached(host) as first, attached(host) as second:
        old = [await pid_of(first), await pid_of(second)]
        # One process ends at once, and one later.
        Path(command[1]).write_text(ONE_IS_SLOW)
        with pytest.raises(ConcertinoError):
            await proxy.renew()
        assert [await pid_of(first), await pid_of(second)] == old


@on_a_loop
async def test_the_process_that_no_session_uses_yet_is_renewed_too(command: list[str]) -> None:
    proxy = Proxy(command)
    async with Host(proxy) as host, attached(host) as caller:
        log = Path(command[-1])
        before = [int(line.split()[1]) for line in log.read_text().splitlines()]
        await proxy.renew()
        assert await pid_of(caller) not in before
        await wait_for_deaths(set(before))
