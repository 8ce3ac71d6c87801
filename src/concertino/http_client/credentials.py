"""Credentials: the interface through which a connection gets its header Authorization.

The implementations are in the package `authorization`, which obtains access tokens. It is imported
only for servers that require authorization, so this package contains just the interface.
"""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

__all__ = ["Credentials", "Refusal"]


class Refusal(Struct, frozen=True):
    """A server's refusal of a request, with the HTTP status 401 or 403.

    status: the HTTP status of the response.
    challenge: the header WWW-Authenticate of the response; "" if it has none.
    sent: the header Authorization of the request; "" if it had none.
    operation: the MCP method of the request, and the name of its tool, prompt or resource, such as
        `tools/call add`. Attempts to get more scopes are counted for each operation.
    """

    status: int
    challenge: str
    sent: str
    operation: str


class Credentials(Protocol):
    """The source of the header Authorization for the requests to one server."""

    def header(self) -> str | None:
        """Return the value of the header Authorization for a request; "" to send none.

        Returns None if the token must be read or refreshed first. Then await prepare().
        """
        ...

    async def prepare(self) -> str:
        """Read or refresh the token, and return the value of the header; "" to send none.

        Call this if header() has returned None. Raises AuthorizationError if no token can be
        obtained, and OSError if the authorization server cannot be reached.
        """
        ...

    async def on_refusal(self, refusal: Refusal, /) -> str | None:
        """Obtain another token after a refusal, and return the header's value with this token.

        The caller then sends the request again. Returns None if no other token would help.
        Raises AuthorizationError if a user would have to log in, and OSError if the authorization
        server cannot be reached.
        """
        ...
