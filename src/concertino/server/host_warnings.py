"""Warnings about what common hosts cut or leave out, each logged once for a server.

See protocol/host_limits.py. This module is imported only if there may be something to log.
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
    """Log what is known before a client comes. names: of the tools."""
    for text in (describe_instructions(instructions), describe_names(server, names)):
        if text:
            log.warning("%s", text)


def warn_of_list(log: logging.Logger, tools: Sequence[Tool]) -> None:
    """Log that a list of tools is long for a model."""
    texts = (encode([tool.name, tool.description, tool.input_schema]).decode() for tool in tools)
    if text := describe_list(texts, len(tools)):
        log.warning("%s", text)
