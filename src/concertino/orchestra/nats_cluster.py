"""open_cluster(): connects a hub or plugin to the servers of a NATS cluster.

    cluster = await open_cluster("tls://a,b,c", "tools.notes", certificates)

The forms of an address:

    tls://HOST,...    both sides present certificates of Orchestra's authority. The name in the
                      certificate of each server is NATS_SERVER; nats_user() returns the name in the
                      client's certificate
    nats://HOST,...   without TLS, unless the server requires TLS

If the environment variable CONCERTINO_CLUSTER_SEED names a file with an nkey, or a `.creds` file,
the client also authenticates with it (nats/credentials.py).
"""

from __future__ import annotations

import ssl
from collections.abc import Sequence

from concertino.nats.cluster import NatsCluster
from concertino.nats.connection import NotAuthorized
from concertino.nats.credentials import credentials_from_environment
from concertino.nats.servers import (
    NatsOptions,
    NatsServer,
    parse_servers,
)
from concertino.nats.subjects import FRONT_END, NATS_SERVER
from concertino.orchestra.authority import ensure_certificate
from concertino.orchestra.certificates import Certificates
from concertino.orchestra.nats_messages import MAX_WHOLE_BYTES
from concertino.orchestra.plugins_file import HUB

__all__ = ["nats_options", "nats_user", "open_cluster"]

# Room for the headers and the envelope of a message that is not sent in pieces.
MAX_HEADER_BYTES = 64 * 1024


def nats_user(name: str) -> str:
    """Return the user name under which a plugin, hub or front end connects to NATS.

    Returns PLUGIN-client for a plugin, and the other names unchanged. The certificate with which
    the process connects has the same name.
    name: the id of a plugin; `orchestrator` for a hub; `front-end` for a front end, which is a
        process that serves HTTP.
    """
    return name if name in (HUB, FRONT_END) else f"{name}-client"


async def open_cluster(address: str, name: str, certificates: Certificates | None) -> NatsCluster:
    """Connect to one of the servers of a cluster.

    address: the servers, such as `tls://HOST,HOST` or `nats://USER:PASSWORD@HOST:PORT`. They are
        tried in random order.
    name: the id of the plugin, or `orchestrator` for a hub.
    certificates: required for an address that begins with `tls://`; None otherwise.
    Raises Disconnected if no server can be reached, or none accepts messages of 320 KiB. Raises
    NotAuthorized if the server does not accept this client, ValueError for a malformed address, and
    the exceptions of nats_options().
    """
    servers = parse_servers(address)
    cluster = NatsCluster(servers, nats_options(servers, name, certificates))
    try:
        await cluster.open()
    except NotAuthorized as exc:
        raise NotAuthorized(
            f"{exc}; the servers accept the plugins that `concertino cluster up` or `permissions` "
            f"names: is {name} among them?"
        ) from None
    return cluster


def nats_options(
    servers: Sequence[NatsServer], name: str, certificates: Certificates | None
) -> NatsOptions:
    """Return the options for a connection to NATS servers.

    name: the id of the plugin, or `orchestrator` for a hub.
    certificates: required if one of the servers needs TLS; None otherwise.
    Raises ValueError if certificates are missing, or if the key file in CONCERTINO_CLUSTER_SEED
    cannot be used. Raises CertificateError if the client's certificate cannot be issued or used,
    OSError if a file cannot be read, and ImportError if the key file has a JWT and the extra `nats`
    is not installed.
    """
    context = None
    if any(server.needs_tls for server in servers):
        if certificates is None:
            raise ValueError(f"{servers[0]}: TLS needs the folder of certificates")
        context = _tls_context(certificates, nats_user(name))
    return NatsOptions(
        name=name,
        tls=context,
        server_name=NATS_SERVER if context is not None else "",
        credentials=credentials_from_environment(),
        max_message_bytes=MAX_WHOLE_BYTES + MAX_HEADER_BYTES,
    )


def _tls_context(certificates: Certificates, user: str) -> ssl.SSLContext:
    """Return the TLS settings of a client that trusts Orchestra's authority only.

    user: the name of the certificate that the client presents. It is issued if it is missing.
    """
    ensure_certificate(certificates, user)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(certificates.crt("ca"))
    # With the empty password, OpenSSL does not ask for a password on the terminal.
    context.load_cert_chain(certificates.crt(user), certificates.key(user), "")
    return context
