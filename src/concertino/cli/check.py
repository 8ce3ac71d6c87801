"""`concertino check -- COMMAND...`: run fault tests against a server."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import NoReturn

from concertino.check.case import Case
from concertino.check.findings import CheckFinding
from concertino.check.report import TerminalReport, format_case_list, format_json, format_summary
from concertino.check.run import (
    CaseResult,
    has_failures,
    inspect_server,
    run_cases,
    select_cases,
)
from concertino.check.server_process import kill_all
from concertino.check.server_under_test import CheckSettings, ServerUnderTest
from concertino.check.table import CASES

__all__ = ["DESCRIPTION", "add_arguments", "run"]

FAILED = 1
USAGE = 2
# As shells do: the exit code after a signal is this plus its number.
SIGNAL_BASE = 128

DESCRIPTION = (
    "Test how an MCP server handles faults: malformed input, overload, cancellation, dead clients. "
    "Each case starts the server anew."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `concertino check` to its parser."""
    parser.usage = "concertino check [OPTIONS] -- COMMAND [ARGUMENT...]"
    parser.add_argument("--list", action="store_true", help="list the cases and exit")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="PATTERN",
        help="run a section, or the cases with this name or part of a name; repeatable",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document, not lines")
    parser.add_argument(
        "--strict", action="store_true", help="exit with 1 also if the server only differs"
    )
    parser.add_argument(
        "--era",
        choices=("legacy", "modern"),
        help="the era that cases speak unless they need another (default: legacy if supported)",
    )
    parser.add_argument(
        "--jobs", type=int, default=1, metavar="N", help="number of cases at a time (default 1)"
    )
    parser.add_argument(
        "--timeout-s",
        type=float,
        default=10.0,
        metavar="S",
        help="longest wait for a response (default 10)",
    )
    parser.add_argument(
        "--start-timeout-s",
        type=float,
        default=60.0,
        metavar="S",
        help="longest wait for the first response of a process (default 60)",
    )
    parser.add_argument(
        "--message-limit-bytes",
        type=int,
        default=10 * 2**20,
        metavar="N",
        help="size of the largest message that the server accepts (default 10485760)",
    )
    parser.add_argument("server", nargs="*", metavar="COMMAND", help="command that starts it")


def run(args: argparse.Namespace, server: Sequence[str]) -> NoReturn:
    """Run the selected cases and end the process.

    server: the words after `--`. Exit codes: 0 nothing is wrong, 1 something is, 2 usage, 128 + n
    after signal n.
    """
    command = [*args.server, *server]
    cases = select_cases(CASES, args.only)
    if not cases:
        _exit_usage(f"no case is named like {' or '.join(args.only)}; --list shows all cases")
    if args.list:
        print(format_case_list(cases))  # noqa: T201
        sys.exit(0)
    if not command:
        _exit_usage("expected a command behind --: concertino check -- python server.py")
    # Written so that NaN fails, too.
    times = args.timeout_s, args.start_timeout_s
    if not all(0 < seconds < float("inf") for seconds in times):
        _exit_usage("--timeout-s, --start-timeout-s: expected positive times in seconds")
    if args.message_limit_bytes < 100_000:
        _exit_usage("--message-limit-bytes: expected a message limit of at least 100000 bytes")
    if args.jobs < 1:
        _exit_usage("--jobs: expected at least one job")

    settings = CheckSettings(
        timeout_s=args.timeout_s,
        start_s=args.start_timeout_s,
        message_limit_bytes=args.message_limit_bytes,
        era=args.era,
    )
    signal.signal(signal.SIGTERM, _exit_on_signal)
    try:
        sys.exit(_check(command, settings, cases, args))
    except KeyboardInterrupt:
        sys.exit(SIGNAL_BASE + signal.SIGINT)
    finally:
        kill_all()


def _check(
    command: Sequence[str],
    settings: CheckSettings,
    cases: Sequence[Case],
    args: argparse.Namespace,
) -> int:
    """Run the cases, print the results, and return the exit code."""
    terminal = TerminalReport(colour=sys.stdout.isatty())

    def print_line(text: str) -> None:
        if not args.json:
            print(text, flush=True)  # noqa: T201

    def print_result(result: CaseResult) -> None:
        print_line(terminal.format_result(result))

    server: ServerUnderTest | None = None
    results: list[CaseResult] = []
    problem = ""
    try:
        server = inspect_server(command, settings)
        print_line(terminal.format_server(server))
        results = run_cases(server, cases, print_result, args.jobs)
    except OSError as exc:
        text = f"{command[0]}: {exc.strerror or exc}"
        print(f"concertino check: {text}", file=sys.stderr)  # noqa: T201
        return USAGE
    except CheckFinding as finding:
        problem = f"{finding.verdict}: the server was not opened; {finding}"
        print_line(problem)

    exit_code = FAILED if problem or has_failures(results, strict=args.strict) else 0
    if args.json:
        print(format_json(server, results, exit_code, problem))  # noqa: T201
    elif results:
        print_line("\n" + format_summary(results))
    return exit_code


def _exit_on_signal(number: int, _: FrameType | None) -> NoReturn:
    # SystemExit runs the `finally` clauses, which kill the processes of the server.
    sys.exit(SIGNAL_BASE + number)


def _exit_usage(text: str) -> NoReturn:
    print(f"concertino check: {text}", file=sys.stderr)  # noqa: T201
    sys.exit(USAGE)
