"""The mistakes of beginners with URLs and ports, and exactly what is said about each."""

from __future__ import annotations

import contextlib
import datetime
import http.server
import socket
import ssl
import subprocess
import threading
from collections.abc import Generator, Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from http_service import serving
from warm_commands import run_command

from concertino.cli.address_hints import suggest_http

SERVER = Path(__file__).parent.parent / "http" / "server_for_http.py"


def concertino(*words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run `concertino WORDS...` to its end."""
    return run_command(*words, cwd=cwd)


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """Return the port of an MCP server over HTTP."""
    with serving(SERVER) as service:
        yield service.address[1]


REFUSED = "the server refused initialize: nothing is served here, try /mcp (-32600)"
TRY_MCP = "most servers have the path /mcp: -- http://127.0.0.1:PORT/mcp"


@pytest.mark.parametrize(
    ("url", "code", "said", "hint"),
    [
        ("http://127.0.0.1:PORT", 5, REFUSED, TRY_MCP),
        ("http://127.0.0.1:PORT/", 5, REFUSED, TRY_MCP),
        ("http://127.0.0.1:PORT/sse", 5, REFUSED, TRY_MCP),
        (
            "https://127.0.0.1:PORT/mcp",
            3,
            "https://127.0.0.1:PORT/mcp: TLS: wrong version number",
            "the server speaks no TLS there; without it: -- http://127.0.0.1:PORT/mcp",
        ),
        (
            "127.0.0.1:PORT",
            3,
            "there is no command 127.0.0.1:PORT",
            "for a server over HTTP write -- http://127.0.0.1:PORT/mcp; at a socket -- "
            "tcp:127.0.0.1:PORT",
        ),
        (
            "localhost:PORT/mcp",
            3,
            "localhost:PORT/mcp: no such file",
            "for a server over HTTP write -- http://localhost:PORT/mcp",
        ),
        (
            "http:/127.0.0.1:PORT/mcp",
            3,
            "http:/127.0.0.1:PORT/mcp: no such file",
            "write -- http://127.0.0.1:PORT/mcp",
        ),
        (
            "http//127.0.0.1:PORT/mcp",
            3,
            "http//127.0.0.1:PORT/mcp: no such file",
            "write -- http://127.0.0.1:PORT/mcp",
        ),
        (
            "ws://127.0.0.1:PORT/mcp",
            3,
            "ws://127.0.0.1:PORT/mcp: no WebSocket: HTTP 405 Method Not Allowed",
            "the server is there, and serves no WebSocket; without one: -- http://127.0.0.1:PORT/mcp",
        ),
        (
            "http://127.0.0.1:1/mcp",
            3,
            "http://127.0.0.1:1/mcp: Connection refused",
            "to start a server there: concertino serve server.py --http 127.0.0.1:1",
        ),
        (
            "http://127.0.0.1:PORT1/mcp",
            2,
            "expected a URL such as https://example.com/mcp: Port out of range 0-65535",
            "",
        ),
    ],
)
def test_what_a_client_says_about_a_url(
    url: str, code: int, said: str, hint: str, port: int
) -> None:
    ended = concertino("tools", "--", url.replace("PORT", str(port)))
    expected = f"concertino tools: {said}\n" + (f"  {hint}\n" if hint else "")
    assert (ended.stderr, ended.returncode) == (expected.replace("PORT", str(port)), code)


def test_a_host_that_does_not_exist() -> None:
    # The first line is the system's: it differs, for example without a network.
    ended = concertino("tools", "--", "http://nobody.invalid/mcp")
    assert ended.stderr.startswith("concertino tools: http://nobody.invalid/mcp: ")
    assert ended.stderr.splitlines()[1:] == ["  check the name of the host in the URL"]
    assert ended.returncode == 3


@pytest.mark.parametrize("end", ["/mcp", "/mcp/"])
def test_no_mistake_about_a_url(end: str, port: int) -> None:
    for scheme in ("http", "HTTP"):
        ended = concertino("call", "add", "a=1", "b=2", "--", f"{scheme}://127.0.0.1:{port}{end}")
        assert (ended.stdout, ended.stderr) == ("3\n", "")


def test_the_address_at_which_a_server_listens_is_not_one_to_connect_to(port: int) -> None:
    ended = concertino("tools", "--", f"http://0.0.0.0:{port}/mcp")
    hint = "0.0.0.0 stands for all addresses of a server; for a client: -- http://127.0.0.1"
    assert f"  {hint}:{port}/mcp\n" in ended.stderr


# Servers that are no MCP servers


class _Pages(http.server.BaseHTTPRequestHandler):
    """Has no path for POST but /page, which is HTML."""

    def do_POST(self) -> None:
        found = self.path == "/page"
        self.send_response(200 if found else 404)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<p>Hello</p>")

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


@contextlib.contextmanager
def pages(context: ssl.SSLContext | None = None) -> Generator[int]:
    """Serve pages on a port, with TLS if there is a context."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Pages) as server:
        if context is not None:
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def own_certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a file with a certificate for 127.0.0.1 that nobody has signed, and its key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False
        )
        .sign(key, hashes.SHA256())
    )
    file = tmp_path_factory.mktemp("certificate") / "own.pem"
    file.write_bytes(
        certificate.public_bytes(serialization.Encoding.PEM)
        + key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return file


def test_a_path_that_an_http_server_does_not_have() -> None:
    with pages() as port:
        ended = concertino("tools", "--", f"http://127.0.0.1:{port}/")
    first, hint = ended.stderr.splitlines()[0], ended.stderr.splitlines()[-1]
    assert "HTTP 404 Not Found" in first
    assert hint == f"  most servers have the path /mcp: -- http://127.0.0.1:{port}/mcp"


def test_a_page_instead_of_a_server() -> None:
    with pages() as port:
        ended = concertino("tools", "--", f"http://127.0.0.1:{port}/page")
    assert ended.stderr == (
        "concertino tools: expected JSON or a stream of events, got HTTP 200 with text/html: "
        "b'<p>Hello</p>' (-31002)\n"
        f"  most servers have the path /mcp: -- http://127.0.0.1:{port}/mcp\n"
    )


def test_a_server_whose_certificate_is_not_trusted(own_certificate: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(own_certificate)
    with pages(context) as port:
        ended = concertino("tools", "--", f"https://127.0.0.1:{port}/mcp")
    said = f"https://127.0.0.1:{port}/mcp: TLS: certificate verify failed: self-signed certificate"
    hint = "SSL_CERT_FILE=FILE names a file with the certificates to trust"
    assert (ended.stderr, ended.returncode) == (f"concertino tools: {said}\n  {hint}\n", 3)


# Where to listen


@pytest.mark.parametrize(
    ("address", "said", "hint"),
    [
        ("8000", "or unix:PATH", "127.0.0.1:8000"),
        (":8000", "or unix:PATH", "127.0.0.1:8000"),
        ("localhost", "or unix:PATH", "localhost:8000"),
        ("localhost:", "or unix:PATH", "localhost:8000"),
        ("", "or unix:PATH", "127.0.0.1:8000"),
        ("127.0.0.1:99999", "or unix:PATH", "127.0.0.1:8000"),
        ("http://127.0.0.1:8123/mcp", "not a URL", "127.0.0.1:8123"),
        ("http://localhost", "not a URL", "localhost:8000"),
    ],
)
def test_what_a_server_says_about_an_address(address: str, said: str, hint: str) -> None:
    ended = concertino("serve", str(SERVER), f"--http={address}")
    text = f"concertino serve: --http {address}: expected HOST:PORT, {said}\n"
    assert ended.stderr == f"{text}  write --http {hint}; port 0 takes a free one\n"
    assert ended.returncode == 2


@pytest.mark.parametrize("option", ["--http", "--tcp"])
def test_a_port_that_another_program_has(option: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        ended = concertino("serve", str(SERVER), option, address)
    assert ended.stderr.partition("[ERROR] [concertino] ")[2] == (
        f"tcp:{address}: Address already in use; another program listens there: choose another "
        "port, or 0 for a free one\n"
    )
    assert ended.returncode == 1


def test_the_url_in_the_log_is_one_to_connect_to(port: int) -> None:
    with serving(SERVER) as service:
        assert urlsplit(service.url).path == "/mcp"
        assert concertino("tools", "--", service.url).returncode == 0


@pytest.mark.parametrize(
    ("address", "received", "hint"),
    [
        (
            "tcp:127.0.0.1:8000",
            "'HTTP/1.1 408 Request Timeout'",
            "it speaks HTTP: write -- http://127.0.0.1:8000/mcp",
        ),
        (
            "tcp:127.0.0.1:22",
            "'SSH-2.0'",
            "something else listens there; a server is started with concertino serve",
        ),
        (
            "unix:app.sock",
            "'HTTP/1.1 400 Bad Request'",
            "something else listens there; a server is started with concertino serve",
        ),
    ],
)
def test_what_listens_at_a_socket_is_told_apart(address: str, received: str, hint: str) -> None:
    assert suggest_http(address, f"{address} prints text that is no JSON-RPC: {received}") == hint
