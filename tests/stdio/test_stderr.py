"""What is said on stderr, exit codes, and that nobody has to read it (RELIABILITY section 7, DESIGN
decisions 8 and 9).
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from stdio.harness import (
    INITIALIZE,
    INITIALIZED,
    RUN,
    Process,
    call,
    failure_of,
    request,
    script,
    text_of,
)

CANARY = "c4n4ry-7f3a91-do-not-show"
LINE = re.compile(
    rb"\[\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z\] \[(DEBUG|INFO|WARN|ERROR)\] \[([^\]]*)\] (.*)"
)


def lines(process: Process) -> list[tuple[str, str, str]]:
    """(level, component, text) of every log line; fails on a line that is none (a traceback's lines
    are indented).
    """
    found = []
    for line in process.stderr.splitlines():
        match = LINE.fullmatch(line)
        assert match or line.startswith(b"    "), line
        if match:
            found.append(tuple(part.decode() for part in match.groups()))
    return found  # type: ignore[return-value]


# The lines of a life


@pytest.mark.requirement("FR-6")
def test_a_life_in_three_lines() -> None:
    with Process() as process:
        process.initialize()
        process.until_stderr("started successfully")
        assert process.finish() == 0
        assert lines(process) == [
            ("INFO", "toolbox", "Starting toolbox MCP server v1.2.3"),
            ("INFO", "toolbox", "toolbox MCP server started successfully"),
            ("INFO", "toolbox", "Shutting down toolbox MCP server"),
        ]


def test_warnings_are_all_that_is_said_at_level_error() -> None:
    with Process(env={"LOG_LEVEL": "error"}) as process:
        process.initialize()
        process.ask(call(1, "say", {"how": "print"}))
        assert process.finish() == 0
        assert [
            line for line in lines(process_without(process, b"stray")) if line[0] == "INFO"
        ] == []
        assert b"stdout is the protocol channel" in process.stderr


def process_without(process: Process, line: bytes) -> Process:
    process.stderr = process.stderr.replace(line + b"\n", b"")
    return process


def test_at_level_debug_every_message_is_a_line() -> None:
    with Process(env={"LOG_LEVEL": "debug"}) as process:
        process.initialize()
        process.ask(call(1, "echo", {"text": "seen\nin\tone line"}))
        assert process.finish() == 0
        received = [
            text for level, _, text in lines(process) if text.startswith("Received request: ")
        ]
        sent = [text for level, _, text in lines(process) if text.startswith("Sending response: ")]
        assert [json.loads(each.partition(": ")[2]).get("id") for each in received] == [
            "initialize",
            None,
            1,
        ]
        assert [json.loads(each.partition(": ")[2])["id"] for each in sent] == ["initialize", 1]
        assert received[2] == (
            'Received request: {"jsonrpc":"2.0","id":1,"method":"tools/call",'
            '"params":{"name":"echo","arguments":{"text":"seen\\nin\\tone line"}}}'
        )


@pytest.mark.parametrize("how", ["variable", "option"])
def test_a_trace_shows_every_message_whole(how: str, tmp_path: Path) -> None:
    source = "@server.tool\nasync def echo(text: str) -> str:\n    return text\n"
    path = script(tmp_path, source + RUN)
    argv, env = (
        (["-m", "concertino", "serve", path, "--trace"], {})
        if how == "option"
        else ([path], {"CONCERTINO_TRACE": "1"})
    )
    with Process(argv, env=env) as process:
        process.initialize()
        text = "long " * 2000
        process.ask(call(1, "echo", {"text": text}))
        process.write(b"{bad}\n")
        process.pump(lambda: len(process.messages) == 3)
        process.ask(request(2, "ping"))
        assert process.finish() == 0
        traced = re.findall(rb"^\[MCP\] (<-|->) (.*)$", process.stderr, re.MULTILINE)
        assert [way for way, _ in traced] == [
            b"<-",
            b"<-",
            b"->",
            b"<-",
            b"->",
            b"<-",
            b"->",
            b"<-",
            b"->",
        ]
        assert json.loads(traced[3][1])["params"]["arguments"]["text"] == text
        assert traced[5][1] == b"{bad}"


def test_log_format_json(tmp_path: Path) -> None:
    path = script(tmp_path, "@server.tool\nasync def fail() -> str:\n    raise ValueError('no')\n")
    with Process(["-m", "concertino", "serve", path, "--log-format", "json"]) as process:
        process.initialize()
        process.until_stderr("started successfully")
        process.ask(call(1, "fail"))
        assert process.finish() == 0
        entries = [json.loads(line) for line in process.stderr.splitlines()]
        assert [entry["text"] for entry in entries] == [
            "Starting probe MCP server v1.2.3",
            "probe MCP server started successfully",
            "tool fail failed",
            "Shutting down probe MCP server",
        ]
        assert [entry["level"] for entry in entries] == ["INFO", "INFO", "ERROR", "INFO"]
        assert "ValueError: no" in entries[2]["exception"]


def test_log_format_trace(tmp_path: Path) -> None:
    path = script(tmp_path, "@server.tool\nasync def fail() -> str:\n    raise ValueError('no')\n")
    with Process(
        ["-m", "concertino", "serve", path, "--log-format", "trace", "--trace"]
    ) as process:
        process.initialize()
        process.ask(call(1, "fail"))
        assert process.finish() == 0
        assert process.stderr.splitlines()[0] == b"[TRACE] Starting probe MCP server v1.2.3"
        assert b"[TRACE] <- " in process.stderr
        assert b"Error: tool fail failed\n" in process.stderr


def test_an_unknown_log_level_is_said_and_does_not_matter() -> None:
    with Process(env={"LOG_LEVEL": "loud"}) as process:
        process.initialize()
        assert process.finish() == 0
        assert b"LOG_LEVEL" in process.stderr


# Malformed input


def of_malformed(process: Process) -> list[tuple[str, str]]:
    return [(level, text) for level, _, text in lines(process) if "malformed" in text]


def test_5000_malformed_lines_are_one_that_is_shown_and_a_count_at_the_end() -> None:
    with Process() as process:
        process.write(b'{"password": "hunter2", nonsense\n' + b"nonsense\n" * 4999)
        assert process.finish() == 0
        first, *counts = of_malformed(process)
        assert first[0] == "WARN"
        assert first[1].startswith("malformed input: Parse error: ")
        assert first[1].endswith(': {"password": "[REDACTED]", nonsense')
        assert 1 <= len(counts) <= 2
        level, text = counts[-1]
        # Ten at once, and ten more a second, are answered.
        assert (level, text[:30]) == ("WARN", "5000 malformed messages in all")
        assert "malformed messages were not answered: too many at once" in text
        assert b"hunter2" not in process.stderr


def test_a_single_malformed_line_is_shown_and_not_counted() -> None:
    with Process() as process:
        process.write(b"x" * 3000 + b"\x1b[31m\n")
        assert process.finish() == 0
        [(level, text)] = of_malformed(process)
        assert level == "WARN"
        assert text.endswith(": " + "x" * 200 + "...")


@pytest.mark.parametrize(
    "line",
    [
        b'{"jsonrpc":"2.0","id":99,"result":{},"error":{}}',
        b'{"jsonrpc":"2.0","method":"notifications/initialized","params":[]}',
        b'{"id":1,"method":"ping"}',
        b'{"jsonrpc":"2.0","id":1,"method":"ping","params":7}',
        b"\xff\xfe",
        b"[]",
    ],
)
def test_malformed_messages_are_shown_whether_they_are_answered_or_not(line: bytes) -> None:
    with Process() as process:
        process.initialize()
        process.write(line + b"\n")
        assert process.finish() == 0
        assert len(of_malformed(process)) == 1


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b" \t ",
        b'{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"x"}}',
        b'{"jsonrpc":"2.0","id":1,"result":{}}',
        b'{"jsonrpc":"2.0","method":"no/such"}',
        b'{"jsonrpc":"2.0","id":1,"method":"no/such"}',
    ],
)
def test_messages_that_only_nobody_wants_are_not_malformed(line: bytes) -> None:
    with Process() as process:
        process.initialize()
        process.write(line + b"\n")
        assert process.finish() == 0
        assert of_malformed(process) == []


OVERSIZE = {"CONCERTINO_MAX_MESSAGE_BYTES": "2000"}


def of_oversize(process: Process) -> list[tuple[str, str]]:
    return [(level, text) for level, _, text in lines(process) if "2000 bytes" in text]


def test_300_oversized_lines_are_one_warning_and_a_count_at_the_end() -> None:
    with Process(env=OVERSIZE) as process:
        process.write((b"x" * 3000 + b"\n") * 300)
        assert process.finish() == 0
        first, *counts = of_oversize(process)
        assert first == ("WARN", "a message of more than 2000 bytes was refused")
        assert 1 <= len(counts) <= 2
        assert counts[-1] == ("WARN", "300 messages of more than 2000 bytes in all")


def test_an_oversized_line_is_logged_also_after_malformed_ones() -> None:
    with Process(env=OVERSIZE) as process:
        process.write(b"nonsense\n" * 3 + b"x" * 3000 + b"\n")
        assert process.finish() == 0
        assert of_oversize(process) == [("WARN", "a message of more than 2000 bytes was refused")]
        assert of_malformed(process)[-1] == ("WARN", "3 malformed messages in all")


def test_the_trace_profile_calls_malformed_input_an_error() -> None:
    """Source: the stdio reference, "Message Format": `Error:` for errors."""
    with Process(
        env={"CONCERTINO_LOG_FORMAT": "trace", "CONCERTINO_MAX_MESSAGE_BYTES": "2000"}
    ) as process:
        process.write(b"nonsense\n" * 20 + b"x" * 3000 + b"\n")
        assert process.finish() == 0
        errors = [line for line in process.stderr.splitlines() if line.startswith(b"Error: ")]
        assert b"Error: a message of more than 2000 bytes was refused" in errors
        assert errors[0].startswith(b"Error: malformed input: Parse error: ")
        assert errors[0].endswith(b": nonsense")
        assert errors[-1].startswith(b"Error: 20 malformed messages in all")


def test_the_json_log_has_no_trace_of_the_trace_profile() -> None:
    with Process(env={"CONCERTINO_LOG_FORMAT": "json"}) as process:
        process.write(b"nonsense\n")
        assert process.finish() == 0
        [entry] = [
            entry
            for line in process.stderr.splitlines()
            if "malformed" in (entry := json.loads(line))["text"]
        ]
        assert entry.keys() == {"time", "level", "component", "text"}


# Exit codes


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("raise ValueError('no such table')", "ValueError: no such table"),
        ("import no_such_module_here", "No module named 'no_such_module_here'"),
        ("raise SystemExit(5)", "SystemExit: 5"),
        ("def broken(:", "SyntaxError"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
    ],
)
def test_an_import_that_fails_is_one_line_and_exit_code_1(
    source: str, reason: str, tmp_path: Path
) -> None:
    with Process(["-m", "concertino", "serve", script(tmp_path, source)]) as process:
        assert process.finish() == 1
        errors = [text for level, _, text in lines(process) if level == "ERROR"]
        assert len(errors) == 1
        assert errors[0].startswith("Failed to start server: importing ")
        assert reason in errors[0]
        assert b"Traceback" not in process.stderr
        assert process.messages == []


def test_traceback_shows_where_an_import_failed(tmp_path: Path) -> None:
    with Process(
        ["-m", "concertino", "serve", "--traceback", script(tmp_path, "1 / 0")]
    ) as process:
        assert process.finish() == 1
        assert b"Traceback" in process.stderr
        assert b"server.py" in process.stderr


START_FAILS = """
class Failing(Server):
    async def start(self, outlet):
        raise RuntimeError("the database is locked")
server = Failing("failing")
@server.tool
async def echo(text: str) -> str:
    return text
"""


@pytest.mark.parametrize("way", ["script", "serve"])
def test_a_start_that_fails_is_one_line_and_exit_code_1(way: str, tmp_path: Path) -> None:
    path = script(tmp_path, START_FAILS + RUN)
    with Process([path] if way == "script" else ["-m", "concertino", "serve", path]) as process:
        process.send(INITIALIZE, INITIALIZED)
        assert process.wait() == 1
        process.pump(lambda: process.eof)
        errors = [text for level, _, text in lines(process) if level == "ERROR"]
        assert errors == ["Failed to start server: RuntimeError: the database is locked"]
        assert b"Traceback" not in process.stderr


@pytest.mark.parametrize(
    ("why", "shown"),
    [
        ("SystemExit(5)", "SystemExit: 5"),
        ("KeyboardInterrupt", "KeyboardInterrupt"),
        ("asyncio.CancelledError", "CancelledError"),
    ],
)
@pytest.mark.parametrize("wait", ["", "await asyncio.sleep(0.1); "], ids=["at once", "later"])
def test_a_start_that_wants_to_exit_is_one_line_and_exit_code_1(
    why: str, shown: str, wait: str, tmp_path: Path
) -> None:
    source = (
        f"class Failing(Server):\n    async def start(self, outlet):\n        {wait}raise {why}\n"
    )
    with Process([script(tmp_path, source + "server = Failing('failing')\n" + RUN)]) as process:
        assert process.wait() == 1
        process.pump(lambda: process.eof)
        errors = [text for level, _, text in lines(process) if level == "ERROR"]
        assert errors == [f"Failed to start server: {shown}"]
        assert b"Traceback" not in process.stderr


@pytest.mark.parametrize("kind", ["RuntimeError", "SystemExit"])
def test_an_offer_that_fails_is_one_line_and_exit_code_1(kind: str, tmp_path: Path) -> None:
    source = (
        f"class Failing(Server):\n    def features(self):\n        raise {kind}('no')\n"
        f"server = Failing('failing')\n"
    )
    with Process([script(tmp_path, source + RUN)]) as process:
        assert process.wait() == 1
        process.pump(lambda: process.eof)
        assert [text for _, _, text in lines(process)] == [f"Failed to start server: {kind}: no"]


def test_a_background_task_that_fails_is_a_line_of_the_log(tmp_path: Path) -> None:
    source = """
@server.tool
async def go() -> str:
    async def fail():
        raise ValueError("in the background")
    asyncio.create_task(fail())
    await asyncio.sleep(0.05)
    import gc
    gc.collect()
    return "still here"
"""
    with Process([script(tmp_path, source + RUN)]) as process:
        process.initialize()
        assert text_of(process.ask(call(1, "go"))) == "still here"
        assert process.finish() == 0
        errors = [text for level, _, text in lines(process) if level == "ERROR"]
        assert errors == ["Task exception was never retrieved"]
        assert b"    ValueError: in the background" in process.stderr


def test_calls_that_wait_for_a_start_that_fails_are_answered(tmp_path: Path) -> None:
    source = START_FAILS.replace("        raise", "        await asyncio.sleep(0.3)\n        raise")
    with Process([script(tmp_path, source + RUN)]) as process:
        process.initialize()
        process.send(call(1, "echo", {"text": "x"}))
        assert process.answer(1)["error"]["code"] == -32603
        assert process.wait() == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], b"usage: concertino"),
        (["serve"], b"concertino serve: expected a target"),
        (["serve", "no_such_file.py"], b"no such file"),
        (["serve", "nonsense"], b"expected file.py"),
        (["serve", "no_such_module:server"], b"no such module"),
        (["serve", "os:path"], b"expected a Server"),
        (["serve", "os:no_such"], b"no attribute"),
        (["serve", "x.py", "--log-format", "loud"], b"invalid choice"),
        (["fly"], b"there is no command 'fly'"),
    ],
)
def test_wrong_usage_is_exit_code_2_and_a_reason(arguments: list[str], said: bytes) -> None:
    with Process(["-m", "concertino", *arguments]) as process:
        assert process.finish() == 2
        assert said in process.stderr
        assert b"Traceback" not in process.stderr
        assert process.messages == []


def test_a_setting_that_is_none_is_exit_code_2(tmp_path: Path) -> None:
    path = script(tmp_path, "")
    with Process(
        ["-m", "concertino", "serve", path], env={"CONCERTINO_MAX_BATCH": "many"}
    ) as process:
        assert process.finish() == 2
        assert b"CONCERTINO_MAX_BATCH: expected a positive integer, got 'many'" in process.stderr
        assert b"Traceback" not in process.stderr


@pytest.mark.parametrize("content", ["", "server2 = Server('second')"], ids=["one", "two"])
def test_two_servers_in_a_file_must_be_told_apart(content: str, tmp_path: Path) -> None:
    path = script(tmp_path, content)
    with Process(["-m", "concertino", "serve", path]) as process:
        assert process.finish() == (2 if content else 0)
        if content:
            assert b"several servers (server, server2)" in process.stderr


def test_a_file_without_a_server_is_exit_code_2(tmp_path: Path) -> None:
    path = script(tmp_path, "del server")
    with Process(["-m", "concertino", "serve", path]) as process:
        assert process.finish() == 2
        assert b"no concertino.Server found" in process.stderr


# Nobody reads stderr


def test_a_megabyte_on_a_stderr_that_nobody_reads_holds_nothing_up() -> None:
    reading, writing = os.pipe()
    try:
        with Process(stderr=writing) as process:
            os.close(writing)
            process.initialize()
            assert text_of(process.ask(call(1, "say", {"how": "stderr flood"}))) == "said"
            for id in range(2, 302):
                assert failure_of(process.ask(call(id, "fail_async", {"kind": "ValueError"})))
            process.write(b"{bad}\n" * 5000)
            assert text_of(process.ask(call(999, "echo", {"text": "x"}))) == "x"
            assert process.finish(10) == 0
    finally:
        os.close(reading)


def test_a_closed_reader_of_stderr_holds_nothing_up() -> None:
    reading, writing = os.pipe()
    with Process(stderr=writing) as process:
        os.close(writing)
        process.initialize()
        os.close(reading)
        for id, how in enumerate(("stderr flood", "print", "os.write", "os.system"), 1):
            process.ask(call(id, "say", {"how": how}))
        assert failure_of(process.ask(call(10, "fail_async", {"kind": "ValueError"})))
        assert text_of(process.ask(call(11, "echo", {"text": "x"}))) == "x"
        assert process.finish(10) == 0


def test_a_full_device_as_stderr_holds_nothing_up() -> None:
    with open("/dev/full", "wb") as full, Process(stderr=full.fileno()) as process:
        process.initialize()
        process.ask(call(1, "say", {"how": "stderr flood"}))
        assert failure_of(process.ask(call(2, "fail_async", {"kind": "ValueError"})))
        assert process.finish(10) == 0


def test_300_tracebacks_are_limited_and_counted() -> None:
    with Process() as process:
        process.initialize()
        process.send(*(call(n, "fail_async", {"kind": "ValueError"}) for n in range(1, 2001)))
        process.answer(2000)
        assert process.finish() == 0
        assert process.stderr.count(b"tool fail_async failed") < 2000
        assert (
            re.search(rb"\d+ log lines suppressed", process.stderr) or b"dropped" in process.stderr
        )


# Secrets


@pytest.mark.requirement("FR-17")
@pytest.mark.parametrize("level", ["info", "debug"])
@pytest.mark.parametrize("form", ["line", "json", "trace"])
def test_a_secret_of_the_environment_or_an_argument_appears_nowhere(level: str, form: str) -> None:
    env = {
        "API_TOKEN": CANARY,
        "LOG_LEVEL": level,
        "CONCERTINO_TRACE": "1",
        "CONCERTINO_LOG_FORMAT": form,
    }
    with Process(env=env) as process:
        process.initialize()
        text = failure_of(process.ask(call(1, "leak", {"secret": "plain"})))
        assert CANARY not in text
        process.ask(call(2, "echo", {"text": f"look: {CANARY}"}))
        process.ask(call(3, "say", {"how": "print", "text": CANARY}))
        process.ask(call(4, "say", {"how": "logging", "text": CANARY}))
        process.ask(call(5, "no such tool " + CANARY))
        process.ask(call(6, "add", {"a": CANARY, "password": "hunter2-" + "x" * 20}))
        process.write(b'{"bad ' + CANARY.encode() + b"\n")
        process.ask(request(7, "ping"))
        assert process.finish() == 0
        assert CANARY.encode() not in process.stderr
        assert b"hunter2-" not in process.stderr
        assert b"[REDACTED]" in process.stderr


def test_a_field_is_not_shown_in_the_text_twin_of_a_result(tmp_path: Path) -> None:
    source = (
        "@server.tool\nasync def login(password: str) -> dict[str, str]:\n"
        "    return {'password': password}\n"
    )
    env = {"CONCERTINO_TRACE": "1", "LOG_LEVEL": "debug"}
    with Process([script(tmp_path, source + RUN)], env=env) as process:
        process.initialize()
        answer = process.ask(call(1, "login", {"password": "hunter2hunter2"}))
        assert json.loads(text_of(answer)) == {"password": "hunter2hunter2"}
        assert process.finish() == 0
        assert b"hunter2" not in process.stderr


@pytest.mark.parametrize("form", ["line", "json"])
def test_a_message_cannot_command_the_terminal_that_shows_a_trace(form: str) -> None:
    env = {"CONCERTINO_TRACE": "1", "LOG_LEVEL": "debug", "CONCERTINO_LOG_FORMAT": form}
    with Process(env=env) as process:
        process.initialize()
        process.write("garbage\r[MCP] -> {}\x1b]0;title\x07\x9b31m\u202e\u2028\n".encode())
        process.ask(request(1, "ping", {"x": "\x9b31m\u202e\u2028"}))
        assert process.finish() == 0
        shown = process.stderr.decode()
        assert not set("\r\x1b\x07\x9b\u202e\u2028") & set(shown)
        garbage = "<- garbage\\r[MCP] -> {}\\x1b]0;title\\x07\\x9b31m\\u202e\\u2028"
        if form == "line":
            assert f"[MCP] {garbage}\n" in shown
        else:
            assert garbage in [json.loads(line)["text"] for line in shown.splitlines()]


@pytest.mark.parametrize("way", ["script", "serve"])
def test_a_secret_that_the_target_loads_while_it_is_imported_is_not_shown(
    way: str, tmp_path: Path
) -> None:
    source = f"""
logging.getLogger("concertino.early").warning("the redactor is in use")
os.environ["LATE_TOKEN"] = "{CANARY}"
@server.tool
async def tell() -> str:
    return os.environ["LATE_TOKEN"]
"""
    path = script(tmp_path, "import logging\n" + source + RUN)
    argv = [path] if way == "script" else ["-m", "concertino", "serve", path]
    with Process(argv, env={"CONCERTINO_TRACE": "1"}) as process:
        process.initialize()
        assert text_of(process.ask(call(1, "tell"))) == CANARY
        assert process.finish() == 0
        assert CANARY.encode() not in process.stderr


def test_a_secret_in_the_reason_of_a_failed_start_is_not_shown(tmp_path: Path) -> None:
    source = "raise ValueError('cannot open postgres://u:' + os.environ['DB_PASSWORD'] + '@host')"
    for flags in ([], ["--traceback"]):
        argv = ["-m", "concertino", "serve", *flags, script(tmp_path, source)]
        with Process(argv, env={"DB_PASSWORD": CANARY}) as process:
            assert process.finish() == 1
            assert CANARY.encode() not in process.stderr
            assert b"Failed to start server" in process.stderr
