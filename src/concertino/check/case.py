"""Case: one fault that the check causes, and the reaction that it expects from the server.

`concertino check` runs each case with a new process of the server (run.py).
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from concertino.check.case_context import CaseContext
from concertino.check.stdio_setup import StdioSetup

# The sections of docs/reference/check.md.
SECTIONS = {
    1: "bytes and framing",
    2: "limits and bombs",
    3: "JSON-RPC shape",
    4: "lifecycle",
    5: "tools, stdout, children",
    6: "concurrency, cancel, progress",
    7: "pressure and shutdown",
}


class Case(Struct, frozen=True, kw_only=True):
    """One test of a server: a fault, and how the server must react.

    name: lower-case letters, digits and hyphens. Users select cases by it, so it never changes.
    section: a key of SECTIONS.
    does: what the check does, for people: the rest of a sentence that begins with "it".
    expected: the expected reaction, for people.
    source: the page of the specification that demands the reaction, or "policy" for a rule of this
        project.
    run: causes the fault and checks the reaction. It raises a CheckFinding that says what is wrong,
        or records findings in the context.
    needs: what the server must support; otherwise the case is skipped. Each item is the name of a
        tool (a key of server_under_test.TOOLS), or an era, "legacy" or "modern", that the server
        must support in addition to the era of the session.
    era: the era of the session: "modern" for 2026-07-28, "legacy" for earlier revisions; "" for the
        era in which the server was tried first.
    opens: whether the session is opened before run() is called.
    stdio: what stdin, stdout and stderr of the server are, such as pipes or files; None for three
        pipes.
    can_fail: whether a finding counts as a failure. False if the fault is an unusual environment
        that no specification covers; then every finding gets the verdict `differs`.
    slow: whether the case takes more than two seconds even with a perfect server.
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
    stdio: StdioSetup | None = None
    can_fail: bool = True
    slow: bool = False
