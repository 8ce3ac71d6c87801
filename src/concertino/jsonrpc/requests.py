"""Requests in both directions: their state, tables of them, batches, and throttled notifications.

peer.py changes these objects; they only hold state that belongs together. An incoming request knows
the table and the batch that hold it, so that the peer can remove it without a search. Deadlines of
our own requests are kept in a heap beside their table, because nearly all requests are answered
long before their deadline.
Spec: JSON-RPC 2.0, section 5.1 "Error object"; 2025-03-26 basic "Batching".
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from msgspec import DecodeError, Raw, Struct
from msgspec.json import decode

from concertino.errors import ProtocolError, RpcError
from concertino.jsonrpc.messages import Id

__all__ = [
    "Batch",
    "IncomingRequest",
    "Kind",
    "NotificationThrottle",
    "OutgoingRequest",
    "PendingTable",
    "RequestTable",
    "TokenBucket",
    "parse_error",
]

# The method of a request and, as JSON, the name of its tool or prompt.
Kind = tuple[str, bytes]


# Requests from the other side


class IncomingRequest(Struct, eq=False):
    """A request from the other side, from its arrival to its response.

    size: bytes of its frame; they count against the limits.
    open: it may still be answered. False once it was answered or cancelled.
    table: the table that holds it while it waits or runs.
    batch: the batch that it came in.
    on_cancel: called with the reason when the other side cancels it.
    throttle: limits its progress and log notifications; None until the first one.
    last_progress: the highest progress value reported so far.
    kind: what it has in common with calls of the same tool, while it runs; for UnreadResults.
    expected_bytes: what its response will probably need, while it runs, if that is known.
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


class TokenBucket:
    """Token bucket that refills `per_s` tokens a second and holds at most `per_s` tokens.

    clock: returns seconds; must not go backwards.
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


# Requests of ours


# Only type checkers need this class, and a Protocol takes 0.05 ms to make.
if TYPE_CHECKING:

    class PendingRequest(Protocol):
        """A request of ours that waits for its response."""

        @property
        def id(self) -> int:
            """Return its id on the wire."""
            ...

        @property
        def deadline(self) -> float | None:
            """Return the time by the peer's clock at which expire() gives it up; None for never."""
            ...

        @property
        def done(self) -> Callable[[Raw | Exception], object]:
            """Return the callback for the result or the exception; it is called once."""
            ...


class OutgoingRequest(Struct, eq=False):
    """A PendingRequest that just holds its values."""

    id: int
    done: Callable[[Raw | Exception], object]
    deadline: float | None = None


class PendingTable(dict[int, "PendingRequest"]):
    """Our requests that wait for a response, by id, with the order in which they expire."""

    __slots__ = ("_deadlines", "next_id")

    def __init__(self, first_id: int) -> None:
        self.next_id = first_id
        # A heap of (deadline, id). Answered requests leave their entry behind.
        self._deadlines: list[tuple[float, int]] = []

    def add(
        self, done: Callable[[Raw | Exception], object], deadline: float | None
    ) -> OutgoingRequest:
        """Add a request under the next id."""
        outgoing = OutgoingRequest(self.next_id, done, deadline)
        self.next_id += 1
        self[outgoing.id] = outgoing
        if deadline is not None:
            heappush(self._deadlines, (deadline, outgoing.id))
        return outgoing

    @property
    def next_deadline(self) -> float | None:
        """Return the earliest deadline; None if no request has one."""
        # Rebuild the heap once most of its entries belong to answered requests.
        if len(self._deadlines) > 2 * len(self) + 64:
            self._deadlines = [
                (pending.deadline, pending.id)
                for pending in self.values()
                if pending.deadline is not None
            ]
            heapify(self._deadlines)

        while self._deadlines and self._deadlines[0][1] not in self:
            heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def pop_first_deadline(self) -> PendingRequest:
        """Return the request that next_deadline belongs to, and forget the deadline."""
        return self[heappop(self._deadlines)[1]]

    def take_all(self) -> list[PendingRequest]:
        """Remove all requests and return them."""
        pending = list(self.values())
        self.clear()
        self._deadlines.clear()
        return pending


class _ErrorBody(Struct):
    """The `error` member of a response; JSON-RPC 2.0 section 5.1 requires code and message."""

    code: int
    message: str
    data: Any = None


def parse_error(error: Raw) -> RpcError | ProtocolError:
    """Return the `error` member of a response as an exception.

    An RpcError with its code, message and data; a ProtocolError if it is malformed.
    """
    try:
        body = decode(error, type=_ErrorBody)
    except (DecodeError, RecursionError) as exc:
        text = f"expected an error object with a code and a message: {exc}"
        return ProtocolError(text)
    return RpcError(body.code, body.message, body.data)
