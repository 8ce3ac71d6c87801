"""The wire: error codes, texts that clients look for, and codes in tool errors, as they came.

Sources: JSON-RPC 2.0 section 5.1; the Orchestre protocol reference, "Error Handling"; the MCP
transport document, "Error Response Format"; the transport.stdio document, "Error Codes"; MCP
2026-07-28.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from contract.programs import (
    INITIALIZE,
    INITIALIZED,
    answers,
    answers_by_id,
    command,
    modern,
    request,
    run,
    tool_bodies,
    tool_body,
)

import concertino.server
from concertino import Client, Server, ToolError

# The name of the class of JSON-RPC errors is not pinned here: it is found by what it takes.
ERROR_CLASS = """
import inspect
import concertino.errors
def takes(kind):
    if not isinstance(kind, type) or not issubclass(kind, Exception):
        return []
    return list(inspect.signature(kind.__init__).parameters)
kinds = [getattr(concertino.errors, name) for name in concertino.errors.__all__]
Error = next(kind for kind in kinds if takes(kind) == ["self", "code", "message", "data"])
"""
SERVER = """
import asyncio
from concertino import Server, ToolError
server = Server("wire", version="1.0.0", argument_errors=MODE)
@server.tool
async def add(a: int, b: int) -> int:
    return a + b
@server.tool
async def fail() -> str:
    raise ToolError(
        "TEMPLATE_NOT_FOUND", "Template not found",
        suggestion="Choose one", availableTemplates=["a"],
    )
@server.tool
async def give_up() -> str:
    raise ToolError("there is no shelf", suggestion="Build one")
@server.tool
async def complain() -> str:
    raise ToolError("there is no shelf")
@server.tool
async def tell() -> str:
    raise ValueError("the key is hunter2-hunter2")
@server.tool(redact=True)
async def show() -> dict:
    return {"apiKey": "k-1", "text": "hunter2-hunter2"}
@server.tool(rate_limit="1/60")
async def rare() -> str:
    return "rare"
released = asyncio.Event()
@server.tool(max_in_flight=1)
async def one() -> str:
    await released.wait()
    return "one"
@server.tool
async def release() -> str:
    released.set()
    return "released"
@server.tool(timeout_s=0.01)
async def slow() -> str:
    await asyncio.Event().wait()
@server.tool(max_result_bytes=600)
async def big() -> dict:
    return {"text": "x" * 5000}
@server.tool(envelope=True)
async def wrapped() -> int:
    return 7
@server.resource("config://app")
def config() -> str:
    return "here"
@server.resource("config://broken")
def broken() -> str:
    raise ValueError("the key is hunter2-hunter2")
@server.prompt
def greet(name: str) -> str:
    return name
"""
SENT = [
    INITIALIZE,
    INITIALIZED,
    request("unknown", "some/unknown"),
    request("no-resource", "resources/read", uri="config://none"),
    request("broken", "resources/read", uri="config://broken"),
    request("no-name", "tools/call"),
    request("no-uri", "resources/read"),
    request("no-tool", "tools/call", name="none"),
    request("no-prompt", "prompts/get", name="none"),
    request("prompt", "prompts/get", name="greet"),
    request("arguments", "tools/call", name="add", arguments={"a": 1}),
    request("fail", "tools/call", name="fail"),
    request("give-up", "tools/call", name="give_up"),
    request("complain", "tools/call", name="complain"),
    request("tell", "tools/call", name="tell"),
    request("show", "tools/call", name="show"),
    request("rare", "tools/call", name="rare"),
    request("too-often", "tools/call", name="rare"),
    request("one", "tools/call", name="one"),
    request("two", "tools/call", name="one"),
    request("release", "tools/call", name="release"),
    request("slow", "tools/call", name="slow"),
    request("big", "tools/call", name="big"),
    request("wrapped", "tools/call", name="wrapped"),
    '{"jsonrpc": "2.0", "id": "again", "method": "initialize", "params": {}}',
    '{"jsonrpc": "2.0", "id": "no-method"}',
    '{"jsonrpc": "2.0", "id": "array", "method": "ping", "params": []}',
    "{no json",
]


def run_server(*lines: str, mode: str = "result", more: str = "", **environment: str) -> str:
    """Return the stdout of a server to which these lines were sent."""
    source = f"MODE = {mode!r}\n{SERVER}{more}\nserver.run()\n"
    ended = run(
        [sys.executable, "-c", source], lines, {"MY_API_KEY": "hunter2-hunter2", **environment}
    )
    assert ended.code == 0
    return ended.out


@pytest.fixture(scope="module")
def out() -> str:
    return run_server(*SENT)


@pytest.fixture(scope="module")
def errors(out: str) -> dict[Any, Any]:
    return answers_by_id(out)


@pytest.fixture(scope="module")
def bodies(out: str) -> dict[Any, Any]:
    return tool_bodies(out)


# Error codes and messages


def test_an_unknown_method_is_named(errors: dict[Any, Any]) -> None:
    assert errors["unknown"] == {"code": -32601, "message": "method not found: some/unknown"}


def test_the_bytes_of_an_error_answer_stay(out: str) -> None:
    error = '{"code":-32601,"message":"method not found: some/unknown"}'
    line = '{"jsonrpc":"2.0","id":"unknown","error":' + error + "}"
    assert line in out.splitlines()


def test_a_resource_that_is_not_there_had_a_code_of_its_own_before_2026(
    errors: dict[Any, Any],
) -> None:
    assert errors["no-resource"]["code"] == -32002
    assert errors["no-resource"]["message"].startswith("Resource not found")
    assert errors["no-resource"]["data"] == {"uri": "config://none"}


def test_a_resource_that_fails_is_an_internal_error(errors: dict[Any, Any]) -> None:
    assert errors["broken"]["code"] == -32603


@pytest.mark.parametrize(
    ("id", "field"), [("no-name", "name"), ("no-uri", "uri"), ("prompt", "name")]
)
def test_a_missing_field_is_named_in_the_details(
    errors: dict[Any, Any], id: str, field: str
) -> None:
    assert errors[id] == {
        "code": -32602,
        "message": "Invalid params",
        "data": {"details": f"Missing required field: {field}"},
    }


def test_unknown_names_are_invalid_params(errors: dict[Any, Any]) -> None:
    assert (errors["no-tool"]["code"], errors["no-tool"]["message"]) == (
        -32602,
        "Unknown tool: none",
    )
    assert (errors["no-prompt"]["code"], errors["no-prompt"]["message"]) == (
        -32602,
        "Unknown prompt: none",
    )


def test_a_second_initialize_is_an_invalid_request(errors: dict[Any, Any]) -> None:
    assert errors["again"]["code"] == -32600
    assert errors["again"]["message"].startswith("Invalid Request")


def test_a_request_without_a_method_is_invalid(errors: dict[Any, Any]) -> None:
    assert errors["no-method"]["code"] == -32600
    assert errors["no-method"]["message"].startswith("Invalid Request")


def test_params_that_are_no_object_are_invalid(errors: dict[Any, Any]) -> None:
    assert errors["array"]["code"] == -32602
    assert errors["array"]["message"].startswith("Invalid params")


def test_what_is_no_json_is_a_parse_error(errors: dict[Any, Any]) -> None:
    assert errors[None]["code"] == -32700
    assert errors[None]["message"].startswith("Parse error")


def test_arguments_that_do_not_fit_can_be_an_error_of_the_protocol() -> None:
    out = run_server(
        INITIALIZE,
        INITIALIZED,
        request(1, "tools/call", name="add", arguments={"a": 1}),
        mode="protocol",
    )
    error = answers_by_id(out)[1]
    assert error["code"] == -32602
    assert error["message"] == "Invalid params"
    assert error["data"]["details"] == "Missing required field: b"


@pytest.fixture(scope="module")
def modern_errors() -> dict[Any, Any]:
    no_version = {"io.modelcontextprotocol/protocolVersion": "2099-01-01"}
    more = """
import concertino.server
@server.tool
async def ask(context: concertino.Context) -> str:
    return str(await context.roots())
"""
    out = run_server(
        request(
            "version",
            "tools/list",
            _meta={**no_version, "io.modelcontextprotocol/clientCapabilities": {}},
        ),
        modern("no-resource", "resources/read", uri="config://none"),
        modern("unknown", "some/unknown"),
        modern("ask", "tools/call", name="ask"),
        more=more,
    )
    return answers_by_id(out)


def test_an_unknown_revision_has_a_code_and_names_those_that_are_known(
    modern_errors: dict[Any, Any],
) -> None:
    assert modern_errors["version"] == {
        "code": -32022,
        "message": "Unsupported protocol version",
        "data": {"supported": ["2026-07-28"], "requested": "2099-01-01"},
    }


def test_a_resource_that_is_not_there_is_invalid_params_since_2026(
    modern_errors: dict[Any, Any],
) -> None:
    assert modern_errors["no-resource"]["code"] == -32602
    assert modern_errors["no-resource"]["message"].startswith("Resource not found")
    assert modern_errors["no-resource"]["data"] == {"uri": "config://none"}


def test_a_missing_capability_has_a_code_and_is_named(modern_errors: dict[Any, Any]) -> None:
    assert modern_errors["ask"]["code"] == -32021
    assert modern_errors["ask"]["data"] == {"requiredCapabilities": {"roots": {}}}


def test_an_unknown_method_is_named_since_2026_too(modern_errors: dict[Any, Any]) -> None:
    assert modern_errors["unknown"] == {"code": -32601, "message": "method not found: some/unknown"}


def test_codes_of_one_era_are_internal_errors_in_the_other() -> None:
    more = f"""{ERROR_CLASS}
@server.prompt
def visit() -> str:
    raise Error(-32042, "a URL must be visited", {{"elicitations": []}})
"""
    legacy = run_server(INITIALIZE, INITIALIZED, request(1, "prompts/get", name="visit"), more=more)
    assert answers_by_id(legacy)[1]["code"] == -32042
    assert (
        answers_by_id(run_server(modern(1, "prompts/get", name="visit"), more=more))[1]["code"]
        == -32603
    )


def test_a_server_with_too_many_calls_says_busy_with_its_limits() -> None:
    more = """
@server.tool
async def wait() -> str:
    await asyncio.Event().wait()
"""
    limits = {
        "CONCERTINO_MAX_IN_FLIGHT": "1",
        "CONCERTINO_MAX_WAITING": "1",
        "CONCERTINO_MAX_WAITING_BYTES": "1000",
        "CONCERTINO_DRAIN_S": "0.05",
    }
    calls = [request(id, "tools/call", name="wait") for id in (1, 2, 3)]
    error = answers_by_id(run_server(INITIALIZE, INITIALIZED, *calls, more=more, **limits))[3]
    assert error["code"] == -31001
    assert error["message"].startswith("busy: ")
    assert error["data"] == {"maxWaiting": 1, "maxWaitingBytes": 1000}


def test_a_message_over_the_limit_is_refused_with_both_sizes() -> None:
    line = request(1, "ping", padding="x" * 2000)
    out = run_server(INITIALIZE, line, CONCERTINO_MAX_MESSAGE_BYTES="1000")
    [error] = [message["error"] for message in answers(out) if "error" in message]
    assert error["code"] == -32600
    assert error["message"].startswith("Invalid Request: ")
    assert set(error["data"]) == {"limitBytes", "receivedBytes"}
    assert error["data"]["limitBytes"] == 1000


# Codes in tool errors


def test_a_tool_error_has_error_code_suggestion_and_what_the_author_adds(out: str) -> None:
    assert (
        '{"jsonrpc":"2.0","id":"fail","result":{"content":[{"type":"text","text":'
        '"{\\"error\\":\\"Template not found\\",\\"code\\":\\"TEMPLATE_NOT_FOUND\\",'
        '\\"suggestion\\":\\"Choose one\\",\\"availableTemplates\\":[\\"a\\"]}"}],"isError":true}}'
    ) in out.splitlines()


def test_a_tool_error_without_a_code_has_failed(bodies: dict[Any, Any]) -> None:
    assert bodies["give-up"] == {
        "error": "there is no shelf",
        "code": "TOOL_FAILED",
        "suggestion": "Build one",
    }
    assert bodies["complain"] == "there is no shelf"


def test_arguments_that_do_not_fit_have_a_code_and_details(bodies: dict[Any, Any]) -> None:
    body = bodies["arguments"]
    assert list(body) == ["error", "code", "suggestion", "details"]
    assert body["error"] == "Invalid arguments: Missing required field: b"
    assert body["code"] == "INVALID_ARGUMENTS"
    assert body["details"] == [{"path": "b", "message": "required, but missing"}]


@pytest.mark.parametrize(
    ("id", "code", "members"),
    [
        ("too-often", "RATE_LIMIT_EXCEEDED", ["retryAfterSeconds"]),
        ("two", "TOO_MANY_IN_FLIGHT", ["limit"]),
        ("slow", "TIMED_OUT", ["limitSeconds"]),
        ("big", "RESULT_TOO_LARGE", ["limitBytes", "sizeBytes", "uri"]),
    ],
)
def test_a_guard_refuses_with(
    bodies: dict[Any, Any], id: str, code: str, members: list[str]
) -> None:
    assert bodies[id]["code"] == code
    assert list(bodies[id]) == ["error", "code", "suggestion", *members]


def test_a_large_result_is_linked(bodies: dict[Any, Any], errors: dict[Any, Any]) -> None:
    uri = bodies["big"]["uri"]
    assert re.fullmatch(r"result://concertino/[0-9a-f]{32}", uri)
    assert errors["big"]["content"][1]["uri"] == uri


def test_an_envelope_has_success_data_and_metadata(errors: dict[Any, Any]) -> None:
    text = errors["wrapped"]["content"][0]["text"]
    envelope = tool_body(errors["wrapped"])
    assert text.startswith(
        '{\n  "success": true,\n  "data": 7,\n  "metadata": {\n    "timestamp": "'
    )
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", envelope["metadata"]["timestamp"]
    )
    assert envelope["metadata"]["version"] == "1.0.0"


# Redaction


def test_the_text_of_an_unexpected_exception_is_redacted(bodies: dict[Any, Any]) -> None:
    assert bodies["tell"] == "ValueError: the key is [REDACTED]"


def test_secrets_and_fields_of_a_result_are_redacted(
    errors: dict[Any, Any], bodies: dict[Any, Any]
) -> None:
    assert bodies["show"] == {"apiKey": "[REDACTED]", "text": "[REDACTED]"}
    assert errors["show"]["structuredContent"] == {"apiKey": "[REDACTED]", "text": "[REDACTED]"}


FIELDS = [
    "apiKey",
    "access_token",
    "refreshToken",
    "secret",
    "clientSecret",
    "password",
    "authorization",
    "privateKey",
]
WORDS = [
    "API_KEY",
    "ACCESS_KEY",
    "PRIVATE_KEY",
    "SECRET",
    "TOKEN",
    "PASSWORD",
    "PASSWD",
    "CREDENTIAL",
    "CREDENTIALS",
    "AUTHORIZATION",
]


def test_every_secret_name_of_a_field_and_of_a_variable_is_known() -> None:
    more = f"""
@server.tool(redact=True)
async def fields() -> dict:
    return {dict.fromkeys(FIELDS, "x")!r}
@server.tool(redact=True)
async def values() -> list:
    return {[f"secret value {word}" for word in WORDS]!r}
"""
    calls = [request(name, "tools/call", name=name) for name in ("fields", "values")]
    variables = {f"MY_{word}": f"secret value {word}" for word in WORDS}
    bodies = tool_bodies(run_server(INITIALIZE, INITIALIZED, *calls, more=more, **variables))
    assert bodies["fields"] == dict.fromkeys(FIELDS, "[REDACTED]")
    assert bodies["values"] == ["[REDACTED]"] * len(WORDS)


# Long operations and contexts


def class_with(method: str, argument: str) -> Any:
    """Return the public class, whatever its name is, that has a method and takes an argument."""
    kinds = [getattr(concertino.server, name) for name in concertino.server.__all__]
    [found] = [
        kind
        for kind in kinds
        if isinstance(kind, type)
        and hasattr(kind, method)
        and argument in inspect.signature(kind.__init__).parameters
    ]
    return found


async def call_tool_json(client: Client, name: str, **arguments: Any) -> Any:
    """Return the JSON in the text of a tool's result."""
    return json.loads((await client.call_tool(name, arguments)).content[0].text)


async def code_of(client: Client, name: str, **arguments: Any) -> str:
    """Return the code in a tool's error."""
    return str((await call_tool_json(client, name, **arguments))["code"])


def rendering(limit_s: float) -> Server:
    """Return a server with one long operation, which never ends by itself."""
    server = Server("operations")
    operations = class_with("tool", "at_most")(server, at_most=1, limit_s=limit_s)

    @operations.tool(message="Rendering...", estimated_time="5 minutes", answer_after_s=0)
    async def render() -> str:
        await asyncio.Event().wait()
        return ""

    return server


def test_long_operations_keep_their_tools_members_and_codes() -> None:
    async def conversation() -> None:
        async with Client(rendering(60)) as client:
            tools = {tool.name for tool in await client.list_tools()}
            assert tools == {"render", "get_operation", "cancel_operation"}
            started = await call_tool_json(client, "render")
            assert list(started) == ["status", "message", "estimatedTime", "operationId"]
            assert started["status"] == "in_progress"
            assert started["message"] == "Rendering..."
            assert started["estimatedTime"] == "5 minutes"
            assert re.fullmatch("op_[0-9a-f]{32}", started["operationId"])
            handle = {"operationId": started["operationId"]}
            assert (await call_tool_json(client, "get_operation", **handle))[
                "status"
            ] == "in_progress"
            assert await code_of(client, "render") == "TOO_MANY_OPERATIONS"
            unknown = {"operationId": "op_1"}
            assert await code_of(client, "get_operation", **unknown) == "OPERATION_NOT_FOUND"
            cancelled = await call_tool_json(client, "cancel_operation", **handle)
            assert cancelled == {"status": "cancelled", **handle}
            assert await code_of(client, "get_operation", **handle) == "OPERATION_CANCELLED"

    asyncio.run(conversation())


def test_a_long_operation_that_is_late_has_a_code() -> None:
    async def conversation() -> None:
        async with Client(rendering(0.01)) as client:
            handle = {"operationId": (await call_tool_json(client, "render"))["operationId"]}
            answer = {"status": "in_progress"}
            while answer.get("status") == "in_progress":
                answer = await call_tool_json(client, "get_operation", **handle)
            assert answer["code"] == "OPERATION_TIMED_OUT"

    asyncio.run(conversation())


def test_contexts_keep_their_tools_members_and_codes() -> None:
    server = Server("contexts")
    class_with("add_tools", "max_contexts")(max_keys=1, max_value_bytes=10).add_tools(server)

    async def conversation() -> None:
        async with Client(server) as client:
            assert {tool.name for tool in await client.list_tools()} == {
                "set_context",
                "get_context",
            }
            begun = await call_tool_json(client, "set_context", key="theme", value="dark")
            assert list(begun) == ["success", "context", "expiresAfterSeconds"]
            context = begun["context"]
            assert re.fullmatch("ctx_[0-9a-f]{32}", context)
            assert await call_tool_json(client, "get_context", context=context) == {
                "context": context,
                "values": {"theme": "dark"},
            }
            missing = await call_tool_json(client, "get_context", context=context, key="none")
            assert missing["code"] == "KEY_NOT_FOUND"
            assert missing["availableKeys"] == ["theme"]
            full = await call_tool_json(
                client, "set_context", context=context, key="other", value=1
            )
            assert full["code"] == "CONTEXT_FULL"
            assert await code_of(client, "get_context", context="ctx_1") == "CONTEXT_NOT_FOUND"
            long = {"key": "k", "value": "x" * 20}
            assert await code_of(client, "set_context", **long) == "VALUE_TOO_LARGE"

    asyncio.run(conversation())


def test_contexts_that_cannot_be_kept_say_so(tmp_path: Path) -> None:
    server = Server("contexts")
    contexts = class_with("add_tools", "max_contexts")(tmp_path / "none" / "contexts.db")
    contexts.add_tools(server)

    async def conversation() -> None:
        async with Client(server) as client:
            given = {"key": "k", "value": 1}
            assert await code_of(client, "set_context", **given) == "CONTEXT_UNAVAILABLE"
        with pytest.raises(ToolError) as refused:
            await contexts.set(None, "", 1)
        assert refused.value.code == "INVALID_KEY"

    asyncio.run(conversation())


# A library


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> dict[Any, Any]:
    folder = tmp_path_factory.mktemp("library")
    (folder / "resources" / "agents").mkdir(parents=True)
    (folder / "prompts").mkdir()
    (folder / "resources" / "agents" / "api.md").write_text(
        "# REST API\n\nTalk about api design.\n"
    )
    for name in ("first", "second"):
        (folder / "resources" / "agents" / name).mkdir()
        (folder / "resources" / "agents" / name / "twin.md").write_text("# Twin\n")
    (folder / "prompts" / "greet.md").write_text(
        "---\narguments:\n  - name: who\n    required: true\n---\nGreet ${who}.\n"
    )
    lines = [
        modern("none", "resources/read", uri="orchestr8://agents/non-existent"),
        modern("twin", "resources/read", uri="orchestr8://agents/twin"),
        modern("who", "prompts/get", name="greet", arguments={}),
        modern("zip", "prompts/get", name="zip"),
        modern("wrong", "resources/read", uri="orchestr8://match?query=api&wrong=1"),
        modern(
            "match",
            "resources/read",
            uri="orchestr8://match?query=api&mode=minimal&maxTokens=100&maxResults=2",
        ),
        modern("registry", "resources/read", uri="orchestr8://registry"),
        modern("agents", "resources/read", uri="orchestr8://agents"),
        modern("templates", "resources/templates/list"),
    ]
    ended = run(command("serve", folder), lines, {"XDG_CACHE_HOME": str(folder / "cache")})
    legacy = [
        INITIALIZE,
        INITIALIZED,
        request("legacy", "resources/read", uri="orchestr8://agents/non-existent"),
    ]
    older = run(command("serve", folder), legacy, {"XDG_CACHE_HOME": str(folder / "cache")})
    return {**answers_by_id(ended.out), **answers_by_id(older.out)}


def test_a_library_names_the_resource_that_is_not_there(library: dict[Any, Any]) -> None:
    assert library["none"] == {
        "code": -32602,
        "message": "Resource not found: orchestr8://agents/non-existent",
        "data": {"uri": "orchestr8://agents/non-existent"},
    }
    assert library["legacy"] == {**library["none"], "code": -32002}


def test_a_library_names_the_field_that_is_missing(library: dict[Any, Any]) -> None:
    assert library["who"] == {
        "code": -32602,
        "message": "Invalid params",
        "data": {"details": "Missing required field: who"},
    }


def test_other_errors_of_a_library_keep_their_codes_and_members(library: dict[Any, Any]) -> None:
    assert (library["zip"]["code"], library["zip"]["message"]) == (-32602, "Unknown prompt: zip")
    assert library["wrong"]["code"] == -32602
    assert set(library["wrong"]["data"]) == {"details", "parameter", "expected", "got"}
    assert library["twin"]["code"] == -32602
    assert library["twin"]["message"] == "Ambiguous resource: orchestr8://agents/twin"
    assert library["twin"]["data"]["candidates"] == [
        "orchestr8://agents/first/twin",
        "orchestr8://agents/second/twin",
    ]


def test_what_a_library_matches_has_these_members(library: dict[Any, Any]) -> None:
    [contents] = library["match"]["contents"]
    assert set(contents["_meta"]) == {"fragments", "tokens", "limit"}
    found = tool_body({"content": [contents]})
    assert list(found) == ["query", "found", "limit", "fragments"]
    assert list(found["fragments"][0]) == ["uri", "title", "tokens", "score"]


def test_what_a_library_says_of_itself_has_these_members(library: dict[Any, Any]) -> None:
    registry = tool_body({"content": library["registry"]["contents"]})
    assert list(registry) == ["scheme", "categories", "documents", "tokens", "resources"]
    assert list(registry["categories"][0]) == ["category", "uri", "documents", "tokens"]
    catalogue = tool_body({"content": library["agents"]["contents"]})
    assert list(catalogue) == ["category", "uri", "match", "documents", "tokens", "resources"]


def test_the_templates_of_a_library_stay(library: dict[Any, Any]) -> None:
    assert {
        item["name"]: item["uriTemplate"] for item in library["templates"]["resourceTemplates"]
    } == {
        "match": "orchestr8://match{?query,maxTokens,maxResults,minScore,tags,categories,mode}",
        "match-category": "orchestr8://{category}/match{?query,maxTokens,maxResults,minScore,tags,mode}",
        "registry": "orchestr8://registry",
        "category": "orchestr8://{category}",
        "document": "orchestr8://{category}/{+id}",
    }
