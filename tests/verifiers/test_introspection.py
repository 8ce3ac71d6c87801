"""verifiers/introspection.py: asking the authorization server about a token (RFC 7662)."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from loops import on_a_loop
from verifiers.issuer import AUDIENCE, Issuer, serving_issuer

from concertino.http import InvalidToken, VerifierUnavailable
from concertino.protocol.principal import Principal
from concertino.verifiers import Introspection


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with serving_issuer() as running:
        yield running


def verifier_for(issuer: Issuer) -> Introspection:
    return Introspection(issuer.url, f"{issuer.url}/introspect", AUDIENCE, "me:1", "se cret")


def answering(issuer: Issuer, **members: Any) -> None:
    usual = {"active": True, "sub": "alice", "aud": AUDIENCE, "exp": time.time() + 60}
    response = {name: value for name, value in {**usual, **members}.items() if value is not None}
    body = json.dumps(response).encode()
    issuer.served["/introspect"] = 200, body


@pytest.mark.requirement("RS-17", side="authorization")
@on_a_loop
async def test_the_issuer_says_whose_a_token_is(issuer: Issuer) -> None:
    answering(issuer, exp=4e9, scope="a b", client_id="editor")
    principal = await verifier_for(issuer).verify("opaque")

    assert principal == Principal("alice", "editor", issuer.url, frozenset({"a", "b"}), 4e9)
    assert issuer.forms == [{"token": ["opaque"], "token_type_hint": ["access_token"]}]
    # RFC 6749, 2.3.1: encoded as in a form before base64.
    assert issuer.authorizations == ["Basic " + base64.b64encode(b"me%3A1:se+cret").decode()]


@pytest.mark.requirement("RS-17", side="authorization")
@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ({"active": False}, "not valid"),
        # RFC 7662, 2.2: the field is required.
        ({"active": None}, "not valid"),
        ({"aud": "https://other.example"}, "another server"),
        ({"iss": "https://other.example"}, "another issuer"),
        ({"exp": 1}, "expired"),
    ],
)
@on_a_loop
async def test_tokens_that_are_refused(
    issuer: Issuer, members: dict[str, Any], reason: str
) -> None:
    answering(issuer, **members)
    with pytest.raises(InvalidToken, match=reason):
        await verifier_for(issuer).verify("opaque")


@pytest.mark.parametrize("answer", [(401, b"{}"), (500, b""), (200, b"no"), (200, b'{"exp":"x"}')])
@on_a_loop
async def test_no_answer_says_nothing_about_the_token(
    issuer: Issuer, answer: tuple[int, bytes]
) -> None:
    issuer.served["/introspect"] = answer
    with pytest.raises(VerifierUnavailable):
        await verifier_for(issuer).verify("opaque")


def test_credentials_are_needed() -> None:
    with pytest.raises(ValueError, match="CONCERTINO_INTROSPECTION_SECRET"):
        Introspection("https://issuer.example", "https://issuer.example/i", AUDIENCE, "me", "")
