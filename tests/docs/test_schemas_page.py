"""docs/how-to/schemas.md: its server, run in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from docs.pages import DOCS, environment, paste

META: dict[str, Any] = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}


def test_the_server_of_the_page_shows_and_enforces_its_schemas(tmp_path: Path) -> None:
    assert paste(DOCS / "how-to" / "schemas.md", tmp_path) == ["shop.py"]
    calls: list[Any] = [
        {"item": "cup-1", "count": 4},
        {"item": "CUP"},
        {"item": "cup-1", "gift": True},
    ]
    requests: list[tuple[str, dict[str, Any]]] = [("tools/list", {})]
    requests += [("tools/call", {"name": "order", "arguments": item}) for item in calls]
    lines = [
        json.dumps(
            {"jsonrpc": "2.0", "id": number, "method": method, "params": {**params, "_meta": META}}
        )
        for number, (method, params) in enumerate(requests)
    ]
    done = subprocess.run(
        [sys.executable, "shop.py"],
        cwd=tmp_path,
        env=environment(),
        input="\n".join(lines) + "\n",
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    answers = {
        answer["id"]: answer["result"] for answer in map(json.loads, done.stdout.splitlines())
    }
    (tool,) = answers[0]["tools"]
    assert tool["inputSchema"]["dependentRequired"] == {"gift": ["card"]}
    assert list(tool["inputSchema"]) == [
        "type",
        "properties",
        "required",
        "dependentRequired",
        "$defs",
    ]
    assert tool["outputSchema"]["required"] == ["total"]
    assert answers[1]["structuredContent"] == {"total": 10.0}
    assert [answers[number]["isError"] for number in (2, 3)] == [True, True]
    assert json.loads(answers[2]["content"][0]["text"])["details"][0]["path"] == "item"
