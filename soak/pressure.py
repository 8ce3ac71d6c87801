"""Pressure that takes longer than a test may: an endless line, a reader that stops for a minute, floods, a long load.

    python soak/pressure.py [--only NAME] [--load-s 600] [-- COMMAND...]

Without a command, concertino's own toolbox is the server. The cases are like those of `concertino check`, each against a process of
its own, with its oracle. Exit code 1 when one is not ok.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time

from concertino.check import process_stats
from concertino.check.case import Case, Crash, Deviation, Hang, Violation
from concertino.check.case_context import CaseContext
from concertino.check.cases.limits import flood, memory
from concertino.check.cases.pressure import reader_stops
from concertino.check.report import Terminal, summary
from concertino.check.run import failed, look, run, selected
from concertino.check.server_under_test import Settings

MIB = 2**20
SECOND_S = 10.0  # for the endless line
FLAT_BYTES = 16 * MIB


def endless_line(trial: CaseContext) -> None:
    """Bytes without a newline as fast as they are taken, for ten seconds; then SIGTERM while they still come."""
    chunk = b"x" * MIB
    written = 0
    before = process_stats.take(trial.child.pid)
    began = time.monotonic()
    trial.garbage += 1
    with memory(trial, trial.settings.message_limit_bytes + 64 * MIB):
        while time.monotonic() < began + SECOND_S:
            trial.write(chunk)
            written += len(chunk)
    took = time.monotonic() - began
    after = process_stats.take(trial.child.pid)
    if before and after:
        grown, used = after.rss_bytes - before.rss_bytes, after.cpu_s - before.cpu_s
        say(
            f"  {written / 2**30:.1f} GiB in {took:.1f} s, memory {grown / MIB:+.0f} MiB, {used / took:.0%} of a processor"
        )
        if used > 1.2 * took:
            trial.note(Deviation(f"{used:.1f} s of processor in {took:.1f} s"))
    trial.ended = True
    trial.child.signal(signal.SIGTERM)
    until = time.monotonic() + 5.0
    try:
        while time.monotonic() < until and trial.child.exit is None:
            if not trial.child.write_now(chunk):
                trial.child.pump(lambda: trial.child.exit is not None, 0.02)
    except Crash:
        pass  # stdin is closed: it is ending
    if not trial.child.wait(5.0):
        raise Hang("SIGTERM was not obeyed within 5 s while bytes came")
    if trial.child.exit != 0:
        raise Deviation(f"exit code {trial.child.exit} after SIGTERM")


def endless_line_then_served(trial: CaseContext) -> None:
    """The same, then a newline, then the next request."""
    chunk = b"x" * MIB
    until = time.monotonic() + SECOND_S
    trial.garbage += 1
    with memory(trial, trial.settings.message_limit_bytes + 64 * MIB):
        while time.monotonic() < until:
            trial.write(chunk)
        trial.write(b"\n")
        trial.must_serve()


def reader_stops_60_s(trial: CaseContext) -> None:
    reader_stops(trial, 60.0)


def notifications_5_s(trial: CaseContext) -> None:
    flood(trial, 5.0)


def load(seconds: float) -> Case:
    """A hundred calls a second, of every kind, one in a hundred of them a fault; nothing grows."""

    def round_of(trial: CaseContext, number: int) -> None:
        calls = [trial.call("echo", text=f"{number}-{index}" * 20) for index in range(6)]
        calls += [trial.call("sleep", seconds=0.05), trial.call("block", seconds=0.01)]
        cancelled = trial.call("sleep", seconds=5)
        calls.append(trial.request("tools/list"))
        trial.send(*calls, cancelled)
        if number % 10 == 0:
            trial.write_garbage(b"{not json}\n")
        if number % 20 == 0:
            calls.append(
                trial.call(
                    "fail",
                    how=trial.tool("fail").choices[number // 20 % len(trial.tool("fail").choices)],
                )
            )
            trial.send(calls[-1])
        trial.send(trial.cancel(cancelled["id"]))
        trial.all_answered([each["id"] for each in calls])
        # What is over is taken off the books, or they would be what grows.
        for each in (*calls, cancelled):
            trial.due.pop((int, each["id"]), None)
            answers = trial.child.answers.pop((int, each["id"]), [])
            trial.child.arrived.pop((int, each["id"]), None)
            if len(answers) > 1:
                raise Violation(f"answered {len(answers)} times")
        trial.child.order.clear()
        trial.child.notifications.clear()
        del trial.child.idless[:-1]
        trial.garbage = max(trial.garbage, 1)
        trial.child.forget_volume()

    def run_load(trial: CaseContext) -> None:
        samples: list[process_stats.ProcessStats] = []
        began = time.monotonic()
        number = 0
        while (now := time.monotonic() - began) < seconds:
            round_of(trial, number)
            number += 1
            if (now * 20) // seconds > len(samples) and (
                taken := process_stats.take(trial.child.pid)
            ) is not None:
                samples.append(taken)
            trial.spend(max(0.0, began + number * 0.1 - time.monotonic()))
        if len(samples) < 8:
            return
        warm, late = samples[len(samples) // 4], samples[-1]
        grown = late.rss_bytes - warm.rss_bytes
        say(
            f"  {number * 10} calls in {seconds:.0f} s: memory {grown / MIB:+.1f} MiB, descriptors "
            f"{late.descriptors - warm.descriptors:+}, threads {late.threads - warm.threads:+}"
        )
        if grown > FLAT_BYTES:
            trial.note(Deviation(f"memory grew by {grown / MIB:.0f} MiB after it was warm"))
        if (
            late.descriptors > warm.descriptors
            or late.threads > warm.threads
            or late.pids != warm.pids
        ):
            trial.note(Deviation(f"descriptors, threads or processes grew: {warm} to {late}"))

    return Case(
        "load",
        7,
        f"makes 100 calls a second for {seconds:g} s, one in a hundred a fault",
        "memory, descriptors and threads stay",
        "policy",
        run_load,
        needs=("echo", "sleep", "block", "fail"),
    )


def cases(load_s: float) -> tuple[Case, ...]:
    return (
        Case(
            "endless-line-10-s",
            2,
            "writes without a newline for 10 s at full speed, then sends SIGTERM",
            "flat memory, at most one processor, the end in 5 s",
            "policy",
            endless_line,
        ),
        Case(
            "endless-line-then-served",
            2,
            "writes without a newline for 10 s at full speed, then one",
            "flat memory; the next request is served",
            "policy",
            endless_line_then_served,
        ),
        Case(
            "notifications-5-s",
            2,
            "sends notifications for 5 s as fast as the pipe takes them",
            "bounded memory; the next request is served in a second",
            "policy",
            notifications_5_s,
        ),
        Case(
            "reader-stops-60-s",
            7,
            "does not read for a minute while it writes",
            "no answer is lost; at most 64 MiB more memory",
            "policy",
            reader_stops_60_s,
        ),
        load(load_s),
    )


def say(text: str) -> None:
    """A line for whoever runs this, at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", action="append", default=[], metavar="NAME")
    parser.add_argument("--load-s", type=float, default=600.0)
    parser.add_argument("command", nargs="*")
    given = parser.parse_args()
    subject = look(
        given.command or [sys.executable, "-m", "concertino.check.reference_server"],
        Settings(timeout_s=30),
    )
    terminal = Terminal(coloured=sys.stdout.isatty())
    say(terminal.opening(subject))
    chosen = selected(cases(given.load_s), given.only)
    results = run(subject, chosen, lambda result: say(terminal.result(result)))
    say(summary(results))
    return 1 if failed(results, strict=True) or not results else 0


if __name__ == "__main__":
    sys.exit(main())
