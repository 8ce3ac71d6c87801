"""result_uris.py: URIs in results, and nothing else, get a prefix."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import Raw, Struct

from concertino.composition.result_uris import map_request_uris, map_result_uris
from concertino.protocol.call import InputRequired
from concertino.types import results


def map_result(method: str, members: Any) -> Any:
    result = map_result_uris(method, Raw(json.dumps(members).encode()), "p+{}".format)
    assert isinstance(result, Raw)
    return json.loads(bytes(result))


LINK = {"type": "resource_link", "uri": "u:1", "name": "uri", "x": {"uri": "u:2"}}
EMBEDDED = {"type": "resource", "resource": {"uri": "u:3", "text": '"uri"'}, "uri": "u:4"}
TEXT = {"type": "text", "text": "u:5", "uri": "u:5"}
MAPPED = [LINK | {"uri": "p+u:1"}, EMBEDDED | {"resource": {"uri": "p+u:3", "text": '"uri"'}}, TEXT]


def test_links_and_resources_in_the_result_of_a_tool() -> None:
    members = {"content": [LINK, EMBEDDED, TEXT], "structuredContent": {"uri": "u:6"}, "new": 1.5}
    assert map_result("tools/call", members) == members | {"content": MAPPED}


def test_links_and_resources_in_a_prompt() -> None:
    messages = [{"role": "user", "content": LINK}, {"role": "user", "content": [EMBEDDED, TEXT]}]
    assert map_result("prompts/get", {"messages": messages}) == {
        "messages": [
            {"role": "user", "content": MAPPED[0]},
            {"role": "user", "content": MAPPED[1:]},
        ]
    }


def test_the_contents_of_a_resource() -> None:
    members = {"contents": [{"uri": "u:1", "text": "u:1"}, {"uri": "u:2", "blob": ""}]}
    assert map_result("resources/read", members) == {
        "contents": [{"uri": "p+u:1", "text": "u:1"}, {"uri": "p+u:2", "blob": ""}]
    }


@pytest.mark.parametrize(
    "result",
    [
        b"{}",
        b'{"content":[{"type":"text","text":"a"}]}',
        b'{"content":[{"type":"text","text":"x","uri":"u:1"}]}',
        b'{"content":null,"uri":1}',
        b'{"content":[1,{"type":"resource","resource":null,"uri":1}]}',
        b'{"content":[{"type":"resource_link","uri":5}]}',
        b'["uri"]',
        b'{"uri": broken',
    ],
)
def test_a_result_without_uris_of_resources_is_the_same_object(result: bytes) -> None:
    raw = Raw(result)
    assert map_result_uris("tools/call", raw, "p+{}".format) is raw


def test_a_typed_result_becomes_json_only_if_it_changes() -> None:
    plain = results.CallToolResult([results.TextContent("a")])
    assert map_result_uris("tools/call", plain, "p+{}".format) is plain
    read = results.ReadResourceResult([results.ResourceContents("u:1", text="a")])
    changed = map_result_uris("resources/read", read, "p+{}".format)
    assert isinstance(changed, Raw)
    assert json.loads(bytes(changed))["contents"] == [{"uri": "p+u:1", "text": "a"}]


def test_a_question_to_the_client_stays_as_it_is() -> None:
    question: Struct = InputRequired(state=b"x")
    assert map_result_uris("tools/call", question, "p+{}".format) is question


SAMPLING = {
    "messages": [
        {"role": "user", "content": TEXT},
        {"role": "user", "content": [{"type": "tool_result", "content": [LINK, EMBEDDED]}]},
    ],
    "maxTokens": 5,
}
MAPPED_SAMPLING = SAMPLING | {
    "messages": [
        {"role": "user", "content": TEXT},
        {"role": "user", "content": [{"type": "tool_result", "content": MAPPED[:2]}]},
    ]
}


def test_links_in_the_results_of_tools_in_a_sampling_request() -> None:
    mapped = map_request_uris(json.dumps(SAMPLING).encode(), "p+{}".format)
    assert json.loads(mapped) == MAPPED_SAMPLING


def test_a_request_without_links_is_not_changed() -> None:
    params = b'{"message": "u:1", "requestedSchema": {"properties": {"uri": {"type": "string"}}}}'
    assert map_request_uris(params, "p+{}".format) == params


def test_links_in_a_sampling_request_of_an_input_required_result() -> None:
    request = {"method": "sampling/createMessage", "params": SAMPLING}
    questions = {"model": Raw(json.dumps(request).encode()), "roots": Raw(b'{"method":"uri"}')}
    mapped = map_result_uris("tools/call", InputRequired(questions, b"x"), "p+{}".format)
    assert isinstance(mapped, InputRequired)
    assert json.loads(bytes(mapped.questions["model"])) == request | {"params": MAPPED_SAMPLING}
    assert mapped.questions["roots"] == questions["roots"]
    assert mapped.state == b"x"
