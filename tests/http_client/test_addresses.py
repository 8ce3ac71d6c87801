"""Which addresses URLs of others may lead to. Ranges by the registries of IANA."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest
from loops import on_a_loop

from concertino.authorization.fetcher import Fetcher
from concertino.errors import AuthorizationError
from concertino.http_client.addresses import AddressPolicy, Reach, address_reach, find_reach
from concertino.http_client.server_url import parse_url
from concertino.http_client.single_requests import MAX_BYTES


@pytest.mark.parametrize(
    ("address", "reach"),
    [
        ("127.0.0.1", "loopback"), ("127.9.9.9", "loopback"), ("::1", "loopback"),
        ("::ffff:127.0.0.1", "loopback"), ("64:ff9b::7f00:1", "loopback"),
        ("10.0.0.1", "private"), ("172.16.0.1", "private"), ("192.168.1.1", "private"),
        ("100.64.0.1", "private"), ("fd00::1", "private"), ("::ffff:10.0.0.1", "private"),
        ("2002:0a00:0001::1", "private"), ("64:ff9b::a00:1", "private"), ("::10.0.0.1", "private"),
        ("fec0::1", "private"), ("198.18.0.1", "private"), ("64:ff9b:1::7f00:1", "private"),
        ("::ffff:0:10.0.0.1", "private"), ("::ffff:0:127.0.0.1", "loopback"),
        ("169.254.169.254", None), ("fe80::1%eth0", None), ("::ffff:169.254.169.254", None),
        ("64:ff9b::a9fe:a9fe", None), ("0.0.0.0", None), ("::", None), ("224.0.0.1", None),
        ("ff02::1", None), ("::ffff:0:169.254.169.254", None),
        ("93.184.216.34", "public"), ("2606:2800:220:1:248:1893:25c8:1946", "public"),
    ],
)  # fmt: skip
def test_how_far_an_address_reaches(address: str, reach: Reach | None) -> None:
    assert address_reach(address) == reach


class Names:
    """Resolves names as a test says, and notes how often."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *answers: list[str]) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []
        loop = asyncio.get_running_loop()
        real = loop.getaddrinfo

        async def getaddrinfo(host: Any, port: Any, **kwargs: Any) -> Any:
            if host in ("127.0.0.1", "::1"):
                return await real(host, port, **kwargs)
            self.asked.append(host)
            found = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
            return [(socket.AF_INET, 1, 6, "", (address, port)) for address in found]

        monkeypatch.setattr(loop, "getaddrinfo", getaddrinfo)


@pytest.mark.requirement("CT-9", side="authorization")
@pytest.mark.parametrize(
    ("server", "url", "addresses", "is_allowed"),
    [
        ("public", "https://a.example/x", ["93.184.216.34"], True),
        ("public", "http://a.example/x", ["93.184.216.34"], False),
        ("public", "https://a.example/x", ["10.0.0.1"], False),
        ("public", "https://a.example/x", ["93.184.216.34", "10.0.0.1"], False),
        ("public", "https://a.example/x", ["127.0.0.1"], False),
        ("public", "http://localhost/x", ["127.0.0.1"], False),
        ("private", "https://a.example/x", ["10.0.0.1"], True),
        ("private", "https://a.example/x", ["127.0.0.1"], False),
        ("private", "https://a.example/x", ["169.254.169.254"], False),
        ("loopback", "http://a.example/x", ["127.0.0.1"], True),
        ("loopback", "http://a.example/x", ["10.0.0.1"], False),
        ("loopback", "https://a.example/x", ["10.0.0.1"], True),
        ("loopback", "https://a.example/x", ["169.254.169.254"], False),
    ],
)
@on_a_loop
async def test_what_a_server_may_lead_to(
    monkeypatch: pytest.MonkeyPatch,
    server: Reach,
    url: str,
    addresses: list[str],
    is_allowed: bool,
) -> None:
    Names(monkeypatch, addresses)
    policy = AddressPolicy(server)
    if is_allowed:
        assert await policy.check(parse_url(url)) == addresses
    else:
        with pytest.raises(AuthorizationError):
            await policy.check(parse_url(url))


@on_a_loop
async def test_a_server_with_one_public_address_is_public(monkeypatch: pytest.MonkeyPatch) -> None:
    Names(monkeypatch, ["127.0.0.1", "93.184.216.34"])
    assert await find_reach(parse_url("http://a.example/")) == "public"


@pytest.mark.requirement("AU-17", "AU-18", side="authorization")
@on_a_loop
async def test_a_name_is_resolved_once_and_cannot_lead_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """DNS rebinding: the second answer would be another machine."""
    served: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        names = Names(monkeypatch, ["127.0.0.1"], ["192.0.2.1"])
        # The environment's proxy would resolve the name again.
        monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
        response = await Fetcher(AddressPolicy("loopback")).get(f"http://a.example:{port}/x")
    assert response.status == 200
    assert names.asked == ["a.example"]
    assert f"Host: a.example:{port}".encode() in served[0]


@pytest.mark.requirement("CT-9", "AU-18", side="authorization")
@pytest.mark.parametrize(
    ("location", "text"),
    [
        ("http://169.254.169.254/latest", "169.254.169.254"),
        ("ftp://a/x", "expected a URL"),
        ("/again", "redirects"),
    ],
)
@on_a_loop
async def test_redirects_are_checked_and_counted(location: str, text: str) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = f"HTTP/1.1 302 Found\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n"
        writer.write(head.encode())
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(AuthorizationError, match=text):
            await Fetcher(AddressPolicy("loopback")).get(f"http://127.0.0.1:{port}/x")


@pytest.mark.requirement("AU-18", side="authorization")
@on_a_loop
async def test_large_documents_are_refused() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n" + b" " * (MAX_BYTES + 1))
        try:
            await reader.read()
        except ConnectionError:
            pass
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(AuthorizationError, match="65536 bytes"):
            await Fetcher(AddressPolicy("loopback")).get(f"http://127.0.0.1:{port}/x")


@pytest.mark.requirement("AU-18", side="authorization")
@on_a_loop
async def test_a_server_that_hangs_is_given_up() -> None:
    held: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(lambda _, writer: held.append(writer), "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(TimeoutError, match="no response within"):
            await Fetcher(AddressPolicy("loopback"), within_s=0.05).get(
                f"http://127.0.0.1:{port}/x"
            )
        for writer in held:
            writer.transport.abort()
