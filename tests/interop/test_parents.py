"""Who may start a server, and what may stand between: Node, shells, wrappers, a terminal.

Each kind of descriptor by itself is in tests/stdio/test_kinds.py.
"""

from __future__ import annotations

import fcntl
import json
import os
import pty
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import termios
from pathlib import Path
from typing import Any

import pytest
from interop import node
from stdio.harness import (
    INITIALIZE,
    INITIALIZED,
    TOOLBOX,
    Process,
    call,
    environment,
    frame,
    put_down,
    text_of,
    wait_until_gone,
)

slow = pytest.mark.slow
PARENT = Path(__file__).with_name("parent.mjs")
DIALOGUE = [
    INITIALIZE,
    INITIALIZED,
    *(call(n, "echo", {"text": f"text {n}"}) for n in range(1, 21)),
]
SERVER = [sys.executable, TOOLBOX]
IN_SHELL = shlex.join(SERVER)


def check_dialogue(process: Process) -> None:
    process.send(*DIALOGUE)
    for n in range(1, 21):
        assert text_of(process.answer(n)) == f"text {n}"


# Node


@pytest.mark.parametrize("stderr", ["inherit", pytest.param("pipe", marks=slow)])
def test_a_node_parent_gets_every_answer_however_large_and_however_slowly_it_reads(
    stderr: str,
) -> None:
    ran = node.run([node.node(), PARENT, "converse", stderr, *SERVER], environment())
    assert ran.code == 0, ran.stderr
    assert json.loads(ran.stdout) == {
        "protocolVersion": "2025-11-25",
        "echoes": 200,
        "large": True,
        "heldBack": True,  # the server stopped reading while nobody took its answers
        "slow": 200,
        "answers": 1 + 200 + 1 + 200,
        "doubled": 0,
        "code": 0,
        "signal": None,
    }
    assert not ran.left


@slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_node_parent_that_is_killed_leaves_no_server(number: int) -> None:
    command = [node.node(), str(PARENT), "wait", "pipe", *SERVER]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment()) as parent:
        assert parent.stdout is not None
        server = json.loads(parent.stdout.readline())["pid"]
        try:
            parent.send_signal(number)
            parent.wait(10)
            assert wait_until_gone(server, 5)  # a call was under way: 2 s of drain time
        finally:
            put_down(server)


# Wrappers


def wrapper(name: str, folder: Path) -> list[str]:
    """The command that starts the server by the wrapper of this name."""
    if name in SCRIPTS:
        first, rest = SCRIPTS[name]
        (folder / "bin").mkdir()
        executable(folder / "bin" / "the-python", f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        return [executable(folder / "server", f"{first}\n{rest or Path(TOOLBOX).read_text()}")]
    program, *options = WRAPPERS[name]
    found = shutil.which(program)
    assert found, f"{program} is not on PATH; it belongs to coreutils or util-linux"
    return [found, *options, *([] if program == "sh" else SERVER)]


def executable(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


SCRIPTS = {  # the first line of a script, and what follows if it is not the server itself
    "shebang": (f"#!{sys.executable}", ""),
    "env shebang": ("#!/usr/bin/env the-python", ""),
    "script": ("#!/bin/sh", f'echo "starting" >&2\n{IN_SHELL} "$@"\n'),
}
WRAPPERS = {
    "sh -c": ["sh", "-c", IN_SHELL],
    "sh -c exec": ["sh", "-c", f"exec {IN_SHELL}"],
    "sh -c in between": ["sh", "-c", f"{IN_SHELL}; exit $?"],
    "env": ["env", "-i", *(f"{name}={value}" for name, value in environment().items())],
    "nohup": ["nohup"],
    "setsid": ["setsid", "--wait"],
    "timeout": ["timeout", "60"],
    "nice": ["nice"],
}
OTHERS = [pytest.param(name, marks=slow) for name in (*WRAPPERS, *SCRIPTS) if name != "sh -c"]


@pytest.mark.parametrize("name", ["sh -c", *OTHERS])
def test_a_wrapper_hides_nothing_and_ends_with_the_server(name: str, tmp_path: Path) -> None:
    path = f"{tmp_path}/bin:{os.environ['PATH']}"
    with Process(wrapper(name, tmp_path), command=True, env={"PATH": path}) as process:
        check_dialogue(process)
        server = int(process.ask(call("pid", "facts"))["result"]["structuredContent"]["pid"])
        assert process.finish() == 0
        assert wait_until_gone(server, 5)


@slow
def test_timeout_passes_on_the_signal_that_ends_it() -> None:
    with Process(["timeout", "60", *SERVER], command=True) as process:
        check_dialogue(process)
        process.signal(signal.SIGTERM)
        assert process.wait(5) == 0
        process.pump(lambda: b"Shutting down toolbox MCP server" in process.stderr, 5)


@slow
def test_nohup_lets_a_server_survive_the_hang_up_of_its_terminal() -> None:
    with Process(["nohup", *SERVER], command=True) as process:
        check_dialogue(process)
        process.signal(signal.SIGHUP)
        assert text_of(process.ask(call("after", "echo", {"text": "still here"}))) == "still here"
        assert process.finish() == 0


# What a shell does with descriptors


@slow
@pytest.mark.parametrize(
    "line",
    [
        "{server} <in >out",
        "{server} <in >>out",
        "{server} <in | cat >out",
        "cat in | {server} >out",
        "cat in | {server} | cat >out",
        "{server} <in 2>&1 >out",
        "{server} <in 3>&1 >out 9<in",
    ],
)
def test_a_dialogue_from_a_file_gives_its_answers_whatever_the_shell_puts_in_between(
    line: str, tmp_path: Path
) -> None:
    (tmp_path / "in").write_bytes(b"".join(map(frame, DIALOGUE)))
    done = shell(line.format(server=IN_SHELL), tmp_path)
    assert done.returncode == 0, done.stderr
    answers = [json.loads(item) for item in (tmp_path / "out").read_bytes().splitlines()]
    assert sorted(item["id"] for item in answers if item["id"] != "initialize") == list(
        range(1, 21)
    )


@slow
@pytest.mark.parametrize(
    "line", ["{server} </dev/null >out", "{server} <&- >out", ": | {server} >out"]
)
def test_without_input_there_is_no_output(line: str, tmp_path: Path) -> None:
    done = shell(line.format(server=IN_SHELL), tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out").read_bytes() == b""


def shell(line: str, folder: Path) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        ["sh", "-c", line],
        cwd=folder,
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=20,
        check=False,
    )


# A terminal that is the server's own


def on_a_terminal(**popen: Any) -> tuple[Process, int]:
    """A server as a user types its command: the terminal is its stdin and the one that its signals
    come from.
    """
    ours, theirs = pty.openpty()
    settings = termios.tcgetattr(theirs)
    settings[3] &= ~termios.ECHO
    termios.tcsetattr(theirs, termios.TCSANOW, settings)
    process = Process(
        stdin=theirs,
        writing=os.dup(ours),
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        **popen,
    )
    os.close(theirs)
    return process, ours


def test_ctrl_c_in_its_terminal_ends_a_server_in_order() -> None:
    process, ours = on_a_terminal()
    with process:
        check_dialogue(process)
        process.write(b"\x03")
        assert process.wait(5) == 0
        process.pump(lambda: b"Shutting down toolbox MCP server" in process.stderr, 5)
    os.close(ours)


@slow
def test_a_terminal_window_that_is_closed_takes_its_server_along() -> None:
    process, ours = on_a_terminal()
    with process:
        check_dialogue(process)
        process.close_stdin()
        os.close(ours)
        assert process.wait(5) in (0, -signal.SIGHUP)
