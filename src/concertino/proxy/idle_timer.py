"""IdleTimer: ends connections of a proxy to its server that have had no call for some time."""

from __future__ import annotations

import asyncio
import logging

from concertino.proxy.upstream_pool import UpstreamPool

__all__ = ["IdleTimer"]

log = logging.getLogger("concertino.proxy")


class IdleTimer:
    """Ends upstreams (connections of a proxy to its server) that have had no call for some time.

    An upstream that no session has used yet is not ended.
    pool: the upstreams of the proxy.
    name: the name of the server, for the log.
    idle_s: how long an upstream may be without a call, in seconds; None to end none. It is ended at
        the next check, which is at most half this time later.
    """

    def __init__(self, pool: UpstreamPool, name: str, idle_s: float | None) -> None:
        self._pool = pool
        self._name = name
        self._idle_s = idle_s
        # The timer of the next check.
        self._handle: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to check the upstreams."""
        if self._idle_s is not None:
            self._check_in(self._idle_s, self._idle_s)

    def stop(self) -> None:
        """End the checks."""
        if self._handle is not None:
            self._handle.cancel()

    def _check_in(self, seconds: float, idle_s: float) -> None:
        loop = asyncio.get_running_loop()
        self._handle = loop.call_later(seconds, self._end_idle, idle_s)

    def _end_idle(self, idle_s: float) -> None:
        """End the upstreams that have had no call for idle_s seconds. A timer calls this."""
        now = asyncio.get_running_loop().time()
        for upstream in self._pool.list_open():
            # Keep the upstream that was opened in advance for the first client.
            if upstream is self._pool.unclaimed:
                continue
            if not upstream.is_busy and now - upstream.last_used >= idle_s:
                log.info("%s: idle for %g s, so it is ended", self._name, idle_s)
                self._pool.end(upstream)
        self._check_in(idle_s / 2, idle_s)
