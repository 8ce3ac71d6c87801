"""The HTTP front, where the conformance suite does not look: callers that are alike, questions,
streams that are closed.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from conformance.suite import EVERYTHING, front

MODERN = "2026-07-28"
META = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientCapabilities": {},
}
SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"
# Asks one question about each call, and answers the call with the answer; on `patience` it waits to
# be cancelled, and on `seen` it tells who was; every `subscriptions/listen` is told of each that
# follows.
ASKER = """
import json, sys
calls, cancelled, listening = {}, [], []
def say(**message): print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)
for line in sys.stdin:
    message = json.loads(line)
    method = message.get("method")
    if method == "initialize": say(id=message["id"], result={})
    elif method == "notifications/cancelled": cancelled.append(message["params"]["requestId"])
    elif method == "patience": say(method="notifications/message", params={"data": message["id"]})
    elif method == "seen": say(id=message["id"], result={"cancelled": cancelled})
    elif method == "subscriptions/listen":
        listening.append(message["id"])
        for id in listening:
            meta = {"io.modelcontextprotocol/subscriptionId": id}
            say(method="notifications/heard", params={"_meta": meta})
    elif method: calls["q"] = message["id"]; say(id="q", method="roots/list")
    else: say(id=calls[message["id"]], result={"roots": message["result"]["roots"]})
"""


class RawClient:
    """Posts to one front. Every connection is closed at the end of the test."""

    def __init__(self, url: str, stack: ExitStack) -> None:
        self._url = urlsplit(url)
        self._stack = stack

    def open(self, message: object, method: str = "POST", **headers: str) -> HTTPResponse:
        connection = self._stack.enter_context(
            closing(HTTPConnection(self._url.netloc, timeout=30))
        )
        given = {
            "Accept": "application/json, text/event-stream",
            **{k.replace("_", "-"): v for k, v in headers.items()},
        }
        connection.request(method, self._url.path, json.dumps(message).encode(), given)
        return connection.getresponse()

    def modern(
        self, id: object, method: str, meta: dict[str, Any] | None = None, **params: Any
    ) -> HTTPResponse:
        message = _request(id, method, **params, _meta={**META, **(meta or {})})
        return self.open(message, mcp_protocol_version=MODERN)

    def hang_up(self) -> None:
        self._stack.close()

    def session(self) -> str:
        opening = {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "c", "version": "1"},
        }
        answer = self.open(_request(0, "initialize", **opening))
        assert answer.status == 200
        return answer.headers["Mcp-Session-Id"]


def _request(id: object, method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "method": method, "params": params}


def event(stream: HTTPResponse) -> Any:
    """The next message of a stream."""
    while line := stream.readline():
        if line.startswith(b"data: "):
            return json.loads(line[6:])
    raise AssertionError("the stream ended")


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with front(tmp_path_factory.mktemp("front") / "log", sys.executable, EVERYTHING) as url:
        yield url


@pytest.fixture(scope="module")
def asker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with front(tmp_path_factory.mktemp("front") / "log", sys.executable, "-c", ASKER) as url:
        yield url


@pytest.fixture
def caller(everything: str) -> Iterator[RawClient]:
    with ExitStack() as stack:
        yield RawClient(everything, stack)


@pytest.fixture
def client_of_asker(asker: str) -> Iterator[RawClient]:
    with ExitStack() as stack:
        yield RawClient(asker, stack)


def test_callers_with_one_id_and_one_token_hear_what_is_theirs(caller: RawClient) -> None:
    tool = {"name": "test_tool_with_progress", "arguments": {}}
    streams = [
        caller.modern("same", "tools/call", {"progressToken": "one"}, **tool) for _ in range(3)
    ]
    for stream in streams:
        progress = [event(stream) for _ in range(3)]
        assert [item["params"] for item in progress] == [
            {"progressToken": "one", "progress": done, "total": 100} for done in (0, 50, 100)
        ]
        answer = event(stream)
        assert answer["id"] == "same"
        assert "result" in answer


def test_a_plain_answer_is_json_and_an_error_has_a_status(caller: RawClient) -> None:
    answer = caller.modern(7, "tools/list")
    assert (answer.status, answer.headers.get_content_type()) == (200, "application/json")
    assert json.load(answer)["id"] == 7
    assert caller.modern(8, "no/such").status == 404
    assert caller.open(_request(9, "tools/list"), mcp_protocol_version=MODERN).status == 400
    assert (
        caller.open({**_request(9, "tools/list"), "params": []}, mcp_protocol_version=MODERN).status
        == 400
    )


def test_a_question_goes_to_the_call_in_flight_and_its_answer_to_the_session(
    client_of_asker: RawClient,
) -> None:
    session = client_of_asker.session()
    stream = client_of_asker.open(_request(1, "tools/call"), mcp_session_id=session)
    question = event(stream)
    assert question == {"jsonrpc": "2.0", "id": "q", "method": "roots/list"}
    answer = {"jsonrpc": "2.0", "id": "q", "result": {"roots": [1, 2]}}
    assert client_of_asker.open(answer, mcp_session_id=session).status == 202
    assert event(stream) == {"jsonrpc": "2.0", "id": 1, "result": {"roots": [1, 2]}}


def test_what_names_no_call_goes_to_the_newest(client_of_asker: RawClient) -> None:
    session = client_of_asker.session()
    streams = [
        client_of_asker.open(_request(id, "patience"), mcp_session_id=session) for id in (1, 2)
    ]
    first, second = (event(stream)["params"]["data"] for stream in streams)
    assert second == first + 1  # in the server's own count


def test_closing_a_stream_cancels_a_modern_call(client_of_asker: RawClient) -> None:
    stream = client_of_asker.modern("a", "patience")
    number = event(stream)["params"]["data"]
    client_of_asker.hang_up()
    cancelled: list[int] = []
    until = time.monotonic() + 30
    while (
        number not in cancelled and time.monotonic() < until
    ):  # the front learns of it in its own time
        cancelled = json.load(client_of_asker.modern("b", "seen"))["result"]["cancelled"]
    assert number in cancelled


def test_each_subscription_hears_what_carries_its_id(client_of_asker: RawClient) -> None:
    first, second = (client_of_asker.modern(id, "subscriptions/listen") for id in ("one", 2))
    for stream, id in ((first, "one"), (second, 2), (first, "one")):
        assert event(stream)["params"] == {"_meta": {SUBSCRIPTION: id}}


def test_a_session_can_be_ended(caller: RawClient) -> None:
    session = caller.session()
    ping = _request(1, "ping")
    assert json.load(caller.open(ping, mcp_session_id=session)) == {
        "jsonrpc": "2.0",
        "id": 1,
        "result": {},
    }
    assert caller.open(None, "DELETE", mcp_session_id=session).status == 204
    assert caller.open(ping, mcp_session_id=session).status == 404


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example.com"}, 403),
        ({"Origin": "http://evil.example.com"}, 403),
        ({"Accept": "application/json"}, 406),
        ({}, 400),
        ({"mcp_session_id": "guessed"}, 404),
    ],
)
def test_what_http_does_not_allow_reaches_no_server(
    caller: RawClient, headers: dict[str, str], status: int
) -> None:
    assert caller.open(_request(1, "ping"), **headers).status == status


def test_a_header_that_contradicts_the_body_is_refused(caller: RawClient) -> None:
    request = _request(1, "tools/list", _meta=META)
    for headers in ({}, {"mcp_protocol_version": "2025-11-25"}):
        answer = caller.open(request, **headers)
        assert (answer.status, json.load(answer)["error"]["code"]) == (400, -32020)


def test_a_server_that_ends_leaves_no_call_waiting(tmp_path: Path) -> None:
    with front(tmp_path / "log", sys.executable, "-c", "input()") as url, ExitStack() as stack:
        assert RawClient(url, stack).modern(1, "tools/list").status == 502
