"""requirements.py: every requirement that binds a server is in it once, and what it names is there."""

from __future__ import annotations

import ast
import os
import re
import sys
from functools import cache
from pathlib import Path

import pytest
from requirements import LATER, REQUIREMENTS, Requirement
from requirements_of_clients import LEFT_OUT
from requirements_of_clients import REQUIREMENTS as OF_CLIENTS

TESTS = Path(__file__).parent
SPEC = Path(os.environ.get("CONCERTINO_SPEC", TESTS.parents[1] / "shared" / "spec")) / "REQUIREMENTS.md"
ROW = re.compile(r"^\| ([A-Z][A-Z\d]-\d+) \| [^|]+ \| ([^|]+) \|", re.MULTILINE)  # id, revisions, role


@cache
def defined_in(path: Path) -> frozenset[str]:
    """The tests that a file defines, by name."""
    tree = ast.parse(path.read_text())
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(each.name for each in tree.body if isinstance(each, kinds) and each.name.startswith("test_"))


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
    assert {each.id: found for each in (*REQUIREMENTS, *OF_CLIENTS) if (found := problems_of(each))} == {}


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


def binding(*roles: str) -> set[str]:
    if not SPEC.is_file():
        reason = f"the requirements are not at {SPEC}: set CONCERTINO_SPEC. THE TABLE IS NOT BEING COMPARED."
        print(reason, file=sys.stderr)
        pytest.skip(reason)
    return {id for id, role in ROW.findall(SPEC.read_text()) if set(roles) & set(role.strip().split("/"))}


def test_every_requirement_of_the_specification_that_binds_a_server_is_here() -> None:
    bound = binding("S", "B")
    assert len(bound) > 200  # the pattern still finds them
    assert {each.id for each in REQUIREMENTS} == bound


def test_every_requirement_of_the_specification_that_binds_a_client_is_here() -> None:
    bound = binding("C", "B")
    assert len(bound) > 150
    shown = {each.id for each in OF_CLIENTS}
    assert shown & LEFT_OUT.keys() == set()
    assert shown | LEFT_OUT.keys() == bound
