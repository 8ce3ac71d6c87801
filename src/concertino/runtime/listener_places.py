"""Limits how many clients a listening socket may have, in all and for each user or address.

runtime/acceptor.py uses it. A "stranger" is a client that does not run as the user of this process:
another user of the machine (Unix socket), or any address (TCP). The rules:

- Each listener has its own limit, so strangers at a TCP port cannot lock out the owner of a Unix
  socket.
- One stranger (one user, or one address) gets at most three quarters of a listener's places.
- A stranger may connect and send nothing for hours. But when more than half of the places are taken
  and another client connects, the stranger that has been silent longest is disconnected.
- A client that runs as the user of this process is never disconnected.
"""

from __future__ import annotations

import os
import resource
from collections import Counter
from collections.abc import Mapping

__all__ = ["ListenerPlaces", "client_identity", "places_per_listener"]


def places_per_listener(max_connections: int, listeners: int) -> int:
    """Return how many clients each listener may have, at least 1.

    A single listener may have max_connections clients. Several listeners may each have fewer:
    together, they get at most half of the file descriptors that this process may open.
    listeners: the number of listeners.
    """
    # Without a share for each, the clients of one listener could use up all descriptors.
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if listeners < 2 or descriptors == resource.RLIM_INFINITY:
        return max_connections
    return min(max_connections, max(1, descriptors // 2 // listeners))


def client_identity(facts: Mapping[str, object]) -> str:
    """Return the identity of a client: "uid 1000", "192.0.2.1" or "2001:db8::/64".

    Returns "" for a client that runs as the user of this process.
    facts: the facts of the accepted connection, with `uid` (Unix socket) or `address` (TCP).
    """
    uid = facts.get("uid")
    if uid is not None:
        return "" if uid == os.geteuid() else f"uid {uid}"

    # Imported here, because only TCP needs it.
    from ipaddress import IPv6Address, ip_address

    # Remove the port, the brackets and the zone from an address such as [fe80::1%eth0]:80.
    host, _, _ = str(facts["address"]).rpartition(":")
    host, _, _ = host.strip("[]").partition("%")
    address = ip_address(host)
    if not isinstance(address, IPv6Address):
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    # ::1 is one machine, and the only address of its kind.
    if address.is_loopback:
        return host
    # Use only the first 64 bits: a machine chooses the other 64 bits itself, and could have any
    # number of addresses.
    network = IPv6Address(int(address) >> 64 << 64)
    return f"{network}/64"


class ListenerPlaces:
    """Counts the clients of one listener.

    A "stranger" is a client that does not run as the user of this process.

    Attributes:
    limit: how many clients there may be.
    limit_per_stranger: how many strangers with the same identity there may be.
    taken: how many clients there are.
    silent_strangers: the file descriptors of the sockets of strangers that have sent nothing so
        far, oldest first: a dict that is used as an ordered set. The Acceptor changes it.
    evictions: how many silent strangers were disconnected to make room for other clients.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.limit_per_stranger = limit - limit // 4
        self.taken = 0
        self.silent_strangers: dict[int, None] = {}
        self.evictions = 0
        self._by_identity: Counter[str] = Counter()

    @property
    def is_crowded(self) -> bool:
        """Return whether more than half of the places are taken."""
        return self.taken * 2 > self.limit

    def find_refusal(self, identity: str) -> str:
        """Return the reason to refuse a client, for the log; "" if there is a place for the client.

        identity: the result of client_identity() for the client.
        """
        if self.taken >= self.limit:
            return f"{self.taken} are connected, which is the maximum"
        if identity and (count := self._by_identity[identity]) >= self.limit_per_stranger:
            return f"{count} are connected from {identity}, which is the maximum for one"
        return ""

    def take(self, identity: str) -> None:
        """Count a client that has connected."""
        self.taken += 1
        self._by_identity[identity] += 1

    def release(self, identity: str) -> None:
        """Stop counting a client, because it has disconnected."""
        self.taken -= 1
        self._by_identity[identity] -= 1
        if not self._by_identity[identity]:
            del self._by_identity[identity]
