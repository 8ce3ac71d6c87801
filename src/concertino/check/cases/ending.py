"""Section 7, second part: the end, from the client's side, from the system's, and out of sight."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

from concertino.check import process_stats
from concertino.check.case import Case, CheckFinding, Crash, Deviation, Hang, Violation
from concertino.check.case_context import CaseContext
from concertino.check.child_process import ServerProcess, StdioSetup
from concertino.check.messages import frame, shown

__all__ = ["CASES", "ended", "wrapper_killed"]

WITHIN_S = 5.0  # two for calls under way, and a margin; as long as clients wait before they kill
EOF = "stdio, Shutdown: the client closes stdin and waits for the server to exit"
SIGNAL = "stdio, Shutdown: SIGTERM if it does not exit"
ORPHAN_S = 10.0  # silence of 5 s, the drain, and a margin


def ended(trial: CaseContext, why: str, *, busy: bool = False) -> None:
    """The process ends in time, by itself, with exit code 0. busy: calls are under way, and waiting for them breaks no must."""
    try:
        code = trial.must_end(WITHIN_S, why)
    except Hang as found:
        raise Deviation(str(found)) if busy else found from None
    if code < 0:
        raise Crash(f"died of signal {signal.Signals(-code).name} after {why}")
    if code:
        trial.note(Deviation(f"exit code {code} after {why}; 0 expected"))


def eof_idle(trial: CaseContext) -> None:
    trial.end_of_input()
    ended(trial, "the end of input")


def eof_at_once(trial: CaseContext) -> None:
    """Before anything was read: the start may still be going on."""
    trial.end_of_input()
    if not trial.child.wait(trial.first_s + WITHIN_S):
        raise Hang(
            f"still running {trial.first_s + WITHIN_S:g} s after an end of input right at the start"
        )
    code = trial.child.exit
    assert code is not None
    if code < 0:
        raise Crash(f"died of signal {-code} after an end of input right at the start")
    if code:
        trial.note(
            Deviation(f"exit code {code} after an end of input right at the start; 0 expected")
        )


def eof_in_message(trial: CaseContext) -> None:
    trial.garbage += 1
    trial.expect(77, "half a request", least=0)
    trial.write(b'{"jsonrpc":"2.0","id":77,"method":"pi')
    trial.end_of_input()
    ended(trial, "an end of input inside a message")


def eof_without_newline(trial: CaseContext) -> None:
    message = trial.light()
    trial.due[int, message["id"]].least = 0
    trial.write(frame(message).rstrip())
    trial.end_of_input()
    ended(trial, "an end of input behind a line without newline")
    if not trial.answers(message["id"]):
        trial.note(Deviation("a last line without a newline was not answered"))


def eof_with_calls(trial: CaseContext) -> None:
    messages = [
        trial.request("tools/list") if trial.subject.tool_names else trial.light()
        for _ in range(50)
    ]
    for each in messages:
        trial.due[int, each["id"]].least = 0
    trial.send(*messages)
    trial.end_of_input()
    ended(trial, "50 calls and the end of input")
    answered = sum(bool(trial.answers(each["id"])) for each in messages)
    if answered < len(messages):
        trial.note(Deviation(f"{answered} of 50 calls before the end of input were answered"))


def _eof_during(tool: str) -> Callable[[CaseContext], None]:
    def run(trial: CaseContext) -> None:
        short, long = trial.call(tool, seconds=0.5), trial.call(tool, seconds=30)
        for each in (short, long):
            trial.due[int, each["id"]].least = 0
        trial.send(short, long)
        trial.must_serve()
        trial.end_of_input()
        ended(trial, "the end of input during two calls", busy=True)
        if not trial.answers(short["id"]):
            trial.note(Deviation("a call that needed half a second more was not waited for"))

    return run


def _signalled(number: int) -> Callable[[CaseContext], None]:
    name = signal.Signals(number).name

    def run(trial: CaseContext) -> None:
        trial.ended = True
        trial.child.signal(number)
        _ended_by(trial, number, name, Hang if number == signal.SIGTERM else Deviation)

    return run


def _ended_by(trial: CaseContext, number: int, why: str, otherwise: type[CheckFinding]) -> None:
    """After a signal: exit code 0 is ours; being ended by it is as sound. otherwise: what it is not to end."""
    if not trial.child.wait(WITHIN_S):
        raise otherwise(f"still running {WITHIN_S:g} s after {why}")
    code = trial.child.exit or 0
    how = f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"
    if code < 0 and code != -number:
        raise Crash(f"ended with {how} after {why}")
    if code:
        trial.note(Deviation(f"ended with {how} after {why}; exit code 0 expected"))


def term_during_call(trial: CaseContext) -> None:
    short, long = trial.call("sleep", seconds=0.5), trial.call("sleep", seconds=30)
    for each in (short, long):
        trial.due[int, each["id"]].least = 0
    trial.send(short, long)
    trial.must_serve()
    trial.ended = True
    trial.child.signal(signal.SIGTERM)
    _ended_by(trial, signal.SIGTERM, "SIGTERM during two calls", Deviation)
    if not trial.answers(short["id"]):
        trial.note(Deviation("a call that needed half a second more was not waited for"))


def second_signal(trial: CaseContext) -> None:
    long = trial.call("sleep", seconds=30)
    trial.due[int, long["id"]].least = 0
    trial.send(long)
    trial.must_serve()
    trial.ended = True
    trial.child.signal(signal.SIGTERM)
    trial.child.pump(lambda: trial.child.exit is not None, 0.3)
    began = time.monotonic()
    queued = process_stats.queued_s(trial.child.pid)
    trial.child.signal(signal.SIGTERM)
    if not trial.child.wait(WITHIN_S):
        raise Deviation(f"still running {WITHIN_S:g} s after a second SIGTERM")
    took = time.monotonic() - began - (process_stats.queued_s(trial.child.pid) - queued)
    if took > 1.0:
        trial.note(Deviation(f"ended {took:.1f} s after a second SIGTERM; at once expected"))


def stdout_closed(trial: CaseContext) -> None:
    """The client is half gone: it still holds stdin open."""
    trial.ended = True
    trial.child.close_stdout()
    messages = [trial.light() for _ in range(5)]
    try:
        for each in messages:
            trial.due[int, each["id"]].least = 0
            trial.send(each)
            trial.child.pump(lambda: trial.child.exit is not None, 0.2)
    except Crash:
        pass  # it has seen it: what is asked here
    if not trial.child.wait(WITHIN_S):
        raise Deviation(f"still running {WITHIN_S:g} s after its client closed stdout")


def client_gone(trial: CaseContext) -> None:
    """What a killed client leaves: every pipe is closed, at any moment."""
    messages = [trial.request("tools/list") for _ in range(20)]
    for each in messages:
        trial.due[int, each["id"]].least = 0
    trial.send(*messages)
    trial.ended = True
    trial.child.close_stdout()
    trial.child.close_stderr()
    trial.child.close_stdin()
    if not trial.child.wait(WITHIN_S):
        raise Hang(f"still running {WITHIN_S:g} s after every pipe to its client was closed")


def client_gone_in_call(trial: CaseContext) -> None:
    long = trial.call("sleep", seconds=60)
    trial.due[int, long["id"]].least = 0
    trial.send(long)
    trial.must_serve()
    trial.ended = True
    trial.child.close_stdout()
    trial.child.close_stderr()
    trial.child.close_stdin()
    if not trial.child.wait(WITHIN_S):
        raise Deviation(f"still running {WITHIN_S:g} s after its client was gone during a call")


def wrapper_killed(trial: CaseContext) -> None:
    """`sh -c 'server; true'`: the shell is killed, and the pipes stay open, so that nothing but the parent's death tells."""
    child = trial.child
    pids = process_stats.members(child.pid)
    if pids is None:
        return
    trial.ended = True
    child.popen.send_signal(signal.SIGKILL)
    if not child.pump(lambda: child.exit is not None and not child.group_lives(), ORPHAN_S):
        raise Deviation(
            f"the server behind a killed wrapper still runs after {ORPHAN_S:g} s of silence"
        )


def start_stop(trial: CaseContext) -> None:
    """Ten more lives, short ones."""
    for _ in range(10):
        with ServerProcess(trial.subject.command) as child:
            one = CaseContext(trial.subject, child)
            one.open()
            one.must_serve()
            one.end_of_input()
            try:
                ended(one, "the end of input")
            except CheckFinding as found:
                one.note(found)
            if one.findings:
                raise one.findings[0]
            if child.strays:
                raise Violation(f"on stdout at its end: {shown(child.strays[0].line)}")
            if b"Fatal Python error" in child.stderr:
                raise Crash("Fatal Python error")


CASES = (
    Case(
        "eof-idle", 7, "closes stdin when nothing is under way", "exit code 0 in 5 s", EOF, eof_idle
    ),
    Case(
        "eof-at-once",
        7,
        "closes stdin right at the start",
        "exit code 0 in 5 s",
        EOF,
        eof_at_once,
        opens=False,
    ),
    Case(
        "eof-in-message",
        7,
        "closes stdin inside a message",
        "exit code 0 in 5 s",
        EOF,
        eof_in_message,
    ),
    Case(
        "eof-without-newline",
        7,
        "closes stdin behind a request without its newline",
        "answered; exit code 0",
        "policy; " + EOF,
        eof_without_newline,
    ),
    Case(
        "eof-after-50-calls",
        7,
        "writes 50 calls and closes stdin",
        "50 answers; exit code 0",
        "policy; " + EOF,
        eof_with_calls,
    ),
    Case(
        "eof-during-sleep",
        7,
        "closes stdin while one call needs 0.5 s more and another 30",
        "the first is answered; exit code 0 in 5 s",
        "policy; " + EOF,
        _eof_during("sleep"),
        needs=("sleep",),
        slow=True,
    ),
    Case(
        "eof-during-block",
        7,
        "closes stdin while tools block, one for 0.5 s and another for 30",
        "the first is answered; exit code 0 in 5 s",
        "policy; " + EOF,
        _eof_during("block"),
        needs=("block",),
        slow=True,
    ),
    Case("sigterm", 7, "sends SIGTERM", "exit code 0 in 5 s", SIGNAL, _signalled(signal.SIGTERM)),
    Case("sigint", 7, "sends SIGINT", "exit code 0 in 5 s", "policy", _signalled(signal.SIGINT)),
    Case(
        "sigterm-during-call",
        7,
        "sends SIGTERM while one call needs 0.5 s more and another 30",
        "the first is answered; exit code 0 in 5 s",
        "policy; " + SIGNAL,
        term_during_call,
        needs=("sleep",),
        slow=True,
    ),
    Case(
        "sigterm-twice",
        7,
        "sends SIGTERM twice during a call",
        "the end, at once",
        "policy",
        second_signal,
        needs=("sleep",),
    ),
    Case(
        "stdout-closed",
        7,
        "closes its end of stdout and keeps stdin open",
        "the process ends in 5 s",
        "policy",
        stdout_closed,
    ),
    Case(
        "client-gone",
        7,
        "closes every pipe at once, as the death of a client does",
        "the process ends in 5 s",
        EOF,
        client_gone,
    ),
    Case(
        "client-gone-in-call",
        7,
        "closes every pipe during a call of a minute",
        "the process ends in 5 s",
        EOF,
        client_gone_in_call,
        needs=("sleep",),
        slow=True,
    ),
    Case(
        "wrapper-killed",
        7,
        "kills the shell that started the server, with all pipes left open",
        "the server ends by itself in 10 s",
        "policy: no orphans",
        wrapper_killed,
        surroundings=StdioSetup(wrapped=True),
        slow=True,
    ),
    Case(
        "start-stop-10",
        7,
        "starts and ends it ten times",
        "exit code 0 each time, nothing on stdout, no process left",
        EOF,
        start_stop,
        slow=True,
    ),
)
