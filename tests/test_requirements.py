"""requirements.py: every requirement is listed once, and has a test or a feature to come."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Collection, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from requirements import (
    LATER,
    LEFT_OUT,
    SIDES,
    Requirement,
    parse_markers,
    parse_table,
    read_markers,
    read_table,
)

TESTS = Path(__file__).parent
FOLDER = Path(os.environ.get("CONCERTINO_SPEC", TESTS.parents[1] / "shared" / "spec"))
SPEC, AUTHORIZATION = FOLDER / "REQUIREMENTS.md", FOLDER / "AUTHORIZATION.md"
ROW = re.compile(
    r"^\| ([A-Z][A-Z\d]-\d+) \| [^|]+ \| ([^|]+) \|", re.MULTILINE
)  # id, revisions, role
# The document is read where it is. Here is which of its numbers bind whom.
SOURCES = ["here", "document"] if SPEC.is_file() else ["here"]
BINDING = {
    "server": """
        FR 1-4 6 10-11 13-18; JR 1-12 14-19; LC 1 4 6 9-10 12-15; ER 1 10-12 14; ME 3-13
        16-20; DI 1-3; SU 1-3 8-9 11-14; MR 1-12 17-18; CA 2-10 12-13; PR 1-8; EC 1-3 5-8;
        TO 1-10 12 14-17 20 22; JS 1-8; RE 1-9; PM 1-7; CO 1-5; CP 1-2 4-5; LO 1-7; PG 4-5;
        CH 1-2; EL 3 5-8 11-13; SA 4-7; RO 4; DP 1; T5 1 4-10; T6 1-8 10-11; CX 1-4; IC 1 3;
        SH 2-3
    """,
    "client": """
        FR 1-3 5 7-12 14-20; JR 1-19; LC 1-3 5 7-8 10-12 14-15; ER 2-9 13 15-16; ME 1-2 8 12
        14-19; SU 4-7 10 12; MR 13-17 19; CA 1 3-5 7-13; PR 1-6 8; EC 1-2 4-5 9-11; TO 11 13
        16-19 21 23; JS 1-8; RE 4 8; PM 5 7; CO 2-3 5; CP 3 5; LO 2 7; PG 1-3 5; CH 3-7; EL
        1-2 4 6 9-10 13-14; SA 1-3 7; RO 1-3; DP 1; T5 1-10; T6 9; CX 1-4; IC 2-3; SH 1 4-6;
        SC 1-2
    """,
}


def find_problems(requirement: Requirement, ids_with_tests: Collection[str]) -> list[str]:
    """Return what is wrong with one line of a table."""
    problems = [] if requirement.words else ["it says nothing"]
    if not re.fullmatch(r"[A-Z][A-Z\d]-(\d+|[A-J])", requirement.id):
        problems.append("it has no id")
    if requirement.id not in ids_with_tests and not requirement.later:
        problems.append("no test is marked with it, and no feature is to bring it")
    if requirement.later and requirement.later not in LATER:
        problems.append(f"no feature is called {requirement.later}")
    return problems


@pytest.mark.parametrize("side", SIDES)
def test_each_requirement_is_on_a_test_or_names_the_feature_that_brings_it(side: str) -> None:
    ids = {id for marker in read_markers() if marker.side == side for id in marker.ids}
    assert {
        requirement.id: problems
        for requirement in read_table(side)
        if (problems := find_problems(requirement, ids))
    } == {}


@pytest.mark.parametrize(
    "line",
    [
        "XX-1  A server does it.",
        "FR-1",
        "FR-1 A server does it.",
        "FR-1  A server does it.\n    later: some day",
    ],
    ids=["no test", "no words", "one space", "no such feature"],
)
def test_a_line_that_shows_nothing_is_found(line: str) -> None:
    [requirement] = parse_table(line)
    assert find_problems(requirement, {"FR-1"})


def test_each_marker_is_on_a_test_and_names_requirements() -> None:
    assert len(read_markers()) > 250
    assert [marker for marker in read_markers() if marker.problem] == []


@pytest.mark.parametrize(
    "source",
    [
        "@pytest.mark.requirement('FR-1', 'XX-1')\ndef test_it(): ...",
        "@pytest.mark.requirement(MINE)\ndef test_it(): ...",
        "@pytest.mark.requirement()\ndef test_it(): ...",
        "@pytest.mark.requirement('FR-1', side='proxy')\ndef test_it(): ...",
        "@pytest.mark.requirement('FR-1', of='server')\ndef test_it(): ...",
        "@pytest.mark.requirement\ndef test_it(): ...",
        "@pytest.mark.requirement('FR-1')\ndef helper(): ...",
        "def outer():\n    @pytest.mark.requirement('FR-1')\n    def test_it(): ...",
        "pytestmark = pytest.mark.requirement('FR-1')",
    ],
)
def test_a_marker_that_shows_nothing_is_found(source: str) -> None:
    [marker] = parse_markers(source, "test_x.py")
    assert marker.problem


def test_a_marker_is_read_from_the_source_of_its_test() -> None:
    source = """
@pytest.mark.requirement("FR-1", "FR-2")
@pytest.mark.requirement("LC-2", side="client")
@pytest.mark.slow
async def test_it(): ...
"""
    assert [
        (marker.test, marker.ids, marker.side) for marker in parse_markers(source, "a/test_x.py")
    ] == [
        ("a/test_x.py::test_it", ("FR-1", "FR-2"), "server"),
        ("a/test_x.py::test_it", ("LC-2",), "client"),
    ]


def test_the_table_is_printed_with_its_tests() -> None:
    done = subprocess.run(
        [sys.executable, TESTS / "requirements.py", "client"],
        capture_output=True,
        text=True,
        check=True,
    )
    rows = dict(line[2:].split(" | ", 1) for line in done.stdout.splitlines()[2:])
    assert rows.keys() == (
        {requirement.id for requirement in read_table("client")} | LEFT_OUT["client"].keys()
    )
    assert "`client/test_answers.py::test_roots_may_change`" in rows["RO-2"]


@pytest.mark.parametrize("side", SIDES)
def test_no_requirement_is_there_twice(side: str) -> None:
    ids = [requirement.id for requirement in read_table(side)]
    assert sorted(set(ids)) == sorted(ids)


def test_no_feature_is_listed_that_nothing_waits_for() -> None:
    assert {requirement.later for requirement in read_table("server")} - {""} == LATER.keys()


def binding(source: str, side: str) -> set[str]:
    """The ids of what binds one side of a connection: as written here, or as the document says."""
    if source == "here":
        return {f"{section}-{number}" for section, number in list_numbers(BINDING[side])}
    roles = {side[0].upper(), "B"}
    return {
        id for id, role in ROW.findall(SPEC.read_text()) if roles & set(role.strip().split("/"))
    }


def list_numbers(text: str) -> Iterator[tuple[str, int]]:
    """Yield ("A", 1), ("A", 2), ("A", 4) for "A 1-2 4"."""
    for part in text.split(";"):
        section, *ranges = part.split()
        for each in ranges:
            first, _, last = each.partition("-")
            yield from ((section, number) for number in range(int(first), int(last or first) + 1))


@pytest.mark.parametrize("source", SOURCES)
def test_every_requirement_of_the_specification_that_binds_a_server_is_here(source: str) -> None:
    bound = binding(source, "server")
    assert len(bound) > 200  # the pattern still finds them
    assert {requirement.id for requirement in read_table("server")} == bound


@pytest.mark.parametrize("source", SOURCES)
def test_every_requirement_of_the_specification_that_binds_a_client_is_here(source: str) -> None:
    bound = binding(source, "client")
    assert len(bound) > 150
    shown = {requirement.id for requirement in read_table("client")}
    assert shown & LEFT_OUT["client"].keys() == set()
    assert shown | LEFT_OUT["client"].keys() == bound


AUTHORIZATION_ROW = re.compile(r"^\| ((?:RS|CR|CA|CT)-(?:\d+|[A-J])) \|", re.MULTILINE)
AUTHORIZATION_IDS = {
    *(f"RS-{number}" for number in (*range(1, 8), *range(10, 18), *range(20, 28))),
    *(f"{section}-{number}" for section in ("CR", "CT") for number in range(1, 10)),
    *(f"CA-{letter}" for letter in "ABCDEFGHIJ"),
}
# The document numbers the steps of discovery without letters.
DISCOVERY_STEPS = {f"DS-{number}" for number in range(1, 10)}


@pytest.mark.parametrize("source", SOURCES)
def test_every_requirement_about_authorization_is_here(source: str) -> None:
    bound = DISCOVERY_STEPS | AUTHORIZATION_IDS
    if source == "document":
        bound = {*AUTHORIZATION_ROW.findall(AUTHORIZATION.read_text()), *DISCOVERY_STEPS}
    shown = {requirement.id for requirement in read_table("authorization")}
    left_out = LEFT_OUT["authorization"].keys()
    assert shown & left_out == set()
    assert {id for id in shown if not id.startswith("AU-")} | left_out == bound


def test_each_statement_of_the_documents_names_tests_that_exist() -> None:
    """Every statement has an id, and a line `test: FILE::NAME` at least."""
    lines = (TESTS / "document_statements.txt").read_text().splitlines()
    statements = [line for line in lines if line and not line.startswith(("# ", "    "))]
    assert [line.partition("  ")[0] for line in statements] == [
        f"SD-{number}" for number in range(1, len(statements) + 1)
    ]
    without_test = [
        line
        for line, following in pairwise([*lines, ""])
        if line in statements and not following.startswith("    test: ")
    ]
    named = [line.removeprefix("    test: ") for line in lines if line.startswith("    ")]
    missing = [
        name
        for name in named
        if f"def {name.partition('::')[2]}(" not in (TESTS / name.partition("::")[0]).read_text()
    ]
    assert (without_test, missing) == ([], [])
