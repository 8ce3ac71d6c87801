"""The TLS handshake of QUIC connections: both sides present a certificate, and both are verified.

Hubs, plugins and bridges connect to each other over QUIC. quic_link.py (the client) and
quic_listener.py (the server) create these connections with make_configuration() and
require_peer_certificate().

The QUIC library, aioquic, does not request and verify client certificates. So each connection of
this package replaces the class of its TLS context with a stricter subclass. The subclass overrides
private methods of aioquic. Therefore the version of aioquic is pinned to 1.7, and ensure_strict()
tests, before a process listens, that a client without a certificate is refused.

TLS session tickets are not used, because a client that resumes a session presents no certificate.
Sources: RFC 8446 sections 4.3.2 and 4.4.2; RFC 9001 section 8; the Orchestra plugin protocol,
"QUIC".
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache
from typing import Any, cast

from concertino.installation import missing_extra
from concertino.orchestra.authority import (
    RENEW_BEFORE,
    create_temporary_identity,
    ensure_certificate,
)
from concertino.orchestra.certificates import CertificateError, Certificates, Identity, Side, verify
from concertino.orchestra.frames import MAX_FRAME_BYTES
from concertino.transports.addresses import is_loopback

try:
    from aioquic import tls
    from aioquic._buffer import Buffer
    from aioquic.quic.configuration import QuicConfiguration
    from aioquic.quic.connection import Limit, QuicConnection
    from aioquic.quic.events import ConnectionTerminated, HandshakeCompleted, QuicEvent
    from aioquic.quic.packet import QuicFrameType, pull_quic_transport_parameters
    from cryptography.hazmat.primitives.serialization import Encoding
except ImportError:
    raise ImportError(missing_extra("a hub or plugin", "orchestra")) from None

__all__ = [
    "ALPN",
    "CRYPTO_ERROR",
    "STREAMS",
    "CheckName",
    "CurrentIdentity",
    "QuicConnection",
    "enlarge_datagrams",
    "ensure_strict",
    "make_configuration",
    "peer_name",
    "require_peer_certificate",
]

log = logging.getLogger("concertino.orchestra")

# The protocol that both sides must name in the handshake (ALPN).
ALPN = "orchestra-plugin"
# How many requests may be in progress on one connection, as in the Go implementation.
STREAMS = 100
# The largest datagram that is sent. quic-go, the library of the Go implementation, accepts no
# larger datagrams.
DATAGRAM_BYTES = 1452
# The largest datagram that is sent to a loopback address, if the peer accepts it. Large packets
# save CPU time, because a packet costs about the same whatever its size. Larger ones than this save
# little more (decision 0135).
LOOPBACK_DATAGRAM_BYTES = 8192
# A connection ends after this time without a packet, in seconds.
IDLE_S = 30.0
# Flow control: how many bytes the peer may send, on one stream and on one connection, before this
# process has read them. The longest frame and its header fit into the window of one stream, so that
# a sender need not wait for a larger window in the middle of a frame.
STREAM_WINDOW = MAX_FRAME_BYTES + 2**20
CONNECTION_WINDOW = 64 * 2**20
# The QUIC error codes for TLS alerts, RFC 9000 section 20.1.
CRYPTO_ERROR = range(0x100, 0x200)

# Make aioquic log no errors, because quic_link.py reports each error once, in plain words.
logging.getLogger("quic").setLevel(logging.CRITICAL)

CheckName = Callable[[str], str | None]
"""Checks the name in the peer's verified certificate. Returns None to accept the peer, or the
reason to refuse the peer."""


def make_configuration(side: Side, identity: Identity, server_name: str = "") -> QuicConfiguration:
    """Return the configuration that aioquic needs for a connection.

    side: whether this process is the server or the client.
    identity: the certificate that this process presents, and the authority that it trusts.
    server_name: the host name or IP address to which a client connects; "" for a server.
    """
    return QuicConfiguration(
        alpn_protocols=[ALPN],
        is_client=side == "client",
        certificate=identity.certificate,
        private_key=identity.key,
        cadata=identity.authority.public_bytes(Encoding.PEM),
        verify_mode=ssl.CERT_REQUIRED,
        server_name=server_name or None,
        idle_timeout=IDLE_S,
        max_datagram_size=DATAGRAM_BYTES,
        max_data=CONNECTION_WINDOW,
        max_stream_data=STREAM_WINDOW,
    )


def require_peer_certificate(
    connection: QuicConnection, identity: Identity, check_name: CheckName
) -> None:
    """Make a connection require and verify the peer's certificate.

    Also limits how many streams the peer may open. Call this before the connection sends or
    receives anything.
    identity: the certificate that this process presents, and the authority that it trusts.
    check_name: called with the name in the peer's certificate after the certificate was verified.
        Returns None to accept the peer, or the reason to refuse the peer.
    """
    # Any, because the following attributes are private to aioquic.
    private = cast(Any, connection)
    private._local_max_streams_bidi = Limit(
        QuicFrameType.MAX_STREAMS_BIDI, "max_streams_bidi", STREAMS
    )
    # The plugin protocol uses only streams in both directions.
    private._local_max_streams_uni = Limit(QuicFrameType.MAX_STREAMS_UNI, "max_streams_uni", 0)
    # The connection creates its TLS context in _initialize(), when it sends or receives first.
    initialize = private._initialize

    def initialize_strictly(peer_cid: bytes) -> None:
        initialize(peer_cid)
        context = private.tls
        context.__class__ = _StrictContext
        context.certificate = identity.certificate
        context.certificate_private_key = identity.key
        context.identity = identity
        context.check_name = check_name
        # A server requests a certificate of the client.
        context._request_client_certificate = not context._is_client

    private._initialize = initialize_strictly


def enlarge_datagrams(connection: QuicConnection) -> None:
    """Let a connection send datagrams of up to LOOPBACK_DATAGRAM_BYTES, if its peer accepts them.

    Does nothing if the peer is not at a loopback address. Call this after the handshake, in which
    the peer may state the largest datagram it accepts (RFC 9000 section 18.2).
    """
    private = cast(Any, connection)
    address = connection.get_peer_address()
    if address is None or not is_loopback(str(address[0])):
        return
    limit = LOOPBACK_DATAGRAM_BYTES
    for extension, data in private.tls.received_extensions:
        if extension == tls.ExtensionType.QUIC_TRANSPORT_PARAMETERS:
            parameters = pull_quic_transport_parameters(Buffer(data=data))
            limit = min(limit, parameters.max_udp_payload_size or limit)
    # Never less than DATAGRAM_BYTES, which the connection has used since its start.
    size = max(limit, DATAGRAM_BYTES)
    # aioquic's objects for congestion control and pacing have copies of the size.
    recovery = private._loss
    for part in (private, recovery._cc, recovery._pacer):
        part._max_datagram_size = size


def peer_name(connection: QuicConnection) -> tuple[str, datetime]:
    """Return the name in the peer's certificate, and the time when the certificate expires.

    connection: a connection whose handshake is finished.
    """
    context = cast(_StrictContext, connection.tls)
    certificate = cast(Any, context)._peer_certificate
    return context.name, certificate.not_valid_after_utc


class _StrictContext(tls.Context):
    """aioquic's TLS context, changed so that each side verifies the certificate of the other side.

    aioquic calls the overridden methods during the handshake.

    Attributes:
    identity: the certificate that this process presents, and the authority that it trusts.
    check_name: accepts or refuses the name in the peer's certificate.
    name: the name in the peer's certificate, after the certificate was verified.
    """

    identity: Identity
    check_name: CheckName
    name: str

    def _set_peer_certificate(self, certificate: Any) -> None:
        """Store the peer's certificate. Refuse it if verify() or check_name() refuses it."""
        cast(Any, super())._set_peer_certificate(certificate)
        private = cast(Any, self)
        peer_side: Side = "server" if private._is_client else "client"
        try:
            self.name = verify(private._peer_certificate, self.identity.authority, peer_side)
        except CertificateError as exc:
            raise tls.AlertBadCertificate(str(exc)) from None
        refusal = self.check_name(self.name)
        if refusal is not None:
            raise tls.AlertBadCertificate(refusal)

    def _server_handle_certificate(self, input_buf: Any) -> None:
        """Read the message with the client's certificates. Refuse a message without certificates.

        In TLS, a client may answer the request for a certificate with an empty list.
        """
        cast(Any, super())._server_handle_certificate(input_buf)
        if cast(Any, self)._peer_certificate is None:
            raise tls.AlertBadCertificate("a client certificate is required")


class CurrentIdentity:
    """The certificate that a listener uses now, which is renewed before it expires.

    The listener calls identity() for each handshake. Renewal needs the authority's key in the
    directory. If the renewal fails, the old certificate is used until it expires.

    certificates: the directory of certificates.
    name: the name of the certificate.
    Raises CertificateError if there is no valid certificate of this name.
    """

    def __init__(self, certificates: Certificates, name: str) -> None:
        self._certificates = certificates
        self._name = name
        self._last = certificates.identity(name)
        # The last error that was logged, so that it is logged only once.
        self._problem = ""

    def identity(self) -> Identity:
        """Return the certificate to use now, and renew it if necessary.

        Raises CertificateError if there is no valid certificate.
        """
        try:
            if self._last.expires - datetime.now(UTC) < RENEW_BEFORE:
                ensure_certificate(self._certificates, self._name)
            self._last = self._certificates.identity(self._name)
            self._problem = ""
        except CertificateError as exc:
            if datetime.now(UTC) > self._last.expires:
                raise
            if str(exc) != self._problem:
                self._problem = str(exc)
                log.error("%s; the certificate loaded before is used until this is corrected", exc)
        return self._last


@cache
def ensure_strict() -> None:
    """Test that a server of this module refuses clients without a valid certificate.

    Runs handshakes in memory, once in a process. Call this before the process listens.
    Raises RuntimeError if the server accepts such a client, or refuses a client with a valid
    certificate.
    """
    # Each identity has an authority of its own, so `unknown` is not valid for `ours`.
    ours, unknown = create_temporary_identity("self-test"), create_temporary_identity("self-test")
    if not _is_accepted(ours, ours):
        raise RuntimeError("the QUIC library refuses a valid certificate; install aioquic 1.7")
    for client in (None, unknown):
        if _is_accepted(ours, client):
            raise RuntimeError(
                "the QUIC library accepts a client without a certificate, so this process does not "
                "listen; install aioquic 1.7"
            )


def _is_accepted(server: Identity, client: Identity | None) -> bool:
    """Run a handshake in memory, and return whether the server accepts the client.

    server: the server's certificate and authority. The client trusts this authority, too.
    client: the client's certificate; None for a client without one.
    """
    client_configuration = make_configuration("client", server, "localhost")
    if client is not None:
        client_configuration.certificate = client.certificate
        client_configuration.private_key = client.key
    else:
        client_configuration.certificate = client_configuration.private_key = None

    sender = QuicConnection(configuration=client_configuration)
    sender.connect(("server", 1), now=0.0)
    receiver: QuicConnection | None = None
    events: list[QuicEvent] = []
    # Pass the datagrams between the two ten times; a handshake needs fewer.
    for step in range(10):
        now = step * 0.01
        for data, _ in sender.datagrams_to_send(now):
            if receiver is None:
                destination = cast(bytes, cast(Any, sender).original_destination_connection_id)
                receiver = QuicConnection(
                    configuration=make_configuration("server", server),
                    original_destination_connection_id=destination,
                )
                require_peer_certificate(receiver, server, lambda name: None)
            receiver.receive_datagram(data, ("client", 1), now)
        if receiver is None:
            return False
        while (event := receiver.next_event()) is not None:
            events.append(event)
        for data, _ in receiver.datagrams_to_send(now):
            sender.receive_datagram(data, ("server", 1), now)

    is_closed = any(isinstance(event, ConnectionTerminated) for event in events)
    return any(isinstance(event, HandshakeCompleted) for event in events) and not is_closed
