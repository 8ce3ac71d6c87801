"""Forwards requests of another server to the client of this server (before 2026-07-28).

A proxy backend uses this: a server behind it asks its client something, and the question must reach
the client of the proxy. ServerConnection.request() calls request_client().
"""

from __future__ import annotations

import asyncio

from msgspec import Raw

from concertino.protocol.session import Session
from concertino.types.client_requests import InputRequest

__all__ = ["request_client"]


async def request_client(
    session: Session,
    loop: asyncio.AbstractEventLoop,
    method: str,
    params: bytes,
) -> Raw:
    """Send a request to the client and return its undecoded result. See CallerSession.request().

    params: the params as JSON; they are sent unchanged.
    """
    response: asyncio.Future[Raw] = loop.create_future()

    def on_response(outcome: Raw | Exception) -> None:
        if response.done():
            return
        if isinstance(outcome, Exception):
            response.set_exception(outcome)
        else:
            response.set_result(outcome)

    outgoing = session.send_client_request(InputRequest(method, Raw(params)), on_response)
    try:
        return await response
    finally:
        session.peer.abandon(outgoing, "the request needs no answer any more")
