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
    does: what the check does, for people, as in "sends half a request".
    expected: the expected reaction, for people.
    source: the rules that demand the reaction: pages of specifications, "policy" for a rule of this
        project, "invariant" for a rule of invariants.py.
    run: causes the fault and checks the reaction. It raises a CheckFinding that says what is wrong,
        or records findings in the context.
    era: the era of the session: "modern" for 2026-07-28, "legacy" for earlier revisions; "" for the
        server's own era, ServerUnderTest.era.
    needs: what else the server must support; otherwise the case is skipped. An item is a tool (a
        key of server_under_test.TOOLS), or an era in which the case also sends requests.
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
