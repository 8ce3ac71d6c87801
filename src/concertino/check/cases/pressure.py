"""Section 7, first part: full pipes, an unread stderr, and the resources of a long session.

`concertino check` has its cases in sections (SECTIONS in case.py). Each public function is one
case. It gets the CaseContext of a server process, causes a fault, and raises a finding if the
server reacts wrongly. A Violation breaks a MUST of the specification, a Deviation only a stricter
rule of this project, and in a Hang the process no longer answers (findings.py). CASES, at the end,
has the name and the expected reaction of each case.
"""

from __future__ import annotations

import time

from concertino.check import process_stats
from concertino.check.case import Case
from concertino.check.case_context import CaseContext
from concertino.check.cases.limits import limit_memory
from concertino.check.findings import Deviation, Hang, Violation
from concertino.check.messages import Message, encode_line, excerpt
from concertino.check.stdio_setup import StdioSetup

MIB = 2**20
# Memory may grow by this during 4,000 calls, in caches and memory pools. More is a Deviation, and a
# Violation above LEAK_BYTES, or with more than LEAK_DESCRIPTORS new descriptors.
ALLOWED_BYTES = 16 * MIB
LEAK_BYTES = 64 * MIB
LEAK_DESCRIPTORS = 4


def write_3_s_without_reading(context: CaseContext) -> None:
    """Send calls for 3 s without reading stdout. All responses must come back afterwards.

    Meanwhile the server's memory must stay bounded.
    """
    write_without_reading(context, 3.0)


# No case by itself: soak/pressure.py calls it, too, with another time.
def write_without_reading(context: CaseContext, seconds: float) -> None:
    """Write calls for some time without reading stdout, then read all responses.

    No response may be lost, and the server's memory must stay bounded.
    seconds: how long to write.
    """
    process = context.process
    messages: list[Message] = []

    def encode_next_call() -> bytes:
        if "echo" in context.server.tools:
            messages.append(context.make_call("echo", text="x" * 10_000))
        else:
            messages.append(context.make_listing())
        return encode_line(messages[-1])

    with limit_memory(context):
        deadline = time.monotonic() + seconds
        # The part of the latest call that is not written yet.
        rest = b""
        while (remaining_s := deadline - time.monotonic()) > 0 and len(messages) < 20_000:
            rest = rest or encode_next_call()
            count = process.write_available(rest)
            rest = rest[count:]
            if not count:
                # Both pipes are full. Keep draining stderr, but leave stdout alone.
                process.wait_until(lambda: False, min(remaining_s, 0.05), read_stdout=False)
                if process.exit_code is not None:
                    raise process.crash_or_hang("its client did not read")
        # If enough calls were written early, leave stdout unread until the time is over.
        remaining_s = max(0.0, deadline - time.monotonic())
        process.wait_until(lambda: process.exit_code is not None, remaining_s, read_stdout=False)
        context.write(rest)
        ids = [message["id"] for message in messages]
        context.require_results(ids, 6 * context.settings.timeout_s)
        context.require_service()


def fill_stderr(context: CaseContext) -> None:
    """Let the server write more to stderr than fits into the pipe.

    The server must still serve requests.
    """
    # Each of these makes a server log more than the 64 KiB that a pipe holds, and nobody reads it.
    if "noise" in context.server.tools:
        context.call_tool("noise", bytes=MIB)
        context.require_service()
    context.write_malformed_lines(b"{not json}\n" * 5000, lines=5000)
    context.require_service()
    if "fail" in context.server.tools:
        # Any way of failing makes a server log.
        how = context.find_tool("fail").choices[0]
        context.exchange(*(context.make_call("fail", how=how) for _ in range(300)))


def provoke_stderr(context: CaseContext) -> None:
    """Let the server write to its stderr, which is closed or full.

    The server must still serve requests.
    """
    # Every write to stderr fails, because of the `stdio` of the case or of close_stderr().
    context.write_malformed_lines(b"{not json}\n" * 20, lines=20)
    context.require_service()
    if "noise" in context.server.tools:
        context.call_tool("noise", bytes=10_000)
    if "fail" in context.server.tools:
        context.call_tool("fail", how=context.find_tool("fail").choices[0])
    context.require_service()


def close_stderr(context: CaseContext) -> None:
    """Close the check's end of stderr, then run provoke_stderr()."""
    context.process.close_stderr()
    provoke_stderr(context)


def make_4000_calls(context: CaseContext) -> None:
    """Make 4,000 calls. The server's memory and its open descriptors must hardly grow."""

    def call_many(count: int) -> None:
        if "echo" in context.server.tools:
            messages = [context.make_call("echo", text=f"{number:1000}") for number in range(count)]
        else:
            messages = [context.make_ping() for _ in range(count)]
        context.require_success(*messages, within_s=6 * context.settings.timeout_s)

    # Caches and memory pools grow during the first calls.
    call_many(2000)
    before = process_stats.measure(context.process.pid)
    for _ in range(4):
        call_many(1000)
    after = process_stats.measure(context.process.pid)

    if before and after:
        if (growth := after.rss_bytes - before.rss_bytes) > ALLOWED_BYTES:
            text = f"memory grew by {growth / MIB:.0f} MiB over 4,000 calls; 16 MiB are allowed"
            context.report(Violation(text) if growth > LEAK_BYTES else Deviation(text))
        if (more := after.descriptors - before.descriptors) > 0:
            text = f"{more} descriptors more after 4,000 calls"
            context.report(Violation(text) if more > LEAK_DESCRIPTORS else Deviation(text))


def measure_idle_cpu(context: CaseContext) -> None:
    """Send nothing for 2 s. The server must use less than 2 % of a CPU."""
    # A server may finish its start after the opening.
    context.read_until_exit(0.3)
    before = process_stats.measure(context.process.pid)
    context.read_until_exit(2.0)
    after = process_stats.measure(context.process.pid)
    # 2 % of 2 s are 0.04 s, and CPU time has a resolution of 0.01 s.
    if before and after and (used_s := after.cpu_s - before.cpu_s) > 0.05:
        raise Deviation(f"{used_s:.2f} s of processor in 2 s without a message")


def fill_both_pipes(context: CaseContext) -> None:
    """Send 2 MiB of pings, reading only while stdin is full. All responses must come back."""
    # Each response repeats the long id, so stdout fills as fast as stdin. write() reads responses
    # only when stdin is full: a server may stop reading until its response is written.
    messages = [context.make_ping(id=f"{number}-" + "x" * 2000) for number in range(1000)]
    data = b"".join(map(encode_line, messages))
    context.write(data, 3 * context.settings.timeout_s)
    context.wait_for_responses([message["id"] for message in messages])
    for message in messages:
        if "error" in (response := context.responses(message["id"])[0]):
            raise Violation(f"refused: {excerpt(response)}")


def stay_quiet(context: CaseContext) -> None:
    """Send nothing for 2 s. The process must keep running, with an open stdout."""
    # The invariants check that the server sends no response in this time.
    context.read_until_exit(2.0)
    if context.process.exit_code is not None:
        raise context.process.crash_or_hang("two seconds without a message")
    if context.process.eof:
        raise Hang("stdout was closed while no request was pending")


CASES = (
    # Full pipes.
    Case(
        name="reader-stops-3-s",
        section=7,
        does="writes calls for 3 s without reading an answer, then reads",
        expected="no answer is lost; memory grows by at most 64 MiB meanwhile",
        source="policy; basic: every request is answered",
        run=write_3_s_without_reading,
        slow=True,
    ),
    Case(
        name="both-pipes-full",
        section=7,
        does="writes 2 MiB of requests with long ids, reading late",
        expected="all answered: no deadlock",
        source="invariant",
        run=fill_both_pipes,
    ),
    # A stderr that is full, closed or unread.
    Case(
        name="stderr-unread",
        section=7,
        does="never reads stderr, and makes the server write to it: 1 MB, 5,000 bad lines, "
        "300 failures",
        expected="requests are still served",
        source="policy; stdio: the client MAY ignore stderr",
        run=fill_stderr,
        stdio=StdioSetup(stderr="unread"),
    ),
    Case(
        name="stderr-closed",
        section=7,
        does="starts with descriptor 2 closed",
        expected="served",
        source="policy",
        run=provoke_stderr,
        stdio=StdioSetup(stderr="closed"),
        can_fail=False,
    ),
    Case(
        name="stderr-full",
        section=7,
        does="gives /dev/full as stderr",
        expected="served",
        source="policy",
        run=provoke_stderr,
        stdio=StdioSetup(stderr="full"),
        can_fail=False,
    ),
    Case(
        name="stderr-reader-gone",
        section=7,
        does="closes its end of stderr",
        expected="served",
        source="policy",
        run=close_stderr,
        can_fail=False,
    ),
    # The cost of many calls, and of none.
    Case(
        name="calls-4000",
        section=7,
        does="makes 4,000 calls after 2,000 to warm up",
        expected="memory grows by at most 16 MiB (by more than 64 is a leak), descriptors not "
        "at all",
        source="policy",
        run=make_4000_calls,
        slow=True,
    ),
    Case(
        name="idle",
        section=7,
        does="says nothing for 2 s",
        expected="less than 2 % of a processor",
        source="policy",
        run=measure_idle_cpu,
        slow=True,
    ),
    Case(
        name="quiet",
        section=7,
        does="says nothing for 2 s",
        expected="the server waits",
        source="invariant",
        run=stay_quiet,
        slow=True,
    ),
)
