"""`concertino orchestrate`: the process, its lines, signals and exit codes, and what is left of it:
nothing.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from loops import on_a_loop
from orchestra.hubs import GREETER, SOURCES, is_gone, raw, sdk, write_plugins_file
from warm_commands import run_python, start_python

from concertino.orchestra.authority import create_authority
from concertino.orchestra.certificates import Certificates
from concertino.orchestra.link import open_link
from concertino.orchestra.plugin_pb2 import HealthRequest, PluginRequest

ENVIRONMENT = {**os.environ, "PYTHONPATH": SOURCES, "PYTHONDONTWRITEBYTECODE": "1"}


@contextmanager
def orchestrating(path: Path, *options: str) -> Generator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "concertino", "orchestrate", str(path), *options]
    with start_python(command, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True) as hub:
        try:
            yield hub
        finally:
            hub.kill()


def lines_until(hub: subprocess.Popen[str], text: str) -> list[str]:
    assert hub.stderr is not None
    lines: list[str] = []
    while not lines or text not in lines[-1]:
        lines.append(hub.stderr.readline())
        assert lines[-1], "".join(lines)
    return lines


def plugin_pids(hub: int) -> list[int]:
    """The children of a process, from /proc."""
    return [int(pid) for pid in Path(f"/proc/{hub}/task/{hub}/children").read_text().split()]


@contextmanager
def ending(pid: int) -> Generator[Callable[[], bool]]:
    """Waits for a process that is not our child to end, if only as a zombie: a signal that was sent
    takes a moment to arrive.
    """
    descriptor = os.pidfd_open(pid)
    try:
        yield lambda: bool(select.select([descriptor], [], [], 20)[0])
    finally:
        os.close(descriptor)


@on_a_loop
async def test_a_hub_listens_says_so_and_ends_with_a_signal(folder: Path) -> None:
    path = write_plugins_file(
        folder,
        sdk(folder, "tools.greeter", GREETER),
        listen_addr=f"unix:{folder}/hub",
        tcp_addr="localhost:1",
    )
    path.write_text(path.read_text() + "- {id: off, binary: off}\n")
    with orchestrating(path) as hub:
        said = await asyncio.to_thread(lines_until, hub, f"Listening on unix:{folder}/hub")
        assert any("tcp_addr is ignored" in line for line in said)
        assert any("off is not started: enabled is not true" in line for line in said)
        assert any("[hub.tools.greeter] runs: version " in line for line in said)
        link = await open_link(f"unix:{folder}/hub")
        health = (await link.request(PluginRequest(health=HealthRequest()))).health
        assert health.message == "1 of 1 plugins run"
        pids = plugin_pids(hub.pid)
        assert len(pids) == 1
        hub.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(hub.wait, 20) == 0
        assert all(map(is_gone, pids))
        assert not (folder / "hub").exists()
        await link.close()


def test_a_second_signal_ends_at_once_and_leaves_nobody(folder: Path) -> None:
    body = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
easy = answer
async def answer(request, peer):
    if request.HasField("shutdown"):
        say("asked")
        await asyncio.Event().wait()
    return await easy(request, peer)
"""
    path = write_plugins_file(
        folder, raw(folder, "stubborn", body), listen_addr=f"unix:{folder}/hub"
    )
    with orchestrating(path) as hub:
        lines_until(hub, "Listening on")
        [pid] = plugin_pids(hub.pid)
        with ending(pid) as ended:
            hub.send_signal(signal.SIGTERM)
            lines_until(hub, "asked")
            hub.send_signal(signal.SIGTERM)
            assert hub.wait(20) == 0
            assert ended()


def test_plugins_do_not_outlive_a_hub_that_is_killed_and_end_in_order(folder: Path) -> None:
    hook = "@plugin.on_shutdown\ndef end(): open(__file__ + '.ended', 'w').close()\nplugin.run()\n"
    path = write_plugins_file(
        folder,
        sdk(folder, "tools.greeter", GREETER.replace("plugin.run()\n", hook)),
        listen_addr=f"unix:{folder}/hub",
    )
    with orchestrating(path) as hub:
        lines_until(hub, "Listening on")
        [pid] = plugin_pids(hub.pid)
        with ending(pid) as ended:
            hub.kill()
            hub.wait(20)
            assert ended()
    assert (folder / "tools_greeter.py.ended").exists()


@pytest.mark.parametrize(
    ("text", "code", "expected"),
    [
        ("plugins: 3", 2, "plugins.yaml:1: plugins: expected a list, got '3'"),
        ("listen_addr: unix:/nowhere/at/all\nplugins: []", 1, "/nowhere/at"),
        (
            "listen_addr: localhost:0\ncerts_dir: none\nplugins: []",
            1,
            "none is not there: concertino certs init --certs-dir",
        ),
        (
            "listen_addr: nonsense\ncerts_dir: none\nplugins: []",
            2,
            "plugins.yaml:1: listen_addr: expected HOST:PORT or",
        ),
    ],
)
def test_what_keeps_a_hub_from_starting_is_said(
    folder: Path, text: str, code: int, expected: str
) -> None:
    (folder / "plugins.yaml").write_text(text)
    command = [sys.executable, "-m", "concertino", "orchestrate", "plugins.yaml"]
    done = run_python(
        command,
        cwd=folder,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == code, done.stderr
    assert expected in done.stderr
    assert "Traceback" not in done.stderr
    assert "Errno" not in done.stderr


@pytest.mark.parametrize("address", ["nonsense", "localhost:99999", "unix:"])
def test_an_option_that_is_no_address_is_a_usage_error(folder: Path, address: str) -> None:
    command = [
        sys.executable,
        "-m",
        "concertino",
        "orchestrate",
        str(write_plugins_file(folder)),
        f"--listen-addr={address}",
    ]
    certificates = Certificates(folder / "certs")
    create_authority(certificates)
    command.append(f"--certs-dir={certificates.folder}")
    done = run_python(
        command, env=ENVIRONMENT, capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 2, done.stderr
    assert "expected" in done.stderr


INTERRUPTED = """
import os, signal, sys
class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == "concertino.orchestra.link":
            os.kill(os.getpid(), signal.{signal})
sys.meta_path.insert(0, Interrupting())
from concertino.cli import main
main({words!r})
"""


@pytest.mark.parametrize(
    "words", [["orchestrate", "plugins.yaml"], ["bridge"]], ids=["orchestrate", "bridge"]
)
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_while_it_is_still_loaded_ends_it_in_order(
    folder: Path, words: list[str], name: str
) -> None:
    write_plugins_file(folder)
    command = [sys.executable, "-c", INTERRUPTED.format(signal=name, words=words)]
    done = subprocess.run(
        command,
        cwd=folder,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        stdin=subprocess.PIPE,
    )
    assert (done.returncode, done.stderr) == (0, "")


# Replaces HubControl.open(), which hub.launch() precedes, by a failure when all plugins run.
FAILING = """
import asyncio
from concertino.cli import main
from concertino.orchestra.hub_control import HubControl
async def fail(control, environment):
    await control._hub.settle()
    raise OSError("no room for a control socket")
HubControl.open = fail
main(["orchestrate", "plugins.yaml"])
"""


def test_a_start_that_fails_when_plugins_run_ends_them_in_order(folder: Path) -> None:
    hook = "@plugin.on_shutdown\ndef end(): open(__file__ + '.ended', 'w').close()\nplugin.run()\n"
    write_plugins_file(
        folder,
        sdk(folder, "tools.greeter", GREETER.replace("plugin.run()\n", hook)),
        listen_addr=f"unix:{folder}/hub",
    )
    done = subprocess.run(
        [sys.executable, "-c", FAILING],
        cwd=folder,
        env=ENVIRONMENT,
        stderr=subprocess.PIPE,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert "no room for a control socket" in done.stderr
    assert (folder / "tools_greeter.py.ended").exists()
    assert not (folder / "hub").exists()


def test_options_count_more_than_the_file(folder: Path) -> None:
    path = write_plugins_file(folder, listen_addr=f"unix:{folder}/not-here")
    with orchestrating(path, "--listen-addr", f"unix:{folder}/here") as hub:
        lines_until(hub, f"Listening on unix:{folder}/here")
        hub.send_signal(signal.SIGINT)
        assert hub.wait(20) == 0
