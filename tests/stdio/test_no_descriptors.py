"""A server whose code has taken every file descriptor still answers whatever clients send.

Answering needs modules that no earlier request has imported, and an import needs a descriptor.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from stdio.harness import INITIALIZE, RUN, Process, call, frame, request, script

SERVER = """
import resource
from collections.abc import AsyncIterator

files = []

@server.lifespan
async def limited() -> AsyncIterator[None]:
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    yield

@server.tool
async def take_all() -> int:
    try:
        while True:
            files.append(open("/dev/null"))
    except OSError:
        return len(files)

@server.tool
async def fail() -> int:
    raise ValueError("no such thing")

@server.tool
def double(number: int) -> int:
    return 2 * number

@server.tool
async def load_modules() -> str:
    # A package, a compiled module, and one that does not exist.
    import xml.dom.minidom, _curses, xml.missing
    return "loaded"

@server.tool
async def ask(context: Context) -> str:
    return str(await context.elicit("name?", {"type": "object", "properties": {}}))

@server.resource("memo://one")
def memo() -> str:
    return "text"

@server.resource("memo://{name}/text")
def memo_of(name: str) -> str:
    return name

@server.prompt
def greet(name: str) -> str:
    return name

"""
LISTEN = {"notifications": {"resourceSubscriptions": ["memo://one"]}}
CAPABLE = {"io.modelcontextprotocol/clientCapabilities": {"elicitation": {}}}
ASK = request(1, "tools/call", {"name": "ask", "_meta": CAPABLE}, modern=True)
NESTED = (
    b'{"jsonrpc":"2.0","id":1,"method":"ping","params":' + b"[" * 100_000 + b"]" * 100_000 + b"}\n"
)
# What is sent -> the beginning of the first answer.
ANSWERS: dict[str, tuple[bytes, str]] = {
    "text that is no JSON": (b"{oops\n", '{"jsonrpc":"2.0","error":{"code":-32700'),
    "text that is no UTF-8": (b'{"id":"\xff"}\n', '{"jsonrpc":"2.0","error":{"code":-32700'),
    "an id that is no id": (b'{"id":{}}\n', '{"jsonrpc":"2.0","error":{"code":-32600'),
    "deep nesting": (NESTED, '{"jsonrpc":"2.0","id":1,"error":{"code":-32700'),
    "an exception": (frame(call(1, "fail")), '{"jsonrpc":"2.0","id":1,"result":{"content":[{"type'),
    "a def tool": (frame(call(1, "double", {"number": 4})), '{"jsonrpc":"2.0","id":1,"result":{"c'),
    "a question": (frame(ASK), '{"jsonrpc":"2.0","id":1,"result":{"resultType":"input_required"'),
    "a resource": (
        frame(request(1, "resources/read", {"uri": "memo://one"})),
        '{"jsonrpc":"2.0","id":1,"result":{"contents":',
    ),
    "a template": (
        frame(request(1, "resources/read", {"uri": "memo://two/text"})),
        '{"jsonrpc":"2.0","id":1,"result":{"contents":',
    ),
    "a prompt": (
        frame(request(1, "prompts/get", {"name": "greet", "arguments": {"name": "you"}})),
        '{"jsonrpc":"2.0","id":1,"result":{"messages":',
    ),
    "a subscription": (
        frame(request(1, "resources/subscribe", {"uri": "memo://one"})),
        '{"jsonrpc":"2.0","id":1,"result":{}}',
    ),
    "a subscription of 2026-07-28": (
        frame(request(1, "subscriptions/listen", LISTEN, modern=True)),
        '{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged"',
    ),
    "a message over the limit": (
        b'"' + b"x" * 11_000_000 + b'"\n',
        '{"jsonrpc":"2.0","error":{"code":-32600',
    ),
}


def start(folder: Path) -> Process:
    return Process([script(folder, SERVER + RUN)], cwd=folder, forked=False)


def take_all_descriptors(server: Process) -> int:
    server.ask(INITIALIZE)
    answer = server.ask(call("take", "take_all"))
    server.receive()
    server.receive()
    return answer["result"]["structuredContent"]["result"]


@pytest.mark.parametrize("name", ANSWERS)
def test_a_server_without_descriptors_answers(name: str, tmp_path: Path) -> None:
    sent, answer = ANSWERS[name]
    with start(tmp_path) as server:
        assert take_all_descriptors(server) > 40
        server.write(sent)
        server.receive()
        assert server.lines[2].decode().startswith(answer)
        assert server.ask(request("last", "ping"))["result"] == {}
        assert b"Errno 24" not in server.stderr


def test_a_tool_can_import_modules_of_all_kinds_without_descriptors(tmp_path: Path) -> None:
    with start(tmp_path) as server:
        take_all_descriptors(server)
        answer: dict[str, Any] = server.ask(call("import", "load_modules"))
        # Everything before the last module was found.
        assert "No module named 'xml.missing'" in answer["result"]["content"][0]["text"]
