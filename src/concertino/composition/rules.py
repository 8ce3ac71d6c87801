"""CompositionRules: settings for the start, the lists and the removal of a composition's parts.

A composition serves several backends, its parts, as one.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

__all__ = ["CompositionRules"]


class CompositionRules(Struct, frozen=True, kw_only=True):
    """Settings of a composition, which serves several backends (its parts) as one.

    compose() uses the defaults, except for `strict`.

    strict: whether to serve nothing before all parts have started, and to fail if one part fails.
    start_s: how long the start of the composition waits for slow parts, in seconds.
    lists_s: until how many seconds after the call of start() a list waits for parts that are still
        starting. Some clients ask only once for a list, so a list should be complete.
    may_be_empty: whether the composition starts even if none of its parts has started.
    list_limit_s: how long a list waits for the answers of parts that have started, in seconds.
        - A number: a part that takes longer or fails is left out of the list.
        - None: the list waits without a limit, and fails if a part fails.
    maps_uris: what happens if two parts list the same URI.
        - True: clients see the URI of the second part with a prefix.
        - False: the start of the composition fails. After the start, for example because a part
          has got the resource later, clients do not see the resource of the second part.
    retries_s: the delays before a part that has failed is started again, in seconds; the last delay
        is repeated. () to start no part again.
    drain_s: how long the running calls of a removed part get to end, in seconds.
    """

    strict: bool = False
    start_s: float = 0.5
    lists_s: float = 1.0
    may_be_empty: bool = False
    list_limit_s: float | None = None
    maps_uris: bool = False
    retries_s: Sequence[float] = ()
    drain_s: float = 5.0
