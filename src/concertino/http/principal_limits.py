"""PrincipalLimits and PrincipalUse: limit how much of an HTTP server one principal uses.

Limits for each connection would not be enough, because a client can open many connections. A
server with authorization counts each request when it begins and when it ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from math import ceil

from msgspec import Struct

from concertino.guards.rates import Rate, Window
from concertino.http.exchange import Exchange
from concertino.http.request_head import HttpError

__all__ = ["PrincipalLimits", "PrincipalUse", "too_many"]

MIB = 2**20
# When this many principals are known, principals without running requests are removed.
MAX_KNOWN = 4096


class PrincipalLimits(Struct, frozen=True):
    """The limits for one principal (one user of one client program), over all its connections.

    max_requests: how many requests may be running at the same time, open streams included.
    max_request_bytes: how many bytes the bodies of the running requests may have together.
    max_sessions: how many sessions of revisions before 2026-07-28 may be open.
    rate: how many requests may arrive within a time, as `CALLS/SECONDS`: "100/60" for 100 requests
        within any 60 seconds; None for any number.
    Raises ValueError for an invalid value.
    """

    max_requests: int = 128
    max_request_bytes: int = 32 * MIB
    max_sessions: int = 64
    rate: str | None = None

    def __post_init__(self) -> None:
        limits = {
            "max_requests": self.max_requests,
            "max_request_bytes": self.max_request_bytes,
            "max_sessions": self.max_sessions,
        }
        for name, value in limits.items():
            if value < 1:
                raise ValueError(f"{name}: expected a positive number, got {value}")
        if self.rate is not None:
            Rate.read(self.rate)


class _Use:
    """How much one principal uses now.

    window: the times of its recent requests, for the limit `rate`; None without this limit.

    Attributes:
    requests: the number of its running requests.
    bytes: the size of their bodies together.
    """

    __slots__ = ("bytes", "requests", "window")

    def __init__(self, window: Window | None) -> None:
        self.requests = 0
        self.bytes = 0
        self.window = window

    def is_idle(self, now: float) -> bool:
        """Return whether the principal has neither running requests nor recent requests."""
        return not self.requests and (self.window is None or self.window.is_idle(now))


class PrincipalUse:
    """Counts the running requests of each principal of one server, and refuses those over a limit.

    limits: the limits for each principal.
    """

    def __init__(self, limits: PrincipalLimits) -> None:
        self.limits = limits
        self._rate = None if limits.rate is None else Rate.read(limits.rate)
        self._uses: dict[bytes, _Use] = {}
        self._loop = asyncio.get_running_loop()

    def begin(self, exchange: Exchange, identity: bytes) -> None:
        """Count a request until its response ends. Sets exchange.on_end.

        Raises HttpError 429 if the user of the request exceeds a limit.
        identity: the identity of the principal (one user of one client) who has sent the request.
        """
        use = self._uses.get(identity)
        if use is None:
            use = self._add(identity)
        size = len(exchange.body)
        limits = self.limits
        if use.requests >= limits.max_requests:
            raise too_many(f"{limits.max_requests} requests of yours are under way")
        # A principal's only request may have any size that max_message_bytes allows, even above
        # this limit.
        if use.bytes and use.bytes + size > limits.max_request_bytes:
            raise too_many(f"{use.bytes} bytes of requests of yours are under way")
        if use.window is not None:
            now = self._loop.time()
            wait_s = use.window.wait_s(now)
            if wait_s > 0:
                raise too_many(f"more than {limits.rate} requests", wait_s)
            use.window.times.append(now)

        use.requests += 1
        use.bytes += size

        def end() -> None:
            use.requests -= 1
            use.bytes -= size

        # The request has just arrived, so no other code has set on_end. Code that sets on_end later
        # must call this function, too.
        exchange.on_end = end

    def message_counter(self, identity: bytes) -> Callable[[], float] | None:
        """Return a function that counts each message of one principal (user) on a WebSocket.

        The function returns 0.0 if the message is within the limit `rate`. Otherwise it does not
        count the message, and returns after how many seconds to try again. Returns None if there
        is no limit `rate`.

        identity: the identity of the principal.
        """
        if self._rate is None:
            return None

        def count() -> float:
            use = self._uses.get(identity) or self._add(identity)
            assert use.window is not None
            now = self._loop.time()
            wait_s = use.window.wait_s(now)
            if wait_s <= 0:
                use.window.times.append(now)
            return max(0.0, wait_s)

        return count

    def _add(self, identity: bytes) -> _Use:
        """Add a principal that was not known."""
        if len(self._uses) >= MAX_KNOWN:
            now = self._loop.time()
            self._uses = {key: use for key, use in self._uses.items() if not use.is_idle(now)}
        use = self._uses[identity] = _Use(None if self._rate is None else Window(self._rate))
        return use


def too_many(text: str, wait_s: float = 1.0) -> HttpError:
    """Return the error 429 for a request with which a user exceeds a limit.

    text: says which limit.
    wait_s: the time after which the client may try again, in seconds.
    """
    header = b"Retry-After: %d\r\n" % max(1, ceil(wait_s))
    return HttpError(HTTPStatus.TOO_MANY_REQUESTS, text, header)
