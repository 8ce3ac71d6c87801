"""`concertino lint DIR`: finds the defects of a library. Exit codes: 0 none, 1 some, 2 usage."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from typing import NoReturn

from msgspec.json import encode, format

from concertino.cli.folders import Folders, add_options, places
from concertino.errors import ConcertinoError
from concertino.library.folder import Folder
from concertino.library.library import MAX_FILE_BYTES, MAX_FILES
from concertino.library.lint import LintFinding, LintReport, lint
from concertino.library.problems import RULES
from concertino.library.tokens import counter

__all__ = ["DESCRIPTION", "add_arguments", "run"]

USAGE = 2

DESCRIPTION = (
    "Find the defects of a library: broken links, missing fields, ambiguous names, wrong token"
    " counts, unreadable files, and documents that no query finds. Exits with 1 if there are any."
)


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of `concertino lint` to its parser."""
    parser.add_argument(
        "folder",
        metavar="DIR",
        nargs="?",
        help="folder that contains resources/, prompts/ or both",
    )
    add_options(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON document, not lines")
    parser.add_argument(
        "--ignore",
        action="append",
        default=[],
        metavar="RULE",
        help="ignore the findings of this rule; repeatable",
    )
    parser.add_argument(
        "--tokenizer",
        default="estimate",
        metavar="NAME",
        help="estimate, cl100k_base or o200k_base",
    )


def run(args: Namespace, server: Sequence[str]) -> NoReturn:
    """Print the findings, and end the process."""
    if unknown := sorted({*args.ignore} - {*RULES}):
        _exit_usage(f"--ignore: expected one of {', '.join(RULES)}, got {unknown[0]!r}")
    try:
        resources, prompts = (
            None
            if path is None
            else Folder(path, max_file_bytes=MAX_FILE_BYTES, max_files=MAX_FILES)
            for path in places(args.folder, Folders(args.resources, args.prompts))
        )
        for folder in (resources, prompts):
            if folder is not None and not folder.exists:
                _exit_usage(f"{folder.path}: expected a folder")
        if resources is None and prompts is None:
            _exit_usage("nothing to check: expected a folder, --resources or --prompts")
        report = lint(resources, prompts, args.scheme or "orchestr8", counter(args.tokenizer))
    except (ConcertinoError, ValueError) as exc:
        _exit_usage(str(exc))

    findings = [finding for finding in report.findings if finding.rule not in args.ignore]
    folders = {"resources": resources, "prompts": prompts}
    if args.json:
        _print_json(report, findings, folders)
    else:
        _print_lines(report, findings, folders)
    sys.exit(1 if findings else 0)


def _print_json(
    report: LintReport, findings: Sequence[LintFinding], folders: dict[str, Folder | None]
) -> None:
    document = {
        "documents": report.documents,
        "prompts": report.prompts,
        "problems": [
            {
                "path": _path(finding, folders),
                "line": finding.line,
                "rule": finding.rule,
                "message": finding.message,
            }
            for finding in findings
        ],
        "skipped": report.skipped,
    }
    print(format(encode(document), indent=2).decode())  # noqa: T201


def _print_lines(
    report: LintReport, findings: Sequence[LintFinding], folders: dict[str, Folder | None]
) -> None:
    for finding in findings:
        path = _path(finding, folders)
        location = f"{path}:{finding.line}" if finding.line else path
        print(f"{location}: {finding.rule}: {finding.message}")  # noqa: T201
    # The summary goes to stderr, so that stdout has findings only.
    for text in report.skipped:
        print(f"not checked: {text}", file=sys.stderr)  # noqa: T201
    summary = f"{report.documents} documents, {report.prompts} prompts, {len(findings)} problems"
    print(summary, file=sys.stderr)  # noqa: T201


def _path(finding: LintFinding, folders: dict[str, Folder | None]) -> str:
    """Return a file's path relative to the working directory, or absolute if it is elsewhere.

    Bytes that are not UTF-8 become `?`, so that stdout can print it.
    """
    folder = folders[finding.folder]
    absolute = os.path.join("" if folder is None else folder.path, finding.path)
    relative = os.path.relpath(absolute)
    path = absolute if relative.startswith("..") else relative
    return path.encode("utf-8", "replace").decode()


def _exit_usage(text: str) -> NoReturn:
    print(f"concertino lint: {text}", file=sys.stderr)  # noqa: T201
    sys.exit(USAGE)
