"""The options --tools and --tools-budget: whether clients see all tools, or search for them.

With the search, clients see only the tools find_tools and call_tool (transforms/tool_search.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from concertino.cli.guards import GuardBackend
from concertino.cli.options import parse_positive

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from concertino.backend.interface import Backend
    from concertino.transforms.tool_search import ToolListOptions

__all__ = ["add_tools_options", "wrap_backend"]


def add_tools_options(parser: ArgumentParser) -> None:
    """Add --tools and --tools-budget to a parser, as a group."""
    group = parser.add_argument_group("a long list of tools")
    group.add_argument(
        "--tools",
        choices=("auto", "all", "search"),
        help="search: clients see two tools instead, find_tools and call_tool; auto: if the list "
        "is longer than the budget; all: never (default, unless a server file says otherwise)",
    )
    group.add_argument(
        "--tools-budget",
        metavar="TOKENS",
        type=parse_positive,
        help="the longest list that --tools auto shows (default 10000)",
    )


def wrap_backend(
    backend: Backend,
    guard: GuardBackend | None,
    args: Namespace,
    from_file: ToolListOptions | None = None,
) -> Backend:
    """Return a backend, wrapped in the guards and in the search for tools that the options select.

    A guard limits or filters calls. The search for tools replaces a long list of tools by the tools
    find_tools and call_tool.

    guard: wraps the backend in the guards, as make_guard() returns it; None for no guards.
    args: the parsed arguments, which have --tools and --tools-budget.
    from_file: the options that a server file sets; options of the command line override them. None
        if there is no server file.
    """
    # The search is the outer wrapper, so that guards see the calls of the real tools, and not those
    # of call_tool.
    if guard is not None:
        backend = guard(backend)
    mode = args.tools or ("all" if from_file is None else from_file.mode)
    if mode == "all":
        return backend
    # Most servers start without the search, and so without importing it.
    from concertino.transforms.tool_search import BUDGET_TOKENS, ToolSearch

    budget = args.tools_budget or (BUDGET_TOKENS if from_file is None else from_file.budget_tokens)
    return ToolSearch(backend, mode, budget_tokens=budget)
