"""client/sync.py: the client without async, from one thread and from many."""

from __future__ import annotations

import asyncio
import inspect
import os
import subprocess
import sys
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from concertino import Server
from concertino.client.client import Client
from concertino.client.sync import SyncClient
from concertino.errors import Disconnected, SpawnError
from concertino.transports.process_exit import live_members

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
    assert live_members(pid) == []
    assert threading.active_count() == threads
    assert set(os.listdir("/proc/self/fd")) == descriptors


def test_it_is_used_from_many_threads_at_once() -> None:
    with SyncClient([sys.executable, EXAMPLE]) as client, ThreadPoolExecutor(16) as pool:
        sums = list(
            pool.map(lambda n: client.call_tool("add", {"a": n, "b": n}, into=int), range(400))
        )
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


def test_an_answer_that_comes_just_when_it_is_looked_for_is_not_a_time_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Between the end of one look and the question whether there is an answer, it may come."""

    class Late(Future[int]):
        def result(self, timeout: float | None = None) -> int:
            if self.done():
                return super().result()
            self.set_result(5)
            raise TimeoutError

    def threadsafe(work: Coroutine[Any, Any, Any], loop: object) -> Future[int]:
        work.close()
        return Late()

    with SyncClient(Server("x")) as client:
        monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", threadsafe)
        assert client.call_tool("slow", into=int) == 5
        monkeypatch.undo()


@pytest.mark.slow
def test_a_script_that_forgets_to_close_it_leaves_no_process() -> None:
    """Not even what does not end with its stdin."""
    server = ["sh", "-c", f"{sys.executable} {EXAMPLE}; sleep 60"]
    script = (
        f"from concertino import SyncClient; c = SyncClient({server!r}); c.open(); print(c.pid)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, timeout=30, check=True
    )
    assert live_members(int(done.stdout)) == []


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


def test_its_own_functions_cannot_close_it() -> None:
    said: list[str] = []

    def shown(way: str, text: str) -> None:
        try:
            client.close()
        except RuntimeError as why:
            said.append(str(why))

    client = SyncClient(Server("x"), trace=shown)
    with client:
        client.ping()
    assert said
    assert all("would wait for itself" in each for each in said)


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnhandledThreadExceptionWarning"
)  # threading passes over a SystemExit
def test_a_function_that_leaves_the_program_ends_the_server_and_nobody_waits_for_ever() -> None:
    """SystemExit goes through asyncio's loop, which is then over."""
    code = "say({'jsonrpc': '2.0', 'method': 'notifications/x', 'params': {}})"

    def leave(method: str, params: object) -> None:
        raise SystemExit(3)

    client = SyncClient([sys.executable, str(MISBEHAVING), "modern", code], notified=leave)
    client.open()
    pid = client.pid
    assert pid is not None
    with pytest.raises((Disconnected, CancelledError, RuntimeError)):
        client.call_tool("x")
    client.close()
    assert live_members(pid) == []
    with pytest.raises(RuntimeError, match="not open"):
        client.ping()


def test_threads_that_call_while_it_is_closed_are_told() -> None:
    for _ in range(5):
        client = SyncClient([sys.executable, EXAMPLE])
        client.open()
        begun = threading.Barrier(5)

        def call(client: SyncClient = client, begun: threading.Barrier = begun) -> None:
            begun.wait()
            while True:
                client.call_tool("add", {"a": 1, "b": 2}, into=int)

        with ThreadPoolExecutor(4) as pool:
            calls = [pool.submit(call) for _ in range(4)]
            begun.wait()
            client.close()
            for each in calls:
                assert isinstance(each.exception(20), (Disconnected, RuntimeError, CancelledError))


def test_it_has_what_the_client_has() -> None:
    """All but what only makes sense on a loop."""
    theirs = {name for name, _ in inspect.getmembers(Client) if not name.startswith("_")}
    ours = {name for name, _ in inspect.getmembers(SyncClient) if not name.startswith("_")}
    assert theirs - ours == {"aclose", "begin_forward", "forward", "watch"}
    assert ours - theirs == {"close"}
    for name in ours & theirs:
        one, other = getattr(Client, name), getattr(SyncClient, name)
        if inspect.isfunction(one):
            assert list(inspect.signature(one).parameters) == list(
                inspect.signature(other).parameters
            ), name
