"""`concertino ps` and what proxies tell it, as real processes."""

from __future__ import annotations

import json
import os
import pty
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any

import pytest

from concertino.cli.ps import format_age, format_memory
from concertino.proxy.running_proxies import read_servers

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory and age are from /proc")
SERVER = """
import os, pathlib, sys

if pathlib.Path(__file__).with_name("broken").exists():
    sys.exit("the database is missing")

from concertino import Server

server = Server("adder")

@server.tool
async def add(a: int, b: int) -> int:
    return a + b

@server.tool
async def end() -> None:
    os._exit(3)

if __name__ == "__main__":
    server.run()
"""
# Prints what is no message before each of its answers.
PRINTER = """
import json, sys

for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    print("loading; password=hunter2")
    print("\\033[1mready\\033[0m", "z" * 10_000)
    result = {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "serverInfo": {"name": "printer", "version": "1"},
    }
    answer = {"jsonrpc": "2.0", "id": message["id"]}
    if message["method"] == "initialize":
        answer["result"] = result
    else:
        answer["error"] = {"code": -32601, "message": "no such method"}
    print(json.dumps(answer), flush=True)
    print("token=hunter3", flush=True)
"""
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "a host with a long name", "version": "1"},
    },
}


@pytest.fixture
def environment() -> Generator[dict[str, str]]:
    """Yield an environment whose proxies nobody else sees."""
    # The paths of sockets must be short.
    with TemporaryDirectory(prefix="ct-") as runtime, TemporaryDirectory(prefix="ct-") as state:
        own = {"XDG_RUNTIME_DIR": runtime, "XDG_STATE_HOME": state, "HOME": state}
        yield {**os.environ, **own}


class Proxied:
    """A proxy that a host has started."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.pid = process.pid

    def ask(self, method: str, id: int, **params: Any) -> dict[str, Any]:
        """Send a request and return the response."""
        return self.exchange({"jsonrpc": "2.0", "id": id, "method": method, "params": params})

    def exchange(self, message: dict[str, Any]) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()
        while True:
            line = json.loads(self.process.stdout.readline())
            if line.get("id") == message["id"]:
                return line


@contextmanager
def a_proxy(
    tmp_path: Path, environment: dict[str, str], program: str = SERVER
) -> Generator[Proxied]:
    (tmp_path / "adder.py").write_text(program)
    words = ["proxy", "--name", "adder", "--", sys.executable, str(tmp_path / "adder.py")]
    process = subprocess.Popen(
        [sys.executable, "-m", "concertino", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
    )
    try:
        proxied = Proxied(process)
        proxied.exchange(INITIALIZE)
        yield proxied
    finally:
        process.communicate(timeout=60)


def ps(environment: dict[str, str]) -> list[dict[str, Any]]:
    words = [sys.executable, "-m", "concertino", "ps", "--json"]
    done = subprocess.run(words, env=environment, capture_output=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def wait_for_servers(environment: dict[str, str]) -> list[dict[str, Any]]:
    """Return what ps says when it says anything: a proxy is not visible at once."""
    until = time.monotonic() + 60
    while not (servers := ps(environment)):
        assert time.monotonic() < until, "concertino ps shows no server"
    return servers


def test_the_server_behind_a_proxy_is_shown(tmp_path: Path, environment: dict[str, str]) -> None:
    with a_proxy(tmp_path, environment) as proxied:
        before = wait_for_servers(environment)[0]
        answer = proxied.ask("tools/call", 2, name="add", arguments={"a": 1, "b": 2})
        assert answer["result"]["content"][0]["text"] == "3"
        (server,) = ps(environment)
    assert server["proxy"] == proxied.pid
    assert (server["server"], server["state"]) == ("adder", "running")
    assert server["host"] == "a host with a long name"
    assert server["calls"] == before["calls"] + 1
    assert (server["restarts"], server["last_error"]) == (0, "")
    assert (server["stray"], server["last_stray"]) == (0, "")
    assert 0 < server["age_s"] < 600
    # An interpreter with concertino.
    assert 10e6 < server["memory_bytes"] < 200e6
    assert ps(environment) == []


def test_a_restart_is_counted_and_its_reason_is_shown(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    with a_proxy(tmp_path, environment) as proxied:
        pid = wait_for_servers(environment)[0]["pid"]
        assert "error" in proxied.ask("tools/call", 2, name="end", arguments={})
        proxied.ask("tools/call", 3, name="add", arguments={"a": 1, "b": 2})
        (server,) = ps(environment)
    assert server["restarts"] == 1
    assert server["pid"] != pid
    assert "exited with code 3" in server["last_error"]


def test_stray_lines_are_counted_and_the_last_one_is_shown_without_secrets(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    with a_proxy(tmp_path, environment, PRINTER) as proxied:
        wait_for_servers(environment)
        # The answer to this was read after the lines before it.
        assert "error" in proxied.ask("tools/call", 2, name="add", arguments={})
        (server,) = ps(environment)
        words = [sys.executable, "-m", "concertino", "ps"]
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    assert server["state"] == "running"
    # Two before each answer; the line after the last answer may not have been read yet.
    assert server["stray"] >= 4
    assert len(server["last_stray"]) < 500
    assert "hunter" not in done.stdout + str(server)
    assert "\033" not in done.stdout + server["last_stray"]
    shown = " ".join(done.stdout.split())
    assert f"{server['stray']} stray lines on stdout, the last one: " in shown


@pytest.mark.slow
def test_a_server_that_ends_at_each_start_is_in_a_crash_loop(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    with a_proxy(tmp_path, environment) as proxied:
        wait_for_servers(environment)
        (tmp_path / "broken").touch()
        assert "error" in proxied.ask("tools/call", 2, name="end", arguments={})
        # This call waits until the proxy has given up.
        refused = proxied.ask("tools/call", 3, name="add", arguments={"a": 1, "b": 2})
        assert "10 times in a row" in refused["error"]["message"]
        (server,) = ps(environment)
    assert server["state"] == "crash loop"
    assert "the database is missing" in server["last_error"]
    assert (server["pid"], server["age_s"], server["memory_bytes"]) == (None, None, None)


def test_a_server_from_the_cache_that_does_not_start_has_failed(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    with a_proxy(tmp_path, environment) as proxied:
        # The proxy stores its features and lists.
        proxied.ask("tools/call", 2, name="add", arguments={"a": 1, "b": 2})
    (tmp_path / "broken").touch()
    with a_proxy(tmp_path, environment) as proxied:
        refused = proxied.ask("tools/call", 2, name="add", arguments={"a": 1, "b": 2})
        assert "exited with code 1" in refused["error"]["message"]
        (server,) = wait_for_servers(environment)
        assert server["state"] == "failed"
        assert "the database is missing" in server["last_error"]

        (tmp_path / "broken").unlink()
        answer = proxied.ask("tools/call", 3, name="add", arguments={"a": 1, "b": 2})
        assert answer["result"]["content"][0]["text"] == "3"
        (server,) = ps(environment)
    assert (server["state"], server["last_error"]) == ("running", "")


def test_what_a_killed_proxy_leaves_is_removed(tmp_path: Path, environment: dict[str, str]) -> None:
    folder = Path(environment["XDG_RUNTIME_DIR"]) / "concertino" / "proxies"
    with a_proxy(tmp_path, environment) as proxied:
        wait_for_servers(environment)
        assert folder.stat().st_mode & 0o777 == 0o700
        assert [path.stat().st_mode & 0o777 for path in folder.iterdir()] == [0o600]
        proxied.process.kill()
        proxied.process.wait()
    assert len(list(folder.iterdir())) == 1
    assert ps(environment) == []
    assert list(folder.iterdir()) == []


def test_a_proxy_that_is_stopped_holds_up_nothing(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    with a_proxy(tmp_path, environment) as proxied:
        wait_for_servers(environment)
        proxied.process.send_signal(signal.SIGSTOP)
        try:
            (server,) = ps(environment)
        finally:
            proxied.process.send_signal(signal.SIGCONT)
    assert (server["proxy"], server["state"]) == (proxied.pid, "no answer")


def test_a_folder_that_others_can_enter_is_not_used(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    """Another user could have made it, and listen there."""
    folder = Path(environment["XDG_RUNTIME_DIR"]) / "concertino" / "proxies"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    with a_proxy(tmp_path, environment):
        assert wait_for_servers(environment)[0]["server"] == "adder"
        assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    "answer", [b'{"pid": "x"}', b'{"pid": 1, "servers": [{"server": "\xff"}]}']
)
def test_an_answer_that_is_none_is_shown_as_no_answer(
    environment: dict[str, str], answer: bytes
) -> None:
    folder = Path(environment["XDG_RUNTIME_DIR"]) / "concertino" / "proxies"
    folder.mkdir(parents=True, mode=0o700)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / socket_name(os.getpid())))
        listener.listen()
        words = [sys.executable, "-m", "concertino", "ps", "--json"]
        with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE) as process:
            with listener.accept()[0] as connection:
                connection.sendall(answer)
            output = process.communicate(timeout=60)[0]
    shown = json.loads(output)
    assert shown["state"] == "no answer"
    assert shown["last_error"] == "the proxy's answer cannot be read: is it of another version?"


def socket_name(pid: int, namespace: int | None = None) -> str:
    """Return the name of a proxy's socket. namespace: its pid namespace; None for that of tests."""
    started_at = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    own = os.stat("/proc/self/ns/pid").st_ino
    return f"{pid}-{started_at}-{own if namespace is None else namespace}"


class FakeProxy:
    """A process, and a socket like that of a proxy, which a thread of the test serves."""

    def __init__(self, folder: Path) -> None:
        self.process = subprocess.Popen(["sleep", "600"])
        self.path = folder / socket_name(self.process.pid)
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(self.path))
        self.listener.listen()

    def answer(self, do: Callable[[], object], *, is_shown: bool) -> None:
        """Do something while one `ps` waits for the answer. is_shown: whether to answer then."""
        with self.listener.accept()[0] as connection:
            do()
            if is_shown:
                status = {"pid": self.process.pid, "servers": [{"server": "a", "state": "idle"}]}
                connection.sendall(json.dumps(status).encode())

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        """End as a proxy does: remove the socket first."""
        self.path.unlink()
        self.listener.close()
        self.kill()


def shown_proxies(environment: dict[str, str], fakes: list[FakeProxy]) -> list[int]:
    """Return the ids of those of the fake proxies that `ps` shows.

    It also shows the proxies of other tests, whose sockets are in the home directory.
    """
    own = {fake.process.pid for fake in fakes}
    return [item.proxy for item in read_servers(environment) if item.proxy in own]


@pytest.fixture
def fake_proxies(environment: dict[str, str]) -> Generator[list[FakeProxy]]:
    """Yield two of them, in the order in which `ps` asks them."""
    folder = Path(environment["XDG_RUNTIME_DIR"]) / "concertino" / "proxies"
    folder.mkdir(parents=True, mode=0o700)
    fakes = sorted([FakeProxy(folder), FakeProxy(folder)], key=lambda fake: fake.path)
    yield fakes
    for fake in fakes:
        fake.listener.close()
        fake.kill()


@pytest.mark.parametrize("way", ["end", "kill"])
def test_a_proxy_that_ends_before_it_is_asked_is_not_shown(
    environment: dict[str, str], fake_proxies: list[FakeProxy], way: str
) -> None:
    first, second = fake_proxies

    def end_second() -> None:
        getattr(second, way)()
        second.listener.close()

    thread = Thread(target=first.answer, args=(end_second,), kwargs={"is_shown": True})
    thread.start()
    assert shown_proxies(environment, fake_proxies) == [first.process.pid]
    thread.join()
    assert not second.path.exists()


@pytest.mark.parametrize("way", ["end", "kill"])
def test_a_proxy_that_ends_while_it_is_asked_is_not_shown(
    environment: dict[str, str], fake_proxies: list[FakeProxy], way: str
) -> None:
    first, second = fake_proxies
    second.end()
    end = getattr(first, way)
    thread = Thread(target=first.answer, args=(end,), kwargs={"is_shown": False})
    thread.start()
    assert shown_proxies(environment, fake_proxies) == []
    thread.join()
    assert not first.path.exists()


def test_the_socket_of_a_proxy_that_does_not_listen_yet_stays(
    environment: dict[str, str], fake_proxies: list[FakeProxy]
) -> None:
    first, second = fake_proxies
    second.end()
    first.path.unlink()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(first.path))
        assert shown_proxies(environment, fake_proxies) == []
    assert first.path.exists()


def test_a_proxy_of_another_pid_namespace_is_shown_and_its_socket_stays(
    environment: dict[str, str], fake_proxies: list[FakeProxy]
) -> None:
    """As in a container with the same home directory."""
    first, second = fake_proxies
    second.end()
    other = first.path.rename(first.path.with_name(f"{2**22 + 1}-1-1"))
    thread = Thread(target=first.answer, args=(lambda: None,), kwargs={"is_shown": True})
    thread.start()
    assert shown_proxies(environment, fake_proxies) == [first.process.pid]
    thread.join()
    first.listener.close()
    # Nobody listens any more, but it may have been a moment before somebody does.
    assert shown_proxies(environment, fake_proxies) == []
    assert other.exists()
    os.utime(other, (0, 0))
    assert shown_proxies(environment, fake_proxies) == []
    assert not other.exists()


def test_servers_that_wait_for_approval_are_shown(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    file = tmp_path / "mcp.json"
    file.write_text('{"mcpServers": {"one": {"command": "cat"}}}')
    words = [sys.executable, "-m", "concertino", "serve", str(file)]
    with subprocess.Popen(
        words, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        (server,) = wait_for_servers(environment)
        process.communicate(timeout=60)
    assert (server["server"], server["state"]) == ("one", "waits for approval")
    assert server["last_error"].endswith(f"concertino approve {file}")
    assert server["pid"] is None


def test_a_terminal_of_80_columns_shows_one_line_for_each_server(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    with a_proxy(tmp_path, environment) as proxied:
        wait_for_servers(environment)
        proxied.ask("tools/call", 2, name="end", arguments={})
        proxied.ask("tools/call", 3, name="add", arguments={"a": 1, "b": 2})
        terminal, stdout = pty.openpty()
        words = [sys.executable, "-m", "concertino", "ps"]
        subprocess.run(words, env=environment, stdout=stdout, check=True)
        os.close(stdout)
        output = os.read(terminal, 10_000).decode()
        os.close(terminal)
    heading, server, error, *_ = output.splitlines()
    columns = ["HOST", "SERVER", "PID", "AGE", "MEM", "CALLS", "RESTARTS", "STATE"]
    assert heading.split() == columns
    assert server.startswith("a host with a~  adder ")
    assert server.endswith("  running")
    assert error.startswith("    ")
    assert max(map(len, output.splitlines())) <= 80


def test_without_proxies_it_says_so(environment: dict[str, str]) -> None:
    words = [sys.executable, "-m", "concertino", "ps"]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == (
        "no proxy runs, so there are no servers to show\n"
        "  to start one: concertino proxy -- COMMAND\n"
    )


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (59, "59s"), (60, "1m"), (3599, "60m"), (7200, "2h"), (86400 * 3, "3d")],
)
def test_an_age_is_in_its_largest_unit(seconds: float, text: str) -> None:
    assert format_age(seconds) == text


@pytest.mark.parametrize(("size", "text"), [(0, "0M"), (24_400_000, "24M"), (1.5e9, "1.5G")])
def test_memory_is_in_megabytes_or_gigabytes(size: int, text: str) -> None:
    assert format_memory(size) == text
