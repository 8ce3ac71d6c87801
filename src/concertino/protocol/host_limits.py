"""What common hosts cut or leave out: long instructions, long tool names, long lists of tools.

A server that exceeds these limits is correct; its author should know what models will not see.
Each function returns a sentence about that, or "" if there is nothing to say.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from concertino.token_estimate import estimate

__all__ = ["INSTRUCTIONS_CHARS", "describe_instructions", "describe_list", "describe_names"]

# Claude Code cuts instructions there.
INSTRUCTIONS_CHARS = 2048
# The longest name of a function in several models' interfaces; hosts leave longer ones out.
NAME_CHARS = 64
# Above this, hosts hold tools back until the model searches for them.
LIST_TOKENS = 10_000


def describe_instructions(instructions: str) -> str:
    """Describe instructions that hosts cut."""
    if len(instructions) <= INSTRUCTIONS_CHARS:
        return ""
    return (
        f"instructions: {len(instructions):,} characters, of which hosts such as Claude Code show "
        f"the model the first {INSTRUCTIONS_CHARS:,}; put what matters most first, or shorten them"
    )


def describe_names(server: str, names: Collection[str]) -> str:
    """Describe tool names that are too long with the prefix that hosts put before them."""
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
    """Describe a list of tools that takes much of a model's context.

    tools: the JSON text of each, with its name, description and input schema; read only until the
    limit is exceeded. count: of all tools.
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
