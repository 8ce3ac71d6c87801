"""Clients of MCP servers. Each public name, such as Client, is imported on its first use.

The layers, from the top:

- Client (client.py) has the methods that users call; SyncClient (sync.py) has the same methods
  without async.
- ClientConnection (client_connection.py) starts the server or connects to it (targets.py),
  negotiates the revision (negotiation.py), and restarts a server that has ended (supervision.py).
- Conversation (conversation.py) speaks MCP over one connection. It adds to requests what the
  revision requires (request_builder.py), and answers the requests of the server
  (request_handlers.py).
- Channel (channel.py) speaks JSON-RPC. It assigns ids, and resumes the callers whose responses have
  arrived (pending_request.py).
"""

from __future__ import annotations

from concertino.loading import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from concertino.client.client import Client as Client, Timeouts as Timeouts
    from concertino.client.notifications import LogMessage as LogMessage
    from concertino.client.outcome import Failure as Failure, Success as Success, attempt as attempt
    from concertino.client.server_parameters import (
        HttpParameters as HttpParameters,
        ServerParameters as ServerParameters,
    )
    from concertino.client.supervision import Restart as Restart
    from concertino.client.sync import SyncClient as SyncClient
    from concertino.runtime.raw_client import RawClient as RawClient

__all__, __getattr__, __dir__ = lazy_names(
    __name__,
    {
        "concertino.client.client": (
            "Client",
            "Timeouts",
        ),
        "concertino.client.notifications": ("LogMessage",),
        "concertino.client.outcome": (
            "Failure",
            "Success",
            "attempt",
        ),
        "concertino.client.supervision": ("Restart",),
        "concertino.client.sync": ("SyncClient",),
        "concertino.client.server_parameters": ("HttpParameters", "ServerParameters"),
        "concertino.runtime.raw_client": ("RawClient",),
    },
)
