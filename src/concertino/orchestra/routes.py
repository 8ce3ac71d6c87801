"""Routes: which plugin of a hub provides which tool, prompt and storage type.

If two plugins offer the same name, the hub reports the conflict, and one of them provides the name:

- The plugin that comes first in the plugins file, whichever started first.
- But if both use QUIC, the plugin that comes last. The Go implementation does the same, and its
  standard plugins rely on it. There are two exceptions, because all AI bridges (`provides_ai`)
  offer the same tools: the bridge for claude is never replaced, and other bridges replace nothing.

Source: the Orchestra plugin protocol, "Orchestrator", routing.
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

__all__ = ["PluginFeatures", "PluginProvider", "Routes", "build_routes"]


class PluginFeatures(Struct, frozen=True, eq=False):
    """The tools, prompts and storage types that one plugin offers."""

    manifest: PluginManifest
    tools: Sequence[ToolDefinition] = ()
    prompts: Sequence[PromptDefinition] = ()
    storage: frozenset[str] = frozenset()


class PluginProvider(Protocol):
    """The members of a PluginProcess that this module uses."""

    @property
    def id(self) -> str: ...
    @property
    def features(self) -> PluginFeatures: ...
    @property
    def uses_quic(self) -> bool: ...
    @property
    def provides_ai(self) -> Sequence[str]: ...


P = TypeVar("P", bound=PluginProvider)


class Routes(Struct, Generic[P], frozen=True, eq=False):
    """The providers of a hub's features.

    tools, prompts, storage: the provider of each name.
    tool_list, prompt_list: the responses to list requests, sorted by name. All requests share one
        object; the sender overwrites its request_id.
    conflicts: a message for each offer that is refused.
    replacements: a message for each name that a later plugin has taken over.
    """

    tools: dict[str, P]
    prompts: dict[str, P]
    storage: dict[str, P]
    tool_list: PluginResponse
    prompt_list: PluginResponse
    conflicts: tuple[str, ...]
    replacements: tuple[str, ...]


# The AI provider that the Go hub uses when a caller names none.
DEFAULT_AI = "claude"


def _replaces(later: PluginProvider, earlier: PluginProvider) -> bool:
    """Return whether a plugin takes over a name from a plugin that is earlier in the file."""
    if not (later.uses_quic and earlier.uses_quic) or DEFAULT_AI in earlier.provides_ai:
        return False
    if later.provides_ai:
        return DEFAULT_AI in later.provides_ai
    return True


class _Messages:
    """The messages about names that several plugins offer."""

    def __init__(self) -> None:
        self.conflicts: list[str] = []
        self.replacements: list[str] = []

    def on_second_offer(
        self,
        name: str,
        provider: PluginProvider,
        other: PluginProvider,
    ) -> None:
        """Add the message for a name that two plugins offer.

        name: with its kind, such as "the tool 'add'".
        provider: the plugin that provides it.
        other: the plugin whose offer is refused or replaced.
        """
        if _replaces(provider, other):
            self.replacements.append(
                f"{provider.id} offers {name}, as {other.id} does, and comes later: it is used"
            )
        else:
            self.conflicts.append(
                f"{other.id} offers {name}, which is {provider.id}'s: it is refused"
            )


class _Table(Generic[P]):
    """Collects the providers and definitions of tools, or of prompts.

    kind: "tool" or "prompt", for messages.
    """

    def __init__(self, kind: str, messages: _Messages) -> None:
        self.providers: dict[str, P] = {}
        self._kind = kind
        self._messages = messages
        self._definitions: dict[str, Any] = {}

    def add(self, plugin: P, definition: Any) -> None:
        """Add the definition of a tool or prompt, or a message that says why it is refused."""
        name: str = definition.name
        conflicts = self._messages.conflicts
        if not name:
            conflicts.append(f"{plugin.id} offers a {self._kind} without a name: it is left out")
            return

        first = self.providers.setdefault(name, plugin)
        if first is not plugin:
            if _replaces(plugin, first):
                self.providers[name] = plugin
                self._definitions[name] = definition
                first, plugin = plugin, first
            self._messages.on_second_offer(f"the {self._kind} {name!r}", first, plugin)
        elif name in self._definitions:
            conflicts.append(
                f"{plugin.id} offers the {self._kind} {name!r} twice: the second is left out"
            )
        else:
            self._definitions[name] = definition

    def definitions(self) -> list[Any]:
        """Return the definitions, sorted by name."""
        return [self._definitions[name] for name in sorted(self._definitions)]


def build_routes(plugins: Sequence[P]) -> Routes[P]:
    """Return the routes for plugins. plugins: in the order of the plugins file."""
    messages = _Messages()
    tools = _Table[P]("tool", messages)
    prompts = _Table[P]("prompt", messages)
    storage: dict[str, P] = {}
    for plugin in plugins:
        features = plugin.features
        for tool in features.tools:
            tools.add(plugin, tool)
        for prompt in features.prompts:
            prompts.add(plugin, prompt)
        for kind in sorted(features.storage):
            provider = storage.setdefault(kind, plugin)
            if provider is not plugin:
                other = plugin
                if _replaces(plugin, provider):
                    storage[kind] = plugin
                    provider, other = plugin, provider
                messages.on_second_offer(f"storage {kind!r}", provider, other)

    return Routes(
        tools.providers,
        prompts.providers,
        storage,
        PluginResponse(list_tools=ListToolsResponse(tools=tools.definitions())),
        PluginResponse(list_prompts=ListPromptsResponse(prompts=prompts.definitions())),
        tuple(messages.conflicts),
        tuple(messages.replacements),
    )
