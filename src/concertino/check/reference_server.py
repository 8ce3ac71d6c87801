"""A server with all tools that the cases can call.

    concertino check -- python -m concertino.check.reference_server

The tools misbehave on purpose, like the tools of a careless author. docs/reference/check.md
describes them for servers in other languages.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from typing import Any, Literal

from concertino.backend.interface import Context
from concertino.errors import ToolError
from concertino.server.server import Server

server = Server("check toolbox", version="1")
# The event loop holds only weak references to its tasks, so keep strong ones here.
_background_tasks: list[asyncio.Task[None]] = []

FailureKind = Literal[
    "exception",
    "tool error",
    "SystemExit",
    "KeyboardInterrupt",
    "GeneratorExit",
    "CancelledError",
    "RecursionError",
    "MemoryError",
    "StopIteration",
    "BaseException",
    "in a thread",
    "SystemExit in a thread",
    "after a while",
    "with a long text",
]
UnsendableKind = Literal[
    "object", "NaN", "infinity", "bytes", "cycle", "deep", "complex", "half a surrogate pair"
]
StdoutWay = Literal[
    "print",
    "print without newline",
    "sys.stdout.buffer",
    "sys.__stdout__",
    "descriptor 1",
    "/dev/stdout",
    "a shell",
    "a child process",
    "C stdio",
    "C stdio, unflushed",
    "logging",
]
ForkEnd = Literal["exit", "sys.exit", "raise", "return", "multiprocessing"]


class UnusualError(BaseException):
    """An exception that is neither an Exception nor one of Python's own."""


# The values of FailureKind that raise an exception at once.
EXCEPTIONS: dict[str, BaseException] = {
    "exception": ValueError("no good"),
    "tool error": ToolError("in your words"),
    "SystemExit": SystemExit(3),
    "KeyboardInterrupt": KeyboardInterrupt(),
    "GeneratorExit": GeneratorExit(),
    "CancelledError": asyncio.CancelledError(),
    "MemoryError": MemoryError(),
    "StopIteration": StopIteration("over"),
    "BaseException": UnusualError("odd"),
    "with a long text": RuntimeError("x" * 1_000_000),
}


@server.tool
async def echo(text: str) -> str:
    """Return the text."""
    return text


@server.tool
async def sleep(seconds: float) -> str:
    """Wait without blocking."""
    await asyncio.sleep(seconds)
    return "slept"


@server.tool
def block(seconds: float) -> str:
    """Block the thread."""
    time.sleep(seconds)
    return "blocked"


@server.tool
async def fail(how: FailureKind) -> str:
    """Fail in one of many ways."""
    if how.endswith("in a thread"):
        return await asyncio.to_thread(
            _raise, "SystemExit" if how.startswith("SystemExit") else "exception"
        )
    if how == "after a while":
        await asyncio.sleep(0.01)
        _raise("exception")
    return _raise(how)


def _raise(how: str) -> str:
    # A recursion without an end, which raises RecursionError.
    if how == "RecursionError":
        return _raise(how)
    # Make a new exception each time, because a raised one keeps its traceback.
    raise type(EXCEPTIONS[how])(*EXCEPTIONS[how].args)


@server.tool
async def give(what: UnsendableKind) -> Any:
    """Return what JSON cannot hold."""
    # A list that holds itself, or nothing but lists, can only be typed as a list of Any.
    cycle: list[Any] = []
    cycle.append(cycle)
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    values: dict[str, object] = {
        "object": object(),
        "NaN": float("nan"),
        "infinity": {"x": float("inf")},
        "bytes": b"\x00\xff",
        "cycle": cycle,
        "deep": deep,
        "complex": 1j,
        "half a surrogate pair": "\ud800",
    }
    return values[what]


@server.tool
async def big(characters: int) -> str:
    """Return a long text."""
    return "x" * characters


@server.tool
async def say(how: StdoutWay, text: str) -> str:
    """Write a line to stdout in one of many ways."""
    line = text + "\n"
    if how.startswith("print"):
        print(text, end="\n" if how == "print" else "")  # noqa: T201
    elif how == "sys.stdout.buffer":
        sys.stdout.buffer.write(line.encode())
        sys.stdout.buffer.flush()
    elif how == "sys.__stdout__":
        if sys.__stdout__ is not None:
            sys.__stdout__.write(line)
            sys.__stdout__.flush()
    elif how == "descriptor 1":
        os.write(1, line.encode())
    elif how == "/dev/stdout":
        descriptor = os.open("/dev/stdout", os.O_WRONLY)
        os.write(descriptor, line.encode())
        os.close(descriptor)
    elif how in ("a shell", "a child process"):
        command = ("sh", "-c", 'echo "$0"', text) if how == "a shell" else ("echo", text)
        await (await asyncio.create_subprocess_exec(*command)).wait()
    elif how.startswith("C stdio"):
        import ctypes

        libc = ctypes.CDLL(None)
        libc.puts(text.encode())
        if how == "C stdio":
            libc.fflush(None)
    else:
        import logging

        logging.getLogger("said").addHandler(logging.StreamHandler(sys.stdout))
        logging.getLogger("said").warning(text)
    return "said"


@server.tool
def fork(how: ForkEnd) -> str:
    """Create a child that writes to each of its descriptors, and wait for it."""
    if how == "multiprocessing":
        import multiprocessing

        process = multiprocessing.get_context("fork").Process(target=_write_everywhere)
        process.start()
        process.join()
        return "joined"

    # A child that returns or raises continues in the server's own code. It must not serve requests
    # there.
    pid = os.fork()
    if pid == 0:
        _write_everywhere()
        if how == "exit":
            os._exit(0)
        if how == "sys.exit":
            sys.exit(0)
        if how == "raise":
            raise RuntimeError("in the child")
        return "the child's answer"

    os.waitpid(pid, 0)
    return "the parent's answer"


def _write_everywhere() -> None:
    """Write a line to every descriptor that is open, as a confused child might."""
    for descriptor in range(64):
        try:
            os.write(descriptor, b"forged\n")
        except OSError:
            pass


@server.tool
async def disturb() -> str:
    """Change settings of the whole process that a server might rely on."""
    import io
    import locale
    import signal

    os.chdir("/")
    os.umask(0o077)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    locale.setlocale(locale.LC_ALL, "C")
    # Policies are deprecated since Python 3.14.
    if sys.version_info < (3, 14):
        policy = asyncio.DefaultEventLoopPolicy()  # pyright: ignore[reportDeprecated]
        asyncio.set_event_loop_policy(policy)  # pyright: ignore[reportDeprecated]
    sys.stdout = io.StringIO()
    sys.stderr = None
    # A server that has moved its pipes to other descriptors still serves.
    os.close(0)
    os.close(1)
    return "changed"


@server.tool
async def count(to: int, context: Context) -> str:
    """Report progress on every number up to `to`."""
    for number in range(1, to + 1):
        await context.progress(number, to)
    return "counted"


@server.tool
async def tell_late(context: Context) -> str:
    """Report progress, return, and report progress again after that."""

    async def report_late() -> None:
        await asyncio.sleep(0.2)
        await context.progress(99)
        await context.log("error", "too late")

    await context.progress(1)
    _background_tasks.append(asyncio.ensure_future(report_late()))
    return "told"


@server.tool
async def noise(bytes: int) -> str:
    """Write a number of bytes to stderr."""
    for _ in range(0, bytes, 1000):
        sys.stderr.write("e" * 999 + "\n")
    return "heard"


@server.tool
async def leak(secret: str) -> str:
    """Fail with the secret in the error message."""
    raise RuntimeError(f"cannot log in with {secret}")


if __name__ == "__main__":
    server.run()
