"""Section 7, second part: the ways in which a server process ends.

`concertino check` has its cases in sections (SECTIONS in case.py). Each public function is one
case. It gets the CaseContext of a server process, causes a fault, and raises a finding if the
server reacts wrongly. A Violation breaks a MUST of the specification, a Deviation only a stricter
rule of this project, and in a Hang the process no longer answers (findings.py). CASES, at the end,
has the name and the expected reaction of each case.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress

from concertino.check import process_stats
from concertino.check.case import Case
from concertino.check.case_context import CaseContext
from concertino.check.findings import CheckFinding, Crash, Deviation, Hang, SkipCase, Violation
from concertino.check.messages import encode_line, excerpt
from concertino.check.server_process import ServerProcess
from concertino.check.stdio_setup import StdioSetup

EOF = "stdio, Shutdown: the client closes stdin and waits for the server to exit"
SIGNAL = "stdio, Shutdown: SIGTERM if it does not exit"
# The size of a message that only the server itself reads: more bytes than a wrapper reads ahead,
# and fewer than any server's limit for a message.
PADDING_BYTES = 2**18
SHORT_CALL_LOST = "a call that needed half a second more was not waited for"


def _require_clean_exit(context: CaseContext, cause: str, *, busy: bool = False) -> None:
    """Require that the process exits in time with code 0. Raises Hang or Crash.

    cause: the reason why the process should exit, for the error text.
    busy: whether calls are in progress. A server may wait for them, so a late exit is a Deviation.
    """
    try:
        code = context.require_exit(cause)
    except Hang as finding:
        if busy:
            raise Deviation(str(finding)) from None
        raise
    _require_exit_code_0(context, code, cause)


def _require_exit_code_0(context: CaseContext, code: int, cause: str) -> None:
    """Report a Deviation for an exit code above 0. Raises Crash if a signal ended the process."""
    if code < 0:
        raise Crash(f"died of signal {signal.Signals(-code).name} after {cause}")
    if code:
        context.report_deviation(f"exit code {code} after {cause}; 0 expected")


def close_stdin_when_idle(context: CaseContext) -> None:
    """Close stdin when no request is pending. The process must exit with code 0."""
    context.close_stdin()
    _require_clean_exit(context, "the end of input")


def close_stdin_at_start(context: CaseContext) -> None:
    """Close stdin before the first message. The process must exit with code 0."""
    context.close_stdin()
    # The process may still be starting, which takes as long as the first opening did.
    within_s = context.start_grace_s + context.settings.exit_s
    cause = "an end of input right at the start"
    _require_exit_code_0(context, context.wait_for_exit(cause, within_s=within_s), cause)


def close_stdin_inside_message(context: CaseContext) -> None:
    """Close stdin after half a request. The process must exit with code 0."""
    # The server may answer half a request, with or without its id, but need not.
    context.max_errors_without_id += 1
    context.expect(77, "half a request", least=0)
    context.write(b'{"jsonrpc":"2.0","id":77,"method":"pi')
    context.close_stdin()
    _require_clean_exit(context, "an end of input inside a message")


def close_stdin_without_newline(context: CaseContext) -> None:
    """Close stdin after a ping without a newline. The response must come back before the exit."""
    message = context.make_ping()
    context.allow_missing_response(message["id"])
    context.write(encode_line(message).rstrip())
    context.close_stdin()
    _require_clean_exit(context, "an end of input after a line without newline")
    if not context.responses(message["id"]):
        context.report_deviation("a last line without a newline was not answered")


def close_stdin_after_50_calls(context: CaseContext) -> None:
    """Send 50 requests and close stdin. 50 responses must come back before the exit."""
    messages = [context.make_listing() for _ in range(50)]
    for message in messages:
        context.allow_missing_response(message["id"])
    context.send(*messages)
    context.close_stdin()
    _require_clean_exit(context, "50 calls and the end of input")
    answered = sum(bool(context.responses(message["id"])) for message in messages)
    if answered < len(messages):
        context.report_deviation(f"{answered} of 50 calls before the end of input were answered")


def _start_calls(context: CaseContext, tool: str, *seconds: float) -> list[int]:
    """Start calls that need not be answered, and return their ids.

    tool: the tool to call, which takes some seconds.
    seconds: how many seconds each call takes.
    """
    calls = [context.make_call(tool, seconds=number) for number in seconds]
    for call in calls:
        context.allow_missing_response(call["id"])
    context.send(*calls)
    # The next response shows that the server has read the calls.
    context.require_service()
    return [call["id"] for call in calls]


def _close_stdin_during_calls(tool: str) -> Callable[[CaseContext], None]:
    """Return a function that closes stdin during a short and a long call of a tool.

    The response to the short call must come back, and the process must exit in time.
    """

    def run(context: CaseContext) -> None:
        short_id, _ = _start_calls(context, tool, 0.5, 30)
        context.close_stdin()
        _require_clean_exit(context, "the end of input during two calls", busy=True)
        if not context.responses(short_id):
            context.report_deviation(SHORT_CALL_LOST)

    return run


def _send_signal(number: int) -> Callable[[CaseContext], None]:
    """Return a function that sends a signal. The process must exit in time with code 0."""

    def run(context: CaseContext) -> None:
        context.may_end = True
        context.process.send_signal(number)
        # The specification mentions SIGTERM alone.
        failure = Hang if number == signal.SIGTERM else Deviation
        _require_exit_on_signal(context, number, signal.Signals(number).name, failure)

    return run


def _require_exit_on_signal(
    context: CaseContext,
    number: int,
    cause: str,
    failure: type[CheckFinding],
) -> None:
    """Require that a signal ends the process. Raises `failure` if it does not, or Crash.

    By our policy the exit code is 0. A process that the signal itself has ended is accepted too.
    cause: the signal, for the error text.
    """
    code = context.wait_for_exit(cause, failure)
    how = f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"
    if code < 0 and code != -number:
        raise Crash(f"ended with {how} after {cause}")
    if code:
        context.report_deviation(f"ended with {how} after {cause}; exit code 0 expected")


def send_sigterm_during_calls(context: CaseContext) -> None:
    """Send SIGTERM during a short and a long call.

    The response to the short call must come back, and the process must exit in time.
    """
    short_id, _ = _start_calls(context, "sleep", 0.5, 30)
    context.may_end = True
    context.process.send_signal(signal.SIGTERM)
    _require_exit_on_signal(context, signal.SIGTERM, "SIGTERM during two calls", Deviation)
    if not context.responses(short_id):
        context.report_deviation(SHORT_CALL_LOST)


def send_sigterm_twice(context: CaseContext) -> None:
    """Send SIGTERM twice during a call. The process must exit within 1 s after the second."""
    process = context.process
    _start_calls(context, "sleep", 30)
    context.may_end = True
    process.send_signal(signal.SIGTERM)
    context.read_until_exit(0.3)
    watch = process_stats.Stopwatch(process.pid)
    process.send_signal(signal.SIGTERM)
    context.wait_for_exit("a second SIGTERM", Deviation)
    took_s = watch.elapsed_s()
    if took_s > 1.0:
        context.report_deviation(f"ended {took_s:.1f} s after a second SIGTERM; at once expected")


def close_stdout(context: CaseContext) -> None:
    """Close the check's end of stdout, and send pings. The process must exit."""
    # Close only stdout. stdin stays open, so the server does not get the end of its input.
    context.may_end = True
    context.process.close_stdout()
    messages = [context.make_ping() for _ in range(5)]
    try:
        for message in messages:
            context.allow_missing_response(message["id"])
            context.send(message)
            context.read_until_exit(0.2)
    except Crash:
        # The server has noticed it and has closed stdin, as this case requires.
        pass
    context.wait_for_exit("its client closed stdout", Deviation)


def _close_all_pipes(context: CaseContext) -> None:
    """Close all pipes, like a client that dies."""
    context.may_end = True
    context.process.close_stdout()
    context.process.close_stderr()
    context.process.close_stdin()


def close_all_pipes(context: CaseContext) -> None:
    """Send 20 requests and close all pipes. The process must exit."""
    # Responses are under way when the pipes close.
    messages = [context.make_request("tools/list") for _ in range(20)]
    for message in messages:
        context.allow_missing_response(message["id"])
    context.send(*messages)
    _close_all_pipes(context)
    context.wait_for_exit("every pipe to its client was closed")


def close_all_pipes_during_call(context: CaseContext) -> None:
    """Close all pipes during a call of a minute. The process must exit."""
    _start_calls(context, "sleep", 60)
    _close_all_pipes(context)
    # A server may wait for its calls, so a late exit is only a Deviation.
    context.wait_for_exit("its client was gone during a call", Deviation)


def _find_wrappers(context: CaseContext) -> list[int]:
    """Return the ids of the processes that have started the server, such as a shell or `uv run`.

    The server is the process that reads the input. Its ancestors in the process group are wrappers.
    If no process is seen reading, returns the id of the shell alone.
    """
    group = context.process.pid
    before = process_stats.bytes_read(group)
    context.require_success(context.make_ping(params={"_meta": {"padding": "x" * PADDING_BYTES}}))
    after = process_stats.bytes_read(group)
    readers = [pid for pid in after if after[pid] - before.get(pid, 0) >= PADDING_BYTES]
    for pid in readers:
        ancestors = process_stats.find_ancestors(pid, group)
        # A proxy reads, too, and so does the server behind it. The check speaks to the proxy, which
        # has no reader among its ancestors.
        is_first_reader = not set(ancestors) & set(readers)
        if ancestors and is_first_reader:
            # End the outermost wrapper first, so that no wrapper notices the end of its child.
            return ancestors[::-1]
    return [group]


def kill_wrapper(context: CaseContext) -> None:
    """Kill the processes that have started the server. The server must exit by itself."""
    process = context.process
    # Without /proc a zombie of the group looks like a running server.
    if process_stats.find_group_pids(process.pid) is None:
        raise SkipCase("this system has no /proc")
    wrappers = _find_wrappers(context)
    context.may_end = True
    # The pipes stay open, so the server can notice only the death of its parent.
    for pid in wrappers:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    orphan_s = context.settings.orphan_s
    if not process.wait_for_exit(orphan_s):
        silence = f"{orphan_s:g} s of silence"
        raise Deviation(f"the server behind a killed wrapper still runs after {silence}")


def start_and_stop_10_times(context: CaseContext) -> None:
    """Start and end the server ten times. Each exit must be clean, without stray output."""
    for _ in range(10):
        with ServerProcess(context.server.command) as process:
            session = CaseContext(context.server, process)
            session.open()
            session.require_service()
            session.close_stdin()
            try:
                _require_clean_exit(session, "the end of input")
            except CheckFinding as finding:
                session.report(finding)
            if session.findings:
                raise session.findings[0]
            if lines := process.output.stray_lines:
                raise Violation(f"on stdout at its end: {excerpt(lines[0].line)}")
            # Python prints this if a thread still uses stdin or stdout at the shutdown.
            if b"Fatal Python error" in process.stderr.tail:
                raise Crash("Fatal Python error")


CASES = (
    # The end of input, the regular way to end a server.
    Case(
        name="eof-idle",
        section=7,
        does="closes stdin when nothing is under way",
        expected="exit code 0 in 5 s",
        source=EOF,
        run=close_stdin_when_idle,
    ),
    Case(
        name="eof-at-once",
        section=7,
        does="closes stdin right at the start",
        expected="exit code 0 in 5 s",
        source=EOF,
        run=close_stdin_at_start,
        opens=False,
    ),
    Case(
        name="eof-in-message",
        section=7,
        does="closes stdin inside a message",
        expected="exit code 0 in 5 s",
        source=EOF,
        run=close_stdin_inside_message,
    ),
    Case(
        name="eof-without-newline",
        section=7,
        does="closes stdin after a request without its newline",
        expected="answered; exit code 0",
        source="policy; " + EOF,
        run=close_stdin_without_newline,
    ),
    Case(
        name="eof-after-50-calls",
        section=7,
        does="writes 50 calls and closes stdin",
        expected="50 answers; exit code 0",
        source="policy; " + EOF,
        run=close_stdin_after_50_calls,
    ),
    Case(
        name="eof-during-sleep",
        section=7,
        does="closes stdin while one call needs 0.5 s more and another 30",
        expected="the first is answered; exit code 0 in 5 s",
        source="policy; " + EOF,
        run=_close_stdin_during_calls("sleep"),
        needs=("sleep",),
        slow=True,
    ),
    Case(
        name="eof-during-block",
        section=7,
        does="closes stdin while tools block, one for 0.5 s and another for 30",
        expected="the first is answered; exit code 0 in 5 s",
        source="policy; " + EOF,
        run=_close_stdin_during_calls("block"),
        needs=("block",),
        slow=True,
    ),
    # Signals, the second way.
    Case(
        name="sigterm",
        section=7,
        does="sends SIGTERM",
        expected="exit code 0 in 5 s",
        source=SIGNAL,
        run=_send_signal(signal.SIGTERM),
    ),
    Case(
        name="sigint",
        section=7,
        does="sends SIGINT",
        expected="exit code 0 in 5 s",
        source="policy",
        run=_send_signal(signal.SIGINT),
    ),
    Case(
        name="sigterm-during-call",
        section=7,
        does="sends SIGTERM while one call needs 0.5 s more and another 30",
        expected="the first is answered; exit code 0 in 5 s",
        source="policy; " + SIGNAL,
        run=send_sigterm_during_calls,
        needs=("sleep",),
        slow=True,
    ),
    Case(
        name="sigterm-twice",
        section=7,
        does="sends SIGTERM twice during a call",
        expected="the process ends at once",
        source="policy",
        run=send_sigterm_twice,
        needs=("sleep",),
    ),
    # A client that dies.
    Case(
        name="stdout-closed",
        section=7,
        does="closes its end of stdout and keeps stdin open",
        expected="the process ends in 5 s",
        source="policy",
        run=close_stdout,
    ),
    Case(
        name="client-gone",
        section=7,
        does="closes every pipe at once, as the death of a client does",
        expected="the process ends in 5 s",
        source=EOF,
        run=close_all_pipes,
    ),
    Case(
        name="client-gone-in-call",
        section=7,
        does="closes every pipe during a call of a minute",
        expected="the process ends in 5 s",
        source=EOF,
        run=close_all_pipes_during_call,
        needs=("sleep",),
        slow=True,
    ),
    # A parent that dies without closing a pipe.
    Case(
        name="wrapper-killed",
        section=7,
        does="kills the shell and other wrappers around the server, with all pipes left open",
        expected="the server ends by itself in 10 s",
        source="policy: no orphans",
        run=kill_wrapper,
        stdio=StdioSetup(wrapped=True),
        slow=True,
    ),
    # Everything together, several times.
    Case(
        name="start-stop-10",
        section=7,
        does="starts and ends it ten times",
        expected="exit code 0 each time, nothing on stdout, no process left",
        source=EOF,
        run=start_and_stop_10_times,
        slow=True,
    ),
)
