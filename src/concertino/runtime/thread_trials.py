"""ThreadTrials: how many calls of a tool run in threads while little is known about its results.

Threads that run calls of one tool may all return a large result at the same time, and the size of a
result is known only when it has been made. So at first, FIRST_CALLS calls of a tool run at the same
time. When more of its calls arrive, the tool is "on trial": the more small results it has returned,
the more of its calls may run at the same time. The number of calls is the number of its small
results minus the number of the pool's threads, but at least FIRST_CALLS: the results of the first
calls alone say little. The trial ends when this number reaches the number of threads, or with the
first large result. From then on UnreadResults limits the calls of the tool by the size of its
results.

Calls may wait for one another, so the number also grows while all running calls of the tool wait
for another thread, and when no result has come for SLOW_S seconds.
docs/decisions/0110 has measurements.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from concertino.jsonrpc.incoming_requests import Kind

__all__ = ["FIRST_CALLS", "ThreadTrials"]

# Eight results of the largest size fit into the limits of one client.
FIRST_CALLS = 8
# The number of calls doubles at most once in this time, in seconds, while calls wait.
WAIT_S = 0.25
# This time is used in place of WAIT_S if the calls are not seen to wait for another thread. They
# may wait in a way that cannot be seen, such as for a lock file.
SLOW_S = 30.0
# At most this many kinds of calls are remembered.
MAX_KINDS = 4096


class _Trial:
    """The trial of one kind of call.

    running: how many calls have begun, or wait for a free thread.
    allowed: the largest number that `running` may have.
    results: how many results have come; the first large one ends the trial.
    changed_at: when the last result came, or `allowed` was doubled.
    """

    __slots__ = ("allowed", "changed_at", "results", "running")

    def __init__(self, running: int, now: float) -> None:
        self.running = running
        self.allowed = FIRST_CALLS
        self.results = 0
        self.changed_at = now


class ThreadTrials:
    """Limits how many calls of a tool run in threads while the size of its results is unknown.

    During this time the tool is "on trial". Each event loop has one object, for the calls that wait
    for their results on this loop. The kind of a call is its method and the name of its tool.
    threads: how many threads the pool has.
    clock: returns the time in seconds.
    """

    def __init__(self, threads: int, clock: Callable[[], float] = monotonic) -> None:
        self._threads = threads
        self._clock = clock
        # The trials that have not ended.
        self._trials: dict[Kind, _Trial] = {}
        # The kinds whose trial has ended.
        self._known: set[Kind] = set()

    def is_known(self, kind: Kind) -> bool:
        """Return whether the trial of a kind of call has ended, so that the kind is not limited."""
        return kind in self._known

    def is_on_trial(self, kind: Kind) -> bool:
        """Return whether a kind of call is on trial."""
        return kind in self._trials

    def begin(self, kind: Kind, running: int) -> None:
        """Begin the trial of a kind of call, unless it has begun, and count calls that already run.

        During the trial FIRST_CALLS calls of the kind may run at the same time, and later more.
        kind: the method of the calls and the name of the tool.
        running: how many calls of the kind run that were not counted before.
        """
        if kind in self._trials:
            self._trials[kind].running += running
            return
        if len(self._trials) >= MAX_KINDS:
            self._trials = {known: trial for known, trial in self._trials.items() if trial.running}
        self._trials[kind] = _Trial(running, self._clock())

    def try_start(self, kind: Kind) -> bool:
        """Return whether one more call of a kind that is on trial may start; count it if so.

        FIRST_CALLS calls of the kind may run at the same time, and later more.
        kind: the method of the call and the name of its tool.
        """
        trial = self._trials[kind]
        if trial.running >= trial.allowed:
            return False
        trial.running += 1
        return True

    def end(self, kind: Kind, is_large: bool | None) -> None:
        """Stop counting a call that begin() or try_start() has counted, because it has ended.

        A large result ends the trial. After many small results, more calls of the kind may run at
        the same time. Does nothing if the trial has ended already.
        kind: the kind of the call.
        is_large: whether its result was large; None if it has none, because it was cancelled.
        """
        trial = self._trials.get(kind)
        if trial is None:
            return
        trial.running -= 1
        if is_large is None:
            return
        trial.results += 1
        trial.allowed = max(trial.allowed, trial.results - self._threads)
        trial.changed_at = self._clock()
        if is_large or trial.results >= 2 * self._threads:
            del self._trials[kind]
            if len(self._known) >= MAX_KINDS:
                self._known.clear()
            self._known.add(kind)

    def grow(self, is_waiting: Callable[[Kind], bool]) -> None:
        """Double the number of allowed calls of each kind whose running calls may be stuck.

        Calls may be stuck because they wait for other calls of the same kind, which may not start
        yet. This is assumed if as many calls run as are allowed, and all of them wait for another
        thread, or none of them has returned anything for SLOW_S seconds.

        is_waiting: returns whether all running calls of a kind wait for another thread.
        """
        now = self._clock()
        for kind, trial in self._trials.items():
            unchanged_s = now - trial.changed_at
            is_full = trial.running >= trial.allowed
            if is_full and (unchanged_s >= SLOW_S or (unchanged_s >= WAIT_S and is_waiting(kind))):
                trial.allowed *= 2
                trial.changed_at = now
