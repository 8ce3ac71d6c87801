"""MachinePeers: passes a request on to the front end on another machine that has its session.

A front end is a process that serves HTTP. The id of a session begins with the random tag of the
front end that has made it. A key-value bucket of a NATS cluster has the address of each tag, so a
load balancer may send the requests of a session to any front end. Front ends connect to each other
with TLS, and both sides present a certificate for the name FRONT_END.

An entry of the bucket lasts for ENTRY_LASTS_S without renewal. If the front end of a session cannot
be reached, the session counts as ended: the client gets 404, and opens another one.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import ssl
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any, cast

from concertino.errors import ConcertinoError
from concertino.http.exchange import Exchange
from concertino.http.options import SharedSessions
from concertino.http.relay import Relay
from concertino.http.request_head import HttpError
from concertino.http.session_peers import NO_SESSION, MakePeerProtocol, PeerServer
from concertino.http.tls import Tls, TlsAcceptor, TlsCertificate
from concertino.nats.blocking import BlockingNats
from concertino.nats.bucket import Bucket, BucketError
from concertino.nats.credentials import credentials_from_environment
from concertino.nats.servers import NatsOptions, parse_servers
from concertino.nats.subjects import (
    FRONT_END,
    FRONT_END_BUCKETS,
    FRONT_ENDS_BUCKET,
    HTTP_CLIENT,
    NATS_SERVER,
)
from concertino.runtime.tasks import hide_from_all_tasks
from concertino.transports.listeners import listen_tcp, split_address
from concertino.transports.sockets import format_address
from concertino.transports.tcp_options import set_tcp_options

__all__ = ["MachinePeers"]

log = logging.getLogger("concertino.http")

# How long the bucket keeps an entry, in seconds.
ENTRY_LASTS_S = FRONT_END_BUCKETS[FRONT_ENDS_BUCKET]
# After what time an entry is renewed, in seconds.
RENEW_S = 15.0
# The pause before a failed renewal is tried again, in seconds. The pause is short, because the
# entry may have expired, and then other front ends cannot find the sessions of this front end.
RETRY_S = 1.0
# The time limit of a request to NATS, in seconds.
REQUEST_S = 1.0
# The time limit of connecting to another front end, in seconds.
CONNECT_S = 3.0
# The number of random bytes of a tag, and of the part of a session id that follows the tag.
TAG_BYTES = 8
ID_BYTES = 16
# How many addresses of front ends are kept in memory, so that few requests must ask NATS.
MAX_KNOWN = 1024


class MachinePeers:
    """Passes requests from this process to the process on another machine that has their session.

    A process that serves HTTP is called a front end. Implements SessionPeers (session_peers.py),
    for one event loop.

    settings: the NATS cluster, and the address and the certificates of this front end.
    Raises ValueError for malformed settings and unusable certificates, OSError for files that
    cannot be read.
    """

    def __init__(self, settings: SharedSessions) -> None:
        self._host, self._port = split_address(settings.address)
        if self._host in ("0.0.0.0", "::"):
            raise ValueError(
                f"{settings.address}: expected an address at which other front ends reach this one"
            )
        folder = Path(settings.certs)
        ca = os.fspath(folder / "ca.crt")
        files = Tls(os.fspath(folder / f"{FRONT_END}.crt"), os.fspath(folder / f"{FRONT_END}.key"))
        self._server_certificate = _FrontEndCertificate(files, ca, is_client=False)
        self._client_certificate = _FrontEndCertificate(files, ca, is_client=True)
        servers = parse_servers(settings.cluster)
        has_tls = any(server.needs_tls for server in servers)
        options = NatsOptions(
            HTTP_CLIENT,
            tls=self._client_certificate.context if has_tls else None,
            server_name=NATS_SERVER if has_tls else "",
            credentials=credentials_from_environment(),
        )
        self._bucket = Bucket(
            BlockingNats(servers, options, REQUEST_S),
            FRONT_ENDS_BUCKET,
            replicas=settings.replicas,
            max_age_s=ENTRY_LASTS_S,
            timeout_s=REQUEST_S,
            owner=FRONT_END,
        )
        # One thread, since the requests to NATS wait for each other anyway.
        self._thread = ThreadPoolExecutor(1, "front-ends")
        self._tag = secrets.token_hex(TAG_BYTES)
        # Tag of another front end -> its host and port, as they were when the bucket was read.
        self._known: dict[str, tuple[str, int]] = {}

    def create_id(self) -> str:
        """Return a random id for a session of this process.

        It begins with the tag of this process, by which other processes find the address of this
        process.
        """
        return self._tag + secrets.token_hex(ID_BYTES)

    def pass_on(self, exchange: Exchange, id: str) -> bool:
        """Pass a request on to the process on another machine that has its session.

        SessionPeers.pass_on() describes the arguments and the result.
        """
        tag = id[: 2 * TAG_BYTES]
        if tag == self._tag:
            return False
        # Each byte of the tag and of the rest is two hexadecimal digits.
        is_valid = len(id) == 2 * (TAG_BYTES + ID_BYTES) and id.isascii() and id.isalnum()
        if not is_valid:
            raise HttpError(HTTPStatus.NOT_FOUND, NO_SESSION)
        Relay(exchange, lambda relay: self._connect(tag, relay))
        return True

    async def serve(self, make: MakePeerProtocol) -> PeerServer:
        """Let processes on other machines pass requests on to this process. Call this once.

        It listens for them, and stores the address of this process in the NATS bucket.
        Raises OSError if the address cannot be used or NATS cannot be reached.
        """
        listener = listen_tcp(self._host, self._port, allow_remote=True)
        self._port = listener.socket.getsockname()[1]
        if not listener.is_remote:
            log.warning("%s: front ends on other machines cannot connect", listener.address)
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._register)
        except ConcertinoError as exc:
            listener.close()
            self._unregister()
            raise OSError(f"sessions cannot be shared: {exc}") from None
        acceptor = TlsAcceptor(listener, self._server_certificate, make(_examine))
        task = asyncio.get_running_loop().create_task(self._renew())
        return _Registration(acceptor, hide_from_all_tasks(task), self._unregister)

    async def _connect(self, tag: str, relay: Relay) -> None:
        """Connect a relay to the front end with this tag.

        Raises OSError if there is no such front end, or if it cannot be reached. Raises HttpError
        503 if NATS does not answer.
        """
        loop = asyncio.get_running_loop()
        address = self._known.get(tag)
        if address is None:
            try:
                address = await loop.run_in_executor(self._thread, self._look_up, tag)
            except BucketError as exc:
                log.warning("the front end of a session is not known: %s", exc)
                raise HttpError(
                    HTTPStatus.SERVICE_UNAVAILABLE, "the record of sessions cannot be read"
                ) from None
            if address is None:
                raise FileNotFoundError(f"no front end has the tag {tag}")
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            self._known[tag] = address
        self._client_certificate.reload()
        context = self._client_certificate.context
        try:
            async with asyncio.timeout(CONNECT_S):
                transport, _ = await loop.create_connection(
                    lambda: relay, *address, ssl=context, server_hostname=FRONT_END
                )
            # TCP's keep-alive notices the loss of a machine while a call waits for its result.
            set_tcp_options(transport.get_extra_info("socket"))
        except OSError as exc:
            # Another front end may have the address by now.
            self._known.pop(tag, None)
            log.info("a session is lost: no front end at %s: %s", format_address(address), exc)
            raise

    # Methods that run in the thread

    def _register(self) -> None:
        """Store the address of this front end. Raises ConcertinoError, such as BucketError."""
        self._bucket.put(self._tag, format_address((self._host, self._port)).encode())

    def _look_up(self, tag: str) -> tuple[str, int] | None:
        """Return the address of a front end; None if there is none. Raises BucketError."""
        data = self._bucket.get(tag).data
        if data is None:
            return None
        host, port = split_address(data.decode())
        return str(host), int(port)

    def _remove(self) -> None:
        with suppress(BucketError):
            self._bucket.delete(self._tag)
        self._bucket.close()

    # Methods that run on the event loop

    def _unregister(self) -> None:
        """Remove the entry of this front end, without waiting for that, and end the thread."""
        self._thread.submit(self._remove)
        self._thread.shutdown(wait=False)

    async def _renew(self) -> None:
        """Renew the entry of this front end, until this task is cancelled."""
        pause_s = RENEW_S
        while True:
            await asyncio.sleep(pause_s)
            try:
                await asyncio.get_running_loop().run_in_executor(self._thread, self._register)
            except ConcertinoError as exc:
                if pause_s == RENEW_S:
                    log.warning("other front ends may lose the sessions of this one: %s", exc)
                pause_s = RETRY_S
            else:
                pause_s = RENEW_S


class _FrontEndCertificate(TlsCertificate):
    """The certificate of a front end. It trusts only certificates of the same authority.

    ca: the path of the file with the certificate of the authority.
    is_client: True for connections to other front ends and to NATS servers. False to accept
        connections, whose clients must present a certificate, too.
    """

    def __init__(self, files: Tls, ca: str, *, is_client: bool) -> None:
        self._ca = ca
        self._is_client = is_client
        super().__init__(files)

    def _new_context(self) -> ssl.SSLContext:
        if self._is_client:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        else:
            context = super()._new_context()
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_verify_locations(self._ca)
        except OSError as exc:
            raise ValueError(
                f"{self._ca}: expected the certificate of an authority, in PEM: {exc}"
            ) from None
        return context


class _Registration:
    """Lets other front ends reach this front end, until close(). serve() returns this PeerServer.

    acceptor: accepts the connections of other front ends.
    renewing: the task that renews the entry of this front end in the bucket.
    unregister: removes this entry.
    """

    def __init__(
        self, acceptor: TlsAcceptor, renewing: asyncio.Task[None], unregister: Callable[[], None]
    ) -> None:
        self._acceptor = acceptor
        self._renewing = renewing
        self._unregister = unregister

    def close(self) -> None:
        """Stop accepting requests of other front ends, and remove this front end's entry."""
        self._acceptor.close()
        self._renewing.cancel()
        self._unregister()


def _examine(transport: asyncio.Transport) -> Mapping[str, object]:
    """Check that a client is another front end, by the name in its certificate.

    Plugins on other machines (programs with tools, which a hub starts) have certificates of the
    same authority, and must not pass requests on in the name of any user.
    Returns no facts. Raises PermissionError for any client that is no front end.
    """
    certificate = cast("dict[str, Any]", transport.get_extra_info("peercert") or {})
    names = [name for kind, name in certificate.get("subjectAltName", ()) if kind == "DNS"]
    if FRONT_END not in names:
        log.warning("a client that passes requests on was refused: it is %s", names)
        raise PermissionError(f"expected a certificate for {FRONT_END}")
    set_tcp_options(transport.get_extra_info("socket"))
    return {}
