"""Runs the official conformance suite against a server: a set of requirements, or one scenario.

The suite and the Node it needs come from npm into .tools/conformance, once. A scenario passes here
when each of its checks does: warnings and skipped checks, which the suite itself lets pass, count
as failures, and so does a check that is content because the tool is not there.

`scripts/conformance` runs everything and prints a table, see report.py.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
FRONT = Path(__file__).with_name("front.py")
EVERYTHING = ROOT / "examples" / "everything.py"
TOOLS = ROOT / ".tools" / "conformance"
PACKAGES = {  # the suite's versions are no semver: each may change what is asked
    "private": True,
    "dependencies": {"@modelcontextprotocol/conformance": "0.2.0-alpha.12", "node": "22.23.3"},
    "allowScripts": {
        "node": True
    },  # it fetches Node for this machine from npm when it is installed
}
NODE = TOOLS / "node_modules" / "node" / "bin" / "node"
SUITE = TOOLS / "node_modules" / "@modelcontextprotocol" / "conformance"
NO_TOOL = "Unknown tool: "  # what our server says of a tool that it does not have
PASSED = ("success", "info")
WITHIN_S = 240.0  # one run; it takes 5 to 10 s

# requirement set -> how many scenarios of a server count
SCORED = {"2025-11-25": 30, "2026-07-28": 37}


class NamedScenario(NamedTuple):
    """A scenario that exists over HTTP only, and is run by its name.

    checks: how many checks it has when nothing is left out; the suite ends some scenarios early,
    without a failure, if a server does not offer what they are about.
    """

    name: str
    revision: str
    checks: int


NAMED = (
    NamedScenario("server-session-lifecycle", "2025-03-26", 3),
    NamedScenario("server-session-lifecycle", "2025-06-18", 3),
    NamedScenario("server-session-lifecycle", "2025-11-25", 3),
    NamedScenario("server-sse-polling", "2025-11-25", 3),
    NamedScenario("dns-rebinding-protection", "2025-11-25", 2),
    NamedScenario("dns-rebinding-protection", "2026-07-28", 2),
    NamedScenario("http-header-validation", "2026-07-28", 14),
    NamedScenario("http-custom-header-server-validation", "2026-07-28", 10),
)
# Options of our server with which all scenarios over HTTP run. The tool test_reconnection takes
# 1.5 s: longer than a client waits before it comes back, and shorter than it waits twice.
HTTP_OPTIONS = ("--poll", "1/0.2")


class Scenario(NamedTuple):
    """How one scenario went.

    failures: what fell short, by check; a scored scenario that did not run has one too.
    """

    name: str
    scored: bool
    failures: dict[str, str]


class Verdict(NamedTuple):
    """passed: scored scenarios. wrong: sentences; empty if all is well."""

    passed: list[str]
    wrong: list[str]


def install() -> None:
    """Get the suite and its Node, if they are not there.

    Raises RuntimeError when npm does not do it.
    """
    wanted = json.dumps(PACKAGES, indent=2)
    stamp = TOOLS / "complete"
    if stamp.exists() and stamp.read_text() == wanted:
        return
    npm = shutil.which("npm")
    if npm is None:
        raise RuntimeError(
            "npm is not on PATH: the conformance suite is a package of npm; install Node 20 or"
            " newer"
        )
    shutil.rmtree(TOOLS / "node_modules", ignore_errors=True)
    TOOLS.mkdir(parents=True, exist_ok=True)
    (TOOLS / "package.json").write_text(wanted)
    command = [npm, "install", "--no-audit", "--no-fund", "--no-package-lock", "--loglevel=error"]
    done = subprocess.run(
        command, cwd=TOOLS, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode or not NODE.exists():
        raise RuntimeError(
            f"npm install ended with {done.returncode}, and Node is not at {NODE}:\n{done.stdout}"
        )
    stamp.write_text(wanted)


@contextmanager
def front(log: Path, *command: str | Path) -> Generator[str, None, None]:
    """A front over a server, as a process of its own.

    Gives its URL; its stderr and the server's go to the log.
    """
    with log.open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, FRONT, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        with process.stdout:
            try:
                url = process.stdout.readline().decode().strip()
                if not url:
                    raise RuntimeError(f"the front did not start: {log.read_text()}")
                yield url
            finally:
                process.stdin.close()  # which ends it
                process.wait(30)


def run(requirements: str, into: Path, *server: str | Path) -> list[Scenario]:
    """Run what a requirement set asks of a server.

    into: an empty folder for what the suite writes, and for logs. server: the command of a server
    on stdio; by default that of examples/everything.py.
    """
    with front(into / "front.log", *(server or (sys.executable, EVERYTHING))) as url:
        return run_at(url, requirements, into)


def run_at(url: str, requirements: str, into: Path) -> list[Scenario]:
    """Run what a requirement set asks of a server that speaks HTTP. into: see run()."""
    scored = _list_scored_scenarios(requirements)
    code = _start_suite(url, into, "--requirements", requirements)
    found: dict[str, Scenario] = {}
    for checks in sorted(into.glob("server-*/checks.json")):
        match = re.fullmatch(r"server-(.+?)-\d{4}-\d\d-\d\dT.*", checks.parent.name)
        assert match is not None, checks
        found[match[1]] = Scenario(match[1], match[1] in scored, failures_of(checks))
    for name in scored - found.keys():
        why = f"the suite ended with {code} without its result; see {into / 'suite.log'}"
        found[name] = Scenario(name, True, {"did not run": why})
    return list(found.values())


def run_named(url: str, scenario: NamedScenario, into: Path) -> dict[str, str]:
    """Run one scenario at a server that speaks HTTP, and return its failures by check.

    url: with the host name `localhost`, which some scenarios need. into: see run().
    """
    code = _start_suite(url, into, "--scenario", scenario.name, "--spec-version", scenario.revision)
    results = list(into.glob("*/checks.json"))
    if not results:
        return {"did not run": f"the suite ended with {code}; see {into / 'suite.log'}"}
    return named_failures_of(results[0], scenario.checks)


def _start_suite(url: str, into: Path, *choice: str) -> int:
    """Run the suite to its end, with its output in a log, and return its exit code."""
    index = SUITE / "dist" / "index.js"
    command = [NODE, index, "server", "--url", url, *choice, "-o", into]
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("NODE_")
    }
    with (into / "suite.log").open("wb") as log:
        return subprocess.run(
            command, stdout=log, stderr=log, env=environment, timeout=WITHIN_S
        ).returncode


def _list_scored_scenarios(requirements: str) -> frozenset[str]:
    """The server's scenarios that count, from the suite's own list."""
    text = (SUITE / "requirements" / f"{requirements}.yaml").read_text()
    block = re.search(r"^server:\n((?: +- .+\n)+)", text, re.MULTILINE)
    assert block is not None, requirements
    return frozenset(re.findall(r"- (\S+)", block[1]))


def failures_of(checks: Path) -> dict[str, str]:
    results = json.loads(checks.read_text())
    if not results:
        return {"no checks": "the suite checked nothing"}
    failures: dict[str, str] = {}
    for item in results:
        status = item["status"].lower()
        if NO_TOOL in json.dumps(item.get("details")) and status in PASSED:
            status = "not exercised"  # an error was wanted, and any will do
        if status not in PASSED:
            failures[item["id"]] = f"{status}: {item.get('errorMessage') or item.get('details')}"
    return failures


def named_failures_of(checks: Path, expected: int) -> dict[str, str]:
    """Return the failures of a scenario that has to make a known number of checks."""
    failures = failures_of(checks)
    made = sum(item["status"].lower() != "info" for item in json.loads(checks.read_text()))
    if made != expected:
        failures["number of checks"] = f"expected {expected}, got {made}"
    return failures


def judge(requirements: str, scenarios: list[Scenario]) -> Verdict:
    """What passes, and what is wrong: also a set that is not as large as it should be."""
    verdict = Verdict([], [])
    scored = [item for item in scenarios if item.scored]
    for name, _, failures in scored:
        if failures:
            verdict.wrong.extend(
                f"{name}: {check}: {failures[check]}" for check in sorted(failures)
            )
        else:
            verdict.passed.append(name)
    if len(scored) != SCORED[requirements]:
        verdict.wrong.append(
            f"{requirements}: expected {SCORED[requirements]} scored scenarios, got {len(scored)}"
        )
    return verdict
