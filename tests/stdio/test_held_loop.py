"""A tool that holds the event loop is noticed: runtime/loop_watcher.py, in a real process."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import pytest
from stdio.harness import Process, call, frame, request

SERVER = """\
import asyncio
import re
import time

from concertino import Server

server = Server("holding")


@server.tool
async def at_once(seconds: float) -> str:
    time.sleep(seconds)  # at once
    return "done"


@server.tool(name="after-a-while")
async def later(seconds: float) -> str:
    await asyncio.sleep(0.02)
    time.sleep(seconds)  # later
    return "done"


@server.tool(inline=True)
def native() -> str:
    # Does not let go of the interpreter.
    found = re.match("(a+)+$", "a" * 25 + "b")
    return str(found)


@server.tool
async def in_steps(steps: int) -> str:
    for _ in range(steps):
        time.sleep(0.05)
        await asyncio.sleep(0)
    return "done"


@server.tool
def in_a_thread(seconds: float) -> str:
    time.sleep(seconds)
    return "done"


@server.tool
async def wait(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "done"


@server.resource("slow://{name}")
async def slow(name: str) -> str:
    time.sleep(1)  # resource
    return name


server.run()
"""
WARNING = re.compile(
    r"\[WARN\] \[host\] (.*) has blocked the event loop for 250 ms, and stands at (\S+); "
)


@pytest.fixture
def server(tmp_path: Path) -> str:
    path = tmp_path / "holding.py"
    path.write_text(SERVER)
    return str(path)


def line_of(text: str) -> str:
    """The place of the only line of the server that ends with a text."""
    [number] = [n for n, line in enumerate(SERVER.splitlines(), 1) if line.endswith(text)]
    return f"holding.py:{number}"


def warnings(process: Process) -> list[tuple[str, str]]:
    return WARNING.findall(process.stderr.decode())


@pytest.mark.parametrize(
    ("tool", "comment"), [("at_once", "# at once"), ("after-a-while", "# later")]
)
def test_a_tool_that_holds_the_loop_is_logged_once_with_its_line(
    server: str, tool: str, comment: str
) -> None:
    with Process([server]) as process:
        process.initialize()
        for id in range(2):
            process.ask(call(id, tool, {"seconds": 1}))
        process.finish()
    assert warnings(process) == [(f"tool '{tool}'", line_of(comment))]


def test_it_is_logged_while_it_stands_there(server: str) -> None:
    with Process([server]) as process:
        process.initialize()
        process.send(call(1, "at_once", {"seconds": 30}))
        started = time.monotonic()
        process.until_stderr("has blocked the event loop")
        assert time.monotonic() - started < 10
        assert process.answers(1) == []
        process.signal(signal.SIGKILL)


def test_calls_that_come_with_the_opening_are_watched_too(server: str) -> None:
    with Process([server]) as process:
        process.write(frame(call(1, "at_once", {"seconds": 1}, modern=True)))
        process.answer(1)
        process.finish()
    assert warnings(process) == [("tool 'at_once'", line_of("# at once"))]


def test_native_code_that_keeps_the_interpreter_is_logged_when_it_is_over(server: str) -> None:
    with Process([server]) as process:
        process.initialize()
        process.ask(call(1, "native"))
        process.finish()
    [(tool, place)] = warnings(process)
    assert tool == "tool 'native'"
    assert place.startswith("holding.py:")


def test_resources_are_watched_as_tools_are(server: str) -> None:
    with Process([server]) as process:
        process.initialize()
        for id, name in enumerate("ab"):
            process.ask(request(id, "resources/read", {"uri": f"slow://{name}"}))
        process.finish()
    assert warnings(process) == [("resource 'slow://a'", line_of("# resource"))]


def test_calls_that_let_the_loop_run_are_not_logged(server: str) -> None:
    with Process([server]) as process:
        process.initialize()
        process.send(
            call(1, "in_steps", {"steps": 10}),
            call(2, "in_a_thread", {"seconds": 0.5}),
            call(3, "wait", {"seconds": 0.5}),
        )
        for id in (1, 2, 3):
            process.answer(id)
        process.finish()
    assert warnings(process) == []


def test_a_stopped_process_is_not_a_tool_s_fault(server: str) -> None:
    with Process([server], forked=False) as process:
        process.initialize()
        process.send(call(1, "at_once", {"seconds": 0.1}))
        process.signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        time.sleep(0.5)
        process.signal(signal.SIGCONT)
        process.answer(1)
        process.finish()
    assert warnings(process) == []


def switches(pid: int) -> int:
    """How often the threads of a process have gone to sleep, that is: were woken."""
    total = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        status = Path(f"/proc/{pid}/task/{task}/status").read_text()
        total += int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0])
    return total


def test_an_idle_process_is_not_woken(server: str) -> None:
    with Process([server]) as process:
        process.initialize()
        process.ask(call(1, "in_a_thread", {"seconds": 0}))
        process.ask(call(2, "wait", {"seconds": 0.1}))
        # It may take a moment until all threads rest.
        deadline = time.monotonic() + 20
        before = -1
        while before != (before := switches(process.pid)):
            assert time.monotonic() < deadline
            time.sleep(0.3)
        # Nothing happens in a time in which the watcher would wake twenty times.
        time.sleep(1.2)
        assert switches(process.pid) == before
        assert process.ask(call(3, "wait", {"seconds": 0}))["result"]
