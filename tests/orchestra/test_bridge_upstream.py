"""What the tests of upstream's transport.stdio assert, asked of `concertino bridge`: one row, one
message, one answer.

Rows are the protocol's list of those tests; where ours differs on purpose the row says how. What
they assert of Struct conversions is in test_orchestra_structs.py; that a log below the threshold is
dropped is the session's, in tests/protocol. Opening, order and blank lines are at the end, since
they are about more than one message.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from orchestra.bridges import (
    Hub,
    Process,
    bridge,
    connect,
    definition,
    gave,
    make_failure,
    request,
    tools,
)

from concertino.orchestra.plugin_pb2 import (
    ContentBlock,
    ListPromptsResponse,
    PluginResponse,
    PromptArgument,
    PromptDefinition,
    PromptGetResponse,
    PromptMessage,
    StorageEntry,
    StorageListResponse,
    StorageReadResponse,
)

SCHEMA = {"type": "object", "properties": {"title": {"type": "string"}}}
LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
PROMPTS = PluginResponse(
    list_prompts=ListPromptsResponse(
        prompts=[
            PromptDefinition(
                name="review",
                description="Review code",
                arguments=[PromptArgument(name="file", description="Which", required=True)],
            )
        ]
    )
)
PROMPT = PluginResponse(
    prompt_get=PromptGetResponse(
        description="Review main.go",
        messages=[
            PromptMessage(role="user", content=ContentBlock(type="text", text="Look at main.go"))
        ],
    )
)
ENTRIES = PluginResponse(
    storage_list=StorageListResponse(
        entries=[StorageEntry(path=f"features/FEAT-00{n}.md", size=10, version=1) for n in (1, 2)]
    )
)
READ = PluginResponse(storage_read=StorageReadResponse(content=b"# Feature", version=1))

Row = tuple[str, Mapping[str, PluginResponse], str, Any, Any]
Text = dict[str, Any]


def text(said: str) -> Text:
    return {"content": [{"type": "text", "text": said}]}


def error(code: int, *words: str) -> tuple[int, tuple[str, ...]]:
    return code, words


ROWS: list[Row] = [
    ("ping", {}, "ping", {}, {}),
    (
        "tools/list maps a schema to an object",
        {"list_tools": tools(definition("create_feature", "Create", SCHEMA))},
        "tools/list",
        {},
        {"tools": [{"name": "create_feature", "description": "Create", "inputSchema": SCHEMA}]},
    ),
    (
        "tools/list that fails",
        {"list_tools": make_failure("list_tools_error", "down")},
        "tools/list",
        {},
        error(-32603, "down"),
    ),
    (
        "tools/call gives the text",
        {"tool_call": gave({"text": "Created FEAT-ABC"})},
        "tools/call",
        {"name": "create_feature", "arguments": {"title": "x"}},
        text("Created FEAT-ABC"),
    ),
    (
        "a tool's error is its message",
        {"tool_call": make_failure("validation_error", "title is missing")},
        "tools/call",
        {"name": "create_feature"},
        {**text("title is missing"), "isError": True},
    ),
    (
        "or its code",
        {"tool_call": make_failure("validation_error")},
        "tools/call",
        {"name": "create_feature"},
        {**text("tool error: validation_error"), "isError": True},
    ),
    (
        "no text: the result as JSON",
        {"tool_call": gave({"n": 3})},
        "tools/call",
        {"name": "x"},
        {**text('{"n":3}'), "structuredContent": {"n": 3}},
    ),
    # Upstream's gives a content without text for these two, which MCP does not allow.
    (
        "an empty text",
        {"tool_call": gave({"text": "", "n": 1})},
        "tools/call",
        {"name": "x"},
        {**text(""), "structuredContent": {"n": 1, "text": ""}},
    ),
    (
        "a text that is none",
        {"tool_call": gave({"text": 3})},
        "tools/call",
        {"name": "x"},
        {**text('{"text":3}'), "structuredContent": {"text": 3}},
    ),
    ("nothing at all", {"tool_call": gave({})}, "tools/call", {"name": "x"}, text("{}")),
    ("tools/call without a name", {}, "tools/call", {"arguments": {}}, error(-32602, "name")),
    ("a name that is no text", {}, "tools/call", {"name": 3}, error(-32602, "name")),
    (
        "arguments that are no object",
        {},
        "tools/call",
        {"name": "x", "arguments": [1]},
        error(-32602, "arguments"),
    ),
    (
        "prompts/list maps names, arguments and required",
        {"list_prompts": PROMPTS},
        "prompts/list",
        {},
        {
            "prompts": [
                {
                    "name": "review",
                    "description": "Review code",
                    "arguments": [{"name": "file", "description": "Which", "required": True}],
                }
            ]
        },
    ),
    (
        "prompts/get maps arguments, description, role and content",
        {"prompt_get": PROMPT},
        "prompts/get",
        {"name": "review", "arguments": {"file": "main.go"}},
        {
            "description": "Review main.go",
            "messages": [{"role": "user", "content": {"type": "text", "text": "Look at main.go"}}],
        },
    ),
    (
        "prompts/get of an unknown prompt, as upstream's hub says it",
        {
            "prompt_get": PluginResponse(
                prompt_get=PromptGetResponse(description='no plugin provides prompt "x"')
            )
        },
        "prompts/get",
        {"name": "x"},
        error(-32602, 'no plugin provides prompt "x"'),
    ),
    (
        "prompts/get that fails in upstream's plugin",
        {
            "prompt_get": PluginResponse(
                prompt_get=PromptGetResponse(description="prompt handler error: no file")
            )
        },
        "prompts/get",
        {"name": "x"},
        error(-32603, "no file"),
    ),
    (
        "a prompt without messages",
        {"prompt_get": PluginResponse(prompt_get=PromptGetResponse(description="prompts none"))},
        "prompts/get",
        {"name": "x"},
        {"description": "prompts none", "messages": []},
    ),
    ("prompts/get without a name", {}, "prompts/get", {}, error(-32602, "name")),
    (
        "arguments that are no texts",
        {},
        "prompts/get",
        {"name": "x", "arguments": {"n": 1}},
        error(-32602, "arguments"),
    ),
    (
        "prompts/list that fails",
        {"list_prompts": make_failure("list_prompts_error", "x")},
        "prompts/list",
        {},
        error(-32603),
    ),
    *((f"setLevel {level}", {}, "logging/setLevel", {"level": level}, {}) for level in LEVELS),
    ("setLevel verbose", {}, "logging/setLevel", {"level": "verbose"}, error(-32602, "verbose")),
    (
        "resources/list",
        {"storage_list": ENTRIES},
        "resources/list",
        {},
        {
            "resources": [
                {
                    "uri": f"orchestra://features/FEAT-00{n}",
                    "name": f"FEAT-00{n}",
                    "mimeType": "text/markdown",
                    "size": 10,
                }
                for n in (1, 2)
            ]
        },
    ),
    # Upstream's says null, which MCP does not allow.
    (
        "nothing in storage",
        {"storage_list": PluginResponse(storage_list=StorageListResponse())},
        "resources/list",
        {},
        {"resources": []},
    ),
    (
        "resources/read",
        {"storage_read": READ},
        "resources/read",
        {"uri": "orchestra://features/FEAT-001"},
        {
            "contents": [
                {
                    "uri": "orchestra://features/FEAT-001",
                    "text": "# Feature",
                    "mimeType": "text/markdown",
                }
            ]
        },
    ),
    ("resources/read without a URI", {}, "resources/read", {}, error(-32602, "uri")),
    (
        "of another scheme",
        {"storage_read": make_failure("storage_not_found", "no plugin has resources")},
        "resources/read",
        {"uri": "https://example.com"},
        error(-32602, "orchestra://"),
    ),
    (
        "of another kind",
        {},
        "resources/read",
        {"uri": "orchestra://plans/x"},
        error(-32602, "plans"),
    ),
    (
        "a method that there is not",
        {},
        "some/unknown",
        {},
        error(-32601, "method not found: some/unknown"),
    ),
]


@pytest.fixture(scope="module")
def hub_and_process() -> Iterator[tuple[Hub, Process]]:
    with tempfile.TemporaryDirectory(prefix="o") as name:
        hub = Hub("unix", Path(name))
        hub.start()
        with bridge(hub) as process:
            connect(process)
            yield hub, process
            assert process.finish() == 0
        hub.close()


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_a_row(hub_and_process: tuple[Hub, Process], row: Row) -> None:
    hub, process = hub_and_process
    what, answers, method, params, expected = row
    hub.answers = dict(answers)
    answer = process.ask(request(what, method, params))
    if isinstance(expected, tuple):
        code, words = expected
        assert answer["error"]["code"] == code
        assert all(word in str(answer["error"]) for word in words), answer
    else:
        assert answer["result"] == expected


def test_what_is_offered(hub_and_process: tuple[Hub, Process]) -> None:
    _, process = hub_and_process
    offered = process.answers("initialize")[0]["result"]["capabilities"]
    assert set(offered) == {"tools", "prompts", "resources", "logging", "events"}
    assert offered["tools"]["listChanged"] is True


def test_templates_in_order(hub_and_process: tuple[Hub, Process]) -> None:
    _, process = hub_and_process
    found = process.ask(request("templates", "resources/templates/list"))["result"][
        "resourceTemplates"
    ]
    kinds = ("features", "notes", "docs")
    assert [(each["uriTemplate"], each["name"]) for each in found] == [
        (f"orchestra://{k}/{{id}}", k) for k in kinds
    ]


def test_rubbish_and_blank_lines_and_a_request_without_jsonrpc(
    hub_and_process: tuple[Hub, Process],
) -> None:
    """Upstream's overlooks a missing version, and makes 12345678901234567000 of the last id."""
    _, process = hub_and_process
    seen = len(process.messages)
    process.write(b"\n  \n{bad\n")
    process.pump(lambda: len(process.messages) > seen)
    assert process.messages[seen]["error"]["code"] == -32700
    assert process.messages[seen].get("id") is None
    process.write(b'{"id":9,"method":"ping"}\n')
    process.pump(lambda: len(process.messages) > seen + 1)
    assert process.messages[seen + 1]["error"]["code"] == -32600
    assert process.ask(request(12345678901234567890, "ping"))["result"] == {}


def test_opening_notification_and_ping_make_two_lines_in_order(
    hub_and_process: tuple[Hub, Process],
) -> None:
    hub, _ = hub_and_process
    with bridge(hub) as process:
        process.initialize()
        process.send(request(1, "ping"))
        assert process.finish() == 0
        assert [message["id"] for message in process.messages] == ["initialize", 1]
