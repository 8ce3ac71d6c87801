"""Three NATS servers with three replicas: no acknowledged write is lost while they are killed."""

from __future__ import annotations

import random
import socket
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from orchestra.nats_servers import NatsServerProcess

from concertino.orchestra.nats_storage import NatsStorage
from concertino.orchestra.storage import UPSERT, StorageError

ROUNDS = 8
SEED = 20261124


@pytest.fixture
def servers() -> Iterator[list[NatsServerProcess]]:
    with ExitStack() as stack:
        started: list[NatsServerProcess] = []
        ports = _free_ports(3)
        routes = ", ".join(f'"nats-route://127.0.0.1:{port}"' for port in ports)
        for number, port in enumerate(ports):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="nats")))
            settings = (
                f"server_name: s{number}\n"
                f'jetstream {{ store_dir: "{folder}/store" }}\n'
                f'cluster {{ name: c, listen: "127.0.0.1:{port}", routes: [{routes}] }}\n'
            )
            server = NatsServerProcess(folder, settings)
            stack.callback(server.stop)
            started.append(server)
        yield started


def test_no_acknowledged_write_is_lost_while_servers_are_killed(
    servers: list[NatsServerProcess],
) -> None:
    address = ",".join(server.address for server in servers)
    choice = random.Random(SEED)
    storage = _open(address)
    # Path -> what was written last and acknowledged. A write that failed may have happened.
    kept: dict[str, bytes] = {}
    unsure: dict[str, set[bytes]] = {}
    for round in range(ROUNDS):
        victim = choice.choice(servers)
        victim.stop()
        for number in range(20):
            path, content = f"d{choice.randrange(8)}.md", b"%d.%d" % (round, number)
            try:
                storage.write(path, content, {}, UPSERT)
            except StorageError:
                unsure.setdefault(path, set()).add(content)
            else:
                kept[path] = content
                unsure.pop(path, None)
        victim.start()
    for path, content in kept.items():
        assert _read(storage, path) in {content, *unsure.get(path, ())}, path
    assert kept
    storage.close()


def _free_ports(count: int) -> list[int]:
    """Return free ports. The servers of a cluster must know each other's before they start."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for sock in sockets:
            sock.bind(("127.0.0.1", 0))
        return [sock.getsockname()[1] for sock in sockets]


def _open(address: str) -> NatsStorage:
    """Open the storage; the cluster needs a moment until it has a leader."""
    while True:
        try:
            return NatsStorage(address, "storage.test", replicas=3)
        except StorageError:
            continue


def _read(storage: NatsStorage, path: str) -> bytes:
    while True:
        try:
            return storage.read(path).content
        except StorageError as exc:
            # Not that there is no such document.
            if exc.code != "storage_error":
                raise
