"""IssuerClient: sends small HTTP requests to an authorization server (the issuer of tokens).

The operator of this server configures the issuer's URL, so it is trusted, whatever its address is.
A URL in the issuer's metadata is not trusted: if the issuer has a public address, the URL must have
one, too. So a public issuer cannot make this server send requests into its private network.
Redirects are not followed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar
from urllib.parse import urlencode

from msgspec.json import Decoder

from concertino.errors import AuthorizationError
from concertino.http.authorization import VerifierUnavailable
from concertino.http_client.addresses import AddressPolicy, find_reach
from concertino.http_client.server_url import ServerUrl, parse_url
from concertino.http_client.single_requests import (
    WITHIN_S,
    SingleRequests,
    await_response,
    without_query,
)
from concertino.transports.addresses import is_loopback

__all__ = ["IssuerClient"]

T = TypeVar("T")

# For URLs that the operator has configured. All addresses are allowed, as for URLs that a server on
# this machine has named.
TRUSTED = AddressPolicy("loopback")


class IssuerClient:
    """Sends requests to one authorization server, each on a connection of its own.

    issuer: the URL of the authorization server, as the operator has written it.
    within_s: the time limit of each request, in seconds.
    Raises ValueError if the URL is malformed, or neither https nor of this machine.
    """

    def __init__(self, issuer: str, within_s: float = WITHIN_S) -> None:
        self._issuer = _parse(issuer)
        self._within_s = within_s
        self._requests = SingleRequests()

    def check_url(self, url: str) -> None:
        """Check a URL that the operator has configured.

        Raises ValueError if the URL is malformed, or neither https nor of this machine.
        """
        _parse(url)

    async def get(self, url: str, decoder: Decoder[T], *, is_trusted: bool) -> T | None:
        """Send a GET request, and return its decoded response.

        url: the URL, which the operator has configured, or which the issuer's metadata names.
        decoder: decodes the body of a response with the status 200.
        is_trusted: whether the operator has configured the URL. If not, the URL must not have a
            private address unless the issuer has one, nor an address of this machine unless the
            issuer is on this machine.
        Returns None for a response with another status below 500, such as 404.
        Raises VerifierUnavailable if the URL must not be used, if there is no response in time, if
        its status is 500 or more, or if its body cannot be decoded.
        """
        return await self._send("GET", url, {}, b"", decoder, is_trusted=is_trusted)

    async def post(
        self, url: str, fields: Mapping[str, str], headers: Mapping[str, str], decoder: Decoder[T]
    ) -> T | None:
        """Send a form with POST to a URL that the operator has configured.

        url: the URL.
        fields: name -> value of each field of the form.
        headers: headers in addition to those that every request has: name -> value.
        decoder: decodes the body of a response with the status 200.
        Returns None for a response with another status below 500, such as 404.
        Raises VerifierUnavailable in the same cases as get().
        """
        lines = {"Content-Type": "application/x-www-form-urlencoded", **headers}
        body = urlencode(fields).encode()
        return await self._send("POST", url, lines, body, decoder, is_trusted=True)

    async def _send(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes,
        decoder: Decoder[T],
        *,
        is_trusted: bool,
    ) -> T | None:
        """Send a request, and return its decoded response. Raises VerifierUnavailable."""

        async def send() -> T | None:
            policy = await self._policy_for(_parse(url), is_trusted)
            response = await self._requests.send(policy, method, url, headers, body)
            if response.status >= 500:
                raise VerifierUnavailable(f"{without_query(url)}: status {response.status}")
            return response.decode(decoder) if response.status == 200 else None

        try:
            return await await_response(url, send(), self._within_s)
        except (AuthorizationError, OSError, ValueError) as exc:
            raise VerifierUnavailable(str(exc)) from None

    async def _policy_for(self, url: ServerUrl, is_trusted: bool) -> AddressPolicy:
        """Return the policy that says to which addresses a request may be sent.

        url: the URL of the request.
        is_trusted: whether the operator has configured the URL.
        """
        if is_trusted or url.origin == self._issuer.origin:
            return TRUSTED
        return AddressPolicy(await find_reach(self._issuer), "the issuer of tokens")


def _parse(url: str) -> ServerUrl:
    """Parse a URL. Raises ValueError unless it is an https URL, or an http URL of this machine."""
    parsed = parse_url(url)
    if not parsed.is_tls and not is_loopback(parsed.host):
        raise ValueError(f"{without_query(url)}: expected https: tokens and keys travel here")
    return parsed
