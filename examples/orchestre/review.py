"""Reviews of a plan by several reviewers with different roles, merged into one.

Each reviewer is a model of the client, called through sampling. If the client does not support
sampling, or does not answer, the rules below take the place of the role. This module makes no
network calls.
"""

from typing import Any, Literal, cast

from msgspec import DecodeError, Raw, Struct
from msgspec.json import decode, encode

from concertino import ConcertinoError, Context
from concertino.types import CreateMessageResult, Sampling, SamplingMessage, TextContent

__all__ = ["Finding", "Review", "Reviewer", "ask_models", "offers_sampling", "review"]

Severity = Literal["high", "medium", "low"]
Verdict = Literal["approve", "revise"]
SEVERITIES: tuple[Severity, ...] = ("high", "medium", "low")
ROLES = {
    "architect": (
        "You are a software architect. Look for missing parts, wrong dependencies, and what "
        "cannot be changed later."
    ),
    "security": (
        "You are a security engineer. Look for data and interfaces that can be attacked, "
        "leaked or lost, and for missing tasks."
    ),
    "delivery": (
        "You lead the delivery of software. Look for durations, order, and risks that nobody "
        "has planned for."
    ),
}
ANSWER = (
    'Answer with JSON alone: {"verdict": "approve" or "revise", "findings": '
    '[{"severity": "high", "medium" or "low", '
    '"finding": "one sentence", "suggestion": "one sentence"}]}. '
    "At most 10 findings, the most severe first."
)
# Tokens of one answer.
MAX_TOKENS = 1500
# The number of findings used from each reviewer.
MAX_FINDINGS = 10
# Characters kept of an answer that is not JSON.
MAX_COMMENT = 2000
# Working days; a longer plan gets a finding.
LONG_DAYS = 60
# Working days; a longer task gets a finding.
WIDE_TASK_DAYS = 10


class Finding(Struct, frozen=True, rename="camel"):
    """A problem of a plan. by: the roles that found it."""

    severity: Severity
    finding: str
    suggestion: str
    by: list[str] = []


class Reviewer(Struct, frozen=True, rename="camel"):
    """One reviewer's result.

    source: `rules` if no model answered; `why` then holds the reason.
    comment: the model's answer, if it does not have the requested form.
    """

    role: str
    source: Literal["model", "rules"]
    verdict: Verdict
    model: str | None = None
    why: str | None = None
    comment: str | None = None


class Review(Struct, frozen=True, rename="camel"):
    """The merged review. agreement: the share of reviewers with this verdict, 0 to 1."""

    verdict: Verdict
    agreement: float
    reviewers: list[Reviewer]
    findings: list[Finding]


class _Answer(Struct):
    """The form in which a model is asked to answer."""

    findings: list[Finding] = []
    verdict: Verdict | None = None


async def review(plan: dict[str, Any], context: Context) -> Review:
    """Return the merged review of a plan by all roles.

    plan: as generate_plan returns it. Any other dict is accepted; the review reports missing parts.
    """
    answers: dict[str, CreateMessageResult | str] = {}
    if offers_sampling(context):
        wanted = {role: _question(system, encode(plan).decode()) for role, system in ROLES.items()}
        answers = await ask_models(context, wanted)
    reviewers: list[Reviewer] = []
    found: list[Finding] = []
    for role in ROLES:
        answer = answers.get(role, "the client offers no sampling")
        if isinstance(answer, str):
            mine = RULES[role](plan)
            reviewers.append(Reviewer(role, "rules", _verdict(mine), why=answer))
        else:
            reviewer, mine = _read(role, answer)
            reviewers.append(reviewer)
        found += [
            Finding(finding.severity, finding.finding, finding.suggestion, [role])
            for finding in mine[:MAX_FINDINGS]
        ]
    return _merged(reviewers, found)


def offers_sampling(context: Context) -> bool:
    """Return whether the client supports sampling."""
    return "sampling" in context.client.capabilities


async def ask_models(
    context: Context, questions: dict[str, Sampling]
) -> dict[str, CreateMessageResult | str]:
    """Send all questions at once and return the answers of the client's models, by key.

    A str instead of an answer says why there is none.
    """
    try:
        answers = await context.ask(questions)
    except ConcertinoError as exc:
        return dict.fromkeys(questions, f"the client did not answer: {exc}")
    return {key: _result(answers[key]) for key in questions}


def _result(answer: Raw) -> CreateMessageResult | str:
    try:
        return decode(answer, type=CreateMessageResult)
    except DecodeError as exc:
        return f"the client's answer cannot be read: {exc}"


def _question(system: str, plan: str) -> Sampling:
    text = f"Review this plan of a software project.\n\n<plan>\n{plan}\n</plan>\n\n{ANSWER}"
    return Sampling(
        [SamplingMessage("user", TextContent(text))],
        MAX_TOKENS,
        system_prompt=system,
        temperature=0.0,
    )


def _read(role: str, result: CreateMessageResult) -> tuple[Reviewer, list[Finding]]:
    """Return the reviewer and its findings from a model's answer.

    The answer may be JSON as requested, JSON inside other text, or any other text.
    """
    blocks = result.content if isinstance(result.content, list) else [result.content]
    text = "".join(block.text for block in blocks if isinstance(block, TextContent)).strip()
    try:
        answer = decode(text[text.find("{") : text.rfind("}") + 1], type=_Answer)
    except (DecodeError, RecursionError):
        answer = _Answer(verdict="revise" if "revise" in text.lower() else "approve")
        return Reviewer(
            role, "model", answer.verdict or "approve", result.model, comment=text[:MAX_COMMENT]
        ), []
    return Reviewer(
        role, "model", answer.verdict or _verdict(answer.findings), result.model
    ), answer.findings


def _verdict(findings: list[Finding]) -> Verdict:
    return "revise" if any(finding.severity == "high" for finding in findings) else "approve"


def _merged(reviewers: list[Reviewer], found: list[Finding]) -> Review:
    """Merge the reviews.

    Equal findings become one, with the highest severity. Findings are sorted by severity, then by
    the number of reviewers that reported them.
    """
    together: dict[str, Finding] = {}
    for finding in found:
        key = " ".join(finding.finding.casefold().split()).rstrip(".")
        same = together.get(key)
        if same is None:
            together[key] = finding
        else:
            severity = SEVERITIES[
                min(SEVERITIES.index(same.severity), SEVERITIES.index(finding.severity))
            ]
            by = same.by + [role for role in finding.by if role not in same.by]
            together[key] = Finding(severity, same.finding, same.suggestion, by)
    findings = sorted(
        together.values(), key=lambda item: (SEVERITIES.index(item.severity), -len(item.by))
    )
    revising = sum(reviewer.verdict == "revise" for reviewer in reviewers)
    verdict: Verdict = (
        "revise" if revising * 2 >= len(reviewers) or _verdict(findings) == "revise" else "approve"
    )
    agreeing = revising if verdict == "revise" else len(reviewers) - revising
    return Review(verdict, round(agreeing / len(reviewers), 2), reviewers, findings)


# The rules


def _tasks(plan: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the tasks of a plan; tolerates plans of any shape."""
    found: list[dict[str, Any]] = []
    for phase in _dicts(plan.get("phases")):
        found += _dicts(phase.get("tasks"))
    return found


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [cast("dict[str, Any]", item) for item in _list(value) if isinstance(item, dict)]


def _list(value: Any) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else []


def _speaks_of(plan: dict[str, Any], *words: str) -> bool:
    text = encode(plan).decode().casefold()
    return any(word in text for word in words)


def _days(task: dict[str, Any]) -> float:
    days = task.get("days", 0)
    return days if isinstance(days, (int, float)) else 0


def _architect(plan: dict[str, Any]) -> list[Finding]:
    tasks = _tasks(plan)
    known = {str(task.get("id")) for task in tasks}
    found: list[Finding] = []
    if not tasks:
        found.append(
            Finding("high", "The plan has no tasks", "Make a plan with generate_plan and review it")
        )
    for task in tasks:
        missing = [id for id in map(str, _list(task.get("dependsOn"))) if id not in known]
        if missing:
            text = f"Task {task.get('id')} depends on {missing[0]}, which is not in the plan"
            found.append(Finding("high", text, "Add the task, or remove the dependency"))
    if tasks and not _speaks_of(plan, "data storage", "database", "migration"):
        found.append(
            Finding(
                "low",
                "The plan does not say where data is kept",
                "Name the place, or state that no data is kept",
            )
        )
    return found


def _security(plan: dict[str, Any]) -> list[Finding]:
    found: list[Finding] = []
    if not _speaks_of(plan, "security"):
        found.append(
            Finding(
                "high",
                "The plan has no security review",
                "Plan a security review before the launch",
            )
        )
    if _speaks_of(plan, "billing", "tenan", "user", "account") and not _speaks_of(
        plan, "authentication", "sign in"
    ):
        found.append(
            Finding(
                "high",
                "There are users, but no task for authentication",
                "Plan authentication first",
            )
        )
    if not _speaks_of(plan, "back up", "backup", "restore"):
        found.append(
            Finding(
                "medium",
                "The plan does not mention backups",
                "Plan a backup, and test restoring it",
            )
        )
    return found


def _delivery(plan: dict[str, Any]) -> list[Finding]:
    found: list[Finding] = []
    duration = plan.get("durationDays")
    if isinstance(duration, (int, float)) and duration > LONG_DAYS:
        text = f"It takes {duration:g} working days before anybody uses it"
        found.append(Finding("medium", text, "Release the smallest useful part first"))
    for task in _tasks(plan):
        if _days(task) > WIDE_TASK_DAYS:
            text = f"Task {task.get('id')} takes {_days(task):g} days, too long to notice a delay"
            found.append(Finding("medium", text, "Split it into tasks of a few days"))
    if not _speaks_of(plan, "launch", "release", "deploy"):
        found.append(
            Finding(
                "high", "The plan ends before the launch", "Plan the release and the days after it"
            )
        )
    return found


RULES = {"architect": _architect, "security": _security, "delivery": _delivery}
