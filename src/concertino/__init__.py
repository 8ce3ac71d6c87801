"""concertino: MCP (Model Context Protocol) over stdio, end to end.

    from concertino import Server
    server = Server("calculator")

    @server.tool
    async def add(a: int, b: int) -> int:
        "Add two integers."
        return a + b

    server.run()

Names are loaded when they are first used, so that importing this package costs nothing that is not.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from concertino.backend import Around, Backend, Call, ClientFacts, Context, Offer, Outlet
    from concertino.client.client import Client, Timeouts
    from concertino.client.conversation import LogMessage
    from concertino.client.outcome import Failure, Success, attempt
    from concertino.client.sync import SyncClient
    from concertino.client.targets import ServerParameters
    from concertino.composition import Composed, compose
    from concertino.driver.accepting import accept
    from concertino.driver.caller import Caller, connect
    from concertino.driver.entry import run
    from concertino.driver.host import Host, serve
    from concertino.errors import (
        ConcertinoError,
        Disconnected,
        Incompatible,
        NotOffered,
        ProtocolError,
        RegistrationError,
        ResourceNotFound,
        RpcError,
        SpawnError,
        TargetError,
        TimedOut,
        ToolError,
    )
    from concertino.protocol.limits import Limits
    from concertino.protocol.questions import (
        CreateMessageResult,
        Elicitation,
        ElicitResult,
        Root,
        Sampling,
        SamplingMessage,
    )
    from concertino.protocol.types import (
        Annotations,
        AudioContent,
        CallToolResult,
        Completion,
        EmbeddedResource,
        GetPromptResult,
        Icon,
        ImageContent,
        Implementation,
        PromptMessage,
        ReadResourceResult,
        ResourceContents,
        ResourceLink,
        TextContent,
    )
    from concertino.server.content import assistant, audio, blob, image, user
    from concertino.server.server import Server
    from concertino.transports.listeners import listen_tcp, listen_unix
    from concertino.transports.memory import pair
    from concertino.transports.process import Ladder
    from concertino.transports.sockets import connect_tcp, connect_unix

_HOME = {
    "concertino.server.server": ("Server",),
    "concertino.backend": ("Context", "Backend", "Around", "Call", "ClientFacts", "Offer", "Outlet"),
    "concertino.composition": ("Composed", "compose"),
    "concertino.errors": (
        "ToolError",
        "ResourceNotFound",
        "ConcertinoError",
        "RegistrationError",
        "RpcError",
        "Disconnected",
        "TargetError",
        "SpawnError",
        "TimedOut",
        "NotOffered",
        "ProtocolError",
        "Incompatible",
    ),
    "concertino.client.client": ("Client", "Timeouts"),
    "concertino.client.sync": ("SyncClient",),
    "concertino.client.targets": ("ServerParameters",),
    "concertino.client.conversation": ("LogMessage",),
    "concertino.client.outcome": ("attempt", "Success", "Failure"),
    "concertino.transports.process": ("Ladder",),
    "concertino.protocol.questions": (
        "Elicitation",
        "ElicitResult",
        "Sampling",
        "SamplingMessage",
        "CreateMessageResult",
        "Root",
    ),
    "concertino.server.content": ("image", "audio", "blob", "user", "assistant"),
    "concertino.protocol.types": (
        "TextContent",
        "ImageContent",
        "AudioContent",
        "ResourceLink",
        "EmbeddedResource",
        "ResourceContents",
        "CallToolResult",
        "ReadResourceResult",
        "PromptMessage",
        "GetPromptResult",
        "Completion",
        "Annotations",
        "Icon",
        "Implementation",
    ),
    "concertino.driver.entry": ("run",),
    "concertino.driver.host": ("Host", "serve"),
    "concertino.driver.caller": ("Caller", "connect"),
    "concertino.driver.accepting": ("accept",),
    "concertino.transports.listeners": ("listen_unix", "listen_tcp"),
    "concertino.transports.sockets": ("connect_unix", "connect_tcp"),
    "concertino.transports.memory": ("pair",),
    "concertino.protocol.limits": ("Limits",),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = [  # noqa: RUF022  # in reading order
    "Server",
    "Context",
    "ToolError",
    "ResourceNotFound",
    "image",
    "audio",
    "blob",
    "user",
    "assistant",
    "TextContent",
    "ImageContent",
    "AudioContent",
    "ResourceLink",
    "EmbeddedResource",
    "ResourceContents",
    "CallToolResult",
    "ReadResourceResult",
    "PromptMessage",
    "GetPromptResult",
    "Completion",
    "Annotations",
    "Icon",
    "Implementation",
    "Client",
    "SyncClient",
    "ServerParameters",
    "Ladder",
    "Timeouts",
    "attempt",
    "Success",
    "Failure",
    "LogMessage",
    "Elicitation",
    "ElicitResult",
    "Sampling",
    "SamplingMessage",
    "CreateMessageResult",
    "Root",
    "Backend",
    "Around",
    "Call",
    "ClientFacts",
    "Offer",
    "Outlet",
    "compose",
    "Composed",
    "run",
    "Host",
    "serve",
    "accept",
    "listen_unix",
    "listen_tcp",
    "Caller",
    "connect",
    "connect_unix",
    "connect_tcp",
    "pair",
    "Limits",
    "ConcertinoError",
    "RegistrationError",
    "RpcError",
    "Disconnected",
    "TargetError",
    "SpawnError",
    "TimedOut",
    "NotOffered",
    "ProtocolError",
    "Incompatible",
]


def __getattr__(name: str) -> object:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module 'concertino' has no attribute {name!r}")
    value = getattr(import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
