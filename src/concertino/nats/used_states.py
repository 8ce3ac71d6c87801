"""NatsUsedStates: a record of the sealed states that were used, shared by machines of a cluster.

A sealed state is the requestState of a call that requests input of its client (protocol/seal.py).
The client may send it back only once, to any of the HTTP front ends that serve the same MCP server.
NatsUsedStates implements UsedStates with a key-value bucket. A key can be created only once, so
only one of several processes accepts a state. The event loop is blocked during the request, as it
is with the file of runtime/used_states.py.
"""

from __future__ import annotations

import time
from pathlib import Path

from concertino.nats.blocking import BlockingNats
from concertino.nats.bucket import Bucket, BucketError
from concertino.nats.credentials import credentials_from_environment
from concertino.nats.servers import NatsOptions, front_end_tls, parse_servers
from concertino.nats.subjects import (
    FRONT_END,
    FRONT_END_BUCKETS,
    HTTP_CLIENT,
    NATS_SERVER,
    STATES_BUCKET,
)

__all__ = ["NatsUsedStates"]

# How long the bucket keeps a state, in seconds. use() refuses states that are valid for longer.
KEPT_S = FRONT_END_BUCKETS[STATES_BUCKET]
# For how long a request, or an attempt to connect, blocks the event loop at most, in seconds.
REQUEST_S = 0.05
CONNECT_S = 0.25


class NatsUsedStates:
    """Records in a NATS cluster which sealed states clients have sent back.

    A sealed state is the requestState of a call that requests input of its client. The first call
    of use() connects, and creates the bucket if it does not exist.

    address: the servers, such as `nats://USER:PASSWORD@a,b,c` or `tls://a,b`.
    certs: the directory of certificates for TLS, as for front_end_tls(). The servers must have a
        certificate of the same authority. None to present no certificate.
    replicas: on how many servers a state is stored. Has no effect if the bucket exists already.
    Raises ValueError for a malformed address, for certificates that cannot be used, and for a key
    file (CONCERTINO_CLUSTER_SEED) that cannot be used. Raises OSError if this file cannot be read.
    """

    def __init__(self, address: str, certs: Path | None = None, replicas: int = 1) -> None:
        options = NatsOptions(
            HTTP_CLIENT,
            tls=None if certs is None else front_end_tls(certs),
            server_name="" if certs is None else NATS_SERVER,
            credentials=credentials_from_environment(),
        )
        nats = BlockingNats(parse_servers(address), options, CONNECT_S)
        self._bucket = Bucket(
            nats,
            STATES_BUCKET,
            replicas=replicas,
            max_age_s=KEPT_S,
            timeout_s=REQUEST_S,
            owner=FRONT_END,
        )

    def use(self, nonce: bytes, expires: float) -> bool:
        """Record a state. Returns True, or False if any process has recorded the state before.

        Blocks the event loop for at most 50 ms for each request to the servers, and for at most
        250 ms for each attempt to connect.
        nonce: identifies the state.
        expires: when the state expires, in seconds since 1970.
        Raises OSError if the record cannot be written, or if the state expires later than the
        bucket keeps the record (an hour).
        """
        if expires > time.time() + KEPT_S:
            raise OSError(f"{STATES_BUCKET} keeps states for {KEPT_S:g} s only")
        try:
            return self._bucket.put(nonce.hex(), b"", expected=0) is not None
        except BucketError as exc:
            raise OSError(str(exc)) from None

    def close(self) -> None:
        """Disconnect. The next call of use() connects again."""
        self._bucket.close()
