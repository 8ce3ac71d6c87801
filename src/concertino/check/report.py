"""Formats the results of `concertino check`, as lines for a terminal or as one JSON document.

A result is the verdict on one case, which causes a fault at the server and checks the reaction. The
verdicts are `ok`, `differs` (the server breaks only a stricter rule of this project), `wrong`,
`hang`, `crash` and `skipped` (findings.py).
"""

from __future__ import annotations

import json
import textwrap
from collections import Counter
from collections.abc import Sequence
from typing import Any

from concertino.check.case import SECTIONS, Case
from concertino.check.findings import RANK, Verdict
from concertino.check.messages import excerpt
from concertino.check.run import CaseResult
from concertino.check.server_under_test import ServerUnderTest

# The colour of each verdict, as parameters of the ANSI escape sequence SGR.
COLOURS: dict[Verdict, str] = {
    "ok": "32",
    "differs": "33",
    "wrong": "31;1",
    "hang": "31;1",
    "crash": "31;1",
    "skipped": "2",
}
# The widths of a case's name, of the heading of an explanation, and of a line of its text.
NAME_WIDTH = 28
HEADING_WIDTH = 9
TEXT_WIDTH = 110


class TerminalReport:
    """Formats results as lines for people. The results must come in the order of their sections.

    colour: whether to use ANSI colours.
    """

    def __init__(self, *, colour: bool) -> None:
        self._colour = colour
        self._section = 0

    def format_server(self, server: ServerUnderTest) -> str:
        """Return lines about a server: its name, revisions and tools, and the notes about it."""
        eras: list[str] = []
        if server.legacy:
            eras.append(f"{server.revision} (initialize)")
        if server.modern:
            eras.append("2026-07-28 (server/discover)")
        count = len(server.tool_names)
        noun = "tool" if count == 1 else "tools"
        tools = f"{count} {noun}, {len(server.tools)} of them known to the cases"
        name = f"{server.name or 'a server'} {server.version}"
        revision = "2026-07-28" if server.era == "modern" else server.revision
        # Two lines, because one would not fit into 80 columns.
        lines = [f"{name}: {' and '.join(eras)}", f"{tools}; most cases speak {revision}"]
        for note in server.notes:
            lines += _format_paragraph("note", note)
        return "\n".join(lines)

    def format_result(self, result: CaseResult) -> str:
        """Return one line for a result, and an explanation below it unless it is `ok` or `skipped`.

        The first result of a section gets the heading of the section.
        """
        case = result.case
        lines: list[str] = []
        if case.section != self._section:
            self._section = case.section
            lines.append(f"\n{case.section}. {SECTIONS[case.section]}")

        verdict = self._paint(f"{result.verdict:8}", COLOURS[result.verdict])
        if result.verdict == "skipped":
            # format_skips() gives the reasons, once for all cases with the same reason.
            lines.append(f"  {verdict} {case.name}")
            return "\n".join(lines)
        lines.append(f"  {verdict} {case.name:{NAME_WIDTH}} {result.seconds:6.2f} s")
        if result.verdict != "ok":
            lines += _explain(result)
        return "\n".join(lines)

    def _paint(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._colour else text


def _explain(result: CaseResult) -> list[str]:
    """Return lines: what the case did, expected and observed, and the end of the server's log."""
    case = result.case
    # Each heading begins the sentence in its paragraph: it sends ..., expected an error ...
    lines = _format_paragraph("it", case.does)
    lines += _format_paragraph("expected", f"{case.expected} [{case.source}]")
    for sentence in result.observed:
        lines += _format_paragraph("came", sentence)

    # If the server breaks only a policy, its log matters less.
    stderr = result.stderr.splitlines()
    if result.verdict == "differs":
        stderr = stderr[-3:]
    for number, line in enumerate(stderr):
        # Only the first line has the heading.
        heading = "stderr" if number == 0 else ""
        lines.append(f"      {heading:{HEADING_WIDTH}} {line[:TEXT_WIDTH]}")
    return lines


def format_summary(results: Sequence[CaseResult]) -> str:
    """Return one line with the number of results for each verdict."""
    counts = Counter(result.verdict for result in results)
    parts = [f"{counts[verdict]} {verdict}" for verdict in RANK if counts[verdict]]
    seconds = sum(result.seconds for result in results)
    return f"{len(results)} cases in {seconds:.0f} s: {', '.join(parts) or 'none'}"


def format_skips(results: Sequence[CaseResult]) -> str:
    """Return lines that say why cases were skipped, and how to run them; "" if none was skipped."""
    reasons = Counter(result.observed[0] for result in results if result.verdict == "skipped")
    if not reasons:
        return ""
    lines = [f"{reasons.total()} of {len(results)} cases were skipped:"]
    lines += [f"{count:5}  {reason}" for reason, count in reasons.most_common()]
    # These words are in the reasons of ServerUnderTest.find_lack() and CaseContext.find_tool().
    if any(" has no tool " in reason for reason in reasons):
        lines += [
            "  To run them, offer these tools in a test build of the server.",
            "  `concertino docs check` says what each must do. A server that has all of them:",
            "  concertino check -- python -m concertino.check.reference_server",
        ]
    return "\n".join(lines)


def format_case_list(cases: Sequence[Case]) -> str:
    """Return lines for a terminal: the name of each case, and what it does, expects and needs."""
    lines: list[str] = []
    section = 0
    for case in cases:
        if case.section != section:
            section = case.section
            lines.append(f"{section}. {SECTIONS[section]}")
        lines.append(f"  {case.name}")
        needs = f" (needs {', '.join(case.needs)})" if case.needs else ""
        lines += _format_paragraph("it", case.does + needs)
        lines += _format_paragraph("expected", f"{case.expected} [{case.source}]")
    return "\n".join(lines)


def format_json(
    server: ServerUnderTest | None,
    results: Sequence[CaseResult],
    exit_code: int,
    problem: str = "",
    cut_off: str = "",
) -> str:
    """Return the whole run as one JSON document.

    Users rely on the keys, which docs/reference/check.md lists.
    server: facts about the server; None if no session could be opened.
    results: the results, in the order of the cases.
    exit_code: the exit code of the command.
    problem: why results are missing, as a sentence: no session could be opened, or the run was cut
        off; "" if all cases were run.
    cut_off: the cause if the run was cut off: the name of a signal, or what became of stdout; ""
        otherwise.
    """
    counts = Counter(result.verdict for result in results)
    cases = [
        {
            "name": result.case.name,
            "section": result.case.section,
            "verdict": result.verdict,
            "seconds": round(result.seconds, 3),
            "does": result.case.does,
            "expected": result.case.expected,
            "source": result.case.source,
            "came": list(result.observed),
            "stderr": result.stderr,
        }
        for result in results
    ]
    document: dict[str, Any] = {
        "server": None if server is None else _describe_server(server),
        "problem": problem or None,
        "cases": cases,
        "summary": {verdict: counts[verdict] for verdict in RANK},
        "exit": exit_code,
    }
    if cut_off:
        document["cut_off"] = cut_off
    return json.dumps(document, indent=1, ensure_ascii=True)


def _describe_server(server: ServerUnderTest) -> dict[str, Any]:
    return {
        "command": list(server.command),
        "name": server.name,
        "version": server.version,
        "legacy": server.revision if server.legacy else None,
        "modern": server.modern,
        "era": server.era,
        "tools": sorted(server.tools),
        "notes": list(server.notes),
    }


def _format_paragraph(heading: str, text: str) -> list[str]:
    """Return the lines of a text, wrapped, indented and escaped.

    heading: the word before the first line.
    """
    safe = excerpt(text, 900)
    lines = textwrap.wrap(safe, TEXT_WIDTH, break_long_words=True, break_on_hyphens=False) or [""]
    headings = [heading, *[""] * (len(lines) - 1)]
    return [
        f"      {head:{HEADING_WIDTH}} {line}" for head, line in zip(headings, lines, strict=True)
    ]
