"""The addresses of NATS servers, and the options with which a client connects.

servers = parse_servers("nats://a:4222,b,c")
options = NatsOptions(name="tools.notes", credentials=read_seed("notes.nk"))
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Sequence
from errno import ENOENT
from pathlib import Path
from typing import Any, cast
from urllib.parse import SplitResult, unquote, urlsplit

from msgspec import Struct, field

from concertino.errors import ConcertinoError, Disconnected
from concertino.installation import missing_extra
from concertino.nats.protocol import ServerInfo
from concertino.user_files import read_private_file

__all__ = [
    "NatsOptions",
    "NatsServer",
    "Seed",
    "connect_members",
    "is_cluster_address",
    "parse_servers",
    "read_seed",
    "seed_from_environment",
    "tls_context",
]

PORT = 4222
# The environment variable with the path of the file that has the client's private key.
SEED = "CONCERTINO_CLUSTER_SEED"
SCHEMES = ("nats", "tls")
# A seed has 58 characters. Its file may also have a few comment lines.
MAX_SEED_BYTES = 16 * 1024


class NatsServer(Struct, frozen=True):
    """The address of a server. user, password: empty if the address names none."""

    host: str
    port: int
    user: str = ""
    password: str = ""
    needs_tls: bool = False

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'tls' if self.needs_tls else 'nats'}://{host}:{self.port}"


class Seed(Struct, frozen=True):
    """A private key of NATS (an nkey). text: the seed, which begins with SU; keep it secret."""

    text: bytes

    def __repr__(self) -> str:
        return "Seed(...)"

    def sign(self, nonce: str) -> tuple[str, str]:
        """Return the public key, and the signature of the server's nonce.

        Raises ImportError without the extra `nats`, ConcertinoError for an invalid seed.
        """
        try:
            import nkeys  # pyright: ignore[reportMissingTypeStubs]
        except ImportError:
            raise ImportError(missing_extra("a key for NATS", "nats")) from None
        from base64 import urlsafe_b64encode

        try:
            # The library wipes the bytes that it gets.
            pair = cast(Any, nkeys).from_seed(bytearray(self.text))
            signature = urlsafe_b64encode(pair.sign(nonce.encode())).rstrip(b"=").decode()
            return pair.public_key.decode(), signature
        except Exception as exc:
            raise ConcertinoError(f"the seed of the NATS key is not valid: {exc}") from None


class NatsOptions(Struct, frozen=True):
    """The options of a connection.

    name: the name under which the server lists this client.
    tls: the TLS settings; None to connect without TLS, unless the server requires it.
    server_name: the name that the server's certificate must have; empty for the host's name.
    """

    name: str
    tls: ssl.SSLContext | None = field(default=None)
    server_name: str = ""
    seed: Seed | None = None


def connect_members(server: NatsServer, options: NatsOptions, nonce: str) -> dict[str, Any]:
    """Return the members of CONNECT: the client's identity and the features that it supports.

    nonce: the nonce in the server's INFO.
    Raises the errors of Seed.sign().
    """
    members: dict[str, Any] = {
        "verbose": False,
        "pedantic": False,
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
    if options.seed is not None:
        members["nkey"], members["sig"] = options.seed.sign(nonce)
    return members


def tls_context(
    server: NatsServer, options: NatsOptions, info: ServerInfo
) -> ssl.SSLContext | None:
    """Return the TLS settings for a connection; None if it needs no TLS.

    info: the server's INFO.
    Raises Disconnected if TLS is wanted and the server has none.
    """
    if not (info.tls_required or options.tls is not None or server.needs_tls):
        return None
    if not info.tls_required and not info.tls_available:
        raise Disconnected(f"{server}: TLS is wanted, and this server has none")
    return options.tls or ssl.create_default_context()


def is_cluster_address(address: str) -> bool:
    """Return whether an address names NATS servers."""
    return address.startswith(tuple(f"{scheme}://" for scheme in SCHEMES))


def parse_servers(text: str) -> Sequence[NatsServer]:
    """Return the servers of `nats://HOST:PORT,HOST,...`; `tls://` requires TLS.

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
    has_rest = bool(url.path.strip("/") or url.query or url.fragment)
    if url.scheme not in SCHEMES or not url.hostname or has_rest:
        raise ValueError
    return NatsServer(
        url.hostname,
        PORT if url.port is None else url.port,
        unquote(url.username or ""),
        unquote(url.password or ""),
        url.scheme == "tls",
    )


def _without_password(text: str) -> str:
    """Return an address without the part that may contain a password."""
    parts = (part.rpartition("@") for part in text.split(","))
    return ",".join(f"...@{rest}" if at else rest for _, at, rest in parts)


def seed_from_environment() -> Seed | None:
    """Return the seed in the file that CONCERTINO_CLUSTER_SEED names; None if it is not set.

    Raises the errors of read_seed().
    """
    path = os.environ.get(SEED)
    return read_seed(Path(path)) if path else None


def read_seed(path: Path) -> Seed:
    """Read the file of an nkey: a line with its seed, and perhaps comments.

    Raises OSError if the file cannot be read. Raises ValueError if other users can read the file,
    or if it has no seed.
    """
    expected = "a file that only its owner can read: chmod 600"
    data = read_private_file(path, MAX_SEED_BYTES, 0o077, expected)
    if data is None:
        raise FileNotFoundError(ENOENT, "there is no such file", str(path))
    for line in data.splitlines():
        word = line.strip()
        if word.startswith(b"SU") and len(word) == 58:
            return Seed(word)
    raise ValueError(f"{path}: expected a line with the seed of a NATS user, SU...")
