"""Routes: which plugin of a hub gets the requests for which tool, prompt and storage type.

A hub starts plugins and forwards requests to them. It builds new Routes whenever the features of a
plugin have changed. The plugin that gets the requests for a name, such as the name of a tool, is
called the provider of this name. If two plugins offer the same name, the hub reports the conflict,
and one of them is the provider:

- If one runs at this hub, and the other in the NATS cluster: the plugin of this hub. So a plugin of
  the cluster cannot take over the name of a tool.
- If both use QUIC: the plugin that comes later in the plugins file. The Go implementation does the
  same, and its standard plugins rely on it.
- Otherwise: the plugin that comes first in the plugins file.

An AI bridge is a plugin that gives access to the models of an AI provider, such as claude or openai
(`provides_ai`). All AI bridges offer the same tools, such as `ai_prompt`. A call that names an AI
provider goes to the AI bridge for this provider. For a call without an AI provider, the AI bridge
for claude comes before all other plugins, and other AI bridges come last, as in the Go
implementation. This order also holds between an AI bridge of the cluster and an AI bridge of this
hub.

If no AI bridge exists for the AI provider in a call, the Go implementation sends the call to
claude. This hub refuses the call, because a prompt that is meant for one company must not reach
another.

Source: the Orchestra plugin protocol, "Orchestrator", routing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from concertino.orchestra.storage import RESOURCES

__all__ = ["PluginFeatures", "PluginProvider", "Routes", "build_routes"]

# The AI provider for calls that name none, as in the Go implementation.
DEFAULT_AI = "claude"
# AI provider -> another provider with the same interface. The other provider's bridge gets the
# calls if the first provider has no bridge.
AI_ALIASES: Mapping[str, str] = dict.fromkeys(
    ("grok", "perplexity", "deepseek", "qwen", "kimi"), "openai"
)


class PluginFeatures(Struct, frozen=True, eq=False):
    """The tools, prompts and storage types that one plugin offers.

    manifest: the manifest that the plugin has registered with.
    tools, prompts: the definitions in the plugin's lists.
    storage: the names of the storage types, such as "markdown".
    """

    manifest: PluginManifest
    tools: Sequence[ToolDefinition] = ()
    prompts: Sequence[PromptDefinition] = ()
    storage: frozenset[str] = frozenset()


class PluginProvider(Protocol):
    """A plugin that may provide names: the part of it that this module uses.

    Either the hub itself runs the plugin (PluginProcess), or other processes of a NATS cluster do
    (ClusterPlugin). is_local tells the two apart.
    """

    @property
    def id(self) -> str: ...
    @property
    def features(self) -> PluginFeatures: ...
    @property
    def uses_quic(self) -> bool: ...
    @property
    def is_local(self) -> bool: ...
    @property
    def provides_ai(self) -> Sequence[str]: ...


P = TypeVar("P", bound=PluginProvider)


class Routes(Struct, Generic[P], frozen=True, eq=False):
    """Says for each tool, prompt and storage type of a hub which plugin provides it.

    tools: name -> the plugin that gets the calls that name no AI provider. If several AI bridges
        and no other plugin offer a tool, it is in this dict only if one of them is for claude, the
        default. Otherwise, calls of the tool must name an AI provider.
    ai_tools: AI provider -> name of a tool -> the AI bridge that gets the calls with this provider.
    prompts, storage: name -> the plugin that gets the requests.
    resources: the plugins that run MCP servers with resources. The hub sends each request for
        resources to these plugins, and joins the answers.
    tool_list, prompt_list: the responses to list requests, sorted by name. All requests get the
        same object; the code that sends a response overwrites its request_id each time.
    conflicts: a message for each offer of a name that the hub refuses, because another plugin
        provides the name.
    replacements: a message for each offer of a name that a later plugin in the plugins file
        replaces.
    """

    tools: dict[str, P]
    ai_tools: Mapping[str, Mapping[str, P]]
    prompts: dict[str, P]
    storage: dict[str, P]
    resources: tuple[P, ...]
    tool_list: PluginResponse
    prompt_list: PluginResponse
    conflicts: tuple[str, ...]
    replacements: tuple[str, ...]

    def find_tool(self, name: str, ai: str) -> P | None:
        """Return the plugin that gets a call of a tool; None if no plugin may get the call.

        name: the name of the tool.
        ai: the AI provider that the call names; empty for a call without one.
        """
        if not ai:
            return self.tools.get(name)
        bridges = self._bridges(ai)
        if bridges is None:
            return None
        plugin = bridges.get(name) or self.tools.get(name)
        # `plugin` may be a bridge to another AI provider. That company must not get the call.
        if plugin is None or (plugin.provides_ai and name not in bridges):
            return None
        return plugin

    def explain_missing_tool(self, name: str, ai: str) -> str:
        """Return a sentence that says why find_tool() has returned None for these arguments."""
        if not ai:
            possible = [ai for ai, tools in self.ai_tools.items() if name in tools]
            if not possible:
                return f"no plugin has the tool {name!r}"
            return (
                f"several AI providers have the tool {name!r}: "
                f"name one of {', '.join(sorted(possible))}"
            )
        if self._bridges(ai) is not None:
            return f"the AI provider {ai!r} has no tool {name!r}"
        available = ", ".join(sorted(self.ai_tools)) or "none"
        return f"no plugin is a bridge to the AI provider {ai!r}; available: {available}"

    def _bridges(self, ai: str) -> Mapping[str, P] | None:
        """Return name of a tool -> AI bridge, for the AI bridges of an AI provider.

        Without such a bridge, returns the AI bridges of the AI provider's alias (AI_ALIASES).
        Returns None if there is no such bridge either.
        """
        if ai in self.ai_tools:
            return self.ai_tools[ai]
        return self.ai_tools.get(AI_ALIASES.get(ai, ""))


def _replaces(later: PluginProvider, earlier: PluginProvider) -> bool:
    """Return whether the later of two plugins provides a name that both offer.

    later, earlier: the plugins, in the order of the plugins file. Plugins of the cluster come after
        all plugins of the hub.
    """
    are_bridges = later.provides_ai and earlier.provides_ai
    # Apart from AI bridges, a plugin of the hub itself comes before a plugin of the cluster.
    if later.is_local != earlier.is_local and not are_bridges:
        return False
    new, old = _precedence(later), _precedence(earlier)
    if new != old:
        return new > old
    # Of two AI bridges, the earlier one provides the name, even if both use QUIC.
    return not later.provides_ai and later.uses_quic and earlier.uses_quic


def _precedence(plugin: PluginProvider) -> int:
    """Return 2 for an AI bridge to claude, 1 for a plugin that is no AI bridge, and otherwise 0.

    Of two plugins that offer the same name, the plugin with the higher number provides it.
    """
    if DEFAULT_AI in plugin.provides_ai:
        return 2
    return 0 if plugin.provides_ai else 1


class _Messages:
    """The messages about names that several plugins offer.

    conflicts, replacements: as in Routes.
    """

    def __init__(self) -> None:
        self.conflicts: list[str] = []
        self.replacements: list[str] = []

    def on_second_offer(
        self,
        name: str,
        earlier: PluginProvider,
        later: PluginProvider,
        *,
        is_replaced: bool,
    ) -> None:
        """Add the message for a name that two plugins offer.

        name: the name with its kind, such as "the tool 'add'".
        earlier, later: the plugins, in the order of the plugins file.
        is_replaced: whether the later plugin provides the name.
        """
        # AI bridges to different AI providers do not conflict, because calls choose between them.
        ai, other_ai = set(earlier.provides_ai), set(later.provides_ai)
        if ai and other_ai and ai.isdisjoint(other_ai):
            return
        if is_replaced:
            self.replacements.append(
                f"{later.id} offers {name}, as {earlier.id} does, and comes later: it is used"
            )
        else:
            self.conflicts.append(
                f"{later.id} offers {name}, which is {earlier.id}'s: it is refused"
            )


def _offer(
    providers: dict[str, P],
    name: str,
    plugin: P,
    label: str,
    messages: _Messages,
) -> bool:
    """Record that a plugin offers a name. Returns whether the plugin now provides the name.

    providers: name -> the plugin that provides it. This function changes it.
    plugin: the plugin, which comes later in the plugins file than the present provider.
    label: the name with its kind, such as "the tool 'add'", for the message.
    messages: gets a message if another plugin offers the name, too.
    """
    earlier = providers.setdefault(name, plugin)
    if earlier is plugin:
        return True
    is_replaced = _replaces(plugin, earlier)
    if is_replaced:
        providers[name] = plugin
    messages.on_second_offer(label, earlier, plugin, is_replaced=is_replaced)
    return is_replaced


class _Table(Generic[P]):
    """Collects the providers and definitions of all tools, or of all prompts, of a hub.

    kind: "tool" or "prompt", for messages.
    messages: gets a message for each name that several plugins offer.

    Attribute:
    providers: name of a tool or prompt -> the plugin that provides it.
    """

    def __init__(self, kind: str, messages: _Messages) -> None:
        self.providers: dict[str, P] = {}
        self._kind = kind
        self._messages = messages
        # Name -> the definition of its provider.
        self._definitions: dict[str, Any] = {}

    def add(self, plugin: P, definition: Any) -> None:
        """Add the definition of a tool or prompt, or a message that says why it is refused.

        plugin: the plugin that offers the tool or prompt. Call this method for the plugins in the
            order of the plugins file.
        """
        name: str = definition.name
        conflicts = self._messages.conflicts
        if not name:
            conflicts.append(f"{plugin.id} offers a {self._kind} without a name: it is left out")
            return

        label = f"the {self._kind} {name!r}"
        if self.providers.get(name) is plugin:
            conflicts.append(f"{plugin.id} offers {label} twice: the second is left out")
        elif _offer(self.providers, name, plugin, label, self._messages):
            self._definitions[name] = definition

    def definitions(self) -> list[Any]:
        """Return the definitions, sorted by name."""
        return [self._definitions[name] for name in sorted(self._definitions)]


def build_routes(plugins: Sequence[P]) -> Routes[P]:
    """Return the routes for the plugins of a hub.

    plugins: the hub's own plugins, in the order of the plugins file, then the plugins of its
        cluster.
    """
    messages = _Messages()
    tools = _Table[P]("tool", messages)
    ai_tools: dict[str, dict[str, P]] = {}
    prompts = _Table[P]("prompt", messages)
    storage: dict[str, P] = {}
    for plugin in plugins:
        features = plugin.features
        for tool in features.tools:
            tools.add(plugin, tool)
        for ai in plugin.provides_ai:
            bridges = ai_tools.setdefault(ai, {})
            for tool in features.tools:
                bridges.setdefault(tool.name, plugin)
        for prompt in features.prompts:
            prompts.add(plugin, prompt)
        # Several plugins may provide the storage type RESOURCES, so this is no conflict.
        for kind in sorted(features.storage - {RESOURCES}):
            _offer(storage, kind, plugin, f"storage {kind!r}", messages)

    return Routes(
        # A provider with precedence 0 is an AI bridge, but not for claude. If several AI bridges
        # offer the tool, a call must name an AI provider.
        tools={
            name: plugin
            for name, plugin in tools.providers.items()
            if _precedence(plugin) > 0 or _has_one_bridge(name, ai_tools)
        },
        ai_tools=ai_tools,
        prompts=prompts.providers,
        storage=storage,
        resources=tuple(plugin for plugin in plugins if RESOURCES in plugin.features.storage),
        tool_list=PluginResponse(list_tools=ListToolsResponse(tools=tools.definitions())),
        prompt_list=PluginResponse(list_prompts=ListPromptsResponse(prompts=prompts.definitions())),
        conflicts=tuple(messages.conflicts),
        replacements=tuple(messages.replacements),
    )


def _has_one_bridge(tool: str, ai_tools: Mapping[str, Mapping[str, PluginProvider]]) -> bool:
    """Return whether only one AI bridge has a tool, even if it serves several AI providers."""
    return len({tools[tool].id for tools in ai_tools.values() if tool in tools}) == 1
