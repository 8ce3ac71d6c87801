"""cli/shell*.py: `concertino shell`, in real processes: lines on stdin, and on a real terminal."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from warm_commands import run_python

# Together they take long, and they do not depend on the version of Python.
pytestmark = pytest.mark.slow

SERVER = """
import asyncio
from dataclasses import dataclass
from typing import Literal
from concertino import Context, Server

server = Server("shop", version="2", instructions="Ask politely.")
stock = {"count": 3}

@server.tool
def order(item: Literal["pear", "apple pie"], count: int = 1, gift: bool = False) -> str:
    "Order something."
    stock["count"] -= count
    server.resource_updated("shop://stock")
    return f"{count} x {item}{' as a gift' if gift else ''}"

@server.tool
async def wait() -> str:
    print("waiting")
    await asyncio.sleep(3600)
    return "never"

@dataclass
class Person:
    name: str
    age: int = 0

@server.tool
async def name(context: Context) -> str:
    answer = await context.elicit("Who are you?", Person)
    return f"{answer.action}: {answer.content}"

@server.tool
async def tell(context: Context) -> str:
    context.log("warning", "little is left")
    return "told"

@server.resource("shop://stock")
def read_stock() -> str:
    return str(stock["count"])

@server.prompt
def praise(item: str) -> str:
    return f"Praise {item}."

@server.complete("praise", "item")
def items(value: str) -> list[str]:
    return [item for item in ("pear", "apple pie") if item.startswith(value)]

if __name__ == "__main__":
    server.run()
"""
DEADLINE_S = 30


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(SERVER)
    return tmp_path


def shell(folder: Path, lines: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "concertino", "shell", *options]
    command += ["--", sys.executable, "shop.py"]
    return run_python(command, input=lines, cwd=folder, capture_output=True, text=True, timeout=60)


def test_each_line_of_stdin_is_a_command(folder: Path) -> None:
    lines = """\
order item=pear
order {"item": "apple pie", "gift": true}
call order item='apple pie' count=2
read shop://stock
prompt praise item=pears

info
"""
    done = shell(folder, lines)
    assert done.stdout.splitlines() == [
        "1 x pear",
        "1 x apple pie as a gift",
        "2 x apple pie",
        "-1",
        "[user]",
        "Praise pears.",
        "shop 2, MCP 2026-07-28",
        "offers: logging, completions, prompts, resources, tools",
        "Ask politely.",
    ]
    assert (done.returncode, done.stderr) == (0, "")


def test_a_mistake_is_reported_and_the_session_goes_on(folder: Path) -> None:
    lines = """\
order itm=pear
ordr item=pear
order item=peer
read shop://stok
level loud
json maybe
subscribe
tools x
call
order 'item=pear
"""
    done = shell(folder, lines + "order item=pear")
    # Of the first mistake.
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "concertino: order has no argument 'itm'",
        "  did you mean item?",
        '  order takes item (one of "pear", "apple pie"), '
        "optional: count (integer), gift (boolean)",
        "concertino: there is no command or tool 'ordr'",
        "  did you mean order?",
        'concertino: item=peer: expected one of "pear", "apple pie"',
        "  did you mean pear?",
        '  order takes item (one of "pear", "apple pie"), '
        "optional: count (integer), gift (boolean)",
        "concertino: shop://stok: Resource not found (-32602)",
        "  did you mean shop://stock?",
        "  `resources` lists what there is",
        "concertino: level loud: expected one of debug, info, notice, warning, error, critical, "
        "alert, emergency",
        "concertino: write: json on, or json off",
        "concertino: write: subscribe URI",
        "concertino: tools takes no words, got x",
        "concertino: call NAME [KEY=VALUE...]: a name is missing",
        "concertino: a quote is not closed: order 'item=pear",
    ]


def test_results_and_failures_are_json_when_asked_for(folder: Path) -> None:
    done = shell(folder, "order item=pear\nread x:y\njson off\norder item=pear\n", "--json")
    result, text = done.stdout.splitlines()
    assert json.loads(result)["content"] == [{"type": "text", "text": "1 x pear"}]
    assert text == "1 x pear"
    [failure] = done.stderr.splitlines()
    assert json.loads(failure)["error"]["code"] == "not-found"
    assert done.returncode == 1


def test_a_subscription_shows_each_change(folder: Path) -> None:
    done = shell(folder, "subscribe shop://stock\norder item=pear\nread shop://stock\n")
    assert done.stdout.splitlines() == ["1 x pear", "2"]
    assert done.stderr.splitlines() == ["changed: shop://stock"]


def test_log_messages_are_shown_from_a_level_on(folder: Path) -> None:
    done = shell(folder, "tell\nlevel warning\ntell\n")
    assert done.stdout.splitlines() == ["told", "told"]
    assert done.stderr.splitlines() == ["[warning]: little is left"]


def test_restart_begins_anew_and_open_uses_another_server(folder: Path) -> None:
    (folder / "other.py").write_text(SERVER.replace('"shop"', '"other"'))
    lines = "order item=pear\nrestart\nread shop://stock\nopen other.py\ninfo\nexit\ninfo\n"
    done = shell(folder, lines)
    assert done.stdout.splitlines()[:3] == ["1 x pear", "3", "other 2, MCP 2026-07-28"]
    assert len(done.stdout.splitlines()) == 5
    assert done.stderr == ""


def test_a_server_that_cannot_start_ends_a_session_without_a_terminal(folder: Path) -> None:
    (folder / "shop.py").write_text("import nothing_like_this")
    done = shell(folder, "tools\n")
    assert done.returncode == 3
    assert "nothing_like_this" in done.stderr
    assert done.stdout == ""


def test_options_for_a_server_need_one(folder: Path) -> None:
    command = [sys.executable, "-m", "concertino", "shell", "--env", "A=1"]
    done = subprocess.run(command, input="", cwd=folder, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (
        2,
        "concertino shell: --env and --cwd are for a server: write its command after --\n",
    )


# On a terminal


class Typing:
    """A person at a terminal."""

    def __init__(self, terminal: int) -> None:
        self._terminal = terminal
        self.output = ""

    def hang_up(self) -> None:
        """Close the terminal, if it is open."""
        if self._terminal >= 0:
            os.close(self._terminal)
            self._terminal = -1

    def type(self, keys: str) -> None:
        os.write(self._terminal, keys.encode())

    def until(self, pattern: str) -> str:
        """Read until a pattern is shown; return what was shown up to then."""
        deadline = time.monotonic() + DEADLINE_S
        while (match := re.search(pattern, self.output)) is None:
            ready, _, _ = select.select(
                [self._terminal], [], [], max(0, deadline - time.monotonic())
            )
            assert ready, f"only {self.output!r} was shown"
            try:
                data = os.read(self._terminal, 65536)
            except OSError:
                data = b""
            assert data, f"only {self.output!r} was shown at the end"
            # prompt_toolkit asks terminals for the position of the cursor.
            if b"\x1b[6n" in data:
                os.write(self._terminal, b"\x1b[1;1R")
            # Movements and colours.
            text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", data.decode(errors="replace"))
            self.output += text.replace("\r", "")
        shown, self.output = self.output[: match.end()], self.output[match.end() :]
        return shown


@contextmanager
def at_terminal(folder: Path, *words: str, **environment: str) -> Iterator[tuple[Typing, int]]:
    """Run concertino on a terminal of its own; provides its keyboard, and its process id."""
    variables = {
        **os.environ,
        "TERM": "xterm",
        "HOME": str(folder),
        "XDG_STATE_HOME": str(folder / "state"),
        # As users start it: output that cannot be written stays in a buffer.
        "PYTHONUNBUFFERED": "",
        **environment,
    }
    pid, terminal = pty.fork()
    if pid == 0:
        # It may be ignored here, as under nohup.
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        os.chdir(folder)
        os.execvpe(sys.executable, [sys.executable, "-m", "concertino", *words], variables)
    person = Typing(terminal)
    try:
        yield person, pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        person.hang_up()


def exit_code(pid: int) -> int:
    """Wait for a process to end, but leave it for at_terminal()."""
    result = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert result is not None
    return result.si_status


def test_a_session_on_a_terminal(folder: Path) -> None:
    with at_terminal(folder) as (person, _):
        person.until("No server yet")
        person.until("concertino>")
        person.type("open shop.py\r")
        person.until(r"shop 2, MCP 2026-07-28: 4 tools, 1 resource, 1 prompt\.")
        person.until("shop>")
        # One thing fits, so Tab types it: a tool, an argument, and values of both kinds.
        person.type("ord\t")
        # The completion may be drawn apart from what was typed.
        person.until("er")
        person.type(" it\t")
        person.until("item=")
        person.type("app\t")
        person.until("'apple pie'")
        person.type("\r")
        person.until("1 x apple pie\n")
        person.until("shop>")
        person.type("prompt praise item=pea")
        person.until("item=pea")
        person.type("\t")
        person.until("r")
        person.type("\r")
        person.until(r"Praise pear\.")
        person.until("shop>")
        # Up shows an earlier line.
        person.type("\x1b[A\x1b[A")
        person.until("order item='apple pie'")
        person.type("\r")
        person.until("1 x apple pie\n")


def test_ctrl_c_ends_a_call_and_ctrl_d_the_session(folder: Path) -> None:
    with at_terminal(folder, "shell", "-v", "--", sys.executable, "shop.py") as (person, pid):
        person.until("shop>")
        person.type("wait\r")
        person.until("waiting")
        person.type("\x03")
        person.until("stopped")
        person.until("shop>")
        person.type("order item=pear\r")
        person.until("1 x pear")
        person.until("shop>")
        person.type("\x04")
        assert exit_code(pid) == 0


@pytest.mark.parametrize("end", ["SIGHUP", "SIGTERM", "a closed terminal"])
@pytest.mark.parametrize("is_calling", [False, True], ids=["at the prompt", "during a call"])
def test_the_end_of_the_terminal_ends_session_and_server(
    end: str, is_calling: bool, folder: Path
) -> None:
    note_pid = "import os, pathlib; pathlib.Path('pid').write_text(str(os.getpid()))\nif __name__"
    (folder / "shop.py").write_text(SERVER.replace("if __name__", note_pid))
    with at_terminal(folder, "shell", "-v", "--", sys.executable, "shop.py") as (person, pid):
        person.until("shop>")
        if is_calling:
            person.type("wait\r")
            person.until("waiting")
        if end == "a closed terminal":
            person.hang_up()
        else:
            os.kill(pid, signal.Signals[end])
        assert exit_code(pid) == 128 + (signal.SIGTERM if end == "SIGTERM" else signal.SIGHUP)
    with pytest.raises(ProcessLookupError):
        os.kill(int((folder / "pid").read_text()), 0)


def test_a_question_of_the_server_is_answered_at_the_prompt(folder: Path) -> None:
    with at_terminal(folder, "shell", "--", sys.executable, "shop.py") as (person, _):
        person.until("shop>")
        person.type("name\r")
        person.until(r"shop asks: Who are you\?")
        person.until(r"name \(string\):")
        person.type("Ada\r")
        person.until(r"age \(integer, optional\):")
        person.type("old\r")
        person.until("age=old: expected an integer")
        person.until(r"age \(integer, optional\):")
        person.type("36\r")
        person.until(r"accept: Person\(name='Ada', age=36\)")
        person.type("name\r")
        person.until(r"name \(string\):")
        person.type("\x04")
        person.until("decline: None")


def test_the_history_is_private_and_leaves_out_lines_that_begin_with_a_space(folder: Path) -> None:
    with at_terminal(folder, "shell", "--", sys.executable, "shop.py") as (person, _):
        person.until("shop>")
        person.type(" order item=pear\r")
        person.until("1 x pear")
        person.type("help order\r")
        person.until("order takes")
    history = folder / "state" / "concertino" / "shell-history"
    assert history.stat().st_mode & 0o777 == 0o600
    assert "+help order\n" in history.read_text()
    assert "item=pear" not in history.read_text()


def test_without_the_extra_the_command_says_what_to_install(folder: Path) -> None:
    (folder / "prompt_toolkit.py").write_text("raise ImportError('blocked')")
    with at_terminal(folder, "shell", PYTHONPATH=str(folder)) as (person, _):
        person.until(
            r"concertino shell: the interactive session needs the extra 'shell' "
            r"\(prompt_toolkit\): "
        )
