"""routes.py: which plugin provides a name that several offer.

The rule over QUIC is upstream's router's.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec import Struct

from concertino.orchestra.plugin_pb2 import PluginManifest, PromptDefinition, ToolDefinition
from concertino.orchestra.routes import PluginFeatures, Routes, build_routes


class Offering(Struct):
    """A plugin that offers the tool, the prompt and the storage of one name."""

    id: str
    uses_quic: bool = True
    provides_ai: Sequence[str] = ()
    name: str = "list_notes"
    is_local: bool = True

    @property
    def features(self) -> PluginFeatures:
        return PluginFeatures(
            PluginManifest(id=self.id),
            [ToolDefinition(name=self.name, description=self.id)],
            [PromptDefinition(name=self.name, description=self.id)],
            frozenset((self.name,)),
        )


def provider_of(routes: Routes[Offering]) -> str:
    """The one plugin that provides everything, and whose definitions are listed."""
    [tool] = routes.tool_list.list_tools.tools
    [prompt] = routes.prompt_list.list_prompts.prompts
    found = {
        routes.tools["list_notes"].id,
        routes.prompts["list_notes"].id,
        routes.storage["list_notes"].id,
        tool.description,
        prompt.description,
    }
    [id] = found
    return id


@pytest.mark.parametrize(
    ("plugins", "expected"),
    [
        ([Offering("a"), Offering("b"), Offering("c")], "c"),
        ([Offering("a", False), Offering("b", False)], "a"),
        ([Offering("a", False), Offering("b")], "a"),
        ([Offering("a"), Offering("b", False)], "a"),
        ([Offering("a"), Offering("b", False), Offering("c")], "c"),
        # Upstream's AI bridges all offer the same tools, and claude's is called by default.
        ([Offering("a", provides_ai=["claude"]), Offering("b", provides_ai=["openai"])], "a"),
        ([Offering("a", provides_ai=["openai"]), Offering("b", provides_ai=["claude"])], "b"),
        ([Offering("a", provides_ai=["claude"]), Offering("b")], "a"),
        ([Offering("a", provides_ai=["openai"]), Offering("b")], "b"),
        ([Offering("a"), Offering("b", provides_ai=["openai"])], "a"),
        # A plugin of the cluster must not take calls from the hub's own plugins.
        ([Offering("a"), Offering("b", False, ["claude"], is_local=False)], "a"),
        ([Offering("a", False), Offering("b", False, ["claude"], is_local=False)], "a"),
        ([Offering("a", False, ["openai"]), Offering("b", False, is_local=False)], "a"),
        (
            [Offering("a", False, ["openai"]), Offering("b", False, ["claude"], is_local=False)],
            "b",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "-",
)
def test_a_name_that_several_plugins_offer_goes_to(plugins: list[Offering], expected: str) -> None:
    routes = build_routes(plugins)
    assert provider_of(routes) == expected
    messages = routes.conflicts + routes.replacements
    # Bridges to different AI providers do not conflict, since calls can choose between them.
    are_bridges = all(plugin.provides_ai for plugin in plugins)
    assert len(messages) == (0 if are_bridges else 3 * (len(plugins) - 1))


def test_the_messages_name_both_plugins() -> None:
    over_quic = build_routes([Offering("a"), Offering("b")])
    assert over_quic.conflicts == ()
    assert over_quic.replacements == (
        "b offers the tool 'list_notes', as a does, and comes later: it is used",
        "b offers the prompt 'list_notes', as a does, and comes later: it is used",
        "b offers storage 'list_notes', as a does, and comes later: it is used",
    )
    over_sockets = build_routes([Offering("a", False), Offering("b", False)])
    assert over_sockets.replacements == ()
    assert over_sockets.conflicts[0] == (
        "b offers the tool 'list_notes', which is a's: it is refused"
    )


CLAUDE = Offering("claude", provides_ai=["claude"])
OPENAI = Offering("openai", provides_ai=["openai"])
GEMINI = Offering("gemini", provides_ai=["gemini"])
NOTES = Offering("notes")


# The order is that of findToolPlugin in the Go program, except that it sends calls for providers
# that it does not have to claude.
@pytest.mark.parametrize(
    ("plugins", "provider", "expected"),
    [
        ([CLAUDE, OPENAI, NOTES], "openai", "openai"),
        ([CLAUDE, OPENAI, NOTES], "claude", "claude"),
        ([CLAUDE, OPENAI, NOTES], "deepseek", "openai"),
        ([CLAUDE, OPENAI, Offering("own", provides_ai=["deepseek"])], "deepseek", "own"),
        ([CLAUDE, OPENAI, NOTES], "", "claude"),
        ([OPENAI, NOTES], "", "notes"),
        # Over Unix sockets too, the place in the file counts less than the kind.
        ([Offering("a", False, ["openai"]), Offering("b", False, ["claude"])], "", "b"),
        ([Offering("a", False, ["openai"]), Offering("b", False)], "", "b"),
        ([OPENAI], "", "openai"),
        ([OPENAI, GEMINI], "", None),
        ([CLAUDE, OPENAI], "gemini", None),
        ([CLAUDE, NOTES], "deepseek", None),
        ([Offering("other", provides_ai=["openai"], name="other"), CLAUDE], "openai", None),
        ([Offering("other", provides_ai=["openai"], name="other"), NOTES], "openai", "notes"),
    ],
    ids=lambda value: value if isinstance(value, str) else "-",
)
def test_a_call_that_names_an_ai_provider_goes_to(
    plugins: list[Offering], provider: str, expected: str | None
) -> None:
    plugin = build_routes(plugins).find_tool("list_notes", provider)
    assert (plugin and plugin.id) == expected


def test_a_call_that_no_plugin_may_get_is_explained() -> None:
    routes = build_routes([OPENAI, GEMINI])
    assert routes.explain_missing_tool("list_notes", "") == (
        "several AI providers have the tool 'list_notes': name one of gemini, openai"
    )
    assert routes.explain_missing_tool("list_notes", "mistral") == (
        "no plugin is a bridge to the AI provider 'mistral'; available: gemini, openai"
    )
    assert routes.explain_missing_tool("x", "kimi") == "the AI provider 'kimi' has no tool 'x'"
    assert routes.explain_missing_tool("x", "") == "no plugin has the tool 'x'"
    assert build_routes([NOTES]).explain_missing_tool("x", "a").endswith("available: none")


def test_two_bridges_to_the_same_provider_conflict() -> None:
    routes = build_routes([OPENAI, Offering("second", provides_ai=["openai"])])
    assert routes.conflicts[0] == (
        "second offers the tool 'list_notes', which is openai's: it is refused"
    )
    plugin = routes.find_tool("list_notes", "openai")
    assert plugin is not None
    assert plugin.id == "openai"


def test_an_ai_bridge_that_comes_first_keeps_its_names() -> None:
    routes = build_routes([Offering("claude", provides_ai=["claude"]), Offering("notes")])
    assert routes.replacements == ()
    assert routes.conflicts[0] == (
        "notes offers the tool 'list_notes', which is claude's: it is refused"
    )
