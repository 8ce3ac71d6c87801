"""The guards one by one: each is a Guard that does one thing, and they can stand around one another."""

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
    """At most `calls` accepted calls of each tool within any `within_s` seconds; the next is refused with RATE_LIMIT_EXCEEDED.

    match: the operations that it is about. shared: one count for all of them together. Several rates at once: guarded().
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
    """At most `calls` calls at once; the next is refused with TOO_MANY_IN_FLIGHT."""

    def __init__(
        self, inner: Backend, calls: int, *, match: str | Iterable[str] = EVERYTHING
    ) -> None:
        super().__init__(inner, max_in_flight=calls, match=match)


class TimeLimit(Guard):
    """A call that takes longer than timeout_s seconds is answered with TIMED_OUT then, and its work is cancelled."""

    def __init__(
        self, inner: Backend, timeout_s: float, *, match: str | Iterable[str] = EVERYTHING
    ) -> None:
        super().__init__(inner, timeout_s=timeout_s, match=match)


class SizeLimit(Guard):
    """A tool's result of more than max_bytes bytes is cut, and links to the whole, which is served as a resource.

    store_bytes: of all results that are kept, the oldest go first; store_s: for how many seconds at most. What is no tool has
    RESULT_TOO_LARGE as its answer.
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
    """What is not allowed is neither listed nor known: `Only(server, allow="read_*")`, `Only(server, deny=("drop_*", "prompt:*"))`.

    allow: a kind (tools, `prompt:`, `resource:`) that none of them is about is allowed. deny: wins.
    """

    def __init__(
        self, inner: Backend, allow: str | Iterable[str] = (), deny: str | Iterable[str] = ()
    ) -> None:
        super().__init__(inner, allow=allow, deny=deny)


class Redact(Guard):
    """Takes secrets out of results, error answers, progress and log messages: see concertino.logs.redact for what is one."""

    def __init__(self, inner: Backend) -> None:
        super().__init__(inner, redact=True)
