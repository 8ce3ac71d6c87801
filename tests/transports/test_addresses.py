"""transports/addresses.py: the addresses of sockets as users write them."""

from __future__ import annotations

import pytest

from concertino.transports.addresses import is_loopback, parse_address


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("unix:/run/my.sock", "/run/my.sock"),
        ("unix:my:sock", "my:sock"),
        ("tcp:127.0.0.1:8000", ("127.0.0.1", 8000)),
        ("tcp:[::1]:8000", ("::1", 8000)),
        ("tcp:localhost:65535", ("localhost", 65535)),
    ],
)
def test_an_address_is_a_path_or_a_host_and_a_port(text: str, place: str | tuple[str, int]) -> None:
    assert parse_address(text) == place


@pytest.mark.parametrize(
    "text",
    ["", "unix:", "tcp:8000", "tcp::8000", "tcp:host:", "tcp:host:0", "tcp:host:65536", "http://a"],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected unix:PATH or tcp:HOST:PORT, got "):
        parse_address(text)


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST", "127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"]
)
def test_a_loopback_host_is_this_machine(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host",
    ["", "localhost.example", "10.0.0.1", "fe80::1%eth0", "::ffff:10.0.0.1", "::"],
)
def test_other_hosts_are_not(host: str) -> None:
    assert not is_loopback(host)
