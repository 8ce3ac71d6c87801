"""questions.py: what a server asks of its client and what it gets back, in the shapes of the official schema.

The examples of the specification are read and written again in test_spec_examples.py.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import wire

from concertino.protocol import questions
from concertino.protocol.types import AudioContent, ImageContent, TextContent

META = {"example.com/k": [None]}
TOOL_USE = questions.ToolUseContent("1", "add", {"a": 1}, META)
TOOL_RESULT = questions.ToolResultContent(
    "1", [TextContent("3")], {"result": 3}, is_error=True, meta=META
)
CASES: list[tuple[msgspec.Struct, str]] = [
    (
        questions.Elicitation("Who?", requested_schema={"type": "object", "properties": {}}),
        "ElicitRequestFormParams",
    ),
    (
        questions.Elicitation("Open it?", "url", url="https://example.com", elicitation_id="1"),
        "ElicitRequestURLParams",
    ),
    (questions.ElicitResult("accept", {"name": "x", "old": True, "tags": ["a"]}), "ElicitResult"),
    (questions.ElicitResult("cancel"), "ElicitResult"),
    (TOOL_USE, "ToolUseContent"),
    (TOOL_RESULT, "ToolResultContent"),
    (questions.SamplingMessage("user", TextContent("hi"), META), "SamplingMessage"),
    (
        questions.SamplingMessage(
            "assistant", [ImageContent(b"", "image/png"), AudioContent(b"", "audio/wav"), TOOL_USE]
        ),
        "SamplingMessage",
    ),
    (
        questions.Sampling(
            [questions.SamplingMessage("user", TextContent("hi"))],
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
        questions.CreateMessageResult("assistant", TextContent("hi"), "m", "endTurn", META),
        "CreateMessageResult",
    ),
    (questions.Root("file:///a", "a", META), "Root"),
    (questions.ListRootsResult([questions.Root("file:///a")]), "ListRootsResult"),
]


def written(value: msgspec.Struct) -> dict[str, Any]:
    return msgspec.json.decode(msgspec.json.encode(value))


@pytest.mark.parametrize(
    ("value", "definition"), CASES, ids=lambda value: value if isinstance(value, str) else ""
)
def test_every_type_is_in_the_shape_of_2026_07_28_and_survives_it(
    value: msgspec.Struct, definition: str
) -> None:
    members = written(value)
    if definition == "ElicitRequestURLParams":
        members.pop("elicitationId")  # 2025-11-25 alone has it
    wire.check(members, wire.MODERN, definition)
    assert msgspec.json.decode(msgspec.json.encode(value), type=type(value)) == value


def test_what_is_not_said_is_not_written() -> None:
    assert written(questions.Elicitation("Who?")) == {"message": "Who?"}
    assert written(questions.ElicitResult("decline")) == {"action": "decline"}
    assert written(questions.Sampling([], 5)) == {"messages": [], "maxTokens": 5}
    assert written(questions.Root("file:///a")) == {"uri": "file:///a"}


def test_a_result_that_is_none_yet_holds_questions_and_a_state_that_stays_as_it_came() -> None:
    raw = b'{"inputRequests":{"q1":{"method":"roots/list"}},"requestState":"a\\u0062", "resultType":"input_required"}'
    found = msgspec.json.decode(raw, type=questions.InputRequired)
    assert found.input_requests["q1"].method == "roots/list"
    assert bytes(found.request_state) == b'"a\\u0062"'
    empty = msgspec.json.decode(b"{}", type=questions.InputRequired)
    assert empty.input_requests == {}
    assert bytes(empty.request_state) == b""


def test_each_kind_of_question_needs_a_capability_of_its_name() -> None:
    assert questions.QUESTIONS == {
        "elicitation/create": "elicitation",
        "sampling/createMessage": "sampling",
        "roots/list": "roots",
    }


def test_what_a_model_said_in_words() -> None:
    one = questions.CreateMessageResult("assistant", TextContent("a"), "m")
    several = questions.CreateMessageResult(
        "assistant", [TextContent("a"), TOOL_USE, TextContent("b")], "m"
    )
    assert (one.text, several.text) == ("a", "ab")


def test_accepted_and_declined_are_told_apart_by_what_was_done() -> None:
    assert questions.Accepted(5).action == "accept"
    assert questions.Declined("cancel").content is None
