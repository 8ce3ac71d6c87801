"""Which plugin of a hub provides which tool, prompt and storage type, and the lists of them all.

If two plugins offer the same name, the one that comes first in the plugins file provides it,
whichever started first; the other offer is refused and reported. Lists are sorted by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, Protocol, TypeVar

from msgspec import Struct

from concertino.orchestra.plugin_messages import (
    ListPromptsResponse,
    ListToolsResponse,
    PluginManifest,
    PluginResponse,
    PromptDefinition,
    ToolDefinition,
)

__all__ = ["PluginFeatures", "Provider", "Routes", "build_routes"]


class PluginFeatures(Struct, frozen=True, eq=False):
    """What one plugin offers. storage: the storage types."""

    manifest: PluginManifest
    tools: Sequence[ToolDefinition] = ()
    prompts: Sequence[PromptDefinition] = ()
    storage: frozenset[str] = frozenset()


class Provider(Protocol):
    """The part of a plugin that routes need."""

    @property
    def id(self) -> str: ...
    @property
    def features(self) -> PluginFeatures: ...


P = TypeVar("P", bound=Provider)


class Routes(Struct, Generic[P], frozen=True, eq=False):
    """Providers by name, and the responses that list all names.

    tool_list, prompt_list: each is one object for all requests; its request_id is overwritten.
    conflicts: one message for each offer that is refused.
    """

    tools: dict[str, P]
    prompts: dict[str, P]
    storage: dict[str, P]
    tool_list: PluginResponse
    prompt_list: PluginResponse
    conflicts: tuple[str, ...]


class _Table(Generic[P]):
    """The providers and definitions of one kind: tools or prompts."""

    def __init__(self, kind: str, conflicts: list[str]) -> None:
        self.providers: dict[str, P] = {}
        self._kind = kind
        self._conflicts = conflicts
        self._definitions: dict[str, Any] = {}

    def add(self, plugin: P, definition: Any) -> None:
        """Add a definition, or note why it is refused."""
        name: str = definition.name
        if not name:
            self._conflicts.append(
                f"{plugin.id} offers a {self._kind} without a name: it is left out"
            )
            return

        first = self.providers.setdefault(name, plugin)
        if first is not plugin:
            self._conflicts.append(
                f"{plugin.id} offers the {self._kind} {name!r}, which is {first.id}'s: "
                "it is refused"
            )
        elif name in self._definitions:
            self._conflicts.append(
                f"{plugin.id} offers the {self._kind} {name!r} twice: the second is left out"
            )
        else:
            self._definitions[name] = definition

    def definitions(self) -> list[Any]:
        """Return the definitions, sorted by name."""
        return [self._definitions[name] for name in sorted(self._definitions)]


def build_routes(plugins: Sequence[P]) -> Routes[P]:
    """Return the routes of plugins, which are in order of precedence."""
    conflicts: list[str] = []
    tools = _Table[P]("tool", conflicts)
    prompts = _Table[P]("prompt", conflicts)
    storage: dict[str, P] = {}
    for plugin in plugins:
        features = plugin.features
        for tool in features.tools:
            tools.add(plugin, tool)
        for prompt in features.prompts:
            prompts.add(plugin, prompt)
        for kind in sorted(features.storage):
            if (first := storage.setdefault(kind, plugin)) is not plugin:
                conflicts.append(
                    f"{plugin.id} offers storage {kind!r}, which is {first.id}'s: it is refused"
                )

    return Routes(
        tools.providers,
        prompts.providers,
        storage,
        PluginResponse(list_tools=ListToolsResponse(tools=tools.definitions())),
        PluginResponse(list_prompts=ListPromptsResponse(prompts=prompts.definitions())),
        tuple(conflicts),
    )
