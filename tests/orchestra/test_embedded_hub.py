"""embedded_hub.py: a client of `concertino serve plugins.yaml`, which is hub and MCP server."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from loops import on_a_loop
from orchestra.hubs import GREETER, SOURCES, entry, is_gone, raw, sdk, write_plugins_file

from concertino import Client, ServerParameters
from concertino.cli.call_failures import describe_missing_parts
from concertino.orchestra.certificates import Certificates
from concertino.orchestra.embedded_hub import EmbeddedHub
from concertino.orchestra.plugins_file import read_plugins
from concertino.types.results import TextContent

ENVIRONMENT = {"PYTHONPATH": SOURCES, "PYTHONDONTWRITEBYTECODE": "1"}


def command(*targets: str) -> list[str]:
    return [sys.executable, "-m", "concertino", "serve", *targets]


def client_of(*targets: str) -> Client:
    program, *arguments = command(*targets)
    return Client(ServerParameters(program, arguments, env=ENVIRONMENT))


async def text_of(client: Client, tool: str, **arguments: Any) -> tuple[bool | None, str]:
    """Whether a tool failed, and what it said."""
    result = await client.call_tool(tool, arguments)
    [block] = result.content
    assert isinstance(block, TextContent)
    return result.is_error, block.text


def children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@on_a_loop
async def test_tools_and_resources_of_plugins_are_an_mcp_server(folder: Path) -> None:
    (folder / ".projects" / "notes").mkdir(parents=True)
    (folder / ".projects" / "notes" / "NOTE-1.md").write_text("---\ntitle: First\n---\n\n# Hello\n")
    path = write_plugins_file(
        folder,
        sdk(folder, "tools.greeter", GREETER),
        entry("storage.markdown", "concertino", args=["plugin", "markdown", "--workspace=."]),
    )
    async with client_of(str(path)) as client:
        assert client.server_info.name == "orchestra"
        assert [tool.name for tool in await client.list_tools()] == ["greet"]
        assert await text_of(client, "greet", name="Ada") == (False, "Hello, Ada!")
        assert [each.uri for each in await client.list_resources()] == ["orchestra://notes/NOTE-1"]
        [content] = (await client.read_resource("orchestra://notes/NOTE-1")).contents
        assert content.text
        assert "# Hello" in content.text


@on_a_loop
async def test_a_plugin_that_dies_under_a_call_is_an_error_and_then_back(folder: Path) -> None:
    die = (
        "@plugin.tool\ndef die() -> None:\n    'End.'\n    import os\n    os._exit(3)\n"
        "plugin.run()\n"
    )
    path = write_plugins_file(
        folder, sdk(folder, "tools.greeter", GREETER.replace("plugin.run()\n", die))
    )
    async with client_of(str(path)) as client:
        failed, said = await text_of(client, "die")
        assert failed
        assert said.startswith("tools.greeter: ")
        failed, said = await text_of(client, "greet", name="Ada")
        assert failed
        while failed:
            assert "tools.greeter: it is not running" in said
            await asyncio.sleep(0.05)
            failed, said = await text_of(client, "greet", name="Ada")
        assert said == "Hello, Ada!"


@on_a_loop
async def test_a_hub_is_one_of_several_servers_under_its_name(folder: Path) -> None:
    path = write_plugins_file(folder, sdk(folder, "tools.greeter", GREETER))
    (folder / "shop.py").write_text(
        "from concertino import Server\nserver = Server('shop')\n@server.tool\n"
        "def buy() -> str:\n    'Buy.'\n    return 'bought'\n"
    )
    async with client_of(str(path), str(folder / "shop.py")) as client:
        assert sorted(tool.name for tool in await client.list_tools()) == [
            "plugins_greet",
            "shop_buy",
        ]
        assert await text_of(client, "plugins_greet", name="Ada") == (False, "Hello, Ada!")


@pytest.mark.parametrize("end", ["stdin", "signal"])
def test_nothing_is_left_when_the_client_goes_even_with_a_plugin_that_does_not_end(
    folder: Path, end: str
) -> None:
    stubborn = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    path = write_plugins_file(
        folder, raw(folder, "stubborn", stubborn), sdk(folder, "tools.greeter", GREETER)
    )
    with subprocess.Popen(
        command(str(path)),
        env={**os.environ, **ENVIRONMENT},
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    ) as server:
        assert server.stdin is not None
        assert server.stderr is not None
        try:
            while b"plugins run" not in (line := server.stderr.readline()):
                assert line
            pids = children(server.pid)
            assert len(pids) == 2
            if end == "stdin":
                server.stdin.close()
            else:
                server.send_signal(signal.SIGTERM)
            assert b"blocked the shutdown" not in server.stderr.read()
            assert server.wait(20) == 0
            assert all(map(is_gone, pids))
        finally:
            server.kill()


def test_nothing_is_left_when_the_client_goes_while_plugins_start_and_its_call_waits_for_them(
    folder: Path,
) -> None:
    (folder / "mute.py").write_text("import signal\nsignal.pause()\n")
    path = write_plugins_file(folder, entry("mute", "mute.py"))
    with subprocess.Popen(
        command(str(path)),
        env={**os.environ, **ENVIRONMENT},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        assert server.stderr is not None
        try:
            for id, method in enumerate(("initialize", "tools/list", "ping")):
                params = (
                    '{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t",'
                    '"version":"1"}}'
                )
                server.stdin.write(
                    f'{{"jsonrpc":"2.0","id":{id},"method":"{method}",'
                    f'"params":{params if id == 0 else "{}"}}}\n'.encode()
                )
            server.stdin.flush()
            while b'"id":2' not in (line := server.stdout.readline()):
                assert line
            while not (pids := children(server.pid)):
                pass
            server.stdin.close()
            assert b"blocked the shutdown" not in server.stderr.read()
            assert server.wait(20) == 0
            assert all(map(is_gone, pids))
        finally:
            server.kill()


@pytest.mark.parametrize(
    ("text", "code", "expected"),
    [
        ("plugins: 3", 2, "plugins.yaml:1: plugins: expected a list, got '3'"),
        (
            "certs_dir: none\nplugins: [{id: a, binary: a, enabled: true}]",
            1,
            "none is not there: concertino certs init --certs-dir",
        ),
    ],
)
def test_what_keeps_it_from_starting_is_said(
    folder: Path, text: str, code: int, expected: str
) -> None:
    (folder / "plugins.yaml").write_text(text)
    with subprocess.Popen(
        command("plugins.yaml"),
        cwd=folder,
        env={**os.environ, **ENVIRONMENT},
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as server:
        try:
            assert server.stderr is not None
            said = server.stderr.read().decode()
            assert server.wait(20) == code, said
            assert expected in said
        finally:
            server.kill()


@on_a_loop
async def test_two_beside_each_other_with_plugins_over_quic(
    folder: Path, certificates: Certificates
) -> None:
    greeter = {**sdk(folder, "tools.greeter", GREETER), "socket": False}
    path = write_plugins_file(
        folder, greeter, certs_dir=str(certificates.folder), listen_addr="localhost:50100"
    )
    async with client_of(str(path)) as one, client_of(str(path)) as other:
        for client in (one, other):
            assert await text_of(client, "greet", name="Ada") == (False, "Hello, Ada!")


@on_a_loop
async def test_plugins_that_end_with_the_hub_cause_no_error(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_plugins_file(folder, sdk(folder, "tools.greeter", GREETER))
    hub = EmbeddedHub(read_plugins(path))
    async with Client(hub) as client:
        # A list that a client has would be fetched again at each change.
        assert len(await client.list_tools()) == 1
        assert hub._hub is not None
        running = hub._hub
    # The timer of the last change has fired, or was cancelled.
    running._list_changes._compare()
    await asyncio.sleep(0)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
    assert running.on_change is None


def test_a_person_is_told_which_plugins_do_not_run(folder: Path) -> None:
    broken = folder / "broken.py"
    broken.write_text("raise SystemExit('no database')\n")
    path = write_plugins_file(
        folder, sdk(folder, "tools.greeter", GREETER), entry("tools.broken", str(broken))
    )
    ended = subprocess.run(
        [sys.executable, "-m", "concertino", "tools", "--", *command(str(path))],
        env=os.environ | ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (ended.returncode, ended.stderr) == (
        0,
        "concertino tools: not served: tools.broken: it ended with exit code 1: no database\n",
    )
    assert ended.stdout.startswith("greet")


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ("{id: x, binary: ./greeter.py}", "x: its entry has no `enabled: true`"),
        ("{id: x, binary: ./slow.py, socket: true, enabled: true}", "x: it is still starting"),
        (
            "{id: x, binary: python3 greeter.py, socket: true, enabled: true}",
            "x: python3 greeter.py: command not found; did you mean the command 'python3' with the"
            " argument 'greeter.py'?",
        ),
        (
            "{id: x, binary: ./gone.py, socket: true, enabled: true}",
            "x: {folder}/gone.py: no such file",
        ),
    ],
    ids=["not enabled", "no READY", "a command line", "no such file"],
)
def test_a_list_without_tools_comes_with_the_reason(
    entry: str, reason: str, tmp_path: Path
) -> None:
    (tmp_path / "greeter.py").write_text("")
    (tmp_path / "slow.py").write_text("import sys\nsys.stdin.read()\n")
    (tmp_path / "plugins.yaml").write_text(f"plugins: [{entry}]\n")
    command = [sys.executable, "-m", "concertino"]
    ended = subprocess.run(
        [*command, "tools", "--", *command, "serve", "plugins.yaml"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.stdout == "no tools\n"
    assert ended.stderr == f"concertino tools: not served: {reason.format(folder=tmp_path)}\n"


def test_a_plugin_with_another_id_than_its_entry_is_reported_with_both() -> None:
    line = (
        "[2026-11-28T11:09:55.934Z] [ERROR] [hub.tools.greter] [tools.greeter] the hub refuses "
        "this plugin: the hub started this process as tools.greter, not as tools.greeter\n"
    )
    log = (
        f"{line}[2026-11-28T11:09:55.948Z] [WARN] [hub.tools.greter] it ended with exit code 1; "
        "it is started again in 0.396 s\n"
        "[2026-11-28T11:09:55.949Z] [INFO] [hub] 0 of 1 plugins run\n"
    )
    assert describe_missing_parts(log) == [
        "tools.greter: it ended with exit code 1: the hub refuses this plugin: "
        "the hub started this process as tools.greter, not as tools.greeter"
    ]


def test_a_reason_for_a_failed_boot_gets_no_other_line_of_the_log() -> None:
    log = (
        "[2026-11-28T11:09:55.934Z] [INFO] [hub.tools.tickets] registered at unix:/run/hub.sock\n"
        "[2026-11-28T11:09:55.948Z] [WARN] [hub.tools.tickets] it could not boot: TOKEN is not set"
        "; it is started again in 0.396 s\n"
        "[2026-11-28T11:09:55.949Z] [INFO] [hub] 0 of 1 plugins run\n"
    )
    assert describe_missing_parts(log) == ["tools.tickets: it could not boot: TOKEN is not set"]
