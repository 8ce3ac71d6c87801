"""UpstreamPool: the upstreams of one proxy, and which client sessions use which of them.

An upstream is a connection to the proxy's server, and often also a process of the server. Each
client session has a key, which the Proxy chooses; sessions with the same key share an upstream. The
pool closes each upstream that it has begun to open, even if meanwhile the client disconnects, the
proxy is closed or the upstream is replaced. So no process of a server is left running.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from msgspec import Struct

from concertino.backend.caller import CallerSession
from concertino.errors import ConcertinoError, Disconnected
from concertino.proxy.upstream import Upstream

__all__ = ["FIRST", "Opening", "UpstreamPool"]

log = logging.getLogger("concertino.proxy")

# The key of the upstream that is opened before any client needs it, and is at first unclaimed. The
# keys of sessions are those of ServerSharing.key_of(): None, a principal (bytes) or a session.
FIRST = object()

# Called with an upstream that has opened.
OnOpened = Callable[[Upstream], object]


class Opening(Struct, frozen=True):
    """The opening of an upstream, a connection to the server.

    upstream: the upstream that is being opened.
    task: the task that opens it. Its result is the upstream for the waiting sessions: `upstream`,
        or the one that renew() has opened for them meanwhile.
    """

    upstream: Upstream
    task: asyncio.Task[Upstream]


class UpstreamPool:
    """The upstreams of one proxy: its connections to the server.

    Each client session has a key; sessions with equal keys use the same upstream. A session gets an
    upstream in this way (Proxy has the code):

        while (upstream := pool.claim(key)) is None:
            await pool.begin(key, maker.make_for(client), on_opened).task
        pool.assign(session, upstream)

    name: the name of the server, for errors.

    Attributes:
    unclaimed: an open upstream that no session uses yet; the next session that needs one gets it.
        None if there is none.
    openings: key of sessions -> the Opening of the upstream for them.
    failure: why the last opening failed; None if it did not fail, and while an upstream is being
        opened.
    """

    def __init__(self, name: str) -> None:
        self.unclaimed: Upstream | None = None
        self.openings: dict[object, Opening] = {}
        self.failure: ConcertinoError | None = None
        self._name = name
        # Key of sessions -> the open upstream for them.
        self._by_key: dict[object, Upstream] = {}
        # Session that has made a call -> the upstream that it uses.
        self._by_session: dict[CallerSession | None, Upstream] = {}
        # The background tasks that replace or close upstreams.
        self._renewals: set[asyncio.Task[list[Upstream]]] = set()
        self._closings: set[asyncio.Task[None]] = set()
        self._is_closed = False

    # Looking up

    def find_for_session(self, session: CallerSession | None) -> Upstream | None:
        """Return the upstream that a session uses; None before its first call."""
        return self._by_session.get(session)

    def has(self, key: object) -> bool:
        """Return whether a connection to the server is open for the sessions with this key.

        key: what ServerSharing.key_of() returns for these sessions.
        """
        return key in self._by_key

    def list_open(self) -> list[Upstream]:
        """Return all upstreams that are open, each once."""
        every = (*self._by_key.values(), self.unclaimed)
        return list(dict.fromkeys(item for item in every if item is not None))

    def list_all(self) -> list[Upstream]:
        """Return all upstreams that are open or being opened, each once."""
        starting = (opening.upstream for opening in self.openings.values())
        return list(dict.fromkeys((*self.list_open(), *starting)))

    def find_for_lists(self) -> Upstream | None:
        """Return an open upstream (connection to the server) for calls without a session, or None.

        No upstream of a verified user is returned, because the server may show this user lists that
        others must not see.
        """
        if self.unclaimed is not None:
            return self.unclaimed
        for upstream in self._by_key.values():
            if not any(session.principal for session in upstream.sessions):
                return upstream
        return None

    # Opening

    def begin(
        self,
        key: object,
        upstream: Upstream,
        on_opened: OnOpened,
        owner: CallerSession | None = None,
    ) -> Opening:
        """Begin to open an upstream (connection to the server) for the sessions with this key.

        Returns at once; `task` of the result opens the upstream.
        key: what ServerSharing.key_of() returns for these sessions; FIRST to make the upstream the
            `unclaimed` one, before any session is known.
        upstream: the connection, which is not open yet.
        on_opened: called with the upstream when it is open, before any session uses it.
        owner: the only session that may use the upstream, which is closed if the session ends
            before it is open. None if several sessions may use it.
        Raises Disconnected if the proxy was closed.
        """
        self._check_open()
        self.failure = None
        opening_work = self._open(key, upstream, on_opened, owner)
        task = asyncio.get_running_loop().create_task(opening_work)
        task.add_done_callback(self._on_opening_done)
        opening = self.openings[key] = Opening(upstream, task)
        return opening

    def _check_open(self) -> None:
        if self._is_closed:
            raise Disconnected(f"{self._name}: the proxy was closed")

    async def _open(
        self, key: object, upstream: Upstream, on_opened: OnOpened, owner: CallerSession | None
    ) -> Upstream:
        """Open an upstream, add it to the pool, and return it. The parameters are those of begin().

        If renew() has opened another upstream for the same sessions meanwhile, closes the first and
        returns the other. Raises ConcertinoError if the upstream cannot be opened.
        """
        try:
            await upstream.open()
        except BaseException as exc:
            if isinstance(exc, ConcertinoError):
                self.failure = exc
            # The process may still run if a second cancellation has interrupted open() while it
            # ended the process.
            self._close_soon(upstream.close())
            raise
        finally:
            del self.openings[key]
        if owner is not None and owner.closed.done():
            self._close_soon(upstream.close())
            raise Disconnected(f"{self._name}: the client has gone")
        newer = self.unclaimed if key is FIRST else self._by_key.get(key)
        if newer is not None:
            self._close_soon(upstream.close())
            return newer
        if key is FIRST:
            self.unclaimed = upstream
        else:
            self._by_key[key] = upstream
        on_opened(upstream)
        return upstream

    def _on_opening_done(self, task: asyncio.Task[Upstream]) -> None:
        # Retrieve the exception, which asyncio would log if no call waits for the task.
        if not task.cancelled() and (error := task.exception()) is not None:
            log.debug("%s: %s", self._name, error)

    def claim(self, key: object) -> Upstream | None:
        """Return the open upstream (connection to the server) for the sessions with this key.

        If there is none, gives the `unclaimed` upstream to these sessions, and returns it. Returns
        None if there is no unclaimed upstream either.
        """
        upstream = self._by_key.get(key)
        if upstream is None and self.unclaimed is not None:
            upstream, self.unclaimed = self.unclaimed, None
            self._by_key[key] = upstream
        return upstream

    def assign(self, session: CallerSession | None, upstream: Upstream) -> None:
        """Let a session use an upstream (connection to the server) until either of them ends.

        From now on find_for_session() returns this upstream for the session.
        session: None for calls without a session, such as those of a composition that reads lists.
        """
        self._by_session[session] = upstream
        if session is not None and session not in upstream.sessions:
            upstream.sessions.add(session)
            session.closed.add_done_callback(partial(self._on_session_end, session))

    def _on_session_end(self, session: CallerSession, closed: object) -> None:
        """Forget a session that has ended, and close the upstream that was opened for it alone."""
        upstream = self._by_session.pop(session, None)
        if upstream is None:
            return
        upstream.on_session_end(session)
        # An upstream whose key is a session was opened for this session alone.
        if self._by_key.get(session) is upstream:
            self.end(upstream)

    # Replacing and ending

    async def renew(self, make: Callable[[Upstream | None], Upstream]) -> list[Upstream]:
        """Replace each open upstream by a new one, for example after the server's code has changed.

        An upstream is a connection to the server. If none is open, opens one. Returns when all new
        upstreams are open. The old ones are closed in the background when their calls have ended.
        make: called with each open upstream, or with None if none is open; returns the upstream
            that will replace it, which is not open yet.
        Returns the new upstreams, without those that are closed again because the old upstream has
        ended meanwhile. Raises ConcertinoError if a new upstream cannot be opened or if the proxy
        was closed; then the old upstreams stay.
        """
        self._check_open()
        renewal = asyncio.get_running_loop().create_task(self._renew(make))
        self._renewals.add(renewal)
        renewal.add_done_callback(self._renewals.discard)
        try:
            return await renewal
        except asyncio.CancelledError:
            # If the calling task was not cancelled, then close() has cancelled the renewal, and
            # _check_open() raises Disconnected.
            task = asyncio.current_task()
            if task is None or not task.cancelling():
                self._check_open()
            raise

    async def _renew(self, make: Callable[[Upstream | None], Upstream]) -> list[Upstream]:
        """Replace each open upstream by a new one. Runs in a task, which close() can cancel.

        Returns the new upstreams, without those that _replace() has closed.
        """
        if self.openings:
            # The servers that are starting may have loaded the old code, so replace them, too.
            await asyncio.wait([opening.task for opening in self.openings.values()])
        running = [item for item in self.list_open() if item.client.state != "closed"]
        # If none is open, make(None) returns one to open.
        pairs = [(before, make(before)) for before in running or [None]]
        opened = [asyncio.ensure_future(upstream.open()) for _, upstream in pairs]
        try:
            await asyncio.gather(*opened)
        except BaseException:
            # If one opening fails, gather() does not cancel the other openings. So cancel all here.
            for opening in opened:
                opening.cancel()
            try:
                await asyncio.gather(*opened, return_exceptions=True)
            finally:
                for _, upstream in pairs:
                    self._close_soon(upstream.close())
            raise
        return [upstream for before, upstream in pairs if self._replace(before, upstream)]

    def _replace(self, before: Upstream | None, upstream: Upstream) -> bool:
        """Use `upstream` instead of `before`, which is None if no upstream was open.

        Returns False, and closes the new upstream, if it is not needed any more.
        """
        if before is None and self.unclaimed is None:
            self.unclaimed = upstream
            return True
        # An upstream was opened meanwhile, or the old upstream has ended.
        if before is None or before not in self.list_open():
            self._close_soon(upstream.close())
            return False
        if before is self.unclaimed:
            self.unclaimed = upstream
        for table in (self._by_key, self._by_session):
            for key in [key for key, item in table.items() if item is before]:
                table[key] = upstream  # pyright: ignore[reportArgumentType]
        upstream.take_over(before)
        self._close_soon(before.close_after_calls())
        return True

    def end(self, upstream: Upstream) -> None:
        """Remove an upstream, and close it in the background.

        The next call of one of its sessions opens a new upstream.
        """
        for table in (self._by_key, self._by_session):
            for key in [key for key, item in table.items() if item is upstream]:
                del table[key]  # pyright: ignore[reportArgumentType]
        self._close_soon(upstream.close())

    def _close_soon(self, closing_work: Coroutine[Any, Any, None]) -> None:
        """Run the closing of an upstream in a background task, for which close() waits."""
        closing = asyncio.get_running_loop().create_task(closing_work)
        self._closings.add(closing)
        closing.add_done_callback(self._closings.discard)

    def stop_opening(self) -> None:
        """Cancel all begun openings and renewals. begin() and renew() then raise Disconnected."""
        self._is_closed = True
        openings = [opening.task for opening in self.openings.values()]
        for task in (*openings, *self._renewals):
            # After a first cancellation, the task closes what it has opened. A second one would
            # interrupt that.
            if not task.cancelling():
                task.cancel()

    async def close(self) -> None:
        """Close all upstreams, and wait for their ends."""
        self.stop_opening()
        openings = [opening.task for opening in self.openings.values()]
        await asyncio.gather(*openings, *self._renewals, return_exceptions=True)
        for upstream in self.list_open():
            self.end(upstream)
        while self._closings:
            await asyncio.wait(list(self._closings))
