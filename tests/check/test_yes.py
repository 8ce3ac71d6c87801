"""Nearly every case finds something in a server that does nearly everything badly."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from concertino.check.run import CaseResult, inspect_server, run_cases
from concertino.check.server_under_test import CheckSettings
from concertino.check.table import CASES

YES = str(Path(__file__).parent / "yes.py")
# The cases that find a broken MUST or a broken invariant.
WRONG = {
    "separators-in-text", "echo-70-kb", "echo-10-mb", "id-true", "batch-2025-03-26",
    "unknown-method",
    "stray-responses", "initialize-unknown-version", "discover", "eras-interleaved",
    "version-unsupported",
    "capabilities-missing", "tool-unknown", "text-kept", "tool-raises", "stdout-written",
    "tool-forks", "children-end",
    "process-disturbed", "ping-during-sleep", "ping-during-block", "progress-20000",
    "progress-not-asked",
    "stderr-unread",
}  # fmt: skip


@pytest.mark.slow
def test_nearly_every_case_finds_something() -> None:
    settings = CheckSettings(timeout_s=1, start_s=30, grace_s=0.05, exit_s=0.5, orphan_s=0.5)
    server = inspect_server([sys.executable, "-S", YES], settings)
    # Most of the time is spent waiting.
    results: list[CaseResult] = run_cases(server, CASES, lambda _: None, jobs=12)
    # 104 of 150 when counted by hand; whether a few find something depends on who is quicker.
    assert sum(result.verdict != "ok" for result in results) >= 95
    assert {
        result.case.name for result in results if result.verdict in ("wrong", "hang", "crash")
    } >= WRONG
    assert not [result.case.name for result in results if result.verdict == "skipped"]
