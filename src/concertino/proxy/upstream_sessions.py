"""UpstreamSessions: the client sessions that get the notifications of one upstream's server.

An upstream is a connection of a proxy to its server, which one or more sessions use.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from msgspec.json import encode

from concertino.backend.caller import CallerSession
from concertino.backend.interface import ChangeKind, Notifier

if TYPE_CHECKING:
    from concertino.proxy.event_streams import EventStreams

__all__ = ["UpstreamSessions"]

# The lists that a Notifier can report: name -> the same name, with the type ChangeKind.
CHANGES: Mapping[str, ChangeKind] = {
    "tools": "tools",
    "prompts": "prompts",
    "resources": "resources",
}


class UpstreamSessions(set[CallerSession]):
    """The client sessions that have made calls over one upstream, a connection to the server.

    This is a set of the sessions, with methods that notify their clients. If another upstream
    replaces this one, take_over() moves the sessions.

    outlet: the Notifier of the proxy. It is notified of the changes that the server reports while
        the set is empty.

    Attributes:
    is_private: whether the upstream serves only one user or session. Then notifications of its
        server are not sent to other clients.
    host: the name that the newest client has sent for its application, for `concertino ps`; ""
        before the first.
    event_streams: the open requests `events/stream` of the sessions; None before the first.
    """

    def __init__(self, outlet: Notifier) -> None:
        super().__init__()
        self.is_private = False
        self.host = ""
        self.event_streams: EventStreams | None = None
        self._outlet = outlet

    @property
    def single(self) -> CallerSession | None:
        """Return the only session; None if there are several or none."""
        return next(iter(self)) if len(self) == 1 else None

    @property
    def subscribed_uris(self) -> frozenset[str]:
        """Return the resources that the sessions subscribe to."""
        return frozenset[str]().union(*(session.subscribed_uris for session in self))

    def take_over(self, before: UpstreamSessions) -> None:
        """Move the sessions of another upstream to this object, also `is_private` and `host`."""
        self.update(before)
        before.clear()
        self.is_private, self.host = before.is_private, before.host

    def open_event_streams(self, name: str) -> EventStreams:
        """Return `event_streams`, after creating it if it is None.

        name: the name of the server, for errors.
        """
        if self.event_streams is None:
            # Imported here, because most servers have no events.
            from concertino.proxy.event_streams import EventStreams

            self.event_streams = EventStreams(name)
        return self.event_streams

    def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Pass a notification of the server to the client, if there is only one.

        With several clients it is dropped, because it does not say for whom it is.
        """
        session = self.single
        if session is not None:
            session.notify(method, encode(params))

    def report_change(self, name: str) -> None:
        """Notify the clients that a list has changed.

        name: the list: "tools", "prompts" or "resources".
        """
        for session in self:
            session.report_change(name)
        if not self and not self.is_private and name in CHANGES:
            self._outlet.report_change(CHANGES[name])

    def report_update(self, uri: str) -> None:
        """Notify the subscribers of a resource that it has been updated."""
        subscribers = [item for item in self if uri in item.subscribed_uris]
        for session in subscribers:
            session.report_update(uri)
        if not subscribers and not self.is_private:
            # The subscriber is then a session that has made no call yet, and so has no upstream.
            self._outlet.report_update(uri)
