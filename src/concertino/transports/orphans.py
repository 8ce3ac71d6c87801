"""end_orphans(): ends what a process has started and left behind when it was killed.

The guardian runs this (guardian.py), in an interpreter that starts when it is needed. So this
module imports little.
"""

from __future__ import annotations

import signal
import time

from concertino.transports.process_table import live_processes, read_environment, send_signal

__all__ = ["end_orphans"]

# The steps: what is sent, and how long to wait then, in seconds. First the processes may end by
# themselves, because their input has ended.
STEPS = ((None, 0.5), (signal.SIGTERM, 0.5), (signal.SIGKILL, 1.0))
# How often to look again: processes may start others meanwhile.
CHECK_S = 0.02
# Processes that are just being started have no marks yet. They are found after this time.
SETTLE_S = 0.1


def end_orphans(pid: int, started_at: int, namespace: int) -> bool:
    """End everything that a process has started. Returns whether all has ended. Takes 2 s at most.

    pid, started_at, namespace: of the process, as in its marks (process_marks.py).
    """
    settled_at = time.monotonic() + SETTLE_S
    for number, wait_s in STEPS:
        until = time.monotonic() + wait_s
        signalled: set[tuple[int, int]] = set()
        while True:
            found = find_started_by(pid, started_at, namespace)
            now = time.monotonic()
            if not found and now >= settled_at:
                return True
            if now >= until:
                break
            if number is not None:
                for orphan in found - signalled:
                    _send(*orphan, number)
                signalled |= found
            time.sleep(CHECK_S)
    return False


def find_started_by(pid: int, started_at: int, namespace: int) -> set[tuple[int, int]]:
    """Return the ids and start times of all live processes that carry a mark of a process.

    In other pid namespaces, too: a server may be in a sandbox. See end_orphans() for the arguments.
    """
    # What all marks of the process have in common. In the environment, a comma or NUL follows.
    owner = f"-{pid}-{started_at}-{namespace}".encode()
    found: set[tuple[int, int]] = set()
    for other, state in live_processes():
        # Reading an environment takes time, and nothing older can be one of them.
        if state.started_at >= started_at:
            environment = read_environment(other) or b""
            if owner + b"," in environment or owner + b"\0" in environment:
                found.add((other, state.started_at))
    return found


def _send(pid: int, started_at: int, number: signal.Signals) -> None:
    try:
        send_signal(pid, started_at, number)
    except PermissionError:
        # It has changed its user.
        pass
