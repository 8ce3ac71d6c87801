"""session_methods.py: initialize, ping, discover, log levels and subscriptions.

Rules: 2025-11-25 basic/lifecycle; 2026-07-28 server/discover.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
import wire
from catalogue import INFO
from msgspec.json import encode
from session_rig import (
    BAD_PARAMS,
    CAPABILITIES,
    INVALID,
    NO_METHOD,
    VERSION,
    A,
    B,
    C,
    D,
    E,
    Rig,
    code,
    modern,
    opening,
    received_levels,
    request,
)

from concertino.protocol.call import ServerFeatures
from concertino.types.results import (
    Implementation,
)


@pytest.mark.requirement("LC-6", "TO-1")
def test_initialize_is_answered_with_version_capabilities_and_who_we_are():
    answer = Rig().ask(1, "initialize", opening(D))
    result = answer["result"]
    assert result["protocolVersion"] == D
    assert result["capabilities"] == {
        "logging": {},
        "completions": {},
        "prompts": {"listChanged": True},
        "resources": {"subscribe": True, "listChanged": True},
        "tools": {"listChanged": True},
        "experimental": {"x": {}},
    }
    assert result["serverInfo"]["name"] == "catalogue"
    assert result["instructions"] == "Use it."


@pytest.mark.requirement("DI-2")
def test_what_is_not_offered_is_not_declared():
    result = Rig(ServerFeatures(Implementation("n", "1"))).ask(1, "initialize", opening(A))[
        "result"
    ]
    assert result == {
        "protocolVersion": A,
        "capabilities": {},
        "serverInfo": {"name": "n", "version": "1"},
    }


@pytest.mark.requirement("LC-4", "ER-12")
@pytest.mark.parametrize(
    ("asked", "answered"),
    [(A, A), (B, B), (C, C), (D, D), (E, D), ("2030-01-01", D), ("1", D), ("", D)],
)
def test_initialize_is_answered_with_the_version_asked_for_or_our_newest_with_a_handshake(
    asked: str, answered: str
):
    assert Rig().ask(1, "initialize", opening(asked))["result"]["protocolVersion"] == answered


def test_a_second_initialize_is_refused_and_changes_nothing():
    rig = Rig()
    rig.ask(1, "initialize", opening(C))
    assert code(rig.ask(2, "initialize", opening(A))) == INVALID
    rig.feed({"jsonrpc": "2.0", "method": "notifications/initialized"})
    assert code(rig.ask(3, "initialize", opening(A))) == INVALID
    assert rig.call(4, "tools/list").profile.client.protocol_version == C


@pytest.mark.parametrize(
    ("params", "text"),
    [
        (None, "Object missing required field `protocolVersion`"),
        ({}, "Object missing required field `protocolVersion`"),
        ({"protocolVersion": 5}, "protocolVersion: expected str, got int"),
        ({"protocolVersion": A, "capabilities": []}, "capabilities: expected object, got array"),
        (
            {"protocolVersion": A, "clientInfo": {"name": 5}},
            "clientInfo.name: expected str, got int",
        ),
        ({"protocolVersion": A, "clientInfo": None}, "clientInfo: expected object, got null"),
    ],
)
def test_a_malformed_initialize_is_refused_and_a_good_one_may_follow(params: Any, text: str):
    rig = Rig()
    answer = rig.ask(1, "initialize", params)
    assert code(answer) == BAD_PARAMS
    assert answer["error"]["message"].lower() == f"invalid params: {text}".replace("`", "").lower()
    assert "result" in rig.ask(1, "initialize", opening(D))


def test_a_client_that_does_not_say_who_it_is_is_served():
    rig = Rig()
    rig.ask(1, "initialize", {"protocolVersion": D})
    client = rig.call(2, "tools/list").profile.client
    assert (client.name, client.version, client.capabilities, client.protocol_version) == (
        "",
        "",
        {},
        D,
    )


def test_the_backend_learns_who_calls():
    rig = Rig().opened(C)
    client = rig.call(2, "tools/list").profile.client
    assert (client.name, client.version, client.title, client.protocol_version) == (
        "c",
        "1",
        None,
        C,
    )
    assert client.capabilities == {"roots": {}}


def test_initialize_is_not_served_in_a_batch():
    rig = Rig()
    rig.session.peer.batches.accepted = True
    [message] = [request(1, "initialize", opening(B))]
    rig.onlooker = None
    [[answer]] = rig.feed([message])
    assert code(answer) == INVALID
    assert rig.session.lifecycle.state == "fresh"


@pytest.mark.requirement("LC-1", "ME-3")
@pytest.mark.parametrize(
    "method", ["tools/list", "tools/call", "logging/setLevel", "server/discover", "prompts/get"]
)
@pytest.mark.parametrize("params", [None, {}, {"_meta": {}}, {"_meta": {"progressToken": 1}}])
def test_a_request_before_initialize_says_what_is_missing_and_initialize_works_after_it(
    method: str, params: Any
):
    rig = Rig()
    answer = rig.ask(1, method, params)
    assert code(answer) == BAD_PARAMS
    assert answer["error"]["data"] == {
        "supported": list(wire.REVISIONS),
        "missing": [VERSION, CAPABILITIES],
    }
    assert rig.started == []
    assert "result" in rig.ask(2, "initialize", opening(D))


def test_a_call_or_an_empty_initialize_by_hand_says_what_to_send_first():
    """Echoes of the source documents: both are refused (LC-1, JR-16), with a line that works."""
    rig = Rig()
    message = rig.ask(2, "tools/list")["error"]["message"]
    line = message.partition("; send first: ")[2]
    error = rig.ask(1, "initialize", {})["error"]
    assert error["data"] == {"details": "Missing required field: protocolVersion", "send": line}
    [answer] = rig.feed(json.loads(line))
    assert answer["result"]["protocolVersion"] == D
    rig.call(3, "tools/list")


@pytest.mark.requirement("LC-14")
def test_ping_is_answered_before_and_after_initialize():
    rig = Rig()
    assert rig.ask("p", "ping")["result"] == {}
    assert rig.ask("p", "ping", {"_meta": {"progressToken": 1}})["result"] == {}
    assert rig.opened(A).ask("p", "ping", {})["result"] == {}


@pytest.mark.requirement("JR-16")
@pytest.mark.parametrize(
    "method", ["nope", "tools/List", "subscriptions/Listen", "tasks/list", "sampling/createMessage"]
)
def test_an_unknown_method_is_not_found(method: str):
    rig = Rig()
    assert code(rig.ask(1, method)) == NO_METHOD
    assert code(rig.opened().ask(2, method)) == NO_METHOD
    assert code(rig.ask(3, method, modern())) == NO_METHOD


@pytest.mark.requirement("LC-10", "DI-2", "CP-4")
@pytest.mark.parametrize(
    "method", ["tools/list", "tools/call", "prompts/list", "resources/read", "completion/complete"]
)
def test_a_feature_that_is_not_offered_is_not_found(method: str):
    rig = Rig(ServerFeatures(Implementation("n", "1"))).opened()
    assert code(rig.ask(1, method, {})) == NO_METHOD
    assert code(rig.ask(2, method, modern())) == NO_METHOD
    assert code(rig.ask(3, "logging/setLevel", {"level": "info"})) == NO_METHOD


@pytest.mark.requirement("ER-1", "DI-1", "DI-3", "CH-1")
def test_discover_says_what_there_is():
    assert Rig().ask("d", "server/discover", modern())["result"] == {
        "resultType": "complete",
        "_meta": {"io.modelcontextprotocol/serverInfo": json.loads(wire_info())},
        "supportedVersions": [E],
        "capabilities": {
            "logging": {},
            "completions": {},
            "prompts": {"listChanged": True},
            "resources": {"subscribe": True, "listChanged": True},
            "tools": {"listChanged": True},
            "experimental": {"x": {}},
            "extensions": {"example.com/x": {"a": 1}},
        },
        "instructions": "Use it.",
        "ttlMs": 60_000,
        "cacheScope": "public",
    }


def wire_info() -> bytes:

    return encode(INFO)


def test_discover_without_instructions_has_none():
    result = Rig(ServerFeatures(Implementation("n", "1"))).ask(1, "server/discover", modern())[
        "result"
    ]
    assert "instructions" not in result
    assert result["capabilities"] == {}
    assert (result["ttlMs"], result["cacheScope"]) == (0, "private")


@pytest.mark.requirement("ME-20")
@pytest.mark.parametrize("method", ["initialize", "ping", "logging/setLevel"])
def test_what_2026_07_28_removed_is_not_found_with_modern_meta(method: str):
    rig = Rig()
    assert code(rig.ask(1, method, modern(opening(D)))) == NO_METHOD
    assert rig.session.lifecycle.state == "fresh"


def test_discover_does_not_exist_for_those_who_shook_hands():
    assert code(Rig().opened().ask(1, "server/discover", {})) == NO_METHOD


@pytest.mark.requirement("JR-9")
@pytest.mark.parametrize(("version", "null"), [(A, True), (B, True), (C, True), (D, False)])
def test_an_unreadable_id_is_null_before_2025_11_25_and_left_out_since(version: str, null: bool):
    rig = Rig().opened(version)
    [answer] = rig.feed(b"{not json}")
    assert ("id" in answer) is null


@pytest.mark.requirement("LO-5")
@pytest.mark.parametrize("params", [None, {}, {"level": "loud"}, {"level": 5}, {"level": None}])
def test_a_level_that_does_not_exist_is_refused(params: Any):
    answer = Rig().opened().ask(1, "logging/setLevel", params)
    assert code(answer) == BAD_PARAMS
    assert "level" in answer["error"]["message"]


@pytest.mark.parametrize("method", ["resources/subscribe", "resources/unsubscribe"])
def test_a_subscription_without_a_uri_is_refused(method: str):
    rig = Rig().opened()
    for params, text in (
        ({}, "uri: required, but missing"),
        ({"uri": 5}, "uri: expected str, got int"),
        ({"uri": ""}, "uri: expected 1 to 8192 characters, got 0"),
        ({"uri": "a:" + "b" * 8191}, "uri: expected 1 to 8192 characters, got 8193"),
    ):
        answer = rig.ask(1, method, params)
        assert (code(answer), answer["error"]["message"]) == (BAD_PARAMS, f"Invalid params: {text}")


def test_subscriptions_have_a_limit():
    rig = Rig(max_subscriptions=2).opened()
    for uri in ("a:1", "a:2", "a:1"):
        rig.ask(1, "resources/subscribe", {"uri": uri})
    answer = rig.ask(2, "resources/subscribe", {"uri": "a:3"})
    assert (code(answer), answer["error"]["data"]) == (-31001, {"maxSubscriptions": 2})
    rig.ask(3, "resources/unsubscribe", {"uri": "a:1"})
    assert rig.ask(4, "resources/subscribe", {"uri": "a:3"})["result"] == {}


@pytest.mark.parametrize(("resources", "subscriptions"), [(True, False), (False, True)])
def test_subscriptions_that_are_not_offered_are_not_found(resources: bool, subscriptions: bool):
    rig = Rig(
        ServerFeatures(Implementation("n", "1"), resources=resources, subscriptions=subscriptions)
    )
    declared = rig.ask(0, "initialize", opening(D))["result"]["capabilities"]
    assert declared == ({"resources": {"listChanged": True}} if resources else {})
    assert code(rig.ask(1, "resources/subscribe", {"uri": "a:b"})) == NO_METHOD


@pytest.mark.parametrize("method", ["resources/subscribe", "resources/unsubscribe"])
def test_subscribing_is_no_method_of_2026_07_28(method: str):
    assert code(Rig().opened().ask(1, method, modern({"uri": "a:b"}))) == NO_METHOD


def test_a_long_name_is_not_given_back_whole() -> None:
    rig = Rig().opened()
    answer = rig.ask(1, "m" * 10_000, {})
    assert answer["error"] == {"code": -32601, "message": "method not found: " + "m" * 128}


@pytest.mark.requirement("LO-5")
def test_a_level_holds_for_the_requests_that_follow():
    rig = Rig().opened()
    assert rig.ask(1, "logging/setLevel", {"level": "error"})["result"] == {}
    call = rig.call(2, "tools/list")
    assert received_levels(rig, call) == ["error", "critical", "alert", "emergency"]


def test_a_client_of_2026_07_28_subscribes_with_a_request_that_stays_open():
    rig = Rig()
    [acknowledged] = rig.feed(
        request(7, "subscriptions/listen", modern({"notifications": {"toolsListChanged": True}}))
    )
    assert acknowledged["method"] == "notifications/subscriptions/acknowledged"
    assert rig.session.subscriptions.open_count == 1


@pytest.mark.parametrize("method", ["subscriptions/listen", "resources/subscribe"])
def test_subscriptions_of_another_era_are_not_found(method: str):
    rig = Rig(ServerFeatures(Implementation("n", "1"))).opened()
    assert code(rig.ask(1, method, {"uri": "a:b"})) == NO_METHOD
