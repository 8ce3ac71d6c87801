"""Fetcher: sends small HTTP requests to URLs that an MCP server or its metadata has named.

An AddressPolicy checks each URL and the target of each redirect. The connection goes directly to an
address that was checked; the environment's HTTP proxy is not used.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Mapping
from typing import Any, TypeVar
from urllib.parse import urlencode, urljoin

from msgspec import DecodeError, Struct, ValidationError
from msgspec.json import Decoder, encode

from concertino.authorization.addresses import AddressPolicy
from concertino.errors import AuthorizationError
from concertino.http_client.pooled_connection import PooledConnection, ResponseHead
from concertino.http_client.server_url import ServerUrl, parse_url
from concertino.http_client.single_requests import SingleRequests

__all__ = ["FetchedResponse", "Fetcher"]

# How long a request may take, with all of its redirects.
WITHIN_S = 5.0
# The largest body of a response.
MAX_BYTES = 64 * 1024
MAX_REDIRECTS = 3
# The status codes that redirect.
REDIRECTS = frozenset((301, 302, 303, 307, 308))

T = TypeVar("T")


class FetchedResponse(Struct, frozen=True):
    """A complete HTTP response.

    url: the URL that has sent it: after redirects, the last one.
    headers: header name in lower case -> value.
    """

    url: str
    status: int
    headers: Mapping[str, str]
    body: bytes

    def decode(self, decoder: Decoder[T]) -> T:
        """Return the decoded JSON body.

        Raises AuthorizationError if it is malformed. The text shows no part of the body, which may
        contain secrets.
        """
        try:
            return decoder.decode(self.body)
        except ValidationError as exc:
            raise AuthorizationError(f"{self.url}: {exc}") from None
        except (DecodeError, RecursionError):
            raise AuthorizationError(
                f"{self.url}: expected JSON, got {self.headers.get('content-type', 'no type')!r}"
            ) from None


class Fetcher:
    """Sends requests, each on a new connection. policy: checks their URLs."""

    def __init__(self, policy: AddressPolicy) -> None:
        self._policy = policy
        self._connections = SingleRequests()

    async def get(self, url: str) -> FetchedResponse:
        """Send a GET request, and follow redirects. Raises AuthorizationError, OSError."""
        return await self._limit(url, self._get(url))

    async def post_form(
        self, url: str, fields: Mapping[str, str], headers: Mapping[str, str]
    ) -> FetchedResponse:
        """Send a form with POST, and follow no redirects. Raises AuthorizationError, OSError."""
        lines = {"Content-Type": "application/x-www-form-urlencoded", **headers}
        return await self._limit(url, self._send("POST", url, lines, urlencode(fields).encode()))

    async def post_json(
        self, url: str, value: Any, headers: Mapping[str, str] | None = None
    ) -> FetchedResponse:
        """Send JSON with POST, and follow no redirects. Raises AuthorizationError, OSError."""
        lines = {"Content-Type": "application/json", **(headers or {})}
        return await self._limit(url, self._send("POST", url, lines, encode(value)))

    async def _limit(self, url: str, request: Awaitable[FetchedResponse]) -> FetchedResponse:
        """Return the response to a request. Raises TimeoutError after WITHIN_S."""
        try:
            async with asyncio.timeout(WITHIN_S):
                return await request
        except TimeoutError:
            raise TimeoutError(f"{_shown(url)}: no response within {WITHIN_S:.0f} s") from None

    async def _get(self, url: str) -> FetchedResponse:
        """Send a GET request, and follow redirects."""
        for _ in range(MAX_REDIRECTS + 1):
            response = await self._send("GET", url, {}, b"")
            if response.status not in REDIRECTS:
                return response
            url = urljoin(url, response.headers.get("location", ""))
        raise AuthorizationError(f"{_shown(url)}: more than {MAX_REDIRECTS} redirects")

    async def _send(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes
    ) -> FetchedResponse:
        """Check a URL, connect to one of its addresses, and send one request."""
        try:
            target = parse_url(url)
        except ValueError as exc:
            raise AuthorizationError(str(exc)) from None
        addresses = await self._policy.check(target)
        lines = {
            "Host": target.authority,
            "Accept": "application/json",
            "Connection": "close",
            **headers,
        }
        if method == "POST":
            lines["Content-Length"] = str(len(body))
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        request = f"{method} {target.path} HTTP/1.1\r\n{head}\r\n".encode("ascii") + body

        collector = _Collector(target.text)
        connection = await self._connect(target, addresses)
        try:
            connection.send(request, collector)
            return await collector.response
        finally:
            connection.abort()

    async def _connect(self, url: ServerUrl, addresses: list[str]) -> PooledConnection:
        """Connect to the first address that accepts. Raises OSError, whose text names the URL."""
        try:
            return await self._connections.connect(url, addresses)
        except OSError as exc:
            raise OSError(f"{url.text}: {_describe(exc)}") from None


class _Collector:
    """Receives one response from a PooledConnection.

    url: the URL of the request, for the texts of errors.

    Attributes:
    response: the complete response, or the reason why it could not be received.
    """

    def __init__(self, url: str) -> None:
        self.response: asyncio.Future[FetchedResponse] = asyncio.get_running_loop().create_future()
        self._url = url
        self._head: ResponseHead | None = None
        self._body = b""

    def on_head(self, head: ResponseHead) -> None:
        self._head = head

    def on_body(self, data: bytes) -> None:
        if len(self._body) > MAX_BYTES:
            return
        self._body += data
        if len(self._body) > MAX_BYTES and not self.response.done():
            self.response.set_exception(
                AuthorizationError(f"{self._url}: the response has more than {MAX_BYTES} bytes")
            )

    def on_end(self) -> None:
        head = self._head
        assert head is not None
        if not self.response.done():
            self.response.set_result(
                FetchedResponse(self._url, head.status, head.headers, self._body)
            )

    def on_lost(self, reason: str, unanswered: bool) -> None:
        if not self.response.done():
            self.response.set_exception(ConnectionError(f"{self._url}: {reason}"))


def _shown(url: str) -> str:
    """Return a URL without its query, which may contain secrets."""
    return url.partition("?")[0]


def _describe(exc: OSError) -> str:
    """Return why a connection failed. asyncio's own text says "Connect call failed"."""
    is_asyncios = (exc.strerror or "").startswith("Connect call failed")
    return os.strerror(exc.errno or 0) if is_asyncios else exc.strerror or str(exc)
