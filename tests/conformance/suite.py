"""The official conformance suite against examples/everything.py, through the HTTP front.
`scripts/conformance` runs this file.

The suite and the Node it needs come from npm into .tools/conformance, once. A scored scenario
passes here when each of its checks does: warnings and skipped checks, which the suite itself lets
pass, count as failures, and so does a check that is content because the tool is not there. What
belongs to a feature that does not exist yet is listed in LATER, and must fail still: a scenario
that passes is to be taken off the list.
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

SCORED = {
    "2025-11-25": 30,
    "2026-07-28": 37,
}  # requirement set -> how many scenarios of a server count


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
    command = [
        NODE,
        SUITE / "dist" / "index.js",
        "server",
        "--url",
        url,
        "--requirements",
        requirements,
        "-o",
        into,
    ]
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("NODE_")
    }
    with (into / "suite.log").open("wb") as said:
        done = subprocess.run(command, stdout=said, stderr=said, env=environment, timeout=WITHIN_S)
    found: dict[str, Scenario] = {}
    for checks in sorted(into.glob("server-*/checks.json")):
        match = re.fullmatch(r"server-(.+?)-\d{4}-\d\d-\d\dT.*", checks.parent.name)
        assert match is not None, checks
        found[match[1]] = Scenario(match[1], match[1] in scored, failures_of(checks))
    for name in scored - found.keys():
        why = f"the suite ended with {done.returncode} without its result; see {into / 'suite.log'}"
        found[name] = Scenario(name, True, {"did not run": why})
    return list(found.values())


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


def main() -> int:
    """Run both sets and print the counts. 0 when every scored scenario passes, 1 otherwise."""
    print("Installing the conformance suite and its Node, if need be ...", flush=True)
    install()
    wrong = False
    for requirements in SCORED:
        into = TOOLS / "results" / requirements
        shutil.rmtree(into, ignore_errors=True)
        into.mkdir(parents=True)
        scenarios = run(requirements, into)
        verdict = judge(requirements, scenarios)
        scored = sum(item.scored for item in scenarios)
        print(f"\n{requirements}: {len(verdict.passed)} of {scored} scored scenarios pass")
        for name, _, failures in (item for item in scenarios if not item.scored):
            print(f"    not scored: {name}: {'fails' if failures else 'passes'}")
        for sentence in verdict.wrong:
            print(f"    WRONG: {sentence}")
        wrong = wrong or bool(verdict.wrong)
    print(
        f"\n{'FAILED' if wrong else 'As it should be'}. What the suite saw is in"
        f" {TOOLS / 'results'}"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
