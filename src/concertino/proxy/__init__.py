"""Proxy serves any MCP server as a Backend; Servers serves all servers in a server file."""

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
