"""`concertino check -- COMMAND...`: run fault tests against a server.

The tests are the cases in concertino.check. This module parses the options, runs the selected
cases, prints the results, and ends all processes of the server even after a signal.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import NoReturn

from concertino.check.case import Case
from concertino.check.findings import CheckFinding
from concertino.check.report import (
    TerminalReport,
    format_case_list,
    format_json,
    format_skips,
    format_summary,
)
from concertino.check.run import (
    CaseResult,
    has_failures,
    inspect_server,
    run_cases,
    select_cases,
)
from concertino.check.server_process import kill_all
from concertino.check.server_under_test import CheckSettings, ServerUnderTest
from concertino.check.table import CASES, QUICK
from concertino.cli import FAILED, UsageError, discard_stdout
from concertino.cli.colours import wants_colour
from concertino.cli.options import add_repeatable
from concertino.cli.suggestions import suggest_program

# The exit code after a signal is this plus the number of the signal, as in shells.
SIGNAL_BASE = 128
# The errors of writing to stdout. After the first one, nothing more is written there.
_stdout_errors: list[OSError] = []

DESCRIPTION = (
    "Test how an MCP server handles faults: malformed input, overload, cancellation, dead clients. "
    "Each case starts a new process of the server."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `concertino check` to its parser."""
    parser.usage = "concertino check [OPTIONS] -- COMMAND [ARGUMENT...]"
    parser.add_argument("--list", action="store_true", help="list the cases and exit")
    add_repeatable(
        parser,
        "--only",
        "PATTERN",
        "run a section, or the cases with this name or part of a name; repeatable",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="run only the cases that find most, in a few seconds instead of a minute",
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


def run(args: argparse.Namespace, server: Sequence[str]) -> int:
    """Run the selected cases, each of which tests one kind of fault, and return the exit code.

    args: the parsed arguments.
    server: the words after `--`. The command that starts the server is `args.server`, which are
        words before `--`, followed by these words.
    Exit codes: 0 without failures, 1 with failures, 2 for invalid usage, 128 + n after signal n.
    """
    command = [*args.server, *server]
    cases = select_cases(CASES, args.only)
    if args.quick:
        cases = [case for case in cases if case.name in QUICK]
        if not cases:
            raise UsageError(f"--quick has no case named like {' or '.join(args.only)}")
    if not cases:
        raise UsageError(f"no case is named like {' or '.join(args.only)}; --list shows all cases")
    if args.list:
        try:
            print(format_case_list(cases), flush=True)  # noqa: T201
        except BrokenPipeError:
            # The reader of stdout has gone, as with `| head`.
            discard_stdout()
        return 0
    if not command:
        raise UsageError("expected a command after --: concertino check -- python server.py")
    # Comparisons with NaN are false, so `not all(...)` refuses NaN, too.
    times = args.timeout_s, args.start_timeout_s
    if not all(0 < seconds < float("inf") for seconds in times):
        raise UsageError("--timeout-s, --start-timeout-s: expected positive times in seconds")
    # Cases send valid messages of nearly this size.
    if args.message_limit_bytes < 100_000:
        raise UsageError("--message-limit-bytes: expected a message limit of at least 100000 bytes")
    if args.jobs < 1:
        raise UsageError("--jobs: expected at least one job")

    settings = CheckSettings(
        timeout_s=args.timeout_s,
        start_s=args.start_timeout_s,
        message_limit_bytes=args.message_limit_bytes,
        era=args.era,
    )
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, _end_run)
    try:
        return _check(command, settings, cases, args)
    finally:
        kill_all()


class _CutOff(BaseException):
    """Raised to end the run before its last case, after a signal or when stdout is closed.

    It is a BaseException, so that no `except Exception` swallows it.

    reason: a few words about why the run ends, such as the name of the signal.
    exit_code: the exit code of the process.
    """

    def __init__(self, reason: str, exit_code: int) -> None:
        super().__init__(reason)
        self.exit_code = exit_code


def _check(
    command: Sequence[str],
    settings: CheckSettings,
    cases: Sequence[Case],
    args: argparse.Namespace,
) -> int:
    """Run the cases, print the results, and return the exit code."""
    terminal = TerminalReport(colour=wants_colour(os.environ))

    def print_line(text: str) -> None:
        if not args.json:
            _print(text)

    results: list[CaseResult] = []

    def add_result(result: CaseResult) -> None:
        results.append(result)
        print_line(terminal.format_result(result))

    server: ServerUnderTest | None = None
    problem = cut_off = ""
    exit_code = 0
    try:
        server = inspect_server(command, settings)
        print_line(terminal.format_server(server))
        run_cases(server, cases, add_result, args.jobs)
    except OSError as exc:
        hint = suggest_program(command, os.environ.get("PATH", os.defpath))
        raise UsageError(f"{command[0]}: {exc.strerror or exc}", hint) from None
    except CheckFinding as finding:
        problem = f"{finding.verdict}: the server was not opened; {finding}"
        print_line(problem)
    except _CutOff as exc:
        cut_off = str(exc)
        problem = f"cut off by {exc} after {len(results)} of {len(cases)} cases"
        exit_code = exc.exit_code

    if not cut_off and (problem or has_failures(results, strict=args.strict)):
        exit_code = FAILED
    if args.json:
        report = format_json(server, results, exit_code, problem, cut_off)
    else:
        # A problem of the server was printed above. Begin with an empty line.
        parts = [
            format_skips(results),
            problem if cut_off else "",
            format_summary(results) if results else "",
        ]
        paragraphs = [part for part in parts if part]
        report = "\n".join(["", *paragraphs]) if paragraphs else ""
    return _print_report(report, exit_code, as_json=args.json) if report else exit_code


def _print_report(report: str, exit_code: int, *, as_json: bool) -> int:
    """Print the end of the report, and return the exit code.

    If stdout cannot be written, lines for people are printed to stderr instead.
    exit_code: the exit code if stdout can be written.
    """
    try:
        if not _stdout_errors:
            _print(report)
            return exit_code
    except _CutOff as exc:
        exit_code = exit_code or exc.exit_code
        # The report begins with a newline.
        report = f"{exc}{report}"
    if not as_json:
        print(report.lstrip(), file=sys.stderr)  # noqa: T201
    return exit_code


def _print(text: str) -> None:
    """Print to stdout. Raises _CutOff if that fails: its reader is gone, or a disk is full."""
    try:
        print(text, flush=True)  # noqa: T201
    except OSError as exc:
        _stdout_errors.append(exc)
        discard_stdout()
        if isinstance(exc, BrokenPipeError):
            raise _CutOff("a closed stdout", SIGNAL_BASE + signal.SIGPIPE) from None
        raise _CutOff(f"stdout: {exc.strerror}", FAILED) from None


def _end_run(number: int, _: FrameType | None) -> NoReturn:
    """Handle a signal: end the run and print what was found so far."""
    # Ignore further signals, which must not interrupt the report.
    for other in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(other, signal.SIG_IGN)
    # The `finally` clauses of run_cases() kill the processes of the server.
    raise _CutOff(signal.Signals(number).name, SIGNAL_BASE + number)
