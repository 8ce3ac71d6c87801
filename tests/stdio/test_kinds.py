"""Every kind of descriptor that can stand at 0, 1 and 2, and clients that read slowly or not at all
(RELIABILITY 1 and 7).
"""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import socket
import subprocess
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from stdio.harness import (
    INITIALIZE,
    INITIALIZED,
    TOOLBOX,
    Process,
    call,
    environment,
    frame,
    request,
    script,
    text_of,
    until,
    watches_stdin,
)

MIB = 2**20
DIALOGUE = [
    INITIALIZE,
    INITIALIZED,
    *(call(n, "echo", {"text": f"text {n}"}) for n in range(1, 21)),
]


def check_dialogue(process: Process) -> None:
    for n in range(1, 21):
        assert text_of(process.answer(n)) == f"text {n}"


def run_with_files(
    stdin: int, stdout: int, folder: Path, preparation: Callable[[], None] | None = None
) -> tuple[int, bytes]:
    """A server whose descriptors are no pipes of ours; its exit code and its stderr."""
    errors = folder / "stderr"
    with open(errors, "wb") as file:
        done = subprocess.run(
            [sys.executable, TOOLBOX],
            stdin=stdin,
            stdout=stdout,
            stderr=file,
            env=environment(),
            timeout=20,
            check=False,
            preexec_fn=preparation,
        )
    return done.returncode, errors.read_bytes()


# stdin and stdout of each kind


def test_a_socket_at_each_end_as_node_gives_its_children() -> None:
    ours_in, theirs_in = socket.socketpair()
    ours_out, theirs_out = socket.socketpair()
    with Process(
        stdin=theirs_in.fileno(),
        stdout=theirs_out.fileno(),
        writing=os.dup(ours_in.fileno()),
        reading=ours_out.detach(),
    ) as process:
        theirs_in.close()
        theirs_out.close()
        ours_in.close()
        process.send(*DIALOGUE)
        check_dialogue(process)
        text = "é" * 2_000_000
        assert text_of(process.ask(call("large", "echo", {"text": text}))) == text
        assert process.finish() == 0


@pytest.mark.requirement("FR-14")
def test_one_socket_for_both_directions() -> None:
    ours, theirs = socket.socketpair()
    with Process(
        stdin=theirs.fileno(),
        stdout=theirs.fileno(),
        writing=os.dup(ours.fileno()),
        reading=os.dup(ours.fileno()),
    ) as process:
        theirs.close()
        process.send(*DIALOGUE)
        check_dialogue(process)
        ours.shutdown(socket.SHUT_WR)
        ours.close()
        assert process.finish() == 0


def test_one_socket_that_the_client_closes() -> None:
    ours, theirs = socket.socketpair()
    with Process(
        stdin=theirs.fileno(),
        stdout=theirs.fileno(),
        writing=os.dup(ours.fileno()),
        reading=os.dup(ours.fileno()),
    ) as process:
        theirs.close()
        process.send(*DIALOGUE)
        check_dialogue(process)
        ours.close()
        os.close(process.reading)
        process.eof, process.reading = True, -1
        process.close_stdin()
        assert process.wait() == 0


@pytest.mark.parametrize("how", ["close", "shut down"])
def test_a_socket_for_answers_that_the_client_closes_ends_an_idle_server(how: str) -> None:
    """As a pipe does; but a client that only promises to write nothing there has not gone."""
    ours, theirs = socket.socketpair()
    with Process(stdout=theirs.fileno(), reading=os.dup(ours.fileno())) as process:
        theirs.close()
        process.send(*DIALOGUE)
        check_dialogue(process)
        if how == "shut down":
            ours.shutdown(socket.SHUT_WR)
            before = process.cpu_s()
            assert text_of(process.ask(call("sleep", "sleep", {"seconds": 0.3}))) == "slept"
            assert process.cpu_s() - before < 0.2  # no spin either
            ours.close()
            assert process.finish() == 0
        else:
            ours.close()
            process.close_stdout()
            assert process.wait() == 0


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    """A terminal without echo or line editing: (the user's side, the process's side)."""
    ours, theirs = pty.openpty()
    tty.setraw(theirs)
    yield ours, theirs
    for descriptor in (ours, theirs):
        try:
            os.close(descriptor)
        except OSError:
            pass


def test_a_terminal_at_both_ends(terminal: tuple[int, int]) -> None:
    ours, theirs = terminal
    with Process(
        stdin=theirs, stdout=theirs, writing=os.dup(ours), reading=os.dup(ours)
    ) as process:
        process.send(*DIALOGUE)
        check_dialogue(process)
        process.until_stderr("waits for JSON-RPC messages on stdin")
        process.signal(signal.SIGTERM)
        assert process.wait() == 0


def test_ctrl_d_on_a_terminal_is_the_end_of_input() -> None:
    ours, theirs = pty.openpty()
    settings = termios.tcgetattr(theirs)
    settings[3] &= ~termios.ECHO
    termios.tcsetattr(theirs, termios.TCSANOW, settings)
    with Process(stdin=theirs, writing=ours) as process:
        process.send(*DIALOGUE)
        check_dialogue(process)
        process.write(b"\x04")
        assert process.wait() == 0
        os.close(theirs)


def test_a_terminal_that_hangs_up_is_the_end(terminal: tuple[int, int]) -> None:
    ours, theirs = terminal
    with Process(stdin=theirs, writing=os.dup(ours)) as process:
        os.close(theirs)
        process.send(*DIALOGUE)
        check_dialogue(process)
        os.close(ours)
        process.close_stdin()
        assert process.wait() == 0


def test_the_terminal_of_the_parent_stays_blocking(terminal: tuple[int, int]) -> None:
    ours, theirs = terminal
    with Process(
        stdin=theirs, stdout=theirs, writing=os.dup(ours), reading=os.dup(ours)
    ) as process:
        process.send(*DIALOGUE)
        check_dialogue(process)
        assert os.get_blocking(theirs)
        process.signal(signal.SIGTERM)
        assert process.wait() == 0
        assert os.get_blocking(theirs)


def test_a_regular_file_as_stdin_is_a_whole_dialogue(tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(
        b"".join(map(frame, DIALOGUE)) + frame(call("big", "size", {"text": "x" * MIB}))
    )
    with open(tmp_path / "in", "rb") as file, Process(stdin=file.fileno()) as process:
        check_dialogue(process)
        assert text_of(process.answer("big")) == str(MIB)
        assert process.wait() == 0


def test_a_regular_file_at_both_ends(tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"".join(map(frame, DIALOGUE)))
    with open(tmp_path / "in", "rb") as source, open(tmp_path / "out", "wb") as target:
        code, _ = run_with_files(source.fileno(), target.fileno(), tmp_path)
    assert code == 0
    assert len((tmp_path / "out").read_bytes().splitlines()) == 21


def test_a_large_file_of_calls_waits_for_a_slow_reader(tmp_path: Path) -> None:
    with open(tmp_path / "in", "wb") as file:
        file.write(b"".join(map(frame, DIALOGUE)))
        for n in range(1000, 2000):
            file.write(frame(call(n, "echo", {"text": "x" * 10_000})))
    with open(tmp_path / "in", "rb") as file, Process(stdin=file.fileno()) as process:
        process.pump(lambda: len(process.messages) >= 1021)
        assert process.wait() == 0
        assert all(process.answers(n) for n in (1000, 1500, 1999))


def test_dev_null_at_stdin_is_the_end_of_input(tmp_path: Path) -> None:
    with open(os.devnull, "rb") as null, Process(stdin=null.fileno()) as process:
        assert process.finish() == 0
        assert process.messages == []


def test_dev_null_at_stdout_takes_everything(tmp_path: Path) -> None:
    with open(os.devnull, "wb") as null, Process(stdout=null.fileno()) as process:
        process.send(*DIALOGUE)
        assert process.finish() == 0


def test_dev_full_at_stdout_ends_the_server() -> None:
    with open("/dev/full", "wb") as full, Process(stdout=full.fileno()) as process:
        process.send(*DIALOGUE)
        assert process.wait() == 1
        assert b"[ERROR] [stdio] stdout cannot be written: No space left on device" in (
            process.stderr
        )
        assert b"Traceback" not in process.stderr


def close_at_start(*descriptors: int) -> Callable[[], None]:
    def prepare() -> None:
        for descriptor in descriptors:
            os.close(descriptor)

    return prepare


def test_a_closed_stdin_is_the_end_of_input(tmp_path: Path) -> None:
    with open(tmp_path / "out", "wb") as target:
        code, errors = run_with_files(
            subprocess.DEVNULL, target.fileno(), tmp_path, close_at_start(0)
        )
    assert code == 0
    assert b"Traceback" not in errors
    assert (tmp_path / "out").read_bytes() == b""


def test_a_closed_stdout_is_a_failure_of_which_the_log_says_the_reason(tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"".join(map(frame, DIALOGUE)))
    with open(tmp_path / "in", "rb") as source:
        code, errors = run_with_files(
            source.fileno(), subprocess.DEVNULL, tmp_path, close_at_start(1)
        )
    assert code == 1
    assert b"[ERROR] [stdio] stdout cannot be written: Bad file descriptor" in errors
    assert b"Traceback" not in errors


@pytest.mark.parametrize("closed", [(0, 1), (0, 1, 2), (1, 2)])
def test_several_closed_descriptors_end_without_a_hang(
    closed: tuple[int, ...], tmp_path: Path
) -> None:
    (tmp_path / "in").write_bytes(b"".join(map(frame, DIALOGUE)))
    with open(tmp_path / "in", "rb") as source:
        code, errors = run_with_files(
            source.fileno(), subprocess.DEVNULL, tmp_path, close_at_start(*closed)
        )
    assert code in (0, 1)
    assert b"Traceback" not in errors


def test_a_closed_stderr_is_no_obstacle() -> None:
    with Process(stderr=subprocess.DEVNULL, preexec_fn=close_at_start(2)) as process:
        process.send(*DIALOGUE)
        check_dialogue(process)
        for id, how in enumerate(("print", "os.write", "os.system", "stderr flood"), 100):
            process.ask(call(id, "say", {"how": how}))
        assert text_of(process.ask(call("end", "echo", {"text": "x"}))) == "x"
        assert process.finish() == 0


def test_descriptors_that_are_non_blocking_already_lose_nothing_and_stay_so() -> None:
    there, ours = os.pipe()
    back, theirs = os.pipe()
    for descriptor in (there, theirs):
        os.set_blocking(descriptor, False)
    with Process(stdin=there, stdout=theirs, writing=ours, reading=back) as process:
        process.send(*DIALOGUE)
        check_dialogue(process)
        text = "x" * 3_000_000
        assert text_of(process.ask(call("large", "echo", {"text": text}))) == text
        os.close(theirs)
        assert process.finish() == 0
    assert not os.get_blocking(there)
    os.close(there)


def test_pipes_of_the_parent_stay_blocking() -> None:
    there, ours = os.pipe()
    back, theirs = os.pipe()
    with Process(stdin=there, stdout=theirs, writing=ours, reading=back) as process:
        process.send(*DIALOGUE)
        check_dialogue(process)
        assert os.get_blocking(there)
        assert os.get_blocking(theirs)
        os.close(theirs)
        assert process.finish() == 0
    os.close(there)


def test_a_stdout_pipe_of_4_kib_never_tears_a_frame() -> None:
    with Process() as process:
        assert fcntl.fcntl(process.reading, fcntl.F_SETPIPE_SZ, 4096) == 4096
        process.send(*DIALOGUE)
        check_dialogue(process)
        texts = {f"n{n}": chr(0x4E00 + n) * (n * 37) for n in range(300)}
        process.send(*(call(id, "echo", {"text": text}) for id, text in texts.items()))
        for id, text in texts.items():
            assert text_of(process.answer(id)) == text
        assert process.finish() == 0


def test_named_pipes_at_both_ends(tmp_path: Path) -> None:
    for name in ("in", "out"):
        os.mkfifo(tmp_path / name)
    # A reader must be there for a writer to open; O_RDWR needs nobody.
    hold = [os.open(tmp_path / name, os.O_RDWR) for name in ("in", "out")]
    reading, writing = os.open(tmp_path / "out", os.O_RDONLY), os.open(tmp_path / "in", os.O_WRONLY)
    stdin, stdout = os.open(tmp_path / "in", os.O_RDONLY), os.open(tmp_path / "out", os.O_WRONLY)
    for descriptor in hold:
        os.close(descriptor)
    with Process(stdin=stdin, stdout=stdout, writing=writing, reading=reading) as process:
        os.close(stdin)
        os.close(stdout)
        process.send(*DIALOGUE)
        check_dialogue(process)
        assert process.finish() == 0


@pytest.mark.parametrize("kind", ["file", "null", "socket", "pipe"])
def test_uvloop_serves_every_kind_of_stdin(kind: str, tmp_path: Path) -> None:
    source = (
        "import sys; sys.path.insert(0, sys.argv[1])\nfrom toolbox import server\nimport uvloop\n"
    )
    path = script(tmp_path, source + "server.run(loop_factory=uvloop.new_event_loop)")
    lines = b"".join(map(frame, DIALOGUE))
    (tmp_path / "in").write_bytes(lines)
    ours, theirs = socket.socketpair()
    there, here = os.pipe()
    stdin = {
        "file": os.open(tmp_path / "in", os.O_RDONLY),
        "null": os.open(os.devnull, os.O_RDONLY),
        "socket": theirs.detach(),
        "pipe": there,
    }
    try:
        os.write(here, lines)
        os.close(here)
        ours.sendall(lines)
        ours.close()
        with Process([path, str(Path(TOOLBOX).parent)], stdin=stdin[kind]) as process:
            if kind != "null":
                check_dialogue(process)
            assert process.finish() == 0
    finally:
        for descriptor in stdin.values():
            os.close(descriptor)


# Clients that do not read


def hold_answers(process: Process) -> None:
    """Ask for 20 MB of answers and read none of them, until the server has stopped to read its
    stdin.
    """
    lines = [frame(call(n, "big", {"count": 100_000})) for n in range(1, 201)]
    rest = memoryview(b"".join(lines))
    while rest:
        try:
            rest = rest[os.write(process.writing, rest[:65536]) :]
        except BlockingIOError:
            break
    assert not rest  # 200 small requests fit into a pipe
    until(lambda: not watches_stdin(process.pid))


def test_a_client_that_does_not_read_loses_nothing_and_the_server_keeps_little() -> None:
    with Process() as process:
        process.initialize()
        before = process.memory()
        hold_answers(process)
        assert process.memory() - before < 16 * MIB
        # stdin is not read any more: what comes now fills the pipe.
        filler = frame(
            {"jsonrpc": "2.0", "method": "notifications/nothing", "params": {"x": "y" * 1000}}
        )
        sent = b""
        while True:
            try:
                written = os.write(process.writing, filler)
            except BlockingIOError:
                break
            sent += filler[:written]
            assert len(sent) < 10 * MIB, "stdin is still being read"
            if written < len(filler):
                break
        for n in range(1, 201):
            assert text_of(process.answer(n)) == "x" * 100_000
        process.write(filler[len(sent) % len(filler) :] if len(sent) % len(filler) else b"")
        assert text_of(process.ask(call("after", "echo", {"text": "x"}))) == "x"
        assert process.finish() == 0


def test_a_client_that_does_not_read_does_not_keep_the_server_alive() -> None:
    with Process(env={"CONCERTINO_DRAIN_S": "0.3"}) as process:
        process.initialize()
        hold_answers(process)
        process.signal(signal.SIGTERM)
        process.pump(lambda: process.popen.returncode is not None, 10, read=False)
        assert process.popen.returncode == 0


@pytest.mark.requirement("PR-6")
@pytest.mark.slow
def test_progress_to_a_client_that_does_not_read_is_bounded_and_the_last_one_arrives() -> None:
    with Process(env={"CONCERTINO_PROGRESS_PER_S": "1000000"}) as process:
        process.initialize()
        process.send(call(1, "count", {"to": 60_000}, token="t"))
        before = process.memory()
        until(lambda: not watches_stdin(process.pid))
        assert process.memory() - before < 16 * MIB
        assert text_of(process.answer(1)) == "counted"
        values = [params["progress"] for params in process.notifications("notifications/progress")]
        assert values == sorted(set(values))
        assert values[-1] == 60_000


def test_progress_from_a_thread_to_a_client_that_does_not_read_is_bounded() -> None:
    with Process(env={"CONCERTINO_PROGRESS_PER_S": "1000000"}) as process:
        process.initialize()
        process.send(call(1, "count_in_thread", {"to": 60_000}, token="t"))
        before = process.memory()
        until(lambda: not watches_stdin(process.pid))
        assert process.memory() - before < 32 * MIB
        assert text_of(process.answer(1)) == "counted"
        values = [params["progress"] for params in process.notifications("notifications/progress")]
        assert values == sorted(set(values))
        assert values[-1] == 60_000


def test_calls_under_way_are_cancelled_and_pings_answered_once_a_slow_client_reads_again() -> None:
    with Process() as process:
        process.initialize()
        process.send(call("waits", "wait_at", {"name": "x"}))
        hold_answers(process)
        process.send(request("ping", "ping"))
        assert process.answer("ping")["result"] == {}
        process.ask(call("open", "open_gate", {"name": "x"}))
        assert text_of(process.answer("waits")) == "x"
        assert all(text_of(process.answer(n)) for n in range(1, 201))
