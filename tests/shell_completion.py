"""What `concertino completion` completes, and terminals in which shells are asked for it."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

__all__ = ["CASES", "complete_on_terminal", "make_folder", "script_of"]

# What is typed before Tab -> the words that the command gets.
CASES = {
    "a command": ("orch", ["orchestrate"]),
    "an option": ("serve --log-f", ["serve", "--log-format"]),
    "a choice": ("serve --log-format js", ["serve", "--log-format", "json"]),
    "a choice of another option": ("check --era mod", ["check", "--era", "modern"]),
    "an option behind the value of another": (
        "serve --scheme serve --stri",
        ["serve", "--scheme", "serve", "--strict"],
    ),
    "an option behind an argument": (
        "call add a=1 --conn",
        ["call", "add", "a=1", "--connect-timeout-s"],
    ),
    "a command of a command": ("certs iss", ["certs", "issue"]),
    "an option of a command of a command": ("certs issue --da", ["certs", "issue", "--days"]),
    "a file": ("orchestrate plug", ["orchestrate", "plugins.yaml"]),
    "a file with a space": ("serve my", ["serve", "my server.py"]),
    "a file as the value of an option": (
        "serve --metrics-file plug",
        ["serve", "--metrics-file", "plugins.yaml"],
    ),
    "a folder, not a file": ("lint kno", ["lint", "knowledge/"]),
    "a positional choice": ("completion fi", ["completion", "fish"]),
    "a topic": ("docs troub", ["docs", "troubleshooting"]),
    "a program of a server": ("check -- concertino-fa", ["check", "--", "concertino-fake"]),
    "a file of a server": ("check -- cat plug", ["check", "--", "cat", "plugins.yaml"]),
    "nothing that does not exist": ("serve --no-such-opt", ["serve", "--no-such-opt"]),
}
DEADLINE_S = 20.0


def script_of(shell: str) -> str:
    words = [sys.executable, "-m", "concertino", "completion", shell]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


def make_folder(folder: Path) -> Path:
    """Fill a folder with what CASES complete, and return it."""
    for name in ("plugins.yaml", "my server.py", "knotted.txt"):
        (folder / name).touch()
    (folder / "knowledge").mkdir()
    (folder / "bin").mkdir()
    (folder / "bin" / "concertino-fake").touch(mode=0o755)
    return folder


def complete_on_terminal(command: list[str], setup: str, typed: str, folder: Path) -> list[str]:
    """Type the beginning of a command line and Tab into a shell; return the words it then runs.

    setup: a line that prepares the shell. It defines a function concertino that prints its words.
    """
    environment = {
        "PATH": f"{folder / 'bin'}:/usr/local/bin:/usr/bin:/bin",
        "HOME": str(folder),
        "TERM": "dumb",
        "LC_ALL": "C.UTF-8",
    }
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(folder)
        os.execvpe(command[0], command, environment)
    try:
        os.write(terminal, f"{setup}; echo READ''Y\n".encode())
        _read_until(terminal, r"READY\r?\n")
        os.write(terminal, f"concertino {typed}\t\n".encode())
        printed = _read_until(terminal, r"BEGIN(.*?)END")
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(terminal)
    return re.findall(r"<(.*?)>", printed)


def _read_until(terminal: int, pattern: str) -> str:
    """Return what matches in the output of a terminal."""
    output = ""
    deadline = time.monotonic() + DEADLINE_S
    while (match := re.search(pattern, output, re.DOTALL)) is None:
        ready, _, _ = select.select([terminal], [], [], max(0, deadline - time.monotonic()))
        assert ready, f"the shell printed only {output!r}"
        output += os.read(terminal, 65536).decode(errors="replace")
    return match[0]
