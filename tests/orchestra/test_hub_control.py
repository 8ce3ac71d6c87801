"""hub_control.py and `concertino hub`: the plugins of running hubs are shown and managed."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from loops import on_a_loop
from orchestra.hubs import (
    GREETER,
    call_tool,
    is_gone,
    raw,
    running,
    sdk,
    until,
    write_plugins_file,
)

from concertino.cli import main
from concertino.orchestra import hub_control, plugin_run
from concertino.orchestra.hub import Hub
from concertino.orchestra.hub_control import ControlRequest, HubControl, ask_hub, find_hubs
from concertino.proxy.process_sockets import listen_in_first

ECHO = "tools.append('echo'); say('ready to echo')"


@asynccontextmanager
async def controlled(folder: Path) -> AsyncIterator[tuple[Hub, HubControl]]:
    path = write_plugins_file(
        folder, sdk(folder, "tools.greeter", GREETER), raw(folder, "tools.echo", ECHO)
    )
    async with running(path) as hub:
        control = HubControl(hub)
        await control.open(os.environ)
        try:
            yield hub, control
        finally:
            await control.close()


@pytest.fixture(autouse=True)
def runtime_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder for control sockets, so that hubs of other tests are not seen."""
    runtime = folder / "run"
    monkeypatch.setattr(hub_control, "_folders", lambda environment: [runtime])
    return runtime


@on_a_loop
async def test_plugins_are_shown_restarted_and_stopped(folder: Path) -> None:
    async with controlled(folder) as (hub, control):
        shown = (await control.answer(ControlRequest("ps"))).plugins
        assert [(item.id, item.state, item.tools) for item in shown] == [
            ("tools.greeter", "running", 1),
            ("tools.echo", "running", 1),
        ]
        first = hub.plugins["tools.greeter"].pid
        assert first is not None

        # Twice at the same time: the plugin is started once for each, and one process is left.
        requests = (control.answer(ControlRequest("restart", "tools.greeter")) for _ in range(2))
        for answer in await asyncio.gather(*requests):
            assert [item.state for item in answer.plugins] == ["running"]
        assert is_gone(first)
        assert hub.plugins["tools.greeter"].restarts == 2
        assert (await call_tool(hub, "greet", name="Ada")).tool_call.success

        [stopped] = (await control.answer(ControlRequest("stop", "tools.echo"))).plugins
        assert (stopped.state, stopped.pid) == ("stopped", 0)
        assert stopped.reason == "it was stopped; to start it: concertino hub restart tools.echo"
        refused = (await call_tool(hub, "echo")).tool_call
        assert refused.error_code == "plugin_unavailable"
        await control.answer(ControlRequest("restart", "tools.echo"))
        assert (await call_tool(hub, "echo")).tool_call.success

        unknown = await control.answer(ControlRequest("stop", "tools.none"))
        expected = "no plugin 'tools.none' here; there are: tools.greeter, tools.echo"
        assert unknown.error == expected


@on_a_loop
async def test_the_commands_find_the_hub(
    folder: Path,
    runtime_folder: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "concertino.hub")

    def command(*words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as left:
            main(["hub", *words])
        said = capsys.readouterr()
        return int(left.value.code or 0), said.out, said.err

    def run(*words: str) -> asyncio.Future[tuple[int, str, str]]:
        return asyncio.ensure_future(asyncio.to_thread(command, *words))

    assert await run("restart", "x") == (2, "", "concertino hub: no hub of this user runs\n")
    async with controlled(folder) as (hub, _):
        [socket] = find_hubs(os.environ).values()
        assert socket.parent == runtime_folder
        code, out, _ = await run("ps")
        assert code == 0
        headings, greeter, echo = out.splitlines()
        assert headings.split()[:4] == ["HUB", "PLUGIN", "PID", "AGE"]
        assert greeter.split()[:3] == [
            str(os.getpid()),
            "tools.greeter",
            str(hub.plugins["tools.greeter"].pid),
        ]
        assert echo.endswith("running")

        code, out, _ = await run("ps", "--json")
        assert json.loads(out.splitlines()[1])["id"] == "tools.echo"
        shown = json.loads(out.splitlines()[0])
        # An interpreter with concertino has more than 10 MB, and was just started.
        assert shown["memory_bytes"] > 10_000_000
        assert 0 <= shown["age_s"] < 3600
        assert shown["cpu_percent"] >= 0
        assert await run("stop", "tools.echo") == (0, "tools.echo: stopped\n", "")
        code, out, _ = await run("ps")
        assert "it was stopped; to start it: concertino hub restart tools.echo" in out
        assert await run("restart", "tools.echo") == (0, "tools.echo: running\n", "")
        code, out, _ = await run("logs", "tools.echo")
        assert "[INFO] ready to echo" in out.splitlines()
        assert (await run("restart", "none"))[0] == 1
        assert (await run("stop", "tools.echo", "--hub", "1"))[0] == 2
    assert find_hubs(os.environ) == {}


def test_a_socket_of_a_killed_hub_of_another_pid_namespace_is_removed(runtime_folder: Path) -> None:
    """Commands without --hub would be refused, because two hubs seem to run."""
    runtime_folder.mkdir(mode=0o700)
    path = runtime_folder / f"{2**22 + 1}-1-1"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        # A hub has just made its socket, and does not listen yet.
        assert find_hubs(os.environ) == {2**22 + 1: path}
        os.utime(path, (0, 0))
        listener.listen()
        assert find_hubs(os.environ) == {2**22 + 1: path}
    assert find_hubs(os.environ) == {}
    assert not path.exists()


@on_a_loop
async def test_a_hub_that_hangs_is_named_soon(
    runtime_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(hub_control, "QUICK_S", 0.05)

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Until the client disconnects.
        await reader.read()
        writer.close()

    sock = listen_in_first([runtime_folder], logging.getLogger(), "%s %s")
    assert sock is not None
    server = await asyncio.start_unix_server(hang, sock=sock.socket)

    def command(*words: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as left:
            main(["hub", *words])
        out, err = capsys.readouterr()
        return int(left.value.code or 0), out + err

    async with asyncio.timeout(20):
        pid = os.getpid()
        expected = f"concertino hub: hub {pid} does not answer: timed out\n"
        assert await asyncio.to_thread(command, "ps") == (0, expected)
        expected = "concertino hub: the hub does not answer: timed out\n"
        for kind in ("logs", "restart", "stop"):
            assert await asyncio.to_thread(command, kind, "tools.echo") == (1, expected)
    server.close()
    sock.close()
    await server.wait_closed()


@on_a_loop
async def test_a_restart_says_why_the_plugin_does_not_start_and_where_to_look(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with controlled(folder):
        (folder / "tools_echo.py").write_text("raise SystemExit('out of order')\n")

        def restart() -> None:
            with pytest.raises(SystemExit) as left:
                main(["hub", "restart", "tools.echo"])
            assert left.value.code == 1

        await asyncio.to_thread(restart)
        assert capsys.readouterr().err == (
            "concertino hub: tools.echo does not run: it ended with exit code 1; "
            "see: concertino hub logs tools.echo\n"
        )


WAITING = """
tools += ["wait"]
easy = answer
async def answer(request, peer):
    if request.WhichOneof("request") == "shutdown":
        os._exit(0)
    if request.tool_call.tool_name == "wait":
        await asyncio.Event().wait()
    return await easy(request, peer)
"""


@on_a_loop
async def test_a_call_that_a_restart_cuts_off_says_so(folder: Path) -> None:
    path = write_plugins_file(folder, raw(folder, "tools.waiting", WAITING))
    async with running(path) as hub:
        waiting = asyncio.ensure_future(call_tool(hub, "wait"))
        while not hub.plugins["tools.waiting"].calls:
            await asyncio.sleep(0)
        await hub.restart_plugin("tools.waiting")
        assert (await waiting).tool_call.error_message == (
            "tools.waiting: it is being restarted; this call got no response"
        )
        assert hub.plugins["tools.waiting"].state == "running"


@on_a_loop
async def test_what_is_no_request_is_not_answered(folder: Path) -> None:
    async with controlled(folder):
        [path] = find_hubs(os.environ).values()
        reader, writer = await asyncio.open_unix_connection(str(path))
        writer.write(b'{"command":"delete"}\n')
        assert await reader.read() == b""
        writer.close()
        answer = await asyncio.to_thread(ask_hub, path, ControlRequest("ps"))
        assert len(answer.plugins) == 2


@on_a_loop
async def test_an_answer_that_is_not_utf_8_is_none(tmp_path: Path) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b'{"error": "\xff"}')
        writer.close()

    async with await asyncio.start_unix_server(serve, tmp_path / "hub"):
        with pytest.raises(OSError, match="without an answer"):
            await asyncio.to_thread(ask_hub, tmp_path / "hub", ControlRequest("ps"))


BUSY = """
def spin():
    while not os.path.exists(GO):
        pass
tools += ["spin", "die"]
easy = answer
async def answer(request, peer):
    if request.tool_call.tool_name == "die":
        os._exit(5)
    if request.tool_call.tool_name == "spin":
        # In a thread: health pings are answered meanwhile.
        await asyncio.to_thread(spin)
    if request.WhichOneof("request") == "health":
        return PluginResponse(health=HealthResult(status=HealthResult.DEGRADED, message="full"))
    return await easy(request, peer)
"""


@pytest.mark.slow
@on_a_loop
async def test_load_health_and_the_last_error_are_shown(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Also the time limit of a ping, so not shorter: the machine may be busy.
    monkeypatch.setattr(plugin_run, "HEALTH_S", 3.0)
    body = f"GO = {str(folder / 'go')!r}\n{BUSY}"
    path = write_plugins_file(folder, raw(folder, "tools.busy", body))
    async with running(path) as hub:
        control = HubControl(hub)
        await control.open(os.environ)
        plugin = hub.plugins["tools.busy"]
        await call_tool(hub, "die")
        await until(hub, "tools.busy", "backing-off")
        await until(hub, "tools.busy", "running")
        spinning = asyncio.ensure_future(call_tool(hub, "spin"))
        while not plugin.health:
            await asyncio.sleep(0.01)

        def show(*words: str) -> str:
            with pytest.raises(SystemExit):
                main(["hub", "ps", *words])
            return capsys.readouterr().out

        shown = json.loads(await asyncio.to_thread(show, "--json"))
        assert not spinning.done(), spinning.result()
        # On a machine that is busy, too, it gets some time in half a second.
        assert shown["cpu_percent"] > 0
        assert (shown["calls"], shown["calls_total"], shown["restarts"]) == (1, 2, 1)
        assert shown["health"] == "DEGRADED full"
        assert shown["last_error"] == "it ended with exit code 5"
        headings, row, health, error = (await asyncio.to_thread(show)).splitlines()
        cells = dict(zip(headings.split(), row.split(), strict=True))
        assert (cells["CALLS"], cells["NOW"], cells["STATE"]) == ("2", "1", "running")
        assert cells["CPU"].endswith("%")
        assert health == "    it says that it is DEGRADED full"
        assert error.startswith("    last error, ")
        assert error.endswith(" ago: it ended with exit code 5")
        (folder / "go").touch()
        assert (await spinning).tool_call.success
        await control.close()
