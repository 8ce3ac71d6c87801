"""The interface of RPC connections between hub, plugins and bridges.

A hub starts plugins, programs with tools, and forwards requests to them. A bridge connects MCP
clients to a hub. A connection, also called a link, has one direction: the side that opened the
connection sends requests, and the side that accepted it answers them. A hub and a plugin therefore
have two connections, one in each direction.

link.py opens connections and listens for them, over a Unix socket, QUIC or a NATS cluster.
rpc_client.py and rpc_server.py have the code that all transports share. Each object belongs to the
event loop in which it was created.

A request can be cancelled: on a Unix socket with a StreamCancel that has the request's id, over
QUIC with a reset of its stream, and in a NATS cluster with a message (nats_messages.py). A
cancelled request gets no response. Go programs ignore the cancellation and finish the request.

To call a tool as a stream, the caller sends a stream_start instead of a tool_call. The peer answers
with any number of stream_chunks and then one stream_end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

from msgspec import Struct

from concertino.errors import ConcertinoError
from concertino.orchestra.pending_response import PendingResponse, ResponseCallback
from concertino.orchestra.plugin_messages import PluginRequest, PluginResponse, ToolResponse
from concertino.orchestra.streams import ResponseStream, StreamRun

__all__ = [
    "CLOSED",
    "TIMEOUT_S",
    "Cancellable",
    "ForwardingConnection",
    "HandshakeFailure",
    "RelayHandler",
    "RemotePeer",
    "RequestHandler",
    "Respond",
    "Responses",
    "RpcConnection",
    "RpcListener",
    "error_response",
]

# The default time limit of a request, in seconds.
TIMEOUT_S = 30.0
# The default reason of RpcConnection.close().
CLOSED = "the link was closed"


class HandshakeFailure(ConcertinoError):
    """One side of a new connection refused the other side.

    Reasons are a missing or invalid certificate, a certificate with the wrong name, or, on a Unix
    socket, a process of another user. The text says which side refused, and the reason.
    """


class RemotePeer(Struct, frozen=True):
    """The process at the other end of a connection.

    address: the address of the connection, for messages.
    name: the verified name of the peer:
        - Over QUIC, the name in the peer's certificate.
        - In a NATS cluster, the plugin's id, or `orchestrator` for a hub, as the NATS servers have
          verified it.
        - None on a Unix socket.
    pid, uid: the process id and user id of the peer when it connected on a Unix socket; None
        otherwise.
    """

    address: str
    name: str | None = None
    pid: int | None = None
    uid: int | None = None

    def may_register_as(self, plugin: str) -> bool:
        """Return whether this peer may register under a plugin id.

        On a Unix socket, any id is allowed. Over QUIC and in a cluster, the verified name of the
        peer must be `ID` or `ID-client`.
        plugin: the id.
        """
        # Only processes of the same user can connect to a Unix socket.
        if self.name is None:
            return self.uid is not None
        # A plugin connects to its hub with the certificate `ID-client`.
        return self.name in (plugin, f"{plugin}-client")


# The result of a RequestHandler. For most requests, it is the response, or the response serialized
# without its id. For a stream_start, it is an async generator of the responses, or a function that
# sends the chunks and returns the last response.
Responses = PluginResponse | bytes | ResponseStream | StreamRun

# Handles one request of a peer, and returns the response. The handler is cancelled when the peer
# cancels the request. If the handler raises an exception, the exception is logged, and the peer
# gets the error `internal_error`.
RequestHandler = Callable[[PluginRequest, RemotePeer], Awaitable[Responses]]

# Sends the response to a forwarded request, serialized without its id. Call it with None if the
# request was cancelled. For a stream, call it with each chunk, too.
Respond = Callable[[bytes | None], None]


class Cancellable(Protocol):
    """A request in progress."""

    def cancel(self) -> object:
        """Cancel the request, because its sender no longer needs the response."""
        ...


# Forwards one request, serialized without its id, and later calls Respond with the response.
# Returns an object that can cancel the request. Returns None, and does nothing else, if the
# RequestHandler must handle the request.
RelayHandler = Callable[[bytes, RemotePeer, Respond], Cancellable | None]


class RpcConnection(Protocol):
    """The side of a connection that sends requests."""

    @property
    def peer(self) -> RemotePeer:
        """The process that answers the requests."""
        ...

    @property
    def end_reason(self) -> asyncio.Future[str]:
        """A future that is done when the connection has ended. Its result says why."""
        ...

    async def request(self, request: PluginRequest, timeout_s: float = TIMEOUT_S) -> PluginResponse:
        """Send a request and return its response, which may be an error response.

        request: its request_id may be any text: the request is sent with a new id, and the response
            gets the id of `request`.
        timeout_s: the time limit, in seconds. When the limit is reached or this task is cancelled,
            the peer gets a cancellation.
        Raises TimedOut after timeout_s, Disconnected when the connection ends or has ended,
        FrameTooLarge for a request that is too long, and ProtocolError for an invalid response.
        """
        ...

    async def close(self, reason: str = CLOSED) -> None:
        """Close the connection. Pending requests raise Disconnected with this reason."""
        ...


class ForwardingConnection(RpcConnection, Protocol):
    """An RpcConnection that can also forward serialized requests, and call tools as streams."""

    @property
    def in_progress(self) -> int:
        """The number of requests and streams whose last response has not arrived yet."""
        ...

    def forward(
        self,
        body: bytes,
        timeout_s: float,
        callback: ResponseCallback | None = None,
        stream: str = "",
    ) -> PendingResponse | None:
        """Send a tool call or a stream_start, and return its pending response without waiting.

        body: the PluginRequest, serialized without its id. The connection adds a new request id.
        timeout_s: the time limit of the call or of the whole stream.
        callback: called with the response as bytes, or with the exception that ended the request.
            For a stream_start, also called with each chunk. The responses contain the new request
            id. None for a tool call whose pending response the caller awaits; a stream needs a
            callback.
        stream: the id of the stream in a stream_start; "" for a tool call.
        Returns None while the output buffer is full. Use request() then, which waits.
        Raises Disconnected if the connection has ended, and FrameTooLarge for a request that is too
        long.
        """
        ...

    def stream(self, request: PluginRequest, timeout_s: float) -> ResponseStream:
        """Call a tool as a stream, and yield the responses.

        request: contains a stream_start. The connection replaces its request id and stream id.
        timeout_s: the time limit of the whole stream.
        Yields a stream_chunk for each chunk, and then the last response. The last response is a
        stream_end, or a tool_call with an error, for example if the peer does not support streams.
        If the caller closes the generator before the last response, the peer gets a cancellation.
        Raises the same exceptions as request().
        """
        ...


class RpcListener(Protocol):
    """The side that accepts connections and answers requests.

    address: an address for open_link(), with the actual port.
    """

    @property
    def address(self) -> str: ...

    async def close(self, drain_s: float = 0.0) -> None:
        """Accept no more connections, wait up to drain_s seconds for responses, and disconnect."""
        ...


def error_response(id: str, code: str, message: str) -> PluginResponse:
    """Return an error response, which has the form of a failed tool call.

    The protocol has no general error response, so a failed tool_call also answers other kinds of
    requests. Only failed prompt and storage requests get other responses (failures.py).
    id: the id of the request; "" if the caller sets it later.
    code: the error, for programs.
    message: the error, for users.
    """
    return PluginResponse(
        request_id=id, tool_call=ToolResponse(error_code=code, error_message=message)
    )
