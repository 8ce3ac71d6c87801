"""questions.py: what a server asks of its client and what it gets back, in the shapes of the
official schema.

The examples of the specification are read and written again in test_spec_examples.py.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import wire

from concertino.types import client_requests
from concertino.types.results import AudioContent, ImageContent, TextContent

META = {"example.com/k": [None]}
TOOL_USE = client_requests.ToolUseContent("1", "add", {"a": 1}, META)
TOOL_RESULT = client_requests.ToolResultContent(
    "1", [TextContent("3")], {"result": 3}, is_error=True, meta=META
)
CASES: list[tuple[msgspec.Struct, str]] = [
    (
        client_requests.Elicitation("Who?", requested_schema={"type": "object", "properties": {}}),
        "ElicitRequestFormParams",
    ),
    (
        client_requests.Elicitation(
            "Open it?", "url", url="https://example.com", elicitation_id="1"
        ),
        "ElicitRequestURLParams",
    ),
    (
        client_requests.ElicitResult("accept", {"name": "x", "old": True, "tags": ["a"]}),
        "ElicitResult",
    ),
    (client_requests.ElicitResult("cancel"), "ElicitResult"),
    (TOOL_USE, "ToolUseContent"),
    (TOOL_RESULT, "ToolResultContent"),
    (client_requests.SamplingMessage("user", TextContent("hi"), META), "SamplingMessage"),
    (
        client_requests.SamplingMessage(
            "assistant", [ImageContent(b"", "image/png"), AudioContent(b"", "audio/wav"), TOOL_USE]
        ),
        "SamplingMessage",
    ),
    (
        client_requests.Sampling(
            [client_requests.SamplingMessage("user", TextContent("hi"))],
            100,
            "Be brief.",
            {"hints": [{"name": "m"}], "costPriority": 0.5},
            "none",
            0.5,
            ["."],
            {"k": 1},
            [{"name": "add", "inputSchema": {"type": "object"}}],
            {"mode": "auto"},
        ),
        "CreateMessageRequestParams",
    ),
    (
        client_requests.CreateMessageResult("assistant", TextContent("hi"), "m", "endTurn", META),
        "CreateMessageResult",
    ),
    (client_requests.Root("file:///a", "a", META), "Root"),
    (client_requests.ListRootsResult([client_requests.Root("file:///a")]), "ListRootsResult"),
]


def to_json(value: msgspec.Struct) -> dict[str, Any]:
    return msgspec.json.decode(msgspec.json.encode(value))


@pytest.mark.parametrize(
    ("value", "definition"), CASES, ids=lambda value: value if isinstance(value, str) else ""
)
def test_every_type_is_in_the_shape_of_2026_07_28_and_survives_it(
    value: msgspec.Struct, definition: str
) -> None:
    members = to_json(value)
    if definition == "ElicitRequestURLParams":
        members.pop("elicitationId")  # 2025-11-25 alone has it
    wire.check(members, wire.MODERN, definition)
    assert msgspec.json.decode(msgspec.json.encode(value), type=type(value)) == value


def test_what_is_not_said_is_not_written() -> None:
    assert to_json(client_requests.Elicitation("Who?")) == {"message": "Who?"}
    assert to_json(client_requests.ElicitResult("decline")) == {"action": "decline"}
    assert to_json(client_requests.Sampling([], 5)) == {"messages": [], "maxTokens": 5}
    assert to_json(client_requests.Root("file:///a")) == {"uri": "file:///a"}


def test_a_result_that_is_none_yet_holds_questions_and_a_state_that_stays_as_it_came() -> None:
    raw = (
        b'{"inputRequests":{"q1":{"method":"roots/list"}},"requestState":"a\\u0062", '
        b'"resultType":"input_required"}'
    )
    found = msgspec.json.decode(raw, type=client_requests.InputRequiredResult)
    assert found.input_requests["q1"].method == "roots/list"
    assert bytes(found.request_state) == b'"a\\u0062"'
    empty = msgspec.json.decode(b"{}", type=client_requests.InputRequiredResult)
    assert empty.input_requests == {}
    assert bytes(empty.request_state) == b""


def test_each_kind_of_question_needs_a_capability_of_its_name() -> None:
    assert client_requests.CLIENT_REQUESTS == {
        "elicitation/create": "elicitation",
        "sampling/createMessage": "sampling",
        "roots/list": "roots",
    }


def test_what_a_model_said_in_words() -> None:
    one = client_requests.CreateMessageResult("assistant", TextContent("a"), "m")
    several = client_requests.CreateMessageResult(
        "assistant", [TextContent("a"), TOOL_USE, TextContent("b")], "m"
    )
    assert (one.text, several.text) == ("a", "ab")


def test_accepted_and_declined_are_told_apart_by_what_was_done() -> None:
    assert client_requests.Accepted(5).action == "accept"
    assert client_requests.Declined("cancel").content is None
