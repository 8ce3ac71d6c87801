"""The legacy handshake: its states, and what each message does in each state.

Spec: 2025-11-25 basic/lifecycle.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

__all__ = ["LIFECYCLE", "State"]


class State(Enum):
    """Progress of the legacy handshake. Requests of 2026-07-28 neither need nor change it."""

    FRESH = "no initialize yet"
    OPENED = "initialize answered"
    READY = "in operation"


# What came -> the next state; None: rejected. 2025-11-25 basic/lifecycle.
# Some clients never send `initialized`; their first request after initialize implies it.
LIFECYCLE: Mapping[State, Mapping[str, State | None]] = {
    State.FRESH: {"initialize": State.OPENED, "initialized": State.FRESH, "request": None},
    State.OPENED: {"initialize": None, "initialized": State.READY, "request": State.READY},
    State.READY: {"initialize": None, "initialized": State.READY, "request": State.READY},
}
