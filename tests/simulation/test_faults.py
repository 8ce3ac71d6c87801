"""The n-th system call, allocation or turn of a dialogue fails, for every n; every run must end
clean. See faults.py.
"""

from __future__ import annotations

from unittest.mock import patch

import pytest

from concertino.runtime.server_connection import ServerConnection
from simulation import faults
from simulation.faults import ALLOCATIONS, SCENARIOS, SYSTEM_CALLS
from simulation.kernel import Kernel

BY_SCENARIO = pytest.mark.parametrize("scenario", SCENARIOS)


@BY_SCENARIO
def test_without_a_fault_nothing_is_wrong(scenario: str):
    assert faults.quiet_world(scenario).run() == []


@pytest.mark.slow
@BY_SCENARIO
def test_every_system_call_that_fails(scenario: str):
    world = faults.quiet_world(scenario)
    world.run()
    assert world.kernel.counts["read"] > 1
    assert world.kernel.counts["write"] > 1
    for call, ways in SYSTEM_CALLS.items():
        for n in range(1, world.kernel.counts[call] + 1):
            for fault in ways:
                assert faults.failing_call(scenario, call, n, fault) == [], (call, n, fault)


@BY_SCENARIO
def test_the_task_that_serves_is_cancelled_at_every_turn(scenario: str):
    world = faults.quiet_world(scenario)
    world.run()
    assert world.turns > 10
    for turn in range(1, world.turns + 1):
        assert faults.cancelled_at(scenario, turn) == [], turn


@pytest.mark.slow
@BY_SCENARIO
def test_the_memory_runs_out_wherever_something_is_made(scenario: str):
    tried = 0
    for name in ALLOCATIONS:
        with faults.allocations(name, 0) as counted:
            faults.quiet_world(scenario).run()
        for n in range(1, counted.calls + 1):
            tried += 1
            assert faults.out_of_memory(scenario, name, n) == [], (name, n)
    # Not all names are in vain.
    assert tried > 50


def test_a_call_that_is_forgotten_for_want_of_memory_is_found():
    """The enumeration can fail: here the fault that it looks for is put in."""
    with patch.object(ServerConnection, "report_fault", lambda self, what: None):
        found = [
            faults.out_of_memory("cancels", "concertino.protocol.session:SessionRequest", n)
            for n in range(1, 4)
        ]
    assert any(
        "neither answered nor was the connection closed" in item
        for problems in found
        for item in problems
    )


def test_a_descriptor_that_a_failing_close_leaves_open_is_found():
    def closing(self: Kernel, descriptor: int) -> None:
        if ("close", self.counts["close"] + 1) in self.faults:
            self.counts["close"] += 1
            raise OSError("not closed")
        close(self, descriptor)

    close = Kernel.close
    with patch.object(Kernel, "close", closing):
        assert faults.failing_call("a batch", "close", 1, OSError())
