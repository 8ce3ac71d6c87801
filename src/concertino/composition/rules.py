"""CompositionRules: settings for the start, the lists and the removal of parts."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

__all__ = ["CompositionRules"]


class CompositionRules(Struct, frozen=True, kw_only=True):
    """Settings of a composition. compose() uses the defaults.

    strict: serve nothing before all parts have started, and fail if one of them fails.
    start_s: the time that the start waits for slow parts, in seconds.
    lists_s: the time that lists wait for slow parts, in seconds from the beginning of the start.
        Some clients ask only once for a list.
    may_be_empty: start even if no part has started.
    list_limit_s: the time after which a list leaves a part out; it also leaves out a part that
        fails. None waits without a limit, and the list fails if one part fails.
    maps_uris: if two parts list the same URI, show clients the URI of the second part with a
        prefix. If False, the start fails in this case.
    retries_s: the delays before a part that failed is started again, in seconds; the last one is
        repeated. Empty: it is never started again.
    drain_s: the time that the calls of a removed part get to end, in seconds.
    """

    strict: bool = False
    start_s: float = 0.5
    lists_s: float = 1.0
    may_be_empty: bool = False
    list_limit_s: float | None = None
    maps_uris: bool = False
    retries_s: Sequence[float] = ()
    drain_s: float = 5.0
