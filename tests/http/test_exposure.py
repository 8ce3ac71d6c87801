"""http/exposure.py and cli/http_options.py: what is refused before a server is open to others."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from http_service import Answer, modern, modern_headers, post, request, serving
from tls_certificates import write_certificate
from warm_commands import run_python

from concertino.http import Authorization, HttpOptions, Tls
from concertino.http.exposure import check_exposure
from concertino.protocol.principal import Principal
from concertino.transports import listen_tcp, listen_unix

SERVER = Path(__file__).with_name("server_for_http.py")
VERIFIER = Path(__file__).with_name("verifier_for_http.py")
AUTHORIZATION = Authorization((lambda token: Principal(token),))
URL = "https://mcp.example/mcp"
SAFE: dict[str, Any] = {"authorization": AUTHORIZATION, "public_url": URL, "behind_proxy": True}


@pytest.mark.parametrize(
    ("options", "missing"),
    [
        ({}, ["authorization", "--no-auth", "TLS", "--behind-proxy", "--public-url"]),
        ({**SAFE, "authorization": None}, ["authorization", "--no-auth"]),
        ({**SAFE, "behind_proxy": False}, ["TLS", "--behind-proxy"]),
        ({**SAFE, "public_url": None}, ["--public-url"]),
        ({"no_auth": True}, ["TLS", "--public-url"]),
    ],
)
def test_an_address_that_others_can_reach_needs_all(
    options: dict[str, Any], missing: list[str]
) -> None:
    listener = listen_tcp("0.0.0.0", 0, allow_remote=True)
    try:
        with pytest.raises(ValueError, match="can be reached from other machines; add") as caught:
            check_exposure(HttpOptions(**options), [listener], "/mcp")
        assert [word for word in missing if word not in str(caught.value)] == []
    finally:
        listener.close()


@pytest.mark.parametrize(
    "options",
    [
        SAFE,
        {**SAFE, "behind_proxy": False, "tls": Tls("cert.pem")},
        {**SAFE, "authorization": None, "no_auth": True},
        {**SAFE, "trusted_proxies": ("10.0.0.0/8", "192.0.2.1", "2001:db8::/32")},
    ],
)
def test_with_all_of_them_it_is_allowed(options: dict[str, Any]) -> None:
    listener = listen_tcp("0.0.0.0", 0, allow_remote=True)
    try:
        identity = check_exposure(HttpOptions(**options), [listener], "/mcp")
        assert identity is not None
        assert identity.url == URL
    finally:
        listener.close()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"no_auth": True, "authorization": AUTHORIZATION}, "not together with authorization"),
        ({"trusted_proxies": ("10.0.0.0/8",)}, "add --behind-proxy"),
        ({"behind_proxy": True, "trusted_proxies": ("10.0.0.1/8",)}, "--trusted-proxy 10.0.0.1/8"),
        ({"behind_proxy": True, "trusted_proxies": ("proxy",)}, "an address or a network"),
        ({"public_url": "http://mcp.example", "authorization": AUTHORIZATION}, "expected https"),
        ({"public_url": "http://mcp.example", "tls": Tls("a")}, "expected https"),
        ({"public_url": "mcp.example"}, "expected the URL"),
        ({"public_url": "https://u:p@mcp.example"}, "without user"),
        ({"public_url": "https://mcp.example?a"}, "query"),
        ({"public_url": "https://mcp.example:x"}, "public URL"),
        ({"public_url": "https://mcp.exämple"}, "expected the URL"),
        ({"origins": ("app.example.com",)}, "--allow-origin app.example.com: expected an origin"),
        ({"origins": ("https://a.example/app",)}, "without a path, such as"),
        ({"origins": ("*",)}, "--allow-origin *: expected an origin"),
        ({"origins": ("null",)}, "--allow-origin null: expected an origin"),
        ({"hosts": ("mcp.example:8000",)}, "--allow-host mcp.example:8000: expected a name"),
        ({"hosts": ("https://mcp.example",)}, "without scheme and port"),
    ],
)
def test_what_makes_no_sense_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        check_exposure(HttpOptions(**options), [], "/mcp")


def test_what_browsers_and_clients_send_is_allowed() -> None:
    origins = ("https://a.example", "http://localhost:5173/", "chrome-extension://abc")
    options = HttpOptions(origins=origins, hosts=("mcp.example", "10.0.0.1", "2001:db8::1"))
    assert check_exposure(options, [], "/mcp") is None


@pytest.mark.requirement("RS-4", side="authorization")
@pytest.mark.parametrize(
    ("url", "expected", "metadata"),
    [
        ("https://a.example", "https://a.example/mcp", "https://a.example/.well-known/oauth-protected-resource/mcp"),
        ("https://a.example/", "https://a.example/mcp", "https://a.example/.well-known/oauth-protected-resource/mcp"),
        ("https://A.example:443/x/mcp/", "https://a.example/x/mcp", "https://a.example/.well-known/oauth-protected-resource/x/mcp"),
        ("https://a.example:8443/t", "https://a.example:8443/t", "https://a.example:8443/.well-known/oauth-protected-resource/t"),
        ("https://[2001:db8::1]/t", "https://[2001:db8::1]/t", "https://[2001:db8::1]/.well-known/oauth-protected-resource/t"),
    ],
)  # fmt: skip
def test_the_resource_is_the_public_url(url: str, expected: str, metadata: str) -> None:
    identity = check_exposure(HttpOptions(public_url=url), [], "/mcp")
    assert identity is not None
    assert (identity.url, identity.metadata_url) == (expected, metadata)


def test_on_loopback_the_address_is_the_resource(tmp_path: Path) -> None:
    options = HttpOptions(authorization=AUTHORIZATION)
    listener, unix = listen_tcp("127.0.0.1", 0), listen_unix(tmp_path / "s")
    try:
        identity = check_exposure(options, [unix, listener], "/mcp")
        assert identity is not None
        assert identity.url == f"http://{listener.address.removeprefix('tcp:')}/mcp"
        with pytest.raises(ValueError, match="a Unix socket has none"):
            check_exposure(options, [unix], "/mcp")
    finally:
        listener.close()
        unix.close()


# The command line


def refused(*options: str) -> str:
    done = run_python(
        [sys.executable, "-m", "concertino", "serve", str(SERVER), *options],
        capture_output=True,
        text=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 2, done.stderr
    return done.stderr


LOCAL = ("--http", "127.0.0.1:0")


@pytest.mark.requirement("AU-10", side="authorization")
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--http", "0.0.0.0:0"), "can be reached from other machines; add authorization"),
        ((*LOCAL, "--allow-remote"), "--allow-remote is for --tcp"),
        (("--public-url", URL), "--public-url is for --http"),
        (("--no-auth",), "--no-auth is for --http"),
        (("--auth-scope", "a"), "--auth-scope is for --http"),
        ((*LOCAL, "--tls-key", "k"), "--tls-key: add --tls-cert"),
        ((*LOCAL, "--auth-jwks", URL), "--auth-jwks: add --auth-issuer"),
        ((*LOCAL, "--auth-scope", "a"), "--auth-scope: add --auth-tokens, --auth-issuer or --auth"),
        ((*LOCAL, "--auth-cache-s", "61"), "expected 0 to 60 seconds"),
        ((*LOCAL, "--auth-tokens", "/none"), "concertino token new NAME"),
        ((*LOCAL, "--auth-issuer", "https://a.example"), "add --public-url"),
        ((*LOCAL, "--auth-issuer", "http://a.example", "--auth-audience", "x"), "expected https"),
        ((*LOCAL, "--auth-issuer", "https://a.example", "--auth-audience", "x", "--auth-algorithm",
          "HS256"), "algorithms: expected some of"),
        ((*LOCAL, "--auth-issuer", "https://a.example", "--auth-audience", "x",
          "--auth-introspection", "https://a.example/i"), "CONCERTINO_INTROSPECTION_SECRET"),
        ((*LOCAL, "--auth", "nothing"), "expected FILE.py:NAME"),
        ((*LOCAL, "--auth", f"{SERVER}:server"), "expected a function that takes a token"),
        ((*LOCAL, "--principal-rate", "many", "--auth", f"{VERIFIER}:verify"), "CALLS/SECONDS"),
        ((*LOCAL, "--tls-cert", "/none"), "expected a certificate and its key in PEM"),
        ((*LOCAL, "--trusted-proxy", "10.0.0.0/8"), "--trusted-proxy: add --behind-proxy"),
    ],
)  # fmt: skip
def test_wrong_combinations_say_what_to_do(options: tuple[str, ...], words: str) -> None:
    assert words in refused(*options)


def test_a_server_for_others_with_tls(tmp_path: Path) -> None:
    import ssl
    from http.client import HTTPSConnection

    cert, key = write_certificate(tmp_path)
    with serving(
        SERVER, "--http", "0.0.0.0:0", "--public-url", "https://localhost/mcp", "--tls-cert",
        str(cert), "--tls-key", str(key), "--auth", f"{VERIFIER}:verify",
    ) as service:  # fmt: skip
        port = int(service.url.rpartition(":")[2].partition("/")[0]) if ":" in service.url else 0
        context = ssl.create_default_context(cafile=cert)
        connection = HTTPSConnection("localhost", port, context=context, timeout=30)
        try:
            assert Answer(request(connection, "GET", path="/healthz")).status == 200
            message = modern("tools/call", name="whoami", arguments={})
            for token, status in (("good", 200), ("later", 200), ("bad", 401)):
                headers = {**modern_headers(message), "Authorization": f"Bearer {token}"}
                assert post(connection, message, headers).status == status
        finally:
            connection.close()


def test_no_authorization_is_said_aloud() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "concertino", "serve", str(SERVER), "--http", "0.0.0.0:0",
         "--no-auth", "--behind-proxy", "--public-url", "http://10.1.2.3"],
        stderr=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        assert process.stderr is not None
        lines: list[str] = []
        for line in process.stderr:
            lines.append(line)
            if "Listening on" in line:
                break
        assert any("everybody who does can call all tools (--no-auth)" in line for line in lines)
    finally:
        process.kill()
        process.communicate()
