"""TrustedProxies: reads the headers in which a reverse proxy reports the client of a request.

A server with --behind-proxy reads them to refuse tokens that were sent without TLS, and to log the
client's address. Anybody can send these headers, so they are read only if the connection comes from
a trusted proxy. Each proxy appends a value, so the values are read from the right. A value that no
trusted proxy has appended may be forged.
Sources: RFC 7239 (Forwarded); X-Forwarded-For, X-Forwarded-Proto.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from msgspec import Struct

from concertino.http.request_head import RequestHead

__all__ = ["Forwarded", "TrustedProxies"]

# A quoted string; its content is the group. Anybody can send these headers, so each pattern takes a
# time that grows with the length of a header, and not with its square. For this, the content of
# QUOTED is limited, and the look-behind of PARAMETER finds a name from its first letter only.
QUOTED = r'"((?:[^"\\]|\\.){0,64})"'
# One parameter of the header Forwarded.
PARAMETER = re.compile(rf'(?<![A-Za-z])([A-Za-z]+)\s*=\s*(?:{QUOTED}|([^\s;,"]*))')
# The text between two commas that are not inside of quoted strings.
ELEMENT = re.compile(rf'(?:[^,"]|{QUOTED})+')
# The schemes without TLS. Some proxies write `ws` for a WebSocket.
UNENCRYPTED = frozenset(("http", "ws"))
# At most this many addresses are read, from the right.
MAX_HOPS = 16


class Forwarded(Struct, frozen=True):
    """What trusted proxies report about a request.

    address: the IP address of the client.
    is_unencrypted: whether the client has sent the request to the proxy without TLS; False if the
        proxies do not report that.
    """

    address: str
    is_unencrypted: bool = False


class TrustedProxies:
    """The reverse proxies whose X-Forwarded-... and Forwarded headers are believed.

    networks: their addresses or networks, such as `10.0.0.0/8`; empty if no proxy is trusted.
    """

    def __init__(self, networks: Sequence[str]) -> None:
        self._networks: list[IPv4Network | IPv6Network] = [ip_network(item) for item in networks]

    def read(self, head: RequestHead, peer: str | None) -> Forwarded:
        """Return what trusted proxies report about a request.

        If no trusted proxy has sent it, the result has only the address `peer`.

        peer: the address of the other end of the connection; "" if it is not known, so that it is
            not trusted; None for a Unix socket, whose clients run under the same user and are
            trusted.
        """
        if not self._networks:
            return Forwarded(peer or "")
        if peer is not None and not self._trusts(peer):
            return Forwarded(peer)
        if (header := head.headers.get(b"forwarded")) is not None:
            hops = [_parse_element(text) for text in _split(header.decode("latin-1"))]
            addresses = [hop.get("for", "") for hop in hops]
            protocols = [hop.get("proto", "") for hop in hops]
        else:
            addresses = _split(head.headers.get(b"x-forwarded-for", b"").decode("latin-1"))
            protocols = _split(head.headers.get(b"x-forwarded-proto", b"").decode("latin-1"))
        # Go from the nearest proxy to the client. The first address that is not a trusted proxy is
        # the client; what stands further left may be forged. With two proxies, for example:
        #   X-Forwarded-For:   CLIENT, PROXY_1    (PROXY_2 is `peer`)
        #   X-Forwarded-Proto: https, http        (of CLIENT to PROXY_1, of PROXY_1 to PROXY_2)
        client = peer or ""
        protocol = protocols.pop() if protocols else ""
        for text in reversed(addresses[-MAX_HOPS:]):
            address = _parse_address(text)
            if address is None:
                break
            client = address
            if not self._trusts(address):
                break
            # The proxy at this address is trusted, too, so the scheme that it has appended counts.
            # If there is none left, the proxies do not append schemes: keep the last one.
            protocol = protocols.pop() if protocols else protocol
        return Forwarded(client, protocol.strip().lower() in UNENCRYPTED)

    def _trusts(self, address: str) -> bool:
        """Return whether an address belongs to a trusted proxy."""
        try:
            ip = ip_address(address)
        except ValueError:
            return False
        if isinstance(ip, IPv6Address) and ip.ipv4_mapped is not None:
            ip = ip.ipv4_mapped
        return any(ip in network for network in self._networks)


def _split(text: str) -> list[str]:
    """Split a header at commas that are not inside of quoted strings."""
    return [match[0].strip() for match in ELEMENT.finditer(text)]


def _parse_element(text: str) -> dict[str, str]:
    """Return the parameters of one element of the header Forwarded, such as `for=...;proto=...`."""
    found: dict[str, str] = {}
    for match in PARAMETER.finditer(text):
        value = match[3] if match[2] is None else re.sub(r"\\(.)", r"\1", match[2])
        found.setdefault(match[1].lower(), value)
    return found


def _parse_address(text: str) -> str | None:
    """Return an IP address without its port; None if it is hidden (`_x`) or malformed."""
    text = text.strip().strip('"')
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        return str(ip_address(text.partition("%")[0]))
    except ValueError:
        return None
