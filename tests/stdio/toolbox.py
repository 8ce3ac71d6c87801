"""The server most tests of this folder speak to: one tool for each thing that can happen
in a tool.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import sys
import threading
import time
from typing import Any, Literal

from concertino import Context, Server, ToolError

server = Server("toolbox", version="1.2.3", title="Tool box", instructions="Try everything.")

gates: dict[str, asyncio.Event] = {}
latches: dict[str, threading.Event] = {}
entered: list[str] = []
inherited: contextvars.ContextVar[str] = contextvars.ContextVar("inherited", default="unset")


def gate(name: str) -> asyncio.Event:
    return gates.setdefault(name, asyncio.Event())


def latch(name: str) -> threading.Event:
    return latches.setdefault(name, threading.Event())


@server.tool
async def echo(text: str) -> str:
    """Give the text back.

    Args:
        text: Anything.
    """
    return text


@server.tool
def echo_in_thread(text: str) -> str:
    return text


@server.tool(inline=True)
def echo_inline(text: str) -> str:
    return text


@server.tool
async def add(a: int, b: int) -> int:
    """Add two integers."""
    return a + b


@server.tool
async def size(text: str) -> int:
    return len(text)


@server.tool
async def big(count: int) -> str:
    return "x" * count


# Waiting: opened by another call, so that no test needs a clock.


@server.tool
async def wait_at(name: str, context: Context) -> str:
    await context.log("info", f"at {name}")
    await gate(name).wait()
    return name


@server.tool
def block_at(name: str, context: Context) -> str:
    context.log("info", f"at {name}")
    latch(name).wait(60)
    return "cancelled" if context.cancelled else name


@server.tool
async def open_gate(name: str) -> str:
    gate(name).set()
    latch(name).set()
    return "open"


@server.tool
async def sleep(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "slept"


@server.tool(inline=True)
def hold_the_loop(seconds: float) -> str:
    os.write(2, b"holding\n")
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        time.sleep(0.05)
    return "held"


@server.tool
async def cleaned_up(name: str, context: Context) -> str:
    """Wait, and say on stderr how it ended."""
    await context.log("info", f"at {name}")
    try:
        await gate(name).wait()
    finally:
        os.write(2, b"finally ran\n")
    return name


@server.tool
async def stubborn(name: str, context: Context) -> str:
    """Swallow the first cancel and answer anyway."""
    await context.log("info", f"at {name}")
    try:
        await gate(name).wait()
    except asyncio.CancelledError:
        pass
    return name


# Failing


class Odd(BaseException):
    pass


ERRORS: dict[str, BaseException] = {
    "ValueError": ValueError("no good"),
    "ToolError": ToolError("in your words"),
    "SystemExit": SystemExit(3),
    "KeyboardInterrupt": KeyboardInterrupt(),
    "GeneratorExit": GeneratorExit(),
    "CancelledError": asyncio.CancelledError(),
    "MemoryError": MemoryError(),
    "StopIteration": StopIteration("over"),
    "StopAsyncIteration": StopAsyncIteration(),
    "TimeoutError": TimeoutError(),
    "Odd": Odd("odd"),
}


def fail(kind: str) -> str:
    if kind == "RecursionError":
        return fail(kind)
    raise type(ERRORS[kind])(*ERRORS[kind].args)


@server.tool
async def fail_async(kind: str) -> str:
    return fail(kind)


@server.tool
async def fail_later(kind: str) -> str:
    await asyncio.sleep(0)
    return fail(kind)


@server.tool
def fail_in_thread(kind: str) -> str:
    return fail(kind)


@server.tool(inline=True)
def fail_inline(kind: str) -> str:
    return fail(kind)


@server.tool
async def leak(secret: str) -> str:
    raise RuntimeError(f"cannot log in with {os.environ.get('API_TOKEN')} and {secret}")


# Returning


@server.tool
async def give(kind: str) -> Any:
    cycle: list[Any] = []
    cycle.append(cycle)
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    return {
        "object": object(),
        "nan": float("nan"),
        "inf": {"x": float("inf")},
        "bytes": b"\x00\xff",
        "cycle": cycle,
        "deep": deep,
        "set": {1},
        "complex": 1j,
        "surrogate": "\ud800",
        "none": None,
        "list": [1, "two", None],
        "keys": {1: 2},
        "huge": 2**70,
    }[kind]


# Identity


@server.tool
async def who(context: Context) -> dict[str, str]:
    client = context.client
    return {"name": client.name, "version": client.version, "revision": client.protocol_version}


@server.tool
async def swap_variable(value: str) -> str:
    before = inherited.get()
    inherited.set(value)
    return before


@server.tool
async def swap_variable_later(value: str) -> str:
    before = inherited.get()
    inherited.set(value)
    await asyncio.sleep(0)
    return f"{before} {inherited.get()}"


@server.tool
def swap_variable_in_thread(value: str) -> str:
    before = inherited.get()
    inherited.set(value)
    return before


@server.tool
async def use_asyncio() -> list[str]:
    """What handlers do with asyncio: each works as in any task."""
    said = []
    task = asyncio.current_task()
    assert task is not None
    try:
        async with asyncio.timeout(0.01):
            await asyncio.Event().wait()
    except TimeoutError:
        said.append("timeout")
    said.append("task" if task in asyncio.all_tasks() else "hidden")
    async with asyncio.TaskGroup() as group:
        first, second = group.create_task(echo("a")), group.create_task(echo("b"))
    said.append(first.result() + second.result())
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(fail_later("ValueError"))
            await asyncio.Event().wait()
    except* ValueError:
        said.append("group")
    said.append(await asyncio.wait_for(echo("c"), 5))
    said.append("same" if asyncio.current_task() is task else "another")
    return said


@server.tool
async def timeout_at_once() -> str:
    """A timeout in the very first step of a call."""
    async with asyncio.timeout(5):
        return "in time"


@server.tool
async def cancel_myself() -> str:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(0)
    return "not reached"


@server.tool
async def cancel_myself_and_return() -> str:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    return "returned"


# Telling


@server.tool
async def count(to: int, context: Context) -> str:
    for number in range(1, to + 1):
        await context.progress(number, to, f"number {number}")
    return "counted"


@server.tool
def count_in_thread(to: int, context: Context) -> str:
    for number in range(1, to + 1):
        context.progress(number, to)
    return "counted"


@server.tool
async def progress_values(values: list[float], context: Context) -> str:
    for value in values:
        await context.progress(value)
    return "done"


@server.tool
async def progress_after_the_end(context: Context) -> str:
    async def late() -> None:
        await gate("late").wait()
        await context.progress(99)
        await context.log("error", "too late")
        os.write(2, b"told late\n")

    asyncio.get_running_loop().late_task = asyncio.ensure_future(late())
    await context.progress(1)
    return "done"


@server.tool
async def log_at_every_level(context: Context) -> str:
    for level in ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"):
        await context.log(level, {"said": level}, "component")
    return "logged"


@server.tool
def log_in_thread(context: Context) -> str:
    context.log("warning", ["from", "a", "thread"])
    return "logged"


# Outside of the protocol


@server.tool
async def say(how: str, text: str = "stray") -> str:
    """Write to stdout in one of the ways there are."""
    if how == "print":
        print(text)
    elif how == "print without newline":
        print(text, end="")
    elif how == "sys.stdout.buffer":
        sys.stdout.buffer.write(text.encode() + b"\n")
        sys.stdout.buffer.flush()
    elif how == "sys.__stdout__":
        sys.__stdout__.write(text + "\n")
        sys.__stdout__.flush()
    elif how == "sys.__stdout__ unflushed":
        sys.__stdout__.write(text + "\n")
    elif how == "os.write":
        os.write(1, text.encode() + b"\n")
    elif how == "os.system":
        os.system(f"echo {text}")
    elif how == "subprocess":
        process = await asyncio.create_subprocess_exec("echo", text)
        await process.wait()
    elif how == "ctypes":
        import ctypes

        ctypes.CDLL(None).puts(text.encode())
    elif how == "logging":
        import logging

        logging.basicConfig(stream=sys.stdout, force=True)
        logging.warning(text)
    elif how == "open fd 1":
        with open(1, "w", closefd=False) as file:
            file.write(text + "\n")
    elif how == "/dev/stdout":
        with open("/dev/stdout", "w") as file:
            file.write(text + "\n")
    elif how == "stderr flood":
        for _ in range(1024):
            sys.stderr.write("e" * 1023 + "\n")
    else:
        raise ToolError(f"how? {how}")
    return "said"


@server.tool
def ask_user() -> str:
    return "got " + input("your name? ")


@server.tool
def read_stdin(how: Literal["read", "readline", "bytes"]) -> str:
    if how == "bytes":
        return sys.stdin.buffer.read().decode()
    return sys.stdin.read() if how == "read" else sys.stdin.readline()


@server.tool
def read_descriptor() -> str:
    return repr((os.read(0, 10), open(sys.stdin.fileno(), closefd=False).read()))


def _write_everywhere() -> None:
    for descriptor in range(64):
        try:
            os.write(descriptor, b"forged\n")
        except OSError:
            pass


@server.tool
async def fork(how: str) -> str:
    """Fork a child that tries to write wherever it can."""
    pid = os.fork()
    if pid == 0:
        _write_everywhere()
        if how == "exit":
            os._exit(0)
        if how == "sys.exit":
            sys.exit(0)
        if how == "raise":
            raise RuntimeError("in the child")
        if how == "return":
            return "the child's answer"
        if how == "linger":
            os.write(2, b"lingering %d\n" % os.getpid())
            time.sleep(60)
            os._exit(0)
    if how != "linger":
        os.waitpid(pid, 0)
    return "the parent's answer"


@server.tool
def fork_in_thread(how: str) -> str:
    pid = os.fork()
    if pid == 0:
        _write_everywhere()
        if how == "return":
            return "the child's answer"
        os._exit(0)
    os.waitpid(pid, 0)
    return "the parent's answer"


def _child() -> None:
    print("from the child")
    _write_everywhere()


@server.tool
def multiprocess() -> int:
    import multiprocessing

    process = multiprocessing.get_context("fork").Process(target=_child)
    process.start()
    process.join()
    return process.exitcode or 0


@server.tool
async def change_the_process() -> str:
    """What a rude tool does to the process."""
    import io
    import locale
    import signal

    os.chdir("/")
    os.umask(0o077)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    locale.setlocale(locale.LC_ALL, "C")
    sys.stdout = io.StringIO()
    sys.stderr = None
    os.close(0)
    os.close(1)
    return "changed"


@server.tool
async def offer_more(name: str) -> str:
    server.add_tool(echo, name=name)
    return "offered"


@server.tool
def offer_more_in_thread(name: str) -> str:
    server.add_tool(echo, name=name)
    return "offered"


@server.tool
async def offer_less(name: str) -> str:
    server.remove_tool(name)
    return "removed"


@server.tool
async def facts() -> dict[str, Any]:
    return {
        "pid": os.getpid(),
        "threads": [thread.name for thread in threading.enumerate()],
        "tasks": len(asyncio.all_tasks()),
        "loop": type(asyncio.get_running_loop()).__module__.partition(".")[0],
    }


if __name__ == "__main__":
    server.run()
