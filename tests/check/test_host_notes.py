"""`concertino check` names what hosts would cut or leave out; that changes no verdict."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SERVER = """
from concertino import Server
server = Server("notes", instructions="a" * 3000)
def tool() -> None: ...
tool.__doc__ = "Do it or not. " * 500
for number in range(20):
    server.add_tool(tool, name=f"{'a' * 60}_{number}")
server.run()
"""


def check(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "server.py").write_text(SERVER)
    words = [sys.executable, "-m", "concertino", "check", "--only", "not-json", *options]
    command = [*words, "--", sys.executable, str(folder / "server.py")]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_the_notes_stand_below_the_server(tmp_path: Path) -> None:
    done = check(tmp_path)
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    notes = [line.split(maxsplit=1)[1] for line in lines if line.startswith("      note ")]
    assert [note.partition(":")[0] for note in notes] == [
        "instructions",
        f"tool '{'a' * 60}_10' and 19 others",
        "list of tools",
    ]
    assert max(map(len, lines)) <= 130


def test_the_notes_are_in_the_json_document(tmp_path: Path) -> None:
    document = json.loads(check(tmp_path, "--json").stdout)
    assert document["exit"] == 0
    assert document["server"]["notes"][0].startswith("instructions: 3,000 characters")
    assert len(document["server"]["notes"]) == 3
