"""A case: one fault, what the check does to the server, and the reaction that it expects."""

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


class Case(Struct, frozen=True):
    """One fault and the expected reaction of the server.

    name: stable; lower-case letters, digits and hyphens. section: a key of SECTIONS.
    does, expected: one sentence each, for people.
    source: the page of the specification that demands the reaction, or "policy".
    run: carries out the case; returns, or raises a CheckFinding.
    needs: tools, by their names in server_under_test.TOOLS, and eras ("legacy", "modern").
    era: the era to speak; empty if any will do.
    opens: whether the session is opened before run() is called.
    stdio: the stdin, stdout and stderr that the server is started with; None for plain pipes.
    can_fail: False if the fault is an unusual environment instead of a message. No specification
    covers environments, so every finding then counts as `differs`, not as a failure.
    slow: takes more than two seconds even with a perfect server.
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
