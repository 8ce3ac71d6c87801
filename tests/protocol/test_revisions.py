"""revisions.py: the table of the five revisions.

Its expectations are REQUIREMENTS B.1 and B.3, written out.
"""

from __future__ import annotations

import pytest
import wire
from catalogue import INFO

from concertino.protocol import revisions
from concertino.protocol.revisions import REQUESTS, REVISION_BY_NAME, negotiate

A, B, C, D, E = wire.REVISIONS


# The table


def test_there_are_five_revisions_and_the_last_is_the_modern_one():
    assert [each.name for each in revisions.REVISIONS] == [A, B, C, D, E]
    assert [each.name for each in revisions.REVISIONS if each.modern] == [E]
    assert [each.name for each in revisions.LEGACY] == [A, B, C, D]
    assert (revisions.MODERN.name, revisions.LATEST_LEGACY.name) == (E, D)


@pytest.mark.parametrize(
    ("flag", "known"),
    [
        ("batches", [B]),
        ("idless_errors", [D, E]),
        ("audio", [B, C, D, E]),
        ("richer_results", [C, D, E]),
        ("annotations", [B, C, D, E]),
        ("icons", [D, E]),
        ("completions", [B, C, D, E]),
        ("progress_text", [B, C, D, E]),
        ("elicitation", [C, D, E]),
        ("url_elicitation", [D, E]),
        ("sampling_tools", [D, E]),
    ],
)
def test_each_revision_knows_what_its_specification_has(flag: str, known: list[str]):
    assert [each.name for each in revisions.REVISIONS if getattr(each, flag)] == known


@pytest.mark.parametrize("oracle", wire.ORACLES)
@pytest.mark.parametrize("version", wire.REVISIONS)
def test_every_request_that_is_served_exists_in_the_revisions_that_serve_it(
    version: str, oracle: str
):
    named = {
        each["properties"]["method"]["const"]
        for name, each in wire.definitions(version, oracle).items()
        if name.endswith("Request") and "const" in each.get("properties", {}).get("method", {})
    }
    served = {
        method
        for method, rule in REQUESTS.items()
        if (rule.modern if version == E else rule.legacy)
    }
    assert served <= named
    assert not {method for method in named & set(REQUESTS) if method not in served}


@pytest.mark.parametrize(
    ("asked", "answered"), [(A, A), (B, B), (C, C), (D, D), (E, D), ("1.0.0", D), ("", D)]
)
def test_a_handshake_is_answered_with_its_version_or_our_newest_that_has_one(
    asked: str, answered: str
):
    assert negotiate(asked).name == answered


@pytest.mark.requirement("IC-1", "IC-3")
@pytest.mark.parametrize(
    ("version", "members"),
    [
        (A, ["name", "version"]),
        (B, ["name", "version"]),
        (C, ["name", "title", "version"]),
        (D, ["description", "icons", "name", "title", "version", "websiteUrl"]),
        (E, ["description", "icons", "name", "title", "version", "websiteUrl"]),
    ],
)
def test_an_implementation_says_what_the_revision_knows(version: str, members: list[str]):
    from msgspec import to_builtins

    assert (
        sorted(to_builtins(revisions.limit_implementation(INFO, REVISION_BY_NAME[version])))
        == members
    )


@pytest.mark.parametrize(
    ("client", "servers"), [(A, [A]), (B, [A, B]), (C, [A, B, C]), (D, [A, B, C, D]), (E, [E])]
)
def test_a_client_takes_results_of_older_revisions_of_its_era(client: str, servers: list[str]):
    assert [
        server.name
        for server in revisions.REVISIONS
        if REVISION_BY_NAME[client].takes_results_of(server)
    ] == servers


def test_capabilities_are_those_of_the_revision():
    offer = {"tools": {}, "completions": {}, "extensions": {"a/b": {}}}
    assert revisions.limit_capabilities(offer, REVISION_BY_NAME[A]) == {"tools": {}}
    for version in (B, C, D):
        assert revisions.limit_capabilities(offer, REVISION_BY_NAME[version]) == {
            "tools": {},
            "completions": {},
        }
    assert revisions.limit_capabilities(offer, REVISION_BY_NAME[E]) == offer
    assert revisions.limit_capabilities({"tools": {}}, REVISION_BY_NAME[A]) == {"tools": {}}
