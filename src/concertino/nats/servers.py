"""The addresses of NATS servers, and the options with which a client connects.

    servers = parse_servers("nats://a:4222,b,c")
    options = NatsOptions(name="tools.notes", credentials=read_credentials(Path("notes.nk")))

connection.py and blocking.py connect with them.
"""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

from msgspec import Struct, field

from concertino.errors import Disconnected
from concertino.nats.credentials import NatsCredentials
from concertino.nats.protocol import ServerInfo
from concertino.nats.subjects import FRONT_END

__all__ = [
    "NatsOptions",
    "NatsServer",
    "connect_members",
    "front_end_tls",
    "is_cluster_address",
    "parse_servers",
    "tls_context",
]

# The port that NATS uses by default.
PORT = 4222
SCHEMES = ("nats", "tls")


class NatsServer(Struct, frozen=True):
    """The address of a server.

    host: a host name or an IP address.
    user, password: empty if the address has none.
    needs_tls: whether the address begins with `tls://`, so that a server without TLS is refused.
    """

    host: str
    port: int
    user: str = ""
    password: str = ""
    needs_tls: bool = False

    def __str__(self) -> str:
        scheme = "tls" if self.needs_tls else "nats"
        # An IPv6 address stands in brackets.
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{scheme}://{host}:{self.port}"


class NatsOptions(Struct, frozen=True):
    """The options of a connection.

    name: the name under which the server lists this client. The reply subjects of a BlockingNats
        also contain the name.
    tls: the TLS settings, with which TLS is required. With None, TLS has Python's default settings.
        It is then required only if the address begins with `tls://`, or by the server.
    server_name: the name that the server's certificate must have; empty for the host's name.
    credentials: the key by which the client proves who it is; None for no key.
    max_message_bytes: the largest message that the client sends, with its headers. A NatsConnection
        refuses a server that accepts only shorter messages. A BlockingNats does not check it.
    """

    name: str
    tls: ssl.SSLContext | None = field(default=None)
    server_name: str = ""
    credentials: NatsCredentials | None = None
    max_message_bytes: int = 0


def connect_members(server: NatsServer, options: NatsOptions, nonce: str) -> dict[str, Any]:
    """Return the content of the CONNECT message: who the client is, and its features.

    server: the address of the server, which may contain a user and a password.
    options: the options of the connection, such as the client's key.
    nonce: the text in the server's INFO, which a client with a key signs.
    Raises ImportError if the client has a key and the extra `nats` is not installed, and
    ConcertinoError if the key is not valid.
    """
    # These members change what the server sends:
    # verbose=False: the server sends no +OK after each command.
    # protocol=1: the server sends INFO after changes of the cluster, too.
    # echo=True: the server sends a client its own messages, too, if the client has subscribed to
    #   their subjects.
    # no_responders=True: the server answers a request without a subscriber with status 503.
    members: dict[str, Any] = {
        "verbose": False,
        "pedantic": False,
        # The client's language and version, for people who look at the server's connections.
        "lang": "python",
        "version": "1",
        "protocol": 1,
        "echo": True,
        "headers": True,
        "no_responders": True,
        "name": options.name,
    }
    if server.user:
        members |= {"user": server.user, "pass": server.password}
    if options.credentials is not None:
        members |= options.credentials.sign_in(nonce)
    return members


def tls_context(
    server: NatsServer, options: NatsOptions, info: ServerInfo
) -> ssl.SSLContext | None:
    """Return the TLS settings for a connection; None for a connection without TLS.

    server, options: the address of the server, and the options of the connection.
    info: the server's INFO.
    Raises Disconnected if the options or the address require TLS, but the server does not have it.
    """
    needs_tls = info.tls_required or options.tls is not None or server.needs_tls
    if not needs_tls:
        return None
    if not info.tls_required and not info.tls_available:
        raise Disconnected(f"{server}: TLS is wanted, and this server has none")
    return options.tls or ssl.create_default_context()


def front_end_tls(folder: Path) -> ssl.SSLContext:
    """Return the TLS settings with which an HTTP front end connects to NATS servers.

    An HTTP front end is a process that serves an MCP server over HTTP, and shares its sessions with
    front ends on other machines. With these settings, the front end accepts only NATS servers whose
    certificate the certificate authority in `ca.crt` has issued.
    folder: the directory with `ca.crt`, and with the front end's certificate and key,
        `front-end.crt` and `front-end.key`.
    Raises ValueError if these files cannot be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    try:
        context.load_verify_locations(folder / "ca.crt")
        # With the empty password, OpenSSL does not ask for a password on the terminal.
        context.load_cert_chain(folder / f"{FRONT_END}.crt", folder / f"{FRONT_END}.key", "")
    except OSError as exc:
        raise ValueError(
            f"{folder}: expected ca.crt, {FRONT_END}.crt and {FRONT_END}.key in PEM: "
            f"{exc.strerror or exc}"
        ) from None
    return context


def is_cluster_address(address: str) -> bool:
    """Return whether an address is one of NATS servers, and not of a Unix socket or of QUIC."""
    return address.startswith(tuple(f"{scheme}://" for scheme in SCHEMES))


def parse_servers(text: str) -> Sequence[NatsServer]:
    """Return the servers in an address such as `nats://HOST:PORT,USER:PASSWORD@HOST`.

    text: the servers, separated by commas. The first begins with `nats://`, or with `tls://`, which
        requires TLS. A later server without such a beginning has that of the server before it. The
        default port is 4222.
    Raises ValueError for a malformed address.
    """
    servers: list[NatsServer] = []
    scheme = ""
    for part in text.split(","):
        part = part.strip()
        if "://" not in part and scheme:
            part = f"{scheme}://{part}"
        try:
            url = urlsplit(part)
            servers.append(_read_server(url))
        except ValueError as exc:
            hint = f": {exc}" if str(exc) else ""
            raise ValueError(
                f"expected tls://HOST or nats://HOST, with :PORT if it is not {PORT}, several "
                f"separated by commas, got {_without_password(text)!r}{hint}"
            ) from None
        scheme = url.scheme
    return servers


def _read_server(url: SplitResult) -> NatsServer:
    """Return the server that a URL names. Raises ValueError for a URL with a path or a query."""
    has_rest = bool(url.path.strip("/") or url.query or url.fragment)
    if url.scheme not in SCHEMES or not url.hostname or has_rest:
        raise ValueError
    return NatsServer(
        host=url.hostname,
        port=PORT if url.port is None else url.port,
        user=unquote(url.username or ""),
        password=unquote(url.password or ""),
        needs_tls=url.scheme == "tls",
    )


def _without_password(text: str) -> str:
    """Return an address without the part that may contain a password."""
    parts = (part.rpartition("@") for part in text.split(","))
    return ",".join(f"...@{rest}" if at else rest for _, at, rest in parts)
