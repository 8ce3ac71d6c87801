"""hub_control.py and `concertino hub`: the plugins of running hubs are shown and managed."""

from __future__ import annotations

import asyncio
import json
import logging
import os
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
from concertino.orchestra import hub_control
from concertino.orchestra.hub import Hub
from concertino.orchestra.hub_control import ControlRequest, HubControl, ask_hub, find_hubs

pytestmark = pytest.mark.waits

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
        await asyncio.gather(*requests)
        await until(hub, "tools.greeter", "running")
        assert is_gone(first)
        assert hub.plugins["tools.greeter"].restarts == 2
        assert (await call_tool(hub, "greet", name="Ada")).tool_call.success

        [stopped] = (await control.answer(ControlRequest("stop", "tools.echo"))).plugins
        assert (stopped.state, stopped.pid) == ("stopped", 0)
        assert stopped.reason == "it was stopped by concertino hub"
        refused = (await call_tool(hub, "echo")).tool_call
        assert refused.error_code == "plugin_unavailable"
        await control.answer(ControlRequest("restart", "tools.echo"))
        await until(hub, "tools.echo", "running")
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
        assert await run("stop", "tools.echo") == (0, "tools.echo: stopped\n", "")
        code, out, _ = await run("ps")
        assert "it was stopped by concertino hub" in out
        assert (await run("restart", "tools.echo"))[0] == 0
        await until(hub, "tools.echo", "running")
        code, out, _ = await run("logs", "tools.echo")
        assert "[INFO] ready to echo" in out.splitlines()
        assert (await run("restart", "none"))[0] == 1
        assert (await run("stop", "tools.echo", "--hub", "1"))[0] == 2
    assert find_hubs(os.environ) == {}


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
