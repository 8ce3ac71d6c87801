"""PluginRecord: what has happened to a plugin since its hub began to run it.

A hub runs each plugin, a program with tools, in a process, and starts a new process when the
process has ended. Each PluginProcess (plugin_process.py) has a PluginRecord, and `concertino hub
ps` shows it.
"""

from __future__ import annotations

import time

__all__ = ["PluginRecord"]


class PluginRecord:
    """Counters and the last failure of a plugin, over all its processes.

    Attributes:
    calls: how many requests the plugin has received.
    restarts: how many processes were started after the first one.
    last_error: why a process has failed last, at its start or later; empty if none has failed.
    last_error_at: the time of last_error, in seconds since 1970.
    failed_change: why the changed code or entry of the plugin does not start, while its old process
        still runs; empty if there is no such change.
    unsent_failure: the text of failed_change until a user has seen it; otherwise empty. The next
        call of a tool fails with this text, so that the user who has changed the code sees it. The
        call also makes the attribute empty.
    """

    def __init__(self) -> None:
        self.calls = 0
        self.restarts = 0
        self.last_error = ""
        self.last_error_at = 0.0
        self.failed_change = ""
        self.unsent_failure = ""

    def forget_change(self) -> None:
        """Forget a failed change, because a new process starts with the changed code now."""
        self.failed_change = self.unsent_failure = ""

    def set_error(self, reason: str) -> None:
        """Record why a process has failed, at its start or later.

        reason: a text for users.
        """
        self.last_error, self.last_error_at = reason, time.time()
