"""`concertino reap`, with real processes whose host was killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from concertino.proxy.abandoned_servers import end_servers, find_abandoned
from concertino.transports.process_marks import STARTED_BY, new_mark
from concertino.transports.process_table import send_signal

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are read from /proc")
# Ignores the end of its input, as servers do that are left behind. Says its id when it runs.
SERVER = """
import os, signal, sys
print(os.getpid(), flush=True)
signal.pause()
"""
# A host that starts a server, with or without our mark, and is killed then.
HOST = """
import os, signal, subprocess, sys
from concertino.transports.process_marks import STARTED_BY, new_mark
environment = dict(os.environ)
if sys.argv[1] == "mark":
    environment[STARTED_BY] = str(new_mark())
server = subprocess.Popen(sys.argv[2:], env=environment, stdout=subprocess.PIPE, text=True)
print(server.stdout.readline(), flush=True)
signal.pause()
"""
# Adopts the orphans of its descendants, under the name of an init process.
INIT = """
import ctypes, subprocess, sys
PR_SET_NAME, PR_SET_CHILD_SUBREAPER = 15, 36
libc = ctypes.CDLL(None)
assert libc.prctl(PR_SET_CHILD_SUBREAPER, 1) == 0
assert libc.prctl(PR_SET_NAME, b"tini") == 0
host = subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE, text=True)
print(host.pid, host.stdout.readline(), flush=True)
sys.stdin.read()
"""


def process_stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the state on; the second is the parent's id."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


class Orphan:
    """A server whose host was killed."""

    def __init__(self, pid: int, init: subprocess.Popen[str] | None = None) -> None:
        self.pid = pid
        self.init = init

    def is_live(self) -> bool:
        try:
            return process_stat(self.pid)[0] != "Z"
        except OSError:
            return False


Start = Callable[..., Orphan]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "HOME": str(tmp_path)}


@pytest.fixture
def start(tmp_path: Path, environment: dict[str, str]) -> Generator[Start]:
    """Yield a function that starts a server and kills its host."""
    orphans: list[Orphan] = []
    (tmp_path / "server.py").write_text(SERVER)

    def start_orphan(kind: str, *words: str, **variables: str) -> Orphan:
        server = [*words] or [sys.executable, str(tmp_path / "server.py")]
        host = [sys.executable, "-c", HOST, kind, *server]
        init = subprocess.Popen(
            [sys.executable, "-c", INIT, *host],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**environment, **variables},
            start_new_session=True,
        )
        assert init.stdout is not None
        host_pid, pid = map(int, init.stdout.readline().split())
        orphan = Orphan(pid, init)
        orphans.append(orphan)
        os.kill(host_pid, signal.SIGKILL)
        until = time.monotonic() + 60
        while process_stat(pid)[1] == str(host_pid):
            assert time.monotonic() < until, "nobody has adopted the server"
        return orphan

    yield start_orphan
    for orphan in orphans:
        if orphan.is_live():
            os.kill(orphan.pid, signal.SIGKILL)
        assert orphan.init is not None
        orphan.init.communicate(timeout=60)


def reap(
    environment: dict[str, str],
    folder: Path,
    *words: str,
) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "concertino", "reap", *words],
        env=environment,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.returncode, done.stdout, done.stderr


def reaped(environment: dict[str, str], folder: Path, *words: str) -> dict[int, dict[str, Any]]:
    _, output, _ = reap(environment, folder, "--json", *words)
    return {item["pid"]: item for item in map(json.loads, output.splitlines())}


def test_a_server_is_shown_and_ended_when_its_starter_was_killed(
    tmp_path: Path, environment: dict[str, str], start: Start
) -> None:
    orphan = start("mark")
    code, output, _ = reap(environment, tmp_path, "--show")
    assert code == 1
    assert f"{orphan.pid}  {sys.executable}" in output
    assert "which started it, has ended" in output
    assert orphan.is_live()

    code, output, _ = reap(environment, tmp_path, "--yes", str(orphan.pid))
    assert code == 0
    assert output.endswith("ended: 1 process\n")
    assert not orphan.is_live()


def test_nothing_is_ended_without_an_answer(
    tmp_path: Path, environment: dict[str, str], start: Start
) -> None:
    orphan = start("mark")
    code, _, errors = reap(environment, tmp_path, str(orphan.pid))
    assert code == 2
    assert "--yes" in errors
    assert orphan.is_live()


def test_nothing_is_ended_when_the_question_is_interrupted(
    tmp_path: Path, environment: dict[str, str], start: Start
) -> None:
    orphan = start("mark")
    ours, its = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "concertino", "reap", str(orphan.pid)],
        env=environment,
        stdin=its,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # A runner of tests in the background may ignore the signal.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdout is not None
    output = b""
    while not output.endswith(b"[y/N] "):
        output += process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60)[1] == b"concertino reap: interrupted\n"
    os.close(ours)
    os.close(its)
    assert process.returncode == 130
    assert orphan.is_live()


def test_what_a_server_has_started_ends_with_it(
    tmp_path: Path, environment: dict[str, str], start: Start
) -> None:
    # The shell ignores SIGTERM and waits for the other process, which has a session of its own.
    (tmp_path / "inner.py").write_text("import signal\nsignal.pause()\n")
    script = (
        'trap "" TERM; setsid env -u CONCERTINO_STARTED_BY "$0" inner.py & '
        'echo $$; while :; do wait "$!"; done'
    )
    orphan = start("mark", "sh", "-c", f"cd '{tmp_path}'; {script}", sys.executable)
    item = reaped(environment, tmp_path, "--show")[orphan.pid]
    assert item["processes"] == 2
    children = Path(f"/proc/{orphan.pid}/task/{orphan.pid}/children").read_text().split()
    code, _, _ = reap(environment, tmp_path, "--yes", str(orphan.pid))
    assert code == 0
    assert not orphan.is_live()
    assert not Orphan(int(children[0])).is_live()


def test_what_a_server_has_started_ends_though_the_server_ends_before_the_answer(
    tmp_path: Path, start: Start
) -> None:
    script = 'env -u CONCERTINO_STARTED_BY "$0" -c "$1" & echo $$; wait'
    orphan = start("mark", "sh", "-c", script, sys.executable, "import signal; signal.pause()")
    [child] = Path(f"/proc/{orphan.pid}/task/{orphan.pid}/children").read_text().split()
    [shown] = [item for item in find_abandoned([]) if item.pid == orphan.pid]
    assert shown.processes == 2

    # Another process adopts the child now, so it is no descendant of the server any more.
    os.kill(orphan.pid, signal.SIGKILL)
    until = time.monotonic() + 60
    while process_stat(int(child))[1] == str(orphan.pid):
        assert time.monotonic() < until, "nobody has adopted the child"
    assert end_servers([shown])
    assert not Orphan(int(child)).is_live()


# Starts a program at a terminal of its own that ignores the end of the terminal.
AT_TERMINAL = """
import os, pty, signal, sys
signal.signal(signal.SIGHUP, signal.SIG_IGN)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
pid, terminal = pty.fork()
if pid == 0:
    signal.pause()
signal.signal(signal.SIGTERM, signal.SIG_DFL)
print(os.getpid(), flush=True)
os.read(terminal, 1)
"""


def test_a_program_at_a_terminal_is_left_alone_though_a_server_has_started_it(
    tmp_path: Path, environment: dict[str, str], start: Start
) -> None:
    orphan = start("mark", sys.executable, "-c", AT_TERMINAL)
    [child] = Path(f"/proc/{orphan.pid}/task/{orphan.pid}/children").read_text().split()
    try:
        assert reaped(environment, tmp_path, "--show")[orphan.pid]["processes"] == 1
        assert reap(environment, tmp_path, "--yes", str(orphan.pid))[0] == 0
        assert not orphan.is_live()
        assert Orphan(int(child)).is_live()
    finally:
        os.kill(int(child), signal.SIGKILL)


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_a_file_of_a_host_that_never_ends_is_skipped(
    kind: str, tmp_path: Path, environment: dict[str, str]
) -> None:
    for name in (".mcp.json", ".claude.json"):
        if kind == "pipe":
            os.mkfifo(tmp_path / name)
        else:
            (tmp_path / name).symlink_to("/dev/zero")
    code, _, errors = reap(environment, tmp_path, "--show")
    assert (code in (0, 1), errors) == (True, "")


def test_a_file_of_a_host_that_is_not_utf_8_is_skipped(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    (tmp_path / ".claude.json").write_bytes(b'{"projects": {"/\xff": {"mcpServers": {}}}}')
    (tmp_path / ".mcp.json").write_bytes(b'{"mcpServers": {"\xff": {"command": "x"}}}')
    code, _, errors = reap(environment, tmp_path, "--show")
    assert (code in (0, 1), errors) == (True, "")


def test_a_file_of_a_host_that_others_can_write_names_no_program_to_end(
    tmp_path: Path, environment: dict[str, str], start: Start
) -> None:
    orphan = start("plain")
    entry = {"command": sys.executable, "args": [str(tmp_path / "server.py")]}
    file = tmp_path / ".mcp.json"
    file.write_text(json.dumps({"mcpServers": {"files": entry}}))
    assert orphan.pid in reaped(environment, tmp_path, "--show")
    file.chmod(0o666)
    assert orphan.pid not in reaped(environment, tmp_path, "--show")


def test_a_folder_that_was_deleted_has_no_files_of_hosts(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    folder = tmp_path / "deleted"
    folder.mkdir()
    done = subprocess.run(
        ["sh", "-c", 'rmdir ../deleted; "$0" -m concertino reap --show', sys.executable],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode in (0, 1), done.stderr) == (True, "")
    assert done.stdout


def test_a_process_that_cannot_be_seen_has_not_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As in a /proc that is mounted with hidepid=2, for a process of another user.
    mark = new_mark()
    assert not mark.is_orphaned()
    monkeypatch.setattr("concertino.transports.process_table.PROC", str(tmp_path))
    assert not mark.is_orphaned()
    with subprocess.Popen(["true"]) as process:
        process.wait()
    assert mark._replace(pid=process.pid).is_orphaned()


def test_a_process_that_a_servers_child_has_started_is_not_listed_twice(
    tmp_path: Path, environment: dict[str, str], start: Start
) -> None:
    # Only the shell in the middle lacks the mark. Each shell waits for what it has started.
    inner = f'CONCERTINO_STARTED_BY="$MARK" "$0" "{tmp_path}/server.py"; true'
    outer = 'env -u CONCERTINO_STARTED_BY MARK="$CONCERTINO_STARTED_BY" sh -c "$0" "$1"; true'
    grandchild = start("mark", "sh", "-c", outer, inner, sys.executable)
    child = process_stat(grandchild.pid)[1]
    server = process_stat(int(child))[1]
    try:
        shown = reaped(environment, tmp_path, "--show")
        assert shown[int(server)]["processes"] == 3
        assert grandchild.pid not in shown
    finally:
        os.kill(int(server), signal.SIGKILL)
        os.kill(int(child), signal.SIGKILL)


# Starts a process that is not its user's, or not of its pid namespace, and prints both ids.
FOREIGN = """
import os, signal, subprocess, sys
if sys.argv[1] == "user":
    inner = subprocess.Popen(["sleep", "600"], user=65534)
else:
    outer = subprocess.Popen(["unshare", "--pid", "--fork", "sleep", "600"])
    children = f"/proc/{outer.pid}/task/{outer.pid}/children"
    while not (found := open(children).read().split()):
        if outer.poll() is not None:
            break
    inner = int(found[0]) if found else 0
with open(sys.argv[2], "w") as file:
    file.write(str(inner if isinstance(inner, int) else inner.pid))
print(os.getpid(), flush=True)
signal.pause()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts processes of others")
@pytest.mark.parametrize("kind", ["user", "namespace"])
def test_processes_of_others_that_a_server_has_started_are_left_alone(
    kind: str, tmp_path: Path, environment: dict[str, str], start: Start
) -> None:
    (tmp_path / "foreign.py").write_text(FOREIGN)
    words = (str(tmp_path / "foreign.py"), kind, str(tmp_path / "inner"))
    orphan = start("mark", sys.executable, *words)
    inner = Orphan(int((tmp_path / "inner").read_text()))
    if not inner.pid:
        pytest.skip("this machine allows no pid namespaces")
    try:
        item = reaped(environment, tmp_path, "--show")[orphan.pid]
        # unshare(1) itself is of this namespace.
        assert item["processes"] == (1 if kind == "user" else 2)
        code, _, _ = reap(environment, tmp_path, "--yes", str(orphan.pid))
        assert code == 0
        assert not orphan.is_live()
        assert inner.is_live()
    finally:
        os.kill(inner.pid, signal.SIGKILL)


def test_a_starter_whose_id_another_process_has_now_has_ended(
    tmp_path: Path, environment: dict[str, str], start: Start
) -> None:
    # The mark names this process as it would be if it had got the id of the starter.
    mark = new_mark()
    reused = mark._replace(started_at=mark.started_at - 1)
    server = sys.executable, str(tmp_path / "server.py")
    orphans = [start("none", "env", f"{STARTED_BY}={item}", *server) for item in (reused, mark)]
    shown = reaped(environment, tmp_path, "--show")
    assert shown[orphans[0].pid]["reason"] == f"process {os.getpid()}, which started it, has ended"
    # The other one's starter lives, although the host in between was killed.
    assert orphans[1].pid not in shown


def test_a_process_that_has_the_id_of_a_server_that_ended_before_the_answer_is_left_alone(
    tmp_path: Path, start: Start
) -> None:
    other, orphan = start("none"), start("mark")
    [server] = [server for server in find_abandoned(()) if server.pid == orphan.pid]
    # As if the system had given the ids of the server and of its child to the other process.
    started_at = int(process_stat(other.pid)[19])
    earlier = (other.pid, started_at - 1)
    reused = replace(server, pid=other.pid, started_at=started_at - 1, members=(earlier,))
    assert end_servers([reused])
    assert other.is_live()
    # Even if it has got the id just before the signal is sent, the signal does not reach it.
    assert not send_signal(*earlier, signal.SIGKILL)
    assert other.is_live()
    assert end_servers([server])
    assert not orphan.is_live()


def test_a_server_in_a_user_namespace_of_its_own_is_its_users(
    tmp_path: Path, environment: dict[str, str], start: Start
) -> None:
    # `unshare -U` makes the user of the server nobody, as far as the server itself can see.
    words = ("unshare", "-U", sys.executable, str(tmp_path / "server.py"))
    if subprocess.run(["unshare", "-U", "true"], capture_output=True).returncode:
        pytest.skip("this machine allows no user namespaces")
    orphan = start("mark", *words)
    inner = f"/proc/{orphan.pid}/ns/user"
    assert os.readlink(inner) != os.readlink("/proc/self/ns/user")
    assert orphan.pid in reaped(environment, tmp_path, "--show")
    code, _, _ = reap(environment, tmp_path, "--yes", str(orphan.pid))
    assert code == 0
    assert not orphan.is_live()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts processes of others")
def test_from_a_user_namespace_no_process_of_another_user_is_ended(
    tmp_path: Path, environment: dict[str, str], start: Start
) -> None:
    """Without a mapping, all users are nobody there, whose processes would be one's own."""
    if subprocess.run(["unshare", "-U", "true"], capture_output=True).returncode:
        pytest.skip("this machine allows no user namespaces")
    ended = new_mark()._replace(started_at=1)
    other = subprocess.Popen(
        ["sleep", "600"],
        user=65533,
        group=65533,
        env={STARTED_BY: str(ended)},
        start_new_session=True,
    )
    orphan = start("mark")
    try:
        listed = subprocess.run(
            ["unshare", "-U", sys.executable, "-m", "concertino", "reap", "--json", "--yes"],
            env=environment,
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert str(other.pid) not in [
            str(json.loads(line)["pid"]) for line in listed.stdout.splitlines() if line[:1] == "{"
        ]
        assert other.poll() is None, listed
    finally:
        other.kill()
        other.wait()
        if orphan.is_live():
            os.kill(orphan.pid, signal.SIGKILL)


def test_a_process_without_an_environment_may_become_a_service(
    tmp_path: Path, environment: dict[str, str], start: Start
) -> None:
    entry = {"command": sys.executable, "args": [str(tmp_path / "server.py")]}
    (tmp_path / ".mcp.json").write_text(json.dumps({"mcpServers": {"files": entry}}))
    orphan = start("plain", "env", "-i", sys.executable, str(tmp_path / "server.py"))
    assert orphan.pid not in reaped(environment, tmp_path, "--show")


FILES = {
    ".cursor/mcp.json": "mcpServers",
    ".config/Code/User/mcp.json": "servers",
    ".claude.json": "mcpServers",
}


@pytest.mark.parametrize("name", FILES)
def test_a_server_of_a_file_is_shown_when_the_system_has_adopted_it(
    name: str, tmp_path: Path, environment: dict[str, str], start: Start
) -> None:
    orphan = start("plain")
    assert orphan.pid not in reaped(environment, tmp_path, "--show")

    # Unrelated and unreadable files change nothing.
    (tmp_path / ".codex").mkdir()
    (tmp_path / ".codex/config.toml").write_text("[[[")
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    other = {"command": "${NOT_SET_ANYWHERE}", "args": []}
    entry = {"command": "python3", "args": ["${HOME}/server.py"]}
    entry["command"] = os.path.basename(sys.executable)
    path.write_text(json.dumps({FILES[name]: {"other": other, "files": entry}}))
    item = reaped(environment, tmp_path, "--show")[orphan.pid]
    assert item["reason"] == f"the host has ended that started files of {path}"


def test_a_server_of_a_project_of_claude_code_is_shown(
    tmp_path: Path, environment: dict[str, str], start: Start
) -> None:
    orphan = start("plain")
    entry = {"command": sys.executable, "args": [str(tmp_path / "server.py")]}
    content = {"numStartups": 3, "projects": {"/srv/a": {"mcpServers": {"own": entry}}, "/b": 1}}
    (tmp_path / ".claude.json").write_text(json.dumps(content))
    assert orphan.pid in reaped(environment, tmp_path, "--show")


def test_a_server_whose_host_lives_and_a_service_are_left_alone(
    tmp_path: Path, environment: dict[str, str], start: Start
) -> None:
    entry = {"command": sys.executable, "args": [str(tmp_path / "server.py")]}
    (tmp_path / ".mcp.json").write_text(json.dumps({"mcpServers": {"files": entry}}))
    host = subprocess.Popen(
        [sys.executable, "-c", HOST, "mark", *entry["args"][:0], sys.executable, *entry["args"]],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert host.stdout is not None
        kept = Orphan(int(host.stdout.readline()))
        # systemd sets this variable to the id of the service's own process.
        service = start(
            "mark",
            "sh",
            "-c",
            f'SYSTEMD_EXEC_PID=$$ exec "$0" "{tmp_path}/server.py"',
            sys.executable,
        )
        shown = reaped(environment, tmp_path, "--show")
        assert kept.pid not in shown
        assert service.pid not in shown
    finally:
        host.kill()
        host.communicate(timeout=60)
        os.kill(kept.pid, signal.SIGKILL)


def test_an_id_that_is_not_abandoned_is_refused(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    code, _, errors = reap(environment, tmp_path, "--yes", "1")
    assert code == 2
    assert "process 1 is not an abandoned server" in errors
    code, _, errors = reap(environment, tmp_path, "--json")
    assert code == 2
    assert "--json does not ask" in errors
