"""ConnectionFacts: the facts that Client and SyncClient tell about the connection and the server.

Both classes inherit these properties, so that they have the same names, types and docstrings.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from concertino.client.client_connection import ClientConnection
from concertino.client.supervision import State
from concertino.errors import ConcertinoError
from concertino.types.results import Implementation


class ConnectionFacts:
    """The read-only properties that Client and SyncClient have in common.

    All but `state`, `restarts`, `requests` and `failure` raise RuntimeError before open().
    """

    _connection: ClientConnection

    @property
    def server(self) -> str:
        """Return the server's name for people: its title, or its name if it has no title."""
        info = self.server_info
        return info.title or info.name

    @property
    def server_info(self) -> Implementation:
        """Return the name, version and so on with which the server describes itself.

        A server may claim anything, so this must not be used for decisions about security.
        """
        return self._connection.current.server.info

    @property
    def protocol_version(self) -> str:
        """Return the name of the negotiated revision, such as `2026-07-28`."""
        revision = self._connection.current.server.revision
        assert revision is not None
        return revision.name

    @property
    def capabilities(self) -> Mapping[str, Any]:
        """Return the capabilities that the server has declared, such as {"tools": {}}."""
        return self._connection.current.server.capabilities

    @property
    def instructions(self) -> str | None:
        """Return the server's instructions for the model; None if the server has sent none."""
        return self._connection.current.server.instructions

    @property
    def state(self) -> State:
        """Return the state of the connection, as one word.

        - `new`: open() has not finished.
        - `running`: the server runs.
        - `backing-off`: the server has ended, and the client pauses before it restarts the server.
        - `starting`: the server is being restarted.
        - `failed`: the server has ended and will not be restarted.
        - `closed`: this client was closed.
        """
        return self._connection.state

    @property
    def restarts(self) -> int:
        """Return how many times the server was restarted."""
        return self._connection.restarts

    @property
    def requests(self) -> int:
        """Return how many requests this client has sent, over all starts of the server."""
        return self._connection.requests

    @property
    def failure(self) -> ConcertinoError | None:
        """Return the error with which the server last ended or failed to restart.

        Returns None if it has done neither.
        """
        return self._connection.failure

    @property
    def pending_method(self) -> str:
        """Return the method of the oldest request without a response, such as "initialize".

        Returns "" if there is no such request. Also works while open() runs, and after a failed
        open().
        """
        started = self._connection.started
        return "" if started is None else started.channel.pending_method

    @property
    def pid(self) -> int | None:
        """Return the id of the server's process; None if this client has started no process."""
        started = self._connection.started
        child = None if started is None else started.opened.child
        return None if child is None else child.pid

    @property
    def exit_status(self) -> int | None:
        """Return the exit code of the server's process, or minus the signal that has ended it.

        Returns None while the process runs, and if this client has started no process. Also works
        after a failed open().
        """
        started = self._connection.started
        return None if started is None else started.opened.exit_status

    @property
    def stderr_tail(self) -> str:
        """Return the last 8 KiB of the server's stderr, without secrets.

        Returns "" if this client has started no process. Also works after a failed open().
        """
        started = self._connection.started
        return "" if started is None else started.opened.tail()

    @property
    def stray(self) -> int:
        """Return how many lines of the server's output this client has skipped.

        A line is skipped if it is too long, if it is not a JSON-RPC message, or if it is a response
        with an id that no request of this client has. `strays` has the last of these lines.
        """
        started = self._connection.started
        return 0 if started is None else started.channel.skipped.count

    @property
    def strays(self) -> list[str]:
        """Return the last 8 lines that this client has skipped, shortened."""
        started = self._connection.started
        return [] if started is None else list(started.channel.skipped.recent)
