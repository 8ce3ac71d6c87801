"""Which pages and hosts an HTTP server accepts; see ../shared/spec/HTTP.md, section 9, trap 1."""

from __future__ import annotations

import pytest

from concertino.http.access import AccessRules
from concertino.http.request_head import HeadParser, HttpError, RequestHead

APP = "https://app.example.com"


def head(host: str = "localhost:8000", origin: str | None = None, extra: str = "") -> RequestHead:
    lines = [f"POST /mcp HTTP/1.1\r\nHost: {host}"]
    lines += [f"Origin: {origin}"] if origin is not None else []
    lines += [extra] if extra else []
    return HeadParser().parse(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"))


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:1", "127.0.0.1:8000", "[::1]:8000", "[::1]", "LOCALHOST:80"]
)
def test_accepts_names_of_this_machine(host: str) -> None:
    AccessRules().check(head(host))
    AccessRules().check(head(host, f"http://{host}"))


@pytest.mark.parametrize(
    "host",
    ["evil.example.com", "localhost.evil.com", "127.0.0.1.nip.io", "127.0.0.2", "localhost:x",
     "evil@localhost", "localhost/evil", "[::1", "", "0.0.0.0:8000", "localhost:8000, evil",
     "localhost?", "localhost#", "local\thost", "localhost:99999", "[::1%25lo]", "localhost."],
)  # fmt: skip
def test_refuses_other_hosts(host: str) -> None:
    with pytest.raises(HttpError) as refusal:
        AccessRules().check(head(host))

    assert refusal.value.status == 403
    assert "Host" in str(refusal.value)


@pytest.mark.parametrize(
    "origin",
    ["http://evil.example.com", "null", "", "file://localhost", "http://localhost.evil.com",
     "http://localhost@evil.com", "https://app.example.com.evil.com", "http://localhost/page",
     "chrome-extension://abc", "http://[::1", f"{APP}:444", "http://localhost?", "//localhost",
     "http://local\thost"],
)  # fmt: skip
def test_refuses_other_origins(origin: str) -> None:
    with pytest.raises(HttpError) as refusal:
        AccessRules([APP]).check(head(origin=origin))

    assert refusal.value.status == 403
    assert "Origin" in str(refusal.value)


def test_accepts_listed_origins_and_tells_the_browser() -> None:
    rules = AccessRules([APP + "/"])
    request = head(origin=APP, extra="Access-Control-Request-Headers: Mcp-Param-Region, X-Evil\r\n"
                   "Access-Control-Request-Method: POST")  # fmt: skip

    rules.check(request)

    assert f"Access-Control-Allow-Origin: {APP}\r\n".encode() in rules.response_headers(request)
    allowed = rules.preflight_headers(request)
    assert allowed is not None
    assert b"Mcp-Param-Region" in allowed
    assert b"X-Evil" not in allowed


def test_says_nothing_about_origins_when_none_is_listed() -> None:
    request = head(origin="http://localhost:5173")

    AccessRules().check(request)

    assert AccessRules().response_headers(request) == b""
    assert AccessRules().preflight_headers(request) is None


def request_for(url: str, host: str) -> RequestHead:
    return HeadParser().parse(f"POST {url} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())


def test_the_host_in_the_target_is_compared_as_the_header_is() -> None:
    rules = AccessRules(accepts_https=False)

    rules.check(request_for("http://localhost:8000/mcp", "evil.example.com"))
    with pytest.raises(HttpError) as refusal:
        rules.check(request_for("http://evil.example.com/mcp", "localhost:8000"))
    assert refusal.value.status == 403
    with pytest.raises(HttpError) as refusal:
        rules.check(request_for("https://localhost/mcp", "localhost"))
    assert refusal.value.status == 421
    AccessRules(accepts_https=True).check(request_for("https://localhost/mcp", "localhost"))


def test_a_unix_socket_accepts_any_host() -> None:
    AccessRules(checks_host=False).check(head("whatever"))
