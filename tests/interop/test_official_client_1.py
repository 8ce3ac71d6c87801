"""The official Python client of the older generation, `mcp` 1.x, over stdio against a real process
of ours.

It cannot live beside 2.x, so it gets an environment of its own below .tools, made once and kept;
that needs the package index.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from interop.tools import python_with

import concertino

ROOT = Path(__file__).parents[2]
CONVERSATION = Path(__file__).with_name("conversation_1.py")
TOUR = ROOT / "examples" / "tour.py"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def client_python() -> Path:
    """An interpreter that has the client."""
    return python_with("mcp1", "mcp>=1.20,<2")


@pytest.fixture(scope="module")
def report(client_python: Path) -> dict[str, Any]:
    """What the client saw in one conversation."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "COV"))
    }
    command = [
        client_python,
        CONVERSATION,
        sys.executable,
        TOUR,
        Path(concertino.__file__).parents[1],
    ]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "Shutting down tour MCP server" in done.stderr
    return json.loads(done.stdout)


def test_it_opens_the_newest_revision_that_it_knows(report: dict[str, Any]) -> None:
    opening = report["opening"]
    assert opening["protocolVersion"] == "2025-11-25"
    assert opening["serverInfo"] == {"name": "tour", "version": "1.0.0"}
    assert opening["capabilities"] == {"logging": {}, "tools": {"listChanged": True}}


def test_it_lists_the_tools(report: dict[str, Any]) -> None:
    names = [tool["name"] for tool in report["tools"]]
    assert names == ["add", "statistics", "divide", "bake", "wait", "swatch", "chat"]


def test_it_takes_structured_content_that_fits_the_schema_shown(report: dict[str, Any]) -> None:
    assert report["sum"]["structuredContent"] == {"result": 42}
    assert report["statistics"]["structuredContent"] == {"count": 3, "mean": 5.0, "largest": 8.0}
    assert report["picture"]["content"][0]["mimeType"] == "image/png"


def test_it_tells_failures_from_errors(report: dict[str, Any]) -> None:
    assert report["failed"]["isError"] is True
    assert report["failed"]["content"][0]["text"] == "b is 0: give another divisor"
    assert report["refused"]["isError"] is True
    assert "Missing required field: b" in report["refused"]["content"][0]["text"]
    assert report["unknown"]["code"] == -32602
    assert report["unknown"]["message"] == "Unknown tool: multiply"


def test_it_hears_progress_and_log_messages_of_the_level_that_it_set(
    report: dict[str, Any],
) -> None:
    assert report["progress"] == [[1, 2, "1 of 2 minutes"], [2, 2, "2 of 2 minutes"]]
    assert report["log_messages"] == [["info", "plum cake goes into the oven"]]


def test_after_a_cancelled_call_the_next_fifty_are_served(report: dict[str, Any]) -> None:
    assert report["sums"] == list(range(50))


def test_nothing_came_that_it_could_not_place(report: dict[str, Any]) -> None:
    assert report["unexpected"] == []
