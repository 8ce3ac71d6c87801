"""Proxies that the environment names, and tunnels through them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from http_service import serving
from loops import on_a_loop

from concertino import Client, Disconnected
from concertino.http_client.proxy_tunnel import ProxyAddress, find_proxy

SERVER = Path(__file__).parent.parent / "http" / "server_for_http.py"
VARIABLES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def test_without_variables_there_is_no_proxy() -> None:
    assert find_proxy("https", "example.com", 443) is None


def test_the_scheme_decides_which_variable_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://me:p%40ss@proxy.example:3128")

    # `printf 'me:p@ss' | base64`
    expected = ProxyAddress("proxy.example", 3128, "Basic bWU6cEBzcw==")
    assert find_proxy("https", "a.example", 443) == expected
    assert find_proxy("http", "a.example", 80) is None
    assert "bWU6" not in repr(expected)


@pytest.mark.parametrize(
    ("excluded", "host", "is_excluded"),
    [
        ("*", "a.example", True),
        ("a.example", "a.example", True),
        ("example", "a.example", True),
        (".example", "a.example", True),
        ("*.example", "a.example", True),
        ("x, A.Example:8080", "a.example", True),
        ("a.example:443", "a.example", False),
        ("ample", "a.example", False),
        ("", "a.example", False),
        ("::1", "::1", True),
        ("[::1]", "::1", True),
    ],
)
def test_no_proxy_names_what_is_reached_directly(
    excluded: str, host: str, is_excluded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "proxy.example:3128")
    monkeypatch.setenv("no_proxy", excluded)

    assert (find_proxy("http", host, 8080) is None) is is_excluded


@pytest.mark.parametrize("name", ["https_proxy", "all_proxy"])
def test_a_variable_without_an_http_proxy_is_named(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "socks5://proxy:1080")

    with pytest.raises(ValueError, match=f"^{name}: expected the URL of an HTTP proxy"):
        find_proxy("https", "example.com", 443)


@on_a_loop
async def test_requests_go_through_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bytes] = []

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
        finally:
            writer.close()

    async def tunnel(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        asked.append(head)
        host, port = head.split(b" ")[1].decode().rsplit(":", 1)
        upstream = await asyncio.open_connection(host, int(port))
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        await asyncio.gather(relay(reader, upstream[1]), relay(upstream[0], writer))

    server = await asyncio.start_server(tunnel, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with serving(SERVER) as service:
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{port}")
        async with Client(service.url) as client:
            assert await client.call_tool("add", {"a": 1, "b": 2}, into=int) == 3
    server.close()
    target = f"{service.address[0]}:{service.address[1]}"
    assert asked[0] == f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode()


@pytest.mark.parametrize(
    ("response", "text"),
    [
        (b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n", "127.0.0.1:PORT answered 407"),
        (b"", "the proxy closed the connection"),
        (b"HTTP/1.1 200 OK\r\n", "the proxy closed the connection"),
        (b"SMTP 200 OK\r\n\r\n", "the proxy's response is not HTTP"),
        (b"HTTP/1.1 2000\r\n\r\n", "the proxy's response is not HTTP"),
        (b"HTTP/1.1 200 OK\r\n\r\n", "the connection ended during the TLS handshake"),
    ],
)
@pytest.mark.parametrize("scheme", ["https", "wss"])
@on_a_loop
async def test_a_proxy_that_does_not_connect_is_named(
    scheme: str, response: bytes, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(response)
        writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        monkeypatch.setenv("https_proxy", f"127.0.0.1:{port}")
        with pytest.raises(Disconnected, match=text.replace("PORT", str(port))):
            async with Client(f"{scheme}://mcp.example/"):
                pass
