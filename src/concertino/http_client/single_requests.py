"""SingleRequests: sends small HTTP requests to authorization servers, each on its own connection.

The package authorization, which logs in, and the package verifiers, which verifies tokens, use it.
An AddressPolicy checks each URL. SingleRequests connects to an address that the policy has checked,
so it uses no HTTP proxy of the environment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct, ValidationError
from msgspec.json import Decoder

from concertino.decode_errors import DECODE_ERRORS
from concertino.errors import AuthorizationError
from concertino.http_client.addresses import AddressPolicy
from concertino.http_client.pool import HANDSHAKE_LOST, make_tls_context
from concertino.http_client.pooled_connection import PooledConnection, ResponseHead
from concertino.http_client.server_url import ServerUrl, parse_url
from concertino.transports.listeners import errno_message

if TYPE_CHECKING:
    import ssl

__all__ = [
    "MAX_BYTES",
    "WITHIN_S",
    "FetchedResponse",
    "SingleRequests",
    "await_response",
    "without_query",
]

# How many seconds callers wait for a request by default, with all redirects that they follow.
WITHIN_S = 5.0
# The largest body of a response, in bytes.
MAX_BYTES = 64 * 1024

T = TypeVar("T")


class FetchedResponse(Struct, frozen=True):
    """A complete HTTP response.

    url: the URL of the request, without its query.
    status: the HTTP status.
    headers: header name in lower case -> value.
    body: the whole body.
    """

    url: str
    status: int
    headers: Mapping[str, str]
    body: bytes

    def decode(self, decoder: Decoder[T]) -> T:
        """Return the decoded JSON body.

        decoder: a decoder for the expected type.
        Raises AuthorizationError if the body is malformed. The text of the error shows no part of
        the body, which may contain secrets.
        """
        try:
            return decoder.decode(self.body)
        except ValidationError as exc:
            raise AuthorizationError(f"{self.url}: {exc}") from None
        except DECODE_ERRORS:
            raise AuthorizationError(
                f"{self.url}: expected JSON, got {self.headers.get('content-type', 'no type')!r}"
            ) from None


class SingleRequests:
    """Sends requests, each on a connection of its own, to addresses that a policy has checked.

    requests = SingleRequests()
    response = await requests.send(AddressPolicy("public"), "GET", url)
    """

    def __init__(self) -> None:
        self._tls: ssl.SSLContext | None = None

    async def send(
        self,
        policy: AddressPolicy,
        method: str,
        url: str,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
    ) -> FetchedResponse:
        """Check a URL, connect to one of its addresses, send one request, and read the response.

        Follows no redirects, and has no time limit of its own.

        policy: checks the addresses of the URL's host.
        method: the HTTP method, such as GET or POST.
        url: the URL, which may come from another server.
        headers: name -> value, in addition to Host, Accept and Connection.
        body: the body of a POST.
        Raises AuthorizationError for a URL that must not be used, and for a response that is too
        long. Raises OSError if there is no connection or no complete response.
        """
        try:
            target = parse_url(url)
        except ValueError as exc:
            raise AuthorizationError(str(exc)) from None
        addresses = await policy.check(target)
        lines = {
            "Host": target.authority,
            "Accept": "application/json",
            "Connection": "close",
            **(headers or {}),
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

    async def _connect(self, url: ServerUrl, addresses: Sequence[str]) -> PooledConnection:
        """Connect to the first of the addresses that accepts a connection.

        Raises OSError if none accepts one. The text names the URL and the last failure.
        """
        if url.is_tls and self._tls is None:
            self._tls = make_tls_context()
        failure = OSError("no address")
        for address in addresses:
            connection = PooledConnection(_do_nothing, _do_nothing)
            try:
                # `made` keeps this connection, while the loop changes the variable.
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
        # asyncio's error for a connection that ends during the TLS handshake has no text.
        reason = errno_message(failure) or HANDSHAKE_LOST
        raise OSError(f"{url.text}: {reason}") from None


class _Collector:
    """Receives one response from a PooledConnection.

    url: the URL of the request, for the texts of errors.

    Attributes:
    response: a future for the complete response. It raises AuthorizationError if the response is
        too long, and ConnectionError if the connection is lost.
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

    def on_lost(self, reason: str, is_unreceived: bool) -> None:
        if not self.response.done():
            self.response.set_exception(ConnectionError(f"{self._url}: {reason}"))


async def await_response(url: str, request: Awaitable[T], within_s: float) -> T:
    """Await a request, and return its result. Like asyncio.wait_for(), but the error names the URL.

    url: the URL of the request, for the error.
    request: an awaitable, such as a call of SingleRequests.send().
    Raises TimeoutError if the request takes more than within_s seconds.
    """
    try:
        async with asyncio.timeout(within_s):
            return await request
    except TimeoutError:
        text = f"{without_query(url)}: no response within {within_s:g} s"
        raise TimeoutError(text) from None


def without_query(url: str) -> str:
    """Return a URL as log lines and errors may show it: without its query, at most 200 characters.

    The query may contain secrets.
    """
    return url.partition("?")[0][:200]


def _do_nothing(_: object) -> None:
    """Ignore that a connection is idle or closed, because it is not used again."""
