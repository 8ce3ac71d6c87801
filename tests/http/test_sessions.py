"""Sessions of the revisions before 2026-07-28 over HTTP: a real server, raw requests. Rows of
../shared/spec/HTTP.md in parentheses.
"""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from http_service import (
    INITIALIZE,
    MODERN,
    WAIT_S,
    Answer,
    HttpService,
    Session,
    call,
    parse_events,
    post,
    read_event,
    request,
    serving,
    text_of,
)

SERVER = Path(__file__).with_name("server_for_http.py")
LEGACY = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"]


@pytest.fixture(scope="module", params=[(), ("--workers", "2")], ids=["alone", "workers"])
def options(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """How the server is started: requests reach the process with the session, or another worker."""
    words: tuple[str, ...] = request.param
    return words


@pytest.fixture(scope="module")
def service(options: tuple[str, ...]) -> Iterator[HttpService]:
    with serving(SERVER, *options) as running:
        if options:
            running.read_stderr_until("2 workers serve")
        yield running


@pytest.mark.parametrize("revision", LEGACY)
def test_a_session_from_initialize_to_delete(service: HttpService, revision: str) -> None:
    session = Session(service, revision)
    id = session.headers["Mcp-Session-Id"]
    assert re.fullmatch(r"[!-~]{32,}", id)  # HL-41
    assert session.opened.json["result"]["protocolVersion"] == revision

    assert text_of(session.call(1, "add", a=1, b=2).json) == "3"
    ended = Answer(request(session.connection, "DELETE", None, session.headers))
    again = session.call(2, "add", a=1, b=2)

    assert (ended.status, again.status) == (204, 404)  # HL-44


def test_a_call_with_progress_is_a_stream_whose_events_have_ids(service: HttpService) -> None:
    answer = Session(service).call(1, "count", {"progressToken": "t"})

    primer, *events = answer.events
    assert (primer["id"] != "", primer["data"]) == (True, "")  # HL-7, SSE-3
    ids = [event["id"] for event in answer.events]
    assert len(set(ids)) == len(ids)  # HL-30
    *progress, last = [json.loads(event["data"]) for event in events]
    assert {item["method"] for item in progress} == {"notifications/progress"}
    assert text_of(last) == "counted"


@pytest.mark.parametrize("revision", LEGACY[:-1])
def test_an_older_client_gets_no_event_without_a_message(
    service: HttpService, revision: str
) -> None:
    answer = Session(service, revision).call(1, "count", {"progressToken": "t"})

    assert all(event["data"] for event in answer.events)


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (call(1, "add", a=1, b=2), {"Mcp-Session-Id": ""}, 400),  # HL-43
        (call(1, "add", a=1, b=2), {"Mcp-Session-Id": "none"}, 404),
        (call(1, "add", a=1, b=2), {"MCP-Protocol-Version": "1999-01-01"}, 400),  # HL-52
        ([call(1, "add", a=1, b=2)], {}, 400),
        ([], {}, 400),
        ({"jsonrpc": "2.0", "id": 1}, {}, 400),
        ({"jsonrpc": "1.0", "id": 1, "method": "ping"}, {}, 400),
        ({"jsonrpc": "2.0", "id": True, "method": "ping"}, {}, 400),
        ({"jsonrpc": "2.0", "id": 1, "method": "ping", "params": []}, {}, 200),
    ],
)
def test_what_a_session_refuses(
    service: HttpService, body: Any, headers: dict[str, str], status: int
) -> None:
    session = Session(service)

    assert session.post(body, **headers).status == status
    assert text_of(session.call(9, "add", a=1, b=2).json) == "3"


def test_a_header_of_another_revision_does_not_matter(service: HttpService) -> None:
    """Trap 19: the negotiated revision counts, as long as the header names one that exists."""
    session = Session(service, "2025-06-18")

    assert session.call(1, "add", a=1, b=2).status == 200
    answer = session.post(call(2, "add", a=1, b=2), **{"MCP-Protocol-Version": "2025-03-26"})
    assert text_of(answer.json) == "3"


@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_get_and_delete_of_an_unknown_revision_are_refused(
    service: HttpService, method: str
) -> None:
    headers = {**Session(service).headers, "Accept": "text/event-stream"}  # HL-52
    answer = Answer(
        request(service.connect(), method, None, {**headers, "MCP-Protocol-Version": "1999-01-01"})
    )
    assert (answer.status, answer.json["error"]["code"]) == (400, -32022)

    answer = Answer(
        request(service.connect(), method, None, {**headers, "MCP-Protocol-Version": MODERN})
    )
    assert (answer.status, answer.headers["Allow"]) == (405, "POST")
    assert "2026-07-28 has no sessions" in answer.json["error"]["message"]


@pytest.mark.parametrize(
    ("message", "status"),
    [
        ({"jsonrpc": "2.0", "id": 1, "method": "initialize"}, 200),
        ({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": []}, 200),
        ({"jsonrpc": "2.0", "method": "initialize"}, 400),
    ],
)
def test_a_refused_initialize_opens_no_session(
    service: HttpService, message: dict[str, Any], status: int
) -> None:
    answer = post(service.connect(), message)
    assert answer.status == status
    assert "error" in answer.json
    assert answer.headers["Mcp-Session-Id"] is None  # HL-40


def test_initialize_may_carry_any_version_header(service: HttpService) -> None:
    """HL-54, trap 8."""
    answer = post(service.connect(), INITIALIZE, {"MCP-Protocol-Version": "2025-11-25"})

    assert answer.status == 200


def test_a_batch_of_2025_03_26_is_answered_with_one_array(service: HttpService) -> None:
    session = Session(service, "2025-03-26")
    notification = {"jsonrpc": "2.0", "method": "notifications/none"}

    answer = session.post([call(1, "add", a=1, b=2), notification, call(2, "add", a=3, b=4)])
    empty = session.post([notification])

    results = {item["id"]: text_of(item) for item in answer.json}
    assert results == {1: "3", 2: "7"}
    assert (empty.status, empty.body) == (202, b"")


def test_a_request_of_a_batch_that_is_nested_too_deeply_is_refused_on_its_id(
    service: HttpService,
) -> None:
    session = Session(service, "2025-03-26")
    deep = {"jsonrpc": "2.0", "id": 8, "method": "ping", "params": {"a": "DEEP"}}
    response = {"jsonrpc": "2.0", "id": 9, "result": {"a": "DEEP"}}
    body = json.dumps([call(7, "add", a=1, b=2), deep, response])

    answer = session.post(body.replace('"DEEP"', "[" * 200_000 + "]" * 200_000).encode())

    answers = {item["id"]: item for item in answer.json}
    assert answers.keys() == {7, 8}
    assert text_of(answers[7]) == "3"
    assert answers[8]["error"]["code"] == -32700


def test_a_batch_with_a_deep_message_whose_id_is_malformed_is_refused(
    service: HttpService,
) -> None:
    session = Session(service, "2025-03-26")
    deep = '{"jsonrpc":"2.0","method":"ping","params":%s,"id":007}' % (
        "[" * 200_000 + "]" * 200_000
    )

    answer = session.post(f"[{json.dumps(call(7, 'add', a=1, b=2))},{deep}]".encode())

    assert answer.status == 400
    assert answer.json["error"]["code"] in (-32600, -32700)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (1025, "Invalid Request: expected a batch of 1 to 1024 messages, got 1025"),
        (0, "expected messages, got an empty array"),
    ],
)
def test_a_batch_has_a_limited_number_of_messages(
    service: HttpService, count: int, text: str
) -> None:
    session = Session(service, "2025-03-26")
    refused = session.post([call(1, "add", a=1, b=2)] * count)
    assert (refused.status, refused.json["error"]["message"]) == (400, text)


def test_a_batch_whose_ids_are_all_malformed_is_refused(service: HttpService) -> None:
    session = Session(service, "2025-03-26")
    refused = session.post([{"jsonrpc": "2.0", "id": None, "method": "ping"}])
    assert (refused.status, refused.json["error"]["code"]) == (400, -32600)


def test_a_batch_with_progress_is_one_stream(service: HttpService) -> None:
    session = Session(service, "2025-03-26")

    answer = session.post([call(1, "count", {"progressToken": "a"}), call(2, "add", a=3, b=4)])

    assert answer.headers["Content-Type"] == "text/event-stream"
    last = answer.messages[-1]
    assert {item["id"] for item in last} == {1, 2}


def test_a_request_id_that_is_in_use_is_refused(service: HttpService) -> None:
    with serving(SERVER) as own:
        session = Session(own)
        stream = request(own.connect(), "POST", call(1, "wait", {"progressToken": 1}),
                         session.headers)  # fmt: skip
        assert read_event(stream)["data"] == ""

        again = session.call(1, "add", a=1, b=2)
        session.call(2, "release")

        assert again.status == 400
        assert text_of(json.loads(parse_events(stream.read())[-1]["data"])) == "released"


def test_a_question_comes_on_the_stream_of_its_call_and_its_answer_is_posted(
    service: HttpService,
) -> None:
    session = Session(service)
    stream = request(service.connect(), "POST", call(1, "ask"), session.headers)
    assert read_event(stream)["data"] == ""
    question = json.loads(read_event(stream)["data"])
    assert question["method"] == "elicitation/create"

    result = {"action": "accept", "content": {"name": "Ada"}}
    accepted = session.post({"jsonrpc": "2.0", "id": question["id"], "result": result})

    assert (accepted.status, accepted.body) == (202, b"")
    assert text_of(json.loads(read_event(stream)["data"])) == "hello Ada"


@pytest.mark.parametrize(
    ("rest", "problem"),
    [
        ('"result":{"action":"accept"', "Input data was truncated"),
        ('"result":{"action":"\\ud83d"}}', "a string holds half a surrogate pair"),
        ('"result":{},"error":{"code":1,"message":""}}', "a result and an error"),
        ('"result":{},"params":[]}', "params: expected none"),
        ('"result":' + "[" * 9_999 + "]" * 9_999 + "}", "nested too deeply"),
    ],
)
def test_a_malformed_answer_to_a_question_is_refused_and_ends_the_question(
    service: HttpService, rest: str, problem: str
) -> None:
    session = Session(service)
    stream = request(service.connect(), "POST", call(1, "ask"), session.headers)
    assert read_event(stream)["data"] == ""
    id = json.loads(read_event(stream)["data"])["id"]

    refused = session.post(f'{{"jsonrpc":"2.0","id":{id},{rest}'.encode())

    assert refused.status == 400
    assert problem in refused.json["error"]["message"]
    assert "id" not in refused.json
    answer = json.loads(read_event(stream)["data"])
    assert answer["id"] == 1
    assert f"the answer is malformed: {problem}" in text_of(answer)


PADDING = "x" * 11_000_000


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize(
    "text",
    [
        '{"jsonrpc":"2.0","id":ID,"result":{"action":"accept","content":{"name":"PADDING"}}}',
        # The order of the TypeScript SDK.
        '{"result":{"action":"accept","content":{"name":"PADDING"}},"jsonrpc":"2.0","id":ID}',
    ],
)
def test_an_answer_over_the_size_limit_is_refused_and_ends_its_question(
    service: HttpService, text: str, chunked: bool
) -> None:
    session = Session(service)
    stream = request(service.connect(), "POST", call(1, "ask"), session.headers)
    assert read_event(stream)["data"] == ""
    id = json.loads(read_event(stream)["data"])["id"]
    body = text.replace("ID", str(id)).replace("PADDING", PADDING).encode()
    headers = {**session.headers, "Content-Type": "application/json"}

    connection = service.connect()
    pieces = [body[at : at + 2**20] for at in range(0, len(body), 2**20)]
    try:
        connection.request("POST", "/mcp", pieces if chunked else body, headers)
    except ConnectionError:
        # The server has closed the connection before it has read the whole body.
        pass
    else:
        assert connection.getresponse().status == 413

    answer = json.loads(read_event(stream)["data"])
    assert answer["id"] == 1
    assert "the answer is larger than 10485760 bytes (limit)" in text_of(answer)


def test_a_malformed_answer_of_another_session_is_not_found(service: HttpService) -> None:
    session = Session(service)
    refused = session.post(b'{"jsonrpc":"2.0","id":1,"result":', **{"Mcp-Session-Id": "unknown"})
    assert refused.status == 404


def test_a_question_can_be_answered_after_a_body_without_an_id(service: HttpService) -> None:
    session = Session(service)
    stream = request(service.connect(), "POST", call(1, "ask"), session.headers)
    assert read_event(stream)["data"] == ""
    id = json.loads(read_event(stream)["data"])["id"]

    refused = session.post(b'{"jsonrpc":"2.0","result":{}')
    session.post({"jsonrpc": "2.0", "id": id, "result": {"action": "decline"}})

    assert refused.status == 400
    assert text_of(json.loads(read_event(stream)["data"])) == "declined"


def test_changes_come_on_the_stream_of_get_and_on_no_other() -> None:
    """HL-20, HL-26, trap 20."""
    with serving(SERVER) as own:
        session, other = Session(own), Session(own)
        stream = session.get()
        assert stream.headers["Content-Type"] == "text/event-stream"

        grown = session.call(1, "grow")

        assert grown.headers["Content-Type"] == "application/json"
        assert json.loads(read_event(stream)["data"])["method"] == (
            "notifications/tools/list_changed"
        )
        # The other session had no stream open. It gets its copy when it opens one.
        late = read_event(other.get())
        assert json.loads(late["data"])["method"] == "notifications/tools/list_changed"


def test_a_new_stream_of_get_replaces_the_old_one(service: HttpService) -> None:
    session = Session(service)
    first = session.get()
    session.get()

    assert first.read() == b""


def test_a_client_that_leaves_does_not_cancel_its_call_and_can_get_its_result(
    options: tuple[str, ...],
) -> None:
    """HL-12, HL-32, HL-33."""
    with serving(SERVER, *options) as own:
        session = Session(own)
        connection = own.connect()
        stream = request(connection, "POST", call(1, "wait", {"progressToken": 1}), session.headers)
        primer = read_event(stream)
        progress = read_event(stream)
        assert json.loads(progress["data"])["method"] == "notifications/progress"
        stream.close()
        connection.close()

        session.call(2, "release")
        late = session.get(**{"Last-Event-ID": progress["id"]})
        from_begin = session.get(**{"Last-Event-ID": primer["id"]})

        (event,) = parse_events(late.read())
        assert text_of(json.loads(event["data"])) == "released"
        assert [item["id"] for item in parse_events(from_begin.read())] == [
            progress["id"],
            event["id"],
        ]


def test_a_subscription_ends_with_its_connection_and_evicts_no_responses(
    options: tuple[str, ...],
) -> None:
    with serving(SERVER, *options) as own:
        session = Session(own)
        call_connection, connection = own.connect(), own.connect()
        waiting = call(1, "wait", {"progressToken": 1})
        stream = request(call_connection, "POST", waiting, session.headers)
        primer = read_event(stream)
        read_event(stream)
        stream.close()
        call_connection.close()
        session.call(2, "release")

        # More notifications than a session keeps for clients that come back.
        news = request(connection, "POST", call(3, "watch", count=1100), session.headers)
        begin = read_event(news)
        for _ in range(1100):
            read_event(news)
        late = Answer(session.get(**{"Last-Event-ID": primer["id"]}))
        assert text_of(late.messages[-1]) == "released"

        news.close()
        connection.close()
        own.read_stderr_until("watch has ended")
        (error,) = Answer(session.get(**{"Last-Event-ID": begin["id"]})).messages
        text = "the connection was lost, which ends a subscription; subscribe again"
        assert error == {"jsonrpc": "2.0", "id": 3, "error": {"code": -32603, "message": text}}
        # The id can be used again.
        assert text_of(session.call(3, "add", a=1, b=2).json) == "3"


def test_a_subscription_that_is_resumed_while_its_connection_seems_open_ends(
    service: HttpService,
) -> None:
    session = Session(service)
    news = request(service.connect(), "POST", call(1, "watch", count=1), session.headers)
    first = read_event(news)
    answer = Answer(session.get(**{"Last-Event-ID": first["id"]}))
    assert [message["id"] for message in answer.messages] == [1]
    service.read_stderr_until("watch has ended")


@pytest.mark.parametrize("last", ["99-1", "x", "-1", "1-", "1" * 50 + "-1"])
def test_an_unknown_event_id_is_refused(service: HttpService, last: str) -> None:
    assert Session(service).get(**{"Last-Event-ID": last}).status == 400


def test_an_event_of_another_session_is_not_sent(service: HttpService) -> None:
    """HL-34, HL-35: the same id means another event, or none, in another session."""
    first = Session(service)
    ids = [event["id"] for event in first.call(1, "count", {"progressToken": "t"}).events]

    other = Session(service).get(**{"Last-Event-ID": ids[0]})

    assert other.status == 400 or other.read() == b""


def test_a_cancelled_call_ends_its_stream(options: tuple[str, ...]) -> None:
    with serving(SERVER, *options) as own:
        session = Session(own)
        stream = request(own.connect(), "POST", call(1, "wait", {"progressToken": 1}),
                         session.headers)  # fmt: skip
        read_event(stream)
        read_event(stream)

        params = {"requestId": 1, "reason": "enough"}
        session.post({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})

        assert stream.read() == b""
        own.read_stderr_until("wait was cancelled")


def test_the_end_of_a_session_cancels_its_calls_and_closes_its_streams(
    options: tuple[str, ...],
) -> None:
    with serving(SERVER, *options) as own:
        session = Session(own)
        stream = session.get()
        waiting = request(own.connect(), "POST", call(1, "wait", {"progressToken": 1}),
                          session.headers)  # fmt: skip
        read_event(waiting)
        read_event(waiting)

        request(session.connection, "DELETE", None, session.headers).read()

        own.read_stderr_until("wait was cancelled")
        assert (stream.read(), waiting.read()) == (b"", b"")


def test_a_get_must_accept_events_and_name_a_session(service: HttpService) -> None:
    session = Session(service)

    assert session.get(Accept="application/json").status == 406
    assert session.get(**{"Mcp-Session-Id": ""}).status == 405
    assert session.get(**{"Mcp-Session-Id": "none"}).status == 404
    assert session.get(**{"MCP-Protocol-Version": MODERN}).status == 405


def test_results_of_many_calls_at_once_arrive_exactly_once(service: HttpService) -> None:
    session = Session(service)
    responses = [
        request(service.connect(), "POST", call(id, "large", size=300_000), session.headers)
        for id in range(1, 21)
    ]

    answers = [Answer(response).json for response in responses]

    assert [answer["id"] for answer in answers] == list(range(1, 21))
    assert {len(text_of(answer)) for answer in answers} == {300_000}


def test_http_1_0_gets_a_stream_that_ends_with_the_connection(service: HttpService) -> None:
    session = Session(service)
    body = json.dumps(call(1, "count", {"progressToken": "t"})).encode()
    lines = [f"{name}: {value}" for name, value in session.headers.items()]
    with socket.create_connection(service.address, WAIT_S) as client:
        client.sendall(
            "\r\n".join(
                ["POST /mcp HTTP/1.0", "Host: localhost", "Content-Type: application/json", *lines,
                 f"Content-Length: {len(body)}", "", ""]
            ).encode() + body
        )  # fmt: skip
        received = b""
        while data := client.recv(65536):
            received += data

    head, _, stream = received.partition(b"\r\n\r\n")
    assert b"chunked" not in head
    assert text_of(json.loads(parse_events(stream)[-1]["data"])) == "counted"


def test_a_client_that_accepts_json_only_is_asked_nothing(service: HttpService) -> None:
    """SSE-9: the call gets an error for its question, and the client a JSON body."""
    answer = Session(service).post(call(1, "ask"), Accept="application/json")

    assert (answer.status, answer.headers["Content-Type"]) == (200, "application/json")
    assert answer.json["result"]["isError"] is True
    assert "does not accept text/event-stream" in text_of(answer.json)


def test_a_client_that_accepts_json_only_gets_no_notifications(service: HttpService) -> None:
    progress = {"progressToken": "t"}
    answer = Session(service).post(call(1, "count", progress), Accept="application/json")

    assert (answer.status, text_of(answer.json)) == (200, "counted")


def test_a_cancelled_call_of_a_client_that_accepts_json_only_ends_without_a_body(
    options: tuple[str, ...],
) -> None:
    with serving(SERVER, *options) as own:
        session = Session(own)
        waiting = own.connect()
        headers = {
            "Content-Type": "application/json",
            "Accept": "application/json",
            **session.headers,
        }
        waiting.request("POST", "/mcp", json.dumps(call(1, "wait")).encode(), headers)
        own.read_stderr_until("waiting")

        cancelled = {"jsonrpc": "2.0", "method": "notifications/cancelled",
                     "params": {"requestId": 1}}  # fmt: skip
        assert session.post(cancelled).status == 202

        ended = Answer(waiting.getresponse())
        assert (ended.status, ended.body) == (204, b"")


def test_the_ids_of_sessions_are_not_logged() -> None:
    with serving(SERVER, "--http-sse", LOG_LEVEL="debug", CONCERTINO_TRACE="1") as own:
        session = Session(own)
        id = session.headers["Mcp-Session-Id"]
        session.call(1, "add", a=1, b=2)
        session.post(b"{", **{"Mcp-Protocol-Version": "2025-11-25"})
        session.call(2, "no such tool")
        request(own.connect(), "DELETE", None, session.headers).read()
        assert session.call(3, "add", a=1, b=2).status == 404
        stream = request(own.connect(), "GET", None, {"Accept": "text/event-stream"}, "/sse")
        other = read_event(stream)["data"].partition("session_id=")[2]
        Answer(request(own.connect(), "POST", b"{", {}, f"/messages?session_id={other}"))

        log = own.end()

    assert len(id) == len(other) == 32
    assert "tools/call" in log
    assert id not in log
    assert other not in log
