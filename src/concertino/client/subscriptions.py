"""ClientSubscriptions: the client's open `subscriptions/listen` requests (2026-07-28).

Such a request is a subscription: it stays open, and the server sends notifications for it. There
may be several subscriptions at a time.

- The server first acknowledges the subscription, and says which of the requested notifications it
  provides. Only the acknowledgement has a time limit.
- The client ends a subscription with notifications/cancelled.
- The server ends a subscription with a result, with notifications/cancelled, or with both in any
  order.

Before 2026-07-28, `resources/subscribe` is used instead (client/session_state.py).
Spec: 2026-07-28 basic/patterns/subscriptions; basic/patterns/cancellation.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, cast

from msgspec import Raw, Struct
from msgspec.json import Decoder, encode

from concertino.client.channel import Channel
from concertino.client.pending_request import FOREVER, MAX_QUOTE
from concertino.decode_errors import DECODE_ERRORS
from concertino.errors import ConcertinoError, Disconnected, ProtocolError, TimedOut
from concertino.jsonrpc.messages import Id
from concertino.logs.formats import escape_controls

__all__ = ["ClientSubscriptions"]

SUBSCRIPTION_ID = "io.modelcontextprotocol/subscriptionId"
METHOD = "subscriptions/listen"


class _Acknowledgement(Struct):
    """The params of the acknowledgement: the notifications that the server provides."""

    notifications: dict[str, Any] = {}


_decode_acknowledgement = Decoder(_Acknowledgement).decode
_decode_members = Decoder(dict[str, Raw]).decode
_decode_id = Decoder(Id).decode


class ClientSubscriptions:
    """The open subscriptions over one connection to a server.

    channel: the Channel that sends the requests.
    add_meta: a function that takes the params of a request, a JSON object, and returns the params
        with the `_meta` that the revision requires.
    log: the logger for subscriptions that the server ends.
    """

    def __init__(
        self,
        channel: Channel,
        add_meta: Callable[[bytes], bytes],
        log: logging.Logger,
    ) -> None:
        self._channel = channel
        self._add_meta = add_meta
        self._log = log
        # Id of a subscription -> a future for the field `notifications` of the acknowledgement.
        self._open: dict[Id, asyncio.Future[dict[str, Any]]] = {}

    async def open(
        self,
        wanted: Mapping[str, Any],
        label: str,
        within_s: float,
    ) -> tuple[Id, list[str]]:
        """Open a subscription and wait for the acknowledgement, at most within_s seconds.

        wanted: the notifications to subscribe to, such as {"toolsListChanged": True} or
            {"resourceSubscriptions": [uri]}.
        label: the name of the subscription, for errors.
        within_s: may be infinite.
        Returns the id of the subscription, and the keys of `wanted` whose notifications the server
        does not provide, or not completely. If open() raises, the subscription is not open.
        Raises

        - RpcError if the server refuses the request,
        - TimedOut after within_s,
        - ProtocolError if the server ends the subscription, or if the acknowledgement is malformed,
        - Disconnected if the connection ends. It is an UnreadRequest if the request may be sent
          again.
        """
        channel = self._channel
        if channel.ending.over:
            raise channel.ending.disconnected(label)
        acknowledgement: asyncio.Future[dict[str, Any]]
        acknowledgement = asyncio.get_running_loop().create_future()
        id: Id | None = None

        def on_done(outcome: Raw | Exception) -> None:
            # `id` is None if peer.request() below calls on_done() itself, because it could not send
            # the request.
            if id is None:
                return
            if isinstance(outcome, Disconnected):
                outcome = channel.ending.disconnected(label, 0.0, id)
            self._on_end(id, outcome if isinstance(outcome, ConcertinoError) else None)

        params = self._add_meta(encode({"notifications": wanted}))
        id = channel.peer.request(METHOD, params, on_done).id
        self._open[id] = acknowledgement
        try:
            timeout_s = None if within_s == FOREVER else within_s
            await asyncio.wait([acknowledgement], timeout=timeout_s)
            if not acknowledgement.done():
                text = f"{label}: not acknowledged within {within_s:g} s"
                raise channel.ending.explain(TimedOut(text))
            try:
                provided = acknowledgement.result()
            except ProtocolError as exc:
                raise ProtocolError(f"{label}: {exc}") from None
            except Disconnected:
                raise channel.ending.disconnected(label, 0.0, id) from None
        except BaseException:
            self.close(id)
            # Retrieve the exception of the future, because asyncio would log it otherwise.
            if acknowledgement.done() and not acknowledgement.cancelled():
                acknowledgement.exception()
            raise
        return id, [name for name, item in wanted.items() if not _covers(provided.get(name), item)]

    def close(self, id: Id) -> None:
        """End a subscription and notify the server. Does nothing if no open one has this id."""
        if self._open.pop(id, None) is not None:
            self._channel.abandon(id, "no longer wanted", cancels=True)

    def close_all(self) -> None:
        """End all subscriptions."""
        for id in list(self._open):
            self.close(id)

    def is_open(self, id: Id) -> bool:
        """Return whether the subscription is still open."""
        return id in self._open

    def is_subscribed(self, params: Mapping[str, Raw]) -> bool:
        """Return whether a notification belongs to an open subscription.

        params: the notification's params, whose `_meta` contains the id of the subscription.
        """
        return _subscription_id(params) in self._open

    def acknowledge(self, params: Mapping[str, Raw]) -> None:
        """Handle the server's acknowledgement of a subscription.

        params: the params of notifications/subscriptions/acknowledged.
        """
        id = _subscription_id(params)
        future = None if id is None else self._open.get(id)
        if future is None or future.done():
            return
        try:
            future.set_result(_decode_acknowledgement(encode(params)).notifications)
        except DECODE_ERRORS as exc:
            future.set_exception(
                ProtocolError(f"the acknowledgement does not follow the protocol: {exc}")
            )

    def on_cancelled(self, id: Id, reason: str) -> bool:
        """Handle a notifications/cancelled of the server for the request with this id.

        Returns False if no subscription has this id.
        reason: the server's text; "" if the server has sent none.
        """
        if id not in self._open:
            return False
        # The result of the `subscriptions/listen` request may still follow, and is then ignored.
        self._channel.abandon(id, "ended by the server", cancels=False)
        text = escape_controls(reason[:MAX_QUOTE])
        self._on_end(id, ProtocolError(text) if reason else None)
        return True

    def _on_end(self, id: Id, error: ConcertinoError | None) -> None:
        """Handle the end of a subscription that the server has ended.

        error: the reason; None if the server has sent none.
        """
        future = self._open.pop(id, None)
        if future is None:
            return
        if not future.done():
            default = ProtocolError("the server ended the subscription before it was acknowledged")
            future.set_exception(error or default)
        elif not isinstance(error, Disconnected):
            reason = "" if error is None else f": {error}"
            self._log.warning("the server ended a subscription%s", reason)


def _subscription_id(params: Mapping[str, Raw]) -> Id | None:
    """Return the id of the subscription that a notification belongs to; None if it has none."""
    try:
        return _decode_id(_decode_members(params["_meta"])[SUBSCRIPTION_ID])
    except (KeyError, *DECODE_ERRORS):
        return None


def _covers(provided: Any, wanted: Any) -> bool:
    """Return whether the server provides one kind of the requested notifications.

    provided: the value of this kind in the acknowledgement: True, a list of URIs, or None.
    wanted: the value of this kind in the request: True, or a list of URIs. All of these URIs must
        be in `provided`.
    """
    if isinstance(wanted, list):
        wanted_uris = cast("list[Any]", wanted)
        provided_uris = cast("list[Any]", provided if isinstance(provided, list) else [])
        return set(map(str, wanted_uris)) <= set(map(str, provided_uris))
    return provided == wanted
