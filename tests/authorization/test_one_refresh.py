"""Eight processes and one login: one refresh. `scripts/soak refresh` runs 50 rounds."""

from __future__ import annotations

import sys

import pytest
from loops import on_a_loop
from refresh_rounds import run_rounds


@pytest.mark.requirement("AU-16", "CT-4", side="authorization")
@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="finds the process of a socket in /proc")
@on_a_loop
async def test_eight_processes_refresh_once_even_when_the_first_is_killed() -> None:
    assert await run_rounds(2, kill_every=2, report=False) == []
