"""Server, an MCP server made of Python functions, and the objects that its handlers use.

Read the modules in this order:

- server.py: the public interface
- tools.py: calls tools
- tool_registration.py: makes tools from functions
- registry.py: stores tools, prompts and resources by name

The public names of this package are listed below; each is imported on its first use.
"""

from __future__ import annotations

from concertino.loading import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from concertino.server.content import (
        assistant as assistant,
        audio as audio,
        blob as blob,
        image as image,
        user as user,
    )
    from concertino.server.contexts import Contexts as Contexts
    from concertino.server.operations import Operations as Operations
    from concertino.server.server import Server as Server

__all__, __getattr__, __dir__ = lazy_names(
    __name__,
    {
        "concertino.server.server": ("Server",),
        "concertino.server.operations": ("Operations",),
        "concertino.server.contexts": ("Contexts",),
        "concertino.server.content": (
            "assistant",
            "audio",
            "blob",
            "image",
            "user",
        ),
    },
)
