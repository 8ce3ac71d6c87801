"""The process groups of this process's children, and kill_process_groups() to end them.

A process that ends with os._exit() runs no cleanup code. Children that ignore the end of their
input and SIGTERM would remain, with the processes that they have started. runtime/shutdown.py calls
kill_process_groups() before os._exit().
"""

from __future__ import annotations

import os
import signal

__all__ = ["add_process_group", "kill_process_groups", "remove_process_group"]

# The id of a group is the id of a child that was not reaped yet, so no other process can have it.
_groups: set[int] = set()
# In a forked process the set must be empty, because these are the children of its parent.
os.register_at_fork(after_in_child=_groups.clear)


def add_process_group(group: int) -> None:
    """Add a group to the groups that kill_process_groups() kills.

    group: the id of the group, which is the process id of its leader, a child of this process.
    """
    _groups.add(group)


def remove_process_group(group: int) -> None:
    """Remove a group from the groups that kill_process_groups() kills.

    Must be called before the leader of the group is reaped, because the id may be reused then.
    """
    _groups.discard(group)


def kill_process_groups() -> None:
    """Send SIGKILL to all groups. May be called in any thread or signal handler."""
    for group in list(_groups):
        try:
            os.killpg(group, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            # The group is empty; macOS reports PermissionError for a group of zombies.
            pass
