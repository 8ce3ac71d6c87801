"""A real server process at the other end of real descriptors, for the tests in this folder.

A `Process` spawns `sys.executable server.py` (or any command) and speaks to it in lines. Every wait
is on an event (poll on its descriptors and its pidfd) with an upper bound; nothing sleeps.
Everything that came on stdout is checked to be JSON-RPC when it is read and kept, so that
`answers()` can be asked how often an id was answered. Only processes started here are ever killed,
by pid.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from warm_commands import start_python

import concertino

HERE = Path(__file__).parent
SRC = str(Path(concertino.__file__).parent.parent)
TOOLBOX = str(HERE / "toolbox.py")
DEADLINE_S = 30.0  # an upper bound, reached only by what is broken

MODERN_META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": "initialize",
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    },
}
INITIALIZED = {"jsonrpc": "2.0", "method": "notifications/initialized"}


def environment(**more: str) -> dict[str, str]:
    """What a server under test sees: little, and nothing of the machine's own settings."""
    passed = ("PATH", "HOME", "LANG", "TMPDIR", "COVERAGE_PROCESS_CONFIG", "COVERAGE_CORE")
    kept = {name: os.environ[name] for name in passed if name in os.environ}
    return {**kept, "PYTHONPATH": SRC, **more}


def frame(message: object) -> bytes:
    """One message as a line."""
    return json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def request(
    id: object, method: str, params: object = None, *, modern: bool = False
) -> dict[str, Any]:
    members = dict(params or {})  # type: ignore[call-overload]
    if modern:
        members["_meta"] = {**MODERN_META, **members.get("_meta", {})}
    return {"jsonrpc": "2.0", "id": id, "method": method, "params": members}


def call(
    id: object,
    tool: str,
    arguments: Mapping[str, Any] | None = None,
    *,
    token: object = None,
    modern: bool = False,
) -> dict[str, Any]:
    """A tools/call request."""
    params: dict[str, Any] = {"name": tool, "arguments": dict(arguments or {})}
    if token is not None:
        params["_meta"] = {"progressToken": token}
    return request(id, "tools/call", params, modern=modern)


def notification(method: str, params: object = None) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": method, "params": params or {}}


def text_of(answer: Mapping[str, Any]) -> str:
    """The text of a tool's result that is no error."""
    assert "result" in answer, answer
    assert not answer["result"].get("isError"), answer
    return answer["result"]["content"][0]["text"]


def failure_of(answer: Mapping[str, Any]) -> str:
    """The text of a tool's result that is an error."""
    assert answer["result"]["isError"] is True, answer
    return answer["result"]["content"][0]["text"]


class Process:
    """A server under test. stdin, stdout, stderr: a descriptor for the child, or None for a pipe
    whose other end is here.

    reading, writing: our ends when stdin and stdout are descriptors made by the test (a socket, a
    terminal).
    forked: whether it may be forked from a process that has imported the package
    (warm_commands.py); False where the process itself is the subject.
    """

    def __init__(
        self,
        argv: Iterable[str] = (TOOLBOX,),
        *,
        env: Mapping[str, str] | None = None,
        stdin: int | None = None,
        stdout: int | None = None,
        stderr: int | None = None,
        writing: int | None = None,
        reading: int | None = None,
        command: bool = False,
        forked: bool = True,
        **popen: Any,
    ) -> None:
        line = list(argv) if command else [sys.executable, *argv]
        self.popen = (start_python if forked else subprocess.Popen)(
            line,
            stdin=subprocess.PIPE if stdin is None else stdin,
            stdout=subprocess.PIPE if stdout is None else stdout,
            stderr=subprocess.PIPE if stderr is None else stderr,
            env=environment(**(env or {})),
            bufsize=0,
            **popen,
        )
        self.pid = self.popen.pid
        self._pidfd = os.pidfd_open(self.pid)
        self.writing = self._ours(self.popen.stdin, writing)
        self.reading = self._ours(self.popen.stdout, reading)
        self._errors = self._ours(self.popen.stderr, None)
        self.lines: list[bytes] = []  # every line of stdout so far
        self.messages: list[Any] = []  # each as JSON
        self._answers: dict[tuple[type, object], list[Any]] = {}  # those with an id
        self.stderr = b""
        self._partial = bytearray()
        self._next = 0
        self.eof = self.reading < 0
        for descriptor in (self.writing, self.reading, self._errors):
            if descriptor >= 0:
                os.set_blocking(descriptor, False)

    @staticmethod
    def _ours(file: Any, given: int | None) -> int:
        if file is None:
            return -1 if given is None else given
        descriptor = os.dup(file.fileno())
        file.close()
        return descriptor

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        if self.popen.poll() is None:
            self.popen.kill()
            self.popen.wait()
        for descriptor in {self.writing, self.reading, self._errors, self._pidfd}:
            if descriptor >= 0:
                with contextlib.suppress(OSError):
                    os.close(descriptor)
        self.writing = self.reading = self._errors = self._pidfd = -1

    # Waiting

    def pump(
        self, until: Callable[[], bool], within_s: float = DEADLINE_S, *, read: bool = True
    ) -> None:
        """Take what comes on stdout and stderr until the condition holds; fail after within_s
        seconds.
        """
        deadline = time.monotonic() + within_s
        while not until():
            left = deadline - time.monotonic()
            if left <= 0:
                raise AssertionError(self._report(f"nothing for {within_s} s"))
            if not self._turn(left, read=read):
                if until():
                    return
                raise AssertionError(self._report("the process is gone"))

    def _turn(self, within_s: float, *, write: bool = False, read: bool = True) -> bool:
        """Wait for one event and take it; False when nothing can come any more."""
        poll = select.poll()
        open_ = 0
        if not self.eof and read:
            poll.register(self.reading, select.POLLIN)
            open_ += 1
        if self._errors >= 0:
            poll.register(self._errors, select.POLLIN)
            open_ += 1
        if write:
            poll.register(self.writing, select.POLLOUT)
            open_ += 1
        if self.popen.returncode is None:
            poll.register(self._pidfd, select.POLLIN)
            open_ += 1
        if not open_:
            return False
        for descriptor, _ in poll.poll(within_s * 1000):
            if descriptor == self._pidfd:
                self.popen.wait()
            elif descriptor == self._errors:
                if chunk := self._read(self._errors):
                    self.stderr += chunk
                elif chunk == b"":
                    os.close(self._errors)
                    self._errors = -1
            elif descriptor == self.reading:
                self._take(self._read(self.reading))
        return True

    @staticmethod
    def _read(descriptor: int) -> bytes | None:
        try:
            return os.read(descriptor, 1 << 20)
        except BlockingIOError:
            return None
        except OSError:  # EIO: a terminal without another side
            return b""

    def _take(self, chunk: bytes | None) -> None:
        if chunk is None:
            return
        if not chunk:
            self.eof = True
            assert self._partial == b"", f"stdout ended inside a line: {self._partial[:200]!r}"
            return
        self._partial += chunk
        if b"\n" not in chunk:
            return
        *lines, self._partial = self._partial.split(b"\n")
        for line in map(bytes, lines):
            self.lines.append(line)
            message = json.loads(
                line, parse_constant=_refuse
            )  # anything else is what these tests are against
            for each in message if isinstance(message, list) else [message]:
                assert each["jsonrpc"] == "2.0", line[:200]
                assert "method" in each or ("result" in each) is not ("error" in each), line[:200]
                if "method" not in each and "id" in each:
                    self._answers.setdefault((type(each["id"]), each["id"]), []).append(each)
            self.messages.append(message)

    def _report(self, what: str) -> str:
        shown = b"\n".join(line[:300] for line in self.lines[-5:])
        tail = self.stderr[-3000:].decode("utf-8", "replace")
        return f"{what}; exit code {self.popen.poll()}; last of stdout:\n{shown!r}\nstderr:\n{tail}"

    # Speaking

    def write(self, data: bytes, within_s: float = DEADLINE_S) -> None:
        """Write all of these bytes, reading meanwhile what comes."""
        deadline = time.monotonic() + within_s
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[os.write(self.writing, rest[: 1 << 20]) :]
            except BlockingIOError:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise AssertionError(self._report(f"stdin not read for {within_s} s")) from None
                self._turn(left, write=True)

    def send(self, *messages: object) -> None:
        """Write messages, one line each, in one write."""
        self.write(b"".join(map(frame, messages)))

    def receive(self, within_s: float = DEADLINE_S) -> Any:
        """The next message of stdout."""
        self.pump(lambda: self._next < len(self.messages), within_s)
        self._next += 1
        return self.messages[self._next - 1]

    def answers(self, id: object) -> list[Any]:
        """Every answer with this id so far, also those inside batches.

        Equal in type too: id 1 is not id 1.0.
        """
        return self._answers.get((type(id), id), [])

    def forget(self) -> None:
        """Drop what came so far, so that the same ids can be used again."""
        self.messages.clear()
        self._answers.clear()
        self._next = 0

    def _flat(self) -> Iterator[Any]:
        for message in self.messages:
            yield from message if isinstance(message, list) else [message]

    def answer(self, id: object, within_s: float = DEADLINE_S) -> Any:
        """The answer with this id; fails if there is more than one."""
        self.pump(lambda: bool(self.answers(id)), within_s)
        (one,) = self.answers(id)
        return one

    def ask(self, message: Mapping[str, Any], within_s: float = DEADLINE_S) -> Any:
        """Send a request and return its answer."""
        self.send(message)
        return self.answer(message["id"], within_s)

    def initialize(self, version: str = "2025-11-25") -> Any:
        """The handshake, pipelined."""
        opening = {**INITIALIZE, "params": {**INITIALIZE["params"], "protocolVersion": version}}  # type: ignore[dict-item]
        self.send(opening, INITIALIZED)
        return self.answer(INITIALIZE["id"])

    def notifications(self, method: str) -> list[Any]:
        return [each["params"] for each in self._flat() if each.get("method") == method]

    def until_stderr(self, text: str, within_s: float = DEADLINE_S) -> None:
        """Wait until stderr has said this."""
        self.pump(lambda: text.encode() in self.stderr, within_s)

    # The end

    def close_stdin(self) -> None:
        if self.writing >= 0:
            os.close(self.writing)
            if self.writing == self.reading:
                self.reading, self.eof = -1, True
            self.writing = -1

    def close_stdout(self) -> None:
        os.close(self.reading)
        self.reading, self.eof = -1, True

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def wait(self, within_s: float = DEADLINE_S) -> int:
        """The exit code, once everything it wrote was read."""
        self.pump(lambda: self.popen.returncode is not None, within_s)
        return self.popen.returncode

    def finish(self, within_s: float = DEADLINE_S) -> int:
        """End of input; read the rest; the exit code."""
        self.close_stdin()
        code = self.wait(within_s)
        self.pump(lambda: self.eof and self._errors < 0, within_s)
        return code

    # What it holds

    def census(self) -> dict[str, int]:
        """Open descriptors, threads and children."""
        tasks = os.listdir(f"/proc/{self.pid}/task")
        children = sum(
            len(Path(f"/proc/{self.pid}/task/{task}/children").read_text().split())
            for task in tasks
            if os.path.exists(f"/proc/{self.pid}/task/{task}/children")
        )
        return {
            "fds": len(os.listdir(f"/proc/{self.pid}/fd")),
            "threads": len(tasks),
            "children": children,
        }

    def memory(self, name: str = "VmRSS") -> int:
        """Bytes of RSS now (or VmHWM: at most)."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith(name + ":"):
                return int(line.split()[1]) * 1024
        raise AssertionError(name)

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def main_thread_cpu_s(self) -> float:
        """CPU time of the main thread, to the nanosecond: other load does not change it."""
        return int(Path(f"/proc/{self.pid}/schedstat").read_text().split()[0]) / 1e9


def _refuse(constant: str) -> Any:
    raise AssertionError(f"{constant} is no JSON")


def script(folder: Path, source: str, name: str = "server.py") -> str:
    """A server file of a test's own.

    The source sees `server`, and what a server usually imports.
    """
    path = folder / name
    path.write_text(f"{PREFACE}\n{source}\n")
    return str(path)


PREFACE = """\
from __future__ import annotations
import asyncio, os, sys, threading, time
from concertino import Context, Server, ToolError
server = Server("probe", version="1.2.3")
"""
RUN = "\nserver.run()\n"


def wait_until_gone(pid: int, within_s: float) -> bool:
    """Wait until a process that is not our child has ended."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        return bool(poll.poll(within_s * 1000))
    finally:
        os.close(descriptor)


def put_down(pid: int) -> None:
    """End a process that a process of ours started."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def until(condition: Callable[[], bool], within_s: float = DEADLINE_S) -> None:
    """Wait for a state of another process that only /proc tells of, and no event: look again and
    again.
    """
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"not so after {within_s} s"
        select.select([], [], [], 0.005)


def watches_stdin(pid: int) -> bool:
    """Whether an epoll of the process watches the reading end of a pipe: its stdin
    (/proc/PID/fdinfo).
    """
    descriptors = Path(f"/proc/{pid}/fd")
    for number in os.listdir(descriptors):
        if os.readlink(descriptors / number) == "anon_inode:[eventpoll]":
            watched = re.findall(r"tfd:\s+(\d+)", Path(f"/proc/{pid}/fdinfo/{number}").read_text())
            for each in watched:
                flags = re.findall(
                    r"flags:\s+(\d+)", Path(f"/proc/{pid}/fdinfo/{each}").read_text()
                )
                if (
                    os.readlink(descriptors / each).startswith("pipe:")
                    and int(flags[0], 8) & os.O_ACCMODE == 0
                ):
                    return True
    return False
