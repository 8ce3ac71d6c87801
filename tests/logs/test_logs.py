"""logs: formats and levels, the bounded stderr, diverted streams.

Real pipes, terminals and devices throughout.
"""

from __future__ import annotations

import errno
import io
import logging
import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from concertino.logs import redact
from concertino.logs import stderr_redirect as diverted_module
from concertino.logs import writer as writer_module
from concertino.logs.formats import FORMATS, LogContext, current_context, make_entry, message_line
from concertino.logs.handler import StderrHandler, configure, logger
from concertino.logs.stderr_redirect import StderrRedirect, adopt_handlers
from concertino.logs.writer import BoundedWriter

CANARY = "sk-canary-7f3a91"
LINE = b"x" * 99 + b"\n"
Pipe = tuple[int, int]


@pytest.fixture(autouse=True)
def canary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redact, "_current", redact.Redactor([CANARY]))


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


@pytest.fixture
def writer(pipe: Pipe) -> Iterator[BoundedWriter]:
    made = BoundedWriter(pipe[1], limit=1000)
    yield made
    made.close()


def read(descriptor: int) -> bytes:
    """All there is now."""
    pieces: list[bytes] = []
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    while poll.poll(0):
        pieces.append(os.read(descriptor, 65536))
        if not pieces[-1]:
            break
    return b"".join(pieces)


def fill(descriptor: int) -> int:
    """Write to a pipe or socket until nothing more goes. Returns the number of bytes."""
    os.set_blocking(descriptor, False)
    size = 0
    for piece in (b"-" * 4096, b"-"):
        try:
            while True:
                size += os.write(descriptor, piece)
        except BlockingIOError:
            pass
    os.set_blocking(descriptor, True)
    return size


# ---- the bounded writer


def test_lines_go_through(pipe: Pipe, writer: BoundedWriter) -> None:
    writer.write(b"one\n")
    writer.write(b"two\nthree\n")
    writer.write(b"a part")
    assert read(pipe[0]) == b"one\ntwo\nthree\na part"
    assert not writer.pending


def test_nothing_is_not_a_line(pipe: Pipe, writer: BoundedWriter) -> None:
    writer.write(b"")
    assert read(pipe[0]) == b""


def test_a_long_output_goes_through_when_it_is_read(tmp_path: Path) -> None:
    lines = LINE * 5000 + b"y" * 10_000 + b"\n"
    with (tmp_path / "stderr").open("wb") as file:
        BoundedWriter(file.fileno(), limit=1000).write(lines)
    assert (tmp_path / "stderr").read_bytes() == lines


def test_what_does_not_go_is_held_and_goes_later_in_order(
    pipe: Pipe, writer: BoundedWriter
) -> None:
    size = fill(pipe[1])
    writer.write(b"one\n")
    writer.write(b"two\n")
    assert writer.pending
    assert not writer.flush()
    assert read(pipe[0]) == b"-" * size
    writer.write(b"three\n")
    assert read(pipe[0]) == b"one\ntwo\nthree\n"
    assert not writer.pending


def test_whole_lines_beyond_the_limit_are_dropped_and_counted(
    pipe: Pipe, writer: BoundedWriter
) -> None:
    size = fill(pipe[1])
    writer.write(b"%d\n" % 0 + LINE * 8)
    writer.write(LINE * 5)  # one of them still fits
    writer.write(b"small, but after what was dropped\n")
    writer.write(b"not ended")
    assert read(pipe[0]) == b"-" * size
    assert writer.flush()
    writer.write(b"next\n")
    assert read(pipe[0]) == b"0\n" + LINE * 9 + b"6 lines dropped (stderr was not read)\nnext\n"


def test_a_line_that_others_wait_for_precedes_held_ones_and_is_never_dropped(
    pipe: Pipe, writer: BoundedWriter
) -> None:
    fill(pipe[1])
    writer.write(LINE * 20)
    writer.write_first(b"READY\n")
    writer.write(LINE)
    read(pipe[0])
    assert writer.flush()
    assert read(pipe[0]) == (b"READY\n" + LINE * 10 + b"11 lines dropped (stderr was not read)\n")


@pytest.mark.parametrize(
    ("written", "held", "expected"),
    [
        (b"a part", b"", b"a part\nREADY\n"),
        (b"a part", b" and its end\n", b"a part and its end\nREADY\n"),
        (b"a part", b" that goes on", b"a part\nREADY\n that goes on"),
    ],
)
def test_a_line_that_others_wait_for_is_a_line_of_its_own(
    pipe: Pipe, writer: BoundedWriter, written: bytes, held: bytes, expected: bytes
) -> None:
    writer.write(written)
    assert read(pipe[0]) == written
    fill(pipe[1])
    writer.write(held)
    writer.write_first(b"READY\n")
    read(pipe[0])
    assert writer.flush()
    assert written + read(pipe[0]) == expected


def test_one_dropped_line_is_told_in_the_singular(pipe: Pipe, writer: BoundedWriter) -> None:
    fill(pipe[1])
    writer.write(LINE * 11)
    read(pipe[0])
    writer.write(b"next\n")
    assert read(pipe[0]) == LINE * 10 + b"1 line dropped (stderr was not read)\nnext\n"


def test_a_single_line_beyond_the_limit_is_cut_between_characters(
    pipe: Pipe, writer: BoundedWriter
) -> None:
    fill(pipe[1])
    writer.write(b"x" + "é".encode() * 1000 + b"\n")
    read(pipe[0])
    assert writer.flush()
    assert read(pipe[0]) == b"x" + "é".encode() * 496 + b" [cut]\n"


def test_what_follows_a_cut_line_is_counted(pipe: Pipe, writer: BoundedWriter) -> None:
    fill(pipe[1])
    writer.write(b"\x80" * 2000 + b"\n" + LINE + LINE)
    read(pipe[0])
    assert writer.flush()
    assert read(pipe[0]) == b" [cut]\n2 lines dropped (stderr was not read)\n"


def test_a_blocking_descriptor_stays_blocking_and_never_blocks(
    pipe: Pipe, writer: BoundedWriter
) -> None:
    for _ in range(3000):
        writer.write(LINE)
    assert os.get_blocking(pipe[1])
    assert read(pipe[0])[:100] == LINE


@pytest.mark.parametrize("blocking", [True, False])
def test_a_socket_that_is_not_read_does_not_block(blocking: bool) -> None:
    ours, theirs = socket.socketpair()  # what Node gives to its children
    with ours, theirs:
        ours.setblocking(blocking)
        writer = BoundedWriter(ours.fileno())
        for _ in range(30_000):
            writer.write(LINE)
        assert writer.pending
        while writer.pending:
            read(theirs.fileno())
            writer.flush()
        assert re.search(rb"\n\d+ lines dropped \(stderr was not read\)\n$", read(theirs.fileno()))


def test_a_pipe_that_cannot_be_opened_again_is_asked_by_poll(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> int:
        raise PermissionError(errno.EACCES, "another user's pipe")

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refused)
        writer = BoundedWriter(pipe[1], limit=1000)
    for _ in range(3000):
        writer.write(LINE)
    assert writer.pending
    assert read(pipe[0])[-100:] == LINE
    writer.close()


def test_a_terminal_that_is_not_read_does_not_block() -> None:
    # poll() calls a terminal writable while one byte fits: writing 4096 to it would block for ever.
    master, slave = pty.openpty()
    writer = BoundedWriter(slave)
    for _ in range(3000):
        writer.write(LINE)
    assert writer.pending
    assert not writer.flush(0.02)
    while writer.pending:
        read(master)
        writer.flush()
    assert re.search(rb"\d+ lines dropped \(stderr was not read\)\r\n$", read(master))
    writer.close()
    writer.close()
    for descriptor in (master, slave):
        os.close(descriptor)


def test_flush_waits_for_a_reader(pipe: Pipe, writer: BoundedWriter) -> None:
    size = fill(pipe[1])
    writer.write(b"last words\n")
    got: list[bytes] = []

    def reader() -> None:
        while len(b"".join(got)) < size + 11:
            got.append(os.read(pipe[0], 65536))

    thread = threading.Thread(target=reader)
    thread.start()
    assert writer.flush(10)
    thread.join()
    assert b"".join(got)[size:] == b"last words\n"


def test_a_broken_pipe_harms_nobody() -> None:
    ends = os.pipe()
    writer = BoundedWriter(ends[1])
    os.close(ends[0])
    for _ in range(3):
        writer.write(LINE)
    assert not writer.pending
    assert writer.flush(1)
    writer.close()
    os.close(ends[1])


def test_a_pipe_that_broke_before_harms_nobody() -> None:
    ends = os.pipe()
    os.close(ends[0])
    writer = BoundedWriter(ends[1])
    writer.write(LINE)
    assert not writer.pending
    os.close(ends[1])


def test_a_full_device_harms_nobody() -> None:
    with open("/dev/full", "wb", buffering=0) as full:
        writer = BoundedWriter(full.fileno())
        for _ in range(3):
            writer.write(LINE)
        assert not writer.pending


def test_a_device_that_was_full_is_told_of_what_was_lost(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    os_write = os.write
    answers: list[int | OSError] = [
        3,
        OSError(errno.ENOSPC, "full"),
        OSError(errno.ENOSPC, "full"),
        5,
    ]

    def write(descriptor: int, data: bytes) -> int:
        answer = answers.pop(0) if answers else len(data)
        if isinstance(answer, OSError):
            raise answer
        return os_write(descriptor, data[:answer])

    writer = BoundedWriter(pipe[1])
    monkeypatch.setattr(os, "write", write)
    writer.write(b"one\ntwo\n")  # three bytes go, the rest is lost
    writer.write(b"three\n")
    writer.write(b"four\n")  # the notice goes in two pieces
    assert read(pipe[0]) == b"one\n3 lines dropped (stderr was not read)\nfour\n"
    writer.close()


def test_a_closed_descriptor_is_given_up(pipe: Pipe) -> None:
    with open(os.devnull, "wb") as file:
        writer = BoundedWriter(file.fileno())
    writer.write(LINE)
    number = os.dup(pipe[1])  # may get the number of the closed one
    writer.write(LINE)
    os.close(number)
    assert read(pipe[0]) == b""
    assert not writer.pending
    assert writer.flush(1)


def test_a_closed_writer_takes_nothing(pipe: Pipe, writer: BoundedWriter) -> None:
    fill(pipe[1])
    writer.write(LINE)
    writer.close()
    writer.write(LINE)
    assert not writer.pending
    read(pipe[0])
    assert writer.flush()
    assert read(pipe[0]) == b""


def test_an_interrupted_write_is_repeated(
    pipe: Pipe, writer: BoundedWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(_: int, __: bytes) -> int:
        raise InterruptedError

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", write)
        writer.write(b"one\n")
    assert writer.pending
    assert writer.flush()
    assert read(pipe[0]) == b"one\n"


def test_a_signal_handler_may_write_while_a_write_is_under_way(
    pipe: Pipe, writer: BoundedWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    os_write = os.write

    def handler(*_: object) -> None:
        writer.write(b"from the handler\n")

    def write(descriptor: int, data: bytes) -> int:
        size = os_write(descriptor, data)
        if data == b"one\n":
            signal.raise_signal(signal.SIGUSR1)
        return size

    before = signal.signal(signal.SIGUSR1, handler)
    monkeypatch.setattr(os, "write", write)
    try:
        writer.write(b"one\n")
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert read(pipe[0]) == b"one\nfrom the handler\n"


def test_threads_do_not_mix_their_lines(pipe: Pipe) -> None:
    writer = BoundedWriter(pipe[1])
    start = threading.Barrier(4)

    def work(number: int) -> None:
        start.wait()
        for _ in range(100):
            writer.write(b"%d" % number * 50 + b"\n")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = read(pipe[0]).splitlines()
    assert sorted(lines) == sorted(b"%d" % number * 50 for number in range(4) for _ in range(100))
    writer.close()


@pytest.mark.filterwarnings(
    "ignore:.*fork:DeprecationWarning"
)  # 3.12, when a thread of another test is left
def test_a_forked_child_does_not_write_what_its_parent_holds(
    pipe: Pipe, writer: BoundedWriter
) -> None:
    size = fill(pipe[1])
    writer.write(b"of the parent\n")
    assert read(pipe[0]) == b"-" * size
    child = os.fork()
    if child == 0:
        try:
            writer.write(b"of the child\n")
        finally:
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert writer.flush()
    assert read(pipe[0]) == b"of the child\nof the parent\n"


def test_a_change_of_process_is_noticed(
    pipe: Pipe, writer: BoundedWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(pipe[1])
    writer.write(b"of the parent\n")
    read(pipe[0])
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert writer.flush()
    writer.write(b"of the child\n")
    assert read(pipe[0]) == b"of the child\n"


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # 3.12 warns of just this
def test_a_fork_while_another_thread_writes_does_not_lock_the_child(
    pipe: Pipe, writer: BoundedWriter
) -> None:
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with writer._lock:
            held.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    child = os.fork()
    if child == 0:
        try:
            writer.write(b"of the child\n")
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    done.set()
    thread.join()
    assert read(pipe[0]) == b"of the child\n"


# ---- diverted text


@pytest.fixture
def reports() -> list[str]:
    return []


@pytest.fixture
def stdout(writer: BoundedWriter, reports: list[str]) -> StderrRedirect:
    return StderrRedirect(writer, "<stdout>", reports.append)


def test_the_first_print_names_its_file_and_line(
    pipe: Pipe, stdout: StderrRedirect, reports: list[str]
) -> None:
    print("hello", "é", file=stdout)
    line = sys._getframe().f_lineno - 1
    print("again", file=stdout)
    assert read(pipe[0]) == "hello é\nagain\n".encode()
    assert reports == [
        f"stdout is the protocol channel; a print at test_logs.py:{line} went to stderr (only "
        f"the first is reported)"
    ]


def test_a_print_from_the_standard_library_names_who_called_it(
    stdout: StderrRedirect, reports: list[str]
) -> None:
    logging.StreamHandler(stdout).handle(logging.makeLogRecord({"msg": "x"}))
    assert f"test_logs.py:{sys._getframe().f_lineno - 1} " in reports[0]


def test_a_print_that_nobody_here_wrote_has_an_unknown_place(
    stdout: StderrRedirect, reports: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diverted_module, "_PACKAGE", "")  # every frame is in it
    print("x", file=stdout)
    assert "a print at an unknown place went" in reports[0]


def test_lines_of_threads_do_not_mix_in_diverted_text(pipe: Pipe, stdout: StderrRedirect) -> None:
    print("main ", end="", file=stdout)
    thread = threading.Thread(target=print, args=("thread",), kwargs={"file": stdout})
    thread.start()
    thread.join()
    print("goes on", file=stdout)
    assert read(pipe[0]) == b"thread\nmain goes on\n"


def test_a_part_of_a_line_waits_for_flush_or_close(pipe: Pipe, stdout: StderrRedirect) -> None:
    print("50 %", end="\r", file=stdout)
    assert read(pipe[0]) == b""
    stdout.flush()
    stdout.flush()
    assert read(pipe[0]) == b"50 %\r"
    thread = threading.Thread(
        target=print, args=("left by a thread",), kwargs={"end": "", "file": stdout}
    )
    thread.start()
    thread.join()
    stdout.close()
    assert not stdout.closed
    assert read(pipe[0]) == b"left by a thread"


def test_a_line_without_end_does_not_grow_for_ever(pipe: Pipe, stdout: StderrRedirect) -> None:
    for _ in range(82):
        stdout.write("x" * 100)
    assert len(read(pipe[0])) == 8200


def test_the_buffer_takes_bytes_as_they_are(
    pipe: Pipe, stdout: StderrRedirect, reports: list[str]
) -> None:
    assert stdout.buffer.write(b"\xff ") == 2
    assert stdout.buffer.write(memoryview(b"\xc3")) == 1
    assert stdout.buffer.write(bytearray(b"\xa9\n...")) == 5
    assert read(pipe[0]) == b"\xff \xc3\xa9\n"
    stdout.buffer.flush()
    stdout.buffer.close()
    assert read(pipe[0]) == b"..."
    assert stdout.buffer.writable()
    assert stdout.buffer.fileno() == pipe[1]
    assert len(reports) == 1


def test_what_cannot_be_encoded_is_written_as_an_escape(pipe: Pipe, stdout: StderrRedirect) -> None:
    assert stdout.write("\udcff\n") == 2
    assert read(pipe[0]) == b"\\udcff\n"


def test_printed_secrets_are_redacted(pipe: Pipe, stdout: StderrRedirect) -> None:
    print(f"é {CANARY}\n{CANARY}", file=stdout)
    stdout.buffer.write(b"\xff" + CANARY.encode() + b"\n")
    assert read(pipe[0]) == "é [REDACTED]\n[REDACTED]\n".encode() + b"\xff[REDACTED]\n"


def test_diverted_text_is_a_text_stream(pipe: Pipe, stdout: StderrRedirect) -> None:
    assert isinstance(stdout, io.TextIOBase)
    assert (stdout.name, stdout.encoding, stdout.errors, stdout.mode) == (
        "<stdout>",
        "utf-8",
        "backslashreplace",
        "w",
    )
    assert (stdout.writable(), stdout.readable(), stdout.isatty(), stdout.fileno()) == (
        True,
        False,
        False,
        pipe[1],
    )
    stdout.reconfigure(encoding="latin-1", line_buffering=False)
    stdout.writelines(["a\n", "b\n"])
    subprocess.run(["echo", "of a child"], stdout=stdout, check=True)
    assert read(pipe[0]) == b"a\nb\nof a child\n"
    with pytest.raises(TypeError, match=r"write\(\) argument must be str, not bytes"):
        stdout.write(b"x")  # type: ignore[arg-type]
    with pytest.raises(io.UnsupportedOperation):
        stdout.read()


# ---- handlers that exist already


def test_existing_handlers_are_adopted(writer: BoundedWriter, pipe: Pipe) -> None:
    old_stdout, other = io.StringIO(), io.StringIO()
    new = StderrRedirect(writer)
    adopted, left = logging.StreamHandler(old_stdout), logging.StreamHandler(other)
    plain, lazy = logging.NullHandler(), logging.FileHandler("unused", delay=True)
    gone: Any = logging.StreamHandler(old_stdout)
    adopt_handlers([old_stdout, None, sys.stderr], new)  # type: ignore[arg-type]
    del gone
    adopted.handle(logging.makeLogRecord({"msg": "hello"}))
    assert read(pipe[0]) == b"hello\n"
    assert left.stream is other
    assert lazy.stream is None
    assert logging.lastResort is not None
    for handler in (adopted, left, plain, lazy):
        handler.close()


def test_a_handler_that_is_gone_is_passed_over(
    writer: BoundedWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging, "_handlerList", [lambda: None])
    adopt_handlers([io.StringIO()], StderrRedirect(writer))  # type: ignore[arg-type]


# ---- formats


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


Configure = Callable[..., StderrHandler]


@pytest.fixture
def configure_logs(writer: BoundedWriter, clock: Clock) -> Iterator[Configure]:
    root = logging.getLogger("concertino")
    before = root.handlers[:], root.level, root.propagate
    root.handlers.clear()

    def configure_with(**options: Any) -> StderrHandler:
        return configure(**{"writer": writer, "environment": {}, "clock": clock, **options})

    yield configure_with
    for handler in root.handlers:
        handler.close()
    root.handlers[:], root.propagate = before[0], before[2]
    root.setLevel(before[1])


def at_a_known_time(record: logging.LogRecord) -> bool:
    record.created, record.msecs = 1795170630.123, 123.0  # date -u -d '2026-11-20T10:30:30' +%s
    return True


def say(handler: StderrHandler) -> None:
    handler.addFilter(at_a_known_time)
    log = logger("calculator")
    log.info("two\nlines, \x1b[31mred\x1b[0m, \u202eturned, wide\u3000space, %s", CANARY)
    try:
        raise ValueError(f"{CANARY}\n[forged]\r")
    except ValueError:
        log.exception("failed: %s", {"password": "x", "a": 1})
    log.warning("careful", stack_info=False)
    log.critical("%(a)s", {"a": "\udcff"})


def test_lines(pipe: Pipe, configure_logs: Configure) -> None:
    say(configure_logs())
    text = re.sub(r'File ".*", line \d+', 'File "x.py", line 1', read(pipe[0]).decode())
    assert text == (
        "[2026-11-20T10:30:30.123Z] [INFO] [calculator] "
        r"two\nlines, \x1b[31mred\x1b[0m, \u202eturned, wide"
        + "\u3000space, [REDACTED]\n"
        "[2026-11-20T10:30:30.123Z] [ERROR] [calculator] failed: {'password': '[REDACTED]', "
        "'a': 1}\n"
        "    Traceback (most recent call last):\n"
        '      File "x.py", line 1, in say\n'
        '        raise ValueError(f"{CANARY}\\n[forged]\\r")\n'
        "    ValueError: [REDACTED]\n"
        "    [forged]\\r\n"
        "[2026-11-20T10:30:30.123Z] [WARN] [calculator] careful\n"
        "[2026-11-20T10:30:30.123Z] [ERROR] [calculator] \\\\udcff\n".replace("\\\\u", "\\u")
    )


def test_json(pipe: Pipe, configure_logs: Configure) -> None:
    say(configure_logs(format="json"))
    lines = [msgspec.json.decode(line) for line in read(pipe[0]).splitlines()]
    assert lines[0] == {
        "time": "2026-11-20T10:30:30.123Z",
        "level": "INFO",
        "component": "calculator",
        "text": "two\nlines, \x1b[31mred\x1b[0m, \u202eturned, wide\u3000space, [REDACTED]",
    }
    assert lines[1]["exception"].startswith("Traceback (most recent call last):\n")
    assert lines[1]["exception"].endswith("\nValueError: [REDACTED]\n[forged]\r")
    assert lines[3]["text"] == r"\udcff"
    assert len(lines) == 4


def test_the_profile_with_prefixes(pipe: Pipe, configure_logs: Configure) -> None:
    say(configure_logs(environment={"CONCERTINO_LOG_FORMAT": "trace"}))
    lines = read(pipe[0]).decode().splitlines()
    assert lines[0].startswith(r"[TRACE] two\nlines, ")
    assert lines[1] == "Error: failed: {'password': '[REDACTED]', 'a': 1}"
    assert lines[-2:] == ["[TRACE] careful", r"Error: \udcff"]


def test_a_stack_is_printed_like_an_exception(pipe: Pipe, configure_logs: Configure) -> None:
    configure_logs(format="trace")
    logger("x").info("here", stack_info=True)
    lines = read(pipe[0]).decode().splitlines()
    assert lines[:2] == ["[TRACE] here", "    Stack (most recent call last):"]
    assert lines[-1] == '        logger("x").info("here", stack_info=True)'


def test_no_exception_is_none(pipe: Pipe, configure_logs: Configure) -> None:
    configure_logs(format="trace")
    logger("x").exception("outside of any handler")
    assert read(pipe[0]) == b"Error: outside of any handler\n"


class Unprintable:
    def __str__(self) -> str:
        raise KeyError(CANARY)


@pytest.mark.parametrize(
    ("arguments", "problem"), [((Unprintable(),), "KeyError"), ((1, 2), "TypeError")]
)
def test_a_record_that_cannot_be_formatted_is_named(
    pipe: Pipe, configure_logs: Configure, arguments: tuple[object, ...], problem: str
) -> None:
    configure_logs(format="trace")
    logger("x").error("with %s", *arguments)
    line = sys._getframe().f_lineno - 1
    assert read(pipe[0]).decode() == (
        f"Error: a log record of test_logs.py:{line} could not be formatted: {problem}\n"
    )


# ---- levels, and configure


@pytest.mark.parametrize(
    ("level", "printed"),
    [
        ("debug", "DEBUG INFO WARN ERROR"),
        ("info", "INFO WARN ERROR"),
        ("", "INFO WARN ERROR"),
        (" INFO ", "INFO WARN ERROR"),
        ("warn", "WARN ERROR"),
        ("warning", "WARN ERROR"),
        ("error", "WARN ERROR"),  # warnings and errors always print
    ],
)
def test_levels(pipe: Pipe, configure_logs: Configure, level: str, printed: str) -> None:
    configure_logs(environment={"LOG_LEVEL": level})
    for number in (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR):
        logger("x").log(number, "said")
    assert re.findall(r"\[([A-Z]+)\]", read(pipe[0]).decode()) == printed.split()


def test_an_unknown_setting_gives_the_default_and_one_warning(
    pipe: Pipe, configure_logs: Configure
) -> None:
    environment = {"LOG_LEVEL": "loud", "CONCERTINO_LOG_FORMAT": "xml\n"}
    configure_logs(environment=environment)
    configure_logs(environment=environment)
    logger("x").debug("not at info")
    assert [line[27:] for line in read(pipe[0]).decode().splitlines()] == [
        r"[WARN] [concertino] CONCERTINO_LOG_FORMAT: expected line, json or trace, got "
        r"'xml\n'; line is used",
        "[WARN] [concertino] LOG_LEVEL: expected debug, info, warn, warning or error, got "
        "'loud'; info is used",
    ]


def test_an_unknown_variable_that_an_argument_has_replaced_is_named_by_a_later_call(
    pipe: Pipe, configure_logs: Configure
) -> None:
    environment = {"LOG_LEVEL": "loud"}
    configure_logs(level="info", environment=environment)
    configure_logs(environment=environment)
    configure_logs(environment=environment)
    assert read(pipe[0]).count(b"LOG_LEVEL: expected debug") == 1


def test_an_unknown_argument_is_refused(configure_logs: Configure) -> None:
    with pytest.raises(ValueError, match="format: expected line, json or trace, got 'xml'"):
        configure_logs(format="xml")
    with pytest.raises(
        ValueError, match="level: expected debug, info, warn, warning or error, got 'loud'"
    ):
        configure_logs(level="loud")
    assert logging.getLogger("concertino").handlers == []


def test_an_argument_goes_before_the_environment(pipe: Pipe, configure_logs: Configure) -> None:
    configure_logs(
        level="debug",
        format="trace",
        environment={"LOG_LEVEL": "loud", "CONCERTINO_LOG_FORMAT": "xml"},
    )
    logger("x").debug("said")
    assert read(pipe[0]) == b"[TRACE] said\n"


def test_configuring_again_starts_over_with_the_same_writer(
    pipe: Pipe, configure_logs: Configure, writer: BoundedWriter
) -> None:
    configure_logs()
    handler = configure_logs(writer=None, component="calculator")
    handler.addFilter(at_a_known_time)
    root = logging.getLogger("concertino")
    assert root.handlers == [handler]
    assert handler.writer is writer
    root.info("said")
    logger("my.server").info("said")
    assert not root.propagate
    prefix = "[2026-11-20T10:30:30.123Z] [INFO]"
    assert read(pipe[0]).decode() == f"{prefix} [calculator] said\n{prefix} [my.server] said\n"


def test_the_default_is_stderr_and_the_environment(
    configure_logs: Configure, monkeypatch: pytest.MonkeyPatch, pipe: Pipe
) -> None:
    monkeypatch.setenv("LOG_LEVEL", "warn")
    stderr = os.dup(2)
    os.dup2(pipe[1], 2)
    try:
        handler = configure_logs(writer=None, environment=None)
        logger("x").info("not said")
        logger("x").warning("said")
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
    assert read(pipe[0]).endswith(b" [WARN] [x] said\n")
    assert handler.writer.descriptor == 2
    handler.writer.close()


# ---- how much may be said


def test_a_flood_is_cut_and_told_of(pipe: Pipe, configure_logs: Configure, clock: Clock) -> None:
    configure_logs(format="trace", rate=2, burst=3)
    log = logger("x")
    for number in range(5):
        log.info("%d", number)
    assert read(pipe[0]) == b"[TRACE] 0\n[TRACE] 1\n[TRACE] 2\n"
    clock.now += 0.5  # one more could pass, but it stays shut until a second's worth may
    log.error("5")
    assert read(pipe[0]) == b""
    clock.now += 0.5
    log.info("6")
    log.info("7")
    log.info("8")
    assert read(pipe[0]) == b"[TRACE] 3 log lines suppressed\n[TRACE] 6\n[TRACE] 7\n"
    clock.now += 100  # no more than the burst is saved up
    for number in range(9, 13):
        log.info("%d", number)
    assert read(pipe[0]) == b"[TRACE] 1 log line suppressed\n[TRACE] 9\n[TRACE] 10\n[TRACE] 11\n"


def test_what_was_suppressed_is_told_at_the_end(pipe: Pipe, configure_logs: Configure) -> None:
    handler = configure_logs(format="trace", rate=1, burst=1)
    logger("x").info("one")
    logger("x").info("two")
    handler.close()
    assert read(pipe[0]) == b"[TRACE] one\n[TRACE] 1 log line suppressed\n"


def test_flushing_the_handler_flushes_the_writer(pipe: Pipe, configure_logs: Configure) -> None:
    handler = configure_logs(format="trace")
    fill(pipe[1])
    logger("x").info("one")
    read(pipe[0])
    handler.flush()
    assert read(pipe[0]) == b"[TRACE] one\n"


def test_the_defaults_let_500_through_at_once(
    writer: BoundedWriter, clock: Clock, pipe: Pipe
) -> None:
    handler = StderrHandler(writer, clock=clock)
    for _ in range(501):
        handler.handle(
            logging.makeLogRecord({"name": "concertino.x", "msg": "x", "levelno": logging.INFO})
        )
    assert read(pipe[0]).count(b"\n") == 500


def test_importing_loads_nothing_heavy() -> None:
    script = (
        "import sys, asyncio, msgspec; before = set(sys.modules); import concertino.logs; "
        "print(*sorted(name for name in set(sys.modules) - before if not "
        "name.startswith('concertino')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env=os.environ
    )
    assert set(done.stdout.split()) <= {"bisect", "_bisect", "gc"}  # which is built in


def test_held_is_limited_to_what_a_pipe_holds() -> None:
    assert writer_module.HELD_LIMIT == 65536


def test_a_secret_that_a_client_gave_as_its_request_id_is_in_no_json_line() -> None:
    redact.refresh({"CANARY_TOKEN": CANARY})
    token = current_context.set(LogContext(CANARY))
    try:
        record = logging.LogRecord("concertino", logging.INFO, "", 0, "done", None, None)
        lines = [
            FORMATS["json"](make_entry(record, "c", redact.redactor())),
            message_line("json", "", "<-", "{}"),
        ]
    finally:
        current_context.reset(token)
        redact.refresh()
    assert [msgspec.json.decode(line)["request"] for line in lines] == [redact.REDACTED] * 2
