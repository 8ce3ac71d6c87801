"""`concertino proxy` as a process: what remains of its server when it ends."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

# Ignores the end of its input and SIGTERM, and starts a process that does so, too. Both hold the
# FIFO open, so that its end tells when both have ended.
STUBBORN = r"""
import json, os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
fifo = os.open(sys.argv[2], os.O_WRONLY)
if os.fork() == 0:
    time.sleep(600)
os.write(fifo, b"%d\n" % os.getpid())
for line in sys.stdin if sys.argv[1] == "answers" else ():
    message = json.loads(line)
    if message.get("method") == "initialize":
        result = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}},
                  "serverInfo": {"name": "stubborn", "version": "1"}}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
time.sleep(600)
"""
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "host", "version": "1"},
    },
}


def read_within(descriptor: int, seconds: float) -> bytes:
    assert select.select([descriptor], [], [], seconds)[0], f"nothing to read for {seconds} s"
    return os.read(descriptor, 100)


@pytest.mark.skipif(sys.platform == "win32", reason="FIFOs and process groups")
@pytest.mark.parametrize("server", ["answers", "is silent"])
@pytest.mark.parametrize("ending", ["end of input", "SIGTERM", "SIGTERM twice"])
def test_a_server_that_ignores_its_end_does_not_outlive_the_proxy(
    tmp_path: Path, server: str, ending: str
) -> None:
    fifo = tmp_path / "alive"
    os.mkfifo(fifo)
    alive = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    command = [sys.executable, "-c", STUBBORN, server, str(fifo)]
    proxy = subprocess.Popen(
        [sys.executable, "-m", "concertino", "proxy", "--era", "legacy", "--", *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert proxy.stdin is not None
    assert proxy.stdout is not None
    group = 0
    try:
        proxy.stdin.write(json.dumps(INITIALIZE).encode() + b"\n")
        proxy.stdin.flush()
        group = int(read_within(alive, 30))
        if server == "answers":
            assert json.loads(proxy.stdout.readline())["result"]["serverInfo"]["name"] == "stubborn"

        if ending == "end of input":
            proxy.stdin.close()
        for _ in range(ending.count("SIGTERM") + ending.count("twice")):
            proxy.send_signal(signal.SIGTERM)
        proxy.wait(30)

        assert read_within(alive, 10) == b""
    finally:
        proxy.kill()
        proxy.wait()
        if group:
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
        proxy.stdin.close()
        proxy.stdout.close()
        os.close(alive)


def test_a_server_that_does_not_start_is_named_once_in_plain_words() -> None:
    command = [sys.executable, "-c", "raise SystemExit(3)"]
    done = subprocess.run(
        [sys.executable, "-m", "concertino", "proxy", "--name", "bad", "--", *command],
        input=json.dumps(INITIALIZE) + "\n",
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    # No version: it is the server's, and not known.
    assert any(line.endswith("Starting bad MCP server") for line in lines), done.stderr
    assert any("Failed to start server: bad: initialize: " in line for line in lines), done.stderr
    assert "SIGKILL" not in done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="symbolic links")
def test_the_program_is_searched_in_the_last_path_that_is_given(tmp_path: Path) -> None:
    (tmp_path / "my-server").symlink_to(sys.executable)
    paths = ["--env", "PATH=/nowhere", "--env", f"PATH={tmp_path}"]
    command = [sys.executable, "-m", "concertino", "proxy", *paths, "--", "my-server", "-c", "pass"]
    proxy = subprocess.run(command, input=b"", capture_output=True, timeout=30, check=False)
    assert b"there is no command" not in proxy.stderr, proxy.stderr


def test_a_server_that_has_run_before_is_answered_for_while_it_starts(tmp_path: Path) -> None:
    slow = str(Path(__file__).parents[1] / "proxy" / "slow_server.py")
    (tmp_path / "offer").write_text('{"version": "1", "tools": ["add"]}')
    (tmp_path / "go").touch()
    opened = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    listing = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
    lines = "".join(f"{json.dumps(line)}\n" for line in (INITIALIZE, opened, listing))
    proxy = [sys.executable, "-m", "concertino", "proxy"]
    answers: list[list[object]] = []
    for options in ([], ["--lazy"], []):
        process = subprocess.Popen(
            [*proxy, *options, "--", sys.executable, slow, str(tmp_path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")},
        )
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(lines)
        process.stdin.flush()
        # In the third run the server never starts.
        answers.append([json.loads(process.stdout.readline()) for _ in range(2)])
        process.stdin.close()
        assert process.wait(20) == 0
        process.stdout.close()
        (tmp_path / "go").unlink(missing_ok=True)
    assert answers[0] == answers[1] == answers[2]
    tool = {"name": "add", "inputSchema": {"type": "object"}}
    assert answers[0][1] == {"jsonrpc": "2.0", "id": 2, "result": {"tools": [tool]}}
    # Not in the second run.
    assert len((tmp_path / "starts").read_text().split()) == 2
