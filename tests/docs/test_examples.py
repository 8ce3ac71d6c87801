"""What the documentation shows is run, as a reader would: pasted into files, in a process of its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import fields

from concertino import Limits

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *(ROOT / name for name in ("CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"))]
PAGES += sorted((ROOT / "docs").rglob("*.md"))
README = (ROOT / "README.md").read_text()
TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text()
ENVIRONMENT = (ROOT / "docs" / "reference" / "environment.md").read_text()
COMMAND_LINE = (ROOT / "docs" / "reference" / "command-line.md").read_text()


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)


def serve(command: list[str], calls: list[tuple[str, dict[str, Any]]], cwd: Path) -> list[dict[str, Any]]:
    """Start a server, open, call some tools, close its stdin; the results in order. It must end with 0."""
    opening = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {"protocolVersion": "2025-11-25"}}
    requests = [
        {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": {"name": name, "arguments": arguments}}
        for number, (name, arguments) in enumerate(calls, 1)
    ]
    stdin = "".join(json.dumps(message) + "\n" for message in (opening, *requests))
    done = subprocess.run(command, input=stdin, cwd=cwd, capture_output=True, text=True, timeout=20)
    assert done.returncode == 0, done.stderr
    answers = {answer["id"]: answer for answer in map(json.loads, done.stdout.splitlines()) if "id" in answer}
    return [answers[request["id"]]["result"] for request in requests]


@pytest.mark.parametrize("command", [["calculator.py"], ["-m", "concertino", "serve", "calculator.py"]], ids=str)
@pytest.mark.parametrize(
    "source",
    [blocks(README, "python")[0], (ROOT / "examples" / "calculator.py").read_text()],
    ids=["README", "examples/calculator.py"],
)
def test_the_ten_lines_serve_in_both_ways(source: str, command: list[str], tmp_path: Path) -> None:
    (tmp_path / "calculator.py").write_text(source)
    [result] = serve([sys.executable, *command], [("add", {"a": 40, "b": 2})], tmp_path)
    assert result["structuredContent"] == {"result": 42}


@pytest.fixture
def tutorial(tmp_path: Path) -> Path:
    """A folder with the files of the tutorial, named by their first lines."""
    for source in blocks(TUTORIAL, "python"):
        name = source.splitlines()[0].removeprefix("# ")
        assert re.fullmatch(r"\w+\.py", name)
        (tmp_path / name).write_text(source)
    return tmp_path


def test_the_tutorial_s_servers_do_what_it_says(tutorial: Path) -> None:
    [price] = serve([sys.executable, "shop.py"], [("price", {"item": "apple", "amount": 2})], tutorial)
    assert price["structuredContent"] == {"result": 3.0}
    command = [sys.executable, "-m", "concertino", "serve", "stock.py"]
    shelf, counted = serve(command, [("shelf", {"item": "plum"}), ("count", {})], tutorial)
    assert shelf["structuredContent"] == {"item": "plum", "left": 0}
    assert counted["structuredContent"] == {"apple": 4, "plum": 0}


def test_the_tutorial_s_tests_pass(tutorial: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_stock.py"],
        cwd=tutorial,
        env={name: value for name, value in os.environ.items() if not name.startswith("COV")},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout
    assert "3 passed" in done.stdout


def test_the_tour_has_a_tool_of_every_kind() -> None:
    calls: list[tuple[str, dict[str, Any]]] = [
        ("add", {"a": 1, "b": 2}),
        ("statistics", {"values": [1, 3]}),
        ("divide", {"a": 1, "b": 0}),
        ("bake", {"cake": "apple", "minutes": 1}),
        ("wait", {"seconds": 0}),
        ("swatch", {"red": 1, "green": 2, "blue": 3}),
        ("chat", {"text": "hello"}),
    ]
    results = serve([sys.executable, "examples/tour.py"], calls, ROOT)
    kinds = [(result["content"][0]["type"], result.get("isError", False)) for result in results]
    assert kinds == [("text", False)] * 2 + [("text", True)] + [("text", False)] * 2 + [
        ("image", False),
        ("text", False),
    ]


def test_the_demo_runs_to_its_end_without_colours_in_a_pipe() -> None:
    done = subprocess.run([sys.executable, "scripts/demo.py"], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "The server has ended with exit code 0." in done.stdout
    assert "\x1b" not in done.stdout
    for seen in ("initialize", "server/discover", "tools/list", "notifications/progress", "notifications/cancelled"):
        assert f'"method": "{seen}"' in done.stdout
    assert '"id": 8, "result"' not in done.stdout  # the call that was cancelled
    [entry] = re.findall(r"^\{\n.*?^\}$", done.stdout, re.MULTILINE | re.DOTALL)
    [settings] = json.loads(entry)["mcpServers"].values()
    assert Path(settings["command"]).is_absolute()
    assert Path(settings["args"][-1]) == ROOT / "examples" / "tour.py"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_inside_the_documentation_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_every_limit_and_its_default_are_documented() -> None:
    documented = dict(re.findall(r"^\| `CONCERTINO_(\w+)` \| ([\d.]+) \|", ENVIRONMENT, re.MULTILINE))
    assert {name.lower(): float(value) for name, value in documented.items()} == {
        each.name: each.default for each in fields(Limits)
    }


def test_every_variable_that_is_read_is_documented() -> None:
    sources = "".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    read = set(re.findall(r'"(CONCERTINO_[A-Z_]+[A-Z])"', sources))
    assert read
    assert not [name for name in read if f"`{name}`" not in ENVIRONMENT]


def test_every_option_of_the_command_line_is_documented() -> None:
    for command in ([], ["serve"]):
        done = subprocess.run(
            [sys.executable, "-m", "concertino", *command, "--help"], capture_output=True, text=True, check=True
        )
        options = set(re.findall(r"--[a-z][a-z-]+", done.stdout)) - {"--help"}
        assert options
        assert not [option for option in options if f"`{option}`" not in COMMAND_LINE]


def test_every_module_is_in_the_architecture_and_every_module_there_exists() -> None:
    architecture = (ROOT / "docs" / "architecture.md").read_text()
    shown = set(re.findall(r"\b((?:protocol|driver|transports|server)/\w+\.py)", architecture))
    package = ROOT / "src" / "concertino"
    assert not [name for name in shown if not (package / name).exists()]
    for path in sorted((package / "protocol").glob("[a-z]*.py")):
        assert path.name in architecture
