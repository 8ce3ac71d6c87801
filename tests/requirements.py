"""The requirements of the specification and the tests that show them.

`python tests/requirements.py [server] [client] [authorization]` prints them as tables.

server_requirements.txt and client_requirements.txt list the requirements of each side, in our
words: an id and a sentence on one line. If a requirement belongs to a feature that does not exist
yet, the next line is `later: FEATURE`, with a key of LATER. The ids are those of
../shared/spec/REQUIREMENTS.md, which names the revisions and the page of the specification of each
requirement. authorization_requirements.txt lists those of both sides about authorization over HTTP,
by the ids of ../shared/spec/AUTHORIZATION.md; DS are its steps of discovery, and AU is what this
library promises beyond it.

A test names the requirements that it shows:

    @pytest.mark.requirement("FR-1", "JR-2")            # of a server
    @pytest.mark.requirement("FR-1", side="client")     # of a client
    @pytest.mark.requirement("RS-1", side="authorization")

document_statements.txt lists what other documents say about servers over stdio, clients, and two
servers that exist already. Most of it repeats the specification, so each statement names its tests
instead of being named by markers.

The markers are read from the source of the tests, so that no test needs to be imported.
tests/test_requirements.py checks that every requirement has a test or a feature, and that every
marker names requirements.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

__all__ = [
    "LATER",
    "LEFT_OUT",
    "SIDES",
    "Marker",
    "Requirement",
    "parse_markers",
    "parse_table",
    "read_markers",
    "read_table",
]

TESTS = Path(__file__).parent
SIDES = ("server", "client", "authorization")

# Features that do not exist yet. Their requirements need no test until they do.
LATER = {
    "tasks": "calls that outlive their response; none are declared",
    "http": "servers over HTTP",
}

# Requirements that do not apply to this library, by side, with the reason.
LEFT_OUT: dict[str, dict[str, str]] = {
    "server": {},
    "client": {
        "FR-9": "stdio is supported; there is nothing to test",
        "FR-19": "applies to HTTP only",
        "ER-2": "permits what ER-3 requires",
        "ME-12": "such identifiers are arguments of the server's tools",
        "EC-1": "the client defines no error codes",
        "EC-2": "the client defines no error codes",
        "EC-5": "the client defines no error codes",
        "JS-1": "the client publishes no schemas",
        "JS-4": "the client publishes no schemas",
        "TO-17": "applies to tasks, which the client does not declare",
        "TO-23": "applies to aggregators, see docs/how-to/compose.md",
        "PR-4": "the client sends no progress",
        "PR-8": "optional; the client sends no progress",
        "CP-5": "applies to applications that complete while the user types",
        "PM-7": "applies to applications, which use the content of prompts",
        "CH-5": "the client does not poll",
        "EL-13": "only about the form of the message, see EL-12",
        "SA-2": "applies to applications, whose handler answers sampling requests",
        "SA-7": "applies to applications, whose handler answers sampling requests",
        "IC-2": "the client renders no icons",
        "SC-1": "the client runs only commands that the user has written",
        "T5-1": "applies to tasks, which the client does not declare",
        "T5-2": "applies to tasks, which the client does not declare",
        "T5-3": "applies to tasks, which the client does not declare",
        "T5-4": "applies to tasks, which the client does not declare",
        "T5-5": "applies to tasks, which the client does not declare",
        "T5-6": "applies to tasks, which the client does not declare",
        "T5-7": "applies to tasks, which the client does not declare",
        "T5-8": "applies to tasks, which the client does not declare",
        "T5-9": "applies to tasks, which the client does not declare",
        "T5-10": "applies to tasks, which the client does not declare",
        "T6-9": "applies to tasks, which the client does not declare",
        "CA-11": "applies to tasks, which the client does not declare",
        "CX-1": "the client declares no extensions",
        "CX-3": "the client declares no experimental capabilities",
    },
    "authorization": {
        "RS-6": "permits no rule here: the operator names the scopes",
        "RS-15": "the author's function returns all scopes that a token includes",
        "RS-24": "the revision after it asks for the opposite, see RS-23",
    },
}

MARKER = "pytest.mark.requirement"


class Requirement(NamedTuple):
    """One line of a table. later: a key of LATER, or "" if nothing is missing."""

    id: str
    words: str
    later: str = ""


class Marker(NamedTuple):
    """One `requirement` marker: the test that bears it, and what it says.

    test: the test as pytest names it, relative to this folder; `file:line` if there is no test.
    problem: "" if the marker is well formed.
    """

    test: str
    ids: tuple[str, ...] = ()
    side: str = "server"
    problem: str = ""


def parse_table(text: str) -> list[Requirement]:
    """Return the requirements of a table, in its order. Lines that start with `# ` are headings."""
    table: list[Requirement] = []
    for line in text.splitlines():
        if not line or line.startswith("# "):
            continue
        if line.startswith("    later: "):
            table[-1] = table[-1]._replace(later=line.removeprefix("    later: "))
        else:
            id, _, words = line.partition("  ")
            table.append(Requirement(id, words))
    return table


@cache
def read_table(side: str) -> list[Requirement]:
    """Return the requirements of one of SIDES."""
    return parse_table((TESTS / f"{side}_requirements.txt").read_text())


def parse_markers(source: str, file: str) -> Iterator[Marker]:
    """Yield the `requirement` markers in the source of one file, misplaced ones too."""
    tree = ast.parse(source)
    decorators: dict[int, str] = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith(
            "test_"
        ):
            decorators |= dict.fromkeys(map(id, node.decorator_list), node.name)

    calls = {id(node.func): node for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        # The name is compared first, because unparsing every attribute would take seconds.
        if not isinstance(node, ast.Attribute) or node.attr != "requirement":
            continue
        if ast.unparse(node) != MARKER:
            continue
        call = calls.get(id(node))
        name = decorators.get(id(call))
        if call is None or name is None:
            yield Marker(f"{file}:{node.lineno}", problem="it decorates no test function")
        else:
            yield parse_call(call, f"{file}::{name}")


def parse_call(call: ast.Call, test: str) -> Marker:
    """Return what `pytest.mark.requirement(...)` says about a test."""
    try:
        ids = tuple(ast.literal_eval(argument) for argument in call.args)
        named = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
    except ValueError:
        return Marker(test, problem="its arguments are no literals")
    side = named.pop("side", "server")
    marker = Marker(test, ids, side)
    if named or side not in SIDES:
        return marker._replace(problem=f"only side={' or side='.join(SIDES)} is known besides ids")
    known = {requirement.id for requirement in read_table(side)}
    unknown = [str(id) for id in ids if id not in known]
    if unknown or not ids:
        return marker._replace(problem=f"no requirement of a {side} is called {', '.join(unknown)}")
    return marker


@cache
def read_markers() -> list[Marker]:
    """Return every marker in the files of tests, by file and line."""
    files = sorted(TESTS.rglob("test_*.py"))
    return [
        marker
        for path in files
        # Most files have no marker, and parsing takes long.
        if "requirement" in (source := path.read_text())
        for marker in parse_markers(source, path.relative_to(TESTS).as_posix())
    ]


def print_table(side: str) -> None:
    """Print the requirements of one side with their tests, as a Markdown table."""
    tests: dict[str, list[str]] = {}
    for marker in read_markers():
        if marker.side == side:
            for id in marker.ids:
                tests.setdefault(id, []).append(f"`{marker.test}`")
    print(f"| id | {side} | tests |\n|--|--|--|")
    for id, words, later in read_table(side):
        waits = [f"later: {LATER[later]}"] if later else []
        print(f"| {id} | {words} | {'<br>'.join(tests.get(id, []) + waits)} |")
    for id, reason in LEFT_OUT[side].items():
        print(f"| {id} | | left out: {reason} |")


if __name__ == "__main__":
    chosen = sys.argv[1:] or SIDES
    if not set(chosen) <= set(SIDES):
        sys.exit("usage: python tests/requirements.py [server] [client] [authorization]")
    for side in chosen:
        print_table(side)
