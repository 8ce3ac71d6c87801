"""AddressPolicy: checks the addresses behind URLs that another server has named.

The URLs of an authorization server come from a document that an MCP server or an issuer of tokens
names. Without a check, that server could make this program send requests into its own network, such
as to the metadata service of a cloud (server-side request forgery).

AddressPolicy.check() resolves a host name, checks all of its addresses, and returns them. The
caller connects to one of the returned addresses and does not resolve the name again, because a
second resolution could return another address.
Source: 2025-11-25 and 2026-07-28 basic/authorization "Server-Side Request Forgery".
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import Literal

from concertino.errors import AuthorizationError
from concertino.http_client.server_url import ServerUrl
from concertino.transports.listeners import errno_message

__all__ = ["AddressPolicy", "Reach", "find_reach", "resolve"]

# In which network a server is, from the nearest to the widest: on this machine ("loopback"), in a
# private network, or in the internet ("public").
Reach = Literal["loopback", "private", "public"]
# The last four bytes of these addresses are an IPv4 address: those of NAT64 (RFC 6052), and the
# IPv4-translated ones (RFC 7915).
NAT64 = IPv6Network("64:ff9b::/96")
TRANSLATED = IPv6Network("::ffff:0:0:0/96")
# For NAT64 within a private network (RFC 8215). Older versions of Python take it for a public one.
LOCAL_NAT64 = IPv6Network("64:ff9b:1::/48")
# The network of a server that has sent a URL -> the networks into which the URL may lead.
ALLOWED: Mapping[Reach, tuple[Reach, ...]] = {
    "loopback": ("loopback", "private", "public"),
    "private": ("private", "public"),
    "public": ("public",),
}
# At most this many addresses of a host name are used.
MAX_ADDRESSES = 16


async def resolve(url: ServerUrl) -> list[str]:
    """Return the IP addresses of a URL's host, at most 16.

    Raises OSError if the host has no address.
    """
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(url.host, url.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as exc:
        raise OSError(f"{url.host}: {errno_message(exc)}") from None
    addresses = list(dict.fromkeys(str(item[4][0]) for item in found))
    if not addresses:
        raise OSError(f"{url.host}: no address was found")
    return addresses[:MAX_ADDRESSES]


def address_reach(text: str) -> Reach | None:
    """Return in which network an IP address is: "loopback" (this machine), "private" or "public".

    Returns None for an address that no server can have, such as a multicast address. For an IPv6
    address that embeds an IPv4 address, returns the network of the IPv4 address.
    text: the address.
    """
    # Ignore the zone, as in fe80::1%eth0.
    address = _embedded_ipv4(ip_address(text.partition("%")[0]))
    if address.is_loopback:
        return "loopback"
    if address.is_multicast or address.is_unspecified or address.is_link_local:
        return None
    if isinstance(address, IPv6Address) and (address.is_site_local or address in LOCAL_NAT64):
        return "private"
    if address.is_global:
        return "public"
    # Do not use `is_private`, which is False for the shared address space 100.64.0.0/10.
    return "private"


def _embedded_ipv4(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """Return the IPv4 address that an IPv6 address embeds; without one, the address itself."""
    if isinstance(address, IPv4Address):
        return address
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    if address.teredo is not None:
        return address.teredo[1]
    # The old "IPv4-compatible" form consists of zeros and the IPv4 address. But 0 and 1 are the
    # IPv6 addresses `::` and `::1`.
    is_compatible = 1 < int(address) < 2**32
    if is_compatible or address in NAT64 or address in TRANSLATED:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address


async def find_reach(url: ServerUrl) -> Reach:
    """Return in which network a server is: "loopback" (this machine), "private" or "public".

    A server with addresses in several networks is in the widest of them. A server whose name this
    machine cannot resolve, because only an HTTP proxy can, counts as public.
    """
    try:
        reaches = [address_reach(address) for address in await resolve(url)]
    except OSError:
        return "public"
    if all(reach == "loopback" for reach in reaches):
        return "loopback"
    if all(reach in ("loopback", "private") for reach in reaches):
        return "private"
    return "public"


class AddressPolicy:
    """Checks the URLs that another server has sent to this program, before they are requested.

    Such a URL must not lead into a nearer network than that of the server which has sent it. So a
    URL from a public server may lead neither into a private network nor to this machine.

    reach: the network of the server that has sent the URLs, as find_reach() returns it. With
        "loopback", the URLs may lead anywhere; use it for URLs that the user has configured.
    source: a description of that server, for the texts of errors.
    """

    def __init__(self, reach: Reach, source: str = "the MCP server") -> None:
        self._reach: Reach = reach
        self._source = source

    async def check(self, url: ServerUrl) -> list[str]:
        """Check all addresses of a URL's host, and return them.

        Connect to one of these addresses, and do not resolve the host name again.

        Raises AuthorizationError if one of the addresses is not allowed. Also raises it for a URL
        without TLS, if the host or the server that has sent the URL is not on this machine. Raises
        OSError if the host has no address.
        """
        addresses = await resolve(url)
        reaches = {address: address_reach(address) for address in addresses}
        is_local = all(reach == "loopback" for reach in (self._reach, *reaches.values()))
        if not url.is_tls and not is_local:
            raise AuthorizationError(f"{url.text}: expected https, because secrets travel here")
        for address, reach in reaches.items():
            if reach is None:
                raise AuthorizationError(f"{url.text}: no server can have its address {address}")
            if reach not in ALLOWED[self._reach]:
                raise AuthorizationError(
                    f"{url.text}: its address {address} is in a nearer network than "
                    f"{self._source}, which must not lead others to addresses that it cannot reach"
                )
        return addresses
