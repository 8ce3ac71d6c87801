"""Bridge, hub and plugins as processes: `concertino bridge` on `concertino orchestrate`; a plugin
and a hub that are killed.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from orchestra.bridges import bridge, call, connect, make_certificates, request
from stdio.harness import environment
from warm_commands import start_python

from concertino.orchestra.authority import issue

PLUGIN = """
import asyncio, os
from concertino import image, Plugin, ToolError
plugin = Plugin("tools.busy")
@plugin.tool
async def greet(name: str) -> str:
    "Greet somebody."
    return f"Hello, {name}!"
@plugin.tool
async def pid() -> int:
    return os.getpid()
@plugin.tool
async def hang(note: str) -> str:
    open(note + ".began", "w").close()
    try:
        await asyncio.sleep(3600)
    except asyncio.CancelledError:
        open(note + ".cancelled", "w").close()
        raise
@plugin.tool
async def look():
    return ["here", image(b"abc", "image/png")]
@plugin.prompt
def welcome(city: str) -> str:
    return f"Say hello in {city}"
plugin.run()
"""


class Orchestra:
    """A hub over a plugin with tools and a store, each a process."""

    def __init__(self, transport: str, folder: Path) -> None:
        self.folder = folder
        certificates = make_certificates(folder)
        for each in ("tools.busy", "tools.busy-client", "orchestrator-to-tools.busy"):
            issue(certificates, each)
        (folder / "busy.py").write_text(PLUGIN)
        store = f"args: [plugin, markdown, '--workspace={folder}']"
        local = "enabled: true, socket: true"
        (folder / "plugins.yaml").write_text(
            f"certs_dir: {certificates.folder}\n"
            "plugins:\n"
            f"  - {{id: tools.busy, binary: ./busy.py, enabled: true, socket: "
            f"{str(transport == 'unix').lower()}}}\n"
            f"  - {{id: storage.markdown, binary: concertino, {store}, {local}}}\n"
        )
        self.address = f"unix:{folder}/hub" if transport == "unix" else f"localhost:{_free_port()}"
        self.bridged: Any = SimpleNamespace(address=self.address, certificates=certificates)
        self.hub: subprocess.Popen[str]
        self.start()

    def start(self) -> None:
        command = [
            "-m",
            "concertino",
            "orchestrate",
            str(self.folder / "plugins.yaml"),
            "--listen-addr",
            self.address,
        ]
        self.hub = start_python(
            [sys.executable, *command],
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
            cwd=self.folder,
        )
        self.until("Listening on")

    def until(self, text: str) -> None:
        assert self.hub.stderr is not None
        seen: list[str] = []
        for line in self.hub.stderr:
            seen.append(line)
            if text in line:
                return
        raise AssertionError("".join(seen))

    def kill(self) -> None:
        self.hub.kill()
        self.hub.wait(30)
        assert self.hub.stderr is not None
        self.hub.stderr.close()

    def close(self) -> None:
        if self.hub.poll() is None:
            self.hub.terminate()
            self.hub.wait(30)
        assert self.hub.stderr is not None
        self.hub.stderr.close()


def _free_port() -> int:
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as found:
        found.bind(("::1", 0))
        return found.getsockname()[1]


@contextmanager
def orchestra(transport: str, folder: Path) -> Iterator[Orchestra]:
    made = Orchestra(transport, folder)
    try:
        yield made
    finally:
        made.close()


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["unix", "quic"])
def test_from_the_client_to_the_plugins_and_back(transport: str, folder: Path) -> None:
    with orchestra(transport, folder) as made, bridge(made.bridged) as process:
        connect(process)
        listed = process.ask(request(1, "tools/list"))["result"]["tools"]
        assert [each["name"] for each in listed] == ["greet", "hang", "look", "pid"]
        assert listed[0]["description"] == "Greet somebody."
        assert listed[0]["inputSchema"]["properties"]["name"] == {"type": "string"}
        assert process.ask(call(2, "greet", {"name": "Ada"}))["result"] == {
            "content": [{"type": "text", "text": "Hello, Ada!"}]
        }
        looked = process.ask(call(3, "look"))["result"]["content"]
        assert [each["type"] for each in looked] == ["text", "image"]
        assert looked[1]["data"] == "YWJj"  # RFC 4648, by hand
        bad = process.ask(call(4, "greet", {"name": 3}))["result"]
        assert bad["isError"]
        assert "name" in bad["content"][0]["text"]
        got = process.ask(
            request(5, "prompts/get", {"name": "welcome", "arguments": {"city": "Rome"}})
        )["result"]
        assert got["messages"] == [
            {"role": "user", "content": {"type": "text", "text": "Say hello in Rome"}}
        ]
        (folder / ".projects" / "docs").mkdir(parents=True)
        (folder / ".projects" / "docs" / "a.md").write_text("# By hand")
        (found,) = process.ask(request(6, "resources/list"))["result"]["resources"]
        (read,) = process.ask(request(7, "resources/read", {"uri": found["uri"]}))["result"][
            "contents"
        ]
        assert read["text"] == "# By hand"
        missing = process.ask(request(8, "resources/read", {"uri": "orchestra://docs/b"}))["error"]
        assert missing["code"] == -32002
        assert process.finish() == 0


@pytest.mark.slow
def test_a_plugin_that_is_killed_fails_its_calls_at_once_and_comes_back(folder: Path) -> None:
    with orchestra("unix", folder) as made, bridge(made.bridged) as process:
        connect(process)
        pid = int(process.ask(call(1, "pid"))["result"]["content"][0]["text"])
        process.send(call(2, "hang", {"note": str(folder / "x")}))
        process.ask(request(3, "ping"))
        os.kill(pid, signal.SIGKILL)
        failure = process.answer(2, 10)["result"]
        assert failure["isError"]
        assert "tools.busy" in failure["content"][0]["text"]
        made.until("tools.busy] runs")
        assert (
            process.ask(call(4, "greet", {"name": "Bob"}))["result"]["content"][0]["text"]
            == "Hello, Bob!"
        )


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["unix", "quic"])
def test_a_hub_that_is_killed_and_started_again_in_the_middle_of_calls(
    transport: str, folder: Path
) -> None:
    with orchestra(transport, folder) as made, bridge(made.bridged) as process:
        connect(process)
        for id in range(4):
            process.send(call(id, "hang", {"note": str(folder / str(id))}))
        process.ask(call("greeted", "greet", {"name": "Ada"}))
        made.kill()
        for id in range(4):
            assert process.answer(id, 20)["error"]["code"] == -32603
        made.start()
        process.pump(lambda: process.stderr.count(b"connected to orchestrator") == 2)
        assert (
            process.ask(call("again", "greet", {"name": "Bob"}))["result"]["content"][0]["text"]
            == "Hello, Bob!"
        )
        assert process.finish() == 0


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["unix", "quic"])
def test_a_cancelled_call_is_cancelled_in_the_plugin(transport: str, folder: Path) -> None:
    with orchestra(transport, folder) as made, bridge(made.bridged) as process:
        connect(process)
        process.send(call(1, "hang", {"note": str(folder / "x")}))
        _wait_for_file(process, folder / "x.began")
        process.send(
            {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}
        )
        _wait_for_file(process, folder / "x.cancelled")
        assert process.answers(1) == []


def _wait_for_file(process: Any, path: Path) -> None:
    """Wait for a file.

    Each look asks something of the plugin first, so what it does there has its turns.
    """
    for id in range(10_000):
        if path.exists():
            return
        process.ask(call(f"{path.name}{id}", "greet", {"name": "x"}))
    raise AssertionError(f"{path} is not there")
