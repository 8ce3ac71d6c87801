"""`concertino lint DIR`: find mistakes in a library."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from typing import NoReturn

from msgspec.json import encode, format

from concertino.cli.folders import (
    DEFAULT_SCHEME,
    LibraryOptions,
    add_library_options,
    find_library_folders,
)
from concertino.errors import ConcertinoError
from concertino.library.folder import Folder
from concertino.library.library import MAX_FILE_BYTES, MAX_FILES
from concertino.library.lint import LintFinding, LintReport, lint
from concertino.library.problems import RULES
from concertino.library.tokens import counter

__all__ = ["DESCRIPTION", "add_arguments", "run"]

FOUND, USAGE = 1, 2

DESCRIPTION = (
    "Find mistakes in a library: broken links, missing fields, ambiguous names, wrong token "
    "figures, unreadable files, and documents that no query can find. Exit codes: 0 no mistakes, "
    "1 mistakes, 2 usage."
)


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `concertino lint` to its parser."""
    parser.add_argument(
        "folder",
        metavar="DIR",
        nargs="?",
        help="folder that holds resources/ or prompts/",
    )
    add_library_options(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON document, not lines")
    parser.add_argument(
        "--ignore",
        action="append",
        default=[],
        metavar="RULE",
        help="leave this rule out; repeatable",
    )
    parser.add_argument(
        "--tokenizer",
        default="estimate",
        metavar="NAME",
        help="estimate, cl100k_base or o200k_base",
    )


def run(args: Namespace, server: Sequence[str]) -> NoReturn:
    """Print the findings and end the process."""
    if unknown := sorted({*args.ignore} - {*RULES}):
        _exit_usage(f"--ignore: expected one of {', '.join(RULES)}, got {unknown[0]!r}")
    try:
        resources, prompts = _open_folders(args)
        scheme = args.scheme or DEFAULT_SCHEME
        report = lint(resources, prompts, scheme, counter(args.tokenizer))
    except (ConcertinoError, ValueError) as exc:
        _exit_usage(str(exc))

    findings = [finding for finding in report.findings if finding.rule not in args.ignore]
    folders = {"resources": resources, "prompts": prompts}
    paths = [_format_path(finding, folders) for finding in findings]
    if args.json:
        _print_json(report, findings, paths)
    else:
        _print_lines(report, findings, paths)
    sys.exit(FOUND if findings else 0)


def _open_folders(args: Namespace) -> tuple[Folder | None, Folder | None]:
    """Return the folders of the resources and the prompts. Ends the process if there are none."""
    options = LibraryOptions(args.resources, args.prompts)
    resources, prompts = (
        None if path is None else Folder(path, max_file_bytes=MAX_FILE_BYTES, max_files=MAX_FILES)
        for path in find_library_folders(args.folder, options)
    )
    for folder in (resources, prompts):
        if folder is not None and not folder.exists:
            _exit_usage(f"{folder.path}: expected a folder")
    if resources is None and prompts is None:
        _exit_usage("nothing to check: expected a folder, --resources or --prompts")
    return resources, prompts


def _print_json(report: LintReport, findings: Sequence[LintFinding], paths: Sequence[str]) -> None:
    document = {
        "documents": report.documents,
        "prompts": report.prompts,
        "problems": [
            {
                "path": path,
                "line": finding.line,
                "rule": finding.rule,
                "message": finding.message,
            }
            for finding, path in zip(findings, paths, strict=True)
        ],
        "skipped": report.skipped,
    }
    print(format(encode(document), indent=2).decode())  # noqa: T201


def _print_lines(report: LintReport, findings: Sequence[LintFinding], paths: Sequence[str]) -> None:
    for finding, path in zip(findings, paths, strict=True):
        place = f"{path}:{finding.line}" if finding.line else path
        print(f"{place}: {finding.rule}: {finding.message}")  # noqa: T201
    # Everything but the findings goes to stderr, so that stdout can be counted and piped.
    for text in report.skipped:
        print(f"not checked: {text}", file=sys.stderr)  # noqa: T201
    sums = f"{report.documents} documents, {report.prompts} prompts, {len(findings)} problems"
    print(sums, file=sys.stderr)  # noqa: T201


def _format_path(finding: LintFinding, folders: dict[str, Folder | None]) -> str:
    """Return the path of a finding's file, relative to the current folder if it is inside."""
    folder = folders[finding.folder]
    whole = os.path.join("" if folder is None else folder.path, finding.path)
    path = os.path.relpath(whole)
    path = whole if path.startswith("..") else path
    # A file name need not be UTF-8, but stdout must be.
    return path.encode("utf-8", "replace").decode()


def _exit_usage(text: str) -> NoReturn:
    print(f"concertino lint: {text}", file=sys.stderr)  # noqa: T201
    sys.exit(USAGE)
