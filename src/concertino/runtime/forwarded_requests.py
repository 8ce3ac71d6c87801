"""request_client(): forwards a request of another server to the client of this server.

A proxy uses this for clients before MCP 2026-07-28. When the server behind the proxy asks the proxy
something, such as an elicitation, the question must reach the client of the proxy.
ServerConnection.request() calls this function.
"""

from __future__ import annotations

import asyncio
from functools import partial

from msgspec import Raw

from concertino.protocol.session import Session
from concertino.runtime.pending import set_outcome
from concertino.types.client_requests import InputRequest

__all__ = ["request_client"]


async def request_client(
    session: Session,
    loop: asyncio.AbstractEventLoop,
    method: str,
    params: bytes,
) -> Raw:
    """Send a request to the client and return its undecoded result.

    When the calling task is cancelled, the client gets notifications/cancelled.
    session, loop: the session with the client, and the event loop on which the session runs.
    method: the method of the request, such as `roots/list`.
    params: the params as JSON; they are sent unchanged.
    Raises RpcError if the client responds with an error, and Disconnected if the connection ends
    first.
    """
    response: asyncio.Future[Raw] = loop.create_future()
    on_response = partial(set_outcome, response)
    outgoing = session.send_client_request(InputRequest(method, Raw(params)), on_response)
    try:
        return await response
    finally:
        session.peer.abandon(outgoing, "the request needs no answer any more")
