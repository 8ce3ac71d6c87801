"""runtime/acceptor.py: many clients on one Host, in one process, over real sockets.

A client here is concertino's own.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import os
import resource
import socket
import tempfile
import weakref
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import uvloop
from loops import on_a_loop

from concertino import Disconnected, Limits, Server
from concertino.backend import Host
from concertino.client import RawClient
from concertino.runtime.acceptor import Acceptor
from concertino.transports import (
    connect,
    connect_tcp,
    connect_unix,
    listen_tcp,
    listen_unix,
    serve_connections,
)
from concertino.transports.connection import Connection
from concertino.transports.listeners import Listener


@pytest.fixture
def path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="s") as name:
        yield Path(name) / "s"


@pytest.fixture(autouse=True)
def _logs_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("concertino"), "propagate", True)


class Shop:
    """A server whose calls wait at one gate."""

    def __init__(self) -> None:
        self.server = Server("shop")
        self.gate = asyncio.Event()
        self.changed = asyncio.Event()
        self.waiting = 0
        self.cancelled = 0
        self.server.add_tool(self.wait)
        self.server.add_tool(self.echo)

    async def wait(self) -> str:
        self.waiting += 1
        self.changed.set()
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            self.changed.set()
            raise
        return "waited"

    async def echo(self, text: str) -> str:
        return text

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self.changed.clear()
            await self.changed.wait()


async def open_client(connection: Connection) -> RawClient:
    caller = connect(connection)
    await caller.request("initialize", {"protocolVersion": "2025-11-25"})
    return caller


async def call(caller: RawClient, tool: str, **arguments: Any) -> str:
    result = await caller.request("tools/call", {"name": tool, "arguments": arguments})
    return result["content"][0]["text"]


async def until(condition: Callable[[], bool]) -> None:
    """For what the next turns of this very loop bring about, or the kernel tells it; the test's own
    limit ends it.
    """
    while not condition():
        await asyncio.sleep(0)


def port(accepting: Acceptor, number: int = 0) -> int:
    return int(accepting.addresses[number].rpartition(":")[2])


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize(
    "loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"]
)
@on_a_loop
async def test_many_clients_at_several_listeners_share_one_backend(
    path: Path, loop_factory: Any
) -> None:
    before = open_descriptors()
    shop = Shop()
    async with Host(shop.server) as host:
        with serve_connections(
            host, listen_unix(path), listen_tcp("127.0.0.1", 0), listen_tcp("::1", 0)
        ) as accepting:
            makers: list[Callable[[], Coroutine[Any, Any, Connection]]] = [
                partial(connect_unix, path),
                partial(connect_tcp, "127.0.0.1", port(accepting, 1)),
                partial(connect_tcp, "::1", port(accepting, 2)),
            ]
            callers = [await open_client(await make()) for make in makers * 10]
            assert accepting.clients == len(host.connections) == 30
            waits = [asyncio.create_task(call(caller, "wait")) for caller in callers]
            await shop.until(lambda: shop.waiting == 30)
            echoes = await asyncio.gather(
                *(call(each, "echo", text=str(n)) for n, each in enumerate(callers))
            )
            assert echoes == [str(n) for n in range(30)]
            shop.gate.set()
            assert await asyncio.gather(*waits) == ["waited"] * 30
            for caller in callers:
                await caller.aclose()
            await until(lambda: accepting.clients == 0)
            assert host.connections == set()
    assert not path.exists()
    assert open_descriptors() == before


@on_a_loop
async def test_every_client_has_a_session_of_its_own(path: Path) -> None:
    async with Host(Shop().server) as host:
        with serve_connections(host, listen_unix(path)):
            first, second = (
                await open_client(await connect_unix(path)),
                connect(await connect_unix(path)),
            )
            with pytest.raises(Exception, match="neither initialize was seen"):
                await second.request("tools/list")
            assert (await first.request("tools/list"))["tools"]
            again = await second.request("initialize", {"protocolVersion": "2024-11-05"})
            assert again["protocolVersion"] == "2024-11-05"
            await first.aclose()
            await second.aclose()


@on_a_loop
async def test_a_change_is_told_to_every_client(path: Path) -> None:
    shop = Shop()
    told: list[int] = []
    async with Host(shop.server) as host:
        with serve_connections(host, listen_unix(path)):
            callers = []
            for number in range(3):
                caller = connect(
                    await connect_unix(path), lambda method, params, n=number: told.append(n)
                )
                await caller.request("initialize", {"protocolVersion": "2025-11-25"})
                caller.notify("notifications/initialized")
                await caller.request("ping")
                callers.append(caller)
            shop.server.remove_tool("echo")
            await until(lambda: sorted(told) == [0, 1, 2])
            for caller in callers:
                await caller.aclose()


@on_a_loop
async def test_a_silent_client_costs_its_descriptor_alone(path: Path) -> None:
    before = open_descriptors()
    async with Host(Shop().server) as host:
        with serve_connections(host, listen_unix(path)) as accepting:
            base = open_descriptors()
            silent = [await connect_unix(path) for _ in range(50)]
            await until(lambda: accepting.clients == 50)
            assert open_descriptors() == base + 100
            assert host.connections == set()
            caller = await open_client(silent.pop())
            assert len(host.connections) == 1
            assert accepting.clients == 50
            for connection in silent:
                await connection.close(0)
            await until(lambda: accepting.clients == 1)
            await caller.aclose()
    assert open_descriptors() == before


@on_a_loop
async def test_one_more_than_may_be_is_sent_away_until_another_leaves(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with Host(Shop().server, Limits(max_connections=2)) as host:
        with serve_connections(host, listen_unix(path)) as accepting:
            first = await open_client(await connect_unix(path))
            silent = await connect_unix(path)
            await until(lambda: accepting.clients == 2)
            with pytest.raises(Disconnected):
                await open_client(await connect_unix(path))
            assert [
                record.getMessage() for record in caplog.records if record.levelname == "WARNING"
            ] == [f"unix:{path}: a client was refused: 2 are connected, which is the maximum"]
            assert await call(first, "echo", text="still here") == "still here"
            await silent.close(0)
            await until(lambda: accepting.clients == 1)
            second = await open_client(await connect_unix(path))
            await first.aclose()
            await second.aclose()


def connect_silently(
    accepting: Acceptor, number: int = 0, source: str = "127.0.0.1"
) -> socket.socket:
    """A client at a TCP port that has sent nothing.

    It is connected, and accepted a moment later.
    """
    return socket.create_connection(
        ("127.0.0.1", port(accepting, number)), source_address=(source, 0)
    )


def is_gone(client: socket.socket) -> bool:
    client.setblocking(False)
    try:
        return client.recv(1) == b""
    except BlockingIOError:
        return False


@on_a_loop
async def test_silent_strangers_at_a_tcp_port_do_not_lock_the_owner_of_a_unix_socket_out(
    path: Path,
) -> None:
    async with Host(Shop().server, Limits(max_connections=4)) as host:
        with serve_connections(host, listen_tcp("127.0.0.1", 0), listen_unix(path)) as accepting:
            silent = [connect_silently(accepting) for _ in range(10)]
            await until(lambda: sum(map(is_gone, silent)) == 7)
            owners = [await open_client(await connect_unix(path)) for _ in range(4)]
            # Nor a client that speaks, at the same port.
            speaking = await open_client(await connect_tcp("127.0.0.1", port(accepting)))
            for caller in (*owners, speaking):
                assert await call(caller, "echo", text="x") == "x"
                await caller.aclose()
            for client in silent:
                client.close()


@on_a_loop
async def test_while_more_than_half_of_the_places_are_taken_the_oldest_silent_stranger_goes_first(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with Host(Shop().server) as host:
        with serve_connections(host, listen_tcp("127.0.0.1", 0), max_connections=8) as accepting:
            silent: list[socket.socket] = []
            for number in range(5):
                silent.append(connect_silently(accepting))
                await until(lambda number=number: accepting.clients == number + 1)
            # Half of them were taken when the fifth came, so nobody had to go.
            assert not any(map(is_gone, silent))
            assert caplog.text == ""

            speaking = [await open_client(await connect_tcp("127.0.0.1", port(accepting)))]
            assert [is_gone(client) for client in silent] == [True, False, False, False, False]
            speaking.append(await open_client(await connect_tcp("127.0.0.1", port(accepting))))
            assert [is_gone(client) for client in silent] == [True, True, False, False, False]
            assert accepting.clients == 5
            assert caplog.text.count("was disconnected: it has sent nothing") == 1
            for caller in speaking:
                await caller.aclose()
            for client in silent:
                client.close()


@on_a_loop
async def test_clients_that_have_spoken_stay_however_silent_they_are_now(path: Path) -> None:
    async with Host(Shop().server) as host:
        with serve_connections(host, listen_tcp("127.0.0.1", 0), max_connections=4) as accepting:
            hosts = [
                await open_client(await connect_tcp("127.0.0.1", port(accepting))) for _ in range(3)
            ]
            silent = [connect_silently(accepting, source="127.0.0.2") for _ in range(3)]
            await until(lambda: sum(map(is_gone, silent)) == 2)
            for caller in hosts:
                assert await call(caller, "echo", text="x") == "x"
                await caller.aclose()
            for client in silent:
                client.close()


@on_a_loop
async def test_a_client_whose_first_bytes_have_arrived_is_not_silent() -> None:
    async with Host(Shop().server) as host:
        with serve_connections(host, listen_tcp("127.0.0.1", 0), max_connections=64) as accepting:
            clients = [connect_silently(accepting, source=f"127.0.0.{n}") for n in range(1, 61)]
            # All of them before the loop has accepted the first one.
            for client in clients:
                client.sendall(b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n')
            await until(lambda: accepting.clients == 60)
            for client in clients:
                client.setblocking(False)
                answer = await asyncio.get_running_loop().sock_recv(client, 100)
                assert answer.startswith(b'{"jsonrpc":"2.0","id":1,')
                client.close()


@on_a_loop
async def test_one_address_gets_three_quarters_of_the_places(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with Host(Shop().server) as host:
        with serve_connections(host, listen_tcp("127.0.0.1", 0), max_connections=4) as accepting:
            callers = [
                await open_client(await connect_tcp("127.0.0.1", port(accepting))) for _ in range(3)
            ]
            with pytest.raises(Disconnected):
                await open_client(await connect_tcp("127.0.0.1", port(accepting)))
            assert (
                "a client was refused: 3 are connected from 127.0.0.1, which is the maximum for one"
                in caplog.text
            )
            other = connect_silently(accepting, source="127.0.0.2")
            await until(lambda: accepting.clients == 4)
            assert not is_gone(other)
            other.close()
            # The place of a client that leaves is free for another of the same address.
            await callers.pop().aclose()
            await until(lambda: accepting.clients == 2)
            callers.append(await open_client(await connect_tcp("127.0.0.1", port(accepting))))
            for caller in callers:
                await caller.aclose()


@on_a_loop
async def test_silent_processes_of_our_own_user_stay(path: Path) -> None:
    async with Host(Shop().server) as host:
        with serve_connections(host, listen_unix(path), max_connections=4) as accepting:
            silent = [await connect_unix(path) for _ in range(4)]
            await until(lambda: accepting.clients == 4)
            with pytest.raises(Disconnected):
                await open_client(await connect_unix(path))
            assert accepting.clients == 4
            callers = [await open_client(connection) for connection in silent]
            for caller in callers:
                await caller.aclose()


@on_a_loop
async def test_the_number_of_clients_may_be_given_to_accept(path: Path) -> None:
    async with Host(Shop().server) as host:
        with serve_connections(host, listen_unix(path), max_connections=1) as accepting:
            first = await open_client(await connect_unix(path))
            with pytest.raises(Disconnected):
                await open_client(await connect_unix(path))
            assert accepting.clients == 1
            await first.aclose()


@on_a_loop
async def test_closing_lets_nobody_in_and_those_inside_stay(path: Path) -> None:
    shop = Shop()
    async with Host(shop.server) as host:
        with serve_connections(host, listen_unix(path)) as accepting:
            caller = await open_client(await connect_unix(path))
            silent = connect(await connect_unix(path))
            await until(lambda: accepting.clients == 2)
        accepting.close()  # a second time
        with pytest.raises(FileNotFoundError):
            await connect_unix(path)
        assert await call(caller, "echo", text="x") == "x"
        with pytest.raises(Disconnected):
            await silent.request("ping")
        waiting = asyncio.create_task(call(caller, "wait"))
        await shop.until(lambda: shop.waiting == 1)
        asyncio.get_running_loop().call_soon(shop.gate.set)
    assert await waiting == "waited"  # leaving the host drained it
    await caller.aclose()
    await silent.aclose()


@on_a_loop
async def test_the_calls_of_a_client_that_is_gone_are_cancelled_and_no_others(path: Path) -> None:
    """Over a Unix socket at once; it is not a half-closed connection, whose calls get the drain
    time.
    """
    shop = Shop()
    async with Host(shop.server, Limits(drain_s=1000.0)) as host:
        with serve_connections(host, listen_unix(path)) as accepting:
            gone, stays = (
                await open_client(await connect_unix(path)),
                await open_client(await connect_unix(path)),
            )
            calls = [asyncio.create_task(call(caller, "wait")) for caller in (gone, gone, stays)]
            await shop.until(lambda: shop.waiting == 3)
            await gone.aclose()
            await shop.until(lambda: shop.cancelled == 2)
            await until(lambda: accepting.clients == 1)
            shop.gate.set()
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
            assert [type(outcome) for outcome in outcomes] == [Disconnected, Disconnected, str]
            await stays.aclose()


@on_a_loop
async def test_the_calls_of_a_tcp_client_that_is_gone_get_the_drain_time(path: Path) -> None:
    """TCP does not tell whether the other side is gone or only sends no more."""
    shop = Shop()
    async with Host(shop.server, Limits(drain_s=0.1)) as host:
        with serve_connections(host, listen_tcp("127.0.0.1", 0)) as accepting:
            gone = await open_client(await connect_tcp("127.0.0.1", port(accepting)))
            waiting = asyncio.create_task(call(gone, "wait"))
            await shop.until(lambda: shop.waiting == 1)
            await gone.aclose()
            await shop.until(lambda: shop.cancelled == 1)
            with pytest.raises(Disconnected):
                await waiting


@on_a_loop
async def test_a_client_that_is_gone_leaves_nothing_for_the_garbage_collector(path: Path) -> None:
    """Else memory grows with every client that ever was, until the oldest generation is collected:
    after 4,000,000 objects.
    """
    shop = Shop()
    async with Host(shop.server, Limits(drain_s=1000.0)) as host:
        with serve_connections(host, listen_unix(path)) as accepting:
            gc.disable()
            try:
                caller = await open_client(await connect_unix(path))
                await call(caller, "echo", text="x")
                waiting = asyncio.create_task(call(caller, "wait"))
                await shop.until(lambda: shop.waiting == 1)
                shop.gate.set()
                assert await waiting == "waited"
                left = [weakref.ref(link) for link in host.connections]
                left += [weakref.ref(link.session) for link in host.connections]  # pyright: ignore[reportArgumentType]
                assert len(left) == 2
                await caller.aclose()
                await until(lambda: accepting.clients == 0)
                for _ in range(3):
                    await asyncio.sleep(0)  # the last callbacks of the task that closed it
                assert [each() for each in left] == [None, None]
            finally:
                gc.enable()


@on_a_loop
async def test_fewer_than_one_client_makes_no_sense(path: Path) -> None:
    async with Host(Shop().server) as host:
        listener = listen_unix(path)
        with pytest.raises(ValueError, match="max_connections: expected a positive number, got 0"):
            serve_connections(host, listener, max_connections=0)
        listener.close()


@on_a_loop
async def test_a_stranger_is_sent_away(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("concertino.transports.listeners.is_trusted", lambda uid, own: False)
    async with Host(Shop().server) as host:
        with serve_connections(host, listen_unix(path)) as accepting:
            with pytest.raises(Disconnected):
                await open_client(await connect_unix(path))
            assert accepting.clients == 0
    assert f"unix:{path}: a client was refused: pid {os.getpid()} runs as uid" in caplog.text


@on_a_loop
async def test_a_client_gone_before_it_is_looked_at_harms_nobody(path: Path) -> None:
    async with Host(Shop().server) as host:
        with serve_connections(host, listen_unix(path), listen_tcp("127.0.0.1", 0)) as accepting:
            for _ in range(100):
                socket.create_connection(("127.0.0.1", port(accepting, 1))).close()
                with socket.socket(socket.AF_UNIX) as client:
                    client.connect(str(path))
            caller = await open_client(await connect_unix(path))
            await until(lambda: accepting.clients == 1)
            assert await call(caller, "echo", text="x") == "x"
            await caller.aclose()


@on_a_loop
async def test_without_descriptors_accepting_pauses_and_goes_on_when_there_are_some(
    path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "concertino.runtime.acceptor.PAUSE_S", 1000.0
    )  # only a client that leaves brings it about
    tries = 0
    accept_one = Listener.accept

    def count(self: Listener) -> socket.socket:
        nonlocal tries
        tries += 1
        return accept_one(self)

    monkeypatch.setattr(Listener, "accept", count)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with Host(Shop().server) as host:
        with serve_connections(host, listen_unix(path)) as accepting:
            first = await open_client(await connect_unix(path))
            waiting = connect(await connect_unix(path))  # this end is open already
            await until(lambda: accepting.clients == 2)
            third = await connect_unix(path)
            resource.setrlimit(resource.RLIMIT_NOFILE, (open_descriptors() - 1, limits[1]))
            try:
                await until(
                    lambda: "no client can be accepted for now: Too many open files" in caplog.text
                )
                before = tries
                for _ in range(100):
                    await asyncio.sleep(0)
                assert tries == before  # it does not spin
                assert await call(first, "echo", text="served") == "served"
                await waiting.aclose()
                await until(lambda: accepting.clients == 2)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            caller = await open_client(third)
            await caller.aclose()
            await first.aclose()
    assert caplog.text.count("no client can be accepted") == 1


@on_a_loop
async def test_after_a_refusal_of_the_system_accepting_is_tried_again_by_itself(
    path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("concertino.runtime.acceptor.PAUSE_S", 0.001)
    failures = [OSError(errno.ENOMEM, "Cannot allocate memory")] * 3 + [ConnectionAbortedError()]
    accept_one = Listener.accept

    def fail(self: Listener) -> socket.socket:
        if failures:
            raise failures.pop(0)
        return accept_one(self)

    monkeypatch.setattr(Listener, "accept", fail)
    async with Host(Shop().server) as host:
        with serve_connections(host, listen_unix(path)):
            caller = await open_client(await connect_unix(path))
            await caller.aclose()
    assert caplog.text.count("Cannot allocate memory") == 1


@on_a_loop
async def test_while_accepting_pauses_it_can_be_closed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Listener) -> socket.socket:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(Listener, "accept", fail)
    async with Host(Shop().server) as host:
        with serve_connections(host, listen_unix(path)) as accepting:
            client = await connect_unix(path)
            await until(lambda: accepting._pause_timer is not None)  # pyright: ignore[reportPrivateUsage]
        await client.close(0)
    assert not path.exists()


@on_a_loop
async def test_each_connection_can_be_wrapped_and_has_a_name(path: Path) -> None:
    names: list[str] = []
    facts: list[Any] = []

    def wrap(connection: Connection, name: str) -> Connection:
        names.append(name)
        facts.append(connection.facts["pid"])
        return connection

    async with Host(Shop().server) as host:
        with serve_connections(host, listen_unix(path), wrap=wrap):
            for _ in range(2):
                caller = await open_client(await connect_unix(path))
                await caller.aclose()
    assert names == ["client 1", "client 2"]
    assert facts == [os.getpid()] * 2


@on_a_loop
async def test_a_forked_child_holds_nothing_of_it(path: Path) -> None:
    async with Host(Shop().server) as host:
        with serve_connections(host, listen_unix(path)) as accepting:
            caller = await open_client(await connect_unix(path))
            silent = await connect_unix(path)
            await until(lambda: accepting.clients == 2)
            ours = [
                f"/proc/self/fd/{n}"
                for n in os.listdir("/proc/self/fd")
                if _is_socket(f"/proc/self/fd/{n}")
            ]
            pid = os.fork()
            if pid == 0:
                # What is left: the two clients' ends, which are this test's, and the loop's own
                # pair.
                os._exit(len([each for each in ours if _is_socket(each)]))
            left = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            assert len(ours) - left == 3  # the listener, a link, a silent client
            assert path.exists()
            assert await call(caller, "echo", text="x") == "x"
            await caller.aclose()
            await silent.close(0)


def _is_socket(path: str) -> bool:
    try:
        return os.readlink(path).startswith("socket:")
    except OSError:
        return False
