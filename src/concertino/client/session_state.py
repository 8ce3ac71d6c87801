"""SessionState: the log level and the subscriptions that a client has requested from its server.

After a restart of the server, restore() requests the log level and the subscriptions again.
"""

from __future__ import annotations

import logging

from msgspec.json import encode

from concertino.client.channel_ending import UnreadRequest
from concertino.client.client_connection import ClientConnection, ConnectionSettings
from concertino.client.conversation import Conversation
from concertino.client.notifications import LISTS
from concertino.errors import ConcertinoError, Disconnected, ProtocolError
from concertino.jsonrpc.messages import Id
from concertino.types.results import Level


class SessionState:
    """The log level and the subscriptions of one client.

    - subscribe() and unsubscribe() are for users, who name one resource at a time.
    - watch() is for proxies, which name all resources to which their own clients subscribe. A
      server of 2026-07-28 then gets one subscription instead of many.

    These methods and set_log_level() raise RpcError, TimedOut, Disconnected, ProtocolError, and
    NotSupported if the server does not declare the capability.

    connection: the connection that sends the requests.
    settings: the arguments of the Client.
    log: the logger for subscriptions that could not be restored.
    """

    def __init__(
        self,
        connection: ClientConnection,
        settings: ConnectionSettings,
        log: logging.Logger,
    ) -> None:
        self._connection = connection
        self._handlers = settings.notification_handlers
        self._request_s = settings.timeouts.request_s
        self._log = log
        self._log_level: Level | None = None
        # URI of subscribe() -> the id of its subscriptions/listen request. 0 stands for no id:
        # while the subscription is being opened, and always for a server before 2026-07-28.
        self._subscriptions: dict[str, Id] = {}
        # The URIs of the latest watch().
        self._watched: frozenset[str] = frozenset()
        # The id of the one subscription for all watched resources; None if there is none, and
        # always for a server before 2026-07-28.
        self._watch_id: Id | None = None

    async def set_log_level(self, level: Level) -> None:
        """Request log messages of this level and above, also after restarts of the server."""
        await self._send_log_level(level)
        self._log_level = level

    async def _send_log_level(self, level: Level) -> None:
        """Add the level to all requests, or send `logging/setLevel` before 2026-07-28."""
        connection = self._connection
        if connection.is_modern:
            connection.current.requests.set_log_level(level)
            return
        connection.require("logging")
        await connection.call("logging/setLevel", encode({"level": level}), level)

    async def subscribe(self, uri: str) -> None:
        """Subscribe to changes of a resource. Does nothing if there is a subscription already.

        Also raises ProtocolError if the server does not report changes of this resource.
        """
        connection = self._connection
        connection.require("resources")
        id = self._subscriptions.get(uri)
        # Only a server of 2026-07-28 can end a subscription.
        is_lasting = not connection.is_modern
        if id is not None and (is_lasting or connection.current.subscriptions.is_open(id)):
            return

        # Remember the subscription before the request: a restart meanwhile has to repeat it.
        self._subscriptions[uri] = 0
        try:
            await self._subscribe(uri)
        except BaseException:
            self._subscriptions.pop(uri, None)
            raise

    async def _subscribe(self, uri: str) -> None:
        """Send `subscriptions/listen`, or `resources/subscribe` before 2026-07-28."""
        conversation = await self._usable_conversation(f"subscribe {uri}")
        if not self._connection.is_modern:
            await self._connection.call("resources/subscribe", encode({"uri": uri}), uri)
            return

        label = f"subscriptions/listen {uri}"
        subscriptions = conversation.subscriptions
        try:
            id, missing = await subscriptions.open(
                {"resourceSubscriptions": [uri]}, label, self._request_s
            )
        except UnreadRequest:
            # The server has ended before it has read the request. Subscribe again after the
            # restart, from the start, because the restarted server may speak another revision.
            await self._subscribe(uri)
            return
        # Meanwhile, unsubscribe() may have removed the URI, so that current_id is None, or another
        # subscribe() may have succeeded. Then close this subscription.
        current_id = self._subscriptions.get(uri)
        if current_id is None or missing or subscriptions.is_open(current_id):
            subscriptions.close(id)
        else:
            self._subscriptions[uri] = id
        if missing:
            raise ProtocolError(f"{label}: the server does not provide {', '.join(missing)}")

    async def unsubscribe(self, uri: str) -> None:
        """End the subscription to a resource, if there is one."""
        id = self._subscriptions.pop(uri, None)
        if id is None:
            return
        if self._connection.is_modern:
            self._connection.current.subscriptions.close(id)
        elif self._connection.state == "running":
            # A server that is being restarted needs no request: its subscriptions are lost anyway.
            await self._connection.call("resources/unsubscribe", encode({"uri": uri}), uri)

    async def watch(self, uris: frozenset[str]) -> None:
        """Subscribe to these resources, and end the subscriptions of the previous watch().

        When one of the resources changes, the user's function `updated` is called with its URI.
        uris: the URIs of all resources to watch from now on; empty for none.
        """
        before, self._watched = self._watched, uris
        connection = self._connection
        if not connection.is_modern:
            for uri in sorted(before - uris):
                await connection.call("resources/unsubscribe", encode({"uri": uri}), uri)
            for uri in sorted(uris - before):
                await connection.call("resources/subscribe", encode({"uri": uri}), uri)
            return
        await self._listen_to_watched()

    async def _listen_to_watched(self) -> None:
        """Open one subscription for all watched resources, and close the previous subscription.

        Only for servers of 2026-07-28.
        """
        subscriptions = (await self._usable_conversation("subscriptions/listen")).subscriptions
        id = None
        if self._watched:
            wanted = {"resourceSubscriptions": sorted(self._watched)}
            id, missing = await subscriptions.open(wanted, "subscriptions/listen", self._request_s)
            if missing:
                self._log.warning("the server does not report changes of all watched resources")
        # Close the previous subscription last. Otherwise, a change between the two steps would be
        # missed.
        before, self._watch_id = self._watch_id, id
        if before is not None:
            subscriptions.close(before)

    async def _restore_watched(self) -> None:
        """Subscribe to all watched resources after a restart, and report all of them as changed."""
        # All subscriptions have ended with the server. Forget them, so that watch() subscribes to
        # all resources and not only to additional ones.
        self._watch_id = None
        uris, self._watched = self._watched, frozenset[str]()
        if uris:
            await self.watch(uris)
        for uri in uris:
            self._report_update(uri)

    def _report_update(self, uri: str) -> None:
        """Call the user's function `updated` for a resource, and log its exception."""
        if self._handlers.on_resource_updated is not None:
            try:
                self._handlers.on_resource_updated(uri)
            except Exception:
                self._log.exception("the updated function of this client failed")

    async def restore(self) -> None:
        """Request the log level and the subscriptions again, after a restart of the server.

        All lists and subscribed resources are reported as changed, because they may have changed
        meanwhile. If the server ends again, this returns. The next restart calls restore() again.
        """
        try:
            if self._log_level is not None:
                await self._send_log_level(self._log_level)
            await self.listen_for_changes()
            conversation = self._connection.current
            for name in LISTS:
                if name in conversation.server.capabilities:
                    conversation.notifications.report_change(name)
            await self._restore_watched()
        except Disconnected:
            return
        except ConcertinoError as exc:
            self._log.error("after a restart: %s", exc)

        for uri in list(self._subscriptions):
            try:
                await self._subscribe(uri)
            except Disconnected:
                return
            except ConcertinoError as exc:
                self._subscriptions.pop(uri, None)
                self._log.error("the subscription to %s is lost: %s", uri[:200], exc)
            else:
                self._report_update(uri)

    async def listen_for_changes(self) -> None:
        """Subscribe to changes of lists, if the Client has the function `changed`.

        Does nothing for servers before 2026-07-28, which report changes without a subscription.
        """
        if self._handlers.on_list_changed is None or not self._connection.is_modern:
            return
        conversation = await self._usable_conversation("subscriptions/listen")
        capabilities = conversation.server.capabilities
        wanted = {
            f"{name}ListChanged": True
            for name in LISTS
            if isinstance(capabilities.get(name), dict) and capabilities[name].get("listChanged")
        }
        if wanted:
            _, missing = await conversation.subscriptions.open(
                wanted, "subscriptions/listen", self._request_s
            )
            if missing:
                self._log.warning(
                    "the server declares %s and does not provide it", ", ".join(missing)
                )

    async def _usable_conversation(self, label: str) -> Conversation:
        """Return the Conversation with the running server. Waits while the server is restarted.

        label: the method and subject of the request that is to be sent, for error messages.
        Raises TimedOut if the restart takes too long, and Disconnected if the server will not be
        restarted.
        """
        conversation, _ = await self._connection.wait_until_usable(label, self._request_s)
        return conversation
