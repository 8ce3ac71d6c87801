"""certificates.py, authority.py and `concertino certs`: by the command, and as openssl and the
`ssl` module see what it makes.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import shlex
import stat
import subprocess
import sys
from base64 import b64decode, b64encode
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from warm_commands import run_python

from concertino.cli import main
from concertino.orchestra.authority import (
    create_authority,
    ensure_certificate,
    issue,
    renew,
    renew_authority,
)
from concertino.orchestra.certificates import CertificateError, Certificates, verify
from concertino.orchestra.handshake import CurrentIdentity

NOW = datetime.now(UTC)
# Made by Go's crypto/x509 with the fields of upstream's certificates, but valid until 2049. The
# Ed25519 key of the authority has the seed 0, 1, ... 31, and that of the leaf 32, 33, ... 63.
GO_AUTHORITY = """\
-----BEGIN CERTIFICATE-----
MIIBWjCCAQygAwIBAgIRAMRj5O9KFvpgL1dw55gEB1IwBQYDK2VwMCsxEjAQBgNV
BAoTCU9yY2hlc3RyYTEVMBMGA1UEAxMMT3JjaGVzdHJhIENBMB4XDTI2MTEyODAw
MDAwMFoXDTQ5MTIzMTAwMDAwMFowKzESMBAGA1UEChMJT3JjaGVzdHJhMRUwEwYD
VQQDEwxPcmNoZXN0cmEgQ0EwKjAFBgMrZXADIQADoQe/884Qvh1w3RjnS8CZZ+TW
MJulDV8d3IZkElUxuKNFMEMwDgYDVR0PAQH/BAQDAgEGMBIGA1UdEwEB/wQIMAYB
Af8CAQEwHQYDVR0OBBYEFFZHWqdUY0dMAoXfXb8ryrc9plE1MAUGAytlcANBAFX7
fGEg08zeU3DU0bDnbhaH5nTet18ONjpRcGB0ww7pYtKmBBS1424+qlNWtM0i6Ah1
N0+XEcs/hLs7wdqOQwk=
-----END CERTIFICATE-----
"""
GO_LEAF = """\
-----BEGIN CERTIFICATE-----
MIIBpzCCAVmgAwIBAgIRAKoX5RGEH6+c99Ts2HgaWu4wBQYDK2VwMCsxEjAQBgNV
BAoTCU9yY2hlc3RyYTEVMBMGA1UEAxMMT3JjaGVzdHJhIENBMB4XDTI2MTEyODAw
MDAwMFoXDTQ5MTIzMTAwMDAwMFowLDESMBAGA1UEChMJT3JjaGVzdHJhMRYwFAYD
VQQDEw10b29scy5ncmVldGVyMCowBQYDK2VwAyEAKay64UG8yvCyLhqU000LxzYe
Um0L/hLIl5S8kyKWbdejgZAwgY0wDgYDVR0PAQH/BAQDAgeAMB0GA1UdJQQWMBQG
CCsGAQUFBwMBBggrBgEFBQcDAjAfBgNVHSMEGDAWgBRWR1qnVGNHTAKF312/K8q3
PaZRNTA7BgNVHREENDAygg10b29scy5ncmVldGVygglsb2NhbGhvc3SHBH8AAAGH
EAAAAAAAAAAAAAAAAAAAAAEwBQYDK2VwA0EA9muJD2TDgS+EH/asoikJYiQhwHAe
JJaYzcPrsd1isqLZufx4ulk3L1W9VIei95DRpTvsYzX+2sPiEeMxT4LkAQ==
-----END CERTIFICATE-----
"""
# PKCS #8 (RFC 8410 section 7) of an Ed25519 key, before its seed.
PKCS_8 = bytes.fromhex("302e020100300506032b657004220420")


@pytest.fixture
def own(tmp_path: Path) -> Certificates:
    """A folder that a test may spoil: an authority and one certificate."""
    made = Certificates(tmp_path / "certs")
    create_authority(made)
    issue(made, "orchestrator")
    return made


def command(*words: object) -> subprocess.CompletedProcess[str]:
    return run_python(
        [sys.executable, "-m", "concertino", "certs", *map(str, words)],
        capture_output=True,
        text=True,
    )


def test_the_command_makes_upstream_s_layout(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "certs"
    assert command("init", "--certs-dir", folder).returncode == 0
    assert (
        command("issue", "--certs-dir", folder, "orchestrator", "tools.greeter-client").returncode
        == 0
    )
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    files = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    names = ("ca", "orchestrator", "tools.greeter-client")
    assert files == {f"{name}.{kind}": 0o600 for name in names for kind in ("crt", "key")}
    shown = command("show", "--certs-dir", folder)
    assert shown.returncode == 0
    assert [line.split()[0] for line in shown.stdout.splitlines()] == list(names)
    assert "until " in shown.stdout
    assert command("renew", "--certs-dir", folder).stdout.startswith("nothing to renew")
    assert command("renew", "--certs-dir", folder, "orchestrator").returncode == 0


def refusal_of_openssl(certificates: Certificates, *options: str) -> str:
    """Why openssl refuses the certificate `orchestrator` of a folder; empty if it accepts it."""
    files = ("-CAfile", certificates.crt("ca"), certificates.crt("orchestrator"))
    done = subprocess.run(
        ["openssl", "verify", "-x509_strict", *options, *files], capture_output=True, text=True
    )
    return done.stderr if done.returncode else ""


def test_openssl_believes_what_was_issued(own: Certificates) -> None:
    for purpose in ("sslserver", "sslclient"):
        assert refusal_of_openssl(own, "-purpose", purpose) == ""
    key = subprocess.run(
        ["openssl", "pkey", "-in", own.key("orchestrator"), "-text", "-noout"], capture_output=True
    )
    assert b"ED25519 Private-Key" in key.stdout


def test_the_fields_are_those_of_the_protocol(own: Certificates) -> None:
    """Subjects, extensions and periods as the protocol's description of upstream's certificates has
    them.
    """
    authority, leaf = own.authority(), own.certificate("orchestrator")
    assert authority.subject.rfc4514_string() == "CN=Orchestra CA,O=Orchestra"
    assert leaf.subject.rfc4514_string() == "CN=orchestrator,O=Orchestra"
    constraints = authority.extensions.get_extension_for_class(x509.BasicConstraints)
    assert constraints.critical
    assert (constraints.value.ca, constraints.value.path_length) == (True, 1)
    usage = authority.extensions.get_extension_for_class(x509.KeyUsage).value
    assert (usage.key_cert_sign, usage.crl_sign, usage.digital_signature) == (True, True, False)
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["orchestrator", "localhost"]
    assert [str(each) for each in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1", "::1"]
    usages = leaf.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert [each.dotted_string for each in usages] == ["1.3.6.1.5.5.7.3.1", "1.3.6.1.5.5.7.3.2"]
    for each in (authority, leaf):
        assert isinstance(each.public_key(), Ed25519PublicKey)
        assert each.not_valid_after_utc - each.not_valid_before_utc == timedelta(
            days=365, minutes=1
        )


def test_other_hosts_are_added_and_kept_when_it_is_renewed(own: Certificates) -> None:
    def hosts() -> list[str]:
        names = (
            own.certificate("orchestrator")
            .extensions.get_extension_for_class(x509.SubjectAlternativeName)
            .value
        )
        return [
            *names.get_values_for_type(x509.DNSName),
            *map(str, names.get_values_for_type(x509.IPAddress)),
        ]

    issue(own, "orchestrator", hosts=["hub.example", "10.0.0.7"])
    expected = ["orchestrator", "localhost", "hub.example", "127.0.0.1", "::1", "10.0.0.7"]
    assert hosts() == expected
    before = own.key("orchestrator").read_bytes()
    renew(own, "orchestrator")
    assert hosts() == expected
    assert own.key("orchestrator").read_bytes() != before
    assert own.identity("orchestrator").name == "orchestrator"


def test_an_authority_that_is_there_is_never_made_again(own: Certificates) -> None:
    kept = own.key("ca").read_bytes()
    with pytest.raises(CertificateError, match="exists already"):
        create_authority(own)
    own.crt("ca").unlink()
    with pytest.raises(CertificateError, match="exists already"):
        create_authority(own)
    assert own.key("ca").read_bytes() == kept
    renew_authority(own)  # what is missing is made of the key
    assert own.identity("orchestrator").name == "orchestrator"


def test_a_renewed_authority_s_certificates_stay_good(own: Certificates) -> None:
    before = own.authority()
    renew_authority(own, timedelta(days=700))
    assert own.authority().serial_number != before.serial_number
    verify(own.certificate("orchestrator"), own.authority(), "server")
    assert own.identity("orchestrator")


def spoil_expired(own: Certificates) -> None:
    issue(own, "orchestrator", valid=timedelta(seconds=-30))


def spoil_key(own: Certificates) -> None:
    issue(own, "other")
    own.key("orchestrator").write_bytes(own.key("other").read_bytes())


def spoil_authority(own: Certificates) -> None:
    other = Certificates(own.folder / "other")
    create_authority(other)
    own.crt("ca").write_bytes(other.crt("ca").read_bytes())


def spoil_name(own: Certificates) -> None:
    issue(own, "other")
    for kind in ("crt", "key"):
        (own.folder / f"other.{kind}").rename(own.folder / f"orchestrator.{kind}")


def spoil_link(own: Certificates) -> None:
    own.key("orchestrator").unlink()
    own.key("orchestrator").mkdir(0o700)


SPOILT: dict[str, tuple[Callable[[Certificates], object], str]] = {
    "expired": (spoil_expired, r"orchestrator.crt expired .* UTC: concertino certs renew"),
    "key of another": (spoil_key, r"orchestrator.key is not the key of .*: concertino certs issue"),
    "other authority": (spoil_authority, r"was not issued by .*ca.crt: concertino certs issue"),
    "other name": (
        spoil_name,
        r"orchestrator.crt has the name 'other' in it: concertino certs issue",
    ),
    "key readable": (
        lambda own: own.key("orchestrator").chmod(0o640),
        r"mode 0640\): chmod 600 .*orchestrator.key",
    ),
    "certificate writable": (
        lambda own: own.crt("orchestrator").chmod(0o622),
        r"chmod 600 .*orchestrator.crt",
    ),
    "authority writable": (lambda own: own.crt("ca").chmod(0o666), r"chmod 600 .*ca.crt"),
    "folder open": (
        lambda own: own.folder.chmod(0o755),
        r"certs is open to others \(mode 0755\): chmod 700 .*certs",
    ),
    "key missing": (
        lambda own: own.key("orchestrator").unlink(),
        r"orchestrator.key is not there: concertino certs issue",
    ),
    "certificate missing": (
        lambda own: own.crt("orchestrator").unlink(),
        r"is not there: concertino certs issue",
    ),
    "authority missing": (
        lambda own: own.crt("ca").unlink(),
        r"ca.crt is not there: concertino certs init",
    ),
    "key garbage": (
        lambda own: own.key("orchestrator").write_bytes(b"x"),
        r"no private key in PEM",
    ),
    "certificate garbage": (
        lambda own: own.crt("orchestrator").write_bytes(b"x"),
        r"no certificate in PEM: concertino certs issue",
    ),
    "authority garbage": (
        lambda own: own.crt("ca").write_bytes(b"x"),
        r"ca.crt holds no certificate in PEM: concertino certs renew",
    ),
    "key a folder": (spoil_link, r"orchestrator.key.* is not a regular file"),
}


@pytest.mark.parametrize("what", SPOILT)
def test_what_is_spoilt_is_refused_with_the_command_that_mends_it(
    own: Certificates, what: str
) -> None:
    spoil, said = SPOILT[what]
    assert own.identity("orchestrator")
    spoil(own)
    with pytest.raises(CertificateError, match=said):
        own.identity("orchestrator")
    # The command shows the same text: a file that is missing, and one that cannot be read.
    if what in ("key missing", "certificate garbage"):
        shown = command("show", "--certs-dir", own.folder, "orchestrator")
        assert shown.returncode == 1
        assert re.search(said, shown.stdout)


def test_the_command_that_is_named_mends_it(own: Certificates) -> None:
    spoil_expired(own)
    with pytest.raises(CertificateError) as refused:
        own.identity("orchestrator")
    words = str(refused.value).rpartition("concertino certs ")[2].split()
    assert command(*words).returncode == 0
    assert own.identity("orchestrator")


def test_not_yet_valid_asks_for_the_clock(own: Certificates) -> None:
    with pytest.raises(CertificateError, match="is the clock of this machine right"):
        own.identity("orchestrator", NOW - timedelta(days=2))


def test_somebody_else_s_file_is_refused(
    own: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.geteuid() == 0:
        os.chown(own.key("orchestrator"), 1234, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 1234)
    with pytest.raises(CertificateError, match=r"belongs to uid \d+: chown \d+ "):
        own.identity("orchestrator")


@pytest.mark.parametrize(
    "name", ["", "ca", "../x", "a/b", "a..b", ".hidden", "-x", "ä", "a b", "x" * 65, "a\n", "a\0"]
)
def test_what_is_no_name_never_becomes_a_file(own: Certificates, name: str) -> None:
    before = sorted(own.folder.iterdir())
    for act in (issue, renew, ensure_certificate):
        with pytest.raises(CertificateError, match="not a valid name of a certificate"):
            act(own, name)
    with pytest.raises(CertificateError, match="not a valid name of a certificate"):
        own.identity(name)
    assert sorted(own.folder.iterdir()) == before


def test_without_the_authority_s_key_what_was_provided_is_enough_and_nothing_is_made(
    own: Certificates,
) -> None:
    own.key("ca").unlink()
    assert own.identity("orchestrator")
    assert ensure_certificate(own, "orchestrator") == own.certificate("orchestrator")
    with pytest.raises(
        CertificateError,
        match=r"ca\.key is not there: the authority's key stays on the machine where certificates "
        r"are issued",
    ):
        ensure_certificate(own, "tools.greeter")
    assert sorted(path.name for path in own.folder.iterdir()) == [
        "ca.crt",
        "orchestrator.crt",
        "orchestrator.key",
    ]


def test_a_key_of_another_authority_issues_nothing(own: Certificates) -> None:
    other = Certificates(own.folder / "other")
    create_authority(other)
    own.key("ca").write_bytes(other.key("ca").read_bytes())
    with pytest.raises(CertificateError, match=r"ca\.key is not the key of"):
        issue(own, "tools.greeter")
    own.key("ca").chmod(0o644)
    with pytest.raises(CertificateError, match=r"chmod 600 .*ca.key"):
        issue(own, "tools.greeter")


def test_what_will_soon_expire_is_renewed_and_what_will_not_is_kept(own: Certificates) -> None:
    fresh = own.certificate("orchestrator")
    assert ensure_certificate(own, "orchestrator") == fresh
    assert ensure_certificate(own, "orchestrator", NOW + timedelta(days=334)) == fresh
    assert ensure_certificate(own, "orchestrator", NOW + timedelta(days=336)) != fresh
    assert ensure_certificate(own, "tools.greeter") == own.certificate("tools.greeter")
    issue(own, "orchestrator", valid=timedelta(days=20))
    shown = command("show", "--certs-dir", own.folder)
    assert "concertino certs renew" in shown.stdout
    renewed = command("renew", "--certs-dir", own.folder)
    assert renewed.stdout.count("renewed") == 1
    assert (own.identity("orchestrator").expires - NOW).days >= 364


def test_a_listener_that_runs_for_long_renews_its_certificate_itself(own: Certificates) -> None:
    issue(own, "orchestrator", valid=timedelta(days=20))
    current = CurrentIdentity(own, "orchestrator")
    assert (current.identity().expires - NOW).days >= 364
    issue(own, "orchestrator", valid=timedelta(days=20))
    own.key("ca").unlink()  # where it was issued elsewhere, what there is must do
    assert (CurrentIdentity(own, "orchestrator").identity().expires - NOW).days < 30


@pytest.mark.parametrize("verb", ["show", "renew"])
def test_a_folder_that_is_open_to_others_is_said_once_and_nothing_is_well_in_it(
    own: Certificates, verb: str
) -> None:
    issue(own, "tools.greeter")
    own.folder.chmod(0o755)
    done = command(verb, "--certs-dir", own.folder)
    assert done.returncode == 1
    said = (
        f"concertino certs {verb}: {own.folder} is open to others (mode 0755): chmod 700 "
        f"{own.folder}\n"
    )
    assert (done.stdout, done.stderr) == ("", said)


def make(folder: Path, go: object) -> str:
    go.wait()  # type: ignore[attr-defined]
    try:
        create_authority(Certificates(folder))
    except CertificateError as why:
        return str(why)
    return "made"


def test_of_many_who_make_an_authority_at_once_one_does(tmp_path: Path) -> None:
    folder = tmp_path / "certs"
    context = multiprocessing.get_context("spawn")
    with context.Manager() as manager, context.Pool(4) as pool:
        go = manager.Event()
        waiting = [pool.apply_async(make, (folder, go)) for _ in range(8)]
        go.set()
        said = [each.get(60) for each in waiting]
    assert said.count("made") == 1
    assert all("exists already" in each for each in said if each != "made")
    issue(Certificates(folder), "orchestrator")
    assert Certificates(folder).identity("orchestrator")


def test_a_write_that_fails_leaves_what_there_was(
    own: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {path.name: path.read_bytes() for path in own.folder.iterdir()}

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CertificateError, match="No space left on device"):
        issue(own, "orchestrator")
    assert {path.name: path.read_bytes() for path in own.folder.iterdir()} == before


# --- folders that Go programs made ---


@pytest.fixture
def go_folder(tmp_path: Path) -> Certificates:
    """A folder as upstream's programs make it, with a certificate of `tools.greeter`."""
    folder = tmp_path / "go"
    folder.mkdir(0o700)
    seed = bytes(range(64))
    files = {
        "ca.crt": GO_AUTHORITY,
        "ca.key": private_key_pem(seed[:32]),
        "tools.greeter.crt": GO_LEAF,
        "tools.greeter.key": private_key_pem(seed[32:]),
    }
    for name, text in files.items():
        (folder / name).touch(0o600)
        (folder / name).write_text(text)
    return Certificates(folder)


def private_key_pem(seed: bytes) -> str:
    text = b64encode(PKCS_8 + seed).decode()
    return f"-----BEGIN PRIVATE KEY-----\n{text}\n-----END PRIVATE KEY-----\n"


def test_certificates_of_go_programs_are_used(go_folder: Certificates) -> None:
    identity = go_folder.identity("tools.greeter")
    assert verify(identity.certificate, identity.authority, "server") == "tools.greeter"
    assert verify(identity.certificate, identity.authority, "client") == "tools.greeter"


def test_an_authority_of_go_programs_issues_our_certificates(go_folder: Certificates) -> None:
    issue(go_folder, "orchestrator")
    go_folder.identity("orchestrator")
    assert refusal_of_openssl(go_folder) == ""
    # Go compares the names of issuers as bytes, so their encoding must be the authority's.
    issuer = go_folder.certificate("orchestrator").issuer.public_bytes()
    assert issuer == go_folder.authority().subject.public_bytes()
    assert issuer in x509.load_pem_x509_certificate(GO_AUTHORITY.encode()).tbs_certificate_bytes


def test_our_files_are_in_the_form_that_go_programs_read(own: Certificates) -> None:
    """Go's pem.Decode() and x509.ParsePKCS8PrivateKey() read the first block of each file."""
    key = own.key("ca").read_bytes()
    first, encoded, *_ = key.splitlines()
    assert first == b"-----BEGIN PRIVATE KEY-----"
    assert b64decode(encoded).startswith(PKCS_8)
    assert own.crt("ca").read_bytes().startswith(b"-----BEGIN CERTIFICATE-----\n")
    # crypto/x509 refuses serial numbers that are negative or longer than 20 octets.
    assert 0 < own.authority().serial_number < 2**159


# --- the other side's certificate ---


def leaf(own: Certificates, **changes: object) -> x509.Certificate:
    """A certificate like upstream's, changed, signed by our authority."""
    key = changes.get("key", Ed25519PrivateKey.generate())
    eku = changes.get(
        "eku",
        [x509.ObjectIdentifier("1.3.6.1.5.5.7.3.1"), x509.ObjectIdentifier("1.3.6.1.5.5.7.3.2")],
    )
    names = changes.get("names", ["tools.greeter"])
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, each) for each in names])  # type: ignore[attr-defined]
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(own.authority().subject)
        .public_key(key.public_key())  # type: ignore[attr-defined]
        .serial_number(x509.random_serial_number())
        .not_valid_before(changes.get("start", NOW - timedelta(minutes=1)))  # type: ignore[arg-type]
        .not_valid_after(changes.get("end", NOW + timedelta(days=1)))  # type: ignore[arg-type]
    )
    if eku is not None:
        builder = builder.add_extension(x509.ExtendedKeyUsage(eku), critical=False)  # type: ignore[arg-type]
    if changes.get("ca"):
        builder = builder.add_extension(
            x509.BasicConstraints(ca=True, path_length=None), critical=True
        )
    signer = changes.get("signer", own.private_key("ca"))
    return builder.sign(
        signer, hashes.SHA256() if isinstance(signer, ec.EllipticCurvePrivateKey) else None
    )  # type: ignore[arg-type]


SERVER, CLIENT = (
    x509.ObjectIdentifier("1.3.6.1.5.5.7.3.1"),
    x509.ObjectIdentifier("1.3.6.1.5.5.7.3.2"),
)


def test_a_leaf_of_either_kind_of_key_is_believed(own: Certificates) -> None:
    assert verify(leaf(own), own.authority(), "client") == "tools.greeter"
    assert (
        verify(leaf(own, key=ec.generate_private_key(ec.SECP256R1())), own.authority(), "server")
        == "tools.greeter"
    )


@pytest.mark.parametrize(
    ("changes", "side", "said"),
    [
        (
            {"end": NOW - timedelta(seconds=5), "start": NOW - timedelta(days=1)},
            "client",
            "'tools.greeter' expired",
        ),
        ({"start": NOW + timedelta(hours=1)}, "client", "is not valid before"),
        ({"eku": [SERVER]}, "client", "is not for a client"),
        ({"eku": [CLIENT]}, "server", "is not for a server"),
        ({"eku": None}, "client", "has no valid extended key usage"),
        ({"names": []}, "client", "without a name"),
        ({"names": ["a", "b"]}, "client", "without a name"),
        ({"signer": Ed25519PrivateKey.generate()}, "client", "was not issued by our authority"),
        (
            {"signer": ec.generate_private_key(ec.SECP256R1())},
            "client",
            "was not issued by our authority",
        ),
        ({"ca": True}, "client", "is an authority's"),
    ],
)
def test_another_side_that_is_not_what_it_must_be_is_refused(
    own: Certificates, changes: dict[str, object], side: str, said: str
) -> None:
    with pytest.raises(CertificateError, match=said):
        verify(leaf(own, **changes), own.authority(), side)  # type: ignore[arg-type]


def test_the_authority_itself_is_nobody(own: Certificates) -> None:
    with pytest.raises(CertificateError):
        verify(own.authority(), own.authority(), "client")


def test_under_an_authority_that_has_expired_nobody_is_believed(own: Certificates) -> None:
    later = NOW + timedelta(days=366)
    with pytest.raises(CertificateError, match="authority's certificate expired"):
        verify(leaf(own, end=NOW + timedelta(days=400)), own.authority(), "client", later)


def test_without_the_extra_the_command_names_it() -> None:
    code = (
        "import sys; sys.modules['cryptography'] = None\nfrom concertino.cli import main\n"
        "main(['certs', 'show'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert re.search(r"pip install .*\[orchestra\]'", done.stderr)
    assert "Traceback" not in done.stderr


def test_nothing_of_it_is_imported_by_other_commands() -> None:
    code = (
        "import sys\nfrom concertino.cli import main\ntry: main(['--version'])\n"
        "finally: print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert not re.search(r"\b(cryptography|aioquic|google)\b", done.stdout)


def test_a_command_that_mends_something_can_be_pasted(tmp_path: Path) -> None:
    spaced = Certificates(tmp_path / "my certs; $x")
    with pytest.raises(CertificateError) as told:
        issue(spaced, "orchestrator")
    words = shlex.split(str(told.value).rpartition(": ")[2])
    assert words == ["concertino", "certs", "init", "--certs-dir", str(spaced.folder)]
    create_authority(spaced)
    spaced.folder.chmod(0o755)
    with pytest.raises(CertificateError) as told:
        issue(spaced, "orchestrator")
    assert shlex.split(str(told.value).rpartition(": ")[2]) == ["chmod", "700", str(spaced.folder)]


@pytest.mark.parametrize("days", ["0", "3651", "x", "1.5", "-1", ""])
def test_days_that_are_none_are_refused_with_what_was_expected(
    days: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["certs", "init", f"--days={days}"])
    assert f"expected 1 to 3650 days, got {days!r}" in capsys.readouterr().err


@pytest.mark.parametrize(
    "host", ["*", "*.example.com", "", "a b", "-a.example", "a..b", "http://a", "a:443", "x" * 64]
)
def test_a_host_that_is_none_is_refused(tmp_path: Path, host: str) -> None:
    own = Certificates(tmp_path / "certs")
    create_authority(own)
    with pytest.raises(
        CertificateError, match=r"expected a name such as hub\.example\.com, or an IP address"
    ):
        issue(own, "orchestrator", hosts=[host])
    issue(own, "orchestrator", hosts=["hub.example.com", "10.0.0.1", "fe80::1", "under_score"])
