"""Challenges: makes the header WWW-Authenticate, which tells a client how to get access.

The Gate, which checks the token of each request, puts the header into the errors with which it
refuses requests. The response of a call whose tool needs more scopes than the token has gets the
header from HttpCaller.

Source: RFC 6750 section 3; RFC 9728 section 5.1; 2026-07-28 basic/authorization.
"""

from __future__ import annotations

from collections.abc import Collection
from http import HTTPStatus

from msgspec import Struct
from msgspec.json import Decoder

from concertino.decode_errors import DECODE_ERRORS
from concertino.errors import check_scopes
from concertino.http.request_head import HttpError

__all__ = ["Challenges"]


class _ErrorData(Struct, frozen=True):
    scopes: tuple[str, ...] = ()


class _Error(Struct, frozen=True):
    data: _ErrorData = _ErrorData()


class _ErrorResponse(Struct, frozen=True):
    """A response with the error INSUFFICIENT_SCOPE: only what scope_challenge() reads."""

    error: _Error = _Error()


_decode_error = Decoder(_ErrorResponse).decode


class Challenges:
    """Makes the errors (400, 401, 403) that refuse requests without sufficient authorization.

    metadata_url: the URL of the protected resource metadata (RFC 9728); None if there is none.
    scopes: the scopes that every token must have.
    """

    def __init__(self, metadata_url: str | None, scopes: Collection[str]) -> None:
        self._metadata_url = metadata_url
        self._scopes = scopes

    def no_token(self) -> HttpError:
        """Return the error 401 for a request without a token.

        Its header has no parameter `error` (RFC 6750, section 3.1).
        """
        return self._refusal(
            HTTPStatus.UNAUTHORIZED, "a token is required: Authorization: Bearer ...", self._scopes
        )

    def malformed(self, text: str) -> HttpError:
        """Return the error 400 for a request whose Authorization header is malformed.

        text: what is wrong with the header, for people.
        """
        return self._refusal(HTTPStatus.BAD_REQUEST, text, (), "invalid_request")

    def invalid_token(self, text: str) -> HttpError:
        """Return the error 401 for a token that is not accepted. text: the reason."""
        return self._refusal(HTTPStatus.UNAUTHORIZED, text, self._scopes, "invalid_token")

    def insufficient_scope(self, scopes: Collection[str]) -> HttpError:
        """Return the error 403 for a token that lacks scopes.

        scopes: all scopes that the request needs, including those that the token has.
        """
        text = "the token does not allow this"
        return self._refusal(HTTPStatus.FORBIDDEN, text, scopes, "insufficient_scope")

    def scope_challenge(self, frame: bytes) -> bytes:
        """Return the header line WWW-Authenticate for a response with an INSUFFICIENT_SCOPE error.

        The header names the scopes that the operation needs, and those that every token needs.
        frame: the JSON-RPC error response, whose `data.scopes` the operation needs.
        """
        try:
            scopes = check_scopes(_decode_error(frame).error.data.scopes)
        except (ValueError, *DECODE_ERRORS):
            scopes = frozenset[str]()
        return self.insufficient_scope(scopes | frozenset(self._scopes)).headers

    def _refusal(
        self, status: HTTPStatus, text: str, scopes: Collection[str], error: str = ""
    ) -> HttpError:
        """Return an error with the header WWW-Authenticate.

        text: the reason, for people.
        scopes: the scopes that the client should request a token for; empty for none.
        error: the error code of RFC 6750; "" to leave out the error.
        """
        parameters: dict[str, str] = {}
        if error:
            parameters |= {"error": error, "error_description": text}
        if scopes:
            parameters["scope"] = " ".join(sorted(scopes))
        if self._metadata_url is not None:
            parameters["resource_metadata"] = self._metadata_url
        values = ", ".join(f"{name}={_quote(value)}" for name, value in parameters.items())
        line = f"WWW-Authenticate: Bearer {values}".rstrip()
        return HttpError(status, text, f"{line}\r\n".encode("ascii", "replace"))


def _quote(value: str) -> str:
    """Return a value as an HTTP quoted-string, without characters that are not printable ASCII."""
    text = "".join(char for char in value if " " <= char <= "~")
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
