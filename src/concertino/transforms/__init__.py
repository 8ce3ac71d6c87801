"""Backends that wrap another Backend and change its tools, or shorten its list of tools.

The modules, in an order for reading:

- Changed tools: transform.py has the Backend; tool_changes.py is what users write, and
  changed_tool.py applies it to one tool. tool_pages.py reads and writes lists of tools, also for
  the other Backends.
- Prompts and resources as tools: features_as_tools.py.
- Search: tool_search.py has the Backend. tool_text.py reads what a tool says about itself,
  tool_index.py ranks the tools, and found_tools.py writes those that were found. The index compares
  words (tool_words.py, with the groups in tool_vocabulary.py), phrases (tool_phrases.py), what is
  done (tool_actions.py), and which server is meant (tool_families.py).
"""

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
