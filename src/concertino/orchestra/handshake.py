"""The TLS handshake of QUIC links: both sides show a certificate, and both are checked for what they are for.

aioquic asks for no client certificate, and does not check one that comes. Its TLS is made stricter here for each connection of ours
alone, by a class in the place of its own; other users of aioquic in this process notice nothing. The names are private to aioquic,
so its version is bound to 1.7, and ensure_strict() tries before the first use whether somebody without a certificate is kept out.
There are no session tickets: who resumes a session shows no certificate.
Sources: RFC 8446 sections 4.3.2 and 4.4.2; RFC 9001 section 8; the Orchestra plugin protocol, "QUIC".
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache
from typing import Any, cast

from concertino.orchestra.certificates import CertificateError, Certificates, Identity, Side, verify

try:
    from aioquic import tls
    from aioquic.quic.configuration import QuicConfiguration
    from aioquic.quic.connection import Limit, QuicConnection
    from aioquic.quic.events import ConnectionTerminated, HandshakeCompleted, QuicEvent
    from aioquic.quic.packet import QuicFrameType
    from cryptography.hazmat.primitives.serialization import Encoding
except ImportError:
    raise ImportError("QUIC is in an extra: pip install 'concertino[orchestra]'") from None

__all__ = [
    "ALPN",
    "CRYPTO_ERROR",
    "STREAMS",
    "Admits",
    "CurrentIdentity",
    "configuration",
    "ensure_strict",
    "peer_name",
    "secure",
]

log = logging.getLogger("concertino.orchestra")

ALPN = "orchestra-plugin"
STREAMS = 100  # requests at once; upstream's default as well
DATAGRAM_BYTES = 1452  # the most that quic-go takes
IDLE_S = 30.0
STREAM_WINDOW = 2**20 + 16 * 2**20  # bytes; room for the longest frame
CONNECTION_WINDOW = 64 * 2**20
CRYPTO_ERROR = range(0x100, 0x200)  # TLS alerts, RFC 9000 section 20.1

logging.getLogger("quic").setLevel(
    logging.CRITICAL
)  # what aioquic has to say is said in quic.py, once and in words

Admits = Callable[[str], str | None]
"""The name of a verified certificate -> None, or why it may not come in, in words."""


def configuration(side: Side, identity: Identity, server_name: str = "") -> QuicConfiguration:
    """How our connections behave. side: which one this is. server_name: whom a client dials, a name or an IP address."""
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


def secure(connection: QuicConnection, identity: Identity, admits: Admits) -> None:
    """Make a connection strict, before it has sent or received anything. Its own certificate is identity's."""
    private = cast(Any, connection)
    private._local_max_streams_bidi = Limit(
        QuicFrameType.MAX_STREAMS_BIDI, "max_streams_bidi", STREAMS
    )
    private._local_max_streams_uni = Limit(QuicFrameType.MAX_STREAMS_UNI, "max_streams_uni", 0)
    initialize = private._initialize

    def strictly(peer_cid: bytes) -> None:
        initialize(peer_cid)
        context = private.tls
        context.__class__ = _Strict
        context.certificate = identity.certificate
        context.certificate_private_key = identity.key
        context.identity = identity
        context.admits = admits
        context._request_client_certificate = not context._is_client

    private._initialize = strictly


def peer_name(connection: QuicConnection) -> tuple[str, datetime]:
    """Whose certificate the other side has shown, and until when it is good; once the handshake is completed."""
    context = cast(_Strict, connection.tls)
    certificate = cast(Any, context)._peer_certificate
    return context.name, certificate.not_valid_after_utc


class _Strict(tls.Context):
    """aioquic's TLS, with a look at the other side's certificate that neither side can be without."""

    identity: Identity
    admits: Admits
    name: str

    def _set_peer_certificate(self, certificate: Any) -> None:
        cast(Any, super())._set_peer_certificate(certificate)
        private = cast(Any, self)
        side: Side = "server" if private._is_client else "client"
        try:
            self.name = verify(private._peer_certificate, self.identity.authority, side)
        except CertificateError as why:
            raise tls.AlertBadCertificate(str(why)) from None
        refused = self.admits(self.name)
        if refused is not None:
            raise tls.AlertBadCertificate(refused)

    def _server_handle_certificate(self, input_buf: Any) -> None:
        cast(Any, super())._server_handle_certificate(input_buf)
        if (
            cast(Any, self)._peer_certificate is None
        ):  # the client sent an empty list, which TLS leaves to the server
            raise tls.AlertBadCertificate("a client certificate is required")


class CurrentIdentity:
    """The identity of now: loaded for each handshake, so that what was renewed counts; else the last good one, while it is.

    It is renewed here, too, before it expires, where the authority's key is: who listens may do so for years.
    """

    def __init__(self, certificates: Certificates, name: str) -> None:
        self._certificates = certificates
        self._name = name
        self._last = certificates.identity(name)
        self._complaint = ""

    def identity(self) -> Identity:
        """Raises CertificateError when there is none that is good."""
        from concertino.orchestra.authority import RENEW_BEFORE, ensure

        try:
            if self._last.expires - datetime.now(UTC) < RENEW_BEFORE:
                ensure(self._certificates, self._name)
            self._last = self._certificates.identity(self._name)
            self._complaint = ""
        except CertificateError as why:
            if datetime.now(UTC) > self._last.expires:
                raise
            if str(why) != self._complaint:
                self._complaint = str(why)
                log.error("%s; until that is mended, the certificate loaded before is used", why)
        return self._last


@cache
def ensure_strict() -> None:
    """Try the handshake once, in memory. Raises RuntimeError when somebody is let in who must not be."""
    from concertino.orchestra.authority import throwaway

    ours, strangers = throwaway("self-test"), throwaway("self-test")
    if not _let_in(ours, ours):
        raise RuntimeError(
            "the QUIC library does not let a good certificate in; aioquic 1.7 is expected"
        )
    for each in (None, strangers):
        if _let_in(ours, each):
            raise RuntimeError(
                "the QUIC library lets strangers in; aioquic 1.7 is expected, and nothing is listened at"
            )


def _let_in(server: Identity, client: Identity | None) -> bool:
    """Whether a server comes to believe a client, by datagrams that never leave this function."""
    shown = configuration("client", server, "localhost")
    if client is not None:
        shown.certificate, shown.private_key = client.certificate, client.key
    else:
        shown.certificate = shown.private_key = None
    asking = QuicConnection(configuration=shown)
    asking.connect(("server", 1), now=0.0)
    answering: QuicConnection | None = None
    events: list[QuicEvent] = []
    for step in range(10):
        now = step * 0.01
        for data, _ in asking.datagrams_to_send(now):
            if answering is None:
                destination = cast(bytes, cast(Any, asking).original_destination_connection_id)
                answering = QuicConnection(
                    configuration=configuration("server", server),
                    original_destination_connection_id=destination,
                )
                secure(answering, server, lambda name: None)
            answering.receive_datagram(data, ("client", 1), now)
        if answering is None:
            return False
        while (event := answering.next_event()) is not None:
            events.append(event)
        for data, _ in answering.datagrams_to_send(now):
            asking.receive_datagram(data, ("server", 1), now)
    closed = any(isinstance(event, ConnectionTerminated) for event in events)
    return any(isinstance(event, HandshakeCompleted) for event in events) and not closed
