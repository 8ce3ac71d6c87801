"""The simulated NATS server: what it does with the bytes of its clients, and of other servers.

It parses the client protocol by itself, so nothing of it comes from concertino.nats. A server picks
one member of each queue group at random, its own clients or other servers' alike. It tells the
other servers what its clients subscribe to, over the same routes as the messages. A message that
reaches it for a member that has just left is lost.

Source: docs.nats.io, "Client Protocol", "Queue Groups", "Lame Duck Mode"; ADR-4 for headers.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from simulation.dice import Dice

__all__ = ["LAME_S", "Delivery", "ModelServer", "ServerSide"]

# How often a server pings its clients, and how many pings may be unanswered.
PING_S = 2.0
MAX_PINGS = 2
# How long a server in lame-duck mode keeps its clients.
LAME_S = 10.0
NO_RESPONDERS = b"NATS/1.0 503\r\n\r\n"


@dataclass(slots=True)
class Delivery:
    """A message between two servers. queues: the groups of which the receiver picks a member."""

    subject: str
    reply: str
    headers: bytes
    payload: bytes
    queues: list[str]


@dataclass(slots=True)
class Interest:
    """Someone wants messages of a subject: a client's subscription, or another server's.

    count: how many subscriptions of the other server this stands for.
    """

    pattern: tuple[str, ...]
    queue: str
    count: int = 1

    def matches(self, subject: tuple[str, ...]) -> bool:
        pattern = self.pattern
        return len(pattern) == len(subject) and all(
            part in ("*", token) for part, token in zip(pattern, subject, strict=True)
        )


class ServerSide:
    """A connection, as the server sees it.

    send: sends bytes to the client. on_close: called when the server closes the connection.
    """

    def __init__(
        self,
        server: ModelServer,
        send: Callable[[bytes], None],
        on_close: Callable[[], None],
    ) -> None:
        self.server = server
        self.send = send
        self.on_close = on_close
        self.subscriptions: dict[int, Interest] = {}
        self.pings = 0
        self.buffer = bytearray()
        self.timer: asyncio.TimerHandle | None = None


class ModelServer:
    """A server. say: is told what happens."""

    def __init__(
        self, name: str, loop: asyncio.AbstractEventLoop, dice: Dice, say: Callable[[str], None]
    ) -> None:
        self.name = name
        self.is_alive = True
        self.is_lame = False
        # Whether it ends connections as soon as they are open, as a server that is full does.
        self.is_full = False
        # How many requests of other servers were lost, because the last member here had just left.
        self.lost_requests = 0
        # Called with each message that a client publishes.
        self.on_publish: Callable[[Delivery], None] = _ignore
        self._loop = loop
        self._dice = dice
        self._say = say
        self._sides: dict[ServerSide, None] = {}
        self._routes: dict[str, Callable[[Any], None]] = {}
        self._remote: dict[str, dict[tuple[str, str], Interest]] = {}
        self._lame_timer: asyncio.TimerHandle | None = None

    @property
    def is_listening(self) -> bool:
        return self.is_alive and not self.is_lame

    # Life

    def kill(self) -> None:
        self.is_alive = False
        if self._lame_timer is not None:
            self._lame_timer.cancel()
        for side in list(self._sides):
            self._drop(side)
        self._routes.clear()
        self._remote.clear()

    def start(self) -> None:
        self.is_alive, self.is_lame = True, False

    def begin_lame_duck(self, on_end: Callable[[str], None]) -> None:
        """Tell the clients to leave. on_end: called when the server ends."""
        self._say(f"server {self.name} is about to shut down")
        self.is_lame = True
        for side in self._sides:
            side.send(self._info())
        self._lame_timer = self._loop.call_later(LAME_S, on_end, self.name)

    # Clients

    def _info(self) -> bytes:
        members = {"server_id": self.name, "headers": True, "max_payload": 1 << 20}
        if self.is_lame:
            members["ldm"] = True
        return b"INFO %b\r\n" % json.dumps(members).encode()

    def attach(self, side: ServerSide) -> None:
        """Accept a connection."""
        if not self.is_listening:
            side.on_close()
            return
        self._sides[side] = None
        side.send(self._info())
        side.timer = self._loop.call_later(PING_S, self._ping, side)

    def detach(self, side: ServerSide) -> None:
        """Forget a connection that the client has ended."""
        if self._sides.pop(side, side) is side:
            return
        self._forget(side)

    def _drop(self, side: ServerSide) -> None:
        """Close a connection."""
        del self._sides[side]
        self._forget(side)
        side.on_close()

    def _forget(self, side: ServerSide) -> None:
        if side.timer is not None:
            side.timer.cancel()
        for interest in side.subscriptions.values():
            self._announce(interest, -1)
        side.subscriptions.clear()

    def _ping(self, side: ServerSide) -> None:
        side.pings += 1
        if side.pings > MAX_PINGS:
            self._say(f"server {self.name} drops a silent client")
            self._drop(side)
            return
        side.send(b"PING\r\n")
        side.timer = self._loop.call_later(PING_S, self._ping, side)

    def receive(self, side: ServerSide, data: bytes) -> None:
        """Handle bytes of a client."""
        if side not in self._sides:
            return
        buffer = side.buffer
        buffer += data
        while side in self._sides:
            line, found, _ = bytes(buffer).partition(b"\r\n")
            if not found:
                return
            name, *fields = line.decode().split()
            size = len(line) + 2
            if name in ("PUB", "HPUB"):
                total = int(fields[-1])
                if len(buffer) < size + total + 2:
                    return
                body = bytes(buffer[size : size + total])
                del buffer[: size + total + 2]
                self._on_publish(side, name, fields, body)
                continue
            del buffer[:size]
            if name == "PING":
                refusal = b"-ERR 'maximum connections exceeded'\r\n" if self.is_full else b""
                side.send(b"PONG\r\n" + refusal)
                if refusal:
                    self._drop(side)
            elif name == "PONG":
                side.pings = 0
            elif name == "SUB":
                interest = Interest(
                    tuple(fields[0].split(".")), fields[1] if len(fields) > 2 else ""
                )
                side.subscriptions[int(fields[-1])] = interest
                self._announce(interest, 1)
            elif name == "UNSUB":
                interest = side.subscriptions.pop(int(fields[0]), None)
                if interest is not None:
                    self._announce(interest, -1)
            elif name != "CONNECT":
                raise AssertionError(f"the simulated server does not know {line!r}")

    def _on_publish(self, side: ServerSide, name: str, fields: list[str], body: bytes) -> None:
        header_size = int(fields[-2]) if name == "HPUB" else 0
        subject, *reply = fields[: -2 if name == "HPUB" else -1]
        delivery = Delivery(
            subject, reply[0] if reply else "", body[:header_size], body[header_size:], []
        )
        self._say(f"{self.name}: {subject} {delivery.reply} {delivery.headers!r}")
        self.on_publish(delivery)
        if not self._deliver(delivery) and delivery.reply:
            # Only to the one who has asked.
            answer = Delivery(delivery.reply, "", NO_RESPONDERS, b"", [])
            subject_parts = tuple(delivery.reply.split("."))
            for sid, interest in side.subscriptions.items():
                if interest.matches(subject_parts):
                    self._send(side, sid, answer)
                    return

    # Messages

    def _deliver(self, delivery: Delivery) -> bool:
        """Send a client's message to all who want it. Returns whether there is anyone."""
        subject = tuple(delivery.subject.split("."))
        groups: dict[str, list[tuple[ServerSide | str, int]]] = {}
        plain: list[tuple[ServerSide, int]] = []
        for side, sid, interest in self._local(subject):
            if interest.queue:
                groups.setdefault(interest.queue, []).append((side, sid))
            else:
                plain.append((side, sid))
        remote: dict[str, list[str]] = {}
        for name, interests in self._remote.items():
            for interest in interests.values():
                if not interest.matches(subject):
                    continue
                if interest.queue:
                    groups.setdefault(interest.queue, []).append((name, 0))
                else:
                    remote.setdefault(name, [])
        for queue, members in groups.items():
            target, sid = self._dice.pick(members)
            if isinstance(target, str):
                remote.setdefault(target, []).append(queue)
            else:
                plain.append((target, sid))
        for side, sid in plain:
            self._send(side, sid, delivery)
        for name, queues in remote.items():
            self._routes[name](
                Delivery(
                    delivery.subject, delivery.reply, delivery.headers, delivery.payload, queues
                )
            )
        return bool(plain or remote)

    def _local(self, subject: tuple[str, ...]) -> Iterator[tuple[ServerSide, int, Interest]]:
        for side in self._sides:
            for sid, interest in side.subscriptions.items():
                if interest.matches(subject):
                    yield side, sid, interest

    def _send(self, side: ServerSide, sid: int, delivery: Delivery) -> None:
        reply = f"{delivery.reply} " if delivery.reply else ""
        size = len(delivery.headers) + len(delivery.payload)
        if delivery.headers:
            head = f"HMSG {delivery.subject} {sid} {reply}{len(delivery.headers)} {size}\r\n"
        else:
            head = f"MSG {delivery.subject} {sid} {reply}{size}\r\n"
        side.send(b"%b%b%b\r\n" % (head.encode(), delivery.headers, delivery.payload))

    # Other servers

    def add_route(self, name: str, send: Callable[[Any], None]) -> None:
        """Connect to another server, and tell it what the clients here want."""
        self._routes[name] = send
        self._remote[name] = {}
        for side in self._sides:
            for interest in side.subscriptions.values():
                send((".".join(interest.pattern), interest.queue, 1))

    def remove_route(self, name: str) -> None:
        """Notice that another server cannot be reached."""
        self._routes.pop(name, None)
        self._remote.pop(name, None)

    def _announce(self, interest: Interest, change: int) -> None:
        for send in self._routes.values():
            send((".".join(interest.pattern), interest.queue, change))

    def receive_routed(self, name: str, item: Delivery | tuple[str, str, int]) -> None:
        """Handle a message or a change of subscriptions of another server."""
        if isinstance(item, tuple):
            pattern, queue, change = item
            interests = self._remote.setdefault(name, {})
            known = interests.setdefault(
                (pattern, queue), Interest(tuple(pattern.split(".")), queue, 0)
            )
            known.count += change
            if known.count <= 0:
                del interests[pattern, queue]
            return
        members: dict[str, list[tuple[ServerSide, int]]] = {}
        for side, sid, interest in self._local(tuple(item.subject.split("."))):
            if not interest.queue:
                self._send(side, sid, item)
            elif interest.queue in item.queues:
                members.setdefault(interest.queue, []).append((side, sid))
        for choices in members.values():
            self._send(*self._dice.pick(choices), item)
        self.lost_requests += len(item.queues) - len(members)


def _ignore(delivery: Delivery) -> None:
    pass
