"""IssuerClient: sends small HTTP requests to an authorization server (the issuer of tokens).

The operator of this server configures the issuer's URL, so it may have any address. A URL in the
issuer's metadata is not trusted: its host must not be nearer to this machine than the issuer, so
that a public issuer cannot make this server send requests into its private network.
Each host name is resolved once, and the connection goes to an address that was checked. Redirects
are not followed, and the environment's HTTP proxy is not used.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Mapping
from ipaddress import IPv6Address, ip_address
from typing import TypeVar
from urllib.parse import urlencode

from msgspec import DecodeError, ValidationError
from msgspec.json import Decoder

from concertino.http.authorization import VerifierUnavailable
from concertino.http_client.pooled_connection import ResponseHead
from concertino.http_client.server_url import ServerUrl, parse_url
from concertino.http_client.single_requests import SingleRequests

__all__ = ["IssuerClient"]

# How long a request may take by default.
WITHIN_S = 5.0
# The largest body of a response.
MAX_BYTES = 64 * 1024
# How many addresses of a host name are used. The others are ignored.
MAX_ADDRESSES = 8
# How near to this machine an address is. A greater number is nearer. NEVER is for addresses that
# must not be connected to.
PUBLIC, PRIVATE, LOOPBACK, NEVER = range(4)

T = TypeVar("T")


class IssuerClient:
    """Sends requests to one authorization server, each on a new connection.

    issuer: the URL of the authorization server, as the operator has written it.
    within_s: the time limit of each request, in seconds.
    Raises ValueError if the URL is malformed, or neither https nor of this machine.
    """

    def __init__(self, issuer: str, within_s: float = WITHIN_S) -> None:
        self._issuer = _parse(issuer)
        self._within_s = within_s
        self._connections = SingleRequests()

    def check_url(self, url: str) -> None:
        """Raise ValueError if a URL that the operator has configured must not be used.

        That is the case if it is malformed, or neither https nor of this machine.
        """
        _parse(url)

    async def get(self, url: str, decoder: Decoder[T], *, is_trusted: bool) -> T | None:
        """Send a GET request, and return its decoded response.

        Returns None for a response with a status below 500 other than 200, such as 404.
        is_trusted: whether the operator has configured the URL.
        Raises VerifierUnavailable.
        """
        return await self._limit(url, self._send("GET", url, {}, b"", decoder, is_trusted))

    async def post(
        self, url: str, fields: Mapping[str, str], headers: Mapping[str, str], decoder: Decoder[T]
    ) -> T | None:
        """Send a form with POST to a URL that the operator has configured; see get()."""
        lines = {"Content-Type": "application/x-www-form-urlencoded", **headers}
        body = urlencode(fields).encode()
        return await self._limit(url, self._send("POST", url, lines, body, decoder, True))

    async def _limit(self, url: str, request: Awaitable[T | None]) -> T | None:
        """Return the result of a request. Raises VerifierUnavailable if it fails or takes long."""
        try:
            async with asyncio.timeout(self._within_s):
                return await request
        except TimeoutError:
            text = f"{_show(url)}: no response within {self._within_s:g} s"
            raise VerifierUnavailable(text) from None
        except (OSError, ValueError) as exc:
            raise VerifierUnavailable(f"{_show(url)}: {exc}") from None

    async def _send(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes,
        decoder: Decoder[T],
        is_trusted: bool,
    ) -> T | None:
        """Check a URL, connect to one of its addresses, send one request, and read the response."""
        target = _parse(url)
        addresses = await self._find_addresses(target, is_trusted)
        lines = {
            "Host": target.authority,
            "Accept": "application/json",
            "Connection": "close",
            "Content-Length": str(len(body)),
            **headers,
        }
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        request = f"{method} {target.path} HTTP/1.1\r\n{head}\r\n".encode("ascii") + body

        response = _Response()
        connection = await self._connections.connect(target, addresses)
        try:
            connection.send(request, response)
            status, content = await response.done
        finally:
            connection.abort()
        if status >= 500:
            raise VerifierUnavailable(f"{_show(url)}: status {status}")
        if status != 200:
            return None
        try:
            return decoder.decode(content)
        except (ValidationError, DecodeError, RecursionError) as exc:
            text = f"{_show(url)}: expected another JSON: {str(exc)[:200]}"
            raise VerifierUnavailable(text) from None

    async def _find_addresses(self, url: ServerUrl, is_trusted: bool) -> list[str]:
        """Return the addresses of a URL's host, if the URL may be used.

        Raises OSError if the host has no address, and ValueError if an address is not allowed.
        """
        addresses = await _resolve(url)
        issuer = self._issuer
        if is_trusted or (url.scheme, url.host, url.port) == (
            issuer.scheme,
            issuer.host,
            issuer.port,
        ):
            return addresses
        nearest_allowed = min(_nearness(address) for address in await _resolve(issuer))
        for address in addresses:
            if _nearness(address) > nearest_allowed:
                raise ValueError(
                    f"its address {address} is nearer than the issuer's own; name this URL in the "
                    "options if it is right"
                )
        return addresses


class _Response:
    """Receives one response from a PooledConnection.

    Attributes:
    done: a future for the status and the body of the response.
    """

    def __init__(self) -> None:
        self.done: asyncio.Future[tuple[int, bytes]] = asyncio.get_running_loop().create_future()
        self._status = 0
        self._body = bytearray()

    def on_head(self, head: ResponseHead) -> None:
        self._status = head.status

    def on_body(self, data: bytes) -> None:
        self._body += data[: MAX_BYTES + 1]
        if len(self._body) > MAX_BYTES:
            self._body.clear()
            self._fail(ValueError(f"the response has more than {MAX_BYTES} bytes"))

    def on_end(self) -> None:
        if not self.done.done():
            self.done.set_result((self._status, bytes(self._body)))

    def on_lost(self, reason: str, unanswered: bool) -> None:
        self._fail(ConnectionError(reason))

    def _fail(self, exc: Exception) -> None:
        if not self.done.done():
            self.done.set_exception(exc)


def _parse(url: str) -> ServerUrl:
    """Parse a URL. Raises ValueError unless it is an https URL, or an http URL of this machine."""
    parsed = parse_url(url)
    if not parsed.is_tls and not _is_this_machine(parsed.host):
        raise ValueError(f"{_show(url)}: expected https: tokens and keys travel here")
    return parsed


def _is_this_machine(host: str) -> bool:
    """Return whether a host is `localhost` or a loopback address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


async def _resolve(url: ServerUrl) -> list[str]:
    """Return the addresses of a URL's host.

    Raises OSError if it has none, if no server can have one of them, or if a host without TLS is
    not this machine.
    """
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(url.host, url.port, type=socket.SOCK_STREAM)
    except UnicodeError as exc:
        raise OSError(str(exc)) from None
    addresses = list(dict.fromkeys(str(item[4][0]) for item in found))[:MAX_ADDRESSES]
    if not addresses or any(_nearness(address) == NEVER for address in addresses):
        raise OSError(f"{url.host} has no address that a server can have")
    if not url.is_tls and any(_nearness(address) != LOOPBACK for address in addresses):
        raise OSError(f"{url.host} is not this machine; expected https")
    return addresses


def _nearness(text: str) -> int:
    """Return how near to this machine an IP address is: one of PUBLIC, PRIVATE, LOOPBACK, NEVER."""
    address = ip_address(text.partition("%")[0])
    if isinstance(address, IPv6Address):
        address = address.ipv4_mapped or address.sixtofour or address
    # Link-local addresses belong to the metadata services of clouds.
    if address.is_link_local or address.is_multicast or address.is_unspecified:
        return NEVER
    if address.is_loopback:
        return LOOPBACK
    return PUBLIC if address.is_global else PRIVATE


def _show(url: str) -> str:
    """Return a URL for the texts of errors: without its query, and with 200 characters at most."""
    return url.partition("?")[0][:200]
