"""The places of one listener: who may connect, and who goes when places get scarce.

Each listener has places of its own, so that strangers at a TCP port cannot lock out the owner of a
Unix socket. One stranger, known by address or user, gets three quarters of a listener's places at
most. A host may connect and be silent for hours: a silent stranger is disconnected only while more
than half of the places are taken and somebody else comes. A process of our own user always stays.
"""

from __future__ import annotations

import os
import resource
from collections import Counter
from collections.abc import Mapping

__all__ = ["ListenerPlaces", "identity_of", "places_per_listener"]


def places_per_listener(max_connections: int, listeners: int) -> int:
    """Return how many clients each listener may have.

    Several listeners together get at most half of the descriptors that the process may open: else
    the clients of one could take them all.
    """
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if listeners < 2 or descriptors == resource.RLIM_INFINITY:
        return max_connections
    return min(max_connections, max(1, descriptors // 2 // listeners))


def identity_of(facts: Mapping[str, object]) -> str:
    """Return who a client is, as far as its connection tells; "" for a process of our own user.

    A user of this machine, an IPv4 address, or the 64 bits of an IPv6 address that name a network:
    a host may choose the others.
    """
    uid = facts.get("uid")
    if uid is not None:
        return "" if uid == os.geteuid() else f"uid {uid}"

    # Imported here, because only TCP needs it.
    from ipaddress import IPv6Address, ip_address

    host = str(facts["address"]).rpartition(":")[0].strip("[]").partition("%")[0]
    address = ip_address(host)
    if not isinstance(address, IPv6Address):
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return host if address.is_loopback else f"{IPv6Address(int(address) >> 64 << 64)}/64"


class ListenerPlaces:
    """Counts the clients of one listener.

    limit: how many there may be. limit_per_stranger: how many of one identity, unless it is our
    own. taken: how many there are. silent_strangers: the descriptors of those who have sent
    nothing, in the order in which they came.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.limit_per_stranger = limit - limit // 4
        self.taken = 0
        self.silent_strangers: dict[int, None] = {}
        # How many silent strangers had to go.
        self.evictions = 0
        self._by_identity: Counter[str] = Counter()

    @property
    def is_crowded(self) -> bool:
        """Return whether more than half of the places are taken."""
        return self.taken * 2 > self.limit

    def find_refusal(self, identity: str) -> str:
        """Return why a client must be refused; "" if there is a place for it."""
        if self.taken >= self.limit:
            return f"{self.taken} are connected, which is the maximum"
        if identity and (count := self._by_identity[identity]) >= self.limit_per_stranger:
            return f"{count} are connected from {identity}, which is the maximum for one"
        return ""

    def take(self, identity: str) -> None:
        """Give a client a place."""
        self.taken += 1
        self._by_identity[identity] += 1

    def release(self, identity: str) -> None:
        """Free the place of a client that is gone."""
        self.taken -= 1
        self._by_identity[identity] -= 1
        if not self._by_identity[identity]:
            del self._by_identity[identity]
