"""The interface of RPC connections between hub, plugins and bridges.

A connection has one direction: the side that opened it sends requests, the side that listens
answers them. Hub and plugin therefore have two connections, one each way, as upstream.

An address names the transport: `unix:PATH` (unix_link.py), or `HOST:PORT` for QUIC (quic_link.py).
link.py opens and listens; rpc.py has the parts that both transports share. Everything here belongs
to one event loop, that of the caller.

Cancellation is an addition of ours: on a Unix socket a StreamCancel with the id of the request, on
QUIC a reset of its stream. Neither has a response. Upstream's programs ignore it and finish.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

from msgspec import Struct

from concertino.errors import ConcertinoError
from concertino.orchestra.pending_response import PendingResponse, ResponseCallback
from concertino.orchestra.plugin_messages import PluginRequest, PluginResponse, ToolResponse

__all__ = [
    "CLOSED",
    "TIMEOUT_S",
    "ForwardingConnection",
    "HandshakeFailure",
    "RelayHandler",
    "RemotePeer",
    "RequestHandler",
    "Respond",
    "RpcConnection",
    "RpcListener",
    "error_response",
]

# The default time limit of a request.
TIMEOUT_S = 30.0
CLOSED = "the link was closed"


class HandshakeFailure(ConcertinoError):
    """One side refused the other: no certificate, the wrong name, another user.

    The text says which side refused, and the reason.
    """


class RemotePeer(Struct, frozen=True):
    """The process at the other end of a connection.

    name: the name in its verified certificate; None on a Unix socket, which has no certificates.
    pid, uid: process and user when it connected; None on QUIC.
    """

    address: str
    name: str | None = None
    pid: int | None = None
    uid: int | None = None

    def may_register_as(self, plugin: str) -> bool:
        """Return whether this peer may register under a plugin id.

        Over QUIC, the certificate must be the plugin's. On a Unix socket, every process that can
        connect may use any id: the mode of the folder keeps other users out.
        """
        return (
            self.uid is not None if self.name is None else self.name in (plugin, f"{plugin}-client")
        )


RequestHandler = Callable[[PluginRequest, RemotePeer], Awaitable[PluginResponse | bytes]]
"""Handles one request. It returns the response, or its bytes without an id.

It is cancelled when the peer no longer wants the response. Any other exception is logged, and the
peer gets the error `internal_error`."""


Respond = Callable[[bytes | None], None]
"""Sends a response, serialized without the id; None if the request was cancelled."""

RelayHandler = Callable[[bytes, RemotePeer, Respond], PendingResponse | None]
"""Forwards one request, serialized without the id, and responds later.

It returns None, without any effect, for a request that the RequestHandler must handle."""


class RpcConnection(Protocol):
    """The side of a connection that sends requests."""

    @property
    def peer(self) -> RemotePeer:
        """The side that answers."""
        ...

    @property
    def end_reason(self) -> asyncio.Future[str]:
        """A future that is done when the connection has ended; its result says why."""
        ...

    async def request(self, request: PluginRequest, timeout_s: float = TIMEOUT_S) -> PluginResponse:
        """Send a request and return its response.

        The response has the id request.request_id, although another id is used on the wire. When
        the request times out or this task is cancelled, the peer gets a cancellation.
        Raises TimedOut after timeout_s, Disconnected when the connection ends or has ended,
        FrameTooLarge for a request that is too long, ProtocolError for an invalid response.
        """
        ...

    async def close(self, reason: str = CLOSED) -> None:
        """Close the connection. Pending requests raise Disconnected with this reason."""
        ...


class ForwardingConnection(RpcConnection, Protocol):
    """An RpcConnection that can also forward serialized requests."""

    def forward(
        self,
        body: bytes,
        timeout_s: float,
        callback: ResponseCallback | None = None,
    ) -> PendingResponse | None:
        """Send a tool call, serialized without the id, and return its pending response.

        Await the pending response, or pass a callback; both get the response as bytes, with an id.
        Returns None while the output buffer is full; request() would wait then.
        Raises Disconnected, FrameTooLarge.
        """
        ...


class RpcListener(Protocol):
    """The side that accepts connections and answers requests.

    address: as open_link() takes it, with the actual port.
    """

    @property
    def address(self) -> str: ...

    async def close(self, drain_s: float = 0.0) -> None:
        """Stop accepting, wait up to drain_s seconds for pending responses, and disconnect all."""
        ...


def error_response(id: str, code: str, message: str) -> PluginResponse:
    """Return an error response.

    The protocol has only one: a failed tool call. Upstream sends it for any kind of request.
    """
    return PluginResponse(
        request_id=id, tool_call=ToolResponse(error_code=code, error_message=message)
    )
