"""Subscriptions: the changes that a client wants to be notified of, and the calls it holds open.

A client subscribes with the requests of the specification (protocol/wanted_updates.py). In
addition, a handler may hold its call open: the call then runs until the client cancels it or the
connection closes, and counts as a subscription. The session (protocol/session.py) has one
Subscriptions object. The runtime calls its end_all() before the connection closes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec import Raw

from concertino.errors import INVALID_REQUEST, RpcError
from concertino.jsonrpc.limits import Limits
from concertino.jsonrpc.peer import Peer
from concertino.protocol.request_profile import SessionRequest

if TYPE_CHECKING:
    from concertino.protocol.wanted_updates import WantedUpdates

__all__ = ["Subscriptions"]


class Subscriptions:
    """The subscriptions of one session: those of the specification, and the calls held open.

    A call held open is one that hold_open() has turned into a subscription.

    peer: sends notifications, and the responses that end subscriptions.
    limits: how many subscriptions the client may have.
    on_change: called when `uris` may have changed.
    """

    def __init__(
        self,
        peer: Peer[SessionRequest],
        limits: Limits,
        on_change: Callable[[], object],
    ) -> None:
        self._peer = peer
        self._limits = limits
        self._on_change = on_change
        # None until the first subscription.
        self._updates: WantedUpdates | None = None
        # The calls that hold_open() has registered; some of them may have ended.
        self._held_open: list[SessionRequest] = []

    def wanted_updates(self) -> WantedUpdates:
        """Return the subscriptions that the client has made with requests of the specification.

        These are resources/subscribe and subscriptions/listen. Creates the object on first use.
        """
        if self._updates is None:
            # Imported here, because most clients never subscribe to anything.
            from concertino.protocol.wanted_updates import WantedUpdates

            self._updates = WantedUpdates(self._peer, self._limits, self._on_change)
        return self._updates

    @property
    def uris(self) -> frozenset[str]:
        """Return the URIs of the resources that this client subscribes to."""
        return frozenset() if self._updates is None else self._updates.subscribed_uris

    @property
    def open_count(self) -> int:
        """Return how many subscriptions are open: subscriptions/listen, and calls held open.

        Peer.running contains these requests: the number of other calls is
        `len(peer.running) - open_count`.
        """
        count = 0 if self._updates is None else self._updates.open_count
        return count + sum(item.open for item in self._held_open)

    def end_all(self) -> None:
        """End all open subscriptions: answer their requests, and cancel the calls held open."""
        if self._updates is not None:
            self._updates.close_all()
        ended, self._held_open = self._held_open, []
        for incoming in ended:
            if incoming.open:
                body = incoming.profile.encoder.encode(Raw(b"{}"), incoming.method)
                self._peer.respond(incoming, body)
                if incoming.on_cancel is not None:
                    incoming.on_cancel("the server ends the subscription")

    def hold_open(self, incoming: SessionRequest) -> None:
        """Turn a running call into a subscription. Three things change for the call from now on:

        - Its params are dropped, because it may stay open for days.
        - Its frame and its probable result do not count against the limits in bytes.
        - end_all() answers and cancels it.

        Does nothing if the call was answered or cancelled. Raises RpcError for a call in a batch,
        because the batch is answered only when all its calls have ended.
        """
        if not incoming.open:
            return
        if incoming.batch is not None:
            text = f"Invalid Request: {incoming.method} in a batch, which would never be answered"
            raise RpcError(INVALID_REQUEST, text)
        incoming.params.clear()
        if incoming.table is None:
            # The handler is in its first step, so the request is not in Peer.running yet.
            incoming.size = 0
            self._peer.add_running(incoming, has_result=False)
        else:
            # The request is in Peer.running since the handler began to wait. Take back what was
            # counted then: the size of the request, and the size that its result would have.
            incoming.table.discount(incoming)
            self._peer.unread.on_end(incoming)
        self._held_open = [item for item in self._held_open if item.open]
        self._held_open.append(incoming)

    def report_change(self, what: str) -> None:
        """Notify the client that a list has changed, if it has subscribed to the list.

        what: "tools", "prompts" or "resources".
        """
        if self._updates is not None:
            self._updates.report_change(what)

    def report_update(self, uri: str) -> None:
        """Notify the client that a resource has changed, if it has subscribed to the resource."""
        if self._updates is not None:
            self._updates.report_update(uri)
