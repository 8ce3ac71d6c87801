"""examples/everything.py offers what the official suite asks for, in every revision, each line as its schema wants it.

Names and contents are those of ../shared/spec/CONFORMANCE.md, which are the suite's.
"""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import wire

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
    "json_schema_2020_12_tool",
]
# CONFORMANCE.md, json-schema-2020-12: what must come through. `address` by its anchor, beside what types can say.
KEYWORDS = {"$schema", "type", "$defs", "properties", "allOf", "if", "then", "else", "additionalProperties"}
PNG = b"\x89PNG\r\n\x1a\n"  # ISO/IEC 15948, 5.2
PIXEL = {"type": "image", "mimeType": "image/png"}
MIXED = {"uri": "test://mixed-content-resource", "mimeType": "application/json", "text": '{"test":"data","value":123}'}

Lines = list[dict[str, Any]]


@cache
def talk(revision: str, *requests: tuple[str, str]) -> Lines:
    """What the server says to requests, each a method and its params as JSON, numbered from 1. Every line is held to its schema."""
    opening = {"protocolVersion": revision, "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}
    sent: Lines = []
    if revision != wire.MODERN:
        sent.append({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": opening})
        sent.append({"jsonrpc": "2.0", "method": "notifications/initialized"})
    for id, (method, params) in enumerate(requests, 1):
        meta = {"progressToken": id, **(META if revision == wire.MODERN else {})}
        sent.append({"jsonrpc": "2.0", "id": id, "method": method, "params": {**json.loads(params), "_meta": meta}})
    lines = [json.dumps(each).encode() for each in sent]
    command = [sys.executable, EVERYTHING]
    done = subprocess.run(command, input=b"\n".join(lines) + b"\n", capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    if not wire.has_spec():
        return [wire.one_json(line) for line in said]
    onlooker = wire.Conversation()
    for line in lines:
        onlooker.sent(line)
    return [onlooker.received(line) for line in said]


def _call(tool: str, **arguments: Any) -> tuple[str, str]:
    return "tools/call", json.dumps({"name": tool, "arguments": arguments})


# Asked together, of one process for each revision.
REQUESTS = [("tools/list", "{}"), *(_call(tool) for tool in TOOLS if tool != "test_trigger_tool_change")]


def answer(revision: str, method: str, **params: Any) -> dict[str, Any]:
    """The one answer to one of REQUESTS."""
    id = 1 + REQUESTS.index((method, json.dumps(params)))
    [found] = [each for each in talk(revision, *REQUESTS) if each.get("id") == id]
    return found


def call(revision: str, tool: str) -> dict[str, Any]:
    return answer(revision, "tools/call", name=tool, arguments={})["result"]


def heard(revision: str, method: str) -> list[Any]:
    return [each["params"] for each in talk(revision, *REQUESTS) if each.get("method") == method]


every_revision = pytest.mark.parametrize("revision", wire.REVISIONS)


@every_revision
def test_the_suite_s_tools_are_there(revision: str) -> None:
    tools = answer(revision, "tools/list")["result"]["tools"]
    assert [tool["name"] for tool in tools] == TOOLS
    assert all(tool["description"] for tool in tools)


@every_revision
def test_a_schema_keeps_all_its_keywords_in_every_revision(revision: str) -> None:
    tools = answer(revision, "tools/list")["result"]["tools"]
    [schema] = [tool["inputSchema"] for tool in tools if tool["name"] == "json_schema_2020_12_tool"]
    assert schema.keys() == KEYWORDS
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["$defs"]["address"]["$anchor"] == "addressDef"
    assert schema["allOf"] == [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}]
    assert schema["additionalProperties"] is False


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
    answers = {each["id"]: each["result"] for each in talk(wire.MODERN, *calls)}
    assert [not answers[id].get("isError", False) for id in range(1, 1 + len(fits))] == [fit for _, fit in fits]


@every_revision
def test_text_is_the_suite_s(revision: str) -> None:
    [block] = call(revision, "test_simple_text")["content"]
    assert block == {"type": "text", "text": "This is a simple text response for testing."}


@every_revision
def test_a_failure_is_a_result(revision: str) -> None:
    result = call(revision, "test_error_handling")
    assert result["isError"] is True
    assert result["content"] == [{"type": "text", "text": "This tool intentionally returns an error for testing"}]


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
    told = heard(revision, "notifications/message")
    words = ["Tool execution started", "Tool processing data", "Tool execution completed"]
    assert {each["level"] for each in told} == {"info"}
    assert [each["data"] for each in told if each["data"].startswith("Tool ")] == words
    assert [each["data"] for each in told if not each["data"].startswith("Tool ")] == [
        "This is a log message for testing"
    ]


@every_revision
def test_progress_goes_from_nothing_to_all(revision: str) -> None:
    told = heard(revision, "notifications/progress")
    token = 1 + REQUESTS.index(_call("test_tool_with_progress"))
    assert told == [{"progressToken": token, "progress": done, "total": 100} for done in (0, 50, 100)]


@pytest.mark.parametrize("revision", wire.LEGACY)
def test_a_change_of_the_tools_is_told_and_can_be_undone(revision: str) -> None:
    trigger = _call("test_trigger_tool_change")
    lines = talk(revision, ("tools/list", "{}"), trigger, ("tools/list", "{}"), trigger, ("tools/list", "{}"))
    lists = [[tool["name"] for tool in each["result"]["tools"]] for each in lines if "tools" in each.get("result", {})]
    assert lists == [TOOLS, [*TOOLS, "test_added_tool"], TOOLS]
    assert sum(each.get("method") == "notifications/tools/list_changed" for each in lines) == 2
