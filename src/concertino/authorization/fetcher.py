"""Fetcher: sends small HTTP requests to URLs that an MCP server or its metadata has named.

A client uses it while it logs in: to read metadata with GET, and to register itself and to request
tokens with POST. An AddressPolicy checks each URL and the target of each redirect.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode, urljoin

from msgspec.json import encode

from concertino.errors import AuthorizationError
from concertino.http_client.addresses import AddressPolicy
from concertino.http_client.single_requests import (
    WITHIN_S,
    FetchedResponse,
    SingleRequests,
    await_response,
    without_query,
)
from concertino.protocol.revisions import MODERN

__all__ = ["FetchedResponse", "Fetcher"]

MAX_REDIRECTS = 3
# The status codes that redirect.
REDIRECTS = frozenset((301, 302, 303, 307, 308))
# A server may return other metadata for another revision, so name the newest one, whose rules a
# login follows (2025-03-26 basic/authorization "Server Metadata Discovery").
DISCOVERY_HEADERS = {"MCP-Protocol-Version": MODERN.name}


class Fetcher:
    """Sends the HTTP requests of a login, each on a connection of its own.

    All methods return the response with any status. They raise AuthorizationError if the policy
    refuses a URL, or if the response is too large, and OSError if the server cannot be reached in
    time.

    policy: checks the URL of each request and of each redirect.
    within_s: the time limit of each request with all of its redirects, in seconds.
    """

    def __init__(self, policy: AddressPolicy, within_s: float = WITHIN_S) -> None:
        self._policy = policy
        self._within_s = within_s
        self._requests = SingleRequests()

    async def get(self, url: str) -> FetchedResponse:
        """Send a GET request for metadata, and follow up to three redirects.

        Raises AuthorizationError if there are more redirects.
        """
        return await await_response(url, self._get(url), self._within_s)

    async def post_form(
        self, url: str, fields: Mapping[str, str], headers: Mapping[str, str]
    ) -> FetchedResponse:
        """Send a form with POST. Redirects are not followed.

        fields: the fields of the form, not yet encoded.
        headers: headers in addition to Content-Type.
        """
        lines = {"Content-Type": "application/x-www-form-urlencoded", **headers}
        return await self._post(url, lines, urlencode(fields).encode())

    async def post_json(
        self, url: str, value: Any, headers: Mapping[str, str] | None = None
    ) -> FetchedResponse:
        """Send a value as JSON with POST. Redirects are not followed.

        headers: headers in addition to Content-Type; None for no others.
        """
        lines = {"Content-Type": "application/json", **(headers or {})}
        return await self._post(url, lines, encode(value))

    async def _post(self, url: str, headers: Mapping[str, str], body: bytes) -> FetchedResponse:
        """Send a body with POST within the time limit."""
        request = self._requests.send(self._policy, "POST", url, headers, body)
        return await await_response(url, request, self._within_s)

    async def _get(self, url: str) -> FetchedResponse:
        """Send a GET request, and follow redirects."""
        for _ in range(MAX_REDIRECTS + 1):
            response = await self._requests.send(self._policy, "GET", url, DISCOVERY_HEADERS)
            if response.status not in REDIRECTS:
                return response
            try:
                url = urljoin(url, response.headers.get("location", ""))
            except ValueError as exc:
                raise AuthorizationError(f"{without_query(url)}: a redirect: {exc}") from None
        raise AuthorizationError(f"{without_query(url)}: more than {MAX_REDIRECTS} redirects")
