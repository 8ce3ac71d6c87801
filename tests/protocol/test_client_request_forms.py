"""protocol/client_request_forms.py: what a call asks, in whose words, and who may be asked.

Rules: 2026-07-28 client/elicitation, client/sampling, client/roots (REQUIREMENTS A.8, A.20); the
shapes that older revisions carry: part B.3, and their schemas.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
import wire
from msgspec import Raw

from concertino.errors import MissingCapability
from concertino.protocol.call import ClientFacts
from concertino.protocol.client_request_forms import (
    read_forwarded,
    to_wire_request,
    translate_request,
)
from concertino.protocol.revisions import REVISION_BY_NAME
from concertino.types.client_requests import (
    ClientRequest,
    Elicitation,
    InputRequest,
    ListRoots,
    Sampling,
    SamplingMessage,
    ToolResultContent,
    ToolUseContent,
)
from concertino.types.results import AudioContent, TextContent

A, B, C, D, E = wire.REVISIONS
FORM: dict[str, Any] = {"type": "object", "properties": {"name": {"type": "string"}}}


def client(revision: str, capabilities: Any) -> ClientFacts:
    return ClientFacts("c", "1", revision, capabilities)


def put(question: ClientRequest, revision: str, capabilities: Any) -> InputRequest:
    return translate_request(
        to_wire_request(question),
        REVISION_BY_NAME[revision],
        client(revision, capabilities),
        lambda: "visit-1",
    )


ALL = {
    "elicitation": {"form": {}, "url": {}},
    "sampling": {"tools": {}, "context": {}},
    "roots": {},
}
PLAIN = Sampling([SamplingMessage("user", TextContent("hi"))], 10)
VISIT = Elicitation("Open?", "url", url="https://example.com")
ASK = Elicitation("Who?", requested_schema=FORM)
TOOLS = Sampling(
    [SamplingMessage("user", TextContent("hi"))],
    10,
    tools=[{"name": "t", "inputSchema": {"type": "object"}}],
)
CHOICE = Sampling([SamplingMessage("user", TextContent("hi"))], 10, tool_choice={"mode": "auto"})
CONTEXT = Sampling([SamplingMessage("user", TextContent("hi"))], 10, include_context="thisServer")
MULTIPLE = Elicitation(
    "Which?",
    requested_schema={
        "type": "object",
        "properties": {"x": {"type": "array", "items": {"enum": ["a"]}}},
    },
)
USED = Sampling(
    [
        SamplingMessage("assistant", ToolUseContent("1", "t", {})),
        SamplingMessage("user", ToolResultContent("1", [])),
    ],
    10,
)
SOUND = Sampling(
    [SamplingMessage("user", [TextContent("hi"), AudioContent("AAAA", "audio/wav")])], 10
)
ELICITATION, SAMPLING, ROOTS = {"elicitation": {}}, {"sampling": {}}, {"roots": {}}


@pytest.mark.requirement("ME-5", "ME-6", "MR-5", "EL-3", "SA-4", "SA-6", "RO-4")
@pytest.mark.parametrize(
    ("question", "revision", "capabilities", "required"),
    [
        (ASK, E, {}, ELICITATION),
        (ASK, E, {"elicitation": None}, ELICITATION),
        (ASK, A, ALL, ELICITATION),
        (ASK, B, ALL, ELICITATION),
        (ASK, C, ELICITATION, None),
        (ASK, D, ELICITATION, None),
        (ASK, E, ELICITATION, None),
        (ASK, E, {"elicitation": {"url": {}}}, {"elicitation": {"form": {}}}),
        (VISIT, E, ELICITATION, {"elicitation": {"url": {}}}),
        (VISIT, C, ALL, {"elicitation": {"url": {}}}),
        (VISIT, D, ALL, None),
        (MULTIPLE, C, ALL, {"elicitation": {"form": {}}}),
        (MULTIPLE, D, ALL, None),
        (PLAIN, E, {}, SAMPLING),
        (PLAIN, A, SAMPLING, None),
        (TOOLS, E, SAMPLING, {"sampling": {"tools": {}}}),
        (CHOICE, E, SAMPLING, {"sampling": {"tools": {}}}),
        (TOOLS, C, ALL, {"sampling": {"tools": {}}}),
        (TOOLS, D, ALL, None),
        (USED, C, ALL, {"sampling": {"tools": {}}}),
        (USED, D, ALL, None),
        (SOUND, A, ALL, SAMPLING),
        (SOUND, B, ALL, None),
        (CONTEXT, E, SAMPLING, {"sampling": {"context": {}}}),
        (CONTEXT, D, ALL, None),
        (CONTEXT, C, SAMPLING, None),
        (ListRoots(), E, {}, ROOTS),
        (ListRoots(), A, ROOTS, None),
    ],
)
def test_only_what_was_declared_is_asked(
    question: ClientRequest, revision: str, capabilities: Any, required: Any
) -> None:
    """REQUIREMENTS ME-5, ME-6, MR-5, EL-3, SA-4, SA-6, RO-4."""
    if required is None:
        put(question, revision, capabilities)
        return
    with pytest.raises(MissingCapability) as error:
        put(question, revision, capabilities)
    assert (error.value.code, error.value.data) == (-32021, {"requiredCapabilities": required})
    wire.check(required, E, "ClientCapabilities")


@pytest.mark.parametrize(
    ("request_of_a_server", "missing"),
    [
        (b'{"method":"elicitation/create","params":{"message":"Who?"}}', None),
        (b'{"method":"roots/list"}', {"roots": {}}),
        # What a later revision may add is the client's own affair.
        (b'{"method":"example.com/ask","params":{"x":1}}', None),
    ],
)
def test_a_forwarded_request_needs_what_the_client_declared(
    request_of_a_server: bytes, missing: Any
) -> None:
    client = ClientFacts("c", "1", E, {"elicitation": {}})
    if missing is None:
        request = read_forwarded(Raw(request_of_a_server), client)
        assert request.method == json.loads(request_of_a_server)["method"]
        return
    with pytest.raises(MissingCapability) as error:
        read_forwarded(Raw(request_of_a_server), client)
    assert error.value.data == {"requiredCapabilities": missing}


@pytest.mark.parametrize("raw", [b"5", b"{}", b'{"method":5}'])
def test_what_another_server_sends_instead_of_a_request_is_refused(raw: bytes) -> None:
    with pytest.raises(ValueError, match=r"Expected|required field"):
        read_forwarded(Raw(raw), ClientFacts("c", "1", E, {}))


def asked_params(question: ClientRequest, revision: str) -> Any:
    request = put(question, revision, ALL)
    value = {"method": request.method, "params": json.loads(bytes(request.params))}
    name = {"elicitation/create": "ElicitRequest", "sampling/createMessage": "CreateMessageRequest"}
    message = value if revision == E else {"jsonrpc": "2.0", "id": 1, **value}
    wire.check(message, revision, name.get(request.method, "ListRootsRequest"))
    return value["params"]


@pytest.mark.requirement("EL-12", "EL-13")
def test_a_visit_has_an_id_in_2025_11_25_and_none_since() -> None:
    """REQUIREMENTS EL-13."""
    assert asked_params(VISIT, D)["elicitationId"] == "visit-1"
    named = Elicitation("Open?", "url", url="https://example.com", elicitation_id="mine")
    assert asked_params(named, D)["elicitationId"] == "mine"
    assert "elicitationId" not in asked_params(named, E)


def test_a_form_for_2025_06_18_has_enum_names_and_only_boolean_defaults() -> None:
    properties = {
        "size": {"type": "string", "oneOf": [{"const": "s", "title": "Small"}], "default": "s"},
        "count": {"type": "integer", "default": 3},
        "sure": {"type": "boolean", "default": True},
    }
    question = Elicitation("Which?", requested_schema={"type": "object", "properties": properties})
    assert asked_params(question, D)["requestedSchema"]["properties"] == properties
    assert asked_params(question, C)["requestedSchema"]["properties"] == {
        "size": {"type": "string", "enum": ["s"], "enumNames": ["Small"]},
        "count": {"type": "integer"},
        "sure": {"type": "boolean", "default": True},
    }


def test_several_pieces_of_content_are_several_messages_for_older_models() -> None:
    use = ToolUseContent("1", "t", {})
    question = Sampling(
        [
            SamplingMessage("user", [TextContent("a"), TextContent("b")]),
            SamplingMessage("user", TextContent("c")),
        ],
        10,
    )
    assert [each["content"]["text"] for each in asked_params(question, A)["messages"]] == [
        "a",
        "b",
        "c",
    ]
    assert len(asked_params(question, E)["messages"]) == 2
    result = ToolResultContent("1", [TextContent("3")])
    tools = Sampling([SamplingMessage("assistant", [use]), SamplingMessage("user", [result])], 10)
    assert asked_params(tools, D)["messages"][1]["content"][0]["toolUseId"] == "1"


def test_meta_does_not_travel_with_a_question() -> None:
    assert "_meta" not in asked_params(Elicitation("Who?", requested_schema=FORM, meta={"k": 1}), E)
    assert asked_params(ListRoots(), E) == asked_params(ListRoots(), A) == {}


@pytest.mark.parametrize(
    ("question", "said"),
    [
        (Elicitation("Who?"), "needs requested_schema"),
        (Elicitation("Open?", "url"), "needs url"),
        (InputRequest("ping"), "expected one of elicitation/create"),
        (
            Elicitation("Who?", requested_schema={"type": "object"}),
            "a requested_schema with properties",
        ),
        (InputRequest("elicitation/create", Raw(b'{"message":"Who?"}')), "needs requested_schema"),
        (
            InputRequest("elicitation/create", Raw(b"[1]")),
            "ask: elicitation/create: Expected object, got array",
        ),
        (InputRequest("elicitation/create"), "ask: elicitation/create: .* field message"),
        (
            InputRequest(
                "sampling/createMessage", Raw(b'{"maxTokens":1,"messages":[{"role":"user"}]}')
            ),
            "field content",
        ),
    ],
)
def test_what_is_no_question_is_refused(question: ClientRequest, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        to_wire_request(question)


def test_a_question_as_it_is_on_the_wire_is_one_too() -> None:
    foreign = InputRequest("roots/list", Raw(b'{"x":1}'))
    assert to_wire_request(foreign) is foreign
