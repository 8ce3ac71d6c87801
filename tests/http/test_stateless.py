"""Revision 2026-07-28 over HTTP: a real server, raw requests. Rows of ../shared/spec/HTTP.md in
parentheses.
"""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from http_service import (
    BOTH,
    META,
    MODERN,
    WAIT_S,
    Answer,
    HttpService,
    ask_modern,
    modern,
    modern_headers,
    parse_events,
    post,
    read_event,
    request,
    serving,
    text_of,
)

SERVER = Path(__file__).with_name("server_for_http.py")


@pytest.fixture(scope="module")
def service() -> Iterator[HttpService]:
    with serving(SERVER) as running:
        yield running


@pytest.fixture
def http_connection(service: HttpService) -> Iterator[http.client.HTTPConnection]:
    connection = service.connect()
    yield connection
    connection.close()


Http = http.client.HTTPConnection


def test_a_call_is_answered_with_json_and_the_connection_stays(http_connection: Http) -> None:
    for id in (1, 2, 3):
        answer = ask_modern(http_connection, "tools/call", id=id, name="add",
                            arguments={"a": id, "b": 1})  # fmt: skip

        assert answer.status == 200
        assert answer.headers["Content-Type"] == "application/json"
        assert answer.headers["Cache-Control"] == "no-store"
        assert answer.headers["Mcp-Session-Id"] is None  # HM-15
        assert answer.json["id"] == id
        assert answer.json["result"]["structuredContent"] == id + 1


def test_progress_turns_the_response_into_a_stream(http_connection: Http) -> None:
    answer = ask_modern(http_connection, "tools/call", name="count", arguments={},
                        _meta={"progressToken": "t"})  # fmt: skip

    assert answer.status == 200
    assert answer.headers["Content-Type"] == "text/event-stream"
    assert answer.headers["X-Accel-Buffering"] == "no"  # HM-6
    assert all("id" not in event and "retry" not in event for event in answer.events)  # HM-17
    *progress, last = answer.messages
    assert {item["method"] for item in progress} == {"notifications/progress"}
    assert text_of(last) == "counted"


def test_a_client_that_accepts_json_only_gets_no_progress(http_connection: Http) -> None:
    message = modern("tools/call", name="count", arguments={}, _meta={"progressToken": "t"})

    answer = post(http_connection, message, {**modern_headers(message), "Accept": "application/*"})

    assert text_of(answer.json) == "counted"


def test_a_client_that_accepts_streams_only_gets_a_stream(http_connection: Http) -> None:
    message = modern("tools/list")

    answer = post(
        http_connection, message, {**modern_headers(message), "Accept": "text/event-stream"}
    )

    assert answer.headers["Content-Type"] == "text/event-stream"
    assert [item["id"] for item in answer.messages] == [1]


def without(headers: dict[str, str], name: str) -> dict[str, str]:
    return {key: value for key, value in headers.items() if key != name}


CALL = modern("tools/call", name="add", arguments={"a": 1, "b": 2})
CALL_HEADERS = modern_headers(CALL)
NO_META = {**CALL, "params": {"name": "add", "arguments": {}}}
PART_OF_META = modern("tools/list")
del PART_OF_META["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"]
UNKNOWN_VERSION = modern("tools/list", _meta={"io.modelcontextprotocol/protocolVersion": "v999"})


@pytest.mark.parametrize(
    ("body", "headers", "status", "code"),
    [
        (CALL, without(CALL_HEADERS, "MCP-Protocol-Version"), 400, -32020),
        (CALL, {**CALL_HEADERS, "MCP-Protocol-Version": "2025-11-25"}, 400, -32020),
        (CALL, {**CALL_HEADERS, "MCP-Protocol-Version": "v999"}, 400, -32020),
        (CALL, without(CALL_HEADERS, "Mcp-Method"), 400, -32020),
        (CALL, {**CALL_HEADERS, "Mcp-Method": "tools/list"}, 400, -32020),
        (CALL, {**CALL_HEADERS, "Mcp-Method": "Tools/Call"}, 400, -32020),
        (CALL, without(CALL_HEADERS, "Mcp-Name"), 400, -32020),
        (CALL, {**CALL_HEADERS, "Mcp-Name": "other"}, 400, -32020),
        (CALL, {**CALL_HEADERS, "Mcp-Name": "=?base64?!!!?="}, 400, -32020),
        (NO_META, CALL_HEADERS, 400, -32602),
        (PART_OF_META, modern_headers(PART_OF_META), 400, -32602),
        (UNKNOWN_VERSION, {**modern_headers(UNKNOWN_VERSION), "MCP-Protocol-Version": "v999"}, 400,
         -32022),
        (modern("no/method"), modern_headers(modern("no/method")), 404, -32601),
        (modern("initialize"), modern_headers(modern("initialize")), 404, -32601),
        (modern("ping"), modern_headers(modern("ping")), 404, -32601),
        (modern("tools/call", name="none"), modern_headers(modern("tools/call", name="none")), 200,
         -32602),
        (modern("resources/read", uri="text://none"),
         modern_headers(modern("resources/read", uri="text://none")), 200, -32602),
    ],
)  # fmt: skip
def test_the_status_of_an_error(
    http_connection: Http, body: Any, headers: dict[str, str], status: int, code: int
) -> None:
    answer = post(http_connection, body, headers)

    assert (answer.status, answer.json["error"]["code"]) == (status, code)
    assert answer.json["id"] == 1


@pytest.mark.parametrize(
    ("body", "headers", "status", "code"),
    [
        (b"{", {}, 400, -32700),
        (b'{"jsonrpc":"2.0","id":1,"method":"\xff"}', {}, 400, -32700),
        (b'{"jsonrpc":"2.0","id":1,"method":"x","a":' + b"[" * 100_000, {}, 400, -32700),
        (b'{"jsonrpc":"2.0","id":true, oops', {}, 400, -32700),
        (b'{"jsonrpc":"2.0","id":true,"a":' + b"[" * 100_000, {}, 400, -32700),
        (b'\xef\xbb\xbf{"jsonrpc":"2.0","id":1,"method":"ping"}', {}, 400, -32700),
        (b" ", {}, 400, -32700),
        (b'{"jsonrpc":"2.0","id":null,"error":{}}', {}, 400, -32600),
        (b"17", {}, 400, -32600),
        (b'"text"', {}, 400, -32600),
        (b'{"jsonrpc":"2.0","id":null,"method":"tools/list"}', {}, 400, -32600),
        (b'{"jsonrpc":"2.0","id":1.5,"method":"tools/list"}', {}, 400, -32600),
        ([CALL], CALL_HEADERS, 400, -32600),
        ({"jsonrpc": "2.0", "id": 1, "result": {}}, {"MCP-Protocol-Version": MODERN}, 400, -32600),
        (CALL, {**CALL_HEADERS, "Content-Type": "text/plain"}, 415, -32600),
        (CALL, {**CALL_HEADERS, "Content-Type": ""}, 415, -32600),
        (CALL, {**CALL_HEADERS, "Accept": "text/html"}, 406, -32600),
        (CALL, {**CALL_HEADERS, "Origin": "http://evil.example.com"}, 403, -32600),
        (CALL, {**CALL_HEADERS, "Host": "evil.example.com"}, 403, -32600),
        (CALL, {"MCP-Protocol-Version": "1999-01-01"}, 400, -32020),
        ({"jsonrpc": "2.0", "method": "x"}, {"MCP-Protocol-Version": "1999-01-01"}, 400, -32022),
    ],
)
def test_what_is_no_request_is_refused(
    service: HttpService, body: Any, headers: dict[str, str], status: int, code: int
) -> None:
    answer = post(service.connect(), body, headers)

    assert (answer.status, answer.json["error"]["code"]) == (status, code)


@pytest.mark.parametrize("value", [b'"\\ud83d"', b'"\xff"', b"NaN", b"[" * 9_999 + b"]" * 9_999])
def test_a_request_that_is_no_json_is_refused_on_its_id(
    http_connection: Http, value: bytes
) -> None:
    body = b'{"jsonrpc":"2.0","id":"a1","method":"ping","params":{"a":%b}}' % value
    answer = post(http_connection, body)
    assert (answer.status, answer.json["id"]) == (400, "a1")


def test_a_repeated_header_is_refused(service: HttpService) -> None:
    body = json.dumps(CALL).encode()
    with socket.create_connection(service.address, WAIT_S) as client:
        lines = [f"{name}: {value}" for name, value in CALL_HEADERS.items()]
        client.sendall(
            "\r\n".join(
                ["POST /mcp HTTP/1.1", "Host: localhost", "Content-Type: application/json", *lines,
                 "mcp-name: add", f"Content-Length: {len(body)}", "", ""]
            ).encode() + body
        )  # fmt: skip
        assert b" 400 " in client.recv(65536).partition(b"\r\n")[0]


@pytest.mark.parametrize("name", ["  add ", "=?base64?YWRk?="])
def test_a_name_is_trimmed_and_decoded(http_connection: Http, name: str) -> None:
    answer = post(http_connection, CALL, {**CALL_HEADERS, "Mcp-Name": name})

    assert answer.json["result"]["structuredContent"] == 3


def test_a_notification_is_accepted_without_a_body(http_connection: Http) -> None:
    message = {"jsonrpc": "2.0", "method": "notifications/unknown"}

    answer = post(http_connection, message, {"MCP-Protocol-Version": MODERN})

    assert (answer.status, answer.body) == (202, b"")
    assert answer.headers["Content-Type"] is None


@pytest.mark.parametrize(
    ("method", "path", "status", "allowed"),
    [
        ("GET", "/mcp", 405, "POST"),
        ("DELETE", "/mcp", 405, "POST"),
        ("PUT", "/mcp", 405, "GET, POST, DELETE"),
        ("HEAD", "/mcp", 405, "GET, POST, DELETE"),
        ("OPTIONS", "/mcp", 405, "GET, POST, DELETE"),
        ("POST", "/healthz", 405, "GET, HEAD"),
        ("GET", "/", 404, None),
        ("HEAD", "/", 404, None),
        ("GET", "/healthz", 200, None),
        ("HEAD", "/healthz", 200, None),
    ],
)
def test_other_methods_and_paths(
    service: HttpService, method: str, path: str, status: int, allowed: str | None
) -> None:
    headers = {"MCP-Protocol-Version": MODERN, "Accept": BOTH}
    answer = Answer(request(service.connect(), method, None, headers, path))

    assert (answer.status, answer.headers["Allow"]) == (status, allowed)


@pytest.mark.parametrize(("path", "length"), [(b"/mcp", None), (b"/", None), (b"/healthz", b"15")])
def test_a_response_to_head_has_no_body(
    service: HttpService, path: bytes, length: bytes | None
) -> None:
    with socket.create_connection(service.address, WAIT_S) as client:
        client.sendall(b"HEAD %b HTTP/1.1\r\nHost: localhost\r\n\r\n" % path)
        client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        received = b"".join(iter(lambda: client.recv(65536), b""))
    first, second = received.split(b"\r\n\r\n", 1)
    assert second.startswith(b"HTTP/1.1 404 ")
    assert length is None or b"Content-Length: " + length in first


def test_the_endpoint_is_served_with_a_slash_too(http_connection: Http) -> None:
    message = modern("tools/list")

    answer = Answer(request(http_connection, "POST", message, modern_headers(message), "/mcp/"))

    assert answer.status == 200


def test_a_client_that_leaves_cancels_its_call() -> None:
    """HM-9, before and after the stream has begun."""
    for meta in ({}, {"progressToken": 1}):
        with serving(SERVER) as own:
            message = modern("tools/call", name="wait", arguments={}, _meta=meta)
            body = json.dumps(message).encode()
            client = socket.create_connection(own.address, WAIT_S)
            lines = [f"{name}: {value}" for name, value in modern_headers(message).items()]
            client.sendall(
                "\r\n".join(
                    ["POST /mcp HTTP/1.1", "Host: localhost", "Content-Type: application/json",
                     *lines, f"Content-Length: {len(body)}", "", ""]
                ).encode() + body
            )  # fmt: skip
            own.read_stderr_until("waiting")
            client.close()

            # It is no event for the log: clients may do so as often as they like.
            assert own.process.stderr is not None
            assert own.process.stderr.readline() == "wait was cancelled\n"


def test_subscriptions_end_with_their_result_at_the_end_of_the_server() -> None:
    """HM-12, HM-13."""
    with serving(SERVER) as own:
        message = modern("subscriptions/listen", notifications={"toolsListChanged": True})
        stream = request(own.connect(), "POST", message, modern_headers(message))
        acknowledged = json.loads(read_event(stream)["data"])
        assert acknowledged["method"] == "notifications/subscriptions/acknowledged"

        ask_modern(own.connect(), "tools/call", name="grow", arguments={})
        changed = json.loads(read_event(stream)["data"])
        assert changed["method"] == "notifications/tools/list_changed"

        own.end()
        (last,) = parse_events(stream.read())
        result = json.loads(last["data"])
        assert result["id"] == 1
        assert result["result"]["_meta"]["io.modelcontextprotocol/subscriptionId"] == 1


def test_an_elicitation_comes_as_a_result(http_connection: Http) -> None:
    capabilities = {"io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}}}
    asked = ask_modern(http_connection, "tools/call", name="ask", arguments={}, _meta=capabilities)
    state = asked.json["result"]["requestState"]

    answer = ask_modern(
        http_connection,
        "tools/call",
        name="ask",
        arguments={},
        requestState=state,
        inputResponses={"name": {"action": "accept", "content": {"name": "Ada"}}},
        _meta=capabilities,
    )

    assert text_of(answer.json) == "hello Ada"


def test_a_missing_capability_has_status_400(http_connection: Http) -> None:
    answer = ask_modern(http_connection, "tools/call", name="ask", arguments={})

    assert (answer.status, answer.json["error"]["code"]) == (400, -32021)


def test_meta_of_these_tests_is_complete() -> None:
    assert set(META) == {
        "io.modelcontextprotocol/protocolVersion",
        "io.modelcontextprotocol/clientCapabilities",
    }
