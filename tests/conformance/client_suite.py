"""Runs the official conformance suite against a client of ours, client_program.py.

The suite starts servers, and our program for each. What counts is every scenario that the suite
scores, and the two for client credentials, which it runs without scoring them. As for servers,
warnings and skipped checks count as failures.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from conformance import suite
from conformance.suite import Scenario, Verdict

PROGRAM = Path(__file__).with_name("client_program.py")
# How many scenarios of a client count, by requirement set.
SCORED = {"2025-11-25": 18, "2026-07-28": 32}
CREDENTIALS = frozenset(("auth/client-credentials-basic", "auth/client-credentials-jwt"))
# 2026-07-28 has no such message, but the suite has a check for its header.
NOT_POSSIBLE = "skipped: Client did not send a notifications/initialized request"
# All programs of a set run at the same time.
PROGRAM_WITHIN_S, WITHIN_S = 120, 400


def run(requirements: str, into: Path) -> list[Scenario]:
    """Run what a requirement set asks of a client. into: an empty folder, for results and logs."""
    results = into / "results"
    results.mkdir()
    command = [
        suite.NODE,
        suite.SUITE / "dist" / "index.js",
        "client",
        "--command",
        shlex.join((sys.executable, os.fspath(PROGRAM))),
        "--requirements",
        requirements,
        "--timeout",
        str(PROGRAM_WITHIN_S * 1000),
        "-o",
        results,
    ]
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("NODE_")
    }
    # The logins of the programs, which are none of the user's.
    environment |= {"XDG_STATE_HOME": os.fspath(into / "state"), "CONCERTINO_LOGINS": "file"}
    with (into / "suite.log").open("wb") as said:
        subprocess.run(command, stdout=said, stderr=said, env=environment, timeout=WITHIN_S)
    return _read_results(requirements, results)


def _read_results(requirements: str, results: Path) -> list[Scenario]:
    scored = _list_scored(requirements)
    found: dict[str, Scenario] = {}
    for checks in sorted(results.glob("**/checks.json")):
        folder = checks.parent.relative_to(results).as_posix()
        match = re.fullmatch(r"(.+?)-\d{4}-\d\d-\d\dT.*", folder)
        assert match is not None, checks
        failures = {
            check: text
            for check, text in suite.failures_of(checks).items()
            if not text.startswith(NOT_POSSIBLE)
        }
        found[match[1]] = Scenario(match[1], match[1] in scored, failures)
    for name in (scored | CREDENTIALS) - found.keys():
        found[name] = Scenario(name, name in scored, {"did not run": f"see {results.parent}"})
    return list(found.values())


def _list_scored(requirements: str) -> frozenset[str]:
    """The client's scenarios that count, from the suite's own list."""
    text = (suite.SUITE / "requirements" / f"{requirements}.yaml").read_text()
    block = re.search(r"^client:\n((?: +- .+\n)+)", text, re.MULTILINE)
    assert block is not None, requirements
    return frozenset(re.findall(r"- (\S+)", block[1]))


def judge(requirements: str, scenarios: list[Scenario]) -> Verdict:
    """What passes, and what is wrong: also a set that is not as large as it should be."""
    verdict = Verdict([], [])
    for name, is_scored, failures in scenarios:
        if not is_scored and name not in CREDENTIALS:
            continue
        verdict.wrong.extend(f"{name}: {check}: {failures[check]}" for check in sorted(failures))
        if not failures:
            verdict.passed.append(name)
    expected = SCORED[requirements] + len(CREDENTIALS)
    if len(verdict.passed) != expected and not verdict.wrong:
        verdict.wrong.append(f"expected {expected} scenarios, got {len(verdict.passed)}")
    return verdict
