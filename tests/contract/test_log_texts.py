"""The log: its three formats, and the texts that scripts look for, as they were printed.

Sources: the MCP transport document, "Logging Strategy" and "Process Lifecycle"; the stdio
reference, "Message Format"; the Orchestra plugin protocol.
"""

from __future__ import annotations

import json
import re
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from contract.programs import (
    INITIALIZE,
    INITIALIZED,
    ProcessResult,
    command,
    log_entries,
    modern,
    request,
    run,
    start,
)

CALCULATOR = """
from concertino import Server
server = Server("calculator", version="1.2.3")
@server.tool
async def add(a: int, b: int) -> int:
    return a + b
@server.tool
async def fail() -> int:
    raise ValueError("the key is hunter2-hunter2")
server.run()
"""
BROKEN = """
from collections.abc import Iterator
from concertino import Server
server = Server("broken", version="2.0.0")
@server.lifespan
def database() -> Iterator[None]:
    raise RuntimeError("no database")
    yield
server.run()
"""
ADD = (
    '{"jsonrpc":"2.0","id":1,"method":"tools/call",'
    '"params":{"name":"add","arguments":{"a":1,"b":2}}}'
)
SENT = (INITIALIZE, INITIALIZED, ADD, request(2, "tools/call", name="fail"))


def calculate(**environment: str) -> ProcessResult:
    return run(
        [sys.executable, "-c", CALCULATOR], SENT, {"MY_API_KEY": "hunter2-hunter2", **environment}
    )


@pytest.fixture(scope="module")
def at_debug() -> ProcessResult:
    return calculate(LOG_LEVEL="debug", CONCERTINO_TRACE="1")


@pytest.fixture(scope="module")
def as_trace() -> ProcessResult:
    return calculate(CONCERTINO_LOG_FORMAT="trace", CONCERTINO_TRACE="1")


@pytest.fixture(scope="module")
def as_json() -> list[dict[str, object]]:
    ended = calculate(CONCERTINO_LOG_FORMAT="json", CONCERTINO_TRACE="1")
    return [json.loads(line) for line in ended.err.splitlines()]


@pytest.fixture(scope="module")
def log(at_debug: ProcessResult) -> list[tuple[str, str, str]]:
    """Return the log lines without the traced messages, which have another form."""
    return log_entries(
        "\n".join(line for line in at_debug.err.splitlines() if not line.startswith("[MCP] "))
    )


@pytest.fixture(scope="module")
def library_log(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, str, str]]:
    folder = tmp_path_factory.mktemp("library")
    (folder / "resources" / "agents").mkdir(parents=True)
    (folder / "prompts").mkdir()
    (folder / "resources" / "agents" / "api.md").write_text(
        "# REST API\n\nTalk about api design.\n"
    )
    (folder / "resources" / "agents" / "sql.md").write_text("# Databases\n\nTables and joins.\n")
    for name in ("one", "two", "three"):
        (folder / "prompts" / f"{name}.md").write_text("Say hello.\n")
    lines = [
        modern(1, "resources/read", uri="orchestr8://agents/api"),
        modern(2, "resources/read", uri="orchestr8://agents/match?query=api"),
    ]
    cache = {"LOG_LEVEL": "debug", "XDG_CACHE_HOME": str(folder / "cache")}
    return log_entries(run(command("serve", folder), lines, cache).err)


# The form `[time] [LEVEL] [component] message`


def test_the_first_line_says_which_server_starts(log: list[tuple[str, str, str]]) -> None:
    assert log[0] == ("INFO", "calculator", "Starting calculator MCP server v1.2.3")


def test_the_last_line_says_that_the_server_shuts_down(log: list[tuple[str, str, str]]) -> None:
    assert log[-1] == ("INFO", "calculator", "Shutting down calculator MCP server")


def test_a_line_says_that_the_server_has_started(log: list[tuple[str, str, str]]) -> None:
    assert ("INFO", "calculator", "calculator MCP server started successfully") in log


def test_a_received_request_is_logged_at_debug(log: list[tuple[str, str, str]]) -> None:
    assert ("DEBUG", "calculator", f"Received request: {ADD}") in log


def test_a_sent_response_is_logged_at_debug(
    log: list[tuple[str, str, str]], at_debug: ProcessResult
) -> None:
    [added] = [line for line in at_debug.out.splitlines() if '"id":1,' in line]
    assert ("DEBUG", "calculator", f"Sending response: {added}") in log


def test_a_failed_tool_is_an_error_of_the_server(log: list[tuple[str, str, str]]) -> None:
    assert [entry[:2] for entry in log if entry[0] == "ERROR"] == [("ERROR", "calculator")]


def test_a_warning_has_the_level_warn_and_the_component_of_the_program() -> None:
    ended = calculate(CONCERTINO_LOG_FORMAT="strange")
    [(level, _, text)] = [entry for entry in log_entries(ended.err) if entry[0] == "WARN"]
    assert level == "WARN"
    assert text.startswith("CONCERTINO_LOG_FORMAT: ")


def test_lines_behind_the_first_are_indented_by_four(at_debug: ProcessResult) -> None:
    assert "\n    Traceback (most recent call last):\n" in at_debug.err
    assert "\n    ValueError: the key is [REDACTED]\n" in at_debug.err


def test_a_secret_is_redacted_in_the_log(at_debug: ProcessResult) -> None:
    assert "[REDACTED]" in at_debug.err
    assert "hunter2-hunter2" not in at_debug.err


def test_messages_are_traced_with_mcp_and_an_arrow(at_debug: ProcessResult) -> None:
    lines = at_debug.err.splitlines()
    assert f"[MCP] <- {ADD}" in lines
    [added] = [line for line in at_debug.out.splitlines() if '"id":1,' in line]
    assert f"[MCP] -> {added}" in lines


@pytest.mark.parametrize(
    ("level", "levels"),
    [
        ("debug", {"DEBUG", "INFO", "ERROR"}),
        ("info", {"INFO", "ERROR"}),
        ("warn", {"ERROR"}),
        ("warning", {"ERROR"}),
        ("error", {"ERROR"}),
    ],
)
def test_the_level_opens_what_it_always_has(level: str, levels: set[str]) -> None:
    assert {entry[0] for entry in log_entries(calculate(LOG_LEVEL=level).err)} == levels


# The profile `trace`


def test_the_trace_profile_begins_a_line_with_trace(as_trace: ProcessResult) -> None:
    lines = as_trace.err.splitlines()
    assert "[TRACE] Starting calculator MCP server v1.2.3" in lines
    assert "[TRACE] calculator MCP server started successfully" in lines
    assert "[TRACE] Shutting down calculator MCP server" in lines
    assert f"[TRACE] <- {ADD}" in lines
    assert any(line.startswith('[TRACE] -> {"jsonrpc":"2.0","id":1,"result":') for line in lines)


def test_the_trace_profile_begins_an_error_with_error(as_trace: ProcessResult) -> None:
    assert [
        line for line in as_trace.err.splitlines() if not line.startswith(("[TRACE] ", "    "))
    ] == ["Error: tool fail failed"]


def test_the_trace_profile_says_why_a_server_could_not_start() -> None:
    ended = run([sys.executable, "-c", BROKEN], env={"CONCERTINO_LOG_FORMAT": "trace"})
    assert "Error: Failed to start server: RuntimeError: no database" in ended.err.splitlines()
    assert ended.code == 1


# The format `json`


def test_a_json_line_has_these_members(as_json: list[dict[str, object]]) -> None:
    assert list(as_json[0]) == ["time", "level", "component", "text"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", str(as_json[0]["time"]))
    assert as_json[0]["level"] == "INFO"
    assert as_json[0]["component"] == "calculator"
    assert as_json[0]["text"] == "Starting calculator MCP server v1.2.3"


def test_a_json_line_of_a_failed_call_names_its_request(as_json: list[dict[str, object]]) -> None:
    [failed] = [line for line in as_json if line["level"] == "ERROR"]
    assert list(failed) == ["time", "level", "component", "text", "exception", "request"]
    assert failed["text"] == "tool fail failed"
    assert failed["request"] == 2


def test_a_json_line_of_a_traced_call_names_its_trace() -> None:
    meta = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    line = request(1, "tools/call", name="fail", arguments={}, _meta=meta)
    ended = run(
        [sys.executable, "-c", CALCULATOR],
        [INITIALIZE, INITIALIZED, line],
        {"CONCERTINO_LOG_FORMAT": "json"},
    )
    [failed] = [
        entry for entry in map(json.loads, ended.err.splitlines()) if entry["level"] == "ERROR"
    ]
    assert failed["request"] == 1
    assert failed["trace"] == "0af7651916cd43dd8448eb211c80319c"


def test_a_json_line_of_a_message_is_of_the_level_trace(as_json: list[dict[str, object]]) -> None:
    messages = [line for line in as_json if line["level"] == "TRACE"]
    assert {line["component"] for line in messages} == {"mcp"}
    assert f"<- {ADD}" in [line["text"] for line in messages]


# A server that does not start


@pytest.fixture(scope="module")
def broken() -> ProcessResult:
    return run([sys.executable, "-c", BROKEN])


def test_a_server_that_cannot_start_says_why(broken: ProcessResult) -> None:
    assert ("ERROR", "broken", "Failed to start server: RuntimeError: no database") in log_entries(
        broken.err
    )
    assert broken.code == 1


def test_a_server_that_cannot_start_never_says_that_it_has(broken: ProcessResult) -> None:
    assert "started successfully" not in broken.err


def test_a_target_that_cannot_be_imported_says_why(tmp_path: Path) -> None:
    (tmp_path / "target.py").write_text("raise RuntimeError('no database')\n")
    ended = run(command("serve", "target.py"), cwd=tmp_path)
    assert log_entries(ended.err)[0] == (
        "ERROR",
        "concertino",
        "Failed to start server: importing target.py: RuntimeError: no database (target.py:1)",
    )
    assert ended.code == 1


# A library


@pytest.mark.parametrize(
    "entry",
    [
        ("INFO", "orchestr8", "Starting orchestr8 MCP server v0.0.0"),
        ("INFO", "orchestr8", "Loaded 3 prompts"),
        ("INFO", "orchestr8", "Loaded 2 resources"),
        ("INFO", "orchestr8", "Resource index pre-loaded for dynamic matching"),
        ("INFO", "orchestr8", "orchestr8 MCP server started successfully"),
        ("DEBUG", "orchestr8", "Loading resource: orchestr8://agents/api"),
        ("INFO", "orchestr8", "Dynamic resource request: orchestr8://agents/match?query=api"),
        ("INFO", "orchestr8", "Shutting down orchestr8 MCP server"),
    ],
    ids=lambda entry: entry[2],
)
def test_a_library_logs(
    library_log: list[tuple[str, str, str]], entry: tuple[str, str, str]
) -> None:
    assert entry in library_log


def test_a_library_logs_what_it_assembled(library_log: list[tuple[str, str, str]]) -> None:
    [text] = [
        text for level, _, text in library_log if text.startswith("Assembled") and level == "INFO"
    ]
    assert re.fullmatch(r"Assembled 1 fragments \(\d+ tokens\)", text)


# Sockets, hub, plugin and bridge


@pytest.fixture
def private() -> Iterator[Path]:
    """Make a folder for sockets: its name is short, and nobody else may enter it."""
    with tempfile.TemporaryDirectory(prefix="c-") as folder:
        yield Path(folder)


def test_a_server_says_where_it_listens(private: Path) -> None:
    (private / "calculator.py").write_text(CALCULATOR)
    with start(
        command("serve", "calculator.py", "--unix", "s", "--tcp", "127.0.0.1:0"), cwd=private
    ) as server:
        server.wait_for("started successfully")
        server.process.send_signal(signal.SIGTERM)
        assert server.end() == 0
        entries = log_entries("\n".join(server.err))
    assert ("INFO", "calculator", f"Listening on unix:{private.resolve()}/s") in entries
    [tcp] = [text for _, _, text in entries if "tcp:" in text]
    assert re.fullmatch(r"Listening on tcp:127\.0\.0\.1:\d+", tcp)


def test_hub_plugin_and_bridge_say_where_they_are(private: Path) -> None:
    (private / "plugins.yaml").write_text("plugins: []\n")
    hub_at, plugin_at = f"unix:{private}/hub", f"unix:{private}/plugin"
    flags = ["--orchestrator-addr", hub_at]
    with start(command("orchestrate", "plugins.yaml", "--listen-addr", hub_at), cwd=private) as hub:
        assert hub.wait_for("Listening on").endswith(f"] [INFO] [hub] Listening on {hub_at}")
        storage = command(
            "plugin", "markdown", "--workspace", private, "--listen-addr", plugin_at, *flags
        )
        with start(storage) as plugin:
            # The line is exactly this, without a time: the hub that started the plugin reads it.
            assert plugin.wait_for("READY") == f"READY {plugin_at}"
            with start(command("bridge", *flags)) as bridge:
                said = bridge.wait_for("connected to orchestrator")
                assert said == f"transport.stdio: connected to orchestrator at {hub_at}"
                assert bridge.end() == 0
            plugin.process.send_signal(signal.SIGTERM)
            assert plugin.end() == 0
        with start(command("bridge", *flags, "--log-format", "trace")) as bridge:
            said = bridge.wait_for("connected to orchestrator")
            assert said == f"[TRACE] transport.stdio: connected to orchestrator at {hub_at}"
            assert bridge.end() == 0
        hub.process.send_signal(signal.SIGTERM)
        assert hub.end() == 0
