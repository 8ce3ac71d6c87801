"""Section 7, first part: a client that does not read, a stderr that nobody reads, and what a long life costs."""

from __future__ import annotations

import time

from concertino.check import process_stats
from concertino.check.case import Case, Deviation, Hang, Violation
from concertino.check.case_context import CaseContext
from concertino.check.cases.limits import memory
from concertino.check.child_process import StdioSetup
from concertino.check.messages import Message, frame, shown

__all__ = ["CASES", "reader_stops"]

MIB = 2**20


def reader_stops_3_s(trial: CaseContext) -> None:
    reader_stops(trial, 3.0)


def reader_stops(trial: CaseContext, seconds: float) -> None:
    """The client writes and does not read, for so long; then it reads all. Nothing is lost, and little was kept."""
    child = trial.child
    messages: list[Message] = []

    def next_message() -> bytes:
        if "echo" in trial.subject.tools:
            messages.append(trial.call("echo", text="x" * 10_000))
        else:
            messages.append(trial.request("tools/list"))
        return frame(messages[-1])

    with memory(trial):
        until = time.monotonic() + seconds
        rest = b""
        while (left := until - time.monotonic()) > 0 and len(messages) < 20_000:
            rest = rest or next_message()
            written = child.write_now(rest)
            rest = rest[written:]
            if not written:
                child.pump(lambda: False, min(left, 0.05), read=False)
                if child.exit is not None:
                    raise child.gone("its client did not read")
        child.pump(lambda: child.exit is not None, max(0.0, until - time.monotonic()), read=False)
        trial.write(rest)
        trial.must_succeed([each["id"] for each in messages], 6 * trial.settings.timeout_s)
        trial.must_serve()


def stderr_unread(trial: CaseContext) -> None:
    """More than a pipe holds is written to stderr by every cause there is, and nobody reads it."""
    if "noise" in trial.subject.tools:
        trial.use("noise", bytes=MIB)
        trial.must_serve()
    trial.write_garbage(b"{not json}\n" * 5000, lines=5000)
    trial.must_serve()
    if "fail" in trial.subject.tools:
        how = trial.tool("fail").choices[0]
        calls = [trial.call("fail", how=how) for _ in range(300)]
        trial.send(*calls)
        trial.all_answered([each["id"] for each in calls])


def stderr_gone(trial: CaseContext) -> None:
    """What is written to stderr fails."""
    trial.write_garbage(b"{not json}\n" * 20, lines=20)
    trial.must_serve()
    if "noise" in trial.subject.tools:
        trial.use("noise", bytes=10_000)
    if "fail" in trial.subject.tools:
        trial.use("fail", how=trial.tool("fail").choices[0])
    trial.must_serve()


def stderr_reader_gone(trial: CaseContext) -> None:
    trial.child.close_stderr()
    stderr_gone(trial)


def echoes_4000(trial: CaseContext) -> None:
    def some(count: int) -> None:
        if "echo" in trial.subject.tools:
            messages = [trial.call("echo", text=f"{number:1000}") for number in range(count)]
        else:
            messages = [trial.light() for _ in range(count)]
        trial.send(*messages)
        trial.must_succeed([each["id"] for each in messages], 6 * trial.settings.timeout_s)

    some(2000)
    before = process_stats.take(trial.child.pid)
    for _ in range(4):
        some(1000)
    after = process_stats.take(trial.child.pid)
    if before and after:
        if (grown := after.rss_bytes - before.rss_bytes) > 16 * MIB:
            trial.note(
                Deviation(
                    f"memory grew by {grown / MIB:.0f} MiB over 4,000 calls; 16 MiB are allowed"
                )
            )
        if after.descriptors > before.descriptors:
            trial.note(
                Deviation(
                    f"{after.descriptors - before.descriptors} descriptors more after 4,000 calls"
                )
            )


def idle(trial: CaseContext) -> None:
    trial.spend(0.3)  # what a start leaves to be done
    before = process_stats.take(trial.child.pid)
    trial.spend(2.0)
    after = process_stats.take(trial.child.pid)
    if (
        before and after and (used := after.cpu_s - before.cpu_s) > 0.05
    ):  # 2 % of 2 s are 0.04; ticks are 0.01
        raise Deviation(f"{used:.2f} s of processor in 2 s without a message")


def order_kept(trial: CaseContext) -> None:
    """A pipe full in both directions at once must not deadlock: 2 MiB of requests while the answers are read late."""
    messages = [trial.light(id=f"{number}-" + "x" * 2000) for number in range(1000)]
    trial.child.write(b"".join(map(frame, messages[:10])), trial.settings.timeout_s, read=False)
    trial.write(b"".join(map(frame, messages[10:])), 3 * trial.settings.timeout_s)
    trial.all_answered([each["id"] for each in messages])
    for each in messages:
        if "error" in trial.answers(each["id"])[0]:
            raise Violation(f"refused: {shown(trial.answers(each['id'])[0])}")


def quiet(trial: CaseContext) -> None:
    """Nobody says anything for two seconds: nothing is to be said unasked but notifications."""
    trial.spend(2.0)
    if trial.child.exit is not None:
        raise trial.child.gone("two seconds without a message")
    if trial.child.eof:
        raise Hang("stdout was closed while nothing was asked")


CASES = (
    Case(
        "reader-stops-3-s",
        7,
        "writes calls for 3 s without reading an answer, then reads",
        "no answer is lost; memory grows by at most 64 MiB meanwhile",
        "policy; basic: every request is answered",
        reader_stops_3_s,
        slow=True,
    ),
    Case(
        "both-pipes-full",
        7,
        "writes 2 MiB of requests with long ids, reading late",
        "all answered: no deadlock",
        "the oracle",
        order_kept,
    ),
    Case(
        "stderr-unread",
        7,
        "never reads stderr, and makes the server write to it: 1 MB, 5,000 bad lines, 300 failures",
        "the protocol goes on",
        "policy; stdio: the client MAY ignore stderr",
        stderr_unread,
        surroundings=StdioSetup(stderr="unread"),
    ),
    Case(
        "stderr-closed",
        7,
        "starts with descriptor 2 closed",
        "served",
        "policy",
        stderr_gone,
        surroundings=StdioSetup(stderr="closed"),
        firm=False,
    ),
    Case(
        "stderr-full",
        7,
        "gives /dev/full as stderr",
        "served",
        "policy",
        stderr_gone,
        surroundings=StdioSetup(stderr="full"),
        firm=False,
    ),
    Case(
        "stderr-reader-gone",
        7,
        "closes its end of stderr",
        "served",
        "policy",
        stderr_reader_gone,
        firm=False,
    ),
    Case(
        "calls-4000",
        7,
        "makes 4,000 calls after 2,000 to warm up",
        "memory grows by at most 16 MiB, descriptors not at all",
        "policy",
        echoes_4000,
        slow=True,
    ),
    Case(
        "idle", 7, "says nothing for 2 s", "less than 2 % of a processor", "policy", idle, slow=True
    ),
    Case("quiet", 7, "says nothing for 2 s", "the server waits", "the oracle", quiet, slow=True),
)
