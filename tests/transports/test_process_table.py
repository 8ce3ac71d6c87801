"""What /proc tells of processes, with real ones; expected values are those of the system calls."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest

from concertino.transports.process_table import (
    live_processes,
    program_name,
    read_arguments,
    read_children,
    read_cpu_s,
    read_environment,
    read_memory,
    read_process_state,
    read_written_pipes,
    send_signal,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc of Linux")
# No process has this id: it is the largest one plus one.
NO_PID = 2**22


@contextmanager
def a_cat(**options: Any) -> Generator[subprocess.Popen[bytes]]:
    process: subprocess.Popen[bytes] = subprocess.Popen(
        ["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, **options
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        # It has replaced the image of this interpreter when it answers.
        process.stdin.write(b"\n")
        process.stdin.flush()
        process.stdout.read(1)
        yield process
    finally:
        process.kill()
        process.communicate()


def test_the_state_of_a_process_is_what_the_system_calls_say() -> None:
    with a_cat(start_new_session=True) as process:
        state = read_process_state(process.pid)
        assert state is not None
        assert state.is_live
        assert state.parent == os.getpid()
        assert state.group == os.getpgid(process.pid) == process.pid
        assert state.session == os.getsid(process.pid) == process.pid
        assert state.terminal == 0
        assert process.pid in dict(live_processes())
        assert process.pid in read_children(os.getpid())


def test_a_zombie_is_not_live() -> None:
    with a_cat() as process:
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        state = read_process_state(process.pid)
        assert state is not None
        assert not state.is_live
        assert process.pid not in dict(live_processes())


def test_a_process_at_a_terminal_has_one() -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvp("cat", ["cat"])
    try:
        # The first newline is the terminal's echo, the second one is that of the program.
        os.write(terminal, b"\n")
        text = b""
        while text.count(b"\n") < 2:
            text += os.read(terminal, 100)
        state = read_process_state(pid)
        assert state is not None
        assert state.terminal == os.stat(f"/proc/{pid}/fd/0").st_rdev
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(terminal)


def test_words_variables_name_and_memory_of_a_process_are_read() -> None:
    with a_cat(env={"PATH": os.environ["PATH"], "TOKEN": "x=y"}) as process:
        assert read_arguments(process.pid) == ["cat"]
        assert b"TOKEN=x=y\0" in (read_environment(process.pid) or b"")
        assert program_name(process.pid) == "cat"
        # More than nothing, and less than 100 MB.
        assert 10_000 < read_memory(process.pid) < 100_000_000


def test_of_a_process_that_is_not_there_nothing_is_read() -> None:
    assert read_process_state(NO_PID) is None
    assert read_children(NO_PID) == []
    assert read_environment(NO_PID) is None
    assert read_arguments(NO_PID) == []
    assert program_name(NO_PID) == "?"
    assert read_memory(NO_PID) == 0
    assert not send_signal(NO_PID, 1, signal.SIGTERM)


def test_a_name_with_spaces_and_parentheses_does_not_shift_the_fields(tmp_path: object) -> None:
    program = f"{tmp_path}/a) R (b"
    os.symlink("/bin/cat", program)
    with a_cat(executable=program) as process:
        state = read_process_state(process.pid)
        assert state is not None
        assert state.parent == os.getpid()


def test_a_signal_reaches_the_process_with_this_start_time() -> None:
    with a_cat() as process:
        state = read_process_state(process.pid)
        assert state is not None
        assert send_signal(process.pid, state.started_at, signal.SIGTERM)
        assert process.wait(20) == -signal.SIGTERM


def test_a_signal_does_not_reach_another_process_that_has_the_same_id() -> None:
    with a_cat() as process:
        state = read_process_state(process.pid)
        assert state is not None
        assert not send_signal(process.pid, state.started_at - 1, signal.SIGKILL)
        assert process.poll() is None


def test_the_processor_time_is_that_of_the_system() -> None:
    before = sum(os.times()[:2])
    while (used := sum(os.times()[:2])) < before + 0.1:
        pass
    # In ticks of 10 ms.
    assert used - 0.05 <= read_cpu_s(os.getpid()) <= sum(os.times()[:2]) + 0.05
    assert read_cpu_s(NO_PID) == 0.0


def test_the_pipes_that_a_process_writes_to_are_not_those_that_it_reads() -> None:
    with a_cat() as process:
        assert process.stdin is not None
        assert process.stdout is not None
        read, written = (os.fstat(pipe.fileno()).st_ino for pipe in (process.stdin, process.stdout))
        pipes = read_written_pipes(process.pid)
        assert written in pipes
        assert read not in pipes
    assert read_written_pipes(NO_PID) == set()
