"""runtime/freed_memory.py: how much freed memory a process keeps."""

from __future__ import annotations

import subprocess
import sys

import pytest
from stdio.harness import environment

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="the settings are those of glibc"
)
SIZE = 10**6
# Frees every second of 100 blocks, and prints how much memory the process returns to the system.
PROGRAM = f"""
from concertino.jsonrpc.limits import Limits
from concertino.jsonrpc.unread_results import ProcessBudget
from concertino.runtime.freed_memory import limit_freed_memory

def resident():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS:")) * 1024

budget = ProcessBudget(Limits())
limit_freed_memory(budget)
if budget.on_pressure is not None:
    budget.on_pressure(PRESSURE)
blocks = [b"x" * {SIZE} for _ in range(100)]
before = resident()
blocks[::2] = [None] * 50
print(before - resident())
"""


def freed_bytes(pressure: bool, **variables: str) -> int:
    """Return how much of 50 freed blocks between others a process returns to the system."""
    program = PROGRAM.replace("PRESSURE", str(pressure))
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment(**variables),
        capture_output=True,
        check=True,
        timeout=60,
    )
    return int(done.stdout)


def test_holes_between_unread_results_take_no_memory() -> None:
    assert freed_bytes(pressure=True) > 45 * SIZE


def test_memory_of_a_megabyte_is_kept_while_clients_read() -> None:
    assert freed_bytes(pressure=False) < 5 * SIZE


def test_settings_of_the_environment_stay() -> None:
    assert freed_bytes(pressure=True, MALLOC_MMAP_THRESHOLD_="4000000") < 5 * SIZE
