"""Servers of others behind `concertino proxy`: what a client gets is what it gets directly.

Each server is asked for its lists, for one of each that it has, and for what it lacks; once by a
client of each era that it speaks, with and without the proxy: the results have the same bytes. Then
the client and the server are of different eras, and the results mean the same.

The difference that is meant: the proxy reports changes of lists, whether the server does or not.
Between the eras, members that only one era has come or go, members are in another order, a missing
resource has another code, and what an older server asks its client while a call goes on becomes the
call's first answer.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from interop import node, programs
from interop.test_real_servers import command_of
from interop.tools import python_with
from msgspec import Raw
from msgspec.json import decode, encode

from concertino.client.client import Client, Timeouts
from concertino.client.server_parameters import ServerParameters
from concertino.errors import RpcError
from concertino.protocol.call import Call, ClientFacts
from concertino.proxy.upstream_maker import EVERYTHING
from concertino.types.results import CallToolResult

pytestmark = pytest.mark.slow
PATIENT = Timeouts(connect_s=60, probe_s=15)
REVISIONS = {"legacy": "2025-11-25", "modern": "2026-07-28"}
LISTS = {
    "tools/list": "tools",
    "prompts/list": "prompts",
    "resources/list": "resources",
    "resources/templates/list": "resourceTemplates",
}
# What is asked, what came: the bytes of a result, or an error.
Answer = tuple[str, str, Any]
# Members that only the results of 2026-07-28 have, and one that has a default.
ERA_MEMBERS = {"resultType": "complete", "ttlMs": ..., "cacheScope": ..., "isError": False}
SERVER_INFO = "io.modelcontextprotocol/serverInfo"

# Server -> the eras that it speaks, and calls of its tools.
SERVERS: Mapping[str, tuple[Sequence[str], Sequence[tuple[str, dict[str, Any]]]]] = {
    "everything": (
        ("legacy",),
        [
            ("echo", {"message": "hé\u2028"}),
            ("get-sum", {"a": 1, "b": 2.5}),
            ("get-tiny-image", {}),
            ("get-structured-content", {"location": "New York"}),
            ("get-resource-links", {"count": 2}),
            ("echo", {}),
        ],
    ),
    "filesystem": (("legacy",), [("read_text_file", {"path": "{folder}/a.txt"})]),
    "memory": (("legacy",), [("read_graph", {})]),
    "time": (
        ("legacy", "modern"),
        [
            (
                "convert_time",
                {"source_timezone": "UTC", "time": "10:00", "target_timezone": "Asia/Tokyo"},
            ),
            ("get_current_time", {"timezone": "nowhere"}),
        ],
    ),
    "git": (("legacy", "modern"), [("git_log", {"repo_path": "{folder}"})]),
    # It refuses addresses of this machine, which is an answer like any other.
    "fetch": (("legacy", "modern"), [("fetch", {"url": "http://127.0.0.1:9/"})]),
    "mcp 1": (("legacy",), [("add", {"a": 1, "b": 2}), ("fail", {})]),
    "mcp 2": (("legacy", "modern"), [("add", {"a": 1, "b": 2}), ("fail", {})]),
    "fastmcp": (("legacy", "modern"), [("add", {"a": 1, "b": 2}), ("fail", {})]),
    "typescript": (("legacy", "modern"), [("add", {"a": 1, "b": 2})]),
    "go": (("legacy", "modern"), [("echo", {"text": "hé"}), ("echo", {"text": 5})]),
    "rmcp": (("legacy", "modern"), [("echo", {"text": "hé"}), ("echo", {"text": 5})]),
}
PYTHON_SERVERS = (
    "mcp-server-time==2026.10.19",
    "mcp-server-git==2026.10.19",
    "mcp-server-fetch==2026.10.24",
)


def command_for(server: str, folder: Path) -> list[Any]:
    """Return the command of a server. folder: one that it may read."""
    if server in ("time", "git", "fetch"):
        return [python_with("python-servers", *PYTHON_SERVERS).with_name(f"mcp-server-{server}")]
    if server in ("filesystem", "memory"):
        package = node.packages() / "node_modules" / "@modelcontextprotocol" / f"server-{server}"
        return [node.node(), package / "dist" / "index.js", folder]
    if server == "go":
        return [programs.go_server()]
    if server == "rmcp":
        return [programs.rust_server()]
    return command_of(server)


async def converse(
    command: Sequence[Any],
    era: Any,
    calls: Sequence[tuple[str, Any]],
) -> list[Answer]:
    """Ask a server for its lists, for one of each, and for these tools.

    The client declares everything, since some servers list other tools for other clients.
    """
    answers: list[Answer] = []
    facts = ClientFacts("test", "1", REVISIONS[era], EVERYTHING)
    async with Client(
        command, era=era, timeouts=PATIENT, answer_any=answer_question, capabilities=EVERYTHING
    ) as client:
        answers.append(("opening", "", (client.server_info, client.instructions)))

        async def ask(method: str, **params: Any) -> Any:
            call = Call(method, {name: Raw(encode(value)) for name, value in params.items()})
            label = str(params.get("name") or params.get("uri") or "")
            try:
                result = await client.forward(call, facts)
                while (asked := decode(result)).get("resultType") == "input_required":
                    result = await client.forward(answered(call, asked), facts)
            except RpcError as exc:
                answers.append((method, label, (exc.code, exc.message, exc.data)))
                return {}
            answers.append((method, label, bytes(result)))
            return decode(result)

        listed = {member: (await ask(method)).get(member, []) for method, member in LISTS.items()}
        for resource in listed["resources"][:1]:
            await ask("resources/read", uri=resource["uri"])
        for prompt in listed["prompts"]:
            arguments = {item["name"]: "x" for item in prompt.get("arguments", ())}
            await ask("prompts/get", name=prompt["name"], arguments=arguments)
        for name, arguments in calls:
            await ask("tools/call", name=name, arguments=arguments)
        await ask("tools/call", name="no such tool", arguments={})
        await ask("resources/read", uri="no-such:resource")
    return answers


async def answer_question(method: str, params: bytes) -> bytes:
    """Answer a server's question: there are no roots. No call here asks anything else."""
    assert method == "roots/list"
    return b'{"roots":[]}'


def answered(call: Call, asked: Mapping[str, Any]) -> Call:
    """Return a call again, with the answers to what its first result asks."""
    questions = asked["inputRequests"]
    assert {item["method"] for item in questions.values()} == {"roots/list"}
    answers = {key: Raw(b'{"roots":[]}') for key in questions}
    return Call(call.method, call.params, answers=answers, state=encode(asked["requestState"]))


def proxied(command: Sequence[Any], era: str) -> list[Any]:
    """Return the command of a proxy. What it would know of an earlier test's server is not used."""
    options = ["--era", era, "--no-cache"]
    return [sys.executable, "-m", "concertino", "proxy", *options, "--", *command]


def fill(calls: Sequence[tuple[str, Any]], folder: Path) -> list[tuple[str, Any]]:
    """Return calls with the folder in the place of {folder}."""
    return [
        (
            name,
            {
                key: value.replace("{folder}", str(folder)) if isinstance(value, str) else value
                for key, value in arguments.items()
            },
        )
        for name, arguments in calls
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    (folder / "a.txt").write_text("hello\n")
    return folder


@pytest.mark.parametrize(
    ("server", "era"), [(name, era) for name, (eras, _) in SERVERS.items() for era in eras]
)
def test_results_have_the_same_bytes_through_the_proxy(server: str, era: str, folder: Path) -> None:
    command, calls = command_for(server, folder), fill(SERVERS[server][1], folder)
    direct = asyncio.run(converse(command, era, calls))
    through = asyncio.run(converse(proxied(command, era), era, calls))
    assert len(direct) > len(LISTS) + len(calls)
    for expected, got in zip(direct, through, strict=True):
        assert got == expected


@pytest.mark.parametrize(
    ("server", "client_era", "server_era"),
    [
        (name, client_era, server_era)
        for name, (eras, _) in SERVERS.items()
        for client_era, server_era in (("legacy", "modern"), ("modern", "legacy"))
        if server_era in eras
    ],
)
def test_results_mean_the_same_between_the_eras(
    server: str, client_era: str, server_era: str, folder: Path
) -> None:
    command, calls = command_for(server, folder), fill(SERVERS[server][1], folder)
    direct = asyncio.run(converse(command, server_era, calls))
    through = asyncio.run(converse(proxied(command, server_era), client_era, calls))
    for expected, got in zip(direct, through, strict=True):
        assert meaning_of(got) == meaning_of(expected)


def meaning_of(answer: Answer) -> Any:
    """Return an answer without what differs between the eras."""
    method, label, outcome = answer
    if not isinstance(outcome, bytes):
        # The code of a missing resource is another one in each era.
        return method, label, outcome[0] if method != "resources/read" else "refused"
    members = decode(outcome)
    for member, value in ERA_MEMBERS.items():
        if value is ... or members.get(member) == value:
            members.pop(member, None)
    members.get("_meta", {}).pop(SERVER_INFO, None)
    if not members.get("_meta"):
        members.pop("_meta", None)
    for tool in members.get("tools", ()):
        # The tasks of the two eras have nothing in common.
        tool.pop("execution", None)
    return method, label, members


ASKING = [sys.executable, str(Path(__file__).parent / "servers" / "mcp_2_asking.py")]


@pytest.mark.parametrize("way", ["proxy", "proxy --lazy", "serve"])
def test_a_server_that_asks_as_in_the_first_client_s_era_is_answered(
    way: str, tmp_path: Path
) -> None:
    file = tmp_path / "mcp.json"
    file.write_bytes(encode({"mcpServers": {"asking": {"command": ASKING[0], "args": ASKING[1:]}}}))
    words = ["serve", str(file), "--trust"] if way == "serve" else [*way.split(), "--", *ASKING]
    folders = {name: str(tmp_path) for name in ("XDG_CACHE_HOME", "XDG_STATE_HOME")}
    command = ServerParameters(sys.executable, ("-m", "concertino", *words), env=folders)

    async def greet() -> CallToolResult:
        async def elicit(question: Any, server: Any) -> dict[str, Any]:
            return {"name": "Ada"}

        async with Client(command, era="legacy", timeouts=PATIENT, elicit=elicit) as client:
            [tool] = await client.list_tools()
            return await client.call_tool(tool.name)

    # The second time, the proxy knows what the server offers before it has started.
    for _ in range(2):
        assert asyncio.run(greet()).text == "accept Ada"
