"""Ends processes whose parent was killed, and the processes that they have started.

The guardian (guardian.py) runs end_orphans() in an interpreter that starts only when it is needed.
Therefore this module imports little.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence

from concertino.transports.process_table import live_processes, read_environment, send_signal

__all__ = ["END_STEPS", "ProcessKey", "end_orphans", "end_processes"]

# The steps of end_processes(): (the signal to send, how many seconds to wait after it).
END_STEPS = ((signal.SIGTERM, 0.5), (signal.SIGKILL, 1.0))
# The first step for orphans only waits, because they may end by themselves at the end of input.
ORPHAN_STEPS = ((None, 0.5), *END_STEPS)
# The pause between two searches, in seconds. Processes may start other processes meanwhile.
CHECK_S = 0.02
# A process that is just being started has no mark yet. It has one after this many seconds.
SETTLE_S = 0.1

# The id and the start time of a process, see ProcessState.
ProcessKey = tuple[int, int]


def end_orphans(mark: str, since: int) -> bool:
    """End the processes that a process has started before it was killed. Takes at most 2 s.

    Returns whether all of them have ended.

    mark: as for find_marked().
    since: when the killed process was started, in clock ticks since the boot.
    """
    return end_processes(lambda: find_marked(mark, since), ORPHAN_STEPS)


def end_processes(
    find: Callable[[], set[ProcessKey]],
    steps: Sequence[tuple[signal.Signals | None, float]],
) -> bool:
    """End all processes that find() returns, step by step, and return whether all have ended.

    find: returns pairs (process id, start time) of the processes that still live. Called
        repeatedly.
    steps: what to do in turn, such as [(SIGTERM, 0.5), (SIGKILL, 1.0)]: send the signal, and wait
        this many seconds for the end. In a step with None, no signal is sent.
    """
    settled_at = time.monotonic() + SETTLE_S
    for number, wait_s in steps:
        until = time.monotonic() + wait_s
        signalled: set[ProcessKey] = set()
        while True:
            found = find()
            now = time.monotonic()
            # Before settled_at, a process may have no mark yet.
            if not found and now >= settled_at:
                return True
            if now >= until:
                break
            if number is not None:
                for pid, started_at in found - signalled:
                    _send(pid, started_at, number)
                signalled |= found
            time.sleep(CHECK_S)
    return False


def find_marked(mark: str, since: int) -> set[ProcessKey]:
    """Return the ids and start times of all live processes with a mark in their environment.

    Processes inherit their environment, so these are a program and everything that it has started.
    Processes in other pid namespaces are included, because a server may be in a sandbox.
    mark: a mark (process_marks.py), to find one program; or Mark.owner_suffix, to find all programs
        that one process has started.
    since: a time before which no such process was started, in clock ticks since the boot.
    """
    # In the environment, a comma or a NUL byte follows each mark.
    suffixes = f"{mark},".encode(), f"{mark}\0".encode()
    found: set[ProcessKey] = set()
    for pid, state in live_processes():
        # Reading an environment takes time, so skip processes that are too old.
        if state.started_at >= since:
            environment = read_environment(pid) or b""
            if any(suffix in environment for suffix in suffixes):
                found.add((pid, state.started_at))
    return found


def _send(pid: int, started_at: int, number: signal.Signals) -> None:
    """Send a signal to a process, and ignore that it has ended or belongs to another user."""
    try:
        send_signal(pid, started_at, number)
    except PermissionError:
        # The process belongs to another user now.
        pass
