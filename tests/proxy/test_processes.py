"""Proxy in front of real processes: killed, idle, one for each client, printing what they like."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from client.scripted import LEGACY, on_a_loop
from process_waits import wait_for_end
from proxy.proxy_rig import Caller

from concertino.backend import Host
from concertino.client import HttpParameters, Restart
from concertino.errors import ConcertinoError
from concertino.proxy import Proxy
from concertino.transports.guardian import guardian
from concertino.transports.memory import memory_pair

# A server of its own words: it says who it is, waits, prints and asks, in the era of its argument.
SERVER = r"""
import json, os, sys, time
era, log = sys.argv[1:3]

def say(message):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()

with open(log, "a") as file:
    file.write(f"start {os.getpid()}\n")
for line in sys.stdin:
    message = json.loads(line)
    method, params = message.get("method"), message.get("params", {})
    result = {}
    if method == "server/discover" and era == "modern":
        result = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}},
                  "ttlMs": 0, "cacheScope": "private"}
    elif method == "initialize":
        result = {"protocolVersion": "2025-11-25",
                  "capabilities": {"tools": {}, "resources": {"subscribe": True}},
                  "serverInfo": {"name": "raw", "version": "1"}}
    elif method == "tools/call":
        name = params["name"]
        with open(log, "a") as file:
            file.write(f"call {name}\n")
        if name == "wait":
            continue
        if name == "die":
            os._exit(7)
        if name == "print":
            print("Debugger attached.", flush=True)
        while name == "hold" and not os.path.exists(log + ".go"):
            time.sleep(0.01)
        result = {"content": [{"type": "text", "text": str(os.getpid())}]}
    elif method == "resources/subscribe":
        with open(log, "a") as file:
            file.write(f"subscribe {os.getpid()}\n")
    elif "id" in message:
        say({"id": message["id"], "error": {"code": -32601, "message": "method not found"}})
        continue
    else:
        continue
    if era == "modern":
        result["resultType"] = "complete"
    say({"id": message["id"], "result": result})
"""


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    """The command of a legacy server, and the file in which it writes what it does."""
    (tmp_path / "server.py").write_text(SERVER)
    log = tmp_path / "log"
    log.touch()
    return [sys.executable, str(tmp_path / "server.py"), "legacy", str(log)]


@asynccontextmanager
async def attached(host: Host, uid: int | None = None) -> AsyncIterator[Caller]:
    """Provide a legacy caller on a connection of its own. uid: the user's id, if it is known."""
    ours, theirs = memory_pair()
    theirs.facts = {"transport": "memory", "uid": uid}
    served = host.attach(theirs)
    caller = Caller(ours, LEGACY, {})
    await caller.initialize()
    yield caller
    await ours.close(1)
    await served.closed


async def pid_of(caller: Caller, tool: str = "pid") -> int:
    response = await caller.call("tools/call", name=tool, arguments={})
    assert "result" in response, response
    return int(response["result"]["content"][0]["text"])


def lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def state_of(pid: int) -> str:
    """Return the letter by which the system shows the state of a process; "" if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2]
    except (FileNotFoundError, ProcessLookupError):
        return ""


async def kill(pid: int) -> None:
    """Kill a process and wait for its death: until then it may still read a request."""
    os.kill(pid, signal.SIGKILL)
    while state_of(pid) not in ("Z", ""):
        await asyncio.sleep(0)


@on_a_loop
async def test_the_next_call_after_a_kill_is_served(command: list[str]) -> None:
    async with Host(Proxy(command)) as host, attached(host) as caller:
        first = await pid_of(caller)
        await kill(first)
        second = await pid_of(caller)
        assert second != first


@on_a_loop
async def test_a_server_that_is_killed_again_and_again_is_served_soon_each_time(
    command: list[str],
) -> None:
    async with Host(Proxy(command)) as host, attached(host) as caller:
        pids: list[int] = []
        # More often than it is restarted without an answer; growing pauses would add up to 30 s.
        for _ in range(12):
            pids.append(await pid_of(caller))
            await kill(pids[-1])
        assert len(set(pids)) == 12


@on_a_loop
async def test_a_call_that_the_server_had_read_fails_and_is_not_sent_again(
    command: list[str],
) -> None:
    log = Path(command[-1])
    async with Host(Proxy(command, name="raw")) as host, attached(host) as caller:
        response = await caller.call("tools/call", name="die", arguments={})
        assert response["error"]["code"] == -32603
        assert "exited with code 7" in response["error"]["message"]
        assert response["error"]["data"] == {"exitStatus": 7}
        await pid_of(caller)
        assert log.read_text().count("call die") == 1


@on_a_loop
async def test_a_call_that_nobody_had_read_is_sent_again(command: list[str]) -> None:
    log = Path(command[-1])
    async with Host(Proxy(command)) as host, attached(host) as caller:
        first = await pid_of(caller)
        os.kill(first, signal.SIGSTOP)
        while state_of(first) != "T":
            await asyncio.sleep(0)
        # It goes into the pipe of a process that will never read it.
        id = caller.ask("tools/call", name="pid", arguments={})
        while not host.calls_under_way:
            await asyncio.sleep(0)
        os.kill(first, signal.SIGKILL)
        response = await caller.response(id)
        assert int(response["result"]["content"][0]["text"]) != first, response
        assert log.read_text().count("call pid") == 2


@on_a_loop
async def test_a_server_that_dies_again_and_again_is_given_up_with_the_reason(
    command: list[str], tmp_path: Path
) -> None:
    rules = Restart(first_s=0.001, tries=2)
    async with Host(Proxy(command, restart=rules)) as host, attached(host) as caller:
        pid = await pid_of(caller)
        # From now on it does not even start.
        (tmp_path / "server.py").write_text("raise SystemExit(9)")
        await kill(pid)
        response = await caller.call("tools/call", name="pid", arguments={})
        assert "started 2 times in a row and ended each time" in response["error"]["message"]


@on_a_loop
async def test_a_server_that_cannot_start_says_why() -> None:
    proxy = Proxy([sys.executable, "-c", "raise SystemExit(3)"], name="bad")
    with pytest.raises(ConcertinoError, match=r"^bad: .*exited with code 3"):
        await proxy.start(Any)
    await proxy.close()


@on_a_loop
async def test_an_address_where_nobody_listens_is_named_once_with_what_to_do() -> None:
    proxy = Proxy("unix:/nonexist")
    with pytest.raises(ConcertinoError) as caught:
        await proxy.start(Any)
    await proxy.close()
    assert str(caught.value) == (
        "unix:/nonexist: No such file or directory; start the server that listens there, or "
        "correct the address"
    )


@on_a_loop
async def test_a_crash_is_not_told_as_a_process_that_does_not_end(
    command: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "concertino"):
        async with Host(Proxy(command)) as host, attached(host) as caller:
            await kill(await pid_of(caller))
            await pid_of(caller)
    assert "SIGKILL" not in caplog.text.replace("was ended by SIGKILL", "")


@on_a_loop
async def test_no_process_is_left_after_the_end(command: list[str]) -> None:
    async with Host(Proxy(command)) as host, attached(host) as caller:
        pid = await pid_of(caller)
    assert not lives(pid)


@on_a_loop
async def test_what_a_server_prints_never_reaches_the_caller(
    command: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "concertino"):
        async with Host(Proxy(command)) as host, attached(host) as caller:
            await pid_of(caller, "print")
            # Every line that came was JSON-RPC: the rig checks it.
            assert len(caller.lines) == 2
    assert "Debugger attached." in caplog.text


@on_a_loop
async def test_an_idle_server_is_ended_and_started_for_the_next_call(command: list[str]) -> None:
    async with Host(Proxy(command, idle_s=0.05)) as host, attached(host) as caller:
        first = await pid_of(caller)
        while lives(first):
            await asyncio.sleep(0.01)
        assert await pid_of(caller) != first


@on_a_loop
async def test_a_server_that_hangs_is_restarted_if_it_is_pinged(command: list[str]) -> None:
    async with Host(Proxy(command, ping_s=1)) as host, attached(host) as caller:
        first = await pid_of(caller)
        os.kill(first, signal.SIGSTOP)
        response = await caller.call("tools/call", name="pid", arguments={})
        assert "did not answer a ping within 1 s" in response["error"]["message"]
        assert await pid_of(caller) != first


# Which clients share a process


@pytest.mark.parametrize(
    ("isolation", "shares_user", "shares_all"),
    [("shared", True, True), ("principal", True, False), ("session", False, False)],
)
@on_a_loop
async def test_clients_share_a_process_as_far_as_isolation_says(
    command: list[str], isolation: Any, shares_user: bool, shares_all: bool
) -> None:
    async with (
        Host(Proxy(command, isolation=isolation)) as host,
        attached(host, 1000) as first,
        attached(host, 1000) as second,
        attached(host, 2000) as other,
    ):
        pids = [await pid_of(caller) for caller in (first, second, other)]
        assert (pids[0] == pids[1]) is shares_user
        assert (pids[0] == pids[2]) is shares_all
        # And it stays so.
        assert [await pid_of(caller) for caller in (first, second, other)] == pids


@on_a_loop
async def test_the_process_of_a_session_ends_with_it(command: list[str]) -> None:
    async with Host(Proxy(command, isolation="session")) as host, attached(host) as stays:
        kept = await pid_of(stays)
        async with attached(host) as leaves:
            pid = await pid_of(leaves)
            assert pid != kept
        while lives(pid):
            await asyncio.sleep(0.01)
        assert await pid_of(stays) == kept


@on_a_loop
async def test_users_do_not_share_a_process_by_default(command: list[str]) -> None:
    async with (
        Host(Proxy(command)) as host,
        attached(host, 1000) as first,
        attached(host, 2000) as other,
    ):
        assert await pid_of(first) != await pid_of(other)


def test_what_does_not_fit_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="isolation: expected one of auto, shared"):
        Proxy(["server"], isolation="each")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="idle_s: expected a positive number"):
        Proxy(["server"], idle_s=0)
    with pytest.raises(TypeError, match="expected a command"):
        Proxy([])


# Answers like the other, and ends by SIGKILL only, as does what it has started, in its own session.
STUBBORN = (
    """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if not os.fork():
    os.setsid()
    with open(sys.argv[2], "a") as file:
        file.write(f"start {os.getpid()}\\n")
    time.sleep(600)
"""
    + SERVER
    + "\ntime.sleep(600)\n"
)


@pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc of Linux")
@pytest.mark.parametrize("wrapper", [[], ["sh", "-c", '"$@"; true', "sh"]])
def test_nothing_that_ignores_its_end_survives_a_killed_proxy(
    command: list[str], tmp_path: Path, wrapper: list[str]
) -> None:
    (tmp_path / "server.py").write_text(STUBBORN)
    log = tmp_path / "log"
    with subprocess.Popen(
        [sys.executable, "-m", "concertino", "proxy", "--", *wrapper, *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as proxy:
        while len(started := log.read_text().splitlines()) < 2:
            time.sleep(0.02)
        proxy.kill()
    for line in started:
        wait_for_end(int(line.removeprefix("start ")))


@on_a_loop
async def test_a_server_at_a_url_with_headers_needs_no_guardian(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    acquired: list[bool] = []
    monkeypatch.setattr(guardian, "acquire", lambda: acquired.append(True))
    monkeypatch.setattr(guardian, "release", lambda: None)
    with socket.socket() as unused:
        # The port is bound, and nothing listens at it.
        unused.bind(("127.0.0.1", 0))
        target = HttpParameters(f"http://127.0.0.1:{unused.getsockname()[1]}/mcp", {"X-Key": "1"})
        async with Host(Proxy(target, restart=Restart(tries=1))) as host:
            with pytest.raises(ConcertinoError):
                await host.started
    assert not acquired
