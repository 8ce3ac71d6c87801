"""cli/call.py: `concertino tools|call|resources|read|prompts|prompt`, as a user of a shell meets
them. In real processes.

tests/cli/test_mistakes.py has what they say about mistakes.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from warm_commands import run_command_in_bytes

import concertino
from concertino.cli.call_output import format_tool, print_tool_result
from concertino.types.results import CallToolResult, TextContent, Tool, ToolAnnotations

ROOT = Path(__file__).parents[2]
TOUR = [sys.executable, str(ROOT / "examples" / "tour.py")]
# Speaks an older revision; what it says would move the cursor, colour the line, and turn its
# direction.
SERVER = """
import base64, json, sys, time
def say(**members):
    print(json.dumps({"jsonrpc": "2.0", **members}), flush=True)
def answer(message, result):
    say(id=message["id"], result=result)
for line in sys.stdin:
    message = json.loads(line)
    method, params = message.get("method"), message.get("params", {})
    if method == "initialize":
        offered = {"tools": {}, "resources": {}, "prompts": {}}
        info = {"name": "s", "version": "1"}
        answer(message, {
            "protocolVersion": "2025-06-18", "capabilities": offered, "serverInfo": info})
    elif method == "tools/list":
        schema = {"type": "object"}
        tool = {"name": "evil\\x1b[2J", "title": "A \\u202e title", "inputSchema": schema}
        answer(message, {"tools": [tool]})
    elif method == "tools/call" and params["name"] == "hang":
        sys.stderr.write("hanging\\n"); sys.stderr.flush()
    elif method == "tools/call" and params["name"] == "die":
        sys.stderr.write("my last words\\n"); sys.exit(7)
    elif method == "tools/call" and params["name"] == "garbled":
        answer(message, {"content": "no list"})
    elif method == "tools/call" and params["name"] == "say":
        answer(message, {"content": [{"type": "text", "text": params["arguments"]["text"]}]})
    elif method == "tools/call":
        token = params["_meta"]["progressToken"]
        say(method="notifications/progress", params={
            "progressToken": token, "progress": 1, "total": 2, "message": "half"})
        text = json.dumps(params["arguments"], sort_keys=True) + "\\x1b[31m"
        image = {"type": "image", "data": "AAAA", "mimeType": "image/png"}
        answer(message, {"content": [{"type": "text", "text": text}, image]})
    elif method == "resources/list":
        answer(message, {"resources": [
            {"uri": "x:1", "name": "one", "mimeType": "text/plain", "description": "first"}]})
    elif method == "resources/templates/list":
        answer(message, {"resourceTemplates": [{"uriTemplate": "x:{n}", "name": "any"}]})
    elif method == "resources/read":
        blob = base64.b64encode(bytes(range(256))).decode()
        kind = {"blob": blob} if params["uri"] == "x:blob" else {"text": "the text"}
        answer(message, {"contents": [{"uri": params["uri"], **kind}]})
    elif method == "prompts/list":
        wanted = [{"name": "a", "required": True, "description": "what"}, {"name": "b"}]
        answer(message, {"prompts": [{"name": "p", "arguments": wanted}]})
    elif method == "prompts/get":
        text = json.dumps(params["arguments"], sort_keys=True)
        answer(message, {"messages": [{"role": "user", "content": {"type": "text", "text": text}}]})
    elif "id" in message:
        say(id=message["id"], error={"code": -32601, "message": "no"})
"""
ENVIRONMENT = dict(os.environ) | {"PYTHONPATH": str(Path(concertino.__file__).parents[1])}


@pytest.fixture
def server(tmp_path: Path) -> list[str]:
    (tmp_path / "server.py").write_text(SERVER)
    return [sys.executable, str(tmp_path / "server.py")]


def run(
    *words: str, server: list[str], stdin: str = "", cwd: Path | None = None
) -> subprocess.CompletedProcess[bytes]:
    return run_command_in_bytes(
        *words, "--", *server, cwd=cwd, env=ENVIRONMENT, stdin=stdin.encode()
    )


def test_the_tools_of_a_server_are_listed_for_people_and_for_programs() -> None:
    shown = run("tools", server=TOUR)
    assert shown.returncode == 0
    assert b"add a b\n  Add two integers.\n    a: integer\n    b: integer\n" in shown.stdout
    assert b"bake cake [minutes]\n" in shown.stdout
    assert shown.stderr == b""
    tools = json.loads(run("tools", "--json", server=TOUR).stdout)
    assert [tool["name"] for tool in tools][:2] == ["add", "statistics"]
    assert tools[0]["inputSchema"]["required"] == ["a", "b"]


@pytest.mark.parametrize("era", ["modern", "legacy", "auto"])
def test_a_tool_is_called_in_every_era(era: str) -> None:
    done = run("call", "--era", era, "add", "a:=40", "b:=2", server=TOUR)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"42\n", b"")


def test_a_tool_that_fails_and_one_that_is_not_there_exit_with_1() -> None:
    failed = run("call", "divide", "a:=1", "b:=0", server=TOUR)
    assert (failed.returncode, failed.stdout) == (1, b"b is 0: give another divisor\n")
    unknown = run("call", "multiply", server=TOUR)
    assert (unknown.returncode, unknown.stdout) == (1, b"")
    assert unknown.stderr.startswith(b"concertino call: there is no tool 'multiply' (-32602)\n")


def test_a_server_that_reports_an_unknown_tool_in_a_result_gets_a_suggestion_too(
    tmp_path: Path,
) -> None:
    """The official SDK and FastMCP do so, where the protocol asks for an error response."""
    pytest.importorskip("mcp.server.mcpserver")
    (tmp_path / "other.py").write_text(
        "from mcp.server.mcpserver import MCPServer\n"
        "server = MCPServer('other')\n"
        "@server.tool()\n"
        "def multiply(a: int) -> int:\n"
        "    return a\n"
        "server.run()\n"
    )
    done = run("call", "multiplie", "a=1", server=[sys.executable, str(tmp_path / "other.py")])
    assert (done.returncode, done.stdout) == (1, b"Unknown tool: multiplie\n")
    assert done.stderr == (
        b"concertino call: the server lists no tool 'multiplie'; did you mean multiply?\n"
    )


def test_a_malformed_result_is_quoted_as_the_server_sent_it(server: list[str]) -> None:
    done = run("call", "garbled", server=server)
    assert (done.returncode, done.stdout) == (5, b"")
    assert done.stderr == (
        b"concertino call: tools/call garbled: the answer does not follow the protocol: Expected "
        b'`array`, got `str` - at `$.content`: {"content": "no list"}\n'
        b"  --trace shows every message\n"
    )


def test_arguments_come_as_texts_json_files_and_from_stdin(
    server: list[str], tmp_path: Path
) -> None:
    (tmp_path / "poem.txt").write_text("roses")
    (tmp_path / "list.json").write_text("[1, 2]")
    done = run(
        "call",
        "echo",
        "-",
        "t=a=b",
        "n:=1",
        "p=@poem.txt",
        "l:=@list.json",
        server=server,
        stdin='{"s": true}',
        cwd=tmp_path,
    )
    said, picture, _ = done.stdout.split(b"\n")
    assert json.loads(said.removesuffix(b"\x1b[31m")) == {
        "s": True,
        "t": "a=b",
        "n": 1,
        "p": "roses",
        "l": [1, 2],
    }
    assert picture == b"[image image/png, 3 bytes]"


def test_resources_and_prompts_are_listed_and_read(server: list[str]) -> None:
    assert (
        run("resources", server=server).stdout == b"x:1  text/plain\n  one\n  first\nx:{n}\n  any\n"
    )
    assert run("read", "x:1", server=server).stdout == b"the text\n"
    assert run("read", "x:blob", server=server).stdout == bytes(range(256))
    assert run("prompts", server=server).stdout == b"p a [b]\n    a: what\n"
    assert (
        run("prompt", "p", "a=1", "b:=2", server=server).stdout == b'[user]\n{"a": "1", "b": "2"}\n'
    )
    read = json.loads(run("read", "--json", "x:1", server=server).stdout)
    assert read == {"contents": [{"uri": "x:1", "text": "the text"}]}


def test_names_never_command_a_terminal(server: list[str]) -> None:
    assert run("tools", server=server).stdout == b"evil\\x1b[2J\n  A \\u202e title\n"


def test_on_a_terminal_texts_are_made_visible_and_a_bar_is_drawn(server: list[str]) -> None:
    ours, theirs = os.openpty()
    command = [sys.executable, "-m", "concertino", "call", "echo", "--", *server]
    with subprocess.Popen(
        command, env=ENVIRONMENT, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs
    ) as process:
        os.close(theirs)
        shown = b""
        try:
            while piece := os.read(ours, 65536):
                shown += piece
        except OSError:  # Linux: nobody has the other end any more
            pass
        assert process.wait(30) == 0
    os.close(ours)
    assert b"[###############...............]  50% half" in shown
    assert b"{}\\x1b[31m\r\n" in shown
    assert b"\x1b[31m" not in shown


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["call", "die"], 3, "exited with code 7; its stderr ends with:\nmy last words"),
        (["call", "hang", "--timeout-s", "0.2"], 4, "no answer within 0."),
        (["call", "garbled"], 5, "does not follow the protocol"),
        (["call", "x", "nonsense"], 2, "expected KEY=VALUE"),
        (["call", "x", "--env", "NAME"], 2, "expected NAME=VALUE"),
        (["call", "x", "--timeout-s", "-1"], 2, "expected a positive number of seconds"),
        (
            ["call", "x", "--timeout-s", "long"],
            2,
            "expected a positive number of seconds, got long",
        ),
        (["call", "x", os.fsdecode(b"a=\xff")], 2, "expected UTF-8"),
        (["read", os.fsdecode(b"x:\xff")], 2, "expected UTF-8"),
        (["call"], 2, "expected the name of a tool"),
    ],
)
def test_every_end_has_its_code(words: list[str], code: int, said: str, server: list[str]) -> None:
    done = run(*words, server=server)
    assert done.returncode == code, done.stderr
    assert said in done.stderr.decode()
    assert done.stdout == b""
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize("era", ["auto", "legacy", "modern"])
def test_a_silent_server_exits_with_4_after_the_connect_timeout(era: str) -> None:
    silent = [sys.executable, "-S", "-c", "import sys; sys.stdin.read()"]
    done = run("tools", "--era", era, "--connect-timeout-s", "0.2", server=silent)
    assert done.returncode == 4, done.stderr
    assert b" did not answer within 0.2 s; " in done.stderr
    assert b"Traceback" not in done.stderr


def test_a_server_that_cannot_be_started_is_named() -> None:
    done = run("tools", server=["no-such-program"])
    assert done.returncode == 3
    assert done.stderr == (
        b"concertino tools: there is no command no-such-program\n"
        b"  install no-such-program, or write its whole path: -- /path/to/no-such-program\n"
    )
    done = run("tools", server=["unix:/no/such/socket"])
    assert (done.returncode, done.stderr) == (
        3,
        b"concertino tools: unix:/no/such/socket: No such file or directory\n"
        b"  to start a server there: concertino serve server.py --unix /no/such/socket\n",
    )


def test_an_address_that_is_none_and_a_stdin_that_is_closed_are_said(server: list[str]) -> None:
    done = run("tools", server=["tcp:127.0.0.1"])
    assert done.returncode == 2
    assert done.stderr.startswith(b"concertino tools: expected unix:PATH, tcp:HOST:PORT or a URL")
    command = shlex.join([sys.executable, "-m", "concertino", "call", "x", "-", "--", *server])
    done = subprocess.run(
        ["sh", "-c", f"{command} <&-"],
        env=ENVIRONMENT,
        capture_output=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stderr) == (2, b"concertino call: -: stdin is closed\n")


def test_arguments_that_are_longer_than_a_message_are_refused(
    server: list[str], tmp_path: Path
) -> None:
    (tmp_path / "long").write_text("a" * 11_000_000)
    done = run("call", "x", f"text=@{tmp_path}/long", server=server)
    assert done.returncode == 2
    assert b"a message may have 10485760" in done.stderr
    assert b"Traceback" not in done.stderr


def test_an_answer_that_cannot_be_written_down_is_said() -> None:
    with open("/dev/full", "wb") as full:
        command = [sys.executable, "-m", "concertino", "tools", "--", *TOUR]
        done = subprocess.run(
            command, env=ENVIRONMENT, stdout=full, stderr=subprocess.PIPE, timeout=30, check=False
        )
    assert (done.returncode, done.stderr) == (
        1,
        b"concertino tools: stdout: No space left on device\n",
    )


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "latin-1"])
def test_json_stays_json_whatever_a_server_says_and_whatever_stdout_takes(
    encoding: str, server: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ENVIRONMENT, "PYTHONIOENCODING", encoding)
    said = '\x1b \x7f \x9b \x85 \u202e \u2603 \xe9 \U0001f600 \U000e0001 \\ "'
    # This one is for the command, not for the server, which would get it, too.
    env = ("--env", "PYTHONIOENCODING=utf-8")
    shown = run("call", "--json", *env, "say", f"text={said}", server=server)
    assert shown.returncode == 0, shown.stderr
    assert json.loads(shown.stdout.decode(encoding)) == {
        "content": [{"type": "text", "text": said}]
    }
    for hidden in "\x1b\x7f\x9b\x85\u202e\U000e0001":
        assert hidden not in shown.stdout.decode(encoding)
    shown = run("call", *env, "say", f"text={said}", server=server)
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout == f"{said}\n".encode(encoding, "backslashreplace")


def test_a_feature_that_is_not_offered_is_said() -> None:
    done = run("prompts", server=TOUR)
    assert done.returncode == 1
    assert b"the server offers no prompts" in done.stderr


def test_without_a_server_it_says_how() -> None:
    command = [sys.executable, "-m", "concertino", "tools"]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, timeout=30, check=False)
    assert done.returncode == 2
    assert b"expected a command after --" in done.stderr


def test_what_a_server_writes_to_stderr_and_every_message_can_be_seen(server: list[str]) -> None:
    done = run("call", "hang", "--timeout-s", "0.3", "--stderr", "--trace", server=server)
    lines = done.stderr.decode().splitlines()
    assert "hanging" in lines
    assert any(line.startswith('-> {"jsonrpc":"2.0","id":') for line in lines)
    assert any(line.startswith("<- {") for line in lines)


def test_ctrl_c_ends_it_and_the_server(server: list[str], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "concertino", "call", "hang", "--stderr", "--", *server]
    with subprocess.Popen(
        command, env=ENVIRONMENT, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == b"hanging\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        assert b"Traceback" not in process.stderr.read()


# Does not end at the end of its stdin, and says so once it is asked for anything.
STUBBORN = """
import os, signal, sys, time
signal.signal(signal.SIGHUP, signal.SIG_IGN)
sys.stdin.readline()
print(f"pid {os.getpid()}", file=sys.stderr, flush=True)
time.sleep(600)
"""


def obey_signals() -> None:
    """Let a process end by signals that the tests may ignore, for instance under nohup."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_a_closed_terminal_and_sigterm_end_it_and_the_server(number: int, tmp_path: Path) -> None:
    path = tmp_path / "stubborn.py"
    path.write_text(STUBBORN)
    server = [sys.executable, str(path)]
    command = [sys.executable, "-m", "concertino", "call", "x", "--stderr", "--", *server]
    with subprocess.Popen(
        command,
        env=ENVIRONMENT,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        preexec_fn=obey_signals,
    ) as process:
        assert process.stderr is not None
        pid = int(process.stderr.readline().removeprefix(b"pid "))
        process.send_signal(number)
        try:
            assert process.wait(30) == 128 + number
            assert b"Traceback" not in process.stderr.read()
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)
        finally:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def test_under_nohup_a_closed_terminal_does_not_end_it(server: list[str]) -> None:
    command = ["nohup", sys.executable, "-m", "concertino", "call", "hang", "--stderr", "--"]
    with subprocess.Popen(
        [*command, *server],
        env=ENVIRONMENT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        preexec_fn=obey_signals,
    ) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == b"hanging\n"
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGINT)
        # The code of Ctrl-C: the first signal had no effect.
        assert process.wait(30) == 130


@pytest.mark.requirement("TO-19", side="client")
@pytest.mark.parametrize(
    ("title", "annotated", "shown"),
    [("A", "B", ["t", "  A"]), (None, "B", ["t", "  B"]), (None, None, ["t"])],
)
def test_a_tool_is_shown_by_its_title_that_of_its_annotations_or_its_name(
    title: str | None, annotated: str | None, shown: list[str]
) -> None:
    """TO-19. The name is what one calls, and stands there always."""
    tool = Tool("t", {"type": "object"}, title=title, annotations=ToolAnnotations(title=annotated))
    assert format_tool(tool) == shown


@pytest.mark.parametrize(
    ("schema", "lines"),
    [
        ({"properties": ["a"]}, ["t"]),
        ({"properties": 5}, ["t"]),
        ({"properties": {"a": {"type": "string"}}, "required": 5}, ["t [a]", "    a: string"]),
        ({"properties": {"a": {"type": 5, "description": 6}}}, ["t [a]", "    a: anything - 6"]),
        ({"properties": {"a": True}, "required": ["a", {}]}, ["t a"]),
    ],
)
def test_a_tool_with_a_malformed_schema_is_listed(schema: dict[str, Any], lines: list[str]) -> None:
    assert format_tool(Tool("t", schema)) == lines


@pytest.mark.parametrize(
    ("is_terminal", "text", "shown"),
    [
        (
            True,
            '{"error":"Invalid arguments: a: expected int","code":"INVALID_ARGUMENTS"}',
            "Invalid arguments: a: expected int",
        ),
        (False, '{"error":"x","code":"INVALID_ARGUMENTS"}', None),
        (True, '{"error":"x","code":"OTHER"}', None),
        (True, '{"error":1,"code":"INVALID_ARGUMENTS"}', None),
        (True, "no JSON", None),
    ],
)
def test_arguments_that_do_not_fit_are_described_in_words_on_a_terminal(
    is_terminal: bool,
    text: str,
    shown: str | None,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal)
    print_tool_result(CallToolResult([TextContent(text)], is_error=True))
    assert capsys.readouterr().out == f"{shown or text}\n"
