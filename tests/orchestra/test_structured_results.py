"""Structured results through bridge, hub and plugin: what a client of each revision gets.

The expected values are what the same file gives to the same client when it is served alone, but for
the order of keys in texts; and for values that are no objects, which are texts here.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from orchestra.bridges import request
from orchestra.hubs import sdk, write_plugins_file
from stdio.harness import Process

PLUGIN = """
from concertino import Plugin, ToolError, image
from concertino.types.results import CallToolResult, TextContent
from msgspec import Struct
plugin = Plugin("tools.shapes")
class Point(Struct):
    y: int
    x: int
class Node(Struct):
    name: str
    children: list["Node"] = []
class Said(Struct):
    text: str
class Value(Struct):
    text: str
    data: list[int]
@plugin.tool
def point(x: int) -> Point:
    return Point(y=2**60, x=x)
@plugin.tool
def tree() -> Node:
    return Node("a", [Node("b")])
@plugin.tool
def said() -> Said:
    return Said("hello")
@plugin.tool
def value() -> Value:
    return Value("three", [3])
@plugin.tool
def seen() -> CallToolResult:
    return CallToolResult([TextContent("look"), image(b"abc", "image/png")], {"size": 3})
@plugin.tool
def number() -> int:
    return 3
@plugin.tool
def word() -> str:
    return "word"
@plugin.tool
def refuse() -> str:
    raise ToolError("NO_SHELF", "there is no shelf")
@plugin.tool
def advise() -> str:
    raise ToolError("NO_SHELF", "there is no shelf", suggestion="Build one")
plugin.run()
"""
OBJECTS = {"point": {"x": 1}, "tree": {}, "said": {}, "value": {}, "seen": {}}
OTHERS: dict[str, dict[str, Any]] = {"number": {}, "word": {}, "refuse": {}, "advise": {}}
OLD = ("2024-11-05", "2025-03-26")
NEW = ("2025-06-18", "2025-11-25")


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="o") as name:
        write_plugins_file(Path(name), sdk(Path(name), "tools.shapes", PLUGIN))
        yield Path(name)


@contextmanager
def serving(path: Path, revision: str) -> Iterator[Process]:
    with Process(["-m", "concertino", "serve", str(path)]) as process:
        process.initialize(revision)
        yield process
        assert process.finish() == 0


def answers(process: Process) -> dict[str, Any]:
    """The result of each tool, and the list of tools by name."""
    found: dict[str, Any] = {
        name: process.ask(request(name, "tools/call", {"name": name, "arguments": arguments}))[
            "result"
        ]
        for name, arguments in {**OBJECTS, **OTHERS}.items()
    }
    tools = process.ask(request("list", "tools/list"))["result"]["tools"]
    return {"tools": {tool["name"]: tool for tool in tools}, **found}


@pytest.mark.parametrize("revision", [*OLD, *NEW])
def test_a_client_gets_what_the_plugin_gives_when_it_is_served_alone(
    folder: Path, revision: str
) -> None:
    with serving(folder / "tools_shapes.py", revision) as process:
        alone = answers(process)
    with serving(folder / "plugins.yaml", revision) as process:
        through = answers(process)

    for name in OBJECTS:
        assert through[name].get("structuredContent") == alone[name].get("structuredContent"), name
        assert ("structuredContent" in through[name]) == (revision in NEW), name
        assert through["tools"][name].get("outputSchema") == alone["tools"][name].get(
            "outputSchema"
        )
    assert ("outputSchema" in through["tools"]["tree"]) == (revision in NEW)
    for name in ("said", "value"):
        assert through[name]["content"] == [
            {"type": "text", "text": {"said": "hello", "value": "three"}[name]}
        ]
    assert through["seen"]["content"] == alone["seen"]["content"]
    assert through["point"]["content"] == [
        {"type": "text", "text": '{"x":1,"y":1152921504606846976}'}
    ]
    for name in OTHERS:
        assert through[name]["content"] == alone[name]["content"]
        assert "structuredContent" not in through[name]
        assert "outputSchema" not in through["tools"][name]
    assert json.loads(through["refuse"]["content"][0]["text"])["code"] == "NO_SHELF"
