"""The official conformance suite finds what it looks for, in both of its requirement sets. `scripts/conformance` prints more."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
from conformance import suite
from conformance.suite import Scenario

SET = "2026-07-28"
STATELESS = sorted(suite.ONLY["server-stateless"])


@pytest.mark.slow
@pytest.mark.parametrize("requirements", suite.LATER)
def test_every_scored_scenario_passes_or_waits_for_its_feature(requirements: str, tmp_path: Path) -> None:
    if shutil.which("npm") is None:
        reason = "npm is not on PATH: THE OFFICIAL CONFORMANCE SUITE IS NOT BEING RUN."
        print(reason, file=sys.stderr)
        pytest.skip(reason)
    suite.install()
    verdict = suite.judge(requirements, suite.run(requirements, tmp_path))
    assert not verdict.wrong, "\n".join(verdict.wrong)
    assert verdict.passed


def judged(*scenarios: Scenario) -> list[str]:
    """What is wrong when these go so, and all others that are listed fail as they should."""
    names = {each.name for each in scenarios}
    others = [
        Scenario(name, True, {STATELESS[0]: "failure: as listed"}) for name in suite.LATER[SET] if name not in names
    ]
    return suite.judge(SET, [*scenarios, *others]).wrong


def test_what_goes_as_listed_is_not_wrong() -> None:
    assert judged() == []
    assert judged(Scenario("tools-list", True, {}), Scenario("tasks-lifecycle", False, {"a": "failure: b"})) == []
    assert judged(Scenario("server-stateless", True, dict.fromkeys(STATELESS, "skipped: none"))) == []


@pytest.mark.parametrize(
    ("scenario", "said"),
    [
        (Scenario("tools-list", True, {"a": "warning: b"}), "tools-list: a: warning: b"),
        (Scenario("caching", True, {"did not run": "x"}), "caching: did not run: x"),
        (
            Scenario("server-stateless", True, {"sep-2575-other": "failure: b"}),
            "server-stateless: sep-2575-other: failure: b",
        ),
        (Scenario("server-stateless", True, {}), "server-stateless: passes, and is listed as waiting"),
    ],
)
def test_what_goes_otherwise_is_wrong(scenario: Scenario, said: str) -> None:
    [sentence] = judged(scenario)
    assert sentence.startswith(said)


def test_a_listed_scenario_that_the_suite_does_not_score_is_wrong() -> None:
    wrong = suite.judge(SET, []).wrong
    assert len(wrong) == len(suite.LATER[SET])


@pytest.mark.parametrize(
    ("checks", "fallen_short"),
    [
        ([{"id": "a", "status": "SUCCESS"}, {"id": "b", "status": "INFO", "details": {"note": 1}}], []),
        ([{"id": "a", "status": "SUCCESS"}, {"id": "b", "status": "WARNING", "errorMessage": "x"}], ["b"]),
        ([{"id": "a", "status": "SKIPPED"}, {"id": "b", "status": "FAILURE"}], ["a", "b"]),
        ([{"id": "a", "status": "SUCCESS", "details": {"error": {"message": "Unknown tool: test_x"}}}], ["a"]),
        ([], ["no checks"]),
    ],
)
def test_only_what_was_looked_at_and_is_right_has_not_failed(
    checks: list[dict[str, object]], fallen_short: list[str], tmp_path: Path
) -> None:
    (tmp_path / "checks.json").write_text(json.dumps(checks))
    assert list(suite.failures_of(tmp_path / "checks.json")) == fallen_short
