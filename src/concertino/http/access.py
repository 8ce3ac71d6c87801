"""AccessRules: refuses requests of foreign web pages, before the rest of the request is read.

A page in a browser can send requests to servers on its user's machine. The browser puts the page's
origin into the header Origin, and with DNS rebinding the page's host name into Host. So a server
on a loopback address accepts only loopback names in both, and other names and origins only if they
are configured. A request without Origin is accepted, because it cannot come from a script of
another origin.
Sources: RFC 9110; Fetch Standard "CORS protocol"; MCP basic/transports "Security Warning".
"""

from __future__ import annotations

import re
from collections.abc import Collection
from http import HTTPStatus

from concertino.http.request_head import MAX_CACHED_HEADS, HttpError, RequestHead

__all__ = ["AccessRules"]

# The host names that only programs on this machine can use to reach it.
LOOPBACK_NAMES = frozenset(("localhost", "127.0.0.1", "::1"))
# The request headers that the script of a page may set. It may also set the Mcp-Param-... headers
# that its preflight request names.
ALLOWED_HEADERS = (
    "Authorization, Content-Type, Accept, MCP-Protocol-Version, Mcp-Session-Id, Last-Event-ID, "
    "Mcp-Method, Mcp-Name"
)
# The response headers that the script of a page may read.
EXPOSED_HEADERS = "Mcp-Session-Id, WWW-Authenticate"
PARAM_PREFIX = "mcp-param-"
# The host and the port in a URL without path, or in a Host header after "//" (RFC 3986, section
# 3.2). A user name and percent-encoding could make another host look like one of ours, and are not
# accepted.
HOST = re.compile(r"(?:https?:)?//([A-Za-z0-9._~-]+|\[[0-9A-Fa-f:.]+\])(?::([0-9]{0,5}))?")
MAX_PORT = 65535


class AccessRules:
    """Checks the headers Origin and Host of requests.

    Pages of this machine may always use the server.

    origins: the origins of other pages that may use it, such as `https://app.example.com`.
    hosts: the server's names besides those of this machine; each in lower case.
    own_origin: the origin of the server itself, whose pages may use it, too; None if it has none.
    checks_host: whether Host must name this server. False for a Unix socket, which no browser can
        reach.
    accepts_https: whether a target may be a URL with `https`. False if neither this server nor a
        reverse proxy in front of it speaks TLS (RFC 9110, section 7.4).

    Attributes:
    has_origins: whether `origins` is not empty. If not, response_headers() always returns b"".
    """

    def __init__(
        self,
        origins: Collection[str] = (),
        *,
        hosts: Collection[str] = (),
        own_origin: str | None = None,
        checks_host: bool = True,
        accepts_https: bool = True,
    ) -> None:
        self._hosts = LOOPBACK_NAMES.union(hosts)
        self._own_origin = own_origin
        self._origins = frozenset(origin.rstrip("/").lower() for origin in origins)
        self.has_origins = bool(self._origins)
        self._checks_host = checks_host
        self._accepts_https = accepts_https
        # Heads that were accepted before, to check each head once only: HeadParser returns the same
        # object for equal heads. The set is cleared when it has as many heads as HeadParser caches.
        self._accepted: set[RequestHead] = set()

    def check(self, head: RequestHead) -> None:
        """Raise HttpError 403 if Origin may not use this server, or Host names another server.

        Raises HttpError 421 if the target of the request is an `https` URL, and `accepts_https` is
        False.
        """
        if head in self._accepted:
            return
        if head.scheme == "https" and not self._accepts_https:
            raise HttpError(HTTPStatus.MISDIRECTED_REQUEST, "this server does not speak TLS")
        origin = head.headers.get(b"origin")
        # HeadParser refuses a request without Host.
        host = head.headers[b"host"]
        if origin is not None and not self._allows_origin(origin):
            raise HttpError(
                HTTPStatus.FORBIDDEN,
                f"Origin: {_quote(origin)} may not use this server (see --allow-origin)",
            )
        if self._checks_host and _host_name(f"//{host.decode('latin-1')}") not in self._hosts:
            expected = "a name of this machine"
            if self._hosts != LOOPBACK_NAMES:
                expected += ", or one of --public-url, --allow-host"
            raise HttpError(HTTPStatus.FORBIDDEN, f"Host: expected {expected}, got {_quote(host)}")
        if len(self._accepted) >= MAX_CACHED_HEADS:
            self._accepted.clear()
        self._accepted.add(head)

    def _allows_origin(self, origin: bytes) -> bool:
        """Return whether pages of an origin may use this server."""
        text = origin.decode("latin-1").lower()
        if text in self._origins or text == self._own_origin:
            return True
        return text.startswith(("http://", "https://")) and _host_name(text) in LOOPBACK_NAMES

    def response_headers(self, head: RequestHead) -> bytes:
        """Return the CORS headers of the response to a request that check() has accepted.

        Returns b"" for a request without Origin. Also returns b"" if `origins` is empty: pages of
        this machine may then send requests, but the browser does not let them read the responses.
        """
        if not self._origins:
            return b""
        origin = head.headers.get(b"origin")
        if origin is None:
            return b""
        return (
            b"Access-Control-Allow-Origin: %b\r\nVary: Origin\r\n"
            b"Access-Control-Expose-Headers: %b\r\n" % (origin, EXPOSED_HEADERS.encode())
        )

    def preflight_headers(self, head: RequestHead) -> bytes | None:
        """Return the headers of the response to a CORS preflight request that check() has accepted.

        Returns None if `origins` is empty, or if the request has no Origin. The caller then treats
        OPTIONS like any other method that the path does not have.
        """
        if not self._origins or b"origin" not in head.headers:
            return None
        asked = head.headers.get(b"access-control-request-headers", b"").decode("latin-1")
        names = [name.strip() for name in asked.split(",")]
        # These names become a part of a response header, so they may have no other characters.
        params = [
            name
            for name in names
            if name.lower().startswith(PARAM_PREFIX) and name.replace("-", "").isalnum()
        ]
        allowed = ", ".join([ALLOWED_HEADERS, *params])
        return (
            "Access-Control-Allow-Methods: GET, POST, DELETE\r\n"
            f"Access-Control-Allow-Headers: {allowed}\r\n"
            "Access-Control-Max-Age: 600\r\n"
        ).encode() + self.response_headers(head)


def _host_name(url: str) -> str | None:
    """Return the host of a URL in lower case; None if there is none or the URL is malformed."""
    match = HOST.fullmatch(url)
    if match is None or int(match[2] or 0) > MAX_PORT:
        return None
    return match[1].strip("[]").lower()


def _quote(value: bytes) -> str:
    """Return the beginning of a header's value in quotes, for an error text."""
    return repr(value[:128].decode("latin-1"))
