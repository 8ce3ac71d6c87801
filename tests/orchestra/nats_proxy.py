"""A TCP proxy for tests: it drops all bytes while it is cut, without closing connections."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

__all__ = ["CuttableProxy"]


class CuttableProxy:
    """Passes connections on to a port on loopback. Use it on one event loop.

    is_cut: whether everything is dropped, as by a network that is partitioned. New connections are
        accepted by the system, and get no bytes.
    """

    def __init__(self, target: int) -> None:
        self.port = 0
        self._target = target
        self._is_cut = False
        self._server: asyncio.Server | None = None
        self._pairs: set[_Half] = set()

    async def open(self) -> None:
        self._server = await asyncio.get_running_loop().create_server(
            lambda: _Half(self._pairs, self._dial, lambda: self._is_cut), "127.0.0.1", 0
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def _dial(self, half: _Half) -> None:
        loop = asyncio.get_running_loop()
        try:
            _, other = await loop.create_connection(
                lambda: _Half(self._pairs, None, lambda: self._is_cut), "127.0.0.1", self._target
            )
        except OSError:
            half.abort()
            return
        other.peer, half.peer = half, other
        half.flush()

    def cut(self) -> None:
        self._is_cut = True

    def heal(self) -> None:
        """Pass bytes again. Connections of which bytes were dropped are reset."""
        self._is_cut = False
        for half in list(self._pairs):
            if half.has_lost:
                half.abort()

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for half in list(self._pairs):
            half.abort()


class _Half(asyncio.Protocol):
    """One of the two connections. has_lost: whether bytes or an end were dropped."""

    def __init__(
        self,
        all_halves: set[_Half],
        dial: Callable[[_Half], object] | None,
        is_cut: Callable[[], bool],
    ) -> None:
        self.peer: _Half | None = None
        self.has_lost = False
        self._all = all_halves
        self._dial = dial
        self._is_cut = is_cut
        self._early = bytearray()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._all.add(self)
        if self._is_cut():
            self.has_lost = True
        elif self._dial is not None:
            self._task = asyncio.ensure_future(self._dial(self))  # type: ignore[arg-type]

    def data_received(self, data: bytes) -> None:
        if self._is_cut():
            self.has_lost = True
        elif self.peer is None:
            self._early += data
        else:
            self.peer.write(data)

    def flush(self) -> None:
        assert self.peer is not None
        if self._early:
            self.peer.write(bytes(self._early))
            self._early.clear()

    def write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._all.discard(self)
        if self.peer is None:
            return
        if self._is_cut():
            # The other side learns nothing of it.
            self.peer.has_lost = True
        elif self.peer._transport is not None:
            self.peer._transport.close()
