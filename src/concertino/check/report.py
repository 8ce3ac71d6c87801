"""What a run looks like: lines on a terminal, or one JSON document."""

from __future__ import annotations

import json
import textwrap
from collections import Counter
from collections.abc import Sequence
from typing import Any

from concertino.check.case import RANK, SECTIONS, Case, Verdict
from concertino.check.messages import shown
from concertino.check.run import Result
from concertino.check.server_under_test import ServerUnderTest

__all__ = ["Terminal", "document", "listing", "summary"]

COLOURS: dict[Verdict, str] = {
    "ok": "32",
    "differs": "33",
    "wrong": "31;1",
    "hang": "31;1",
    "crash": "31;1",
    "skipped": "2",
}
NAME_WIDTH = 28
WIDTH = 110


class Terminal:
    """Lines for people. coloured: ANSI, only for a terminal."""

    def __init__(self, *, coloured: bool) -> None:
        self._coloured = coloured
        self._section = 0

    def opening(self, subject: ServerUnderTest) -> str:
        """What was found out about the server."""
        eras = " and ".join(
            [f"{subject.revision} (initialize)"] * subject.legacy
            + ["2026-07-28 (server/discover)"] * subject.modern
        )
        tools = f"{len(subject.tool_names)} tools, {len(subject.tools)} of them made for checks or known to them"
        return f"{subject.name or 'a server'} {subject.version}: {eras}; {tools}; cases speak {subject.era}"

    def result(self, result: Result) -> str:
        """One line; for what is not ok a few more."""
        case = result.case
        lines: list[str] = []
        if case.section != self._section:
            self._section = case.section
            lines.append(f"\n{case.section}. {SECTIONS[case.section]}")
        verdict = self._in_colour(f"{result.verdict:8}", COLOURS[result.verdict])
        time = f"{result.seconds:6.2f} s" if result.verdict != "skipped" else " " * 8
        lines.append(f"  {verdict} {case.name:{NAME_WIDTH}} {time}")
        if result.verdict == "skipped":
            lines[-1] += f"  {result.came[0]}"
        elif result.verdict != "ok":
            lines += _paragraph("it", case.does)
            lines += _paragraph("expected", f"{case.expected} [{case.source}]")
            for came in result.came:
                lines += _paragraph("came", came)
            tail = result.stderr.splitlines()
            for number, line in enumerate(tail[-3:] if result.verdict == "differs" else tail):
                lines.append(f"      {'stderr' if not number else '':9} {line[:WIDTH]}")
        return "\n".join(lines)

    def _in_colour(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._coloured else text


def summary(results: Sequence[Result]) -> str:
    """One line: how many of each verdict."""
    counted = Counter(each.verdict for each in results)
    parts = [f"{counted[verdict]} {verdict}" for verdict in RANK if counted[verdict]]
    return f"{len(results)} cases in {sum(each.seconds for each in results):.0f} s: {', '.join(parts) or 'none'}"


def listing(cases: Sequence[Case]) -> str:
    """Every case with what it does, expects and needs."""
    lines: list[str] = []
    section = 0
    for case in cases:
        if case.section != section:
            section = case.section
            lines.append(f"{section}. {SECTIONS[section]}")
        lines.append(f"  {case.name}")
        needs = f" (needs {', '.join(case.needs)})" if case.needs else ""
        lines += _paragraph("it", case.does + needs)
        lines += _paragraph("expected", f"{case.expected} [{case.source}]")
    return "\n".join(lines)


def document(
    subject: ServerUnderTest | None, results: Sequence[Result], exit: int, problem: str = ""
) -> str:
    """The whole run as one JSON document; docs/reference/check.md lists its keys, which stay."""
    counted = Counter(each.verdict for each in results)
    server: dict[str, Any] | None = None
    if subject is not None:
        server = {
            "command": list(subject.command),
            "name": subject.name,
            "version": subject.version,
            "legacy": subject.revision if subject.legacy else None,
            "modern": subject.modern,
            "era": subject.era,
            "tools": sorted(subject.tools),
        }
    cases = [
        {
            "name": each.case.name,
            "section": each.case.section,
            "verdict": each.verdict,
            "seconds": round(each.seconds, 3),
            "does": each.case.does,
            "expected": each.case.expected,
            "source": each.case.source,
            "came": list(each.came),
            "stderr": each.stderr,
        }
        for each in results
    ]
    totals = {verdict: counted[verdict] for verdict in RANK}
    whole = {
        "server": server,
        "problem": problem or None,
        "cases": cases,
        "summary": totals,
        "exit": exit,
    }
    return json.dumps(whole, indent=1, ensure_ascii=True)


def _paragraph(head: str, text: str) -> list[str]:
    safe = shown(text, 900)
    wrapped = textwrap.wrap(safe, WIDTH, break_long_words=True, break_on_hyphens=False) or [""]
    return [f"      {head if not number else '':9} {line}" for number, line in enumerate(wrapped)]
