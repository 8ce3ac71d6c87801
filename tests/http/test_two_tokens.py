"""A server file behind authorization, and two tokens that differ in one respect: what one caller
has is nowhere for the other.

tests/proxy/test_principals.py tries the same with two users of a Unix socket, who have no sessions,
events and stolen ids.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from http_service import (
    INITIALIZED,
    Answer,
    HttpService,
    modern,
    modern_headers,
    parse_events,
    post,
    request,
    serving,
)

KEEPER = Path(__file__).parent.parent / "proxy" / "keeping_server.py"
VERIFIER = """
from concertino.backend import Principal

def verify(token):
    subject, client, issuer = token.split("+")
    return Principal(subject, client, f"https://{issuer}.example")
"""
SECRET = "only-for-ada"
ADA = "ada+app+one"
# Of another client, another user, and another issuer's user and client of the same names.
OTHERS = ["ada+other-app+one", "bob+app+one", "ada+app+two"]
other = pytest.mark.parametrize("other", OTHERS)
CAPABILITIES = {"elicitation": {"form": {}}}
LISTS = ("tools/list", "prompts/list", "resources/list", "tasks/list", "events/list")


@pytest.fixture
def service(tmp_path: Path) -> Iterator[HttpService]:
    """A server file of its own for each test: what its server keeps is there for the next one."""
    verifier = tmp_path / "verifier.py"
    verifier.write_text(VERIFIER)
    servers = tmp_path / "mcp.json"
    keeper = {"command": sys.executable, "args": [str(KEEPER)]}
    servers.write_text(json.dumps({"mcpServers": {"keeper": keeper}}))
    auth = ("--auth", f"{verifier}:verify", "--public-url", "https://mcp.example/mcp")
    folders = {name: str(tmp_path) for name in ("XDG_CACHE_HOME", "XDG_STATE_HOME")}
    with serving(servers, "--trust", *auth, "--poll", "0.1/0.05", **folders) as running:
        yield running


def texts_of(answer: Answer) -> str:
    return answer.body.decode()


class Caller:
    """Sends requests with a token. Sessions of 2025-11-25; everything that came is in `got`."""

    def __init__(self, service: HttpService, token: str) -> None:
        self.service = service
        self.connection = service.connect()
        self.bearer = {"Authorization": f"Bearer {token}"}
        self.headers = self.bearer
        self.got = ""
        self._last_id = 0

    def begin_session(self) -> None:
        opened = self.send(
            "initialize",
            protocolVersion="2025-11-25",
            capabilities=CAPABILITIES,
            clientInfo={"name": "same for both", "version": "1"},
        )
        assert opened.status == 200, opened.body
        session = {"Mcp-Session-Id": opened.headers["Mcp-Session-Id"]}
        self.headers = {**self.bearer, **session, "MCP-Protocol-Version": "2025-11-25"}
        self.post(INITIALIZED)

    def post(self, message: Any, **headers: str) -> Answer:
        answer = post(self.connection, message, {**self.headers, **headers})
        self.got += texts_of(answer)
        return answer

    def begin(self, method: str, **params: Any) -> Answer:
        """Send a request of a session, and return what came within the time of --poll."""
        self._last_id += 1
        message = {"jsonrpc": "2.0", "id": self._last_id, "method": method, "params": params}
        return self.post(message)

    def send(self, method: str, **params: Any) -> Answer:
        """Send a request of a session, and return the answer with its response.

        On a slow machine the server ends the stream before the response. Then resume the stream.
        """
        answer = self.begin(method, **params)
        last = ""
        while is_unfinished(answer):
            last = answer.events[-1]["id"] if answer.events else last
            answer = Answer(self.listen(**{"Last-Event-ID": last}))
            self.got += texts_of(answer)
        return answer

    def call(self, name: str, text: str = "") -> Answer:
        return self.send("tools/call", **tool(name, text))

    def listen(self, **headers: str) -> Any:
        """Open the stream of a session, or the rest of another one."""
        wanted = {"Accept": "text/event-stream", **self.headers, **headers}
        return request(self.service.connect(), "GET", None, wanted)

    def send_modern(self, method: str, **params: Any) -> Answer:
        key = "io.modelcontextprotocol/clientCapabilities"
        message = modern(method, **params, _meta={key: CAPABILITIES})
        return self.post(message, **modern_headers(message))


def tool(name: str, text: str) -> dict[str, Any]:
    # The callers' progress tokens are alike, too.
    meta = {"progressToken": 7}
    return {"name": f"keeper_{name}", "arguments": {"text": text}, "_meta": meta}


def is_unfinished(answer: Answer) -> bool:
    """Return whether an answer is a stream that has ended before the response."""
    is_stream = answer.headers["Content-Type"] == "text/event-stream"
    return is_stream and all("method" in message for message in answer.messages)


def result_of(answer: Answer) -> Any:
    message = answer.messages[-1] if answer.body.startswith(b"id") else answer.json
    return message["result"]


def pid_of(answer: Answer) -> list[Any]:
    """Return the process id of a caller's server, and what it keeps."""
    messages = [answer.json] if answer.body.startswith(b"{") else answer.messages
    [content] = messages[-1]["result"]["content"]
    return json.loads(content["text"])


def two_sessions(service: HttpService, other: str) -> tuple[Caller, Caller]:
    callers = Caller(service, ADA), Caller(service, other)
    for caller in callers:
        caller.begin_session()
    return callers


@other
def test_what_one_caller_tells_a_server_is_nowhere_for_the_other(
    service: HttpService, other: str
) -> None:
    ada, thief = two_sessions(service, other)
    thief.send("resources/subscribe", uri="kept:all")
    thief.send("logging/setLevel", level="debug")
    stream = thief.listen()
    pid, kept = pid_of(thief.call("pid"))
    assert kept == []
    for method in LISTS:
        ada.send(method)

    adas_pid, kept = pid_of(ada.call("keep", SECRET))
    assert kept == [SECRET]
    assert adas_pid != pid
    for method in LISTS:
        ada.send(method)
    assert ada.got.count(SECRET) > len(LISTS)

    for method in LISTS:
        thief.send(method)
    thief.send("resources/read", uri="kept:all")
    for method in ("tasks/get", "tasks/result", "tasks/cancel"):
        assert "no such task" in texts_of(thief.send(method, taskId=f"task-{SECRET}"[:9]))
    assert pid_of(thief.call("pid")) == [pid, []]
    # The end of the session ends its stream.
    request(thief.connection, "DELETE", headers=thief.headers).read()
    thief.got += stream.read().decode()
    assert SECRET not in thief.got


@other
def test_the_session_and_the_events_of_one_caller_are_no_use_to_the_other(
    service: HttpService, other: str
) -> None:
    ada, thief = two_sessions(service, other)
    pid, _ = pid_of(ada.call("pid"))
    waiting = ada.begin("tools/call", **tool("wait", SECRET))
    last = parse_events(waiting.body)[-1]["id"]
    session = ada.headers["Mcp-Session-Id"]

    # With the session's id and a token of one's own.
    stolen = {**thief.headers, "Mcp-Session-Id": session}
    for message in (
        {"jsonrpc": "2.0", "id": 9, "method": "tools/list"},
        {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 3}},
        {"jsonrpc": "2.0", "id": "question", "result": {"action": "accept"}},
    ):
        assert post(thief.connection, message, stolen).status == 404
    assert thief.listen(**{"Mcp-Session-Id": session}).status == 404
    assert thief.listen(**{"Mcp-Session-Id": session, "Last-Event-ID": last}).status == 404
    assert request(thief.connection, "DELETE", headers=stolen).status == 404

    # With the event's id in a session of one's own, where the same id means nothing or another one.
    thief.connection = service.connect()
    rest = thief.listen(**{"Last-Event-ID": last})
    if rest.status == 200:
        request(thief.connection, "DELETE", headers=thief.headers).read()
    assert SECRET not in rest.read().decode()
    # Ada's session, and her call, go on.
    assert pid_of(ada.call("pid"))[0] == pid
    rest = Answer(ada.listen(**{"Last-Event-ID": last}))
    assert [event.get("retry") for event in rest.events][-1:] == ["50"]


@other
def test_a_question_and_its_state_are_of_no_use_to_the_other(
    service: HttpService, other: str
) -> None:
    ada, thief = Caller(service, ADA), Caller(service, other)
    thief.send_modern("tools/call", name="keeper_pid", arguments={})
    arguments = {"name": "keeper_ask", "arguments": {"text": SECRET}}
    asked = result_of(ada.send_modern("tools/call", **arguments))
    assert asked["resultType"] == "input_required"
    answers = {key: {"action": "decline"} for key in asked["inputRequests"]}
    again = {**arguments, "inputResponses": answers, "requestState": asked["requestState"]}
    assert "-32602" in texts_of(thief.send_modern("tools/call", **again))
    [content] = result_of(ada.send_modern("tools/call", **again))["content"]
    assert json.loads(content["text"])["result"] == {"action": "decline"}


@other
def test_2026_07_28_calls_of_two_tokens_reach_two_servers(service: HttpService, other: str) -> None:
    ada, thief = Caller(service, ADA), Caller(service, other)
    pid, _ = pid_of(thief.send_modern("tools/call", name="keeper_pid", arguments={}))
    adas_pid, _ = pid_of(
        ada.send_modern("tools/call", name="keeper_keep", arguments={"text": SECRET})
    )
    assert adas_pid != pid
    for method in LISTS[:3]:
        ada.send_modern(method)
        thief.send_modern(method)
    thief.send_modern("resources/read", uri="kept:all")
    assert pid_of(thief.send_modern("tools/call", name="keeper_pid", arguments={})) == [pid, []]
    assert SECRET in ada.got
    assert SECRET not in thief.got
