"""The state of requests that come from the other side: IncomingRequest and RequestTable.

Peer (jsonrpc/peer.py) owns and changes these objects. A request refers to its table and its batch,
so that the peer can remove it without a search. NotificationThrottle and its TokenBuckets limit the
rate of the notifications about one request.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from msgspec import Raw, Struct

from concertino.jsonrpc.batches import Batch
from concertino.jsonrpc.messages import Id

__all__ = [
    "IncomingRequest",
    "Kind",
    "NotificationThrottle",
    "RequestTable",
    "ResultCounter",
    "TokenBucket",
]

# The method of a request, and the name of its tool or prompt as JSON. Results of requests of the
# same kind usually have similar sizes; UnreadResults relies on that.
Kind = tuple[str, bytes]


class IncomingRequest(Struct, eq=False):
    """A request from the other side, from its arrival to its response.

    id, method, params: from the message; the values of params are undecoded.
    size: the length of the frame in bytes, which counts against the limits.
    open: whether the request may still be answered; False after it was answered or cancelled.
    table: the table that contains the request while it waits or runs; otherwise None. A request
        that is answered in the first step of its handler is never in a table.
    batch: the batch that contained the request; None if it came alone.
    on_cancel: called with a reason when the other side cancels the request; None if the handler has
        nothing to cancel.
    throttle: the rate limits for progress and log notifications about the request; None before the
        first notification.
    last_progress: the highest progress value that was sent so far.

    UnreadResults, which limits the memory for responses that the client has not read, sets these:

    unread: the UnreadResults of the connection; None before the request runs.
    kind: the method and the name of the tool or prompt, while `unread` counts a response for the
        request; otherwise None.
    expected_bytes: the size of the response that `unread` counts; 0 if it is not known.
    has_begun: whether the handler's code is known to have begun, so that keep_back() would be too
        late. Set by expect() and count_as_unknown().
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
    kind: Kind | None = None
    expected_bytes: int = 0
    unread: ResultCounter | None = None
    has_begun: bool = False


class ResultCounter(Protocol):
    """The methods of UnreadResults that other code calls through IncomingRequest.unread."""

    # UnreadResults itself cannot be named here, because its module imports this module.

    def known_size(self, kind: Kind) -> int: ...
    def expect(self, incoming: IncomingRequest, size: int) -> None: ...
    def count_as_unknown(self, incoming: IncomingRequest) -> None: ...
    def keep_back(self, incoming: IncomingRequest) -> None: ...
    def try_begin(self, incoming: IncomingRequest) -> bool: ...
    def may_postpone(self, size: int) -> bool: ...
    def postpone(self, incoming: IncomingRequest, size: int) -> None: ...
    def end_postponed(self, size: int) -> None: ...
    def drop(self, size: int) -> str: ...


R = TypeVar("R", bound=IncomingRequest)


class RequestTable(dict[Id, R], Generic[R]):
    """Incoming requests by id, in order of arrival.

    size: the total size of their frames in bytes.
    """

    __slots__ = ("size",)

    def __init__(self) -> None:
        self.size = 0

    def add(self, incoming: R) -> None:
        """Add a request that is in no table."""
        self[incoming.id] = incoming
        self.size += incoming.size
        incoming.table = self

    def remove(self, incoming: R) -> None:
        """Remove a request that is in this table."""
        del self[incoming.id]
        self.size -= incoming.size
        incoming.table = None

    def discount(self, incoming: R) -> None:
        """Count the size of a request in this table as 0 from now on."""
        self.size -= incoming.size
        incoming.size = 0

    def clear(self) -> None:
        """Remove all requests. The caller must set their attribute `table` to None."""
        super().clear()
        self.size = 0


class NotificationThrottle:
    """Limits the rate of the notifications about one request.

    progress: the token bucket for progress notifications.
    log: the token bucket for log messages.
    suppressed: "progress" or "log" -> the newest notification of this kind that was not sent, as a
        frame. It is sent when the client has read some output, or before the response.
    """

    __slots__ = ("log", "progress", "suppressed")

    def __init__(self, progress: TokenBucket, log: TokenBucket) -> None:
        self.progress = progress
        self.log = log
        self.suppressed: dict[str, bytes] = {}


class TokenBucket:
    """Limits the rate of events, such as notifications, with the token bucket algorithm.

    per_s: the number of events per second, and also the number that may happen at once. The bucket
        holds up to per_s tokens and gets per_s new tokens each second. Each event takes one token.
    clock: returns the time in seconds; must not go backwards.
    """

    __slots__ = ("_clock", "_per_s", "_tokens", "_updated_at")

    def __init__(self, per_s: int, clock: Callable[[], float]) -> None:
        self._per_s = per_s
        self._clock = clock
        self._tokens = float(per_s)
        self._updated_at = clock()

    def take(self) -> bool:
        """Take one token. Returns False if the bucket is empty."""
        now = self._clock()
        refill = (now - self._updated_at) * self._per_s
        self._tokens = min(float(self._per_s), self._tokens + refill)
        self._updated_at = now

        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True
