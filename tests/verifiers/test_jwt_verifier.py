"""verifiers/jwt_verifier.py and key_set.py: which tokens are accepted, and how keys are found.

Numbers in parentheses are sections of RFC 8725.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
from collections.abc import Iterator
from typing import Any

import pytest
from joserfc.jwk import ECKey, OctKey, OKPKey, RSAKey
from loops import on_a_loop
from verifiers.issuer import AUDIENCE, Issuer, serving_issuer, sign_by_hand

from concertino.http import InvalidToken, VerifierUnavailable
from concertino.protocol.principal import Principal
from concertino.verifiers import JwtVerifier
from concertino.verifiers.key_set import MAX_AGE_S, REFRESH_S, IssuerKeys


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with serving_issuer() as running:
        yield running


async def verify(verifier: JwtVerifier, token: str) -> Principal:
    verdict = verifier.verify(token)
    return verdict if isinstance(verdict, Principal) else await verdict


def verifier_for(issuer: Issuer, **options: Any) -> JwtVerifier:
    return JwtVerifier(issuer.url, options.pop("audience", AUDIENCE), **options)


@pytest.mark.requirement("RS-17", side="authorization")
@on_a_loop
async def test_a_token_says_who_calls_and_what_is_allowed(issuer: Issuer) -> None:
    token = issuer.token(exp=4e9)
    principal = await verify(verifier_for(issuer, leeway_s=5), token)

    assert principal == Principal(
        "alice", "editor", issuer.url, frozenset({"read", "write"}), 4e9 + 5
    )
    assert issuer.requests == ["/.well-known/oauth-authorization-server", "/jwks"]


@on_a_loop
async def test_a_known_key_verifies_at_once(issuer: Issuer) -> None:
    verifier = verifier_for(issuer)
    await verify(verifier, issuer.token())

    assert isinstance(verifier.verify(issuer.token(sub="bob")), Principal)


@pytest.mark.filterwarnings("ignore:EdDSA is deprecated")
@pytest.mark.parametrize(
    ("algorithm", "key"),
    [
        ("RS256", RSAKey.generate_key(2048, {"kid": "k"})),
        ("PS256", RSAKey.generate_key(2048, {"kid": "k"})),
        ("ES384", ECKey.generate_key("P-384", {"kid": "k"})),
        ("EdDSA", OKPKey.generate_key("Ed25519", {"kid": "k"})),
    ],
)
@on_a_loop
async def test_the_usual_algorithms(
    issuer: Issuer, algorithm: str, key: RSAKey | ECKey | OKPKey
) -> None:
    issuer.keys["k"] = key
    token = issuer.token({"alg": algorithm}, kid="k")
    assert (await verify(verifier_for(issuer), token)).subject == "alice"


@pytest.mark.requirement("RS-17", "AU-7", side="authorization")
@pytest.mark.parametrize(
    ("changes", "principal"),
    [
        ({"aud": ["https://other.example", AUDIENCE]}, {}),
        ({"scope": None, "scp": ["a", "b"]}, {"scopes": {"a", "b"}}),
        ({"scope": None, "scp": "a b"}, {"scopes": {"a", "b"}}),
        ({"scope": None}, {"scopes": set()}),
        ({"client_id": None, "azp": "browser"}, {"client": "browser"}),
        ({"sub": None}, {"subject": "editor"}),
    ],
)
@on_a_loop
async def test_forms_that_issuers_use(
    issuer: Issuer, changes: dict[str, Any], principal: dict[str, Any]
) -> None:
    found = await verify(verifier_for(issuer), issuer.token(**changes))
    assert {name: getattr(found, name) for name in principal} == principal


@pytest.mark.requirement("RS-17", "AU-8", side="authorization")
@pytest.mark.parametrize("typ", ["at+jwt", "application/at+jwt", "AT+JWT", "JWT", None])
@on_a_loop
async def test_types_of_access_tokens(issuer: Issuer, typ: str | None) -> None:
    await verify(verifier_for(issuer), issuer.token({"typ": typ}))


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"aud": "https://other.example/mcp"}, "another server"),
    ({"aud": ["https://other.example/mcp"]}, "another server"),
    ({"aud": None}, "another server"),
    # Not equal to the letter.
    ({"aud": AUDIENCE + "/"}, "another server"),
    ({"iss": "https://issuer.example"}, "another issuer"),
    ({"exp": 1000.0}, "expired"),
    ({"exp": None}, "no end"),
    ({"exp": "never"}, "malformed"),
    ({"nbf": 4e9}, "not valid yet"),
    ({"iat": 4e9}, "in the future"),
    ({"sub": None, "client_id": None}, "for whom"),
    ({"sub": "x" * 513}, "for whom"),
    ({"sub": 17}, "malformed"),
    ({"aud": {"a": AUDIENCE}}, "malformed"),
    ({"cnf": {"jkt": "x"}}, "bound to a key"),
]


@pytest.mark.requirement("RS-11", "RS-13", "RS-17", "AU-9", side="authorization")
@pytest.mark.parametrize(("changes", "reason"), REFUSED)
@on_a_loop
async def test_claims_that_are_refused(
    issuer: Issuer, changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(InvalidToken, match=reason):
        await verify(verifier_for(issuer), issuer.token(**changes))


@pytest.mark.requirement("RS-17", "AU-8", side="authorization")
@pytest.mark.parametrize(
    ("header", "reason"),
    [
        ({"typ": "logout+jwt"}, "typ"),
        ({"typ": "dpop+jwt"}, "typ"),
        ({"crit": ["b64"], "b64": True}, "crit|malformed"),
    ],
)
@on_a_loop
async def test_headers_that_are_refused(
    issuer: Issuer, header: dict[str, Any], reason: str
) -> None:
    full = {"alg": "ES256", "kid": "one", **header}
    with pytest.raises(InvalidToken, match=reason):
        await verify(verifier_for(issuer), sign_by_hand(full, issuer.claims(), b"x" * 64))


@pytest.mark.requirement("AU-3", side="authorization")
@on_a_loop
async def test_the_public_key_is_no_secret(issuer: Issuer) -> None:
    # (2.1) The token is signed with HMAC, and the public key, which everybody has, as the secret.
    public = issuer.keys["one"].as_pem(private=False)  # type: ignore[union-attr]
    unsigned = sign_by_hand({"alg": "HS256", "kid": "one"}, issuer.claims(), b"").rpartition(".")[0]
    mac = hmac.digest(public, unsigned.encode(), hashlib.sha256)
    forged = sign_by_hand({"alg": "HS256", "kid": "one"}, issuer.claims(), mac)

    with pytest.raises(InvalidToken, match="algorithm"):
        await verify(verifier_for(issuer), forged)
    assert issuer.requests == []


@pytest.mark.requirement("RS-17", "AU-2", side="authorization")
@pytest.mark.parametrize("algorithm", ["none", "None", "NONE", "HS256", "HS512", "RS1", ""])
@on_a_loop
async def test_algorithms_that_are_never_allowed(issuer: Issuer, algorithm: str) -> None:
    with pytest.raises(InvalidToken, match="algorithm"):
        await verify(verifier_for(issuer), sign_by_hand({"alg": algorithm}, issuer.claims(), b""))
    with pytest.raises(ValueError, match="algorithms"):
        verifier_for(issuer, algorithms=[algorithm])


@pytest.mark.requirement("AU-2", "AU-3", side="authorization")
@on_a_loop
async def test_a_symmetric_key_of_the_issuer_is_not_used(issuer: Issuer) -> None:
    issuer.keys = {"one": OctKey.generate_key(256, {"kid": "one"})}
    issuer.served["/jwks"] = (
        200,
        json.dumps({"keys": [key.as_dict(private=True) for key in issuer.keys.values()]}).encode(),
    )
    with pytest.raises(InvalidToken):
        await verify(verifier_for(issuer), issuer.token({"alg": "HS256"}))


@pytest.mark.requirement("AU-2", side="authorization")
@on_a_loop
async def test_only_the_algorithms_that_were_chosen(issuer: Issuer) -> None:
    with pytest.raises(InvalidToken, match="algorithm"):
        await verify(verifier_for(issuer, algorithms=["RS256"]), issuer.token())


@on_a_loop
async def test_a_key_is_used_for_its_purpose_only(issuer: Issuer) -> None:
    key = issuer.keys["one"].as_dict(private=False)
    for members in ({"use": "enc"}, {"alg": "ES512"}, {"key_ops": ["sign"]}):
        issuer.served["/jwks"] = 200, json.dumps({"keys": [{**key, **members}]}).encode()
        with pytest.raises(InvalidToken, match="key"):
            await verify(verifier_for(issuer), issuer.token())


@pytest.mark.filterwarnings("ignore:Key size")
@on_a_loop
async def test_a_short_rsa_key_is_not_used(issuer: Issuer) -> None:
    issuer.keys["short"] = RSAKey.generate_key(1024, {"kid": "short"})
    with pytest.raises(InvalidToken, match="key"):
        await verify(verifier_for(issuer), issuer.token({"alg": "RS256"}, kid="short"))


@pytest.mark.requirement("RS-17", side="authorization")
@on_a_loop
async def test_a_changed_token_is_refused(issuer: Issuer) -> None:
    verifier = verifier_for(issuer)
    head, claims, signature = issuer.token().split(".")
    other = issuer.token(sub="root").split(".")[1]
    stranger = Issuer(issuer.url).token()

    for token in (f"{head}.{other}.{signature}", f"{head}.{claims}.AAAA", stranger):
        with pytest.raises(InvalidToken, match="signature"):
            await verify(verifier, token)


@pytest.mark.parametrize(
    "token", ["", "a", "a.b", "a.b.c", "a.b.c.d.e", "eyJ9.eyJ9.", "e30.e30.e30", "\x00.\x00.\x00"]
)
@on_a_loop
async def test_what_is_no_token_is_refused(issuer: Issuer, token: str) -> None:
    with pytest.raises(InvalidToken):
        await verify(verifier_for(issuer), token)
    assert issuer.requests == []


@pytest.mark.requirement("AU-6", "AU-9", side="authorization")
@on_a_loop
async def test_clocks_may_differ_by_the_leeway(issuer: Issuer) -> None:
    clock = 1_000_000.0
    verifier = verifier_for(issuer, leeway_s=30, wall_clock=lambda: clock)
    for changes in ({"exp": clock - 29}, {"exp": clock + 9, "nbf": clock + 30, "iat": clock + 30}):
        await verify(verifier, issuer.token(**{"iat": clock, **changes}))
    for changes in ({"exp": clock - 30}, {"exp": clock + 99, "nbf": clock + 31}):
        with pytest.raises(InvalidToken):
            await verify(verifier, issuer.token(**{"iat": clock, **changes}))


# Keys


@pytest.mark.requirement("AU-4", side="authorization")
@on_a_loop
async def test_a_new_key_is_fetched_when_a_token_names_it(issuer: Issuer) -> None:
    now = 0.0
    verifier = verifier_for(issuer)
    verifier._keys._clock = lambda: now  # pyright: ignore[reportPrivateUsage]
    await verify(verifier, issuer.token())
    issuer.keys = {"two": ECKey.generate_key("P-256", {"kid": "two"})}

    # Not before REFRESH_S: otherwise anybody could make this server send requests.
    for _ in range(5):
        with pytest.raises(InvalidToken, match="key"):
            await verify(verifier, issuer.token(kid="two"))
    assert issuer.requests.count("/jwks") == 1

    now = REFRESH_S
    assert (await verify(verifier, issuer.token(kid="two"))).subject == "alice"
    assert issuer.requests.count("/jwks") == 2
    # The key before is not the issuer's any more.
    old = Issuer(issuer.url)
    with pytest.raises(InvalidToken, match="key"):
        await verify(verifier, old.token())


@on_a_loop
async def test_a_key_that_is_replaced_under_the_same_id_is_fetched(issuer: Issuer) -> None:
    now = 0.0
    verifier = verifier_for(issuer)
    verifier._keys._clock = lambda: now  # pyright: ignore[reportPrivateUsage]
    before = issuer.token()
    await verify(verifier, before)
    issuer.keys = Issuer(issuer.url).keys

    # Not before REFRESH_S, because anybody can send tokens with wrong signatures.
    with pytest.raises(InvalidToken, match="signature"):
        await verify(verifier, issuer.token())
    assert issuer.requests.count("/jwks") == 1

    now = REFRESH_S
    assert (await verify(verifier, issuer.token())).subject == "alice"
    assert issuer.requests.count("/jwks") == 2
    with pytest.raises(InvalidToken, match="signature"):
        await verify(verifier, before)

    # A wrong signature stays one while the issuer does not answer.
    issuer.served["/jwks"] = 503, b""
    now = 2 * REFRESH_S
    with pytest.raises(InvalidToken, match="signature"):
        await verify(verifier, before)
    assert issuer.requests.count("/jwks") == 3


@on_a_loop
async def test_keys_are_fetched_once_for_all_that_wait(issuer: Issuer) -> None:
    verifier = verifier_for(issuer)
    issuer.may_answer.clear()
    waiting = [asyncio.ensure_future(verify(verifier, issuer.token(sub=str(n)))) for n in range(20)]
    await asyncio.sleep(0)
    issuer.may_answer.set()

    assert [item.subject for item in await asyncio.gather(*waiting)] == [str(n) for n in range(20)]
    assert issuer.requests.count("/jwks") == 1


@pytest.mark.parametrize(
    "answer",
    [(200, b"<html>"), (200, b"[]"), (200, b'{"keys":1}'), (500, b"{}"), (404, b"{}"),
     (302, b"{}"), (200, b"[" * 100_000), (200, b'{"keys":[' + b" " * 70_000 + b"]}")],
)  # fmt: skip
@on_a_loop
async def test_an_issuer_that_answers_garbage_lets_nobody_in(
    issuer: Issuer, answer: tuple[int, bytes]
) -> None:
    issuer.served["/jwks"] = answer
    with pytest.raises(VerifierUnavailable):
        await verify(verifier_for(issuer), issuer.token())


@on_a_loop
async def test_keys_that_make_no_sense_are_left_out(issuer: Issuer) -> None:
    good = issuer.keys["one"].as_dict(private=False)
    bad = [{}, {"kty": "EC"}, {"kty": "RSA", "n": "", "e": ""}, {"kty": "EC", "crv": "P-256",
           "x": "AA", "y": "AA"}, {"kty": 1}, {"kty": "OKP", "crv": "Ed25519", "x": 5}]  # fmt: skip
    issuer.served["/jwks"] = 200, json.dumps({"keys": [*bad, good]}).encode()
    assert (await verify(verifier_for(issuer), issuer.token())).subject == "alice"


@on_a_loop
async def test_an_issuer_that_hangs_is_given_up(issuer: Issuer) -> None:
    issuer.may_answer.clear()
    verifier = verifier_for(issuer)
    verifier._keys._client._within_s = 0.05  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(VerifierUnavailable, match="no response within"):
        await verify(verifier, issuer.token())


@on_a_loop
async def test_keys_are_used_further_while_the_issuer_is_away(issuer: Issuer) -> None:
    now = 0.0
    verifier = verifier_for(issuer)
    keys: IssuerKeys = verifier._keys  # pyright: ignore[reportPrivateUsage]
    keys._clock = lambda: now  # pyright: ignore[reportPrivateUsage]
    await verify(verifier, issuer.token())
    issuer.served["/jwks"] = 503, b""

    now = 10_000.0
    assert isinstance(verifier.verify(issuer.token()), Principal)
    fetching = keys._fetching  # pyright: ignore[reportPrivateUsage]
    assert fetching is not None
    await asyncio.wait([fetching])
    assert isinstance(verifier.verify(issuer.token()), Principal)


@pytest.mark.requirement("AU-5", side="authorization")
@on_a_loop
async def test_a_withdrawn_key_is_not_used_after_its_age(issuer: Issuer) -> None:
    now = 0.0
    verifier = verifier_for(issuer)
    keys: IssuerKeys = verifier._keys  # pyright: ignore[reportPrivateUsage]
    keys._clock = lambda: now  # pyright: ignore[reportPrivateUsage]
    token = issuer.token()
    await verify(verifier, token)
    issuer.keys = {"two": ECKey.generate_key("P-256", {"kid": "two"})}

    now = MAX_AGE_S - 1
    assert isinstance(verifier.verify(token), Principal)
    now = MAX_AGE_S
    # The request at this age starts the fetch, and does not wait for it.
    assert isinstance(verifier.verify(token), Principal)
    fetching = keys._fetching  # pyright: ignore[reportPrivateUsage]
    assert fetching is not None
    await asyncio.wait([fetching])
    with pytest.raises(InvalidToken, match="key"):
        await verify(verifier, token)


@on_a_loop
async def test_metadata_of_another_issuer_is_not_believed(issuer: Issuer) -> None:
    issuer.served["/.well-known/oauth-authorization-server"] = (
        200,
        json.dumps({"issuer": issuer.url + "/", "jwks_uri": f"{issuer.url}/jwks"}).encode(),
    )
    with pytest.raises(VerifierUnavailable, match="equal to the letter"):
        await verify(verifier_for(issuer), issuer.token())


@on_a_loop
async def test_openid_metadata_are_found_too(issuer: Issuer) -> None:
    issuer.served["/.well-known/oauth-authorization-server"] = 404, b""
    issuer.served["/.well-known/openid-configuration"] = (
        200,
        json.dumps({"issuer": issuer.url, "jwks_uri": f"{issuer.url}/jwks"}).encode(),
    )
    await verify(verifier_for(issuer), issuer.token())


@pytest.mark.parametrize("url", ["http://issuer.example", "ftp://issuer.example", "issuer", ""])
def test_an_issuer_without_tls_must_be_on_this_machine(url: str) -> None:
    with pytest.raises(ValueError, match=r"https|expected"):
        JwtVerifier(url, AUDIENCE)


@pytest.mark.parametrize("audience", ["", (), ("",)])
def test_an_audience_is_needed(audience: Any) -> None:
    with pytest.raises(ValueError, match="audience"):
        JwtVerifier("https://issuer.example", audience)
