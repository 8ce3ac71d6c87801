"""wire.py bites: each rule is broken once. Sound lines are what every other test feeds it."""

from __future__ import annotations

import json
from typing import Any

import pytest
import wire
from wire import Conversation, Violation

A, B, C, D, E = wire.REVISIONS
META = {
    "io.modelcontextprotocol/protocolVersion": E,
    "io.modelcontextprotocol/clientCapabilities": {},
    "progressToken": "t",
}
MODERN_CALL = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "tools/call",
    "params": {"name": "x", "_meta": META},
}


@pytest.fixture(autouse=True, params=wire.ORACLES)
def oracle(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each oracle alone finds out what breaks a rule."""
    monkeypatch.setattr(wire, "ORACLES", (request.param,))


def conversation(version: str) -> Conversation:
    """After a handshake, with a call of id 1 and a list of id 2 under way."""
    found = Conversation()
    if version == E:
        found.on_sent(json.dumps(MODERN_CALL).encode())
        found.on_sent(json.dumps({**MODERN_CALL, "id": 2, "method": "tools/list"}).encode())
        return found
    opening = {
        "protocolVersion": version,
        "capabilities": {},
        "clientInfo": {"name": "c", "version": "1"},
    }
    found.on_sent(
        json.dumps({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": opening}).encode()
    )
    answer = {
        "protocolVersion": version,
        "capabilities": {},
        "serverInfo": {"name": "s", "version": "1"},
    }
    found.on_received(json.dumps({"jsonrpc": "2.0", "id": 0, "result": answer}).encode())
    found.on_sent(b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x"}}')
    found.on_sent(b'{"jsonrpc":"2.0","id":2,"method":"tools/list"}')
    return found


def result(id: object, **members: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": id, "result": members}).encode()


@pytest.mark.parametrize(
    "line",
    [
        b"{",
        b"\xff",
        b"",
        b'{"jsonrpc":"2.0","id":1,\n"result":{"content":[]}}',
        b'{"jsonrpc":"2.0","id":1,"result":{"content":[],"x":NaN}}',
        b'{"jsonrpc":"2.0","id":1,"id":1,"result":{"content":[]}}',
        b'{"jsonrpc":"2.0","id":1,"result":{}}',
        b'{"jsonrpc":"2.0","id":1,"result":{"content":[]},"error":{}}',
        b'{"jsonrpc":"2.0","id":1,"result":{"content":[]},"more":1}',
        b'{"jsonrpc":"2.0","id":"1","result":{"content":[]}}',
        b'{"jsonrpc":"2.0","id":2,"result":{"content":[]}}',
        b'{"jsonrpc":"2.0","id":3,"result":{}}',
        b'{"jsonrpc":"2.0","id":1,"error":{"code":"x","message":"x"}}',
        b'{"jsonrpc":"2.0","id":1,"error":{"code":1}}',
        b'{"jsonrpc":"2.0","id":9,"error":{"code":1,"message":""}}',
        b'{"jsonrpc":"2.0","id":1,"error":{"code":-32050,"message":""}}',
        b'{"jsonrpc":"2.0","id":1,"error":{"code":-32022,"message":""}}',
        b'{"jsonrpc":"2.0","method":"notifications/nope"}',
        b'{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"other","progress":1}}',
        b'{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"loud","data":1}}',
        b'{"jsonrpc":"2.0","id":7,"method":"ping"}',
        b'{"id":1,"result":{"content":[]}}',
        b"5",
    ],
)
@pytest.mark.parametrize("version", [A, D, E])
def test_a_line_that_must_not_be_sent_is_a_violation(line: bytes, version: str):
    found = conversation(version)
    with pytest.raises(Violation):
        found.on_received(line)


AUDIO = {"type": "audio", "data": "AA==", "mimeType": "audio/wav"}
LINK = {"type": "resource_link", "uri": "file:///a", "name": "a"}
DONE = {"resultType": "complete"}


@pytest.mark.parametrize(
    ("version", "members"),
    [
        (A, {"content": [AUDIO]}),
        (B, {"content": [LINK]}),
        (C, {"content": [], "structuredContent": 5}),
        (D, {"content": [], "structuredContent": None}),
        (D, {"content": [{"type": "image", "data": "no base64!", "mimeType": "a/b"}]}),
        (D, {"content": [{**LINK, "uri": "no uri"}]}),
        (E, {"content": []}),
        (E, {**DONE, "content": [{"type": "text"}]}),
    ],
)
def test_a_tool_result_of_another_revision_is_a_violation(version: str, members: dict[str, Any]):
    with pytest.raises(Violation):
        conversation(version).on_received(result(1, **members))


def test_sound_results_are_not():
    conversation(B).on_received(result(1, content=[AUDIO]))
    conversation(C).on_received(result(1, content=[LINK], structuredContent={}))
    conversation(E).on_received(result(1, **DONE, content=[LINK], structuredContent=None))


def test_a_list_without_its_hints_is_a_violation_in_2026_07_28():
    conversation(E).on_received(result(2, **DONE, tools=[], ttlMs=0, cacheScope="private"))
    with pytest.raises(Violation, match="cacheScope"):
        conversation(E).on_received(result(2, **DONE, tools=[], ttlMs=0))


def test_a_second_answer_and_one_after_a_cancel_are_violations():
    found = conversation(D)
    found.on_received(result(1, content=[]))
    with pytest.raises(Violation, match="nobody asked"):
        found.on_received(result(1, content=[]))
    found.on_sent(b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":2}}')
    with pytest.raises(Violation, match="nobody asked"):
        found.on_received(result(2, tools=[]))


@pytest.mark.parametrize(("version", "null", "absent"), [(A, True, False), (D, False, True)])
def test_an_unknown_id_is_written_as_the_revision_wants(version: str, null: bool, absent: bool):
    for line, allowed in (
        (b'{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":""}}', null),
        (b'{"jsonrpc":"2.0","error":{"code":-32700,"message":""}}', absent),
    ):
        found = conversation(version)
        if allowed:
            found.on_received(line)
        else:
            with pytest.raises(Violation):
                found.on_received(line)


def test_arrays_belong_to_2025_03_26():
    line = b'[{"jsonrpc":"2.0","id":1,"result":{"content":[]}}]'
    conversation(B).on_received(line)
    with pytest.raises(Violation, match="array"):
        conversation(C).on_received(line)


def test_initialize_is_never_answered_with_the_modern_revision():
    found = Conversation()
    found.on_sent(b'{"jsonrpc":"2.0","id":0,"method":"initialize"}')
    with pytest.raises(Violation, match="initialize was answered with 2026-07-28"):
        found.on_received(
            result(0, protocolVersion=E, capabilities={}, serverInfo={"name": "s", "version": "1"})
        )


def test_a_result_for_a_method_that_the_revision_does_not_have_is_a_violation():
    found = conversation(D)
    found.on_sent(b'{"jsonrpc":"2.0","id":5,"method":"server/discover"}')
    with pytest.raises(Violation, match="does not exist"):
        found.on_received(result(5))


def test_a_definition_that_no_oracle_has_is_a_violation():
    with pytest.raises(Violation, match="2024-11-05 has no AudioContent"):
        wire.check(AUDIO, A, "AudioContent")
