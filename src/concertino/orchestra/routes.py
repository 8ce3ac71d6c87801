"""Who answers for what in a hub: tools, prompts and types of storage by name, and the lists of all of them.

Of two plugins that offer the same name the first in the plugins file has it, whichever was up first, and the other's is refused and
reported. Lists are in the order of names.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, Protocol, TypeVar

from msgspec import Struct

from concertino.orchestra.plugin_pb2 import (
    ListPromptsResponse,
    ListToolsResponse,
    PluginResponse,
    PromptDefinition,
    ToolDefinition,
)

__all__ = ["Provider", "Routes", "routes_of"]


class Provider(Protocol):
    """A plugin, as far as routes are concerned."""

    @property
    def id(self) -> str: ...
    @property
    def tools(self) -> Sequence[ToolDefinition]: ...
    @property
    def prompts(self) -> Sequence[PromptDefinition]: ...
    @property
    def storage(self) -> frozenset[str]: ...


P = TypeVar("P", bound=Provider)


class Routes(Struct, Generic[P], frozen=True, eq=False):
    """tool_list, prompt_list: responses to who asks for the lists; one object for all, whose request_id is that of who was last.
    refused: what is offered and has another owner, in words.
    """

    tools: dict[str, P]
    prompts: dict[str, P]
    storage: dict[str, P]
    tool_list: PluginResponse
    prompt_list: PluginResponse
    refused: tuple[str, ...]


def routes_of(plugins: Sequence[P]) -> Routes[P]:
    """The routes of plugins, in the order in which they count."""
    tools: dict[str, P] = {}
    prompts: dict[str, P] = {}
    storage: dict[str, P] = {}
    tool_definitions: dict[str, ToolDefinition] = {}
    prompt_definitions: dict[str, PromptDefinition] = {}
    refused: list[str] = []

    def take(
        kind: str,
        owners: dict[str, P],
        plugin: P,
        name: str,
        definition: Any,
        definitions: dict[str, Any],
    ) -> None:
        first = owners.setdefault(name, plugin) if name else None
        if first is plugin and name not in definitions:
            definitions[name] = definition
        elif first is None:
            refused.append(f"{plugin.id} offers a {kind} without a name: it is left out")
        elif first is plugin:
            refused.append(f"{plugin.id} offers the {kind} {name!r} twice: the second is left out")
        else:
            refused.append(
                f"{plugin.id} offers the {kind} {name!r}, which is {first.id}'s: it is refused"
            )

    for plugin in plugins:
        for tool in plugin.tools:
            take("tool", tools, plugin, tool.name, tool, tool_definitions)
        for prompt in plugin.prompts:
            take("prompt", prompts, plugin, prompt.name, prompt, prompt_definitions)
        for kind in sorted(plugin.storage):
            if (first := storage.setdefault(kind, plugin)) is not plugin:
                refused.append(
                    f"{plugin.id} offers storage {kind!r}, which is {first.id}'s: it is refused"
                )
    return Routes(
        tools,
        prompts,
        storage,
        PluginResponse(
            list_tools=ListToolsResponse(tools=[tool_definitions[name] for name in sorted(tools)])
        ),
        PluginResponse(
            list_prompts=ListPromptsResponse(
                prompts=[prompt_definitions[name] for name in sorted(prompts)]
            )
        ),
        tuple(refused),
    )
