"""transports/process.py: real children, and everything they may do at their end."""

from __future__ import annotations

import asyncio
import os
import re
import select
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from process_waits import wait_for_end

import concertino
from concertino.errors import SpawnError
from concertino.transports import escaped_processes, polling, process_exit
from concertino.transports.escaped_processes import EscapedProcesses
from concertino.transports.process import ChildProcess, ShutdownTimeouts, spawn
from concertino.transports.process_exit import live_members

# The folder from which a child imports the package.
SOURCES = str(Path(concertino.__file__).parents[1])
QUICK = ShutdownTimeouts(stdin_closed_s=0.3, terminated_s=0.3, killed_s=10)
PATIENT = ShutdownTimeouts(stdin_closed_s=20, terminated_s=20, killed_s=20)


class Ear:
    """A receiver that remembers, and can be waited for."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.over: list[str] = []
        self.tasks: set[object] = set()  # inside of which lines came
        self._changed = asyncio.Event()

    def on_frames(self, batch: Sequence[bytes]) -> None:
        self.lines += batch
        self.tasks.add(asyncio.current_task())
        self._changed.set()

    def on_frame_too_long(self, size: int) -> None:
        self.lines.append(b"(overlong)")
        self._changed.set()

    def on_drain(self, held: int) -> None: ...

    def on_eof(self) -> None:
        self.over.append("ended")
        self._changed.set()

    def on_disconnect(self, why: Exception) -> None:
        self.over.append("lost")
        self._changed.set()

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(20):
            while not condition():
                self._changed.clear()
                await self._changed.wait()


def on_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    import functools

    @functools.wraps(test)
    def run_it(*args: Any, **kwargs: Any) -> None:
        before = set(os.listdir("/proc/self/fd"))
        asyncio.run(test(*args, **kwargs))
        assert set(os.listdir("/proc/self/fd")) == before, "descriptors are left open"

    return run_it


@asynccontextmanager
async def start_process(
    code: str, *arguments: str, **settings: Any
) -> AsyncIterator[tuple[ChildProcess, Ear]]:
    settings.setdefault("ladder", PATIENT)
    child = spawn([sys.executable, "-c", code, *arguments], **settings)
    ear = Ear()
    child.open(ear)
    try:
        yield child, ear
    finally:
        async with asyncio.timeout(40):
            await child.close(1)
        assert live_members(child.pid) == []
        with pytest.raises(ProcessLookupError):  # not even a zombie
            os.kill(child.pid, 0)


ECHO = "import sys\nfor line in sys.stdin: print(line, end='')"


@on_a_loop
async def test_what_is_written_reaches_the_child_and_its_lines_come_back() -> None:
    async with start_process(ECHO) as (child, ear):
        for number in range(3):
            child.write(b"%d" % number, None)
        child.flush()
        await ear.until(lambda: len(ear.lines) == 3)
        assert ear.lines == [b"0", b"1", b"2"]
    assert child.exit_status == 0
    assert child.facts == {"transport": "process", "pid": child.pid}


@on_a_loop
async def test_a_child_that_ends_is_told_after_its_last_line_its_status_and_its_last_words() -> (
    None
):
    code = "import sys; print('bye'); print('a reason', file=sys.stderr); sys.exit(7)"
    async with start_process(code) as (child, ear):
        await ear.until(lambda: ear.over)
        assert ear.lines == [b"bye"]
        assert ear.over == ["ended"]
        assert child.exit_status == 7
        assert child.tail == b"a reason\n"


@on_a_loop
async def test_a_child_killed_by_a_signal_has_its_number_with_a_minus() -> None:
    async with start_process("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)") as (
        child,
        ear,
    ):
        await ear.until(lambda: ear.over)
        assert child.exit_status == -signal.SIGSEGV


@on_a_loop
async def test_all_that_was_written_behind_a_killed_wrapper_is_read(tmp_path: Path) -> None:
    noted = tmp_path / "noted"
    # It notes each line after it was written, as fast as it can.
    server = (
        "import os, sys; log = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT); number = 0\n"
        "while True: number += 1; os.write(1, b'%d\\n' % number); os.pwrite(log, b'%d' % number, 0)"
    )
    command = f"[sys.executable, '-c', {server!r}, {str(noted)!r}]"
    wrapper = f"import subprocess, sys; subprocess.run({command})"
    async with start_process(wrapper) as (child, ear):
        await ear.until(lambda: len(ear.lines) > 10)
        os.kill(child.pid, signal.SIGKILL)
        await ear.until(lambda: ear.over)
        assert int(noted.read_text()) <= int(ear.lines[-1])


@on_a_loop
async def test_answers_are_read_although_the_child_has_closed_its_stdin() -> None:
    code = "import os, sys; os.close(0); print('x' * 100_000 + '\\n' + 'last')"
    async with start_process(code) as (_, ear):
        await ear.until(lambda: ear.over)
        assert ear.lines == [b"x" * 100_000, b"last"]


@on_a_loop
async def test_a_child_that_closes_stdout_but_lives_is_over_at_once_and_stopped() -> None:
    async with start_process("import os, time; os.close(1); time.sleep(60)", ladder=QUICK) as (
        child,
        ear,
    ):
        await ear.until(lambda: ear.over)
        assert child.exit_status is None
    assert child.exit_status == -signal.SIGTERM


@on_a_loop
async def test_a_child_that_closes_stdin_but_lives_is_over_at_once_and_stopped() -> None:
    async with start_process("import os, time; os.close(0); time.sleep(60)", ladder=QUICK) as (
        child,
        ear,
    ):
        await ear.until(lambda: ear.over)
        assert ear.over == ["ended"]
    assert child.exit_status == -signal.SIGTERM


@pytest.mark.requirement("SH-1", side="client")
@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("import sys; print('up', flush=True); sys.stdin.read()", 0),
        ("import time; print('up', flush=True); time.sleep(60)", -signal.SIGTERM),
        (
            "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); "
            "time.sleep(60)",
            -signal.SIGKILL,
        ),
        (
            "import os, signal; print('up', flush=True); os.kill(os.getpid(), signal.SIGSTOP)",
            -signal.SIGKILL,
        ),
    ],
    ids=["obeys the end of input", "ignores it", "ignores SIGTERM", "is stopped"],
)
@on_a_loop
async def test_the_ladder_goes_only_as_far_as_it_must(code: str, status: int) -> None:
    ladder = PATIENT if status == 0 else QUICK
    async with start_process(code, ladder=ladder) as (child, ear):
        await ear.until(lambda: ear.lines)
    assert child.exit_status == status


@on_a_loop
async def test_everything_that_a_wrapper_started_is_gone() -> None:
    # One write each: print() unbuffered makes two, and the two processes' would mix.
    stubborn = (
        "import os, time, signal; signal.signal(15, signal.SIG_IGN); os.write(1, b'up\\n'); "
        "time.sleep(60)"
    )
    sleeper = f'{sys.executable} -c "{stubborn}"'
    child = spawn(["sh", "-c", f"{sleeper} & {sleeper} & wait"], ladder=QUICK)
    ear = Ear()
    child.open(ear)
    await ear.until(lambda: len(ear.lines) == 2)
    assert len(live_members(child.pid)) == 3
    await child.close(0)
    assert live_members(child.pid) == []


@on_a_loop
async def test_what_a_child_left_behind_when_it_ended_is_gone_too() -> None:
    code = (
        "import subprocess, sys\n"
        "subprocess.Popen([sys.executable, '-c', 'import time; print(1, flush=True); "
        "time.sleep(60)'], stdin=subprocess.DEVNULL)"
    )
    async with start_process(code, ladder=QUICK) as (child, ear):
        await ear.until(lambda: ear.lines and ear.over)
        assert child.exit_status == 0
        assert len(live_members(child.pid)) == 1


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


SLEEP = "subprocess.Popen({command}, start_new_session=True, **{options})"
NULL = "dict(stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)"
STUBBORN = (
    "[sys.executable, '-c', 'import signal, sys, time; signal.signal(15, signal.SIG_IGN);"
    ' open(sys.argv[1], "w"); time.sleep(600)\', sys.argv[1]]'
)


@pytest.mark.parametrize(
    ("command", "options", "signals"),
    [
        ("['sleep', '600']", "{}", ["SIGTERM"]),
        ("['sleep', '600']", NULL, ["SIGTERM"]),
        ("['/bin/sleep', '600']", NULL[:-1] + ", env={})", ["SIGTERM"]),
        (STUBBORN, NULL, ["SIGTERM", "SIGKILL"]),
    ],
    ids=["as it is", "with its own output", "with its own environment", "that ignores SIGTERM"],
)
@on_a_loop
async def test_what_left_the_group_is_found_and_ended(
    command: str, options: str, signals: list[str], caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    ready = tmp_path / "ready"
    code = (
        f"import os, subprocess, sys, time\n"
        f"one = {SLEEP.format(command=command, options=options)}\n"
        "while 'Popen' in sys.argv[2] and not os.path.exists(sys.argv[1]): time.sleep(0.001)\n"
        "print(one.pid, flush=True)\nsys.stdin.read()"
    )
    waits = "Popen" if command is STUBBORN else ""
    async with start_process(code, str(ready), waits, ladder=QUICK) as (child, ear):
        await ear.until(lambda: ear.lines)
        pid = int(ear.lines[0])
        assert is_running(pid)
    assert child.exit_status == 0
    assert not is_running(pid)
    text = (
        rf"process {pid} \(\w+\), started by process {child.pid}, has left its process group: (\w+)"
    )
    assert re.findall(text, caplog.text) == signals
    assert "holds its stdout open" not in caplog.text


@on_a_loop
async def test_what_left_the_group_and_starts_itself_again_is_waited_for_only_so_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Such a program answers SIGTERM with a new process of its own, and ends."""
    escaped = EscapedProcesses()
    pids = iter(range(10**7, 10**8))
    monkeypatch.setattr(escaped, "_find", lambda child: ([next(pids)], True))
    monkeypatch.setattr(escaped, "_signal", lambda pids, child, number: pids)
    async with asyncio.timeout(20):
        assert not await escaped.end(1, signal.SIGTERM, 0.05)


@on_a_loop
async def test_the_guardian_of_a_child_that_is_killed_ends_by_itself(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Such a child is a proxy: its guardian ends the servers, and is not one of them."""
    code = (
        "import signal, sys, time\n"
        f"sys.path.insert(0, {SOURCES!r})\n"
        "from concertino.transports.guardian import guardian\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "guardian.acquire()\n"
        "print(guardian.pid, flush=True)\n"
        "time.sleep(600)"
    )
    async with start_process(code, ladder=QUICK) as (child, ear):
        await ear.until(lambda: ear.lines)
    assert child.exit_status == -signal.SIGKILL
    await asyncio.to_thread(wait_for_end, int(ear.lines[0]))
    assert "has left its process group" not in caplog.text


@on_a_loop
async def test_what_left_the_group_of_a_child_that_crashed_is_killed_at_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    code = (
        "import os, subprocess, sys\n"
        "one = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        "print(one.pid, flush=True)\nos._exit(7)"
    )
    async with start_process(code, ladder=PATIENT) as (_, ear):
        await ear.until(lambda: ear.over)
    assert not is_running(int(ear.lines[0]))
    assert "has left its process group: SIGKILL" in caplog.text


@on_a_loop
async def test_what_left_the_group_and_changed_its_user_is_reported_and_not_waited_for(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = (
        "import subprocess, sys\n"
        "one = subprocess.Popen(['/bin/sleep', '60'], start_new_session=True, env={})\n"
        "print(one.pid, flush=True)\nsys.stdin.read()"
    )
    async with start_process(code, ladder=PATIENT) as (child, ear):
        await ear.until(lambda: ear.lines)
        pid = int(ear.lines[0])

        def refuse(pid: int, number: int) -> None:
            raise PermissionError

        monkeypatch.setattr(escaped_processes.os, "kill", refuse)
        async with asyncio.timeout(10):
            await child.close(1)
        monkeypatch.undo()
        assert is_running(pid)
        os.kill(pid, signal.SIGKILL)
    assert f"process {pid} (sleep), started by process {child.pid}" in caplog.text
    assert caplog.text.count("belongs to another user and is not ended") == 1


@on_a_loop
async def test_what_left_the_group_ends_with_a_loop_that_ends_at_once() -> None:
    code = (
        "import subprocess, sys\none = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        "print(one.pid, flush=True)\nsys.stdin.read()"
    )
    child = spawn([sys.executable, "-c", code])
    ear = Ear()
    child.open(ear)
    await ear.until(lambda: ear.lines)
    child.abandon()
    # Nobody waits for its end there.
    async with asyncio.timeout(20):
        while is_running(int(ear.lines[0])):
            await asyncio.sleep(0.001)


@on_a_loop
async def test_the_children_of_other_clients_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other child was started by this process too, and by one that is a child itself."""
    monkeypatch.setenv("CONCERTINO_STARTED_BY", "outer")
    async with start_process(ECHO) as (_, _):
        code = "import os; print(os.environ['CONCERTINO_STARTED_BY'])"
        async with start_process(code, ladder=QUICK) as (_, ear):
            await ear.until(lambda: ear.lines)
            outer, mark = ear.lines[0].split(b",")
            assert outer == b"outer"
            assert re.fullmatch(rb"[0-9a-f]{24}-%d-\d+-\d+" % os.getpid(), mark)
        async with start_process(ECHO, ladder=QUICK) as (other, _):
            pass
        assert other.exit_status == 0


@on_a_loop
@pytest.mark.parametrize("held", ["stdout", "stderr"])
async def test_what_cleared_its_environment_and_lost_its_parent_is_found_by_the_pipe_it_holds(
    caplog: pytest.LogCaptureFixture, held: str
) -> None:
    other = {"stdout": "stderr", "stderr": "stdout"}[held]
    code = (
        "import subprocess, sys\n"
        "one = subprocess.Popen(['/bin/sleep', '600'], start_new_session=True, env={}, "
        f"stdin=subprocess.DEVNULL, {other}=subprocess.DEVNULL)\n"
        "print(one.pid, flush=True)"
    )
    async with start_process(code, ladder=PATIENT) as (_, ear):
        await ear.until(lambda: ear.over)
    assert not is_running(int(ear.lines[0]))
    assert "has left its process group: SIG" in caplog.text
    assert "holds its stdout open" not in caplog.text


@on_a_loop
async def test_a_process_that_this_one_has_forked_is_not_taken_for_one_of_the_child() -> None:
    """It has our ends of the pipes open, and not those of the child."""
    async with start_process(ECHO, ladder=QUICK) as (_, _):
        forked = os.fork()
        if not forked:
            time.sleep(600)
            os._exit(0)
    try:
        assert is_running(forked)
    finally:
        os.kill(forked, signal.SIGKILL)
        os.waitpid(forked, 0)


@on_a_loop
async def test_what_cannot_be_found_and_holds_stdout_is_reported(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has an environment of its own, and its descriptors cannot be read."""
    monkeypatch.setattr(escaped_processes, "read_written_pipes", lambda _: set())
    code = (
        "import subprocess, sys\n"
        "one = subprocess.Popen(['/bin/sleep', '60'], start_new_session=True, env={})\n"
        "print(one.pid, flush=True)"
    )
    async with start_process(code, ladder=QUICK) as (_, ear):
        await ear.until(lambda: ear.over)
    os.kill(int(ear.lines[0]), signal.SIGKILL)
    assert "has left its process group and holds its stdout open" in caplog.text


@on_a_loop
async def test_stderr_is_drained_kept_at_its_end_and_handed_on() -> None:
    said: list[bytes] = []
    code = "import sys; sys.stderr.buffer.write(b'\\xff' * 3_000_000 + b'end'); print('done')"
    async with start_process(code, stderr=said.append) as (child, ear):
        await ear.until(lambda: ear.over)
        assert sum(map(len, said)) == 3_000_003
        assert len(child.tail) == 8192
        assert child.tail.endswith(b"\xffend")


@on_a_loop
async def test_a_sink_that_fails_is_logged_and_stderr_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(_: bytes) -> None:
        raise ValueError("no disk")

    async with start_process("import sys; print('x', file=sys.stderr)", stderr=fail) as (
        child,
        ear,
    ):
        await ear.until(lambda: ear.over)
        assert child.tail == b"x\n"
    assert "no disk" in caplog.text


@pytest.mark.requirement("SH-6", "SC-2", side="client")
@on_a_loop
async def test_only_the_variables_that_are_named_reach_the_child(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "hunter2")
    monkeypatch.setenv("LANG", "C.UTF-8")
    code = "import os; print(sorted(os.environ.items()))"
    async with start_process(code, env={"MINE": "1", "LANG": "de_DE.UTF-8", "PYTHONUTF8": "0"}) as (
        _,
        ear,
    ):
        await ear.until(lambda: ear.lines)
    variables = dict(eval(ear.lines[0]))
    assert variables.pop("LC_CTYPE", "C.UTF-8") == "C.UTF-8"  # Python's own doing (PEP 538)
    allowed = {"HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER", "LANG", "TZ", "TMPDIR", "LC_ALL"}
    ours = {"PYTHONUNBUFFERED", "PYTHONUTF8", "CONCERTINO_STARTED_BY"}
    assert variables.keys() <= allowed | ours | {"MINE"}
    assert variables["MINE"] == "1"
    assert variables["LANG"] == "de_DE.UTF-8"
    assert variables["PYTHONUTF8"] == "0"
    assert variables["PYTHONUNBUFFERED"] == "1"
    assert variables["PATH"] == os.environ["PATH"]


@pytest.mark.requirement("SC-2", side="client")
@on_a_loop
async def test_the_working_directory_is_the_one_that_is_given(tmp_path: Path) -> None:
    async with start_process("import os; print(os.getcwd())", cwd=tmp_path) as (_, ear):
        await ear.until(lambda: ear.lines)
        assert ear.lines == [os.fsencode(os.path.realpath(tmp_path))]


def _file(path: Path, text: str, mode: int) -> str:
    path.write_text(text)
    path.chmod(mode)
    return str(path)


@pytest.mark.parametrize(
    ("command", "text"),
    [
        (lambda _: ["no-such-program"], "no-such-program: command not found in PATH="),
        (
            lambda _: ["cat file"],
            "; did you mean the command 'cat' with the argument 'file'?",
        ),
        (
            lambda _: ["cat a b"],
            "; did you mean the command 'cat' with the arguments 'a', 'b'?",
        ),
        (lambda _: ["/no/such/program"], "/no/such/program: no such file"),
        (lambda at: [str(at)], "is a directory"),
        (lambda at: [_file(at / "plain", "x", 0o644)], "not executable"),
        (lambda at: [_file(at / "script", "#!/no/such/interpreter\n", 0o755)], "interpreter"),
        (lambda at: [_file(at / "empty", "", 0o755)], "Exec format error"),
        (lambda _: ["cat", "a\0b"], "NUL"),
        (lambda _: [], "expected a list"),
        (lambda _: "cat file", "expected a list"),
        (lambda _: ["cat", 5], "expected a list"),
        (lambda _: ["cat", "x" * 5_000_000], "Argument list too long"),
    ],
)
@on_a_loop
async def test_what_cannot_be_started_says_why_and_leaves_nothing_open(
    command: Callable[[Path], Any], text: str, tmp_path: Path
) -> None:
    with pytest.raises(SpawnError, match=text):
        spawn(command(tmp_path))


@pytest.mark.parametrize("settings", [{"env": {"PORT": 8080}}, {"cwd": 5}, {"env": {"A=B": "x"}}])
@on_a_loop
async def test_settings_that_cannot_be_passed_on_leave_nothing_open(settings: Any) -> None:
    descriptors = os.listdir("/proc/self/fd")
    with pytest.raises(SpawnError, match="cat: "):
        spawn(["cat"], **settings)
    assert os.listdir("/proc/self/fd") == descriptors


@on_a_loop
async def test_a_working_directory_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpawnError, match=r"the working directory .*nowhere is not a directory"):
        spawn(["cat"], cwd=tmp_path / "nowhere")


@on_a_loop
async def test_a_child_that_was_never_listened_to_can_be_closed() -> None:
    child = spawn(["cat"], ladder=PATIENT)
    await child.close(1)
    assert child.exit_status == 0


@on_a_loop
async def test_closing_goes_on_when_the_caller_is_cancelled_and_may_be_asked_for_again() -> None:
    child = spawn([sys.executable, "-c", "import time; time.sleep(60)"], ladder=QUICK)
    child.open(Ear())
    closing = asyncio.create_task(child.close(1))
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.wait([closing])
    assert closing.cancelled()
    await child.close(1)
    assert child.exit_status == -signal.SIGTERM
    await child.close(1)


@on_a_loop
async def test_output_that_nobody_reads_does_not_hold_up_the_end() -> None:
    code = (
        "import sys\nsys.stdin.readline()\nsys.stdout.write('x' * 1_000_000 + '\\n')\n"
        "sys.stdin.read()"
    )
    async with start_process(code) as (child, _):
        child.pause(True)
        child.write(b"go", None)
        child.flush()
    assert child.exit_status == 0


@on_a_loop
async def test_without_a_descriptor_for_processes_a_thread_sees_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(os, "pidfd_open")
    async with start_process("import sys; sys.exit(3)") as (child, ear):
        await ear.until(lambda: ear.over)
        assert child.exit_status == 3


@pytest.mark.slow
@pytest.mark.parametrize("status", [0, -signal.SIGKILL])
@on_a_loop
async def test_a_system_without_pidfd_waitid_and_proc_sees_the_end_of_the_whole_group(
    status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As macOS: what stands in for them there is POSIX.

    Only the census of this test reads /proc.
    """
    monkeypatch.delattr(os, "pidfd_open")
    monkeypatch.delattr(os, "waitid")
    sleeper = f'{sys.executable} -c "import time; time.sleep(60)"'
    last = f"exit {status}" if status >= 0 else "kill -9 $$"
    child = spawn(["sh", "-c", f"{sleeper} & echo up; read line; {last}"], ladder=QUICK)
    ear = Ear()
    child.open(ear)
    await ear.until(lambda: ear.lines)
    assert len(live_members(child.pid)) == 2
    with monkeypatch.context() as without:
        without.setattr(process_exit, "PROC", Path("/nonexistent"))
        if status:
            child.write(b"go", None)
            child.flush()
            await ear.until(lambda: child.exit_status is not None)
        await child.close(0)
    assert child.exit_status == status
    assert live_members(child.pid) == []


@on_a_loop
async def test_only_the_exit_status_is_lost_when_the_system_reaps_the_children() -> None:
    """SIGCHLD ignored: nobody can wait for the child any more."""
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        child = spawn([sys.executable, "-c", "import sys; sys.exit(3)"], ladder=QUICK)
        ear = Ear()
        child.open(ear)
        await ear.until(lambda: ear.over)
        await child.close(1)
        assert child.exit_status == 0
        stays = spawn(["sleep", "60"], ladder=QUICK)
        await stays.close(0)
        assert stays.exit_status == 0
        assert live_members(stays.pid) == []
    finally:
        signal.signal(signal.SIGCHLD, before)


@on_a_loop
async def test_a_hundred_children_come_and_go() -> None:
    async def one() -> int | None:
        child = spawn(["cat"], ladder=PATIENT)
        ear = Ear()
        child.open(ear)
        child.write(b"hello", None)
        child.flush()
        await ear.until(lambda: ear.lines)
        await child.close(1)
        return child.exit_status

    assert await asyncio.gather(*(one() for _ in range(100))) == [0] * 100


@pytest.mark.parametrize("given", [-1.0, float("nan"), float("inf"), "2", True, None])
def test_a_rung_without_a_time_is_refused_by_its_name(given: object) -> None:
    with pytest.raises(ValueError, match=r"terminated_s: expected seconds, 0 or more, got "):
        ShutdownTimeouts(terminated_s=given)  # type: ignore[arg-type]


@on_a_loop
async def test_somebody_who_writes_for_ever_does_not_hold_up_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is asked at the end is whether somebody still holds stdout: no more than a pipe can hold
    is read for that.
    """
    child = spawn(["cat"])
    child.open(Ear())
    reads = 0

    def read(descriptor: int, size: int) -> bytes:
        nonlocal reads
        reads += 1
        assert reads < 100
        return b"x" * size

    monkeypatch.setattr(polling.os, "read", read)
    assert not child._is_stdout_closed()
    monkeypatch.undo()
    await child.close(1)


# Answers that are there at once

# Echoes its lines, each in one write, but for those that begin with a minus; what has blanks comes
# back as several lines.
LINES = r"""
import os, sys
for line in sys.stdin.buffer:
    if not line.startswith(b"-"):
        os.write(1, line.replace(b" ", b"\n"))
"""


@asynccontextmanager
async def looked_at(code: str = LINES, **settings: Any) -> AsyncIterator[tuple[ChildProcess, Ear]]:
    """A child that has given one line already: from then on it is looked at when it is
    written to.
    """
    async with start_process(code, **settings) as (child, ear):
        child.send(b"first", None)
        await ear.until(lambda: ear.lines == [b"first"])
        ear.lines.clear()
        yield child, ear


def until_it_spoke(child: ChildProcess) -> None:
    """Without a turn of the loop."""
    assert select.select([child._reading_fd], [], [], 20)[0]


@on_a_loop
async def test_a_line_that_is_there_when_something_was_written_is_given_and_not_delivered() -> None:
    async with looked_at() as (child, ear):
        for line in (b"1", b"2"):
            child.send(line, None)
            until_it_spoke(child)
            assert child.send_and_poll(b"-", None) == line
        child.send(b"3", None)
        await ear.until(lambda: ear.lines)
        assert ear.lines == [b"3"]


@on_a_loop
async def test_what_comes_later_than_a_glance_is_delivered() -> None:
    async with looked_at("print(input(), flush=True)\nprint(input() + input())") as (child, ear):
        assert child.send_and_poll(b"1", None) == 0
        assert child.send_and_poll(b"2", None) == 0
        await ear.until(lambda: ear.lines)
        assert ear.lines == [b"12"]


@on_a_loop
async def test_several_lines_at_once_are_delivered_in_order_by_the_loop() -> None:
    async with looked_at() as (child, ear):
        child.send(b"1 2", None)
        until_it_spoke(child)
        assert child.send_and_poll(b"3", None) == 0
        assert ear.lines == []
        assert child.send_and_poll(b"4", None) == 0
        await ear.until(lambda: len(ear.lines) == 4)
        assert ear.lines == [b"1", b"2", b"3", b"4"]
        assert ear.tasks == {None}


@on_a_loop
async def test_a_piece_of_a_line_is_delivered_when_its_rest_has_come() -> None:
    code = (
        "import sys\nfor line in sys.stdin: print(line.strip(), end='\\n' if line > '2' else '', "
        "flush=True)"
    )
    async with start_process(code) as (child, ear):
        child.send(b"9", None)
        await ear.until(lambda: ear.lines == [b"9"])
        child.send(b"1", None)
        until_it_spoke(child)
        assert child.send_and_poll(b"1", None) == 0
        assert child.send_and_poll(b"3", None) == 0
        await ear.until(lambda: len(ear.lines) == 2)
        assert ear.lines[1:] == [b"113"]


@on_a_loop
async def test_a_line_that_is_given_back_comes_first_and_outside_of_any_task() -> None:
    async with looked_at() as (child, ear):
        child.send(b"1", None)
        until_it_spoke(child)
        assert child.send_and_poll(b"-", None) == b"1"
        child.defer_line(b"1")
        child.send(b"2", None)
        until_it_spoke(child)
        assert child.send_and_poll(b"3", None) == 0
        assert ear.lines == []
        await ear.until(lambda: len(ear.lines) == 3)
        assert ear.lines == [b"1", b"2", b"3"]
        assert ear.tasks == {None}


@on_a_loop
async def test_what_was_postponed_is_not_told_of_a_child_whose_end_was_told() -> None:
    async with looked_at(ladder=QUICK) as (child, ear):
        child.send(b"1", None)
        until_it_spoke(child)
        assert child.send_and_poll(b"-", None) == b"1"
        child.defer_line(b"1")
        child.abandon()
    assert ear.lines == []


@on_a_loop
async def test_the_loop_gets_its_turn_from_a_caller_that_is_always_answered_at_once() -> None:
    async with looked_at() as (child, ear):
        for _ in range(polling.MAX_POLLS):
            child.send(b"1", None)
            until_it_spoke(child)
            assert child.send_and_poll(b"-", None) == b"1"
        child.send(b"2", None)
        until_it_spoke(child)
        assert child.send_and_poll(b"-", None) == 0
        await ear.until(lambda: ear.lines)
        assert ear.lines == [b"2"]


@on_a_loop
async def test_a_child_that_never_answers_at_once_is_looked_at_ever_more_rarely(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks: list[int] = []
    async with looked_at() as (child, ear):
        read = os.read

        def nothing(descriptor: int, size: int) -> bytes:
            looks.append(descriptor)
            raise BlockingIOError

        for number in range(40):
            with monkeypatch.context() as before_it_answers:
                before_it_answers.setattr(polling.os, "read", nothing)
                assert child.send_and_poll(b"%d" % number, None) == 0
            assert polling.os.read is read
            await ear.until(lambda number=number: len(ear.lines) == number + 1)
        assert len(looks) == 7  # of 40: the 1st, then 1, 2, 4, 8, 8 and 8 others between two


@on_a_loop
async def test_an_exchange_with_a_child_that_does_not_read_says_what_is_held() -> None:
    code = "import time\nprint(input(), flush=True)\ntime.sleep(60)"
    async with looked_at(code, ladder=QUICK) as (child, _):
        held = child.send_and_poll(b"x" * 2**20, None)
        assert isinstance(held, int)
        assert 0 < held < 2**20
        assert child.send_and_poll(b"more", None) == held + len(b"more\n")


@on_a_loop
async def test_an_exchange_with_a_child_that_has_ended_gives_nothing_and_its_end_is_told() -> None:
    async with looked_at("print(input(), flush=True)") as (child, ear):
        until_it_spoke(child)
        assert child.send_and_poll(b"1", None) == 0
        assert child.send_and_poll(b"2", None) == 0
        await ear.until(lambda: ear.over)
        assert ear.over == ["ended"]
        assert ear.lines == []
