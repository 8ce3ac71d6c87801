"""PluginRecord: what has happened to a plugin since its hub began to run it."""

from __future__ import annotations

import time

__all__ = ["PluginRecord"]


class PluginRecord:
    """Counts and the last failure of a plugin, over all its processes.

    Attributes:
    calls: how many requests the plugin has got.
    restarts: how often a new process was started.
    last_error: why its process has ended last; empty if none has ended.
    last_error_at: when that was, in seconds since 1970.
    failed_change: why the latest change of the plugin does not run, although the program before it
        does; empty otherwise.
    unsent_failure: the text of failed_change for the next call of a tool, after a change of watched
        files; empty if a call has got it.
    """

    def __init__(self) -> None:
        self.calls = 0
        self.restarts = 0
        self.last_error = ""
        self.last_error_at = 0.0
        self.failed_change = ""
        self.unsent_failure = ""

    def set_error(self, reason: str) -> None:
        """Record why a process has ended, or could not be started."""
        self.last_error, self.last_error_at = reason, time.time()
