"""`concertino bridge` as a process: the dialogue of the protocol's document message by message, and
what each method asks the hub.

Expected messages: the Orchestra plugin protocol, "transport.stdio"; versions are those of
2025-11-25 and of this package.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import Raw
from orchestra.bridges import (
    CONNECTED,
    Hub,
    bridge,
    call,
    connect,
    definition,
    gave,
    make_failure,
    request,
    tools,
)

import concertino
from concertino.errors import RpcError
from concertino.orchestra.plugin_pb2 import (
    ContentBlock,
    ListPromptsResponse,
    PluginRequest,
    PluginResponse,
    PromptArgument,
    PromptDefinition,
    PromptGetResponse,
    PromptMessage,
    StorageEntry,
    StorageFailure,
    StorageListResponse,
    StorageReadResponse,
)
from concertino.orchestra.resource_translation import read_request
from concertino.orchestra.structs import unpack

SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


def test_the_documents_dialogue(hub: Hub) -> None:
    hub.answers = {
        "list_tools": tools(definition("create_project", "Create a new project workspace", SCHEMA)),
        "tool_call": gave({"text": "Created project: My App (slug: my-app)"}),
    }
    with bridge(hub) as process:
        process.send(
            {
                "jsonrpc": "2.0",
                "id": 1,
                "method": "initialize",
                "params": {"protocolVersion": "2024-11-05"},
            }
        )
        opened = process.receive()["result"]
        assert opened["protocolVersion"] == "2024-11-05"
        assert opened["serverInfo"] == {"name": "orchestra", "version": concertino.__version__}
        assert opened["capabilities"]["tools"] == {"listChanged": True}
        process.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        process.until_stderr(CONNECTED)
        process.send({"jsonrpc": "2.0", "id": 2, "method": "tools/list"})
        assert process.receive() == {
            "jsonrpc": "2.0",
            "id": 2,
            "result": {
                "tools": [
                    {
                        "name": "create_project",
                        "description": "Create a new project workspace",
                        "inputSchema": SCHEMA,
                    }
                ]
            },
        }
        asked = {"name": "create_project", "arguments": {"name": "My App"}}
        process.send({"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": asked})
        assert process.receive() == {
            "jsonrpc": "2.0",
            "id": 3,
            "result": {
                "content": [{"type": "text", "text": "Created project: My App (slug: my-app)"}]
            },
        }
        (sent,) = hub.of("tool_call")
        assert (sent.tool_name, unpack(sent.arguments), sent.caller_plugin) == (
            "create_project",
            {"name": "My App"},
            "transport.stdio",
        )
        hub.answers["tool_call"] = make_failure("validation_error")
        process.send(call(4, "create_feature", {"project_id": "my-app", "title": "Add login page"}))
        assert process.receive()["result"] == {
            "content": [{"type": "text", "text": "tool error: validation_error"}],
            "isError": True,
        }
        process.send({"jsonrpc": "2.0", "id": 5, "method": "ping"})
        assert process.receive() == {"jsonrpc": "2.0", "id": 5, "result": {}}
        process.send({"jsonrpc": "2.0", "id": 6, "method": "some/unknown"})
        assert process.receive() == {
            "jsonrpc": "2.0",
            "id": 6,
            "error": {"code": -32601, "message": "method not found: some/unknown"},
        }
        assert process.finish() == 0
        assert (
            f"transport.stdio: connected to orchestrator at {hub.address}\n".encode()
            in process.stderr
        )


def test_each_revision_is_negotiated_as_by_any_server(local: Hub) -> None:
    for asked, agreed in (
        ("2025-06-18", "2025-06-18"),
        ("2025-11-25", "2025-11-25"),
        ("1999-01-01", "2025-11-25"),
    ):
        with bridge(local) as process:
            assert process.initialize(asked)["result"]["protocolVersion"] == agreed


def test_a_client_of_2026_asks_without_an_opening(local: Hub) -> None:
    local.answers["list_tools"] = tools(definition("greet"))
    with bridge(local) as process:
        found = process.ask(request(1, "server/discover", modern=True))["result"]
        assert "2026-07-28" in found["supportedVersions"]
        process.until_stderr(CONNECTED)
        assert [
            each["name"]
            for each in process.ask(request(2, "tools/list", modern=True))["result"]["tools"]
        ] == ["greet"]


def test_notifications_are_logged_at_debug_and_answered_by_nothing(local: Hub) -> None:
    with bridge(local, LOG_LEVEL="debug") as process:
        connect(process)
        process.send({"jsonrpc": "2.0", "method": "notifications/made_up", "params": {"a": 1}})
        assert process.ask(request("after", "ping"))["result"] == {}
        process.until_stderr("notifications/made_up")
        assert [each["id"] for each in process.messages] == ["initialize", "after"]


def test_session_and_trace_go_with_a_call(local: Hub) -> None:
    local.answers["tool_call"] = gave({"text": "done"})
    parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    with bridge(local) as process:
        connect(process)
        for id in (1, 2):
            message = call(id, "greet")
            message["params"]["_meta"] = {"traceparent": parent}
            process.ask(message)
    first, second = local.of("tool_call")
    assert first.trace_parent == parent
    assert first.session_id == second.session_id != ""
    assert first.provider == ""


def test_integers_beyond_a_double_arrive_as_they_are(local: Hub) -> None:
    local.answers["tool_call"] = lambda asked: gave(
        unpack(asked.tool_call.arguments, asked.tool_call.arguments_json)
    )
    with bridge(local) as process:
        connect(process)
        answer = process.ask(call(1, "echo", {"n": 12345678901234567890, "m": 3, "x": 1.5}))
        assert answer["result"]["content"] == [
            {"type": "text", "text": '{"m":3,"n":12345678901234567890,"x":1.5}'}
        ]


@pytest.mark.slow
def test_ten_megabytes_go_both_ways_and_more_than_a_frame_is_refused_with_both_figures(
    hub: Hub,
) -> None:
    hub.answers["tool_call"] = lambda asked: gave(unpack(asked.tool_call.arguments))
    text = "x" * 10_000_000
    with bridge(hub, CONCERTINO_MAX_MESSAGE_BYTES=str(64 * 2**20)) as process:
        connect(process)
        answer = process.ask(call(1, "echo", {"text": text}))
        assert answer["result"]["content"][0]["text"] == text
        error = process.ask(call(2, "echo", {"text": "x" * 17_000_000}))["error"]
        assert error["code"] == -32603
        assert "16777216" in error["message"]
        assert "17000" in error["message"]
        hub.answers["tool_call"] = gave({"text": "still here"})
        assert process.ask(call(3, "echo"))["result"]["content"][0]["text"] == "still here"


# Lists


def test_a_list_is_in_the_order_of_names_and_each_name_is_there_once(local: Hub) -> None:
    local.answers["list_tools"] = tools(
        definition("zeta"),
        definition("alpha", "first"),
        definition("alpha", "second"),
        definition(""),
        definition("mid"),
    )
    with bridge(local) as process:
        connect(process)
        listed = process.ask(request(1, "tools/list"))["result"]["tools"]
    assert [(each["name"], each["description"]) for each in listed] == [
        ("alpha", "first"),
        ("mid", ""),
        ("zeta", ""),
    ]
    assert all(
        each["inputSchema"] == {"type": "object"} for each in listed
    )  # upstream says null, which MCP does not allow


def test_a_changed_list_is_told_once_to_a_client_that_was_given_another(local: Hub) -> None:
    local.answers["list_tools"] = tools(definition("greet"), definition("count"))
    with bridge(local) as process:
        connect(process)
        assert len(process.ask(request(1, "tools/list"))["result"]["tools"]) == 2
        local.answers["list_tools"] = tools(definition("greet"))
        local.stop()
        local.start()  # looked at as soon as it is back, and every few seconds
        process.pump(lambda: bool(process.notifications("notifications/tools/list_changed")))
        assert [
            each["name"] for each in process.ask(request(2, "tools/list"))["result"]["tools"]
        ] == ["greet"]
        assert len(process.notifications("notifications/tools/list_changed")) == 1
        assert (
            process.notifications("notifications/prompts/list_changed") == []
        )  # it never asked for those


def test_who_got_an_error_instead_of_a_list_is_told_when_there_is_one(local: Hub) -> None:
    local.stop()
    with bridge(local) as process:
        process.initialize()
        assert process.ask(request(1, "tools/list"))["error"]["code"] == -32603
        local.answers["list_tools"] = tools(definition("greet"))
        local.start()
        told = process.receive()
        while told.get("method") != "notifications/tools/list_changed":
            told = process.receive()
        assert "id" not in told


# Prompts


def test_prompts(hub: Hub) -> None:
    arguments = [
        PromptArgument(name="city", description="Where", required=True),
        PromptArgument(name="tone", description="How", required=False),
    ]
    hub.answers = {
        "list_prompts": PluginResponse(
            list_prompts=ListPromptsResponse(
                prompts=[
                    PromptDefinition(name="welcome", description="Say hello", arguments=arguments),
                    PromptDefinition(name="bye", description="Say goodbye"),
                ]
            )
        ),
        "prompt_get": PluginResponse(
            prompt_get=PromptGetResponse(
                description="Say hello in Rome",
                messages=[
                    PromptMessage(
                        role="user", content=ContentBlock(type="text", text="Hello, Rome")
                    ),
                    PromptMessage(role="assistant", content=ContentBlock(type="text", text="Ciao")),
                ],
            )
        ),
    }
    with bridge(hub) as process:
        connect(process)
        listed = process.ask(request(1, "prompts/list"))["result"]["prompts"]
        assert listed == [
            {"name": "bye", "description": "Say goodbye", "arguments": []},
            {
                "name": "welcome",
                "description": "Say hello",
                "arguments": [
                    {"name": "city", "description": "Where", "required": True},
                    {"name": "tone", "description": "How", "required": False},
                ],
            },
        ]
        got = process.ask(
            request(2, "prompts/get", {"name": "welcome", "arguments": {"city": "Rome"}})
        )["result"]
        assert got == {
            "description": "Say hello in Rome",
            "messages": [
                {"role": "user", "content": {"type": "text", "text": "Hello, Rome"}},
                {"role": "assistant", "content": {"type": "text", "text": "Ciao"}},
            ],
        }
        (sent,) = hub.of("prompt_get")
        assert (sent.prompt_name, dict(sent.arguments)) == ("welcome", {"city": "Rome"})
        hub.answers["prompt_get"] = make_failure("prompt_not_found", "no plugin has the prompt 'x'")
        error = process.ask(request(3, "prompts/get", {"name": "x"}))["error"]
        assert (error["code"], error["message"]) == (-32602, "no plugin has the prompt 'x'")


# Resources


def storage(request: PluginRequest) -> PluginResponse:
    """What a store with three files below features/ and docs/ answers."""
    files = {
        "features/FEAT-001.md": b"# One",
        "features/FEAT-002.md": b"# Two",
        "docs/deep/a b.md": b"# Deep",
    }
    if request.HasField("storage_list"):
        prefix = request.storage_list.prefix
        found = [
            StorageEntry(path=path, size=len(files[path]), version=1)
            for path in sorted(files, reverse=True)
        ]
        return PluginResponse(
            storage_list=StorageListResponse(
                entries=[each for each in found if each.path.startswith(prefix)]
            )
        )
    content = files.get(request.storage_read.path)
    if content is None:
        failure = StorageFailure(code="not_found", message="there is no such file")
        return PluginResponse(storage_read=StorageReadResponse(failure=failure))
    return PluginResponse(storage_read=StorageReadResponse(content=content, version=1))


def test_resources(hub: Hub) -> None:
    hub.answers = {"storage_list": storage, "storage_read": storage}
    with bridge(hub) as process:
        connect(process)
        listed = process.ask(request(1, "resources/list"))["result"]["resources"]
        assert [(each["uri"], each["name"], each["mimeType"]) for each in listed] == [
            ("orchestra://features/FEAT-001", "FEAT-001", "text/markdown"),
            ("orchestra://features/FEAT-002", "FEAT-002", "text/markdown"),
            ("orchestra://docs/deep/a%20b", "deep/a b", "text/markdown"),
        ]
        templates = process.ask(request(2, "resources/templates/list"))["result"][
            "resourceTemplates"
        ]
        assert [each["uriTemplate"] for each in templates] == [
            "orchestra://features/{id}",
            "orchestra://notes/{id}",
            "orchestra://docs/{id}",
        ]
        read = process.ask(request(3, "resources/read", {"uri": "orchestra://features/FEAT-001"}))[
            "result"
        ]
        assert read["contents"] == [
            {"uri": "orchestra://features/FEAT-001", "text": "# One", "mimeType": "text/markdown"}
        ]
        assert hub.of("storage_read")[-1].path == "features/FEAT-001.md"
        for uri in ("orchestra://docs/deep/a%20b", "orchestra://docs/deep%2Fa%20b"):
            read = process.ask(request(uri, "resources/read", {"uri": uri}))["result"]
            assert read["contents"][0]["text"] == "# Deep"
        missing = process.ask(request(4, "resources/read", {"uri": "orchestra://notes/none"}))[
            "error"
        ]
        assert (missing["code"], missing["data"]) == (-32002, {"uri": "orchestra://notes/none"})


def test_what_upstream_s_storage_has_not_is_not_found_there_either(local: Hub) -> None:
    local.answers["storage_read"] = PluginResponse(storage_read=StorageReadResponse())
    with bridge(local) as process:
        connect(process)
        error = process.ask(request(1, "resources/read", {"uri": "orchestra://notes/none"}))[
            "error"
        ]
        assert error["code"] == -32002


def test_bytes_that_are_no_text_are_a_blob(local: Hub) -> None:
    local.answers["storage_read"] = PluginResponse(
        storage_read=StorageReadResponse(content=b"\xff\xfe\x00", version=1)
    )
    with bridge(local) as process:
        connect(process)
        (read,) = process.ask(request(1, "resources/read", {"uri": "orchestra://notes/x"}))[
            "result"
        ]["contents"]
        assert read["blob"] == "//4A"  # RFC 4648, by hand
        assert "text" not in read


@pytest.mark.parametrize("code", ["storage_not_found", "routing_error"])
def test_no_storage_is_an_empty_list(local: Hub, code: str) -> None:
    local.answers["storage_list"] = make_failure(code, "no plugin has the storage 'markdown'")
    with bridge(local) as process:
        connect(process)
        assert process.ask(request(1, "resources/list"))["result"] == {"resources": []}


def test_storage_that_fails_is_an_error_and_not_an_empty_list(local: Hub) -> None:
    failure = StorageFailure(code="storage_error", message="the disk is on fire")
    local.answers["storage_list"] = PluginResponse(
        storage_list=StorageListResponse(failure=failure)
    )
    with bridge(local) as process:
        connect(process)
        error = process.ask(request(1, "resources/list"))["error"]
        assert (error["code"], error["message"]) == (-32603, "storage: the disk is on fire")


@pytest.mark.parametrize(
    "uri",
    [
        "orchestra://plans/x",
        "orchestra://features",
        "orchestra://features/",
        "orchestra://features/../secret",
        "orchestra://features/%2e%2e/secret",
        "orchestra://features/..%2F..%2Fetc/passwd",
        "orchestra://features//etc/passwd",
        "orchestra://features/a%00b",
        "orchestra://features/%5c%5chost",
        "orchestra://features/%ff",
        "orchestra://features/" + "x" * 5000,
    ],
)
def test_uris_that_are_refused_before_anybody_is_asked(uri: str) -> None:
    with pytest.raises(RpcError) as caught:
        read_request({"uri": _raw(uri)})
    assert caught.value.code == -32602
    assert caught.value.message.startswith("uri: ")


def test_a_uri_is_decoded_once() -> None:
    _, asked = read_request({"uri": _raw("orchestra://features/%252e%252e")})
    assert asked.storage_read.path == "features/%2e%2e.md"


def _raw(value: Any) -> Any:
    return Raw(json.dumps(value).encode())
