"""How soon a proxy serves again after its server has ended or its code was saved, and what
`concertino connect` costs.

    python bench/proxy_restarts.py [--rounds N]

After kill -9: a client of `concertino proxy` calls again and again from the moment when the server
is killed, and time counts to the first result, which only the restarted server can give. The proxy
waits 0.075 to 0.1 s before the first restart. The servers are one in C, which starts in a
millisecond, and one of ours, whose start is part of the time.

After a save: a file of a server is saved, and the client calls at once; time counts from the save
to the result, which must be that of the new code. With `concertino proxy --watch` the server is
started again; with `concertino dev` an interpreter that has imported concertino waits for that. A
second passes between two saves.

`concertino connect` joins stdin and stdout to a socket at which a server listens. Its CPU time to
the first result and its memory are beside those of an interpreter that does nothing, in starts that
take turns: the difference is what the command adds.

Medians of times and memory, minima of CPU time. Needs Linux and a C compiler.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from proxy import ECHO, Process, rows, started

# A server whose only result is in its source.
VERSIONED = """
from concertino import Server
server = Server("versioned")

@server.tool
async def echo(text: str) -> str:
    return text + "{number}"

if __name__ == "__main__":
    server.run()
"""
# What pip installs as the command `concertino`.
SCRIPT = "from concertino.cli import main\nmain()\n"
BARE = "import sys\nsys.stdout.write('\\n')\nsys.stdout.flush()\nsys.stdin.read()\n"
# In which a process has forgotten the last save or kill.
PAUSE_S = 1.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["XDG_CACHE_HOME"] = os.environ["XDG_STATE_HOME"] = name
        (folder / "concertino").write_text(SCRIPT)
        concertino = [sys.executable, name + "/concertino"]
        commands = rows(folder, None)
        for title, server in (
            ("a C server", commands["C server"]),
            ("a server of ours", commands["our echo server"]),
        ):
            show(f"kill -9 of {title}", time_kills([*concertino, "proxy", "--", *server], rounds))

        file = folder / "versioned.py"
        server = [sys.executable, str(file)]
        watch = [*concertino, "proxy", "--watch", str(file), "--", *server]
        show("a save, proxy --watch", time_saves(watch, file, rounds))
        show("a save, dev", time_saves([*concertino, "dev", str(file)], file, rounds))
        print_connect(folder, concertino, rounds)
    print(f"load: {os.getloadavg()[0]:.1f}")
    return 0


def show(title: str, times_ms: list[float]) -> None:
    median, longest = statistics.median(times_ms), max(times_ms)
    print(f"first result after {title}: median {median:.0f} ms, longest {longest:.0f} ms")


def time_kills(command: list[str], rounds: int) -> list[float]:
    """Return the ms from each kill of the proxy's server to the next result."""
    program = command[-1]
    times: list[float] = []
    with started(command) as process:
        process.call("hello")
        for _ in range(rounds):
            server = find_child(process.pid, program)
            began = time.perf_counter()
            os.kill(server, signal.SIGKILL)
            until_result(process, "hello", "hello")
            times.append((time.perf_counter() - began) * 1e3)
            time.sleep(PAUSE_S)
    return times


def time_saves(command: list[str], file: Path, rounds: int) -> list[float]:
    """Return the ms from each save of a server's file to the result of the new code.

    Raises AssertionError if the first call after a save has the result of the old code.
    """
    file.write_text(VERSIONED.format(number=0))
    times: list[float] = []
    with started(command) as process:
        until_result(process, "hello ", "hello 0")
        for number in range(1, rounds + 1):
            time.sleep(PAUSE_S)
            began = time.perf_counter()
            file.write_text(VERSIONED.format(number=number))
            assert call(process, "hello ") == f"hello {number}"
            times.append((time.perf_counter() - began) * 1e3)
    return times


def call(process: Process, text: str) -> str | None:
    """Return the text of a result; None for an error."""
    params = {"name": "echo", "arguments": {"text": text}}
    [line] = process.exchange(process.frame("tools/call", params), 1)
    result = json.loads(line).get("result")
    return None if result is None else result["content"][0]["text"]


def until_result(process: Process, text: str, expected: str) -> None:
    """Call until there is a result. A call that the server had read when it ended is an error."""
    while (found := call(process, text)) is None:
        pass
    assert found == expected


def find_child(pid: int, program: str) -> int:
    """Return the id of the child of a process that runs a program, which is its last word."""
    word = b"\0" + program.encode() + b"\0"
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            if word in b"\0" + Path(f"/proc/{child}/cmdline").read_bytes():
                return int(child)
    raise LookupError(f"no child of {pid} runs {program}")


def print_connect(folder: Path, concertino: list[str], rounds: int) -> None:
    """Print the CPU time and memory of `concertino connect`, and what an interpreter takes."""
    (folder / "echo.py").write_text(ECHO)
    (folder / "bare.py").write_text(BARE)
    address = f"unix:{folder}/socket"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1] / "src")}
    server = [*concertino, "serve", str(folder / "echo.py"), "--unix", f"{folder}/socket"]
    with subprocess.Popen(server, env=environment, stderr=subprocess.DEVNULL) as serving:
        try:
            starts = {
                "concertino connect": ([*concertino, "connect", address, "--wait", "20"], greet),
                "an interpreter": ([sys.executable, str(folder / "bare.py")], wait_for_line),
            }
            taken = take_turns(starts, rounds)
        finally:
            serving.terminate()
    for name, (cpu_ms, rss_mb) in taken.items():
        print(f"{name}: {cpu_ms:.1f} ms of CPU time to the first result, {rss_mb:.1f} MB")


def take_turns(
    starts: dict[str, tuple[Sequence[str], Callable[[Process], object]]], rounds: int
) -> dict[str, tuple[float, float]]:
    """Start each row in each round. Returns the least CPU time in ms and the median memory in MB.

    starts: name -> the command, and a function that waits until the process has done its work.
    """
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in starts}
    for _ in range(rounds):
        for name, (command, wait) in starts.items():
            process = Process(list(command))
            wait(process)
            taken[name].append((process.cpu_us / 1000, process.rss_mb))
            process.end()
    return {
        name: (min(cpu for cpu, _ in figures), statistics.median(rss for _, rss in figures))
        for name, figures in taken.items()
    }


def greet(process: Process) -> None:
    process.open()
    process.call("hello")


def wait_for_line(process: Process) -> None:
    process.exchange(b"", 1)


if __name__ == "__main__":
    sys.exit(main())
