"""`concertino lint DIR`: what is wrong with a library. Exit codes: 0 nothing, 1 something, 2 usage."""

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
from concertino.library.lint import LintFinding, lint
from concertino.library.problems import RULES
from concertino.library.tokens import counter

__all__ = ["DESCRIPTION", "add_arguments", "run"]

USAGE = 2


DESCRIPTION = (
    "Look for what is wrong in a library: broken links, missing fields, ambiguous names, wrong token figures, "
    "files that cannot be read, and what no query can find. Ends with 1 if there is something."
)


def add_arguments(lint: ArgumentParser) -> None:
    """What can be said of what to look for."""
    lint.add_argument(
        "folder",
        metavar="DIR",
        nargs="?",
        help="with resources/ and prompts/ in it, or of resources itself",
    )
    add_options(lint)
    lint.add_argument("--json", action="store_true", help="one JSON document instead of lines")
    lint.add_argument(
        "--ignore",
        action="append",
        default=[],
        metavar="RULE",
        help="do not look for this; repeatable",
    )
    lint.add_argument(
        "--tokenizer",
        default="estimate",
        metavar="NAME",
        help="estimate, cl100k_base or o200k_base",
    )


def run(given: Namespace, server: Sequence[str]) -> NoReturn:
    """Print what there is to say of the library, and end the process."""
    if unknown := sorted({*given.ignore} - {*RULES}):
        _leave(f"--ignore: expected one of {', '.join(RULES)}, got {unknown[0]!r}")
    try:
        resources, prompts = (
            None
            if each is None
            else Folder(each, max_file_bytes=MAX_FILE_BYTES, max_files=MAX_FILES)
            for each in places(given.folder, Folders(given.resources, given.prompts))
        )
        for each in (resources, prompts):
            if each is not None and not each.exists:
                _leave(f"{each.path}: expected a folder")
        if resources is None and prompts is None:
            _leave("nothing to look at: expected a folder, --resources or --prompts")
        report = lint(resources, prompts, given.scheme or "orchestr8", counter(given.tokenizer))
    except (ConcertinoError, ValueError) as why:
        _leave(str(why))
    findings = [each for each in report.findings if each.rule not in given.ignore]
    folders = {"resources": resources, "prompts": prompts}
    if given.json:
        shown = {
            "documents": report.documents,
            "prompts": report.prompts,
            "problems": [
                {
                    "path": _path(each, folders),
                    "line": each.line,
                    "rule": each.rule,
                    "message": each.message,
                }
                for each in findings
            ],
            "skipped": report.skipped,
        }
        print(format(encode(shown), indent=2).decode())  # noqa: T201  # the answer to the user, not a log
    else:
        for each in findings:
            place = f"{_path(each, folders)}:{each.line}" if each.line else _path(each, folders)
            print(f"{place}: {each.rule}: {each.message}")  # noqa: T201
        for text in report.skipped:
            print(f"not looked for: {text}", file=sys.stderr)  # noqa: T201
        sums = f"{report.documents} documents, {report.prompts} prompts, {len(findings)} problems"
        print(sums, file=sys.stderr)  # noqa: T201
    sys.exit(1 if findings else 0)


def _path(finding: LintFinding, folders: dict[str, Folder | None]) -> str:
    """As somebody in this folder names the file, and as stdout can show it."""
    folder = folders[finding.folder]
    whole = os.path.join("" if folder is None else folder.path, finding.path)
    path = os.path.relpath(whole)
    path = whole if path.startswith("..") else path
    return path.encode("utf-8", "replace").decode()


def _leave(why: str) -> NoReturn:
    print(f"concertino lint: {why}", file=sys.stderr)  # noqa: T201
    sys.exit(USAGE)
