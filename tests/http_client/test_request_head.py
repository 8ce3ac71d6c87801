"""The heads of requests, as h11 reads them."""

from __future__ import annotations

import base64
import json
from typing import Any

import h11
import pytest

from concertino.http.envelope import decode_envelope
from concertino.http_client.request_encoder import RequestEncoder, check_headers
from concertino.http_client.server_url import parse_url

VERSION = "io.modelcontextprotocol/protocolVersion"
HOSTILE = "tools/call\r\nAuthorization: Bearer x\r\n\r\nPOST /other HTTP/1.1\r\n"


def heads(**headers: str) -> RequestEncoder:
    return RequestEncoder(parse_url("http://127.0.0.1:8000/mcp"), headers)


def read(request: bytes) -> tuple[str, dict[str, str], bytes]:
    """Return the target, the headers and the body of the only request in these bytes."""
    server = h11.Connection(h11.SERVER)
    server.receive_data(request)
    head = server.next_event()
    assert isinstance(head, h11.Request)
    body = b""
    while isinstance(event := server.next_event(), h11.Data):
        body += event.data
    assert isinstance(event, h11.EndOfMessage)
    assert server.trailing_data == (b"", False)
    headers = {name.decode(): value.decode() for name, value in head.headers}
    return head.target.decode(), headers, body


def post(method: str, version: str = "2026-07-28", **params: Any) -> dict[str, str]:
    message = {"jsonrpc": "2.0", "id": 1, "method": method}
    frame = json.dumps({**message, "params": {"_meta": {VERSION: version}, **params}}).encode()
    target, headers, body = read(
        heads(authorization="Bearer own").post("/mcp", frame, decode_envelope(frame))
    )
    assert (target, body) == ("/mcp", frame)
    assert headers["authorization"] == "Bearer own"
    return headers


def test_a_request_of_2026_07_28_repeats_its_method_and_name() -> None:
    headers = post("tools/call", name="add")
    assert headers["mcp-protocol-version"] == "2026-07-28"
    assert headers["mcp-method"] == "tools/call"
    assert headers["mcp-name"] == "add"


def test_an_initialize_of_2026_07_28_has_the_headers_of_that_revision() -> None:
    # A client of `concertino connect` may send one. Without the headers, the error of the server
    # would name a missing header, not the method.
    headers = post("initialize")
    assert headers["mcp-protocol-version"] == "2026-07-28"
    assert headers["mcp-method"] == "initialize"


@pytest.mark.parametrize(
    ("header", "arguments"),
    [
        ("mcp-method", {"method": HOSTILE}),
        ("mcp-protocol-version", {"method": "ping", "version": HOSTILE}),
        ("mcp-name", {"method": "tools/call", "name": HOSTILE}),
    ],
)
def test_a_text_from_elsewhere_cannot_add_headers_or_requests(
    header: str, arguments: dict[str, Any]
) -> None:
    value = post(**arguments)[header]
    encoded = value.removeprefix("=?base64?").removesuffix("?=")
    assert base64.b64decode(encoded).decode() == HOSTILE


def test_characters_outside_ascii_do_not_stop_a_request() -> None:
    assert post("größe/lesen")["mcp-method"].startswith("=?base64?")


def test_a_message_of_a_session_names_it() -> None:
    requests = heads()
    requests.session_id, requests.session_version = "abc", "2025-11-25"
    frame = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'
    for request in (
        requests.post("/mcp", frame, decode_envelope(frame)),
        requests.get("/mcp", ""),
        requests.delete("/mcp"),
    ):
        headers = read(request)[1]
        assert headers["mcp-session-id"] == "abc"
        assert headers["mcp-protocol-version"] == "2025-11-25"
        assert headers["host"] == "127.0.0.1:8000"
    assert read(requests.get("/mcp", "7"))[1]["last-event-id"] == "7"


@pytest.mark.parametrize(
    ("headers", "message"),
    [
        ({"a b": "x"}, "no name of a header"),
        ({"Host": "x"}, "set by the client itself"),
        ({"X": "secret\r\nY: z"}, "the value of X has characters"),
        ({"X": "é"}, "the value of X has characters"),
    ],
)
def test_headers_of_the_user_are_checked_and_not_shown(
    headers: dict[str, str], message: str
) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        check_headers(headers)
    assert "secret" not in str(caught.value)
