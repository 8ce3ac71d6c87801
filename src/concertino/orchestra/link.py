"""Links: how a request finds its response, whatever carries the frames.

    listen(address, answer, ...)   answer whoever connects; -> Listening
    connect(address, ...)          -> Link, which asks
    Link.request(request)          -> its response; any number at once
    standing.Standing              a Link that comes back after it was lost

One direction each: who connects asks, who listens answers. Hub and plugin therefore have two links, one each way, as upstream. An
address says what carries it: `unix:PATH` (local.py) or `HOST:PORT` for QUIC (quic.py). What both have in common is here: who the
other side is, deadlines, cancellation, and the answering end. All of this belongs to one event loop, that of the caller.

Cancellation is ours: on a Unix socket a StreamCancel with the id of the request, on QUIC a reset of its stream. Neither is
answered. Upstream peers overlook it and finish.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from concertino.errors import ConcertinoError
from concertino.orchestra.pending_response import PendingResponse, Told
from concertino.transports.listeners import split_address
from concertino.transports.sockets import unix_name

try:
    from concertino.orchestra.plugin_pb2 import PluginRequest, PluginResponse, ToolResponse
except ImportError:
    raise ImportError(
        "the Orchestra plugin protocol is in an extra: pip install 'concertino[orchestra]'"
    ) from None

if TYPE_CHECKING:
    from concertino.orchestra.certificates import Certificates

__all__ = [
    "CLOSED",
    "TIMEOUT_S",
    "Answer",
    "ConnectionRefused",
    "DirectLink",
    "LinkListener",
    "Relay",
    "RemotePeer",
    "Respond",
    "RpcConnection",
    "checked_orchestrator",
    "listen_for_links",
    "open_link",
    "refusal",
]

log = logging.getLogger("concertino.orchestra")

TIMEOUT_S = 30.0  # of a request, unless it says otherwise
CONNECT_S = 5.0  # upstream's time for a handshake
CLOSED = "the link was closed"


class ConnectionRefused(ConcertinoError):
    """The other side is not whom it must be: no certificate, the wrong name, another user. The text says which and why."""


class RemotePeer(Struct, frozen=True):
    """Who is at the other end of a link.

    address: where. name: of its certificate, which was verified; None on a Unix socket, where there is none. pid, uid: of its
    process when it connected, on a Unix socket.
    """

    address: str
    name: str | None = None
    pid: int | None = None
    uid: int | None = None

    def speaks_for(self, plugin: str) -> bool:
        """Whether this peer may call itself the plugin of this id: by its certificate, or as a process of this user."""
        return (
            self.uid is not None if self.name is None else self.name in (plugin, f"{plugin}-client")
        )


Answer = Callable[[PluginRequest, RemotePeer], Awaitable[PluginResponse | bytes]]
"""Answers one request. bytes: the response serialized, without its id. CancelledError: nobody wants the response any more.
Whatever else it raises is logged, and told as `internal_error`."""


Respond = Callable[[bytes | None], None]
Relay = Callable[[bytes, RemotePeer, Respond], PendingResponse | None]
"""Passes one request on that it need not decode: its fields but for the id, and what is told those of the response, or None if it
was cancelled. None: the request is for Answer."""


class RpcConnection(Protocol):
    """The asking end of a connection."""

    @property
    def peer(self) -> RemotePeer:
        """Who answers."""
        ...

    @property
    def lost(self) -> asyncio.Future[str]:
        """Done when the link is over, with the reason in words; never fails."""
        ...

    async def request(self, request: PluginRequest, timeout_s: float = TIMEOUT_S) -> PluginResponse:
        """Ask, and wait for the response. The ids of both are request.request_id, whatever is used on the way.

        Raises TimedOut after timeout_s, Disconnected when the link is or gets lost, FrameTooLarge when the request is too long,
        ProtocolError for a response that is none. When it times out or this task is cancelled, the other side is told so.
        """
        ...

    async def close(self, why: str = CLOSED) -> None:
        """End the link. Requests under way raise Disconnected, which says why."""
        ...


class DirectLink(RpcConnection, Protocol):
    """A Link that is one connection, and can pass on what it does not read."""

    def pass_on(
        self, body: bytes, timeout_s: float, told: Told | None = None
    ) -> PendingResponse | None:
        """Ask with a tool call that is serialized, but for its id; what is awaited, or told, is the response as it came.

        told: see Waiting. None: there is no room at the moment; request() would wait. Raises Disconnected, FrameTooLarge.
        """
        ...


class LinkListener(Protocol):
    """The answering end. address: as connect() takes it, with the port that it has."""

    @property
    def address(self) -> str: ...

    async def close(self, drain_s: float = 0.0) -> None:
        """Let nobody in any more, give requests under way so long to be answered, and end every connection."""
        ...


async def listen_for_links(
    address: str,
    answer: Answer,
    *,
    certificates: Certificates | None = None,
    name: str = "",
    admits: Callable[[str], bool] | None = None,
    relay: Relay | None = None,
) -> LinkListener:
    """Answer whoever connects at an address, on the running loop.

    address: `unix:PATH`, in a folder of mode 0700; or `HOST:PORT` for QUIC, port 0 for a free one. For QUIC, certificates and
    name are needed: where certificates are, and of which name this side's is. admits: which names of verified client
    certificates may come in; every one if it is not given. relay: is offered each request first.
    Raises OSError when nothing can listen there, ValueError for an address that is none, CertificateError.
    """
    if address.startswith("unix:"):
        from concertino.orchestra.unix_link import listen_local

        return listen_local(address.removeprefix("unix:"), answer, relay)
    if certificates is None or not name:
        raise ValueError(f"{address}: QUIC needs certificates and the name of one")
    from concertino.orchestra.quic_link import listen_quic

    return await listen_quic(address, answer, relay, certificates, name, admits)


async def open_link(
    address: str,
    *,
    certificates: Certificates | None = None,
    name: str = "",
    expects: str | None = None,
    timeout_s: float = CONNECT_S,
) -> DirectLink:
    """Connect to who listens at an address, on the running loop.

    address, certificates, name: as for listen(); name is this side's certificate. expects: the name that the other side's
    certificate must have; with None any name that fits the address will do.
    Raises Disconnected when nobody answers there within timeout_s, Refused when the other side is a stranger or does not let us
    in, ValueError for an address that is none, CertificateError.
    """
    if address.startswith("unix:"):
        from concertino.orchestra.unix_link import connect_local

        return await connect_local(address.removeprefix("unix:"), timeout_s)
    if certificates is None or not name:
        raise ValueError(f"{address}: QUIC needs certificates and the name of one")
    from concertino.orchestra.quic_link import connect_quic

    return await connect_quic(address, certificates, name, expects, timeout_s)


def checked_orchestrator(address: str) -> str:
    """The address, if a hub could be reached there. Raises ValueError."""
    try:
        if address.startswith("unix:"):
            unix_name(address.removeprefix("unix:"))
        elif split_address(address)[1] == 0:
            raise ValueError
    except ValueError:
        raise ValueError(
            f"the orchestrator's address: expected HOST:PORT, as in localhost:50100, or unix:PATH, got {address!r}"
        ) from None
    return address


def refusal(id: str, code: str, message: str) -> PluginResponse:
    """An error answer. The protocol has none but a failed tool call's, which upstream gives to any request."""
    return PluginResponse(
        request_id=id, tool_call=ToolResponse(error_code=code, error_message=message)
    )
