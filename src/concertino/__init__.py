"""concertino: MCP (Model Context Protocol) servers, clients and everything between them.

    from concertino import Server

    server = Server("calculator")

    @server.tool
    async def add(a: int, b: int) -> int:
        "Add two integers."
        return a + b

    server.run()

This package has the names that most programs need. Its subpackages have the others:
concertino.types (content and results), .errors, .guards, .backend, .transports, .client, .server
and .proxy. Each name is imported on its first use, so importing this package takes almost no time.
"""

from __future__ import annotations

from concertino.loading import lazy_names

__version__ = "0.1.0"

# Type checkers treat this as True. Importing the module typing would take 5 ms at the start.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from concertino.backend.interface import Context as Context
    from concertino.client.client import Client as Client
    from concertino.client.sync import SyncClient as SyncClient
    from concertino.client.server_parameters import ServerParameters as ServerParameters
    from concertino.composition.compose import compose as compose
    from concertino.errors import (
        ConcertinoError as ConcertinoError,
        Disconnected as Disconnected,
        ProtocolError as ProtocolError,
        ResourceNotFound as ResourceNotFound,
        RpcError as RpcError,
        SpawnError as SpawnError,
        TimedOut as TimedOut,
        ToolError as ToolError,
    )
    from concertino.guards.guard import Guard as Guard
    from concertino.guards.rates import Rate as Rate
    from concertino.jsonrpc.limits import Limits as Limits
    from concertino.library.library import Library as Library
    from concertino.orchestra.plugin import Plugin as Plugin
    from concertino.runtime.entry import run as run
    from concertino.runtime.host import serve as serve
    from concertino.schema.elicitation_form import choices as choices
    from concertino.server.content import (
        assistant as assistant,
        audio as audio,
        blob as blob,
        image as image,
        user as user,
    )
    from concertino.server.dependencies import Depends as Depends
    from concertino.server.server import Server as Server
    from concertino.types.client_requests import Accepted as Accepted, Declined as Declined

__all__, __getattr__, __dir__ = lazy_names(
    __name__,
    {
        "concertino.backend.interface": ("Context",),
        "concertino.client.client": ("Client",),
        "concertino.client.sync": ("SyncClient",),
        "concertino.client.server_parameters": ("ServerParameters",),
        "concertino.composition.compose": ("compose",),
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
        "concertino.server.dependencies": ("Depends",),
        "concertino.server.server": ("Server",),
        "concertino.types.client_requests": ("Accepted", "Declined"),
    },
    {
        "FastMCP": "write `from concertino import Server`; "
        "`concertino docs from-fastmcp` shows the rest",
        "MCPServer": "write `from concertino import Server`; "
        "`concertino docs from-mcp` shows the rest",
        "Image": "write `from concertino import image`",
        "Audio": "write `from concertino import audio`",
        "StdioServerParameters": "write `from concertino import ServerParameters`",
        "ClientSession": "write `from concertino import Client`",
    },
)
