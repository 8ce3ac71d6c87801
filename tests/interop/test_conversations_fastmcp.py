"""FastMCP's client over stdio against examples/everything.py: it answers what we ask."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from interop.test_conversations_official_client_2 import ARGUMENTS, EVERYTHING, EXPECTED
from interop.tools import python_with
from stdio.harness import SRC, environment

pytestmark = pytest.mark.slow


def test_it_answers_every_question() -> None:
    script = Path(__file__).with_name("asking_fastmcp.py")
    command = [
        python_with("fastmcp", "fastmcp>=4"),
        script,
        sys.executable,
        str(EVERYTHING),
        str(SRC),
    ]
    asked = json.dumps([(tool, ARGUMENTS.get(tool, {})) for tool in EXPECTED])
    done = subprocess.run(
        command,
        input=asked,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert "poetry" in said.pop("prompt")
    assert said == EXPECTED
