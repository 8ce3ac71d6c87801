"""WantedUpdates: which changes one client has subscribed to, and the notifications about them.

There are two ways to subscribe:

- `resources/subscribe` (before MCP 2026-07-28) subscribes the whole connection to one resource.
- `subscriptions/listen` (2026-07-28) names lists and resources. The request stays open until the
  client cancels it or the server ends it. The first notification about the request says which of
  these lists and resources the server supports. Each notification contains the request's id.

The session imports this module when its client first subscribes to something.
Spec: 2026-07-28 basic/patterns/subscriptions, basic/patterns/cancellation; 2025-11-25
server/resources "Subscriptions".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct
from msgspec.json import Decoder, encode

from concertino.decode_errors import DECODE_ERRORS
from concertino.errors import BUSY, INVALID_PARAMS, INVALID_REQUEST, RpcError
from concertino.jsonrpc.incoming_requests import IncomingRequest
from concertino.jsonrpc.limits import Limits
from concertino.jsonrpc.messages import Id, describe_decode_error, encode_notification
from concertino.jsonrpc.peer import Peer
from concertino.protocol.call import ServerFeatures

__all__ = ["SUBSCRIPTION", "WantedUpdates"]

# The member of a notification's `_meta` with the id of its subscriptions/listen request.
SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"

# The longest URI, in characters. RFC 9110 section 4.1 recommends to support at least 8000.
MAX_URI = 8192

# The lists of which a client can be notified.
LISTS = ("tools", "prompts", "resources")

# The error about a malformed filter has at most this many characters.
ERROR_CHARS = 300


class _UpdateFilter(Struct, rename="camel", omit_defaults=True):
    """The member `notifications` of a subscriptions/listen request: the wanted updates."""

    tools_list_changed: bool = False
    prompts_list_changed: bool = False
    resources_list_changed: bool = False
    resource_subscriptions: list[str] | None = None

    @property
    def lists(self) -> frozenset[str]:
        """Return the names of the lists whose changes are wanted."""
        return frozenset(name for name in LISTS if getattr(self, f"{name}_list_changed"))


class _ListenParams(Struct):
    """The params of `subscriptions/listen`."""

    notifications: _UpdateFilter


_decode_params = Decoder(_ListenParams).decode


class _Listener(Struct):
    """An open subscriptions/listen request. (Listeners of sockets are in package transports.)

    incoming: the request.
    lists, uris: the lists and the resources of which it wants to be notified.
    encode_closing: a function that gets the members of the result's `_meta`, and returns the result
        of the request as JSON.
    """

    incoming: IncomingRequest
    lists: frozenset[str]
    uris: frozenset[str]
    encode_closing: Callable[[Mapping[str, Any]], bytes]


class WantedUpdates:
    """The resources and lists of which one client wants notifications, by its own requests.

    Subscriptions (protocol/subscriptions.py) adds the calls that a handler holds open.

    peer: sends the notifications.
    limits: how many subscriptions the client may have.
    on_change: called when subscribed_uris may have changed.
    """

    def __init__(
        self,
        peer: Peer[Any],
        limits: Limits,
        on_change: Callable[[], object],
    ) -> None:
        self._peer = peer
        self._limits = limits
        self._on_change = on_change
        # The resources that the client has subscribed to with resources/subscribe.
        self._legacy_uris: set[str] = set()
        # Id of a subscriptions/listen request -> this request, while it is open.
        self._listeners: dict[Id, _Listener] = {}

    @property
    def subscribed_uris(self) -> frozenset[str]:
        """Return the URIs of all resources that the client subscribes to."""
        listeners = self._listeners.values()
        return frozenset(self._legacy_uris).union(*(listener.uris for listener in listeners))

    @property
    def open_count(self) -> int:
        """Return how many subscriptions/listen requests are open."""
        return len(self._listeners)

    # resources/subscribe and unsubscribe

    def subscribe(self, uri: str) -> None:
        """Subscribe the client to a resource, which need not exist yet.

        Raises RpcError for an empty or overlong URI, and for too many subscriptions.
        """
        _check_uri(uri, "uri")
        if uri not in self._legacy_uris:
            self._check_count(len(self._legacy_uris) + 1)
            self._legacy_uris.add(uri)
        self._on_change()

    def unsubscribe(self, uri: str) -> None:
        """Cancel the subscription to a resource, if there is one.

        Raises RpcError for an empty or overlong URI.
        """
        _check_uri(uri, "uri")
        self._legacy_uris.discard(uri)
        self._on_change()

    # subscriptions/listen

    def listen(
        self,
        incoming: IncomingRequest,
        features: ServerFeatures,
        encode_closing: Callable[[Mapping[str, Any]], bytes],
    ) -> None:
        """Register a subscriptions/listen request, and acknowledge it with a notification.

        The notification lists those requested changes that the server supports. The request itself
        is answered when the server ends the subscription.
        features: what the backend offers.
        encode_closing: called when the server ends the subscription, with members for the `_meta`
            of the result. It must return the result of the request as JSON.
        Raises RpcError for a malformed request, for a request in a batch, and for too many
        subscriptions.
        """
        if incoming.batch is not None:
            raise RpcError(
                INVALID_REQUEST,
                "Invalid Request: subscriptions/listen in a batch, which would never be answered",
            )
        try:
            wanted = _decode_params(encode(incoming.params)).notifications
        except DECODE_ERRORS as exc:
            text = describe_decode_error(exc).replace(" - at $.", ": ")
            raise RpcError(INVALID_PARAMS, f"Invalid params: {text[:ERROR_CHARS]}") from None
        uris = frozenset(wanted.resource_subscriptions or ())
        self._check_listener(uris)

        lists = frozenset(name for name in wanted.lists if getattr(features, name))
        can_subscribe = features.resources and features.subscriptions
        supported: dict[str, Any] = {f"{name}ListChanged": True for name in LISTS if name in lists}
        if can_subscribe and wanted.resource_subscriptions is not None:
            supported["resourceSubscriptions"] = wanted.resource_subscriptions

        subscribed = uris if can_subscribe else frozenset[str]()
        self._listeners[incoming.id] = _Listener(incoming, lists, subscribed, encode_closing)
        # Free the params, because the request may stay open for days.
        incoming.params = {}
        # The limit for the bytes of running calls must not count an open subscription.
        incoming.size = 0
        incoming.on_cancel = lambda _: self._remove(incoming)
        self._peer.add_running(incoming, has_result=False)

        acknowledgement = self._encode_update(
            incoming.id, "notifications/subscriptions/acknowledged", {"notifications": supported}
        )
        self._peer.send_frame(acknowledgement, incoming.id)
        self._on_change()

    def _remove(self, incoming: IncomingRequest) -> None:
        """Remove a cancelled subscription, and the notifications kept for it."""
        # close_all() may have removed it already.
        self._listeners.pop(incoming.id, None)
        self._peer.drop_coalesced(incoming.id)
        self._on_change()

    def close_all(self) -> None:
        """End all open subscriptions: send the result of each, then `notifications/cancelled`."""
        # The specification asks for both: basic/patterns/subscriptions for the result, and
        # basic/patterns/cancellation for the notification. Clients accept the result, which comes
        # first, and ignore the notification.
        listeners, self._listeners = self._listeners, {}
        for id, listener in listeners.items():
            self._peer.drop_coalesced(id)
            self._peer.respond(listener.incoming, listener.encode_closing({SUBSCRIPTION: id}))
            params = encode({"requestId": id, "reason": "the server ends the subscription"})
            self._peer.notify("notifications/cancelled", params, id)

    # Updates

    def report_change(self, what: str) -> None:
        """Send a notification to each subscriptions/listen request for a list that has changed.

        what: "tools", "prompts" or "resources".
        """
        for id, listener in self._listeners.items():
            if what in listener.lists:
                frame = self._encode_update(id, f"notifications/{what}/list_changed", {})
                self._peer.send_coalesced(frame, id)

    def report_update(self, uri: str) -> None:
        """Notify the client of a changed resource, once for each subscription to this resource."""
        method = "notifications/resources/updated"
        if uri in self._legacy_uris:
            self._peer.send_coalesced(encode_notification(method, encode({"uri": uri})))
        # A linear search is fast enough: there are at most Limits.max_listening requests.
        for id, listener in self._listeners.items():
            if uri in listener.uris:
                frame = self._encode_update(id, method, {"uri": uri})
                self._peer.send_coalesced(frame, id)

    def _encode_update(
        self,
        id: Id,
        method: str,
        params: dict[str, Any],
    ) -> bytes:
        """Return the frame of a notification with the id of its subscription in `_meta`."""
        return encode_notification(method, encode({"_meta": {SUBSCRIPTION: id}, **params}))

    def _check_listener(self, uris: frozenset[str]) -> None:
        """Raise RpcError if one more subscriptions/listen with these URIs exceeds a limit."""
        for uri in uris:
            _check_uri(uri, "notifications.resourceSubscriptions")
        limit = self._limits.max_listening
        if len(self._listeners) >= limit:
            raise RpcError(BUSY, f"busy: {limit} subscriptions are open", {"maxListening": limit})
        self._check_count(sum(len(other.uris) for other in self._listeners.values()) + len(uris))

    def _check_count(self, count: int) -> None:
        """Raise RpcError if a client would be subscribed to more resources than allowed."""
        limit = self._limits.max_subscriptions
        if count > limit:
            text = f"busy: {limit} resources are subscribed to"
            raise RpcError(BUSY, text, {"maxSubscriptions": limit})


def _check_uri(uri: str, where: str) -> None:
    if not 0 < len(uri) <= MAX_URI:
        text = f"Invalid params: {where}: expected 1 to {MAX_URI} characters, got {len(uri)}"
        raise RpcError(INVALID_PARAMS, text)
