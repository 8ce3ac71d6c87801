"""Clients that come back for the rest of a response (2025-11-25). Rows HL-7 to HL-10."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from http_service import (
    Answer,
    HttpService,
    Session,
    call,
    parse_events,
    read_event,
    request,
    serving,
    text_of,
)
from loops import on_a_loop

from concertino import Client

SERVER = Path(__file__).with_name("server_for_http.py")


@pytest.fixture(scope="module")
def service() -> Iterator[HttpService]:
    with serving(SERVER, "--poll", "0.1/0.05") as running:
        yield running


def test_a_client_comes_back_until_the_answer_is_there(service: HttpService) -> None:
    session = Session(service)

    first = session.call(1, "wait", {"progressToken": "t"})

    assert first.status == 200
    assert first.headers["Content-Type"] == "text/event-stream"
    priming, progress, last = first.events
    assert (priming["id"], priming["data"]) == ("2-0", "")
    assert '"notifications/progress"' in progress["data"]
    assert (last["id"], last["retry"], last["data"]) == (progress["id"], "50", "")

    # Nothing has happened meanwhile.
    again = Answer(session.get(**{"Last-Event-ID": last["id"]}))
    assert [event.get("retry") for event in again.events] == ["50"]

    assert text_of(session.call(2, "release").json) == "ok"
    answer = Answer(session.get(**{"Last-Event-ID": again.events[-1]["id"]}))
    assert [text_of(message) for message in answer.messages] == ["released"]


def test_a_quick_call_is_answered_with_json(service: HttpService) -> None:
    answer = Session(service).call(1, "add", a=1, b=2)

    assert answer.headers["Content-Type"] == "application/json"
    assert answer.json["result"]["structuredContent"] == {"result": 3}


@pytest.mark.parametrize(
    ("revision", "accept"),
    [("2025-06-18", "application/json, text/event-stream"), ("2025-11-25", "application/json")],
)
def test_other_clients_wait(service: HttpService, revision: str, accept: str) -> None:
    """Those of older revisions, and those that accept no stream."""
    session = Session(service, revision)
    waiting = service.connect()
    waiting.putrequest("POST", "/mcp")
    body = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"wait","arguments":{}}}'
    headers = {
        "Content-Type": "application/json",
        "Accept": accept,
        "Content-Length": str(len(body)),
        **session.headers,
    }
    for name, value in headers.items():
        waiting.putheader(name, value)
    waiting.endheaders(body)
    service.read_stderr_until("waiting")
    for _ in range(4):
        # Each of these takes as long as a client may wait.
        other = Session(service)
        assert other.call(2, "wait").events[-1]["retry"] == "50"
        assert other.post(
            {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 2}}
        ).status == 202  # fmt: skip

    assert Session(service).post(call(3, "release")).status == 200

    response = waiting.getresponse()
    answer = response.read()
    assert b"released" in answer
    if accept == "application/json":
        assert response.headers["Content-Type"] == "application/json"
    else:
        assert all("retry" not in event for event in parse_events(answer))


def test_a_resumed_stream_of_an_older_revision_stays_open(service: HttpService) -> None:
    session = Session(service, "2025-06-18")
    lost = request(
        session.connection, "POST", call(1, "wait", {"progressToken": "t"}), session.headers
    )
    progress = read_event(lost)
    session.connection.close()
    resumed = session.get(**{"Last-Event-ID": progress["id"]})
    # This takes as long as a client of 2025-11-25 may wait.
    assert Session(service).call(2, "wait").events[-1]["retry"] == "50"

    assert Session(service).post(call(3, "release")).status == 200

    (answer,) = Answer(resumed).messages
    assert text_of(answer) == "released"


@on_a_loop
async def test_our_client_waits_for_the_answer(service: HttpService) -> None:
    async with Client(service.url, era="legacy") as client, Client(service.url) as other:
        waiting = asyncio.create_task(client.call_tool("wait", into=str))
        await asyncio.to_thread(service.read_stderr_until, "waiting")
        for id in range(2):
            # Each of these takes as long as our client waits before it comes back.
            await asyncio.to_thread(Session(service).call, id, "wait")
        await other.call_tool("release")

        assert await waiting == "released"


@pytest.mark.parametrize("text", ["0", "-1", "x", "5/0", "nan"])
def test_a_wrong_time_is_refused(text: str) -> None:
    from concertino.cli import main

    with pytest.raises(SystemExit) as exit:
        main(["serve", str(SERVER), "--http", "127.0.0.1:0", f"--poll={text}"])

    assert exit.value.code == 2
