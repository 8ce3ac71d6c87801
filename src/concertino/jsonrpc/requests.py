"""The state of requests in both directions: IncomingRequest, OutgoingRequest, and their tables.

Peer (jsonrpc/peer.py) owns and changes these objects. "Incoming" requests come from the other side,
"outgoing" ones are ours. An incoming request refers to its table and its batch, so that the peer
can remove it without a search. NotificationThrottle and its TokenBuckets limit the rate of the
notifications about one request.
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
    "ResultCounter",
    "TokenBucket",
    "parse_error",
]

# The method of a request, and the name of its tool or prompt as JSON. Results of requests of the
# same kind usually have similar sizes; UnreadResults relies on that.
Kind = tuple[str, bytes]


# Requests from the other side


class IncomingRequest(Struct, eq=False):
    """A request from the other side, from its arrival to its response.

    id, method, params: from the message; the values of params are undecoded.
    size: the length of its frame in bytes, which counts against the limits.
    open: whether it may still be answered; False after it was answered or cancelled.
    table: the table that contains it, while it waits or runs.
    batch: the batch in which it came, or None.
    on_cancel: called with a reason when the other side cancels the request; None if its handler has
        nothing to cancel.
    throttle: limits the rate of its progress and log notifications; None before the first one.
    last_progress: the highest progress value so far.
    kind: the method and the name of the tool or prompt, while UnreadResults counts the request;
        otherwise None.
    expected_bytes: the probable size of its response, while it runs; 0 if that is not known.
    unread: counts the request and its response; None before it runs.
    has_begun: whether the code of its `def` handler is known to have begun in a thread. Such a call
        must not be kept back any more (UnreadResults.keep_back).
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
    """The methods of UnreadResults that may be called through IncomingRequest.unread.

    They are described in jsonrpc/unread_results.py. The class itself cannot be named here, because
    its module imports this one.
    """

    def known_size(self, kind: Kind) -> int: ...
    def expect(self, incoming: IncomingRequest, size: int) -> None: ...
    def count_as_unknown(self, incoming: IncomingRequest) -> None: ...
    def keep_back(self, incoming: IncomingRequest) -> None: ...
    def may_begin(self, incoming: IncomingRequest) -> bool: ...


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
        """Remove all requests, without changing their `table` attribute."""
        super().clear()
        self.size = 0


class Batch:
    """Collects the responses to the requests of one batch, which are sent as one array.

    answers: the responses so far.
    size: the total size in bytes of these responses, without the errors for invalid elements.
    ids: the ids of the requests, to find duplicates.
    missing: how many requests have no response yet. At 0 the array is sent.
    """

    __slots__ = ("answers", "ids", "missing", "size")

    def __init__(self) -> None:
        self.answers: list[bytes] = []
        self.size = 0
        self.ids: set[Id] = set()
        self.missing = 0


class NotificationThrottle:
    """Limits the rate of the notifications about one request.

    progress: the token bucket for progress notifications.
    log: the token bucket for log messages.
    suppressed: "progress" or "log" -> the newest frame of this kind that was held back. It is sent
        when output drains, or before the response.
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


# Our requests


# Only type checkers need this class. Making a Protocol at run time takes 0.05 ms.
if TYPE_CHECKING:

    class PendingRequest(Protocol):
        """A request of ours that waits for its response.

        Peer.request() makes an OutgoingRequest; client/pending_request.py has its own class.
        """

        @property
        def id(self) -> int:
            """Return the id of the JSON-RPC request."""
            ...

        @property
        def deadline(self) -> float | None:
            """Return the time at which the request is abandoned, by the peer's clock.

            None means that it is never abandoned.
            """
            ...

        @property
        def done(self) -> Callable[[Raw | Exception], object]:
            """Return the function that is called once, with the result or an exception."""
            ...


class OutgoingRequest(Struct, eq=False):
    """A PendingRequest made by Peer.request()."""

    id: int
    done: Callable[[Raw | Exception], object]
    deadline: float | None = None


class PendingTable(dict[int, "PendingRequest"]):
    """Our requests that wait for a response, by id, and the order of their deadlines.

    The deadlines are in a heap. To save a search for each response, the entry of an answered
    request stays in the heap until it is at the top, or until most entries are of answered
    requests.
    first_id: the id of the first request; the following ids count up from it.
    """

    __slots__ = ("_deadlines", "next_id")

    def __init__(self, first_id: int) -> None:
        self.next_id = first_id
        # A heap of (deadline, id).
        self._deadlines: list[tuple[float, int]] = []

    def add(
        self, done: Callable[[Raw | Exception], object], deadline: float | None
    ) -> OutgoingRequest:
        """Add a request with the next unused id, and return it."""
        outgoing = OutgoingRequest(self.next_id, done, deadline)
        self.next_id += 1
        self[outgoing.id] = outgoing
        if deadline is not None:
            heappush(self._deadlines, (deadline, outgoing.id))
        return outgoing

    @property
    def next_deadline(self) -> float | None:
        """Return the earliest deadline; None if no request has one."""
        # Rebuild the heap when most of its entries belong to answered requests.
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
        """Return the request with the earliest deadline, and remove the deadline from the heap.

        Read next_deadline before: it removes the entries of answered requests from the top.
        """
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
    """Convert the `error` member of a response to an exception, and return it.

    It is an RpcError, or a ProtocolError if the member is malformed.
    """
    try:
        body = decode(error, type=_ErrorBody)
    except (DecodeError, RecursionError) as exc:
        text = f"expected an error object with a code and a message: {exc}"
        return ProtocolError(text)
    return RpcError(body.code, body.message, body.data)
