"""The mistakes of beginners, and exactly what is said about each: what is wrong, where, what to do.

Each row of a table is one command, run as a process in a folder with FILES. `python` is the one
that runs the tests.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from warm_commands import run_command

import concertino
from concertino.errors import RegistrationError

SRC = str(Path(concertino.__file__).parents[1])
CALCULATOR = """
from enum import IntEnum
from concertino import RpcError, Server
server = Server("calculator", version="1.0.0")
class Rounding(IntEnum):
    DOWN = 0
    UP = 1
@server.tool
def add(a: int, b: int) -> int:
    "Add two integers."
    return a + b
@server.tool
def divide(a: float, b: float, rounding: Rounding | None = None) -> float:
    return a / b
@server.prompt
def spend(coins: str) -> str:
    data = {"spent": 30, "limit": 30, "currencies": ["EUR", "CHF"]}
    raise RpcError(-32050, "no money left", data)
@server.resource("config://app")
def config() -> str:
    return "here"
@server.prompt
def greet(name: str, style: str = "short") -> str:
    return f"Hello, {name}"
if __name__ == "__main__":
    server.run()
"""
# The other files are never served.
FILES = {"calculator.py": CALCULATOR, "mcp.json": "{}", "plugins.yaml": "plugins: []\n"}
SERVER = ["--", "python", "calculator.py"]
LISTED = "`concertino {} -- python calculator.py` lists what there is"


# Commands that have --json.
WITH_JSON = ("tools", "call", "prompt", "read")


class Mistake(NamedTuple):
    """A command line, and what it must say. words: after `concertino`. err: without the newline."""

    name: str
    words: list[str]
    code: int
    err: str
    out: str = ""


class ProcessResult(NamedTuple):
    code: int
    out: str
    err: str


Run = Callable[..., ProcessResult]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Return a function that runs `concertino WORDS...` in a folder with FILES."""
    folder = tmp_path / "project"
    folder.mkdir()
    for name, source in FILES.items():
        (folder / name).write_text(source)
    programs = tmp_path / "programs"
    programs.mkdir()
    # A link would be an interpreter without the packages of this one.
    (programs / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    (programs / "python").chmod(0o755)
    environment = {
        "PATH": f"{programs}:/usr/bin:/bin",
        "PYTHONPATH": SRC,
        "PYTHONDONTWRITEBYTECODE": "1",
        "HOME": str(tmp_path),
    }

    def run_words(*words: str, stdin: str = "", env: dict[str, str] | None = None) -> ProcessResult:
        done = run_command(*words, env=environment | (env or {}), cwd=folder, stdin=stdin.encode())
        return ProcessResult(done.returncode, done.stdout, done.stderr)

    return run_words


# Commands and options

COMMAND_LINES = [
    Mistake(
        "a mistyped command",
        ["toolz", *SERVER],
        2,
        "concertino: there is no command 'toolz'\n  did you mean tools?",
    ),
    Mistake(
        "a proxy for a file that is not run with python",
        ["proxy", "--", "calculator.py"],
        1,
        "concertino proxy: there is no command calculator.py\n  write -- python calculator.py",
    ),
    Mistake(
        "a file of tokens that is not there",
        ["serve", "calculator.py", "--http", "127.0.0.1:0", "--auth-tokens", "my tokens"],
        2,
        "concertino serve: --auth-tokens my tokens: no such file; this makes it: "
        "concertino token new NAME --file 'my tokens'",
    ),
    Mistake(
        "a proxy for a path of a file that is not run with python",
        ["proxy", "--", "./calculator.py"],
        1,
        "concertino proxy: ./calculator.py: not executable\n  write -- python ./calculator.py",
    ),
    Mistake(
        "a proxy whose first request may wait forever",
        ["proxy", "--opening-s", "inf", "--", "python", "calculator.py"],
        2,
        "concertino proxy: opening_s: expected a positive number, got inf\n"
        "  `concertino proxy --help` shows all arguments and options",
    ),
    Mistake(
        "a proxy for a mistyped program",
        ["proxy", "--", "pyton", "calculator.py"],
        1,
        "concertino proxy: there is no command pyton\n  did you mean -- python calculator.py?",
    ),
    Mistake(
        "an interpreter without a file",
        ["tools", "--", "python"],
        2,
        "concertino tools: python alone is no server: it reads a program from stdin\n"
        "  write the file of the server after it: -- python calculator.py",
    ),
    Mistake(
        "a folder to be served while it is written",
        ["dev", "."],
        2,
        "concertino dev: .: expected file.py, file.py:attribute or package.module:attribute\n"
        "  for a folder of Markdown, `concertino serve` notices changes: concertino serve .",
    ),
    Mistake(
        "a module without an attribute, served while it is written",
        ["dev", "calculator"],
        2,
        "concertino dev: calculator: expected file.py, file.py:attribute or "
        "package.module:attribute; did you mean calculator.py?",
    ),
    Mistake(
        "a mistyped server file",
        ["approve", "mpc.json"],
        2,
        "concertino approve: mpc.json: No such file or directory; did you mean mcp.json?",
    ),
    Mistake(
        "a number that is none",
        ["serve", "calculator.py", "--timeout", "soon"],
        2,
        "concertino serve: argument --timeout: expected a number, got 'soon'\n"
        "  `concertino serve --help` shows all arguments and options",
    ),
    Mistake(
        "a time that is none",
        ["serve", "calculator.py", "--http", ":8000", "--poll", "soon"],
        2,
        "concertino serve: argument --poll: expected a number, got 'soon'\n"
        "  `concertino serve --help` shows all arguments and options",
    ),
    Mistake(
        "a whole number that is none",
        ["reap", "files"],
        2,
        "concertino reap: argument PID: expected a whole number, got 'files'\n"
        "  `concertino reap --help` shows all arguments and options",
    ),
    Mistake(
        "an address of a cluster without a scheme",
        ["serve", "plugins.yaml", "--cluster", "10.0.0.7"],
        2,
        "concertino serve: --cluster: expected tls://HOST or nats://HOST, with :PORT if it is not "
        "4222, several separated by commas, got '10.0.0.7'",
    ),
    Mistake(
        "a command of another tool",
        ["run", "calculator.py"],
        2,
        "concertino: there is no command 'run'\n  did you mean serve?",
    ),
    Mistake(
        "a file without a command",
        ["calculator.py"],
        2,
        "concertino: there is no command 'calculator.py'\n"
        "  to serve it: concertino serve calculator.py",
    ),
    Mistake(
        "a module without a command",
        ["calculator"],
        2,
        "concertino: there is no command 'calculator'\n"
        "  to serve it: concertino serve calculator.py",
    ),
    Mistake(
        "a mistyped option",
        ["tools", "--josn", *SERVER],
        2,
        "concertino tools: unrecognized arguments: --josn\n  did you mean --json?",
    ),
    Mistake(
        "an option for a port at serve",
        ["serve", "calculator.py", "--port", "8080"],
        2,
        "concertino serve: unrecognized arguments: --port\n"
        "  to serve over HTTP: --http 127.0.0.1:8080; to listen on a socket: --tcp 127.0.0.1:8080",
    ),
    Mistake(
        "an option for HTTP at serve",
        ["serve", "--url", "calculator.py"],
        2,
        "concertino serve: unrecognized arguments: --url\n"
        "  to serve over HTTP: --http 127.0.0.1:8000; to listen on a socket: --tcp 127.0.0.1:8000",
    ),
    Mistake(
        "an option for a port at call",
        ["call", "add", "a=1", "b=2", "--port=8080"],
        2,
        "concertino call: unrecognized arguments: --port=8080\n"
        "  to use a server that listens on a port, write -- http://127.0.0.1:8080/mcp, "
        "-- tcp:127.0.0.1:8080 or -- unix:PATH at the end",
    ),
    Mistake(
        "an option for HTTP at tools",
        ["tools", "--url", "http://localhost:8000/mcp"],
        2,
        "concertino tools: unrecognized arguments: --url\n"
        "  to use a server over HTTP, write its URL at the end: -- http://localhost:8000/mcp",
    ),
    Mistake(
        "no server",
        ["tools"],
        2,
        "concertino tools: expected a command after --\n"
        "  for example: concertino tools ... -- python server.py",
    ),
    Mistake(
        "a server for certs",
        ["certs", "show", "--", "python"],
        2,
        "concertino certs: this command takes no words after --, got 'python'\n"
        "  `concertino certs --help` shows all arguments and options",
    ),
    Mistake(
        "a server for lint",
        ["lint", ".", "--", "python"],
        2,
        "concertino lint: this command takes no words after --, got 'python'\n"
        "  `concertino lint --help` shows all arguments and options",
    ),
    Mistake(
        "a server for search",
        ["search", ".", "words", "--", "python"],
        2,
        "concertino search: this command takes no words after --, got 'python'\n"
        "  `concertino search --help` shows all arguments and options",
    ),
    Mistake(
        "a server for cluster",
        ["cluster", "permissions", "x", "--", "python"],
        2,
        "concertino cluster: this command takes no words after --, got 'python'\n"
        "  `concertino cluster --help` shows all arguments and options",
    ),
    Mistake(
        "a called server without --",
        ["call", "add", "a=1", "b=2", "calculator.py"],
        2,
        "concertino call: expected a command after --\n"
        "  write the command of the server after --: "
        "concertino call add a=1 b=2 -- python calculator.py",
    ),
    Mistake(
        "an address without --",
        ["call", "add", "a=1", "b=2", "tcp:127.0.0.1:8000"],
        2,
        "concertino call: expected a command after --\n"
        "  write the command of the server after --: "
        "concertino call add a=1 b=2 -- tcp:127.0.0.1:8000",
    ),
    Mistake(
        "a server without --",
        ["tools", "python", "calculator.py"],
        2,
        "concertino tools: unrecognized arguments: python calculator.py\n"
        "  write the command of the server after --: concertino tools -- python calculator.py",
    ),
    Mistake(
        "a file without -- and interpreter",
        ["tools", "calculator.py"],
        2,
        "concertino tools: unrecognized arguments: calculator.py\n"
        "  write the command of the server after --: concertino tools -- python calculator.py",
    ),
    Mistake(
        "a call without --",
        ["call", "add", "a=1", "b=2", "python", "calculator.py"],
        2,
        "concertino call: expected a command after --\n"
        "  write the command of the server after --: "
        "concertino call add a=1 b=2 -- python calculator.py",
    ),
    Mistake(
        "a call that begins with the file",
        ["call", "calculator.py", "add", "a=1", "b=2"],
        2,
        "concertino call: expected a command after --\n"
        "  write the command of the server after --: "
        "concertino call add a=1 b=2 -- python calculator.py",
    ),
    Mistake(
        "a call without a server",
        ["call", "add", "a=1"],
        2,
        "concertino call: expected a command after --\n"
        "  for example: concertino call ... -- python server.py",
    ),
    Mistake(
        "a word that FastMCP has",
        ["install", "calculator.py"],
        2,
        "concertino: there is no command 'install'\n"
        "  to give a server to a client: concertino config server.py",
    ),
    Mistake(
        "a word for an option",
        ["version"],
        2,
        "concertino: there is no command 'version'\n  did you mean --version?",
    ),
    Mistake(
        "help as a command",
        ["help", "call"],
        2,
        "concertino: there is no command 'help'\n"
        "  write: concertino --help, or concertino COMMAND --help",
    ),
    Mistake(
        "a file behind proxy",
        ["proxy", "calculator.py"],
        2,
        "concertino proxy: unrecognized arguments: calculator.py\n"
        "  write the command of the server after --: concertino proxy -- python calculator.py",
    ),
    Mistake(
        "a file behind check",
        ["check", "calculator.py"],
        2,
        "concertino check: calculator.py: No such file or directory\n"
        "  write -- python calculator.py",
    ),
    Mistake(
        "an option without its value",
        ["tools", "--timeout-s", *SERVER],
        2,
        "concertino tools: argument --timeout-s: expected one argument\n  write --timeout-s S",
    ),
    Mistake(
        "an option without one of its values",
        ["serve", "calculator.py", "--log-format"],
        2,
        "concertino serve: argument --log-format: expected one argument\n"
        "  write --log-format line|json|trace",
    ),
    Mistake(
        "a command without its argument",
        ["completion"],
        2,
        "concertino completion: the following arguments are required: shell\n"
        "  write: concertino completion bash|zsh|fish",
    ),
    Mistake(
        "a command without an option that it needs",
        ["token", "list"],
        2,
        "concertino token: the following arguments are required: --file\n"
        "  write: concertino token new|list|remove --file FILE",
    ),
    Mistake(
        "nothing to serve",
        ["serve"],
        2,
        "concertino serve: expected a target, --resources, --prompts, RESOURCES_PATH or "
        "PROMPTS_PATH\n  for example: concertino serve server.py",
    ),
]

# Commands of servers

SERVERS = [
    Mistake(
        "a Python file that is not run with python",
        ["tools", "--", "calculator.py"],
        3,
        "concertino tools: there is no command calculator.py\n  write -- python calculator.py",
    ),
    Mistake(
        "a path of a Python file that is not run with python",
        ["tools", "--", "./calculator.py"],
        3,
        "concertino tools: ./calculator.py: not executable\n  write -- python ./calculator.py",
    ),
    Mistake(
        "a module that is not run with python",
        ["tools", "--", "calculator"],
        3,
        "concertino tools: there is no command calculator\n  write -- python calculator.py",
    ),
    Mistake(
        "a tool of a module as a server",
        ["tools", "--", "calculator.add"],
        3,
        "concertino tools: there is no command calculator.add\n  write -- python calculator.py",
    ),
    Mistake(
        "the server in a file as a server",
        ["tools", "--", "calculator.py:server"],
        3,
        "concertino tools: there is no command calculator.py:server\n"
        "  write -- python calculator.py",
    ),
    Mistake(
        "a mistyped file",
        ["tools", "--", "calculater.py"],
        3,
        "concertino tools: there is no command calculater.py\n"
        "  there is no file calculater.py here; did you mean -- python calculator.py?",
    ),
    Mistake(
        "an empty word as the server",
        ["tools", "--", ""],
        3,
        "concertino tools: there is no command \n"
        "  the first word after -- is empty: is a variable of the shell not set?",
    ),
    Mistake(
        "a mistyped program",
        ["tools", "--", "pyton", "calculator.py"],
        3,
        "concertino tools: there is no command pyton\n  did you mean -- python calculator.py?",
    ),
    Mistake(
        "a command as one word",
        ["tools", "--", "python calculator.py"],
        3,
        "concertino tools: there is no command python calculator.py\n"
        "  write the command as separate words: -- python calculator.py",
    ),
    Mistake(
        "a URL where nobody listens",
        ["tools", "--", "http://127.0.0.1:1/mcp"],
        3,
        "concertino tools: http://127.0.0.1:1/mcp: Connection refused\n"
        "  to start a server there: concertino serve server.py --http 127.0.0.1:1",
    ),
    Mistake(
        "a file that does not exist",
        ["tools", "--", "python", "nothing.py"],
        3,
        "concertino tools: `python nothing.py` exited with code 2 before its first answer; its "
        "stderr ends with:\n"
        "{python}: can't open file '{folder}/nothing.py': [Errno 2] No such file or directory",
    ),
    Mistake(
        "a file that makes no server",
        ["tools", "--", "python", "-c", "1"],
        3,
        "concertino tools: `python -c 1` exited with code 0 before its first answer; "
        "it wrote nothing to stderr\n"
        "  a server runs until its stdin is closed: does it call run()?",
    ),
    Mistake(
        "nobody listens",
        ["tools", "--", "unix:none"],
        3,
        "concertino tools: unix:none: No such file or directory\n"
        "  to start a server there: concertino serve server.py --unix none",
    ),
]

# Arguments of call, prompt and read

ARGUMENTS = [
    Mistake(
        "no name",
        ["call", *SERVER],
        2,
        f"concertino call: expected the name of a tool\n  {LISTED.format('tools')}",
    ),
    Mistake(
        "a resource as a tool",
        ["call", "config://app", *SERVER],
        1,
        "concertino call: there is no tool 'config://app' (-32602)\n"
        "  to read a resource: concertino read config://app -- python calculator.py\n"
        f"  {LISTED.format('tools')}",
    ),
    Mistake(
        "a mistyped tool",
        ["call", "ad", "a=1", "b=2", *SERVER],
        1,
        "concertino call: there is no tool 'ad' (-32602)\n"
        f"  did you mean add?\n  {LISTED.format('tools')}",
    ),
    Mistake(
        "a tool with the name of its server",
        ["call", "calculator.add", "a=1", "b=2", *SERVER],
        1,
        "concertino call: there is no tool 'calculator.add' (-32602)\n"
        f"  did you mean add?\n  {LISTED.format('tools')}",
    ),
    Mistake(
        "a tool with the name that a client gives it",
        ["call", "mcp__calculator__add", "a=1", "b=2", *SERVER],
        1,
        "concertino call: there is no tool 'mcp__calculator__add' (-32602)\n"
        f"  did you mean add?\n  {LISTED.format('tools')}",
    ),
    Mistake(
        "an argument twice",
        ["call", "add", "a=1", "a=2", *SERVER],
        2,
        "concertino call: a is given twice: a=1 and a=2\n"
        "  for several values of one argument write a JSON array: a:='[1, 2]'",
    ),
    Mistake(
        "arguments behind the server",
        ["call", "add", *SERVER, "a=1", "b=2"],
        2,
        "concertino call: add: its arguments go before --, and the server after it\n"
        "  write: concertino call add a=1 b=2 -- python calculator.py",
    ),
    Mistake(
        "a mistyped prompt",
        ["prompt", "great", "name=Ann", *SERVER],
        1,
        "concertino prompt: there is no prompt 'great' (-32602)\n"
        f"  did you mean greet?\n  {LISTED.format('prompts')}",
    ),
    Mistake(
        "a mistyped resource",
        ["read", "config://ap", *SERVER],
        1,
        "concertino read: config://ap: Resource not found (-32602)\n"
        f"  did you mean config://app?\n  {LISTED.format('resources')}",
    ),
    Mistake(
        "a missing argument",
        ["call", "add", "a=1", *SERVER],
        2,
        "concertino call: add needs b (integer)\n"
        "  write: concertino call add a=1 b=INTEGER -- python calculator.py",
    ),
    Mistake(
        "a missing argument of a prompt",
        ["prompt", "greet", *SERVER],
        2,
        "concertino prompt: greet needs name (text)\n"
        "  write: concertino prompt greet name=TEXT -- python calculator.py",
    ),
    Mistake(
        "an unknown argument",
        ["call", "divide", "a=1", "b=2", "roundign=1", *SERVER],
        2,
        "concertino call: divide has no argument 'roundign'\n"
        "  did you mean rounding?\n"
        "  divide takes a (number), b (number), optional: rounding (one of 0, 1 or null)",
    ),
    Mistake(
        "an argument of the wrong type",
        ["call", "add", "a=1", "b=two", *SERVER],
        2,
        "concertino call: b=two: expected an integer\n  add takes a (integer), b (integer)",
    ),
    Mistake(
        "arguments with commas",
        ["call", "add", "a=1,b=2", *SERVER],
        2,
        "concertino call: add: arguments are separated by spaces, not by commas\n"
        "  write: concertino call add a=1 b=2 -- python calculator.py",
    ),
    Mistake(
        "arguments with commas and spaces",
        ["call", "add", "a=1,", "b=2", *SERVER],
        2,
        "concertino call: a=1,: expected an integer\n"
        "  arguments are separated by spaces, not by commas: a=1\n"
        "  add takes a (integer), b (integer)",
    ),
    Mistake(
        "a value outside of an enum",
        ["call", "divide", "a=1", "b=2", "rounding=7", *SERVER],
        2,
        "concertino call: rounding=7: expected one of 0, 1 or null\n"
        "  divide takes a (number), b (number), optional: rounding (one of 0, 1 or null)",
    ),
    Mistake(
        "an argument that is no JSON",
        ["call", "add", "a=1", "b:=two", *SERVER],
        2,
        "concertino call: b:=two: not JSON; for text write b=two",
    ),
    Mistake(
        "an argument with dashes",
        ["call", "add", "--a", "1", "b=2", *SERVER],
        2,
        "concertino call: unrecognized arguments: --a\n  arguments have no dashes: a=1",
    ),
    Mistake(
        "arguments as in Python",
        ["call", "add", "a:", "1", *SERVER],
        2,
        "concertino call: a:: expected KEY=VALUE, KEY:=JSON, {JSON}, @FILE or -\n  write a=VALUE",
    ),
    Mistake(
        "arguments without names",
        ["call", "add", "1", "2", *SERVER],
        2,
        "concertino call: 1: expected KEY=VALUE, KEY:=JSON, {JSON}, @FILE or -\n"
        "  write the name of the argument before it, as in NAME=1; `concertino tools` lists the "
        "names",
    ),
    Mistake(
        "a request that the server refuses, with data",
        ["prompt", "spend", "coins=30", *SERVER],
        1,
        "concertino prompt: spend: no money left (-32050)\n"
        "  spent: 30\n  limit: 30\n  currencies: EUR, CHF",
    ),
]


@pytest.mark.parametrize(
    "mistake",
    [*COMMAND_LINES, *SERVERS, *ARGUMENTS],
    ids=lambda mistake: mistake.name.replace(" ", "-"),
)
def test_what_is_said_about(mistake: Mistake, run: Run, tmp_path: Path) -> None:
    folder = os.path.realpath(tmp_path / "project")
    err = mistake.err.replace("{python}", sys.executable).replace("{folder}", folder)
    assert run(*mistake.words) == ProcessResult(mistake.code, mistake.out, f"{err}\n")


# The code of the error in JSON for each mistake of a command that has --json.
JSON_CODES = [
    *((mistake, "usage") for mistake in COMMAND_LINES if mistake.words[0] in WITH_JSON),
    *((mistake, "unreachable") for mistake in SERVERS),
    *((mistake, "usage") for mistake in ARGUMENTS if mistake.code == 2),
    *(
        (mistake, "refused" if "spend" in mistake.words else "not-found")
        for mistake in ARGUMENTS
        if mistake.code == 1
    ),
]


def one_of_each() -> Iterator[tuple[Mistake, str]]:
    """The first mistake of each command, code and number of hints.

    What is said is the same with --json as without, which the tests above show for each mistake.
    """
    seen: set[tuple[str, str, int]] = set()
    for mistake, code in JSON_CODES:
        key = (mistake.words[0], code, mistake.err.count("\n"))
        if key not in seen:
            seen.add(key)
            yield mistake, code


@pytest.mark.parametrize(
    ("mistake", "code"),
    list(one_of_each()),
    ids=lambda value: value.name.replace(" ", "-") if isinstance(value, Mistake) else value,
)
def test_what_is_said_with_json_about(mistake: Mistake, code: str, run: Run) -> None:
    command, *rest = mistake.words
    ended = run(command, "--json", *rest)
    assert (ended.code, ended.out) == (mistake.code, "")
    [line] = ended.err.splitlines()
    error = json.loads(line)["error"]
    assert error["code"] == code
    first, *hints = mistake.err.split("\n")
    if "{python}" not in mistake.err:
        assert error["message"] == first.partition(": ")[2]
        # A command line to copy keeps the option.
        hint = (error["hint"] or "").replace(f"{command} --json", command).splitlines()
        assert [text.strip() for text in hints][-len(hint) or len(hints) :] == hint
    assert list(error) == ["code", "message", "hint", *(["rpc"] if mistake.code == 1 else [])]


def test_the_data_of_a_refusal_is_in_the_json(run: Run) -> None:
    ended = run("prompt", "spend", "coins=30", "--json", *SERVER)
    assert json.loads(ended.err)["error"]["rpc"] == {
        "code": -32050,
        "message": "no money left",
        "data": {"spent": 30, "limit": 30, "currencies": ["EUR", "CHF"]},
    }


def test_a_tool_that_raises_says_where(run: Run) -> None:
    words = ["call", "divide", "a=1", "b=0"]
    place = "the server's log has a traceback from calculator.py:14; -v shows it"
    assert run(*words, *SERVER) == ProcessResult(
        1, "ZeroDivisionError: float division by zero\n", f"concertino call: {place}\n"
    )
    assert place not in run(*words, "-v", *SERVER).err
    assert run(*words, "--json", *SERVER).err == ""


def test_an_interpreter_without_concertino(run: Run) -> None:
    # -S leaves installed packages out, and -E the folder of the tests' environment.
    ended = run("tools", "--", sys.executable, "-S", "-E", "calculator.py")
    assert ended.code == 3
    assert ended.err.splitlines()[-2:] == [
        "ModuleNotFoundError: No module named 'concertino'",
        f"  {sys.executable} is a Python without concertino; "
        f"write -- {sys.executable} -S -E calculator.py",
    ]


def test_options_may_stand_anywhere(run: Run) -> None:
    expected = run("call", "add", "a=1", "b=2", "--json", *SERVER)
    assert expected.code == 0
    assert run("--json", "call", "add", "a=1", "b=2", *SERVER) == expected
    assert run("call", "--json", "add", "a=1", "b=2", *SERVER) == expected
    assert run("call", "add", "--json", "a=1", "--timeout-s", "9", "b=2", *SERVER) == expected
    assert run("call", "add", "a=1", "--json", "b=2", *SERVER) == expected


def test_json_is_sent_as_it_is(run: Run) -> None:
    """The answer is that of the server: it can be tried with arguments that do not fit."""
    for words in (['{"a": 1}'], ["a:=1"], ["a:=1", "c:=5"]):
        ended = run("call", "add", *words, *SERVER)
        assert (ended.code, ended.err) == (1, "")
        assert "INVALID_ARGUMENTS" in ended.out


# Programs that are no servers


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["cat"], "`cat` repeats what it is sent: it is no MCP server"),
        (["echo", "hi"], "`echo hi` prints text that is no JSON-RPC: 'hi'"),
        (["ls"], "`ls` prints text that is no JSON-RPC: 'calculator.py'"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_program_that_is_no_server(command: list[str], said: str, run: Run) -> None:
    hint = "write the command of an MCP server after --, such as -- python server.py"
    assert run("tools", "--", *command) == ProcessResult(
        5, "", f"concertino tools: {said}\n  {hint}\n"
    )
    error = {"code": "protocol", "message": said, "hint": hint}
    assert json.loads(run("tools", "--json", "--", *command).err) == {"error": error}


def test_a_start_that_hangs(run: Run) -> None:
    # Long enough to start a process on a busy machine. Without one, the error names no process.
    ended = run("tools", "--connect-timeout-s", "1", "--", "sleep", "60")
    said = (
        r"concertino tools: `sleep 60` did not answer within 1 s; the server \(process \d+\) is "
        r"running; it wrote nothing to stderr\n"
        r"  --connect-timeout-s S waits longer; -v shows what the server writes to stderr\n"
    )
    assert (ended.code, ended.out) == (4, "")
    assert re.fullmatch(said, ended.err)


HANGING = """
import time
def load() -> None:
    time.sleep(600)
{}
from concertino import Server
Server("hanging").run()
"""
STANDS = (
    "  a server answers once its run() is called; put what takes long into a tool or a function of "
    "@server.lifespan\n"
    "  --connect-timeout-s S waits longer; -v shows what the server writes to stderr\n"
)


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
@pytest.mark.parametrize(
    ("load", "where"), [("load()", "hanging.py:4, in load()"), ("time.sleep(600)", "hanging.py:5")]
)
@pytest.mark.parametrize("wrapper", [[], ["sh", "-c", '"$@"; exit 3', "sh"]], ids=["", "wrapped"])
def test_a_python_server_that_hangs_at_its_start_says_where(
    load: str, where: str, wrapper: list[str], run: Run, tmp_path: Path
) -> None:
    (tmp_path / "project" / "hanging.py").write_text(HANGING.format(load))
    command = [*wrapper, "python", "hanging.py"]
    ended = run("tools", "--connect-timeout-s", "3", "--", *command)
    first, _, hints = ended.err.partition("\n")
    said = f"concertino tools: `{shlex.join(command)}` did not answer within 3 s; it stands at "
    assert (ended.code, ended.out, first, hints) == (4, "", said + where, STANDS)


def test_a_start_that_hangs_in_no_file_is_reported_without_a_place(run: Run) -> None:
    ended = run("tools", "--connect-timeout-s", "0.2", "--", "sh", "-c", "exec sleep 60")
    assert "it stands at" not in ended.err


# On a terminal


class Screen:
    """A terminal of 80 columns, and a process on it."""

    def __init__(self, command: list[str], environment: dict[str, str], folder: Path) -> None:
        self._ours, theirs = os.openpty()
        termios.tcsetwinsize(theirs, (24, 80))
        self.shown = ""
        self.process = subprocess.Popen(
            command, env=environment, cwd=folder, stdin=theirs, stdout=theirs, stderr=theirs
        )
        os.close(theirs)

    def until(self, pattern: str) -> None:
        """Read until what was shown matches a pattern."""
        while re.search(pattern, self.shown, re.DOTALL) is None:
            self.shown += os.read(self._ours, 65536).decode()

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def end(self) -> int:
        """Wait for the end of the process and return its exit code."""
        try:
            while piece := os.read(self._ours, 65536):
                self.shown += piece.decode()
        except OSError:
            # Linux: nobody has the other end any more.
            pass
        os.close(self._ours)
        return self.process.wait(60)


@pytest.fixture
def screen(tmp_path: Path) -> Iterator[Callable[..., Screen]]:
    """Return a function that runs `concertino WORDS...` on a terminal, in a folder with FILES."""
    (tmp_path / "calculator.py").write_text(CALCULATOR)
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": SRC, "TERM": "xterm"}
    screens: list[Screen] = []

    def start(*words: str) -> Screen:
        command = [sys.executable, "-m", "concertino", *words]
        screens.append(Screen(command, environment, tmp_path))
        return screens[-1]

    yield start
    for screen in screens:
        screen.process.kill()
        screen.process.wait(60)


WAITING = r"waiting for the server's first answer \((\d) s of 60\) \.\.\. Ctrl-C to stop"


def test_a_silent_server_is_waited_for_in_one_line(screen: Callable[..., Screen]) -> None:
    shown = screen("tools", "-v", "--", "sh", "-c", "echo loading >&2; exec sleep 60")
    shown.until(f"{WAITING}.*{WAITING}")
    first, second, *_ = map(int, re.findall(WAITING, shown.shown))
    assert 2 <= first < second
    # Each line is drawn over the one before, and below what the server writes.
    assert shown.shown.startswith("loading\r\n\r\x1b[Kwaiting")
    shown.process.send_signal(signal.SIGINT)
    assert shown.end() == 130
    assert shown.shown.endswith("\r\x1b[K")


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_ctrl_c_while_a_python_server_hangs_says_where(
    screen: Callable[..., Screen], tmp_path: Path
) -> None:
    (tmp_path / "hanging.py").write_text(HANGING.format("load()"))
    shown = screen("tools", "--", sys.executable, "hanging.py")
    shown.until(WAITING)
    shown.process.send_signal(signal.SIGINT)
    assert shown.end() == 130
    assert shown.shown.endswith(
        "concertino tools: the server has not answered; it stands at hanging.py:4, in load()\r\n"
    )


def test_text_of_a_server_that_starts_is_shown_at_once(screen: Callable[..., Screen]) -> None:
    shown = screen("tools", "--", "sh", "-c", "echo loading; exec sleep 60")
    shown.until(WAITING)
    note = "concertino tools: the server printed a line that is no answer: loading\r\n"
    assert shown.shown.startswith(note)
    shown.process.send_signal(signal.SIGINT)
    assert shown.end() == 130


def test_words_typed_into_a_waiting_server(screen: Callable[..., Screen]) -> None:
    shown = screen("serve", "calculator.py")
    shown.until("started successfully")
    own = f"{Path(sys.orig_argv[0]).name} -m concertino serve calculator.py"
    assert "(Ctrl-D ends it). To try its tools: concertino tools -- " + own in shown.shown
    shown.type("add 1 2\n")
    shown.until("this server expects[^\n]*\n")
    said = "this server expects JSON-RPC messages; to call a tool: concertino call NAME KEY=VALUE"
    assert f"{said} -- {own}\r\n" in shown.shown
    shown.type("\x04")
    assert shown.end() == 0


# Guards


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            ["--allow", "ad"],
            "[guards] allow 'ad': no tool has such a name, so clients see no tools; there are: "
            "add, divide",
        ),
        (
            ["--allow", "add", "--allow", "divid"],
            "[guards] allow 'divid': no tool has such a name; there are: add, divide",
        ),
        (
            ["--allow", "prompt:greets"],
            "[guards] allow 'prompt:greets': no prompt has such a name, so clients see no prompts; "
            "there are: spend, greet",
        ),
        (
            ["--allow", "resource:config:*"],
            None,
        ),
        (
            ["--max-result-bytes", "9"],
            "[concertino] --max-result-bytes 9: a larger result is replaced by a link, and none of "
            "its text is shown; write 4096 to show 3072 bytes of it",
        ),
        (["--max-result-bytes", "4096"], None),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_guard_that_hides_everything(options: list[str], said: str | None, run: Run) -> None:
    opening = (
        '{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18",'
        '"capabilities":{},"clientInfo":{"name":"test","version":"1"}}}\n'
        '{"jsonrpc":"2.0","id":2,"method":"tools/list"}\n'
    )
    ended = run("serve", "calculator.py", *options, stdin=opening)
    warnings = [line for line in ended.err.splitlines() if "[WARN]" in line]
    assert [line.partition("[WARN] ")[2] for line in warnings] == ([] if said is None else [said])
    assert ended.code == 0


# Compositions in memory


def test_a_conflict_of_a_composition_is_raised_in_a_test() -> None:
    one, other = concertino.Server("one"), concertino.Server("other")
    for server in (one, other):
        server.add_resource("notes://today", lambda: "", name="today")

    async def open_client() -> None:
        async with concertino.Client(concertino.compose(one=one, other=other)):
            pass

    with pytest.raises(RegistrationError) as error:
        asyncio.run(open_client())
    assert str(error.value) == (
        "compose: both one and other have the resource notes://today; remove one, or give it "
        "another URI"
    )
