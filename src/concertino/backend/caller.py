"""What a backend that forwards calls to other servers needs to know of a call and its client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from msgspec import Raw

from concertino.types.results import Level

if TYPE_CHECKING:
    from asyncio import Future

__all__ = ["Caller", "CallerSession", "DetachedCaller"]


class Caller(Protocol):
    """What a backend that forwards a call to another server needs to know of the call."""

    @property
    def session(self) -> CallerSession | None:
        """Return the connection that the call came on; None if there is none."""
        ...

    @property
    def wants_progress(self) -> bool:
        """Return whether the client asked for progress."""
        ...

    @property
    def log_level(self) -> Level | None:
        """Return the least severe level of log messages that the client wants; None for none."""
        ...

    def pass_result(self, result: Raw, revision: str) -> None:
        """Say that a server of this revision made `result`, which handle() is about to return.

        If the client's revision has the same form of results, it gets this object as it is: not
        decoded, not checked, not translated. Any other result is encoded as usual, for example
        what a guard makes of this one. `result` must be valid JSON without a newline, and not a
        question to the client.
        """
        ...


class CallerSession(Protocol):
    """The connection that a call came on, for backends that keep something for each client.

    Hashable: the same object for all calls of one connection.
    closed: done when the connection has ended.
    """

    closed: Future[None]

    @property
    def principal(self) -> bytes:
        """Return the verified identity of the user; empty if there is none.

        For a Unix socket it is the user id of the process at its other end. What a client says
        about itself is never part of it.
        """
        ...


class DetachedCaller:
    """The Caller of a call that no client made, or one that does not speak MCP.

    session: None; there is no connection whose end could be waited for.
    """

    session = None
    wants_progress = False
    log_level = None

    def pass_result(self, result: Raw, revision: str) -> None:
        """Do nothing."""
