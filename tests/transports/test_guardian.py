"""The guardian of a real process that is killed: what that has started ends, and nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from process_waits import wait_for_end

from concertino.transports.guardian import Guardian
from concertino.transports.orphans import find_marked
from concertino.transports.process_marks import STARTED_BY, new_mark

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc of Linux")

# Ends by SIGKILL only, and has a child of its own that has left its session. Both write their id,
# in one step: print() may write a line and its end apart, and the two lines would be mixed.
STUBBORN = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if not os.fork():
    os.setsid()
os.write(1, b"%d\\n" % os.getpid())
time.sleep(600)
"""
# Starts what its arguments say, with its mark. "fork" forks once more before, as multiprocessing
# does.
OWNER = f"""
import os, subprocess, sys, time
from concertino.transports.guardian import guardian
from concertino.transports.process_marks import STARTED_BY, new_mark
guardian.acquire()
print(guardian.pid, flush=True)
if sys.argv[1] == "fork" and not os.fork():
    os.close(1)
    time.sleep(60)
    os._exit(0)
env = os.environ | {{STARTED_BY: str(new_mark())}}
subprocess.run([sys.executable, "-c", {STUBBORN!r}], env=env)
"""


@contextmanager
def started(*command: str) -> Generator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def read_pid(process: subprocess.Popen[bytes]) -> int:
    assert process.stdout is not None
    return int(process.stdout.readline())


def test_what_a_killed_process_has_started_ends_with_all_descendants_and_the_guardian() -> None:
    with started(sys.executable, "-c", OWNER, "plain") as owner, started("sleep", "600") as other:
        pids = [read_pid(owner) for _ in range(3)]
        owner.kill()
        for pid in pids:
            wait_for_end(pid)
        assert other.poll() is None


def test_a_forked_process_does_not_keep_the_guardian_waiting() -> None:
    with started(sys.executable, "-c", OWNER, "fork") as owner:
        pids = [read_pid(owner) for _ in range(3)]
        owner.kill()
        for pid in pids:
            wait_for_end(pid)


def test_the_last_user_ends_the_guardian() -> None:
    guardian = Guardian()
    guardian.acquire()
    guardian.acquire()
    pid = guardian.pid
    assert pid is not None
    guardian.release()
    assert guardian.pid == pid
    guardian.release()
    assert guardian.pid is None
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_guardian_that_was_killed_is_replaced_for_the_next_user() -> None:
    guardian = Guardian()
    guardian.acquire()
    first = guardian.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    wait_for_end(first)
    guardian.acquire()
    assert guardian.pid not in (None, first)
    guardian.release()
    guardian.release()


def test_signals_to_the_guardian_and_its_group_do_not_end_it() -> None:
    guardian = Guardian()
    guardian.acquire()
    try:
        assert guardian.pid is not None
        wait_until_reading(guardian.pid)
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
            os.killpg(guardian.pid, number)
        # It still does what it is there for: it waits for the pipe.
        wait_until_reading(guardian.pid)
    finally:
        guardian.release()


def wait_until_reading(pid: int) -> None:
    """Wait until a process has set its traps: it sleeps, as a shell that reads does."""
    until = time.monotonic() + 20
    while Path(f"/proc/{pid}/stat").read_text().split()[2] != "S" or not ignores_sigterm(pid):
        assert time.monotonic() < until
        time.sleep(0.01)


def ignores_sigterm(pid: int) -> bool:
    ignored = next(
        line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if "SigIgn" in line
    )
    return bool(int(ignored.split()[1], 16) & 1 << signal.SIGTERM - 1)


def test_a_process_in_the_middle_of_a_longer_number_is_not_found() -> None:
    mark = new_mark()
    longer = str(mark) + "7"
    with started("env", f"{STARTED_BY}={longer}", "sleep", "600") as other:
        wait_for_program(other.pid, "sleep")
        assert other.pid not in {pid for pid, _ in find_marked(mark.owner_suffix, mark.started_at)}
    with started("env", f"{STARTED_BY}={mark},{mark}", "sleep", "600") as other:
        wait_for_program(other.pid, "sleep")
        assert other.pid in {pid for pid, _ in find_marked(mark.owner_suffix, mark.started_at)}


def wait_for_program(pid: int, name: str) -> None:
    while Path(f"/proc/{pid}/comm").read_text().strip() != name:
        time.sleep(0.01)
