"""fetcher.py: a URL after a redirect is connected to at an address that was checked."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest
from loops import on_a_loop
from msgspec.json import Decoder

from concertino.authorization.fetcher import FetchedResponse, Fetcher
from concertino.authorization.metadata import IssuerMetadata
from concertino.authorization.token_endpoint import make_error
from concertino.errors import AuthorizationError
from concertino.http_client.addresses import AddressPolicy


@pytest.mark.requirement("AU-17", side="authorization")
@on_a_loop
async def test_each_hop_is_resolved_once_and_connected_to_where_it_was_checked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """DNS rebinding: a second question for the same name would be answered with another machine."""
    asked: list[str] = []
    loop = asyncio.get_running_loop()
    real = loop.getaddrinfo

    async def getaddrinfo(host: Any, port: Any, **kwargs: Any) -> Any:
        if host == "127.0.0.1":
            return await real(host, port, **kwargs)
        asked.append(host)
        address = "127.0.0.1" if asked.count(host) == 1 else "192.0.2.1"
        return [(socket.AF_INET, 1, 6, "", (address, port))]

    monkeypatch.setattr(loop, "getaddrinfo", getaddrinfo)
    hosts: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        hosts.append(head.partition(b"Host: ")[2].partition(b":")[0])
        hop = len(hosts)
        if hop < 3:
            location = f"Location: http://hop-{hop}.example:{port}/{hop}\r\n"
            writer.write(f"HTTP/1.1 302 Found\r\n{location}Content-Length: 0\r\n\r\n".encode())
        else:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        response = await Fetcher(AddressPolicy("loopback")).get(f"http://hop-0.example:{port}/")

    assert response.status == 200
    assert asked == ["hop-0.example", "hop-1.example", "hop-2.example"]
    assert hosts == [name.encode() for name in asked]


@on_a_loop
async def test_a_redirect_that_is_no_url_ends_the_login() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 302 Found\r\nLocation: http://[\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(AuthorizationError, match="a redirect: Invalid IPv6 URL"):
            await Fetcher(AddressPolicy("loopback")).get(f"http://127.0.0.1:{port}/meta")


def test_a_response_that_is_not_utf_8_is_an_error() -> None:
    response = FetchedResponse("https://a.example/meta", 200, {}, b'{"issuer":"\xfc"}')

    with pytest.raises(AuthorizationError, match="expected JSON, got 'no type'"):
        response.decode(Decoder(IssuerMetadata))


def test_an_error_response_that_is_not_utf_8_has_only_its_status() -> None:
    response = FetchedResponse("https://a.example/token", 400, {}, b'{"error":"\xfc"}')

    assert str(make_error(response)) == "https://a.example/token: HTTP 400"
