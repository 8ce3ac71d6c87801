"""Nothing but JSON-RPC reaches stdout, and nothing but the protocol reads stdin (RELIABILITY
section 5, DESIGN decision 4).

The harness fails on any line of stdout that is no JSON-RPC; what a test looks at is where the rest
went.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from stdio.harness import RUN, TOOLBOX, Process, call, put_down, script, text_of, wait_until_gone

WAYS = [
    "print",
    "print without newline",
    "sys.stdout.buffer",
    "sys.__stdout__",
    "sys.__stdout__ unflushed",
    "os.write",
    "os.system",
    "subprocess",
    "logging",
    "open fd 1",
]


@pytest.mark.requirement("FR-4")
@pytest.mark.parametrize("how", WAYS)
def test_what_a_tool_writes_to_stdout_goes_to_stderr(how: str) -> None:
    with Process() as process:
        process.initialize()
        assert text_of(process.ask(call(1, "say", {"how": how, "text": "a stray word"}))) == "said"
        assert text_of(process.ask(call(2, "echo", {"text": "fine"}))) == "fine"
        assert process.finish() == 0
        assert b"a stray word" in process.stderr
        assert len(process.messages) == 3


def test_a_stray_message_that_looks_like_an_answer_is_not_taken_for_one() -> None:
    forged = '{"jsonrpc":"2.0","id":7,"result":{}}'
    with Process() as process:
        process.initialize()
        for number, how in enumerate([*WAYS, "ctypes"], 1):
            process.ask(
                call(
                    number * 10,
                    "say",
                    {"how": how, "text": f"'{forged}'" if how == "os.system" else forged},
                )
            )
        assert process.finish() == 0
        assert process.answers(7) == []


def test_dev_stdout_is_not_the_wire() -> None:
    with Process() as process:
        process.initialize()
        process.ask(call(1, "say", {"how": "/dev/stdout", "text": "by name"}))
        assert process.finish() == 0
        assert b"by name" in process.stderr


def test_what_is_printed_while_the_file_is_imported_goes_to_stderr(tmp_path: Path) -> None:
    source = """
print("while importing")
sys.stdout.flush()
os.write(1, b"raw while importing\\n")
os.system("echo child while importing")
import logging
logging.basicConfig(stream=sys.stdout, level=logging.INFO)
logging.info("log while importing")
@server.tool
async def chat() -> str:
    logging.getLogger("app").info("log in a tool")
    return "said"
"""
    with Process(["-m", "concertino", "serve", script(tmp_path, source)]) as process:
        process.initialize()
        assert text_of(process.ask(call(1, "chat"))) == "said"
        assert process.finish() == 0
        for said in ("while importing", "raw while", "child while", "log while", "log in a tool"):
            assert said.encode() in process.stderr
        assert len(process.messages) == 2


def test_what_was_buffered_before_run_goes_to_stderr(tmp_path: Path) -> None:
    source = """
print("printed before run")
import logging
logging.basicConfig(stream=sys.stdout, level=logging.INFO)
@server.tool
async def chat() -> str:
    logging.info("log in a tool")
    return "said"
"""
    with Process([script(tmp_path, source + RUN)]) as process:
        process.initialize()
        assert text_of(process.ask(call(1, "chat"))) == "said"
        assert process.finish() == 0
        assert b"printed before run" in process.stderr
        assert b"log in a tool" in process.stderr


def test_c_stdio_that_was_filled_before_run_and_is_flushed_at_exit_does_not_reach_the_wire(
    tmp_path: Path,
) -> None:
    source = """
import atexit, ctypes
c = ctypes.CDLL(None)
c.puts(b"buffered by C")
atexit.register(c.fflush, None)
@server.tool
async def put() -> str:
    c.puts(b"put in a tool")
    return "put"
"""
    with Process([script(tmp_path, source + RUN)]) as process:
        process.initialize()
        process.ask(call(1, "put"))
        assert process.finish() == 0
        assert b"put in a tool" in process.stderr
        assert b"buffered by C" in process.stderr


@pytest.mark.requirement("FR-4")
def test_what_c_stdio_still_holds_at_exit_does_not_reach_the_wire() -> None:
    """The gap: it reaches nobody.

    The process leaves by os._exit, which does not flush C's buffers (DESIGN decision 6).
    """
    with Process() as process:
        process.initialize()
        assert (
            text_of(process.ask(call(1, "say", {"how": "ctypes", "text": "held by C"}))) == "said"
        )
        assert process.finish() == 0
        assert len(process.messages) == 2
        assert b"held by C" not in process.stderr


def test_the_first_stray_print_is_named_with_file_and_line_and_only_the_first() -> None:
    line = next(
        n
        for n, text in enumerate(Path(TOOLBOX).read_text().splitlines(), 1)
        if text.strip() == "print(text)"
    )
    with Process() as process:
        process.initialize()
        for number in range(1, 4):
            process.ask(call(number, "say", {"how": "print", "text": f"print {number}"}))
        assert process.finish() == 0
        assert re.findall(rb"a print at (\S+) went to stderr", process.stderr) == [
            f"toolbox.py:{line}".encode()
        ]
        assert process.stderr.count(b"print 3") == 1


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [("ask_user", {}), *(("read_stdin", {"how": how}) for how in ("read", "readline", "bytes"))],
)
def test_a_tool_that_asks_for_input_is_told_how_to_ask_the_user(
    tool: str, arguments: dict[str, str]
) -> None:
    with Process() as process:
        process.initialize()
        result = process.ask(call(1, tool, arguments))["result"]
        assert result == {
            "content": [
                {
                    "type": "text",
                    "text": "EOFError: stdin carries the protocol, so input() gets no answer in a "
                    "server; to ask the user, write `await context.elicit(...)` in an `async def` "
                    "tool, or make the answer a parameter of the tool",
                }
            ],
            "isError": True,
        }
        assert text_of(process.ask(call(2, "echo", {"text": "fine"}))) == "fine"


def test_descriptor_0_of_a_server_is_at_its_end() -> None:
    with Process() as process:
        process.initialize()
        assert text_of(process.ask(call(1, "read_descriptor"))) == "(b'', '')"


@pytest.mark.requirement("FR-4")
@pytest.mark.parametrize("how", ["exit", "sys.exit", "raise", "return"])
@pytest.mark.parametrize("tool", ["fork", "fork_in_thread"])
def test_a_forked_child_cannot_write_frames(tool: str, how: str) -> None:
    with Process() as process:
        process.initialize()
        assert text_of(process.ask(call(1, tool, {"how": how}))) == "the parent's answer"
        assert text_of(process.ask(call(2, "echo", {"text": "fine"}))) == "fine"
        assert process.finish() == 0
        assert len(process.messages) == 3


def test_multiprocessing_by_fork_works_and_its_child_cannot_write_frames() -> None:
    with Process() as process:
        process.initialize()
        assert text_of(process.ask(call(1, "multiprocess"))) == "0"
        assert process.finish() == 0
        assert b"from the child" in process.stderr
        assert len(process.messages) == 2


def test_a_forked_child_that_lingers_does_not_keep_the_pipes_open() -> None:
    with Process() as process:
        process.initialize()
        process.ask(call(1, "fork", {"how": "linger"}))
        process.until_stderr("lingering")
        process.pump(lambda: bool(re.search(rb"lingering (\d+)\n", process.stderr)))
        child = int(re.search(rb"lingering (\d+)\n", process.stderr)[1])  # type: ignore[index]
        try:
            process.close_stdin()
            assert process.wait() == 0
            process.pump(lambda: process.eof, 5)  # the child still runs, but stdout is closed
            assert os.path.exists(f"/proc/{child}")
        finally:
            put_down(child)
            wait_until_gone(child, 5)


def test_children_inherit_no_descriptor_of_the_protocol(tmp_path: Path) -> None:
    source = """
@server.tool
async def look() -> str:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", "import os; print([os.readlink(f'/proc/self/fd/{n}') "
        "for n in os.listdir('/proc/self/fd') if os.path.exists(f'/proc/self/fd/{n}')])",
        stdout=asyncio.subprocess.PIPE, close_fds=False)
    return (await process.communicate())[0].decode()
"""
    with Process([script(tmp_path, source + RUN)]) as process:
        wire = {
            os.readlink(f"/proc/{os.getpid()}/fd/{n}") for n in (process.writing, process.reading)
        }
        process.initialize()
        seen = text_of(process.ask(call(1, "look")))
        assert not [each for each in wire if each in seen]
        assert "/dev/null" in seen  # its stdin


def test_a_rude_tool_changes_nothing_for_the_protocol() -> None:
    with Process() as process:
        process.initialize()
        assert text_of(process.ask(call(1, "change_the_process"))) == "changed"
        assert text_of(process.ask(call(2, "echo", {"text": "é"}))) == "é"
        process.ask(call(3, "say", {"how": "print"}))
        assert (
            process.ask(call(4, "fail_async", {"kind": "ValueError"}))["result"]["isError"] is True
        )
        assert text_of(process.ask(call(5, "echo", {"text": "x"}))) == "x"
        assert process.finish() == 0
        assert len(process.messages) == 6
