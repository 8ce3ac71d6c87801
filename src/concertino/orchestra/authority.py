"""The certificate authority for hubs and plugins: creates it, and issues and renews certificates.

    certificates = Certificates("~/.orchestra/certs")
    create_authority(certificates)                    # writes ca.crt and ca.key
    issue(certificates, "tools.greeter")              # writes tools.greeter.crt and .key

A hub starts plugins and forwards requests between them, and a bridge connects MCP clients to a hub.
Hubs, plugins and bridges prove who they are with certificates of one authority. The command
`concertino certs` calls these functions. Hubs, plugins and bridges call ensure_certificate() when
they start. Only the command creates an authority, because its key can issue any certificate.

Certificates have the same subjects, extensions and periods as in the Go implementation.
Source: the Orchestra plugin protocol, "Certificates".
"""

from __future__ import annotations

import fcntl
import re
import secrets
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from concertino.installation import missing_extra
from concertino.orchestra.certificates import (
    CertificateError,
    Certificates,
    Identity,
    PrivateKey,
    certificate_name,
    check_dates,
    check_name,
)
from concertino.user_files import write_private_file

try:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
    )
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ImportError:
    raise ImportError(missing_extra("a hub or plugin", "orchestra")) from None

__all__ = [
    "RENEW_BEFORE",
    "VALID",
    "create_authority",
    "create_temporary_identity",
    "ensure_certificate",
    "issue",
    "renew",
    "renew_authority",
]

# The default period for which a new certificate is valid.
VALID = timedelta(days=365)
# A new certificate is valid from one minute ago, because the clocks of two machines differ.
BACKDATE = timedelta(minutes=1)
# The organization in each subject, and the common name of the authority.
ORGANIZATION = "Orchestra"
AUTHORITY = "Orchestra CA"
# One part of a host name, between two dots.
LABEL = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")
# The hosts for which every certificate is valid.
HOSTS = ("localhost", "127.0.0.1", "::1")
# A certificate that expires within this time is renewed when it is next used.
RENEW_BEFORE = timedelta(days=30)


def create_authority(certificates: Certificates, valid: timedelta = VALID) -> None:
    """Create a new authority: write its certificate and its key to the directory.

    certificates: the directory, which is created if it does not exist.
    valid: how long the authority's certificate is valid.
    Raises CertificateError if the certificate or the key of an authority exists already, or if the
    files cannot be written.
    """
    try:
        certificates.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as exc:
        raise CertificateError(f"{certificates.folder}: {exc.strerror}") from None
    with certificates.lock(fcntl.LOCK_EX):
        for path in (certificates.crt("ca"), certificates.key("ca")):
            if path.exists():
                raise CertificateError(
                    f"{path} exists already. With a new authority, every certificate issued by "
                    f"this one would be refused: to keep it, {certificates.command('renew', 'ca')}"
                    "; for a new one, move the folder away"
                )
        key = Ed25519PrivateKey.generate()
        # The key is written first, because a certificate without its key is useless.
        _write(certificates.key("ca"), _encode_key(key))
        _write(
            certificates.crt("ca"),
            _make_authority_certificate(key, valid).public_bytes(Encoding.PEM),
        )


def renew_authority(certificates: Certificates, valid: timedelta = VALID) -> None:
    """Issue a new certificate for the authority's existing key.

    The certificates that the authority has issued before stay valid, because they were signed with
    the same key.
    valid: how long the new certificate is valid.
    Raises CertificateError if the key is missing, or if the file cannot be written.
    """
    with certificates.lock(fcntl.LOCK_EX):
        key = certificates.private_key("ca")
        if not isinstance(key, Ed25519PrivateKey):
            raise CertificateError(f"{certificates.key('ca')}: expected an Ed25519 key")
        _write(
            certificates.crt("ca"),
            _make_authority_certificate(key, valid).public_bytes(Encoding.PEM),
        )


def issue(
    certificates: Certificates,
    name: str,
    *,
    hosts: Sequence[str] = (),
    valid: timedelta = VALID,
) -> x509.Certificate:
    """Issue a certificate with a new key, write both to the directory, and return the certificate.

    Replaces an existing certificate and key of this name.
    name: the name in the certificate, which states the role of its owner, such as a plugin's id.
        certificates.py lists the names.
    hosts: the host names and IP addresses at which clients connect to the owner, in addition to
        localhost.
    valid: how long the certificate is valid.
    Raises CertificateError if a name or host is not valid, if the directory has no authority with
    its key, or if the files cannot be written.
    """
    check_name(name)
    for host in hosts:
        _check_host(host)
    with certificates.lock(fcntl.LOCK_EX):
        return _issue(certificates, name, hosts, valid)


def _check_host(host: str) -> None:
    """Raise CertificateError unless the text is a host name or an IP address.

    Wildcards such as *.example.com are refused, because they are valid for every host of a domain.
    """
    try:
        ip_address(host)
    except ValueError:
        if len(host) > 253 or not all(map(LABEL.fullmatch, host.split("."))):
            raise CertificateError(
                f"{host!r} is not a host: expected a name such as hub.example.com, or an IP address"
            ) from None


def renew(certificates: Certificates, name: str, *, valid: timedelta = VALID) -> x509.Certificate:
    """Issue the certificate with this name again, with a new key, for the same hosts.

    Writes the new certificate and key to the directory, and returns the certificate.
    valid: how long the new certificate is valid.
    Raises CertificateError if there is no certificate of this name, and in the cases of issue().
    """
    check_name(name)
    with certificates.lock(fcntl.LOCK_EX):
        return _issue(certificates, name, _hosts_of(certificates.certificate(name)), valid)


def ensure_certificate(
    certificates: Certificates, name: str, now: datetime | None = None
) -> x509.Certificate:
    """Return the certificate with this name; issue or renew it first if necessary.

    - A missing certificate is issued, with the authority's key in the directory.
    - A certificate that has expired, or expires within 30 days, is renewed if the directory has the
      authority's key. Without the key, it is returned unchanged, and may have expired.

    now: the time with which to compare; None for the current time.
    Raises CertificateError if a missing certificate cannot be issued, or a file cannot be used.
    """
    check_name(name)
    now = now or datetime.now(UTC)
    with certificates.lock(fcntl.LOCK_EX):
        if not (certificates.crt(name).exists() and certificates.key(name).exists()):
            return _issue(certificates, name, (), VALID)
        current = certificates.certificate(name)
        if current.not_valid_after_utc - now > RENEW_BEFORE or not certificates.key("ca").exists():
            return current
        return _issue(certificates, name, _hosts_of(current), VALID)


def create_temporary_identity(name: str) -> Identity:
    """Return an identity with a certificate of a new authority, for handshakes in memory.

    Writes no files. The identity and the authority are valid for one hour.
    name: the name in the certificate.
    """
    signer, key = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
    authority = _make_authority_certificate(signer, timedelta(hours=1))
    certificate = _make_certificate(name, key, authority, signer, (), timedelta(hours=1))
    return Identity(
        name=name,
        certificate=certificate,
        key=key,
        authority=authority,
        expires=certificate.not_valid_after_utc,
    )


def _issue(
    certificates: Certificates,
    name: str,
    hosts: Sequence[str],
    valid: timedelta,
) -> x509.Certificate:
    """Issue a certificate with a new key, and write both. The caller has locked the directory."""
    authority = certificates.authority()
    signer = certificates.private_key("ca")
    if authority.public_key() != signer.public_key():
        raise CertificateError(
            f"{certificates.key('ca')} is not the key of {certificates.crt('ca')}: restore the "
            f"matching key, or {certificates.command('renew', 'ca')}, which makes all issued "
            "certificates invalid"
        )
    check_dates(
        authority, certificates.crt("ca"), certificates.command("renew", "ca"), datetime.now(UTC)
    )
    key = Ed25519PrivateKey.generate()
    certificate = _make_certificate(name, key, authority, signer, hosts, valid)
    _write(certificates.key(name), _encode_key(key))
    _write(certificates.crt(name), certificate.public_bytes(Encoding.PEM))
    return certificate


def _make_authority_certificate(key: Ed25519PrivateKey, valid: timedelta) -> x509.Certificate:
    """Return a new certificate of the authority, signed with its own key."""
    subject = _make_subject(AUTHORITY)
    usage = _make_key_usage(key_cert_sign=True, crl_sign=True)
    # path_length: at most one authority may stand between this one and a certificate. concertino
    # itself accepts none (verify()).
    return (
        _make_builder(subject, subject, key, valid)
        .add_extension(x509.BasicConstraints(ca=True, path_length=1), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, None)
    )


def _make_certificate(
    name: str,
    key: Ed25519PrivateKey,
    authority: x509.Certificate,
    signer: PrivateKey,
    hosts: Sequence[str],
    valid: timedelta,
) -> x509.Certificate:
    """Return a new certificate of a hub or plugin.

    name: the common name in the certificate.
    key: the key of the hub or plugin.
    authority: the certificate of the authority.
    signer: the key of the authority.
    hosts: the hosts for which the certificate is valid, in addition to HOSTS.
    Raises CertificateError if the authority's key is not an Ed25519 key, or if a name is not ASCII.
    """
    if not isinstance(signer, Ed25519PrivateKey):
        raise CertificateError("the authority's key: expected an Ed25519 key")
    # The Go implementation uses one kind of certificate for both sides of a handshake.
    sides = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    names = dict.fromkeys((name, *HOSTS, *hosts))
    return (
        _make_builder(_make_subject(name), authority.subject, key, valid)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_make_key_usage(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage(sides), critical=False)
        .add_extension(
            x509.SubjectAlternativeName([_general_name(name) for name in names]), critical=False
        )
        .add_extension(_authority_identifier(authority), critical=False)
        .sign(signer, None)
    )


def _authority_identifier(authority: x509.Certificate) -> x509.AuthorityKeyIdentifier:
    """Return the extension that says with which authority's key a certificate was signed."""
    try:
        identifier = authority.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    except x509.ExtensionNotFound:
        # _make_certificate() has checked the type of the key.
        key: Any = authority.public_key()
        return x509.AuthorityKeyIdentifier.from_issuer_public_key(key)
    return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier)


def _make_builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: Ed25519PrivateKey,
    valid: timedelta,
) -> x509.CertificateBuilder:
    """Return a builder with the fields of every certificate, but without extensions."""
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        # Positive, at most 20 octets: RFC 5280 section 4.1.2.2.
        .serial_number(secrets.randbits(127) or 1)
        .not_valid_before(now - BACKDATE)
        .not_valid_after(now + valid)
    )


def _make_subject(name: str) -> x509.Name:
    """Return the subject of a certificate. name: its common name."""
    organization = x509.NameAttribute(NameOID.ORGANIZATION_NAME, ORGANIZATION)
    return x509.Name([organization, x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _make_key_usage(
    *, digital_signature: bool = False, key_cert_sign: bool = False, crl_sign: bool = False
) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(host: str) -> x509.GeneralName:
    """Return a host name or IP address for a certificate.

    Raises CertificateError for a text that is neither.
    """
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        pass
    try:
        return x509.DNSName(host)
    except ValueError:
        raise CertificateError(
            f"{host!r}: expected a host's name in ASCII, or an IP address"
        ) from None


def _hosts_of(certificate: x509.Certificate) -> list[str]:
    """Return the host names and addresses of a certificate, without its own name."""
    try:
        alternatives = certificate.extensions.get_extension_for_class(
            x509.SubjectAlternativeName
        ).value
    except x509.ExtensionNotFound:
        return []
    names = [
        *alternatives.get_values_for_type(x509.DNSName),
        *map(str, alternatives.get_values_for_type(x509.IPAddress)),
    ]
    return [name for name in names if name != certificate_name(certificate)]


def _encode_key(key: Ed25519PrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _write(path: Path, data: bytes) -> None:
    """Write a file with mode 0600 in one atomic step."""
    try:
        write_private_file(path, data)
    except OSError as exc:
        raise CertificateError(f"{path}: {exc.strerror}") from None
