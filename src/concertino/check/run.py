"""One case after the other, each against a process of its own; and before them the look at what the server is."""

from __future__ import annotations

import fnmatch
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from msgspec import Struct

from concertino.check import invariants, process_stats
from concertino.check.case import RANK, Case, CheckFinding, Deviation, Skipped, Verdict, Violation
from concertino.check.case_context import CaseContext, text_of
from concertino.check.child_process import PLAIN, ServerProcess, kill_all
from concertino.check.messages import LEGACY, Message, shown
from concertino.check.server_under_test import ServerUnderTest, Settings, environment, find_tools

__all__ = ["Result", "look", "run", "selected"]


class Result(Struct, frozen=True):
    """What came of one case. came: one sentence for each finding. stderr: the server's last lines, when something is not ok."""

    case: Case
    verdict: Verdict
    seconds: float
    came: tuple[str, ...] = ()
    stderr: str = ""


def selected(cases: Sequence[Case], patterns: Sequence[str]) -> list[Case]:
    """Those whose name or section matches one of the patterns (shell patterns; parts of a name match too); all for none."""
    if not patterns:
        return list(cases)

    def matches(case: Case) -> bool:
        return any(
            str(case.section) == pattern
            if pattern.isdigit()
            else pattern in case.name or fnmatch.fnmatchcase(case.name, pattern)
            for pattern in patterns
        )

    return [case for case in cases if matches(case)]


def run(
    subject: ServerUnderTest, cases: Sequence[Case], told: Callable[[Result], None], jobs: int = 1
) -> list[Result]:
    """Try every case and tell each result, in order. Kills what it started, however it is left.

    jobs: so many at a time. A server that cannot run twice at once, for a port or a lock, needs 1.
    """
    results: list[Result] = []
    stopped = False

    def tried(case: Case) -> Result:
        return (
            Result(case, "skipped", 0.0, ("the run was ended",))
            if stopped
            else _tried(subject, case)
        )

    with ThreadPoolExecutor(jobs) as pool:
        try:
            for result in pool.map(tried, cases):
                results.append(result)
                told(result)
        finally:
            stopped = True  # before the children are killed: no case is to start another
            kill_all()
    return results


def _tried(subject: ServerUnderTest, case: Case) -> Result:
    if why := subject.lacks((case.era, *case.needs)):
        return Result(case, "skipped", 0.0, (why,))
    began = time.monotonic()
    findings: list[CheckFinding] = []
    trial: CaseContext | None = None
    with ServerProcess(subject.command, case.surroundings or PLAIN, environment()) as child:
        try:
            trial = CaseContext(subject, child, case.era)
            findings = trial.findings
            if case.opens:
                trial.open()
            before = process_stats.take(child.pid) if trial.opened else None
            case.run(trial)
            if not trial.ended:
                invariants.after(trial, before)
        except CheckFinding as found:
            findings.append(found)
        if trial is not None and not any(isinstance(each, Skipped) for each in findings):
            _finish(trial, findings)
        tail = child.stderr_tail()
    verdict: Verdict = "ok"
    for found in findings:
        grade = found.verdict
        if not case.firm and RANK[grade] > RANK["differs"]:
            grade = "differs"
        verdict = max(verdict, grade, key=RANK.__getitem__)
    came = tuple(dict.fromkeys(str(each) for each in findings))
    bad = RANK[verdict] > RANK["skipped"]
    return Result(case, verdict, time.monotonic() - began, came, tail if bad else "")


def _finish(trial: CaseContext, findings: list[CheckFinding]) -> None:
    """End the child and look at all it said."""
    broken = any(RANK[each.verdict] > RANK["wrong"] for each in findings)
    try:
        if broken:  # what it owes was said already
            trial.ended = True
        else:
            invariants.closed(trial)
            trial.ended = True
        invariants.said(trial)
    except CheckFinding as found:
        findings.append(found)


# What the server is


def look(command: Sequence[str], settings: Settings) -> ServerUnderTest:
    """Find out eras and tools. Raises OSError when the command cannot be started, Finding when it serves neither era."""
    subject = ServerUnderTest(command, settings)
    reasons: list[str] = []
    worst: CheckFinding | None = None
    for era in ("legacy", "modern"):
        if settings.era not in (None, era):
            continue
        try:
            _meet(subject, era)
        except CheckFinding as found:
            reasons.append(f"{era}: {found}")
            if worst is None or RANK[found.verdict] > RANK[worst.verdict]:
                worst = found
    if not (subject.legacy or subject.modern):
        assert worst is not None
        raise type(worst)("; ".join(reasons))
    return subject


def _meet(subject: ServerUnderTest, era: str) -> None:
    """Open a connection in one era; learn from it if it is the era that cases will speak."""
    settings = subject.settings
    with ServerProcess(subject.command, PLAIN, environment()) as child:
        trial = CaseContext(subject, child, era)
        began = time.monotonic()
        try:
            # A server that was met in the other era need not answer here, so it is given less time.
            opened = trial.open(within_s=settings.timeout_s if subject.legacy else None)
        except CheckFinding as found:
            tail = child.stderr_tail(4)
            stray = f"; stdout held: {shown(child.strays[0].line)}" if child.strays else ""
            raise type(found)(f"{found}{stray}{'; stderr: ' + tail if tail else ''}") from None
        subject.opening_s = max(subject.opening_s, time.monotonic() - began)
        if era == "legacy":
            subject.legacy = True
            subject.revision = str(opened.get("protocolVersion", LEGACY))
        else:
            if opened.get("supportedVersions") is None:
                raise Violation(f"server/discover gave no supportedVersions: {shown(opened)}")
            subject.modern = True
        if subject.era != era:
            return
        info: Message = (
            opened.get("serverInfo")
            or opened.get("_meta", {}).get("io.modelcontextprotocol/serverInfo")
            or {}
        )
        subject.name, subject.version = (
            shown(info.get("name", ""), 60),
            shown(info.get("version", ""), 40),
        )
        _tools(subject, trial)
        child.close_stdin()
        subject.obeys_eof = child.wait(5.0)


def _tools(subject: ServerUnderTest, trial: CaseContext) -> None:
    """List all tools, and see that the echo is one."""
    listed: list[Message] = []
    cursor: object = None
    for _ in range(100):  # pages
        answer = trial.ask("tools/list", {} if cursor is None else {"cursor": cursor})
        result = answer.get("result", {})
        listed += [each for each in result.get("tools", []) if isinstance(each, dict)]
        cursor = result.get("nextCursor")
        if cursor is None:
            break
    subject.tool_names = tuple(str(each.get("name")) for each in listed)
    subject.tools = find_tools(listed)
    if "echo" in subject.tools:
        asked = "concertino check"
        came = text_of(trial.use("echo", text=asked))
        before, found, after = (came or "").partition(asked)
        if found:
            subject.around = (before, after)
        else:
            del subject.tools["echo"]


def failed(results: Sequence[Result], *, strict: bool) -> bool:
    """Whether the run as a whole did: something crashed, hung or was wrong; strict: or differs."""
    least = RANK[Deviation.verdict if strict else "wrong"]
    return any(RANK[each.verdict] >= least for each in results)
