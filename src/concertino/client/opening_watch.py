"""OpeningWatch: notices that the program that a client has started is not an MCP server.

Such a program repeats its input, as `cat` does, or prints text and answers no request. Without an
OpeningWatch, the client would wait until its timeout.

Some real servers print a few lines before their first response, or repeat each line that they read.
So a program that prints or repeats lines still gets some time to respond. This time begins when the
program has read the request, because a program that is still starting reads nothing. After its
first response, a program counts as a server and is not watched any more.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from concertino.client.pending_request import FOREVER
from concertino.client.targets import OpenTarget
from concertino.errors import ConcertinoError, Disconnected, NotAServer, TimedOut
from concertino.excerpts import shorten

__all__ = ["OpeningWatch"]

# The requests with which a client opens a session. No server sends such requests, so a program that
# sends one repeats its input.
OPENERS = frozenset(("server/discover", "initialize"))
# How many seconds a program that has repeated the request may take to respond.
ECHO_S = 0.5
# How long a program that has printed text may take to respond to `server/discover`. Servers before
# 2026-07-28 may ignore this request, and get `initialize` afterwards.
PROBE_S = 1.0
# How long a program that has printed text may take to respond to a request that each server of its
# revision knows.
TEXT_S = 5.0
# A program that prints more lines than this before its first response is no server. Some servers
# print thousands of lines: the packages that they install, or warnings.
MAX_LINES = 20_000
# How often to check whether the program has read the request.
CHECK_S = 0.05
# An error quotes at most this many characters of the command, and of a line.
MAX_COMMAND, MAX_LINE = 60, 100


class PendingRequests(Protocol):
    """The two methods of Channel that OpeningWatch calls."""

    def fail_pending(self, error: ConcertinoError) -> None: ...
    def end_with(self, error: ConcertinoError) -> None: ...


class OpeningWatch:
    """Watches one program's output until its first response.

    If the output shows that the program is no MCP server, the pending requests fail.

    opened: the connection to the program, and its process.
    name: the name of the server, for errors. Errors quote the command instead, if there is one.
    requests: the Channel, whose pending requests fail if the program is no server.
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
        # The first line of the program that is not a message, and the number of such lines.
        self._first_line = ""
        self._line_count = 0
        # Whether the program has repeated a request.
        self._repeats = False
        # The loop's time at which the program was found to have read the request; infinite before.
        self._read_at = FOREVER
        self._timer: asyncio.TimerHandle | None = None
        self._is_over = False

    def on_send(self, *, is_optional: bool) -> None:
        """Note that the client is about to send `server/discover` or `initialize`.

        is_optional: whether a server may not know this request, so that the client sends another
            one if no response comes.
        """
        self._is_optional = is_optional
        self._read_at = FOREVER

    def on_request(self, method: str) -> bool:
        """Handle a request from the started program.

        method: the method of the request.
        Returns True if the program only repeats a request that this client has sent, as `cat` does;
        the caller must then drop the request. After the first response of the program, always
        returns False.
        """
        if self._is_over or method not in OPENERS:
            return False
        self._repeats = True
        self._schedule_check()
        return True

    def on_line(self, line: str) -> None:
        """Handle a line of the program's output that is not a message.

        The pending request fails if the program does not respond within ECHO_S, PROBE_S or TEXT_S
        seconds, or prints MAX_LINES such lines.
        """
        if self._is_over:
            return
        self._first_line = self._first_line or line
        self._line_count += 1
        # The program may repeat the request with other text around it.
        self._repeats = self._repeats or _holds_request(line)
        if self._line_count >= MAX_LINES:
            self._refuse_program()
        else:
            self._schedule_check()

    def stop(self) -> None:
        """Stop watching, because a response has come or the connection has ended."""
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def explain_end(self, error: Disconnected) -> ConcertinoError:
        """Return the error for a connection that has ended before the first response.

        Returns a NotAServer if the program has printed text or repeated a request, and has not
        exited with an error. Otherwise returns `error`.
        error: the error of the ended connection.
        """
        # A server that fails at its start prints text too, but exits with another code than 0. The
        # status is None if this client has not started the program.
        has_written = self._repeats or self._line_count > 0
        if has_written and not error.exit_status:
            return self._not_a_server_error()
        return error

    def _schedule_check(self) -> None:
        """Call _check() after CHECK_S seconds, unless a call is scheduled already."""
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(CHECK_S, self._check)

    def _check(self) -> None:
        """Check whether the program's time to respond is over. The timer calls this.

        If the time is over, a request that the server may not know fails with TimedOut, and the
        client sends another one. For any other request, the program is no server.
        """
        self._timer = None
        now = asyncio.get_running_loop().time()
        child = self._opened.child
        if self._read_at == FOREVER and (child is None or child.has_read_input()):
            self._read_at = now
        limit_s = PROBE_S if self._is_optional else TEXT_S
        if self._repeats:
            limit_s = ECHO_S
        if now - self._read_at < limit_s:
            self._schedule_check()
        elif self._is_optional:
            self._requests.fail_pending(
                TimedOut(f"no answer within {limit_s:g} s after it was read")
            )
            # The client now sends another request, for which the output is watched, too.
            self._schedule_check()
        else:
            self._refuse_program()

    def _refuse_program(self) -> None:
        """Fail the pending requests and end the channel, because the program is no MCP server."""
        self.stop()
        self._requests.end_with(self._not_a_server_error())

    def _not_a_server_error(self) -> NotAServer:
        """Return the error that says what the program does instead of answering requests."""
        parameters = self._opened.parameters
        name = self._name
        if parameters is not None:
            # Imported here, because few programs are no servers.
            import shlex

            words = map(str, (parameters.command, *parameters.args))
            name = f"`{shorten(shlex.join(words), MAX_COMMAND)}`"
        if self._repeats and (not self._first_line or _holds_request(self._first_line)):
            text = f"{name} repeats what it is sent: it is no MCP server"
        else:
            # Unprintable characters in the line are escaped already, so repr() is not used.
            line = shorten(self._first_line, MAX_LINE)
            text = f"{name} prints text that is no JSON-RPC: '{line}'"
        tail = self._opened.tail()
        return NotAServer(f"{text}; its stderr ends with:\n{tail}" if tail else text)


def _holds_request(line: str) -> bool:
    """Return whether a line contains the name of a request with which a client opens a session."""
    return any(f'"{method}"' in line for method in OPENERS)
