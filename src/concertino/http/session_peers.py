"""SessionPeers: the interface through which several processes of one server share their sessions.

A request can reach a process that does not have its session, if several worker processes share a
socket or a load balancer distributes requests. The endpoints then call pass_on(). WorkerPeers
implements the interface for the workers of one machine, and MachinePeers for front ends, processes
that serve HTTP on several machines.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from typing import Protocol

from concertino.http.exchange import Exchange

__all__ = [
    "NO_SESSION",
    "Examine",
    "MakePeerProtocol",
    "PeerServer",
    "SessionPeers",
    "create_session_id",
    "pass_on",
]

NO_SESSION = "no such session: send initialize again"

Examine = Callable[[asyncio.Transport], Mapping[str, object]]
"""Returns facts about a process that has connected to pass requests on, as in Connection.facts.

The argument is the transport of the connection. Raises OSError to refuse the process.
"""

MakePeerProtocol = Callable[[Examine], Callable[[], asyncio.Protocol]]
"""Returns the protocol factory for the connections of other processes that pass requests on.

The argument is called with each new connection.
"""


class PeerServer(Protocol):
    """Accepts the connections of other processes that pass requests on, until close()."""

    def close(self) -> None:
        """Stop accepting connections."""
        ...


class SessionPeers(Protocol):
    """Passes requests to the other processes of a server, which share their sessions.

    The endpoints call create_id() for each new session, and pass_on() for each request whose
    session is not in this process. HttpServer calls serve() at its start.
    """

    def create_id(self) -> str:
        """Return an id for a session of this process, with 128 random bits against guessing."""
        ...

    def pass_on(self, exchange: Exchange, id: str) -> bool:
        """Pass a request on to the process that has its session.

        Returns at once. The response to the client follows when that process has sent it.

        id: the id of the session.
        Returns False, and does nothing, if the id is one of this process. Raises HttpError 404 if
        the id is malformed.
        """
        ...

    async def serve(self, make: MakePeerProtocol) -> PeerServer:
        """Begin to accept the requests that other processes pass on.

        make: called once, with a function that checks each process which connects.
        Raises OSError if this process cannot listen for the other processes.
        """
        ...


def create_session_id(peers: SessionPeers | None) -> str:
    """Return a random session id.

    peers: makes the id of a session that several processes share; None if this process shares none.
    """
    # Not with the module secrets, whose imports take 0.9 MB of memory.
    return os.urandom(16).hex() if peers is None else peers.create_id()


def pass_on(peers: SessionPeers | None, exchange: Exchange, id: str) -> bool:
    """Pass a request whose session is not in this process on to the process that has it.

    peers: passes requests to the other processes; None if this process shares no sessions.
    id: the id of the session.
    Returns False if this process must respond. Raises HttpError 404 if the id is malformed.
    """
    # A request that was passed on to this process is not passed on again. Otherwise it could be
    # passed on without end, for example if this process has the address of a process that was
    # killed.
    if peers is None or exchange.is_passed_on:
        return False
    return peers.pass_on(exchange, id)
