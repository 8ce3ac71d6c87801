"""What a case is, what it can find, and the order of verdicts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

if TYPE_CHECKING:
    from concertino.check.case_context import CaseContext
    from concertino.check.child_process import StdioSetup

__all__ = [
    "RANK",
    "SECTIONS",
    "Case",
    "CheckFinding",
    "Crash",
    "Deviation",
    "Hang",
    "Skipped",
    "Verdict",
    "Violation",
]

Verdict = Literal["ok", "differs", "wrong", "hang", "crash", "skipped"]
RANK: dict[Verdict, int] = {
    "ok": 0,
    "skipped": 1,
    "differs": 2,
    "wrong": 3,
    "hang": 4,
    "crash": 5,
}  # the worst counts

SECTIONS = {
    1: "bytes and framing",
    2: "limits and bombs",
    3: "JSON-RPC shape",
    4: "lifecycle",
    5: "tools, stdout, children",
    6: "concurrency, cancel, progress",
    7: "pressure and shutdown",
}


class CheckFinding(Exception):
    """Something is not as expected. The text says what came. Raise it to end a case, or give it to Trial.note() and go on."""

    verdict: Verdict = "wrong"


class Violation(CheckFinding):
    """A must of JSON-RPC or MCP towards a client that kept the rules is broken, or the oracle (oracle.py) is."""


class Deviation(CheckFinding):
    """Nothing the protocol demands is broken; this project's stricter policy is."""

    verdict = "differs"


class Hang(CheckFinding):
    """The server lives and serves no more, or does not end when it should."""

    verdict = "hang"


class Crash(CheckFinding):
    """The process ended and nobody had asked it to."""

    verdict = "crash"


class Skipped(CheckFinding):
    """The case needs something that this server, or this machine, does not have."""

    verdict = "skipped"


class Case(Struct, frozen=True):
    """One fault and what must come of it.

    name: stable, of a-z 0-9 and hyphens. section: a key of SECTIONS. does, expected: one sentence each, for
    people. source: the page of a specification that demands it, or "policy". run: does it; raises a Finding or returns.
    needs: tools by their name in subject.TOOLS, and eras ("legacy", "modern"). era: the one to speak, empty for either.
    opens: whether the handshake is done before run.
    surroundings: what the child is given as descriptors. firm: False when not the client's bytes but rare surroundings are the
    fault: whatever comes of those is at most `differs`. slow: takes more than two seconds by its nature.
    """

    name: str
    section: int
    does: str
    expected: str
    source: str
    run: Callable[[CaseContext], None]
    needs: tuple[str, ...] = ()
    era: str = ""
    opens: bool = True
    surroundings: StdioSetup | None = None
    firm: bool = True
    slow: bool = False
