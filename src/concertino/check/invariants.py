"""The invariants: rules that every server must keep after every case, whatever the case did.

- The process runs, unless the case asked it to end, and serves the next request.
- Every request was answered exactly once; a cancelled request may also have no answer.
- stdout contained only JSON-RPC messages, and no response contains a stack trace.
- The case left no extra memory, descriptors or processes in use.

A case is one test of `concertino check`, which causes a fault at a new server process. run.py calls
these functions after each case. They report findings: a Violation is a broken rule, a Deviation is
less severe, and after a Crash or a Hang the process does not serve any more (findings.py).
"""

from __future__ import annotations

from itertools import chain

from concertino.check import process_stats
from concertino.check.case_context import CaseContext
from concertino.check.findings import Crash, Deviation, Hang, Violation
from concertino.check.messages import excerpt, find_stack_trace
from concertino.check.process_stats import ProcessStats

MIB = 2**20
# The memory may grow by this size in addition to the size of the largest message.
SPARE_BYTES = 64 * MIB
# This many descriptors may be opened during a case and stay open, such as a log file.
SPARE_DESCRIPTORS = 4
# More is a Deviation. After a case that has sent only valid messages, it is a Violation if
# - the memory has grown by EXCESS_BYTES more than is allowed, or
# - more than LEAK_DESCRIPTORS descriptors were opened.
# A server with such a leak soon ends.
EXCESS_BYTES = 256 * MIB
LEAK_DESCRIPTORS = 64
# Clients wait about 5 s for the exit of a server. That limit has cases of its own, in section 7.
EXIT_S = 2.0


def check_running(context: CaseContext, before: ProcessStats | None) -> None:
    """Check at the end of a case that the server still serves requests and has freed its resources.

    Reports resources that were not freed as a Deviation, and a large leak as a Violation. Raises
    Crash or Hang if the server no longer serves, and Violation if a request has no response.

    before: the server's resources at the beginning of the case. None: resources are not compared,
        because the session was not open then, or there is no /proc.
    """
    process = context.process
    if process.exit_code is not None:
        raise process.crash_or_hang("although nothing had asked it to end")
    # After a case that has opened no session, the server must still be able to open one.
    if not context.is_open:
        context.open()

    missing = [
        id
        for (kind, id), expected in context.expected.items()
        if expected.least and (kind, id) not in process.output.responses
    ]
    if missing:
        context.wait_for_responses(missing)
    context.require_service()
    context.wait_for_stragglers()

    if process.exit_code is not None:
        raise process.crash_or_hang("right after it had served the next request")
    if process.eof and process.ends.stdout >= 0:
        raise Hang("stdout was closed, but the process still runs")
    _check_resources(context, before)


def check_output(context: CaseContext) -> None:
    """Report what is wrong with the server's stdout so far.

    Reports lines that are no messages, responses to no request, second responses to a request, too
    many errors without an id, requests that the era forbids, and stack traces.
    """
    output = context.process.output
    # The first few lines are enough to find the cause.
    for line in output.stray_lines[:3]:
        reason = f"stdout held a line that is no JSON-RPC message ({line.reason})"
        context.report(Violation(f"{reason}: {excerpt(line.line)}"))

    for key, responses in output.responses.items():
        expected = context.expected.get(key)
        if expected is None:
            if not context.is_unknown_id_allowed(key[1]):
                context.report(
                    Violation(f"an answer with an id that was never sent: {excerpt(responses[0])}")
                )
        elif len(responses) > expected.most:
            times = f"was answered {len(responses)} times: {excerpt(responses[-1])}"
            context.report(Violation(f"{expected.subject} (id {excerpt(key[1])}) {times}"))

    without_id = output.responses_without_id
    if len(without_id) > context.max_errors_without_id:
        lines = f"{context.max_errors_without_id} malformed lines: {excerpt(without_id[-1])}"
        context.report(Violation(f"{len(without_id)} answers without an id for {lines}"))
    if context.modern and output.requests:
        text = "a request to the client, which 2026-07-28 does not allow"
        context.report(Violation(f"{text}: {excerpt(output.requests[0])}"))

    for message in chain(without_id, *output.responses.values()):
        if mark := find_stack_trace(message):
            context.report(
                Violation(f"a stack trace ({mark}) was sent to the client: {excerpt(message, 400)}")
            )
            break


def check_shutdown(context: CaseContext) -> None:
    """Close the server's stdin, as a client does. Report a crash, and child processes left over.

    A server that does not end is not reported, because the cases of section 7 test that.
    """
    process = context.process
    if context.may_end or process.exit_code is not None:
        return

    process.close_stdin()
    # If the server has ignored the end of its input before the first case, it will ignore it now
    # too, so do not wait long.
    within_s = EXIT_S if context.server.obeys_eof else 0.2
    process.wait_until(lambda: process.exit_code is not None, within_s)
    code = process.exit_code
    if code is None:
        return

    if not process.wait_for_exit(EXIT_S):
        left = sorted(process_stats.find_group_pids(process.pid) or ())
        context.report(
            Violation(f"the server ended, but processes that it started still run: {left}")
        )
    if code < 0:
        context.report(Crash(f"died of signal {-code} after the end of its input"))


def _check_resources(context: CaseContext, before: ProcessStats | None) -> None:
    """Check that the case left no extra memory, descriptors or processes in use."""
    if before is None:
        return
    pid = context.process.pid
    allowed = context.settings.message_limit_bytes + SPARE_BYTES

    def is_back() -> bool:
        now = process_stats.measure(pid)
        return (
            now is not None
            and now.rss_bytes - before.rss_bytes <= allowed
            and now.descriptors - before.descriptors <= SPARE_DESCRIPTORS
            and now.pids <= before.pids
        )

    # Give a garbage collector or an ending child two seconds.
    if is_back() or context.process.wait_until(is_back, 2.0):
        return
    now = process_stats.measure(pid)
    if now is None:
        return

    # Whether the case has sent only messages that the server must understand.
    keeps_rules = not context.max_errors_without_id
    if (growth := now.rss_bytes - before.rss_bytes) > allowed:
        limit = f"{allowed / MIB:.0f} MiB are allowed"
        text = f"memory grew by {growth / MIB:.0f} MiB and did not shrink; {limit}"
        is_leak = keeps_rules and growth > allowed + EXCESS_BYTES
        context.report(Violation(text) if is_leak else Deviation(text))
    if (more := now.descriptors - before.descriptors) > SPARE_DESCRIPTORS:
        text = f"{more} more descriptors are open than before"
        is_leak = keeps_rules and more > LEAK_DESCRIPTORS
        context.report(Violation(text) if is_leak else Deviation(text))
    if left := now.pids - before.pids:
        context.report_deviation(f"processes that were not there before are left: {sorted(left)}")
