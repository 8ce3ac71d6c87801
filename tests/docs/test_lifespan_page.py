"""docs/how-to/lifespan.md: its server in a process, its tests, and what it says of a start that
fails.
"""

from __future__ import annotations

import json
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from docs.pages import DOCS, ask_server, paste, run_failing_server, run_tests

PAGE = DOCS / "how-to" / "lifespan.md"
FILES = ["shelves.py", "test_shelves.py"]


def test_what_is_put_is_there_in_the_next_life_and_clients_see_no_database(tmp_path: Path) -> None:
    assert paste(PAGE, tmp_path) == FILES
    call: tuple[str, dict[str, Any]] = (
        "tools/call",
        {"name": "put", "arguments": {"item": "plum", "amount": 5}},
    )
    for amount in (5, 10):
        requests: list[tuple[str, dict[str, Any]]] = [
            call,
            ("tools/call", {"name": "up"}),
            ("tools/list", {}),
        ]
        (put, up, tools), _, _ = ask_server(
            [sys.executable, "shelves.py"], requests, tmp_path, SHELVES="kept.db"
        )
        assert put["structuredContent"] == {"result": amount}
        assert up["content"][0]["text"] == "0 s"
        assert [list(tool["inputSchema"].get("properties", {})) for tool in tools["tools"]] == [
            ["item", "amount"],
            [],
        ]
    with closing(sqlite3.connect(tmp_path / "kept.db")) as kept:
        assert kept.execute("SELECT item, amount FROM shelves").fetchall() == [("plum", 10)]


@pytest.mark.slow
def test_its_tests_pass(tmp_path: Path) -> None:
    paste(PAGE, tmp_path)
    assert "2 passed" in run_tests(tmp_path, "test_shelves.py")


def test_a_start_that_fails_is_answered_logged_and_ends_the_process(tmp_path: Path) -> None:
    paste(PAGE, tmp_path)
    messages = [
        {"id": 0, "method": "initialize", "params": {"protocolVersion": "2025-11-25"}},
        {"id": 1, "method": "tools/call", "params": {"name": "up"}},
    ]
    stdin = "".join(json.dumps({"jsonrpc": "2.0", **item}) + "\n" for item in messages)
    code, stdout, stderr = run_failing_server(
        [sys.executable, "shelves.py"], tmp_path, stdin, SHELVES="no/such/folder/kept.db"
    )
    assert code == 1
    assert "unable to open database file" in stderr
    answers = {item["id"]: item for item in map(json.loads, stdout.splitlines())}
    reason = "cannot start: OperationalError: unable to open database file (shelves.py:14)"
    assert [answers[id]["error"] for id in (0, 1)] == [{"code": -32603, "message": reason}] * 2
