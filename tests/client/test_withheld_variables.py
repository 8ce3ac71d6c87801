"""client/withheld_variables.py: what a server may lack to reach the network."""

from __future__ import annotations

import sys

import pytest
from client.scripted import on_a_loop

from concertino.client.client import Client
from concertino.client.server_parameters import ServerParameters
from concertino.client.withheld_variables import describe_withheld
from concertino.errors import Disconnected


# Lines as the programs print them.
@pytest.mark.parametrize(
    "stderr",
    [
        # curl, git
        "curl: (6) Could not resolve host: registry.npmjs.org",
        "fatal: unable to access 'https://x/': SSL certificate problem: self-signed "
        "certificate in certificate chain",
        # npm, Node.js
        "npm error code ENOTFOUND\nnpm error request to https://registry.npmjs.org/x failed",
        "npm ERR! code SELF_SIGNED_CERT_IN_CHAIN",
        "Error: getaddrinfo EAI_AGAIN api.example.com",
        "TypeError: fetch failed",
        "Error: unable to get local issuer certificate",
        "code: 'UNABLE_TO_VERIFY_LEAF_SIGNATURE'",
        # Python: urllib, requests, httpx
        "urllib.error.URLError: <urlopen error [Errno -3] Temporary failure in name resolution>",
        "urllib.error.URLError: <urlopen error [Errno -2] Name or service not known>",
        "ssl.SSLCertVerificationError: [SSL: CERTIFICATE_VERIFY_FAILED] certificate verify "
        "failed: unable to get local issuer certificate (_ssl.c:1006)",
        "requests.exceptions.ProxyError: HTTPSConnectionPool(host='x', port=443): Max retries "
        "exceeded",
        "ConnectionRefusedError: [Errno 111] Connection refused",
        "httpx.ConnectTimeout: timed out",
        # uv, cargo
        "error: Failed to fetch: `https://pypi.org/simple/x/`\n"
        "  Caused by: error sending request for url\n"
        "  Caused by: invalid peer certificate: UnknownIssuer",
        "  Caused by: dns error: failed to lookup address information",
        # Go
        "dial tcp: lookup proxy.golang.org: no such host",
        "tls: failed to verify certificate: x509: certificate signed by unknown authority",
        # Java
        "java.net.UnknownHostException: repo.maven.apache.org",
    ],
)
def test_a_network_failure_names_the_variables_that_were_not_passed(stderr: str) -> None:
    variables = ["HTTPS_PROXY", "no_proxy", "SSL_CERT_FILE", "HOME", "API_TOKEN"]
    assert describe_withheld(stderr, variables, {"HOME", "SSL_CERT_FILE"}) == (
        "it did not get HTTPS_PROXY, no_proxy of this process, which it may need to reach the "
        "network; ServerParameters(env={...}) passes variables on"
    )


@pytest.mark.parametrize(
    "stderr",
    ["", "KeyError: 'x'", "listening on port 4070", "ValueError: certificate", "tools: 3"],
)
def test_other_failures_name_nothing(stderr: str) -> None:
    assert describe_withheld(stderr, ["HTTPS_PROXY"], ()) == ""


def test_nothing_is_named_where_nothing_is_missing() -> None:
    stderr = "getaddrinfo ENOTFOUND x"
    assert describe_withheld(stderr, ["HOME", "PYTHONPATH"], ()) == ""
    assert describe_withheld(stderr, ["HTTPS_PROXY"], {"HTTPS_PROXY"}) == ""


FAILING = [
    sys.executable,
    "-S",
    "-c",
    "import sys; sys.exit('npm error getaddrinfo ENOTFOUND registry.npmjs.org')",
]


@on_a_loop
async def test_a_client_says_so_when_its_server_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "https_proxy", "ALL_PROXY", "NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HTTPS_PROXY", "http://user:secret@proxy:3128")
    with pytest.raises(Disconnected, match=r"it did not get [^;]*HTTPS_PROXY") as error:
        async with Client(FAILING):
            pass
    assert "secret" not in str(error.value)

    parameters = ServerParameters(FAILING[0], FAILING[1:], env={"HTTPS_PROXY": "http://proxy:3128"})
    with pytest.raises(Disconnected) as error:
        async with Client(parameters):
            pass
    assert "HTTPS_PROXY" not in str(error.value)
