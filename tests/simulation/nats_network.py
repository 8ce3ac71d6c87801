"""Simulated NATS servers and the network between them and processes, on the virtual loop.

    network = Network(loop, dice, servers=3, process_names=["caller", "worker 0"])
    loop.create_connection = network.create_connection
    NatsCluster(parse_servers(network.address_for("caller")), ...)

The real NatsConnection talks to these servers in bytes, which pass as TCP passes them: in order,
late, and in pieces. What TCP and NATS can lose is lost: bytes on their way when an end dies or
gives up, messages between two servers whose route breaks, and requests for a worker that has just
left.
A partition holds bytes back; they arrive late if it ends before one side has given up.

Source: docs.nats.io, "Client Protocol" and "Clustering"; nats_server_model.py has the servers.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, cast

from simulation.dice import Dice
from simulation.nats_server_model import Delivery, ModelServer, ServerSide

__all__ = ["Network", "ProcessModel"]

# How long a message takes; all that TCP promises is order.
LATENCIES_S = (0.0002, 0.0002, 0.0005, 0.002, 0.02)
# How long two servers need to notice that their route is cut, at most.
ROUTE_LOST_S = 2.0


class Pipe:
    """One direction of a connection: delivers bytes or messages in order, and later.

    is_cut: whether a partition holds everything back now.
    """

    def __init__(
        self, network: Network, deliver: Callable[[Any], None], is_cut: Callable[[], bool]
    ) -> None:
        self.held_bytes = 0
        self._network = network
        self._deliver = deliver
        self._is_cut = is_cut
        self._items: deque[tuple[float, Any]] = deque()
        self._last = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    def send(self, item: Any) -> None:
        """Send bytes, or a message of a route."""
        if self._is_closed:
            return
        loop = self._network.loop
        self._last = max(self._last, loop.time() + self._network.latency())
        self._items.append((self._last, item))
        if isinstance(item, bytes):
            self.held_bytes += len(item)
        if self._timer is None:
            self._timer = loop.call_at(self._last, self.pump)

    def pump(self) -> None:
        """Deliver what has arrived. Call this also when a partition has ended."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._is_closed or self._is_cut():
            return
        loop = self._network.loop
        now = loop.time()
        arrived: list[Any] = []
        while self._items and self._items[0][0] <= now:
            arrived.append(self._items.popleft()[1])
        if arrived and isinstance(arrived[0], bytes):
            count = next((n for n, item in enumerate(arrived) if item is None), len(arrived))
            # The end of the connection is delivered after all bytes.
            self._items.extendleft((now, item) for item in reversed(arrived[count:]))
            arrived = self._cut_bytes(b"".join(arrived[:count]))
        for item in arrived:
            if not self._is_closed:
                self._deliver(item)
        if self._items and self._timer is None and not self._is_closed:
            self._timer = loop.call_at(self._items[0][0], self.pump)

    def _cut_bytes(self, data: bytes) -> Sequence[bytes]:
        """Return what one read gets. Sometimes the rest comes a moment later."""
        dice = self._network.dice
        if len(data) > 1 and dice.chance(0.1):
            size = 1 + dice.below(len(data) - 1)
            self._items.appendleft((self._network.loop.time() + 1e-4, data[size:]))
            data = data[:size]
        self.held_bytes -= len(data)
        return [data]

    def drop(self) -> None:
        """Lose everything on its way, and deliver nothing more."""
        self._is_closed = True
        self._items.clear()
        self.held_bytes = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def is_empty(self) -> bool:
        return not self._items


class ProcessModel:
    """A process: its network connections. is_alive: False after kill()."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_alive = True
        self.links: dict[ClientTransport, None] = {}

    def kill(self) -> None:
        """Kill the process: it sends nothing more, and the servers see its connections end."""
        self.is_alive = False
        for link in list(self.links):
            link.vanish()


class ClientTransport(asyncio.Transport):
    """The transport that a NatsConnection gets: a TCP connection to a server."""

    def __init__(
        self,
        network: Network,
        process: ProcessModel,
        server: ModelServer,
        protocol: asyncio.Protocol,
    ) -> None:
        super().__init__()
        self._network = network
        self._process = process
        self.server = server
        self._protocol = protocol
        self._high = 1 << 16
        self._is_paused = False
        self._is_closing = False

        def is_cut() -> bool:
            return network.is_partitioned(process.name, server.name)

        self._up = Pipe(network, self._on_sent, is_cut)
        self._down = Pipe(network, self._on_received, is_cut)
        self._side = ServerSide(server, self._down.send, self._on_server_close)
        process.links[self] = None
        protocol.connection_made(self)
        server.attach(self._side)

    # asyncio.Transport

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = high or self._high

    def get_write_buffer_size(self) -> int:
        return max(0, self._up.held_bytes - self._network.socket_bytes)

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        if self._is_closing or not self._process.is_alive:
            return
        self._up.send(bytes(data))
        if not self._is_paused and self.get_write_buffer_size() > self._high:
            self._is_paused = True
            self._protocol.pause_writing()

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        """Send what is left, and then the end."""
        if not self._is_closing:
            self._is_closing = True
            self._down.drop()
            self._up.send(None)
            self._end_soon(None)

    def abort(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._down.drop()
            self._reset()
            self._end_soon(None)

    # The network

    def pump(self) -> None:
        """Go on after a partition."""
        self._up.pump()
        self._down.pump()

    def vanish(self) -> None:
        """End with the process: what it has sent may still arrive, or not."""
        self._is_closing = True
        self._down.drop()
        if self._network.dice.chance(0.5):
            self._up.send(None)
        else:
            self._reset()
        self._process.links.pop(self, None)

    def _reset(self) -> None:
        """Lose what is on its way, and let the server notice that, if it can be reached."""
        self._up.drop()
        self._up = Pipe(
            self._network,
            self._on_sent,
            lambda: self._network.is_partitioned(self._process.name, self.server.name),
        )
        self._up.send(None)
        self._network.orphans[self] = None

    def _on_sent(self, data: bytes | None) -> None:
        if data is None:
            self._network.orphans.pop(self, None)
            self.server.detach(self._side)
            self._up.drop()
            return
        self.server.receive(self._side, data)
        if self._is_paused and self.get_write_buffer_size() <= self._high // 4:
            self._is_paused = False
            if not self._is_closing:
                self._protocol.resume_writing()

    def _on_received(self, data: bytes | None) -> None:
        if self._is_closing:
            return
        if data is None:
            self._is_closing = True
            self._up.drop()
            self._end(None)
        elif data == RESET:
            self._is_closing = True
            self._up.drop()
            self._end(ConnectionResetError("reset by peer"))
        else:
            self._protocol.data_received(data)

    def _on_server_close(self) -> None:
        """The server closes the connection, or has been killed."""
        if self._network.dice.chance(0.5):
            # What is on its way is lost, too.
            self._up.drop()
            self._down.drop()
            if not self._is_closing:
                self._down = Pipe(
                    self._network,
                    self._on_received,
                    lambda: self._network.is_partitioned(self._process.name, self.server.name),
                )
                self._down.send(RESET)
        else:
            self._up.drop()
            self._down.send(None)

    def _end_soon(self, exc: Exception | None) -> None:
        self._network.loop.call_soon(self._end, exc)

    def _end(self, exc: Exception | None) -> None:
        self._process.links.pop(self, None)
        self._protocol.connection_lost(exc)


# In place of bytes: the connection was reset.
RESET = b"\0reset"


class Network:
    """The servers, the processes, and what lies between them.

    socket_bytes: how much output the system takes before a transport holds it.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, dice: Dice, server_names: Sequence[str]
    ) -> None:
        self.loop = loop
        self.dice = dice
        self.socket_bytes = 1 << 16
        self.latencies_s: Sequence[float] = LATENCIES_S
        self.say: Callable[[str], None] = _ignore
        self.processes: dict[str, ProcessModel] = {}
        # Connections whose process has given up, while the server does not know.
        self.orphans: dict[ClientTransport, None] = {}
        self.servers = {name: ModelServer(name, loop, dice, self._say) for name in server_names}
        self._partitions: set[frozenset[str]] = set()
        self._routes: dict[tuple[str, str], Pipe] = {}
        for name in server_names:
            self._connect_routes(name)

    def _say(self, text: str) -> None:
        self.say(text)

    def latency(self) -> float:
        return self.dice.pick(self.latencies_s) * (0.5 + self.dice.fraction())

    # Processes

    def add_process(self, name: str) -> ProcessModel:
        process = self.processes[name] = ProcessModel(name)
        return process

    def address_for(self, process: str) -> str:
        """Return the addresses of all servers, by which the process is known that connects."""
        return "nats://" + ",".join(f"{name}.{process}" for name in self.servers)

    async def create_connection(
        self, factory: Callable[[], asyncio.Protocol], host: str, port: int, **options: Any
    ) -> tuple[ClientTransport, asyncio.Protocol]:
        """Connect, as the loop's method of the same name."""
        server_name, _, process_name = host.partition(".")
        server, process = self.servers[server_name], self.processes[process_name]
        await asyncio.sleep(self.latency())
        while not process.is_alive or self.is_partitioned(process_name, server_name):
            # No answer, as from a machine that is gone. The caller has a time limit.
            await asyncio.sleep(0.5)
        if not server.is_listening:
            raise ConnectionRefusedError(111, "Connection refused")
        protocol = factory()
        return ClientTransport(self, process, server, protocol), protocol

    # Faults

    def is_partitioned(self, a: str, b: str) -> bool:
        return frozenset((a, b)) in self._partitions

    def partition(self, a: str, b: str) -> None:
        """Hold back everything between a process and a server, or between two servers."""
        self.say(f"no bytes pass between {a} and {b}")
        self._partitions.add(frozenset((a, b)))
        if a in self.servers and b in self.servers:
            lost_s = ROUTE_LOST_S * self.dice.fraction()
            for one, other in ((a, b), (b, a)):
                route = self._routes.pop((one, other), None)
                if route is not None:
                    route.drop()
                self.loop.call_later(lost_s, self._lose_route, one, other)

    def heal(self, a: str, b: str) -> None:
        """End a partition."""
        pair = frozenset((a, b))
        if pair not in self._partitions:
            return
        self.say(f"bytes pass again between {a} and {b}")
        self._partitions.discard(pair)
        if a in self.servers and b in self.servers:
            self._lose_route(a, b)
            self._lose_route(b, a)
            self._connect_routes(a)
        links = [link for process in self.processes.values() for link in process.links]
        for link in (*links, *self.orphans):
            # From the loop, as a read is: a task may be running now.
            self.loop.call_soon(link.pump)

    def _lose_route(self, one: str, other: str) -> None:
        if (one, other) not in self._routes:
            self.servers[one].remove_route(other)

    def kill_server(self, name: str) -> None:
        """Kill a server. What is on its way to and from it is lost."""
        self.say(f"server {name} is killed")
        for key in [key for key in self._routes if name in key]:
            self._routes.pop(key).drop()
            other = key[1] if key[0] == name else key[0]
            self.loop.call_later(self.latency(), self._lose_route, other, name)
        self.servers[name].kill()

    def start_server(self, name: str) -> None:
        """Start a server again."""
        self.say(f"server {name} is started")
        self.servers[name].start()
        self._connect_routes(name)

    def _connect_routes(self, name: str) -> None:
        """Connect a server to the others, as far as they can be reached."""
        for other in self.servers:
            if (
                other != name
                and (name, other) not in self._routes
                and self.servers[name].is_alive
                and self.servers[other].is_alive
                and not self.is_partitioned(name, other)
            ):
                pipes: list[Pipe] = []
                for one, peer in ((name, other), (other, name)):
                    deliver = self._receiver(self.servers[peer], one)
                    pipe = self._routes[one, peer] = Pipe(self, deliver, lambda: False)
                    pipes.append(pipe)
                for one, peer in ((name, other), (other, name)):
                    self.servers[one].add_route(peer, self._routes[one, peer].send)

    def _receiver(self, server: ModelServer, peer: str) -> Callable[[Any], None]:
        def deliver(item: Any) -> None:
            if server.is_alive:
                server.receive_routed(peer, cast("Delivery | tuple[str, str, int]", item))

        return deliver


def _ignore(text: str) -> None:
    pass
