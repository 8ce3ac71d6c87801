"""What the responses that a client has not read may occupy, for one connection and for a process.

A response is sent when it arises, so a client that does not read makes its server hold it. Two
rules bound the memory. A call starts only while the bytes held, and those that the running calls
will probably return, fit into the budget. A large response that exceeds the budget all the same
waits for room, and is dropped if nothing is read for a while.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from concertino.jsonrpc.limits import Limits
from concertino.jsonrpc.requests import IncomingRequest, Kind

__all__ = ["LARGE_BYTES", "ProcessBudget", "UnreadResults"]

# Smaller responses are always sent: at most max_in_flight of them can arise at a time.
LARGE_BYTES = 16 * 1024
# How many calls of a tool start at first if none has returned yet. Eight of the largest results
# have room: six among those that are held, and two among those that wait. While none returns, four
# times as many start after each GROWTH_S, until as many run as max_in_flight permits.
FIRST_CALLS = 8
GROWTH = 4
GROWTH_S = 0.5
LEAST_UNKNOWN_BYTES = 32 * 1024
# Responses that wait for room, in bytes, over all connections.
MAX_WAITING_BYTES = 24 * 2**20
# What the limit of the process may be exceeded by, for clients that hold nothing: others that do
# not read must not keep them from their results.
RESERVE_BYTES = 24 * 2**20
# Tools whose results are remembered, and bytes of a name.
MAX_KINDS = 4096
MAX_NAME_BYTES = 256


class ProcessBudget:
    """What the unread responses of all connections of a process occupy, and what is expected.

    limit: bytes that they may occupy. held: bytes that they do occupy.
    expected: bytes that running calls of known tools will probably return.
    waiting: bytes of the responses that wait for room.
    sizes: the largest recent response of each kind of call.
    unknown: how many calls run, by kind, of those that have never returned.
    """

    __slots__ = ("_first", "_guesses", "expected", "held", "limit", "sizes", "unknown", "waiting")

    def __init__(self, limits: Limits) -> None:
        self.limit = limits.max_unread_bytes_total
        self.held = 0
        self.expected = 0
        self.waiting = 0
        self.sizes: dict[Kind, int] = {}
        self.unknown: Counter[Kind] = Counter()
        # What calls of unknown kinds are expected to return: at first, and since when how much.
        self._first = limits.max_unread_bytes // FIRST_CALLS
        self._guesses: dict[Kind, tuple[int, float]] = {}

    def guess(self, kind: Kind) -> int:
        """Return what a call is expected to return of which none has returned."""
        return self._guesses[kind][0] if kind in self._guesses else self._first

    def lower_guess(self, kind: Kind, now: float) -> None:
        """Expect less of a kind of call, if that was not done a moment ago."""
        guess, lowered_at = self._guesses.get(kind, (self._first, 0.0))
        if now - lowered_at >= GROWTH_S:
            self._guesses[kind] = max(guess // GROWTH, min(guess, LEAST_UNKNOWN_BYTES)), now

    def record_size(self, kind: Kind, size: int) -> None:
        """Remember the size of a response. Larger ones than it are forgotten little by little."""
        known = self.sizes.get(kind, 0)
        if known == 0 and len(self.sizes) >= MAX_KINDS:
            self.sizes.clear()
            self._guesses.clear()
        self.sizes[kind] = max(size, known - known // 8)


class UnreadResults:
    """What the unread responses of one connection occupy, and the responses that wait for room.

    held: bytes that the transport buffers, as far as they are known.
    blocked_kind: the kind of the first call that waits for its start, if it waits for room.
    on_blocked: called when a call or a response has to wait for room. A moment later, call
    on_slow_calls() and, if nothing is read meanwhile, Peer.drop_waiting_responses(). Without it,
    nothing is expected of tools that have never returned.
    waiting: responses that wait for room, with their requests, in the order of their arrival.
    dropped: how many responses were dropped since the log last said so.
    """

    __slots__ = (
        "_budget",
        "_expected",
        "_limit",
        "_unknown",
        "blocked_kind",
        "dropped",
        "held",
        "on_blocked",
        "waiting",
    )

    def __init__(self, limits: Limits, budget: ProcessBudget | None) -> None:
        self._limit = limits.max_unread_bytes
        self._budget = ProcessBudget(limits) if budget is None else budget
        self._expected = 0
        # Running calls of each kind that has never returned.
        self._unknown: Counter[Kind] = Counter()
        self.blocked_kind: Kind | None = None
        self.held = 0
        self.on_blocked: Callable[[], object] | None = None
        self.dropped = 0
        self.waiting: dict[IncomingRequest, bytes] = {}

    # Calls

    def has_room_for(self, incoming: IncomingRequest) -> bool:
        """Return whether the result of one more call will probably fit into the budget."""
        kind = _kind(incoming)
        budget = self._budget
        expected = expected_of_all = budget.sizes.get(kind, -1)
        if expected < 0 or kind in budget.unknown:
            # Tools that have never returned do not hold each other up. Calls that started when
            # nothing was known of their tool will return as much as those that have returned.
            each = expected if expected >= 0 else budget.guess(kind)
            expected = each * (self._unknown[kind] + 1)
            expected_of_all = each * (budget.unknown[kind] + 1)
        if self.on_blocked is None or (
            self.held + self._expected + expected <= self._limit
            and budget.held + budget.expected + expected_of_all <= budget.limit
        ):
            return True
        if self.blocked_kind is None:
            self.blocked_kind = kind
        self.on_blocked()
        return False

    def may_overtake(self, incoming: IncomingRequest) -> bool:
        """Return whether a call may start before those that wait, since they wait for room."""
        blocked = self.blocked_kind
        return blocked is not None and _kind(incoming) != blocked

    def on_start(self, incoming: IncomingRequest) -> None:
        """Count what a call will probably return."""
        kind = incoming.kind = _kind(incoming)
        size = self._budget.sizes.get(kind)
        if size is None:
            self._unknown[kind] += 1
            self._budget.unknown[kind] += 1
        else:
            self._expect(incoming, size)

    def on_end(self, incoming: IncomingRequest) -> None:
        """Count no more what a call was expected to return, if it was counted."""
        kind, incoming.kind = incoming.kind, None
        if kind is None:
            return
        if incoming.expected_bytes:
            self._expect(incoming, 0)
        else:
            for unknown in (self._unknown, self._budget.unknown):
                unknown[kind] -= 1
                if not unknown[kind]:
                    del unknown[kind]

    def on_response(self, incoming: IncomingRequest, size: int) -> None:
        """Remember the size of a call's response."""
        self._budget.record_size(incoming.kind or _kind(incoming), size)

    def on_slow_calls(self, now: float) -> None:
        """Expect less of the tools that have never returned, since their calls take their time."""
        for kind in self._unknown:
            self._budget.lower_guess(kind, now)

    def _expect(self, incoming: IncomingRequest, size: int) -> None:
        change = size - incoming.expected_bytes
        incoming.expected_bytes = size
        self._expected += change
        self._budget.expected += change

    # Responses

    def fits(self, size: int) -> bool:
        """Return whether a response may be sent now.

        One alone may pass, whatever its size, unless the reserve of the process is used up as well.
        """
        budget = self._budget
        if not self.held:
            return budget.held < budget.limit + RESERVE_BYTES
        return self.held + size <= self._limit and budget.held + size <= budget.limit

    def update(self, held: int) -> None:
        """Note how many bytes the transport buffers now."""
        self._budget.held += held - self.held
        self.held = held

    def try_wait(self, incoming: IncomingRequest, frame: bytes) -> bool:
        """Let a response wait for room. Returns False if too many bytes wait already."""
        budget = self._budget
        if budget.waiting + len(frame) > MAX_WAITING_BYTES and budget.waiting:
            return False
        budget.waiting += len(frame)
        self.waiting[incoming] = frame
        if self.on_blocked is not None:
            self.on_blocked()
        return True

    def pop_waiting(self, incoming: IncomingRequest) -> bytes:
        """Remove and return a response that waits."""
        frame = self.waiting.pop(incoming)
        self._budget.waiting -= len(frame)
        return frame

    def describe_unread(self) -> str:
        """Return which limit is reached, in MiB."""
        limit = self._limit
        if self.held < limit and self._budget.held > self.held:
            limit = self._budget.limit
        return f"{limit / 2**20:g} MiB are unread"

    def close(self, running: Iterable[IncomingRequest]) -> None:
        """Release everything that is counted for this connection. running: its running calls."""
        for incoming in running:
            self.on_end(incoming)
        for incoming in list(self.waiting):
            self.pop_waiting(incoming)
        self.update(0)
        self.on_blocked = None


def _kind(incoming: IncomingRequest) -> Kind:
    """Return what calls with results of similar sizes have in common: the method and the tool."""
    name = incoming.params.get("name")
    if name is None:
        return incoming.method, b""
    return incoming.method, bytes(name)[:MAX_NAME_BYTES]
