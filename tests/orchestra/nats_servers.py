"""NATS servers for tests: real processes on loopback."""

from __future__ import annotations

import atexit
import json
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

from concertino.orchestra.nats_server import find_server

# How long a server may take to listen, on a machine that is busy.
START_S = 30.0


class NatsServerProcess:
    """A server. port: where clients connect; it stays the same over restarts.

    cluster_port: where other servers of its cluster connect; 0 if it is alone.

    settings: further settings, in the form of the server's configuration.
    """

    def __init__(self, folder: Path, settings: str = "", port: int = -1) -> None:
        self.folder = folder
        self.port = port
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def address(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        ports = Path(tempfile.mkdtemp(dir=self.folder))
        configuration = ports / "server.conf"
        configuration.write_text(
            f'listen: "127.0.0.1:{self.port}"\nports_file_dir: {json.dumps(str(ports))}\n'
            f"{self._settings}"
        )
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [find_server(), "-c", str(configuration)], stdout=log, stderr=log
            )
        until = time.monotonic() + START_S
        while not (found := self._read_ports(ports)):
            assert self._process.poll() is None, (self.folder / "server.log").read_text()
            assert time.monotonic() < until, "the NATS server does not listen"
            time.sleep(0.01)
        self.port = int(found["nats"][0].rpartition(":")[2])
        cluster = found.get("cluster")
        self.cluster_port = int(cluster[0].rpartition(":")[2]) if cluster else 0

    def _read_ports(self, folder: Path) -> Mapping[str, Any]:
        for path in folder.glob("*.ports"):
            try:
                return json.loads(path.read_text())
            except ValueError:
                return {}
        return {}

    def stop(self, number: int = signal.SIGKILL) -> None:
        assert self._process is not None
        self._process.send_signal(number)
        self._process.wait()

    def signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)


def start_jetstream_cluster(folder: Path, settings: str = "") -> list[NatsServerProcess]:
    """Start three servers with JetStream, s0 to s2, as one cluster."""
    # They must know each other's ports before they start.
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(3)]
        for sock in sockets:
            sock.bind(("127.0.0.1", 0))
        ports = [sock.getsockname()[1] for sock in sockets]
    routes = ", ".join(f'"nats-route://127.0.0.1:{port}"' for port in ports)
    servers: list[NatsServerProcess] = []
    for number, port in enumerate(ports):
        place = folder / f"s{number}"
        place.mkdir()
        own = (
            f"server_name: s{number}\n"
            f"jetstream {{ store_dir: {json.dumps(str(place / 'store'))} }}\n"
            f'cluster {{ name: c, listen: "127.0.0.1:{port}", routes: [{routes}] }}\n'
        )
        servers.append(NatsServerProcess(place, settings + own))
    return servers


@cache
def shared_nats_server() -> NatsServerProcess:
    """A server without permissions, for the tests of this process."""
    return _start_shared("")


@cache
def jetstream_server() -> NatsServerProcess:
    """The same with JetStream."""
    return _start_shared("jetstream {{ store_dir: {} }}")


def _start_shared(settings: str) -> NatsServerProcess:
    folder = tempfile.TemporaryDirectory(prefix="nats")
    text = settings.format(json.dumps(f"{folder.name}/store"))
    server = NatsServerProcess(Path(folder.name), text)

    def end() -> None:
        server.stop()
        folder.cleanup()

    atexit.register(end)
    return server
