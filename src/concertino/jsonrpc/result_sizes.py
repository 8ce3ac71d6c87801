"""ResultSizes: predicts the sizes of results from earlier results of calls of the same kind.

UnreadResults (jsonrpc/unread_results.py) starts a call only if its result will probably fit. Of a
kind of call of which little is known, the expected size decides how many start at the same time.
"""

from __future__ import annotations

from concertino.jsonrpc.limits import Limits
from concertino.jsonrpc.requests import Kind

__all__ = ["GROWTH_S", "ResultSizes"]

# At most this many calls of a tool start on a connection before one of them has returned, because
# nothing is known about the size of its results. Six results of the largest size fit into the
# limit. Of all connections together, as many calls start as fit if all results are the largest.
FIRST_CALLS = 6
# A slow tool may run more calls although none has returned: every GROWTH_S seconds, both numbers
# grow by the factor GROWTH.
GROWTH = 4
GROWTH_S = 0.5
# Calls that run in threads make their results at the same time, and a result counts only when it is
# complete. So the numbers grow by THREAD_GROWTH every THREAD_GROWTH_S seconds. They do grow,
# because the first calls may wait for later ones.
THREAD_GROWTH = 4
THREAD_GROWTH_S = 5.0
# The numbers stop growing when the expected size of each result has fallen to this.
LEAST_UNKNOWN_BYTES = 32 * 1024
# The sizes of results are remembered for at most this many kinds of calls.
MAX_KINDS = 4096


class ResultSizes:
    """The sizes of recent results, and the expected sizes of the next ones, of all connections.

    Attributes:
    known: for each known kind of call, the size of the largest recent response in bytes. A kind
        becomes known by a large response, or by several small ones.
    first_guess: the expected size of a result of an unknown kind, before it is lowered: for the
        limit of a connection, and for that of the process.
    """

    __slots__ = ("_guesses", "_limit", "_limit_of_all", "_unproven", "first_guess", "known")

    def __init__(self, limits: Limits) -> None:
        self.known: dict[Kind, int] = {}
        self._limit = limits.max_unread_bytes
        self._limit_of_all = limits.max_unread_bytes_total
        self.first_guess = (
            self._limit // FIRST_CALLS,
            min(limits.max_message_bytes, self._limit_of_all),
        )
        # The sizes that were lowered, and when allow_more() did so; None if it did not.
        self._guesses: dict[Kind, tuple[int, int, float | None]] = {}
        # The unknown kinds that have returned small responses -> the size of the largest.
        self._unproven: dict[Kind, int] = {}

    def guess(self, kind: Kind) -> tuple[int, int]:
        """Return the expected size of a result for an unknown kind of call.

        The first size is for the limit of a connection, the second for that of the process.
        """
        return self._guesses[kind][:2] if kind in self._guesses else self.first_guess

    def allow_more(self, kind: Kind, now: float, in_threads: bool = False) -> None:
        """Let more calls start of an unknown kind, if enough time has passed.

        The time is GROWTH_S seconds, or THREAD_GROWTH_S seconds for calls that run in threads. It
        is counted from the last change; for calls in threads, first from the first call of this
        method.
        now: the current time in seconds.
        in_threads: whether calls of this kind run in threads.
        """
        size, size_of_all, since = self._guesses.get(kind, (*self.first_guess, None))
        if since is None:
            since = now if in_threads else 0.0
            self._guesses[kind] = size, size_of_all, since
        is_due = now - since >= (THREAD_GROWTH_S if in_threads else GROWTH_S)
        if not is_due or size <= LEAST_UNKNOWN_BYTES:
            return
        if in_threads:
            size = self._limit // (self._limit // size + THREAD_GROWTH)
            size_of_all = self._limit_of_all // (self._limit_of_all // size_of_all + THREAD_GROWTH)
        else:
            size, size_of_all = size // GROWTH, size_of_all // GROWTH
        self._guesses[kind] = size, size_of_all, now

    def record(self, kind: Kind, size: int) -> None:
        """Remember the size of a response for its kind of call.

        A larger size is remembered at once. A smaller one lowers the remembered size by an eighth.
        The first responses of a kind, if they are small, prove little about the next ones: the kind
        stays unknown, and each of them but the first halves what is expected.
        """
        known = self.known.get(kind)
        if known is not None:
            self.known[kind] = max(size, known - known // 8)
            return

        guess, guess_of_all, since = self._guesses.get(kind, (*self.first_guess, None))
        largest = self._unproven.get(kind, 0)
        if largest:
            guess, guess_of_all = guess // 2, guess_of_all // 2
        elif len(self.known) + len(self._unproven) >= MAX_KINDS:
            self.known.clear()
            self._guesses.clear()
            self._unproven.clear()
        largest = max(size, largest)
        if largest < guess and guess > LEAST_UNKNOWN_BYTES:
            self._unproven[kind] = largest
            self._guesses[kind] = guess, guess_of_all, since
        else:
            self._unproven.pop(kind, None)
            self._guesses.pop(kind, None)
            self.known[kind] = largest
