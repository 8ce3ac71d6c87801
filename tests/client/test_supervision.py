"""client/supervision.py: a server that ends is started again, what was under way is not repeated,
and what was asked for holds on.

Real processes; pauses are short here. RELIABILITY.md, "Supervisor"; 2026-07-28
basic/transports/stdio (SH-4, SU-10).
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
from client.scripted import SILENCE, Refusal, Script, on_a_loop, opened
from msgspec import DecodeError

from concertino import Server
from concertino.client.client import Client, Timeouts
from concertino.client.server_parameters import ServerParameters
from concertino.client.supervision import Restart, SupervisedServer, Supervisor
from concertino.client.sync import SyncClient
from concertino.errors import ConcertinoError, Disconnected, SpawnError, TimedOut
from concertino.transports.process import ShutdownTimeouts
from concertino.transports.process_exit import live_members

HERE = Path(__file__).parent
LADDER = ShutdownTimeouts(stdin_closed_s=5, terminated_s=5, killed_s=10)
SOON = Restart(first_s=0.01, longest_s=0.05)
ERAS = pytest.mark.parametrize("era", ["legacy", "modern"])
# A server that counts its starts in a file, shows its number, and does what it is told.
SERVER = """
import json, os, signal, sys, time
starts, era = sys.argv[1:]
number = len(open(starts, "a+").read()) if not os.path.exists(starts) else len(open(starts).read())
open(starts, "a").write(".")
def say(**message):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\\n"); sys.stdout.flush()
offer = {"tools": {"listChanged": True}, "resources": {"subscribe": True}, "logging": {}}
watched, seen = set(), []
for line in sys.stdin:
    message = json.loads(line)
    method, id, params = message["method"], message.get("id"), message.get("params", {})
    seen.append(method)
    if number == 1 and "x:fatal" in line: os._exit(9)
    if method == "server/discover" and era == "modern":
        say(id=id, result={
            "resultType": "complete", "supportedVersions": ["2026-07-28"], "capabilities": offer})
    elif method == "initialize" and era == "legacy":
        info = {"name": "counted", "version": str(number)}
        say(id=id, result={
            "protocolVersion": "2025-11-25", "capabilities": offer, "serverInfo": info})
    elif method == "subscriptions/listen":
        wanted = params["notifications"]
        watched.add(str(wanted.get("resourceSubscriptions") or sorted(wanted)))
        meta = {"io.modelcontextprotocol/subscriptionId": id}
        say(method="notifications/subscriptions/acknowledged", params={
            "_meta": meta, "notifications": wanted})
    elif method == "resources/subscribe":
        watched.add(str([params["uri"]]))
        say(id=id, result={})
    elif method == "tools/call":
        do = params["arguments"].get("do")
        if do == "die": os._exit(7)
        if do == "hang": os.kill(os.getpid(), signal.SIGSTOP)
        if do == "wait": continue
        level = params.get("_meta", {}).get("io.modelcontextprotocol/logLevel")
        if "logging/setLevel" in seen: level = "warning"
        found = {"number": number, "watched": sorted(watched), "level": level,
            "calls": seen.count("tools/call")}
        say(id=id, result={"resultType": "complete", "content": [], "structuredContent": found})
    elif id is not None:
        known = method in ("ping", "logging/setLevel", "resources/unsubscribe")
        say(id=id, **({"result": {}} if known else {"error": {"code": -32601, "message": "no"}}))
"""


def counting_server(folder: Path, era: str) -> ServerParameters:
    (folder / "counted.py").write_text(SERVER)
    return ServerParameters(
        sys.executable, [str(folder / "counted.py"), str(folder / "starts"), era], ladder=LADDER
    )


async def until(condition: Callable[[], object]) -> None:
    """Look at every turn of the loop; on_a_loop() is the bound."""
    while not condition():
        await asyncio.sleep(0.001)


@pytest.mark.requirement("ER-9", "SH-4", "SH-5", side="client")
@ERAS
@on_a_loop
async def test_a_server_that_died_is_started_again_and_what_was_under_way_is_not_repeated(
    era: Any, tmp_path: Path
) -> None:
    async with Client(counting_server(tmp_path, era), era=era, restart=SOON) as client:
        assert (client.state, client.restarts, client.failure) == ("running", 0, None)
        first = client.pid
        waiting = asyncio.ensure_future(client.call_tool("x", {"do": "wait"}))
        await asyncio.sleep(0)
        dying = asyncio.ensure_future(client.call_tool("x", {"do": "die"}))
        for call in (waiting, dying):
            with pytest.raises(
                Disconnected,
                match=r"exited with code 7; it will be restarted, but requests that were in flight "
                r"are not repe",
            ) as caught:
                await call
            assert caught.value.exit_status == 7
        assert client.state == "backing-off"
        assert "exited with code 7" in str(client.failure)
        found = await client.call_tool("x", into=dict)  # waits for it
        assert (found["number"], found["calls"]) == (1, 1)
        assert (client.state, client.restarts) == ("running", 1)
        assert client.pid != first
        assert first is not None
        assert live_members(first) == []
    assert client.state == "closed"
    assert (tmp_path / "starts").read_text() == ".."


@pytest.mark.requirement("SU-10", "SH-4", side="client")
@ERAS
@on_a_loop
async def test_subscriptions_the_log_level_and_changes_hold_on(era: Any, tmp_path: Path) -> None:
    """SU-10. What changed meanwhile nobody knows, so everything counts as changed."""
    updated: list[str] = []
    changed: list[str] = []
    settings: dict[str, Any] = {"updated": updated.append, "changed": changed.append}
    async with Client(counting_server(tmp_path, era), era=era, restart=SOON, **settings) as client:
        await client.subscribe("x:1")
        await client.subscribe("x:2")
        await client.subscribe("x:3")
        await client.unsubscribe("x:3")
        await client.set_log_level("warning")
        with pytest.raises(Disconnected):
            await client.call_tool("x", {"do": "die"})
        await until(lambda: updated == ["x:1", "x:2"])
        assert sorted(changed) == ["resources", "tools"]
        found = await client.call_tool("x", into=dict)
        lists = [] if era == "legacy" else ["['toolsListChanged']"]
        assert found["watched"] == [*lists, "['x:1']", "['x:2']"]
        assert found["level"] == "warning"
        await client.unsubscribe("x:1")
        await client.subscribe("x:2")  # is subscribed: not asked for again
        assert (await client.call_tool("x", into=dict))["watched"] == [*lists, "['x:1']", "['x:2']"]


@ERAS
@on_a_loop
async def test_functions_of_the_client_that_fail_lose_no_subscription(
    era: Any, tmp_path: Path
) -> None:
    updated: list[str] = []

    def fail(uri: str) -> None:
        updated.append(uri)
        raise ValueError(uri)

    settings: dict[str, Any] = {"updated": fail}
    async with Client(counting_server(tmp_path, era), era=era, restart=SOON, **settings) as client:
        await client.watch(frozenset(("w:1", "w:2")))
        await client.subscribe("x:1")
        with pytest.raises(Disconnected):
            await client.call_tool("x", {"do": "die"})
        await until(lambda: sorted(updated) == ["w:1", "w:2", "x:1"])
        assert "x:1" in str((await client.call_tool("x", into=dict))["watched"])


@ERAS
@on_a_loop
async def test_a_server_that_ends_again_while_it_is_set_up_loses_no_subscription(
    era: Any, tmp_path: Path
) -> None:
    """Nor does the one who starts it wait for itself: the second start follows at once, not after
    request_s for each.
    """
    updated: list[str] = []
    async with Client(
        counting_server(tmp_path, era), era=era, restart=SOON, updated=updated.append
    ) as client:
        for uri in ("x:fatal", "x:2", "x:3"):
            await client.subscribe(uri)
        with pytest.raises(Disconnected):
            await client.call_tool("x", {"do": "die"})
        await until(lambda: updated == ["x:fatal", "x:2", "x:3"])
        found = await client.call_tool("x", into=dict)
        assert (found["number"], found["watched"]) == (2, ["['x:2']", "['x:3']", "['x:fatal']"])
        assert client.restarts == 2


@on_a_loop
async def test_a_server_that_does_not_stay_is_given_up_after_pauses_that_grow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash loop after good handshakes: the pauses go on growing."""
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def noted(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(0)

    monkeypatch.setattr("concertino.client.supervision.asyncio.sleep", noted)
    rules = Restart(first_s=1, longest_s=4, tries=4)
    async with Client(counting_server(tmp_path, "legacy"), era="legacy", restart=rules) as client:
        for _ in range(5):
            with pytest.raises(Disconnected):
                await client.call_tool("x", {"do": "die"})
        await until(lambda: client.state == "failed")
        assert client.restarts == 4
        for ask in (
            client.call_tool("x"),
            client.list_tools(),
            client.ping(),
            client.subscribe("x:1"),
        ):
            with pytest.raises(
                Disconnected, match=r"was started 4 times in a row and ended each time.*code 7"
            ) as caught:
                await ask
            assert caught.value.exit_status == 7
    assert (tmp_path / "starts").read_text() == "....."
    longest = [1, 2, 4, 4]
    pauses = [each for each in pauses if each > 0.1]
    assert len(pauses) == 4
    assert all(0.75 * most <= pause <= most for pause, most in zip(pauses, longest, strict=True))


@on_a_loop
async def test_a_server_that_answers_between_its_ends_begins_anew_with_pauses_and_tries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def noted(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(0)

    monkeypatch.setattr("concertino.client.supervision.asyncio.sleep", noted)
    rules = Restart(first_s=1, tries=2)
    async with Client(counting_server(tmp_path, "legacy"), era="legacy", restart=rules) as client:
        for number in range(5):
            assert (await client.call_tool("x", into=dict))["number"] == number
            with pytest.raises(Disconnected):
                await client.call_tool("x", {"do": "die"})
        assert (await client.call_tool("x", into=dict))["number"] == 5
    pauses = [each for each in pauses if each > 0.1]
    assert len(pauses) == 5
    assert max(pauses) <= 1


@on_a_loop
async def test_requests_that_restore_the_session_do_not_count_as_answered(tmp_path: Path) -> None:
    rules = Restart(first_s=0.001, tries=2)
    async with Client(counting_server(tmp_path, "legacy"), era="legacy", restart=rules) as client:
        await client.set_log_level("warning")
        for _ in range(3):
            with pytest.raises(Disconnected):
                await client.call_tool("x", {"do": "die"})
        await until(lambda: client.state == "failed")


@on_a_loop
async def test_a_call_long_after_it_was_given_up_starts_the_server_once_more(
    tmp_path: Path,
) -> None:
    rules = Restart(first_s=0.001, tries=1, retry_s=1e-9)
    target = counting_server(tmp_path, "legacy")
    async with Client(target, era="legacy", restart=rules) as client:
        for _ in range(2):
            with pytest.raises(Disconnected):
                await client.call_tool("x", {"do": "die"})
        await until(lambda: client.state == "failed")
        # It fails once more, and then stays.
        good = (tmp_path / "counted.py").read_text()
        (tmp_path / "counted.py").write_text("raise SystemExit(3)")
        with pytest.raises(Disconnected, match=r"a call in 0 s or later starts it again.*code 3"):
            await client.call_tool("x")
        assert client.state == "failed"
        (tmp_path / "counted.py").write_text(good)
        assert (await client.call_tool("x", into=dict))["number"] == 2
        assert client.state == "running"


@on_a_loop
async def test_a_call_soon_after_it_was_given_up_fails_at_once(tmp_path: Path) -> None:
    rules = Restart(first_s=0.001, tries=1, retry_s=600)
    async with Client(counting_server(tmp_path, "legacy"), era="legacy", restart=rules) as client:
        for _ in range(2):
            with pytest.raises(Disconnected):
                await client.call_tool("x", {"do": "die"})
        await until(lambda: client.state == "failed")
        with pytest.raises(Disconnected, match=r"a call in (600|5\d\d) s or later starts it again"):
            await client.call_tool("x")
        assert (tmp_path / "starts").read_text() == ".."


@on_a_loop
async def test_a_server_that_stayed_up_begins_anew_with_its_tries(tmp_path: Path) -> None:
    rules = Restart(first_s=0.01, longest_s=0.01, tries=1, steady_s=1e-9)
    async with Client(counting_server(tmp_path, "legacy"), era="legacy", restart=rules) as client:
        for number in range(4):
            assert (await client.call_tool("x", into=dict))["number"] == number
            with pytest.raises(Disconnected):
                await client.call_tool("x", {"do": "die"})
        assert client.state != "failed"


@on_a_loop
async def test_a_program_that_is_gone_is_looked_for_again_and_then_given_up(tmp_path: Path) -> None:
    program = tmp_path / "program"
    target = counting_server(tmp_path, "legacy")
    program.write_text(f"#!/bin/sh\nexec {sys.executable} {' '.join(target.args)}\n")
    program.chmod(0o755)
    async with Client([program], era="legacy", restart=Restart(first_s=0.01, tries=2)) as client:
        program.unlink()
        with pytest.raises(Disconnected):
            await client.call_tool("x", {"do": "die"})
        with pytest.raises(
            Disconnected, match=r"started 2 times in a row and ended each time.*no such file"
        ):
            await client.call_tool("x")
        assert isinstance(client.failure, SpawnError)


@on_a_loop
async def test_the_first_start_is_not_tried_again() -> None:
    with pytest.raises(Disconnected, match="exited with code 1"):
        await Client(
            [sys.executable, "-c", "raise SystemExit(1)"], era="legacy", restart=SOON
        ).open()


@on_a_loop
async def test_what_is_asked_while_the_server_is_down_waits_no_longer_than_its_own_time(
    tmp_path: Path,
) -> None:
    async with Client(
        counting_server(tmp_path, "legacy"), era="legacy", restart=Restart(first_s=60)
    ) as client:
        with pytest.raises(Disconnected):
            await client.call_tool("x", {"do": "die"})
        with pytest.raises(
            TimedOut,
            match=r"tools/call y: not sent, because the server \(backing-off\) was not restarted "
            r"within 0\.05 s; .*code 7",
        ):
            await client.call_tool("y", timeout_s=0.05)
        with pytest.raises(ValueError, match="timeout_s"):
            await client.call_tool("y", timeout_s=float("nan"))
        waiting = asyncio.ensure_future(client.list_tools())
        await asyncio.sleep(0)
        await client.aclose()
        with pytest.raises(Disconnected, match="this client was closed"):
            await waiting
    with pytest.raises(Disconnected, match="this client was closed"):
        await client.call_tool("x")


@on_a_loop
async def test_the_old_tree_is_gone_before_the_next_start(tmp_path: Path) -> None:
    """It may hold a port, a lock or a database.

    Here a process that ignores SIGTERM does, and the next start would see it.
    """
    target = counting_server(tmp_path, "legacy")
    stubborn = (
        f"{sys.executable} -c 'import signal, time; signal.signal(15, signal.SIG_IGN); "
        f"time.sleep(60)'"
    )
    program = tmp_path / "program"
    program.write_text(
        f"#!/bin/sh\n[ -e {tmp_path}/holder ] && cat /proc/$(cat {tmp_path}/holder)/stat "
        f">>{tmp_path}/found 2>/dev/null\n"
        f"touch {tmp_path}/found\n"
        f"{stubborn} </dev/null >/dev/null 2>&1 & echo $! >{tmp_path}/holder\n"
        f"exec {sys.executable} {' '.join(target.args)}\n"
    )
    program.chmod(0o755)
    quick = ShutdownTimeouts(stdin_closed_s=0.1, terminated_s=0.1, killed_s=10)
    async with Client(
        ServerParameters(str(program), ladder=quick), era="legacy", restart=SOON
    ) as client:
        with pytest.raises(Disconnected):
            await client.call_tool("x", {"do": "die"})
        assert (await client.call_tool("x", into=dict))["number"] == 1
    states = [
        line.rpartition(")")[2].split()[0] for line in (tmp_path / "found").read_text().splitlines()
    ]
    assert set(states) <= {"Z"}  # not there any more, or waiting for init to look at it


@pytest.mark.parametrize("stdin", ["", "</dev/null"])
@on_a_loop
async def test_a_crash_is_over_at_once_although_the_server_leaves_a_process_behind(
    stdin: str, tmp_path: Path
) -> None:
    """With time limits for each gentle step that would delay it beyond the limit of the test."""
    target = counting_server(tmp_path, "legacy")
    program = tmp_path / "program"
    program.write_text(
        f"#!/bin/sh\nsleep 600 {stdin} & exec {sys.executable} {' '.join(target.args)}\n"
    )
    program.chmod(0o755)
    patient = ShutdownTimeouts(stdin_closed_s=1000, terminated_s=1000, killed_s=1000)
    parameters = ServerParameters(str(program), ladder=patient)
    async with Client(parameters, era="legacy", restart=Restart()) as client:
        first = client.pid
        with pytest.raises(Disconnected):
            await client.call_tool("x", {"do": "die"})
        assert (await client.call_tool("x", into=dict))["number"] == 1
        assert first is not None
        assert live_members(first) == []
        # The close would wait for the process that the second server has left behind.
        assert client.pid is not None
        for pid in live_members(client.pid):
            if pid != client.pid:
                os.kill(pid, signal.SIGKILL)


@pytest.mark.requirement("LC-15", side="client")
@pytest.mark.parametrize("restart", [SOON, None])
@ERAS
@on_a_loop
async def test_a_server_that_hangs_is_noticed_by_pings_and_ended(
    restart: Any, era: Any, tmp_path: Path
) -> None:
    """LC-15."""
    times = Timeouts(ping_every_s=0.05, ping_s=1.5)
    quick = ShutdownTimeouts(stdin_closed_s=0.1, terminated_s=0.1, killed_s=10)
    target = counting_server(tmp_path, era)
    target = ServerParameters(target.command, target.args, ladder=quick)
    async with Client(target, era=era, restart=restart, timeouts=times) as client:
        first = client.pid
        with pytest.raises(Disconnected, match=r"it did not answer a ping within 1\.5 s"):
            await client.call_tool("x", {"do": "hang"}, timeout_s=25)
        if restart is not None:
            assert (await client.call_tool("x", into=dict))["number"] == 1
            assert first is not None
            assert live_members(first) == []
        else:
            assert client.state == "failed"
            assert "did not answer a ping" in str(client.failure)


@pytest.mark.requirement("LC-15", side="client")
@on_a_loop
async def test_a_server_that_answers_pings_with_errors_or_only_talks_is_there() -> None:
    def refuse(script: Script, message: dict[str, Any]) -> Any:
        raise Refusal(-32601, "no")

    def talk(script: Script, message: dict[str, Any]) -> Any:
        script.notify("notifications/x")
        return SILENCE

    for answer in (refuse, talk):
        times = Timeouts(ping_every_s=0.01, ping_s=0.05)
        async with opened({"ping": answer}, "legacy", era="legacy", timeouts=times) as (
            client,
            script,
        ):
            await script.until(lambda: len(script.of("ping")) >= 4)
            assert client.state == "running"
        assert client.failure is None


@pytest.mark.slow
@on_a_loop
async def test_closing_ends_it_wherever_it_is_and_leaves_nothing(tmp_path: Path) -> None:
    descriptors = set(os.listdir("/proc/self/fd"))
    for turns in range(0, 60, 3):
        client = Client(
            counting_server(tmp_path, "legacy"),
            era="legacy",
            restart=Restart(first_s=0.001, longest_s=0.001),
        )
        await client.open()
        with pytest.raises(Disconnected):
            await client.call_tool("x", {"do": "die"})
        for _ in range(turns):
            await asyncio.sleep(0.001)
        await client.aclose()
        assert client.state == "closed"
        assert client.pid is not None
        assert live_members(client.pid) == []
        assert asyncio.all_tasks() == {asyncio.current_task()}
    assert set(os.listdir("/proc/self/fd")) == descriptors


@on_a_loop
async def test_a_mistake_of_ours_in_a_start_is_logged_and_does_not_leave_callers_waiting(
    caplog: pytest.LogCaptureFixture,
) -> None:
    import logging

    async def nothing() -> None: ...

    async def fails() -> None:
        raise DecodeError("a bug")

    supervisor = Supervisor(
        Restart(first_s=0.001, tries=2),
        SupervisedServer(nothing, fails, nothing, lambda: 0),
        logging.getLogger("concertino"),
    )
    supervisor.on_end(ConcertinoError("gone"))
    with pytest.raises(Disconnected, match="DecodeError: a bug"):
        await supervisor.wait_until_running("x", 20)
    await supervisor.close()
    assert "could not be started again" in caplog.text


@pytest.mark.parametrize("target", [Server("x")])
def test_what_can_be_opened_only_once_is_not_restarted(target: Any) -> None:
    with pytest.raises(ValueError, match="restart: expected a program or an address"):
        Client(target, restart=SOON)


@pytest.mark.parametrize("name", ["first_s", "longest_s", "tries", "steady_s"])
@pytest.mark.parametrize("value", [0, -1, float("nan")])
def test_rules_that_make_no_sense_are_refused(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{name}: expected a positive number"):
        Restart(**{name: value})


def test_the_client_for_threads_is_restarted_too(tmp_path: Path) -> None:
    with SyncClient(counting_server(tmp_path, "legacy"), era="legacy", restart=SOON) as client:
        assert client.pid is not None
        os.kill(client.pid, signal.SIGKILL)
        for _ in range(2):  # the first may be under way when the end is seen
            try:
                assert client.call_tool("x", into=dict)["number"] == 1
            except Disconnected:
                continue
        assert client.restarts == 1
        assert client.state == "running"
