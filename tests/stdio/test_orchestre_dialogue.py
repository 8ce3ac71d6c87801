"""examples/orchestre over a real process: the dialogue of its source document (MCP Protocol
Reference), message by message.

What is sent is that document's, with its ids; what must come is what it shows, where it shows it.
Its "..." and comments stand for what is checked by tests/examples.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from stdio.harness import INITIALIZED, Process, failure_of, request, text_of

SERVER = str(Path(__file__).parents[2] / "examples" / "orchestre" / "server.py")
COMMANDS = {"alone": [SERVER], "served": ["-m", "concertino", "serve", f"{SERVER}:backend"]}
OPENING = {
    "protocolVersion": "2025-06-18",
    "capabilities": {},
    "clientInfo": {"name": "claude-code", "version": "1.0.0"},
}
IDEA = "Build a SaaS application with user authentication and subscription billing"


def data_of(answer: dict[str, Any]) -> Any:
    """What is in the envelope of a result ("Consistent Response Format")."""
    envelope = json.loads(text_of(answer))
    assert list(envelope) == ["success", "data", "metadata"]
    assert envelope["success"] is True
    return envelope["data"]


@pytest.fixture(params=COMMANDS)
def orchestre(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Process]:
    with Process(COMMANDS[request.param], env={"ORCHESTRE_ROOT": str(tmp_path)}) as process:
        opened = ask(
            process, {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": OPENING}
        )["result"]
        assert opened["serverInfo"] == {"name": "orchestre", "version": "3.0.0"}
        assert "tools" in opened["capabilities"]
        process.send(INITIALIZED)
        yield process


def ask(process: Process, message: dict[str, Any]) -> Any:
    """Its answer; the document uses ids more than once."""
    process.forget()
    process.send(message)
    answer = process.receive()
    assert answer.get("id") == message["id"]
    return answer


def call(id: int, name: str, arguments: Any) -> dict[str, Any]:
    return {
        "jsonrpc": "2.0",
        "id": id,
        "method": "tools/call",
        "params": {"name": name, "arguments": arguments},
    }


def test_the_document_s_messages_get_the_document_s_answers(
    orchestre: Process, tmp_path: Path
) -> None:
    # "Tool Discovery": the method alone, without params.
    listed = ask(orchestre, {"jsonrpc": "2.0", "id": 1, "method": "tools/list"})
    assert (listed["jsonrpc"], listed["id"]) == ("2.0", 1)
    first, *more = listed["result"]["tools"]
    assert (first["name"], first["description"]) == (
        "initialize_project",
        "Initialize a new project with a template",
    )
    assert first["inputSchema"]["type"] == "object"
    tools = {tool["name"]: tool for tool in more}
    assert list(tools) == [
        "analyze_project",
        "generate_plan",
        "multi_llm_review",
        "set_context",
        "get_context",
    ]
    # "Registering Tools".
    analyze = tools["analyze_project"]
    assert analyze["description"].startswith("Analyze project requirements using AI")
    schema = analyze["inputSchema"]
    assert (schema["type"], schema["required"]) == ("object", ["requirements"])
    assert schema["properties"]["requirements"] == {
        "type": "string",
        "description": "Project requirements to analyze",
        "minLength": 10,  # "Input Validation"
        "maxLength": 5000,
    }
    # "Message Format".
    answer = ask(
        orchestre, call(1, "analyze_project", {"requirements": "Build a SaaS application"})
    )
    assert answer["id"] == 1
    [block] = answer["result"]["content"]
    analysis = json.loads(block["text"])["data"]
    assert block["type"] == "text"
    assert {
        "summary",
        "complexity",
        "keyComponents",
        "challenges",
        "recommendations",
        "risks",
        "phases",
    } <= set(analysis)
    # "Tool Invocation", "Tool Response"; the first time with what its comment leaves out, the
    # second with it.
    for given in ({}, analysis):
        answer = ask(
            orchestre,
            call(
                2,
                "generate_plan",
                {"analysis": given, "requirements": "Build SaaS with auth and billing"},
            ),
        )
        [block] = answer["result"]["content"]
        assert block["type"] == "text"
    plan = json.loads(block["text"])["data"]
    assert next(iter(plan)) == "phases"
    # "Tool Composition".
    review = data_of(ask(orchestre, call(3, "multi_llm_review", {"plan": plan})))
    assert review["verdict"] in ("approve", "revise")
    # "Error Response Format".
    assert ask(orchestre, call(3, "analyze_project", {})) == {
        "jsonrpc": "2.0",
        "id": 3,
        "error": {
            "code": -32602,
            "message": "Invalid params",
            "data": {"details": "Missing required field: requirements"},
        },
    }
    # "Tool-Specific Errors".
    assert json.loads(
        failure_of(ask(orchestre, call(4, "analyze_project", {"requirements": " " * 10})))
    ) == {
        "error": "Requirements are required",
        "code": "MISSING_REQUIREMENTS",
        "suggestion": "Provide project requirements as a string",
    }
    # "Comprehensive Error Messages".
    made = {"projectName": "shop", "template": "rails", "projectPath": "."}
    assert json.loads(failure_of(ask(orchestre, call(5, "initialize_project", made)))) == {
        "error": "Template not found",
        "code": "TEMPLATE_NOT_FOUND",
        "availableTemplates": ["makerkit-nextjs", "cloudflare-hono"],
        "suggestion": "Choose one of the available templates",
    }
    # "Consistent Response Format": with an indent of two.
    text = text_of(
        ask(orchestre, call(6, "initialize_project", {**made, "template": "cloudflare-hono"}))
    )
    assert text.startswith('{\n  "success": true,\n  "data": {\n    "')
    envelope = json.loads(text)
    assert list(envelope) == ["success", "data", "metadata"]
    assert envelope["metadata"]["version"] == "3.0.0"
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", envelope["metadata"]["timestamp"]
    )
    assert (tmp_path / "shop" / "src" / "index.ts").is_file()
    # "Context Preservation".
    kept = data_of(ask(orchestre, call(7, "set_context", {"key": "plan", "value": {"days": 1}})))
    assert kept["success"] is True
    got = ask(orchestre, call(8, "get_context", {"context": kept["context"], "key": "plan"}))
    assert data_of(got)["values"] == {"plan": {"days": 1}}


def test_the_standard_error_codes(orchestre: Process) -> None:
    """The document's table of them, each by a message that has it."""
    orchestre.forget()
    orchestre.write(b'{"jsonrpc": "2.0", "id": 1, "method": \n')
    assert orchestre.receive()["error"]["code"] == -32700
    orchestre.send({"jsonrpc": "1.0", "id": 2, "method": "tools/list"})
    assert orchestre.receive()["error"]["code"] == -32600
    assert (
        ask(orchestre, {"jsonrpc": "2.0", "id": 3, "method": "tools/none"})["error"]["code"]
        == -32601
    )
    for params in ({"name": "none"}, {"arguments": {}}, {"name": 5}):
        assert ask(orchestre, request(4, "tools/call", params))["error"]["code"] == -32602


@pytest.mark.parametrize("requirements", ["x" * 9, "x" * 5001, "\U0001f3bb" * 9, 5, None])
def test_requirements_are_validated_in_code_points(orchestre: Process, requirements: Any) -> None:
    error = ask(orchestre, call(1, "analyze_project", {"requirements": requirements}))["error"]
    assert (error["code"], error["message"]) == (-32602, "Invalid params")
    assert error["data"]["details"].startswith("requirements: expected ")
    for text in ("\U0001f3bb" * 10, "\U0001f3bb" * 5000):
        text_of(ask(orchestre, call(2, "analyze_project", {"requirements": text})))


def test_the_eleventh_call_of_a_minute_is_refused_for_each_tool(orchestre: Process) -> None:
    """ "Rate Limiting": ten for each operation in 60 seconds."""
    wanted = {"requirements": IDEA}
    for number in range(10):
        text_of(ask(orchestre, call(number, "analyze_project", wanted)))
    refused = json.loads(failure_of(ask(orchestre, call(10, "analyze_project", wanted))))
    assert refused["code"] == "RATE_LIMIT_EXCEEDED"
    text_of(ask(orchestre, call(11, "set_context", {"key": "k", "value": 1})))


def test_the_slash_command_is_a_prompt(orchestre: Process) -> None:
    """ "Usage in Prompts": /orchestrate "Build a SaaS application ..." """
    [prompt] = ask(orchestre, {"jsonrpc": "2.0", "id": 1, "method": "prompts/list"})["result"][
        "prompts"
    ]
    assert prompt["name"] == "orchestrate"
    assert [each["name"] for each in prompt["arguments"]] == ["requirements"]
    params = {"name": "orchestrate", "arguments": {"requirements": IDEA}}
    messages = ask(orchestre, request(2, "prompts/get", params))["result"]["messages"]
    text = messages[0]["content"]["text"]
    assert IDEA in text
    for tool in (
        "analyze_project",
        "generate_plan",
        "multi_llm_review",
        "set_context",
        "initialize_project",
    ):
        assert f"`{tool}`" in text
    assert '"keyComponents"' in messages[1]["content"]["text"]
    params["arguments"] = {"requirements": "short"}
    assert ask(orchestre, request(3, "prompts/get", params))["error"]["code"] == -32602


def test_secrets_do_not_leave_and_what_only_looks_like_one_stays_whole(tmp_path: Path) -> None:
    """ "API Key Protection": the value of a key in the environment, and a field called apiKey."""
    env = {"ORCHESTRE_ROOT": str(tmp_path), "GEMINI_API_KEY": "gemini-canary-0123456789"}
    with Process([SERVER], env=env) as process:
        ask(process, {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": OPENING})
        value = {
            "apiKey": "a-key-of-mine",
            "maxTokens": 5,
            "progressToken": "p",
            "note": "gemini-canary-0123456789",
        }
        kept = data_of(ask(process, call(1, "set_context", {"key": "k", "value": value})))
        answer = ask(process, call(2, "get_context", {"context": kept["context"]}))
        shown = data_of(answer)["values"]["k"]
        assert shown == {
            "apiKey": "[REDACTED]",
            "maxTokens": 5,
            "progressToken": "p",
            "note": "[REDACTED]",
        }
        assert b"canary" not in b"".join(process.lines)
        assert b"a-key-of-mine" not in b"".join(process.lines)


def test_debugging_prints_each_message_on_stderr(tmp_path: Path) -> None:
    """ "Log Message Flow": [MCP] <- and [MCP] ->, for any ORCHESTRE_DEBUG but 0, false
    and empty.
    """
    for setting, shown in (
        ("true", True),
        ("yes", True),
        ("False", False),
        ("0", False),
        ("", False),
    ):
        env = {"ORCHESTRE_ROOT": str(tmp_path), "ORCHESTRE_DEBUG": setting}
        with Process([SERVER], env=env) as process:
            ask(process, {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": OPENING})
            assert process.finish() == 0
            for start in (
                b'[MCP] <- {"jsonrpc":"2.0","id":0,"method":"initialize"',
                b'[MCP] -> {"jsonrpc":"2.0","id":0,',
            ):
                assert (start in process.stderr) is shown


LONG = """
from concertino import Context, Server
from concertino.server import Operations
import asyncio
server = Server("slow")
operations = Operations(server)
@operations.tool(message="Analyzing requirements...", estimated_time="30 seconds", answer_after_s=0)
async def analyze(requirements: str) -> str:
    await asyncio.sleep(0)
    return requirements.upper()
server.run()
"""


def test_a_long_operation_says_so_at_once(tmp_path: Path) -> None:
    """ "Async Operation Handling": status, message and estimatedTime; with the handle to ask by."""
    (tmp_path / "slow.py").write_text(LONG)
    with Process([str(tmp_path / "slow.py")]) as process:
        ask(process, {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": OPENING})
        first = json.loads(text_of(ask(process, call(1, "analyze", {"requirements": "a shop"}))))
        handle = first.pop("operationId")
        assert first == {
            "status": "in_progress",
            "message": "Analyzing requirements...",
            "estimatedTime": "30 seconds",
        }
        assert (
            text_of(
                ask(process, call(2, "get_operation", {"operationId": handle, "waitSeconds": 20}))
            )
            == "A SHOP"
        )
