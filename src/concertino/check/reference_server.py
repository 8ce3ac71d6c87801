"""A server that has every tool the cases look for: `concertino check -- python -m concertino.check.reference_server`.

What each must do, for servers in other languages, is in docs/reference/check.md.
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

__all__ = ["server"]

server = Server("check toolbox", version="1")
_kept: list[asyncio.Task[None]] = []  # the loop keeps no task alive by itself

Failure = Literal[
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
Unsendable = Literal[
    "object", "NaN", "infinity", "bytes", "cycle", "deep", "complex", "half a surrogate pair"
]
Way = Literal[
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
Fork = Literal["exit", "sys.exit", "raise", "return", "multiprocessing"]


class Odd(BaseException):
    """Nobody expects this one."""


RAISED: dict[str, BaseException] = {
    "exception": ValueError("no good"),
    "tool error": ToolError("in your words"),
    "SystemExit": SystemExit(3),
    "KeyboardInterrupt": KeyboardInterrupt(),
    "GeneratorExit": GeneratorExit(),
    "CancelledError": asyncio.CancelledError(),
    "MemoryError": MemoryError(),
    "StopIteration": StopIteration("over"),
    "BaseException": Odd("odd"),
    "with a long text": RuntimeError("x" * 1_000_000),
}


@server.tool
async def echo(text: str) -> str:
    """Give the text back."""
    return text


@server.tool
async def sleep(seconds: float) -> str:
    """Wait without blocking."""
    await asyncio.sleep(seconds)
    return "slept"


@server.tool
def block(seconds: float) -> str:
    """Wait and block the thread."""
    time.sleep(seconds)
    return "blocked"


@server.tool
async def fail(how: Failure) -> str:
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
    if how == "RecursionError":
        return _raise(how)
    raise type(RAISED[how])(*RAISED[how].args)


@server.tool
async def give(what: Unsendable) -> Any:
    """Return what JSON cannot hold."""
    cycle: list[Any] = []  # Any: a list that holds itself has no other type
    cycle.append(cycle)
    deep: list[Any] = []  # ditto
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
async def say(how: Way, text: str) -> str:
    """Write a line to stdout in one of the ways there are."""
    line = text + "\n"
    if how.startswith("print"):
        print(text, end="\n" if how == "print" else "")  # noqa: T201  # what this tool is for
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
def fork(how: Fork) -> str:
    """Fork a child that writes to every descriptor it has, and wait for it."""
    if how == "multiprocessing":
        import multiprocessing

        process = multiprocessing.get_context("fork").Process(target=_write_everywhere)
        process.start()
        process.join()
        return "joined"
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
    for descriptor in range(64):
        try:
            os.write(descriptor, b"forged\n")
        except OSError:
            pass


@server.tool
async def disturb() -> str:
    """Change what belongs to the whole process."""
    import io
    import locale
    import signal

    os.chdir("/")
    os.umask(0o077)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    locale.setlocale(locale.LC_ALL, "C")
    if sys.version_info < (3, 14):  # where it is not yet deprecated
        asyncio.set_event_loop_policy(asyncio.DefaultEventLoopPolicy())  # pyright: ignore[reportDeprecated]
    sys.stdout = io.StringIO()
    sys.stderr = None
    os.close(0)
    os.close(1)
    return "changed"


@server.tool
async def count(to: int, context: Context) -> str:
    """Tell progress so many times."""
    for number in range(1, to + 1):
        await context.progress(number, to)
    return "counted"


@server.tool
async def tell_late(context: Context) -> str:
    """Tell progress, answer, and tell again."""

    async def late() -> None:
        await asyncio.sleep(0.2)
        await context.progress(99)
        await context.log("error", "too late")

    await context.progress(1)
    _kept.append(asyncio.ensure_future(late()))
    return "told"


@server.tool
async def noise(bytes: int) -> str:
    """Write so many bytes to stderr."""
    for _ in range(0, bytes, 1000):
        sys.stderr.write("e" * 999 + "\n")
    return "heard"


@server.tool
async def leak(secret: str) -> str:
    """Fail with a secret in the message."""
    raise RuntimeError(f"cannot log in with {secret}")


if __name__ == "__main__":
    server.run()
