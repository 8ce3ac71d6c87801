"""Mistakes of people, each a command in a folder of its own, and exactly what is said about it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import concertino

SRC = str(Path(concertino.__file__).parents[1])
STDLIB = sysconfig.get_path("stdlib")
HEAD = "from concertino import Server\nserver = Server('calculator')\n"
ADD = "@server.tool\ndef add(a: int, b: int) -> int:\n    return a + b\n"
END = "if __name__ == '__main__':\n    server.run()\n"
IMPORTING = "[ERROR] [concertino] Failed to start server: importing"
TRACEBACK = "Traceback (most recent call last):\n"


class Mistake(NamedTuple):
    """A mistake, and what is said about it.

    files: path -> text.
    words: the command, as in a shell. FOLDER and INSTALL in err stand for the folder and for the
        beginning of a command that installs a package.
    out: what the model or the user gets, on stdout.
    typed: what is typed at a terminal; without it stdin is empty.
    """

    name: str
    files: Mapping[str, str]
    words: str
    code: int
    err: str
    out: str = ""
    typed: str = ""


class ProcessResult(NamedTuple):
    code: int
    err: str
    out: str


def run_mistake(mistake: Mistake, tmp_path: Path) -> ProcessResult:
    """Run the command of a mistake, and return what it wrote, normalized, and its exit code."""
    folder = tmp_path / "project"
    folder.mkdir()
    for name, source in mistake.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(source)
    programs = tmp_path / "programs"
    programs.mkdir()
    for name, start in (("python", ""), ("concertino", " -m concertino")):
        # A link would be an interpreter without the packages of this one.
        (programs / name).write_text(f'#!/bin/sh\nexec "{sys.executable}"{start} "$@"\n')
        (programs / name).chmod(0o755)

    ours, stdin = os.openpty() if mistake.typed else (None, os.open(os.devnull, os.O_RDONLY))
    if ours is not None:
        # A line, and the end of the input.
        os.write(ours, mistake.typed.encode())
    try:
        done = subprocess.run(
            ["/bin/sh", "-c", mistake.words],
            env={
                "PATH": f"{programs}:{os.defpath}",
                "PYTHONPATH": SRC,
                "PYTHONDONTWRITEBYTECODE": "1",
                # Python itself warns of the coroutine that asyncio.run() has refused.
                "PYTHONWARNINGS": "ignore::RuntimeWarning",
                "HOME": str(tmp_path),
            },
            stdin=stdin,
            capture_output=True,
            cwd=folder,
            timeout=60,
            check=False,
            text=True,
        )
    finally:
        for descriptor in (ours, stdin):
            if descriptor is not None:
                os.close(descriptor)
    return ProcessResult(done.returncode, _normalize(done.stderr, folder), done.stdout)


def _normalize(err: str, folder: Path) -> str:
    """Return stderr without what differs between machines, versions of Python and runs.

    Left out are times, lines about a start and an end that succeed, frames of the standard library,
    and Python's marks below a line.
    """
    text = re.sub(r"(?m)^\[\d{4}-[^]]*\] ", "", err)
    text = re.sub(r"(?m)^\[INFO\] \[calculator\] .*\n", "", text)
    # A frame of the standard library has its source, and perhaps marks, on the lines below.
    text = re.sub(rf'(?m)^( *)File "{re.escape(STDLIB)}/.*\n(?:\1  .*\n)*', "", text)
    if "SyntaxError" not in text:
        text = re.sub(r"(?m)^ *[~^][~^ ]*\n", "", text)
    text = re.sub(r"(?:\S+ -m pip install|uv pip install --python \S+)", "INSTALL", text)
    return text.replace(str(folder), "FOLDER")
