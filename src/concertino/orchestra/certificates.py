"""Certificates: loads and checks the certificates and keys in a directory.

With certificates, hubs, plugins and bridges prove who they are, over QUIC and in a NATS cluster. A
hub starts plugins and forwards requests between them, and a bridge connects MCP clients to a hub.
authority.py issues the certificates. The directory has mode 0700, and its files have mode 0600. The
files are in PEM:

    ca.crt, ca.key        the authority; only issuing certificates needs its key
    NAME.crt, NAME.key    the certificate of a process, and its key

NAME states the role of the process that presents the certificate:

    orchestrator              the hub, as a server
    orchestrator-to-PLUGIN    the hub, as a client of a plugin
    PLUGIN                    a plugin, as a server
    PLUGIN-client             a plugin, as a client of the hub
    nats-server, front-end    a NATS server, and an HTTP front end as its client

The Go implementation uses the same directory and file names. This package issues certificates with
Ed25519 keys, and also accepts ECDSA P-256 keys of other implementations.
Sources: the Orchestra plugin protocol, "Certificates"; RFC 5280; RFC 8446 section 4.4.2.
"""

from __future__ import annotations

import fcntl
import os
import re
import stat
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from shlex import quote
from typing import Literal

from concertino.errors import ConcertinoError
from concertino.installation import missing_extra
from concertino.nats.subjects import FRONT_END, NATS_SERVER

try:
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ImportError:
    raise ImportError(missing_extra("a hub or plugin", "orchestra")) from None

__all__ = [
    "HUB",
    "CertificateError",
    "Certificates",
    "Identity",
    "PrivateKey",
    "Side",
    "certificate_name",
    "check_dates",
    "check_name",
    "default_folder",
    "is_reserved_name",
    "verify",
]

# The name of a hub's certificate.
HUB = "orchestrator"

PrivateKey = Ed25519PrivateKey | EllipticCurvePrivateKey
Side = Literal["server", "client"]
# 64 characters is the limit of a common name, RFC 5280 appendix A.1.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
# Side of a handshake -> the extended key usage that the certificate of this side must have.
PURPOSE = {"server": ExtendedKeyUsageOID.SERVER_AUTH, "client": ExtendedKeyUsageOID.CLIENT_AUTH}
# How much of a certificate file or a key file is read, in bytes. Valid files are much shorter. With
# the limit, a wrong file cannot fill the memory.
MAX_FILE_BYTES = 2**20


class CertificateError(ConcertinoError):
    """A certificate, its key or its directory cannot be used.

    The text says why, and where possible names the command that corrects the problem.
    """


def default_folder() -> Path:
    """Return the default directory of certificates, ~/.orchestra/certs.

    Raises RuntimeError if the user has no home directory.
    """
    return Path.home() / ".orchestra" / "certs"


def check_name(name: str) -> str:
    """Return the name unchanged if it is a valid name of a certificate and its files.

    A valid name has 1 to 64 letters, digits, `.`, `_` and `-`. It begins with a letter or digit,
    has no `..`, and is not `ca`, the name of the authority's files.
    Raises CertificateError for any other name.
    """
    # Names with ".." could be taken for paths.
    if NAME.fullmatch(name) is None or name == "ca" or ".." in name:
        raise CertificateError(
            f"{name!r} is not a valid name of a certificate: "
            "expected up to 64 letters, digits, '.', '_' and '-', not 'ca'"
        )
    return name


def is_reserved_name(name: str) -> bool:
    """Return whether no plugin may have this id, because it is the name of another certificate.

    Reserved are the names of hubs, NATS servers and HTTP front ends, and PLUGIN-client, the name of
    the certificate with which a plugin connects to a hub.
    """
    names = (HUB, NATS_SERVER, FRONT_END)
    return name in names or name.startswith(f"{HUB}-to-") or name.endswith("-client")


@dataclass(frozen=True)
class Identity:
    """What a process needs for a handshake: its certificate and key, and the authority it trusts.

    name: the common name in the certificate.
    key: the private key of the certificate.
    authority: the certificate of the authority, which must have issued the peers' certificates.
    expires: the time when the first of the two certificates expires.
    """

    name: str
    certificate: x509.Certificate
    key: PrivateKey
    authority: x509.Certificate
    expires: datetime


class Certificates:
    """A directory of certificates and private keys.

        certificates = Certificates("~/.orchestra/certs")
        identity = certificates.identity("tools.greeter")

    Files that have changed are read again, so renewed certificates take effect without a restart.
    folder: the path of the directory, which need not exist yet.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder).expanduser().absolute()
        # A cache by name: the result of _state_of_files() at the time of loading, and the identity.
        self._identities: dict[str, tuple[object, Identity]] = {}

    def crt(self, name: str) -> Path:
        """Return the path of the certificate with this name; "ca" is the authority's name."""
        return self.folder / f"{name}.crt"

    def key(self, name: str) -> Path:
        """Return the path of the private key with this name; "ca" is the authority's name."""
        return self.folder / f"{name}.key"

    def identity(self, name: str, now: datetime | None = None) -> Identity:
        """Return the identity of a process, after checking its certificate, key and authority.

        name: the name of the certificate, such as a plugin's id.
        now: the time at which the certificates must be valid; None for the current time.
        Raises CertificateError in these cases:

        - A file is missing.
        - Another user (except root) owns a file, or may read it.
        - A certificate is not valid at that time.
        - Key, certificate and authority do not match.
        """
        check_name(name)
        # The identity is cached, because loading takes a fifth of the time of a handshake, and
        # hundreds of clients may connect at once.
        state = self._state_of_files(name)
        cached = self._identities.get(name)
        moment = now or datetime.now(UTC)
        # The cache is only for the current time.
        if cached is not None and now is None:
            old_state, identity = cached
            if state == old_state and moment <= identity.expires:
                return identity

        # Read all files under one lock, because a renewal replaces certificate and key one after
        # the other.
        with self.lock(fcntl.LOCK_SH):
            authority = self.authority()
            certificate = self.certificate(name)
            key = self.private_key(name)
        reissue = self.command("issue", name)
        check_dates(certificate, self.crt(name), self.command("renew", name), moment)
        check_dates(authority, self.crt("ca"), self.command("renew", "ca"), moment)
        if certificate.public_key() != key.public_key():
            raise CertificateError(
                f"{self.key(name)} is not the key of {self.crt(name)}: {reissue}"
            )
        try:
            certificate.verify_directly_issued_by(authority)
        except (InvalidSignature, ValueError, TypeError):
            raise CertificateError(
                f"{self.crt(name)} was not issued by {self.crt('ca')}: {reissue}"
            ) from None
        if certificate_name(certificate) != name:
            raise CertificateError(
                f"{self.crt(name)} has the name {certificate_name(certificate)!r} in it: {reissue}"
            )
        expires = min(certificate.not_valid_after_utc, authority.not_valid_after_utc)
        identity = Identity(
            name=name, certificate=certificate, key=key, authority=authority, expires=expires
        )
        self._identities[name] = state, identity
        return identity

    def _state_of_files(self, name: str) -> object:
        """Return a value that changes when any file of an identity changes."""
        # A change of content, mode or owner changes st_ctime.
        state: list[object] = []
        for path in (self.folder, self.crt("ca"), self.crt(name), self.key(name)):
            try:
                status = path.stat()
            except OSError as exc:
                state.append(exc.errno)
            else:
                state.append((status.st_ino, status.st_size, status.st_ctime_ns))
        return state

    def authority(self) -> x509.Certificate:
        """Load the authority's certificate without checking whether it is valid.

        Raises CertificateError if the file is missing or cannot be read.
        """
        data = self._read("ca.crt", self.command("init"))
        return _parse_certificate(self.crt("ca"), data, self.command("renew", "ca"))

    def certificate(self, name: str) -> x509.Certificate:
        """Load the certificate with this name without checking whether it is valid.

        Raises CertificateError if the file is missing or cannot be read.
        """
        remedy = self.command("issue", name)
        return _parse_certificate(self.crt(name), self._read(f"{name}.crt", remedy), remedy)

    def private_key(self, name: str) -> PrivateKey:
        """Load the private key with this name; "ca" is the authority's name.

        Raises CertificateError if the file is missing or cannot be read.
        """
        path = self.key(name)
        remedy = self.command("issue", name)
        if name == "ca":
            remedy = (
                "the authority's key stays on the machine where certificates are issued; "
                "issue them there and copy them here"
            )
        data = self._read(path.name, remedy)
        try:
            key = load_pem_private_key(data, None)
        except (ValueError, TypeError):
            raise CertificateError(f"{path} holds no private key in PEM: {remedy}") from None
        if not isinstance(key, (Ed25519PrivateKey, EllipticCurvePrivateKey)):
            raise CertificateError(
                f"{path}: expected an Ed25519 or ECDSA key, got {type(key).__name__}: {remedy}"
            )
        return key

    def names(self) -> list[str]:
        """Return the names of all certificates except that of the authority, sorted.

        Raises CertificateError if the directory does not exist or is not private.
        """
        with self.lock(fcntl.LOCK_SH):
            try:
                return sorted(path.stem for path in self.folder.glob("*.crt") if path.stem != "ca")
            except OSError as exc:
                raise CertificateError(f"{self.folder}: {exc.strerror}") from None

    def command(self, verb: str, name: str = "") -> str:
        """Return a command line such as `concertino certs renew tools.greeter`, for messages.

        verb: the subcommand of `concertino certs`.
        name: the name of the certificate; "" if the subcommand takes none.
        """
        words = ["concertino", "certs", verb]
        if self.folder != default_folder():
            words += ["--certs-dir", quote(str(self.folder))]
        if name:
            words.append(name)
        return " ".join(words)

    @contextmanager
    def lock(self, mode: int) -> Generator[None]:
        """Lock the directory against other processes, inside a `with` block.

        mode: LOCK_SH to read files, or LOCK_EX to write them, from the module fcntl.
        Raises CertificateError if the directory does not exist, or if another user (except root)
        owns it or may read it.
        """
        # The directory itself is locked, so no lock file is needed.
        try:
            descriptor = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise CertificateError(f"{self.folder} is not there: {self.command('init')}") from None
        except OSError as exc:
            raise CertificateError(f"{self.folder}: {exc.strerror}") from None
        try:
            _check_private(self.folder, os.fstat(descriptor), 0o700)
            fcntl.flock(descriptor, mode)
            yield
        finally:
            os.close(descriptor)

    def _read(self, name: str, remedy: str) -> bytes:
        """Return the content of a file.

        remedy: the command that corrects a problem, for the message.
        Raises CertificateError if the file is missing, or other users may read it.
        """
        path = self.folder / name
        try:
            # Non-blocking, so that a named pipe cannot block the process.
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            raise CertificateError(f"{path} is not there: {remedy}") from None
        except OSError as exc:
            raise CertificateError(f"{path}: {exc.strerror}: {remedy}") from None
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise CertificateError(f"{path} is not a regular file: {remedy}")
            _check_private(path, status, 0o600)
            return os.read(descriptor, MAX_FILE_BYTES)
        finally:
            os.close(descriptor)


def _check_private(path: Path, status: os.stat_result, mode: int) -> None:
    """Raise CertificateError if another user may read a file, or owns it (except root).

    path, status: the file or directory, and its status.
    mode: the permissions that the message recommends.
    """
    if status.st_mode & 0o077:
        raise CertificateError(
            f"{path} is open to others (mode {stat.S_IMODE(status.st_mode):04o}): "
            f"chmod {mode:o} {quote(str(path))}"
        )
    if status.st_uid not in (os.geteuid(), 0):
        raise CertificateError(
            f"{path} belongs to uid {status.st_uid}: chown {os.geteuid()} {quote(str(path))}"
        )


def _parse_certificate(path: Path, data: bytes, remedy: str) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(data)
    except ValueError:
        raise CertificateError(f"{path} holds no certificate in PEM: {remedy}") from None


def check_dates(
    certificate: x509.Certificate,
    path: Path,
    remedy: str,
    now: datetime,
) -> None:
    """Raise CertificateError for a certificate that is not valid at a time.

    path: the file of the certificate, for the message.
    remedy: the command that renews the certificate, for the message.
    now: the time.
    """
    if now > certificate.not_valid_after_utc:
        raise CertificateError(
            f"{path} expired {_format_time(certificate.not_valid_after_utc)}: {remedy}"
        )
    if now < certificate.not_valid_before_utc:
        raise CertificateError(
            f"{path} is not valid before {_format_time(certificate.not_valid_before_utc)}; "
            "is the clock of this machine right?"
        )


def _format_time(when: datetime) -> str:
    return f"{when:%Y-%m-%d %H:%M} UTC"


def certificate_name(certificate: x509.Certificate) -> str:
    """Return the common name of a certificate's subject; empty if there is not exactly one."""
    names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(names[0].value) if len(names) == 1 else ""


def verify(
    certificate: x509.Certificate,
    authority: x509.Certificate,
    side: Side,
    now: datetime | None = None,
) -> str:
    """Check a peer's certificate, and return the name in it.

    certificate: the peer's certificate.
    authority: the certificate of the authority that this process trusts.
    side: the peer's side of the handshake ("client" or "server").
    now: the time at which both certificates must be valid; None for the current time.
    Raises CertificateError unless all of these are true:

    - The authority itself has issued the certificate.
    - The certificate is for the peer's side, and is not the certificate of an authority.
    - The certificate has a name.
    - Both certificates are valid at that time.
    """
    now = now or datetime.now(UTC)
    name = certificate_name(certificate)
    label = f"the certificate of {name!r}" if name else "a certificate without a name"
    try:
        certificate.verify_directly_issued_by(authority)
    except (InvalidSignature, ValueError, TypeError):
        raise CertificateError(f"{label} was not issued by our authority") from None

    _check_time(certificate, label, now)
    _check_time(authority, "our authority's certificate", now)

    try:
        usage: Sequence[x509.ObjectIdentifier] = list(
            certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        )
        constraints = _basic_constraints(certificate)
    except (x509.ExtensionNotFound, ValueError):
        raise CertificateError(f"{label} has no valid extended key usage") from None
    # Without this check, the owner of a client certificate could pose as a server.
    if PURPOSE[side] not in usage:
        raise CertificateError(f"{label} is not for a {side}")
    if constraints is not None and constraints.ca:
        raise CertificateError(f"{label} is an authority's")
    if not name:
        raise CertificateError(f"{label} has no common name")
    return name


def _check_time(certificate: x509.Certificate, label: str, now: datetime) -> None:
    """Do the same as check_dates() for a peer, who has no file and needs no advice."""
    if now > certificate.not_valid_after_utc:
        raise CertificateError(f"{label} expired {_format_time(certificate.not_valid_after_utc)}")
    if now < certificate.not_valid_before_utc:
        raise CertificateError(
            f"{label} is not valid before {_format_time(certificate.not_valid_before_utc)}"
        )


def _basic_constraints(certificate: x509.Certificate) -> x509.BasicConstraints | None:
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
    except x509.ExtensionNotFound:
        return None
