"""OperationTable: the OperationPolicies of one guard, one for each operation that was called.

An operation is a tool, prompt or resource. For each call, Guard looks up in this table the function
that begins calls of the operation. When the table is full, it removes policies whose counters of
rates are all empty, because their operations were not called for a while.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from concertino.backend.call_hooks import BeginCall
from concertino.backend.interface import Backend
from concertino.backend.methods import KINDS
from concertino.guards.operation_names import Patterns
from concertino.guards.operation_policy import GuardLimits, OperationPolicy
from concertino.guards.rates import Rate, Window

__all__ = ["OperationTable"]

# At most this many operations of a kind have their own policy in the table, with their own windows
# (counters of rates). All other operations share one window for each rate.
MAX_POLICIES = 1024
# Operations with longer names have no policy in the table.
MAX_NAME = 1024
# The least number of seconds between two searches for idle policies in a full table. A search in
# each call would be slow.
SWEEP_INTERVAL_S = 1.0


class OperationTable:
    """The OperationPolicies of a guard, one for each tool, prompt or resource ("operation").

    A policy has the settings of one operation, and begins the calls of the operation. add() makes
    the policy at the first call.
    inner: the backend that handles the calls.
    limits: the settings of the guard.
    rates: the rates of the guard.
    match: patterns of the operations to which the limits apply. For other operations, the guard
        only removes secrets and applies rates.
    Raises ValueError for an invalid pattern.
    """

    def __init__(
        self,
        inner: Backend,
        limits: GuardLimits,
        rates: Sequence[Rate],
        match: str | Iterable[str],
    ) -> None:
        self._inner = inner
        self._limits = limits
        self._rates = [(rate, Patterns(rate.match)) for rate in rates]
        # The operations to which the limits apply.
        self._limit_patterns = Patterns(match)
        # Rate -> its window for all operations together if the rate has `shared`, otherwise for
        # those without a policy in the table.
        self._shared_windows = {rate: Window(rate) for rate in rates}
        self._policies: Mapping[str, dict[str, OperationPolicy]] = {method: {} for method in KINDS}
        # Method -> name -> the function of the policy that begins calls.
        self._begin: Mapping[str, dict[str, BeginCall]] = {method: {} for method in KINDS}
        self._swept_at = limits.clock()

    def begin_by_name(self, method: str) -> Mapping[str, BeginCall]:
        """Return a mapping: name of an operation -> the function that begins its calls.

        The mapping changes later: add() adds entries, and may remove others.
        method: the method of the calls, such as "tools/call".
        """
        return self._begin[method]

    def add(self, method: str, name: str) -> BeginCall:
        """Make the OperationPolicy of an operation, and return the function that begins its calls.

        If the table is full, or the name is very long, the policy is not stored, and add() must be
        called again for the next call. All operations without a stored policy share one counter for
        each rate.
        method: the method of the calls, such as "tools/call".
        name: the name or URI of the operation.
        """
        policies = self._policies[method]
        is_stored = len(name) <= MAX_NAME and (len(policies) < MAX_POLICIES or self._sweep(method))
        kind = KINDS[method]
        windows = tuple(
            Window(rate) if is_stored and not rate.shared else self._shared_windows[rate]
            for rate, patterns in self._rates
            if patterns.match(kind, name)
        )
        limits = self._limits
        if not self._limit_patterns.match(kind, name):
            limits = limits.redaction_only()
        policy = OperationPolicy(self._inner, method, name, windows, limits)
        if is_stored:
            policies[name] = policy
            self._begin[method][name] = policy.begin_method()
        return policy.begin_method()

    def _sweep(self, method: str) -> bool:
        """Remove idle policies from a full table. Returns whether one more may be added."""
        policies = self._policies[method]
        now = self._limits.clock()
        if now - self._swept_at >= SWEEP_INTERVAL_S:
            self._swept_at = now
            # A policy without rates is always idle: it is made again at the next call.
            idle = [
                name
                for name, policy in policies.items()
                if all(window.is_idle(now) for window in policy.windows)
            ]
            for name in idle:
                del policies[name], self._begin[method][name]
        return len(policies) < MAX_POLICIES
