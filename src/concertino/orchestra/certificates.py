"""Certificates as they lie in a folder: loaded, and refused with the command that mends them. Making them is authority.py's.

The layout is upstream's: `ca.crt`, and for each name `NAME.crt` and `NAME.key`, all PEM, in a folder of mode 0700, each file 0600.
`ca.key` is needed to issue, and nowhere else. Leaves are Ed25519 when we make them; upstream's may be ECDSA P-256 as well.
A name says who somebody is: `orchestrator` the hub, PLUGIN a plugin that is called, PLUGIN-client a plugin that calls, and
`orchestrator-to-PLUGIN` the hub that calls it.
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

try:
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        PublicFormat,
        load_pem_private_key,
    )
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ImportError:
    raise ImportError(
        "the Orchestra plugin protocol is in an extra: pip install 'concertino[orchestra]'"
    ) from None

__all__ = [
    "RAW",
    "CertificateError",
    "Certificates",
    "Identity",
    "PrivateKey",
    "Side",
    "certificate_name",
    "check_dates",
    "check_name",
    "default_folder",
    "verify",
]

PrivateKey = Ed25519PrivateKey | EllipticCurvePrivateKey
Side = Literal["server", "client"]
NAME = re.compile(
    r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
)  # 64: what a common name may have, RFC 5280 appendix A.1
PURPOSE = {"server": ExtendedKeyUsageOID.SERVER_AUTH, "client": ExtendedKeyUsageOID.CLIENT_AUTH}


class CertificateError(ConcertinoError):
    """A certificate, its key or its folder cannot be used. The text says why, and which command mends it."""


def default_folder() -> Path:
    """Where certificates are unless somebody says otherwise: upstream's folder."""
    return Path.home() / ".orchestra" / "certs"


def check_name(name: str) -> str:
    """A name that a certificate may have; it is part of a file's name. Raises CertificateError."""
    if NAME.fullmatch(name) is None or name == "ca" or ".." in name:
        raise CertificateError(
            f"{name!r} is no name of a certificate: expected up to 64 letters, digits, '.', '_' and '-', not 'ca'"
        )
    return name


@dataclass(frozen=True)
class Identity:
    """Who this side is, and whom it believes. expires: when the certificate, or the authority's, is over."""

    name: str
    certificate: x509.Certificate
    key: PrivateKey
    authority: x509.Certificate
    expires: datetime


class Certificates:
    """A folder of certificates. Files are read when they are needed, so what is renewed counts from the next handshake on."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder).expanduser().absolute()

    def crt(self, name: str) -> Path:
        """Where the certificate of a name is; "ca" for the authority's."""
        return self.folder / f"{name}.crt"

    def key(self, name: str) -> Path:
        """Where the private key of a name is."""
        return self.folder / f"{name}.key"

    def identity(self, name: str, now: datetime | None = None) -> Identity:
        """Load and check everything that a handshake under this name needs.

        Raises CertificateError when something is missing, readable by others, of somebody else, expired or does not fit together.
        """
        check_name(name)
        now = now or datetime.now(UTC)
        with self.locked(fcntl.LOCK_SH):
            authority = self.authority()
            certificate = self.certificate(name)
            key = self.private_key(name)
        reissue = self.command("issue", name)
        check_dates(certificate, self.crt(name), self.command("renew", name), now)
        check_dates(authority, self.crt("ca"), self.command("renew", "ca"), now)
        if certificate.public_key().public_bytes(*RAW) != key.public_key().public_bytes(*RAW):
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
                f"{self.crt(name)} is of {certificate_name(certificate)!r}: {reissue}"
            )
        expires = min(certificate.not_valid_after_utc, authority.not_valid_after_utc)
        return Identity(name, certificate, key, authority, expires)

    def authority(self) -> x509.Certificate:
        """The authority's certificate. Raises CertificateError."""
        data = self._read("ca.crt", self.command("init"))
        return _certificate(self.crt("ca"), data, self.command("renew", "ca"))

    def certificate(self, name: str) -> x509.Certificate:
        """A certificate as it is, its dates unchecked. Raises CertificateError."""
        mend = self.command("issue", name)
        return _certificate(self.crt(name), self._read(f"{name}.crt", mend), mend)

    def private_key(self, name: str) -> PrivateKey:
        """A private key; "ca" for the authority's. Raises CertificateError."""
        path = self.key(name)
        mend = self.command("issue", name)
        if name == "ca":
            mend = "it is on the machine where certificates are issued; let them be issued there and copy them here"
        data = self._read(path.name, mend)
        try:
            key = load_pem_private_key(data, None)
        except (ValueError, TypeError):
            raise CertificateError(f"{path} holds no private key in PEM: {mend}") from None
        if not isinstance(key, (Ed25519PrivateKey, EllipticCurvePrivateKey)):
            raise CertificateError(
                f"{path}: expected an Ed25519 or ECDSA key, got {type(key).__name__}: {mend}"
            )
        return key

    def names(self) -> list[str]:
        """The names that there are certificates of, sorted. Raises CertificateError."""
        with self.locked(fcntl.LOCK_SH):
            try:
                return sorted(path.stem for path in self.folder.glob("*.crt") if path.stem != "ca")
            except OSError as why:
                raise CertificateError(f"{self.folder}: {why.strerror}") from None

    def command(self, verb: str, name: str = "") -> str:
        """The command that mends something, for messages."""
        place = "" if self.folder == default_folder() else f" --certs-dir {quote(str(self.folder))}"
        return f"concertino certs {verb}{place}{' ' + name if name else ''}"

    @contextmanager
    def locked(self, how: int) -> Generator[None]:
        """While files are read (LOCK_SH) or written (LOCK_EX). The lock is on the folder, so that it leaves no file behind."""
        try:
            descriptor = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise CertificateError(f"{self.folder} is not there: {self.command('init')}") from None
        except OSError as why:
            raise CertificateError(f"{self.folder}: {why.strerror}") from None
        try:
            _check_private(self.folder, os.fstat(descriptor), 0o700)
            fcntl.flock(descriptor, how)
            yield
        finally:
            os.close(descriptor)

    def _read(self, name: str, mend: str) -> bytes:
        path = self.folder / name
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            raise CertificateError(f"{path} is not there: {mend}") from None
        except OSError as why:
            raise CertificateError(f"{path}: {why.strerror}: {mend}") from None
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise CertificateError(f"{path} is no file: {mend}")
            _check_private(path, status, 0o600)
            return os.read(descriptor, MAX_FILE_BYTES)
        finally:
            os.close(descriptor)


RAW = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
MAX_FILE_BYTES = 2**20


def _check_private(path: Path, status: os.stat_result, mode: int) -> None:
    if status.st_mode & 0o077:
        raise CertificateError(
            f"{path} is open to others (mode {stat.S_IMODE(status.st_mode):04o}): chmod {mode:o} {quote(str(path))}"
        )
    if status.st_uid not in (os.geteuid(), 0):
        raise CertificateError(
            f"{path} belongs to uid {status.st_uid}: chown {os.geteuid()} {quote(str(path))}"
        )


def _certificate(path: Path, data: bytes, mend: str) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(data)
    except ValueError:
        raise CertificateError(f"{path} holds no certificate in PEM: {mend}") from None


def check_dates(certificate: x509.Certificate, path: Path, mend: str, now: datetime) -> None:
    """Raises CertificateError for a certificate that is not valid now."""
    if now > certificate.not_valid_after_utc:
        raise CertificateError(f"{path} expired {_day(certificate.not_valid_after_utc)}: {mend}")
    if now < certificate.not_valid_before_utc:
        raise CertificateError(
            f"{path} is not valid before {_day(certificate.not_valid_before_utc)}; is the clock of this machine right?"
        )


def _day(when: datetime) -> str:
    return f"{when:%Y-%m-%d %H:%M} UTC"


def certificate_name(certificate: x509.Certificate) -> str:
    """The one common name of a certificate's subject; empty if there is none, or more than one."""
    found = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(found[0].value) if len(found) == 1 else ""


def verify(
    certificate: x509.Certificate,
    authority: x509.Certificate,
    side: Side,
    now: datetime | None = None,
) -> str:
    """Whether the other side's certificate is good: issued by the authority, in time, and for its side of the handshake.

    The chain is always one link long: every leaf is issued by the authority itself. Returns its name. Raises CertificateError.
    """
    now = now or datetime.now(UTC)
    name = certificate_name(certificate)
    shown = f"the certificate of {name!r}" if name else "a certificate without a name"
    try:
        certificate.verify_directly_issued_by(authority)
    except (InvalidSignature, ValueError, TypeError):
        raise CertificateError(f"{shown} was not issued by our authority") from None
    for each, what in ((certificate, shown), (authority, "our authority's certificate")):
        if now > each.not_valid_after_utc:
            raise CertificateError(f"{what} expired {_day(each.not_valid_after_utc)}")
        if now < each.not_valid_before_utc:
            raise CertificateError(f"{what} is not valid before {_day(each.not_valid_before_utc)}")
    try:
        usage: Sequence[x509.ObjectIdentifier] = list(
            certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        )
        constraints = _constraints(certificate)
    except (x509.ExtensionNotFound, ValueError):
        raise CertificateError(f"{shown} does not say what it is for") from None
    if PURPOSE[side] not in usage:
        raise CertificateError(f"{shown} is not for a {side}")
    if constraints is not None and constraints.ca:
        raise CertificateError(f"{shown} is an authority's")
    if not name:
        raise CertificateError(f"{shown} says nobody's name")
    return name


def _constraints(certificate: x509.Certificate) -> x509.BasicConstraints | None:
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
    except x509.ExtensionNotFound:
        return None
