"""The official inspector's command line against a real process of ours, in its legacy and its
modern mode.

What inspector 2.12 prints and how it ends was found by trying: `--format json` gives one JSON
object on stdout; exit code 5 is an `isError` result, 6 a schema that `--strict` objects to, 1 any
other failure.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from interop import node
from stdio.harness import environment

TOUR = Path(__file__).parents[2] / "examples" / "tour.py"
slow = pytest.mark.slow
eras = pytest.mark.parametrize("era", ["legacy", "modern", "auto"])
META = "io.modelcontextprotocol/"


def inspect(era: str, *arguments: str, home: Path) -> node.Ran:
    """Run the inspector once; it starts the server, asks one thing, and ends.

    home: for what it stores.
    """
    modules = node.packages() / "node_modules"
    command = [
        modules / ".bin" / "node",
        modules / ".bin" / "mcp-inspector",
        "--cli",
        *("--protocol-era", era, "--format", "json"),
        *arguments,
    ]
    for name, value in environment(LOG_LEVEL="debug").items():  # it passes on little of its own
        command += ["-e", f"{name}={value}"]
    return node.run(
        [*command, "--", sys.executable, TOUR], {**environment(), "HOME": str(home)}, cwd=home
    )


def result(ran: node.Ran, code: int = 0) -> Any:
    assert ran.code == code, (ran.stdout, ran.stderr)
    assert not ran.left, "a server was left behind"
    return json.loads(ran.stdout)


@pytest.mark.parametrize(
    "era", ["modern", pytest.param("legacy", marks=slow), pytest.param("auto", marks=slow)]
)
def test_it_calls_a_tool_with_arguments(era: str, tmp_path: Path) -> None:
    ran = inspect(
        era,
        "--method",
        "tools/call",
        "--tool-name",
        "add",
        "--tool-arg",
        "a=2",
        "b=40",
        home=tmp_path,
    )
    said = result(ran)["result"]
    assert said["content"] == [{"type": "text", "text": "42"}]
    assert said["structuredContent"] == ({"result": 42} if era == "legacy" else 42)
    assert (f'"{META}protocolVersion":"2026-07-28"' in ran.stderr) is (era != "legacy")
    assert "Shutting down tour MCP server" in ran.stderr


@slow
@eras
def test_it_lists_the_tools_and_finds_nothing_to_object_to_in_their_schemas(
    era: str, tmp_path: Path
) -> None:
    tools = result(inspect(era, "--method", "tools/list", "--strict", home=tmp_path))["result"][
        "tools"
    ]
    assert [tool["name"] for tool in tools] == [
        "add",
        "statistics",
        "divide",
        "bake",
        "wait",
        "swatch",
        "chat",
    ]
    assert tools[0]["inputSchema"]["required"] == ["a", "b"]


@slow
@eras
@pytest.mark.parametrize(
    ("tool", "arguments", "text"),
    [
        ("divide", {"a": 1, "b": 0}, "b is 0: give another divisor"),
        ("add", {"a": 1}, "Missing required field: b"),
    ],
    ids=["failing tool", "missing argument"],
)
def test_a_failure_is_a_result_with_its_text(
    era: str, tool: str, arguments: dict[str, int], text: str, tmp_path: Path
) -> None:
    words = (
        "--method",
        "tools/call",
        "--tool-name",
        tool,
        "--tool-args-json",
        json.dumps(arguments),
    )
    ran = inspect(era, *words, home=tmp_path)
    said = result(ran, code=5)["result"]
    assert said["isError"] is True
    assert text in said["content"][0]["text"]
    assert '"code":"tool_is_error"' in ran.stderr


@slow
def test_two_hundred_calls_twenty_at_once_are_all_answered(tmp_path: Path) -> None:
    words = (
        "--method",
        "tools/call",
        "--tool-name",
        "add",
        "--tool-args-json",
        '{"a":1,"b":2}',
        "--load",
    )
    said = result(
        inspect(
            "legacy", *words, "--load-requests", "200", "--load-concurrency", "20", home=tmp_path
        )
    )
    assert (said["result"]["ok"], said["result"]["errors"], said["result"]["toolErrors"]) == (
        200,
        0,
        0,
    )


@slow
def test_it_sets_the_level_of_log_messages(tmp_path: Path) -> None:
    ran = inspect("legacy", "--method", "logging/setLevel", "--log-level", "error", home=tmp_path)
    assert result(ran) == {"result": {}}
    assert '"method":"logging/setLevel"' in ran.stderr
