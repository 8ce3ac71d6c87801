"""URLs of servers, and redirects."""

from __future__ import annotations

import pytest

from concertino.http_client.server_url import ServerUrl, parse_url


def test_a_url_is_split_into_what_a_request_needs() -> None:
    assert parse_url("https://Example.com/mcp?x=1") == ServerUrl(
        "https", "example.com", 443, "/mcp?x=1"
    )
    assert parse_url("http://[::1]:8000") == ServerUrl("http", "::1", 8000, "/")
    assert parse_url("http://[::1]:8000").authority == "[::1]:8000"
    assert parse_url("https://example.com/mcp?key=secret").text == "https://example.com/mcp"


@pytest.mark.parametrize(
    "text", ["ftp://a/b", "https://", "http://a:99999/", "https://a/\u00fc", "http://a/b c"]
)
def test_what_is_no_url_of_a_server_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected a URL"):
        parse_url(text)


def test_a_password_in_a_url_is_refused_and_not_repeated() -> None:
    with pytest.raises(ValueError, match="Authorization") as caught:
        parse_url("https://me:hunter2@example.com/")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "ftp://me:hunter2@example.com/",
        "me:hunter2@example.com/mcp",
        "https://me:hunter2@",
        # The slash ends the host, so `hunter2` looks like the port.
        "https://me:hunter2/3@example.com/",
    ],
)
def test_a_password_in_a_malformed_url_is_not_repeated_either(text: str) -> None:
    with pytest.raises(ValueError, match="expected a URL") as caught:
        parse_url(text)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "location", ["http://example.com/mcp", "https://other.com/mcp", "https://example.com:444/", ""]
)
def test_redirects_to_another_origin_are_not_followed(location: str) -> None:
    followed = parse_url("https://example.com/mcp").follow(location)
    # An empty location is the same place.
    assert followed is None if location else followed is not None


def test_redirects_within_the_origin_are_followed() -> None:
    followed = parse_url("https://example.com/mcp").follow("/mcp/")
    assert followed == ServerUrl("https", "example.com", 443, "/mcp/")


@pytest.mark.parametrize(
    "url", ["http://a b/mcp", "http://a\x00b/mcp", "http://a,b/", "http://a;b"]
)
def test_a_host_cannot_change_the_meaning_of_a_header(url: str) -> None:
    with pytest.raises(ValueError, match="host"):
        parse_url(url)
