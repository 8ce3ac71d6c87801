"""docs/how-to: long-operations.md and planning-server.md are pasted, and do what they say."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from docs.pages import DOCS, ask_server, blocks, environment, paste

from concertino import Client, ServerParameters

HOW_TO = DOCS / "how-to"


def call(name: str, token: str | None = None, /, **arguments: Any) -> tuple[str, dict[str, Any]]:
    meta = {} if token is None else {"_meta": {"progressToken": token}}
    return "tools/call", {"name": name, "arguments": arguments, **meta}


def test_the_pieces_are_told_and_the_whole_is_the_result(tmp_path: Path) -> None:
    assert paste(HOW_TO / "long-operations.md", tmp_path) == ["pieces.py", "studio.py"]
    requests = [
        call("tell", "t", story="Once upon a time"),
        call("find", "f", word="a", text="an apple\npie\ncake"),
    ]
    (told, found), notifications, _ = ask_server([sys.executable, "pieces.py"], requests, tmp_path)
    assert told["content"][0]["text"] == "Once upon a time "
    assert found["structuredContent"] == {
        "result": [{"line": 1, "text": "an apple"}, {"line": 3, "text": "cake"}]
    }
    heard = [item["params"] for item in notifications]
    assert [item["message"] for item in heard if item["progressToken"] == "t"] == [
        "Once ",
        "upon ",
        "a ",
        "time ",
    ]
    assert [
        (item["progress"], item["message"]) for item in heard if item["progressToken"] == "f"
    ] == [
        (1, '{"line":1,"text":"an apple"}'),
        (2, '{"line":3,"text":"cake"}'),
    ]


@pytest.mark.slow
def test_the_studio_answers_with_a_handle_and_is_asked_by_it(tmp_path: Path) -> None:
    page = HOW_TO / "long-operations.md"
    paste(page, tmp_path)
    [shown] = [json.loads(block) for block in blocks(page.read_text(), "json")]

    async def talk() -> None:
        target = ServerParameters(
            sys.executable, ["studio.py"], cwd=str(tmp_path), env=environment()
        )
        async with Client(target) as client:
            quick = await client.call_tool("render", {"scene": "a lake", "frames": 1})
            assert quick.structured_content == {"scene": "a lake", "frames": 1}
            first = await client.call_tool("render", {"scene": "a lake", "frames": 100}, into=dict)
            assert first.keys() <= shown.keys()
            assert (first["status"], first["estimatedTime"]) == ("in_progress", "30 seconds")
            heard: list[Any] = []
            last = await client.call_tool(
                "get_operation",
                {"operationId": first["operationId"], "waitSeconds": 30},
                into=dict,
                progress=lambda *told: heard.append(told),
            )
            assert last == {"scene": "a lake", "frames": 100}
            assert heard[-1] == (100, 100, "frame 100")
            again = await client.call_tool(
                "render", {"scene": "a sea", "frames": 100_000}, into=dict
            )
            handle = {"operationId": again["operationId"]}
            assert (await client.call_tool("cancel_operation", handle, into=dict))[
                "status"
            ] == "cancelled"
            gone = await client.call_tool("get_operation", handle)
            assert gone.is_error
            assert json.loads(gone.content[0].text)["code"] == "OPERATION_CANCELLED"  # type: ignore[union-attr]

    asyncio.run(asyncio.wait_for(talk(), 30))


def test_the_planner_does_what_its_page_says(tmp_path: Path) -> None:
    page = HOW_TO / "planning-server.md"
    assert paste(page, tmp_path) == ["planner.py"]
    text = "A shop with login and billing"
    requests: list[tuple[str, dict[str, Any]]] = [
        call("analyze", requirements=text),
        call("analyze"),
        call("analyze", requirements=" " * 10),
        call("make_plan", requirements=text),
        call("make_plan", requirements=text, analysis={"parts": ["search"]}),
        call("start_project", name="shop", template="web"),
        call("start_project", name="shop", template="none"),
        call("set_context", key="decided", value=[1]),
        ("prompts/get", {"name": "plan_it", "arguments": {"requirements": text}}),
    ]
    notes = tmp_path / "notes.db"
    answers, _, _ = ask_server(
        [sys.executable, "planner.py"], requests, tmp_path, PLANNER_NOTES=str(notes)
    )
    analysis, missing, blank, planned, given, started, unknown, kept, prompt = answers
    assert analysis["structuredContent"]["parts"] == ["login", "billing"]
    assert missing == {
        "code": -32602,
        "message": "Invalid params",
        "data": {"details": "Missing required field: requirements"},
    }
    assert json.loads(blank["content"][0]["text"])["code"] == "MISSING_REQUIREMENTS"
    assert planned["structuredContent"] == {"tasks": {"login": 5, "billing": 8}, "days": 13}
    assert given["structuredContent"] == {"tasks": {"search": 4}, "days": 4}
    envelope = json.loads(started["content"][0]["text"])
    assert (envelope["success"], envelope["data"]) == (True, ["shop/README.md", "shop/web.toml"])
    assert json.loads(unknown["content"][0]["text"])["availableTemplates"] == ["web", "service"]
    assert text in prompt["messages"][0]["content"]["text"]
    handle = kept["structuredContent"]["context"]
    [got], _, _ = ask_server(
        [sys.executable, "planner.py"],
        [call("get_context", context=handle)],
        tmp_path,
        PLANNER_NOTES=str(notes),
    )
    assert got["structuredContent"] == {"context": handle, "values": {"decided": [1]}}


def test_what_the_page_gives_to_a_client_is_json_with_absolute_paths() -> None:
    [block] = blocks((HOW_TO / "planning-server.md").read_text(), "json")
    [entry] = json.loads(block)["mcpServers"].values()
    assert re.fullmatch(r"/.*", entry["command"])
    assert all(path.startswith("/") for path in (*entry["args"], *entry["env"].values()))
