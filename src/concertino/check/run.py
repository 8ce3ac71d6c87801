"""Runs `concertino check`.

A case causes one fault, such as a malformed message, and checks how the server reacts.
inspect_server() finds out facts about the server, then run_cases() runs the cases, each with a new
process of the server. After each case, run_cases() checks the invariants, rules that hold after
every fault (invariants.py). A finding says what was wrong; the worst one is the verdict on the case
(findings.py).

An era is "legacy" for the revisions up to 2025-11-25, which begin with `initialize`, or "modern"
for 2026-07-28, which has no handshake.
"""

from __future__ import annotations

import fnmatch
import json
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from msgspec import Struct

from concertino.check import invariants, process_stats
from concertino.check.case import Case
from concertino.check.case_context import CaseContext, tool_result_text
from concertino.check.findings import RANK, CheckFinding, SkipCase, Verdict, Violation
from concertino.check.messages import LEGACY, Message, as_object, excerpt
from concertino.check.server_process import ServerProcess, kill_all
from concertino.check.server_under_test import (
    CheckSettings,
    ServerUnderTest,
    find_tools,
    make_environment,
)
from concertino.check.stdio_setup import PLAIN
from concertino.protocol.host_limits import (
    describe_instructions,
    describe_list,
    describe_names,
)

# A server that repeats its cursor must not keep the check busy forever.
MAX_PAGES = 100


class CaseResult(Struct, frozen=True):
    """The verdict on one case.

    case: the case.
    verdict: the worst verdict among its findings, such as `ok` or `hang` (findings.py).
    seconds: how long the case took.
    observed: what the server did instead of the expected reaction, one sentence for each finding;
        for `skipped`, the reason.
    stderr: the last lines that the server has written to stderr; "" for `ok` and `skipped`.
    """

    case: Case
    verdict: Verdict
    seconds: float
    observed: tuple[str, ...] = ()
    stderr: str = ""


def select_cases(cases: Sequence[Case], patterns: Sequence[str]) -> list[Case]:
    """Return the cases that match one of the patterns, or all cases if there are no patterns.

    patterns: each is the number of a section (SECTIONS in case.py), a part of a case's name, or a
        shell pattern for the whole name.
    """
    if not patterns:
        return list(cases)

    def matches(case: Case, pattern: str) -> bool:
        if pattern.isdigit():
            return str(case.section) == pattern
        return pattern in case.name or fnmatch.fnmatchcase(case.name, pattern)

    return [case for case in cases if any(matches(case, pattern) for pattern in patterns)]


def run_cases(
    server: ServerUnderTest,
    cases: Sequence[Case],
    on_result: Callable[[CaseResult], None],
    jobs: int = 1,
) -> list[CaseResult]:
    """Run the cases, each with a new process of the server, and return all results.

    Ctrl-C, or an exception of on_result, ends the run and is raised. In any case, all processes of
    the server are killed at the end.

    server: the facts about the server, from inspect_server().
    on_result: called with each result, in the order of the cases.
    jobs: how many cases run at the same time; 1 for a server that cannot run twice at once, because
        of a port or a lock.
    """
    results: list[CaseResult] = []
    is_stopping = False

    def run_unless_stopping(case: Case) -> CaseResult:
        if is_stopping:
            return CaseResult(case, verdict="skipped", seconds=0.0, observed=("the run was ended",))
        return _run_case(server, case)

    with ThreadPoolExecutor(jobs) as pool:
        try:
            for result in pool.map(run_unless_stopping, cases):
                results.append(result)
                on_result(result)
        finally:
            # Set this before the processes are killed, so that no waiting case starts a new one.
            is_stopping = True
            kill_all()
    return results


def _run_case(server: ServerUnderTest, case: Case) -> CaseResult:
    """Run one case with a new process of the server, then check the invariants."""
    if lack := server.find_lack((case.era, *case.needs)):
        return CaseResult(case, verdict="skipped", seconds=0.0, observed=(lack,))

    began = time.monotonic()
    with ServerProcess(server.command, case.stdio or PLAIN, make_environment()) as process:
        context = CaseContext(server, process, case.era)
        findings = context.findings
        try:
            if case.opens:
                context.open()
            # What the process uses before the fault, to compare it with what it uses afterwards.
            before = process_stats.measure(process.pid) if context.is_open else None
            case.run(context)
            if not context.may_end:
                invariants.check_running(context, before)
        except CheckFinding as finding:
            findings.append(finding)
        if not any(isinstance(item, SkipCase) for item in findings):
            _finish_case(context)
        stderr = process.stderr.format_last_lines()

    verdict = _grade(case, findings)
    # Several invariants may describe one fault in the same words.
    observed = tuple(dict.fromkeys(str(finding) for finding in findings))
    is_bad = RANK[verdict] > RANK["skipped"]
    return CaseResult(
        case,
        verdict=verdict,
        seconds=time.monotonic() - began,
        observed=observed,
        stderr=stderr if is_bad else "",
    )


def _finish_case(context: CaseContext) -> None:
    """End the process, and check all of its output. Adds to the findings of the context."""
    is_lost = any(RANK[finding.verdict] > RANK["wrong"] for finding in context.findings)
    try:
        # After a Crash or a Hang, closing stdin would show nothing new.
        if not is_lost:
            invariants.check_shutdown(context)
        invariants.check_output(context)
    except CheckFinding as finding:
        context.report(finding)


def _grade(case: Case, findings: Sequence[CheckFinding]) -> Verdict:
    """Return the worst verdict among the findings.

    If can_fail of the case is False, the verdict is at most `differs`.
    """
    verdict: Verdict = "ok"
    for finding in findings:
        grade = finding.verdict
        if not case.can_fail and RANK[grade] > RANK["differs"]:
            grade = "differs"
        verdict = max(verdict, grade, key=RANK.__getitem__)
    return verdict


def has_failures(results: Sequence[CaseResult], *, strict: bool) -> bool:
    """Return whether any case has the verdict `wrong`, `hang` or `crash`.

    strict: whether the verdict `differs` counts as a failure, too.
    """
    least = RANK["differs" if strict else "wrong"]
    return any(RANK[result.verdict] >= least for result in results)


# Inspecting the server


def inspect_server(command: Sequence[str], settings: CheckSettings) -> ServerUnderTest:
    """Open a session in each era that `settings` allows, and return the facts about the server.

    Raises OSError if the command cannot be started, and the worst CheckFinding if no session can be
    opened in any of these eras.
    """
    server = ServerUnderTest(command, settings)
    reasons: list[str] = []
    worst: CheckFinding | None = None
    for era in ("legacy", "modern"):
        if settings.era not in (None, era):
            continue
        try:
            _inspect_era(server, era)
        except CheckFinding as finding:
            reasons.append(f"{era}: {finding}")
            if worst is None or RANK[finding.verdict] > RANK[worst.verdict]:
                worst = finding

    if not (server.legacy or server.modern):
        assert worst is not None
        raise type(worst)("; ".join(reasons))
    return server


def _inspect_era(server: ServerUnderTest, era: str) -> None:
    """Open a session in one era, "legacy" or "modern", and record the facts about the server."""
    with ServerProcess(server.command, PLAIN, make_environment()) as process:
        context = CaseContext(server, process, era)
        began = time.monotonic()
        try:
            # If the server has opened a session by `initialize`, wait less for the response to
            # server/discover, which the server may ignore.
            opening = context.open(within_s=server.settings.timeout_s if server.legacy else None)
        except CheckFinding as finding:
            raise type(finding)(_explain_failed_opening(process, finding)) from None
        server.opening_s = max(server.opening_s, time.monotonic() - began)

        if era == "legacy":
            server.legacy = True
            server.revision = str(opening.get("protocolVersion", LEGACY))
        else:
            if opening.get("supportedVersions") is None:
                raise Violation(f"server/discover gave no supportedVersions: {excerpt(opening)}")
            server.modern = True

        # Tools are listed once, in the era that the cases will speak.
        if server.era == era:
            _record_name(server, opening)
            server.offers_tools = "tools" in (as_object(opening.get("capabilities")) or {})
            _record_tools(server, context)
            process.close_stdin()
            server.obeys_eof = process.wait_for_exit(server.settings.exit_s)


def _explain_failed_opening(process: ServerProcess, finding: CheckFinding) -> str:
    """Return the text of a finding, with the process's output added to it."""
    # The usual causes are a greeting on stdout and an error that stderr names.
    lines = process.output.stray_lines
    stdout = f"; stdout held: {excerpt(lines[0].line)}" if lines else ""
    last_lines = process.stderr.format_last_lines(4)
    stderr = f"; stderr: {last_lines}" if last_lines else ""
    return f"{finding}{stdout}{stderr}"


def _record_name(server: ServerUnderTest, opening: Message) -> None:
    """Record the server's name, version and instructions from the result of its opening."""
    # 2026-07-28 moved serverInfo into `_meta`.
    info: Message = (
        opening.get("serverInfo")
        or opening.get("_meta", {}).get("io.modelcontextprotocol/serverInfo")
        or {}
    )
    server.name = excerpt(info.get("name", ""), 60)
    server.version = excerpt(info.get("version", ""), 40)
    server.add_notes(describe_instructions(str(opening.get("instructions") or "")))


def _record_tools(server: ServerUnderTest, context: CaseContext) -> None:
    """List all tools, and record which of them the cases can call.

    Also calls the echo tool, to record which text it adds before and after the echoed text.
    """
    listed: list[Message] = []
    cursor: object = None
    for _ in range(MAX_PAGES):
        response = context.request("tools/list", {} if cursor is None else {"cursor": cursor})
        result = response.get("result", {})
        listed += [tool for tool in result.get("tools", []) if isinstance(tool, dict)]
        cursor = result.get("nextCursor")
        if cursor is None:
            break
    server.tool_names = tuple(str(tool.get("name")) for tool in listed)
    # What clients show to a model. describe_list() notes a list that is too long for that.
    fields = ("name", "description", "inputSchema")
    texts = (json.dumps([tool.get(name) for name in fields], ensure_ascii=False) for tool in listed)
    server.add_notes(
        describe_names(server.name, server.tool_names), describe_list(texts, len(listed))
    )
    server.tools = find_tools(listed)

    if "echo" in server.tools:
        text = "concertino check"
        echoed = tool_result_text(context.call_tool("echo", text=text))
        before, found, after = (echoed or "").partition(text)
        if found:
            server.echo_frame = (before, after)
        else:
            # The tool does something else, and only has the same name.
            del server.tools["echo"]
