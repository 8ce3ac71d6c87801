"""quic_link.py, handshake.py: which peers are accepted, and how connections begin and end."""

from __future__ import annotations

import asyncio
import shutil
import socket
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from aioquic import tls
from aioquic.quic import retry
from aioquic.quic.connection import QuicConnection
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from loops import on_a_loop, on_a_loop_within
from orchestra.linked import Holding, Recording, call, echo, health
from orchestra.quics import client, hub

from concertino.errors import ConcertinoError, Disconnected
from concertino.orchestra import handshake, quic_connection, quic_link, quic_listener
from concertino.orchestra.authority import create_authority, create_temporary_identity, issue, renew
from concertino.orchestra.certificates import Certificates, Identity
from concertino.orchestra.link import listen_for_links, open_link
from concertino.orchestra.rpc_interface import (
    HandshakeFailure,
    RemotePeer,
    RpcConnection,
    RpcListener,
)
from concertino.orchestra.udp import UdpSocket

NOW = datetime.now(UTC)
SERVER, CLIENT = (
    x509.ObjectIdentifier("1.3.6.1.5.5.7.3.1"),
    x509.ObjectIdentifier("1.3.6.1.5.5.7.3.2"),
)


@pytest.fixture
def own(certificates: Certificates, tmp_path: Path) -> Certificates:
    """A copy that a test may change."""
    shutil.copytree(certificates.folder, tmp_path / "certs")
    return Certificates(tmp_path / "certs")


# --- the TLS matrix ---


def make_certificate(
    authority: Identity | None = None,
    *,
    name: str = "tools.greeter-client",
    eku: tuple[x509.ObjectIdentifier, ...] = (SERVER, CLIENT),
    start: datetime = NOW - timedelta(minutes=1),
    end: datetime = NOW + timedelta(days=1),
    hosts: tuple[str, ...] = ("localhost",),
    curve: bool = False,
) -> Identity:
    """A certificate with something about it. authority: who issues it; itself if None."""
    key: Any = ec.generate_private_key(ec.SECP256R1()) if curve else Ed25519PrivateKey.generate()
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    names = [x509.DNSName(host) for host in hosts] + [x509.IPAddress(LOOPBACK)] * (
        "localhost" in hosts
    )
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(authority.authority.subject if authority else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(end)
        .add_extension(x509.ExtendedKeyUsage(eku), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
    )
    certificate = builder.sign(authority.key if authority else key, None)
    return Identity(name, certificate, key, authority.authority if authority else certificate, end)


LOOPBACK = __import__("ipaddress").ip_address("127.0.0.1")


def signer(certificates: Certificates) -> Identity:
    """The authority itself, to issue with."""
    key = certificates.private_key("ca")
    return Identity("ca", certificates.authority(), key, certificates.authority(), NOW)


def nothing(identity: Identity) -> Identity:
    return Identity(identity.name, None, None, identity.authority, identity.expires)  # type: ignore[arg-type]


def trusting(identity: Identity, certificates: Certificates) -> Identity:
    """Shows one authority's certificate, and believes another's: the right one."""
    return Identity(
        identity.name,
        identity.certificate,
        identity.key,
        certificates.authority(),
        identity.expires,
    )


def no_change(connection: QuicConnection) -> None:
    pass


def other_alpn(connection: QuicConnection) -> None:
    connection._configuration.alpn_protocols = ["h3"]


def tls_1_2(connection: QuicConnection) -> None:
    initialize = connection._initialize

    def old(peer_cid: bytes) -> None:
        initialize(peer_cid)
        connection.tls._supported_versions = [tls.TLS_VERSION_1_2]

    connection._initialize = old  # type: ignore[method-assign]


Case = tuple[Callable[[Certificates], Identity], Callable[[QuicConnection], None], str]
CLIENTS: dict[str, Case] = {
    "no certificate": (
        lambda c: nothing(make_certificate(signer(c))),
        no_change,
        "a client certificate is required",
    ),
    "expired": (
        lambda c: make_certificate(
            signer(c), start=NOW - timedelta(days=2), end=NOW - timedelta(days=1)
        ),
        no_change,
        "expired",
    ),
    "not yet valid": (
        lambda c: make_certificate(signer(c), start=NOW + timedelta(hours=1)),
        no_change,
        "is not valid before",
    ),
    "another authority": (
        lambda c: trusting(create_temporary_identity("tools.greeter-client"), c),
        no_change,
        "was not issued by our authority",
    ),
    "self-signed": (
        lambda c: trusting(make_certificate(), c),
        no_change,
        "was not issued by our authority",
    ),
    "for servers only": (
        lambda c: make_certificate(signer(c), eku=(SERVER,)),
        no_change,
        "is not for a client",
    ),
    "the wrong name for this role": (
        lambda c: make_certificate(signer(c), name="stranger"),
        no_change,
        "may not come in here",
    ),
    "another protocol": (lambda c: make_certificate(signer(c)), other_alpn, "ALPN"),
    "TLS 1.2": (lambda c: make_certificate(signer(c)), tls_1_2, "No supported protocol version"),
}


@pytest.fixture
def changing(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[QuicConnection], None]], None]:
    """Changes the connections of those who dial."""
    original = handshake.require_peer_certificate

    def use(change: Callable[[QuicConnection], None]) -> None:
        def changed(connection: QuicConnection, identity: Identity, admits: Any) -> None:
            original(connection, identity, admits)
            if connection._is_client:
                change(connection)

        monkeypatch.setattr(quic_link, "require_peer_certificate", changed)

    return use


async def dial_as(
    listening: RpcListener, identity: Identity, expects: str | None = None
) -> RpcConnection:
    return await quic_link.connect_with_identity(listening.address, identity, expects, 5.0)


@pytest.mark.parametrize("what", CLIENTS)
@on_a_loop
async def test_a_client_that_is_not_what_it_must_be_is_refused_before_any_request(
    certificates: Certificates, what: str, changing: Any, caplog: pytest.LogCaptureFixture
) -> None:
    make, change, said = CLIENTS[what]
    changing(change)
    recording = Recording()
    async with hub(certificates, recording, lambda name: name != "stranger") as listening:
        with pytest.raises(ConcertinoError):
            await dial_as(listening, make(certificates))
        changing(no_change)
        link = await client(listening, certificates)  # the next is served
        await link.request(health())
        await link.close()
    assert len(recording.requests) == 1
    refused = [
        record.getMessage() for record in caplog.records if "was refused" in record.getMessage()
    ]
    assert len(refused) == 1
    assert said.lower() in refused[0].lower()


@pytest.mark.parametrize("curve", [False, True], ids=["Ed25519", "P-256"])
@on_a_loop
async def test_a_good_client_of_either_kind_of_key_is_let_in_under_its_name(
    certificates: Certificates, curve: bool
) -> None:
    recording = Recording()
    async with hub(certificates, recording) as listening:
        link = await dial_as(
            listening, make_certificate(signer(certificates), name="engine.rag-client", curve=curve)
        )
        await link.request(health())
        await link.close()
    assert recording.peers[0].name == "engine.rag-client"
    assert recording.peers[0].may_register_as("engine.rag")
    assert not recording.peers[0].may_register_as("tools.greeter")


SERVERS: dict[str, tuple[Callable[[Certificates], Identity], str]] = {
    "expired": (
        lambda c: make_certificate(
            signer(c),
            name="orchestrator",
            start=NOW - timedelta(days=2),
            end=NOW - timedelta(days=1),
        ),
        "expired",
    ),
    "another authority": (
        lambda c: create_temporary_identity("orchestrator"),
        "was not issued by our authority",
    ),
    "for clients only": (
        lambda c: make_certificate(signer(c), name="orchestrator", eku=(CLIENT,)),
        "is not for a server",
    ),
    "another name": (
        lambda c: make_certificate(signer(c), name="tools.greeter"),
        "'tools.greeter' answers, and not 'orchestrator'",
    ),
    "not for this host": (
        lambda c: make_certificate(signer(c), name="orchestrator", hosts=("hub.example",)),
        "doesn't match",
    ),
}


@pytest.mark.parametrize("what", SERVERS)
@on_a_loop
async def test_a_server_that_is_not_whom_we_dial_gets_no_request(
    certificates: Certificates, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, said = SERVERS[what]
    monkeypatch.setattr(handshake.CurrentIdentity, "identity", lambda self: make(certificates))
    async with hub(certificates) as listening:
        with pytest.raises(HandshakeFailure, match=said):
            await client(listening, certificates, expects="orchestrator")


@on_a_loop
async def test_the_name_that_was_expected_is_let_through(certificates: Certificates) -> None:
    async with hub(certificates) as listening:
        link = await client(listening, certificates, expects="orchestrator")
        assert link.peer == RemotePeer(listening.address, "orchestrator")
        await link.close()
        port = listening.address.rpartition(":")[2]
        link = await open_link(
            f"localhost:{port}", certificates=certificates, name="tools.greeter-client"
        )
        await link.request(health())
        await link.close()


def test_a_library_that_lets_strangers_in_is_not_listened_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    handshake.ensure_strict()
    strict = handshake._StrictContext
    for name in ("_server_handle_certificate", "_set_peer_certificate"):
        with monkeypatch.context() as patch:
            patch.setattr(strict, name, getattr(tls.Context, name))
            patch.setattr(strict, "name", "", raising=False)
            handshake.ensure_strict.cache_clear()
            with pytest.raises(RuntimeError, match="accepts a client without a certificate"):
                handshake.ensure_strict()
    handshake.ensure_strict.cache_clear()
    handshake.ensure_strict()


# --- certificates that change ---


@on_a_loop
async def test_what_was_renewed_counts_from_the_next_connection_on(own: Certificates) -> None:
    async with hub(own) as listening:
        before = await client(listening, own)
        serial = shown_serial(before)
        renew(own, "orchestrator")
        renew(own, "tools.greeter-client")
        assert (await before.request(health())).HasField("health")
        after = await client(listening, own)
        assert shown_serial(after) == own.certificate("orchestrator").serial_number != serial
        await before.close()
        await after.close()


def shown_serial(link: Any) -> int:
    return link.connection._quic.tls._peer_certificate.serial_number


@on_a_loop
async def test_what_was_spoilt_while_it_ran_is_told_once_and_the_last_good_one_serves(
    own: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    async with hub(own) as listening:
        identity = own.identity("tools.greeter-client")
        own.key("orchestrator").chmod(0o644)
        for _ in range(2):
            link = await dial_as(listening, identity)
            await link.request(health())
            await link.close()
    assert caplog.text.count("the certificate loaded before is used until this is corrected") == 1


@on_a_loop
async def test_under_a_new_authority_old_certificates_end(own: Certificates) -> None:
    old = own.identity("tools.greeter-client")
    async with hub(own) as listening:
        shutil.rmtree(own.folder)
        create_authority(own)
        issue(own, "orchestrator")
        with pytest.raises(HandshakeFailure):
            await dial_as(listening, old)


@pytest.mark.slow
@on_a_loop
async def test_a_connection_ends_with_the_certificate_it_came_in_with(
    own: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quic_connection, "TICK_S", 0.05)
    issue(own, "tools.greeter-client", valid=timedelta(seconds=2))
    async with hub(own) as listening:
        link = await client(listening, own)
        await link.request(health())
        assert await link.end_reason == "the certificate has expired"


@on_a_loop
async def test_without_good_certificates_nothing_is_listened_at(own: Certificates) -> None:
    own.key("orchestrator").chmod(0o604)
    with pytest.raises(ConcertinoError, match="chmod 600"):
        await listen_for_links("127.0.0.1:0", echo, certificates=own, name="orchestrator")
    with pytest.raises(ValueError, match="QUIC needs certificates"):
        await listen_for_links("127.0.0.1:0", echo)
    with pytest.raises(ValueError, match="expected HOST:PORT"):
        await listen_for_links("127.0.0.1", echo, certificates=own, name="orchestrator")


# --- connections ---


@pytest.mark.slow
@on_a_loop
async def test_many_who_knock_and_go_no_further_keep_nobody_out(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quic_connection, "TICK_S", 0.02)
    monkeypatch.setattr(quic_connection, "HANDSHAKE_S", 1.5)
    loop = asyncio.get_running_loop()
    async with hub(certificates) as listening:
        host, port = listening.address.split(":")
        transport, _ = await loop.create_datagram_endpoint(
            asyncio.DatagramProtocol, remote_addr=(host, int(port))
        )
        identity = certificates.identity("tools.greeter-client")
        for _ in range(200):
            knocking = QuicConnection(
                configuration=handshake.make_configuration("client", identity, host)
            )
            knocking.connect((host, int(port)), now=loop.time())
            for data, _address in knocking.datagrams_to_send(loop.time()):
                transport.sendto(data)
        link = await client(listening, certificates)
        await link.request(health())
        server = listening.server  # type: ignore[attr-defined]
        assert len(server.half_open) <= quic_listener.MAX_UNPROVEN
        async with asyncio.timeout(10):
            while server.half_open:
                await link.request(health())
            assert len(server.clients) == 1
            # aioquic keeps a connection that was closed for three times its timeout.
            while len(set(server._protocols.values())) > 1:
                await link.request(health())
        assert set(server._protocols.values()) == server.clients
        transport.close()
        await link.close()


@on_a_loop
async def test_all_first_datagrams_of_a_client_are_answered_by_retry_if_one_is(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first message of a client in Go needs two datagrams. The second one began a handshake
    that nobody continued, and the log said that its client was refused.
    """
    monkeypatch.setattr(quic_listener, "MAX_UNPROVEN", 1)
    async with hub(certificates) as listening:
        server: Any = cast(Any, listening).server

        def first_datagram() -> bytes:
            begun = QuicConnection(
                configuration=handshake.make_configuration(
                    "client", certificates.identity("tools.greeter-client"), "localhost"
                )
            )
            begun.connect(("127.0.0.1", 1), now=0.0)
            return begun.datagrams_to_send(0.0)[0][0]

        address = ("127.0.0.1", 9)
        server.datagram_received(first_datagram(), address)
        (other,) = server.half_open
        late = first_datagram()
        server.datagram_received(late, address)
        other.disconnect("", "it leaves")
        server.datagram_received(late, address)
        assert not server.half_open


@on_a_loop
async def test_beyond_the_limit_of_connections_one_more_is_sent_away(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(quic_listener, "MAX_CONNECTIONS", 2)
    async with hub(certificates) as listening:
        two = [await client(listening, certificates) for _ in range(2)]
        with pytest.raises(Disconnected):
            await open_link(
                listening.address,
                certificates=certificates,
                name="tools.greeter-client",
                timeout_s=0.3,
            )
        assert "which is the limit" in caplog.text
        await two.pop().close()
        async with asyncio.timeout(10):
            while len(listening.server.clients) > 1:  # type: ignore[attr-defined]
                await two[0].request(health())
        again = await client(listening, certificates)
        await again.close()
        await two[0].close()


@on_a_loop
async def test_a_hub_that_is_gone_is_noticed_with_the_next_request(
    certificates: Certificates,
) -> None:
    """On one machine the system says that nobody listens any more; nobody waits for a time-out."""
    async with hub(certificates) as listening:
        link = await client(listening, certificates)
        vanish(listening)
        with pytest.raises(Disconnected):
            await link.request(health(), timeout_s=20)
        await link.end_reason


def vanish(listening: Any) -> None:
    """What a process that is killed leaves behind: nothing."""
    listening.server._transport.close()
    for connection in listening.server.clients:
        for timer in (connection._tick_timer, connection._timer):
            timer.cancel()
    listening.server.close = lambda: None


@on_a_loop
async def test_a_quiet_connection_is_kept_alive(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quic_connection, "TICK_S", 0.02)
    monkeypatch.setattr(quic_connection, "PING_S", 0.05)
    monkeypatch.setattr(handshake, "IDLE_S", 3)
    async with hub(certificates) as listening:
        link = await client(listening, certificates)
        await asyncio.wait((link.end_reason,), timeout=6)
        assert not link.end_reason.done()
        assert (await link.request(health())).HasField("health")
        await link.close()


@on_a_loop
async def test_a_peer_of_whom_nothing_is_heard_is_given_up_at_either_end(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process was killed, or its cable pulled: no packet says so."""
    monkeypatch.setattr(quic_connection, "PING_S", 0.05)
    monkeypatch.setattr(quic_connection, "ANSWER_S", 0.05)
    holding = Holding()
    async with hub(certificates, holding) as listening:
        link = await client(listening, certificates)
        calling = asyncio.create_task(link.request(call()))
        await holding.began.acquire()
        # From now on, datagrams are lost in both directions.
        monkeypatch.setattr(UdpSocket, "sendto", lambda *_: None)
        async with asyncio.timeout(5):
            with pytest.raises(Disconnected, match=r"nothing was heard for \d+\.\d s"):
                await calling
            await holding.cancelled.acquire()
            while listening.server.clients:  # type: ignore[attr-defined]
                await asyncio.sleep(0)


@on_a_loop
async def test_a_process_that_stood_still_itself_does_not_blame_its_peers(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quic_connection, "PING_S", 0.05)
    monkeypatch.setattr(quic_connection, "ANSWER_S", 0.1)
    async with hub(certificates) as listening:
        link = await client(listening, certificates)
        time.sleep(0.3)
        assert (await link.request(health())).HasField("health")
        assert not link.end_reason.done()
        await link.close()


@pytest.mark.parametrize(
    ("count", "strangers"),
    [(60, 0), (60, 80), pytest.param(150, 180, marks=pytest.mark.slow)],
)
@on_a_loop_within(150)
async def test_many_who_connect_at_once_all_get_in(
    certificates: Certificates, count: int, strangers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Strangers have an address of their own and answer Retry packets, and then say no more."""
    # Both ends share this process, and the machine may be busy: nobody may be refused, which says
    # nothing of how long it takes.
    monkeypatch.setattr(quic_connection, "HANDSHAKE_S", 120)
    monkeypatch.setattr(quic_connection, "ANSWER_S", 120)
    # Fewer than the strangers and clients together.
    monkeypatch.setattr(quic_listener, "MAX_HALF_OPEN", count + strangers // 2 + 10)
    async with hub(certificates) as listening:
        held = [await knock(listening.address, certificates) for _ in range(strangers)]
        links = await asyncio.gather(
            *(client(listening, certificates, "orchestrator") for _ in range(count))
        )
        answers = await asyncio.gather(*(link.request(health()) for link in links))
        assert all(answer.HasField("health") for answer in answers)
        for sock in held:
            sock.close()
        for link in links:
            await link.close()


async def knock(address: str, certificates: Certificates) -> socket.socket:
    """Begin a handshake, prove the address if that is asked for, and leave it there."""
    loop = asyncio.get_running_loop()
    host, port = address.split(":")
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.setblocking(False)
    sock.connect((host, int(port)))
    begun = QuicConnection(
        configuration=handshake.make_configuration(
            "client", certificates.identity("tools.greeter-client"), host
        )
    )
    begun.connect((host, int(port)), now=loop.time())
    for _ in range(2):
        for data, _address in begun.datagrams_to_send(loop.time()):
            sock.send(data)
        answer = await loop.sock_recv(sock, 2048)
        # A Retry packet has the type 3; anything else is the server's first flight.
        if answer[0] & 0x30 != 0x30:
            break
        begun.receive_datagram(answer, (host, int(port)), loop.time())
    return sock


class Stranger:
    """A socket from which packets of handshakes are sent to a listener.

    address: the listener's address.
    """

    def __init__(self, address: str, certificates: Certificates) -> None:
        host, port = address.split(":")
        self._address = host, int(port)
        self._certificates = certificates
        self.sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.sock.setblocking(False)
        self.sock.connect(self._address)

    def begin(self) -> QuicConnection:
        """Return a new connection that has sent nothing."""
        identity = self._certificates.identity("tools.greeter-client")
        begun = QuicConnection(
            configuration=handshake.make_configuration("client", identity, self._address[0])
        )
        begun.connect(self._address, now=asyncio.get_running_loop().time())
        return begun

    async def ask(self, begun: QuicConnection) -> bytes:
        """Send the packets of a connection, and return the answer."""
        loop = asyncio.get_running_loop()
        self.send(begun)
        return await loop.sock_recv(self.sock, 2048)

    def send(self, begun: QuicConnection) -> list[bytes]:
        """Send the packets of a connection, and return them."""
        loop = asyncio.get_running_loop()
        packets = [data for data, _ in begun.datagrams_to_send(loop.time())]
        for data in packets:
            self.sock.send(data)
        return packets

    async def prove_address(self) -> tuple[QuicConnection, bytes]:
        """Begin a handshake that is answered with a Retry packet.

        Returns the connection, which sends the token from now on, and the token.
        """
        begun = self.begin()
        answer = await self.ask(begun)
        assert is_retry(answer)
        begun.receive_datagram(answer, self._address, asyncio.get_running_loop().time())
        return begun, begun._peer_token

    async def was_refused(self, begun: QuicConnection) -> bool:
        """Return whether a connection was closed with INVALID_TOKEN (RFC 9000 section 20.1).

        The answer must be shorter than what it answers, since its address may be forged.
        """
        loop = asyncio.get_running_loop()
        answer = await loop.sock_recv(self.sock, 2048)
        begun.receive_datagram(answer, self._address, loop.time())
        # The event ConnectionTerminated would come only after a while.
        end = begun._close_event
        return end is not None and end.error_code == 0x0B and len(answer) < 200


def is_retry(packet: bytes) -> bool:
    """Return whether a packet is a Retry packet, which has the type 3."""
    return packet[0] & 0xF0 == 0xF0


@on_a_loop
async def test_the_token_of_a_retry_packet_lets_in_only_the_client_that_got_it(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RFC 9000 sections 8.1.2 to 8.1.4 and 17.2.5.2."""
    monkeypatch.setattr(quic_listener, "MAX_UNPROVEN", 0)
    async with hub(certificates) as listening:
        clients = listening.server.clients  # type: ignore[attr-defined]
        stranger = Stranger(listening.address, certificates)
        begun, token = await stranger.prove_address()

        # Another address sends the same packets.
        other = Stranger(listening.address, certificates)
        packets = other.send(begun)
        assert await other.was_refused(begun)
        # The same address sends the token in another connection, or a changed one.
        for wrong in (token, token[:-1] + bytes([token[-1] ^ 1]), token[:5]):
            connection = stranger.begin()
            connection._peer_token = wrong
            stranger.send(connection)
            assert await stranger.was_refused(connection)

        # The token is sent after its time.
        assert 0 < retry.TOKEN_LIFETIME <= 60
        late, _ = await stranger.prove_address()
        with monkeypatch.context() as patch:
            patch.setattr(retry, "TOKEN_LIFETIME", -1)
            stranger.send(late)
            assert await stranger.was_refused(late)
        assert not clients

        # In time, it lets its own client in, and all this keeps nobody out.
        for packet in packets:
            stranger.sock.send(packet)
        answer = await asyncio.get_running_loop().sock_recv(stranger.sock, 2048)
        assert not is_retry(answer)
        assert len(clients) == 1
        link = await client(listening, certificates, "orchestrator")
        assert (await link.request(health())).HasField("health")
        await link.close()
        stranger.sock.close()
        other.sock.close()


@on_a_loop
async def test_localhost_is_where_go_looks_for_it(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Go takes the first IPv4 address of a name, on either end; many systems tell IPv6's first."""

    def resolved(host: str, port: int, *_: object, **__: object) -> list[tuple[object, ...]]:
        kind = socket.SOCK_DGRAM
        six, four = (
            (socket.AF_INET6, kind, 17, "", ("::1", port, 0, 0)),
            (socket.AF_INET, kind, 17, "", ("127.0.0.1", port)),
        )
        return [six, four] if host == "localhost" else [four]

    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    listening = await listen_for_links(
        "localhost:0", echo, certificates=certificates, name="orchestrator"
    )
    port = listening.address.rpartition(":")[2]
    for address in (f"127.0.0.1:{port}", f"localhost:{port}"):
        link = await open_link(address, certificates=certificates, name="tools.greeter-client")
        assert (await link.request(call())).HasField("tool_call")
        await link.close()
    await listening.close()


@on_a_loop
async def test_who_could_not_connect_leaves_nothing_behind(certificates: Certificates) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(Disconnected, match="nobody answers within"):
            await open_link(
                address, certificates=certificates, name="tools.greeter-client", timeout_s=0.1
            )
    assert not clocks()


@on_a_loop
async def test_a_connect_that_is_cancelled_as_its_socket_is_made_leaves_nothing_behind(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with hub(certificates) as listening:
        connecting = asyncio.create_task(client(listening, certificates))
        made = quic_link._QuicClientConnection.connection_made

        def cancelled(self: Any, transport: asyncio.BaseTransport) -> None:
            made(self, transport)
            connecting.cancel()

        monkeypatch.setattr(quic_link._QuicClientConnection, "connection_made", cancelled)
        with pytest.raises(asyncio.CancelledError):
            await connecting
        # The hub may have got its first packet, and has a clock for it.
        assert not [item for item in clocks() if isinstance(item, quic_link._QuicClientConnection)]


@on_a_loop
async def test_when_nothing_is_answered_any_more_no_connection_is_left(
    certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    async with hub(certificates) as listening:
        link = await client(listening, certificates)
        host, port = listening.address.split(":")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as knocking:
            begun = QuicConnection(
                configuration=handshake.make_configuration(
                    "client", certificates.identity("tools.greeter-client"), host
                )
            )
            begun.connect((host, int(port)), now=0.0)
            for data, _ in begun.datagrams_to_send(0.0):
                knocking.sendto(data, (host, int(port)))
            await link.request(health())
    assert await link.end_reason == "the other side closed the connection"
    assert not clocks()
    assert "was refused: nothing is answered here any more" in caplog.text


def clocks() -> list[Any]:
    """Connections of this loop that go on to look at their clock, again and again."""
    scheduled = asyncio.get_running_loop()._scheduled  # type: ignore[attr-defined]
    callbacks = [each._callback for each in scheduled if not each.cancelled()]
    return [
        each.__self__
        for each in callbacks
        if getattr(each, "__func__", None) is quic_connection.QuicRpcConnection._on_tick
    ]
