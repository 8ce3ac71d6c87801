"""docs/how-to/dependencies.md: its server in a process, its tests, and its types in pyright."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from docs.pages import DOCS, ROOT, ask_server, environment, paste, run_tests

PAGE = DOCS / "how-to" / "dependencies.md"
FILES = ["orders.py", "test_orders.py"]


def test_orders_are_kept_and_clients_see_neither_database_nor_buyer(tmp_path: Path) -> None:
    assert paste(PAGE, tmp_path) == FILES
    opening = {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "ann", "version": "1"},
    }
    requests: list[tuple[str, dict[str, Any]]] = [
        ("initialize", opening),
        ("tools/call", {"name": "order", "arguments": {"item": "tea"}}),
        ("tools/call", {"name": "order", "arguments": {"item": "jam"}}),
        ("tools/call", {"name": "items", "arguments": {}}),
        ("tools/call", {"name": "whoami", "arguments": {}}),
        ("tools/list", {}),
    ]
    lines = [
        json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
        for number, (method, params) in enumerate(requests)
    ]
    # One after the other: the second order is listed after the first.
    done = subprocess.run(
        [sys.executable, "-c", SEQUENTIAL, *lines],
        cwd=tmp_path,
        env=environment(ORDERS="kept.db"),
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    _, tea, jam, items, whoami, tools = [
        json.loads(line)["result"] for line in done.stdout.splitlines()
    ]
    assert tea["structuredContent"] == {"result": ["tea"]}
    assert jam["structuredContent"] == {"result": ["tea", "jam"]}
    assert items["structuredContent"] == {"result": ["jam", "tea"]}
    assert whoami["content"][0]["text"] == "ann"
    properties = [list(tool["inputSchema"].get("properties", {})) for tool in tools["tools"]]
    assert properties == [[], ["item"], []]


# Sends each line when the one before was answered.
SEQUENTIAL = """
import subprocess, sys
server = subprocess.Popen([sys.executable, "orders.py"], stdin=-1, stdout=-1, text=True)
for line in sys.argv[1:]:
    server.stdin.write(line + "\\n")
    server.stdin.flush()
    print(server.stdout.readline(), end="")
server.stdin.close()
sys.exit(server.wait())
"""


def test_a_client_without_a_name_is_refused(tmp_path: Path) -> None:
    paste(PAGE, tmp_path)
    # The tests' client does not introduce itself.
    requests: list[tuple[str, dict[str, Any]]] = [
        ("tools/call", {"name": name, "arguments": {"item": "tea"} if name == "order" else {}})
        for name in ("whoami", "order")
    ]
    answers, _, _ = ask_server([sys.executable, "orders.py"], requests, tmp_path, ORDERS="kept.db")
    for answer in answers:
        assert answer["isError"]
        assert "WHO_ARE_YOU" in answer["content"][0]["text"]


@pytest.mark.slow
def test_its_tests_pass(tmp_path: Path) -> None:
    paste(PAGE, tmp_path)
    assert "3 passed" in run_tests(tmp_path, "test_orders.py")


@pytest.mark.slow
def test_type_checkers_know_what_handlers_and_providers_get(tmp_path: Path) -> None:
    pytest.importorskip("pyright")
    paste(PAGE, tmp_path)
    (tmp_path / "wrong.py").write_text(
        "from orders import items, order\n\nitems('x')\nreveal_type(order)\n"
    )
    (tmp_path / "pyrightconfig.json").write_text(
        json.dumps({"typeCheckingMode": "strict", "extraPaths": [str(ROOT / "src")]})
    )
    done = subprocess.run(
        [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    found = json.loads(done.stdout)["generalDiagnostics"]
    messages = [
        (Path(item["file"]).name, item["severity"], item["message"].split("\n")[0])
        for item in found
    ]
    assert messages == [
        (
            "wrong.py",
            "error",
            'Argument of type "Literal[\'x\']" cannot be assigned to parameter "database" '
            'of type "Database" in function "items"',
        ),
        (
            "wrong.py",
            "information",
            'Type of "order" is "(item: str, orders: Orders) -> '
            'CoroutineType[Any, Any, list[str]]"',
        ),
    ]
