"""Servers of others behind `concertino proxy`: what a client gets is what it gets directly.

Each server is asked for its lists, for each prompt and tool and one of its resources, and for what
it lacks; once by a client of each era that it speaks, with and without the proxy: the results have
the same bytes. Then the client and the server are of different eras, and the results mean the same.

The difference that is meant: the proxy reports changes of lists, whether the server does or not.
Between the eras, members that only one era has come or go, members are in another order, a missing
resource has another code, and what an older server asks its client while a call goes on becomes the
call's first answer.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
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

REPO = {"repo_path": "{folder}/repo"}
ADA = {"name": "Ada", "entityType": "person", "observations": ["counts"]}
RELATION = {"from": "Ada", "to": "Bob", "relationType": "knows"}
TOKYO = {"source_timezone": "UTC", "time": "10:00", "target_timezone": "Asia/Tokyo"}
Calls = Sequence[tuple[str, dict[str, Any]]]
# Tools of the servers in this repository.
PYTHON_CALLS: Calls = [("add", {"a": 1, "b": 2}), ("greet", {}), ("slow", {}), ("fail", {})]
ECHO_CALLS: Calls = [("echo", {"text": "hé"}), ("echo", {"text": 5})]

# Server -> the eras that it speaks, and calls of its tools.
SERVERS: Mapping[str, tuple[Sequence[str], Calls]] = {
    "everything": (
        ("legacy",),
        [
            ("echo", {"message": "hé\u2028"}),
            ("get-sum", {"a": 1, "b": 2.5}),
            ("get-tiny-image", {}),
            ("get-structured-content", {"location": "New York"}),
            ("get-resource-links", {"count": 2}),
            ("echo", {}),
            ("get-annotated-message", {"messageType": "error", "includeImage": True}),
            ("get-env", {}),
            ("get-resource-reference", {"resourceType": "Text", "resourceId": 1}),
            ("gzip-file-as-resource", {"data": "data:,hello", "outputType": "resource"}),
            ("trigger-long-running-operation", {"duration": 0.1, "steps": 2}),
            ("get-roots-list", {}),
            ("trigger-elicitation-request", {}),
            ("trigger-url-elicitation", {"url": "https://example.com/", "elicitationId": "e"}),
            ("trigger-sampling-request", {"prompt": "Hello"}),
            ("simulate-research-query", {"topic": "tests"}),
            ("toggle-simulated-logging", {}),
            ("toggle-subscriber-updates", {}),
        ],
    ),
    "filesystem": (
        ("legacy",),
        [
            ("read_text_file", {"path": "{folder}/a.txt"}),
            ("read_file", {"path": "{folder}/a.txt", "head": 1}),
            ("read_media_file", {"path": "{folder}/a.txt"}),
            ("read_multiple_files", {"paths": ["{folder}/a.txt", "{folder}/none"]}),
            ("write_file", {"path": "{folder}/b.txt", "content": "one\ntwo\n"}),
            (
                "edit_file",
                {"path": "{folder}/b.txt", "edits": [{"oldText": "one", "newText": "1"}]},
            ),
            ("create_directory", {"path": "{folder}/d"}),
            ("move_file", {"source": "{folder}/b.txt", "destination": "{folder}/d/c.txt"}),
            ("list_directory", {"path": "{folder}"}),
            ("list_directory_with_sizes", {"path": "{folder}/d"}),
            ("directory_tree", {"path": "{folder}/d"}),
            ("search_files", {"path": "{folder}", "pattern": "**/*.txt"}),
            ("get_file_info", {"path": "{folder}/a.txt"}),
            ("list_allowed_directories", {}),
            ("read_text_file", {"path": "/etc/hostname"}),
        ],
    ),
    "memory": (
        ("legacy",),
        [
            ("create_entities", {"entities": [ADA, {**ADA, "name": "Bob"}]}),
            ("create_relations", {"relations": [RELATION]}),
            (
                "add_observations",
                {"observations": [{"entityName": "Ada", "contents": ["knows Bob"]}]},
            ),
            ("search_nodes", {"query": "Bob"}),
            ("open_nodes", {"names": ["Ada"]}),
            (
                "delete_observations",
                {"deletions": [{"entityName": "Ada", "observations": ["counts"]}]},
            ),
            ("read_graph", {}),
            ("delete_relations", {"relations": [RELATION]}),
            ("delete_entities", {"entityNames": ["Bob"]}),
            ("read_graph", {}),
        ],
    ),
    "time": (
        ("legacy", "modern"),
        [
            ("convert_time", TOKYO),
            ("get_current_time", {"timezone": "UTC"}),
            ("get_current_time", {"timezone": "nowhere"}),
        ],
    ),
    "git": (
        ("legacy", "modern"),
        [
            ("git_log", REPO),
            ("git_log", {"repo_path": "{folder}"}),
            ("git_status", REPO),
            ("git_diff_unstaged", REPO),
            ("git_add", {**REPO, "files": ["a.txt"]}),
            ("git_diff_staged", REPO),
            ("git_reset", REPO),
            ("git_add", {**REPO, "files": ["a.txt"]}),
            ("git_commit", {**REPO, "message": "second"}),
            ("git_create_branch", {**REPO, "branch_name": "b"}),
            ("git_checkout", {**REPO, "branch_name": "b"}),
            ("git_branch", {**REPO, "branch_type": "local"}),
            ("git_diff", {**REPO, "target": "HEAD~1"}),
            ("git_show", {**REPO, "revision": "HEAD"}),
        ],
    ),
    # It refuses addresses of this machine, which is an answer like any other.
    "fetch": (("legacy", "modern"), [("fetch", {"url": "http://127.0.0.1:9/"})]),
    "mcp 1": (("legacy",), PYTHON_CALLS),
    "mcp 2": (("legacy", "modern"), PYTHON_CALLS),
    "fastmcp": (("legacy", "modern"), PYTHON_CALLS),
    "typescript": (("legacy", "modern"), [("add", {"a": 1, "b": 2})]),
    "go": (("legacy", "modern"), ECHO_CALLS),
    "rmcp": (("legacy", "modern"), ECHO_CALLS),
}
# A tool that only waits for a minute, in the Python servers of this repository.
NOT_CALLED = {"sleep"}
# Variables that make commits, and where the graph is stored, the same each time.
VARIABLES = {
    "GIT_AUTHOR_NAME": "Ada",
    "GIT_AUTHOR_EMAIL": "ada@example.com",
    "GIT_AUTHOR_DATE": "2026-01-01T00:00:00Z",
    "GIT_COMMITTER_NAME": "Ada",
    "GIT_COMMITTER_EMAIL": "ada@example.com",
    "GIT_COMMITTER_DATE": "2026-01-01T00:00:00Z",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "MEMORY_FILE_PATH": "{folder}/memory.jsonl",
}
# Times in results that are those of the call, and not of the server's data.
TIMES = re.compile(
    rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d|\d{1,2}:\d\d:\d\d [AP]M|"
    rb"(created|modified|accessed): [^\\]*"
)
TIMED_TOOLS = {"get_current_time", "get-resource-reference", "get_file_info"}
PYTHON_SERVERS = (
    "mcp-server-time==2026.10.19",
    "mcp-server-git==2026.10.19",
    "mcp-server-fetch==2026.10.24",
)


def command_for(server: str, folder: Path) -> list[Any]:
    """Return the command of a server. folder: one that it may read."""
    variables = [f"{name}={value}" for name, value in fill(VARIABLES, folder).items()]
    return ["env", *variables, *program_of(server, folder)]


def program_of(server: str, folder: Path) -> list[Any]:
    """Return the command of a server without its variables."""
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


ANSWERS = {
    "roots/list": b'{"roots":[]}',
    "elicitation/create": b'{"action":"decline"}',
    "sampling/createMessage": encode(
        {"role": "assistant", "content": {"type": "text", "text": "hi"}, "model": "m"}
    ),
}


async def answer_question(method: str, params: bytes) -> bytes:
    """Answer a server's question."""
    return ANSWERS[method]


def answered(call: Call, asked: Mapping[str, Any]) -> Call:
    """Return a call again, with the answers to what its first result asks."""
    questions = asked["inputRequests"]
    answers = {key: Raw(ANSWERS[item["method"]]) for key, item in questions.items()}
    return Call(call.method, call.params, answers=answers, state=encode(asked["requestState"]))


def proxied(command: Sequence[Any], era: str) -> list[Any]:
    """Return the command of a proxy. What it would know of an earlier test's server is not used."""
    options = ["--era", era, "--no-cache"]
    return [sys.executable, "-m", "concertino", "proxy", *options, "--", *command]


def fill(value: Any, folder: Path) -> Any:
    """Return a JSON value with the folder in the place of {folder}."""
    return decode(encode(value).replace(b"{folder}", encode(str(folder))[1:-1]))


def make_files(folder: Path) -> None:
    """Make what the servers may read and change, the same each time."""
    shutil.rmtree(folder, ignore_errors=True)
    repo = folder / "repo"
    repo.mkdir(parents=True)
    for file in (folder / "a.txt", repo / "a.txt"):
        file.write_text("hello\n")
    variables = {**os.environ, **VARIABLES}
    for words in (["init", "-q", "-b", "main"], ["add", "."], ["commit", "-q", "-m", "first"]):
        subprocess.run(["git", "-C", str(repo), *words], env=variables, check=True)
    (repo / "a.txt").write_text("changed\n")


def talk(server: str, folder: Path, client_era: str, server_era: str | None = None) -> list[Answer]:
    """Return what a client gets from a server, without a proxy unless server_era is given."""
    make_files(folder)
    command = command_for(server, folder)
    if server_era is not None:
        command = proxied(command, server_era)
    return asyncio.run(converse(command, client_era, fill(SERVERS[server][1], folder)))


def without_times(answer: Answer) -> Answer:
    """Return an answer without what differs from call to call.

    That is the time, and the variables that concertino sets for the server.
    """
    method, label, outcome = answer
    if label in TIMED_TOOLS and isinstance(outcome, bytes):
        return method, label, TIMES.sub(b"", outcome)
    if label == "get-env":
        variables = decode(decode(outcome)["content"][0]["text"])
        ours = ("CONCERTINO_", "PYTHONFAULTHANDLER")
        others = {name: variables[name] for name in variables if not name.startswith(ours)}
        return method, label, encode(others, order="sorted")
    return answer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("files") / "files"


@pytest.mark.parametrize(
    ("server", "era"), [(name, era) for name, (eras, _) in SERVERS.items() for era in eras]
)
def test_results_have_the_same_bytes_through_the_proxy(server: str, era: str, folder: Path) -> None:
    direct = talk(server, folder, era)
    through = talk(server, folder, era, era)
    [listed] = [outcome for method, _, outcome in direct if method == "tools/list"]
    called = {label for method, label, _ in direct if method == "tools/call"}
    assert {tool["name"] for tool in decode(listed)["tools"]} - called <= NOT_CALLED
    for expected, got in zip(direct, through, strict=True):
        assert without_times(got) == without_times(expected)


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
    direct = talk(server, folder, server_era)
    through = talk(server, folder, client_era, server_era)
    for expected, got in zip(direct, through, strict=True):
        assert meaning_of(without_times(got)) == meaning_of(without_times(expected))


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
