"""NatsCluster: keeps a connection to one of the servers of a NATS cluster.

Each process of a hub or plugin in a cluster has one NatsCluster (orchestra/nats_cluster.py).

When the connection is lost, NatsCluster connects to another server. It does not send any message
again: a message that was published before the loss may have arrived, and only its sender knows
whether the message may be repeated.

When a server announces that it will shut down (lame-duck mode), a connection to another server
replaces the current connection at once. The old connection stays open until the calls that use it
have ended.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from math import inf

from msgspec.structs import replace

from concertino.errors import Disconnected
from concertino.nats.connection import CONNECT_S, NatsConnection, NotAuthorized, open_connection
from concertino.nats.protocol import ServerInfo
from concertino.nats.servers import NatsOptions, NatsServer

__all__ = ["NatsCluster"]

log = logging.getLogger("concertino.nats")

# The default time limit of open(), in seconds.
OPEN_S = 5.0
# The first and the longest pause before the servers are tried again, in seconds. The pause is
# doubled each time. It stays short, so that calls are answered soon after a server has come back.
FIRST_S, LAST_S = 0.05, 0.25
# The time in which servers tell each other of new subscriptions, in seconds. A connection that is
# replaced keeps its subscriptions for this time, so that every subject always has a subscriber.
HANDOVER_S = 0.25
# How long a connection that was replaced is kept for calls that still use it, in seconds.
RETIRE_S = 30.0


class NatsCluster:
    """Connects to one of several servers, and reconnects. Use it on one event loop.

        cluster = NatsCluster(parse_servers("nats://a,b,c"), NatsOptions(name="tools.notes"))
        cluster.on_connect.append(begin_to_subscribe)
        await cluster.open()
        # Raises Disconnected while no server can be reached.
        cluster.connection.publish("subject", b"payload")

    servers: the servers to try, in random order.
    options: how to connect to each of them.

    Attributes:
    id: eight random hexadecimal digits, which tell processes of the same name apart.
    on_connect: functions to call with each new connection, for example to subscribe on it. A
        function that is added later is not called with the current connection.
    on_retire: functions to call with an old connection after a new connection has replaced it. The
        functions should end the subscriptions that bring new requests. Calls in progress may still
        use the old connection.
    """

    def __init__(self, servers: Sequence[NatsServer], options: NatsOptions) -> None:
        self.id = secrets.token_hex(4)
        self.on_connect: list[Callable[[NatsConnection], None]] = []
        self.on_retire: list[Callable[[NatsConnection], None]] = []
        self._servers = servers
        self._options = replace(options, name=f"{options.name} {self.id}")
        self._connection: NatsConnection | None = None
        # Why there is no connection, or why the last attempt to connect has failed.
        self._failure = Disconnected("not connected yet")
        # The task that reconnects, see _supervise().
        self._supervision: asyncio.Task[None] | None = None
        # Set when the server of the current connection is about to shut down.
        self._is_lame = asyncio.Event()
        # Each connection that was replaced and is still open -> the task that closes it.
        self._retired: dict[NatsConnection, asyncio.Task[None]] = {}
        # How many calls in progress use a connection.
        self._uses: dict[NatsConnection, int] = {}

    @property
    def connection(self) -> NatsConnection:
        """The current connection. Raises Disconnected while there is none."""
        connection = self._connection
        if connection is None or connection.ended.done():
            # Nothing reconnects before open() and after close().
            rest = "" if self._supervision is None else "; it is tried again"
            raise Disconnected(f"the cluster cannot be reached: {self._failure}{rest}")
        return connection

    @property
    def is_up(self) -> bool:
        """Whether there is a connection."""
        return self._connection is not None and not self._connection.ended.done()

    async def open(self, timeout_s: float = OPEN_S) -> None:
        """Connect to one of the servers, and keep connected in the background until close().

        timeout_s: how long to try, in seconds; the last attempt may end later. Each server gets an
            equal part of this time, so that a silent server leaves time for the others.

        Raises these exceptions, after which nothing runs in the background:
            Disconnected: no server accepts a connection in this time.
            NotAuthorized: the server that was tried last refuses this client.
            ImportError: the options have a key, and the extra `nats` is not installed.
            ConcertinoError: the key is not valid.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout_s
        attempt_s = min(CONNECT_S, timeout_s / len(self._servers))
        pause = FIRST_S
        while (connection := await self._try_servers(self._servers, attempt_s, until)) is None:
            if isinstance(self._failure, NotAuthorized) or loop.time() + pause > until:
                raise self._failure
            await asyncio.sleep(pause)
            pause = min(LAST_S, 2 * pause)
        self._begin(connection)
        self._supervision = loop.create_task(self._supervise(), name="NATS connection")

    async def close(self) -> None:
        """Send the remaining output, disconnect, and do not connect again."""
        tasks = [task for task in (self._supervision, *self._retired.values()) if task is not None]
        connections = [item for item in (self._connection, *self._retired) if item is not None]
        self._supervision = None
        self._connection, self._failure = None, Disconnected("the connection was closed")
        # Cancel the tasks and begin to close before the first await: if the task that calls this
        # method is cancelled there, the rest of this method does not run.
        for task in tasks:
            task.cancel()
        for connection in connections:
            connection.begin_close()
        if tasks:
            await asyncio.wait(tasks)
        for connection in connections:
            await connection.close()

    def begin_use(self, connection: NatsConnection) -> None:
        """Count a use of a connection, such as a call in progress. Call end_use() after the use.

        A connection that is replaced stays open until all its uses have ended, at most 30 seconds.
        """
        self._uses[connection] = self._uses.get(connection, 0) + 1

    def end_use(self, connection: NatsConnection) -> None:
        """End a use of a connection that begin_use() has counted."""
        remaining = self._uses.get(connection, 0) - 1
        if remaining > 0:
            self._uses[connection] = remaining
        else:
            self._uses.pop(connection, None)

    # The connection

    async def _supervise(self) -> None:
        """Replace the connection whenever it ends, or its server is about to shut down."""
        while True:
            connection = self._connection
            if connection is not None:
                await self._until_replacement(connection)
                if connection.ended.done():
                    reason = connection.ended.result()
                    self._connection, self._failure = None, Disconnected(reason)
                    log.warning("%s: %s; another server is tried", connection.server, reason)
            await self._replace(connection)

    async def _until_replacement(self, connection: NatsConnection) -> None:
        """Wait until a connection has ended, or its server is about to shut down."""
        lame = asyncio.ensure_future(self._is_lame.wait())
        try:
            await asyncio.wait((lame, connection.ended), return_when=asyncio.FIRST_COMPLETED)
        finally:
            lame.cancel()

    async def _replace(self, old: NatsConnection | None) -> None:
        """Try servers until one accepts a connection, and use it from then on.

        old: the connection to replace, which may have ended; None if there is none.
        """
        pause = FIRST_S
        while True:
            candidates = self._candidates(old)
            new = await self._try_servers(candidates)
            if new is not None:
                break
            # The pause has a random part, so that the clients of a lost server do not all connect
            # at the same time.
            await asyncio.sleep(pause * random.uniform(1, 1.25))
            pause = min(LAST_S, 2 * pause)
        # The old server may have announced its shutdown again while others were tried.
        self._is_lame.clear()
        self._begin(new)
        log.info("connected to %s", new.server)
        if old is not None and not old.ended.done():
            self._retire(old, new)

    def _candidates(self, old: NatsConnection | None) -> Sequence[NatsServer]:
        """Return the servers to try, without the server of `old` if it is about to shut down."""
        # If it is the only server, wait until `old` has ended. Then the server may have been
        # started again.
        if old is None or old.ended.done() or not old.info.lame_duck:
            return self._servers
        return [server for server in self._servers if server != old.server]

    async def _try_servers(
        self, servers: Sequence[NatsServer], attempt_s: float = CONNECT_S, until: float = inf
    ) -> NatsConnection | None:
        """Try each server once, in random order. Returns the first connection that succeeds.

        attempt_s: the time limit for each server, in seconds.
        until: a time of the event loop's clock, after which no attempt begins.
        Returns None if no server accepts a connection.
        """
        for server in random.sample(servers, len(servers)):
            if asyncio.get_running_loop().time() >= until:
                break
            try:
                connection = await open_connection(server, self._options, attempt_s)
            except Disconnected as exc:
                self._failure = exc
                continue
            # A server that is about to shut down is used only if there is no other one.
            if connection.info.lame_duck and len(servers) > 1:
                await connection.close()
                continue
            return connection
        return None

    def _begin(self, connection: NatsConnection) -> None:
        """Use a new connection from now on."""
        self._connection = connection
        connection.on_info = partial(self._on_info, connection)
        self._on_info(connection, connection.info)
        for callback in self.on_connect:
            callback(connection)

    def _on_info(self, connection: NatsConnection, info: ServerInfo) -> None:
        # Servers also announce a shutdown on connections that were already replaced.
        if info.lame_duck and connection is self._connection:
            self._is_lame.set()

    def _retire(self, old: NatsConnection, new: NatsConnection) -> None:
        """Keep a connection until the calls that use it have ended, at most RETIRE_S."""
        task = asyncio.get_running_loop().create_task(self._hand_over(old, new))
        self._retired[old] = task
        task.add_done_callback(lambda _: self._retired.pop(old, None))

    async def _hand_over(self, old: NatsConnection, new: NatsConnection) -> None:
        """Move subscribers to the new connection, and close the old one when no call uses it."""
        # Wait until all servers know the subscriptions on the new connection.
        with suppress(Disconnected):
            await new.flush()
            await asyncio.sleep(HANDOVER_S)
        loop = asyncio.get_running_loop()
        until = loop.time() + RETIRE_S
        if not old.ended.done():
            for callback in self.on_retire:
                callback(old)
            # Receive the messages that the server has sent before it handled the end of the
            # subscriptions.
            with suppress(Disconnected):
                await old.flush()
        # Poll `_uses`: if end_use() set an asyncio.Event, each call would take longer.
        while old in self._uses and not old.ended.done() and loop.time() < until:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        await old.close()
