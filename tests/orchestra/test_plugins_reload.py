"""plugins_reload.py, plugin_set.py, plugin_replacement.py: changes of plugins.yaml reach a running
hub, whose plugins are processes.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from loops import on_a_loop, on_a_loop_within
from orchestra.hubs import SOURCES, call_tool, running, sdk, write_plugins_file
from process_waits import wait_for_end
from warm_commands import run_python, start_python

from concertino import Client
from concertino.orchestra.bridge import Bridge
from concertino.orchestra.certificates import Certificates
from concertino.orchestra.embedded_hub import EmbeddedHub
from concertino.orchestra.hub import Hub
from concertino.orchestra.hub_control import ControlRequest, HubControl
from concertino.orchestra.link import open_link
from concertino.orchestra.plugin_definitions import define_plugins
from concertino.orchestra.plugin_pb2 import ListToolsRequest, PluginRequest, ToolRequest
from concertino.orchestra.plugins_file import read_plugins
from concertino.orchestra.plugins_reload import PluginsReload
from concertino.orchestra.structs import pack, unpack
from concertino.proxy.approvals import ApprovalStore
from concertino.types.results import CallToolResult

# NAME is the tool, WORD what it says; `slow` waits for a file.
CODE = """
import asyncio, os, pathlib
from concertino import Plugin
plugin = Plugin("ID")
@plugin.tool
def NAME() -> str:
    return os.environ.get("WORD", "nothing")
@plugin.tool(name="slow_NAME")
async def slow(path: str) -> str:
    pathlib.Path(path + ".begun").touch()
    while not pathlib.Path(path).exists():
        await asyncio.sleep(0.01)
    return os.environ.get("WORD", "nothing")
plugin.run()
"""


def plugin(folder: Path, name: str, word: str = "one", **members: Any) -> dict[str, Any]:
    """The entry of a plugin whose tool says a word."""
    code = CODE.replace("ID", f"tools.{name}").replace("NAME", name)
    return sdk(folder, f"tools.{name}", code, **{"env": {"WORD": word}, **members})


@asynccontextmanager
async def following(
    path: Path, *, trust: bool = True, **options: Any
) -> AsyncIterator[tuple[Hub, PluginsReload]]:
    """A hub that follows its file: looked at only when a test calls reload(), unless it waits."""
    file = read_plugins(path)
    async with running(path, **options) as hub:
        store = ApprovalStore(path.parent / "state")
        reload = PluginsReload(hub, file, trust=trust, store=store, poll_s=0.02)
        try:
            yield hub, reload
        finally:
            await reload.close()


async def told_by(hub: Hub, tool: str, **arguments: Any) -> object:
    response = (await call_tool(hub, tool, **arguments)).tool_call
    assert response.success, response.error_message
    return unpack(response.result)["text"]


async def until(hub: Hub, is_true: Callable[[], bool]) -> None:
    """Wait until something is true, which is looked at again with each change of a plugin."""
    changed = asyncio.Event()
    before = hub._plugins._on_change

    def told() -> None:
        before()
        changed.set()

    for item in (hub._plugins, *hub.plugins.values()):
        item._on_change = told
    while not is_true():
        changed.clear()
        await changed.wait()


async def until_there(path: Path) -> None:
    while not path.exists():
        await asyncio.sleep(0.01)


@on_a_loop
async def test_only_what_has_changed_starts_or_ends_and_calls_under_way_finish(
    folder: Path,
) -> None:
    path = write_plugins_file(
        folder, plugin(folder, "stays"), plugin(folder, "changes"), plugin(folder, "goes")
    )
    async with following(path) as (hub, reload):
        before = {id: item.pid for id, item in hub.plugins.items()}
        waiting = [
            asyncio.ensure_future(told_by(hub, f"slow_{name}", path=str(folder / "go")))
            for name in ("changes", "goes")
        ]
        await until_there(folder / "go.begun")
        # A comment above the entries moves their lines, which is no change.
        text = path.read_text()
        write_plugins_file(
            folder,
            plugin(folder, "changes", "two"),
            plugin(folder, "stays"),
            plugin(folder, "new", "new", depends_on=["tools.changes"]),
        )
        path.write_text(f"# {len(text)}\n{path.read_text()}")
        await reload.reload()

        assert list(hub.plugins) == ["tools.changes", "tools.stays", "tools.new"]
        assert hub.plugins["tools.stays"].pid == before["tools.stays"]
        assert hub.plugins["tools.changes"].pid != before["tools.changes"]
        # New calls get the new processes, and the old ones finish theirs.
        assert await told_by(hub, "changes") == "two"
        assert await told_by(hub, "new") == "new"
        gone = (await call_tool(hub, "goes")).tool_call
        assert gone.error_code == "tool_not_found"
        assert not any(call.done() for call in waiting)
        (folder / "go").touch()
        assert await asyncio.gather(*waiting) == ["one", "one"]
        for id in ("tools.changes", "tools.goes"):
            await asyncio.to_thread(wait_for_end, before[id])


STREAM = """
import asyncio, os, pathlib
from concertino import Plugin
plugin = Plugin("tools.stream")
@plugin.tool
async def stream(path: str):
    yield os.environ["WORD"]
    while not pathlib.Path(path).exists():
        await asyncio.sleep(0.01)
    yield os.environ["WORD"]
plugin.run()
"""


@on_a_loop
async def test_a_stream_under_way_ends_in_the_process_in_which_it_has_begun(folder: Path) -> None:
    def write(word: str) -> Path:
        entry = sdk(folder, "tools.stream", STREAM, env={"WORD": word})
        return write_plugins_file(folder, entry, listen_addr=f"unix:{folder}/hub")

    async with (
        following(write("one"), is_private=False) as (hub, reload),
        Client(Bridge(f"unix:{folder}/hub")) as client,
    ):
        before = hub.plugins["tools.stream"].pid

        async def begin() -> asyncio.Task[CallToolResult]:
            has_begun = asyncio.Event()
            call = client.call_tool(
                "stream", {"path": str(folder / "go")}, progress=lambda *_: has_begun.set()
            )
            task = asyncio.ensure_future(call)
            await has_begun.wait()
            return task

        first, cancelled = await begin(), await begin()
        write("two")
        await reload.reload()
        second = await begin()
        cancelled.cancel()
        (folder / "go").touch()
        assert (await first).text == "oneone"
        assert (await second).text == "twotwo"
        await asyncio.to_thread(wait_for_end, before)


@on_a_loop
async def test_a_broken_file_keeps_the_plugins_and_names_the_line(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_plugins_file(folder, plugin(folder, "stays"))
    async with following(path) as (hub, reload):
        pid = hub.plugins["tools.stays"].pid
        text = path.read_text()
        path.write_text(text + "  enabled: maybe\n")
        await reload.reload()
        assert f"{path}:{len(text.splitlines()) + 1}: plugins[0]" in caplog.text
        assert "the plugins stay as they were" in caplog.text
        path.unlink()
        await reload.reload()
        assert f"{path}: No such file or directory; the plugins stay" in caplog.text
        assert hub.plugins["tools.stays"].pid == pid
        assert await told_by(hub, "stays") == "one"


@on_a_loop
async def test_a_file_that_was_refused_for_its_mode_is_read_when_the_mode_is_right(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_plugins_file(folder, plugin(folder, "stays"))
    async with following(path) as (hub, reload):
        reload.open()
        path.chmod(0o666)
        write_plugins_file(folder, plugin(folder, "stays", "two"))
        while "expected a file that only you can change" not in caplog.text:
            await asyncio.sleep(0.01)
        path.chmod(0o600)
        while await told_by(hub, "stays") != "two":
            await asyncio.sleep(0.01)


@on_a_loop
async def test_a_changed_program_that_does_not_start_replaces_nothing(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_plugins_file(folder, plugin(folder, "stays"))
    async with following(path) as (hub, reload):
        pid = hub.plugins["tools.stays"].pid
        (folder / "bad.py").write_text("import sys\nsys.exit(4)\n")
        write_plugins_file(folder, {**plugin(folder, "stays"), "binary": "bad.py"})
        await reload.reload()
        assert "the changed plugin does not start: it ended with exit code 4" in caplog.text
        assert hub.plugins["tools.stays"].record.failed_change == "it ended with exit code 4"
        assert hub.plugins["tools.stays"].pid == pid
        assert await told_by(hub, "stays") == "one"
        # When the old process ends, too, the changed program is what does not run.
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await until(hub, lambda: hub.plugins["tools.stays"].reason == "it ended with exit code 4")
        assert hub.plugins["tools.stays"].record.failed_change == ""
        # The next change is tried again.
        write_plugins_file(folder, plugin(folder, "stays", "three"))
        await reload.reload()
        assert await told_by(hub, "stays") == "three"
        assert hub.plugins["tools.stays"].record.failed_change == ""


@on_a_loop
async def test_a_call_during_a_replacement_waits_for_the_new_process(folder: Path) -> None:
    path = write_plugins_file(folder, plugin(folder, "stays"))
    async with following(path) as (hub, reload):
        write_plugins_file(folder, plugin(folder, "stays", "two"))
        reloading = asyncio.ensure_future(reload.reload())
        await until(hub, lambda: hub.plugins["tools.stays"].is_being_replaced)
        assert await told_by(hub, "stays") == "two"
        await reloading


@on_a_loop
async def test_a_hub_that_ends_during_a_replacement_leaves_no_process(folder: Path) -> None:
    path = write_plugins_file(folder, plugin(folder, "stays"))
    async with following(path) as (hub, reload):
        # It never says READY.
        (folder / "mute.py").write_text("import signal\nsignal.pause()\n")
        write_plugins_file(folder, {**plugin(folder, "stays"), "binary": "mute.py"})
        reloading = asyncio.ensure_future(reload.reload())
        item = hub.plugins["tools.stays"]
        await until(hub, lambda: item.is_being_replaced)
        while len(item.groups) < 2:
            await asyncio.sleep(0.01)
        groups = item.groups
        await hub.stop()
        await reloading
    for pid in groups:
        wait_for_end(pid)


@on_a_loop
async def test_a_changed_definition_waits_for_approval(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_plugins_file(
        folder, plugin(folder, "stays"), plugin(folder, "plain"), plugin(folder, "waits")
    )
    async with following(path, trust=False) as (hub, reload):
        changed = plugin(folder, "stays", "two", env={"WORD": "two", "API_TOKEN": "hidden-123456"})
        needy = {**plugin(folder, "needy"), "depends_on": ["tools.new"]}
        # What decides neither what runs nor what it reaches needs no approval.
        harmless = {**plugin(folder, "plain"), "provides_ai": ["claude"]}
        waits = {**plugin(folder, "waits"), "depends_on": ["tools.new"]}
        write_plugins_file(folder, changed, plugin(folder, "new"), needy, harmless, waits)
        plain = hub.plugins["tools.plain"].pid
        await reload.reload()

        assert list(hub.plugins) == ["tools.stays", "tools.plain", "tools.waits"]
        assert await told_by(hub, "stays") == "one"
        assert hub.plugins["tools.plain"].pid != plain
        assert hub.plugins["tools.plain"].provides_ai == ["claude"]
        assert set(hub.withheld) == {"tools.stays", "tools.new", "tools.needy", "tools.waits"}
        assert hub.withheld["tools.new"].endswith(f"concertino approve {path}")
        shown = (await HubControl(hub).answer(ControlRequest("ps"))).plugins
        states = {item.id: (item.state, item.reason.partition(";")[0]) for item in shown}
        assert states["tools.stays"] == ("running", "not approved")
        assert states["tools.needy"] == ("withheld", "not approved")
        # Its change needs no approval, but a plugin that does not run.
        assert states["tools.waits"] == (
            "running",
            "it depends on tools.new, which does not run",
        )
        lines = [record.getMessage() for record in caplog.records]
        assert "tools.stays (changed)" in lines
        assert "  + env.API_TOKEN: (not shown)" in lines
        assert "  ~ env.WORD: another value" in lines
        assert "tools.new (new)" in lines
        assert "hidden-123456" not in caplog.text

        # The same again is not shown again.
        await reload.reload()
        assert [record.getMessage() for record in caplog.records].count("tools.new (new)") == 1

        stays = hub.plugins["tools.stays"].pid
        reload.open()
        file = read_plugins(path)
        store = ApprovalStore(folder / "state")
        store.approve(path.resolve(), define_plugins(file, store.key()))
        await until(hub, lambda: hub.plugins["tools.stays"].pid != stays)
        assert await told_by(hub, "stays") == "two"
        assert await told_by(hub, "needy") == "one"
        assert not hub.withheld


@on_a_loop
async def test_clients_hear_of_changed_lists(folder: Path) -> None:
    path = write_plugins_file(folder, plugin(folder, "stays"))
    heard: asyncio.Queue[str] = asyncio.Queue()
    hub = EmbeddedHub(read_plugins(path), trust=True, poll_s=0.02)
    async with Client(hub, changed=heard.put_nowait) as client:
        assert [tool.name for tool in await client.list_tools()] == ["slow_stays", "stays"]
        write_plugins_file(folder, plugin(folder, "stays"), plugin(folder, "new", "fresh"))
        while await heard.get() != "tools":
            pass
        assert "new" in [tool.name for tool in await client.list_tools()]
        assert await client.call_tool("new", into=str) == "fresh"


@on_a_loop
async def test_the_first_plugin_over_quic_makes_the_hub_listen(
    folder: Path, certificates: Certificates
) -> None:
    path = write_plugins_file(folder, plugin(folder, "stays"), certs_dir=str(certificates.folder))
    async with following(path) as (hub, reload):
        greeter = {**plugin(folder, "greeter", "over QUIC"), "socket": False}
        write_plugins_file(
            folder, plugin(folder, "stays"), greeter, certs_dir=str(certificates.folder)
        )
        await reload.reload()
        assert await told_by(hub, "greeter") == "over QUIC"


@pytest.mark.slow
@on_a_loop_within(60)
async def test_the_command_follows_its_file_and_takes_approvals_over(folder: Path) -> None:
    path = write_plugins_file(folder, plugin(folder, "stays"), listen_addr=f"unix:{folder}/hub")
    environment = {**os.environ, "PYTHONPATH": SOURCES, "XDG_STATE_HOME": str(folder / "state")}

    def command(*words: str) -> list[str]:
        return [sys.executable, "-m", "concertino", *words]

    def wait_for(text: str) -> None:
        while text not in (line := hub.stderr.readline()):  # type: ignore[union-attr]
            assert line, text

    with start_python(
        command("orchestrate", str(path)), stderr=subprocess.PIPE, text=True, env=environment
    ) as hub:
        try:
            await asyncio.to_thread(wait_for, "Listening on")
            write_plugins_file(
                folder,
                plugin(folder, "stays"),
                plugin(folder, "new", "fresh"),
                listen_addr=f"unix:{folder}/hub",
            )
            await asyncio.to_thread(wait_for, "tools.new (new)")
            await asyncio.to_thread(wait_for, "it is not started; to approve it: concertino")
            shown = run_python(
                command("approve", "--yes", str(path)),
                env=environment,
                capture_output=True,
                text=True,
                check=True,
            )
            # What runs already is not shown.
            assert shown.stdout.splitlines()[0] == "tools.new (new)"
            assert "tools.stays" not in shown.stdout
            await asyncio.to_thread(wait_for, "was reloaded: 2 plugins")
            link = await open_link(f"unix:{folder}/hub")
            call = ToolRequest(tool_name="new", arguments=pack({}).struct)
            response = await link.request(PluginRequest(tool_call=call))
            assert unpack(response.tool_call.result) == {"text": "fresh"}
            listed = await link.request(PluginRequest(list_tools=ListToolsRequest()))
            names = [tool.name for tool in listed.list_tools.tools]
            assert names == ["new", "slow_new", "slow_stays", "stays"]
            await link.close()
            hub.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(hub.wait, 20) == 0
        finally:
            hub.kill()
