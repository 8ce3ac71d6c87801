"""concertino: MCP (Model Context Protocol) servers, clients and everything between them.

    from concertino import Server

    server = Server("calculator")

    @server.tool
    async def add(a: int, b: int) -> int:
        "Add two integers."
        return a + b

    server.run()

The names here are those that most programs need. The others are found by use: concertino.types
(content and results), .errors, .guards, .backend, .transports, .client and .server.
Names are loaded when they are first used, so importing this package takes almost no time.
"""

from __future__ import annotations

from concertino.loading import lazy_names

__version__ = "0.1.0"

# What type checkers take for True. Importing the module typing would cost 5 ms at the start.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from concertino.backend.interface import Context
    from concertino.client.client import Client
    from concertino.client.sync import SyncClient
    from concertino.client.targets import ServerParameters
    from concertino.composition import compose
    from concertino.errors import (
        ConcertinoError,
        Disconnected,
        ProtocolError,
        ResourceNotFound,
        RpcError,
        SpawnError,
        TimedOut,
        ToolError,
    )
    from concertino.guards.guard import Guard
    from concertino.guards.rates import Rate
    from concertino.jsonrpc.limits import Limits
    from concertino.library.library import Library
    from concertino.orchestra.plugin import Plugin
    from concertino.runtime.entry import run
    from concertino.runtime.host import serve
    from concertino.schema.elicitation_form import choices
    from concertino.server.content import assistant, audio, blob, image, user
    from concertino.server.server import Server
    from concertino.types.client_requests import Accepted, Declined

__all__ = [  # noqa: RUF022  # in reading order
    "Server",
    "Context",
    "ToolError",
    "ResourceNotFound",
    "Client",
    "SyncClient",
    "ServerParameters",
    "Accepted",
    "Declined",
    "choices",
    "image",
    "audio",
    "blob",
    "user",
    "assistant",
    "compose",
    "run",
    "serve",
    "Limits",
    "Guard",
    "Rate",
    "Library",
    "Plugin",
    "ConcertinoError",
    "RpcError",
    "Disconnected",
    "TimedOut",
    "SpawnError",
    "ProtocolError",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "concertino.backend.interface": ("Context",),
        "concertino.client.client": ("Client",),
        "concertino.client.sync": ("SyncClient",),
        "concertino.client.targets": ("ServerParameters",),
        "concertino.composition": ("compose",),
        "concertino.errors": (
            "ConcertinoError",
            "Disconnected",
            "ProtocolError",
            "ResourceNotFound",
            "RpcError",
            "SpawnError",
            "TimedOut",
            "ToolError",
        ),
        "concertino.guards.guard": ("Guard",),
        "concertino.guards.rates": ("Rate",),
        "concertino.jsonrpc.limits": ("Limits",),
        "concertino.library.library": ("Library",),
        "concertino.orchestra.plugin": ("Plugin",),
        "concertino.runtime.entry": ("run",),
        "concertino.runtime.host": ("serve",),
        "concertino.schema.elicitation_form": ("choices",),
        "concertino.server.content": ("assistant", "audio", "blob", "image", "user"),
        "concertino.server.server": ("Server",),
        "concertino.types.client_requests": ("Accepted", "Declined"),
    },
)
