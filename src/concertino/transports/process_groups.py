"""The process groups of our children, and kill_process_groups() for when this process must end.

A process that ends by os._exit() runs no cleanup: children that ignore the end of their input and
SIGTERM, and what they have started, would remain.
"""

from __future__ import annotations

import os
import signal

__all__ = ["add_process_group", "kill_process_groups", "remove_process_group"]

# Each id is that of a child which is not reaped yet, so no other process can have it.
_groups: set[int] = set()
# A forked process has no part in the children of its parent.
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
