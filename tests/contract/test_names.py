"""Names that others use: keyword arguments, variables, metrics, Protobuf fields, keys of files.

Every table was copied from the running program and is compared as a whole: a new name has to be
added here.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from contract.orchestra_programs import PACKAGE, descriptor
from contract.programs import (
    INITIALIZE,
    INITIALIZED,
    answers_by_id,
    call_main,
    command,
    log_entries,
    modern,
    request,
    run,
    start,
)
from google.protobuf import descriptor_pool

import concertino
from concertino import (
    Client,
    Depends,
    Disconnected,
    Library,
    Limits,
    Plugin,
    Server,
    ServerParameters,
    SyncClient,
    ToolError,
    compose,
    serve,
)

# Keyword arguments

REQUIRED = "(required)"
OBJECT = "(an object)"
KINDS = {
    inspect.Parameter.POSITIONAL_ONLY: "positional only",
    inspect.Parameter.POSITIONAL_OR_KEYWORD: "positional",
    inspect.Parameter.KEYWORD_ONLY: "keyword",
    inspect.Parameter.VAR_POSITIONAL: "several",
    inspect.Parameter.VAR_KEYWORD: "keywords",
}
PLAIN = (type(None), bool, int, float, str, tuple)


def parameters(function: Callable[..., Any]) -> dict[str, list[tuple[str, Any]]]:
    """Return name and default of each parameter by its kind, without `self` and `**options`."""
    found: dict[str, list[tuple[str, Any]]] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if name == "self" or parameter.kind is inspect.Parameter.VAR_KEYWORD:
            continue
        default = parameter.default
        if default is inspect.Parameter.empty:
            default = REQUIRED
        elif type(default) not in PLAIN:
            default = OBJECT
        found.setdefault(KINDS[parameter.kind], []).append((name, default))
    return found


# The options that the decorators of a server share with the functions of the same kind.
ACCESS: list[tuple[str, Any]] = [("tags", None), ("visible", None), ("scopes", None)]
FEATURES: dict[str, list[tuple[str, Any]]] = {
    "several": [("features", REQUIRED)],
    "keyword": [("tags", ())],
}
GUARDS: list[tuple[str, Any]] = [
    ("rate_limit", None),
    ("max_in_flight", None),
    ("timeout_s", None),
    ("max_result_bytes", None),
    ("redact", False),
]
RESOURCE: list[tuple[str, Any]] = [
    ("name", None),
    ("title", None),
    ("description", None),
    ("mime_type", None),
    ("size", None),
    ("annotations", None),
    ("icons", None),
    ("meta", None),
    ("ttl_s", None),
    ("cache_scope", None),
    ("inline", False),
    *ACCESS,
]
PROMPT: list[tuple[str, Any]] = [
    ("name", None),
    ("title", None),
    ("description", None),
    ("icons", None),
    ("meta", None),
    ("inline", False),
    *ACCESS,
]

SIGNATURES: dict[str, tuple[Callable[..., Any], dict[str, list[tuple[str, Any]]]]] = {
    "Server": (
        Server,
        {
            "positional": [("name", REQUIRED)],
            "keyword": [
                ("version", "0.0.0"),
                ("title", None),
                ("description", None),
                ("website_url", None),
                ("instructions", None),
                ("icons", None),
                ("experimental", None),
                ("extensions", None),
                ("argument_errors", "result"),
                ("coerce", False),
                ("envelope", False),
                ("page_size", 1000),
                ("ttl_s", 0),
                ("cache_scope", "private"),
            ],
        },
    ),
    "Server.add_tool": (
        Server.add_tool,
        {
            "positional": [("handler", REQUIRED)],
            "keyword": [
                ("name", None),
                ("title", None),
                ("description", None),
                ("read_only", None),
                ("destructive", None),
                ("idempotent", None),
                ("open_world", None),
                ("icons", None),
                ("meta", None),
                ("inline", False),
                ("input_schema", None),
                ("output_schema", None),
                ("envelope", False),
                *GUARDS,
                *ACCESS,
            ],
        },
    ),
    "Server.tool": (
        Server.tool,
        {
            "positional": [("handler", None)],
            "keyword": [
                ("name", None),
                ("title", None),
                ("description", None),
                ("read_only", None),
                ("destructive", None),
                ("idempotent", None),
                ("open_world", None),
                ("icons", None),
                ("meta", None),
                ("inline", False),
                ("input_schema", None),
                ("output_schema", None),
                ("envelope", False),
                *GUARDS,
                *ACCESS,
            ],
        },
    ),
    "Server.resource": (
        Server.resource,
        {"positional": [("uri", REQUIRED)], "keyword": RESOURCE},
    ),
    "Server.add_resource": (
        Server.add_resource,
        {
            "positional": [("uri", REQUIRED), ("handler", None)],
            "keyword": [("text", None), ("blob", None), ("path", None), *RESOURCE],
        },
    ),
    "Server.prompt": (Server.prompt, {"positional": [("handler", None)], "keyword": PROMPT}),
    "Server.add_prompt": (
        Server.add_prompt,
        {"positional": [("handler", REQUIRED)], "keyword": PROMPT},
    ),
    "Server.complete": (
        Server.complete,
        {"positional": [("target", REQUIRED), ("argument", REQUIRED)]},
    ),
    "Server.tools_changed": (Server.tools_changed, {}),
    "Server.prompts_changed": (Server.prompts_changed, {}),
    "Server.disable": (Server.disable, FEATURES),
    "Server.enable": (Server.enable, FEATURES),
    "Server.override": (
        Server.override,
        {"positional": [("provider", REQUIRED), ("replacement", REQUIRED)]},
    ),
    "Depends": (Depends, {"positional": [("provider", REQUIRED)]}),
    "Server.lifespan": (Server.lifespan, {"positional": [("function", REQUIRED)]}),
    "Server.remove_tool": (Server.remove_tool, {"positional": [("name", REQUIRED)]}),
    "Server.remove_resource": (Server.remove_resource, {"positional": [("uri", REQUIRED)]}),
    "Server.remove_prompt": (Server.remove_prompt, {"positional": [("name", REQUIRED)]}),
    "Server.resource_updated": (Server.resource_updated, {"positional": [("uri", REQUIRED)]}),
    "Server.resources_changed": (Server.resources_changed, {}),
    "Server.run": (
        Server.run,
        {
            "keyword": [
                ("http", None),
                ("http_options", None),
                ("limits", None),
                ("loop_factory", None),
            ]
        },
    ),
    "Client": (
        Client,
        {
            "positional": [("target", REQUIRED)],
            "keyword": [
                ("name", None),
                ("info", None),
                ("era", "auto"),
                ("timeouts", None),
                ("limits", None),
                ("stderr", None),
                ("stderr_level", 20),
                ("restart", None),
                ("validate", None),
                ("trace", None),
                ("elicit", None),
                ("elicit_urls", False),
                ("sample", None),
                ("sampling", None),
                ("roots", None),
                ("rounds", 16),
                ("answer_any", None),
                ("capabilities", None),
                ("changed", None),
                ("updated", None),
                ("logged", None),
                ("notified", None),
            ],
        },
    ),
    "Client.call_tool": (
        Client.call_tool,
        {
            "positional": [("name", REQUIRED), ("arguments", None)],
            "keyword": [("into", None), ("timeout_s", None), ("progress", None), ("meta", None)],
        },
    ),
    "Client.request": (
        Client.request,
        {
            "positional": [("method", REQUIRED), ("params", None)],
            "keyword": [("into", None), ("timeout_s", None), ("progress", None), ("meta", None)],
        },
    ),
    "Client.read_resource": (
        Client.read_resource,
        {"positional": [("uri", REQUIRED)], "keyword": [("timeout_s", None)]},
    ),
    "Client.get_prompt": (
        Client.get_prompt,
        {"positional": [("name", REQUIRED), ("arguments", None)], "keyword": [("timeout_s", None)]},
    ),
    "Client.complete": (
        Client.complete,
        {
            "positional": [("ref", REQUIRED), ("argument", REQUIRED), ("value", REQUIRED)],
            "keyword": [("chosen", None)],
        },
    ),
    "Client.notify": (Client.notify, {"positional": [("method", REQUIRED), ("params", None)]}),
    "Client.subscribe": (Client.subscribe, {"positional": [("uri", REQUIRED)]}),
    "Client.unsubscribe": (Client.unsubscribe, {"positional": [("uri", REQUIRED)]}),
    "Client.set_log_level": (Client.set_log_level, {"positional": [("level", REQUIRED)]}),
    "Client.set_roots": (Client.set_roots, {"positional": [("roots", REQUIRED)]}),
    "Client.list_tools": (Client.list_tools, {}),
    "Client.list_resources": (Client.list_resources, {}),
    "Client.list_resource_templates": (Client.list_resource_templates, {}),
    "Client.list_prompts": (Client.list_prompts, {}),
    "Client.ping": (Client.ping, {}),
    "Client.open": (Client.open, {}),
    "Client.aclose": (Client.aclose, {}),
    "ServerParameters": (
        ServerParameters,
        {
            "positional": [
                ("command", REQUIRED),
                ("args", ()),
                ("env", None),
                ("cwd", None),
                (
                    "inherit",
                    (
                        "HOME",
                        "LOGNAME",
                        "PATH",
                        "SHELL",
                        "TERM",
                        "USER",
                        "LANG",
                        "LC_ALL",
                        "LC_CTYPE",
                        "TZ",
                        "TMPDIR",
                    ),
                ),
                ("ladder", OBJECT),
            ],
        },
    ),
    "Library": (
        Library,
        {
            "positional": [("resources", None), ("prompts", None)],
            "keyword": [
                ("scheme", "orchestr8"),
                ("name", None),
                ("version", "0.0.0"),
                ("title", None),
                ("description", None),
                ("instructions", None),
                ("tokenizer", "estimate"),
                ("cache_size", None),
                ("page_size", 1000),
                ("max_file_bytes", 4194304),
                ("watch", True),
                ("index_cache", True),
            ],
        },
    ),
    "Plugin": (
        Plugin,
        {
            "positional": [("id", REQUIRED)],
            "keyword": [
                ("version", "0.0.0"),
                ("description", ""),
                ("author", ""),
                ("needs_storage", ()),
                ("needs_tools", ()),
                ("needs_ai", ()),
                ("needs_events", ()),
                ("provides_ai", ()),
                ("provides_events", ()),
                ("coerce", False),
            ],
        },
    ),
    "Limits": (
        Limits,
        {
            "positional": [
                ("max_message_bytes", 10485760),
                ("high_water_bytes", 1048576),
                ("low_water_bytes", 262144),
                ("max_in_flight", 1024),
                ("max_in_flight_bytes", 16777216),
                ("max_waiting", 4096),
                ("max_waiting_bytes", 16777216),
                ("max_batch", 1024),
                ("max_subscriptions", 1024),
                ("max_listening", 64),
                ("max_questions", 256),
                ("progress_per_s", 100),
                ("logs_per_s", 1000),
                ("garbage_answers_per_s", 10),
                ("max_connections", 512),
                ("drain_s", 2.0),
                ("max_unread_bytes", 67108864),
                ("max_unread_bytes_total", 268435456),
                ("opening_s", 1.0),
            ],
        },
    ),
    "ToolError": (
        ToolError.__init__,
        {"positional only": [("code", ""), ("message", None)], "keyword": [("suggestion", None)]},
    ),
    "run": (
        concertino.run,
        {
            "positional": [("backend", REQUIRED)],
            "keyword": [
                ("http", None),
                ("http_options", None),
                ("limits", None),
                ("loop_factory", None),
            ],
        },
    ),
    "serve": (
        serve,
        {"positional": [("backend", REQUIRED), ("connection", REQUIRED), ("limits", None)]},
    ),
    "compose": (
        compose,
        {"positional only": [("info", None)], "keyword": [("strict", False)]},
    ),
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_the_arguments_of(name: str) -> None:
    function, expected = SIGNATURES[name]
    assert parameters(function) == expected


ALL_OPTIONS = """
from concertino import Server
server = Server(
    "options", version="1.0.0", title="T", description="D", website_url="https://w",
    instructions="I", icons=None, experimental={"x": {}}, extensions={"e/x": {}},
    argument_errors="result", coerce=True, envelope=True, page_size=1, ttl_s=1.5,
    cache_scope="public",
)
@server.tool(
    name="all", title="T", description="D", read_only=True, destructive=False, idempotent=True,
    open_world=False, icons=None, meta={"m": 1}, inline=True, envelope=True,
    rate_limit="10/60", max_in_flight=5, timeout_s=5.0, max_result_bytes=100000, redact=True,
)
def tool() -> int:
    return 1
@server.resource(
    "x://all", name="all", title="T", description="D", mime_type="text/plain", size=3,
    annotations=None, icons=None, meta={"m": 1}, ttl_s=2.5, cache_scope="private", inline=True,
)
def resource() -> str:
    return "abc"
@server.prompt(name="all", title="T", description="D", icons=None, meta={"m": 1}, inline=True)
def prompt(word: str) -> str:
    return word
@server.complete("all", "word")
def words(value: str) -> list[str]:
    return ["one", "two"]
server.run()
"""


@pytest.fixture(scope="module")
def options() -> dict[Any, Any]:
    lines = [
        modern("discover", "server/discover"),
        modern("tools", "tools/list"),
        modern("call", "tools/call", name="all"),
        modern("resources", "resources/list"),
        modern("read", "resources/read", uri="x://all"),
        modern("prompts", "prompts/list"),
        modern(
            "words",
            "completion/complete",
            ref={"type": "ref/prompt", "name": "all"},
            argument={"name": "word", "value": ""},
        ),
    ]
    found = answers_by_id(run([sys.executable, "-c", ALL_OPTIONS], lines).out)
    shown = {
        "resultType": "complete",
        "_meta": {
            "io.modelcontextprotocol/serverInfo": {
                "name": "options",
                "version": "1.0.0",
                "title": "T",
                "description": "D",
                "websiteUrl": "https://w",
            }
        },
    }
    for result in found.values():
        assert {name: result.pop(name) for name in shown} == shown
    return found


def test_every_option_of_a_server_is_shown_to_clients(options: dict[Any, Any]) -> None:
    assert options["discover"] == {
        "ttlMs": 1500,
        "cacheScope": "public",
        "supportedVersions": ["2026-07-28"],
        "capabilities": {
            "logging": {},
            "completions": {},
            "prompts": {"listChanged": True},
            "resources": {"subscribe": True, "listChanged": True},
            "tools": {"listChanged": True},
            "experimental": {"x": {}},
            "extensions": {"e/x": {}},
        },
        "instructions": "I",
    }


def test_every_option_of_a_tool_is_shown_to_clients(options: dict[Any, Any]) -> None:
    [tool] = options["tools"]["tools"]
    schema = {"type": "object", "additionalProperties": False}
    assert tool == {
        "name": "all",
        "title": "T",
        "description": "D",
        "inputSchema": schema,
        "annotations": {
            "readOnlyHint": True,
            "destructiveHint": False,
            "idempotentHint": True,
            "openWorldHint": False,
        },
        "_meta": {"m": 1},
    }
    assert json.loads(options["call"]["content"][0]["text"])["data"] == 1


def test_every_option_of_a_resource_is_shown_to_clients(options: dict[Any, Any]) -> None:
    [resource] = [item for item in options["resources"]["resources"] if item["uri"] == "x://all"]
    assert resource == {
        "uri": "x://all",
        "name": "all",
        "title": "T",
        "description": "D",
        "mimeType": "text/plain",
        "size": 3,
        "_meta": {"m": 1},
    }
    assert (options["read"]["ttlMs"], options["read"]["cacheScope"]) == (2500, "private")


def test_every_option_of_a_prompt_is_shown_to_clients(options: dict[Any, Any]) -> None:
    [prompt] = options["prompts"]["prompts"]
    assert prompt == {
        "name": "all",
        "title": "T",
        "description": "D",
        "arguments": [{"name": "word", "required": True}],
        "_meta": {"m": 1},
    }
    assert options["words"]["completion"]["values"] == ["one", "two"]


@pytest.mark.parametrize(
    "decorate",
    [
        lambda server: server.tool(no_such_option=1),
        lambda server: server.resource("x://y", no_such_option=1),
        lambda server: server.prompt(no_such_option=1),
    ],
    ids=["tool", "resource", "prompt"],
)
def test_an_unknown_option_of_a_decorator_is_refused(decorate: Callable[[Server], Any]) -> None:
    def handler() -> str:
        return "x"

    with pytest.raises(Exception, match="no_such_option"):
        decorate(Server("refusing"))(handler)


# Environment variables

LIMITS = [
    "CONCERTINO_MAX_MESSAGE_BYTES",
    "CONCERTINO_HIGH_WATER_BYTES",
    "CONCERTINO_LOW_WATER_BYTES",
    "CONCERTINO_MAX_IN_FLIGHT",
    "CONCERTINO_MAX_IN_FLIGHT_BYTES",
    "CONCERTINO_MAX_WAITING",
    "CONCERTINO_MAX_WAITING_BYTES",
    "CONCERTINO_MAX_BATCH",
    "CONCERTINO_MAX_SUBSCRIPTIONS",
    "CONCERTINO_MAX_LISTENING",
    "CONCERTINO_MAX_QUESTIONS",
    "CONCERTINO_PROGRESS_PER_S",
    "CONCERTINO_LOGS_PER_S",
    "CONCERTINO_GARBAGE_ANSWERS_PER_S",
    "CONCERTINO_MAX_CONNECTIONS",
    "CONCERTINO_DRAIN_S",
    "CONCERTINO_MAX_UNREAD_BYTES",
    "CONCERTINO_MAX_UNREAD_BYTES_TOTAL",
    "CONCERTINO_OPENING_S",
]
SERVER = [sys.executable, "-c", "from concertino import Server\nServer('plain').run()\n"]


SERVE_WITH_EACH = """
import os, sys
from concertino import Server
for name in sys.argv[1:]:
    child = os.fork()
    if not child:
        os.environ[name] = "none"
        Server("plain").run()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2
"""


def test_the_variable_of_each_limit_is_read() -> None:
    """Look for the refusals of bad values, each of which ends a server at once."""
    ended = run([sys.executable, "-c", SERVE_WITH_EACH, *LIMITS])
    entries = log_entries(ended.err)
    assert {entry[:2] for entry in entries} == {("ERROR", "plain")}
    texts = [text.partition(": expected a positive ")[0] for _, _, text in entries]
    assert texts == LIMITS
    assert ended.code == 0


def test_there_is_one_variable_for_each_limit() -> None:
    assert [f"CONCERTINO_{name.upper()}" for name in inspect.signature(Limits).parameters] == LIMITS


@pytest.fixture
def private() -> Iterator[Path]:
    """Make a folder for sockets: its name is short, and nobody else may enter it."""
    with tempfile.TemporaryDirectory(prefix="c-") as folder:
        yield Path(folder)


@pytest.mark.parametrize(("value", "watches"), [("", True), ("stay", False)])
def test_a_server_that_is_to_stay_does_not_watch_its_parent(value: str, watches: bool) -> None:
    with start(SERVER, {"CONCERTINO_ORPHAN": value}) as server:
        server.wait_for("started successfully")
        descriptors = Path(f"/proc/{server.process.pid}/fd")
        links = [os.readlink(item) for item in descriptors.iterdir()]
        assert server.end() == 0
    assert any("pidfd" in link for link in links) is watches


def test_programs_that_a_client_starts_have_a_mark_in_a_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Everything that they start inherits it. Whoever clears it stays when the client closes.

    24 random digits, and the process that has started them: id, start time and pid namespace.
    """
    monkeypatch.delenv("CONCERTINO_STARTED_BY", raising=False)
    code = "import os, sys; sys.exit(os.environ['CONCERTINO_STARTED_BY'])"
    client = SyncClient([sys.executable, "-c", code])
    with pytest.raises(Disconnected):
        client.open()
    assert re.fullmatch(rf"[0-9a-f]{{24}}-{os.getpid()}-\d+-\d+", client.stderr_tail)


def test_a_plugin_ends_with_the_hub_that_a_variable_names(private: Path) -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as hub:
        words = command("plugin", "markdown", "--listen-addr", f"unix:{private}/s")
        with start(words, {"CONCERTINO_HUB_PID": str(hub.pid)}, cwd=private) as plugin:
            plugin.wait_for("READY")
            hub.kill()
            assert plugin.process.wait(60) == 0


def test_the_folders_of_a_library_are_read_from_variables(tmp_path: Path) -> None:
    for name in ("r", "p"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "one.md").write_text("# One\n")
    folders = {
        "RESOURCES_PATH": "r",
        "PROMPTS_PATH": "p",
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }
    texts = [
        text for _, _, text in log_entries(run(command("serve"), env=folders, cwd=tmp_path).err)
    ]
    assert "Loaded 1 prompts" in texts
    assert "Loaded 1 resources" in texts
    assert len(list((tmp_path / "cache" / "concertino" / "library").glob("*.cache"))) == 1


def test_the_size_of_the_memory_of_a_library_is_read_from_a_variable(tmp_path: Path) -> None:
    ended = run(command("serve"), env={"RESOURCES_PATH": str(tmp_path), "CACHE_SIZE": "many"})
    assert "CACHE_SIZE" in ended.err
    assert ended.code == 2


def test_sockets_of_systemd_are_for_the_process_that_a_variable_names(tmp_path: Path) -> None:
    (tmp_path / "good.py").write_text("from concertino import Server\nserver = Server('good')\n")
    variables = {"LISTEN_FDS": "1", "LISTEN_PID": "1"}
    ended = run(command("serve", "good.py"), env=variables, cwd=tmp_path)
    [text] = [text for level, _, text in log_entries(ended.err) if level == "WARN"]
    assert text.startswith("LISTEN_FDS: ")


# Front matter


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("library")
    (folder / "resources" / "agents").mkdir(parents=True)
    (folder / "prompts").mkdir()
    (folder / "resources" / "agents" / "api.md").write_text(
        "---\nid: rest\ntitle: REST API\ndescription: Designs interfaces.\ntags: [api, rest]\n"
        "capabilities: [Designs endpoints]\nuseWhen: [Building a service]\nestimatedTokens: 4000\n"
        "relatedResources: [no-such-thing]\n---\n# Another title\n\nTalk about design.\n"
    )
    (folder / "prompts" / "file.md").write_text(
        "---\nname: greet\ntitle: Greet\ndescription: Greets somebody.\narguments:\n"
        "  - name: who\n    description: Whom\n    required: true\n    values: [Ann, Bob]\n"
        "  - name: tone\n    default: kind\n---\nSay ${tone} words to {{who}}: $ARGUMENTS\n"
    )
    return folder


@pytest.fixture(scope="module")
def library_answers(library: Path) -> dict[Any, Any]:
    lines = [
        modern("registry", "resources/read", uri="orchestr8://registry"),
        modern("resources", "resources/list"),
        modern("prompts", "prompts/list"),
        modern("greet", "prompts/get", name="greet", arguments={"who": "Ann"}),
        modern(
            "who",
            "completion/complete",
            ref={"type": "ref/prompt", "name": "greet"},
            argument={"name": "who", "value": "B"},
        ),
        modern("id", "resources/read", uri="orchestr8://rest"),
    ]
    ended = run(command("serve", library), lines, {"XDG_CACHE_HOME": str(library / "cache")})
    return answers_by_id(ended.out)


def test_the_keys_of_a_document(library_answers: dict[Any, Any]) -> None:
    [document] = json.loads(library_answers["registry"]["contents"][0]["text"])["resources"]
    assert document.pop("tokens") > 0
    assert document == {
        "uri": "orchestr8://agents/api",
        "id": "rest",
        "title": "REST API",
        "description": "Designs interfaces.",
        "category": "agents",
        "tags": ["api", "rest"],
        "capabilities": ["Designs endpoints"],
        "useWhen": ["Building a service"],
    }
    assert "Talk about design." in library_answers["id"]["contents"][0]["text"]


def test_the_keys_of_a_document_that_lint_looks_at(
    capsys: pytest.CaptureFixture[str], library: Path
) -> None:
    problems = json.loads(call_main(capsys, "lint", "--json", library).out)["problems"]
    messages = {problem["rule"]: problem["message"] for problem in problems}
    assert messages["tokens"].startswith("estimatedTokens: ")
    assert messages["broken-link"].startswith("relatedResources: ")


def test_the_keys_of_a_prompt(library_answers: dict[Any, Any]) -> None:
    [prompt] = library_answers["prompts"]["prompts"]
    assert prompt == {
        "name": "greet",
        "title": "Greet",
        "description": "Greets somebody.",
        "arguments": [
            {"name": "who", "description": "Whom", "required": True},
            {"name": "tone", "required": False},
        ],
    }
    assert library_answers["who"]["completion"]["values"] == ["Bob"]


def test_the_placeholders_of_a_prompt(library_answers: dict[Any, Any]) -> None:
    assert (
        library_answers["greet"]["messages"][0]["content"]["text"]
        == "Say kind words to Ann: Ann kind"
    )


# Metrics

MEASURED = """
from concertino import Server
server = Server("measured", version="1.0.0")
@server.tool
async def add(a: int, b: int) -> int:
    return a + b
@server.tool
async def fail() -> int:
    raise ValueError("no")
@server.resource("x://y")
async def here() -> str:
    return "here"
@server.prompt
async def greet() -> str:
    return "hello"
"""
CALLS = [
    INITIALIZE,
    INITIALIZED,
    request(1, "tools/call", name="add", arguments={"a": 1, "b": 2}),
    request(2, "tools/call", name="fail"),
    request(3, "tools/call", name="none"),
    request(4, "resources/read", uri="x://y"),
    request(5, "prompts/get", name="greet"),
]
BOUNDARIES = [
    "0.01",
    "0.02",
    "0.05",
    "0.1",
    "0.2",
    "0.5",
    "1",
    "2",
    "5",
    "10",
    "30",
    "60",
    "120",
    "300",
    "+Inf",
]


def test_the_names_and_labels_of_the_metrics_file(tmp_path: Path) -> None:
    (tmp_path / "measured.py").write_text(MEASURED)
    ended = run(command("serve", "measured.py", "--metrics-file", "metrics"), CALLS, cwd=tmp_path)
    assert ended.code == 0
    lines = (tmp_path / "metrics").read_text().splitlines()
    name = "mcp_server_operation_duration_seconds"
    assert [line for line in lines if line.startswith("# TYPE")] == [
        f"# TYPE {name} histogram",
        "# TYPE concertino_active_operations gauge",
    ]
    counts = [line for line in lines if line.startswith(f"{name}_count")]
    assert counts == [
        f'{name}_count{{mcp_method_name="prompts/get",gen_ai_prompt_name="greet"}} 1',
        f'{name}_count{{mcp_method_name="resources/read"}} 1',
        f'{name}_count{{mcp_method_name="tools/call",gen_ai_tool_name="_OTHER",'
        'error_type="-32602"} 1',
        f'{name}_count{{mcp_method_name="tools/call",gen_ai_tool_name="add"}} 1',
        f'{name}_count{{mcp_method_name="tools/call",gen_ai_tool_name="fail",'
        'error_type="tool_error"} 1',
    ]
    assert len([line for line in lines if line.startswith(f"{name}_sum{{")]) == 5
    added = rf'{name}_bucket{{mcp_method_name="tools/call",gen_ai_tool_name="add",le="(.*)"}} \d'
    assert [found[1] for line in lines if (found := re.fullmatch(added, line))] == BOUNDARIES
    assert 'concertino_active_operations{mcp_method_name="tools/call"} 0' in lines


REPORTED = """
import atexit, json
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
spans, reader = InMemorySpanExporter(), InMemoryMetricReader()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(spans))
trace.set_tracer_provider(provider)
metrics.set_meter_provider(MeterProvider(metric_readers=[reader]))
@atexit.register
def report():
    found = {
        "spans": [
            [span.name, span.instrumentation_scope.name, dict(span.attributes)]
            for span in spans.get_finished_spans()
        ],
        "metrics": [
            [metric.name, metric.unit, list(point.explicit_bounds), dict(point.attributes)]
            for of_resource in reader.get_metrics_data().resource_metrics
            for of_scope in of_resource.scope_metrics
            for metric in of_scope.metrics
            for point in metric.data.data_points
        ],
    }
    with open("reported", "w") as file:
        json.dump(found, file)
"""


def test_the_names_and_attributes_of_opentelemetry(tmp_path: Path) -> None:
    (tmp_path / "reported.py").write_text(REPORTED + MEASURED)
    assert run(command("serve", "reported.py", "--otel"), CALLS, cwd=tmp_path).code == 0
    found = json.loads((tmp_path / "reported").read_text())
    shared = {"mcp.protocol.version": "2025-11-25", "network.transport": "pipe"}
    tool = {"mcp.method.name": "tools/call", **shared, "gen_ai.operation.name": "execute_tool"}
    failed = {"error.type": "tool_error"}
    unknown = {"error.type": "-32602", "rpc.response.status_code": "-32602"}
    prompt = {"mcp.method.name": "prompts/get", **shared}
    resource = {"mcp.method.name": "resources/read", **shared}
    assert sorted(found["spans"]) == [
        [
            "prompts/get greet",
            "concertino",
            {**prompt, "gen_ai.prompt.name": "greet", "jsonrpc.request.id": "5"},
        ],
        [
            "resources/read",
            "concertino",
            {**resource, "mcp.resource.uri": "x://y", "jsonrpc.request.id": "4"},
        ],
        [
            "tools/call add",
            "concertino",
            {**tool, "gen_ai.tool.name": "add", "jsonrpc.request.id": "1"},
        ],
        [
            "tools/call fail",
            "concertino",
            {**tool, "gen_ai.tool.name": "fail", "jsonrpc.request.id": "2", **failed},
        ],
        [
            "tools/call none",
            "concertino",
            {**tool, "gen_ai.tool.name": "none", "jsonrpc.request.id": "3", **unknown},
        ],
    ]
    bounds = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300]
    assert sorted(found["metrics"], key=str) == sorted(
        (
            ["mcp.server.operation.duration", "s", bounds, attributes]
            for attributes in (
                {**prompt, "gen_ai.prompt.name": "greet"},
                resource,
                {**tool, "gen_ai.tool.name": "add"},
                {**tool, "gen_ai.tool.name": "fail", **failed},
                {**tool, "gen_ai.tool.name": "_OTHER", **unknown},
            )
        ),
        key=str,
    )


# The plugin protocol

MESSAGES = """\
PluginRequest
    1 request_id: string
    10 register: PluginManifest (one request)
    11 boot: BootRequest (one request)
    12 shutdown: ShutdownRequest (one request)
    13 health: HealthRequest (one request)
    20 tool_call: ToolRequest (one request)
    21 list_tools: ListToolsRequest (one request)
    22 list_prompts: ListPromptsRequest (one request)
    23 prompt_get: PromptGetRequest (one request)
    30 storage_read: StorageReadRequest (one request)
    31 storage_write: StorageWriteRequest (one request)
    32 storage_delete: StorageDeleteRequest (one request)
    33 storage_list: StorageListRequest (one request)
    40 stream_start: StreamStart (one request)
    41 stream_cancel: StreamCancel (one request)
    50 subscribe: Subscribe (one request)
    51 unsubscribe: Unsubscribe (one request)
    52 publish: Publish (one request)
    1010 stream_credit: StreamCredit (one request)
    1011 list_events: ListEventsRequest (one request)
    1020 path: repeated string
PluginResponse
    1 request_id: string
    10 register: RegistrationResult (one response)
    11 boot: BootResult (one response)
    12 shutdown: ShutdownResult (one response)
    13 health: HealthResult (one response)
    20 tool_call: ToolResponse (one response)
    21 list_tools: ListToolsResponse (one response)
    22 list_prompts: ListPromptsResponse (one response)
    23 prompt_get: PromptGetResponse (one response)
    30 storage_read: StorageReadResponse (one response)
    31 storage_write: StorageWriteResponse (one response)
    32 storage_delete: StorageDeleteResponse (one response)
    33 storage_list: StorageListResponse (one response)
    40 stream_chunk: StreamChunk (one response)
    41 stream_end: StreamEnd (one response)
    50 event_delivery: EventDelivery (one response)
    1011 list_events: ListEventsResponse (one response)
PluginManifest
    1 id: string
    2 version: string
    3 language: string
    4 provides_tools: repeated string
    5 provides_events: repeated string
    6 provides_storage: repeated string
    7 provides_transport: repeated string
    8 provides_ai: repeated string
    9 needs_storage: repeated string
    10 needs_events: repeated string
    11 needs_ai: repeated string
    12 needs_tools: repeated string
    13 description: string
    14 author: string
    15 binary: string
    16 args: repeated string
    17 env: map<string, string>
    18 provides_prompts: repeated string
    1001 subscriptions: repeated Subscribe
    1002 lists: string
RegistrationResult
    1 accepted: bool
    2 reject_reason: string
BootRequest
    1 config: map<string, string>
BootResult
    1 ready: bool
    2 error: string
ShutdownRequest
    1 timeout_seconds: int32
ShutdownResult
    1 clean: bool
HealthRequest
HealthResult
    1 status: HealthResult.Status
    2 message: string
    3 details: map<string, string>
    enum Status: UNSPECIFIED=0, HEALTHY=1, DEGRADED=2, UNHEALTHY=3
ToolRequest
    1 tool_name: string
    2 arguments: optional bytes
    3 caller_plugin: string
    4 trace_parent: string
    5 provider: string
    6 session_id: string
    1000 arguments_json: optional bytes
    1001 trace: map<string, string>
ToolResponse
    1 success: bool
    2 result: optional bytes
    3 error_code: string
    4 error_message: string
    1000 result_json: optional bytes
    1001 structured: ToolResponse.Structured
    enum Structured: UNKNOWN=0, RESULT=1, DATA=2, ERROR=3
ListToolsRequest
ListToolsResponse
    1 tools: repeated ToolDefinition
ToolDefinition
    1 name: string
    2 description: string
    3 input_schema: optional bytes
    1000 input_schema_json: optional bytes
    1001 output_schema: optional bytes
PromptGetRequest
    1 prompt_name: string
    2 arguments: map<string, string>
    1001 trace: map<string, string>
PromptGetResponse
    1 description: string
    2 messages: repeated PromptMessage
    1001 failure: PromptFailure
ListPromptsRequest
ListPromptsResponse
    1 prompts: repeated PromptDefinition
PromptDefinition
    1 name: string
    2 description: string
    3 arguments: repeated PromptArgument
PromptArgument
    1 name: string
    2 description: string
    3 required: bool
PromptMessage
    1 role: string
    2 content: ContentBlock
ContentBlock
    1 type: string
    2 text: string
StorageReadRequest
    1 path: string
    2 storage_type: string
    1001 trace: map<string, string>
StorageReadResponse
    1 content: bytes
    2 metadata: optional bytes
    3 version: int64
    1000 metadata_json: optional bytes
    1001 failure: StorageFailure
    1002 contents_json: optional bytes
StorageWriteRequest
    1 path: string
    2 content: bytes
    3 metadata: optional bytes
    4 expected_version: int64
    5 storage_type: string
    1000 metadata_json: optional bytes
StorageWriteResponse
    1 success: bool
    2 new_version: int64
    3 error: string
StorageDeleteRequest
    1 path: string
    2 storage_type: string
StorageDeleteResponse
    1 success: bool
    1001 failure: StorageFailure
StorageListRequest
    1 prefix: string
    2 pattern: string
    3 storage_type: string
StorageListResponse
    1 entries: repeated StorageEntry
    1001 failure: StorageFailure
    1002 templates_json: repeated bytes
StorageEntry
    1 path: string
    2 size: int64
    3 version: int64
    4 modified_at: google.protobuf.Timestamp
    1001 resource_json: optional bytes
StreamStart
    1 stream_id: string
    2 tool_name: string
    3 arguments: optional bytes
    4 caller_plugin: string
    1000 arguments_json: optional bytes
    1001 trace_parent: string
    1002 provider: string
    1003 session_id: string
    1004 window: int64
    1005 subscribe: Subscribe
    1006 trace: map<string, string>
StreamCancel
    1 stream_id: string
StreamChunk
    1 stream_id: string
    2 data: bytes
    3 content_type: string
    4 sequence: int64
    1010 progress: optional double
    1011 total: optional double
StreamEnd
    1 stream_id: string
    2 success: bool
    3 error_code: string
    4 error_message: string
    5 total_chunks: int64
    1010 result: ToolResponse
StreamCredit
    1 stream_id: string
    2 bytes: int64
Subscribe
    1 subscription_id: string
    2 topic: string
    3 filters: map<string, string>
    1001 after: string
    1002 positions: bool
ListEventsRequest
ListEventsResponse
    1 topics: repeated string
Unsubscribe
    1 subscription_id: string
Publish
    1 topic: string
    2 event_type: string
    3 payload: optional bytes
    4 source_plugin: string
    1000 payload_json: optional bytes
    1001 subscription_id: string
    1002 timestamp: google.protobuf.Timestamp
    1003 cursor: string
    1004 lost: int64
    1005 audience: string
EventDelivery
    1 subscription_id: string
    2 topic: string
    3 event_type: string
    4 payload: optional bytes
    5 source_plugin: string
    6 timestamp: google.protobuf.Timestamp
    1000 payload_json: optional bytes
    1001 cursor: string
    1002 lost: int64
    1003 audience: string
StorageFailure
    1 code: string
    2 message: string
PromptFailure
    1 code: string
    2 message: string"""


def field_type(field: Any) -> str:
    """Return the type of a field as the schema writes it."""
    kinds = {1: "double", 3: "int64", 5: "int32", 8: "bool", 9: "string", 12: "bytes"}
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
        return f"map<{field_type(key)}, {field_type(value)}>"
    of = field.message_type or field.enum_type
    kind = of.full_name.removeprefix(f"{PACKAGE}.") if of is not None else kinds[field.type]
    if field.is_repeated:
        return f"repeated {kind}"
    return f"optional {kind}" if field.has_presence and of is None else kind


def schema() -> str:
    """Return a line for every message of the registered schema and for each of its fields."""
    file = descriptor_pool.Default().FindFileContainingSymbol(f"{PACKAGE}.PluginRequest")
    lines: list[str] = []
    for name, found in file.message_types_by_name.items():
        lines.append(name)
        for field in found.fields:
            of = field.containing_oneof
            kind = field_type(field)
            choice = f" (one {of.name})" if of is not None and not of.name.startswith("_") else ""
            lines.append(f"    {field.number} {field.name}: {kind}{choice}")
        for enum in found.enum_types:
            values = ", ".join(f"{value.name}={value.number}" for value in enum.values)
            lines.append(f"    enum {enum.name}: {values}")
    return "\n".join(lines)


def test_the_messages_of_the_plugin_protocol_and_their_fields() -> None:
    assert schema() == MESSAGES


def test_the_package_of_the_plugin_protocol() -> None:
    assert PACKAGE == "orchestra.plugin.v1"
    assert descriptor("PluginRequest").file.package == "orchestra.plugin.v1"
