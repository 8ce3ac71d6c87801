"""What a client wants to hear of: by resources/subscribe before 2026-07-28, by subscriptions/listen since.

A listen request stays open until it is cancelled or this end closes it. It is acknowledged first; everything that is sent for it
carries its id, and nothing is sent for it that it did not ask for.
Spec: 2026-07-28 basic/patterns/subscriptions, basic/patterns/cancellation; 2025-11-25 server/resources "Subscriptions".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import DecodeError, Struct
from msgspec.json import Decoder, encode

from concertino.errors import BUSY, INVALID_PARAMS, INVALID_REQUEST, RpcError
from concertino.jsonrpc.limits import Limits
from concertino.jsonrpc.messages import Id, encode_notification
from concertino.jsonrpc.peer import IncomingRequest, Peer
from concertino.protocol.call import ServerFeatures

__all__ = ["SUBSCRIPTION", "WantedUpdates"]

SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"
MAX_URI = 8192  # characters of a URI to be watched; beyond that no server needs to understand one (RFC 9110 4.1)
LISTS = ("tools", "prompts", "resources")
SHOWN = 300  # characters of what is wrong with a filter


class _Filter(Struct, rename="camel", omit_defaults=True):
    """What a listen request asks for, and the part of it that is honoured."""

    tools_list_changed: bool = False
    prompts_list_changed: bool = False
    resources_list_changed: bool = False
    resource_subscriptions: list[str] | None = None

    @property
    def lists(self) -> frozenset[str]:
        """Of which lists it wants to hear."""
        return frozenset(each for each in LISTS if getattr(self, f"{each}_list_changed"))


class _Listen(Struct):
    notifications: _Filter


_listen = Decoder(_Listen).decode


class _Listener(Struct):
    incoming: IncomingRequest
    lists: frozenset[str]
    uris: frozenset[str]


class WantedUpdates:
    """Of one connection. watch: frame when `watched` has changed."""

    def __init__(self, peer: Peer, limits: Limits, on_change: Callable[[], object]) -> None:
        self._peer = peer
        self._limits = limits
        self._on_change = on_change
        self._legacy_uris: set[str] = set()  # by resources/subscribe: the connection's own
        self._listeners: dict[Id, _Listener] = {}

    @property
    def subscribed_uris(self) -> frozenset[str]:
        """The URIs whose changes this client wants to hear of."""
        return frozenset(self._legacy_uris).union(*(each.uris for each in self._listeners.values()))

    @property
    def open_count(self) -> int:
        """How many listen requests are open."""
        return len(self._listeners)

    # resources/subscribe and unsubscribe

    def subscribe(self, uri: str) -> None:
        """Whether there is such a resource is not asked: it may come, and go. Raises RpcError for a URI that cannot be one."""
        _check_uri(uri, "uri")
        if uri not in self._legacy_uris:
            self._check_room(len(self._legacy_uris) + 1)
            self._legacy_uris.add(uri)
        self._on_change()

    def unsubscribe(self, uri: str) -> None:
        """Raises RpcError for a URI that cannot be one."""
        _check_uri(uri, "uri")
        self._legacy_uris.discard(uri)
        self._on_change()

    # subscriptions/listen

    def listen(self, incoming: IncomingRequest, offer: ServerFeatures) -> None:
        """Open a subscription, and acknowledge what of it is honoured. Raises RpcError for what is malformed or too much."""
        if incoming.batch is not None:
            raise RpcError(
                INVALID_REQUEST,
                "Invalid Request: subscriptions/listen in a batch, which would never be answered",
            )
        try:
            wanted = _listen(encode(incoming.params)).notifications
        except DecodeError as why:
            text = str(why).replace("`", "").replace(" - at $.", ": ")
            raise RpcError(INVALID_PARAMS, f"Invalid params: {text[:SHOWN]}") from None
        uris = frozenset(wanted.resource_subscriptions or ())
        for uri in uris:
            _check_uri(uri, "notifications.resourceSubscriptions")
        limit = self._limits.max_listening
        if len(self._listeners) >= limit:
            raise RpcError(BUSY, f"busy: {limit} subscriptions are open", {"maxListening": limit})
        self._check_room(sum(len(each.uris) for each in self._listeners.values()) + len(uris))
        lists = frozenset(each for each in wanted.lists if getattr(offer, each))
        watches = offer.resources and offer.subscriptions
        honoured: dict[str, Any] = {f"{each}ListChanged": True for each in LISTS if each in lists}
        if watches and wanted.resource_subscriptions is not None:
            honoured["resourceSubscriptions"] = wanted.resource_subscriptions
        self._listeners[incoming.id] = _Listener(incoming, lists, uris if watches else frozenset())
        incoming.params = {}
        incoming.size = 0  # it takes no room of the calls
        incoming.on_cancel = lambda _: self._remove(incoming)
        self._peer.add_running(incoming)
        frame = self._tag(
            incoming.id, "notifications/subscriptions/acknowledged", {"notifications": honoured}
        )
        self._peer.send_frame(frame, incoming.id)
        self._on_change()

    def _remove(self, incoming: IncomingRequest) -> None:
        """It was cancelled: nothing that is about it is sent any more."""
        del self._listeners[incoming.id]
        self._peer.drop_coalesced(incoming.id)
        self._on_change()

    def close_all(self) -> None:
        """Close all that are open, in order: the result, then the notice that nothing follows.

        basic/patterns/subscriptions wants the first, basic/patterns/cancellation the second; a receiver ignores whichever is late.
        """
        listeners, self._listeners = self._listeners, {}
        for id, each in listeners.items():
            self._peer.drop_coalesced(id)
            self._peer.respond(
                each.incoming, each.incoming.profile.encoder.encode_closing({SUBSCRIPTION: id})
            )
            body = encode({"requestId": id, "reason": "the server ends the subscription"})
            self._peer.notify("notifications/cancelled", body, id)

    # What is frame

    def report_change(self, what: str) -> None:
        """A list is no longer what it was."""
        for id, each in self._listeners.items():
            if what in each.lists:
                self._peer.send_coalesced(
                    self._tag(id, f"notifications/{what}/list_changed", {}), id
                )

    def report_update(self, uri: str) -> None:
        """The content of a resource is no longer what it was."""
        if uri in self._legacy_uris:
            self._peer.send_coalesced(
                encode_notification("notifications/resources/updated", encode({"uri": uri}))
            )
        for id, each in self._listeners.items():  # a linear scan: at most max_listening
            if uri in each.uris:
                self._peer.send_coalesced(
                    self._tag(id, "notifications/resources/updated", {"uri": uri}), id
                )

    def _tag(self, id: Id, method: str, params: dict[str, Any]) -> bytes:
        return encode_notification(method, encode({"_meta": {SUBSCRIPTION: id}, **params}))

    def _check_room(self, wanted: int) -> None:
        limit = self._limits.max_subscriptions
        if wanted > limit:
            raise RpcError(
                BUSY, f"busy: {limit} resources are subscribed to", {"maxSubscriptions": limit}
            )


def _check_uri(uri: str, where: str) -> None:
    if not 0 < len(uri) <= MAX_URI:
        raise RpcError(
            INVALID_PARAMS,
            f"Invalid params: {where}: expected 1 to {MAX_URI} characters, got {len(uri)}",
        )
