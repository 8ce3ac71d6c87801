"""Guards that do one thing each, and can be put around one another."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from concertino.backend.interface import Backend
from concertino.guards.guard import Guard
from concertino.guards.operation_names import EVERYTHING
from concertino.guards.rates import Rate
from concertino.guards.sizes import STORE_BYTES, STORE_S, OversizeStore

__all__ = ["Filter", "InFlightLimit", "RateLimit", "Redact", "SizeLimit", "TimeLimit"]


class RateLimit(Guard):
    """At most `calls` calls of each tool within any `within_s` seconds.

    The next call is refused with RATE_LIMIT_EXCEEDED. match: the operations that it applies to.
    shared: count all of them together. Several rates at once: see Guard.
    """

    def __init__(
        self,
        inner: Backend,
        calls: int = 10,
        within_s: float = 60.0,
        *,
        match: str | tuple[str, ...] = "*",
        shared: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(inner, rate_limit=Rate(calls, within_s, match, shared), clock=clock)


class InFlightLimit(Guard):
    """At most `calls` concurrent calls; the next one is refused with TOO_MANY_IN_FLIGHT."""

    def __init__(
        self, inner: Backend, calls: int, *, match: str | Iterable[str] = EVERYTHING
    ) -> None:
        super().__init__(inner, max_in_flight=calls, match=match)


class TimeLimit(Guard):
    """Answers a call after timeout_s seconds with TIMED_OUT, and cancels its work."""

    def __init__(
        self, inner: Backend, timeout_s: float, *, match: str | Iterable[str] = EVERYTHING
    ) -> None:
        super().__init__(inner, timeout_s=timeout_s, match=match)


class SizeLimit(Guard):
    """Cuts a tool's result of more than max_bytes bytes and links the whole, served as a resource.

    store_bytes: of all results that are kept; the oldest go first. store_s: how many seconds one is
    kept. Prompts and resources that are too large are refused with RESULT_TOO_LARGE.
    """

    def __init__(
        self,
        inner: Backend,
        max_bytes: int,
        *,
        match: str | Iterable[str] = EVERYTHING,
        store_bytes: int = STORE_BYTES,
        store_s: float = STORE_S,
    ) -> None:
        super().__init__(
            inner,
            max_result_bytes=max_bytes,
            match=match,
            kept=OversizeStore(store_bytes, ttl_s=store_s),
        )


class Filter(Guard):
    """Hides operations: `Filter(server, allow="read_*")`, `Filter(server, deny=("drop_*", "prompt:*"))`.

    Hidden operations are neither listed nor known. Of a kind (tools, `prompt:`, `resource:`) that no
    `allow` names, everything is allowed; `deny` wins.
    """

    def __init__(
        self, inner: Backend, allow: str | Iterable[str] = (), deny: str | Iterable[str] = ()
    ) -> None:
        super().__init__(inner, allow=allow, deny=deny)


class Redact(Guard):
    """Takes secrets out of results, errors, progress and log messages; see concertino.logs.redact."""

    def __init__(self, inner: Backend) -> None:
        super().__init__(inner, redact=True)
