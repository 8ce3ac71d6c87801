"""client/sync.py: the client without async, from one thread and from many."""

from __future__ import annotations

import inspect
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from concertino import Server
from concertino.client.client import Client
from concertino.client.sync import SyncClient
from concertino.errors import Disconnected, SpawnError
from concertino.transports.process import _living

EXAMPLE = Path(__file__).parents[2] / "examples" / "calculator.py"
MISBEHAVING = Path(__file__).parent / "misbehaving.py"


def test_a_script_calls_a_server_and_leaves_nothing() -> None:
    threads, descriptors = threading.active_count(), set(os.listdir("/proc/self/fd"))
    with SyncClient([sys.executable, EXAMPLE]) as client:
        pid = client.pid
        assert client.server == "calculator"
        assert client.list_tools()[0].name == "add"
        assert client.call_tool("add", {"a": 1, "b": 2}, into=int) == 3
        assert not client.call_tool("add", {"a": 1, "b": 2}).is_error
        client.ping()
        client.notify("notifications/x")
        assert client.stray == 0
    assert client.exit_status == 0
    assert pid is not None
    assert _living(pid) == []
    assert threading.active_count() == threads
    assert set(os.listdir("/proc/self/fd")) == descriptors


def test_it_is_used_from_many_threads_at_once() -> None:
    with SyncClient([sys.executable, EXAMPLE]) as client, ThreadPoolExecutor(16) as pool:
        sums = list(pool.map(lambda n: client.call_tool("add", {"a": n, "b": n}, into=int), range(400)))
    assert sums == [2 * n for n in range(400)]


def test_closing_it_ends_the_calls_of_other_threads() -> None:
    seen = threading.Event()
    code = "print('called', file=sys.stderr, flush=True)"
    command = [sys.executable, str(MISBEHAVING), "modern", code]
    client = SyncClient(command, stderr=lambda line: seen.set())
    client.open()
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(client.call_tool, "x")
        assert seen.wait(20)
        client.close()
        assert isinstance(call.exception(20), Disconnected)
    client.close()
    with pytest.raises(RuntimeError, match="not open"):
        client.ping()


def test_what_cannot_be_started_leaves_no_thread() -> None:
    threads = threading.active_count()
    with pytest.raises(SpawnError, match="command not found"), SyncClient(["no-such-program"]):
        pass
    assert threading.active_count() == threads


def test_its_own_functions_cannot_wait_for_it() -> None:
    said: list[str] = []
    server = Server("x")

    @server.tool
    async def add(a: int) -> int:
        return a

    def notified(way: str, text: str) -> None:
        try:
            client.ping()
        except RuntimeError as why:
            said.append(str(why))

    client = SyncClient(server, trace=notified)
    with client:
        client.call_tool("add", {"a": 1})
    assert said
    assert "would wait for itself" in said[0]


def test_it_has_what_the_client_has() -> None:
    """All but what only makes sense on a loop."""
    theirs = {name for name, _ in inspect.getmembers(Client) if not name.startswith("_")}
    ours = {name for name, _ in inspect.getmembers(SyncClient) if not name.startswith("_")}
    assert theirs - ours == {"aclose"}
    assert ours - theirs == {"close"}
    for name in ours & theirs:
        one, other = getattr(Client, name), getattr(SyncClient, name)
        if inspect.isfunction(one):
            assert list(inspect.signature(one).parameters) == list(inspect.signature(other).parameters), name
