"""Logs warnings that common hosts will cut a server's instructions or leave out some of its tools.

A host is the application that contains an MCP client, such as an editor. protocol/host_limits.py
contains the limits of hosts and the texts. server/tools.py imports this module when a limit may be
exceeded.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence

from msgspec.json import encode

from concertino.protocol.host_limits import describe_instructions, describe_list, describe_names
from concertino.types.results import Tool

__all__ = ["warn_at_start", "warn_of_list"]


def warn_at_start(
    log: logging.Logger, server: str, instructions: str, names: Collection[str]
) -> None:
    """Warn if common hosts would cut the instructions, or leave out tools because of long names.

    server: the server's name.
    instructions: the server's instructions; "" if it has none.
    names: the names of its tools.
    """
    for text in (describe_instructions(instructions), describe_names(server, names)):
        if text:
            log.warning("%s", text)


def warn_of_list(log: logging.Logger, tools: Sequence[Tool]) -> None:
    """Log a warning if the list of tools takes too much of a model's context.

    tools: all tools of the server.
    """
    texts = (encode([tool.name, tool.description, tool.input_schema]).decode() for tool in tools)
    if text := describe_list(texts, len(tools)):
        log.warning("%s", text)
