"""SingleRequests: connections for one request each, to addresses that the caller has checked."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from concertino.http_client.pool import make_tls_context
from concertino.http_client.pooled_connection import PooledConnection
from concertino.http_client.server_url import ServerUrl

if TYPE_CHECKING:
    import ssl

__all__ = ["SingleRequests"]


class SingleRequests:
    """Opens connections for one request each. The host of a URL is not resolved again."""

    def __init__(self) -> None:
        self._tls: ssl.SSLContext | None = None

    async def connect(self, url: ServerUrl, addresses: Sequence[str]) -> PooledConnection:
        """Connect to the first address that accepts. Raises the OSError of the last one."""
        if url.is_tls and self._tls is None:
            self._tls = make_tls_context()
        failure = OSError("no address")
        for address in addresses:
            connection = PooledConnection(_do_nothing, _do_nothing)
            try:
                await asyncio.get_running_loop().create_connection(
                    lambda made=connection: made,
                    address,
                    url.port,
                    ssl=self._tls if url.is_tls else None,
                    server_hostname=url.host if url.is_tls else None,
                )
            except OSError as exc:
                failure = exc
            else:
                return connection
        raise failure


def _do_nothing(_: object) -> None:
    """Ignore that a connection is idle or closed: each is used once."""
