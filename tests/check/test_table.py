"""All cases against the reference server in both eras: every verdict is ok."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from warm_commands import start_python

from concertino.check import process_stats, server_process
from concertino.check.case import SECTIONS, Case
from concertino.check.run import inspect_server, run_cases, select_cases
from concertino.check.server_under_test import TOOLS, CheckSettings
from concertino.check.table import CASES, QUICK

COMMAND = [sys.executable, "-m", "concertino.check.reference_server"]
# The other cases speak one era, whatever the settings say, and bytes are framed alike in both.
MODERN = [case for case in CASES if not case.era and case.section != 1]
# Most of the time is spent waiting.
JOBS = 4


def not_ok(cases: list[Case], era: str | None) -> list[tuple[str, str, tuple[str, ...]]]:
    """Return name, verdict and findings of the cases that are not ok."""
    server = inspect_server(COMMAND, CheckSettings(era=era, timeout_s=30))
    assert set(server.tools) == set(TOOLS)
    assert (server.legacy, server.modern) == (era is None, True)
    results = run_cases(server, cases, lambda _: None, JOBS)
    assert [result.case for result in results] == cases
    return [
        (result.case.name, result.verdict, result.observed)
        for result in results
        if result.verdict != "ok"
    ]


@pytest.mark.slow
def test_every_case_is_ok() -> None:
    assert not_ok(list(CASES), None) == []


@pytest.mark.slow
def test_every_case_above_the_framing_that_is_not_slow_is_ok_in_the_modern_era(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The test above starts interpreters.
    forking = SimpleNamespace(Popen=start_python, TimeoutExpired=subprocess.TimeoutExpired)
    monkeypatch.setattr(server_process, "subprocess", forking)
    cases = [
        case for case in MODERN if not case.slow and not {"legacy", "modern"} & set(case.needs)
    ]
    assert not_ok(cases, "modern") == []


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
@pytest.mark.parametrize(
    ("wrapper", "verdict"),
    [
        ([], "ok"),
        (["sh", "-c", '"$@"; true', "sh"], "ok"),
        (["sh", "-c", '"$@"; true', "sh"] * 2, "ok"),
        # A server that lives on is found behind a wrapper, too.
        (["sh", "-c", 'CONCERTINO_ORPHAN=stay "$@"; true', "sh"], "differs"),
    ],
    ids=["no other wrapper", "one more", "two more", "a server that stays"],
)
def test_a_server_that_ends_after_its_wrappers_is_ok(wrapper: list[str], verdict: str) -> None:
    server = inspect_server([*wrapper, *COMMAND], CheckSettings(timeout_s=30))
    [result] = run_cases(server, select_cases(CASES, ["wrapper-killed"]), lambda _: None)
    assert (result.verdict, len(result.observed)) == (verdict, verdict != "ok")


def test_a_server_behind_a_killed_wrapper_is_not_judged_without_proc(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = inspect_server(COMMAND, CheckSettings(timeout_s=30))
    monkeypatch.setattr(process_stats, "PROC", Path("/nowhere"))
    [result] = run_cases(server, select_cases(CASES, ["wrapper-killed"]), lambda _: None)
    assert (result.verdict, result.observed) == ("skipped", ("this system has no /proc",))


def test_the_quick_cases_exist_and_are_quick() -> None:
    quick = [case for case in CASES if case.name in QUICK]
    assert len(quick) == len(QUICK) == 21
    assert not [case.name for case in quick if case.slow]
    assert {case.section for case in quick} == {1, 2, 3, 4, 5, 7}


def test_names_are_unique_and_of_small_letters() -> None:
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names)
    assert not [name for name in names if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name)]


def test_every_case_says_what_it_does_what_is_expected_and_who_says_so() -> None:
    for case in CASES:
        assert case.does, case.name
        assert case.expected, case.name
        assert case.source, case.name
        assert case.section in SECTIONS, case.name
        assert set(case.needs) <= {*TOOLS, "legacy", "modern"}, case.name


def test_cases_are_chosen_by_section_name_or_pattern() -> None:
    assert {case.section for case in select_cases(CASES, ["3"])} == {3}
    assert [case.name for case in select_cases(CASES, ["eof-idle"])] == ["eof-idle"]
    assert [case.name for case in select_cases(CASES, ["json-*"])] == [
        "json-number",
        "json-string",
        "json-true",
        "json-null",
    ]
    assert {case.name for case in select_cases(CASES, ["crlf", "nan?", "infin*"])} == {
        "crlf",
        "infinity",
    }
    assert select_cases(CASES, ["no such case"]) == []
