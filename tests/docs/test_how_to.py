"""docs/how-to: its files are pasted, its commands run, and what it says about the outcome is looked
at.

custom-transport.md has tests of its own beside this file.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from docs.pages import DOCS, ROOT, blocks, environment, paste, run_shell, serve, spoken_to
from interop import node

HOW_TO = DOCS / "how-to"


# logging.md


def greet_ada(folder: Path, **settings: str) -> tuple[list[dict[str, Any]], str]:
    """The notifications and the log of one greeting."""
    paste(HOW_TO / "logging.md", folder)
    [greeting], notifications, log = spoken_to(
        [sys.executable, "talkative.py"], [("greet", {"name": "Ada"})], folder, **settings
    )
    assert greeting["content"][0]["text"] == "Hello Ada"
    return notifications, log


def test_each_of_the_three_ways_to_say_something_arrives_where_it_says(tmp_path: Path) -> None:
    notifications, log = greet_ada(tmp_path)
    assert "[INFO] [talkative] greeting Ada\n" in log
    assert "\nhello\n" in log
    assert "a print at talkative.py:14 went to stderr" in log
    assert [(item["params"]["level"], item["params"]["data"]) for item in notifications] == [
        ("info", "greeting Ada")
    ]


def test_the_log_s_level_and_format_can_be_chosen(tmp_path: Path) -> None:
    assert "Received request" in greet_ada(tmp_path, LOG_LEVEL="debug")[1]
    assert "[MCP] <- {" in greet_ada(tmp_path, CONCERTINO_TRACE="1")[1]
    assert "greeting Ada" not in greet_ada(tmp_path, LOG_LEVEL="warn")[1]
    log = greet_ada(tmp_path, CONCERTINO_LOG_FORMAT="json")[1]
    assert "greeting Ada" in [
        json.loads(line).get("text") for line in log.splitlines() if line.startswith("{")
    ]


# troubleshooting.md


@pytest.mark.parametrize(
    ("command", "reaches_stdout"),
    [(["early.py"], True), (["-m", "concertino", "serve", "early.py"], False)],
)
def test_what_is_printed_before_run_reaches_stdout_unless_the_command_line_serves_the_file(
    command: list[str], reaches_stdout: bool, tmp_path: Path
) -> None:
    source = (
        'print("starting", flush=True)\nfrom concertino import Server\nserver ='
        ' Server("early")\nserver.run()\n'
    )
    (tmp_path / "early.py").write_text(source)
    done = subprocess.run(
        [sys.executable, *command],
        cwd=tmp_path,
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert (done.stdout == "starting\n") is reaches_stdout
    assert ("starting\n" in done.stderr) is not reaches_stdout


# blocking-work.md


def test_threads_tell_progress_and_share_under_a_lock(tmp_path: Path) -> None:
    paste(HOW_TO / "blocking-work.md", tmp_path)
    results = serve(["slow.py"], [("grind", {"parts": 20}) for _ in range(5)], tmp_path)
    assert [result["content"][0]["text"] for result in results] == ["20 parts"] * 5
    [done] = serve(["slow.py"], [("done", {})], tmp_path)
    assert done["structuredContent"] == {"result": 0}


@pytest.mark.slow
@pytest.mark.parametrize("command", [["cpu.py"], ["-m", "concertino", "serve", "cpu.py"]], ids=str)
def test_a_pool_of_processes_computes_and_is_gone_with_the_server(
    command: list[str], tmp_path: Path
) -> None:
    paste(HOW_TO / "blocking-work.md", tmp_path)
    requests = [
        {"id": 0, "method": "initialize", "params": {"protocolVersion": "2025-11-25"}},
        {
            "id": 1,
            "method": "tools/call",
            "params": {"name": "primes", "arguments": {"below": 1000}},
        },
    ]
    (tmp_path / "in").write_text(
        "".join(json.dumps({"jsonrpc": "2.0", **item}) + "\n" for item in requests)
    )
    # The shell keeps stdin open until the answer is there: at the end of input a call has 2 s, and
    # workers start slowly.
    line = '{ cat in; while ! grep -q \'"id":1\' out; do sleep 0.05; done; } | "$@" >out'
    ran = node.run(["sh", "-c", line, "sh", sys.executable, *command], environment(), cwd=tmp_path)
    assert ran.code == 0, ran.stderr
    answers = [json.loads(item) for item in (tmp_path / "out").read_text().splitlines()]
    assert [item["result"]["structuredContent"] for item in answers if item["id"] == 1] == [
        {"result": 168}
    ]
    assert not ran.left, "worker processes were left behind"


def test_another_program_s_failure_is_told(tmp_path: Path) -> None:
    paste(HOW_TO / "blocking-work.md", tmp_path)
    (tmp_path / "poem").write_text("one\ntwo\n")
    calls = [("count_lines", {"path": "poem"}), ("count_lines", {"path": "missing"})]
    counted, failed = serve(["lines.py"], calls, tmp_path)
    assert counted["structuredContent"] == {"result": 2}
    assert failed["isError"] is True
    assert "missing" in failed["content"][0]["text"]


# deploy.md


def test_what_is_tried_by_hand_answers(tmp_path: Path) -> None:
    paste(
        "```python\n# calculator.py\n"
        + blocks((ROOT / "README.md").read_text(), "python")[0]
        + "```\n",
        tmp_path,
    )
    assert run_shell(HOW_TO / "deploy.md", tmp_path) == "42\n"


def test_what_is_pasted_into_a_client_s_configuration_is_json_with_absolute_paths() -> None:
    found = [json.loads(block) for block in blocks((HOW_TO / "deploy.md").read_text(), "json")]
    assert [list(item) for item in found] == [["mcpServers"], ["servers"]]
    for item in found:
        [outer] = item.values()
        [entry] = outer.values()
        assert Path(entry["command"]).is_absolute()
        assert entry["args"][0] == "serve"
        assert Path(entry["args"][1]).is_absolute()


# install.md


def test_the_page_about_installing_names_every_extra_and_what_it_installs() -> None:
    with open(ROOT / "pyproject.toml", "rb") as file:
        extras: dict[str, list[str]] = tomllib.load(file)["project"]["optional-dependencies"]
    page = (ROOT / "docs" / "how-to" / "install.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| .* \| ([\w, -]+) \|$", page, re.MULTILINE)
    assert {name: set(packages.split(", ")) for name, packages in rows} == {
        name: {re.split(r"[<>=]", item)[0] for item in requirements}
        for name, requirements in extras.items()
        if name != "all"
    }
