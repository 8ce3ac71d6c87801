"""Run pressure cases that take longer than a test may.

    python soak/pressure.py [--only NAME] [--load-s 600] [-- COMMAND...]

Without a command, concertino's own reference server is checked. The cases are like those of
`concertino check`: each runs against a process of its own, and the invariants are checked after it.
Exit code 1 when a case is not ok.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time

from concertino.check import process_stats
from concertino.check.case import Case
from concertino.check.case_context import CaseContext
from concertino.check.cases.limits import flood_notifications, limit_memory
from concertino.check.cases.pressure import write_without_reading
from concertino.check.findings import Crash, Deviation, Hang, Violation
from concertino.check.messages import Message
from concertino.check.process_stats import ProcessStats
from concertino.check.report import TerminalReport, format_summary
from concertino.check.run import has_failures, inspect_server, run_cases, select_cases
from concertino.check.server_under_test import CheckSettings

MIB = 2**20
# How long the endless line is.
LINE_S = 10.0
# The growth of memory under a long load that still counts as none.
FLAT_BYTES = 16 * MIB


def write_endless_line(context: CaseContext) -> None:
    process = context.process
    chunk = b"x" * MIB
    written = 0
    before = process_stats.measure(process.pid)
    began = time.monotonic()
    context.max_errors_without_id += 1
    with limit_memory(context, context.settings.message_limit_bytes + 64 * MIB):
        while time.monotonic() < began + LINE_S:
            context.write(chunk)
            written += len(chunk)
    took_s = time.monotonic() - began
    after = process_stats.measure(process.pid)

    if before and after:
        growth, used_s = after.rss_bytes - before.rss_bytes, after.cpu_s - before.cpu_s
        volume = f"{written / 2**30:.1f} GiB in {took_s:.1f} s"
        print_line(f"  {volume}, memory {growth / MIB:+.0f} MiB, {used_s / took_s:.0%} of a CPU")
        if used_s > 1.2 * took_s:
            context.report(Deviation(f"{used_s:.1f} s of CPU time in {took_s:.1f} s"))

    # The signal must be obeyed although input keeps coming.
    context.may_end = True
    process.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + 5.0
    try:
        while time.monotonic() < deadline and process.exit_code is None:
            if not process.write_available(chunk):
                context.read_until_exit(0.02)
    except Crash:
        # stdin is closed: the server is shutting down.
        pass
    if not process.wait_for_exit(5.0):
        raise Hang("SIGTERM was not obeyed within 5 s while bytes came")
    if process.exit_code != 0:
        raise Deviation(f"exit code {process.exit_code} after SIGTERM")


def end_endless_line(context: CaseContext) -> None:
    chunk = b"x" * MIB
    deadline = time.monotonic() + LINE_S
    context.max_errors_without_id += 1
    with limit_memory(context, context.settings.message_limit_bytes + 64 * MIB):
        while time.monotonic() < deadline:
            context.write(chunk)
        context.write(b"\n")
        context.require_service()


def write_60_s_without_reading(context: CaseContext) -> None:
    write_without_reading(context, 60.0)


def flood_for_5_s(context: CaseContext) -> None:
    flood_notifications(context, 5.0)


def _run_load_round(context: CaseContext, number: int) -> None:
    """Make ten calls of several kinds. Now and then send a malformed line or let a tool fail."""
    calls = [context.make_call("echo", text=f"{number}-{index}" * 20) for index in range(6)]
    calls += [context.make_call("sleep", seconds=0.05), context.make_call("block", seconds=0.01)]
    cancelled = context.make_call("sleep", seconds=5)
    calls.append(context.make_request("tools/list"))
    context.send(*calls, cancelled)
    if number % 10 == 0:
        context.write_malformed_lines(b"{not json}\n")
    if number % 20 == 0:
        choices = context.find_tool("fail").choices
        calls.append(context.make_call("fail", how=choices[number // 20 % len(choices)]))
        context.send(calls[-1])
    context.send(context.make_cancellation(cancelled["id"]))
    context.wait_for_responses([call["id"] for call in calls])
    _forget_messages(context, [*calls, cancelled])


def _forget_messages(context: CaseContext, requests: list[Message]) -> None:
    """Drop everything recorded about requests that are done, so that the records do not grow."""
    output = context.process.output
    for request in requests:
        key = (int, request["id"])
        context.expected.pop(key, None)
        output.arrival_times.pop(key, None)
        responses = output.responses.pop(key, [])
        if len(responses) > 1:
            raise Violation(f"answered {len(responses)} times")
    output.messages.clear()
    output.notifications.clear()
    del output.responses_without_id[:-1]
    context.max_errors_without_id = max(context.max_errors_without_id, 1)
    output.reset_volume()


def make_load_case(seconds: float) -> Case:
    """Return a case that makes a hundred calls a second and checks that nothing grows."""

    def run_load(context: CaseContext) -> None:
        samples: list[ProcessStats] = []
        began = time.monotonic()
        number = 0
        while (now := time.monotonic() - began) < seconds:
            _run_load_round(context, number)
            number += 1
            # Twenty samples, evenly spread over the load.
            is_due = (now * 20) // seconds > len(samples)
            if is_due and (stats := process_stats.measure(context.process.pid)) is not None:
                samples.append(stats)
            context.read_until_exit(max(0.0, began + number * 0.1 - time.monotonic()))
        if len(samples) >= 8:
            # The first quarter is the warm-up.
            _compare(context, samples[len(samples) // 4], samples[-1])
        print_line(f"  {number * 10} calls in {seconds:.0f} s")

    return Case(
        name="load",
        section=7,
        does=f"makes 100 calls a second for {seconds:g} s, one in a hundred a fault",
        expected="memory, descriptors and threads stay",
        source="policy",
        run=run_load,
        needs=("echo", "sleep", "block", "fail"),
    )


def _compare(context: CaseContext, warm: ProcessStats, late: ProcessStats) -> None:
    growth = late.rss_bytes - warm.rss_bytes
    print_line(
        f"  memory {growth / MIB:+.1f} MiB, descriptors {late.descriptors - warm.descriptors:+}, "
        f"threads {late.threads - warm.threads:+}"
    )
    if growth > FLAT_BYTES:
        context.report(Deviation(f"memory grew by {growth / MIB:.0f} MiB after the warm-up"))
    if late.descriptors > warm.descriptors or late.threads > warm.threads or late.pids != warm.pids:
        text = f"descriptors, threads or processes grew: {warm} to {late}"
        context.report(Deviation(text))


def make_cases(load_s: float) -> tuple[Case, ...]:
    """Return the cases. load_s: the duration of the load, in seconds."""
    return (
        Case(
            name="endless-line-10-s",
            section=2,
            does="writes without a newline for 10 s at full speed, then sends SIGTERM",
            expected="flat memory, at most one processor, the end in 5 s",
            source="policy",
            run=write_endless_line,
        ),
        Case(
            name="endless-line-then-served",
            section=2,
            does="writes without a newline for 10 s at full speed, then one",
            expected="flat memory; the next request is served",
            source="policy",
            run=end_endless_line,
        ),
        Case(
            name="notifications-5-s",
            section=2,
            does="sends notifications for 5 s as fast as the pipe takes them",
            expected="bounded memory; the next request is served in a second",
            source="policy",
            run=flood_for_5_s,
        ),
        Case(
            name="reader-stops-60-s",
            section=7,
            does="does not read for a minute while it writes",
            expected="no answer is lost; at most 64 MiB more memory",
            source="policy",
            run=write_60_s_without_reading,
        ),
        make_load_case(load_s),
    )


def print_line(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", action="append", default=[], metavar="NAME")
    parser.add_argument("--load-s", type=float, default=600.0)
    parser.add_argument("command", nargs="*")
    args = parser.parse_args()

    command = args.command or [sys.executable, "-m", "concertino.check.reference_server"]
    server = inspect_server(command, CheckSettings(timeout_s=30))
    terminal = TerminalReport(colour=sys.stdout.isatty())
    print_line(terminal.format_server(server))
    cases = select_cases(make_cases(args.load_s), args.only)
    results = run_cases(server, cases, lambda result: print_line(terminal.format_result(result)))
    print_line(format_summary(results))
    return 1 if has_failures(results, strict=True) or not results else 0


if __name__ == "__main__":
    sys.exit(main())
