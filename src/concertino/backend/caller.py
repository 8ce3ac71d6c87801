"""Caller: the facts that a backend needs to forward a call to another server.

Handlers do not need these facts, but a proxy does: it must know whether the client wants progress
and log messages, and may have one connection to its server for each of its clients. Context.caller
returns the Caller of a call.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Raw

from concertino.types.results import Level

if TYPE_CHECKING:
    from asyncio import Future

__all__ = ["Caller", "CallerSession", "DetachedCaller"]


class Caller(Protocol):
    """The facts about one call that a backend needs to forward it to another server."""

    @property
    def session(self) -> CallerSession | None:
        """Return the connection on which the call has arrived; None if there is none."""
        ...

    @property
    def wants_progress(self) -> bool:
        """Return whether the client has asked for progress."""
        ...

    @property
    def log_level(self) -> Level | None:
        """Return the least severe level of the log messages that the client wants.

        Returns None if the client wants no log messages.
        """
        ...

    def pass_result(self, result: Raw, revision: str) -> None:
        """Allow the runtime to send a result of another server to the client unchanged.

        Call this before handle() returns `result`. If results have the same form in the client's
        revision of MCP and in `revision`, the runtime sends `result` without decoding, checking or
        translating it. If handle() returns another object, such as a result that a wrapper has
        changed, the runtime encodes that object as usual.
        result: valid JSON without newlines. It must not be an `input_required` result.
        revision: the revision of MCP that the other server speaks, such as "2025-06-18".
        """
        ...

    async def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Send the client a notification that belongs to this call.

        Waits until a slow client has read the earlier output. Does nothing if the call has ended.
        Call this method on the event loop. The `_meta` of the notification contains the id of the
        call as subscription id, like the notifications of subscriptions/listen in MCP 2026-07-28.
        Over HTTP, the notification is sent in the response to the call.
        params: the fields of the notification's params, except `_meta`.
        """
        ...

    def hold_open(self) -> None:
        """Treat this call as a subscription, which runs until the client or the server ends it.

        - The runtime reserves no memory for the result of the call.
        - When the server ends, it does not wait for the call: the runtime answers the call with an
          empty result, and cancels the handler.
        - Over HTTP, the loss of the connection cancels the call in every revision of MCP. The
          call's notifications are not stored for a client that reconnects.
        - The params of the call are freed. Read them before you call this method.

        Call this method on the event loop. It does nothing for a call that was cancelled. Raises
        RpcError for a call in a batch, because a batch is answered only when all its calls end.
        """
        ...


class CallerSession(Protocol):
    """The connection on which a call has arrived, for backends that store something per client.

    All calls of a connection have the same object, which can be the key of a dict.
    closed: a future whose result is set to None when the connection has ended.
    """

    closed: Future[None]

    @property
    def principal(self) -> bytes:
        """Return the `identity` of the client's verified Principal; b"" if there is none.

        The Principal comes from the access token (HTTP) or from the user id of the client's process
        (Unix socket), and never from what the client says of itself.
        """
        ...

    @property
    def has_left(self) -> bool:
        """Return whether the client has disconnected, and will not return on another connection.

        False for stateless HTTP, where each request may come on a connection of its own.
        """
        ...

    @property
    def subscribed_uris(self) -> frozenset[str]:
        """Return the URIs of the resources that the client subscribes to."""
        ...

    async def request(self, method: str, params: bytes) -> Raw:
        """Send the client a request of another server, and return the client's result undecoded.

        The client must have a revision before MCP 2026-07-28, which has no such requests. If the
        calling task is cancelled, the client gets notifications/cancelled for the request.
        method: the method of the request, such as `roots/list`.
        params: the params as a JSON object, which is sent unchanged.
        Raises RpcError if the client answers with an error or if too many requests wait for
        answers, and Disconnected when the connection ends.
        """
        ...

    def notify(self, method: str, params: bytes) -> None:
        """Send the client a notification of another server. Returns at once.

        The notification is dropped if the client does not read, or speaks MCP 2026-07-28.
        params: the params as a JSON object, which is sent unchanged.
        """
        ...

    def report_change(self, what: str) -> None:
        """Notify only this client that a list has changed.

        what: the list: "tools", "prompts" or "resources".
        """
        ...

    def report_update(self, uri: str) -> None:
        """Notify this client that a resource has changed, if the client has subscribed to it.

        No other client is notified.
        """
        ...


class DetachedCaller:
    """The Caller of a call that no MCP client has sent: it wants neither progress nor messages."""

    session = None
    wants_progress = False
    log_level = None

    def pass_result(self, result: Raw, revision: str) -> None:
        """Do nothing: every result is encoded as usual."""

    async def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Do nothing."""

    def hold_open(self) -> None:
        """Do nothing."""
