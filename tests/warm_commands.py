"""Run servers and commands as processes that need not start an interpreter and import the package.

A process of each worker of pytest has imported what most of them need (forking_process.py), and
forks a process for each. Such a process has its own arguments, environment, folder and standard
streams, and ends as any other does. That takes a fifth or less of the CPU time of a new
interpreter, and hundreds of tests start one.

Tests of imports, signals at the start, memory, and of what `ps` and /proc show must start an
interpreter: subprocess.run() does so where this module has run_python().
"""

from __future__ import annotations

import array
import atexit
import json
import os
import select
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import concertino

FORKING = Path(__file__).with_name("forking_process.py")
# What decides about text before the first line of Python runs.
LOCALE = ("LANG", "LC_ALL", "LC_CTYPE", "PYTHONIOENCODING", "PYTHONUTF8")
FORKED_PYTHON = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED", *LOCALE)
FORKED_OPTIONS = {
    *("stdin", "stdout", "stderr", "bufsize", "text", "encoding", "cwd", "env"),
    *("start_new_session", "process_group"),
}
# What subprocess.Popen passes to _execute_child().
EXECUTE_OPTIONS = (
    *("executable", "preexec_fn", "close_fds", "pass_fds", "cwd", "env", "startupinfo"),
    *("creationflags", "shell", "p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread"),
    *("errwrite", "restore_signals", "gid", "gids", "uid", "umask", "start_new_session"),
    "process_group",
)
# After this time, in seconds, a command is killed.
TIMEOUT_S = 60


def run_command(
    *words: str | Path,
    cwd: str | Path | None = None,
    env: Mapping[str, str] = os.environ,
    stdin: bytes = b"",
) -> subprocess.CompletedProcess[str]:
    """Run `concertino WORDS...`, and return its exit code and its output as text.

    stdin: less than a pipe holds.
    """
    done = run_command_in_bytes(*words, cwd=cwd, env=env, stdin=stdin)
    return subprocess.CompletedProcess(
        done.args, done.returncode, done.stdout.decode(), done.stderr.decode()
    )


def run_command_in_bytes(
    *words: str | Path,
    cwd: str | Path | None = None,
    env: Mapping[str, str] = os.environ,
    stdin: bytes = b"",
) -> subprocess.CompletedProcess[bytes]:
    """Do the same as run_command(), with the output as bytes."""
    line = [sys.executable, "-m", "concertino", *words]
    # Files and not pipes, which a process that the command leaves behind would keep open.
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        done = run_python(
            line, cwd=cwd, env=env, input=stdin, stdout=out, stderr=err, timeout=TIMEOUT_S
        )
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(line, done.returncode, out.read(), err.read())


def run_python(
    words: Sequence[str | Path],
    *,
    input: str | bytes | None = None,
    capture_output: bool = False,
    timeout: float | None = TIMEOUT_S,
    check: bool = False,
    **options: Any,
) -> subprocess.CompletedProcess[Any]:
    """Do what subprocess.run() does; fork the process where start_python() does."""
    if input is not None:
        options["stdin"] = subprocess.PIPE
    if capture_output:
        options.update(stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    with start_python(words, **options) as process:
        try:
            out, err = process.communicate(input, timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(words, process.returncode, out, err)
    if check:
        done.check_returncode()
    return done


def start_python(words: Sequence[str | Path], **options: Any) -> subprocess.Popen[Any]:
    """Do what subprocess.Popen() does; fork the process where that comes to the same.

    It does not for other programs than this interpreter, for options of the interpreter and of the
    locale, for descriptors that are passed on, and where the coverage of processes is counted.
    """
    env = os.environ if options.get("env") is None else options["env"]
    forked = (
        words[0] == sys.executable
        and len(words) > 1
        and (words[1] in ("-c", "-m") or not str(words[1]).startswith("-"))
        and options.keys() <= FORKED_OPTIONS
        and all(env.get(name) == os.environ.get(name) for name in LOCALE)
        and all(name in FORKED_PYTHON for name in env if name.startswith("PYTHON"))
        and "COVERAGE_PROCESS_CONFIG" not in env
    )
    return (ForkedPopen if forked else subprocess.Popen)(words, **options)


class ForkedPopen(subprocess.Popen[Any]):
    """A process that forking_process.py has forked, and waits for when this object does.

    Some methods that it replaces are private; all versions of Python that we test have them.
    """

    _pidfd: int

    def _execute_child(self, args: Sequence[str | Path], *options: Any) -> None:
        values = dict(zip(EXECUTE_OPTIONS, options, strict=True))
        streams = [values[name] for name in ("p2cread", "c2pwrite", "errwrite")]
        self.pid = ask_forking_process(
            {
                "words": [str(word) for word in args[1:]],
                "env": dict(os.environ if values["env"] is None else values["env"]),
                "cwd": os.path.abspath(values["cwd"] or "."),
                "session": values["start_new_session"],
                "group": values["process_group"],
            },
            [number if stream < 0 else stream for number, stream in enumerate(streams)],
        )
        self._pidfd = os.pidfd_open(self.pid)
        self._child_created = True
        self._close_pipe_fds(*options[9:15])  # type: ignore[attr-defined]

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        if not poll.poll(0 if wait_flags else None):
            return 0, 0
        os.close(self._pidfd)
        return self.pid, ask_forking_process(self.pid)

    def _internal_poll(self, _deadstate: int | None = None, *_: Any) -> int | None:
        if self.returncode is None and self._waitpid_lock.acquire(False):  # type: ignore[attr-defined]
            try:
                pid, status = self._try_wait(os.WNOHANG)
                if pid:
                    self._handle_exitstatus(status)  # type: ignore[attr-defined]
            finally:
                self._waitpid_lock.release()  # type: ignore[attr-defined]
        return self.returncode


def ask_forking_process(request: Mapping[str, Any] | int, streams: Sequence[int] = ()) -> int:
    """Send a request to forking_process.py, and return its response."""
    requests, lock = forking_process()
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", streams))]
    with lock:
        requests.sendmsg([json.dumps(request).encode()], ancillary if streams else [])
        return int(requests.recv(64))


@cache
def forking_process() -> tuple[socket.socket, threading.Lock]:
    """Start the process that forks, and return the socket for requests to it, and their lock."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with its:
        process = subprocess.Popen(
            [sys.executable, FORKING, str(its.fileno()), Path(concertino.__file__).parents[1]],
            stdin=subprocess.DEVNULL,
            pass_fds=(its.fileno(),),
            # With PYTHONUNBUFFERED, C would not buffer its stdout either, in all forked processes.
            env={
                name: value
                for name, value in os.environ.items()
                if name not in ("PYTHONPATH", "PYTHONUNBUFFERED")
            },
        )

    @atexit.register
    def end() -> None:
        ours.close()
        process.wait(10)

    return ours, threading.Lock()
