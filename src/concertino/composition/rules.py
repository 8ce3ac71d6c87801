"""CompositionRules: settings for the start, the lists and the removal of a composition's parts.

A composition serves several backends, its parts, as one.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

__all__ = ["CompositionRules"]


class CompositionRules(Struct, frozen=True, kw_only=True):
    """Settings of a composition. compose() uses the defaults, except for `strict`.

    strict: whether to serve nothing before all parts have started, and to fail if one part fails.
    start_s: how many seconds the start of the composition waits for slow parts.
    lists_s: during how many seconds after the start has begun a list still waits for slow parts.
        Some clients ask only once for a list, so a list should be complete.
    may_be_empty: whether the composition starts even if none of its parts has started.
    list_limit_s: how many seconds a list waits for the items of a part. The list then lacks this
        part, and also a part that fails. If it is None, the list waits without a limit, and fails
        if one part fails.
    maps_uris: whether clients see a URI that two parts list with a prefix for the second part. If
        False, the start fails in this case.
    retries_s: the delays in seconds before a part that has failed is started again; the last delay
        is repeated. Empty to start no part again.
    drain_s: how many seconds the calls of a removed part get to end.
    """

    strict: bool = False
    start_s: float = 0.5
    lists_s: float = 1.0
    may_be_empty: bool = False
    list_limit_s: float | None = None
    maps_uris: bool = False
    retries_s: Sequence[float] = ()
    drain_s: float = 5.0
