"""Lifecycle: the state of the handshake between a client and a session.

The session (protocol/session.py) advances it with each message of a client of a revision before
MCP 2026-07-28. Later revisions have no handshake.
Spec: 2025-11-25 basic/lifecycle.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

__all__ = ["LIFECYCLE", "Lifecycle", "State"]

# The state of the handshake. fresh: nothing has come. opened: `initialize` is answered. ready: the
# handshake is complete. Requests of 2026-07-28 need no handshake, and do not change the state.
State = Literal["fresh", "opened", "ready"]

# State -> kind of message -> next state, or None if the message is rejected (2025-11-25
# basic/lifecycle). Some clients never send notifications/initialized, so the first request after
# `initialize` completes the handshake as well.
LIFECYCLE: Mapping[State, Mapping[str, State | None]] = {
    "fresh": {"initialize": "opened", "initialized": "fresh", "request": None},
    "opened": {"initialize": None, "initialized": "ready", "request": "ready"},
    "ready": {"initialize": None, "initialized": "ready", "request": "ready"},
}

# The kinds of messages that change the state.
Kind = Literal["initialize", "initialized", "request"]


class Lifecycle:
    """The handshake of one session.

    Attributes:
    state: "fresh" before `initialize`, "opened" when it was answered, and "ready" when the
        handshake is complete.
    """

    __slots__ = ("state",)

    def __init__(self) -> None:
        self.state: State = "fresh"

    def allows(self, kind: Kind) -> bool:
        """Return whether a message of this kind is accepted in the current state.

        kind: "initialize", "initialized" (the notification), or "request" for all other requests.
        """
        return LIFECYCLE[self.state][kind] is not None

    def advance(self, kind: Kind) -> None:
        """Move to the state after a message of this kind. If allows(kind) is False, do nothing.

        kind: "initialize", "initialized" (the notification), or "request" for all other requests.
        """
        self.state = LIFECYCLE[self.state][kind] or self.state
