"""Connects to a server through an HTTP proxy, with the HTTP method CONNECT.

These environment variables count, also in lower case:

- HTTPS_PROXY: the URL of the proxy for servers with https URLs.
- HTTP_PROXY: the URL of the proxy for servers with http URLs.
- ALL_PROXY: the URL of the proxy for servers for which none of the above is set.
- NO_PROXY: the servers to which to connect without a proxy.

Source: RFC 9110, section 9.3.6 "CONNECT".
"""

from __future__ import annotations

import asyncio
import base64
import os
import re
from urllib.parse import unquote, urlsplit

from msgspec import Struct

__all__ = ["ProxyAddress", "find_proxy", "open_tunnel"]

# The largest size of the proxy's response to CONNECT, in bytes.
MAX_HEAD_BYTES = 16 * 1024
# The beginning of the response. The group is the status.
STATUS_LINE = re.compile(rb"HTTP/\d\.\d (\d{3})[ \r]")
CLOSED = "the proxy closed the connection"


class ProxyAddress(Struct, frozen=True):
    """The address of an HTTP proxy. Its repr() does not show the password.

    authorization: the value of the header Proxy-Authorization, which contains the password; "" for
        a proxy without a password.
    """

    host: str
    port: int
    authorization: str = ""

    def __repr__(self) -> str:
        return f"ProxyAddress({self.host!r}, {self.port})"


def find_proxy(scheme: str, host: str, port: int) -> ProxyAddress | None:
    """Return the proxy that the environment names for a server; None if it names none.

    HTTPS_PROXY or HTTP_PROXY names it, depending on the scheme, or ALL_PROXY if that variable is
    not set. NO_PROXY excludes servers.

    scheme: the scheme of the server's URL: http or https.
    host, port: the server to connect to.
    Raises ValueError if the variable does not contain the URL of an HTTP proxy.
    """
    name = f"{scheme}_proxy" if _read_variable(f"{scheme}_proxy") else "all_proxy"
    text = _read_variable(name)
    if not text or _is_excluded(host.lower(), port):
        return None
    parts = urlsplit(text if "://" in text else f"http://{text}")
    if parts.scheme != "http" or not parts.hostname:
        raise ValueError(f"{name}: expected the URL of an HTTP proxy (http://HOST:PORT)")
    authorization = ""
    if parts.username is not None:
        user_and_password = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        authorization = f"Basic {base64.b64encode(user_and_password.encode()).decode()}"
    return ProxyAddress(parts.hostname, parts.port or 80, authorization)


def _read_variable(name: str) -> str:
    """Return the value of an environment variable; "" if it is not set.

    name: the name in lower case. The name in upper case is read if this one is not set. But in a
        CGI program HTTP_PROXY is ignored, because it holds the header `Proxy` of the request.
    """
    value = os.environ.get(name, "")
    if not value and not (name == "http_proxy" and "REQUEST_METHOD" in os.environ):
        value = os.environ.get(name.upper(), "")
    return value.strip()


def _is_excluded(host: str, port: int) -> bool:
    """Return whether NO_PROXY contains the host of a server, a domain of the host, or `*`."""
    for item in map(str.strip, _read_variable("no_proxy").lower().split(",")):
        name, only_port = item, ""
        # An item with several colons and without brackets is an IPv6 address without a port.
        if item.count(":") == 1 or "]:" in item:
            name, _, only_port = item.rpartition(":")
        # `[::1]` means the address, and `*.example.com` and `.example.com` mean the domain.
        name = name.strip("[]").removeprefix("*.").lstrip(".")
        if only_port and only_port != str(port):
            continue
        if name == "*" or (name and (host == name or host.endswith(f".{name}"))):
            return True
    return False


async def open_tunnel(proxy: ProxyAddress, host: str, port: int) -> asyncio.Transport:
    """Connect to a server through a proxy, and return the transport of the connection.

    The transport still has the asyncio protocol that has read the proxy's response. Replace it with
    transport.set_protocol(), or with loop.start_tls() for a server with TLS.

    proxy: the proxy, as find_proxy() returns it.
    host, port: the server to connect to.
    Raises OSError if the proxy cannot be reached or refuses the connection.
    """
    loop = asyncio.get_running_loop()
    transport, response = await loop.create_connection(_TunnelResponse, proxy.host, proxy.port)
    try:
        name = f"[{host}]" if ":" in host else host
        lines = [f"CONNECT {name}:{port} HTTP/1.1", f"Host: {name}:{port}"]
        if proxy.authorization:
            lines.append(f"Proxy-Authorization: {proxy.authorization}")
        transport.write("\r\n".join((*lines, "", "")).encode("ascii"))
        status = await response.status
    except BaseException:
        transport.abort()
        raise
    if not 200 <= status < 300:
        transport.abort()
        raise ConnectionRefusedError(f"the proxy {proxy.host}:{proxy.port} answered {status}")
    if transport.is_closing():
        # The protocol that replaces this one would not learn of the end.
        raise ConnectionError(CLOSED)
    return transport


class _TunnelResponse(asyncio.Protocol):
    """Reads the response to CONNECT.

    Attributes:
    status: a future for the HTTP status of the response. It raises ConnectionError if there is no
        valid response.
    """

    def __init__(self) -> None:
        self.status: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._head = b""

    def data_received(self, data: bytes) -> None:
        self._head += data
        if self.status.done():
            return
        is_complete = b"\r\n\r\n" in self._head
        if not is_complete and len(self._head) <= MAX_HEAD_BYTES:
            return
        match = STATUS_LINE.match(self._head) if is_complete else None
        if match is not None:
            self.status.set_result(int(match[1]))
        else:
            self.status.set_exception(ConnectionError("the proxy's response is not HTTP"))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.status.done():
            self.status.set_exception(exc or ConnectionError(CLOSED))
