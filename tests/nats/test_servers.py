"""nats/servers.py: addresses."""

from __future__ import annotations

import pytest

from concertino.nats.servers import NatsServer, parse_servers


@pytest.mark.parametrize(
    ("text", "servers"),
    [
        ("nats://a", [NatsServer("a", 4222)]),
        ("nats://a:1,b:2,c", [NatsServer("a", 1), NatsServer("b", 2), NatsServer("c", 4222)]),
        (
            "tls://a,b",
            [NatsServer("a", 4222, needs_tls=True), NatsServer("b", 4222, needs_tls=True)],
        ),
        ("nats://me:s%40t@a", [NatsServer("a", 4222, "me", "s@t")]),
        ("nats://[::1]:5", [NatsServer("::1", 5)]),
    ],
)
def test_addresses_are_read(text: str, servers: list[NatsServer]) -> None:
    assert parse_servers(text) == servers


@pytest.mark.parametrize(
    "text", ["", "a:1", "http://a", "nats://", "nats://a:x", "nats://a:99999", "nats://a/path"]
)
def test_a_malformed_address_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="expected tls://HOST or nats://HOST, with :PORT"):
        parse_servers(text)


def test_a_refused_address_is_shown_without_its_password() -> None:
    with pytest.raises(ValueError, match=r"\.\.\.@a/path") as caught:
        parse_servers("nats://me:secret@a/path")
    assert "secret" not in str(caught.value)
