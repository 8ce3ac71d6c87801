"""The process groups of our children, and kill_process_groups() for the end of this process.

A process that ends by os._exit() runs no cleanup. Children that ignore the end of their input and
SIGTERM would remain, and so would the processes that they have started.
"""

from __future__ import annotations

import os
import signal

__all__ = ["add_process_group", "kill_process_groups", "remove_process_group"]

# Each id is that of a child that is not reaped yet, so no other process can have the same id.
_groups: set[int] = set()
# The children of a process are not children of a process that it forks.
os.register_at_fork(after_in_child=_groups.clear)


def add_process_group(group: int) -> None:
    """Let kill_process_groups() kill this group."""
    _groups.add(group)


def remove_process_group(group: int) -> None:
    """Forget a group. Call it before its leader is reaped, since its id may be reused then."""
    _groups.discard(group)


def kill_process_groups() -> None:
    """Send SIGKILL to all groups. May be called in any thread or signal handler."""
    for group in list(_groups):
        try:
            os.killpg(group, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            # The group is empty; macOS reports PermissionError for a group of zombies.
            pass
