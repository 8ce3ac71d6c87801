"""verifiers/fetching.py: where URLs of an authorization server's metadata may lead."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from loops import on_a_loop
from msgspec.json import Decoder
from verifiers.issuer import Issuer, serving_issuer

from concertino.http import VerifierUnavailable
from concertino.verifiers.fetching import IssuerClient

ANYTHING = Decoder(dict[str, Any])


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with serving_issuer() as running:
        yield running


def resolving(monkeypatch: pytest.MonkeyPatch, hosts: dict[str, list[str]]) -> list[str]:
    """Let names lead to these addresses. Returns the addresses that are connected to."""
    loop = asyncio.get_running_loop()
    connected: list[str] = []

    async def resolve(host: str, port: int, **_: Any) -> list[Any]:
        return [(0, 0, 0, "", (address, port)) for address in hosts[host]]

    async def connect(make: Any, host: str, port: int, **_: Any) -> Any:
        connected.append(host)
        raise OSError("nobody is there")

    monkeypatch.setattr(loop, "getaddrinfo", resolve, raising=False)
    monkeypatch.setattr(loop, "create_connection", connect, raising=False)
    return connected


@pytest.mark.parametrize(
    ("own", "other", "is_allowed"),
    [
        ("93.184.216.34", "8.8.8.8", True),
        ("93.184.216.34", "10.0.0.5", False),
        ("93.184.216.34", "192.168.1.1", False),
        ("93.184.216.34", "127.0.0.1", False),
        ("93.184.216.34", "100.64.0.1", False),
        ("93.184.216.34", "::1", False),
        ("93.184.216.34", "::ffff:10.0.0.5", False),
        ("93.184.216.34", "fd00::1", False),
        # RFC 6052, section 2.1, and RFC 4291, section 2.5.5.1: they embed 10.0.0.5.
        ("93.184.216.34", "64:ff9b::a00:5", False),
        ("93.184.216.34", "::10.0.0.5", False),
        ("10.0.0.5", "10.0.0.6", True),
        ("10.0.0.5", "127.0.0.1", False),
        ("10.0.0.5", "169.254.169.254", False),
        ("127.0.0.1", "169.254.169.254", False),
        ("127.0.0.1", "0.0.0.0", False),
        ("127.0.0.1", "fe80::1", False),
        ("127.0.0.1", "10.0.0.5", True),
    ],
)
@on_a_loop
async def test_metadata_lead_no_nearer_than_the_issuer(
    monkeypatch: pytest.MonkeyPatch, own: str, other: str, is_allowed: bool
) -> None:
    connected = resolving(monkeypatch, {"issuer.example": [own], "keys.example": [other]})
    client = IssuerClient("https://issuer.example")
    with pytest.raises(VerifierUnavailable):
        await client.get("https://keys.example/jwks", ANYTHING, is_trusted=False)

    assert connected == ([other] if is_allowed else [])


@on_a_loop
async def test_all_addresses_of_a_name_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = {"issuer.example": ["8.8.8.8"], "keys.example": ["8.8.4.4", "10.0.0.1"]}
    connected = resolving(monkeypatch, hosts)
    with pytest.raises(VerifierUnavailable, match="nearer"):
        await IssuerClient("https://issuer.example").get(
            "https://keys.example/jwks", ANYTHING, is_trusted=False
        )
    assert connected == []


@on_a_loop
async def test_what_the_operator_names_may_be_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    connected = resolving(monkeypatch, {"issuer.example": ["8.8.8.8"], "keys.lan": ["10.0.0.1"]})
    client = IssuerClient("https://issuer.example")
    with pytest.raises(VerifierUnavailable, match="nobody"):
        await client.get("https://keys.lan/jwks", ANYTHING, is_trusted=True)
    assert connected == ["10.0.0.1"]


@on_a_loop
async def test_a_redirect_is_not_followed(issuer: Issuer) -> None:
    issuer.served["/a"] = 302, b'{"Location": "/jwks"}'
    client = IssuerClient(issuer.url)
    assert await client.get(f"{issuer.url}/a", ANYTHING, is_trusted=True) is None
    assert issuer.requests == ["/a"]


@on_a_loop
async def test_a_url_without_tls_is_refused(issuer: Issuer) -> None:
    client = IssuerClient(issuer.url)
    with pytest.raises(VerifierUnavailable, match="https"):
        await client.get("http://keys.example/jwks", ANYTHING, is_trusted=False)
