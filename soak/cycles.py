"""A thousand lives and a thousand deaths: nothing is left of any.

    python soak/cycles.py [--cycles 1000] [--kills 1000] [--at-once 25]

Lives: start, handshake, a call, end of input; the exit code is 0, stdout held messages only. Deaths: half of them of a client that
is killed, idle or during a call; half of a wrapper (`sh -c`) that is killed while all pipes stay open, so that only the death of
the parent tells. Before and after, a census: processes that carry our mark in their environment, our own descriptors and threads,
files in the servers' temporary directory.
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

from concertino.check.case import CheckFinding
from concertino.check.case_context import CaseContext
from concertino.check.child_process import PLAIN, ServerProcess, StdioSetup, kill_all
from concertino.check.run import look
from concertino.check.server_under_test import ServerUnderTest, Settings

SERVER = [sys.executable, "-m", "concertino.check.reference_server"]
MARK = f"CONCERTINO_SOAK={os.getpid()}"
GONE_S = 12.0  # silence of 5 s, the drain of 2, and a busy machine
# A client in a process of its own, to be killed: starts the server it is given, opens it, calls what it is told to, says its pid.
CLIENT = """
import subprocess, sys, time
server = subprocess.Popen(sys.argv[2:], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
server.stdin.write(sys.argv[1].encode().decode("unicode_escape").encode()); server.stdin.flush()
server.stdout.readline()
print(server.pid, flush=True)
time.sleep(600)
"""
OPEN = (
    '{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},'
    '"clientInfo":{"name":"soak","version":"1"}}}\\n{"jsonrpc":"2.0","method":"notifications/initialized"}\\n'
)
CALL = '{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"%s","arguments":{"seconds":600}}}\\n'


def marked() -> list[int]:
    """Every running process that was started by us, or by what we started: they inherit the mark."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                has_mark = MARK.encode() in (entry / "environ").read_bytes().split(b"\0")
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            if has_mark and state not in "ZX":
                found.append(int(entry.name))
    return found


def census(folder: str) -> dict[str, object]:
    """What must be the same before and after."""
    return {
        "processes": marked(),
        "descriptors": len(list(Path("/proc/self/fd").iterdir())),
        "threads": threading.active_count(),
        "temporary files": sorted(each.name for each in Path(folder).iterdir()),
    }


def live(subject: ServerUnderTest) -> str:
    """One life; what was wrong with it, or nothing."""
    with ServerProcess(SERVER, PLAIN, dict(os.environ)) as child:
        trial = CaseContext(subject, child)
        try:
            trial.open()
            trial.echoed("alive")
            trial.end_of_input()
            code = trial.must_end(10.0, "the end of input")
        except CheckFinding as found:
            return f"{found.verdict}: {found}"
        if (
            code
            or child.strays
            or b"Fatal Python error" in child.stderr
            or b"Traceback" in child.stderr
        ):
            return f"exit code {code}, {child.strays[:1]}, {child.stderr_tail()}"
    return ""


def client_dies(number: int) -> str:
    """A client is killed: idle, in a call that waits, in a call that blocks."""
    call = ("", CALL % "sleep", CALL % "block")[number % 3]
    client = subprocess.Popen(
        [sys.executable, "-c", CLIENT, OPEN + call, *SERVER], stdout=subprocess.PIPE
    )
    assert client.stdout is not None
    with client:
        said = client.stdout.readline()
        client.kill()
        client.wait()
    return (
        ""
        if said and gone(int(said))
        else f"the server of a killed client ({call or 'idle'}) still runs: {said!r}"
    )


def wrapper_dies(subject: ServerUnderTest) -> str:
    """A shell between us and the server is killed, and no pipe closes."""
    with ServerProcess(SERVER, StdioSetup(wrapped=True), dict(os.environ)) as child:
        try:
            CaseContext(subject, child).open()
        except CheckFinding as found:
            return f"{found.verdict}: {found}"
        child.popen.send_signal(signal.SIGKILL)
        if not child.wait(GONE_S):
            return "the server behind a killed wrapper still runs"
    return ""


def gone(pid: int) -> bool:
    """Wait for the end of a process that is not our child; it is killed if it does not come."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        if poll.poll(GONE_S * 1000):
            return True
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        return False
    finally:
        os.close(descriptor)


def say(text: str) -> None:
    """A line for whoever runs this, at once."""
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
        help="wrappers killed at a time; each takes five seconds to be noticed",
    )
    given = parser.parse_args()
    name, _, value = MARK.partition("=")
    os.environ[name] = value
    wrong: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TMPDIR"] = folder
        try:
            subject = look(SERVER, Settings(timeout_s=30))
            wrong += [
                why for why in (live(subject), client_dies(0), wrapper_dies(subject)) if why
            ]  # what is made once is made
            before = census(folder)
            began = time.monotonic()
            wrong += [why for _ in range(given.cycles) if (why := live(subject))]
            say(f"{given.cycles} lives in {time.monotonic() - began:.0f} s, {len(wrong)} wrong")
            began = time.monotonic()
            with ThreadPoolExecutor(4) as pool:
                wrong += filter(None, pool.map(client_dies, range(given.kills // 2)))
            with ThreadPoolExecutor(given.at_once) as pool:
                wrong += filter(
                    None, pool.map(wrapper_dies, [subject] * (given.kills - given.kills // 2))
                )
            say(
                f"{given.kills} deaths in {time.monotonic() - began:.0f} s, {len(wrong)} wrong in all"
            )
            after = census(folder)
        finally:
            kill_all()
    for why in wrong[:20]:
        say(f"  {why}")
    say(f"before: {before}\nafter:  {after}")
    for pid in marked():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    ok = not wrong and before == after
    say("nothing is left" if ok else "SOMETHING IS LEFT OR WRONG")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
