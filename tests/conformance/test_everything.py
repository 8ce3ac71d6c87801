"""examples/everything.py offers what the official suite asks for, in every revision, each line as
its schema wants it.

Names and contents are those of ../shared/spec/CONFORMANCE.md, which are the suite's.
"""

from __future__ import annotations

import base64
import json
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import wire
from warm_commands import run_python

EVERYTHING = Path(__file__).parents[2] / "examples" / "everything.py"
META = {
    "io.modelcontextprotocol/protocolVersion": wire.MODERN,
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/logLevel": "debug",
}
# The tools that the suite calls, and those that it only looks for.
TOOLS = [
    "test_simple_text",
    "test_image_content",
    "test_audio_content",
    "test_embedded_resource",
    "test_multiple_content_types",
    "test_error_handling",
    "test_tool_with_logging",
    "test_logging_tool",
    "test_tool_with_progress",
    "test_trigger_tool_change",
    "test_trigger_prompt_change",
    "json_schema_2020_12_tool",
]
# Those of the suite's scenarios about HTTP alone.
OVER_HTTP = ["test_x_mcp_header", "test_reconnection"]
# Those that ask the client; ours have a test below.
ASKING = [
    "test_sampling",
    "test_elicitation",
    "test_elicitation_sep1034_defaults",
    "test_elicitation_sep1330_enums",
    "test_choices",
    "test_missing_capability",
    "test_streaming_elicitation",
    "test_input_required_result_elicitation",
    "test_input_required_result_sampling",
    "test_input_required_result_list_roots",
    "test_input_required_result_request_state",
    "test_input_required_result_multiple_inputs",
    "test_input_required_result_multi_round",
    "test_input_required_result_tampered_state",
    "test_input_required_result_capabilities",
]
ASKING_PROMPT = "test_input_required_result_prompt"
RESOURCES = ["test://static-text", "test://static-binary", "test://watched-resource"]
PROMPTS = [
    "test_simple_prompt",
    "test_prompt_with_arguments",
    "test_prompt_with_embedded_resource",
    "test_prompt_with_image",
]
ARGUMENTS = {
    "test_prompt_with_arguments": {"arg1": "hello", "arg2": "world"},
    "test_prompt_with_embedded_resource": {"resourceUri": "test://example-resource"},
}
# CONFORMANCE.md, json-schema-2020-12: what must come through. `address` by its anchor, beside what
# types can say.
KEYWORDS = {
    "$schema",
    "type",
    "$defs",
    "properties",
    "allOf",
    "if",
    "then",
    "else",
    "additionalProperties",
}
PNG = b"\x89PNG\r\n\x1a\n"  # ISO/IEC 15948, 5.2
PIXEL = {"type": "image", "mimeType": "image/png"}
MIXED = {
    "uri": "test://mixed-content-resource",
    "mimeType": "application/json",
    "text": '{"test":"data","value":123}',
}

Lines = list[dict[str, Any]]


@cache
def talk(revision: str, *requests: tuple[str, str]) -> Lines:
    """What the server says to requests, each a method and its params as JSON, numbered from 1.

    Every line is held to its schema.
    """
    opening = {
        "protocolVersion": revision,
        "capabilities": {},
        "clientInfo": {"name": "c", "version": "1"},
    }
    sent: Lines = []
    if revision != wire.MODERN:
        sent.append({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": opening})
        sent.append({"jsonrpc": "2.0", "method": "notifications/initialized"})
    for id, (method, params) in enumerate(requests, 1):
        meta = {"progressToken": id, **(META if revision == wire.MODERN else {})}
        sent.append(
            {
                "jsonrpc": "2.0",
                "id": id,
                "method": method,
                "params": {**json.loads(params), "_meta": meta},
            }
        )
    lines = [json.dumps(item).encode() for item in sent]
    command = [sys.executable, EVERYTHING]
    done = run_python(command, input=b"\n".join(lines) + b"\n", capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    onlooker = wire.Conversation()
    for line in lines:
        onlooker.on_sent(line)
    return [onlooker.on_received(line) for line in said]


def _call(tool: str, **arguments: Any) -> tuple[str, str]:
    return "tools/call", json.dumps({"name": tool, "arguments": arguments})


def _get(prompt: str) -> tuple[str, str]:
    return "prompts/get", json.dumps({"name": prompt, "arguments": ARGUMENTS.get(prompt, {})})


def _read(uri: str) -> tuple[str, str]:
    return "resources/read", json.dumps({"uri": uri})


LISTS = ["tools/list", "resources/list", "resources/templates/list", "prompts/list"]
COMPLETE = {"ref": {"type": "ref/prompt", "name": "test_prompt_with_arguments"}}
TEMPLATED = "test://template/123/data"
# Asked together, of one process for each revision.
REQUESTS = [
    *((method, "{}") for method in LISTS),
    *(_call(tool) for tool in TOOLS if not tool.startswith("test_trigger")),
    *(_get(prompt) for prompt in PROMPTS),
    *(_read(uri) for uri in [*RESOURCES, TEMPLATED]),
    ("completion/complete", json.dumps({**COMPLETE, "argument": {"name": "arg1", "value": "par"}})),
    ("completion/complete", json.dumps({**COMPLETE, "argument": {"name": "arg2", "value": "par"}})),
]


def answer(revision: str, method: str, **params: Any) -> dict[str, Any]:
    """The one answer to one of REQUESTS."""
    id = 1 + REQUESTS.index((method, json.dumps(params)))
    [found] = [item for item in talk(revision, *REQUESTS) if item.get("id") == id]
    return found


def call(revision: str, tool: str) -> dict[str, Any]:
    return answer(revision, "tools/call", name=tool, arguments={})["result"]


def read(revision: str, uri: str) -> Any:
    [content] = answer(revision, "resources/read", uri=uri)["result"]["contents"]
    return content


def get(revision: str, prompt: str) -> Any:
    messages = answer(revision, "prompts/get", name=prompt, arguments=ARGUMENTS.get(prompt, {}))[
        "result"
    ]["messages"]
    assert {message["role"] for message in messages} == {"user"}
    return [message["content"] for message in messages]


def notifications_of(revision: str, method: str) -> list[Any]:
    return [item["params"] for item in talk(revision, *REQUESTS) if item.get("method") == method]


every_revision = pytest.mark.parametrize("revision", wire.REVISIONS)


@every_revision
def test_the_suite_s_tools_are_there(revision: str) -> None:
    tools = answer(revision, "tools/list")["result"]["tools"]
    assert [tool["name"] for tool in tools] == TOOLS + OVER_HTTP + ASKING
    assert all(tool["description"] for tool in tools)


@pytest.mark.requirement("JS-8")
@every_revision
def test_a_schema_keeps_all_its_keywords_in_every_revision(revision: str) -> None:
    tools = answer(revision, "tools/list")["result"]["tools"]
    [schema] = [tool["inputSchema"] for tool in tools if tool["name"] == "json_schema_2020_12_tool"]
    assert schema.keys() == KEYWORDS
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["$defs"]["address"]["$anchor"] == "addressDef"
    assert schema["allOf"] == [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}]
    assert schema["additionalProperties"] is False


@pytest.mark.requirement("JS-2")
def test_a_schema_of_2020_12_is_enforced() -> None:
    fits: list[tuple[dict[str, Any], bool]] = [  # by hand, from the schema
        ({"contactMethod": "phone", "phone": "1"}, True),
        ({"contactMethod": "phone", "email": "a@b"}, False),
        ({"contactMethod": "email", "email": "a@b", "address": {"street": "x"}}, True),
        ({"contactMethod": "email", "email": "a@b", "address": {"street": 1}}, False),
        ({"phone": "1"}, False),  # without contactMethod, `else` wants an email
        ({"email": "a@b"}, True),
        ({}, False),
        ({"email": "a@b", "fax": "1"}, False),
        ({"email": "a@b", "contactMethod": "fax"}, False),
    ]
    calls = [_call("json_schema_2020_12_tool", **arguments) for arguments, _ in fits]
    answers = {item["id"]: item["result"] for item in talk(wire.MODERN, *calls)}
    assert [not answers[id].get("isError", False) for id in range(1, 1 + len(fits))] == [
        fit for _, fit in fits
    ]


@every_revision
def test_text_is_the_suite_s(revision: str) -> None:
    [block] = call(revision, "test_simple_text")["content"]
    assert block == {"type": "text", "text": "This is a simple text response for testing."}


@every_revision
def test_a_failure_is_a_result(revision: str) -> None:
    result = call(revision, "test_error_handling")
    assert result["isError"] is True
    assert result["content"] == [
        {"type": "text", "text": "This tool intentionally returns an error for testing"}
    ]


@every_revision
def test_a_picture_is_a_png(revision: str) -> None:
    [block] = call(revision, "test_image_content")["content"]
    assert base64.b64decode(block.pop("data")).startswith(PNG)
    assert block == PIXEL


@every_revision
def test_sound_is_a_wav_and_a_resource_for_those_who_know_none(revision: str) -> None:
    [block] = call(revision, "test_audio_content")["content"]
    if revision == "2024-11-05":
        assert block["type"] == "resource"
        block = {"data": block["resource"]["blob"], **block["resource"]}
    data = base64.b64decode(block["data"])
    assert (data[:4], data[8:12]) == (b"RIFF", b"WAVE")
    assert block["mimeType"] == "audio/wav"


@pytest.mark.requirement("CO-4")
@every_revision
def test_resources_are_embedded(revision: str) -> None:
    [block] = call(revision, "test_embedded_resource")["content"]
    text = "This is an embedded resource content."
    resource = {"uri": "test://embedded-resource", "mimeType": "text/plain", "text": text}
    assert block == {"type": "resource", "resource": resource}
    words, picture, resource = call(revision, "test_multiple_content_types")["content"]
    assert words == {"type": "text", "text": "Multiple content types test:"}
    assert {**PIXEL, "data": picture["data"]} == picture
    assert resource == {"type": "resource", "resource": MIXED}


@every_revision
def test_log_messages_come_in_order(revision: str) -> None:
    told = notifications_of(revision, "notifications/message")
    words = ["Tool execution started", "Tool processing data", "Tool execution completed"]
    assert {item["level"] for item in told} == {"info"}
    assert [item["data"] for item in told if item["data"].startswith("Tool ")] == words
    assert [item["data"] for item in told if not item["data"].startswith("Tool ")] == [
        "This is a log message for testing"
    ]


@every_revision
def test_progress_goes_from_nothing_to_all(revision: str) -> None:
    told = notifications_of(revision, "notifications/progress")
    token = 1 + REQUESTS.index(_call("test_tool_with_progress"))
    assert told == [
        {"progressToken": token, "progress": done, "total": 100} for done in (0, 50, 100)
    ]


@every_revision
def test_the_suite_s_resources_are_there_with_name_and_description(revision: str) -> None:
    listed = answer(revision, "resources/list")["result"]["resources"]
    assert [item["uri"] for item in listed] == RESOURCES
    assert all(item["name"] and item["description"] for item in listed)
    [template] = answer(revision, "resources/templates/list")["result"]["resourceTemplates"]
    assert template["uriTemplate"] == "test://template/{id}/data"


@pytest.mark.requirement("RE-3")
@every_revision
def test_resources_are_read_as_text_or_as_bytes_under_their_own_uri(revision: str) -> None:
    text = read(revision, "test://static-text")
    words = "This is the content of the static text resource."
    assert text == {"uri": "test://static-text", "mimeType": "text/plain", "text": words}
    picture = read(revision, "test://static-binary")
    assert base64.b64decode(picture.pop("blob"), validate=True).startswith(PNG)
    assert picture == {"uri": "test://static-binary", "mimeType": "image/png"}


@pytest.mark.requirement("RE-4")
@every_revision
def test_what_a_template_expands_to_is_read(revision: str) -> None:
    content = read(revision, TEMPLATED)
    data = {"id": "123", "templateTest": True, "data": "Data for ID: 123"}
    assert json.loads(content.pop("text")) == data
    assert content == {"uri": TEMPLATED, "mimeType": "application/json"}


@every_revision
def test_the_suite_s_prompts_are_there_with_their_arguments(revision: str) -> None:
    listed = answer(revision, "prompts/list")["result"]["prompts"]
    assert [item["name"] for item in listed] == [*PROMPTS, ASKING_PROMPT]
    assert all(item["description"] for item in listed)
    named = {
        item["name"]: [(one["name"], one["required"]) for one in item.get("arguments", [])]
        for item in listed
    }
    assert named["test_prompt_with_arguments"] == [("arg1", True), ("arg2", True)]


@pytest.mark.requirement("PM-5")
@every_revision
def test_prompts_are_messages_of_a_user(revision: str) -> None:
    assert get(revision, "test_simple_prompt") == [
        {"type": "text", "text": "This is a simple prompt for testing."}
    ]
    [text] = get(revision, "test_prompt_with_arguments")
    assert text["text"] == "Prompt with arguments: arg1='hello', arg2='world'"
    embedded, words = get(revision, "test_prompt_with_embedded_resource")
    assert embedded["type"] == "resource"
    assert embedded["resource"]["uri"] == "test://example-resource"
    assert words["text"] == "Please process the embedded resource above."
    picture, words = get(revision, "test_prompt_with_image")
    assert base64.b64decode(picture.pop("data"), validate=True).startswith(PNG)
    assert picture == PIXEL
    assert words["text"] == "Please analyze the image above."


@every_revision
def test_an_argument_is_completed_and_one_that_cannot_be_has_no_values(revision: str) -> None:
    known, unknown = (
        answer(
            revision, "completion/complete", **COMPLETE, argument={"name": name, "value": "par"}
        )["result"]
        for name in ("arg1", "arg2")
    )
    assert known["completion"]["values"] == ["paris", "park", "party"]
    assert unknown["completion"]["values"] == []


@pytest.mark.requirement("DI-2", "RE-1", "PM-1", "CO-4", "CP-1")
@every_revision
def test_what_is_there_is_declared(revision: str) -> None:
    if revision == wire.MODERN:
        [found] = talk(revision, ("server/discover", "{}"))
    else:
        [found] = talk(revision)
    expected = {"tools", "resources", "prompts", "logging", "completions"}
    assert found["result"]["capabilities"].keys() == expected - (
        {"completions"} if revision == "2024-11-05" else set()
    )


@pytest.mark.requirement("CH-1")
@every_revision
def test_lists_and_contents_say_how_long_they_hold_in_2026_07_28_alone(revision: str) -> None:
    results = [answer(revision, method)["result"] for method in LISTS]
    results += [
        answer(revision, "resources/read", uri=uri)["result"] for uri in [*RESOURCES, TEMPLATED]
    ]
    for result in results:
        if revision == wire.MODERN:
            assert type(result["ttlMs"]) is int
            assert result["ttlMs"] >= 0
            assert result["cacheScope"] in ("public", "private")
        else:
            assert not {"ttlMs", "cacheScope", "resultType"} & result.keys()


@pytest.mark.requirement("EC-3", "EC-6", "EC-7", "RE-5", "RE-7")
@every_revision
def test_what_is_not_there_is_an_error_with_its_uri(revision: str) -> None:
    uris = [
        "test://no-such",
        "test://template/1/2/data",
        "test://template//data",
        "file:///etc/passwd",
    ]
    answers = {item["id"]: item for item in talk(revision, *(_read(uri) for uri in uris))}
    for id, uri in enumerate(uris, 1):
        error = answers[id]["error"]
        assert error["code"] == (
            -32602 if revision == wire.MODERN else -32002
        )  # REQUIREMENTS A.27-5
        assert error["data"]["uri"] == uri


WRONG: list[tuple[str, dict[str, Any]]] = [
    ("prompts/get", {"name": "no such"}),
    ("prompts/get", {}),
    ("prompts/get", {"name": "test_prompt_with_arguments", "arguments": {"arg1": "a"}}),
    ("prompts/get", {"name": "test_prompt_with_arguments"}),
    ("prompts/get", {"name": "test_prompt_with_arguments", "arguments": {"arg1": "a", "arg2": 5}}),
    (
        "prompts/get",
        {
            "name": "test_prompt_with_arguments",
            "arguments": {"arg1": "a", "arg2": "b", "arg3": "c"},
        },
    ),
    ("resources/read", {}),
    ("resources/read", {"uri": 5}),
    ("completion/complete", {}),
    ("completion/complete", {**COMPLETE, "argument": {"name": "no such", "value": ""}}),
    ("completion/complete", {**COMPLETE, "argument": {"name": "arg1", "value": 5}}),
    (
        "completion/complete",
        {"ref": {"type": "ref/prompt", "name": "no"}, "argument": {"name": "a", "value": ""}},
    ),
    (
        "completion/complete",
        {"ref": {"type": "ref/tool", "name": "no"}, "argument": {"name": "a", "value": ""}},
    ),
    *((method, {"cursor": "no such"}) for method in LISTS),
    *((method, {"cursor": 5}) for method in LISTS),
]


@pytest.mark.requirement("PM-3", "PM-4", "PM-7", "CP-4", "CP-5", "PG-4")
@every_revision
def test_params_that_do_not_fit_are_invalid(revision: str) -> None:
    answers = {
        item["id"]: item
        for item in talk(revision, *((method, json.dumps(item)) for method, item in WRONG))
    }
    codes = {
        (method, json.dumps(item)): answers[id]["error"]["code"]
        for id, (method, item) in enumerate(WRONG, 1)
    }
    assert {asked: code for asked, code in codes.items() if code != -32602} == {}


@pytest.mark.parametrize(
    ("trigger", "method", "names", "more"),
    [
        ("test_trigger_tool_change", "tools", TOOLS + OVER_HTTP + ASKING, "test_added_tool"),
        ("test_trigger_prompt_change", "prompts", [*PROMPTS, ASKING_PROMPT], "test_added_prompt"),
    ],
)
@pytest.mark.parametrize("revision", wire.LEGACY)
def test_a_change_of_a_list_is_told_and_can_be_undone(
    revision: str, trigger: str, method: str, names: list[str], more: str
) -> None:
    listing = (f"{method}/list", "{}")
    lines = talk(revision, listing, _call(trigger), listing, _call(trigger), listing)
    lists = [
        [item["name"] for item in line["result"][method]]
        for line in lines
        if method in line.get("result", {})
    ]
    assert lists == [names, [*names, more], names]
    assert sum(item.get("method") == f"notifications/{method}/list_changed" for item in lines) == 2
