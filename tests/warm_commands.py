"""Run `concertino` commands as processes that need not import the package first.

A process of each worker of pytest imports what most commands need, and forks a process for each
command. Such a process has its own arguments, environment, folder and standard streams, and ends as
any other does. That takes a fraction of the CPU time of a new interpreter, and hundreds of tests
run commands.

Tests of imports, signals, terminals and of what `ps` shows must start an interpreter.
"""

from __future__ import annotations

import array
import atexit
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

# What a process that forks runs: `python -c FORKING DESCRIPTOR`. Its children leave the loop, and
# go on as `python -m concertino` does.
FORKING = """
import array, importlib, json, os, runpy, select, signal, socket, sys
import argparse, asyncio

for module in ("cli.call", "cli.config", "cli.serve", "cli.server_session", "client.client"):
    importlib.import_module("concertino." + module)
commands = socket.socket(fileno=int(sys.argv[1]))
while True:
    text, ancillary, _, _ = commands.recvmsg(1 << 17, socket.CMSG_SPACE(12))
    if not text:
        sys.exit()
    command, streams = json.loads(text), array.array("i", ancillary[0][2])
    child = os.fork()
    if child == 0:
        break
    for stream in streams:
        os.close(stream)
    end = os.pidfd_open(child)
    if not select.select([end], [], [], command["timeout_s"])[0]:
        os.kill(child, signal.SIGKILL)
    os.close(end)
    commands.send(b"%d" % os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

commands.close()
for number, stream in enumerate(streams):
    os.dup2(stream, number)
    os.close(stream)
os.environ.clear()
os.environ.update(command["env"])
os.chdir(command["cwd"])
sys.dont_write_bytecode = "PYTHONDONTWRITEBYTECODE" in os.environ
sys.argv[1:] = command["words"]
sys.path[0] = os.getcwd()
encoding = os.environ.get("PYTHONIOENCODING", "utf-8")
sys.stdin = open(0, encoding=encoding, closefd=False)
sys.stdout = open(1, "w", encoding=encoding, closefd=False)
sys.stderr = open(2, "w", encoding=encoding, errors="backslashreplace", closefd=False)
sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr
runpy.run_module("concertino", run_name="__main__", alter_sys=True)
"""


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
    command = {
        "words": [str(word) for word in words],
        "env": dict(env),
        "cwd": str(cwd or Path.cwd()),
        "timeout_s": TIMEOUT_S,
    }
    # Files and not pipes, which a process that the command leaves behind would keep open.
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        reading, writing = os.pipe()
        os.write(writing, stdin)
        os.close(writing)
        streams = array.array("i", [reading, out.fileno(), err.fileno()])
        commands = forking_process()
        commands.sendmsg(
            [json.dumps(command).encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, streams)]
        )
        os.close(reading)
        code = int(commands.recv(64))
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(command["words"], code, out.read(), err.read())


@cache
def forking_process() -> socket.socket:
    """Start the process that forks, and return the socket for commands to it."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with its:
        process = subprocess.Popen(
            [sys.executable, "-c", FORKING, str(its.fileno())],
            pass_fds=(its.fileno(),),
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )

    @atexit.register
    def end() -> None:
        ours.close()
        process.wait(10)

    return ours
