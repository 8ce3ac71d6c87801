"""Requests from the other side: their state, tables of them, batches, and throttled notifications.

peer.py changes these objects; they only hold state that belongs together. A request knows the table
and the batch that hold it, so that the peer can remove it without a search.
Spec: JSON-RPC 2.0; 2025-03-26 basic "Batching".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from msgspec import Raw, Struct

from concertino.jsonrpc.messages import Id
from concertino.jsonrpc.token_bucket import TokenBucket

__all__ = ["Batch", "IncomingRequest", "NotificationThrottle", "RequestTable"]


class IncomingRequest(Struct, eq=False):
    """A request from the other side, from its arrival to its response.

    size: bytes of its frame; they count against the limits.
    open: it may still be answered. False once it was answered or cancelled.
    table: the table that holds it while it waits or runs.
    batch: the batch that it came in.
    on_cancel: called with the reason when the other side cancels it.
    throttle: limits its progress and log notifications; None until the first one.
    last_progress: the highest progress value reported so far.
    """

    id: Id
    method: str
    params: dict[str, Raw]
    size: int
    open: bool = True
    table: RequestTable[Any] | None = None
    batch: Batch | None = None
    on_cancel: Callable[[str], object] | None = None
    throttle: NotificationThrottle | None = None
    last_progress: float = float("-inf")


R = TypeVar("R", bound=IncomingRequest)


class RequestTable(dict[Id, R], Generic[R]):
    """Incoming requests by id, in order of arrival. size: the bytes of their frames."""

    __slots__ = ("size",)

    def __init__(self) -> None:
        self.size = 0

    def add(self, incoming: R) -> None:
        """Add a request that no table holds."""
        self[incoming.id] = incoming
        self.size += incoming.size
        incoming.table = self

    def remove(self, incoming: R) -> None:
        """Remove a request of this table."""
        del self[incoming.id]
        self.size -= incoming.size
        incoming.table = None

    def clear(self) -> None:
        """Remove all requests. They keep their `table`."""
        super().clear()
        self.size = 0


class Batch:
    """The responses to one array of requests, which are sent together with the last one.

    ids: of its requests; they are in no table before the whole array was read.
    missing: how many of its requests have no response yet.
    size: bytes of the responses so far.
    """

    __slots__ = ("answers", "ids", "missing", "size")

    def __init__(self) -> None:
        self.answers: list[bytes] = []
        self.size = 0
        self.ids: set[Id] = set()
        self.missing = 0


class NotificationThrottle:
    """Limits the rate of the notifications about one request.

    progress, log: the bucket of each kind of notification.
    suppressed: the newest frame that was not sent, by its kind. It is sent when output drains, a
    moment later, or before the response.
    """

    __slots__ = ("log", "progress", "suppressed")

    def __init__(self, progress: TokenBucket, log: TokenBucket) -> None:
        self.progress = progress
        self.log = log
        self.suppressed: dict[str, bytes] = {}
