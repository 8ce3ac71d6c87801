"""requirements.py: every requirement that binds a server is in it once, and what it names is there."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from requirements import LATER, REQUIREMENTS, Requirement
from requirements_of_clients import LEFT_OUT
from requirements_of_clients import REQUIREMENTS as OF_CLIENTS

TESTS = Path(__file__).parent
SPEC = (
    Path(os.environ.get("CONCERTINO_SPEC", TESTS.parents[1] / "shared" / "spec"))
    / "REQUIREMENTS.md"
)
ROW = re.compile(
    r"^\| ([A-Z][A-Z\d]-\d+) \| [^|]+ \| ([^|]+) \|", re.MULTILINE
)  # id, revisions, role
# The document is read where it is. Here is which of its numbers bind whom.
SOURCES = ["here", "document"] if SPEC.is_file() else ["here"]
BINDING = {
    "server": """
        FR 1-4 6 10-11 13-18; JR 1-12 14-19; LC 1 4 6 9-10 12-15; ER 1 10-12 14; ME 3-13 16-20; DI 1-3; SU 1-3 8-9 11-14;
        MR 1-12 17-18; CA 2-10 12-13; PR 1-8; EC 1-3 5-8; TO 1-10 12 14-17 20 22; JS 1-8; RE 1-9; PM 1-7; CO 1-5; CP 1-2 4-5;
        LO 1-7; PG 4-5; CH 1-2; EL 3 5-8 11-13; SA 4-7; RO 4; DP 1; T5 1 4-10; T6 1-8 10-11; CX 1-4; IC 1 3; SH 2-3
    """,
    "client": """
        FR 1-3 5 7-12 14-20; JR 1-19; LC 1-3 5 7-8 10-12 14-15; ER 2-9 13 15-16; ME 1-2 8 12 14-19; SU 4-7 10 12; MR 13-17 19;
        CA 1 3-5 7-13; PR 1-6 8; EC 1-2 4-5 9-11; TO 11 13 16-19 21 23; JS 1-8; RE 4 8; PM 5 7; CO 2-3 5; CP 3 5; LO 2 7;
        PG 1-3 5; CH 3-7; EL 1-2 4 6 9-10 13-14; SA 1-3 7; RO 1-3; DP 1; T5 1-10; T6 9; CX 1-4; IC 2-3; SH 1 4-6; SC 1-2
    """,
}


@cache
def defined_in(path: Path) -> frozenset[str]:
    """The tests that a file defines, by name."""
    tree = ast.parse(path.read_text())
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(
        each.name for each in tree.body if isinstance(each, kinds) and each.name.startswith("test_")
    )


def problems_of(each: Requirement) -> list[str]:
    """What is wrong with one entry."""
    found = [] if each.words else ["it says nothing"]
    if not each.tests and not each.later:
        found.append("it names neither a test nor the feature that brings it")
    if each.later and each.later not in LATER:
        found.append(f"no feature is called {each.later}")
    for name in each.tests:
        place, _, test = name.partition("::")
        if not (TESTS / place).is_file() or test not in defined_in(TESTS / place):
            found.append(f"there is no test {name}")
    return found


def test_each_requirement_names_a_test_that_exists_or_the_feature_that_brings_it() -> None:
    assert {
        each.id: found for each in (*REQUIREMENTS, *OF_CLIENTS) if (found := problems_of(each))
    } == {}


@pytest.mark.parametrize(
    "broken",
    [
        Requirement("XX-1", "Said.", (), ""),
        Requirement("XX-1", "", ("test_requirements.py::test_no_requirement_is_there_twice",), ""),
        Requirement("XX-1", "Said.", (), "some day"),
        Requirement("XX-1", "Said.", ("test_requirements.py::test_of_nothing",), ""),
        Requirement("XX-1", "Said.", ("no/such.py::test_of_nothing",), ""),
        Requirement("XX-1", "Said.", ("test_requirements.py",), ""),
    ],
)
def test_an_entry_that_shows_nothing_is_found_out(broken: Requirement) -> None:
    assert problems_of(broken)


def test_no_requirement_is_there_twice() -> None:
    for table in (REQUIREMENTS, OF_CLIENTS):
        ids = [each.id for each in table]
        assert sorted(set(ids)) == sorted(ids)


def test_no_feature_is_listed_that_nothing_waits_for() -> None:
    assert {each.later for each in REQUIREMENTS} - {""} == LATER.keys()


def binding(source: str, side: str) -> set[str]:
    """The ids of what binds one side of a connection: as written here, or as the document says."""
    if source == "here":
        return {f"{section}-{number}" for section, number in numbered(BINDING[side])}
    roles = {side[0].upper(), "B"}
    return {
        id for id, role in ROW.findall(SPEC.read_text()) if roles & set(role.strip().split("/"))
    }


def numbered(text: str) -> Iterator[tuple[str, int]]:
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
    assert {each.id for each in REQUIREMENTS} == bound


@pytest.mark.parametrize("source", SOURCES)
def test_every_requirement_of_the_specification_that_binds_a_client_is_here(source: str) -> None:
    bound = binding(source, "client")
    assert len(bound) > 150
    shown = {each.id for each in OF_CLIENTS}
    assert shown & LEFT_OUT.keys() == set()
    assert shown | LEFT_OUT.keys() == bound
