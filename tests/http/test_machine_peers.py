"""http/machine_peers.py: two front ends, each a process, and a NATS server. All are real."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from http_service import BOTH, INITIALIZE, INITIALIZED
from orchestra.nats_servers import NatsServerProcess

from concertino.orchestra.authority import create_authority, issue
from concertino.orchestra.certificates import Certificates

SERVER = """
import os
from concertino import Context, Server
server = Server("shared")

@server.tool
async def process(context: Context) -> str:
    await context.progress(1, 2, "half")
    return str(os.getpid())

@server.tool
def size(text: str) -> int:
    return len(text)
"""
SOURCES = str(Path(__file__).parents[2] / "src")


class FrontEnd:
    """A front end. port: where clients connect. peer_port: where the other front ends connect."""

    def __init__(self, folder: Path, cluster: str, peer_port: int = 0) -> None:
        # The port stays bound until the front end listens, so that no other program gets it.
        with socket.socket() as reserved:
            reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            reserved.bind(("127.0.0.1", peer_port))
            self.peer_port = reserved.getsockname()[1]
            self._start(folder, cluster)

    def _start(self, folder: Path, cluster: str) -> None:
        options = [
            *("--http", "127.0.0.1:0", "--share-sessions", cluster),
            *("--share-addr", f"127.0.0.1:{self.peer_port}"),
            *("--share-certs", str(folder / "certs")),
        ]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "concertino", "serve", str(folder / "server.py"), *options],
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": SOURCES},
        )
        assert self.process.stderr is not None
        self.log: list[str] = []
        for line in self.process.stderr:
            self.log.append(line.decode())
            if match := re.search(rb"Listening on http://127\.0\.0\.1:(\d+)/mcp", line):
                self.port = int(match[1])
                return
        self.end(signal.SIGKILL)
        raise AssertionError("".join(self.log))

    def request(self, method: str, body: object = None, session: str = "") -> tuple[int, str, str]:
        """The status, the body, and the session of a response."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        headers = {"Accept": BOTH, "Content-Type": "application/json"}
        if session:
            headers |= {"Mcp-Session-Id": session, "Mcp-Protocol-Version": "2025-11-25"}
        connection.request(method, "/mcp", json.dumps(body).encode() if body else b"", headers)
        response = connection.getresponse()
        text = response.read().decode()
        connection.close()
        return response.status, text, response.headers.get("Mcp-Session-Id", "")

    def call(self, session: str, tool: str, **arguments: Any) -> tuple[int, str]:
        params = {"name": tool, "arguments": arguments, "_meta": {"progressToken": 1}}
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        return self.request("POST", body, session)[:2]

    def open_session(self) -> str:
        _, _, session = self.request("POST", INITIALIZE)
        assert self.request("POST", INITIALIZED, session)[0] == 202
        return session

    def end(self, number: int) -> None:
        self.process.send_signal(number)
        assert self.process.stderr is not None
        self.process.stderr.close()
        self.process.wait(30)


@pytest.fixture(scope="module")
def nats() -> Iterator[NatsServerProcess]:
    with tempfile.TemporaryDirectory(prefix="nats") as folder:
        server = NatsServerProcess(Path(folder), f'jetstream {{ store_dir: "{folder}/store" }}')
        yield server
        server.stop()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a server and certificates."""
    folder = tmp_path_factory.mktemp("front-ends")
    (folder / "server.py").write_text(SERVER)
    certificates = Certificates(folder / "certs")
    create_authority(certificates)
    issue(certificates, "front-end")
    issue(certificates, "tools.stranger")
    return folder


@contextmanager
def two(place: Path, nats: NatsServerProcess) -> Iterator[tuple[FrontEnd, FrontEnd]]:
    one = FrontEnd(place, nats.address)
    other = FrontEnd(place, nats.address)
    try:
        yield one, other
    finally:
        for front_end in (one, other):
            if front_end.process.poll() is None:
                front_end.end(signal.SIGTERM)


def test_a_session_is_served_through_another_front_end(
    place: Path, nats: NatsServerProcess
) -> None:
    with two(place, nats) as (one, other):
        session = one.open_session()
        status, text = other.call(session, "process")
        assert status == 200
        # The progress and the result come as events, from the process with the session.
        assert '"half"' in text
        assert f'"text":"{one.process.pid}"' in text.replace(" ", "")
        status, text = other.call(session, "size", text="x" * 2_000_000)
        assert status == 200
        assert "2000000" in text
        # The end of the session, through the other front end.
        assert other.request("DELETE", None, session)[0] in (200, 204)
        assert one.call(session, "process")[0] == 404
        assert other.call(session, "process")[0] == 404


def test_after_kill_9_of_its_front_end_a_session_is_unknown_and_a_new_one_works(
    place: Path, nats: NatsServerProcess
) -> None:
    with two(place, nats) as (one, other):
        session = one.open_session()
        assert other.call(session, "process")[0] == 200
        one.end(signal.SIGKILL)
        status, text = other.call(session, "process")
        assert status == 404
        assert "send initialize again" in text
        assert other.call(other.open_session(), "process")[0] == 200


def test_a_session_of_a_killed_front_end_is_unknown_to_its_successor_at_the_same_address(
    place: Path, nats: NatsServerProcess
) -> None:
    """The bucket still has the address of the killed one: requests must not go in a circle."""
    with two(place, nats) as (one, other):
        session = one.open_session()
        one.end(signal.SIGKILL)
        successor = FrontEnd(place, nats.address, one.peer_port)
        try:
            assert other.call(session, "process")[0] == 404
            assert successor.call(session, "process")[0] == 404
            assert other.call(successor.open_session(), "process")[0] == 200
        finally:
            successor.end(signal.SIGTERM)


def test_nats_servers_with_tls_have_a_certificate_of_the_same_authority(
    place: Path, tmp_path: Path
) -> None:
    certs = place / "certs"
    issue(Certificates(certs), "nats-server")
    files = {"cert_file": "nats-server.crt", "key_file": "nats-server.key", "ca_file": "ca.crt"}
    tls = {key: str(certs / name) for key, name in files.items()}
    settings = {"jetstream": {"store_dir": str(tmp_path / "store")}, "tls": {**tls, "verify": True}}
    # JSON is valid in the server's configuration, without the outermost braces.
    nats = NatsServerProcess(tmp_path, json.dumps(settings)[1:-1])
    address = nats.address.replace("nats://", "tls://")
    try:
        front_ends = [FrontEnd(place, address), FrontEnd(place, address)]
        assert front_ends[1].call(front_ends[0].open_session(), "process")[0] == 200
        for front_end in front_ends:
            front_end.end(signal.SIGTERM)
    finally:
        nats.stop()


def test_after_the_end_of_its_front_end_a_session_is_unknown(
    place: Path, nats: NatsServerProcess
) -> None:
    with two(place, nats) as (one, other):
        session = one.open_session()
        one.end(signal.SIGTERM)
        assert other.call(session, "process")[0] == 404


@pytest.mark.parametrize("session", ["0" * 48, "nonsense", "é" * 48, "../" * 16])
def test_an_id_that_no_front_end_has_made_is_unknown(
    place: Path, nats: NatsServerProcess, session: str
) -> None:
    with two(place, nats) as (one, _):
        assert one.call(session, "process")[0] in (400, 404)


def test_a_client_with_another_certificate_cannot_pass_requests_on(
    place: Path, nats: NatsServerProcess
) -> None:
    certs = place / "certs"
    request = b"POST /mcp HTTP/1.1\r\nHost: worker\r\nContent-Length: 5\r\n\r\nnull\n"
    with two(place, nats) as (one, _):
        for name, is_accepted in (("front-end", True), ("tools.stranger", False), ("", False)):
            context = ssl.create_default_context(cafile=str(certs / "ca.crt"))
            if name:
                context.load_cert_chain(certs / f"{name}.crt", certs / f"{name}.key")
            received = b""
            try:
                with (
                    socket.create_connection(("127.0.0.1", one.peer_port), 30) as plain,
                    context.wrap_socket(plain, server_hostname="front-end") as secure,
                ):
                    secure.sendall(request)
                    received = secure.recv(1024)
            except OSError:
                pass
            assert received.startswith(b"HTTP/1.1") == is_accepted, name


def test_without_nats_the_server_does_not_start_and_says_why(place: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"nats://127.0.0.1:{closed.getsockname()[1]}"
        with pytest.raises(AssertionError, match="sessions cannot be shared"):
            FrontEnd(place, address)
