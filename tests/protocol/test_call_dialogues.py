"""call_dialogues.py: calls that ask their client, their sealed states, and how they are repeated.

Rules: 2026-07-28 basic/patterns/mrtr; requirements MR-1 to MR-18.
"""

from __future__ import annotations

import json

import pytest
from msgspec import Raw
from msgspec.json import encode
from session_rig import (
    ADA,
    BAD_PARAMS,
    CALL,
    DECLARED,
    FORM,
    TEXT,
    WHO,
    D,
    Rig,
    code,
    input_required_result,
    modern,
    sealing,
)

from concertino.errors import MissingCapability, RpcError
from concertino.protocol.call import InputRequired
from concertino.protocol.client_request_forms import to_wire_request


@pytest.mark.requirement("ME-12", "MR-1", "MR-4")
def test_a_backend_s_questions_are_the_answer_and_the_next_call_has_what_was_said():
    """2026-07-28 basic/patterns/mrtr; REQUIREMENTS MR-1, MR-3, MR-4, MR-17, MR-18."""
    rig = sealing(Rig())
    result = input_required_result(
        rig, 1, modern(CALL, **DECLARED), InputRequired({"who": WHO}, b"\x00mine")
    )
    assert result["resultType"] == "input_required"
    assert result["inputRequests"] == {
        "who": {
            "method": "elicitation/create",
            "params": {"message": "Who?", "requestedSchema": FORM},
        }
    }
    assert result.keys() == {"resultType", "_meta", "inputRequests", "requestState"}
    again = {
        **CALL,
        "requestState": result["requestState"],
        "inputResponses": {"who": ADA, "extra": 5},
    }
    incoming = rig.call(2, "tools/call", modern(again, **DECLARED))
    assert incoming.call.params.keys() == {"name", "arguments"}
    assert {key: json.loads(bytes(each)) for key, each in incoming.call.answers.items()} == {
        "who": ADA
    }
    assert incoming.call.state == b"\x00mine"
    rig.answer(incoming, TEXT)
    refused = rig.ask(3, "tools/call", modern(again, **DECLARED))
    assert refused["error"] == {
        "code": BAD_PARAMS,
        "message": "Invalid params: requestState: it was used before",
    }
    assert rig.started == []


@pytest.mark.requirement("MR-3")
def test_a_state_alone_is_an_answer_and_neither_is_none():
    rig = sealing(Rig())
    result = input_required_result(rig, 1, modern(CALL), InputRequired(state=b"x"))
    assert "inputRequests" not in result
    incoming = rig.call(2, "tools/call", modern(CALL))
    with pytest.raises(ValueError, match="expected questions, or a state"):
        rig.session.reply_input_required(incoming, InputRequired())
    with pytest.raises(RpcError, match="the limit is 65536"):
        rig.session.reply_input_required(incoming, InputRequired(state=b"x" * 65536))
    with pytest.raises(MissingCapability):
        rig.session.reply_input_required(incoming, InputRequired({"who": WHO}))


@pytest.mark.requirement("MR-7")
def test_a_state_belongs_to_its_method_its_params_and_its_caller():
    rig = sealing(Rig())
    state = input_required_result(rig, 1, modern(CALL, **DECLARED), InputRequired({"who": WHO}))[
        "requestState"
    ]
    for method, params in (("prompts/get", CALL), ("tools/call", {**CALL, "arguments": {"a": 2}})):
        assert code(rig.ask(2, method, modern({**params, "requestState": state}))) == BAD_PARAMS
    rig.session.dialogues._identity = b"somebody else"  # pyright: ignore[reportPrivateUsage]
    assert code(rig.ask(3, "tools/call", modern({**CALL, "requestState": state}))) == BAD_PARAMS
    rig.session.dialogues._identity = b""  # pyright: ignore[reportPrivateUsage]
    rig.call(4, "tools/call", modern({**CALL, "requestState": state}))


@pytest.mark.requirement("MR-1")
def test_a_suspended_call_is_answered_with_what_it_asked():
    rig = sealing(Rig())
    incoming = rig.call(1, "tools/call", modern(CALL, **DECLARED))
    dialogue = rig.session.dialogues.open(incoming)
    assert rig.session.dialogues.open(incoming) is dialogue
    assert dialogue.ask({"q1": to_wire_request(WHO)}) is None
    rig.session.reply_suspended(incoming)
    [answer] = rig.take_sent()
    assert list(answer["result"]["inputRequests"]) == ["q1"]


@pytest.mark.requirement("MR-2")
@pytest.mark.parametrize("method", ["tools/list", "completion/complete"])
def test_lists_and_completions_may_not_ask(method: str):
    """REQUIREMENTS MR-2."""
    rig = sealing(Rig())
    incoming = rig.call(1, method, modern(**DECLARED))
    with pytest.raises(RpcError, match="may not ask"):
        rig.session.dialogues.open(incoming)


def test_a_session_without_a_seal_says_so():
    rig = Rig()
    incoming = rig.call(1, "tools/call", modern(CALL))
    with pytest.raises(RuntimeError, match="made without a seal"):
        rig.session.reply_input_required(incoming, InputRequired(state=b"x"))


def test_what_a_retry_has_means_nothing_to_older_callers_and_to_methods_that_may_not_ask():
    rig = Rig()
    extra = {"requestState": 5, "inputResponses": 5}
    incoming = rig.call(1, "tools/list", modern(extra))
    assert incoming.call.params == {}
    rig.opened(D)
    incoming = rig.call(2, "tools/call", {**CALL, **extra, "_meta": {"progressToken": 1}})
    assert incoming.call.params.keys() == CALL.keys()
    assert (incoming.call.answers, incoming.call.state) == ({}, b"")


def test_requests_of_another_server_go_to_a_modern_client_as_they_are():
    raw = Raw(
        b'{"method":"elicitation/create","params":{"message":"Who?","mode":"form",'
        b'"requestedSchema":{"type":"object","properties":{}},"example.com/x":1}}'
    )
    rig = sealing(Rig())
    result = input_required_result(
        rig, 1, modern(CALL, **DECLARED), InputRequired({"who": raw, "name": WHO}, b"")
    )
    assert result["inputRequests"] == {
        "who": json.loads(bytes(raw)),
        "name": {
            "method": "elicitation/create",
            "params": {"message": "Who?", "requestedSchema": FORM},
        },
    }
    refused = rig.call(2, "tools/call", modern(CALL, **DECLARED))
    with pytest.raises(MissingCapability):
        rig.session.dialogues.set_client_requests(
            refused, InputRequired({"where": Raw(b'{"method":"roots/list"}')}, b"")
        )


def test_requests_of_another_server_are_put_to_an_older_client_in_its_words():
    rig = Rig().opened(D)
    incoming = rig.call(1, "tools/call", CALL)
    dialogue = rig.session.dialogues.set_client_requests(
        incoming,
        InputRequired({"where": Raw(b'{"method":"roots/list","params":{"_meta":{}}}')}, b""),
    )
    assert dialogue.forwarded == {}
    assert json.loads(encode(dialogue.unanswered)) == {
        "where": {"method": "roots/list", "params": {}}
    }
