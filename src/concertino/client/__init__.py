"""Clients: start an MCP server or connect to one, and use its tools, resources and prompts."""

from __future__ import annotations

from concertino.loading import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from concertino.client.client import Client, Timeouts
    from concertino.client.notifications import LogMessage
    from concertino.client.outcome import Failure, Success, attempt
    from concertino.client.supervision import Restart
    from concertino.client.sync import SyncClient
    from concertino.client.targets import ServerParameters
    from concertino.runtime.raw_client import RawClient

__all__ = [
    "Client",
    "Failure",
    "LogMessage",
    "RawClient",
    "Restart",
    "ServerParameters",
    "Success",
    "SyncClient",
    "Timeouts",
    "attempt",
]

__getattr__, __dir__ = lazy_names(
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
        "concertino.client.targets": ("ServerParameters",),
        "concertino.runtime.raw_client": ("RawClient",),
    },
)
