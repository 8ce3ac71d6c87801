"""UnreadResults: limits the memory for responses that a client has not read.

A client may send requests and not read the responses. The transport then has to buffer them. Two
rules limit the memory, for each connection and for the whole process:

1. A call starts only if its result will probably fit: the bytes that are buffered ("held"), and the
   bytes that the running calls will probably return ("expected"), must stay below the limit. The
   size of a result is estimated from earlier results of calls of the same kind. The "kind" of a
   call is its method together with the name of its tool or prompt.
2. If a large response does not fit after all, it waits until the client has read enough. It is
   dropped if the client reads nothing for Limits.drain_s seconds.

A kind is "unknown" until the first call of it has returned. For such a kind a size is guessed, and
the guess falls while its calls run and return nothing, so that more of them may start.

Peer (jsonrpc/peer.py) has one UnreadResults; all peers of a process share a ProcessBudget.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable

from concertino.errors import RpcError
from concertino.jsonrpc.incoming_requests import IncomingRequest, Kind
from concertino.jsonrpc.limits import Limits

__all__ = ["LARGE_BYTES", "ProcessBudget", "ResultDropped", "UnreadResults", "kind_of"]

# Smaller responses never wait. They need no limit, because at most max_in_flight calls run at the
# same time.
LARGE_BYTES = 16 * 1024
# At most this many calls of a tool start before one of them has returned, because nothing is known
# about the size of its results. Eight results of the largest size, 10 MiB, fit into the default
# limits: six in the buffer (max_unread_bytes is 64 MiB) and two that wait (MAX_WAITING_BYTES).
FIRST_CALLS = 8
# A slow tool may run more calls although none has returned. Every GROWTH_S seconds, the number of
# calls that may run is multiplied by GROWTH.
GROWTH = 4
GROWTH_S = 0.5
# This replaces GROWTH_S for calls that run in threads. It is longer, because many threads may be
# building large results before the size of the first result is known. It is not endless, because
# the first calls may wait for calls that have not started yet.
THREAD_GROWTH_S = 5.0
# The number of calls stops growing when the expected size of each result has fallen to this.
LEAST_UNKNOWN_BYTES = 32 * 1024
# The largest number of bytes in responses that wait, for all connections together.
MAX_WAITING_BYTES = 20 * 2**20
# The limit of the process may be exceeded by this many bytes, the reserve, for clients that have
# read everything: they must get their results even if other clients do not read. A client that has
# never read a large result may use only half of the reserve. Otherwise clients that never read
# could take all of it, and clients that read would have to wait for them.
RESERVE_BYTES = 16 * 2**20
# The budget is under pressure while more than a sixteenth of its limit is held in buffers. Then the
# C library can be told to return smaller freed blocks to the system (runtime/freed_memory.py).
PRESSURE_PART = 16
# The sizes of results are remembered for at most this many kinds of calls.
MAX_KINDS = 4096
# At most this many bytes of the name of a tool or prompt are part of a call's kind.
MAX_NAME_BYTES = 256


class ResultDropped(RpcError):
    """There is no memory for the result of a call. The call has been carried out.

    runtime/result_turns.py raises it.
    """


class ProcessBudget:
    """Counts the bytes of responses that clients have not read, over all connections of a process.

    Make one for a process, and pass it to the Peer of each connection. The peers update it.

    limits: the limits of the process.

    Attributes:
    limit: how many bytes the unread responses may take (max_unread_bytes_total).
    held: how many bytes the unread responses take now.
    on_pressure: called with True when `held` rises above limit / 16, and with False when it is no
        longer above; None to call nothing. Set by limit_freed_memory() (runtime/freed_memory.py).
    """

    # The other attributes are for UnreadResults and Peer:
    #
    # expected: how many bytes the running calls will probably return, except the calls in `unknown`
    # waiting: the total size in bytes of the responses that wait until the limits allow them
    # postponed: the total size of the results that were larger than expected and will be sent in a
    #     later iteration of the event loop
    # sizes: kind of call -> the size of the largest recent response in bytes
    # unknown: kind of call that has never returned a response -> how many calls of it are running
    # is_strained: whether the limit is nearly reached (to RESERVE_BYTES), so that each call must be
    #     checked before it starts, even if it is the only one of its connection
    # has_pressure: the last argument of on_pressure()

    __slots__ = (
        "_first_guess",
        "_guesses",
        "_largest_bytes",
        "expected",
        "has_pressure",
        "held",
        "is_strained",
        "limit",
        "on_pressure",
        "postponed",
        "sizes",
        "unknown",
        "waiting",
    )

    def __init__(self, limits: Limits) -> None:
        self.limit = limits.max_unread_bytes_total
        self.held = 0
        self.expected = 0
        self.postponed = 0
        self.waiting = 0
        self.sizes: dict[Kind, int] = {}
        self.unknown: Counter[Kind] = Counter()
        self.is_strained = False
        self.has_pressure = False
        self.on_pressure: Callable[[bool], object] | None = None
        # The expected size of a result of a kind that has never returned, before lower_guess().
        self._first_guess = limits.max_unread_bytes // FIRST_CALLS
        # The largest possible result.
        self._largest_bytes = max(self._first_guess, limits.max_message_bytes)
        # kind -> the expected size of a result that lower_guess() has set, the time of its last
        # change, and whether calls of the kind have run in threads.
        self._guesses: dict[Kind, tuple[int, float, bool]] = {}

    def update_strain(self) -> None:
        """Update is_strained: whether the limit is nearly reached. Called when a count changes."""
        unknown_bytes = self.unknown.total() * self._largest_bytes if self.unknown else 0
        self.is_strained = self.held + self.expected + unknown_bytes > self.limit - RESERVE_BYTES

    def guess(self, kind: Kind) -> int:
        """Return how many bytes of max_unread_bytes to reserve for a result of unknown size.

        max_unread_bytes is the limit of each connection. At first the guess is the part of it that
        lets FIRST_CALLS calls start. Each lower_guess() lowers the guess.
        kind: the kind of call (its method and the name of its tool), which has never returned.
        """
        return self._guesses[kind][0] if kind in self._guesses else self._first_guess

    def guess_for_process(self, kind: Kind) -> int:
        """Return how many bytes of max_unread_bytes_total to reserve for a result of unknown size.

        max_unread_bytes_total is the limit of the process. At first the guess is the size of the
        largest possible result, so that the limit holds whatever the results are. Each
        lower_guess() lowers this guess by the same factor as that of guess().
        kind: the kind of call (its method and the name of its tool), which has never returned.
        """
        return self.guess(kind) * self._largest_bytes // self._first_guess

    def lower_guess(self, kind: Kind, now: float, in_threads: bool = False) -> None:
        """Lower the result of guess() for a kind, so that more calls of this kind may start.

        The guess is lowered at most once in GROWTH_S seconds. If calls of the kind run in threads,
        it is lowered at most once in THREAD_GROWTH_S seconds, and the first lower_guess() for the
        kind lowers nothing: these seconds begin then.
        kind: the kind of call (its method and the name of its tool), which has never returned.
        now: the current time in seconds.
        in_threads: whether calls of this kind run in threads now.
        """
        # For a new kind with threads, the waiting time begins now. Otherwise 0.0, a time long ago,
        # lets the guess be lowered at once.
        last_change = now if in_threads else 0.0
        initial = self._first_guess, last_change, False
        guess, lowered_at, had_threads = self._guesses.get(kind, initial)
        # A kind that has once run in threads counts as running in threads for ever, because a
        # thread ends a moment before the result of its call is known.
        in_threads = in_threads or had_threads
        period_s = THREAD_GROWTH_S if in_threads else GROWTH_S
        if now - lowered_at >= period_s:
            # Stop at LEAST_UNKNOWN_BYTES. A guess that is smaller already, because the limits are
            # low, stays.
            least = min(guess, LEAST_UNKNOWN_BYTES)
            guess = max(guess // GROWTH, least)
            lowered_at = now
        self._guesses[kind] = guess, lowered_at, in_threads

    def record_size(self, kind: Kind, size: int) -> None:
        """Remember the size of a response, to estimate the size of the next one of this kind.

        kind: the method of the call, with the name of its tool or prompt.
        size: the length of the response in bytes.
        """
        known = self.sizes.get(kind, 0)
        if known == 0 and len(self.sizes) >= MAX_KINDS:
            self.sizes.clear()
            self._guesses.clear()
        # A larger size replaces the estimate. A smaller size lowers the estimate by at most an
        # eighth: a single small result must not hide that other results are large, but after many
        # small results the estimate must be small again.
        self.sizes[kind] = max(size, known - known // 8)


class UnreadResults:
    """Limits the memory of unread responses of one connection, and holds the responses that wait.

    limits: the limits of the connection.
    budget: shared by all connections of the process; if None, the connection has one of its own.

    Attributes:
    budget: the memory of unread responses of the process.
    held: how many bytes of output of this connection are buffered; set by update().
    waiting: the responses that are not passed to the transport yet, by request, oldest first.
    blocked_kind: the kind (the method, with the name of the tool or prompt) of the first queued
        call, if that call waits because its result would probably not fit; otherwise None.
    on_blocked: called when a call or a response must wait; the runtime sets this function. It must
        arrange that on_slow_calls() is called a moment later, and
        Peer.settle_waiting_responses() if the client reads nothing. While on_blocked is None,
        calls never wait for unread results.
    small_bytes: 16 KiB, or max_message_bytes if that is less. Responses up to this size are sent at
        once, even if the client has not read earlier responses.
    dropped: how many responses were dropped. The code that logs the number sets it to 0.
    """

    __slots__ = (
        "_expected",
        "_limit",
        "_nearly_read_bytes",
        "_postponed",
        "_reserve_bytes",
        "_unknown",
        "blocked_kind",
        "budget",
        "dropped",
        "held",
        "on_blocked",
        "small_bytes",
        "waiting",
    )

    def __init__(self, limits: Limits, budget: ProcessBudget | None) -> None:
        self.small_bytes = min(limits.max_message_bytes, LARGE_BYTES)
        self._limit = limits.max_unread_bytes
        # If a client has fewer unread bytes than this, it counts as having read everything, because
        # the transport does not report how many are left below this mark.
        self._nearly_read_bytes = limits.low_water_bytes
        # How much of RESERVE_BYTES this connection may use: half, and all of it when the client has
        # once read a large result.
        self._reserve_bytes = RESERVE_BYTES // 2
        self.budget = ProcessBudget(limits) if budget is None else budget
        # How many bytes the running calls will probably return, except the calls in _unknown.
        self._expected = 0
        # How many bytes of ProcessBudget.postponed are results of this connection.
        self._postponed = 0
        # How many calls run whose kind has never returned a response, by kind.
        self._unknown: Counter[Kind] = Counter()
        self.blocked_kind: Kind | None = None
        self.held = 0
        self.on_blocked: Callable[[], object] | None = None
        self.dropped = 0
        self.waiting: dict[IncomingRequest, bytes] = {}

    # Calls

    def has_room_for(self, incoming: IncomingRequest, is_alone: bool) -> bool:
        """Return whether the result of one more call will probably fit into the limits.

        The limits are those of the connection and of the process. If the client has fewer than
        low_water_bytes unread and runs no other call, small results always fit, and the limit of
        the process is raised, so that clients that do not read cannot block this client.
        is_alone: whether no other call of the connection runs.
        """
        kind = kind_of(incoming)
        budget = self.budget
        # How many bytes to expect in the limit of the connection, and in that of the process
        # (_of_all, for all connections); -1 for a kind that has never returned a response.
        expected = expected_of_all = budget.sizes.get(kind, -1)
        if expected < 0 or kind in budget.unknown:
            # budget.expected does not contain the running calls of this kind, because nothing was
            # known about the size of their results when they started. So add them here. Running
            # calls of other unknown kinds are not added, so that unknown tools do not block each
            # other.
            size_of_each = size_of_all = expected
            if expected < 0:
                size_of_each, size_of_all = budget.guess(kind), budget.guess_for_process(kind)
            expected = size_of_each * (self._unknown[kind] + 1)
            expected_of_all = size_of_all * (budget.unknown[kind] + 1)
        if self.on_blocked is None or self._will_fit(expected, expected_of_all, is_alone):
            return True
        # Clients that do not read must not block a client that has read nearly everything. So its
        # only call may also start if the result will be small, or if nothing is known about the
        # results of its kind and no other call of the kind runs.
        if is_alone and self.held < self._nearly_read_bytes:
            # The size of a small result is not recorded if the handler has returned without waiting
            # (protocol/session.py). So a tool that always does this stays unknown. Its size cannot
            # become known while no call of the tool starts, so one call must pass.
            is_first = kind not in budget.sizes and kind not in budget.unknown
            if is_first or expected <= LARGE_BYTES:
                return True
        if self.blocked_kind is None:
            self.blocked_kind = kind
        self.on_blocked()
        return False

    def _will_fit(self, expected: int, expected_of_all: int, is_alone: bool) -> bool:
        """Return whether the limits will probably hold if one more call starts.

        If it is the only call of a client that has read nearly everything, only the limit of the
        process must hold, and it may be exceeded by a reserve.
        expected: how many bytes the new call will probably return. If its kind is unknown, this
            includes the running calls of this kind on this connection.
        expected_of_all: how many bytes the new call will probably return. If its kind is unknown,
            this includes the running calls of this kind on all connections.
        is_alone: whether no other call of the connection runs.
        """
        budget, reserve = self.budget, self._reserve_bytes
        total = budget.held + budget.expected + expected_of_all
        if self.held + self._expected + expected <= self._limit and total <= budget.limit:
            return True
        # The limit of the process may be exceeded by the reserve, and this call counts as `reserve`
        # bytes at most: a client that has read nearly everything must be able to get a single
        # result that is larger than the reserve. For example, with a reserve of 16 MiB and 256 MiB
        # in use of 256 MiB, one result of any size may be expected.
        is_within = total - max(0, expected - reserve) <= budget.limit + reserve
        return is_alone and self.held < self._nearly_read_bytes and is_within

    def may_overtake(self, incoming: IncomingRequest) -> bool:
        """Return whether a call may start before the queued calls.

        It may if the first queued call waits because its result would probably not fit, and if this
        call is of another kind: it has another method, or another tool or prompt.
        """
        blocked = self.blocked_kind
        return blocked is not None and kind_of(incoming) != blocked

    def on_start(self, incoming: IncomingRequest) -> None:
        """Count the probable size of a call's result. Called when the call starts."""
        kind = incoming.kind = kind_of(incoming)
        incoming.unread = self
        size = self.budget.sizes.get(kind)
        if size is None:
            self._unknown[kind] += 1
            self.budget.unknown[kind] += 1
            self.budget.update_strain()
        else:
            self._expect(incoming, size)

    def on_end(self, incoming: IncomingRequest) -> None:
        """Stop counting the result of a call. Called when the call has ended."""
        kind, incoming.kind = incoming.kind, None
        if kind is None:
            return
        if incoming.expected_bytes:
            self._expect(incoming, 0)
        else:
            self._end_unknown(kind)
            self.budget.update_strain()

    def on_response(self, incoming: IncomingRequest, size: int) -> None:
        """Remember the size of a call's response."""
        self.budget.record_size(incoming.kind or kind_of(incoming), size)

    def on_slow_calls(self, now: float, in_threads: Collection[Kind] = ()) -> None:
        """Let more calls start of those tools that have running calls, but no result so far.

        The runtime calls this some time after on_blocked. By then these tools are probably slow,
        and waiting for their first result would block their other calls.
        now: the current time in seconds.
        in_threads: the kinds of calls that run in threads.
        """
        kinds = set(self._unknown)
        # The blocked call may wait for the calls of other clients, while this client runs none.
        if self.blocked_kind is not None and self.blocked_kind not in self.budget.sizes:
            kinds.add(self.blocked_kind)
        for kind in kinds:
            self.budget.lower_guess(kind, now, kind in in_threads)

    # For the calls of `def` handlers, whose code runs in a thread, or waits for a free one.
    # runtime/threads.py calls these methods when a kind has returned its first large result, while
    # many calls of it were started before.

    def known_size(self, kind: Kind) -> int:
        """Return the size of the largest recent response to a kind of call; 0 if there was none.

        kind: the method of the call, with the name of its tool or prompt.
        """
        return self.budget.sizes.get(kind, 0)

    def expect(self, incoming: IncomingRequest, size: int) -> None:
        """Record that a call has begun, and count at least `size` bytes for its result.

        A smaller size than the one that is counted already changes nothing.
        size: the size of the result in bytes, or an estimate of it.
        """
        incoming.has_begun = True
        if size > incoming.expected_bytes and incoming.kind is not None:
            self._set_expected(incoming, incoming.kind, size)

    def count_as_unknown(self, incoming: IncomingRequest) -> None:
        """Count a call that has begun as if no call of its kind had returned a result yet.

        From now on, only calls of the same kind (the same method and tool) wait for this call.
        """
        # Calls of other kinds must not wait until this call has ended, because its handler may be
        # waiting for something that those calls do.
        incoming.has_begun = True
        kind = incoming.kind
        if incoming.expected_bytes and kind is not None:
            self._expect(incoming, 0)
            self._unknown[kind] += 1
            self.budget.unknown[kind] += 1
            self.budget.update_strain()

    def keep_back(self, incoming: IncomingRequest) -> None:
        """Delay a call that was started: nothing is counted for its result from now on.

        The caller must not run the call's code before try_begin() has returned True.
        """
        if incoming.kind is not None:
            # 1 byte, and not 0, which would mean that the size is unknown.
            self._set_expected(incoming, incoming.kind, 1)

    def try_begin(self, incoming: IncomingRequest) -> bool:
        """Count the result of a call that keep_back() has delayed, if it will probably fit.

        Returns whether the code of the call may begin. Returns True for a call that has ended.
        """
        kind = incoming.kind
        if kind is None:
            return True
        size = self.known_size(kind)
        expected = size * (self._unknown[kind] + 1)
        expected_of_all = size * (self.budget.unknown[kind] + 1)
        # Each call that is kept back counts as 1 byte, so fewer than LARGE_BYTES means that no
        # other call with a large result runs.
        is_alone = not self._unknown and self._expected < LARGE_BYTES
        if not self._will_fit(expected, expected_of_all, is_alone):
            return False
        self.expect(incoming, size)
        return True

    def _set_expected(self, incoming: IncomingRequest, kind: Kind, size: int) -> None:
        """Set the expected size of a call's result, even if its kind was unknown at its start."""
        if not incoming.expected_bytes:
            self._end_unknown(kind)
        self._expect(incoming, size)

    def _end_unknown(self, kind: Kind) -> None:
        """Remove one call from the running calls whose kind had never returned a response."""
        for unknown in (self._unknown, self.budget.unknown):
            unknown[kind] -= 1
            if not unknown[kind]:
                del unknown[kind]

    def _expect(self, incoming: IncomingRequest, size: int) -> None:
        """Set the expected size of a call's result, and update the totals by the difference."""
        change = size - incoming.expected_bytes
        incoming.expected_bytes = size
        self._expected += change
        self.budget.expected += change
        self.budget.update_strain()

    # Responses

    def fits(self, size: int) -> bool:
        """Return whether the limits of the connection and the process allow a response now.

        Asked only for a response of more than LARGE_BYTES; smaller ones are always sent. A client
        that has read everything may get a response of any size: it counts as RESERVE_BYTES at most,
        and the limit of the process may be exceeded by RESERVE_BYTES.
        size: the length of the response in bytes.
        """
        return self._has_space(size, self.held, self.budget.held)

    def _has_space(self, size: int, held: int, held_of_all: int, excess: int = 0) -> bool:
        """Return whether the limits allow a response in addition to the unread responses.

        size: the length of the new response in bytes.
        held: how many bytes the unread responses of this connection have.
        held_of_all: how many bytes the unread responses of all connections have.
        excess: by how many bytes the limits may be exceeded.
        """
        budget = self.budget
        if not held:
            # The client has read everything, so it must get its response, however large that is.
            # The response counts as RESERVE_BYTES at most, and the limit may be exceeded by as
            # much.
            reserve = RESERVE_BYTES + excess
            return held_of_all + min(size, RESERVE_BYTES) <= budget.limit + reserve
        fits_here = held + size <= self._limit + excess
        return fits_here and held_of_all + size <= budget.limit + excess

    def may_postpone(self, size: int) -> bool:
        """Return whether there is probably room for a result that is larger than expected.

        Such results are sent in a later iteration of the event loop (runtime/result_turns.py). If
        there is no room, the result would be dropped, so it need not be encoded.
        size: the probable size of the result in bytes.
        """
        budget = self.budget
        return self._has_space(
            size,
            held=self.held + self._postponed,
            held_of_all=budget.held + budget.postponed,
            # A response that exceeds the limits may still wait until the client has read more.
            excess=MAX_WAITING_BYTES - budget.waiting,
        )

    def postpone(self, incoming: IncomingRequest, size: int) -> None:
        """Count a result that is larger than expected, until it is sent in a later loop iteration.

        size: its probable size in bytes.
        """
        self.expect(incoming, size)
        self._count_postponed(size)

    def end_postponed(self, size: int) -> None:
        """Take back what postpone() has counted, because the result is sent now."""
        self._count_postponed(-size)

    def _count_postponed(self, change: int) -> None:
        """Change the number of postponed bytes, of this connection and of the whole process."""
        self._postponed += change
        self.budget.postponed += change

    def update(self, held: int) -> None:
        """Set how many bytes of output are buffered now."""
        budget = self.budget
        budget.held += held - self.held
        if held < self._nearly_read_bytes <= self.held:
            # The client has read much output, such as a large result.
            self._reserve_bytes = RESERVE_BYTES
        self.held = held
        budget.update_strain()
        has_pressure = budget.held > budget.limit // PRESSURE_PART
        if has_pressure is not budget.has_pressure:
            budget.has_pressure = has_pressure
            if budget.on_pressure is not None:
                budget.on_pressure(has_pressure)

    def try_wait(self, incoming: IncomingRequest, frame: bytes) -> bool:
        """Keep a response until the limits allow it to be sent, and return True.

        Returns False, and keeps nothing, if other responses of too many bytes already wait.
        """
        budget = self.budget
        # A single response may wait even if it is larger than MAX_WAITING_BYTES.
        if budget.waiting + len(frame) > MAX_WAITING_BYTES and budget.waiting:
            return False
        budget.waiting += len(frame)
        self.waiting[incoming] = frame
        if self.on_blocked is not None:
            self.on_blocked()
        return True

    def pop_waiting(self, incoming: IncomingRequest) -> bytes:
        """Remove the waiting response to a request, and return it."""
        frame = self.waiting.pop(incoming)
        self.budget.waiting -= len(frame)
        return frame

    def drop(self, size: int) -> str:
        """Count a response that is dropped. Return the text of the error that is sent instead.

        size: the size of the response in bytes.
        """
        self.dropped += 1
        if self.on_blocked is not None:
            self.on_blocked()
        unread = self.describe_unread()
        return f"result of {size} bytes dropped: {unread}; the call itself was carried out"

    def describe_unread(self) -> str:
        """Return a phrase for the limit that is reached, such as `64 MiB are unread`."""
        limit = self._limit
        if self.held < limit and self.budget.held > self.held:
            limit = self.budget.limit
        return f"{limit / 2**20:g} MiB are unread"

    def close(self, running: Iterable[IncomingRequest]) -> None:
        """Give back to the ProcessBudget what this connection has taken from it.

        That is the size of its unread output and of its waiting responses, and the expected size of
        the results of calls in progress.
        running: the calls in progress.
        """
        for incoming in running:
            self.on_end(incoming)
        for incoming in list(self.waiting):
            self.pop_waiting(incoming)
        self.update(0)
        self.on_blocked = None


def kind_of(incoming: IncomingRequest) -> Kind:
    """Return the kind of a call: its method, and the name of its tool or prompt as JSON."""
    name = incoming.params.get("name")
    if name is None:
        return incoming.method, b""
    return incoming.method, bytes(name)[:MAX_NAME_BYTES]
