"""The process of warm_commands.py that forks: `python forking_process.py DESCRIPTOR FOLDER`.

It imports what most servers and commands need, the package from this folder, and then reads
requests from a socket, in JSON:

- the words of a command line and the rest of what `subprocess.Popen` is told, with three
  descriptors: fork a process that does what `python WORDS...` does, with the descriptors as its
  standard streams; the response is its id;
- a process id: the response is the wait status of this process, as soon as it has ended.

What a forked process has not in common with a new interpreter: many modules are loaded, its parent
is this process, /proc shows the command line, environment and memory of this process, and objects
that are alive at its end are not finalized, which would take 40 ms.
"""

from __future__ import annotations

import argparse  # noqa: F401 for the processes that are forked
import array
import asyncio  # noqa: F401
import atexit
import gc
import importlib
import importlib.machinery
import io
import json
import os
import runpy
import socket
import sys
import threading
import time
import types
from collections.abc import Callable

# None of them imports a module that shows something by having been imported: those that change
# sys.excepthook and atexit (runtime.entry, server.server) or show that a script has served
# (runtime.host), or take random numbers (orchestra.rpc_client).
MODULES = (
    "backend.user_errors",
    "cli.call",
    "cli.config",
    "cli.server_session",
    "client.client",
    "http.exchange",
    "http.request_reader",
    "http.session_connection",
    "logs.handler",
    "runtime.call_runner",
    "runtime.loop_watcher",
    "runtime.refusal",
    "runtime.server_connection",
    "server.server_backend",
    "transports.stdio",
)
REQUEST_BYTES = 1 << 17


def main() -> None:
    """Fork processes until the other end of the socket is closed."""
    requests = socket.socket(fileno=int(sys.argv[1]))
    path = sys.path[1:]
    sys.path[0] = sys.argv[2]
    for module in MODULES:
        importlib.import_module(f"concertino.{module}")
    gc.collect()

    while True:
        text, ancillary, _, _ = requests.recvmsg(REQUEST_BYTES, socket.CMSG_SPACE(12))
        if not text:
            return
        request = json.loads(text)
        if isinstance(request, int):
            response = os.waitpid(request, 0)[1]
        else:
            streams = array.array("i", ancillary[0][2])
            response = os.fork()
            if response == 0:
                requests.close()
                run(streams=streams, path=path, **request)
            for stream in streams:
                os.close(stream)
        requests.send(b"%d" % response)


def run(
    *,
    streams: array.array[int],
    path: list[str],
    words: list[str],
    env: dict[str, str],
    cwd: str,
    session: bool,
    group: int,
) -> None:
    """Do in this process what `python WORDS...` does, and exit.

    path: sys.path without what the environment and the command line add.
    session, group: start_new_session and process_group of subprocess.Popen.
    """
    if session:
        os.setsid()
    if group >= 0:
        os.setpgid(0, group)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(env)
    time.tzset()
    os.chdir(cwd)

    sys.dont_write_bytecode = bool(env.get("PYTHONDONTWRITEBYTECODE"))
    open_streams(unbuffered=bool(env.get("PYTHONUNBUFFERED")))
    sys.orig_argv = [sys.executable, *words]
    added = env.get("PYTHONPATH")
    sys.path = [*(added.split(":") if added else []), *path]

    program = sys.modules["__main__"] = types.ModuleType("__main__")
    if words[0] == "-m":
        sys.argv = ["-m", *words[2:]]
        sys.path.insert(0, os.getcwd())
        call(lambda: runpy._run_module_as_main(words[1]))
    elif words[0] == "-c":
        sys.argv = ["-c", *words[2:]]
        sys.path.insert(0, "")
        call(lambda: exec(words[1], vars(program)))
    else:
        sys.argv = words
        sys.path.insert(0, os.path.dirname(os.path.realpath(words[0])))
        file = os.path.abspath(words[0])
        loader = importlib.machinery.SourceFileLoader("__main__", file)
        vars(program).update(__file__=file, __cached__=None, __loader__=loader)
        call(lambda: exec(loader.source_to_code(loader.get_data(file), file), vars(program)))


def open_streams(*, unbuffered: bool) -> None:
    """Make sys.stdin, sys.stdout and sys.stderr new, for the descriptors 0 to 2."""
    encoding, errors = sys.stdin.encoding, sys.stdin.errors
    reader = io.BufferedReader(io.FileIO(0, closefd=False))
    sys.stdin = sys.__stdin__ = io.TextIOWrapper(reader, encoding=encoding, errors=errors)
    for number, name in ((1, "stdout"), (2, "stderr")):
        file = io.FileIO(number, "w", closefd=False)
        stream = io.TextIOWrapper(
            file if unbuffered else io.BufferedWriter(file),
            encoding=encoding,
            errors="backslashreplace" if number == 2 else errors,
            newline="\n",
            line_buffering=number == 2 or os.isatty(number),
            write_through=unbuffered,
        )
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def call(function: Callable[[], object]) -> None:
    """Call a function, and end the process as the interpreter does after the main program."""
    code: object = 0
    try:
        function()
    except SystemExit as exc:
        code = exc.code
    except BaseException as exc:
        # Without the frames of this file.
        trace = exc.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        exc.__traceback__ = trace
        # Since Python 3.12, sys.last_exc has the place of the others.
        sys.last_exc = sys.last_value = exc  # type: ignore[attr-defined]
        sys.last_type, sys.last_traceback = type(exc), trace
        sys.excepthook(type(exc), exc, trace)
        if isinstance(exc, KeyboardInterrupt):
            # The interpreter ends itself by SIGINT then, and prints nothing more.
            sys.excepthook = lambda *_: None
            raise
        code = 1

    if code is not None and not isinstance(code, int):
        print(code, file=sys.stderr)
        code = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):
        # The interpreter says so, and changes the exit code.
        sys.exit(code)
    os._exit((code or 0) & 255)


main()
