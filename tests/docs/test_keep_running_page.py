"""docs/how-to/keep-a-server-running.md: the server that crashes is there again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from docs.pages import DOCS, environment, paste


def test_the_call_that_crashed_is_told_and_the_next_is_answered_by_another_process(
    tmp_path: Path,
) -> None:
    assert paste(DOCS / "how-to" / "keep-a-server-running.md", tmp_path) == [
        "fragile.py",
        "patient.py",
    ]
    done = subprocess.run(
        [sys.executable, "patient.py"],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == "exit status 139\nanother process\nrunning 1\n"
