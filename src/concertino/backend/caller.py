"""Caller: the facts that a backend needs to forward a call to another server.

A handler does not need them. A proxy does: it must know whether the client wants progress and log
messages, and may keep one connection for each of its clients. CallContext.caller returns a Caller.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from msgspec import Raw

from concertino.types.results import Level

if TYPE_CHECKING:
    from asyncio import Future

__all__ = ["Caller", "CallerSession", "DetachedCaller"]


class Caller(Protocol):
    """The facts about one call that a backend needs to forward it to another server."""

    @property
    def session(self) -> CallerSession | None:
        """Return the connection that the call came on; None if there is none."""
        ...

    @property
    def wants_progress(self) -> bool:
        """Return whether the client has asked for progress."""
        ...

    @property
    def log_level(self) -> Level | None:
        """Return the least severe level of the log messages that the client wants.

        None if it wants no log messages.
        """
        ...

    def pass_result(self, result: Raw, revision: str) -> None:
        """Allow the runtime to send a result of another server to the client unchanged.

        Call it before handle() returns `result`. If the client's revision has the same form of
        results, `result` is then sent without being decoded, checked or translated. If handle()
        returns any other object, such as the result that a guard has changed, it is encoded as
        usual.
        result: valid JSON without newlines; not an `input_required` result.
        revision: the name of the other server's revision.
        """
        ...


class CallerSession(Protocol):
    """The connection that a call came on, for backends that store something for each client.

    It is the same object for all calls of a connection, and can be the key of a dict.
    closed: a future that is done when the connection has ended.
    """

    closed: Future[None]

    @property
    def principal(self) -> bytes:
        """Return the verified identity of the client's user; b"" if it is not known.

        On a Unix socket it is the user id of the client's process. The client's own description of
        itself is never part of it.
        """
        ...

    @property
    def subscribed_uris(self) -> frozenset[str]:
        """Return the URIs of the resources that the client subscribes to."""
        ...

    async def request(self, method: str, params: bytes) -> Raw:
        """Send the client a request of another server, and return its result undecoded.

        For clients before 2026-07-28 only. params: a JSON object, as it is to be sent. When the
        task is cancelled, the request is cancelled at the client. Raises RpcError if the client
        refuses or too many requests wait, and Disconnected.
        """
        ...

    def notify(self, method: str, params: bytes) -> None:
        """Send the client a notification of another server; drop it if the client does not read.

        For clients before 2026-07-28 only. params: a JSON object, as it is to be sent.
        """
        ...

    def report_change(self, what: str) -> None:
        """Notify only this client that a list has changed. what: see Notifier.report_change()."""
        ...

    def report_update(self, uri: str) -> None:
        """Notify only this client that a resource has changed, if it has subscribed to it."""
        ...


class DetachedCaller:
    """The Caller of a call that did not come on a connection of an MCP client.

    It wants no progress and no log messages.
    """

    session = None
    wants_progress = False
    log_level = None

    def pass_result(self, result: Raw, revision: str) -> None:
        """Do nothing: every result is encoded as usual."""
