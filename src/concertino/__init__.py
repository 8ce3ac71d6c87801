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

from concertino.loading import load

__version__ = "0.1.0"

TYPE_CHECKING = (
    False  # what type checkers take for True; the module typing is loaded with the others
)

if TYPE_CHECKING:
    from concertino.backend import (
        Around,
        Backend,
        Call,
        ClientFacts,
        Context,
        ContextAround,
        InputRequired,
        Offer,
        Outlet,
    )
    from concertino.client.client import Client, Timeouts
    from concertino.client.conversation import LogMessage
    from concertino.client.outcome import Failure, Success, attempt
    from concertino.client.supervision import Restart
    from concertino.client.sync import SyncClient
    from concertino.client.targets import ServerParameters
    from concertino.composition import Composed, compose
    from concertino.driver.accepting import accept
    from concertino.driver.caller import Caller, connect
    from concertino.driver.entry import run
    from concertino.driver.host import Host, serve
    from concertino.errors import (
        BadAnswer,
        ConcertinoError,
        Disconnected,
        Incompatible,
        MissingCapability,
        NotOffered,
        ProtocolError,
        RegistrationError,
        ResourceNotFound,
        RpcError,
        SpawnError,
        Suspended,
        TargetError,
        TimedOut,
        ToolError,
    )
    from concertino.guards.guarded import Guarded
    from concertino.guards.metrics import Metrics
    from concertino.guards.rates import Rate
    from concertino.guards.single import (
        InFlightLimit,
        Only,
        RateLimit,
        Redact,
        SizeLimit,
        TimeLimit,
    )
    from concertino.guards.telemetry import Telemetry
    from concertino.library.library import Library
    from concertino.orchestra.plugin import Plugin
    from concertino.protocol.forms import choices
    from concertino.protocol.limits import Limits
    from concertino.protocol.questions import (
        Accepted,
        CreateMessageResult,
        Declined,
        Elicitation,
        ElicitResult,
        ListRoots,
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
    from concertino.server.contexts import Contexts
    from concertino.server.operations import Operations
    from concertino.server.server import Server
    from concertino.transports.listeners import listen_tcp, listen_unix
    from concertino.transports.memory import pair
    from concertino.transports.process import Ladder
    from concertino.transports.sockets import connect_tcp, connect_unix

_HOME = {
    "concertino.server.server": ("Server",),
    "concertino.backend": (
        "Context",
        "Backend",
        "Around",
        "ContextAround",
        "Call",
        "ClientFacts",
        "InputRequired",
        "Offer",
        "Outlet",
    ),
    "concertino.library.library": ("Library",),
    "concertino.composition": ("Composed", "compose"),
    "concertino.errors": (
        "ToolError",
        "ResourceNotFound",
        "ConcertinoError",
        "RegistrationError",
        "RpcError",
        "MissingCapability",
        "BadAnswer",
        "Suspended",
        "Disconnected",
        "TargetError",
        "SpawnError",
        "TimedOut",
        "NotOffered",
        "ProtocolError",
        "Incompatible",
    ),
    "concertino.client.client": ("Client", "Timeouts"),
    "concertino.client.supervision": ("Restart",),
    "concertino.client.sync": ("SyncClient",),
    "concertino.client.targets": ("ServerParameters",),
    "concertino.client.conversation": ("LogMessage",),
    "concertino.client.outcome": ("attempt", "Success", "Failure"),
    "concertino.transports.process": ("Ladder",),
    "concertino.protocol.forms": ("choices",),
    "concertino.protocol.questions": (
        "Accepted",
        "Declined",
        "ListRoots",
        "Elicitation",
        "ElicitResult",
        "Sampling",
        "SamplingMessage",
        "CreateMessageResult",
        "Root",
    ),
    "concertino.server.operations": ("Operations",),
    "concertino.server.contexts": ("Contexts",),
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
    "concertino.guards.guarded": ("Guarded",),
    "concertino.guards.metrics": ("Metrics",),
    "concertino.guards.rates": ("Rate",),
    "concertino.guards.single": (
        "InFlightLimit",
        "Only",
        "RateLimit",
        "Redact",
        "SizeLimit",
        "TimeLimit",
    ),
    "concertino.guards.telemetry": ("Telemetry",),
    "concertino.driver.entry": ("run",),
    "concertino.driver.host": ("Host", "serve"),
    "concertino.driver.caller": ("Caller", "connect"),
    "concertino.driver.accepting": ("accept",),
    "concertino.transports.listeners": ("listen_unix", "listen_tcp"),
    "concertino.transports.sockets": ("connect_unix", "connect_tcp"),
    "concertino.transports.memory": ("pair",),
    "concertino.protocol.limits": ("Limits",),
    "concertino.orchestra.plugin": ("Plugin",),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = [  # noqa: RUF022  # in reading order
    "Server",
    "Context",
    "Accepted",
    "Declined",
    "choices",
    "Operations",
    "Contexts",
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
    "Restart",
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
    "ListRoots",
    "Backend",
    "Around",
    "ContextAround",
    "Call",
    "ClientFacts",
    "Offer",
    "InputRequired",
    "Outlet",
    "Library",
    "compose",
    "Composed",
    "Guarded",
    "Rate",
    "RateLimit",
    "InFlightLimit",
    "TimeLimit",
    "SizeLimit",
    "Only",
    "Redact",
    "Metrics",
    "Telemetry",
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
    "Plugin",
    "ConcertinoError",
    "RegistrationError",
    "RpcError",
    "MissingCapability",
    "BadAnswer",
    "Suspended",
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
    value = getattr(load(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
