"""Results that clients do not read: the memory of a real server process, and who gets an answer.

The peak of the resident memory is what Linux records in /proc (VmHWM), in KiB.
"""

from __future__ import annotations

import json
import re
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from stdio.harness import INITIALIZE, INITIALIZED, Process, call, frame

MIB = 2**20
# What the issue of memory allows beside the budget, and the noise of an interpreter.
MARGIN = 64 * MIB
SERVER = """
import asyncio
import time
from concertino import Server

server = Server("unread")
begun = 0

@server.tool
async def big(size: int) -> str:
    # A call that waits, so that it is in flight while others start.
    global begun
    begun += 1
    await asyncio.sleep(0.01)
    return "x" * size

@server.tool
def slow(size: int) -> str:
    time.sleep(2)
    return "x" * size

@server.tool
def quick(size: int) -> str:
    return "x" * size

@server.tool
async def count() -> int:
    return begun"""


class Client:
    """A client on a socket that reads only when it is told to."""

    def __init__(self, path: Path) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(60)
        self.sock.connect(str(path))
        self._rest = b""
        self.send(INITIALIZE, INITIALIZED)
        assert self.read()["id"] == "initialize"

    def send(self, *messages: object) -> None:
        self.sock.sendall(b"".join(map(frame, messages)))

    def read(self) -> dict[str, Any]:
        return json.loads(self.read_line())

    def read_line(self, size: int = MIB) -> bytes:
        parts = [self._rest]
        while b"\n" not in parts[-1]:
            part = self.sock.recv(size)
            assert part, "the server closed the connection"
            parts.append(part)
        line, _, self._rest = b"".join(parts).partition(b"\n")
        return line

    def call(self, tool: str, **arguments: object) -> Any:
        self.send(call("own", tool, arguments))
        return self.read()["result"]["content"][0]["text"]

    def ping(self) -> None:
        self.send({"jsonrpc": "2.0", "id": "ping", "method": "ping"})
        assert self.read() == {"jsonrpc": "2.0", "id": "ping", "result": {}}


class Unread:
    """A server process, and clients of it."""

    def __init__(self, folder: Path, **environment: str) -> None:
        (folder / "server.py").write_text(SERVER)
        self.path = folder / "s"
        self.process = Process(
            ["-m", "concertino", "serve", str(folder / "server.py"), "--unix", str(self.path)],
            env={f"CONCERTINO_{name}": value for name, value in environment.items()},
            forked=False,
        )
        self._clients: list[Client] = []

    def __enter__(self) -> Unread:
        self.process.until_stderr("Listening on")
        self.good = self.client()
        self.at_rest = self.process.memory("VmHWM")
        return self

    def __exit__(self, *_: object) -> None:
        for client in self._clients:
            client.sock.close()
        self.process.__exit__()

    def client(self) -> Client:
        self._clients.append(Client(self.path))
        return self._clients[-1]

    def growth(self) -> int:
        return self.process.memory("VmHWM") - self.at_rest

    def wait_for_growth(self, size: int) -> None:
        """Wait until the results that fit are held, and a moment longer."""
        deadline = time.monotonic() + 60
        while self.process.memory() - self.at_rest < size:
            assert time.monotonic() < deadline
            self.good.ping()
        for _ in range(300):
            self.good.ping()

    def begun_at_rest(self) -> int:
        """Wait until no more calls begin; returns how many have."""
        before = -1
        while (now := int(self.good.call("count"))) != before or not now:
            before = now
            deadline = time.monotonic() + 0.3
            while time.monotonic() < deadline:
                self.good.ping()
        return before


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # A short path: that of a socket may have 107 bytes.
    return tmp_path_factory.mktemp("u")


def start_calls(client: Client, calls: int, size: int) -> None:
    client.send(*(call(id, "big", {"size": size}) for id in range(calls)))


def test_memory_is_bounded_and_every_result_comes_when_the_client_reads_at_last(
    folder: Path,
) -> None:
    with Unread(folder) as unread:
        client = unread.client()
        start_calls(client, 400, 10**6)
        assert unread.begun_at_rest() < 100
        assert unread.growth() < 64 * MIB + MARGIN

        ids: list[object] = []
        slowest = 0.0
        while len(ids) < 400:
            answer = client.read()
            assert len(answer["result"]["content"][0]["text"]) == 10**6
            ids.append(answer["id"])
            before = unread.process.main_thread_cpu_s()
            unread.good.ping()
            slowest = max(slowest, unread.process.main_thread_cpu_s() - before)
        assert sorted(ids) == list(range(400))
        assert unread.growth() < 64 * MIB + MARGIN
        # What the server computes before it answers a ping: some 10 ms, not a copy of all results.
        assert slowest < 0.25


def test_64_first_calls_of_the_largest_results_at_once_are_all_answered(folder: Path) -> None:
    with Unread(folder) as unread:
        client = unread.client()
        start_calls(client, 64, 10**7)
        sizes = [len(client.read_line()) for _ in range(64)]
        assert min(sizes) > 10**7
        assert unread.growth() < 64 * MIB + MARGIN


def test_results_beyond_the_budget_are_dropped_when_nobody_reads_and_say_that_the_tool_ran(
    folder: Path,
) -> None:
    limit = str(20 * MIB)
    with Unread(folder, MAX_UNREAD_BYTES=limit, DRAIN_S="0.3") as unread:
        # All start, since nothing is known of the tool yet. Two results fit, the others do not.
        client = unread.client()
        start_calls(client, 5, 9 * 10**6)
        assert unread.begun_at_rest() == 5
        unread.process.until_stderr("3 results were dropped: the client does not read")
        answers = [client.read() for _ in range(5)]
        assert sorted(answer["id"] for answer in answers) == list(range(5))
        assert sum("result" in answer for answer in answers) == 2
        for error in (answer["error"] for answer in answers if "error" in answer):
            assert error["code"] == -32603
            assert re.match(
                r"result of 9\d{6} bytes dropped: 20 MiB are unread; the call .* was carried out",
                error["message"],
            )


def test_slow_calls_in_threads_do_not_make_all_their_results_at_once(folder: Path) -> None:
    with Unread(folder) as unread:
        client = unread.client()
        client.send(*(call(id, "slow", {"size": 10**7}) for id in range(40)))
        # Six results of the first calls are held, and two have waited for drain_s.
        unread.process.until_stderr("results were dropped: the client does not read")
        # glibc's heaps of the threads keep some of what was freed: 70 MiB were seen at a high load.
        assert unread.growth() < 64 * MIB + MARGIN + 16 * MIB


def test_a_slow_reader_gets_results_that_wait_for_room(folder: Path) -> None:
    limit = str(20 * MIB)
    with Unread(folder, MAX_UNREAD_BYTES=limit, DRAIN_S="30") as unread:
        client = unread.client()
        start_calls(client, 4, 9 * 10**6)
        assert unread.begun_at_rest() == 4
        answers = [client.read() for _ in range(4)]
        assert sorted(answer["id"] for answer in answers) == list(range(4))
        assert all("result" in answer for answer in answers)


@pytest.mark.parametrize("tool", ["big", "quick"])
def test_however_slowly_a_client_reads_it_gets_all_results(folder: Path, tool: str) -> None:
    """As 200 results of 1 MB at 1 MB/s, with a budget of 64 MiB.

    The budget and the results are 16 times as small. After each 8 kB, the server answers the ping
    of another client, so it has always done what it can before the next bytes are read.
    """
    with Unread(folder, MAX_UNREAD_BYTES=str(4 * MIB), DRAIN_S="20") as unread:
        client = unread.client()
        client.send(*(call(id, tool, {"size": 64_000}) for id in range(200)))
        begun: list[int] = []
        ids: list[object] = []
        data = b""
        while len(ids) < 200:
            data += client.sock.recv(8000)
            unread.good.ping()
            *lines, data = data.split(b"\n")
            for line in lines:
                answer = json.loads(line)
                assert len(answer["result"]["content"][0]["text"]) == 64_000
                ids.append(answer["id"])
                begun.append(int(unread.good.call("count")))
        assert sorted(ids) == list(range(200))
        # Calls start while the client reads, and not all at the beginning.
        if tool == "big":
            assert begun[20] < 120
        assert unread.growth() < 4 * MIB + MARGIN


@pytest.mark.parametrize("tool", ["big", "quick"])
def test_large_results_of_a_tool_that_has_returned_64_small_ones_stay_within_the_budget(
    folder: Path, tool: str
) -> None:
    # The size of the results of `quick` is known when the event loop sees the first of them. On a
    # busy machine, each of the 32 threads has made one by then.
    limit = {"big": 64 * MIB, "quick": 32 * 5 * 10**6}[tool]
    with Unread(folder, DRAIN_S="0.3") as unread:
        client = unread.client()
        client.send(*(call(f"small {id}", tool, {"size": 1}) for id in range(64)))
        for _ in range(64):
            assert client.read()["result"]["content"][0]["text"] == "x"
        client.send(*(call(id, tool, {"size": 5 * 10**6}) for id in range(64)))
        unread.wait_for_growth(40 * MIB)
        assert unread.growth() < limit + MARGIN
        answers = [client.read() for _ in range(64)]
        assert sorted(answer["id"] for answer in answers) == list(range(64))
        results = [answer["result"] for answer in answers if "result" in answer]
        assert len(results) >= 8
        assert all(len(result["content"][0]["text"]) == 5 * 10**6 for result in results)
        errors = [answer["error"]["code"] for answer in answers if "error" in answer]
        assert set(errors) <= {-32603}
        assert unread.growth() < limit + MARGIN


def test_a_result_above_the_budget_of_the_process_comes_if_it_is_the_only_one(
    folder: Path,
) -> None:
    limit = str(MIB)
    with Unread(folder, MAX_UNREAD_BYTES=limit, MAX_UNREAD_BYTES_TOTAL=limit) as unread:
        client = unread.client()
        for _ in range(3):
            client.send(call("large", "big", {"size": 9 * 10**6}))
            before = unread.begun_at_rest()
            assert len(client.read()["result"]["content"][0]["text"]) == 9 * 10**6
        assert before == 3
        assert unread.growth() < MIB + MARGIN


def test_twenty_clients_that_do_not_read_stay_within_the_budget_of_the_process(
    folder: Path,
) -> None:
    with Unread(folder) as unread:
        clients = [unread.client() for _ in range(20)]
        for client in clients:
            start_calls(client, 100, 10**6)
        unread.begun_at_rest()
        assert unread.growth() < 256 * MIB + MARGIN
        assert unread.good.call("big", size=5 * 10**6) == "x" * 5 * 10**6


@pytest.mark.slow
@pytest.mark.parametrize(("size", "small_first"), [(2 * 10**6, False), (5 * 10**6, True)])
def test_60_clients_that_do_not_read_results_from_threads_stay_within_the_budget(
    folder: Path, size: int, small_first: bool
) -> None:
    with Unread(folder) as unread:
        clients = [unread.client() for _ in range(60)]
        if small_first:
            assert clients[0].call("quick", size=1) == "x"
        for client in clients:
            client.send(*(call(id, "quick", {"size": size}) for id in range(3)))
        unread.wait_for_growth(240 * MIB)
        assert unread.growth() < 256 * MIB + MARGIN
        # Clients that read get results of other tools.
        assert unread.good.call("big", size=10**6) == "x" * 10**6
        # All calls are answered at last, also those that were kept back.
        for client in clients:
            answers = [client.read() for _ in range(3)]
            assert sorted(answer["id"] for answer in answers) == list(range(3))
            errors = [answer["error"]["code"] for answer in answers if "error" in answer]
            assert set(errors) <= {-32603}


@pytest.mark.slow
def test_a_slow_reader_gets_all_results_of_a_tool_whose_first_result_was_small(
    folder: Path,
) -> None:
    with Unread(folder) as unread:
        client = unread.client()
        assert client.call("quick", size=1) == "x"
        client.send(*(call(id, "quick", {"size": 10**6}) for id in range(200)))
        unread.wait_for_growth(55 * MIB)
        answers = [client.read() for _ in range(200)]
        assert sorted(answer["id"] for answer in answers) == list(range(200))
        assert all(len(answer["result"]["content"][0]["text"]) == 10**6 for answer in answers)
        assert unread.growth() < 64 * MIB + MARGIN
