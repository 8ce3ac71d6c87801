"""Warnings about instructions, tool names and lists of tools that are too long for common hosts.

MCP has no such limits, but hosts such as Claude Code cut long instructions and leave out tools with
long names. Each function returns a sentence for the server's author, or "" if nothing is too long.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from concertino.token_estimate import estimate

__all__ = ["INSTRUCTIONS_CHARS", "describe_instructions", "describe_list", "describe_names"]

# Claude Code cuts instructions after this many characters.
INSTRUCTIONS_CHARS = 2048
# The programming interfaces of several models accept names of functions up to this length. Some
# hosts leave out tools with longer names.
NAME_CHARS = 64
# With more tokens than this, hosts show the model no tools until it searches for some.
LIST_TOKENS = 10_000


def describe_instructions(instructions: str) -> str:
    """Return a warning if hosts will cut the server's instructions, otherwise ""."""
    if len(instructions) <= INSTRUCTIONS_CHARS:
        return ""
    return (
        f"instructions: {len(instructions):,} characters, of which hosts such as Claude Code show "
        f"the model the first {INSTRUCTIONS_CHARS:,}; put what matters most first, or shorten them"
    )


def describe_names(server: str, names: Collection[str]) -> str:
    """Return a warning if tool names are too long with the prefix that hosts add, otherwise "".

    server: the server's name, which is part of the prefix.
    names: the names of all tools.
    """
    prefix = f"mcp__{server}__"
    too_long = [name for name in names if len(prefix) + len(name) > NAME_CHARS]
    if not too_long:
        return ""
    others = f" and {len(too_long) - 1:,} others" if len(too_long) > 1 else ""
    name = max(too_long, key=len)
    return (
        f"tool {name!r}{others}: {len(prefix) + len(name)} characters with the usual prefix "
        f"{prefix!r}, and some hosts leave out tools with more than {NAME_CHARS}; shorten the "
        f"names of tools or server"
    )


def describe_list(tools: Iterable[str], count: int) -> str:
    """Return a warning if the list of tools takes too much of a model's context, otherwise "".

    tools: the JSON text of each tool, with name, description and input schema. It is read only
        until the limit is exceeded.
    count: the number of all tools, for the text.
    """
    tokens = 0
    for number, text in enumerate(tools, 1):
        tokens += estimate(text)
        if tokens > LIST_TOKENS:
            return (
                f"list of tools: the first {number:,} of {count:,} tools have about {tokens:,} "
                f"tokens, and hosts hold tools back above {LIST_TOKENS:,}; shorten descriptions "
                f"and schemas, or split the server"
            )
    return ""
