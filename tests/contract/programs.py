"""Run servers and commands as real processes, for the tests of the contract.

Nothing here imports a module of the package: a test that compares against the package's own
constants could not notice that one of them has changed.
"""

from __future__ import annotations

import json
import os
import re
import select
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from warm_commands import run_command, run_python, start_python

__all__ = [
    "INITIALIZE",
    "INITIALIZED",
    "LOG_LINE",
    "PROTOCOL",
    "ProcessResult",
    "Running",
    "answers",
    "answers_by_id",
    "call_main",
    "command",
    "log_entries",
    "modern",
    "request",
    "run",
    "start",
    "tool_bodies",
]

PROTOCOL = "2026-07-28"
TIMEOUT_S = 60.0
# `[ISO ms Z] [LEVEL] [component] message`; further lines of one record are indented by four.
LOG_LINE = (
    r"\[\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z\] \[(DEBUG|INFO|WARN|ERROR)\] \[([^\]]+)\] (.*)"
)
OURS = ("CONCERTINO_", "LOG_LEVEL", "PROMPTS_PATH", "RESOURCES_PATH", "CACHE_SIZE", "LISTEN_")


class ProcessResult(NamedTuple):
    """What a process left behind."""

    code: int
    out: str
    err: str


def environment(extra: Mapping[str, str] | None) -> dict[str, str]:
    """Return our environment without the variables that the package reads, and with `extra`."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
    return {**inherited, "PYTHONDONTWRITEBYTECODE": "1", **(extra or {})}


def command(*words: str | Path) -> list[str]:
    """Return the command line that runs `concertino WORDS...` with this interpreter."""
    return [sys.executable, "-m", "concertino", *map(str, words)]


def run(
    words: Sequence[str | Path],
    lines: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
) -> ProcessResult:
    """Run a program with these lines on its stdin, and wait until it has ended."""
    stdin = "".join(f"{line}\n" for line in lines)
    if list(words[:3]) == command():
        done = run_command(*words[3:], cwd=cwd, env=environment(env), stdin=stdin.encode())
    else:
        done = run_python(
            [str(word) for word in words],
            input=stdin,
            env=environment(env),
            cwd=cwd,
            capture_output=True,
            timeout=TIMEOUT_S,
            text=True,
            check=False,
        )
    return ProcessResult(done.returncode, done.stdout, done.stderr)


class Running:
    """A process that is spoken to while it runs."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.err: list[str] = []
        self._partial = {1: b"", 2: b""}

    def write(self, *lines: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("".join(f"{line}\n" for line in lines).encode())
        self.process.stdin.flush()

    def read_line(self) -> str:
        """Return the next line of stdout."""
        return self._line(1)

    def wait_for(self, text: str) -> str:
        """Return the next line of stderr that holds the text."""
        while True:
            line = self._line(2)
            self.err.append(line)
            if text in line:
                return line

    def end(self) -> int:
        """Close stdin and return the exit code; stderr is in `err` then."""
        _, err = self.process.communicate(timeout=TIMEOUT_S)
        self.err += (self._partial[2] + err).decode().splitlines()
        return self.process.returncode

    def _line(self, number: int) -> str:
        stream = self.process.stdout if number == 1 else self.process.stderr
        assert stream is not None
        until = time.monotonic() + TIMEOUT_S
        while b"\n" not in self._partial[number]:
            ready, _, _ = select.select([stream], [], [], max(0.0, until - time.monotonic()))
            data = os.read(stream.fileno(), 65536) if ready else b""
            assert data, f"no further line: {self._partial[number]!r}, stderr: {self.err}"
            self._partial[number] += data
        line, _, self._partial[number] = self._partial[number].partition(b"\n")
        return line.decode()


@contextmanager
def start(
    words: Sequence[str | Path], env: Mapping[str, str] | None = None, cwd: str | Path | None = None
) -> Any:
    """Start a program, and kill it at the end if it still runs then."""
    process = start_python(
        [str(word) for word in words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(env),
        cwd=cwd,
    )
    with process:
        try:
            yield Running(process)
        finally:
            if process.poll() is None:
                process.kill()


def call_main(capsys: pytest.CaptureFixture[str], *words: str | Path) -> ProcessResult:
    """Run the installed script `concertino` in this process; for commands that print and end."""
    [script] = entry_points(group="console_scripts", name="concertino")
    with pytest.raises(SystemExit) as ended:
        script.load()([str(word) for word in words])
    out, err = capsys.readouterr()
    code = ended.value.code
    return ProcessResult(code if isinstance(code, int) else 0 if code is None else 1, out, err)


# Messages


def request(id: int | str, method: str, **params: Any) -> str:
    """Return a JSON-RPC request as one line."""
    return json.dumps({"jsonrpc": "2.0", "id": id, "method": method, "params": params})


def modern(
    id: int | str, method: str, capabilities: Mapping[str, Any] | None = None, **params: Any
) -> str:
    """Return a request of 2026-07-28, which names its revision and the client's capabilities."""
    meta = {
        "io.modelcontextprotocol/protocolVersion": PROTOCOL,
        "io.modelcontextprotocol/clientCapabilities": dict(capabilities or {}),
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
    }
    return request(id, method, **params, _meta=meta)


INITIALIZE = request(
    0,
    "initialize",
    protocolVersion="2025-11-25",
    capabilities={},
    clientInfo={"name": "test", "version": "1"},
)
INITIALIZED = '{"jsonrpc": "2.0", "method": "notifications/initialized"}'


def answers(out: str) -> list[dict[str, Any]]:
    """Return every message that a server wrote to stdout."""
    return [json.loads(line) for line in out.splitlines()]


def answers_by_id(out: str) -> dict[Any, dict[str, Any]]:
    """Return the result, or the error object, of each answer by the id of its request."""
    return {
        message.get("id"): message.get("result", message.get("error"))
        for message in answers(out)
        if "method" not in message
    }


def tool_bodies(out: str) -> dict[Any, Any]:
    """Return the JSON in the text of each tool result by its id; other texts as they are."""
    return {
        id: tool_body(result) for id, result in answers_by_id(out).items() if "content" in result
    }


def tool_body(result: dict[str, Any]) -> Any:
    text = result["content"][0]["text"]
    try:
        return json.loads(text)
    except ValueError:
        return text


def log_entries(err: str) -> list[tuple[str, str, str]]:
    """Return level, component and message of each log line; fail for a line of another form."""
    entries: list[tuple[str, str, str]] = []
    for line in err.splitlines():
        if line.startswith("    ") and entries:
            continue
        found = re.fullmatch(LOG_LINE, line)
        assert found is not None, f"not a log line: {line!r}"
        entries.append((found[1], found[2], found[3]))
    return entries
