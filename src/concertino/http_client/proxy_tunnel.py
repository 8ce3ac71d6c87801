"""Connects through the HTTP proxies in the variables HTTPS_PROXY, HTTP_PROXY and NO_PROXY.

Source: RFC 9110, section 9.3.6 "CONNECT".
"""

from __future__ import annotations

import asyncio
import base64
import os
from urllib.parse import unquote, urlsplit

from msgspec import Struct

__all__ = ["ProxyAddress", "find_proxy", "open_tunnel"]

MAX_HEAD_BYTES = 16 * 1024


class ProxyAddress(Struct, frozen=True):
    """An HTTP proxy. authorization: the value of Proxy-Authorization, or ""."""

    host: str
    port: int
    authorization: str = ""

    def __repr__(self) -> str:
        return f"ProxyAddress({self.host!r}, {self.port})"


def find_proxy(scheme: str, host: str, port: int) -> ProxyAddress | None:
    """Return the proxy for an address, by the variables of the environment; None without one.

    scheme: http or https. Raises ValueError if the variable does not name an HTTP proxy.
    """
    text = _variable(f"{scheme}_proxy") or _variable("all_proxy")
    if not text or _is_excluded(host.lower(), port):
        return None
    parts = urlsplit(text if "://" in text else f"http://{text}")
    if parts.scheme != "http" or not parts.hostname:
        raise ValueError(f"{scheme}_proxy: expected the URL of an HTTP proxy (http://HOST:PORT)")
    authorization = ""
    if parts.username is not None:
        words = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        authorization = f"Basic {base64.b64encode(words.encode()).decode()}"
    return ProxyAddress(parts.hostname, parts.port or 80, authorization)


def _variable(name: str) -> str:
    """Return an environment variable, whose name may be in small or in capital letters.

    In a CGI program, HTTP_PROXY is a header of the request (httpoxy), so only http_proxy counts.
    """
    value = os.environ.get(name, "")
    if not value and not (name == "http_proxy" and "REQUEST_METHOD" in os.environ):
        value = os.environ.get(name.upper(), "")
    return value.strip()


def _is_excluded(host: str, port: int) -> bool:
    """Return whether NO_PROXY names an address: the host, a domain that it is in, or `*`."""
    for item in map(str.strip, _variable("no_proxy").lower().split(",")):
        name, only_port = item, ""
        # An IPv6 address without brackets has several colons, and no port.
        if item.count(":") == 1 or "]:" in item:
            name, _, only_port = item.rpartition(":")
        name = name.strip("[]").removeprefix("*.").lstrip(".")
        if only_port and only_port != str(port):
            continue
        if name == "*" or (name and (host == name or host.endswith(f".{name}"))):
            return True
    return False


async def open_tunnel(proxy: ProxyAddress, host: str, port: int) -> asyncio.Transport:
    """Connect to an address through a proxy. Raises OSError if the proxy refuses."""
    loop = asyncio.get_running_loop()
    transport, answer = await loop.create_connection(_TunnelAnswer, proxy.host, proxy.port)
    try:
        name = f"[{host}]" if ":" in host else host
        lines = [f"CONNECT {name}:{port} HTTP/1.1", f"Host: {name}:{port}"]
        if proxy.authorization:
            lines.append(f"Proxy-Authorization: {proxy.authorization}")
        transport.write("\r\n".join((*lines, "", "")).encode("ascii"))
        status = await answer.status
    except BaseException:
        transport.abort()
        raise
    if not 200 <= status < 300:
        transport.abort()
        raise ConnectionRefusedError(f"the proxy {proxy.host}:{proxy.port} answered {status}")
    return transport


class _TunnelAnswer(asyncio.Protocol):
    """Reads the response to CONNECT. status: a future for its status."""

    def __init__(self) -> None:
        self.status: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._head = b""

    def data_received(self, data: bytes) -> None:
        self._head += data
        line, _, _ = self._head.partition(b"\r\n")
        words = line.split(b" ", 2)
        is_complete = b"\r\n\r\n" in self._head
        if (not is_complete and len(self._head) <= MAX_HEAD_BYTES) or self.status.done():
            return
        if is_complete and len(words) >= 2 and words[1].isdigit() and len(words[1]) == 3:
            self.status.set_result(int(words[1]))
        else:
            self.status.set_exception(ConnectionError("the proxy's response is not HTTP"))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.status.done():
            self.status.set_exception(exc or ConnectionError("the proxy closed the connection"))
