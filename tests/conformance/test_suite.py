"""suite.py: how it judges what the official conformance suite reports. tests/interop runs the
suite.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conformance import suite
from conformance.suite import Scenario

SET = "2026-07-28"
FEATURES = Path(__file__).parents[2] / "docs" / "reference" / "features.md"


def find_problems(*scenarios: Scenario) -> list[str]:
    """What is wrong when these go so, and all others pass."""
    others = [
        Scenario(f"other-{number}", True, {})
        for number in range(suite.SCORED[SET] - len(scenarios))
    ]
    return suite.judge(SET, [*scenarios, *others]).wrong


def test_what_passes_or_is_not_scored_is_not_wrong() -> None:
    assert find_problems() == []
    assert suite.judge(SET, [Scenario("tasks-lifecycle", False, {"a": "failure: b"})]).wrong == [
        "2026-07-28: expected 37 scored scenarios, got 0"
    ]


@pytest.mark.parametrize("said", ["a: warning: b", "did not run: x"])
def test_what_falls_short_is_wrong(said: str) -> None:
    check, _, why = said.partition(": ")
    assert find_problems(Scenario("tools-list", True, {check: why})) == [f"tools-list: {said}"]


@pytest.mark.parametrize(
    ("checks", "fallen_short"),
    [
        (
            [
                {"id": "a", "status": "SUCCESS"},
                {"id": "b", "status": "INFO", "details": {"note": 1}},
            ],
            [],
        ),
        (
            [
                {"id": "a", "status": "SUCCESS"},
                {"id": "b", "status": "WARNING", "errorMessage": "x"},
            ],
            ["b"],
        ),
        ([{"id": "a", "status": "SKIPPED"}, {"id": "b", "status": "FAILURE"}], ["a", "b"]),
        (
            [
                {
                    "id": "a",
                    "status": "SUCCESS",
                    "details": {"error": {"message": "Unknown tool: test_x"}},
                }
            ],
            ["a"],
        ),
        ([], ["no checks"]),
    ],
)
def test_only_what_was_looked_at_and_is_right_has_not_failed(
    checks: list[dict[str, object]], fallen_short: list[str], tmp_path: Path
) -> None:
    (tmp_path / "checks.json").write_text(json.dumps(checks))
    assert list(suite.failures_of(tmp_path / "checks.json")) == fallen_short


@pytest.mark.parametrize(
    ("statuses", "failures"),
    [
        (["SUCCESS", "INFO", "SUCCESS"], []),
        (["SUCCESS", "INFO"], ["number of checks"]),
        (["SUCCESS", "WARNING"], ["1"]),
        (["INFO"], ["number of checks"]),
    ],
)
def test_a_named_scenario_has_to_make_all_its_checks(
    statuses: list[str], failures: list[str], tmp_path: Path
) -> None:
    checks = [{"id": str(at), "status": status} for at, status in enumerate(statuses)]
    (tmp_path / "checks.json").write_text(json.dumps(checks))
    assert list(suite.named_failures_of(tmp_path / "checks.json", 2)) == failures


def test_the_documentation_lists_each_named_scenario_with_its_checks() -> None:
    text = FEATURES.read_text()
    for name, revision, checks in suite.NAMED:
        assert f"| `{name}` | {revision} | HTTP | {checks} of {checks} checks |" in text
