"""plugin_watch.py, watched_paths.py: a save restarts a plugin, and the next call runs its code."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest
from loops import on_a_loop
from orchestra.hubs import (
    GREETER,
    SOMEBODY,
    SOURCES,
    call_tool,
    running,
    sdk,
    write_plugins_file,
)

from concertino.orchestra.hub import Hub
from concertino.orchestra.plugin_pb2 import ListToolsRequest, PluginRequest
from concertino.orchestra.plugins_file import InvalidPluginsFile, read_plugins
from concertino.orchestra.structs import unpack
from concertino.orchestra.watched_paths import WatchedPaths

MCP = """
from concertino import Server
server = Server("one")
@server.tool
def word() -> str:
    return "WORD"
server.run()
"""


async def told_by(hub: Hub, tool: str, **arguments: Any) -> object:
    response = (await call_tool(hub, tool, **arguments)).tool_call
    return unpack(response.result)["text"] if response.success else response.error_message


def greeter(folder: Path, name: str, **members: Any) -> dict[str, Any]:
    (folder / name).mkdir()
    code = GREETER.replace("greet(", f"{name}(").replace("tools.greeter", f"tools.{name}")
    made = sdk(folder / name, f"tools.{name}", code)
    made["binary"] = f"{name}/{made['binary']}"
    return {**made, "watch": True, **members}


@on_a_loop
async def test_the_next_call_and_list_run_the_code_that_was_saved(folder: Path) -> None:
    path = write_plugins_file(folder, greeter(folder, "one"), greeter(folder, "other"))
    async with running(path) as hub:
        assert await told_by(hub, "one", name="Ada") == "Hello, Ada!"
        one, other = (hub.plugins[f"tools.{name}"] for name in ("one", "other"))
        pids = one.pid, other.pid
        file = folder / "one" / "tools_one.py"
        file.write_text(file.read_text().replace("Hello", "Good day"))
        assert await told_by(hub, "one", name="Ada") == "Good day, Ada!"
        assert one.pid != pids[0]
        assert other.pid == pids[1]

        # A module beside it counts, too. The list that follows has what it adds.
        (folder / "one" / "words.py").write_text('WORD = "Moin"\n')
        text = file.read_text().replace("plugin.run()", "")
        added = "@plugin.tool\ndef more() -> str:\n    import words\n    return words.WORD\n"
        file.write_text(f"{text}{added}plugin.run()\n")
        listed = await hub.answer(PluginRequest(list_tools=ListToolsRequest()), SOMEBODY)
        names = [tool.name for tool in listed.list_tools.tools]
        assert names == ["more", "one", "other"]
        assert await told_by(hub, "more") == "Moin"


@on_a_loop
async def test_code_that_does_not_start_is_said_once_and_then_the_old_code_runs(
    folder: Path,
) -> None:
    path = write_plugins_file(folder, greeter(folder, "one"))
    async with running(path) as hub:
        file = folder / "one" / "tools_one.py"
        good = file.read_text()
        file.write_text(f"{good}import nothing_there\n".replace("plugin.run()\n", ""))
        failed = (await call_tool(hub, "one", name="Ada")).tool_call
        assert failed.error_code == "change_failed"
        assert failed.error_message == (
            "tools.one: the changed code does not start: it ended with exit code 1\n"
            "This call did nothing. The code before the change runs on."
        )
        assert await told_by(hub, "one", name="Ada") == "Hello, Ada!"
        file.write_text(good.replace("Hello", "Moin"))
        assert await told_by(hub, "one", name="Ada") == "Moin, Ada!"


@on_a_loop
async def test_a_plugin_that_did_not_start_at_all_starts_with_the_next_save(folder: Path) -> None:
    broken = greeter(folder, "one")
    file = folder / "one" / "tools_one.py"
    good = file.read_text()
    file.write_text("import nothing_there\n")
    async with running(write_plugins_file(folder, broken)) as hub:
        assert (await call_tool(hub, "one")).tool_call.error_code == "tool_not_found"
        file.write_text(good)
        assert await told_by(hub, "one", name="Ada") == "Hello, Ada!"


@on_a_loop
async def test_an_mcp_server_is_watched_by_its_file_and_by_a_path(folder: Path) -> None:
    file = folder / "server.py"
    file.write_text(MCP.replace("WORD", "first"))
    server = {
        "id": "tools.mcp",
        "protocol": "mcp",
        "command": [sys.executable, "server.py"],
        "env": {"PYTHONPATH": SOURCES},
        "enabled": True,
        "watch": True,
    }
    async with running(write_plugins_file(folder, server)) as hub:
        assert await told_by(hub, "word") == "first"
        file.write_text(MCP.replace("WORD", "second"))
        assert await told_by(hub, "word") == "second"


@on_a_loop
async def test_every_file_below_a_path_counts(folder: Path) -> None:
    (folder / "data").mkdir()
    code = GREETER.replace('f"Hello, {name}!"', "open('DATA').read()")
    code = code.replace("DATA", str(folder / "data" / "words.txt"))
    (folder / "data" / "words.txt").write_text("old")
    path = write_plugins_file(folder, sdk(folder, "tools.greeter", code, watch="data"))
    async with running(path) as hub:
        pid = hub.plugins["tools.greeter"].pid
        (folder / "unwatched.py").write_text("")
        assert await told_by(hub, "greet", name="x") == "old"
        assert hub.plugins["tools.greeter"].pid == pid
        (folder / "data" / "words.txt").write_text("new")
        assert await told_by(hub, "greet", name="x") == "new"
        assert hub.plugins["tools.greeter"].pid != pid


@on_a_loop
async def test_a_save_without_a_call_is_noticed(folder: Path) -> None:
    path = write_plugins_file(folder, greeter(folder, "one"))
    async with running(path) as hub:
        pid = hub.plugins["tools.one"].pid
        file = folder / "one" / "tools_one.py"
        file.write_text(file.read_text() + "# saved\n")
        while hub.plugins["tools.one"].pid == pid:
            await asyncio.sleep(0.01)


def test_what_is_watched(tmp_path: Path) -> None:
    (tmp_path / "server.mjs").write_text("")
    (tmp_path / "data").mkdir()
    path = tmp_path / "plugins.yaml"
    path.write_text(
        "plugins:\n"
        "- {id: a, binary: sub/a.py, watch: true}\n"
        "- {id: b, binary: bin/compiled, watch: yes}\n"
        "- {id: c, binary: a.py, watch: [data, server.mjs]}\n"
        "- {id: d, protocol: mcp, command: node --x server.mjs, watch: true}\n"
        "- {id: e, binary: a.py, watch: false}\n"
    )
    assert [item.watch for item in read_plugins(path).plugins] == [
        WatchedPaths((str(tmp_path / "sub"),), (".py",)),
        WatchedPaths(paths=(str(tmp_path / "bin" / "compiled"),)),
        WatchedPaths(paths=(str(tmp_path / "data"), str(tmp_path / "server.mjs"))),
        WatchedPaths((str(tmp_path),), (".mjs",)),
        None,
    ]


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        (
            "binary: concertino\n  watch: true",
            ":4: plugins[0] (a).watch: the program is not a file",
        ),
        ("binary: a.py\n  watch: gone", ":4: plugins[0] (a).watch: no such file or folder: "),
        ("protocol: mcp\n  url: https://x\n  watch: true", ":5: plugins[0] (a).watch: the program"),
    ],
)
def test_a_mistake_in_what_is_watched_is_named(tmp_path: Path, members: str, expected: str) -> None:
    path = tmp_path / "plugins.yaml"
    path.write_text(f"plugins:\n- id: a\n  {members}\n")
    with pytest.raises(InvalidPluginsFile) as raised:
        read_plugins(path)
    assert str(raised.value).startswith(f"{path}{expected}")
