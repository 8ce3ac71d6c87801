"""Notices that a program is no MCP server: it repeats what it is sent, or prints text.

Some servers print a line or two before they answer, and some print each line they read. So a
program gets a moment to answer, counted from when it has read the request: one that is still
starting has not. Until the first response it may be no server; afterwards it is one.
"""

from __future__ import annotations

import asyncio
import shlex
from typing import Protocol

from concertino.client.pending_request import FOREVER
from concertino.client.targets import OpenTarget
from concertino.errors import ConcertinoError, Disconnected, NotAServer, TimedOut
from concertino.excerpts import shorten

__all__ = ["OpeningWatch"]

# Requests that open a session. No server sends them.
OPENERS = frozenset(("server/discover", "initialize"))
# How long a program that repeats a request may take to answer it.
ECHO_S = 0.5
# How long a program that prints text may take to answer a request that it need not know ...
PROBE_S = 1.0
# ... and one that it must know.
TEXT_S = 5.0
# More lines of text than any server prints before its first response.
MAX_LINES = 1000
# How often to look whether the program has read the request.
CHECK_S = 0.05
# Characters of a command and of a line that are quoted.
MAX_COMMAND, MAX_LINE = 60, 100


class PendingRequests(Protocol):
    """The requests that wait for a response, see Channel."""

    def fail_pending(self, error: ConcertinoError) -> None: ...
    def refuse(self, error: ConcertinoError) -> None: ...


class OpeningWatch:
    """Watches what one program writes until its first response.

    name: of the server, if it is not a program. requests: those that wait for a response.
    """

    def __init__(
        self,
        opened: OpenTarget,
        name: str,
        requests: PendingRequests,
    ) -> None:
        self._opened = opened
        self._name = name
        self._requests = requests
        self._is_optional = False
        # The first line of text, and how many there were.
        self._line = ""
        self._lines = 0
        self._repeats = False
        # When the program had read the request; infinite before.
        self._read_at = FOREVER
        self._timer: asyncio.TimerHandle | None = None
        self._is_over = False

    def on_send(self, *, is_optional: bool) -> None:
        """Note that a request is about to be sent. is_optional: whether another one may follow."""
        self._is_optional = is_optional
        self._read_at = FOREVER

    def on_request(self, method: str) -> bool:
        """Handle a request of the program. Returns whether it is a repeated one of this client."""
        if self._is_over or method not in OPENERS:
            return False
        self._repeats = True
        self._watch()
        return True

    def on_line(self, line: str) -> None:
        """Handle a line that is no message."""
        if self._is_over:
            return
        self._line = self._line or line
        self._lines += 1
        # It may repeat what it is sent with words around it.
        self._repeats = self._repeats or _holds_request(line)
        if self._lines >= MAX_LINES:
            self._conclude()
        else:
            self._watch()

    def stop(self) -> None:
        """Stop watching: a response has come, or the connection is over."""
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def explain_end(self, error: Disconnected) -> ConcertinoError:
        """Return the error for the end of the connection: NotAServer if no server ended."""
        # A server that failed has printed text, too, but ends with another code.
        wrote = self._repeats or self._lines
        return self._no_server() if wrote and not error.exit_status else error

    def _watch(self) -> None:
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(CHECK_S, self._check)

    def _check(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        child = self._opened.child
        if self._read_at == FOREVER and (child is None or child.has_read_input()):
            self._read_at = now
        limit_s = ECHO_S if self._repeats else PROBE_S if self._is_optional else TEXT_S
        if now - self._read_at < limit_s:
            self._watch()
        elif self._is_optional:
            self._requests.fail_pending(
                TimedOut(f"no answer within {limit_s:g} s after it was read")
            )
            self._watch()
        else:
            self._conclude()

    def _conclude(self) -> None:
        self.stop()
        self._requests.refuse(self._no_server())

    def _no_server(self) -> NotAServer:
        parameters = self._opened.parameters
        name = self._name
        if parameters is not None:
            words = map(str, (parameters.command, *parameters.args))
            name = f"`{shorten(shlex.join(words), MAX_COMMAND)}`"
        if self._repeats and (not self._line or _holds_request(self._line)):
            text = f"{name} repeats what it is sent: it is no MCP server"
        else:
            # Not its repr(): what cannot be printed is escaped already.
            text = f"{name} prints text that is no JSON-RPC: '{shorten(self._line, MAX_LINE)}'"
        tail = self._opened.tail()
        return NotAServer(f"{text}; its stderr ends with:\n{tail}" if tail else text)


def _holds_request(line: str) -> bool:
    return any(f'"{method}"' in line for method in OPENERS)
