"""What is on the pages, and what is needed to do what they say: files to paste, commands to run, a
server to speak to.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from warm_commands import run_python, start_python

import concertino

__all__ = [
    "DOCS",
    "NAME",
    "ROOT",
    "ask_server",
    "blocks",
    "environment",
    "paste",
    "quoted_texts",
    "run_failing_server",
    "run_shell",
    "run_tests",
    "serve",
    "spoken_to",
]

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
NAME = re.compile(r"# (\w+\.py)\n")


def blocks(page: str, language: str) -> list[str]:
    """The fenced blocks of a page in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)


def paste(page: str | Path, folder: Path) -> list[str]:
    """Write a page's Python into files of a folder, as a reader would; each block's first line
    names its file.
    """
    text = page.read_text() if isinstance(page, Path) else page
    names: list[str] = []
    for source in blocks(text, "python"):
        named = NAME.match(source)
        assert named, f"a block to paste names its file in its first line: {source[:60]!r}"
        (folder / named[1]).write_text(source)
        names.append(named[1])
    return names


def environment(**more: str) -> dict[str, str]:
    """A reader's: the package can be imported, and nothing of this test run's measuring is in the
    way.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
    return {**kept, "PYTHONPATH": str(Path(concertino.__file__).parents[1]), **more}


def serve(
    command: list[str], calls: list[tuple[str, dict[str, Any]]], cwd: Path, **more: str
) -> list[dict[str, Any]]:
    """Start a server with this Python, open, call some tools, close its stdin; the results in
    order. It must end with 0.
    """
    return spoken_to([sys.executable, *command], calls, cwd, **more)[0]


def spoken_to(
    command: list[str], calls: list[tuple[str, dict[str, Any]]], cwd: Path, **more: str
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], str]:
    """The results, the notifications, and what stood on stderr."""
    opening = {
        "jsonrpc": "2.0",
        "id": 0,
        "method": "initialize",
        "params": {"protocolVersion": "2025-11-25"},
    }
    requests = [
        {
            "jsonrpc": "2.0",
            "id": number,
            "method": "tools/call",
            "params": {"name": name, "arguments": arguments},
        }
        for number, (name, arguments) in enumerate(calls, 1)
    ]
    stdin = "".join(json.dumps(message) + "\n" for message in (opening, *requests))
    done = run_python(
        command,
        input=stdin,
        cwd=cwd,
        env=environment(**more),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    messages = [json.loads(line) for line in done.stdout.splitlines()]
    answers = {message["id"]: message for message in messages if "id" in message}
    notifications = [message for message in messages if "id" not in message]
    return [answers[request["id"]]["result"] for request in requests], notifications, done.stderr


def ask_server(
    command: list[str], requests: list[tuple[str, dict[str, Any]]], cwd: Path, **more: str
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], str]:
    """Start a server, open, send requests, close its stdin: the results, or errors, in order; the
    notifications; stderr.
    """
    lines = [
        json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
        for number, (method, params) in enumerate(
            [("initialize", {"protocolVersion": "2025-11-25"}), *requests]
        )
    ]
    done = run_python(
        command,
        input="\n".join(lines) + "\n",
        cwd=cwd,
        # On a busy machine, plugins start in more than the 2 s after the end of stdin.
        env=environment(CONCERTINO_DRAIN_S="20", **more),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    messages = [json.loads(line) for line in done.stdout.splitlines()]
    answers = {
        item["id"]: item["result"] if "result" in item else item["error"]
        for item in messages
        if "id" in item
    }
    notifications = [item for item in messages if "id" not in item]
    return [answers[number + 1] for number in range(len(requests))], notifications, done.stderr


def run_failing_server(
    command: list[str], cwd: Path, stdin: str = "", **more: str
) -> tuple[int, str, str]:
    """Start a server that ends by itself, while its stdin stays open: exit code, stdout, stderr."""
    pipe = subprocess.PIPE
    with start_python(
        command, cwd=cwd, env=environment(**more), text=True, stdin=pipe, stdout=pipe, stderr=pipe
    ) as server:
        try:
            assert server.stdin is not None
            server.stdin.write(stdin)
            server.stdin.flush()
            code = server.wait(30)
            assert server.stdout is not None
            assert server.stderr is not None
            return code, server.stdout.read(), server.stderr.read()
        finally:
            server.kill()


def run_tests(folder: Path, *names: str) -> str:
    """Run pytest on files of a folder; what it printed. It must pass."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *names]
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def run_shell(page: Path, folder: Path) -> str:
    """Run a page's commands (```sh) in a folder, where `python` and `concertino` are these; what
    they printed.
    """
    programs = folder / ".programs"
    programs.mkdir()
    for name, words in (("python", ""), ("concertino", " -m concertino")):
        kept = f"PYTHONPATH={environment()['PYTHONPATH']}"  # what clients start does not inherit it
        (programs / name).write_text(f'#!/bin/sh\n{kept} exec {sys.executable}{words} "$@"\n')
        (programs / name).chmod(0o755)
    commands = "".join(blocks(page.read_text(), "sh"))
    assert commands
    done = subprocess.run(
        ["sh", "-eu", "-c", commands],
        cwd=folder,
        env=environment(PATH=f"{programs}:{os.environ['PATH']}"),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def quoted_texts(section: str) -> list[str]:
    """Return the texts in the headings of a section of troubleshooting.md; what varies is `...`."""
    page = (DOCS / "how-to" / "troubleshooting.md").read_text()
    [body] = re.findall(rf"^## {section}\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    return re.findall(r"^### `(.*)`$", body, re.MULTILINE)
