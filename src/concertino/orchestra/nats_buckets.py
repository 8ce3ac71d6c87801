"""The key-value buckets of plugins and HTTP front ends, and how the operator of a hub creates them.

    for name, before, now in create_buckets("tls://a,b,c", ["storage.nats"], certificates, 3):
        ...

With the permissions of nats_permissions.py, only a hub's user may create buckets. At servers that
allow everything, each bucket is created by the first who uses it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from concertino.nats.blocking import BlockingNats
from concertino.nats.bucket import Bucket, BucketState
from concertino.nats.servers import parse_servers
from concertino.nats.subjects import FRONT_END, FRONT_END_BUCKETS
from concertino.orchestra.certificates import Certificates
from concertino.orchestra.nats_cluster import nats_options
from concertino.orchestra.plugins_file import HUB

__all__ = ["bucket_name", "buckets_of", "create_buckets"]

# How long servers may take to create a bucket, in seconds. With replicas, they agree on it first.
CREATE_S = 20.0


def create_buckets(
    address: str, owners: Sequence[str], certificates: Certificates | None, replicas: int
) -> Iterator[tuple[str, BucketState, BucketState]]:
    """Create the buckets of plugins and front ends as the hub's user.

    Yields each with its name, as create() has found it, and as it is now: a bucket that exists on
    fewer servers than `replicas` is stored on so many. Its other settings stay as they are.
    address, certificates: see open_cluster() in nats_cluster.py.
    owners: the ids of plugins, or `front-end`.
    Raises BucketError, ValueError, CertificateError, OSError, ImportError.
    """
    servers = parse_servers(address)
    server = BlockingNats(servers, nats_options(servers, HUB, certificates))
    try:
        for owner in owners:
            for name, max_age_s in buckets_of(owner).items():
                bucket = Bucket(
                    server,
                    name,
                    replicas=replicas,
                    max_age_s=max_age_s,
                    timeout_s=CREATE_S,
                    owner=owner,
                )
                found = bucket.create()
                yield name, found, found if found.replicas >= replicas else bucket.add_replicas()
    finally:
        server.close()


def buckets_of(owner: str) -> Mapping[str, float]:
    """Return the buckets of a plugin, or of the front ends.

    The values tell how long a bucket keeps what it stores, in seconds; 0 for ever.
    """
    if owner == FRONT_END:
        return FRONT_END_BUCKETS
    return {} if owner == HUB else {bucket_name(owner): 0.0}


def bucket_name(plugin: str) -> str:
    """Return the name of a plugin's key-value bucket. Buckets allow letters, digits, - and _."""
    return "".join(
        c if c.isascii() and (c.isalnum() or c == "-") else f"_{ord(c):x}" for c in plugin
    )
