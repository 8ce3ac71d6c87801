"""WorkerPeers: passes a request on to the worker process that has the request's session.

All workers of `concertino serve --workers` accept clients at the same socket, so a request can
reach any of them. The number of the worker that has a session is computed from the session's id.
Each worker listens at a private Unix socket for the requests that the other workers pass on.
"""

from __future__ import annotations

import asyncio
import os
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING

from concertino.http.exchange import Exchange
from concertino.http.relay import Relay
from concertino.http.request_head import HttpError
from concertino.http.session_peers import NO_SESSION, MakePeerProtocol, PeerServer
from concertino.runtime.worker_link import WorkerPlace
from concertino.transports.listeners import BACKLOG, listen_unix

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["WorkerPeers"]


class WorkerPeers:
    """Passes requests from one worker process to the worker that has their session.

    Implements SessionPeers (session_peers.py).

    place: the number of this worker, the number of workers, and the directory of their sockets.
    """

    def __init__(self, place: WorkerPlace) -> None:
        self._place = place

    def create_id(self) -> str:
        """Return a random id from which find_owner() computes the number of this worker."""
        while True:
            # One byte more than 128 bits, because the worker's number takes some of the bits.
            id = os.urandom(17).hex()
            if self.find_owner(id) == self._place.number:
                return id

    def find_owner(self, id: str) -> int | None:
        """Return the number of the worker that has created an id; None if the id is malformed."""
        try:
            value = int.from_bytes(bytes.fromhex(id))
        except ValueError:
            return None
        # The numbers of workers begin with 1.
        return value % self._place.count + 1

    async def serve(self, make: MakePeerProtocol) -> PeerServer:
        """Let the other workers pass requests on to this worker, at its Unix socket.

        Raises OSError if the socket cannot be made.
        """
        listener = listen_unix(self._socket_of(self._place.number))
        protocol = make(lambda transport: listener.examine(transport.get_extra_info("socket")))
        loop = asyncio.get_running_loop()
        return await loop.create_unix_server(protocol, sock=listener.socket, backlog=BACKLOG)

    def pass_on(self, exchange: Exchange, id: str) -> bool:
        """Pass a request on to the worker that has its session.

        SessionPeers.pass_on() describes the arguments and the result.
        """
        owner = self.find_owner(id)
        if owner == self._place.number:
            return False
        if owner is None:
            raise HttpError(HTTPStatus.NOT_FOUND, NO_SESSION)
        path = os.fspath(self._socket_of(owner))
        Relay(exchange, partial(_connect_unix, path))
        return True

    def _socket_of(self, number: int) -> Path:
        return self._place.folder / f"worker-{number}"


async def _connect_unix(path: str, relay: Relay) -> None:
    await asyncio.get_running_loop().create_unix_connection(lambda: relay, path)
