"""Servers of typed Python functions."""

from __future__ import annotations

from concertino.loading import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from concertino.server.content import assistant, audio, blob, image, user
    from concertino.server.contexts import Contexts
    from concertino.server.operations import Operations
    from concertino.server.server import Server

__all__ = [
    "Contexts",
    "Operations",
    "Server",
    "assistant",
    "audio",
    "blob",
    "image",
    "user",
]

__getattr__, __dir__ = lazy_names(
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
