"""How a server ends: end of input, signals, a client that is gone, an orphan (RELIABILITY section
7, DESIGN decision 9).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from stdio.harness import (
    DEADLINE_S,
    INITIALIZE,
    INITIALIZED,
    RUN,
    TOOLBOX,
    Process,
    call,
    environment,
    frame,
    put_down,
    request,
    script,
    text_of,
    until,
    wait_until_gone,
    watches_stdin,
)

DRAIN_S = 0.05
DRAIN = {"CONCERTINO_DRAIN_S": str(DRAIN_S)}


def cut_off(process: Process, *ids: int) -> bool:
    """Whether each of these calls was answered once, with the error of those that are cut off."""
    process.pump(lambda: process.eof)
    error = {"code": -32603, "message": "the server is shutting down"}
    return [process.answers(id) for id in ids] == [
        [{"jsonrpc": "2.0", "id": id, "error": error}] for id in ids
    ]


def at(process: Process, name: str) -> None:
    """Wait until a call has said (as a log message) that it waits at this gate."""
    process.pump(
        lambda: any(
            params["data"] == f"at {name}"
            for params in process.notifications("notifications/message")
        )
    )


# End of input


@pytest.mark.requirement("SH-2", "SH-3")
def test_end_of_input_while_idle() -> None:
    with Process(forked=False) as process:
        process.initialize()
        assert process.finish() == 0


def test_end_of_input_at_once() -> None:
    with Process(forked=False) as process:
        assert process.finish() == 0
        assert process.messages == []


def test_end_of_input_inside_a_message_is_answered_and_ends() -> None:
    with Process() as process:
        process.initialize()
        process.write(b'{"jsonrpc":"2.0","id":1,"method":"pi')
        assert process.finish() == 0
        assert [message["error"]["code"] for message in process.messages[1:]] == [-32700]


def test_the_last_line_needs_no_newline() -> None:
    with Process() as process:
        process.initialize()
        process.write(frame(call(1, "echo", {"text": "last"}))[:-1])
        assert process.finish() == 0
        assert text_of(process.answer(1)) == "last"


@pytest.mark.parametrize("tool", ["echo", "echo_in_thread", "echo_inline"])
def test_fifty_calls_and_the_end_of_input_are_all_answered(tool: str) -> None:
    with Process() as process:
        process.send(
            INITIALIZE, INITIALIZED, *(call(n, tool, {"text": str(n)}) for n in range(1, 51))
        )
        assert process.finish() == 0
        assert [text_of(process.answer(n)) for n in range(1, 51)] == [str(n) for n in range(1, 51)]


def test_calls_under_way_at_the_end_of_input_finish() -> None:
    with Process() as process:
        process.send(
            INITIALIZE, INITIALIZED, *(call(n, "sleep", {"seconds": 0.05}) for n in range(1, 51))
        )
        assert process.finish() == 0
        assert [text_of(process.answer(n)) for n in range(1, 51)] == ["slept"] * 50


def test_fifty_calls_that_wait_for_admission_are_answered_after_the_end_of_input() -> None:
    with Process(env={"CONCERTINO_MAX_IN_FLIGHT": "2"}) as process:
        process.send(
            INITIALIZE, INITIALIZED, *(call(n, "sleep", {"seconds": 0.01}) for n in range(1, 51))
        )
        assert process.finish() == 0
        assert [text_of(process.answer(n)) for n in range(1, 51)] == ["slept"] * 50


def test_an_async_call_that_does_not_finish_is_cut_off_after_the_drain_time() -> None:
    with Process(env=DRAIN) as process:
        process.initialize()
        process.send(call(1, "cleaned_up", {"name": "never"}))
        at(process, "never")
        before = time.monotonic()
        assert process.finish() == 0
        assert time.monotonic() - before >= DRAIN_S
        assert b"finally ran" in process.stderr
        assert b"1 calls were cut off" in process.stderr
        assert cut_off(process, 1)


def test_a_blocking_call_that_does_not_finish_does_not_hold_the_exit() -> None:
    with Process(env=DRAIN) as process:
        process.initialize()
        process.send(call(1, "block_at", {"name": "never"}))
        at(process, "never")
        assert process.finish() == 0
        assert cut_off(process, 1)


@pytest.mark.parametrize("how", ["end of input", "SIGTERM"])
def test_calls_that_are_cut_off_are_answered_whether_they_run_or_wait(how: str) -> None:
    with Process(env=DRAIN | {"CONCERTINO_MAX_IN_FLIGHT": "2"}) as process:
        process.initialize()
        process.send(*(call(n, "wait_at", {"name": "never"}) for n in range(1, 6)))
        at(process, "never")
        process.close_stdin() if how == "end of input" else process.signal(signal.SIGTERM)
        assert process.wait() == 0
        assert cut_off(process, *range(1, 6))
        process.pump(lambda: b"5 calls were cut off" in process.stderr)


def test_more_answers_than_a_pipe_holds_reach_a_client_that_reads() -> None:
    with Process(env=DRAIN | {"CONCERTINO_MAX_IN_FLIGHT": "5000"}) as process:
        process.initialize()
        process.send(*(call(n, "wait_at", {"name": "never"}) for n in range(1, 2001)))
        process.ask(request(0, "ping"))
        process.close_stdin()
        assert cut_off(process, *range(1, 2001))
        assert process.wait() == 0


def test_the_batch_of_a_call_that_is_cut_off_is_answered() -> None:
    with Process(env=DRAIN) as process:
        process.initialize("2025-03-26")
        process.send([call(1, "wait_at", {"name": "never"}), request(2, "ping")])
        at(process, "never")
        process.close_stdin()
        assert cut_off(process, 1)
        assert process.answers(2) == [{"jsonrpc": "2.0", "id": 2, "result": {}}]


def test_a_client_that_does_not_read_does_not_hold_up_the_end() -> None:
    with Process(env=DRAIN) as process:
        process.initialize()
        process.send(call(1, "big", {"count": 2_000_000}), call(2, "wait_at", {"name": "never"}))
        process.signal(signal.SIGTERM)
        assert process.wait() == 0


@pytest.mark.parametrize(
    ("calls", "text"), [(1, ", waiting for 1 call"), (3, ", waiting for 3 calls"), (0, "")]
)
def test_the_shutdown_is_logged_when_the_signal_comes(calls: int, text: str) -> None:
    with Process(env={"CONCERTINO_DRAIN_S": "60"}) as process:
        process.initialize()
        process.send(*(call(n, "block_at", {"name": "gate"}) for n in range(1, calls + 1)))
        if calls:
            at(process, "gate")
        process.ask(request(0, "ping"))
        process.signal(signal.SIGTERM)
        process.until_stderr(f"[toolbox] Shutting down toolbox MCP server{text}\n")
        # The calls are still under way, or the drain time of 60 s would not be over yet.
        assert all(process.answers(n) == [] for n in range(1, calls + 1))
        if calls:
            process.signal(signal.SIGTERM)
        assert process.wait() == 0


def test_the_shutdown_is_logged_while_a_handler_holds_the_loop() -> None:
    with Process(env={"CONCERTINO_DRAIN_S": "60"}) as process:
        process.initialize()
        process.send(call(1, "hold_the_loop", {"seconds": 600}))
        process.until_stderr("holding")
        process.signal(signal.SIGTERM)
        process.until_stderr("[toolbox] Shutting down toolbox MCP server, waiting for 1 call\n")
        process.signal(signal.SIGTERM)
        assert process.wait() == 0


@pytest.mark.parametrize("delay_s", [None, 0.02])
def test_started_is_logged_before_the_first_answer(tmp_path: Path, delay_s: float | None) -> None:
    source = f"""
import asyncio
from collections.abc import AsyncIterator
from concertino import Server
server = Server("early")
if {delay_s} is not None:
    @server.lifespan
    async def lifespan() -> AsyncIterator[None]:
        await asyncio.sleep({delay_s})
        yield
server.run()
"""
    path = tmp_path / "server.py"
    path.write_text(source)
    done = subprocess.run(
        [sys.executable, str(path)],
        input=json.dumps(INITIALIZE).encode() + b"\n",
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=30,
        check=True,
    )
    lines = done.stdout.splitlines()
    [started] = [n for n, line in enumerate(lines) if b"started successfully" in line]
    [answer] = [n for n, line in enumerate(lines) if line.startswith(b'{"jsonrpc"')]
    assert started < answer


@pytest.mark.slow
def test_the_default_drain_time_is_two_seconds() -> None:
    with Process() as process:
        process.initialize()
        process.send(call(1, "wait_at", {"name": "never"}))
        at(process, "never")
        before = time.monotonic()
        assert process.finish() == 0
        assert time.monotonic() - before >= 1.9


def test_input_after_the_beginning_of_the_end_is_not_read() -> None:
    with Process(env={"CONCERTINO_DRAIN_S": "0.5"}) as process:
        process.initialize()
        process.send(call(1, "wait_at", {"name": "x"}))
        at(process, "x")
        process.signal(signal.SIGTERM)
        until(lambda: not watches_stdin(process.pid))
        process.send(call(2, "open_gate", {"name": "x"}))
        assert process.wait() == 0
        assert cut_off(process, 1)
        assert process.answers(2) == []


def test_atexit_functions_run_and_their_output_is_seen(tmp_path: Path) -> None:
    source = """
import atexit
atexit.register(lambda: print("goodbye"))
def broken(): raise ValueError("in atexit")
atexit.register(broken)
atexit.register(lambda: os.write(2, b"first goodbye\\n"))
"""
    with Process([script(tmp_path, source + RUN)], forked=False) as process:
        process.initialize()
        assert process.finish() == 0
        assert process.stderr.index(b"first goodbye") < process.stderr.index(b"\ngoodbye")


@pytest.mark.slow
def test_an_atexit_function_that_hangs_is_not_waited_for(tmp_path: Path) -> None:
    source = "import atexit\natexit.register(threading.Event().wait)\n"
    with Process([script(tmp_path, source + RUN)], forked=False) as process:
        process.initialize()
        assert process.finish() == 0


def test_a_thread_of_the_program_that_never_ends_does_not_hold_the_exit(tmp_path: Path) -> None:
    source = """
@server.tool
def start() -> str:
    threading.Thread(target=threading.Event().wait, daemon=False).start()
    return "started"
"""
    with Process([script(tmp_path, source + RUN)], forked=False) as process:
        process.initialize()
        process.ask(call(1, "start"))
        assert process.finish() == 0


# Signals


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_calls_under_way_finish_and_exits_with_0(number: int) -> None:
    with Process(forked=False) as process:
        process.initialize()
        process.send(*(call(n, "sleep", {"seconds": 0.1}) for n in range(1, 11)))
        process.ask(request(11, "ping"))
        process.signal(number)
        assert process.wait() == 0
        assert [text_of(process.answer(n)) for n in range(1, 11)] == ["slept"] * 10


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_idle_ends_at_once(number: int) -> None:
    with Process(env={"CONCERTINO_DRAIN_S": "60"}, forked=False) as process:
        process.initialize()
        process.signal(number)
        assert process.wait() == 0
        assert b"Traceback" not in process.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_at_once_even_while_a_handler_holds_the_loop(number: int) -> None:
    with Process(env={"CONCERTINO_DRAIN_S": "60"}) as process:
        process.initialize()
        process.send(call(1, "hold_the_loop", {"seconds": 60}))
        process.until_stderr("holding")
        process.signal(number)
        process.signal(signal.SIGTERM if number == signal.SIGINT else signal.SIGINT)
        assert process.wait() == 0


def test_a_second_signal_ends_a_drain() -> None:
    with Process(env={"CONCERTINO_DRAIN_S": "60"}) as process:
        process.initialize()
        process.send(call(1, "wait_at", {"name": "never"}))
        at(process, "never")
        process.signal(signal.SIGTERM)
        until(lambda: not watches_stdin(process.pid))
        process.signal(signal.SIGTERM)
        assert process.wait() == 0


def test_a_signal_during_a_drain_after_the_end_of_input_ends_it() -> None:
    """All three share one drain: the first signal changes nothing, the second ends."""
    with Process(env={"CONCERTINO_DRAIN_S": "60"}) as process:
        process.initialize()
        process.send(call(1, "wait_at", {"name": "never"}))
        at(process, "never")
        process.close_stdin()
        process.signal(signal.SIGTERM)
        process.signal(signal.SIGINT)
        assert process.wait() == 0


def test_sigterm_before_the_handshake_ends_with_0() -> None:
    with Process() as process:
        process.until_stderr("started successfully")
        process.signal(signal.SIGTERM)
        assert process.wait() == 0


# Whatever holds the end: gone within the drain time and two seconds

HANGS = {
    "close": "    async def close(self):\n        await asyncio.sleep(1000)\n",
    "close that holds the loop": "    async def close(self):\n        time.sleep(1000)\n",
    "start": """    async def start(self, outlet):
        while True:
            try:
                await asyncio.sleep(1000)
            except asyncio.CancelledError:
                pass
""",
}


@pytest.mark.slow
@pytest.mark.parametrize("how", ["end of input", "signal"])
@pytest.mark.parametrize("what", HANGS)
def test_a_backend_that_hangs_does_not_hold_the_exit(what: str, how: str, tmp_path: Path) -> None:
    source = f"import time\nclass Hanging(Server):\n{HANGS[what]}server = Hanging('hanging')\n"
    with Process([script(tmp_path, source + RUN)], env=DRAIN) as process:
        process.initialize()
        process.close_stdin() if how == "end of input" else process.signal(signal.SIGTERM)
        assert process.wait() == 0


@pytest.mark.slow
@pytest.mark.parametrize("how", ["end of input", "signal"])
def test_a_handler_that_holds_the_loop_does_not_hold_the_exit(how: str) -> None:
    with Process(env=DRAIN) as process:
        process.initialize()
        process.send(call(1, "sleep", {"seconds": 60}), call(2, "hold_the_loop", {"seconds": 60}))
        process.until_stderr("holding")
        process.close_stdin() if how == "end of input" else process.signal(signal.SIGTERM)
        assert process.wait() == 0
        assert cut_off(process, 1, 2)
        assert b"something blocked the shutdown" in process.stderr


@pytest.mark.slow
@pytest.mark.parametrize("how", ["end of input", "signal"])
@pytest.mark.parametrize("is_read", [False, True], ids=["opener not read", "opener read"])
def test_the_opener_is_told_that_the_start_holds_the_loop(
    is_read: bool, how: str, tmp_path: Path
) -> None:
    # This module is imported when a message arrives before the backend has started.
    waits = (
        "        while 'concertino.runtime.opening' not in sys.modules: await asyncio.sleep(0)\n"
    )
    source = (
        "import asyncio, sys, time\n"
        "class Hanging(Server):\n"
        "    async def start(self, outlet):\n"
        f"{waits if is_read else ''}"
        "        print('holding', file=sys.stderr, flush=True)\n"
        "        time.sleep(600)\n"
        "server = Hanging('hanging')\n"
    )
    with Process([script(tmp_path, source + RUN)], env=DRAIN) as process:
        process.send(INITIALIZE)
        process.until_stderr("holding")
        process.close_stdin() if how == "end of input" else process.signal(signal.SIGTERM)
        assert process.wait() == 0
        process.pump(lambda: process.eof)
        [answer] = process.answers("initialize")
    assert answer["error"] == {
        "code": -32603,
        "message": "cannot start: the server is shutting down, and its start blocks the event loop",
    }


@pytest.mark.slow
def test_a_failed_start_with_a_close_that_hangs_still_exits_with_1(tmp_path: Path) -> None:
    source = (
        "class Failing(Server):\n    async def start(self, outlet):\n        raise ValueError\n"
        + HANGS["close"]
    )
    with Process(
        [script(tmp_path, source + "server = Failing('failing')\n" + RUN)], env=DRAIN
    ) as process:
        assert process.wait() == 1


@pytest.mark.slow
def test_a_signal_to_a_forked_child_ends_the_child_alone(tmp_path: Path) -> None:
    source = """
import signal, time
@server.tool
async def fork() -> int:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        # A signal that comes before Python is ready in the child would be lost.
        os.write(writing, b"!")
        time.sleep(10)
        os._exit(3)
    os.read(reading, 1)
    os.kill(pid, signal.SIGTERM)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
@server.tool
async def sleep(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "slept"
"""
    with Process([script(tmp_path, source + RUN)], env=DRAIN) as process:
        process.initialize()
        assert text_of(process.ask(call(1, "fork"))) == "-15"
        assert text_of(process.ask(call(2, "sleep", {"seconds": 2.5}))) == "slept"
        assert process.finish() == 0


# The client is gone


@pytest.mark.requirement("LC-15")
def test_a_client_that_closes_stdout_ends_the_server() -> None:
    with Process(forked=False) as process:
        process.initialize()
        process.close_stdout()
        assert process.wait() == 0


def test_a_client_that_closes_stdout_during_a_call_ends_the_server() -> None:
    with Process() as process:
        process.initialize()
        process.send(call(1, "cleaned_up", {"name": "never"}))
        at(process, "never")
        process.close_stdout()
        assert process.wait() == 0
        assert b"finally ran" in process.stderr
        assert b"Traceback" not in process.stderr


def test_a_client_that_closes_stdout_with_output_held_ends_the_server() -> None:
    with Process() as process:
        process.initialize()
        process.send(*(call(n, "big", {"count": 100_000}) for n in range(1, 50)))
        process.pump(lambda: len(process.lines) > 1)
        process.close_stdout()
        assert process.wait() == 0


def spawner(folder: Path, body: str) -> str:
    """A client in a process of its own, that can be killed: it starts the toolbox and
    says its pid.
    """
    path = folder / "client.py"
    path.write_text(f"""
import subprocess, sys, time
PIPE = subprocess.PIPE
server = subprocess.Popen([sys.executable, {TOOLBOX!r}], stdin=PIPE, stdout=PIPE)
server.stdin.write({frame(INITIALIZE)!r}); server.stdin.flush()
server.stdout.readline()
{body}
print(server.pid, flush=True)
time.sleep(600)
""")
    return str(path)


@pytest.mark.parametrize("how", ["idle", "call", "blocking call"])
def test_a_killed_client_leaves_no_server(how: str, tmp_path: Path) -> None:
    import subprocess

    if how == "idle":
        said = ""
    else:
        line = frame(call(1, "wait_at" if how == "call" else "block_at", {"name": "x"}))
        said = f"server.stdin.write({line!r}); server.stdin.flush(); server.stdout.readline()"
    client = subprocess.Popen(
        [sys.executable, spawner(tmp_path, said)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        # Its end of input ends the server, not what looks for orphans.
        env=environment(CONCERTINO_ORPHAN="stay", **DRAIN),
    )
    with client:
        assert client.stdout is not None
        pid = int(client.stdout.readline())
        try:
            client.kill()
            assert wait_until_gone(pid, DEADLINE_S)
        finally:
            put_down(pid)


POOL = """
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

@server.tool
async def work(method: str, seconds: float) -> int:
    global pool
    pool = ProcessPoolExecutor(1, mp_context=get_context(method))
    loop = asyncio.get_running_loop()
    pid = await loop.run_in_executor(pool, os.getpid)
    loop.run_in_executor(pool, time.sleep, seconds)
    return pid

if __name__ == "__main__":
    server.run()
"""


@pytest.mark.parametrize("seconds", [0, 60])
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_the_workers_of_a_process_pool_end_with_the_server(
    method: str, seconds: float, tmp_path: Path
) -> None:
    """The interpreter's own shutdown would tell them; the process leaves without it, and they would
    wait for work for ever.
    """
    with Process([script(tmp_path, POOL)], forked=False) as process:
        process.initialize()
        worker = int(text_of(process.ask(call(1, "work", {"method": method, "seconds": seconds}))))
        try:
            process.close_stdin()
            assert process.wait() == 0
            assert wait_until_gone(worker, DEADLINE_S)
            process.pump(lambda: b"Shutting down probe MCP server" in process.stderr)
        finally:
            put_down(worker)


# Orphans


def wrap_in_shell(env: dict[str, str]) -> Process:
    """`sh -c 'python toolbox.py; true'`: sh stays in between, and its death closes no pipe."""
    return Process(["sh", "-c", f"{sys.executable} {TOOLBOX}; true"], command=True, env=env)


def server_behind(process: Process) -> int:
    process.initialize()
    return int(process.ask(call("pid", "facts"))["result"]["structuredContent"]["pid"])


@pytest.mark.requirement("LC-15")
@pytest.mark.slow
def test_an_orphan_with_open_pipes_is_gone_after_five_silent_seconds() -> None:
    with wrap_in_shell({}) as process:
        pid = server_behind(process)
        try:
            before = time.monotonic()
            process.ask(request(1, "ping"))
            process.signal(signal.SIGKILL)
            assert process.wait() == -signal.SIGKILL
            assert wait_until_gone(pid, DEADLINE_S)
            assert time.monotonic() - before >= 5
            process.pump(lambda: process.eof)
        finally:
            put_down(pid)


@pytest.mark.slow
def test_an_orphan_that_is_still_spoken_to_lives() -> None:
    with wrap_in_shell({}) as process:
        pid = server_behind(process)
        try:
            process.signal(signal.SIGKILL)
            process.wait()
            for number in range(14):
                before = time.monotonic()
                process.ask(call(number, "sleep", {"seconds": 0.5}))
            assert wait_until_gone(pid, DEADLINE_S)
            assert time.monotonic() - before >= 5
        finally:
            put_down(pid)


@pytest.mark.slow
def test_an_orphan_that_was_told_to_stay_stays() -> None:
    with wrap_in_shell({"CONCERTINO_ORPHAN": "stay"}) as process:
        pid = server_behind(process)
        try:
            process.signal(signal.SIGKILL)
            process.wait()
            assert not wait_until_gone(pid, 7)
            assert process.ask(request(1, "ping"))["result"] == {}
            process.close_stdin()
            assert wait_until_gone(pid, DEADLINE_S)
        finally:
            put_down(pid)


@pytest.mark.slow
def test_twenty_starts_and_stops_leave_nothing_behind() -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        with Process(forked=False) as process:
            process.initialize()
            assert process.finish() == 0
            assert b"Fatal Python error" not in process.stderr
            assert b"Traceback" not in process.stderr
    assert len(os.listdir("/proc/self/fd")) == before


# Every wait of the package's own at the end of a process, with the longest time that it may take.
PATIENT = """
import sys
import concertino.runtime.process
from concertino import Server
server = Server("patient")
for name, module in list(sys.modules.items()):
    if name.startswith("concertino."):
        for limit in vars(module).keys() & {"CLEANUP_S", "LEAVE_S", "LAST_WORDS_S"}:
            setattr(module, limit, 60.0)
server.run()
"""


@pytest.mark.requirement("SH-2")
def test_exit_waits_for_nothing_when_nothing_is_under_way(tmp_path: Path) -> None:
    """The normal close of a client must not cost it a wait: each would take a minute here."""
    path = tmp_path / "server.py"
    path.write_text(PATIENT)
    with Process([str(path)], env={"CONCERTINO_DRAIN_S": "60"}, forked=False) as process:
        process.initialize()
        assert process.finish() == 0


@pytest.mark.slow
def test_an_idle_server_uses_no_processor() -> None:
    with Process() as process:
        process.initialize()
        before = process.cpu_s()
        process.ask(call(1, "sleep", {"seconds": 1.5}))
        assert process.cpu_s() - before <= 0.05  # two or three ticks of 10 ms


def test_four_thousand_calls_leave_memory_descriptors_threads_and_tasks_as_they_were() -> None:
    with Process() as process:
        process.initialize()

        def round_of(start: int) -> None:
            calls = [
                call(start + n, ("echo", "echo_in_thread")[n % 2], {"text": "x" * 1000})
                for n in range(2000)
            ]
            process.send(*calls)
            process.answer(start + 1999)
            process.pump(
                lambda: (
                    sum(isinstance(m.get("id"), int) and m["id"] >= start for m in process.messages)
                    == 2000
                )
            )

        round_of(10_000)
        tasks = process.ask(call("t1", "facts"))["result"]["structuredContent"]["tasks"]
        memory, census = process.memory(), process.census()
        process.forget()
        round_of(20_000)
        process.forget()
        round_of(30_000)
        assert process.ask(call("t2", "facts"))["result"]["structuredContent"]["tasks"] == tasks
        assert process.memory() - memory < 16 * 2**20
        after = process.census()
        assert (after["fds"], after["children"]) == (census["fds"], census["children"])
        # The main thread, 32 for `def` handlers, each started when it was first needed, one that
        # bounds the end, and one that watches the loop.
        assert after["threads"] <= 35
