"""CompositionRules: how a composition treats its parts."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

__all__ = ["CompositionRules"]


class CompositionRules(Struct, frozen=True, kw_only=True):
    """How a composition treats its parts; the defaults are those of compose().

    strict: serve nothing if one part fails to start, and wait for all of them.
    start_s: how long a start waits for the slowest part. lists_s: how long, since the beginning of
    the start, lists wait for it: some clients ask only once.
    may_be_empty: serve although no part has started.
    list_limit_s: leave a part out of a list if it takes longer, or fails; None waits for all, and
    one that fails makes the list fail.
    maps_uris: give the resources of a second part that has the same URI another one, instead of
    refusing to start.
    retries_s: seconds until a part that failed to start is tried again, the last one repeatedly;
    empty for never.
    drain_s: how long the calls of a part that is removed may go on.
    """

    strict: bool = False
    start_s: float = 0.5
    lists_s: float = 1.0
    may_be_empty: bool = False
    list_limit_s: float | None = None
    maps_uris: bool = False
    retries_s: Sequence[float] = ()
    drain_s: float = 5.0
