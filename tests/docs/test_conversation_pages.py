"""docs/how-to/ask-the-user.md and subscriptions.md: their servers, their tests, and what they say
goes over the wire.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from docs.pages import DOCS, environment, paste, run_tests

ASK = DOCS / "how-to" / "ask-the-user.md"
TELL = DOCS / "how-to" / "subscriptions.md"
META: dict[str, Any] = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}


def test_the_tests_of_the_page_that_asks_pass(tmp_path: Path) -> None:
    assert paste(ASK, tmp_path) == ["travel.py", "test_travel.py"]
    assert "2 passed" in run_tests(tmp_path, "test_travel.py")


def test_the_tests_of_the_page_that_tells_pass(tmp_path: Path) -> None:
    assert paste(TELL, tmp_path) == ["weather.py", "test_weather.py"]
    assert "2 passed" in run_tests(tmp_path, "test_weather.py")


def exchange(folder: Path, server: str, *messages: dict[str, Any]) -> list[dict[str, Any]]:
    lines = "".join(json.dumps({"jsonrpc": "2.0", **item}) + "\n" for item in messages)
    done = subprocess.run(
        [sys.executable, server],
        input=lines,
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.requirement("SU-8")
def test_what_the_page_shows_goes_over_the_wire_and_the_end_comes_in_order(tmp_path: Path) -> None:
    paste(TELL, tmp_path)
    wanted = {
        "toolsListChanged": True,
        "promptsListChanged": True,
        "resourceSubscriptions": ["weather://rome"],
    }
    listen = {
        "id": 7,
        "method": "subscriptions/listen",
        "params": {"notifications": wanted, "_meta": META},
    }
    arguments = {"place": "rome", "weather": "rain"}
    call = {
        "id": 8,
        "method": "tools/call",
        "params": {"name": "report", "arguments": arguments, "_meta": META},
    }
    said = [item for item in exchange(tmp_path, "weather.py", listen, call) if item.get("id") != 8]
    assert [item.get("method", "result") for item in said] == [
        "notifications/subscriptions/acknowledged",
        "notifications/resources/updated",
        "result",
        "notifications/cancelled",
    ]
    honoured = {
        "toolsListChanged": True,
        "resourceSubscriptions": ["weather://rome"],
    }  # there are no prompts
    assert said[0]["params"]["notifications"] == honoured
    assert said[1]["params"]["uri"] == "weather://rome"
    key = "io.modelcontextprotocol/subscriptionId"
    assert [item["params"]["_meta"][key] for item in said[:2]] == [7, 7]
    assert said[2]["result"]["_meta"][key] == said[2]["id"] == said[3]["params"]["requestId"] == 7


def test_what_is_not_declared_is_32021_and_a_state_of_another_call_is_32602(tmp_path: Path) -> None:
    paste(ASK, tmp_path)
    params = {"name": "book", "arguments": {"to": "Rome"}, "_meta": META}
    [refused] = exchange(tmp_path, "travel.py", {"id": 1, "method": "tools/call", "params": params})
    assert refused["error"]["code"] == -32021
    assert refused["error"]["data"] == {"requiredCapabilities": {"elicitation": {}}}
    params = {**params, "requestState": "AAAA"}
    [refused] = exchange(tmp_path, "travel.py", {"id": 1, "method": "tools/call", "params": params})
    assert refused["error"]["code"] == -32602
