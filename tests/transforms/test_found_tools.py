"""found_tools.py and tool_text.py: what a search returns, and the texts that it looks at."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import Raw
from msgspec.json import decode, encode

from concertino.token_estimate import estimate
from concertino.transforms.found_tools import describe_found
from concertino.transforms.tool_text import read_tool_text, summary_of

TOOL: dict[str, Any] = {
    "name": "send",
    "description": "Send a message. " + "It is sent at once. " * 20,
    "inputSchema": {
        "type": "object",
        "title": "Send",
        "properties": {
            "title": {"type": "string", "description": "Shown at the top. " * 10},
            "to": {
                "type": "array",
                "items": {"type": "object", "properties": {"mail": {"description": "An address"}}},
            },
            "kind": {"enum": ["urgent", "usual"], "default": "usual"},
        },
        "required": ["title"],
    },
    "annotations": {"title": "Send it"},
    "_meta": {"concertino/tags": ["mail", 1]},
    "outputSchema": {"type": "object"},
}


def found(budget: int, count: int = 1) -> list[dict[str, Any]]:
    raw = decode(encode(TOOL), type=dict[str, Raw])
    text = describe_found([raw] * count, budget)
    assert estimate(text) <= budget
    return json.loads(text)["tools"]


def test_what_is_needed_for_a_call_is_shown() -> None:
    [tool] = found(2_000)
    assert tool == {key: TOOL[key] for key in ("name", "description", "inputSchema")}


def test_a_shorter_budget_leaves_the_arguments() -> None:
    [tool] = found(120)
    assert tool["description"] == "Send a message."
    # `title` is an argument here, and a note at the root.
    assert tool["inputSchema"] == {
        "type": "object",
        "properties": {
            "title": {"type": "string"},
            "to": {"type": "array", "items": {"type": "object", "properties": {"mail": {}}}},
            "kind": {"enum": ["urgent", "usual"], "default": "usual"},
        },
        "required": ["title"],
    }


def test_a_very_short_budget_leaves_the_name() -> None:
    assert found(25) == [{"name": "send"}]


def test_ten_tools_share_the_budget() -> None:
    tools = found(1_000, 10)
    assert len(tools) == 10
    assert "inputSchema" in tools[0]


def test_all_texts_of_a_tool_are_searched() -> None:
    text = read_tool_text(TOOL)
    assert (text.name, text.title, text.summary) == ("send", "Send it", "Send a message.")
    assert text.arguments == "title to mail kind"
    assert "An address" in text.argument_texts
    assert "urgent" in text.argument_texts
    assert text.tags == "mail"


@pytest.mark.parametrize(
    "tool",
    [
        {},
        {"name": 1, "description": None, "inputSchema": []},
        {"inputSchema": {"properties": {"a": True}}, "_meta": 1, "annotations": []},
    ],
)
def test_a_tool_of_any_shape_is_read(tool: dict[str, Any]) -> None:
    assert read_tool_text(tool).name == ""


def test_a_summary_has_an_end() -> None:
    assert summary_of("One. Two.") == "One."
    assert summary_of("  One\nTwo") == "One"
    assert len(summary_of("x" * 1_000)) == 200
