"""open_link(), listen_for_links(): open RPC connections ("links"), and listen for them.

Hubs, plugins and bridges send each other requests over links. The side that connects sends the
requests, and the side that listens answers them.

    listener = await listen_for_links("unix:/run/user/1/hub.sock", answer)   # answers requests
    link = await open_link("unix:/run/user/1/hub.sock")                      # sends requests
    response = await link.request(request)

The address selects the transport: a Unix socket (unix_link.py), QUIC (quic_link.py) or a NATS
cluster (nats_link.py). rpc_interface.py defines the interfaces of connections and listeners.
reconnecting_link.py has a connection that reconnects.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from concertino.nats.servers import is_cluster_address, parse_servers
from concertino.orchestra.rpc_interface import (
    ForwardingConnection,
    RelayHandler,
    RequestHandler,
    RpcListener,
)
from concertino.orchestra.unix_link import listen_unix_links, open_unix_link
from concertino.transports.addresses import unix_name
from concertino.transports.listeners import split_address

# Not imported at run time, because connections over a Unix socket do not need the package
# cryptography.
if TYPE_CHECKING:
    from concertino.orchestra.certificates import Certificates

__all__ = ["check_hub_address", "listen_for_links", "open_link"]

# The default of open_link()'s `timeout_s`. The Go implementation has the same limit.
CONNECT_S = 5.0


async def listen_for_links(
    address: str,
    answer: RequestHandler,
    *,
    certificates: Certificates | None = None,
    name: str = "",
    admits: Callable[[str], bool] | None = None,
    relay: RelayHandler | None = None,
) -> RpcListener:
    """Listen at an address, on the running loop, and handle the requests that arrive.

    address: `unix:PATH`, in a directory of mode 0700; `HOST:PORT` for QUIC, port 0 for a free one;
        or `nats://HOST,...` or `tls://HOST,...` for a cluster (nats_cluster.py).
    answer: handles each request that `relay` does not forward.
    certificates: the directory of certificates; required for QUIC and TLS.
    name: the name of this side's certificate; required for QUIC and a cluster.
    admits: called, over QUIC, with the name in a client's verified certificate. Returns whether
        this client may connect. None admits every client with a valid certificate.
    relay: called first with each request, to forward it without decoding it. None if every request
        goes to `answer`.
    Raises OSError if the address cannot be used, ValueError if it is malformed, and
    CertificateError if this side's certificate cannot be used.
    """
    if address.startswith("unix:"):
        return listen_unix_links(address.removeprefix("unix:"), answer, relay)
    if is_cluster_address(address):
        from concertino.orchestra.nats_listener import listen_nats_links

        return await listen_nats_links(address, answer, relay, certificates, name)
    if certificates is None or not name:
        raise ValueError(f"{address}: QUIC needs certificates and the name of one")

    # Imported only now, because QUIC takes 100 ms to load and most plugins use a Unix socket.
    from concertino.orchestra.quic_listener import listen_quic_links

    return await listen_quic_links(address, answer, relay, certificates, name, admits)


async def open_link(
    address: str,
    *,
    certificates: Certificates | None = None,
    name: str = "",
    expects: str | None = None,
    timeout_s: float = CONNECT_S,
) -> ForwardingConnection:
    """Connect to the listener at an address, on the running loop.

    address: `unix:PATH`; `HOST:PORT` for QUIC; `nats://HOST,...` or `tls://HOST,...` for a cluster.
    certificates: the directory of certificates; required for QUIC and TLS.
    name: the name of this side's certificate; required for QUIC and a cluster.
    expects: what must answer:
        - On a Unix socket, it is not used.
        - Over QUIC, the name that the listener's certificate must contain; None accepts any name.
          The certificate must also be valid for the host in the address.
        - In a cluster, the id of the plugin to call; None for a hub.
    timeout_s: how long to wait for the listener's first answer, in seconds. Over QUIC, the
        handshake may take 15 s after this answer.
    Raises:
        Disconnected: the listener does not answer or finish the handshake in time.
        TimedOut: in a cluster, the plugin or hub does not answer the first request in time,
            although it has accepted the request.
        HandshakeFailure: one side refuses the other.
        CertificateError: this side's certificate cannot be used.
        ValueError: the address is malformed.
    """
    if address.startswith("unix:"):
        return await open_unix_link(address.removeprefix("unix:"), timeout_s)
    if is_cluster_address(address):
        from concertino.orchestra.nats_link import open_nats_link

        return await open_nats_link(address, certificates, name, expects, timeout_s)
    if certificates is None or not name:
        raise ValueError(f"{address}: QUIC needs certificates and the name of one")

    # Imported only now, as in listen_for_links().
    from concertino.orchestra.quic_link import open_quic_link

    return await open_quic_link(address, certificates, name, expects, timeout_s)


def check_hub_address(address: str) -> str:
    """Return the address of a hub unchanged if it is well-formed and its port is not 0.

    Raises ValueError otherwise.
    """
    try:
        if is_cluster_address(address):
            parse_servers(address)
        elif address.startswith("unix:"):
            unix_name(address.removeprefix("unix:"))
        elif split_address(address)[1] == 0:
            raise ValueError
    except ValueError:
        raise ValueError(
            "the orchestrator's address: expected HOST:PORT, as in localhost:50100, "
            f"unix:PATH or nats://HOST, got {address!r}"
        ) from None
    return address
