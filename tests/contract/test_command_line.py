"""The command line: commands, options, exit codes, keys of `--json`, and the cases of `check`.

Texts of the help are for people and may change; what stands in scripts may not.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from contract.programs import PROTOCOL, ProcessResult, call_main, command, run, start

FLAG = "flag"
VALUE = "value"
FORMATS = "{line,json,trace}"
TOOLS = {"--tools": "{auto,all,search}", "--tools-budget": VALUE}
GUARDS = {
    "--rate-limit": VALUE,
    "--max-in-flight": VALUE,
    "--timeout": VALUE,
    "--max-result-bytes": VALUE,
    "--allow": VALUE,
    "--deny": VALUE,
    "--redact": FLAG,
    "--metrics-file": VALUE,
    "--otel": FLAG,
}
CLIENT = {
    "--json": FLAG,
    "--era": "{auto,modern,legacy}",
    "--timeout-s": VALUE,
    "--connect-timeout-s": VALUE,
    "--env": VALUE,
    "--cwd": VALUE,
    "--stderr": FLAG,
    "--trace": FLAG,
}
PLUGIN = {
    "--listen-addr": VALUE,
    "--orchestrator-addr": VALUE,
    "--cluster": VALUE,
    "--config": VALUE,
    "--certs-dir": VALUE,
    "--manifest": FLAG,
}
OPTIONS: dict[str, dict[str, str]] = {
    "": {"--version": FLAG},
    "new": {"--claude-plugin": FLAG},
    "serve": {
        "--log-format": FORMATS,
        "--trace": FLAG,
        "--traceback": FLAG,
        "--strict": FLAG,
        "--cluster": VALUE,
        "--resources": VALUE,
        "--prompts": VALUE,
        "--scheme": VALUE,
        "--name": VALUE,
        "--version": VALUE,
        "--unix": VALUE,
        "--tcp": VALUE,
        "--http": VALUE,
        "--allow-origin": VALUE,
        "--workers": VALUE,
        "--uvloop": FLAG,
        "--allow-host": VALUE,
        "--public-url": VALUE,
        "--share-sessions": VALUE,
        "--share-addr": VALUE,
        "--share-certs": VALUE,
        "--tls-cert": VALUE,
        "--tls-key": VALUE,
        "--trusted-proxy": VALUE,
        "--auth": VALUE,
        "--auth-tokens": VALUE,
        "--auth-issuer": VALUE,
        "--auth-jwks": VALUE,
        "--auth-algorithm": VALUE,
        "--auth-introspection": VALUE,
        "--auth-audience": VALUE,
        "--auth-scope": VALUE,
        "--auth-cache-s": VALUE,
        "--principal-rate": VALUE,
        "--behind-proxy": FLAG,
        "--no-auth": FLAG,
        "--metrics": FLAG,
        "--poll": VALUE,
        "--websocket": FLAG,
        "--http-sse": FLAG,
        "--allow-remote": FLAG,
        "--max-connections": VALUE,
        "--trust": FLAG,
        "--input": VALUE,
        **TOOLS,
        **GUARDS,
    },
    "approve": {"--yes": FLAG, "--show": FLAG, "--input": VALUE},
    "demo": {"--wire": FLAG},
    "check": {
        "--list": FLAG,
        "--only": VALUE,
        "--quick": FLAG,
        "--json": FLAG,
        "--strict": FLAG,
        "--era": "{legacy,modern}",
        "--jobs": VALUE,
        "--timeout-s": VALUE,
        "--start-timeout-s": VALUE,
        "--message-limit-bytes": VALUE,
    },
    "tools": CLIENT,
    "call": CLIENT,
    "resources": CLIENT,
    "read": CLIENT,
    "prompts": CLIENT,
    "prompt": CLIENT,
    "search": {
        "--resources": VALUE,
        "--scheme": VALUE,
        "--json": FLAG,
        "--mode": VALUE,
        "--max-tokens": VALUE,
        "--max-results": VALUE,
        "--min-score": VALUE,
        "--tag": VALUE,
        "--category": VALUE,
        "--tokenizer": VALUE,
        "--no-cache": FLAG,
    },
    "lint": {
        "--resources": VALUE,
        "--prompts": VALUE,
        "--scheme": VALUE,
        "--json": FLAG,
        "--ignore": VALUE,
        "--tokenizer": VALUE,
    },
    "orchestrate": {
        "--listen-addr": VALUE,
        "--certs-dir": VALUE,
        "--cluster": VALUE,
        "--trust": FLAG,
        "--log-format": FORMATS,
    },
    "bridge": {
        "--orchestrator-addr": VALUE,
        "--certs-dir": VALUE,
        "--log-format": FORMATS,
        "--trace": FLAG,
        **GUARDS,
    },
    "config": {
        "--client": "{claude-code,claude-desktop,cursor,vscode,codex}",
        "--name": VALUE,
        "--env": VALUE,
    },
    "dev": {"--watch": VALUE, "--inspector": FLAG, "--log-format": FORMATS, "--trace": FLAG},
    "proxy": {
        "--http": VALUE,
        "--uvloop": FLAG,
        "--watch": VALUE,
        "--name": VALUE,
        "--era": CLIENT["--era"],
        "--env": VALUE,
        "--cwd": VALUE,
        "--isolation": "{auto,shared,principal,session}",
        "--idle-s": VALUE,
        "--ping-s": VALUE,
        "--heartbeat-s": VALUE,
        "--opening-s": VALUE,
        "--no-cache": FLAG,
        "--lazy": FLAG,
        "--log-format": FORMATS,
        "--trace": FLAG,
        **TOOLS,
        **GUARDS,
    },
    "login": {
        "--scope": VALUE,
        "--device": FLAG,
        "--no-browser": FLAG,
        "--client-id": VALUE,
        "--client-secret-env": VALUE,
        "--issuer": VALUE,
        "--json": FLAG,
    },
    "logout": {"--json": FLAG},
    "whoami": {"--json": FLAG},
    "ps": {"--json": FLAG},
    "reap": {"--yes": FLAG, "--show": FLAG, "--json": FLAG},
    "connect": {"--wait": VALUE},
    "hub": {},
    "hub ps": {"--json": FLAG},
    "hub restart": {"--hub": VALUE},
    "hub stop": {"--hub": VALUE},
    "hub logs": {"--hub": VALUE},
    "plugin": {},
    "plugin markdown": {"--workspace": VALUE, **PLUGIN},
    "plugin sqlite": {"--file": VALUE, **PLUGIN},
    "plugin nats": {"--replicas": VALUE, **PLUGIN},
    "plugin mcp": {"--id": VALUE, **PLUGIN},
    "plugin openai": {"--id": VALUE, **PLUGIN},
    "plugin gemini": {"--id": VALUE, **PLUGIN},
    "plugin local": {"--id": VALUE, **PLUGIN},
    "plugin install": {"--digest": VALUE},
    "plugin list": {"--json": FLAG},
    "plugin remove": {},
    "token": {"--file": VALUE, "--scope": VALUE, "--days": VALUE},
    "cluster": {},
    "cluster up": {"--port": VALUE, "--store-dir": VALUE, "--certs-dir": VALUE},
    "cluster permissions": {"--nkey": VALUE},
    "cluster buckets": {"--cluster": VALUE, "--replicas": VALUE, "--certs-dir": VALUE},
    "cluster events": {"--cluster": VALUE, "--certs-dir": VALUE},
    "certs": {},
    "certs init": {"--certs-dir": VALUE, "--days": VALUE},
    "certs issue": {"--host": VALUE, "--certs-dir": VALUE, "--days": VALUE},
    "certs show": {"--certs-dir": VALUE},
    "certs renew": {"--certs-dir": VALUE, "--days": VALUE},
    "docs": {},
    "completion": {},
}
COMMANDS = {
    "": [
        "demo",
        "new",
        "serve",
        "dev",
        "config",
        "proxy",
        "approve",
        "ps",
        "reap",
        "connect",
        "login",
        "logout",
        "whoami",
        "check",
        "tools",
        "call",
        "resources",
        "read",
        "prompts",
        "prompt",
        "shell",
        "search",
        "lint",
        "cluster",
        "orchestrate",
        "hub",
        "bridge",
        "plugin",
        "token",
        "certs",
        "docs",
        "completion",
    ],
    "plugin": [
        "markdown",
        "sqlite",
        "nats",
        "mcp",
        "openai",
        "gemini",
        "local",
        "install",
        "list",
        "remove",
    ],
    "hub": ["ps", "restart", "stop", "logs"],
    "cluster": ["up", "permissions", "buckets", "events"],
    "certs": ["init", "issue", "show", "renew"],
}
# What a command does when an option is not given, as its help says it.
DEFAULTS = {
    "serve": ["orchestr8", "512", "DIR/resources", "DIR/prompts", "RESOURCES_PATH", "PROMPTS_PATH"],
    "search": [
        "orchestr8",
        "3000",
        "15",
        "full, catalog, index or minimal",
        "estimate, cl100k_base or o200k_base",
    ],
    "lint": ["orchestr8", "estimate, cl100k_base or o200k_base"],
    "bridge": ["localhost:50100", "~/.orchestra/certs"],
    "plugin markdown": [".projects", "~/.orchestra/certs"],
    "plugin sqlite": ["orchestra.db"],
    "certs init": ["~/.orchestra/certs", "365"],
}
VARIABLES = [
    "LOG_LEVEL",
    "CONCERTINO_LOG_FORMAT",
    "CONCERTINO_TRACE",
    "CONCERTINO_ORPHAN",
    "RESOURCES_PATH",
    "PROMPTS_PATH",
    "CACHE_SIZE",
    "CONCERTINO_MAX_MESSAGE_BYTES",
]
CASES = {
    1: """not-json truncated-request not-utf8 nul-raw bad-lines-100 not-utf8-in-argument bom-first
        bom-later crlf blank-lines separators-in-text separators-in-ids nul-escaped
        one-byte-per-write split-everywhere messages-1000 echo-70-kb echo-10-mb message-at-limit
        message-over-limit time-per-byte stop-and-continue stdin-socket stdin-terminal
        stdin-file stdin-null stdin-closed nonblocking-pipes small-pipe""",
    2: """endless-line-100-mb nested-arrays nested-in-params many-members colliding-keys
        long-numbers escapes long-method notifications-flood calls-10000""",
    3: """json-number json-string json-true json-null batch-empty object-empty jsonrpc-missing
        jsonrpc-1-0 params-array params-string params-null method-number method-empty
        method-missing method-and-result result-and-error id-null id-true id-array id-object nan
        infinity trailing-garbage comment trailing-comma single-quotes two-objects id-fraction
        batch batch-2025-03-26 unknown-method ids-kept ids-large members-unknown meta-unknown
        escaped-names stray-responses broken-responses notifications-unanswered""",
    4: """request-at-start call-before-initialize ping-before-initialize initialized-missing
        handshake-pipelined initialize-twice initialize-malformed initialize-unknown-version
        initialize-modern-version initialize-2024-11-05 initialize-2025-03-26
        initialize-2025-06-18 initialize-2025-11-25 discover-first discover eras-interleaved
        version-unsupported capabilities-missing no-era""",
    5: """tool-unknown arguments-bad text-kept tool-raises tool-error-texts result-unsendable
        result-200-mb stdout-written tool-forks children-end process-disturbed
        secret-in-exception tracebacks-300""",
    6: """ping-during-sleep ping-during-block answers-as-ready blocking-64 sleeps-500
        cancel-in-flight cancel-nothing cancel-other-type cancel-races cancelled-frees id-in-use
        progress-20000 progress-not-asked progress-after-cancel progress-late""",
    7: """reader-stops-3-s both-pipes-full stderr-unread stderr-closed stderr-full
        stderr-reader-gone calls-4000 idle quiet eof-idle eof-at-once eof-in-message
        eof-without-newline eof-after-50-calls eof-during-sleep eof-during-block sigterm sigint
        sigterm-during-call sigterm-twice stdout-closed client-gone client-gone-in-call
        wrapper-killed start-stop-10""",
}


@pytest.fixture(autouse=True)
def plain_help(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turn colours off, which Python 3.14 has in its help where it is told to."""
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.delenv("FORCE_COLOR", raising=False)


@pytest.fixture(scope="module")
def private() -> Iterator[Path]:
    """Make a folder for sockets: its name is short, and nobody else may enter it."""
    with tempfile.TemporaryDirectory(prefix="c-") as folder:
        yield Path(folder)


# Commands and options


@pytest.mark.parametrize("name", OPTIONS)
def test_the_options_of(capsys: pytest.CaptureFixture[str], name: str) -> None:
    ended = call_main(capsys, *name.split(), "--help")
    found: dict[str, str] = {}
    for line in ended.out.splitlines():
        # Some have a short form, too; only -h, --help is no option of the command itself.
        if option := re.match(r"  (?:-[^h], )?(--[a-z-]+)(?: (\S+))?(?:  |$)", line):
            taken = option[2]
            found[option[1]] = FLAG if taken is None else taken if taken.startswith("{") else VALUE
    assert found == OPTIONS[name]
    assert ended.code == 0


@pytest.mark.parametrize("name", COMMANDS)
def test_the_commands_of(capsys: pytest.CaptureFixture[str], name: str) -> None:
    help = call_main(capsys, *name.split(), "--help").out
    # The order is for people.
    found = re.findall(r"^    ([a-z]+)(?:  |$)", help, re.MULTILINE)
    assert sorted(found) == sorted(COMMANDS[name])


@pytest.mark.parametrize("name", DEFAULTS)
def test_the_help_names_the_defaults_of(capsys: pytest.CaptureFixture[str], name: str) -> None:
    help = " ".join(call_main(capsys, *name.split(), "--help").out.split())
    assert [text for text in DEFAULTS[name] if text not in help] == []


def test_the_help_names_the_environment_variables(capsys: pytest.CaptureFixture[str]) -> None:
    help = call_main(capsys, "--help").out
    assert [name for name in VARIABLES if name not in help] == []


def test_the_version_names_package_python_protocol_and_extras(
    capsys: pytest.CaptureFixture[str],
) -> None:
    package, _, protocol, extras = call_main(capsys, "--version").out.splitlines()
    assert re.fullmatch(r"concertino \d+\.\d+\.\d+", package)
    assert protocol == f"MCP 2024-11-05, 2025-03-26, 2025-06-18, 2025-11-25, {PROTOCOL}"
    assert re.findall(r"(\w+) \((?:not )?installed\)", extras) == [
        "validate",
        "library",
        "watch",
        "tokens",
        "otel",
        "shell",
        "http",
        "uvloop",
        "auth",
        "nats",
        "orchestra",
        "openai",
    ]


# The cases of check


def test_the_cases_of_check(capsys: pytest.CaptureFixture[str]) -> None:
    found: dict[int, list[str]] = {}
    for line in call_main(capsys, "check", "--list").out.splitlines():
        if section := re.match(r"(\d)\. ", line):
            found[int(section[1])] = []
        elif case := re.fullmatch(r"  ([a-z0-9-]+)", line):
            found[max(found)].append(case[1])
    assert found == {section: names.split() for section, names in CASES.items()}


CHECKED = """
import os
from typing import Literal
from concertino import Server
server = Server("checked", version="1.2.3")
with open("key", "w") as file:
    file.write(os.environ["CHECK_API_KEY"])
How = Literal["one", "two"]
@server.tool
async def echo(text: str) -> str: return text
@server.tool
async def sleep(seconds: float) -> str: return ""
@server.tool
async def block(seconds: float) -> str: return ""
@server.tool
async def fail(how: How) -> str: return ""
@server.tool
async def give(what: How) -> str: return ""
@server.tool
async def big(characters: int) -> str: return ""
@server.tool
async def say(how: How, text: str) -> str: return ""
@server.tool
async def fork(how: How) -> str: return ""
@server.tool
async def disturb() -> str: return ""
@server.tool
async def count(to: int) -> str: return ""
@server.tool
async def tell_late() -> str: return ""
@server.tool
async def noise(bytes: int) -> str: return ""
@server.tool
async def leak(secret: str) -> str: return ""
server.run()
"""


def test_what_check_says_as_json(tmp_path: Path) -> None:
    words = ["check", "--json", "--only", "not-json", "--", sys.executable, "-c", CHECKED]
    ended = run(command(*words), cwd=tmp_path)
    found = json.loads(ended.out)
    assert list(found) == ["server", "problem", "cases", "summary", "exit"]
    assert list(found["server"]) == [
        "command",
        "name",
        "version",
        "legacy",
        "modern",
        "era",
        "tools",
        "notes",
    ]
    assert found["server"]["legacy"] == "2025-11-25"
    assert found["server"]["modern"] is True
    assert found["server"]["era"] == "legacy"
    assert found["server"]["tools"] == [
        "big",
        "block",
        "count",
        "disturb",
        "echo",
        "fail",
        "fork",
        "give",
        "leak",
        "noise",
        "say",
        "sleep",
        "tell_late",
    ]
    [case] = found["cases"]
    assert list(case) == [
        "name",
        "section",
        "verdict",
        "seconds",
        "does",
        "expected",
        "source",
        "came",
        "stderr",
    ]
    assert (case["name"], case["section"]) == ("not-json", 1)
    # On a busy machine an answer may come later than the policy asks for.
    assert case["verdict"] in ("ok", "differs")
    assert list(found["summary"]) == ["ok", "skipped", "differs", "wrong", "hang", "crash"]
    assert (found["problem"], found["exit"], ended.code) == (None, 0, 0)
    assert (tmp_path / "key").read_text().startswith("sk-check-")


# The keys of --json, and what arguments look like

OFFERING = """
from concertino import Server, ToolError
server = Server("offering", version="1.2.3")
@server.tool
async def add(a: int, b: int) -> int:
    "Add two integers."
    return a + b
@server.tool
async def fail() -> int:
    raise ToolError("NO_LUCK", "no luck")
@server.resource("config://app", mime_type="text/plain")
def config() -> str:
    return "here"
@server.resource("notes://{day}")
def note(day: str) -> str:
    return day
@server.prompt
def greet(name: str) -> str:
    return f"Hello, {name}"
"""
META = (
    '"resultType":"complete","_meta":{"io.modelcontextprotocol/serverInfo":'
    '{"name":"offering","version":"1.2.3"}}'
)


@pytest.fixture(scope="module")
def offering(private: Path) -> Iterator[str]:
    """Start a server for every client of this module, and give its address."""
    (private / "offering.py").write_text(OFFERING)
    with start(command("serve", "offering.py", "--unix", "offering"), cwd=private) as server:
        server.wait_for("started successfully")
        yield f"unix:{private}/offering"
        server.process.send_signal(signal.SIGTERM)
        assert server.end() == 0


@pytest.mark.parametrize(
    ("words", "out"),
    [
        (
            ["tools", "--json"],
            '[{"name":"add","inputSchema":{"type":"object","properties":{"a":{"type":"integer"},"b":'
            '{"type":"integer"}},"required":["a","b"],"additionalProperties":false},'
            '"description":"Add two integers.","outputSchema":{"type":"integer"}},'
            '{"name":"fail","inputSchema":{"type":"object","additionalProperties":false},'
            '"outputSchema":{"type":"integer"}}]',
        ),
        (
            ["resources", "--json"],
            '[{"uri":"config://app","name":"config","mimeType":"text/plain"},'
            '{"uriTemplate":"notes://{day}","name":"note"}]',
        ),
        (["prompts", "--json"], '[{"name":"greet","arguments":[{"name":"name","required":true}]}]'),
        (
            ["call", "--json", "add", "a:=1", "b:=2"],
            "{" + META + ',"content":[{"type":"text","text":"3"}],"structuredContent":3}',
        ),
        (
            ["read", "--json", "config://app"],
            "{"
            + META
            + ',"contents":[{"uri":"config://app","text":"here","mimeType":"text/plain"}],"ttlMs":0,'
            '"cacheScope":"private"}',
        ),
        (
            ["prompt", "--json", "greet", "name=Ann"],
            "{"
            + META
            + ',"messages":[{"role":"user","content":{"type":"text","text":"Hello, Ann"}}]}',
        ),
        (["call", "add", "@both.json"], "3"),
        (["call", "add", "a:=@one.json", "b:=2"], "3"),
        (["read", "config://app"], "here"),
        (["prompt", "greet", "name=@one.json"], "[user]\nHello, 1"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_client_command_prints(offering: str, tmp_path: Path, words: list[str], out: str) -> None:
    (tmp_path / "both.json").write_text('{"a": 1, "b": 2}')
    (tmp_path / "one.json").write_text("1")
    assert run(command(*words, "--", offering), cwd=tmp_path) == ProcessResult(0, f"{out}\n", "")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("library")
    (folder / "resources" / "agents").mkdir(parents=True)
    (folder / "resources" / "agents" / "api.md").write_text(
        "---\ntitle: REST API\nestimatedTokens: 4000\n---\n# REST API\n\nTalk about api design.\n"
    )
    return folder


def test_what_search_says_as_json(capsys: pytest.CaptureFixture[str], library: Path) -> None:
    ended = call_main(capsys, "search", "--json", "--no-cache", library, "api")
    found = json.loads(ended.out)
    assert list(found) == ["query", "terms", "repairs", "unknown", "documents", "found"]
    assert list(found["found"][0]) == ["uri", "title", "tokens", "score", "parts"]
    assert list(found["found"][0]["parts"][0]) == ["term", "field", "score"]
    assert {part["field"] for part in found["found"][0]["parts"]} <= {
        "text",
        "title",
        "tags",
        "purposes",
    }
    assert ended.code == 0


def test_what_lint_says_as_json(capsys: pytest.CaptureFixture[str], library: Path) -> None:
    ended = call_main(capsys, "lint", "--json", library)
    found = json.loads(ended.out)
    assert list(found) == ["documents", "prompts", "problems", "skipped"]
    assert list(found["problems"][0]) == ["path", "line", "rule", "message"]
    assert "tokens" in [problem["rule"] for problem in found["problems"]]
    assert ended.code == 1


RULES = [
    "front-matter",
    "missing-field",
    "field",
    "unreadable",
    "oversized",
    "outside",
    "duplicate-id",
    "ambiguous-name",
    "shadowed",
    "broken-link",
    "tokens",
    "unreachable",
    "prompt",
]


def test_the_rules_that_lint_can_ignore(capsys: pytest.CaptureFixture[str], library: Path) -> None:
    ignored = [f"--ignore={rule}" for rule in RULES]
    assert call_main(capsys, "lint", library, *ignored).code == 0
    assert call_main(capsys, "lint", library, "--ignore=nothing").code == 2


@pytest.mark.parametrize("mode", ["full", "catalog", "index", "minimal"])
def test_the_modes_of_search(capsys: pytest.CaptureFixture[str], library: Path, mode: str) -> None:
    assert call_main(capsys, "search", "--no-cache", "--mode", mode, library, "api").code == 0


@pytest.mark.parametrize("tokenizer", ["estimate", "cl100k_base", "o200k_base"])
def test_the_tokenizers_of_search(
    capsys: pytest.CaptureFixture[str], library: Path, tokenizer: str
) -> None:
    assert (
        call_main(capsys, "search", "--no-cache", "--tokenizer", tokenizer, library, "api").code
        == 0
    )


# Exit codes

HANGING = [sys.executable, "-S", "-c", "import sys; sys.stdin.read()"]
GARBLED = [
    sys.executable,
    "-S",
    "-c",
    "import sys, json\n"
    "for line in sys.stdin:\n"
    "    id = json.loads(line).get('id')\n"
    "    print(json.dumps({'jsonrpc': '2.0', 'id': id, 'result': []}), flush=True)\n",
]
# A server that sends the command that started it a signal, and ends when that has ended.
SIGNALLING = "import os, signal, sys; os.kill(os.getppid(), signal.{}); sys.stdin.read()"


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["call", "add", "a:=1", "b:=2"], 0),
        (["call", "fail"], 1),
        (["call", "none"], 1),
        (["read", "config://none"], 1),
        (["call", "add", "nonsense"], 2),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else str(value),
)
def test_the_exit_code_of_a_client_command(offering: str, words: list[str], code: int) -> None:
    assert run(command(*words, "--", offering)).code == code


@pytest.mark.parametrize(
    ("server", "code"),
    [
        ([], 2),
        (["/nonexistent/server"], 3),
        ([sys.executable, "-S", "-c", "raise SystemExit(7)"], 3),
        (HANGING, 4),
        (GARBLED, 5),
        ([sys.executable, "-S", "-c", SIGNALLING.format("SIGINT")], 130),
    ],
    ids=["no server", "no such program", "it ends", "it hangs", "it is garbled", "Ctrl-C"],
)
def test_the_exit_code_of_a_client_command_without_a_good_server(
    server: list[str], code: int
) -> None:
    options = ["--era", "legacy", "--connect-timeout-s", "0.1" if server is HANGING else "60"]
    assert run(command("tools", *options, "--", *server)).code == code


REFUSING = [
    sys.executable,
    "-S",
    "-c",
    "import sys, json\n"
    "for line in sys.stdin:\n"
    "    message = json.loads(line)\n"
    "    result = {'protocolVersion': '2025-11-25', 'capabilities': {'tools': {}}}\n"
    "    reply = {'error': {'code': -32050, 'message': 'no', 'data': {'why': 'late'}}}\n"
    "    if message['method'] == 'initialize': reply = {'result': result}\n"
    "    if 'id' in message:\n"
    "        print(json.dumps({'jsonrpc': '2.0', 'id': message['id'], **reply}), flush=True)\n",
]


@pytest.mark.parametrize(
    ("words", "server", "code", "exit_code"),
    [
        (["tools", "--nonsense"], REFUSING, "usage", 2),
        (["call", "x"], REFUSING, "refused", 1),
        (["prompts"], REFUSING, "unsupported", 1),
        (["tools"], ["/nonexistent/server"], "unreachable", 3),
        (["tools", "--connect-timeout-s", "0.1"], HANGING, "timeout", 4),
        (["tools"], GARBLED, "protocol", 5),
        (["tools"], ["cat"], "protocol", 5),
        (
            ["tools"],
            [sys.executable, "-S", "-c", SIGNALLING.format("SIGINT")],
            "interrupted",
            130,
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_failure_with_json_is_one_object(
    words: list[str], server: list[str], code: str, exit_code: int
) -> None:
    ended = run(command(*words, "--json", "--era", "legacy", "--", *server))
    assert (ended.code, ended.out) == (exit_code, "")
    [line] = ended.err.splitlines()
    found = json.loads(line)
    assert list(found) == ["error"]
    keys = ["code", "message", "hint", *(["rpc"] if code == "refused" else [])]
    assert list(found["error"]) == keys
    assert found["error"]["code"] == code
    if code == "refused":
        assert found["error"]["rpc"] == {"code": -32050, "message": "no", "data": {"why": "late"}}


def test_a_tool_that_is_not_there_is_not_found_with_json(offering: str) -> None:
    ended = run(command("call", "none", "--json", "--", offering))
    assert json.loads(ended.err)["error"]["code"] == "not-found"


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ([], 2),
        (["nonsense"], 2),
        (["check"], 2),
        (["check", "--list", "--only", "no-such-case"], 2),
        (["check", "--jobs", "0", "--", "x"], 2),
        (["check", "--", "/nonexistent/server"], 2),
        (["search", "--mode", "loud", ".", "api"], 2),
        (["lint", "/nonexistent/folder"], 2),
        (["certs"], 2),
        (["certs", "init", "--days", "0"], 2),
        (["certs", "show", "--certs-dir", "/nonexistent/folder"], 1),
        (["certs", "issue", "--certs-dir", "/nonexistent/folder", "x"], 1),
        (["plugin"], 2),
        (["approve"], 2),
        (["approve", "/nonexistent/mcp.json"], 2),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else str(value),
)
def test_the_exit_code_of(capsys: pytest.CaptureFixture[str], words: list[str], code: int) -> None:
    assert call_main(capsys, *words).code == code


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["serve", "--nonsense"], 2),
        (["serve"], 2),
        (["serve", "good.py", "--rate-limit", "often"], 2),
        (["serve", "good.py", "--max-connections", "2"], 2),
        (["serve", "good.py", "--", "more"], 2),
        (["bridge", "--timeout", "-1"], 2),
        (["serve", "none.py"], 2),
        (["serve", "none.json"], 2),
        (["serve", "mcp.json", "--input", "id"], 2),
        (["serve", "mcp.json"], 0),
        (["serve", "empty.py"], 2),
        (["serve", "broken.py"], 1),
        (["serve", "good.py"], 0),
        (["serve", "good.py", "--tcp", "nonsense"], 2),
        (["serve", "good.py", "--unix", "none/socket"], 1),
        (["orchestrate", "none.yaml"], 2),
        (["orchestrate", "good.yaml", "--listen-addr", "unix:none/socket"], 1),
        (["bridge", "--orchestrator-addr", "nonsense"], 1),
        (["proxy"], 2),
        (["proxy", "--", "none/server"], 1),
        (["proxy", "--", "python", "-c", "pass"], 1),
        (["proxy", "--timeout", "-1", "--", "python", "good.py"], 2),
        (["plugin", "markdown", "--listen-addr", "unix:none/socket"], 1),
        (["plugin", "sqlite", "--file", "good.yaml/orchestra.db"], 1),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else str(value),
)
def test_the_exit_code_of_a_program_that_serves(
    tmp_path: Path, words: list[str], code: int
) -> None:
    (tmp_path / "empty.py").write_text("")
    (tmp_path / "broken.py").write_text("1 / 0")
    (tmp_path / "good.py").write_text("from concertino import Server\nserver = Server('good')\n")
    (tmp_path / "good.yaml").write_text("plugins: []\n")
    (tmp_path / "mcp.json").write_text('{"mcpServers": {}}')
    assert run(command(*words), cwd=tmp_path).code == code


def test_a_variable_that_is_no_limit_ends_the_start_with_2(tmp_path: Path) -> None:
    (tmp_path / "good.py").write_text("from concertino import Server\nServer('good').run()\n")
    ended = run(command("serve", "good.py"), env={"CONCERTINO_MAX_BATCH": "none"}, cwd=tmp_path)
    assert ended.code == 2
    assert "CONCERTINO_MAX_BATCH" in ended.err


def test_search_that_finds_nothing_ends_with_1(
    capsys: pytest.CaptureFixture[str], library: Path
) -> None:
    assert call_main(capsys, "search", "--no-cache", library, "quaternions").code == 1


def test_check_of_a_server_that_cannot_be_opened_ends_with_1() -> None:
    server = [sys.executable, "-S", "-c", "raise SystemExit(7)"]
    ended = run(command("check", "--json", "--only", "not-json", "--", *server))
    assert ended.code == 1
    assert json.loads(ended.out)["exit"] == 1


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_check_that_a_signal_ends_adds_its_number_to_128(name: str, code: int) -> None:
    server = [sys.executable, "-S", "-c", SIGNALLING.format(name)]
    assert run(command("check", "--only", "not-json", "--", *server)).code == code


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_server_that_a_signal_ends_has_done_well(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "good.py").write_text("from concertino import Server\nserver = Server('good')\n")
    with start(command("serve", "good.py"), cwd=tmp_path) as server:
        server.wait_for("started successfully")
        os.kill(server.process.pid, number)
        assert server.process.wait(60) == 0
