"""Start and end a thousand servers in many ways, and check that nothing is left behind.

    python soak/cycles.py [--cycles 1000] [--kills 1000] [--at-once 25]

A cycle is a start, a handshake, a call, and the end of input: the exit code must be 0, and stdout
must hold messages only. Of the kills, half hit a client that is idle or in a call, and half hit a
wrapper (`sh -c`) whose pipes stay open, so that only the death of its parent tells the server to
end. Before and after, the program counts the processes that carry its mark in their environment,
its own descriptors and threads, and the files in the servers' temporary directory.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from concertino.check.case_context import CaseContext
from concertino.check.findings import CheckFinding
from concertino.check.run import inspect_server
from concertino.check.server_process import ServerProcess, kill_all
from concertino.check.server_under_test import CheckSettings, ServerUnderTest
from concertino.check.stdio_setup import PLAIN, StdioSetup

SERVER = [sys.executable, "-m", "concertino.check.reference_server"]
MARK = f"CONCERTINO_SOAK={os.getpid()}"
# 5 s of silence, 2 s for calls under way, and a margin for a busy machine.
EXIT_S = 12.0
# A client to be killed: it starts a server, writes a session to it, and prints the server's pid.
CLIENT = """
import subprocess, sys, time
PIPE = subprocess.PIPE
server = subprocess.Popen(sys.argv[2:], stdin=PIPE, stdout=PIPE, stderr=subprocess.DEVNULL)
server.stdin.write(sys.argv[1].encode().decode("unicode_escape").encode()); server.stdin.flush()
server.stdout.readline()
print(server.pid, flush=True)
time.sleep(600)
"""
OPEN = (
    '{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25",'
    '"capabilities":{},'
    '"clientInfo":{"name":"soak","version":"1"}}}\\n{"jsonrpc":"2.0",'
    '"method":"notifications/initialized"}\\n'
)
CALL = (
    '{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"%s",'
    '"arguments":{"seconds":600}}}\\n'
)


def find_marked() -> list[int]:
    """Return the running processes that this program started, directly or indirectly.

    They inherit the mark in their environment.
    """
    pids: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                has_mark = MARK.encode() in (entry / "environ").read_bytes().split(b"\0")
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            if has_mark and state not in "ZX":
                pids.append(int(entry.name))
    return pids


def take_inventory(folder: str) -> dict[str, object]:
    """Return what must be the same before and after."""
    return {
        "processes": find_marked(),
        "descriptors": len(list(Path("/proc/self/fd").iterdir())),
        "threads": threading.active_count(),
        "temporary files": sorted(path.name for path in Path(folder).iterdir()),
    }


def run_cycle(server: ServerUnderTest) -> str:
    """Start, use and end a server. Return what was wrong, or an empty string."""
    with ServerProcess(SERVER, PLAIN, dict(os.environ)) as process:
        context = CaseContext(server, process)
        try:
            context.open()
            context.require_echo("alive")
            context.close_stdin()
            code = context.require_exit("the end of input")
        except CheckFinding as finding:
            return f"{finding.verdict}: {finding}"
        stray_lines, stderr = process.output.stray_lines, process.stderr
        if (
            code
            or stray_lines
            or b"Fatal Python error" in stderr.tail
            or b"Traceback" in stderr.tail
        ):
            return f"exit code {code}, {stray_lines[:1]}, {stderr.format_last_lines()}"
    return ""


def kill_client(number: int) -> str:
    """Kill a client that is idle, in a call that waits, or in a call that blocks.

    Return what was wrong, or an empty string.
    """
    call = ("", CALL % "sleep", CALL % "block")[number % 3]
    client = subprocess.Popen(
        [sys.executable, "-c", CLIENT, OPEN + call, *SERVER], stdout=subprocess.PIPE
    )
    assert client.stdout is not None
    with client:
        line = client.stdout.readline()
        client.kill()
        client.wait()
    if line and wait_for_exit(int(line)):
        return ""
    return f"the server of a killed client ({call or 'idle'}) still runs: {line!r}"


def kill_wrapper(server: ServerUnderTest) -> str:
    """Kill the shell between this program and a server. No pipe closes.

    Return what was wrong, or an empty string.
    """
    with ServerProcess(SERVER, StdioSetup(wrapped=True), dict(os.environ)) as process:
        try:
            CaseContext(server, process).open()
        except CheckFinding as finding:
            return f"{finding.verdict}: {finding}"
        process.popen.send_signal(signal.SIGKILL)
        if not process.wait_for_exit(EXIT_S):
            return "the server behind a killed wrapper still runs"
    return ""


def wait_for_exit(pid: int) -> bool:
    """Wait for the end of a process that is not our child, and return whether it ended in time.

    It is killed if it did not.
    """
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        if poll.poll(EXIT_S * 1000):
            return True
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        return False
    finally:
        os.close(descriptor)


def print_line(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cycles", type=int, default=1000)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument(
        "--at-once",
        type=int,
        default=25,
        help="wrappers killed at a time; a server needs five seconds to notice each",
    )
    args = parser.parse_args()
    name, _, value = MARK.partition("=")
    os.environ[name] = value

    problems: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TMPDIR"] = folder
        try:
            server = inspect_server(SERVER, CheckSettings(timeout_s=30, exit_s=10))
            # The first round creates what is created once, such as caches.
            problems += filter(None, (run_cycle(server), kill_client(0), kill_wrapper(server)))
            before = take_inventory(folder)

            began = time.monotonic()
            problems += filter(None, (run_cycle(server) for _ in range(args.cycles)))
            took_s = time.monotonic() - began
            print_line(f"{args.cycles} cycles in {took_s:.0f} s, {len(problems)} wrong")

            began = time.monotonic()
            clients = args.kills // 2
            with ThreadPoolExecutor(4) as pool:
                problems += filter(None, pool.map(kill_client, range(clients)))
            with ThreadPoolExecutor(args.at_once) as pool:
                wrappers = pool.map(kill_wrapper, [server] * (args.kills - clients))
                problems += filter(None, wrappers)
            took_s = time.monotonic() - began
            print_line(f"{args.kills} kills in {took_s:.0f} s, {len(problems)} wrong in all")
            after = take_inventory(folder)
        finally:
            kill_all()

    for problem in problems[:20]:
        print_line(f"  {problem}")
    print_line(f"before: {before}\nafter:  {after}")
    for pid in find_marked():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    ok = not problems and before == after
    print_line("nothing is left" if ok else "SOMETHING IS LEFT OR WRONG")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
