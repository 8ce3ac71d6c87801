"""session.py: lifecycle, eras, what leaves through `start`, and what is answered.

Rules: REQUIREMENTS A.3-A.6, A.9, A.10, A.18, part B, and RELIABILITY sections 3, 4 and 6. Every
line a session sends here is validated against the official schema of the revision it was written
for (wire.py); the specification's own example messages are fed in at the end.
"""

from __future__ import annotations

import json
from typing import Any, cast

import jsonschema
import pytest
import wire
from catalogue import ANSWERS, INFO, LIST, RESULTS, TOOLS
from example_messages import Example, examples
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec import UNSET, Raw
from msgspec.json import encode
from msgspec.structs import replace
from session_rig import (
    ADA,
    BAD_PARAMS,
    CALL,
    CAPABILITIES,
    CLIENT,
    DECLARED,
    EVERYTHING,
    INTERNAL,
    INVALID,
    LEVELS,
    LOG_LEVEL,
    META,
    NO_METHOD,
    PARSE,
    TEXT,
    VERSION,
    VERSION_ERROR,
    WHO,
    A,
    B,
    C,
    D,
    E,
    Rig,
    code,
    input_required_result,
    modern,
    opening,
    received_levels,
    request,
    sealing,
)

from concertino.errors import RpcError
from concertino.jsonrpc.limits import Limits
from concertino.protocol.call import InputRequired, ServerFeatures
from concertino.protocol.client_request_forms import to_wire_request
from concertino.protocol.principal import Principal
from concertino.protocol.request_profile import SessionRequest
from concertino.protocol.seal import Seal
from concertino.protocol.session import Session
from concertino.types.results import (
    CallToolResult,
    ImageContent,
    Implementation,
    ListToolsResult,
    TextContent,
    Tool,
)

# The handshake, A.3


def test_a_handshake_without_initialized_is_completed_by_the_first_request():
    rig = Rig()
    rig.ask(1, "initialize", opening(D))
    assert rig.session.lifecycle.state == "opened"
    rig.call(2, "tools/list")
    assert rig.session.lifecycle.state == "ready"


def test_initialized_out_of_turn_changes_nothing():
    rig = Rig()
    assert rig.feed({"jsonrpc": "2.0", "method": "notifications/initialized"}) == []
    assert rig.session.lifecycle.state == "fresh"
    rig.opened()
    assert rig.feed({"jsonrpc": "2.0", "method": "notifications/initialized"}) == []
    assert rig.session.lifecycle.state == "ready"


def test_a_pipelined_handshake_is_served_in_order():
    rig = Rig()
    initialized = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    pipelined = [
        request(1, "initialize", opening(D)),
        initialized,
        request(2, "tools/list"),
        request(3, "ping"),
    ]
    assert [line["id"] for message in pipelined for line in rig.feed(message)] == [1, 3]
    assert [incoming.id for incoming in rig.started] == [2]


def test_a_closed_session_starts_nothing_and_gives_back_what_it_cut_off():
    rig = Rig()
    rig.ask(0, "initialize", opening(D))
    under_way = rig.call(1, "tools/list")
    assert rig.session.close() == [under_way]
    assert rig.feed(request(2, "tools/list")) == []
    assert rig.started == []


# The modern era, A.4-A.6


@pytest.mark.requirement("FR-18")
def test_a_request_with_modern_meta_is_served_without_a_handshake():
    rig = Rig()
    incoming = rig.call(
        "a",
        "tools/call",
        modern({"name": "x", "arguments": {"a": 1}}, **{"example.com/trace": "t"}),
    )
    assert incoming.call.method == "tools/call"
    assert {name: bytes(raw) for name, raw in incoming.call.params.items()} == {
        "name": b'"x"',
        "arguments": b'{"a": 1}',
    }
    assert {name: bytes(raw) for name, raw in incoming.call.meta.items()} == {
        "example.com/trace": b'"t"'
    }
    client = incoming.profile.client
    assert (client.name, client.version, client.protocol_version, client.capabilities) == (
        "c",
        "1",
        E,
        {},
    )
    answer = rig.answer(incoming, TEXT)
    assert answer["result"]["resultType"] == "complete"
    assert answer["result"]["_meta"]["io.modelcontextprotocol/serverInfo"]["name"] == "catalogue"


@pytest.mark.requirement("EC-1")
@pytest.mark.parametrize("version", ["1900-01-01", "", "2025-11-25", "2024-11-05", "2027-01-01"])
def test_an_unsupported_version_names_those_that_are(version: str):
    rig = Rig()
    answer = rig.ask(1, "tools/list", modern(**{VERSION: version}))
    assert code(answer) == VERSION_ERROR
    assert answer["error"]["data"] == {"supported": [E], "requested": version}
    assert rig.started == []


@pytest.mark.requirement("ME-3")
def test_meta_without_capabilities_is_refused():
    answer = Rig().ask(1, "tools/list", {"_meta": {VERSION: E}})
    assert code(answer) == BAD_PARAMS
    assert answer["error"]["data"] == {"supported": [E], "missing": [CAPABILITIES]}


@pytest.mark.requirement("ME-4")
def test_client_info_may_be_absent():
    client = (
        Rig()
        .call(1, "tools/list", {"_meta": {VERSION: E, CAPABILITIES: {"sampling": {}}}})
        .profile.client
    )
    assert (client.name, client.version, client.capabilities) == ("", "", {"sampling": {}})


@pytest.mark.requirement("PR-1")
@pytest.mark.parametrize(
    ("meta", "text"),
    [
        ([], "_meta: expected object, got array"),
        (None, "_meta: expected object, got null"),
        ({VERSION: 5}, f"{VERSION}: expected str, got int"),
        ({**META, CAPABILITIES: []}, f"{CAPABILITIES}: expected object, got array"),
        ({**META, CLIENT: "c"}, f"{CLIENT}: expected object, got str"),
        ({**META, CLIENT: {"name": 5}}, f"{CLIENT}: name: expected str, got int"),
        ({**META, LOG_LEVEL: "loud"}, f"{LOG_LEVEL}: invalid enum value 'loud'"),
        ({**META, "progressToken": 1.5}, "progressToken: expected int | str, got float"),
        ({**META, "progressToken": None}, "progressToken: expected int | str, got null"),
    ],
)
def test_malformed_meta_is_refused_with_its_place(meta: Any, text: str):
    rig = Rig()
    answer = rig.ask(1, "tools/list", {"_meta": meta})
    assert code(answer) == BAD_PARAMS
    assert answer["error"]["message"] == f"Invalid params: {text}"
    assert rig.started == []
    assert "result" in rig.ask(1, "initialize", opening(D))


@pytest.mark.requirement("ER-11", "ME-10")
def test_both_eras_are_served_side_by_side_each_by_its_rules():
    rig = Rig()
    first = rig.call(1, "tools/call", modern({"name": "x"}))
    rig.opened(C)
    second = rig.call(2, "tools/call", {"name": "x"})
    third = rig.call(3, "tools/call", modern({"name": "x"}))
    assert rig.ask(4, "server/discover", modern())["result"]["supportedVersions"] == [E]
    assert "resultType" in rig.answer(third, TEXT)["result"]
    assert rig.answer(second, TEXT)["result"] == {"content": [{"type": "text", "text": "a"}]}
    assert "resultType" in rig.answer(first, TEXT)["result"]


@pytest.mark.requirement("ME-5", "ME-9")
def test_meta_is_looked_at_for_each_request():
    rig = Rig()
    params = modern(**{CLIENT: {"name": "one", "version": "1"}})
    assert [rig.call(id, "tools/list", params).profile.client.name for id in (1, 2)] == [
        "one",
        "one",
    ]
    other = modern(**{CLIENT: {"name": "two", "version": "1"}, CAPABILITIES: {"roots": {}}})
    client = rig.call(3, "tools/list", other).profile.client
    assert (client.name, client.capabilities) == ("two", {"roots": {}})
    assert rig.call(4, "tools/list", params).profile.client.capabilities == {}


def test_a_modern_request_does_not_move_the_handshake():
    rig = Rig()
    rig.call(1, "tools/list", modern())
    assert rig.session.lifecycle.state == "fresh"
    rig.ask(2, "initialize", opening(D))
    rig.call(3, "tools/list", modern())
    assert rig.session.lifecycle.state == "opened"


@pytest.mark.requirement("ME-18")
def test_meta_of_a_handshakes_request_is_passed_on():
    rig = Rig().opened(C)
    incoming = rig.call(
        1, "tools/list", {"_meta": {"progressToken": "t", "traceparent": "00-x", CAPABILITIES: {}}}
    )
    assert incoming.profile.progress_token == "t"
    assert {name: bytes(raw) for name, raw in incoming.call.meta.items()} == {
        "traceparent": b'"00-x"',
        CAPABILITIES: b"{}",
    }
    assert incoming.profile.client.protocol_version == C
    assert "_meta" not in incoming.call.params


# Ids that cannot be read


def test_an_unreadable_id_is_left_out_after_a_modern_message():
    rig = Rig()
    [answer] = rig.feed(b"{not json}")
    assert answer["id"] is None
    rig.call(1, "tools/list", modern())
    [answer] = rig.feed(b"{not json}")
    assert "id" not in answer


# Shapes, RELIABILITY section 3


@pytest.mark.parametrize(
    "garbage", [b"42", b'"x"', b"true", b"null", b"[]", b"{}", b'[{"jsonrpc":"2.0"}]']
)
def test_what_is_no_message_is_an_invalid_request_and_the_next_is_served(garbage: bytes):
    for rig in (Rig(), Rig().opened(D), Rig().opened(C)):
        [answer] = rig.feed(garbage)
        assert code(answer) == INVALID
        assert rig.ask(1, "ping")["result"] == {}


def test_params_that_are_no_object_are_refused_on_the_id():
    rig = Rig().opened()
    for params in ([], "x", None, 5):
        [answer] = rig.feed({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": params})
        assert (answer["id"], code(answer)) == (1, BAD_PARAMS)


@pytest.mark.requirement("JR-11", "CA-8")
@pytest.mark.parametrize(
    "message",
    [
        {"jsonrpc": "2.0", "method": "notifications/unknown"},
        {"jsonrpc": "2.0", "method": "tools/call", "params": {"name": "x"}},
        {"jsonrpc": "2.0", "method": "initialize", "params": opening(D)},
        {"jsonrpc": "2.0", "method": "notifications/cancelled"},
        {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": None}},
        {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1.0}},
        {
            "jsonrpc": "2.0",
            "method": "notifications/cancelled",
            "params": {"requestId": [1], "reason": "x"},
        },
        {
            "jsonrpc": "2.0",
            "method": "notifications/cancelled",
            "params": {"requestId": 1, "reason": 5},
        },
        {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "1"}},
        {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "hello"}},
        {"jsonrpc": "2.0", "method": "notifications/x", "params": []},
        {"jsonrpc": "2.0", "id": 1, "result": {}},
        {"jsonrpc": "2.0", "id": None, "error": {"code": -32700, "message": "x"}},
        {"jsonrpc": "2.0", "id": 1, "result": {}, "error": {}},
    ],
)
def test_notifications_and_responses_are_never_answered_and_disturb_nothing(message: Any):
    rig = Rig().opened()
    incoming = rig.call(1, "tools/list")
    assert rig.feed(message) == []
    assert rig.started == []
    assert "result" in rig.answer(incoming, LIST)


@pytest.mark.no_cover
@pytest.mark.parametrize("depth", [*range(1, 5), *range(900, 1010), 5000])
@pytest.mark.parametrize("brackets", ["[]", "{}"])
def test_no_depth_of_nesting_gets_out_as_an_exception_or_is_left_unanswered(
    depth: int, brackets: str
):
    opener, closer = ('{"a":', "}") if brackets == "{}" else ("[", "]")
    deep = opener * depth + "1" + closer * depth
    places = [
        f'"method":"initialize","params":{{"protocolVersion":"2025-06-18",'
        f'"capabilities":{{"x":{deep}}}}}',
        f'"method":"tools/list","params":{{"_meta":{deep}}}',
        f'"method":"ping","params":{{"_meta":{{"x":{deep}}}}}',
        f'"method":"tools/list","params":{{"_meta":{{"{VERSION}":"{E}","{CAPABILITIES}'
        f'":{{"x":{deep}}}}}}}',
        f'"method":"logging/setLevel","params":{{"level":{deep}}}',
        f'"method":"ping","params":{deep}',
    ]
    for place in places:
        rig = Rig()
        rig.onlooker = None
        answers = rig.feed(f'{{"jsonrpc":"2.0","id":1,{place}}}'.encode())
        assert len(answers) + len(rig.started) == 1
        assert rig.feed(
            f'{{"jsonrpc":"2.0","method":"notifications/cancelled",'
            f'"params":{{"requestId":{deep}}}}}'.encode()
        ) in (
            [],
            [
                {
                    "jsonrpc": "2.0",
                    "id": None,
                    "error": {"code": PARSE, "message": "Parse error: nested too deeply"},
                }
            ],
            [
                {
                    "jsonrpc": "2.0",
                    "error": {"code": PARSE, "message": "Parse error: nested too deeply"},
                }
            ],
        )


# Batches


def test_a_batch_is_served_in_2025_03_26_as_one_array():
    rig = Rig().opened(B)
    batch = [
        request(1, "ping"),
        {"jsonrpc": "2.0", "method": "notifications/x"},
        request(2, "tools/list"),
        request(3, "nope"),
    ]
    assert rig.feed(batch) == []
    [incoming] = rig.started
    rig.session.respond(incoming, ListToolsResult([]))
    [answers] = rig.take_sent()
    assert [(each["id"], "result" in each) for each in answers] == [
        (1, True),
        (3, False),
        (2, True),
    ]


def test_a_request_is_cancelled_by_a_notification_of_the_same_batch():
    rig = Rig().opened(B)
    rig.session.peer.ready = False
    cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 2}}
    [[answer]] = rig.feed([request(1, "ping"), request(2, "tools/list"), cancel])
    assert answer["id"] == 1


@pytest.mark.parametrize("version", [A, C, D])
def test_a_batch_is_an_invalid_request_in_the_other_revisions(version: str):
    [answer] = Rig().opened(version).feed([request(1, "ping")])
    assert code(answer) == INVALID


# Answers


@pytest.mark.requirement("CA-6")
def test_a_call_that_was_cancelled_gets_no_answer_and_no_message():
    rig = Rig().opened()
    incoming = rig.call(1, "tools/call", {"name": "x", "_meta": {"progressToken": 7}})
    rig.feed(
        {
            "jsonrpc": "2.0",
            "method": "notifications/cancelled",
            "params": {"requestId": 1, "reason": "why"},
        }
    )
    rig.session.respond(incoming, TEXT)
    rig.session.notifications.progress(incoming, 1, None, None)
    rig.session.notifications.log(incoming, "error", "x", None)
    assert rig.take_sent() == []


def test_a_result_that_cannot_be_written_becomes_one_that_says_so():
    rig = Rig().opened()
    result = rig.answer(rig.call(1, "tools/call"), CallToolResult([], object()))["result"]
    assert result["isError"] is True
    assert "cannot be written as JSON" in result["content"][0]["text"]
    answer = rig.answer(rig.call(2, "prompts/list"), cast(Any, object()))
    assert code(answer) == INTERNAL
    assert "cannot be written as JSON" in answer["error"]["message"]


def test_a_result_that_refers_to_itself_becomes_one_that_says_so():
    loop: list[Any] = []
    loop.append(loop)
    rig = Rig().opened()
    assert (
        rig.answer(rig.call(1, "tools/call"), CallToolResult([], loop))["result"]["isError"] is True
    )


# The message of a large result is put together in another way.
@pytest.mark.parametrize("limit", [1000, 100_000])
def test_a_result_of_the_limit_is_sent_and_one_byte_more_is_refused(limit: int):
    room = limit - len('{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":""}]}}')
    rig = Rig(max_message_bytes=limit).opened()
    fits = rig.answer(rig.call(1, "tools/call"), CallToolResult([TextContent("x" * room)]))
    assert fits["result"]["content"][0]["text"] == "x" * room
    big = rig.answer(rig.call(2, "tools/call"), CallToolResult([TextContent("x" * (room + 1))]))[
        "result"
    ]
    assert big == {
        "content": [
            {
                "type": "text",
                "text": f"the result makes a message of {limit + 1} bytes; "
                f"the limit is {limit} bytes",
            }
        ],
        "isError": True,
    }
    answer = rig.answer(
        rig.call(3, "tools/list"), ListToolsResult([Tool("x" * limit, {"type": "object"})])
    )
    assert code(answer) == INTERNAL


def test_a_result_that_certainly_is_too_large_is_refused_before_it_is_encoded() -> None:
    rig = Rig(max_message_bytes=1000).opened()
    incoming = rig.call(1, "tools/call", {"name": "x", "arguments": {}})
    small, image = TEXT, CallToolResult([ImageContent(b"", "image/png")])
    assert not rig.session.refuse_large(incoming, small, 1000)
    # Only encoding tells what this client gets of an image.
    assert not rig.session.refuse_large(incoming, image, 1001)
    assert rig.take_sent() == []
    assert rig.session.refuse_large(incoming, small, 1001)
    [answer] = rig.take_sent()
    [block] = answer["result"]["content"]
    text = "the result makes a message of more than 1001 bytes; the limit is 1000 bytes"
    assert (answer["id"], answer["result"]["isError"], block["text"]) == (1, True, text)
    assert not rig.session.refuse_large(incoming, small, 1001)
    assert rig.take_sent() == []


@pytest.mark.requirement("FR-3")
@pytest.mark.parametrize("version", wire.REVISIONS)
def test_indented_json_from_a_backend_stays_on_one_line(version: str):
    # FR-3: no newline inside a message. one_json, in Rig, refuses any.
    rig = Rig() if version == E else Rig().opened(version)
    params = modern() if version == E else {}
    indented = Raw(b'{\n  "prompts": [\n  ]\n}')
    assert rig.answer(rig.call(1, "prompts/list", params), indented)["result"]["prompts"] == []
    structured = CallToolResult([], Raw(b'{\n  "a":\n  "\\n"\n}'))
    result = rig.answer(rig.call(2, "tools/call", params), structured)["result"]
    assert result.get("structuredContent", {"a": "\n"}) == {"a": "\n"}
    incoming = rig.call(3, "tools/call", modern(**{LOG_LEVEL: "debug"}) if version == E else {})
    rig.session.notifications.log(incoming, "error", Raw(b"[\n1\n]"), None)
    assert rig.take_sent()[0]["params"]["data"] == [1]


def test_calls_wait_while_the_backend_starts_and_begin_in_order():
    rig = Rig().opened()
    rig.session.peer.ready = False
    for id in (1, 2, 3):
        assert rig.feed(request(id, "tools/list")) == []
    assert rig.ask(4, "ping")["result"] == {}
    assert rig.started == []
    rig.session.peer.ready = True
    rig.session.admit()
    assert [incoming.id for incoming in rig.started] == [1, 2, 3]


# Changes


@pytest.mark.requirement("SU-13")
@pytest.mark.parametrize("what", ["tools", "prompts", "resources"])
@pytest.mark.parametrize("version", wire.LEGACY)
def test_a_change_is_told_to_clients_in_operation(what: str, version: str):
    rig = Rig().opened(version)
    rig.session.report_change(what)
    assert [line["method"] for line in rig.take_sent()] == [f"notifications/{what}/list_changed"]


@pytest.mark.requirement("LC-9")
def test_a_change_is_not_told_before_the_handshake_is_complete_nor_unasked_to_the_modern():
    rig = Rig()
    rig.session.report_change("tools")
    rig.call(1, "tools/list", modern())
    rig.session.report_change("tools")
    rig.ask(2, "initialize", opening(D))
    rig.session.report_change("tools")
    assert rig.take_sent() == []


def test_a_client_that_does_not_read_is_told_of_any_number_of_changes_once():
    """Found by tests/simulation: each was written, whatever was held already."""
    rig = Rig().opened()
    rig.session.peer.buffered_bytes = 2**20
    for _ in range(1000):
        rig.session.report_change("tools")
    assert rig.take_sent() == []
    rig.session.peer.on_drain(0)
    assert [line["method"] for line in rig.take_sent()] == ["notifications/tools/list_changed"]


def test_a_change_of_what_is_not_offered_is_not_told():
    rig = Rig(ServerFeatures(Implementation("n", "1"), tools=True)).opened()
    rig.session.report_change("prompts")
    rig.session.report_change("features")
    assert rig.take_sent() == []


def test_a_changed_offer_holds_for_the_next_request_of_both_eras():
    rig = Rig(ServerFeatures(Implementation("n", "1"))).opened()
    assert code(rig.ask(1, "tools/list")) == NO_METHOD
    assert code(rig.ask(2, "tools/list", modern())) == NO_METHOD
    assert rig.ask(3, "logging/setLevel", {"level": "info"})["error"]["code"] == NO_METHOD
    rig.offer = ServerFeatures(Implementation("n", "2"), tools=True, logging=True)
    rig.session.report_change("features")
    rig.ask(3, "logging/setLevel", {"level": "error"})
    legacy = rig.call(1, "tools/list")
    rig.answer(rig.call(2, "tools/list", modern()), ListToolsResult([]))
    rig.session.reload_features()
    assert received_levels(rig, legacy) == LEVELS[4:]
    assert rig.ask(4, "server/discover", modern())["result"]["capabilities"] == {
        "logging": {},
        "tools": {"listChanged": True},
    }


def test_a_change_of_what_the_handshake_did_not_declare_is_not_told():
    """REQUIREMENTS LC-10: only negotiated capabilities."""
    rig = Rig(ServerFeatures(Implementation("n", "1"), tools=True)).opened()
    rig.offer = EVERYTHING
    rig.session.report_change("prompts")
    assert rig.take_sent() == []
    rig.session.report_change("tools")
    assert len(rig.take_sent()) == 1
    assert rig.call(1, "prompts/list").call.method == "prompts/list"


def test_a_slow_reader_hears_of_each_change_once_when_it_catches_up():
    rig = Rig(high_water_bytes=100).opened()
    rig.ask(1, "resources/subscribe", {"uri": "a:b"})
    rig.held = 100
    rig.session.peer.buffered_bytes = 100
    for _ in range(1000):
        rig.session.report_change("tools")
        rig.session.subscriptions.report_update("a:b")
        rig.session.report_change("prompts")
    assert rig.take_sent() == []
    rig.session.peer.on_drain(99)
    assert [line["method"] for line in rig.take_sent()] == ["notifications/tools/list_changed"]
    rig.held = 0
    rig.session.peer.on_drain(0)
    assert [line["method"] for line in rig.take_sent()] == [
        "notifications/resources/updated",
        "notifications/prompts/list_changed",
    ]
    rig.session.peer.on_drain(0)
    assert rig.take_sent() == []


# Errors of a backend


def test_a_resource_that_is_not_there_has_the_code_of_the_callers_revision():
    """REQUIREMENTS EC-6, EC-7, A.27-5."""
    rig = Rig().opened()
    for params, expected in ({"uri": "a:b"}, -32002), (modern({"uri": "a:b"}), -32602):
        incoming = rig.call(1, "resources/read", params)
        rig.session.fail(incoming, -32602, "Resource not found", {"uri": "a:b"})
        assert rig.take_sent() == [
            {
                "jsonrpc": "2.0",
                "id": 1,
                "error": {
                    "code": expected,
                    "message": "Resource not found",
                    "data": {"uri": "a:b"},
                },
            }
        ]


@pytest.mark.parametrize(
    ("revision", "modern_client", "expected"),
    [
        # A server of the same era has chosen the code that its client understands.
        ("2024-11-05", False, -32602),
        ("2025-11-25", False, -32602),
        ("2026-07-28", True, -32602),
        # The code of the other era is translated.
        ("2026-07-28", False, -32002),
    ],
)
def test_an_error_of_another_server_keeps_its_code_within_one_era(
    revision: str, modern_client: bool, expected: int
):
    rig = Rig().opened()
    params = {"uri": "a:b"}
    incoming = rig.call(1, "resources/read", modern(params) if modern_client else params)
    rig.session.fail(incoming, -32602, "Resource not found", {"uri": "a:b"}, revision)
    assert rig.take_sent()[0]["error"]["code"] == expected


# Everything, in every revision, on the wire


@pytest.mark.requirement("FR-13", "JR-7", "JR-17", "LC-10", "ME-17", "CA-2")
@pytest.mark.parametrize("version", wire.REVISIONS)
def test_every_line_of_a_server_of_everything_fits_the_schema_of_the_revision(version: str):
    rig = Rig()
    if version == E:
        rig.ask("d", "server/discover", modern())
    else:
        rig.opened(version).ask("p", "ping")

    def params(**own: Any) -> dict[str, Any]:
        return modern(own, progressToken=own.get("name", "list")) if version == E else own

    listed = rig.answer(rig.call("l", "tools/list", params()), LIST)["result"]["tools"]
    assert [tool["name"] for tool in listed] == list(TOOLS)
    for tool in listed:
        result = rig.answer(
            rig.call(tool["name"], "tools/call", params(name=tool["name"])), RESULTS[tool["name"]]
        )["result"]
        if version != E:
            assert "resultType" not in result
        if "outputSchema" in tool and RESULTS[tool["name"]].structured_content is not UNSET:
            jsonschema.Draft202012Validator(tool["outputSchema"]).validate(
                result["structuredContent"]
            )
        if version in (A, B):
            assert "structuredContent" not in result
    for method, results in ANSWERS.items():
        for number, result in enumerate(results):
            as_it_is = rig.answer(rig.call(f"{method} {number}", method, params()), result)[
                "result"
            ]
            as_json = rig.answer(
                rig.call(f"{method} {number} json", method, params()), Raw(encode(result))
            )["result"]
            assert as_it_is == as_json
    logged = modern({"name": "x"}, progressToken=9, **{LOG_LEVEL: "debug"})
    incoming = rig.call(
        9, "tools/call", logged if version == E else {"_meta": {"progressToken": 9}}
    )
    for done in (0, 1.5):
        rig.session.notifications.progress(incoming, done, 2, "so far")
    assert len(rig.take_sent()) == 2
    assert received_levels(rig, incoming) == (LEVELS if version == E else LEVELS[1:])
    rig.session.peer.fail(incoming, -32603, "Internal error", {"a": [1]})
    assert len(rig.take_sent()) == 1
    rig.session.fail(
        rig.call("gone", "resources/read", params()), -32602, "Resource not found", {"uri": "a:b"}
    )
    for what in ("tools", "prompts", "resources"):
        rig.session.report_change(what)
    assert len(rig.take_sent()) == (1 if version == E else 4)
    if version != E:
        rig.ask("subscribe", "resources/subscribe", {"uri": "file:///a"})
        rig.session.subscriptions.report_update("file:///a")
        assert len(rig.take_sent()) == 1
    rig.ask(10, "nope", modern() if version == E else None)
    rig.ask(11, "tools/list", {"_meta": {VERSION: "1900-01-01"}})
    rig.feed(b"{not json}")
    rig.feed(b"5")
    rig.session.peer.on_frame_too_long(5)
    assert len(rig.take_sent()) == 1


# Examples: the specification's own where they are, and some made from official models

# What a request says when it is asked again; it needs a seal.
ROUND = ("inputResponses", "requestState")
SERVED = [
    "CallToolRequest",
    "ListToolsRequest",
    "ListPromptsRequest",
    "GetPromptRequest",
    "ListResourcesRequest",
]
SERVED += ["ListResourceTemplatesRequest", "ReadResourceRequest", "CompleteRequest"]


@pytest.mark.parametrize("example", examples(*SERVED))
def test_an_example_request_reaches_the_backend(example: Example):
    message = example.value
    message["params"] = {
        name: each for name, each in message["params"].items() if name not in ROUND
    }
    rig = Rig()
    incoming = rig.call(message["id"], message["method"], message["params"])
    params = {name: json.loads(bytes(raw)) for name, raw in incoming.call.params.items()}
    meta = message["params"].pop("_meta")
    assert (incoming.call.method, params) == (message["method"], message["params"])
    client = meta.get(CLIENT, {"name": "", "version": ""})
    assert (incoming.profile.client.name, incoming.profile.client.version) == (
        client["name"],
        client["version"],
    )
    assert incoming.profile.client.protocol_version == E


@pytest.mark.parametrize("example", examples("DiscoverRequest"))
def test_an_example_discover_is_answered(example: Example):
    message = example.value
    assert Rig().ask(message["id"], message["method"], message["params"])["result"][
        "supportedVersions"
    ] == [E]


@pytest.mark.parametrize("example", examples("SubscriptionsListenRequest"))
def test_an_example_subscription_is_acknowledged(example: Example):
    message = example.value
    [told] = Rig().feed(message)
    assert told["method"] == "notifications/subscriptions/acknowledged"
    assert told["params"]["notifications"] == message["params"]["notifications"]
    assert told["params"]["_meta"] == {"io.modelcontextprotocol/subscriptionId": message["id"]}


@pytest.mark.parametrize("example", examples("CallToolRequestParams"))
def test_example_params_of_a_call_reach_the_backend(example: Example):
    params = {name: each for name, each in example.value.items() if name not in ROUND}
    incoming = Rig().call(1, "tools/call", params)
    assert json.loads(bytes(incoming.call.params["name"])) == params["name"]
    assert incoming.profile.progress_token == params["_meta"].get("progressToken")


@pytest.mark.parametrize("example", examples("CancelledNotification"))
def test_the_example_cancellation_cancels(example: Example):
    message = example.value
    rig = Rig()
    incoming = rig.call(message["params"]["requestId"], "tools/call", modern({"name": "x"}))
    reasons: list[str] = []
    incoming.on_cancel = reasons.append
    assert rig.feed(message) == []
    assert reasons == [message["params"].get("reason", "")]
    rig.session.respond(incoming, TEXT)
    assert rig.take_sent() == []


@pytest.mark.parametrize("example", examples("ProgressNotification", "LoggingMessageNotification"))
def test_an_example_notification_of_a_server_is_ignored_by_a_server(example: Example):
    assert Rig().feed(example.value) == []


@pytest.mark.parametrize("example", examples("UnsupportedProtocolVersionError"))
def test_the_example_of_an_unsupported_version_is_answered_alike(example: Example):
    wanted = example.value
    answer = Rig().ask(1, "tools/list", modern(**{VERSION: wanted["error"]["data"]["requested"]}))
    assert set(answer["error"]["data"]) == set(wanted["error"]["data"])
    assert answer["error"]["code"] == wanted["error"]["code"]
    assert answer["error"]["message"] == "Unsupported protocol version"
    assert answer["error"]["data"]["requested"] == wanted["error"]["data"]["requested"]


ERRORS = ["ParseError", "InvalidParamsError", "MethodNotFoundError", "InternalError"]
ERRORS += ["MissingRequiredClientCapabilityError", "UnsupportedProtocolVersionError"]


@pytest.mark.parametrize("example", examples(*ERRORS))
def test_an_example_error_is_sent_as_it_is(example: Example):
    body = example.value
    wire.check(body, E, example.kind)
    body = body.get("error", body)  # some examples are whole messages
    rig = Rig()
    incoming = rig.call(1, "tools/call", modern({"name": "x"}))
    rig.session.peer.fail(incoming, body["code"], body["message"], body.get("data"))
    assert rig.take_sent() == [{"jsonrpc": "2.0", "id": 1, "error": body}]


@pytest.mark.parametrize("example", examples("ResourceUpdatedNotification"))
def test_the_example_of_an_update_is_what_is_sent_but_for_its_subscription(example: Example):
    wanted = example.value
    wanted["params"].pop("_meta", None)  # before 2026-07-28 there is one subscription for all
    uri = wanted["params"]["uri"]
    rig = Rig().opened()
    rig.ask(1, "resources/subscribe", {"uri": uri})
    rig.session.subscriptions.report_update(uri)
    assert rig.take_sent() == [wanted]


# A model beside the session: both eras, malformed openers, cancels, in any order

IDS = st.sampled_from([1, 2, 3, "1", "x"])
METHODS = [
    "tools/call",
    "tools/list",
    "ping",
    "nope",
    "server/discover",
    "logging/setLevel",
    "prompts/list",
]
SERVED_METHODS = ("tools/call", "tools/list")
BAD_OPENERS: list[Any] = [
    {},
    {"protocolVersion": 5},
    None,
    {"protocolVersion": A, "capabilities": 5},
]
BAD_METAS: list[Any] = [
    5,
    {VERSION: 5},
    {VERSION: "1"},
    {VERSION: E},
    {**META, CLIENT: 5},
    {**META, "progressToken": []},
]


class SessionMachine(RuleBasedStateMachine):
    """The model knows the negotiated revision, whether operation began, and who waits for an answer
    in which revision.
    """

    @initialize()
    def begin(self) -> None:
        self.rig = Rig(ServerFeatures(INFO, tools=True, logging=True), garbage_answers_per_s=1000)
        self.negotiated: str | None = None
        self.ready = False
        self.modern_seen = False
        self.pending: dict[tuple[type, object], tuple[SessionRequest, str, int | str | None]] = {}
        self.over: list[SessionRequest] = []

    def in_use(self, id: int | str) -> bool:
        return (type(id), id) in self.pending

    def ask(self, id: int | str, method: str, params: Any, revision: str | None) -> None:
        """Send a request and check what comes of it. revision: by which it is to be served, None if
        by none.
        """
        answers = self.rig.feed(request(id, method, params))
        if self.in_use(id):
            [answer] = answers
            assert (answer["id"], code(answer)) == (id, INVALID)
            assert self.rig.started == []
            return
        if revision is not None and method in SERVED_METHODS:
            assert answers == []
            incoming = self.rig.started.pop()
            self.rig.session.peer.add_running(incoming)
            assert incoming.profile.client.protocol_version == revision
            token = params.get("_meta", {}).get("progressToken") if params else None
            self.pending[(type(id), id)] = (incoming, revision, token)
            self.ready = self.ready or revision != E
            return
        assert self.rig.started == []
        [answer] = answers
        assert answer["id"] == id
        assert type(answer["id"]) is type(id)
        wanted: int | None = NO_METHOD
        if method == "ping" and revision != E:
            wanted = None
        elif method == "server/discover":
            wanted = None if revision == E else BAD_PARAMS if revision is None else NO_METHOD
        elif method == "logging/setLevel" and revision != E:
            wanted = BAD_PARAMS  # no level given, or no handshake
        elif method in SERVED_METHODS or (method == "prompts/list" and revision is None):
            wanted = BAD_PARAMS
        assert answer.get("error", {}).get("code") == wanted

    @rule(id=IDS, method=st.sampled_from(METHODS), token=st.none() | st.sampled_from([1, "1", "t"]))
    def a_request_without_era_comes(
        self, id: int | str, method: str, token: int | str | None
    ) -> None:
        self.ask(
            id,
            method,
            None if token is None else {"_meta": {"progressToken": token}},
            self.negotiated,
        )

    @rule(id=IDS, method=st.sampled_from(METHODS), token=st.none() | st.sampled_from([1, "1", "t"]))
    def a_modern_request_comes(self, id: int | str, method: str, token: int | str | None) -> None:
        self.ask(id, method, modern() if token is None else modern(progressToken=token), E)
        self.modern_seen = (
            self.modern_seen or not self.in_use(id) or self.pending[(type(id), id)][1] == E
        )

    @rule(id=IDS, version=st.sampled_from([*wire.REVISIONS, "nonsense"]))
    def initialize_comes(self, id: int | str, version: str) -> None:
        [answer] = self.rig.feed(request(id, "initialize", opening(version)))
        if self.in_use(id) or self.negotiated is not None:
            assert code(answer) == INVALID
        else:
            self.negotiated = version if version in wire.LEGACY else D
            assert answer["result"]["protocolVersion"] == self.negotiated

    @rule(id=IDS, params=st.sampled_from(BAD_OPENERS))
    def a_malformed_initialize_comes(self, id: int | str, params: Any) -> None:
        [answer] = self.rig.feed(request(id, "initialize", params))
        assert code(answer) == (
            INVALID if self.in_use(id) or self.negotiated is not None else BAD_PARAMS
        )

    @rule(
        id=IDS,
        meta=st.sampled_from(BAD_METAS),
        method=st.sampled_from(["tools/call", "initialize", "server/discover"]),
    )
    def malformed_meta_comes(self, id: int | str, meta: Any, method: str) -> None:
        [answer] = self.rig.feed(request(id, method, {"_meta": meta}))
        wanted = VERSION_ERROR if meta == {VERSION: "1"} else BAD_PARAMS
        assert code(answer) == (INVALID if self.in_use(id) else wanted)
        assert self.rig.started == []

    @rule()
    def initialized_comes(self) -> None:
        assert self.rig.feed({"jsonrpc": "2.0", "method": "notifications/initialized"}) == []
        self.ready = self.ready or self.negotiated is not None

    @rule(
        frame=st.sampled_from(
            [b"", b"{", b"7", b'{"jsonrpc":"2.0","id":null,"method":"x"}', b'{"result":1}']
        )
    )
    def garbage_comes(self, frame: bytes) -> None:
        answers = self.rig.feed(frame)
        if frame in (b"", b'{"result":1}'):
            assert answers == []
        else:
            [answer] = answers
            assert code(answer) == (PARSE if frame == b"{" else INVALID)

    @rule(id=IDS)
    def cancel_comes(self, id: int | str) -> None:
        assert (
            self.rig.feed(
                {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}}
            )
            == []
        )
        found = self.pending.pop((type(id), id), None)
        if found is not None:
            self.over.append(found[0])

    @precondition(lambda self: self.pending)
    @rule(data=st.data(), name=st.sampled_from(list(RESULTS)))
    def a_call_is_answered(self, data: st.DataObject, name: str) -> None:
        key = data.draw(st.sampled_from(list(self.pending)))
        incoming, revision, _ = self.pending.pop(key)
        result = (
            ListToolsResult([TOOLS[name]]) if incoming.method == "tools/list" else RESULTS[name]
        )
        answer = self.rig.answer(incoming, result)  # the onlooker validates it
        assert answer["id"] == key[1]
        assert ("resultType" in answer["result"]) is (revision == E)
        self.over.append(incoming)

    @precondition(lambda self: self.pending)
    @rule(data=st.data(), done=st.integers(0, 3))
    def a_call_progresses(self, data: st.DataObject, done: int) -> None:
        incoming, _, token = self.pending[data.draw(st.sampled_from(list(self.pending)))]
        before = incoming.last_progress
        self.rig.session.notifications.progress(incoming, done, None, "m")
        lines = self.rig.take_sent()
        assert [line["params"]["progressToken"] for line in lines] == (
            [token] if token is not None and done > before else []
        )

    @precondition(lambda self: self.over)
    @rule(data=st.data())
    def what_is_over_says_nothing_more(self, data: st.DataObject) -> None:
        incoming = data.draw(st.sampled_from(self.over))
        self.rig.session.notifications.progress(incoming, 100, None, None)
        self.rig.session.notifications.log(incoming, "emergency", "x", None)
        self.rig.session.respond(incoming, TEXT)
        assert self.rig.take_sent() == []

    @rule()
    def the_tools_change(self) -> None:
        self.rig.session.report_change("tools")
        lines = self.rig.take_sent()
        assert len(lines) == (1 if self.ready else 0)

    @invariant()
    def nobody_else_is_being_served(self) -> None:
        assert {(type(id), id) for id in self.rig.session.peer.running} == set(self.pending)
        assert self.rig.lines == []

    @invariant()
    def only_initialize_opens_and_only_operation_completes_the_handshake(self) -> None:
        state = "fresh" if self.negotiated is None else "ready" if self.ready else "opened"
        assert self.rig.session.lifecycle.state is state


SessionMachine.TestCase.settings = settings(
    max_examples=80, stateful_step_count=40, deadline=None, derandomize=True
)


@pytest.mark.no_cover
class TestSessionBesideItsModel(SessionMachine.TestCase):
    """One class: Hypothesis makes its machines unittest cases."""


# What is no plain request


def test_a_request_in_utf_8_is_served_and_one_that_is_broken_is_answered_with_its_id():
    rig = Rig().opened()
    frame = json.dumps(
        request(1, "tools/call", {"name": "é", "arguments": {}}), ensure_ascii=False
    ).encode()
    assert rig.feed(frame) == []
    assert bytes(rig.started.pop().call.params["name"]) == '"é"'.encode()
    rig.onlooker = None  # it reads no broken line, and so does not know who asked
    [answer] = rig.feed(frame.replace("é".encode(), b"\xff").replace(b'"id": 1', b'"id": 2'))
    assert answer["id"] == 2
    assert code(answer) == -32700
    assert rig.started == []


@pytest.mark.parametrize("id", [1, "1"])
def test_a_request_with_an_id_in_use_is_refused_and_the_first_goes_on(id: int | str):
    rig = Rig().opened()
    first = rig.call(id, "tools/call", {"name": "x"})
    answer = rig.ask(id, "tools/call", {"name": "y"})
    assert code(answer) == -32600
    assert rig.started == []
    assert rig.answer(first, TEXT)["id"] == id


def test_a_request_with_a_member_that_nobody_knows_is_served():
    rig = Rig().opened()
    assert rig.feed({**request(1, "tools/call", {"name": "x"}), "priority": 5}) == []
    assert rig.answer(rig.started.pop(), TEXT)["result"]["content"][0]["text"] == "a"


def test_a_request_whose_id_waits_for_its_turn_is_refused_a_second_time():
    rig = Rig(max_in_flight=1).opened()
    rig.call(1, "tools/call", {"name": "x"})
    assert rig.feed(request(2, "tools/call", {"name": "x"})) == []
    assert code(rig.ask(2, "tools/call", {"name": "x"})) == -32600


# Questions to the client


@pytest.mark.parametrize(
    ("members", "said"),
    [
        ({"requestState": 5}, "requestState: expected str"),
        ({"requestState": None}, "requestState: expected str"),
        ({"requestState": "AAAA"}, "requestState: it is none of this server's"),
        ({"inputResponses": None}, "inputResponses: expected object"),
        ({"inputResponses": [1]}, "inputResponses: expected object"),
    ],
)
def test_a_retry_that_cannot_be_one_is_invalid(members: Any, said: str):
    error = sealing(Rig()).ask(1, "tools/call", modern({**CALL, **members}))["error"]
    assert error["code"] == BAD_PARAMS
    assert said in error["message"]


def test_a_retry_that_is_refused_because_there_are_too_many_does_not_spend_its_state():
    rig = sealing(Rig(max_in_flight=1, max_waiting=1))
    state = input_required_result(rig, 1, modern(CALL, **DECLARED), InputRequired({"who": WHO}))[
        "requestState"
    ]
    retry = modern({**CALL, "requestState": state, "inputResponses": {"who": ADA}})
    first = rig.call(2, "tools/call", modern(CALL))
    assert rig.feed(request(3, "tools/call", modern(CALL))) == []
    assert code(rig.ask(4, "tools/call", retry)) == -31001
    rig.session.peer.cancel(3, "")
    assert rig.feed(request(5, "tools/call", retry)) == []  # it waits
    assert (
        code(rig.ask(6, "tools/call", retry)) == BAD_PARAMS
    )  # and is accepted: the state is spent
    rig.answer(first, TEXT)
    rig.session.admit()
    assert rig.started.pop().call.answers.keys() == {"who"}


def test_a_retry_whose_state_another_process_has_used_is_refused():
    class UsedElsewhere:
        def use(self, nonce: bytes, until: float) -> bool:
            return False

    seal = Seal(bytes(32), lambda: 1e6, bytes, record=UsedElsewhere())
    rig = Rig()
    rig.session.dialogues._get_seal = lambda: seal  # pyright: ignore[reportPrivateUsage]
    result = input_required_result(rig, 1, modern(CALL, **DECLARED), InputRequired({"who": WHO}))
    retry = {**CALL, "requestState": result["requestState"], "inputResponses": {"who": ADA}}
    assert code(rig.ask(2, "tools/call", modern(retry))) == BAD_PARAMS
    assert rig.started == []


def test_requests_are_served_for_the_principal_that_was_identified_last():
    rig = Rig()
    alice = Principal("alice")
    rig.session.identify(alice)
    assert rig.call(1, "tools/call", modern(CALL)).profile.principal is alice


def test_the_first_call_after_the_handshake_may_have_members_of_a_retry():
    rig = Rig()
    rig.ask("hello", "initialize", opening(D))
    rig.call(1, "tools/call", {**CALL, "requestState": 5, "_meta": {"progressToken": 1}})
    assert rig.session.lifecycle.state == "ready"


def test_a_suspended_call_is_answered_with_input_required():
    rig = sealing(Rig())
    incoming = rig.call(1, "tools/call", modern(CALL, **DECLARED))
    rig.session.dialogues.open(incoming).ask({"q1": to_wire_request(WHO)})
    rig.session.reply_suspended(incoming)
    [answer] = rig.take_sent()
    assert answer["result"]["resultType"] == "input_required"


def test_before_2026_07_28_a_question_is_a_request_and_there_are_only_so_many():
    rig = Rig(max_questions=2).opened(D)
    heard: list[Any] = []
    for number in (1, 2):
        rig.session.send_client_request(to_wire_request(WHO), heard.append)
        [asked] = rig.take_sent()
        assert (asked["id"], asked["method"], asked["params"]["message"]) == (
            number,
            "elicitation/create",
            "Who?",
        )
    with pytest.raises(RpcError, match="busy: 2 questions"):
        rig.session.send_client_request(to_wire_request(WHO), heard.append)
    rig.feed({"jsonrpc": "2.0", "id": 1, "result": ADA})
    assert [json.loads(bytes(each)) for each in heard] == [ADA]
    rig.session.send_client_request(to_wire_request(WHO), heard.append)


@pytest.mark.requirement("PR-8")
def test_progress_that_a_client_tells_of_a_question_disturbs_nothing():
    """REQUIREMENTS PR-8: it may, if the question has a token; ours have none."""
    rig = Rig().opened(D)
    heard: list[Any] = []
    rig.session.send_client_request(to_wire_request(WHO), heard.append)
    [asked] = rig.take_sent()
    assert "_meta" not in asked["params"]
    progress = {
        "jsonrpc": "2.0",
        "method": "notifications/progress",
        "params": {"progressToken": 1, "progress": 1},
    }
    assert rig.feed(progress) == []
    rig.feed({"jsonrpc": "2.0", "id": asked["id"], "result": ADA})
    assert len(heard) == 1


def test_what_may_have_to_be_changed_first_is_not_answered_yet() -> None:
    rig = Rig().opened(D)
    incoming = rig.call(1, "tools/call", {"name": "x"})
    assert not rig.session.respond(incoming, TEXT, lambda text: False)
    assert rig.take_sent() == []
    assert rig.session.respond(incoming, TEXT, lambda text: True)
    assert [answer["id"] for answer in rig.take_sent()] == [1]


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_a_method_that_the_specification_does_not_define_reaches_a_backend_that_wants_it(
    era: str,
) -> None:
    rig = Rig(replace(EVERYTHING, other_methods=True), max_in_flight=1)
    rig.onlooker = None
    params = {"a": 1}
    if era == "legacy":
        # Some clients never send notifications/initialized.
        rig.ask("hello", "initialize", opening(D))
        assert rig.session.lifecycle.state == "opened"
    else:
        params = modern(params)
    incoming = rig.call(1, "example.com/x", params)
    assert rig.session.lifecycle.state == ("ready" if era == "legacy" else "fresh")
    assert incoming.call.method == "example.com/x"
    assert bytes(incoming.call.params["a"]) == b"1"

    # The next one waits, as other calls do.
    assert rig.feed(request(2, "example.com/x", params)) == []
    assert rig.started == []

    result = Raw(b'{"any":  "thing"}')
    incoming.forwarded = result
    assert rig.answer(incoming, result) == {"jsonrpc": "2.0", "id": 1, "result": {"any": "thing"}}


def test_a_method_that_the_specification_does_not_define_is_unknown_to_other_backends() -> None:
    rig = Rig().opened(D)
    assert code(rig.ask(1, "example.com/x", {"a": 1})) == NO_METHOD


def test_a_result_of_another_server_is_checked_like_others_where_somebody_asks() -> None:
    rig = Rig().opened(D)
    incoming = rig.call(1, "tools/call", {"name": "x"})
    result = Raw(b'{"content":[]}')
    incoming.forwarded = result
    assert not rig.session.respond(incoming, result, lambda text: False)
    assert rig.take_sent() == []


@pytest.mark.parametrize("id", [7, "seven"])
@pytest.mark.parametrize("size", [10, 1_000_000])
def test_a_result_of_any_length_is_one_frame_with_the_id_of_its_request(
    id: int | str, size: int
) -> None:
    rig = Rig().opened(D)
    incoming = rig.call(id, "tools/call", {"name": "x"})
    answer = rig.answer(incoming, CallToolResult([TextContent("x" * size)]))
    content = [{"type": "text", "text": "x" * size}]
    assert answer == {"jsonrpc": "2.0", "id": id, "result": {"content": content}}


@pytest.mark.parametrize(("version", "expected"), [(D, [("example.com/moved", b"1")]), (E, [])])
def test_a_notification_that_the_session_does_not_know_is_passed_on_in_the_legacy_era(
    version: str, expected: list[tuple[str, bytes]]
) -> None:
    passed: list[tuple[str, bytes]] = []
    session = Session(
        lambda: EVERYTHING,
        lambda frame, about: 0,
        lambda incoming: None,
        Limits(),
        lambda: 0.0,
        on_notification=lambda method, params: passed.append((method, bytes(params["to"]))),
    )
    if version == D:
        session.receive(json.dumps(request("hello", "initialize", opening(D))).encode())
    session.receive(b'{"jsonrpc":"2.0","method":"example.com/moved","params":{"to":1}}')
    session.receive(b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{}}')
    assert passed == expected
