"""`concertino serve TARGET --unix PATH --tcp HOST:PORT`: real servers, real sockets, clients that
speak raw lines.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import signal
import socket
import stat
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from warm_commands import run_python

sys.path.insert(0, str(Path(__file__).parents[1] / "stdio"))

from stdio.harness import (
    INITIALIZE,
    INITIALIZED,
    PREFACE,
    TOOLBOX,
    Process,
    call,
    environment,
    frame,
    put_down,
    request,
    text_of,
    until,
    wait_until_gone,
)

from concertino.transports.sockets import is_trusted

DRAIN_LONG = {"CONCERTINO_DRAIN_S": "60"}
WAIT_S = 30.0  # an upper bound, reached only by what is broken


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short name, which other users may enter."""
    with tempfile.TemporaryDirectory(prefix="s") as name:
        os.chmod(name, 0o755)
        yield Path(name)


class Service(Process):
    """A server behind sockets, which has said where it listens. stdin and stdout are those of a
    daemon.
    """

    def __init__(
        self, *options: str, target: str = TOOLBOX, listening: bool = True, **popen: Any
    ) -> None:
        null = os.open(os.devnull, os.O_RDWR)
        try:
            super().__init__(
                ["-m", "concertino", "serve", target, *options],
                stdin=null,
                stdout=popen.pop("stdout", null),
                **popen,
            )
        finally:
            os.close(null)
        if listening:
            try:
                self.until_stderr("started successfully")
            except BaseException:
                self.__exit__()
                raise

    @property
    def addresses(self) -> list[str]:
        """What the lines on stderr say."""
        lines = self.stderr.decode().splitlines()
        return [line.rpartition("Listening on ")[2] for line in lines if "Listening on " in line]

    def client(self, number: int = 0) -> Client:
        return Client(self.addresses[number])

    def stop(self) -> int:
        """SIGTERM; the exit code, when all of stderr was read."""
        self.signal(signal.SIGTERM)
        code = self.wait(10)
        self.pump(lambda: self._errors < 0)
        return code


class Client:
    """A client that speaks raw lines over a socket of its own."""

    def __init__(self, address: str) -> None:
        kind, _, place = address.partition(":")
        if kind == "unix":
            self.socket = socket.socket(socket.AF_UNIX)
            try:
                self.socket.connect(place.replace("@", "\0"))
            except OSError:
                self.socket.close()
                raise
        else:
            host, _, port = place.rpartition(":")
            self.socket = socket.create_connection((host.strip("[]"), int(port)))
        self.socket.settimeout(WAIT_S)
        self._file = self.socket.makefile("rb")
        self.lines: list[Any] = []

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self.socket.close()

    def send(self, *messages: object) -> None:
        self.socket.sendall(b"".join(map(frame, messages)))

    def initialize(self) -> Client:
        self.send(INITIALIZE, INITIALIZED)
        self.answer(INITIALIZE["id"])
        return self

    def receive(self) -> Any:
        """The next message; None at the end."""
        line = self._file.readline()
        if not line:
            return None
        assert line.endswith(b"\n"), line[:200]
        self.lines.append(json.loads(line))
        return self.lines[-1]

    def until(self, text: str) -> None:
        """Read until a message holds this."""
        while text not in json.dumps(message := self.receive()):
            assert message is not None

    def answer(self, id: object) -> Any:
        while (message := self.receive()).get("id") != id:
            assert "method" in message or "id" in message
        return message

    def ask(self, message: Any) -> Any:
        self.send(message)
        return self.answer(message["id"])

    def rest(self) -> list[Any]:
        """Everything until the end."""
        messages = []
        while (message := self.receive()) is not None:
            messages.append(message)
        return messages


def run_failing_start(*options: str, target: str = TOOLBOX, **more: Any) -> tuple[int, str]:
    """A start that fails: its exit code, and what it says."""
    done = run_python(
        [sys.executable, "-m", "concertino", "serve", target, *options],
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        **more,
    )
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr


def script(folder: Path, source: str) -> str:
    path = folder / "probe.py"
    path.write_text(f"{PREFACE}\n{source}\n")
    return str(path)


# From start to end


@pytest.mark.requirement("FR-14")
def test_a_unix_socket_from_start_to_end(folder: Path) -> None:
    path = folder / "s"
    with Service("--unix", str(path), preexec_fn=lambda: os.umask(0)) as service:
        assert service.addresses == [f"unix:{path}"]
        found = os.stat(path)
        assert stat.S_ISSOCK(found.st_mode)
        assert stat.S_IMODE(found.st_mode) == 0o600
        with service.client() as client:
            client.initialize()
            assert text_of(client.ask(call(1, "echo", {"text": "é\u2028"}))) == "é\u2028"
            assert service.stop() == 0
            assert client.rest() == []
        assert not path.exists()
        assert b"Shutting down toolbox" in service.stderr


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_a_tcp_port_from_start_to_end(host: str) -> None:
    with Service("--tcp", f"{host}:0") as service:
        [address] = service.addresses
        assert address.startswith(f"tcp:{host}:")
        assert int(address.rpartition(":")[2]) > 0
        with service.client() as client:
            assert text_of(client.initialize().ask(call(1, "add", {"a": 1, "b": 2}))) == "3"
            assert service.stop() == 0
            assert client.rest() == []


def test_a_signal_that_comes_with_the_line_that_it_listens_is_obeyed(folder: Path) -> None:
    source = """
import logging, os, signal
from concertino import Server
server = Server("quick")
class Impatient(logging.Handler):
    def emit(self, record):
        if "Listening" in record.getMessage():
            os.kill(os.getpid(), signal.SIGTERM)
logging.getLogger("concertino").addHandler(Impatient())
"""
    with Service(
        "--unix", str(folder / "s"), target=script(folder, source), listening=False
    ) as service:
        assert service.wait(10) == 0
    assert not (folder / "s").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_during_the_import_ends_it_in_order(number: int, folder: Path) -> None:
    target = folder / "slow.py"
    target.write_text("import sys, time\nprint('importing', file=sys.stderr)\ntime.sleep(600)\n")
    with Service("--unix", str(folder / "s"), target=str(target), listening=False) as service:
        service.until_stderr("importing")
        assert (folder / "s").exists()
        service.signal(number)
        assert service.wait(10) == 0
        assert b"ERROR" not in service.stderr
    assert not (folder / "s").exists()


def test_several_listeners_lead_to_one_server(folder: Path) -> None:
    options = [
        "--unix",
        f"{folder}/a",
        "--tcp",
        "127.0.0.1:0",
        "--unix",
        f"{folder}/b",
        "--tcp",
        "[::1]:0",
    ]
    with Service(*options) as service:
        kinds = sorted(address.rpartition(":")[0] for address in service.addresses)
        assert kinds == ["tcp:127.0.0.1", "tcp:[::1]", "unix", "unix"]
        with contextlib.ExitStack() as stack:
            clients = [
                stack.enter_context(service.client(number)).initialize() for number in range(4)
            ]
            for client in clients[:3]:
                client.send(call(1, "wait_at", {"name": "shared"}))
                client.until("at shared")
            assert text_of(clients[3].ask(call(1, "open_gate", {"name": "shared"}))) == "open"
            assert [text_of(client.answer(1)) for client in clients[:3]] == ["shared"] * 3
        assert service.stop() == 0
        assert not (folder / "a").exists()
        assert not (folder / "b").exists()


def test_the_line_is_as_stable_in_the_other_formats(folder: Path) -> None:
    with Service("--unix", f"{folder}/s", "--log-format", "json") as service:
        lines = [json.loads(line) for line in service.stderr.splitlines()]
        assert f"Listening on unix:{folder}/s" in [
            value for line in lines for value in line.values()
        ]
        assert service.stop() == 0


def test_what_is_printed_goes_to_stdout_and_logs_to_stderr(folder: Path) -> None:
    reading, writing = os.pipe()
    with Service("--unix", f"{folder}/s", stdout=writing) as service, open(reading, "rb") as output:
        os.close(writing)
        with service.client() as client:
            assert text_of(client.initialize().ask(call(1, "say", {"how": "os.write"}))) == "said"
            assert text_of(client.ask(call(2, "say", {"how": "print"}))) == "said"
            assert len(client.lines) == 3
        assert service.stop() == 0
        assert output.read() == b"stray\nstray\n"
        assert b"stray" not in service.stderr


def test_closed_standard_descriptors_are_not_taken_for_sockets(folder: Path) -> None:
    """A server started with 0 and 1 closed: what a tool prints must not reach a client."""

    def close() -> None:
        os.close(0)
        os.close(1)

    with Service("--unix", f"{folder}/s", preexec_fn=close) as service:
        with service.client() as client:
            client.initialize()
            assert text_of(client.ask(call(1, "say", {"how": "os.write"}))) == "said"
            assert text_of(client.ask(call(2, "say", {"how": "print"}))) == "said"
            assert len(client.lines) == 3
        assert service.stop() == 0


def test_a_trace_names_the_client(folder: Path) -> None:
    with Service("--unix", f"{folder}/s", "--trace") as service:
        for number in (1, 2):
            with service.client() as client:
                client.ask(request(number, "ping"))
        assert service.stop() == 0
        assert b'[MCP] client 1 <- {"jsonrpc":"2.0","id":1,' in service.stderr
        assert b'[MCP] client 2 -> {"jsonrpc":"2.0","id":2,' in service.stderr


def test_what_is_sent_while_the_target_is_imported_is_answered(folder: Path) -> None:
    """The socket is there before the target is imported; here the import waits for the test."""
    os.mkfifo(folder / "go")
    target = script(folder, f"open({str(folder / 'go')!r}).read()")
    with Service("--unix", f"{folder}/s", target=target, listening=False) as service:
        until(lambda: (folder / "s").exists())
        with contextlib.ExitStack() as stack:

            def connected() -> bool:
                try:
                    clients.append(stack.enter_context(Client(f"unix:{folder}/s")))
                except ConnectionRefusedError:  # bound, and not listening yet
                    return False
                return True

            clients: list[Client] = []
            until(connected)
            clients[0].send(request(1, "ping"))
            with open(folder / "go", "w"):
                pass
            assert clients[0].answer(1)["result"] == {}
        assert service.stop() == 0


def test_clients_that_wait_for_a_server_that_cannot_start_are_told_why(folder: Path) -> None:
    os.mkfifo(folder / "go")
    target = script(folder, f"open({str(folder / 'go')!r}).read()\nimport not_installed")
    with Service("--unix", f"{folder}/s", target=target, listening=False) as service:
        until(lambda: (folder / "s").exists())
        clients: list[Client] = []
        with contextlib.ExitStack() as stack:

            def connected() -> bool:
                try:
                    clients.append(stack.enter_context(Client(f"unix:{folder}/s")))
                # Bound, and not listening yet.
                except ConnectionRefusedError:
                    return False
                return True

            until(connected)
            until(connected)
            # The second one is silent for a while, and does not hold up the first.
            clients[0].send(INITIALIZE)
            with open(folder / "go", "w"):
                pass
            error = clients[0].answer(INITIALIZE["id"])["error"]
            clients[1].send(request(7, "ping"))
            assert clients[1].answer(7)["error"] == error
            assert error["code"] == -32603
            assert error["message"].startswith("cannot start: ModuleNotFoundError: No module named")
        assert service.wait(20) == 1
    assert not (folder / "s").exists()


# Many clients


def test_a_hundred_clients_at_once_with_calls_in_flight(folder: Path) -> None:
    with Service("--unix", f"{folder}/s", "--tcp", "127.0.0.1:0") as service:
        before = service.census()["fds"]
        with contextlib.ExitStack() as stack:
            clients = [stack.enter_context(service.client(number % 2)) for number in range(100)]
            for number, client in enumerate(clients):
                echo = call(2, "echo", {"text": f"text {number}"})
                client.send(INITIALIZE, INITIALIZED, call(1, "wait_at", {"name": "all"}), echo)
            for number, client in enumerate(
                clients
            ):  # all of them wait at the gate now, and are served
                assert text_of(client.answer(2)) == f"text {number}"
            assert service.census()["fds"] == before + 100
            with service.client() as opener:
                opener.initialize().ask(call(1, "open_gate", {"name": "all"}))
            for client in clients:
                assert text_of(client.answer(1)) == "all"
                ids = [message["id"] for message in client.lines if "id" in message]
                assert sorted(map(str, ids)) == ["1", "2", "initialize"]
        until(lambda: service.census()["fds"] == before)
        assert service.stop() == 0


def test_one_that_stops_reading_delays_nobody_and_loses_nothing(folder: Path) -> None:
    with (
        Service("--unix", f"{folder}/s") as service,
        service.client() as slow,
        service.client() as other,
    ):
        slow.initialize()
        other.initialize()
        slow.send(*(call(n, "big", {"count": 200_000}) for n in range(1, 101)))  # 20 MB
        for n in range(50):
            assert text_of(other.ask(call(n, "echo", {"text": str(n)}))) == str(n)
        assert service.memory() < 200 * 2**20
        received = {slow.receive()["id"] for _ in range(100)}
        assert received == set(range(1, 101))
        assert service.stop() == 0


def test_one_that_sends_garbage_harms_nobody(folder: Path) -> None:
    with (
        Service("--unix", f"{folder}/s") as service,
        service.client() as hostile,
        service.client() as other,
    ):
        other.initialize()
        hostile.socket.sendall(b"{not json}\n\xff\xfe\x80\n[]\n" + b"garbage\n" * 1000)
        answers = [hostile.receive() for _ in range(3)]
        assert [answer["error"]["code"] for answer in answers] == [-32700, -32700, -32600]
        assert text_of(other.ask(call(1, "echo", {"text": "fine"}))) == "fine"
        assert hostile.ask(request("next", "ping"))["result"] == {}
        with service.client() as first_line:
            first_line.socket.sendall(b"hello?\n")
            assert first_line.receive()["error"]["code"] == -32700
            assert first_line.ask(request(1, "ping"))["result"] == {}
        assert service.stop() == 0


def test_one_that_floods_without_end_delays_nobody(folder: Path) -> None:
    """Bytes without a newline, as fast as they are taken: discarded."""
    with (
        Service("--unix", f"{folder}/s") as service,
        service.client() as flood,
        service.client() as other,
    ):
        other.initialize()
        flood.socket.sendall(b"{")
        piece = b"x" * 2**20
        for n in range(64):
            flood.socket.sendall(piece)
            if n % 8 == 0:
                assert other.ask(request(n, "ping"))["result"] == {}
        assert flood.receive()["error"]["code"] == -32600
        assert service.memory("VmHWM") < 160 * 2**20
        assert service.stop() == 0


KILLED = """
import socket, sys
kind, address, *messages = sys.argv[1:]
if kind == "unix":
    s = socket.socket(socket.AF_UNIX)
    s.connect(address)
else:
    s = socket.create_connection(("127.0.0.1", int(address)))
s.sendall("".join(message + "\\n" for message in messages).encode())
while True:
    sys.stdout.buffer.write(s.recv(65536))
    sys.stdout.flush()
"""


@pytest.mark.parametrize("kind", ["unix", "tcp"])
def test_the_calls_of_a_client_that_is_killed_are_cancelled(kind: str, folder: Path) -> None:
    """Over a Unix socket at once, whatever the drain time; over TCP after it."""
    drain = "60" if kind == "unix" else "0.2"
    options = ["--unix", f"{folder}/s"] if kind == "unix" else ["--tcp", "127.0.0.1:0"]
    with Service(*options, env={"CONCERTINO_DRAIN_S": drain}) as service, service.client() as other:
        other.initialize()
        before = service.census()["fds"]
        messages = [
            frame(each).decode().strip()
            for each in (INITIALIZE, call(1, "cleaned_up", {"name": "x"}))
        ]
        address = service.addresses[0].rpartition(":")[2]
        with subprocess.Popen(
            [sys.executable, "-c", KILLED, kind, address, *messages], stdout=subprocess.PIPE
        ) as child:
            assert child.stdout is not None
            while b"at x" not in child.stdout.readline():
                pass
            assert service.census()["fds"] == before + 1
            child.kill()
        service.until_stderr("finally ran", 10)
        until(lambda: service.census()["fds"] == before, 10)
        assert text_of(other.ask(call(1, "echo", {"text": "fine"}))) == "fine"


def test_a_client_that_resets_its_connection_harms_nobody() -> None:
    with Service("--tcp", "127.0.0.1:0") as service, service.client() as other:
        other.initialize()
        client = service.client().initialize()
        client.send(call(1, "cleaned_up", {"name": "x"}))
        client.until("at x")
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.__exit__()
        service.until_stderr("finally ran")
        assert text_of(other.ask(call(1, "echo", {"text": "fine"}))) == "fine"
        assert service.stop() == 0


@pytest.mark.parametrize(
    "options", [["--unix", "s"], ["--tcp", "127.0.0.1:0"]], ids=["unix", "tcp"]
)
def test_a_client_that_only_shuts_its_sending_half_down_gets_its_answers(
    options: list[str], folder: Path
) -> None:
    """As `nc -N` does."""
    with Service(*options, cwd=folder) as service, service.client() as client:
        client.send(
            INITIALIZE, INITIALIZED, *(call(n, "sleep", {"seconds": 0.2}) for n in range(1, 11))
        )
        client.socket.shutdown(socket.SHUT_WR)
        answers = {message["id"]: message for message in client.rest() if "id" in message}
        assert [text_of(answers[n]) for n in range(1, 11)] == ["slept"] * 10
        assert service.stop() == 0


def test_beyond_the_limit_of_clients_the_next_is_closed_at_once(folder: Path) -> None:
    with Service(
        "--unix", f"{folder}/s", "--max-connections", "3", env={"CONCERTINO_MAX_CONNECTIONS": "1"}
    ) as service:
        with contextlib.ExitStack() as stack:
            clients = [stack.enter_context(service.client()).initialize() for _ in range(2)]
            silent = stack.enter_context(service.client())
            with service.client() as beyond:
                assert beyond.rest() == []
            service.until_stderr("a client was refused: 3 are connected, which is the maximum")
            assert text_of(clients[0].ask(call(1, "echo", {"text": "fine"}))) == "fine"
            silent.__exit__()
            until(lambda: is_served(service))
        assert service.stop() == 0


def test_600_silent_connections_at_a_tcp_port_lock_nobody_out(folder: Path) -> None:
    with (
        Service("--unix", f"{folder}/s", "--tcp", "127.0.0.1:0") as service,
        contextlib.ExitStack() as stack,
    ):
        tcp, unix = sorted(service.addresses)
        host = stack.enter_context(Client(unix))
        silent = [stack.enter_context(Client(tcp)) for _ in range(600)]
        service.until_stderr("was disconnected: it has sent nothing")
        for address in (unix, tcp):
            with Client(address).initialize() as client:
                assert text_of(client.ask(call(1, "echo", {"text": "fine"}))) == "fine"
        # Hosts may be silent for hours: a process of our own user stays.
        host.initialize()
        assert silent[0].rest() == []
        assert service.stop() == 0


def is_served(service: Service) -> bool:
    with service.client() as client:
        try:
            client.send(request(1, "ping"))
            return client.receive() is not None
        except (BrokenPipeError, ConnectionResetError):
            return False


def test_without_descriptors_clients_wait_and_nothing_spins(folder: Path) -> None:
    def few() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))

    with (
        Service("--unix", f"{folder}/s", preexec_fn=few) as service,
        contextlib.ExitStack() as stack,
    ):
        first = stack.enter_context(service.client()).initialize()
        clients = [stack.enter_context(service.client()) for _ in range(60)]
        service.until_stderr("no client can be accepted for now: Too many open files")
        before = service.cpu_s()
        assert text_of(first.ask(call(1, "sleep", {"seconds": 1}))) == "slept"
        assert service.cpu_s() - before < 0.5
        for client in clients:
            client.send(request(1, "ping"))
        for client in clients:  # each that goes makes room for one of those who wait
            assert client.answer(1)["result"] == {}
            client.__exit__()
        assert service.stop() == 0
        assert (
            service.stderr.count(b"no client can be accepted") == 1
        )  # a line for each time, not for each attempt


# Who may connect


@pytest.mark.parametrize("kind", ["unix", "tcp"])
def test_what_a_browser_sends_is_not_served(kind: str, folder: Path) -> None:
    options = ["--unix", f"{folder}/s"] if kind == "unix" else ["--tcp", "127.0.0.1:0"]
    offered = json.dumps(call(1, "offer_more", {"name": "forged"}, modern=True))
    with Service(*options) as service, service.client() as other:
        for sent in (
            f"POST / HTTP/1.1\r\nHost: evil.example\r\nContent-Length: {len(offered) + 1}\r\n"
            f"\r\n{offered}\n",
            f"{offered} HTTP/1.1\r\n{offered}\n".replace("{", "GET /", 1),
            f"\x16\x03\x01{offered}\n{offered}\n",
        ):
            with service.client() as browser:
                browser.socket.sendall(sent.encode())
                with contextlib.suppress(
                    ConnectionResetError
                ):  # what it sent was not read to the end
                    assert browser.rest() == []
        names = [
            tool["name"]
            for tool in other.ask(request(1, "tools/list", modern=True))["result"]["tools"]
        ]
        assert "echo" in names
        assert "forged" not in names
        assert service.stop() == 0
        assert service.stderr.count(b"was closed: it speaks HTTP, not JSON-RPC") == 2
        assert service.stderr.count(b"was closed: it speaks TLS, not JSON-RPC") == 1


STRANGER = """
import os, socket, sys
os.setgroups([]); os.setgid(65534); os.setuid(65534)
s = socket.socket(socket.AF_UNIX)
try:
    s.connect(sys.argv[1])
except PermissionError:
    sys.exit(13)
try:
    s.sendall(b'{"jsonrpc":"2.0","id":1,"method":"ping"}\\n')
    sys.exit(len(s.recv(100)))
except (BrokenPipeError, ConnectionResetError):
    sys.exit(0)
"""


def test_another_user_is_kept_out_by_the_mode_and_by_the_credentials(folder: Path) -> None:
    if os.geteuid() != 0:  # only root can become somebody else; the decision is tested then
        assert not is_trusted(65534, os.geteuid())
        return
    path = folder / "s"
    with Service("--unix", str(path)) as service, service.client() as client:
        stranger = [sys.executable, "-c", STRANGER, str(path)]
        assert subprocess.run(stranger, check=False).returncode == 13
        path.chmod(0o666)  # as somebody may do: the second guard holds
        assert subprocess.run(stranger, check=False).returncode == 0
        service.until_stderr("runs as uid 65534, and this server as uid 0")
        assert client.ask(request(1, "ping"))["result"] == {}
        assert service.stop() == 0


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "192.0.2.1"])
def test_an_address_that_others_may_reach_is_refused(host: str) -> None:
    code, said = run_failing_start("--tcp", f"{host}:0")
    assert code == 2
    assert (
        f"tcp:{host}:0 may be reached from other machines, and there is no authentication" in said
    )
    assert "--allow-remote" in said


def test_with_allow_remote_it_is_listened_at_with_a_warning() -> None:
    with Service("--tcp", "0.0.0.0:0", "--allow-remote") as service:
        assert (
            b"other machines may be able to connect, and every client can call all tools"
            in service.stderr
        )
        assert service.addresses[0].startswith("tcp:0.0.0.0:")
        assert service.stop() == 0


# Sockets' files


def test_a_server_that_was_killed_leaves_a_socket_that_the_next_replaces(folder: Path) -> None:
    path = folder / "s"
    with Service("--unix", str(path)) as service:
        service.signal(signal.SIGKILL)
        service.wait()
    assert path.exists()
    with Service("--unix", str(path)) as service:
        with service.client() as client:
            client.initialize()
        assert service.stop() == 0


def test_a_second_server_at_the_same_place_is_refused_and_the_first_goes_on(folder: Path) -> None:
    with Service("--unix", f"{folder}/s", "--tcp", "127.0.0.1:0") as service:
        code, said = run_failing_start("--unix", f"{folder}/s")
        assert (code, "another process listens there" in said) == (1, True)
        port = service.addresses[0].removeprefix("tcp:")
        code, said = run_failing_start("--tcp", port)
        assert (code, f"tcp:{port}: Address already in use" in said) == (1, True)
        with service.client(1) as client:
            client.initialize()
        assert service.stop() == 0


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (["--unix", "precious"], 1, "a file that is not a socket exists there; it is left alone"),
        (["--unix", "no/s"], 1, "the folder {folder}/no: No such file or directory"),
        (["--unix", "x" * 108], 2, "has 108 bytes, and that of a socket may have 107"),
        (["--unix", "@abstract"], 2, "abstract names are not supported"),
        (["--tcp", "8080"], 2, "expected HOST:PORT"),
        (["--tcp", "::1:8080"], 2, "expected an IPv6 address in brackets"),
        (["--tcp", "no.invalid:1"], 2, "tcp:no.invalid:1"),
        (["--unix", "s", "--tcp", "0.0.0.0:0"], 2, "no authentication"),
        (["--unix", "s", "--unix", "s"], 1, "another process listens there"),
        (["--allow-remote"], 2, "are for sockets"),
        (["--max-connections", "5"], 2, "are for sockets"),
        (["--unix", "s", "--max-connections", "0"], 2, "expected a positive number"),
        (
            ["--unix", "s", "--max-connections", "x"],
            2,
            "--max-connections: expected a number, got 'x'",
        ),
    ],
)
def test_a_start_that_cannot_be_says_why_and_leaves_nothing(
    options: list[str], code: int, said: str, folder: Path
) -> None:
    (folder / "precious").write_text("keep me")
    ended, errors = run_failing_start(*options, cwd=folder)
    assert said.format(folder=folder) in errors
    assert ended == code
    assert os.listdir(folder) == ["precious"]
    assert (folder / "precious").read_text() == "keep me"


@pytest.mark.parametrize(
    ("source", "code"),
    [
        ("1 / 0", 1),
        ("raise SystemExit(0)", 1),
        ("del server", 2),
        (
            "class Failing(Server):\n    async def start(self, outlet):\n"
            "        raise ValueError\nserver = Failing('f')",
            1,
        ),
        (
            "class Failing(Server):\n    def features(self):\n        raise ValueError\n"
            "server = Failing('f')",
            1,
        ),
        ("os.environ['CONCERTINO_MAX_CONNECTIONS'] = 'x'", 2),
    ],
    ids=[
        "import fails",
        "import exits",
        "no server",
        "start fails",
        "offer fails",
        "a limit that is none",
    ],
)
def test_a_server_that_fails_to_start_leaves_no_socket(
    source: str, code: int, folder: Path
) -> None:
    ended, errors = run_failing_start("--unix", f"{folder}/s", target=script(folder, source))
    assert ended == code, errors
    assert not (folder / "s").exists()


# The end


def test_calls_under_way_at_a_signal_finish_on_every_connection(folder: Path) -> None:
    with Service("--unix", f"{folder}/s") as service, contextlib.ExitStack() as stack:
        clients = [stack.enter_context(service.client()).initialize() for _ in range(10)]
        for client in clients:
            client.send(call(1, "sleep", {"seconds": 0.3}), request(2, "ping"))
            client.answer(2)
        assert service.stop() == 0
        for client in clients:
            assert [text_of(message) for message in client.rest()] == ["slept"]


def test_a_call_that_does_not_finish_is_cut_off_after_the_drain_time(folder: Path) -> None:
    with (
        Service("--unix", f"{folder}/s", env={"CONCERTINO_DRAIN_S": "0.3"}) as service,
        service.client() as client,
    ):
        client.initialize().send(call(1, "cleaned_up", {"name": "never"}))
        client.until("at never")
        assert service.stop() == 0
        [answer] = client.rest()
        assert answer["error"] == {"code": -32603, "message": "the server is shutting down"}
        assert b"finally ran" in service.stderr
        assert b"1 calls were cut off" in service.stderr


def test_nobody_is_let_in_during_the_drain_and_a_second_signal_ends_it(folder: Path) -> None:
    with Service("--unix", f"{folder}/s", env=DRAIN_LONG) as service, service.client() as client:
        client.initialize().send(call(1, "wait_at", {"name": "never"}))
        client.until("at never")
        service.signal(signal.SIGTERM)
        until(lambda: not (folder / "s").exists())
        with pytest.raises(FileNotFoundError):
            service.client()
        service.signal(signal.SIGINT)
        assert service.wait(5) == 0


def test_a_second_signal_ends_at_once_even_while_a_handler_holds_the_loop_and_removes_the_file(
    folder: Path,
) -> None:
    with Service("--unix", f"{folder}/s", env=DRAIN_LONG) as service, service.client() as client:
        client.initialize().send(call(1, "hold_the_loop", {"seconds": 60}))
        service.until_stderr("holding")
        service.signal(signal.SIGTERM)
        service.signal(signal.SIGINT)
        assert service.wait(5) == 0
    assert not (folder / "s").exists()


@pytest.mark.slow
def test_a_handler_that_holds_the_loop_does_not_hold_the_end_nor_leave_the_file(
    folder: Path,
) -> None:
    with (
        Service("--unix", f"{folder}/s", env={"CONCERTINO_DRAIN_S": "0.3"}) as service,
        service.client() as client,
    ):
        client.initialize().send(call(1, "hold_the_loop", {"seconds": 60}))
        service.until_stderr("holding")
        assert service.stop() == 0
        assert b"something blocked the shutdown" in service.stderr
    assert not (folder / "s").exists()


def test_a_forked_child_does_not_keep_clients_waiting_nor_write_to_them(folder: Path) -> None:
    with (
        Service("--unix", f"{folder}/s") as service,
        service.client() as client,
        service.client() as other,
    ):
        other.initialize()
        client.initialize().send(call(1, "fork", {"how": "linger"}))
        service.until_stderr("lingering")
        child = int(service.stderr.partition(b"lingering ")[2].split()[0])
        try:
            assert text_of(client.answer(1)) == "the parent's answer"
            service.signal(signal.SIGTERM)
            assert service.wait(5) == 0  # with the child alive, and stderr open in it
            assert client.rest() == other.rest() == []
            assert not (folder / "s").exists()
        finally:
            put_down(child)
        assert wait_until_gone(child, 5)


@pytest.mark.parametrize("how", ["return", "raise", "sys.exit"])
def test_a_forked_child_that_comes_back_ends_and_answers_nobody(how: str, folder: Path) -> None:
    with Service("--unix", f"{folder}/s") as service, service.client() as client:
        client.initialize()
        assert text_of(client.ask(call(1, "fork", {"how": how}))) == "the parent's answer"
        assert text_of(client.ask(call(2, "echo", {"text": "x"}))) == "x"
        assert service.stop() == 0
        assert client.rest() == []


# systemd

LAUNCHER = """
import fcntl, json, os, socket, sys
spec = json.loads(sys.argv[1])
keep = []
for kind, place in spec["sockets"]:
    if kind == "unix":
        s = socket.socket(socket.AF_UNIX); s.bind(place); s.listen()
    elif kind == "abstract":
        s = socket.socket(socket.AF_UNIX); s.bind(chr(0) + place); s.listen()
    elif kind == "tcp":
        s = socket.socket(); s.bind((place, 0)); s.listen()
    elif kind == "datagram":
        s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); s.bind(place)
    elif kind == "connected":
        s, other = socket.socketpair(); keep.append(other)
    elif kind == "file":
        s = open(place, "w")
    keep.append(s)
given = keep[1:] if spec["sockets"][0][0] == "connected" else keep
copies = [fcntl.fcntl(each.fileno(), fcntl.F_DUPFD, 50) for each in given]
for number, copy in enumerate(copies, 3):
    os.dup2(copy, number, inheritable=True)
    os.close(copy)
os.environ.update(LISTEN_PID=spec.get("pid") or str(os.getpid()),
                  LISTEN_FDS=str(spec.get("count", len(copies))), LISTEN_FDNAMES="a:b")
os.execv(sys.executable, [sys.executable, "-m", "concertino", "serve", *sys.argv[2:]])
"""
CURIOUS = """
@server.tool
def variables() -> list[str]:
    return [name for name in os.environ if name.startswith("LISTEN_")]
@server.tool
def inherited_by_children() -> int:
    import subprocess
    source = "import os; print(sum(os.readlink(f'/proc/self/fd/{n}').startswith('socket:') " \\
        "for n in (3, 4, 5) if os.path.exists(f'/proc/self/fd/{n}')))"
    return int(subprocess.check_output([sys.executable, "-c", source], close_fds=False))
"""


def activation_command(sockets: Sequence[Sequence[str]], *arguments: str, **spec: Any) -> list[str]:
    """A command that starts a server as systemd does: with listening sockets from
    descriptor 3 on.
    """
    return ["-c", LAUNCHER, json.dumps({"sockets": sockets, **spec}), *arguments]


class ActivatedService(Service):
    def __init__(self, command: list[str], **popen: Any) -> None:
        null = os.open(os.devnull, os.O_RDWR)
        try:
            Process.__init__(self, command, stdin=null, stdout=null, **popen)
        finally:
            os.close(null)


def test_the_sockets_that_systemd_gives_are_served_and_left_alone(folder: Path) -> None:
    target = script(folder, CURIOUS)
    sockets = [
        ["unix", f"{folder}/given"],
        ["tcp", "127.0.0.1"],
        ["abstract", f"concertino-test-{os.getpid()}"],
    ]
    with ActivatedService(
        activation_command(sockets, target, "--unix", f"{folder}/own")
    ) as service:
        service.until_stderr("started successfully")
        assert [address.partition(":")[0] for address in service.addresses] == [
            "unix",
            "tcp",
            "unix",
            "unix",
        ]
        assert service.addresses[2] == f"unix:@concertino-test-{os.getpid()}"
        assert service.addresses[0] == f"unix:{folder}/given"
        for number in range(4):
            with service.client(number) as client:
                client.initialize()
                answer = client.ask(call(1, "variables"))
                assert answer["result"]["structuredContent"] == {"result": []}
                answer = client.ask(call(2, "inherited_by_children"))
                assert answer["result"]["structuredContent"] == {"result": 0}
        assert service.stop() == 0
    assert (folder / "given").exists()
    assert not (folder / "own").exists()


def test_a_message_that_waits_in_the_socket_starts_the_conversation(folder: Path) -> None:
    """As activation works: the client connects first, then the server is started."""
    with ActivatedService(activation_command([["unix", f"{folder}/s"]], TOOLBOX)) as service:
        until(lambda: (folder / "s").exists())

        def connect() -> bool:
            try:
                clients.append(Client(f"unix:{folder}/s"))
            except ConnectionRefusedError:
                return False
            return True

        clients: list[Client] = []
        until(connect)
        with clients[0] as client:
            assert client.ask(request(1, "ping"))["result"] == {}
        service.until_stderr("started successfully")
        assert service.stop() == 0


@pytest.mark.parametrize(
    ("sockets", "spec", "said"),
    [
        ([["datagram", "s"]], {}, "expected a stream socket, Unix or TCP, got AF_UNIX SOCK_DGRAM"),
        (
            [["connected", ""]],
            {},
            "expected a socket that listens; with Accept=yes the service needs",
        ),
        ([["file", "f"]], {}, "LISTEN_FDS: descriptor 3: expected a listening socket"),
        ([["unix", "s"]], {"count": 2}, "LISTEN_FDS: descriptor 4: expected a listening socket"),
        (
            [["unix", "s"]],
            {"count": "many"},
            "LISTEN_FDS: expected a number of descriptors, got 'many'",
        ),
        ([["unix", "s"]], {"count": 0}, "LISTEN_FDS: no socket was given"),
        (
            [["tcp", "0.0.0.0"]],
            {},
            "may be reached from other machines, and there is no authentication",
        ),
    ],
    ids=["datagram", "connected", "a file", "too few", "no number", "none", "remote"],
)
def test_what_cannot_be_listened_at_is_refused_by_number(
    sockets: list[list[str]], spec: dict[str, Any], said: str, folder: Path
) -> None:
    with ActivatedService(activation_command(sockets, TOOLBOX, **spec), cwd=folder) as service:
        assert service.wait() == 2
        service.pump(lambda: service._errors < 0)
        assert said in service.stderr.decode()


def test_sockets_for_another_process_are_said_and_stdio_is_served(folder: Path) -> None:
    command = activation_command([["unix", f"{folder}/s"]], TOOLBOX, pid="1")
    with Process(command) as process:
        process.initialize()
        assert text_of(process.ask(call(1, "echo", {"text": "over stdio"}))) == "over stdio"
        assert process.finish() == 0
        assert b"LISTEN_FDS: its sockets are for process 1" in process.stderr


def test_a_connected_socket_as_stdin_and_stdout_is_stdio(folder: Path) -> None:
    """systemd with Accept=yes and StandardInput=socket."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(f"{folder}/s")
        listening.listen()
        with Client(f"unix:{folder}/s") as client:
            peer, _ = listening.accept()
            with Process(
                ["-m", "concertino", "serve", TOOLBOX], stdin=peer.fileno(), stdout=peer.fileno()
            ) as process:
                peer.close()
                client.initialize()
                assert text_of(client.ask(call(1, "echo", {"text": "accepted"}))) == "accepted"
                client.send(call(2, "sleep", {"seconds": 0.1}))
                client.socket.shutdown(socket.SHUT_WR)
                assert [text_of(message) for message in client.rest()] == ["slept"]
                assert process.wait(5) == 0


# What else was promised


def test_stdio_pays_nothing_for_sockets() -> None:
    source = (
        "import atexit, sys; atexit.register(lambda: print('MODULES', *sys.modules, "
        "file=sys.__stderr__))\n"
        f"sys.argv = ['concertino', 'serve', {TOOLBOX!r}]\nfrom concertino.cli import main\nmain()"
    )
    done = subprocess.run(
        [sys.executable, "-c", source],
        input=frame(INITIALIZE),
        env=environment(),
        capture_output=True,
        timeout=WAIT_S,
        check=True,
    )
    loaded = set(done.stderr.rpartition(b"MODULES ")[2].decode().split())
    assert "concertino.runtime.process" in loaded
    ours = {name for name in loaded if name.startswith("concertino.")}
    assert not ours & {
        "concertino.cli.listen",
        "concertino.runtime.acceptor",
        "concertino.runtime.socket_frontend",
        "concertino.transports.listeners",
        "concertino.transports.sockets",
    }
    assert "ipaddress" not in loaded or "coverage" in loaded  # which imports it itself


@pytest.mark.parametrize("page", ["README.md", "docs/how-to/sockets.md"])
def test_the_command_of_a_page_can_be_pasted_where_nothing_is_but_the_server(
    page: str, folder: Path
) -> None:
    text = (Path(__file__).parents[2] / page).read_text()
    lines = re.findall(r"^concertino serve (\S+) (--unix \S+)", text, re.MULTILINE)
    assert lines
    for target, options in lines:
        (folder / target).write_text("from concertino import Server\nserver = Server('shop')\n")
        command = f"exec {sys.executable} -m concertino serve {target} {options}"
        with subprocess.Popen(
            ["sh", "-c", command],
            cwd=folder,
            env={**environment(), "HOME": str(folder)},
            stderr=subprocess.PIPE,
            text=True,
        ) as serving:
            assert serving.stderr is not None
            said = next(
                (line for line in serving.stderr if "Listening on" in line or "ERROR" in line),
                "nothing",
            )
            serving.terminate()
        assert "Listening on unix:" in said
        assert serving.returncode == 0
