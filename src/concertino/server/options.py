"""The keyword arguments of Server's decorators, for type checkers: a start does not need them, and each costs it 0.1 ms."""

from __future__ import annotations

from typing import Any, TypedDict

from concertino.guards.rates import Rate
from concertino.types.results import Annotations, CacheScope, Icon

__all__ = ["PromptOptions", "ResourceOptions", "ToolGuards"]


class PromptOptions(TypedDict, total=False):
    """The options of Server.prompt and add_prompt."""

    name: str | None
    title: str | None
    description: str | None
    icons: list[Icon] | None
    meta: dict[str, Any] | None
    inline: bool


class ResourceOptions(TypedDict, total=False):
    """The options of Server.resource and add_resource."""

    name: str | None
    title: str | None
    description: str | None
    mime_type: str | None
    size: int | None
    annotations: Annotations | None
    icons: list[Icon] | None
    meta: dict[str, Any] | None
    ttl_s: float | None
    cache_scope: CacheScope | None
    inline: bool


class ToolGuards(TypedDict, total=False):
    """The options of Server.tool and add_tool that put a guard around the tool: see guards/guard.py."""

    rate_limit: Rate | str | None
    max_in_flight: int | None
    timeout_s: float | None
    max_result_bytes: int | None
    redact: bool
