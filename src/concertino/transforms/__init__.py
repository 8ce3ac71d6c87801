"""Backends that change what clients see of another Backend: its tools, and lists that are long."""

from __future__ import annotations

from concertino.loading import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from concertino.transforms.tool_search import ToolSearch as ToolSearch

__all__, __getattr__, __dir__ = lazy_names(
    __name__,
    {
        "concertino.transforms.tool_search": ("ToolSearch",),
    },
)
