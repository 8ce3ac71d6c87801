"""transports/addresses.py: the addresses of sockets as users write them."""

from __future__ import annotations

import pytest

from concertino.transports.addresses import parse_address


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
