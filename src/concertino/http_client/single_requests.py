"""SingleRequests: opens connections that carry one request each.

Clients of authorization servers use them, because they check the addresses of a host themselves.
"""

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
    """Opens connections for one request each, to addresses that the caller has resolved."""

    def __init__(self) -> None:
        self._tls: ssl.SSLContext | None = None

    async def connect(self, url: ServerUrl, addresses: Sequence[str]) -> PooledConnection:
        """Connect to the first of the addresses that accepts a connection.

        Raises the OSError of the last address if no address accepts one.
        """
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
    """Do nothing. A connection that has become idle or closed is not used again."""
