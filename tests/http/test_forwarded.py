"""http/forwarded.py: what a proxy says about a client, and when it is believed."""

from __future__ import annotations

import time

import pytest

from concertino.http.forwarded import Forwarded, TrustedProxies
from concertino.http.request_head import HeadParser


def read(peer: str | None, *lines: str, networks: tuple[str, ...] = ("10.0.0.0/8",)) -> Forwarded:
    text = "\r\n".join(("GET / HTTP/1.1", "Host: x", *lines, "", ""))
    return TrustedProxies(networks).read(HeadParser().parse(text.encode()), peer)


@pytest.mark.parametrize(
    ("peer", "lines", "expected"),
    [
        ("10.0.0.1", ["X-Forwarded-For: 192.0.2.7"], "192.0.2.7"),
        # The rightmost one was seen by the proxy, those further left are the client's word.
        ("10.0.0.1", ["X-Forwarded-For: 6.6.6.6, 192.0.2.7"], "192.0.2.7"),
        ("10.0.0.1", ["X-Forwarded-For: 6.6.6.6, 192.0.2.7, 10.0.0.2"], "192.0.2.7"),
        ("10.0.0.1", ["X-Forwarded-For: 192.0.2.7:4711"], "192.0.2.7"),
        ("10.0.0.1", ["X-Forwarded-For: [2001:db8::7]:80"], "2001:db8::7"),
        ("::ffff:10.0.0.1", ["X-Forwarded-For: 192.0.2.7"], "192.0.2.7"),
        ("10.0.0.1", ["X-Forwarded-For: nonsense"], "10.0.0.1"),
        ("10.0.0.1", ["X-Forwarded-For: 192.0.2.7, unknown"], "10.0.0.1"),
        ("10.0.0.1", [], "10.0.0.1"),
        # RFC 7239, which counts before the other header.
        (
            "10.0.0.1",
            ["Forwarded: for=192.0.2.7;proto=https", "X-Forwarded-For: 6.6.6.6"],
            "192.0.2.7",
        ),
        ("10.0.0.1", ['Forwarded: for="[2001:db8::7]:4711", for=10.0.0.3'], "2001:db8::7"),
        ("10.0.0.1", ['Forwarded: for="a,b", for=192.0.2.7'], "192.0.2.7"),
        ("10.0.0.1", ["Forwarded: for=_hidden"], "10.0.0.1"),
        # Anybody can send such headers.
        ("192.0.2.9", ["X-Forwarded-For: 192.0.2.7"], "192.0.2.9"),
        ("192.0.2.9", ["Forwarded: for=192.0.2.7"], "192.0.2.9"),
        (None, ["X-Forwarded-For: 192.0.2.7"], "192.0.2.7"),
    ],
)  # fmt: skip
def test_the_address_of_the_client(peer: str | None, lines: list[str], expected: str) -> None:
    assert read(peer, *lines).address == expected


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["X-Forwarded-Proto: http"], True),
        (["X-Forwarded-Proto: HTTPS"], False),
        # Traefik says so of a WebSocket.
        (["X-Forwarded-Proto: ws"], True),
        (["X-Forwarded-Proto: wss"], False),
        (["X-Forwarded-Proto: https, http"], True),
        # Two proxies: the first one tells how the client has come, the second one how the first.
        (["X-Forwarded-For: 192.0.2.7, 10.0.0.2", "X-Forwarded-Proto: http, https"], True),
        (["X-Forwarded-For: 192.0.2.7, 10.0.0.2", "X-Forwarded-Proto: https, http"], False),
        (["X-Forwarded-For: 192.0.2.7, 10.0.0.2", "X-Forwarded-Proto: http"], True),
        (["Forwarded: for=192.0.2.7;proto=http, for=10.0.0.2;proto=https"], True),
        (["Forwarded: for=_hidden;proto=http, for=10.0.0.2;proto=https"], True),
        # What stands left of the client is the client's word.
        (["X-Forwarded-For: 6.6.6.6, 192.0.2.7", "X-Forwarded-Proto: http, https"], False),
        (["X-Forwarded-For: 6.6.6.6, 192.0.2.7", "X-Forwarded-Proto: https, http"], True),
        (["Forwarded: for=192.0.2.7;proto=http"], True),
        (["Forwarded: for=192.0.2.7;proto=https"], False),
        ([], False),
    ],
)
def test_whether_the_client_has_come_without_tls(lines: list[str], expected: bool) -> None:
    assert read("10.0.0.1", *lines).is_unencrypted is expected
    assert read("192.0.2.9", *lines).is_unencrypted is False


def test_a_peer_without_a_known_address_is_not_believed() -> None:
    assert read("", "X-Forwarded-For: 192.0.2.7", "X-Forwarded-Proto: http") == Forwarded("")


def test_without_networks_nobody_is_believed() -> None:
    assert read("10.0.0.1", "X-Forwarded-For: 192.0.2.7", networks=()) == Forwarded("10.0.0.1")


@pytest.mark.parametrize("name", ["Forwarded", "X-Forwarded-For"])
@pytest.mark.parametrize(
    "value",
    ["a" * 16_000, '"' + '\\"' * 7_990, "for=" + " " * 15_000 + "x", ("a" * 500 + ";") * 31],
)
def test_a_long_header_that_says_nothing_takes_no_long_time(name: str, value: str) -> None:
    """Anybody can send it through a proxy, without a token. It held up the loop for 1.2 s."""
    head = HeadParser().parse(f"GET / HTTP/1.1\r\nHost: x\r\n{name}: {value}\r\n\r\n".encode())
    proxies = TrustedProxies(["10.0.0.0/8"])
    began = time.process_time()
    assert proxies.read(head, "10.0.0.1").address == "10.0.0.1"
    assert time.process_time() - began < 0.3
