"""Waits for processes that need not be children of the test."""

from __future__ import annotations

import os
import select


def wait_for_end(pid: int) -> None:
    """Wait until a process has ended. Fails after 20 s."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([descriptor], [], [], 20)[0], f"process {pid} has not ended"
    finally:
        os.close(descriptor)
