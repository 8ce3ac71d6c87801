"""The official TypeScript clients, versions 1 and 2, over stdio against examples/everything.py:
what we ask, and what they hear.

They check every question against their own schemas; version 2 drives the rounds of 2026-07-28
itself.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from interop import node
from interop.test_conversations_official_client_2 import ARGUMENTS, EVERYTHING, EXPECTED
from stdio.harness import environment

HERE = Path(__file__).parent


@pytest.mark.slow
@pytest.mark.parametrize(
    ("version", "mode"), [("1", "legacy"), ("2", "legacy"), ("2", "2026-07-28")]
)
def test_they_answer_every_question_and_hear_what_they_asked_for(version: str, mode: str) -> None:
    folder = node.packages()
    script = shutil.copy(HERE / "asking.mjs", folder)
    command = [node.node(), script, version, mode, sys.executable, str(EVERYTHING)]
    asked = json.dumps([(tool, ARGUMENTS.get(tool, {})) for tool in EXPECTED])
    done = subprocess.run(
        command,
        input=asked,
        env=environment(),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["texts"] == EXPECTED
    assert "poetry" in seen["prompt"]
    assert seen["unexpected"] == []
    if mode != "legacy":
        assert sorted(seen["heard"]) == ["prompts", "tools"]
