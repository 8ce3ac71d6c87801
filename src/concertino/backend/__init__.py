"""Backend, the interface of objects that handle MCP calls, and Context, the interface of one call.

interface.py is the place to begin. call_hooks.py and callback_calls.py have optional interfaces
that make calls faster. wrappers.py has the base classes for backends around other backends. The
public names of this package are listed below; each is imported on its first use. Host serves a
backend, so users find it here, although the runtime contains it.
"""

from __future__ import annotations

from concertino.loading import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from concertino.backend.interface import (
        Backend as Backend,
        ChangeKind as ChangeKind,
        Context as Context,
        Notifier as Notifier,
    )
    from concertino.backend.wrappers import (
        BackendWrapper as BackendWrapper,
        ContextWrapper as ContextWrapper,
    )
    from concertino.protocol.call import (
        Call as Call,
        ClientFacts as ClientFacts,
        InputRequired as InputRequired,
        ServerFeatures as ServerFeatures,
    )
    from concertino.protocol.principal import Principal as Principal
    from concertino.runtime.host import Host as Host

__all__, __getattr__, __dir__ = lazy_names(
    __name__,
    {
        "concertino.backend.interface": (
            "Backend",
            "ChangeKind",
            "Context",
            "Notifier",
        ),
        "concertino.backend.wrappers": ("BackendWrapper", "ContextWrapper"),
        "concertino.protocol.call": (
            "Call",
            "ClientFacts",
            "InputRequired",
            "ServerFeatures",
        ),
        "concertino.protocol.principal": ("Principal",),
        "concertino.runtime.host": ("Host",),
    },
)
