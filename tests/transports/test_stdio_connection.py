"""transports/stdio.py: what take_over() takes, and what a forked child has of it.

Each test runs in a process of its own, whose exit code is its verdict: the runner's descriptors and
streams stay as they are.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import concertino

SRC = str(Path(concertino.__file__).parent.parent)
PRELUDE = """
import asyncio, logging, os, sys
from concertino.transports.stdio import StdioConnection, take_over
from concertino.jsonrpc.limits import Limits
"""


def verdict(source: str, **popen: object) -> tuple[int, bytes, bytes]:
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + source],
        input=b"from outside\n",
        capture_output=True,
        timeout=20,
        env={**os.environ, "PYTHONPATH": SRC},
        check=False,
        **popen,  # type: ignore[call-overload]
    )
    return done.returncode, done.stdout, done.stderr


def test_the_wire_is_taken() -> None:
    code, out, errors = verdict("""
before = [os.fstat(n).st_ino for n in (0, 1, 2)]
streams = sys.stdin, sys.stdout, sys.stderr
taken = take_over()
assert os.fstat(taken.reading).st_ino == before[0]
assert os.fstat(taken.writing).st_ino == before[1]
assert taken.reading >= 10 and taken.writing >= 10
assert os.path.samefile("/proc/self/fd/0", os.devnull)
assert os.fstat(1).st_ino == before[2]
assert not os.get_inheritable(taken.reading) and not os.get_inheritable(taken.writing)
assert sys.stdout is not streams[1]
print("to stderr")
sys.stdout.flush()
assert os.read(taken.reading, 100) == b"from outside\\n"
os.write(taken.writing, b"to the wire")
""")
    assert (code, out) == (0, b"to the wire"), errors
    assert b"to stderr" in errors


def test_handlers_of_logging_follow_the_streams() -> None:
    code, out, errors = verdict("""
logging.basicConfig(stream=sys.stdout, format="%(message)s")
taken = take_over()
logging.warning("while taken")
""")
    assert (code, out) == (0, b""), errors
    assert b"while taken" in errors


def test_closed_descriptors_are_filled_so_that_no_file_gets_their_numbers() -> None:
    code, _, errors = verdict("""
os.close(0); os.close(1)
taken = take_over()
for descriptor in (0, 1, 2, taken.reading, taken.writing):
    os.fstat(descriptor)
assert os.open(os.devnull, os.O_RDONLY) > 2
""")
    assert code == 0, errors


def test_streams_that_are_none_are_no_obstacle() -> None:
    code, _, errors = verdict("""
sys.stdout = sys.stderr = sys.stdin = None
taken = take_over()
print("fine")
""")
    assert code == 0, errors


def test_a_forked_child_has_no_wire_and_ends_when_it_comes_back_into_the_loop() -> None:
    code, out, errors = verdict("""
class Receiver:
    def on_frames(self, batch): pass
    def on_eof(self): pass
    def on_disconnect(self, why): pass
    def on_drain(self, held): pass
taken = take_over()
async def main():
    os.environ["CONCERTINO_ORPHAN"] = "stay"
    connection = StdioConnection(taken, Limits())
    connection.open(Receiver())
    wire = connection._reading_fd, connection._writing_fd
    pid = os.fork()
    if pid == 0:
        for descriptor in wire:
            try:
                os.fstat(descriptor)
                os._exit(9)
            except OSError:
                pass
        await asyncio.sleep(0)
        os._exit(8)  # it was let go on
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    connection.write(b"from the parent", None)
    await connection.close(1)
asyncio.run(main())
os._exit(0)
""")
    assert (code, out) == (0, b"from the parent\n"), errors


def test_a_fork_after_the_end_does_nothing() -> None:
    code, _, errors = verdict("""
class Receiver:
    def on_eof(self): pass
    def on_frames(self, batch): pass
taken = take_over()
async def main():
    connection = StdioConnection(taken, Limits())
    connection.open(Receiver())
    await connection.close(0)
asyncio.run(main())
pid = os.fork()
if pid == 0:
    os._exit(5)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 5
""")
    assert code == 0, errors


@pytest.mark.parametrize("stays", ["stay", "no"])
def test_the_parent_is_watched_unless_told_to_stay(stays: str) -> None:
    code, _, errors = verdict(f"""
class Receiver:
    def on_eof(self): pass
    def on_frames(self, batch): pass
taken = take_over()
async def main():
    before = len(os.listdir("/proc/self/fd"))
    os.environ["CONCERTINO_ORPHAN"] = "{stays}"
    connection = StdioConnection(taken, Limits())
    connection.open(Receiver())
    links = []
    for n in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{{n}}"))
        except OSError:  # that of the listing itself
            pass
    assert any("pidfd" in link for link in links) is ({stays!r} != "stay"), links
    await connection.close(0)
asyncio.run(main())
os._exit(0)
""")
    assert code == 0, errors
