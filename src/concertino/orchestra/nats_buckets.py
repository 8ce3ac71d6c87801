"""The key-value buckets of plugins and HTTP front ends, and how the operator of a hub creates them.

    for name, found, now in create_buckets("tls://a,b,c", ["storage.nats"], certificates, 3):
        ...

A hub starts plugins and forwards requests to them. HTTP front ends are processes on several
machines that serve one MCP server over HTTP. Some plugins store documents in a bucket. Front ends
share the data of their sessions in two buckets.

If the servers have the permissions of nats_permissions.py, only the NATS user of a hub may create
buckets, and the operator runs `concertino cluster buckets`. If the servers have no permissions, the
first client that uses a bucket creates it.
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

# How long servers may take to create a bucket, in seconds. For a bucket with replicas, the servers
# of a cluster must agree with each other.
CREATE_S = 20.0


def create_buckets(
    address: str, owners: Sequence[str], certificates: Certificates | None, replicas: int
) -> Iterator[tuple[str, BucketState, BucketState]]:
    """Create the buckets of plugins and front ends as the NATS user of a hub.

    This is a generator: it creates a bucket when the next item is requested, so request all items.
    A bucket that exists keeps its settings, except that servers are added if it is stored on fewer
    servers than `replicas`.

    address: the NATS servers, such as `tls://a,b,c` or `nats://HOST:PORT`.
    owners: the ids of plugins, and `front-end` for the HTTP front ends.
    certificates: the directory with the hub's certificate; required for an address with `tls://`,
        None otherwise.
    replicas: on how many servers each bucket is stored at least.
    Yields (name, found, now) for each bucket:

    - name: the name of the bucket.
    - found: the state of the bucket before servers were added.
    - now: the state of the bucket now. It is the same object as `found` if no servers were added.

    Raises BucketError if no server can be reached, or if the servers refuse a request. Raises
    ValueError for a malformed address, and the exceptions of nats_options().
    """
    servers = parse_servers(address)
    nats = BlockingNats(servers, nats_options(servers, HUB, certificates))
    try:
        for owner in owners:
            for name, max_age_s in buckets_of(owner).items():
                bucket = Bucket(
                    nats,
                    name,
                    replicas=replicas,
                    max_age_s=max_age_s,
                    timeout_s=CREATE_S,
                    owner=owner,
                )
                found = now = bucket.create()
                if found.replicas < replicas:
                    now = bucket.add_replicas()
                yield name, found, now
    finally:
        nats.close()


def buckets_of(owner: str) -> Mapping[str, float]:
    """Return the key-value buckets of one owner: name -> how long it keeps a value, in seconds.

    The time is 0 for a bucket that keeps its values for ever.
    owner: the id of a plugin; FRONT_END for the HTTP front ends; or HUB, which has no bucket.
    """
    if owner == FRONT_END:
        return FRONT_END_BUCKETS
    return {} if owner == HUB else {bucket_name(owner): 0.0}


def bucket_name(plugin: str) -> str:
    """Return the name of a plugin's key-value bucket.

    plugin: the plugin's id. Each character that is not a letter, a digit or `-` is replaced by `_`
        and its hexadecimal code, because names of buckets have no other characters.
    """
    return "".join(
        c if c.isascii() and (c.isalnum() or c == "-") else f"_{ord(c):x}" for c in plugin
    )
