"""Credentials: the interface of the sources of a connection's header Authorization.

The package `authorization` has the implementations. This package knows their interface only, since
most servers ask for none.
"""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

__all__ = ["Credentials", "Refusal"]


class Refusal(Struct, frozen=True):
    """A response with the status 401 or 403.

    challenge: the header WWW-Authenticate; "" without one.
    sent: the value of Authorization that the request had; "" for none.
    operation: what was refused, such as `tools/call add`. Attempts are counted for each.
    """

    status: int
    challenge: str
    sent: str
    operation: str


class Credentials(Protocol):
    """The source of the header Authorization, which tells a server who sends a request."""

    def header(self) -> str | None:
        """Return the value of Authorization to send now; "" for none.

        Returns None if prepare() must be awaited first.
        """
        ...

    async def prepare(self) -> str:
        """Return the value to send, after it was renewed if need be.

        Raises AuthorizationError, and OSError if a server cannot be reached.
        """
        ...

    async def on_refusal(self, refusal: Refusal, /) -> str | None:
        """Return the value to send the request again with; None if nothing helps.

        Raises AuthorizationError if something would help that cannot be done here, such as a login
        by a person, and OSError if a server cannot be reached.
        """
        ...
