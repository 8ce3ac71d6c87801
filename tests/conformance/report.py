"""Runs everything of the official conformance suite that is about our server and our client, and
prints a table. `scripts/conformance` runs this file.

The server is examples/everything.py: over HTTP as users start it, and over stdio behind front.py,
because the suite speaks HTTP only. The client is client_program.py. Nothing is expected to fail.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import NamedTuple

from conformance import client_suite, suite
from http_service import serving

RESULTS = suite.TOOLS / "results"


class Row(NamedTuple):
    """One line of the table. wrong: sentences; empty if everything passes."""

    scenarios: str
    revision: str
    transport: str
    passed: str
    wrong: list[str]


def new_folder(*parts: str) -> Path:
    """Return an empty folder for the results of one run."""
    folder = RESULTS.joinpath(*parts)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def run_requirements(url: str) -> list[Row]:
    """Run both sets of requirements at a server over HTTP, and behind the front over stdio."""
    rows: list[Row] = []
    for requirements, count in suite.SCORED.items():
        for transport in ("HTTP", "stdio"):
            into = new_folder("server", transport, requirements)
            scenarios = (
                suite.run_at(url, requirements, into)
                if transport == "HTTP"
                else suite.run(requirements, into)
            )
            verdict = suite.judge(requirements, scenarios)
            passed = f"{len(verdict.passed)} of {count}"
            rows.append(Row("server, scored", requirements, transport, passed, verdict.wrong))
    return rows


def run_named(url: str) -> list[Row]:
    """Run the scenarios that exist over HTTP only, each by its name."""
    rows: list[Row] = []
    for scenario in suite.NAMED:
        failures = suite.run_named(url, scenario, new_folder(scenario.name, scenario.revision))
        wrong = [f"{check}: {text}" for check, text in sorted(failures.items())]
        passed = f"{0 if wrong else scenario.checks} of {scenario.checks} checks"
        rows.append(Row(f"`{scenario.name}`", scenario.revision, "HTTP", passed, wrong))
    return rows


def run_client() -> list[Row]:
    """Run both sets of requirements for a client, and the scenarios for client credentials."""
    rows: list[Row] = []
    for requirements, count in client_suite.SCORED.items():
        scenarios = client_suite.run(requirements, new_folder("client", requirements))
        verdict = client_suite.judge(requirements, scenarios)
        credentials = client_suite.CREDENTIALS
        passed = set(verdict.passed)
        wrong = {True: list[str](), False: list[str]()}
        for sentence in verdict.wrong:
            wrong[sentence.partition(": ")[0] in credentials].append(sentence)
        for label, names, total in (
            ("client, scored", passed - credentials, count),
            ("client credentials", passed & credentials, len(credentials)),
        ):
            found = f"{len(names)} of {total}"
            mistakes = wrong[label == "client credentials"]
            rows.append(Row(label, requirements, "HTTP", found, mistakes))
    return rows


def main() -> int:
    """Run everything and print the table. 0 when every scenario passes, 1 otherwise."""
    print("Installing the conformance suite and its Node, if need be ...", flush=True)
    suite.install()
    with serving(suite.EVERYTHING, *suite.HTTP_OPTIONS) as service:
        url = service.url.replace("127.0.0.1", "localhost")
        rows = [*run_requirements(url), *run_named(url)]
    rows += run_client()

    print("\n| scenarios | revision | transport | passed |\n|--|--|--|--|")
    for row in rows:
        print(f"| {row.scenarios} | {row.revision} | {row.transport} | {row.passed} |")
    wrong = [f"{row.scenarios} ({row.revision}): {text}" for row in rows for text in row.wrong]
    for sentence in wrong:
        print(f"WRONG: {sentence}")
    print(f"\n{'FAILED' if wrong else 'Everything passes'}. The results are in {RESULTS}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
