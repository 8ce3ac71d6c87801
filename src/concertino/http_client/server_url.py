"""ServerUrl: the parsed URL of an HTTP or WebSocket server.

A URL may come from a stranger, for example in a redirect. So parse_url() refuses characters that
could change the meaning of the request line or of a header, such as a line break in the path.
"""

from __future__ import annotations

import re
from urllib.parse import urljoin, urlsplit

from msgspec import Struct

__all__ = ["ServerUrl", "parse_url"]

PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443}
# A host name in ASCII, or an IP address. Other characters could change the meaning of a header.
HOST = re.compile(r"[A-Za-z0-9._~%:-]+")


class ServerUrl(Struct, frozen=True):
    """The URL of a server.

    scheme: http, https, ws or wss.
    host: the host in ASCII and lower case, without the brackets of an IPv6 address.
    port: the port; the default of the scheme if the URL has none.
    path: the path and query, as in the request line; at least "/".
    """

    scheme: str
    host: str
    port: int
    path: str

    @property
    def is_tls(self) -> bool:
        """Return whether connections to this URL are encrypted."""
        return self.scheme in ("https", "wss")

    @property
    def is_websocket(self) -> bool:
        """Return whether connections to this URL are WebSockets."""
        return self.scheme in ("ws", "wss")

    @property
    def over_http(self) -> ServerUrl:
        """Return the URL with http instead of ws, and https instead of wss.

        Use it to look up the HTTP proxy and the access token for a WebSocket.
        """
        scheme = "https" if self.is_tls else "http"
        return ServerUrl(scheme, self.host, self.port, self.path)

    @property
    def origin(self) -> tuple[str, str, int]:
        """Return the scheme, the host and the port, by which origins are compared."""
        return self.scheme, self.host, self.port

    @property
    def authority(self) -> str:
        """Return the value of the header Host: the host, and the port unless it is the default."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def text(self) -> str:
        """Return the URL without its query, which may contain secrets."""
        return f"{self.scheme}://{self.authority}{self.path.partition('?')[0]}"

    @property
    def text_with_query(self) -> str:
        """Return the whole URL. The query may contain secrets."""
        return f"{self.scheme}://{self.authority}{self.path}"

    def follow(self, location: str) -> ServerUrl | None:
        """Return the URL to which a redirect leads; None if it must not be followed.

        A redirect is followed only within the origin, because another origin must not get the
        credentials in the headers. A malformed URL is not followed either.
        location: the header Location of the redirect.
        """
        try:
            url = parse_url(urljoin(self.text_with_query, location))
        except ValueError:
            return None
        return url if url.origin == self.origin else None


def parse_url(text: str) -> ServerUrl:
    """Parse the URL of a server.

    text: an http, https, ws or wss URL.
    Raises ValueError for a malformed URL, and for one with a user name and password. The text of
    the error never contains a password.
    """
    expected = "expected a URL such as https://example.com/mcp"
    # Even in a malformed URL, the text before an `@` may contain a password.
    may_quote = "@" not in text
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as exc:
        raise ValueError(f"{expected}: {exc}" if may_quote else expected) from None
    if parts.scheme not in PORTS or not parts.hostname:
        raise ValueError(f"{expected}, got {text!r}" if may_quote else expected)
    if parts.username is not None:
        raise ValueError("a URL must not contain a name and password: use the header Authorization")
    path = parts.path or "/"
    if parts.query:
        path += f"?{parts.query}"
    if not all("!" <= char <= "~" for char in path):
        raise ValueError(f"{expected}: the path has characters that must be percent-encoded")
    host = parts.hostname
    if not host.isascii():
        try:
            host = host.encode("idna").decode()
        except UnicodeError as exc:
            raise ValueError(f"{expected}: {exc}") from None
    if not HOST.fullmatch(host):
        raise ValueError(f"{expected}: the host has characters that are not allowed")
    port = PORTS[parts.scheme] if port is None else port
    return ServerUrl(parts.scheme, host, port, path)
