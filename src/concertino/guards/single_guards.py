"""Guards for one purpose each, such as RateLimit. They can be combined by wrapping one in another.

Each is a Guard (guard.py) with some of its options. A Guard with several options does the same as
several of these classes, and is faster.
"""

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
    """A Guard that accepts at most `calls` calls of each tool within any `within_s` seconds.

        run(RateLimit(server, 10, 60))

    Further calls are refused with the error RATE_LIMIT_EXCEEDED. For several rates, use Guard.
    inner: the Backend that handles the calls, such as a Server.
    match: patterns of the operations to which the limit applies: `search_*` selects tools,
        `prompt:draft_*` prompts, `resource:notes://*` resources; by default all tools.
    shared: whether all these operations are counted together; by default each is counted alone.
    clock: a function that returns the time in seconds, for tests.
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
    """A Guard that limits how many calls run at the same time.

        run(InFlightLimit(server, 8))

    Further calls are refused with the error TOO_MANY_IN_FLIGHT.
    inner: the Backend that handles the calls, such as a Server.
    calls: how many calls may run at the same time; all operations are counted together.
    match: patterns of the operations to which the limit applies: `search_*` selects tools,
        `prompt:draft_*` prompts, `resource:notes://*` resources; by default all.
    """

    def __init__(
        self,
        inner: Backend,
        calls: int,
        *,
        match: str | Iterable[str] = EVERYTHING,
    ) -> None:
        super().__init__(inner, max_in_flight=calls, match=match)


class TimeLimit(Guard):
    """A Guard that limits how long a call may take.

        run(TimeLimit(server, 30))

    A call that takes longer gets the error TIMED_OUT, and its handler is cancelled.
    inner: the Backend that handles the calls, such as a Server.
    timeout_s: the time limit in seconds.
    match: patterns of the operations to which the limit applies: `search_*` selects tools,
        `prompt:draft_*` prompts, `resource:notes://*` resources; by default all.
    """

    def __init__(
        self,
        inner: Backend,
        timeout_s: float,
        *,
        match: str | Iterable[str] = EVERYTHING,
    ) -> None:
        super().__init__(inner, timeout_s=timeout_s, match=match)


class SizeLimit(Guard):
    """A Guard that cuts results of tools that are too large.

        run(SizeLimit(server, 100_000))

    The whole result is stored for some time as a resource, and the client gets the beginning of the
    result and a link to the resource. Results of prompts and resources that are too large are
    replaced by the error RESULT_TOO_LARGE.
    inner: the Backend that handles the calls, such as a Server.
    max_bytes: the largest size of a result as JSON, in bytes.
    match: patterns of the operations to which the limit applies: `search_*` selects tools,
        `prompt:draft_*` prompts, `resource:notes://*` resources; by default all.
    store_bytes: the largest total size of the stored results, in bytes; the oldest are removed
        first.
    store_s: how many seconds a result is stored.
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
            store=OversizeStore(store_bytes, ttl_s=store_s),
        )


class Filter(Guard):
    """A Guard that hides operations: they are not listed, and calls of them fail.

        Filter(server, allow="read_*")                    # hides all other tools
        Filter(server, deny=("drop_*", "prompt:*"))       # hides some tools, and all prompts

    Operations are tools, prompts and resources. A pattern selects tools, unless it begins with
    `prompt:` or `resource:`.
    inner: the Backend that has the operations, such as a Server.
    allow: patterns of the operations that are not hidden. Without a pattern for prompts, all
        prompts are allowed; the same holds for tools and resources.
    deny: patterns of the operations that are hidden, even if they match `allow`.
    """

    def __init__(
        self,
        inner: Backend,
        allow: str | Iterable[str] = (),
        deny: str | Iterable[str] = (),
    ) -> None:
        super().__init__(inner, allow=allow, deny=deny)


class Redact(Guard):
    """A Guard that removes secrets from results, errors, progress and log messages.

        run(Redact(server))

    Secrets are the values of environment variables such as `*_TOKEN`, strings in fields such as
    `password`, and tokens of well-known forms; logs/redact.py describes them.
    inner: the Backend that handles the calls, such as a Server.
    """

    def __init__(self, inner: Backend) -> None:
        super().__init__(inner, redact=True)
