"""Backends that wrap another Backend and change its tools, or shorten its list of tools."""

from __future__ import annotations

from concertino.loading import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from concertino.transforms.features_as_tools import FeaturesAsTools as FeaturesAsTools
    from concertino.transforms.tool_changes import (
        ArgumentChange as ArgumentChange,
        ToolChange as ToolChange,
    )
    from concertino.transforms.tool_search import ToolSearch as ToolSearch
    from concertino.transforms.transform import Transform as Transform

__all__, __getattr__, __dir__ = lazy_names(
    __name__,
    {
        "concertino.transforms.features_as_tools": ("FeaturesAsTools",),
        "concertino.transforms.tool_changes": ("ArgumentChange", "ToolChange"),
        "concertino.transforms.tool_search": ("ToolSearch",),
        "concertino.transforms.transform": ("Transform",),
    },
)
