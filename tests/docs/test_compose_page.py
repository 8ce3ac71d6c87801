"""docs/how-to/compose.md: its files served as one, in both ways, and what it says cannot be told
apart.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from docs.pages import DOCS, ask_server, environment, paste, run_failing_server, run_shell

PAGE = DOCS / "how-to" / "compose.md"
SERVE = [sys.executable, "-m", "concertino", "serve"]
ADD = ("tools/call", {"name": "math_add", "arguments": {"a": 40, "b": 2}})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    assert paste(PAGE, tmp_path) == ["sums.py", "diary.py", "desk.py"]
    return tmp_path


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ([*SERVE, "math=sums.py", "diary.py"], "math+diary"),
        ([*SERVE, "desk.py"], "desk"),
        ([*SERVE, "desk.py:desk"], "desk"),
        ([sys.executable, "desk.py"], "desk"),
    ],
    ids=["targets", "served", "named", "run"],
)
def test_both_servers_are_one(command: list[str], name: str, folder: Path) -> None:
    requests: list[tuple[str, dict[str, Any]]] = [
        ("initialize", {"protocolVersion": "2025-11-25"}),
        ("tools/list", {}),
        ADD,
        (
            "tools/call",
            {"name": "diary_add", "arguments": {"day": "2026-07-28", "text": "It rained."}},
        ),
        ("resources/read", {"uri": "diary://2026-07-28"}),
        ("prompts/get", {"name": "diary_look_back", "arguments": {"day": "2026-07-28"}}),
        ("prompts/list", {}),
    ]
    (again, tools, sum_, added, _, prompt, prompts), _, _ = ask_server(command, requests, folder)
    assert again["code"] == -32600  # a second initialize; what the first said is looked at below
    assert [tool["name"] for tool in tools["tools"]] == ["math_add", "diary_add"]
    assert sum_["structuredContent"] == {"result": 42}
    assert added["content"][0]["text"] == "A new revision came out. It rained."
    assert "diary://2026-07-28" in prompt["messages"][0]["content"]["text"]
    assert [item["name"] for item in prompts["prompts"]] == ["diary_look_back"]
    opening = (
        '{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25"}}\n'
    )
    done = subprocess.run(
        command,
        input=opening,
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert f'"name":"{name}"' in done.stdout
    assert '"instructions":"math: Adds floats.\\n\\ndiary: One page for each day."' in done.stdout


def test_a_page_of_the_diary_is_read_under_its_own_uri(folder: Path) -> None:
    [page], _, _ = ask_server(
        [*SERVE, "desk.py"], [("resources/read", {"uri": "diary://2026-07-28"})], folder
    )
    assert page["contents"] == [
        {"uri": "diary://2026-07-28", "mimeType": "text/plain", "text": "A new revision came out."}
    ]


def test_the_command_of_the_page_starts_and_ends(folder: Path) -> None:
    assert run_shell(PAGE, folder) == ""


@pytest.mark.parametrize(
    ("targets", "code", "text"),
    [
        (["sums.py", "other/sums.py"], 2, "there are two with the name 'sums'; give one another"),
        (["a=sums.py", "a_b=diary.py"], 2, "could get the same name"),
        (["a=diary.py", "b=other/diary.py"], 1, "both a and b have the resource diary://{day}"),
        (["--strict", "sums.py", "broken.py"], 1, "broken: ValueError: no pages"),
    ],
)
def test_what_cannot_be_told_apart_ends_the_start(
    targets: list[str], code: int, text: str, folder: Path
) -> None:
    (folder / "other").mkdir()
    for name in ("sums.py", "diary.py"):
        (folder / "other" / name).write_text((folder / name).read_text())
    (folder / "broken.py").write_text(
        "from collections.abc import AsyncIterator\n"
        "from concertino import Server\n"
        'server = Server("broken")\n'
        "@server.lifespan\n"
        "async def fail() -> AsyncIterator[None]:\n"
        '    raise ValueError("no pages")\n'
        "    yield\n"
    )
    ended, stdout, stderr = run_failing_server([*SERVE, *targets], folder)
    assert (ended, stdout) == (code, "")
    assert text in stderr


def test_modules_of_one_name_are_the_first_one_imported(folder: Path) -> None:
    for name in ("first", "second"):
        (folder / name).mkdir()
        (folder / name / "config.py").write_text(f"WHO = {name!r}\n")
        (folder / name / f"{name}_server.py").write_text(
            "from concertino import Server\nfrom config import WHO\n"
            'server = Server("configured")\n@server.tool\ndef who() -> str:\n    return WHO\n'
        )
    calls = [("tools/call", {"name": name}) for name in ("a_who", "b_who")]
    answers, _, _ = ask_server(
        [*SERVE, "a=first/first_server.py", "b=second/second_server.py"], calls, folder
    )
    assert [item["content"][0]["text"] for item in answers] == ["first", "first"]
