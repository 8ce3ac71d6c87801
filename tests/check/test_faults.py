"""Servers with one fault each: the cases that must find it do, and no others."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from concertino.check.findings import Verdict
from concertino.check.run import inspect_server, run_cases
from concertino.check.server_under_test import CheckSettings, ServerUnderTest
from concertino.check.table import CASES

FAULTY = str(Path(__file__).parent / "faulty.py")
SETTINGS = CheckSettings(timeout_s=3, start_s=30, grace_s=0.1, exit_s=3)
# Run against the servers here: quick cases of each section, and those that the faults below are
# made for.
ASKED = (
    "not-json", "not-utf8", "crlf", "separators-in-ids", "separators-in-text",
    "messages-1000", "nested-arrays", "object-empty", "unknown-method", "ids-kept",
    "stray-responses",
    "notifications-unanswered", "cancel-nothing", "initialize-unknown-version", "cancel-in-flight",
    "ping-during-sleep", "progress-late", "progress-after-cancel", "tool-raises",
    "secret-in-exception", "eof-idle", "eof-in-message",
)  # fmt: skip
FAULTS: dict[str, dict[str, Verdict]] = {
    "": {},
    "says nothing to garbage": {
        "not-json": "differs", "not-utf8": "differs", "bad-lines-100": "differs",
        "nested-arrays": "differs",
    },
    "hangs on garbage": {"not-json": "hang", "bad-lines-100": "hang"},
    "dies of bytes that are no UTF-8": {"not-utf8": "crash"},
    "dies of a deep nesting": {"nested-arrays": "crash"},
    "is slow after a deep nesting": {"nested-arrays": "differs"},
    "keeps memory": {"object-empty": "differs"},
    "keeps descriptors": {"object-empty": "differs"},
    "keeps a child": {"object-empty": "wrong"},
    "keeps memory of each call": {"calls-4000": "wrong"},
    "keeps a descriptor of each call": {"calls-4000": "wrong", "messages-1000": "wrong"},
    "takes null for an id": {"id-null": "differs"},
    "answers a response": {"stray-responses": "wrong"},
    "answers a notification": {"notifications-unanswered": "wrong"},
    "answers a cancellation": {"cancel-nothing": "wrong", "notifications-unanswered": "wrong"},
    'takes 0 for "0"': {"ids-kept": "wrong"},
    "answers -1 twice": {"ids-kept": "wrong"},
    "leaves an empty id out": {"ids-kept": "wrong"},
    "agrees to every revision": {"initialize-unknown-version": "wrong"},
    "prints": {"unknown-method": "wrong"},
    "prints an object": {"unknown-method": "wrong"},
    "prints bytes that are no UTF-8": {"unknown-method": "wrong"},
    "sends a code that is a string": {"unknown-method": "wrong"},
    "leaks a traceback": {"unknown-method": "wrong"},
    "never answers an unknown method": {"unknown-method": "wrong"},
    "knows every method": {"unknown-method": "wrong"},
    "ends after an unknown method": {"unknown-method": "crash"},
    "closes stdout": {"unknown-method": "hang"},
    "answers somebody else": {"unknown-method": "wrong"},
    "takes each read for a message": {"one-byte-per-write": "wrong", "nested-arrays": "wrong"},
    "ends lines at U+2028": {"separators-in-ids": "wrong"},
    "does not know CR": {"crlf": "wrong"},
    "loses what comes in bulk": {"messages-1000": "wrong"},
    "echo turns text to ascii": {"separators-in-text": "wrong"},
    "calls one after the other": {"ping-during-sleep": "wrong", "cancel-in-flight": "differs"},
    "answers what was cancelled": {"cancel-in-flight": "differs"},
    "tells progress after the answer": {"progress-late": "wrong"},
    "tells progress of what was cancelled": {"progress-after-cancel": "differs"},
    "a failure is no error": {"tool-raises": "wrong"},
    "knows unknown tools without offering any": {"tool-unknown": "differs"},
    "logs secrets": {"secret-in-exception": "differs"},
    "ignores the end of input": {"eof-idle": "hang", "eof-in-message": "hang"},
    "ends with 3": {"eof-idle": "differs", "eof-in-message": "differs"},
}  # fmt: skip
# These show at the end of every life, so in every case.
AT_EVERY_END: dict[str, Verdict] = {
    "leaves a child behind": "wrong",
    "prints at its end": "wrong",
    "crashes at its end": "crash",
}


def bad_verdicts(fault: str, asked: tuple[str, ...]) -> dict[str, Verdict]:
    """Return the verdicts on a server with this fault that are not ok."""
    server: ServerUnderTest = inspect_server([sys.executable, "-S", FAULTY, fault], SETTINGS)
    cases = [case for case in CASES if case.name in asked]
    assert len(cases) == len(asked)
    results = run_cases(server, cases, lambda _: None, jobs=6)
    return {
        result.case.name: result.verdict
        for result in results
        if result.verdict not in ("ok", "skipped")
    }


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["", "offers no tools"])
def test_an_unknown_tool_is_refused_with_or_without_tools(fault: str) -> None:
    assert bad_verdicts(fault, ("tool-unknown",)) == {}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found_by_its_cases(fault: str) -> None:
    asked = tuple(FAULTS[fault]) or ("unknown-method", "eof-idle")
    assert bad_verdicts(fault, asked) == FAULTS[fault]


@pytest.mark.slow
@pytest.mark.parametrize(("number", "fault"), list(enumerate(FAULTS)))
def test_a_fault_is_found_by_no_other_case(number: int, fault: str) -> None:
    """With a sixth of the other cases, in turn; without a fault, with all of them."""
    cases = ASKED[number % 6 :: 6] if fault else ASKED
    asked = tuple(name for name in cases if name not in FAULTS[fault])
    assert bad_verdicts(fault, asked) == {}


@pytest.mark.slow
@pytest.mark.parametrize("fault", AT_EVERY_END)
def test_a_fault_at_the_end_is_found_by_whatever_is_tried(fault: str) -> None:
    assert bad_verdicts(fault, ("unknown-method",)) == {"unknown-method": AT_EVERY_END[fault]}
