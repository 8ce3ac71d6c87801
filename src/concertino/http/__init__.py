"""MCP over HTTP ("Streamable HTTP"): serves a Host to clients that use a URL. Extra: http."""

from __future__ import annotations

from concertino.loading import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from concertino.http.asgi import AsgiApplication as AsgiApplication
    from concertino.http.connection import HttpTimeouts as HttpTimeouts
    from concertino.http.server import (
        HttpOptions as HttpOptions,
        HttpServer as HttpServer,
    )

__all__, __getattr__, __dir__ = lazy_names(
    __name__,
    {
        "concertino.http.asgi": ("AsgiApplication",),
        "concertino.http.connection": ("HttpTimeouts",),
        "concertino.http.server": ("HttpOptions", "HttpServer"),
    },
)
