"""`concertino check -- COMMAND...`: try faults on a server and say what came of each."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import NoReturn

from concertino.check.case import Case, CheckFinding
from concertino.check.child_process import kill_all
from concertino.check.report import Terminal, document, listing, summary
from concertino.check.run import Result, failed, look, selected
from concertino.check.run import run as run_cases
from concertino.check.server_under_test import ServerUnderTest, Settings
from concertino.check.table import CASES

__all__ = ["DESCRIPTION", "define", "run"]

FAILED = 1
USAGE = 2
SIGNALLED = 128


DESCRIPTION = "Start an MCP server again and again, do to it what goes wrong in practice, and say what came of it."


def define(check: argparse.ArgumentParser) -> None:
    """What can be said of a check."""
    check.usage = "concertino check [OPTIONS] -- COMMAND [ARGUMENT...]"
    check.add_argument("--list", action="store_true", help="show the cases, and start nothing")
    check.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="PATTERN",
        help="a section, or (part of) a name; may be repeated",
    )
    check.add_argument("--json", action="store_true", help="one JSON document instead of lines")
    check.add_argument(
        "--strict", action="store_true", help="exit with 1 for what differs from our policies, too"
    )
    check.add_argument(
        "--era",
        choices=("legacy", "modern"),
        help="how cases speak; else initialize where there is one",
    )
    check.add_argument("--jobs", type=int, default=1, metavar="N", help="cases at a time")
    check.add_argument(
        "--timeout-s", type=float, default=10.0, metavar="S", help="longest wait for an answer"
    )
    check.add_argument(
        "--start-timeout-s", type=float, default=60.0, metavar="S", help="... for the first one"
    )
    check.add_argument(
        "--message-limit-bytes",
        type=int,
        default=10 * 2**20,
        metavar="N",
        help="what the server's messages may have",
    )
    check.add_argument("server", nargs="*", metavar="COMMAND", help="how the server is started")


def run(given: argparse.Namespace, server: Sequence[str]) -> NoReturn:
    """Run the cases that were asked for. Ends the process: 0 nothing wrong, 1 something is, 2 usage, 128 + n on a signal."""
    command = [*given.server, *server]
    cases = selected(CASES, given.only)
    if not cases:
        _usage(f"no case is named like {' or '.join(given.only)}; --list shows all")
    if given.list:
        print(listing(cases))  # noqa: T201  # the answer to the user, not a log
        sys.exit(0)
    if not command:
        _usage("expected a command behind --: concertino check -- python server.py")
    times = given.timeout_s, given.start_timeout_s
    if (
        not all(0 < each < float("inf") for each in times) or given.message_limit_bytes < 100_000
    ):  # not a number: neither
        _usage("expected positive times, and a message limit of at least 100000 bytes")
    if given.jobs < 1:
        _usage("expected at least one job")
    settings = Settings(
        timeout_s=given.timeout_s,
        start_s=given.start_timeout_s,
        message_limit_bytes=given.message_limit_bytes,
        era=given.era,
    )
    signal.signal(signal.SIGTERM, _stopped)
    try:
        sys.exit(_checked(command, settings, cases, given))
    except KeyboardInterrupt:
        sys.exit(SIGNALLED + signal.SIGINT)
    finally:
        kill_all()


def _checked(
    command: Sequence[str], settings: Settings, cases: Sequence[Case], given: argparse.Namespace
) -> int:
    terminal = Terminal(coloured=sys.stdout.isatty())

    def say(text: str) -> None:
        if not given.json:
            print(text, flush=True)  # noqa: T201  # the answer to the user, not a log

    def told(result: Result) -> None:
        say(terminal.result(result))

    subject: ServerUnderTest | None = None
    results: list[Result] = []
    problem = ""
    try:
        subject = look(command, settings)
        say(terminal.opening(subject))
        results = run_cases(subject, cases, told, given.jobs)
    except OSError as why:
        print(f"concertino check: {command[0]}: {why.strerror or why}", file=sys.stderr)  # noqa: T201
        return USAGE
    except CheckFinding as found:
        problem = f"{found.verdict}: the server was not opened; {found}"
        say(problem)
    exit = FAILED if problem or failed(results, strict=given.strict) else 0
    if given.json:
        print(document(subject, results, exit, problem))  # noqa: T201
    elif results:
        say("\n" + summary(results))
    return exit


def _stopped(number: int, _: FrameType | None) -> NoReturn:
    """A signal ends the run; what was started is killed on the way out."""
    sys.exit(SIGNALLED + number)


def _usage(text: str) -> NoReturn:
    print(f"concertino check: {text}", file=sys.stderr)  # noqa: T201
    sys.exit(USAGE)
