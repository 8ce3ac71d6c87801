"""nats/credentials.py: files of keys and `.creds` files, and a real server with an operator.

The library nkeys of NATS makes and checks the keys. The operator's JWTs are made here, as the
documentation of NATS describes them.
"""

from __future__ import annotations

import json
import os
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from pathlib import Path
from typing import Any

import nkeys  # type: ignore[import-untyped]
import pytest
from loops import on_a_loop
from orchestra.nats_servers import NatsServerProcess

from concertino.errors import Disconnected
from concertino.nats.cluster import NatsCluster
from concertino.nats.credentials import read_credentials
from concertino.nats.servers import NatsOptions, parse_servers

# A seed and its public key from the README of the package nkeys.
SEED = "SUAMLK2ZNL35WSMW37E7UD4VZ7ELPKW7DHC3BWBSD2GCZ7IUQQXZIORRBU"
PUBLIC = "UCK5N7N66OBOINFXAYC2ACJQYFSOD4VYNU6APEJTAVFZB2SVHLKGEW7L"


class Key:
    """A key pair. kind: nkeys.PREFIX_BYTE_..."""

    def __init__(self, kind: int) -> None:
        self.seed: bytes = nkeys.encode_seed(os.urandom(32), kind)
        self.pair: Any = nkeys.from_seed(bytearray(self.seed))
        self.public: str = self.pair.public_key.decode()


def make_jwt(signer: Key, subject: str, kind: str, **claims: Any) -> str:
    """A JWT of NATS, version 2: github.com/nats-io/jwt."""
    body = {
        "jti": "test",
        "iat": int(time.time()),
        "iss": signer.public,
        "name": kind,
        "sub": subject,
        "nats": {"type": kind, "version": 2, **claims.pop("nats", {})},
        **claims,
    }
    parts = [{"typ": "JWT", "alg": "ed25519-nkey"}, body]
    text = ".".join(encode(json.dumps(part).encode()) for part in parts)
    return f"{text}.{encode(signer.pair.sign(text.encode()))}"


def encode(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def write_creds(path: Path, jwt: str, seed: str) -> Path:
    """A file as `nsc generate creds` writes it."""
    path.write_text(
        f"-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n"
        "************************* IMPORTANT *************************\n"
        "NKEY Seed printed below can be used to sign and prove identity.\n"
        "NKEYs are sensitive and should be treated as secrets.\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n\n"
        "*************************************************************\n"
    )
    path.chmod(0o600)
    return path


def test_a_seed_signs_as_the_library_of_nats_does(tmp_path: Path) -> None:
    path = tmp_path / "user.nk"
    path.write_text(f"# the key of a plugin\n{SEED}\n")
    path.chmod(0o600)
    members = read_credentials(path).sign_in("nonce")
    pair = nkeys.from_seed(bytearray(SEED, "ascii"))
    assert members["nkey"] == PUBLIC
    assert urlsafe_b64decode(members["sig"] + "==") == pair.sign(b"nonce")
    assert SEED not in repr(read_credentials(path))


def test_a_file_that_others_can_read_or_without_a_seed_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "user.nk"
    with pytest.raises(FileNotFoundError):
        read_credentials(path)
    path.write_text(SEED)
    path.chmod(0o644)
    with pytest.raises(ValueError, match=r"user\.nk: .*chmod 600"):
        read_credentials(path)
    path.chmod(0o600)
    path.write_text("hello")
    with pytest.raises(ValueError, match="seed of a NATS user"):
        read_credentials(path)


ACCOUNT = Key(nkeys.PREFIX_BYTE_ACCOUNT)


@pytest.mark.parametrize(
    ("jwt", "seed", "problem"),
    [
        ("abc", SEED, "its JWT is damaged: expected three parts"),
        ("a.b.c", SEED, "its JWT is damaged: expected three parts"),
        ("", SEED, "its JWT is damaged: expected three parts"),
        (make_jwt(ACCOUNT, PUBLIC, "user"), "", "seed of a NATS user, SU... beside its JWT"),
        (
            make_jwt(ACCOUNT, ACCOUNT.public, "account"),
            SEED,
            "its JWT is not that of a user, U..., but of A",
        ),
        (
            make_jwt(ACCOUNT, PUBLIC, "user", exp=1_000_000_000),
            SEED,
            "its JWT has expired on 2001-09-09 01:46 UTC; create the file again",
        ),
        (
            make_jwt(ACCOUNT, "U" + "A" * 55, "user"),
            SEED,
            f"its seed is that of {PUBLIC}, and its JWT is that of U",
        ),
    ],
    ids=["text", "no JSON", "no JWT", "no seed", "an account", "expired", "another user"],
)
def test_what_is_wrong_with_a_creds_file_is_said(
    tmp_path: Path, jwt: str, seed: str, problem: str
) -> None:
    path = write_creds(tmp_path / "notes.creds", jwt, seed)
    with pytest.raises(ValueError, match=r"notes\.creds: ") as caught:
        read_credentials(path)
    assert problem in str(caught.value)
    assert SEED not in str(caught.value)


@on_a_loop
async def test_a_server_with_an_operator_accepts_a_creds_file(tmp_path: Path) -> None:
    operator, user = Key(nkeys.PREFIX_BYTE_OPERATOR), Key(nkeys.PREFIX_BYTE_USER)
    stranger = Key(nkeys.PREFIX_BYTE_ACCOUNT)
    account = make_jwt(
        operator,
        ACCOUNT.public,
        "account",
        nats={"limits": {"subs": -1, "conn": -1, "leaf": -1, "data": -1, "payload": -1}},
    )
    own = make_jwt(operator, operator.public, "operator")
    server = NatsServerProcess(
        tmp_path,
        f"operator: {own}\nresolver: MEMORY\nresolver_preload: {{ {ACCOUNT.public}: {account} }}\n",
    )
    limits = {"subs": -1, "data": -1, "payload": -1}
    try:
        for signer in (ACCOUNT, stranger):
            jwt = make_jwt(signer, user.public, "user", nats=limits)
            path = write_creds(tmp_path / "notes.creds", jwt, user.seed.decode())
            options = NatsOptions("notes", credentials=read_credentials(path))
            cluster = NatsCluster(parse_servers(server.address), options)
            if signer is stranger:
                with pytest.raises(Disconnected, match="Authorization Violation"):
                    await cluster.open()
            else:
                await cluster.open()
                await cluster.connection.flush()
            await cluster.close()
    finally:
        server.stop()
