"""nats/servers.py: addresses, and files of keys."""

from __future__ import annotations

from pathlib import Path

import nkeys  # type: ignore[import-untyped]
import pytest

from concertino.nats.servers import NatsServer, parse_servers, read_seed

# A seed and its public key from the README of the package nkeys.
SEED = "SUAMLK2ZNL35WSMW37E7UD4VZ7ELPKW7DHC3BWBSD2GCZ7IUQQXZIORRBU"


@pytest.mark.parametrize(
    ("text", "servers"),
    [
        ("nats://a", [NatsServer("a", 4222)]),
        ("nats://a:1,b:2,c", [NatsServer("a", 1), NatsServer("b", 2), NatsServer("c", 4222)]),
        (
            "tls://a,b",
            [NatsServer("a", 4222, needs_tls=True), NatsServer("b", 4222, needs_tls=True)],
        ),
        ("nats://me:s%40t@a", [NatsServer("a", 4222, "me", "s@t")]),
        ("nats://[::1]:5", [NatsServer("::1", 5)]),
    ],
)
def test_addresses_are_read(text: str, servers: list[NatsServer]) -> None:
    assert parse_servers(text) == servers


@pytest.mark.parametrize(
    "text", ["", "a:1", "http://a", "nats://", "nats://a:x", "nats://a:99999", "nats://a/path"]
)
def test_a_malformed_address_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="expected tls://HOST or nats://HOST, with :PORT"):
        parse_servers(text)


def test_a_refused_address_is_shown_without_its_password() -> None:
    with pytest.raises(ValueError, match=r"\.\.\.@a/path") as caught:
        parse_servers("nats://me:secret@a/path")
    assert "secret" not in str(caught.value)


def test_a_seed_signs_as_the_library_of_nats_does(tmp_path: Path) -> None:
    path = tmp_path / "user.nk"
    path.write_text(f"# the key of a plugin\n{SEED}\n")
    path.chmod(0o600)
    public, signature = read_seed(path).sign("nonce")
    pair = nkeys.from_seed(bytearray(SEED, "ascii"))
    assert public == pair.public_key.decode()
    from base64 import urlsafe_b64decode

    assert urlsafe_b64decode(signature + "==") == pair.sign(b"nonce")
    assert SEED not in repr(read_seed(path))


def test_a_file_that_others_can_read_or_without_a_seed_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "user.nk"
    with pytest.raises(FileNotFoundError):
        read_seed(path)
    path.write_text(SEED)
    path.chmod(0o644)
    with pytest.raises(ValueError, match="chmod 600"):
        read_seed(path)
    path.chmod(0o600)
    path.write_text("hello")
    with pytest.raises(ValueError, match="seed of a NATS user"):
        read_seed(path)
