"""MCP servers of any kind as Backends, and the files that list them."""

from __future__ import annotations

from concertino.loading import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from concertino.proxy.proxy import Proxy as Proxy

__all__, __getattr__, __dir__ = lazy_names(
    __name__,
    {
        "concertino.proxy.proxy": ("Proxy",),
    },
)
