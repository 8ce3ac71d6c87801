"""The Backend interface: what handles MCP calls, and what surrounds a call."""

from __future__ import annotations

from concertino.loading import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from concertino.backend.interface import (
        Backend,
        BackendWrapper,
        ChangeKind,
        Context,
        ContextWrapper,
        Notifier,
    )
    from concertino.protocol.call import Call, ClientFacts, InputRequired, ServerFeatures
    from concertino.runtime.host import Host

__all__ = [
    "Backend",
    "BackendWrapper",
    "Call",
    "ChangeKind",
    "ClientFacts",
    "Context",
    "ContextWrapper",
    "Host",
    "InputRequired",
    "Notifier",
    "ServerFeatures",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "concertino.backend.interface": (
            "Backend",
            "BackendWrapper",
            "ChangeKind",
            "Context",
            "ContextWrapper",
            "Notifier",
        ),
        "concertino.protocol.call": (
            "Call",
            "ClientFacts",
            "InputRequired",
            "ServerFeatures",
        ),
        "concertino.runtime.host": ("Host",),
    },
)
