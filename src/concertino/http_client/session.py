"""HttpSession: the state of a client's session at a URL, in the revisions before 2026-07-28.

`initialize` opens the session. StreamableHttpConnection (connection.py) sends all requests of the
session, and updates this state. Revision 2026-07-28 has no sessions.
Spec: 2025-11-25 basic/transports "Session Management".
"""

from __future__ import annotations

import asyncio

from concertino.http_client.sse_fallback import SseFallback
from concertino.jsonrpc.messages import Id

__all__ = ["HttpSession"]


class HttpSession:
    """The state of a session of a revision before 2026-07-28.

    Its id and its revision are attributes of the RequestEncoder, which sends them as headers.

    Attributes:
    is_opening: whether the session is being opened: from the response to `initialize` until the
        server has accepted notifications/initialized. Requests wait meanwhile.
    listening_since: when the GET stream of the session was opened, by the event loop's clock; None
        while it is not open.
    fallback: the state of the transport of 2024-11-05, if the server has no newer transport; else
        None.
    deletion: a future that is done when the DELETE request has ended, also by a failure.
    refused: the id of the request that the server has refused because the session has ended; empty
        if it has refused none.
    """

    def __init__(self) -> None:
        self.refused: frozenset[Id] = frozenset()
        self.is_opening = False
        self.listening_since: float | None = None
        self.fallback: SseFallback | None = None
        self.deletion: asyncio.Future[None] = asyncio.get_running_loop().create_future()
