"""Cases of `concertino check`: the kinds of stdin and stdout that a server may be started with.

They belong to section 1, bytes and framing (docs/reference/check.md).

Each public function is one case of `concertino check`. It gets the CaseContext of a server process,
causes a fault, and raises a finding if the server reacts wrongly. A Violation breaks a MUST of the
specification, a Deviation only a stricter rule of this project, and in a Hang the process no longer
answers (findings.py). CASES, at the end, has the name and the expected reaction of each case.
"""

from __future__ import annotations

import time

from concertino.check.case import Case
from concertino.check.case_context import INITIALIZED, CaseContext
from concertino.check.cases.framing import STDIO
from concertino.check.findings import Crash, Deviation, Hang
from concertino.check.messages import encode_line
from concertino.check.stdio_setup import StdioSetup

SERVED = "served like over a pipe"


def send_100_requests(context: CaseContext) -> None:
    """Send 100 pings. 100 results must come back, whatever the kind of stdin and stdout is."""
    # The session was opened over these descriptors. The server must also answer many requests.
    context.require_success(*(context.make_ping() for _ in range(100)))


def read_late(context: CaseContext) -> None:
    """Send 50 requests, and begin to read when stdout is full. All responses must come back."""
    # The responses fill a pipe of 4 KiB many times over.
    messages = [context.make_listing() for _ in range(50)]
    lines = b"".join(map(encode_line, messages))
    context.process.write(lines, context.settings.timeout_s, read_stdout=False)
    # No event tells that the server has found its pipe full.
    time.sleep(0.3)
    context.require_results([message["id"] for message in messages])


def _encode_whole_session() -> bytes:
    """Return the content of the file that `stdin-file` gives as stdin: a handshake and a ping."""
    params = {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "check", "version": "1"},
    }
    return (
        encode_line({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params})
        + encode_line(INITIALIZED)
        + encode_line({"jsonrpc": "2.0", "id": 2, "method": "ping"})
    )


def read_file_as_stdin(context: CaseContext) -> None:
    """Let the server read a file as its stdin, with a handshake and a ping.

    Both must get a response, and the process must exit with code 0.
    """
    for id in (1, 2):
        context.expect(id, "a request in a file", least=0)
    cause = "a file as stdin was at its end"
    code = context.wait_for_exit(cause, within_s=context.settings.start_s)
    if not (context.responses(1) and context.responses(2)):
        raise Deviation("stdin was a file with a handshake and a ping; not both were answered")
    if code:
        raise Deviation(f"exit code {code} after the end of the file")


def start_without_input(context: CaseContext) -> None:
    """Start the server with an empty or closed stdin.

    The process must exit with code 0 or 1, and log no stack trace.
    """
    # The process ends by itself, so its end is no fault.
    context.may_end = True
    process = context.process
    if not process.wait_for_exit(context.settings.start_s):
        raise Hang(f"still running after {context.settings.start_s:g} s with nothing to read")
    code = process.exit_code
    if code is not None and code < 0:
        raise Crash(f"died of signal {-code}")
    # Both exit codes are sensible: no input may be a session without requests, or a user's mistake.
    if code not in (0, 1):
        raise Deviation(f"exit code {code}; 0 or 1 expected")
    # The beginnings of stack traces of Python and of JavaScript.
    if b"Traceback" in process.stderr.tail or b"\n    at " in process.stderr.tail:
        raise Deviation("a stack trace on stderr; one line expected")


CASES = (
    # Kinds of descriptors. A wrong reaction to sockets or small pipes is a failure. The other kinds
    # are rare, so their cases have can_fail=False.
    Case(
        name="stdin-socket",
        section=1,
        does="gives sockets as stdin and stdout, as Node does",
        expected=SERVED,
        source="invariant",
        run=send_100_requests,
        stdio=StdioSetup(stdin="socket", stdout="socket"),
    ),
    Case(
        name="stdin-terminal",
        section=1,
        does="gives a terminal as stdin and stdout, without echo",
        expected=SERVED,
        source="policy",
        run=send_100_requests,
        stdio=StdioSetup(stdin="terminal", stdout="terminal"),
        can_fail=False,
    ),
    Case(
        name="stdin-file",
        section=1,
        does="gives a file with a handshake and a ping as stdin",
        expected="both answered, then exit code 0",
        source="policy",
        run=read_file_as_stdin,
        needs=("legacy",),
        opens=False,
        stdio=StdioSetup(stdin="file", content=_encode_whole_session()),
        can_fail=False,
    ),
    # Nothing to read at all.
    Case(
        name="stdin-null",
        section=1,
        does="gives /dev/null as stdin",
        expected="exit code 0 or 1, no stack trace",
        source="policy",
        run=start_without_input,
        opens=False,
        stdio=StdioSetup(stdin="null"),
        can_fail=False,
    ),
    Case(
        name="stdin-closed",
        section=1,
        does="starts with descriptor 0 closed",
        expected="exit code 0 or 1, no stack trace",
        source="policy",
        run=start_without_input,
        opens=False,
        stdio=StdioSetup(stdin="closed"),
        can_fail=False,
    ),
    # A reader that is late.
    Case(
        name="nonblocking-pipes",
        section=1,
        does="gives pipes that are O_NONBLOCK already, and reads late",
        expected="every answer, whole",
        source="policy",
        run=read_late,
        stdio=StdioSetup(nonblocking=True, small_pipe=True),
        can_fail=False,
    ),
    Case(
        name="small-pipe",
        section=1,
        does="gives a stdout pipe of 4 KiB and reads late",
        expected="every answer, whole",
        source=STDIO,
        run=read_late,
        stdio=StdioSetup(small_pipe=True),
    ),
)
