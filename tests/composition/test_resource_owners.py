"""resource_owners.py: which part a URI belongs to, and what clients see of a second one."""

from __future__ import annotations

from concertino.composition.resource_owners import ResourceOwners


def owners(*, maps: bool = True) -> ResourceOwners:
    return ResourceOwners(maps, lambda part: part)


def test_without_prefixes_the_first_part_hides_the_resource_of_the_second() -> None:
    plain = owners(maps=False)
    assert plain.record({"a": ["u:1"], "b": ["u:1", "u:2"]}) == {"u:1": ("a", "b")}
    assert (plain.show("a", "u:1"), plain.show("b", "u:1"), plain.show("b", "u:2")) == (
        "u:1",
        None,
        "u:2",
    )
    assert plain.find("u:1") == ("a", "u:1")
    assert plain.find("u:9") == (None, "u:9")
    assert not plain.has_prefixed_uris("b")


def test_with_prefixes_both_are_seen_and_lead_back() -> None:
    mapped = owners()
    assert mapped.record({"a": ["u:1"], "b": ["u:1", "u:2"]}) == {"u:1": ("a", "b")}
    assert mapped.show("b", "u:1") == "b+u:1"
    assert mapped.find("b+u:1") == ("b", "u:1")
    assert mapped.find("u:1") == ("a", "u:1")
    assert mapped.show("b", "u:2") == "u:2"
    assert (mapped.has_prefixed_uris("a"), mapped.has_prefixed_uris("b")) == (False, True)


def test_a_conflict_is_told_once() -> None:
    mapped = owners()
    mapped.record({"a": ["u:1"], "b": ["u:1"]})
    assert mapped.record({"a": ["u:1"], "b": ["u:1"]}) == {}
    assert mapped.record({"a": ["u:1", "u:2"], "b": ["u:1", "u:2"]}) == {"u:2": ("a", "b")}


def test_who_was_first_keeps_the_uri_while_it_lists_it() -> None:
    mapped = owners()
    mapped.record({"b": ["u:1"]})
    # The first in the order of the parts comes late.
    mapped.record({"a": ["u:1"], "b": ["u:1"]})
    assert (mapped.show("a", "u:1"), mapped.show("b", "u:1")) == ("a+u:1", "u:1")
    mapped.record({"a": ["u:1"], "b": []})
    assert mapped.show("a", "u:1") == "u:1"


def test_a_part_that_does_not_answer_keeps_its_uris() -> None:
    mapped = owners()
    mapped.record({"a": ["u:1"], "b": []})
    mapped.record({"b": ["u:1"]})
    assert mapped.find("u:1") == ("a", "u:1")
    assert mapped.show("b", "u:1") == "b+u:1"


def test_a_part_that_is_dropped_leaves_its_uris_to_others() -> None:
    mapped = owners()
    mapped.record({"a": ["u:1"], "b": ["u:1"]})
    mapped.drop("a")
    mapped.record({"b": ["u:1"]})
    assert mapped.find("u:1") == ("b", "u:1")
    assert not mapped.has_prefixed_uris("b")


def test_uris_from_a_template_with_a_prefix_have_it_too() -> None:
    mapped = owners()
    mapped.record({"a": ["t://{x}"], "b": ["t://{x}", "t://own"]})
    assert mapped.show("b", "t://{x}") == "b+t://{x}"
    assert mapped.show("b", "t://5") == "b+t://5"
    assert mapped.find("b+t://5") == ("b", "t://5")
    # Listed by itself, so it is nobody else's.
    assert mapped.show("b", "t://own") == "t://own"
    assert mapped.show("b", "other:5") == "other:5"
    assert mapped.show("a", "t://5") == "t://5"


def test_a_plus_in_a_uri_is_no_prefix_of_a_part_without_conflicts() -> None:
    mapped = owners()
    mapped.record({"git": ["u:1"]})
    assert mapped.find("git+ssh://x") == (None, "git+ssh://x")
