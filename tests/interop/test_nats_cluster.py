"""Three NATS servers, a hub and workers that are killed and cut off; see nats_chaos.py."""

from __future__ import annotations

import asyncio

from nats_chaos import FAULTS, run_rounds

ROUNDS = 50
SEED = 20261124
# Fewer rounds on a machine that is so busy that they take longer.
SECONDS = 150.0


def test_no_call_runs_twice_and_no_write_is_lost_whatever_is_killed_or_cut_off() -> None:
    report = asyncio.run(run_rounds(ROUNDS, SEED, SECONDS))
    print(report)
    assert not report.problems
    assert report.rounds.keys() == {*FAULTS}
    # Calls passed, and some of them have met the faults.
    assert report.outcomes["ok"] > report.outcomes.total() / 3
    assert report.outcomes["Disconnected"]
    assert report.writes
