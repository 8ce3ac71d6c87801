"""Finds out which line a server that is written in Python executes while it does not answer.

Python's faulthandler writes the stack of each thread to stderr when the process gets SIGABRT, and
the process ends then. So SIGABRT is only sent to a process that is about to be ended anyway: the
time limit for its first answer is over, or the user has pressed Ctrl-C.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
from pathlib import Path

from concertino.cli.status_line import PATIENCE_S
from concertino.client.client import Client
from concertino.errors import TimedOut
from concertino.transports.process_exit import live_members

__all__ = ["HangingStart", "describe_place", "open_or_dump_stack"]

# SIGABRT is sent this long after the client's time limit. The client has then already raised
# TimedOut; the signal alone would make it report that the server has ended.
MARGIN_S = 0.1

PROC = Path("/proc")
_FRAME = re.compile(r'^  File "([^"]+)", line (\d+) in (\S+)$', re.MULTILINE)


class HangingStart(TimedOut):
    """Raised if a server gave no first response in time, but has written which line it executes.

    text: the text of the TimedOut that the client has raised.
    place: a clause that names the line, from describe_place().
    """

    def __init__(self, text: str, place: str) -> None:
        super().__init__(text)
        self.place = place


async def open_or_dump_stack(client: Client) -> None:
    """Open a client. End a server that does not answer in time, so that it writes its stack.

    A Python program that gets SIGABRT writes its stack to stderr and ends. The server also gets it
    if this coroutine is cancelled after PATIENCE_S seconds or more.

    client: a Client whose server is started with the environment variable PYTHONFAULTHANDLER=1, as
        parse_server() of server_options.py sets it.
    Raises the errors of Client.open(). If the server is a Python program and has written its stack,
    raises HangingStart instead of TimedOut.
    """
    loop = asyncio.get_running_loop()
    opening = loop.create_task(client.open())
    began_at = loop.time()
    limit_s = client.timeouts.connect_s
    timer = None
    if limit_s < float("inf"):
        timer = loop.call_later(limit_s + MARGIN_S, _request_stack, client)
    try:
        await asyncio.shield(opening)
    except TimedOut as exc:
        if place := describe_place(client.stderr_tail):
            raise HangingStart(str(exc), place) from exc
        raise
    except asyncio.CancelledError:
        # The user has pressed Ctrl-C. Soon after the start, that does not mean that the server
        # hangs.
        if loop.time() - began_at >= PATIENCE_S:
            _request_stack(client)
        opening.cancel()
        await asyncio.wait([opening])
        raise
    finally:
        if timer is not None:
            timer.cancel()
        if opening.done() and not opening.cancelled():
            # Retrieve the exception, because asyncio would log it otherwise.
            opening.exception()


def _request_stack(client: Client) -> None:
    """Send SIGABRT to the processes of a server that run Python, so that they write their stacks.

    The Python process may be a child of another program, such as `uv run`. Does nothing on systems
    without /proc.
    """
    pid = client.pid
    if pid is None or client.exit_status is not None or not PROC.exists():
        return
    for member in live_members(pid):
        try:
            program = (PROC / str(member) / "exe").readlink().name
            environment = (PROC / str(member) / "environ").read_bytes().split(b"\0")
            if program.startswith("python") and b"PYTHONFAULTHANDLER=1" in environment:
                _forbid_core_file(member)
                os.kill(member, signal.SIGABRT)
        except OSError:
            # The process has ended meanwhile, or belongs to another user.
            continue


def _forbid_core_file(pid: int) -> None:
    """Make sure that a process leaves no core file when SIGABRT ends it."""
    import resource

    _, hard = resource.prlimit(pid, resource.RLIMIT_CORE)
    resource.prlimit(pid, resource.RLIMIT_CORE, (0, hard))


def describe_place(stderr: str) -> str:
    """Return the line that a server executes, as a clause: `it stands at hang.py:3, in load()`.

    Returns "" if the server has not written its stack.
    stderr: what the server has written to stderr.
    """
    _, found, stack = stderr.rpartition("Fatal Python error: Aborted")
    if not found:
        return ""
    # Take the stack of the current thread. Stacks of other threads come before and after it.
    stack = stack.partition("Current thread")[2].partition("\n\n")[0]
    frames: list[tuple[str, str, str]] = _FRAME.findall(stack)
    if not frames:
        return ""
    # Prefer the innermost frame whose file is below the current folder, because the user has
    # probably written that file. The first frame is the innermost one.
    own = [frame for frame in frames if not _shorten_path(frame[0]).startswith((os.pardir, os.sep))]
    path, line, function = (own or frames)[0]
    where = "" if function == "<module>" else f", in {function}()"
    return f"it stands at {_shorten_path(path)}:{line}{where}"


def _shorten_path(path: str) -> str:
    """Return a path relative to the current folder, if the path is below it.

    Any other path, and the path of a file in an installed package, is returned unchanged.
    """
    relative = os.path.relpath(path)
    is_library = "site-packages" in Path(relative).parts
    return path if relative.startswith(os.pardir) or is_library else relative
