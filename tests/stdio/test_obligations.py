"""What the specification asks of a server and no other test here shows; against a real process. requirements.py names each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from harness import INITIALIZED, RUN, Process, call, notification, request, script, text_of

LEGACY = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
TASKS = "io.modelcontextprotocol/tasks"
TOOLS = """
@server.tool
async def zebra() -> str:
    "Say that it is here."
    return "zebra"

@server.tool(name="apple")
async def first_in_the_alphabet() -> str:
    "Say that it is here."
    return "apple"

@server.tool
async def mole(context: Context) -> str:
    "Say who asks."
    return context.client.name
"""


def opening(version: str, name: str = "test", **capabilities: Any) -> dict[str, Any]:
    client = {"name": name, "version": "1"}
    return request(
        "open", "initialize", {"protocolVersion": version, "capabilities": capabilities, "clientInfo": client}
    )


def modern(name: str = "test", **capabilities: Any) -> dict[str, Any]:
    """A `_meta` of 2026-07-28, to be given to request(..., modern=True)."""
    return {
        "io.modelcontextprotocol/clientInfo": {"name": name, "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": capabilities,
    }


def names(answer: Any) -> list[str]:
    return [tool["name"] for tool in answer["result"]["tools"]]


def test_everybody_sees_the_same_tools_in_the_order_in_which_they_were_added(tmp_path: Path) -> None:
    server = script(tmp_path, TOOLS + RUN)
    expected = ["zebra", "apple", "mole"]
    for version, client in (("2025-11-25", "inspector"), ("2024-11-05", "evil")):
        with Process([server]) as process:
            process.send(opening(version, client), INITIALIZED)
            assert names(process.ask(request(1, "tools/list"))) == expected
            assert text_of(process.ask(call(2, "mole"))) == client  # it knows who asks, and lists the same
            assert names(process.ask(request(3, "tools/list"))) == expected
            listed = [
                process.ask(request(name, "tools/list", {"_meta": modern(name)}, modern=True))["result"]["tools"]
                for name in ("claude", "evil", "")
            ]
            assert [tool["name"] for tool in listed[0]] == expected
            assert listed[0] == listed[1] == listed[2]


def test_a_server_without_tools_lists_none(tmp_path: Path) -> None:
    with Process([script(tmp_path, RUN)]) as process:
        discovered = process.ask(request(1, "server/discover", modern=True))["result"]
        assert "tools" in discovered["capabilities"]
        assert names(process.ask(request(2, "tools/list", modern=True))) == []
        process.initialize()
        assert names(process.ask(request(3, "tools/list"))) == []


@pytest.mark.parametrize("version", LEGACY)
def test_capabilities_that_nobody_knows_are_no_obstacle(version: str) -> None:
    unknown: dict[str, Any] = {
        "elicitation": {"carrierPigeon": {"speed": 3}},
        "telepathy": {"range": [1, None]},
        "experimental": {"x": {}},
        "extensions": {"com.example/ui": {"a": 1}, TASKS: {}},
    }
    with Process() as process:
        process.send(opening(version, **unknown), INITIALIZED)
        assert process.answer("open")["result"]["protocolVersion"] == version
        assert text_of(process.ask(call(1, "echo", {"text": "a"}))) == "a"
        params = {"name": "echo", "arguments": {"text": "b"}, "_meta": modern(**unknown)}
        assert text_of(process.ask(request(2, "tools/call", params, modern=True))) == "b"


def test_tasks_are_neither_declared_nor_served_and_a_wish_for_one_is_ignored() -> None:
    wish = {"name": "echo", "arguments": {"text": "a"}, "task": {"ttl": 60000}}
    methods = ["tasks/get", "tasks/result", "tasks/list", "tasks/cancel"]
    with Process() as process:
        opened = process.initialize("2025-11-25")["result"]
        assert "tasks" not in opened["capabilities"]
        for meta in ({}, {"_meta": modern(extensions={TASKS: {}})}):
            eras = {"modern": bool(meta)}
            for method in [*methods, "tasks/update"] if meta else methods:
                refused = process.ask(request(f"{method} {len(meta)}", method, {"taskId": "x", **meta}, **eras))
                assert refused["error"]["code"] == -32601
            answer = process.ask(request(f"wish {len(meta)}", "tools/call", {**wish, **meta}, **eras))
            assert text_of(answer) == "a"
            assert "task" not in answer["result"]
            assert answer["result"].get("resultType") == ("complete" if meta else None)
        tools = process.ask(request("list", "tools/list"))["result"]["tools"]
        assert not [tool["name"] for tool in tools if tool.get("execution", {}).get("taskSupport")]
        discovered = process.ask(request("discover", "server/discover", modern=True))["result"]
        assert TASKS not in discovered["capabilities"].get("extensions", {})


def test_progress_told_by_a_client_is_ignored() -> None:
    told = [
        notification("notifications/progress", {"progressToken": "t", "progress": 1}),
        notification("notifications/progress", {"progressToken": None, "progress": "much"}),
        notification("notifications/progress", {"_meta": modern(), "progressToken": 5, "progress": 2}),
    ]
    with Process() as process:
        process.send(call("a", "wait_at", {"name": "g"}, token="t", modern=True), *told)
        process.send(call("b", "open_gate", {"name": "g"}, modern=True))
        text_of(process.answer("a"))
        text_of(process.answer("b"))
        assert process.finish() == 0
        assert len(process.messages) == 2


def test_the_reason_of_a_cancel_is_in_the_log() -> None:
    with Process(env={"LOG_LEVEL": "debug"}) as process:
        process.initialize()
        process.ask(call(6, "echo", {"text": "The server has started."}))
        process.send(call(7, "sleep", {"seconds": 60}))
        process.send(notification("notifications/cancelled", {"requestId": 7, "reason": "The cake is eaten."}))
        process.until_stderr("request 7 was cancelled: The cake is eaten.")
        assert process.ask(request(8, "ping"))["result"] == {}
        assert process.answers(7) == []
