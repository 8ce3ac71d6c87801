"""ServingHosts: the Hosts that serve one backend, and a way to notify the clients of all of them.

Server and Library use this class, because several Hosts (runtime/host.py) may serve the same
backend. Each Host has its own clients, and calls start() and close() of the backend. (These Hosts
are not the hosts of MCP, the applications that contain clients.)
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from concertino.backend.interface import Notifier

__all__ = ["ServingHosts"]


class ServingHosts:
    """The Hosts that have started a backend and not closed it. May be used from any thread.

    A Host (runtime/host.py) serves the backend to its clients. The backend's start() calls add(),
    and the backend's close() calls remove_one().

    Attributes:
    count: how many Hosts there are.
    watched: the URIs that were last passed to the backend's watch(). With several Hosts, these are
        only the resources to which the clients of one Host are subscribed.
    """

    __slots__ = ("_lock", "_notifiers", "count", "watched")

    def __init__(self) -> None:
        self.count = 0
        self.watched: frozenset[str] = frozenset()
        # Each change replaces the whole list, so that any thread may read it.
        self._notifiers: list[Notifier] = []
        # Held while `count` and `_notifiers` are changed.
        self._lock = threading.Lock()

    def add(self, notifier: Notifier) -> None:
        """Add a Host.

        notifier: sends notifications to the clients of the Host.
        """
        with self._lock:
            self.count += 1
            self._notifiers = [*self._notifiers, notifier]

    def remove_one(self) -> bool:
        """Decrease the count of Hosts by one, and return whether none is left.

        The notifiers of all Hosts are kept until none is left, because close() does not say which
        Host has called it. Notifying a closed Host has no effect.
        """
        with self._lock:
            # A start() that was cancelled before its first step was not counted, so there may be
            # more calls of close() than of start().
            self.count = max(0, self.count - 1)
            if self.count:
                return False
            self._notifiers = []
        return True

    def notify(self, report: Callable[[Notifier], object]) -> None:
        """Call `report` with the notifier of each Host.

        An example of `report` is `lambda notifier: notifier.report_update(uri)`.
        """
        for notifier in self._notifiers:
            try:
                report(notifier)
            except RuntimeError:
                # The event loop of this Host is closed, and so are its connections.
                pass
