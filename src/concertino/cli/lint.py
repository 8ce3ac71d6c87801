"""`concertino lint DIR`: find mistakes in a library, which is a folder of Markdown documents."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence

from msgspec.json import encode, format

from concertino.cli import UsageError
from concertino.cli.folders import DEFAULT_SCHEME, LibraryOptions, find_library_folders
from concertino.cli.options import add_library_options, add_repeatable, add_tokenizer
from concertino.cli.serving import reject_extra_args
from concertino.errors import ConcertinoError
from concertino.library.folder import Folder
from concertino.library.library import MAX_FILE_BYTES, MAX_FILES
from concertino.library.lint import LintFinding, LintReport, lint
from concertino.library.problems import RULES
from concertino.library.tokens import make_counter

FOUND = 1

DESCRIPTION = (
    "Find mistakes in a library: broken links, missing fields, ambiguous names, wrong token "
    "figures, unreadable files, and documents that no query can find. Exit codes: 0 no mistakes, "
    "1 mistakes, 2 usage."
)


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `concertino lint` to its parser."""
    parser.usage = "concertino lint [OPTIONS] [DIR]"
    parser.add_argument(
        "folder",
        metavar="DIR",
        nargs="?",
        help="folder that holds resources/ or prompts/",
    )
    add_library_options(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON document, not lines")
    add_repeatable(parser, "--ignore", "RULE", "leave this rule out; repeatable")
    add_tokenizer(parser)


def run(args: Namespace, server: Sequence[str]) -> int:
    """Check the library, print the findings, and return the exit code: 1 for findings, 0 for none.

    args: the parsed arguments.
    server: the words after `--`. This command accepts none.
    Raises UsageError for a folder that cannot be used and for an unknown rule.
    """
    reject_extra_args(args, server)
    if unknown := sorted({*args.ignore} - {*RULES}):
        raise UsageError(f"--ignore: expected one of {', '.join(RULES)}, got {unknown[0]!r}")
    try:
        resources, prompts = _open_folders(args)
        scheme = args.scheme or DEFAULT_SCHEME
        report = lint(resources, prompts, scheme, make_counter(args.tokenizer))
    except (ConcertinoError, ValueError) as exc:
        raise UsageError(str(exc)) from None

    findings = [finding for finding in report.findings if finding.rule not in args.ignore]
    folders = {"resources": resources, "prompts": prompts}
    paths = [_format_path(finding, folders) for finding in findings]
    if args.json:
        _print_json(report, findings, paths)
    else:
        _print_lines(report, findings, paths)
    return FOUND if findings else 0


def _open_folders(args: Namespace) -> tuple[Folder | None, Folder | None]:
    """Return the folders of the resources and the prompts. Raises UsageError if there are none."""
    options = LibraryOptions(args.resources, args.prompts)
    resources, prompts = (
        None if path is None else Folder(path, max_file_bytes=MAX_FILE_BYTES, max_files=MAX_FILES)
        for path in find_library_folders(args.folder, options)
    )
    for folder in (resources, prompts):
        if folder is not None and not folder.exists:
            raise UsageError(f"{folder.path}: expected a folder")
    if resources is None and prompts is None:
        raise UsageError("nothing to check: expected a folder, --resources or --prompts")
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
    # Print only findings to stdout, so that scripts can count its lines. `skipped` has the kinds of
    # defects that were not looked for, and why.
    for text in report.skipped:
        print(f"not checked: {text}", file=sys.stderr)  # noqa: T201
    sums = f"{report.documents} documents, {report.prompts} prompts, {len(findings)} problems"
    print(sums, file=sys.stderr)  # noqa: T201


def _format_path(finding: LintFinding, folders: dict[str, Folder | None]) -> str:
    """Return the path of a finding's file, relative to the current folder if it is below it.

    folders: "resources" or "prompts" -> the folder.
    """
    folder = folders[finding.folder]
    whole = os.path.join("" if folder is None else folder.path, finding.path)
    path = os.path.relpath(whole)
    if path.startswith(".."):
        path = whole
    # A file name need not be UTF-8, but stdout must be.
    return path.encode("utf-8", "replace").decode()
