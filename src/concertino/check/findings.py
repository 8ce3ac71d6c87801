"""The verdicts of `concertino check`, and the exceptions that stand for them, called findings.

The verdict of a case is the worst among its findings.
"""

from __future__ import annotations

from typing import Literal

Verdict = Literal["ok", "differs", "wrong", "hang", "crash", "skipped"]

# The verdict of a case is the one with the highest rank among its findings.
RANK: dict[Verdict, int] = {
    "ok": 0,
    "skipped": 1,
    "differs": 2,
    "wrong": 3,
    "hang": 4,
    "crash": 5,
}


class CheckFinding(Exception):
    """Says that the server did something unexpected, or that the case cannot run.

    A case raises a CheckFinding to end, or passes it to CaseContext.report() to continue. The text
    says what happened.

    verdict: the verdict on the case, unless the case has another finding with a worse verdict: a
        higher rank in RANK.
    """

    verdict: Verdict


class Violation(CheckFinding):
    """The server broke a MUST of JSON-RPC or MCP, or one of the invariants in invariants.py.

    A case that has sent malformed input raises a Deviation instead, because the check itself has
    broken the protocol first. Only the invariants still hold then.
    """

    verdict = "wrong"


class Deviation(CheckFinding):
    """The server keeps the protocol, but not a stricter policy of this project."""

    verdict = "differs"


class Hang(CheckFinding):
    """The process runs but no longer serves requests, or does not exit when it should."""

    verdict = "hang"


class Crash(CheckFinding):
    """The process ended although nothing had asked it to end."""

    verdict = "crash"


class SkipCase(CheckFinding):
    """The case needs something that this server or this machine does not have."""

    verdict = "skipped"
