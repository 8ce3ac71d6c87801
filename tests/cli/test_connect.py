"""`concertino connect`: real processes, between pipes and the sockets of tests or of servers."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from warm_commands import run_python

sys.path.insert(0, str(Path(__file__).parents[1] / "stdio"))

from stdio.harness import SRC, TOOLBOX, Process, call, environment, text_of, until

from concertino.cli.connect import parse_quickly

COMMAND = [sys.executable, "-m", "concertino", "connect"]
# An upper bound, reached only by what is broken.
WAIT_S = 30.0


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short name, as sockets need."""
    with tempfile.TemporaryDirectory(prefix="c") as name:
        yield Path(name)


@pytest.fixture
def listener(folder: Path) -> Iterator[socket.socket]:
    """A socket that listens at the path `folder / "s"`."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(WAIT_S)
        sock.bind(str(folder / "s"))
        sock.listen()
        yield sock


def start(*words: str, **popen: object) -> subprocess.Popen[bytes]:
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen([*COMMAND, *words], env=environment(), **(pipes | popen))  # type: ignore[call-overload]


def accept(listener: socket.socket) -> socket.socket:
    connection, _ = listener.accept()
    connection.settimeout(WAIT_S)
    return connection


def run(*words: str, stdin: bytes = b"") -> subprocess.CompletedProcess[str]:
    return run_python(
        [*COMMAND, *words],
        env=environment(),
        input=stdin.decode(),
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )


def receive_all(sock: socket.socket) -> bytes:
    chunks: list[bytes] = []
    while chunk := sock.recv(2**16):
        chunks.append(chunk)
    return b"".join(chunks)


# Servers of ours


def test_answers_come_after_the_end_of_input(folder: Path) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    serving = ["-m", "concertino", "serve", TOOLBOX, "--unix", str(folder / "s")]
    with Process(serving, stdin=null, stdout=null) as server:
        os.close(null)
        server.until_stderr("started successfully")
        with Process(["-m", "concertino", "connect", f"unix:{folder}/s"]) as bridge:
            bridge.initialize()
            bridge.send(call(1, "echo", {"text": "x" * 300_000}))
            assert bridge.finish() == 0
            assert text_of(bridge.answer(1)) == "x" * 300_000


# Copying


def test_both_directions_carry_10_mb_at_the_same_time_to_slow_readers(
    listener: socket.socket, folder: Path
) -> None:
    sent, answer = os.urandom(10 * 2**20), os.urandom(10 * 2**20)
    received: list[bytes] = []
    with start(f"unix:{folder}/s") as bridge, accept(listener) as server:
        assert bridge.stdin is not None
        assert bridge.stdout is not None

        def write() -> None:
            assert bridge.stdin is not None
            bridge.stdin.write(sent)
            bridge.stdin.close()

        def answer_first() -> None:
            # Reads nothing before the whole answer is out, so both directions are full meanwhile.
            server.sendall(answer)
            received.append(receive_all(server))
            server.close()

        threads = [threading.Thread(target=target) for target in (write, answer_first)]
        for thread in threads:
            thread.start()
        # Nothing was read from stdout yet, so the bridge holds its buffers and no more.
        until(lambda: _state(bridge.pid) == "S")
        assert _memory(bridge.pid) < 40 * 2**20
        # os.read() in small pieces is a slow reader.
        chunks: list[bytes] = []
        while chunk := os.read(bridge.stdout.fileno(), 3000):
            chunks.append(chunk)
        for thread in threads:
            thread.join(WAIT_S)
        assert bridge.wait(WAIT_S) == 0
    assert b"".join(chunks) == answer
    assert received == [sent]


def test_a_full_stdout_does_not_hold_up_stdin(listener: socket.socket, folder: Path) -> None:
    with start(f"unix:{folder}/s") as bridge, accept(listener) as server:
        assert bridge.stdin is not None
        # Until neither the pipe nor the bridge nor the socket takes any more.
        poll = select.poll()
        poll.register(server, select.POLLOUT)
        while poll.poll(200):
            server.send(bytes(2**16), socket.MSG_DONTWAIT)
        bridge.stdin.write(b"still here\n")
        bridge.stdin.flush()
        assert server.recv(100) == b"still here\n"
        bridge.kill()


def test_pipes_that_do_not_block_are_waited_for(listener: socket.socket, folder: Path) -> None:
    inner, outer = os.pipe()
    back, out = os.pipe()
    os.set_blocking(inner, False)
    os.set_blocking(out, False)
    answer = os.urandom(2**20)
    with start(f"unix:{folder}/s", stdin=inner, stdout=out) as bridge, accept(listener) as server:
        # Others share these open files, and the bridge has not changed their mode.
        assert not os.get_blocking(inner)
        assert not os.get_blocking(out)
        os.close(inner)
        os.close(out)
        sender = threading.Thread(target=server.sendall, args=(answer,))
        sender.start()
        os.write(outer, b"one\n")
        assert server.recv(100) == b"one\n"
        with open(back, "rb") as stream:
            assert stream.read(len(answer)) == answer
        sender.join(WAIT_S)
        os.close(outer)
        assert server.recv(100) == b""
        server.close()
        assert bridge.wait(WAIT_S) == 0


def test_the_modes_of_the_pipes_stay_as_they_are(listener: socket.socket, folder: Path) -> None:
    with start(f"unix:{folder}/s") as bridge, accept(listener) as server:
        assert bridge.stdin is not None
        assert bridge.stdout is not None
        server.sendall(b"x")
        assert bridge.stdout.read(1) == b"x"
        for number in (0, 1):
            flags = Path(f"/proc/{bridge.pid}/fdinfo/{number}").read_text().split("flags:\t")[1]
            assert not int(flags.split()[0], 8) & os.O_NONBLOCK
        bridge.kill()


# Ends


def test_it_ends_with_the_server_and_says_so(listener: socket.socket, folder: Path) -> None:
    with start(f"unix:{folder}/s") as bridge:
        assert bridge.stdout is not None
        assert bridge.stderr is not None
        with accept(listener) as server:
            server.sendall(b'{"the":"last"}\n')
        # stdin is still open.
        assert bridge.wait(WAIT_S) == 3
        assert bridge.stdout.read() == b'{"the":"last"}\n'
        assert bridge.stderr.read().decode() == (
            f"concertino connect: unix:{folder}/s: the server closed the connection\n"
        )


def test_it_ends_when_the_server_is_killed(folder: Path) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    serving = ["-m", "concertino", "serve", TOOLBOX, "--unix", str(folder / "s")]
    with Process(serving, stdin=null, stdout=null) as server:
        os.close(null)
        server.until_stderr("started successfully")
        with Process(["-m", "concertino", "connect", f"unix:{folder}/s"]) as bridge:
            bridge.initialize()
            server.signal(signal.SIGKILL)
            assert bridge.wait() == 3
            assert bridge.stderr.startswith(f"concertino connect: unix:{folder}/s: the ".encode())
            assert bridge.stderr.count(b"\n") == 1


def test_a_server_that_sends_nothing_before_it_closes_has_a_log(
    listener: socket.socket, folder: Path
) -> None:
    with start(f"unix:{folder}/s") as bridge:
        accept(listener).close()
        assert bridge.wait(WAIT_S) == 3
        assert bridge.stderr is not None
        assert b"without an answer; its log says why\n" in bridge.stderr.read()


def test_it_ends_quietly_when_the_client_reads_no_more(
    listener: socket.socket, folder: Path
) -> None:
    with start(f"unix:{folder}/s") as bridge, accept(listener):
        assert bridge.stdin is not None
        assert bridge.stdout is not None
        assert bridge.stderr is not None
        # stdin is still open, and the server sends nothing.
        bridge.stdout.close()
        assert bridge.wait(WAIT_S) == 0
        assert bridge.stderr.read() == b""


def test_it_ends_with_its_client_although_the_server_never_closes(
    listener: socket.socket, folder: Path
) -> None:
    with start(f"unix:{folder}/s") as bridge, accept(listener) as server:
        assert bridge.stdin is not None
        assert bridge.stdout is not None
        bridge.stdin.close()
        assert server.recv(1) == b""
        bridge.stdout.close()
        assert bridge.wait(WAIT_S) == 0


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM), (signal.SIGHUP, -signal.SIGHUP)],
)
def test_a_signal_ends_it_at_once(
    number: int, code: int, listener: socket.socket, folder: Path
) -> None:
    with start(f"unix:{folder}/s") as bridge, accept(listener) as server:
        assert bridge.stdout is not None
        assert bridge.stderr is not None
        server.sendall(b"x")
        assert bridge.stdout.read(1) == b"x"
        bridge.send_signal(number)
        assert bridge.wait(WAIT_S) == code
        assert bridge.stderr.read() == b""


def test_closed_descriptors_are_not_taken_for_the_socket(
    listener: socket.socket, folder: Path
) -> None:
    line = " ".join([*COMMAND, f"unix:{folder}/s", "<&-", "2>&-"])
    with (
        subprocess.Popen(line, shell=True, env=environment(), stdout=subprocess.PIPE) as bridge,
        accept(listener) as server,
    ):
        assert bridge.stdout is not None
        assert server.recv(1) == b""
        server.sendall(b"late\n")
        server.close()
        assert bridge.stdout.read() == b"late\n"
        assert bridge.wait(WAIT_S) == 0


def test_without_stdout_there_is_nobody_to_connect() -> None:
    line = " ".join([*COMMAND, "unix:/nowhere", ">&-"])
    done = subprocess.run(
        line,
        shell=True,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert done.returncode == 1
    assert "stdout is closed" in done.stderr


# Nobody listens


def test_a_missing_server_is_named_with_the_command_that_starts_it(folder: Path) -> None:
    done = run(f"unix:{folder}/s")
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.splitlines()[0] == (
        f"concertino connect: nothing listens at unix:{folder}/s; "
        f"start it with: concertino serve server.py --unix {folder}/s"
    )
    assert "--wait" in done.stderr.splitlines()[1]


def test_a_file_that_is_not_a_socket_is_not_taken_for_a_server_that_has_ended(folder: Path) -> None:
    (folder / "s").touch()
    done = run(f"unix:{folder}/s")
    assert done.returncode == 3
    assert done.stderr == (
        f"concertino connect: unix:{folder}/s: this is not a socket; give the path that a server "
        "listens at\n"
    )


def test_a_stale_socket_is_as_good_as_none(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(folder / "s"))
    done = run(f"unix:{folder}/s")
    assert done.returncode == 3
    assert "nothing listens at" in done.stderr


def test_a_closed_port_is_named_with_the_command_that_opens_it() -> None:
    with socket.socket() as sock:
        # Bound, so that nobody else gets it, and not listening.
        sock.bind(("127.0.0.1", 0))
        place = f"127.0.0.1:{sock.getsockname()[1]}"
        done = run(f"tcp:{place}")
    assert done.returncode == 3
    assert f"start it with: concertino serve server.py --tcp {place}\n" in done.stderr


@pytest.mark.skipif(os.geteuid() == 0, reason="root may connect everywhere")
def test_a_socket_of_somebody_else_says_whose_it_must_be(
    listener: socket.socket, folder: Path
) -> None:
    (folder / "s").chmod(0)
    done = run(f"unix:{folder}/s")
    assert done.returncode == 3
    assert "run this command as the user of the server" in done.stderr


def test_the_client_s_first_request_gets_the_reason(folder: Path) -> None:
    request = b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n'
    done = run(f"unix:{folder}/s", stdin=request)
    assert done.returncode == 3
    answer = json.loads(done.stdout)
    assert answer["id"] == 1
    assert f"nothing listens at unix:{folder}/s" in answer["error"]["message"]


def test_wait_waits_until_somebody_listens(folder: Path) -> None:
    with start("--wait", "60", f"unix:{folder}/s") as bridge:
        assert bridge.stdin is not None
        assert bridge.stdout is not None
        # It waits in poll() already.
        until(lambda: _state(bridge.pid) == "S" and "poll" in _waits_in(bridge.pid))
        with socket.socket(socket.AF_UNIX) as listener:
            listener.settimeout(WAIT_S)
            listener.bind(str(folder / "s"))
            listener.listen()
            with accept(listener) as server:
                bridge.stdin.write(b"hello\n")
                bridge.stdin.close()
                assert receive_all(server) == b"hello\n"
        assert bridge.wait(WAIT_S) == 0


def test_wait_gives_up(folder: Path) -> None:
    done = run("--wait=0.05", f"unix:{folder}/s")
    assert done.returncode == 3
    assert f"nothing listens at unix:{folder}/s after 0.05 s; start it" in done.stderr


def test_waiting_ends_with_the_client(folder: Path) -> None:
    with start("--wait", "600", f"unix:{folder}/s") as bridge:
        assert bridge.stdout is not None
        bridge.stdout.close()
        assert bridge.wait(WAIT_S) == 0


# The command line


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["unix:/s"], ("unix:/s", 0.0)),
        (["tcp:[::1]:8000", "--wait", "2.5"], ("tcp:[::1]:8000", 2.5)),
        (["--wait", "3", "unix:/s"], ("unix:/s", 3.0)),
        (["--wait", "nan", "unix:/s"], None),
        (["--wait", "unix:/s"], None),
        (["--wait", "-1", "unix:/s"], None),
        (["--help"], None),
        (["unix:/s", "--json"], None),
        (["unix:/s", "unix:/t"], None),
        ([], None),
    ],
)
def test_usual_words_need_no_parser(words: list[str], found: tuple[str, float] | None) -> None:
    assert parse_quickly(words) == found


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["8000"], "expected unix:PATH or tcp:HOST:PORT, got '8000'"),
        (["tcp:8000"], "expected unix:PATH or tcp:HOST:PORT, got 'tcp:8000'"),
        (["unix:@s"], "unix:@s: abstract names are not supported"),
        (["--wait", "soon", "unix:/s"], "--wait: expected a number of seconds, got 'soon'"),
        (["unix:/s", "--", "python", "s.py"], "this command takes no words after --, got 'python'"),
        ([], "the following arguments are required: ADDRESS"),
    ],
)
def test_what_it_cannot_connect_to(words: list[str], text: str) -> None:
    done = run(*words)
    assert done.returncode == 2
    assert text in done.stderr


def test_the_help_names_the_exit_codes() -> None:
    done = run("--help")
    assert done.returncode == 0
    assert "3 if nobody listens" in " ".join(done.stdout.split())


# What it costs

LIST_MODULES = (
    "import atexit, sys\n"
    "atexit.register(lambda: print(*sys.modules, file=sys.stderr))\n"
    "from concertino.cli import main\nmain()"
)


@pytest.mark.parametrize("kind", ["unix", "tcp"])
def test_it_imports_nothing_that_costs_time(kind: str, folder: Path) -> None:
    family = socket.AF_UNIX if kind == "unix" else socket.AF_INET
    with socket.socket(family) as listener:
        listener.settimeout(WAIT_S)
        listener.bind(str(folder / "s") if kind == "unix" else ("127.0.0.1", 0))
        listener.listen()
        address = f"{folder}/s" if kind == "unix" else f"127.0.0.1:{listener.getsockname()[1]}"
        with subprocess.Popen(
            [sys.executable, "-S", "-c", LIST_MODULES, "connect", f"{kind}:{address}"],
            env={"PYTHONPATH": SRC},
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        ) as bridge:
            with accept(listener) as server:
                assert server.recv(1) == b""
            assert bridge.stderr is not None
            imported = set(bridge.stderr.read().split())
            assert bridge.wait(WAIT_S) == 0
    assert {name for name in imported if name.startswith("concertino")} == {
        "concertino",
        "concertino.cli",
        "concertino.cli.connect",
        "concertino.loading",
        "concertino.transports",
        "concertino.transports.addresses",
        "concertino.transports.tcp_options",
    }
    dear = {"argparse", "asyncio", "enum", "logging", "msgspec", "re", "socket", "threading"}
    assert not imported & (dear | {"signal", "typing", "encodings.idna"})


def test_it_takes_little_more_memory_than_the_interpreter(
    listener: socket.socket, folder: Path
) -> None:
    bare = subprocess.Popen(
        [sys.executable, "-c", "import os; os.write(1, b'x'); os.read(0, 1)"],
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with bare, start(f"unix:{folder}/s") as bridge, accept(listener) as server:
        assert bare.stdout is not None
        assert bridge.stdout is not None
        server.sendall(b"x")
        assert bare.stdout.read(1) == bridge.stdout.read(1) == b"x"
        assert _memory(bridge.pid) - _memory(bare.pid) < 4 * 2**20
        bridge.kill()


def test_it_takes_no_time_while_nobody_speaks(listener: socket.socket, folder: Path) -> None:
    with start(f"unix:{folder}/s") as bridge, accept(listener) as server:
        assert bridge.stdin is not None
        bridge.stdin.write(b"x")
        bridge.stdin.flush()
        assert server.recv(1) == b"x"
        tasks = list(Path(f"/proc/{bridge.pid}/task").iterdir())
        assert len(tasks) == 2
        # Blocking calls, without a time limit that would wake them up.
        until(lambda: all(_task_state(task) == "S" for task in tasks))
        switches = [_switches(task) for task in tasks]
        server.settimeout(0.5)
        with pytest.raises(TimeoutError):
            server.recv(1)
        assert [_switches(task) for task in tasks] == switches
        bridge.kill()


def _memory(pid: int) -> int:
    """Return the bytes of a process that are in memory."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmRSS")


def _state(pid: int) -> str:
    return _task_state(Path(f"/proc/{pid}"))


def _task_state(task: Path) -> str:
    return (task / "stat").read_text().rpartition(") ")[2][0]


def _waits_in(pid: int) -> str:
    """Return the function of the kernel in which a process waits."""
    return Path(f"/proc/{pid}/wchan").read_text()


def _switches(task: Path) -> str:
    """Return how often a thread has given up its processor by itself."""
    return (task / "status").read_text().split("\nvoluntary_ctxt_switches:")[1].split()[0]
